"""Readings from arrays: accepted forms, and the errors for others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import headscope
from headscope import Reading
from headscope.errors import ReadingError
from tests.helpers import tiny

LAYERS, TOKENS, HEADS, WIDTH = 3, 5, 2, 4
NAMES = ["the", "cat", ".", "the", "dog"]
RANDOM = np.random.default_rng(3)
OUTPUTS = RANDOM.normal(size=(LAYERS, TOKENS, HEADS, WIDTH))
MAPS = RANDOM.dirichlet(np.ones(TOKENS), (LAYERS, HEADS, TOKENS))


def make(outputs: Any = OUTPUTS, attention: Any = MAPS, tokens: Any = NAMES, **options: Any) -> Reading:
    return Reading.from_arrays(tokens, outputs, attention, **options)


@pytest.fixture(scope="module")
def reading() -> Reading:
    return make()


# Accepted


def test_arrays_keep_their_numbers(reading: Reading):
    assert reading.outputs.values.tolist() == OUTPUTS.tolist()
    assert reading.attention.values.tolist() == MAPS.tolist()
    assert reading.tokens.values.tolist() == NAMES
    assert (reading.layers, reading.head_numbers, len(reading)) == ([0, 1, 2], [0, 1], 5)
    outputs = OUTPUTS[2, :, 1]
    np.testing.assert_allclose(reading.matrix(2, 1).values, outputs @ outputs.T * (1 - np.eye(5)), atol=1e-12)


FORMS = {
    "torch": torch.from_numpy,
    "torch with gradients": lambda array: torch.from_numpy(array).requires_grad_(),
    "a list of layers": list,
    "a tuple of layers": tuple,
    "nested lists": lambda array: array.tolist(),
    "a list of torch layers": lambda array: list(torch.from_numpy(array)),
    "a batch of one": lambda array: array[:, None],
    "a tuple of batches of one": lambda array: tuple(torch.from_numpy(array[:, None]).requires_grad_()),
    "another order in memory": np.asfortranarray,
    "big endian": lambda array: array.astype(">f8"),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_reading(reading: Reading, form: str):
    other = make(FORMS[form](OUTPUTS), FORMS[form](MAPS))
    assert other.outputs.values.tolist() == OUTPUTS.tolist()
    assert other.attention.values.tolist() == MAPS.tolist()
    assert other.pairs().equals(reading.pairs())
    assert other.lines(1).equals(reading.lines(1))


@pytest.mark.parametrize(
    ("dtype", "kept_dtype"),
    [
        (torch.bfloat16, "float32"),
        (torch.float16, "float32"),
        (torch.float32, "float32"),
        (torch.float64, "float64"),
        (torch.int64, "float64"),
    ],
)
def test_dtypes(dtype: torch.dtype, kept_dtype: str):
    tensor = torch.from_numpy(OUTPUTS * 4).to(dtype)
    reading = make(tensor, torch.from_numpy(MAPS).to(dtype) if dtype.is_floating_point else MAPS)
    assert reading.outputs.dtype == kept_dtype
    assert torch.equal(torch.from_numpy(reading.outputs.values.copy()).to(dtype), tensor)
    if dtype is not torch.bfloat16:
        assert make(tensor.numpy()).outputs.dtype == kept_dtype


def test_whole_numbers_stay_exact():
    large = np.full((1, 2, 1, 1), 2**24 + 1)
    assert Reading.from_arrays(["a", "b"], large).matrix(0, 0).values[0, 1] == (2**24 + 1) ** 2


@pytest.mark.parametrize("form", [np.asarray, list, torch.from_numpy])
def test_arrays_may_be_used_again(form: Any):
    outputs, maps = OUTPUTS.copy(), MAPS.copy()
    reading = make(form(outputs), form(maps))
    outputs[:] = maps[:] = 0
    assert reading.outputs.values.tolist() == OUTPUTS.tolist()
    assert reading.attention.values.tolist() == MAPS.tolist()


def test_what_transformers_gives_makes_the_same_reading_as_the_model():
    model, text = tiny.model("bert"), "the cat sat. the dog ran!"
    read = headscope.read(model, text, length=40)
    inputs = model.tokens.tokenizer(text, return_tensors="pt")
    with torch.inference_mode():
        maps = model.network(**inputs, output_attentions=True).attentions
    assert isinstance(maps, tuple)
    own = Reading.from_arrays(
        model.tokens.names(inputs.input_ids[0].tolist()),
        list(read.outputs.values),
        maps,
        ids=inputs.input_ids,
        special=read.tokens["special"].values,
    )
    np.testing.assert_allclose(own.attention.values, read.attention.values, atol=1e-6)
    assert own.pairs(words=True, special=False).equals(read.pairs(words=True, special=False))
    assert own.dominant().equals(read.dominant())
    assert own.tokens["sentence"].values.tolist() == read.tokens["sentence"].values.tolist()


def test_outputs_alone():
    alone = make(attention=None)
    assert not alone.has_attention
    assert alone.pairs().equals(make().pairs())


def test_equal_tokens_are_those_of_equal_text(reading: Reading):
    assert reading.tokens["token_id"].values.tolist() == [0, 1, 2, 0, 3]
    assert make(tokens=["the", "The", "Ġthe", "the", " the"]).tokens["token_id"].values.tolist() == [0, 1, 2, 0, 3]


@pytest.mark.parametrize("ids", [[7, 8, 9, 7, 7], np.array([[7, 8, 9, 7, 7]]), torch.tensor([7, 8, 9, 7, 7])])
def test_or_of_equal_ids(ids: Any):
    assert make(ids=ids).tokens["token_id"].values.tolist() == [7, 8, 9, 7, 7]


def test_ids_stay_exact():
    ids = [2**24, 2**24 + 1, 2**40, 2**40 + 1, 0]
    assert make(ids=torch.tensor(ids)).tokens["token_id"].values.tolist() == ids


@pytest.mark.parametrize("special", [[1, 0, 0, 0, 1], [True, False, False, False, True], torch.tensor([1, 0, 0, 0, 1])])
def test_special_tokens(special: Any):
    reading = make(special=special)
    assert reading.tokens["special"].values.tolist() == [True, False, False, False, True]
    assert reading.tokens["special"].dtype == bool
    assert not set(reading.pairs(special=False)["index_i"]) & {0, 4}


def test_tokens_of_numpy_and_of_any_iterable(reading: Reading):
    for tokens in (np.array(NAMES), np.array(NAMES, dtype=object), tuple(NAMES), iter(NAMES)):
        assert make(tokens=tokens).tokens.values.tolist() == NAMES
    assert reading.text == "the cat . the dog"


def test_sentences_and_words_go_by_the_tokens():
    reading = make(tokens=["▁air", "port", "▁.", "▁a", "b"])
    assert reading.tokens["sentence"].values.tolist() == [0, 0, 0, 1, 1]
    assert reading.tokens["word"].values.tolist() == [0, 0, 1, 2, 2]
    assert make(tokens=["a", "b</w>", "?</w>", "c", "d</w>"]).tokens["sentence"].values.tolist() == [0, 0, 0, 1, 1]


def test_the_thresholds_and_the_name_are_kept():
    reading = make(theta=0.5, tau=0.1, name="my arrays")
    assert (reading.theta, reading.tau, reading.manifest["model"]) == (0.5, 0.1, "my arrays")
    assert repr(reading) == "<Reading of my arrays: 3 layers × 2 heads, 5 tokens: the cat . the dog>"


def test_halves_of_characters_are_shown_as_such_and_still_told_apart():
    reading = make(tokens=["\ud800", "\udfff", "a\udc00b", "\ud800", "c"], name="half \ud800")
    assert reading.tokens.values.tolist() == ["�", "�", "a�b", "�", "c"]
    assert reading.tokens["token_id"].values.tolist() == [0, 1, 2, 0, 3]
    assert reading.text == "� � a�b � c"
    assert set(reading.pairs()["token_i"]) <= {"�", "a�b", "c"}
    assert reading.manifest["model"] == "half �"


# Refused


def swap_axes(array: np.ndarray, one: int, other: int) -> np.ndarray:
    return np.swapaxes(array, one, other)


def set_value(array: np.ndarray, value: float) -> np.ndarray:
    changed = array.copy()
    changed[1, 0, 1, 2] = value
    return changed


SHAPE = r"these axes are needed, of one text: \(layer, position, head, width\)"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"outputs": OUTPUTS[0]}, rf"outputs have the shape \(5, 2, 4\), where {SHAPE}"),
        ({"outputs": OUTPUTS[None, None]}, SHAPE),
        ({"outputs": np.stack([OUTPUTS, OUTPUTS], axis=1)}, rf"shape \(3, 2, 5, 2, 4\), where {SHAPE}"),
        ({"outputs": OUTPUTS[..., :0]}, SHAPE),
        ({"outputs": OUTPUTS[:0]}, SHAPE),
        ({"outputs": 3.0}, SHAPE),
        ({"outputs": []}, r"outputs cannot be combined .*arrays of numpy or torch"),
        ({"outputs": None}, r"outputs are of the type object: real numbers are needed"),
        (
            {"outputs": swap_axes(OUTPUTS, 1, 2)},
            r"shape \(3, 2, 5, 4\), and there are 5 tokens.*\(layer, position, head",
        ),
        ({"outputs": swap_axes(OUTPUTS, 0, 1)}, r"shape \(5, 3, 2, 4\), and there are 5 tokens"),
        ({"outputs": OUTPUTS[:, :4]}, r"shape \(3, 4, 2, 4\), and there are 5 tokens"),
        ({"tokens": NAMES[:4]}, r"shape \(3, 5, 2, 4\), and there are 4 tokens"),
        ({"outputs": [OUTPUTS[0], OUTPUTS[1, :4]]}, r"outputs have the shape \(2, 4, 2, 4\), and there are 5 tokens"),
        ({"outputs": [[[1, 2], [3]], [[1]]]}, "outputs cannot be combined into one array"),
        ({"outputs": OUTPUTS.astype(str)}, "outputs are of the type <U"),
        ({"outputs": "outputs"}, "outputs are of the type <U"),
        ({"outputs": OUTPUTS.astype(complex)}, "outputs are of the type complex128: real numbers"),
        ({"outputs": OUTPUTS > 0}, "outputs are of the type bool"),
        ({"outputs": torch.from_numpy(OUTPUTS > 0)}, "outputs are of the type bool"),
        ({"outputs": set_value(OUTPUTS, np.nan)}, r"outputs hold a value that is not finite .*layer 1, at \[0, 1, 2\]"),
        ({"outputs": set_value(OUTPUTS, np.inf)}, "outputs hold a value that is not finite"),
        ({"attention": set_value(MAPS, np.nan)}, "attention maps hold a value that is not finite"),
        ({"attention": MAPS[0]}, r"attention maps have the shape \(2, 5, 5\), where .*\(layer, head, query, key\)"),
        ({"attention": MAPS[:2]}, r"shape \(2, 2, 5, 5\) where the outputs ask for \(3, 2, 5, 5\)"),
        ({"attention": MAPS[..., :4]}, r"shape \(3, 2, 5, 4\) where the outputs ask for"),
        ({"attention": swap_axes(MAPS, 0, 1)}, r"shape \(2, 3, 5, 5\) where the outputs ask for"),
        ({"attention": np.moveaxis(MAPS, 1, 3)}, r"shape \(3, 5, 5, 2\) where the outputs ask for"),
        ({"attention": swap_axes(MAPS, 2, 3)}, "row 0 of L0H0 .*rows are queries"),
        ({"attention": MAPS * 1.02}, "row 0 of L0H0 .*sums to 1.02: pass the output of the softmax"),
        ({"attention": set_value(MAPS, 0.9)}, "row 1 of L1H0"),
        ({"attention": np.log(MAPS)}, "pass the output of the softmax"),
        (
            {"attention": np.eye(5) * 3 - 0.4 + np.zeros_like(MAPS)},
            "row 0 of L0H0 holds values from -0.4 and sums to 1:",
        ),
        ({"attention": MAPS.astype(str)}, "attention maps are of the type <U"),
        ({"attention": [MAPS[0], MAPS[1, :1]]}, r"maps .*\(2, 1, 5, 5\) where .* ask for \(3, 2, 5, 5\)"),
        ({"tokens": ["one"]}, "there is one, and it takes two"),
        ({"tokens": []}, "there are none, and it takes two"),
        ({"tokens": "the cat"}, "tokens are a str: give a list of strings"),
        ({"tokens": None}, "tokens are a NoneType"),
        ({"tokens": [1, 2, 3, 4, 5]}, "token 0 is a int: tokens are strings; numbers are given as ids="),
        ({"tokens": ["a", "b", b"c", "d", "e"]}, "token 2 is a bytes"),
        ({"ids": [1, 2]}, "ids has 2 entries for 5 tokens"),
        ({"ids": NAMES}, "ids is of the type <U3: whole numbers"),
        ({"ids": [1.5, 2, 3, 4, 5]}, "ids is of the type float64: whole numbers"),
        ({"ids": [[1, 2], [3]]}, "ids cannot be converted to one array"),
        ({"special": [0, 4]}, "special has 2 entries for 5 tokens: one for each"),
        ({"special": ["no"] * 5}, "special is of the type <U2: true or false"),
        ({"theta": 1.0}, "theta is 1.0: it is a share"),
        ({"theta": -0.3}, "theta is -0.3"),
        ({"theta": None}, "theta is None"),
        ({"tau": 30}, "tau is 30: it is a share"),
        ({"tau": float("nan")}, "tau is nan"),
    ],
)
def test_wrong_arguments_are_errors(arguments: dict[str, Any], message: str):
    with pytest.raises(ReadingError, match=message):
        make(**arguments)


def test_rows_of_narrow_types_sum_to_1_nearly():
    rows = torch.softmax(torch.randn(LAYERS, HEADS, TOKENS, TOKENS, generator=torch.manual_seed(1)), -1)
    assert make(attention=rows.bfloat16()).has_attention
    assert make(attention=rows.half()).has_attention
