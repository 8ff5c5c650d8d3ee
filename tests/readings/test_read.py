"""Readings of models: equal to a study of the same text, labelled, for every model family; and their errors."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from tokenizers import processors
from transformers import PreTrainedTokenizer

import headscope
from headscope import Reading
from headscope.corpus.formats import load_openings
from headscope.errors import CorpusError, HeadscopeError, ModelError, ReadingError, StudyError
from headscope.model.loading import load
from headscope.model.model import Model
from tests.helpers import tiny
from tests.helpers.example_reading import HEADS, make_reading

TEXT = "the cat sat. the dog ran, the owl!"


@pytest.fixture(scope="module")
def bert() -> Model:
    return tiny.model("bert")


@pytest.fixture(scope="module")
def reading(bert: Model) -> Reading:
    return headscope.read(bert, TEXT, length=40)


# A model's reading, and a study of the same text


@pytest.mark.parametrize("kind", ["minilm", "bert", "llama"])
def test_a_study_of_the_same_text_counts_the_same(minilm: Model, kind: str):
    model = minilm if kind == "minilm" else tiny.model(kind)
    text = next(iter(load_openings())).text.lower() if kind == "minilm" else TEXT
    study, reading = headscope.study(model, [text], length=40), headscope.read(model, text, length=40)
    sums, ids, sentence = study.data, reading.tokens["token_id"].values, reading.tokens["sentence"].values
    dominant = reading.dominant().set_index(["layer", "head_number"])
    assert reading.layers == study.layers
    assert reading.head_numbers == study.head_numbers
    for layer in reading.layers:
        for head in reading.head_numbers:
            table = reading.pairs(layer, head)
            i, j = table["index_i"].to_numpy(), table["index_j"].to_numpy()
            counted = {
                "pairs": len(table),
                "equal": (ids[i] == ids[j]).sum(),
                "same": (sentence[i] == sentence[j]).sum(),
                "equal_same": ((ids[i] == ids[j]) & (sentence[i] == sentence[j])).sum(),
                "distance_sum": (j - i).sum(),
            }
            near = int(sums["near_threshold"][layer, head])
            for name, count in counted.items():
                allowed = near * (40 if name == "distance_sum" else 1)
                assert abs(int(sums[name][layer, head]) - count) <= allowed, (layer, head, name)
            if not near:
                share = float(sums["dominant_share_sum"][layer, head])
                np.testing.assert_allclose(np.nan_to_num(dominant.loc[(layer, head), "share"]), share)
    n = len(reading)
    np.testing.assert_allclose(sums["attention"].values[..., :n, :n], reading.attention.values, atol=1e-5)
    assert int(sums["pairs"].sum()) > 50


def test_lines_are_those_of_a_study(bert: Model, reading: Reading):
    summed = headscope.study(bert, [TEXT], length=40).data["attention_without_lines"].values
    for layer in reading.layers:
        zeroed = np.flatnonzero(summed[layer, : len(reading), : len(reading)].sum(axis=0) == 0)
        assert reading.lines(layer)["index"].tolist() == zeroed.tolist()


def test_there_is_no_padding(bert: Model, reading: Reading):
    ids = bert.tokens.tokenizer(TEXT).input_ids
    assert reading.tokens["token_id"].values.tolist() == ids
    assert len(reading) == len(ids) < 40
    other = headscope.read(bert, TEXT, length=len(ids))
    xr.testing.assert_equal(reading.data, other.data)


def test_the_labels_of_every_array(reading: Reading):
    n, lh = len(reading), ("layer", "head")
    tokens = ["[CLS]", "the", "c", "##a", "##t", "s", "##a", "##t", ".", "the"]
    assert reading.tokens.dims == ("position",)
    assert reading.tokens.values.tolist()[:10] == tokens
    assert set(reading.tokens.coords) >= {"position", "token_id", "special", "sentence", "word", "start", "end"}
    assert reading.outputs.dims == ("layer", "position", "head", "width")
    assert reading.outputs.shape == (2, n, 4, 8)
    assert reading.attention.dims == (*lh, "query", "key")
    assert reading.similarity.dims == (*lh, "position_i", "position_j")
    assert reading.similarity.shape == reading.attention.shape == (2, 4, n, n)
    for array in (reading.outputs, reading.attention, reading.similarity):
        assert array["layer"].values.tolist() == [0, 1]
        assert array["head"].values.tolist() == [0, 1, 2, 3]
    for array, rows, columns in (
        (reading.attention, "query", "key"),
        (reading.similarity, "position_i", "position_j"),
    ):
        assert array[rows].values.tolist() == array[columns].values.tolist() == list(range(n))
    assert reading.attention["query_token"].values.tolist() == reading.tokens.values.tolist()
    assert reading.attention["key_token"].dims == ("key",)
    assert reading.similarity.sel(layer=1, head=2, position_i=3, position_j=8)["token_j"].item() == "."


def test_one_matrix_is_a_part_of_all(reading: Reading):
    both = {"layer": 1, "head": 3}
    xr.testing.assert_identical(reading.matrix(1, 3), reading.similarity.sel(both))
    np.testing.assert_array_equal(reading.attention_map(1, 3).values, reading.attention.sel(both).values)
    np.testing.assert_allclose(reading.matrix(1, "sum").values, reading.similarity.sel(layer=1).sum("head").values)
    np.testing.assert_allclose(
        reading.attention_map(1, "sum").values, reading.attention.sel(layer=1).sum("head").values, rtol=1e-6
    )
    assert reading.matrix(1, "sum")["head"].item() == "sum"
    assert reading.attention_map(0, "sum")["key_token"].values[1] == "the"


def test_similarities_are_products_of_outputs_in_float64(reading: Reading):
    outputs = reading.outputs.sel(layer=1, head=2).values.astype(np.float64)
    expected = outputs @ outputs.T
    np.fill_diagonal(expected, 0)
    assert reading.matrix(1, 2).values.tolist() == expected.tolist()
    assert reading.matrix(1, 2).dtype == np.float64


def test_attention_rows_sum_to_1(reading: Reading):
    np.testing.assert_allclose(reading.attention.sum("key").values, 1, atol=1e-5)


def test_places_in_the_text(reading: Reading):
    tokens = reading.tokens
    for token, start, end, special in zip(
        tokens.values, tokens["start"].values, tokens["end"].values, tokens["special"].values, strict=True
    ):
        assert (start, end) == (-1, -1) if special else TEXT[start:end] == token.removeprefix("##")
    assert reading.text == TEXT
    assert tokens["special"].values.tolist() == [True, *[False] * (len(reading) - 2), True]
    assert tokens["sentence"].values[[0, 8, 9, -1]].tolist() == [0, 0, 1, 2]
    assert reading.word_labels().tolist()[:6] == ["[CLS]", "the", "cat", "sat", ".", "the"]


def test_sentences_by_the_text(bert: Model):
    by_tokens, by_text = (
        headscope.read(bert, "Dr. Ito left. She ran.", length=40, sentences=mode).tokens["sentence"].values
        for mode in ("tokens", "text")
    )
    assert by_tokens.max() == 3
    assert by_text.max() == 1


def test_special_false_only_drops(reading: Reading):
    pairs, without_special = reading.pairs(), reading.pairs(special=False)
    special = reading.tokens["special"].values
    expected = pairs[~(special[pairs["index_i"]] | special[pairs["index_j"]])].reset_index(drop=True)
    assert without_special.equals(expected)
    assert 0 < len(without_special) < len(pairs)


def test_several_heads_say_which_a_row_belongs_to(reading: Reading):
    columns = ["token_i", "token_j", "index_i", "index_j", "value", "relative"]
    table = reading.pairs(layer=1, head=[3, 0])
    assert list(table.columns) == ["head", "layer", "head_number", *columns]
    assert table["head"].unique().tolist() == ["L1H3", "L1H0"]
    assert list(dict.fromkeys(zip(table["layer"], table["head_number"], strict=True))) == [(1, 3), (1, 0)]
    part = table[table["head"] == "L1H3"].reset_index(drop=True)
    assert part[columns].equals(reading.pairs(1, 3))
    assert len(reading.pairs()) == sum(len(reading.pairs(a, b)) for a in range(2) for b in range(4))
    assert len(reading.pairs([0, 1], "sum")) == len(reading.pairs(0, "sum")) + len(reading.pairs(1, "sum"))
    assert set(reading.pairs(head="sum")["head"]) == {"L0sum", "L1sum"}


@pytest.mark.parametrize("heads", [[0, 2], (0, 2), range(0, 4, 2), np.array([0, 2]), iter([0, 2]), [0, 0, 2]])
def test_heads_are_named_in_many_ways(reading: Reading, heads: Any):
    assert reading.dominant(1, heads)["head"].tolist() == ["L1H0", "L1H2"]


def test_heads_are_selected_by_the_names_of_tables(reading: Reading):
    names = reading.dominant()["head"].tolist()
    assert reading.pairs(head=names).equals(reading.pairs())
    assert reading.pairs(head="L1H3").equals(reading.pairs(1, 3))
    assert reading.pairs(head="L1sum").equals(reading.pairs(1, "sum"))
    assert reading.dominant(head=["L1H3", "L0sum", "L1H3"])["head"].tolist() == ["L1H3", "L0sum"]
    for arguments, message in (
        ({"head": "L9H0"}, "no layer 9: this reading has layers 0, 1"),
        ({"head": "L0H9"}, "no head 9"),
        ({"head": "L3"}, "'L3' .*: write L11H8"),
        ({"head": "H3"}, "no head H3"),
        ({"layer": 1, "head": "L1H3"}, "L1H3 names its layer: leave `layer` out"),
        ({"head": []}, "the list given is empty"),
    ):
        with pytest.raises(ReadingError, match=message):
            reading.pairs(**arguments)


@pytest.mark.parametrize("zero", [0, np.int64(0), 0.0, np.array(0), xr.DataArray(0)])
def test_one_layer_is_named_in_many_ways(reading: Reading, zero: Any):
    assert reading.pairs(zero, 1).equals(reading.pairs(0, 1))
    assert "layer" not in reading.pairs(zero, zero)
    xr.testing.assert_identical(reading.matrix(zero, zero), reading.matrix(0, 0))


def test_tokens_are_text_whether_or_not_all_heads_have_pairs():
    pairs = make_reading([[[0]] * 3, [[1]] * 3]).pairs()
    assert pairs.dtypes.tolist() == make_reading([[[1]] * 3, [[1]] * 3]).pairs().dtypes.tolist()


def test_select_by_name(reading: Reading):
    for names, numbers in (
        ({"layers": "L1", "heads": "H2,H0"}, {"layers": 1, "heads": [2, 0]}),
        ({"heads": "L1H2,L1H0"}, {"layers": 1, "heads": [2, 0]}),
        ({"layers": "0-1"}, {"layers": [0, 1]}),
        ({"layers": [1], "heads": "H2"}, {"layers": 1, "heads": 2}),
    ):
        assert reading.select(**names).data.identical(reading.select(**numbers).data)
    with pytest.raises(ReadingError, match="layer 9: the reading has layers 0 to "):
        reading.select(heads="L9H0")


def test_select(reading: Reading):
    part = reading.select(layers=1, heads=[2, 0])
    assert (part.layers, part.head_numbers, len(part)) == ([1], [2, 0], len(reading))
    assert part.pairs(1, 2).equals(reading.pairs(1, 2))
    np.testing.assert_allclose(
        part.matrix(1, "sum").values, reading.matrix(1, 2).values + reading.matrix(1, 0).values, rtol=1e-12
    )
    assert part.attention.shape == (1, 2, len(reading), len(reading))
    xr.testing.assert_identical(part.attention.sel(head=0), reading.attention.sel(layer=[1], head=0))
    assert reading.select().pairs().equals(reading.pairs())
    with pytest.raises(ReadingError, match="no head 1: this reading has heads 2, 0"):
        part.pairs(1, 1)
    with pytest.raises(ReadingError, match="no layer 0: this reading has layers 1"):
        part.select(layers=0)


def test_a_text_is_cut_at_the_length(bert: Model, reading: Reading):
    short = headscope.read(bert, TEXT + " \n", length=10)
    assert len(short) == 10
    assert short.tokens.values.tolist() == [*reading.tokens.values.tolist()[:9], "[SEP]"]
    assert short.text == "the cat sat."
    assert short.manifest["tokens_in_text"] == len(reading)
    assert (short.leaves_out, reading.leaves_out) == (True, False)
    assert f"10 tokens, the first of {len(reading)}: " in repr(short)
    assert short.manifest["length"] == 10
    assert reading.manifest["tokens_in_text"] == len(reading)


def test_the_manifest_says_how(bert: Model):
    reading = headscope.read(bert, TEXT, length=40, theta=0.4, tau=0.1, command="headscope read …")
    manifest = reading.manifest
    assert (manifest["kind"], manifest["model_type"]) == ("reading", "bert")
    assert (manifest["layers"], manifest["heads"]) == (2, 4)
    assert (manifest["theta"], manifest["tau"], manifest["command"]) == (0.4, 0.1, "headscope read …")
    assert manifest["weight_hash"] == bert.weight_hash
    assert "torch" in manifest["versions"]
    assert (reading.theta, reading.tau, reading.size) == (0.4, 0.1, f"2 layers × 4 heads, {len(reading)} tokens")


def test_a_reading_shows_itself_in_one_harmless_line(bert: Model):
    assert repr(headscope.read(bert, "the\n owl\x1b[31m \u202esat", length=40)).endswith("tokens: the owl [31m sat>")
    assert repr(headscope.read(bert, "a " * 50, length=40)).endswith("a a …>")


# Models


@pytest.mark.parametrize("kind", ["bert", "albert", "llama", "jamba", "mpnet", "bloom", "t5", "qwen3_next"])
def test_families_read(kind: str):
    model, family = tiny.model(kind), tiny.FAMILIES[kind]
    reading = headscope.read(model, TEXT, length=32)
    (stack, numbers), n = next(iter(family.stacks.items())), len(reading)
    assert tuple(reading.layers) == numbers
    assert reading.manifest["stack"] == stack
    assert reading.attention.shape == (len(numbers), tiny.HEADS, n, n)
    assert reading.outputs.shape[:3] == (len(numbers), n, tiny.HEADS)
    np.testing.assert_allclose(reading.attention.sum("key").values, 1, atol=1e-5)
    assert (np.triu(reading.attention.values, 1) == 0).all() == (stack == "decoder")
    assert len(reading.dominant()) == len(numbers) * tiny.HEADS
    assert len(reading.pairs()) > 0
    assert reading.regions(numbers[0], 0, lines_of="sum").shape[0] == len(reading.blocks(numbers[0]))


@pytest.mark.parametrize(
    ("dtype", "kept_dtype"), [(torch.float64, "float64"), (torch.float32, "float32"), (torch.bfloat16, "float32")]
)
def test_dtypes(dtype: torch.dtype, kept_dtype: str):
    model = load(tiny.network("bert").to(dtype), tiny.tokenizer())
    reading = headscope.read(model, TEXT, length=40)
    exact = headscope.read(load(tiny.network("bert").double(), tiny.tokenizer()), TEXT, length=40)
    assert reading.manifest["dtype"] == str(dtype).removeprefix("torch.")
    assert reading.outputs.dtype == kept_dtype
    np.testing.assert_allclose(reading.attention.sum("key").values, 1, atol=1e-2)
    scale = np.abs(exact.outputs.values).max()
    tolerance = 0.1 if dtype is torch.bfloat16 else 1e-5
    np.testing.assert_allclose(reading.outputs.values, exact.outputs.values, atol=tolerance * scale)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    tiny.network("bert").save_pretrained(path)
    tiny.tokenizer().save_pretrained(path)
    return path


@pytest.mark.parametrize("kind", [str, Path])
def test_a_model_given_by_name(folder: Path, reading: Reading, kind: Any):
    named = headscope.read(kind(folder), TEXT, length=40)
    assert named.manifest["model"] == str(folder)
    np.testing.assert_allclose(named.outputs.values, reading.outputs.values, atol=1e-6)


def test_a_path_that_is_not_there_is_not_asked_for_on_the_hub():
    with pytest.raises(ModelError, match="nowhere/model: no such folder"):
        headscope.read(Path("nowhere/model"), TEXT)


def test_a_network_without_its_tokenizer(bert: Model):
    with pytest.raises(ModelError, match="needs its tokenizer"):
        headscope.read(bert.network, TEXT)


class Slow(PreTrainedTokenizer):
    """A tokenizer written in Python, which has no offsets."""

    def __init__(self) -> None:
        self.ids = {token: k for k, token in enumerate(tiny.VOCABULARY)}
        super().__init__(pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]")

    @property
    def vocab_size(self) -> int:
        return len(self.ids)

    def get_vocab(self) -> dict[str, int]:
        return dict(self.ids)

    def _tokenize(self, text: str, **options: Any) -> list[str]:
        pieces = text.replace(".", " .").replace(",", " ,").replace("!", " !").split()
        return [
            piece
            for word in pieces
            for piece in ([word] if word in self.ids else [word[0], *(f"##{letter}" for letter in word[1:])])
        ]

    def _convert_token_to_id(self, token: str) -> int:
        return self.ids.get(token, 1)

    def _convert_id_to_token(self, index: int) -> str:
        return tiny.VOCABULARY[index]

    def build_inputs_with_special_tokens(self, first: list[int], second: list[int] | None = None) -> list[int]:
        return [2, *first, 3]

    def num_special_tokens_to_add(self, pair: bool = False) -> int:
        return 2


def test_a_tokenizer_without_offsets(reading: Reading):
    slow = load(tiny.network("bert"), Slow())
    slow_reading = headscope.read(slow, TEXT, length=40)
    assert slow_reading.tokens.values.tolist() == reading.tokens.values.tolist()
    assert slow_reading.tokens["word"].values.tolist() == reading.tokens["word"].values.tolist()
    assert set(slow_reading.tokens["start"].values) == set(slow_reading.tokens["end"].values) == {-1}
    assert slow_reading.text == TEXT
    assert slow_reading.pairs(words=True).equals(reading.pairs(words=True))
    with pytest.raises(CorpusError, match="--sentences tokens"):
        headscope.read(slow, TEXT, length=40, sentences="text")


# Errors


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda r: r.pairs(2, 0), "no layer 2: this reading has layers 0, 1"),
        (lambda r: r.pairs(0, 4), "no head 4: this reading has heads 0, 1, 2, 3"),
        (lambda r: r.pairs(-1, 0), "no layer -1"),
        (lambda r: r.pairs([0, 5, 7], 0), "no layer 5, 7"),
        (lambda r: r.pairs(0, []), "no head chosen: the list given is empty"),
        (lambda r: r.pairs(0, "max"), "no head max"),
        (lambda r: r.pairs(0.5, 0), "no layer 0.5"),
        (lambda r: r.matrix(None, 0), "no layer None"),
        (lambda r: r.matrix(0, None), "no head None"),
        (lambda r: r.attention_map(9, "sum"), "no layer 9"),
        (lambda r: r.lines("sum"), "no layer sum"),
        (lambda r: r.lines([0, 1]), "layers 0, 1: give one layer at a time"),
        (lambda r: r.matrix(0, [1, 2]), "heads 1, 2: give one head at a time"),
        (lambda r: r.regions(0, 0, lines_of=7), "no head 7"),
        (lambda r: r.blocks(0, 8), "no head 8"),
        (lambda r: r.dominant(8), "no layer 8"),
        (lambda r: r.select(layers=[]), "no layer chosen"),
        (lambda r: r.select(heads="sum"), "heads 'sum': not a head"),
        (lambda r: r.pairs(0, 0, 1), "theta is 1: it is a share of the maximum"),
        (lambda r: r.pairs(0, 0, -0.1), "theta is -0.1"),
        (lambda r: r.pairs(0, 0, float("nan")), "theta is nan"),
        (lambda r: r.pairs(0, 0, "high"), "theta is high"),
        (lambda r: r.dominant(theta=2), "theta is 2"),
        (lambda r: r.lines(0, tau=1.5), "tau is 1.5"),
        (lambda r: r.regions(0, 0, -1), "tau is -1"),
    ],
)
def test_what_is_not_there_is_said(reading: Reading, call: Any, message: str):
    with pytest.raises(ReadingError, match=message.replace("[", r"\[")):
        call(reading)


def test_many_heads_are_listed_as_a_range():
    many = make_reading([[[1]] * 3] * 6)
    with pytest.raises(ReadingError, match=r"this reading has heads 0 to 5$"):
        many.pairs(0, 6)
    with pytest.raises(ReadingError, match=r"this reading has heads 0, 1, 2, 3, 5$"):
        many.select(heads=[0, 1, 2, 3, 5]).pairs(0, 4)


@pytest.mark.parametrize("method", ["lines", "blocks", "attention_map", "regions"])
def test_outputs_alone_have_no_lines(method: str):
    alone = make_reading(HEADS)
    assert not alone.has_attention
    with pytest.raises(ReadingError, match="no attention maps"):
        getattr(alone, method)(0, 0)
    with pytest.raises(ReadingError, match="no attention maps"):
        _ = alone.attention


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", {}, "the text is empty"),
        (" \n\t", {}, "the text is empty"),
        ("[CLS] [SEP] [PAD]", {}, "the text is only special tokens"),
        (b"bytes", {}, "the text is a bytes: give it as a string"),
        (["a", "b"], {}, "the text is a list"),
        (None, {}, "the text is a NoneType"),
        ("a half \ud800", {}, "cannot read this text"),
        (TEXT, {"length": 49}, "length is 49, but BertModel has positions for 48 tokens"),
        (TEXT, {"length": 2}, "length is 2"),
        (TEXT, {"length": 0}, "length is 0"),
        (TEXT, {"theta": 0}, "theta is 0"),
        (TEXT, {"theta": 1.0}, "theta is 1.0"),
        (TEXT, {"tau": -1}, "tau is -1"),
        (TEXT, {"sentences": "words"}, "choose one of tokens, text"),
    ],
)
def test_what_cannot_be_read_is_said(bert: Model, text: Any, options: dict[str, Any], message: str):
    with pytest.raises((ReadingError, StudyError, CorpusError), match=message):
        headscope.read(bert, text, **{"length": 40, **options})


def test_the_name_of_a_file_is_no_text():
    with pytest.raises(ReadingError, match=r"'article\.txt': give what is in it"):
        headscope.read("no/such/model", "article.txt")
    assert len(headscope.read(tiny.model("bert"), headscope.Document("a.txt", "a"), length=8)) > 2


def test_one_word_is_enough_and_one_token_is_not():
    assert len(headscope.read(tiny.model("bert"), "the", length=3)) == 3
    bare = tiny.tokenizer()
    bare.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    alone = load(tiny.network("gpt2"), bare)
    assert len(headscope.read(alone, "the cat", length=3)) == 3
    with pytest.raises(ReadingError, match="it takes two"):
        headscope.read(alone, "the", length=3)


def test_weights_that_are_not_numbers():
    model = tiny.model("bert")
    width = tiny.WIDTH // tiny.HEADS
    with torch.no_grad():
        model.network.encoder.layer[1].attention.self.value.weight[2 * width] = float("nan")
    with pytest.raises(HeadscopeError, match=r"L1H2 are not finite numbers.*float32"):
        headscope.read(model, TEXT, length=40)


def test_maps_that_are_not_finite_are_refused(monkeypatch: pytest.MonkeyPatch):
    model = tiny.model("bert")
    observe = Model.observe

    def observe_damaged(self: Model, batch: Any, see: Any) -> None:
        def damage(layer: int, output: torch.Tensor, maps: torch.Tensor) -> None:
            maps = maps.clone()
            maps[0, 1, 2, 3] = torch.nan
            see(layer, output, maps)

        observe(self, batch, damage)

    monkeypatch.setattr(Model, "observe", observe_damaged)
    with pytest.raises(HeadscopeError, match=r"attention weights of head L0H1 are not finite"):
        headscope.read(model, TEXT, length=40)


def test_blocks_cover_the_text_once(reading: Reading):
    for tau in (0.05, 0.3, 0.9):
        table = reading.blocks(1, 2, tau)
        edges = [0, *table["stop"].tolist()]
        assert table["start"].tolist() == edges[:-1]
        assert edges[-1] == len(reading)
        assert all(a < b for a, b in pairwise(edges))
