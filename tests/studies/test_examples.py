"""Examples and dominant tokens of a study: chosen, merged, saved, and shown without its texts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr

import headscope
from headscope.file_io import save_dataset
from headscope.model.token_text import list_pieces
from headscope.studies.example_arrays import PlainTokens, assign_token_texts, label_tokens, merge_tokens
from headscope.studies.labels import label_sums
from headscope.studies.result import Study, open_study
from headscope.tally.example_store import COUNTS, RATES
from headscope.tally.examples import ExampleTexts
from headscope.tally.quantities import Shape
from headscope.tally.tally import TallySettings
from headscope.tally.token_counts import TokenCounts
from tests.helpers import tiny
from tests.helpers.hostile import HOSTILE
from tests.helpers.interrupting import OPTIONS
from tests.helpers.synthetic import make_masked_maps, make_random_study, manifest, study_of, tally, window

COUNTING = TallySettings(Shape(1, 2, 16, width=2), 0.3, 0.3, 1.0)


def make_study(seed: int, texts: int = 12, **changes: object) -> Study:
    """Return a study of random texts, most of whose pairs are high."""
    random = np.random.default_rng(seed)
    windows = [window(random.integers(3, 9, 12).tolist()) for _ in range(texts)]
    output = torch.from_numpy(random.normal(1, 0.6, (texts, 12, 2, 2)))
    maps = make_masked_maps(random, windows, 2, 12)
    return study_of(tally("torch", COUNTING, windows, [output], [maps]), examples=1, **changes)


def test_typical_are_nearest_to_the_mean_and_strongest_the_highest():
    study = make_study(0)
    counts = study.data["sketch_counts"].values[:, 0, 1]
    rates = counts[:, 1] / counts[:, 0]
    mean = float(study.rate("repeat_rate").sel(layer=0, head=1))
    typical = study.examples(0, 1, "typical", "repeat_rate", count=3)
    enough = rates[counts[:, 0] >= 10]
    assert [example.value for example in typical] == sorted(enough, key=lambda rate: abs(rate - mean))[:3]
    strongest = study.examples(0, 1, "strongest", "repeat_rate")
    assert [example.value for example in strongest] == sorted(enough, reverse=True)[:2]
    for example in (*typical, *strongest):
        assert (example.head, example.rate, example.mean) == ("L0H1", "repeat_rate", mean)
        assert example.pair_count >= 10
        assert example.pairs[0].similarity == 1
        assert all(0 <= pair.i < pair.j < len(example.tokens) for pair in example.pairs)
        assert example.text == " ".join(example.tokens)


def test_each_rate_has_its_own_examples_and_one_names_the_head():
    study = make_study(1)
    for rate in RATES:
        (example,) = study.examples(0, 0, "strongest", rate, count=1)
        assert example.rate == rate
    assert study.examples(0, 0)[0].rate in RATES


def test_dominant_tokens_are_counted_for_all_texts():
    study = make_study(2)
    table = study.dominant_tokens(0, 0, top=100)
    assert table["texts"].sum() == int(study.data["texts_with_pairs"][0, 0]) == 12
    assert table["share"].sum() == pytest.approx(1)
    assert (table["texts"].diff().dropna() <= 0).all()
    assert table["token"].tolist() == [f"t{k}" for k in table["token_id"]]
    assert len(study.dominant_tokens(0, 0, top=2)) == 2


def test_merged_studies_have_the_examples_of_both(tmp_path: Path):
    model = tiny.model("bert")
    texts = [f"the cat number {k} sat on a mat . the {'dog ' * (k % 5)} ran ." for k in range(24)]
    options = {**OPTIONS, "sample": 1.0}
    paths = []
    for name, part in (("a", texts[:9]), ("b", texts[9:])):
        paths.append(tmp_path / f"{name}.txt")
        paths[-1].write_text("\n\n".join(part))
    whole = headscope.study(model, headscope.documents(paths), **options)
    first, second = (headscope.study(model, headscope.documents([path]), **options) for path in paths)
    for merged in (first.merge(second), second.merge(first)):
        merged.save(tmp_path)
        opened = open_study(tmp_path)
        assert opened.dominant_tokens(0, 0, 50).equals(whole.dominant_tokens(0, 0, 50))
        names = [name for name in whole.data.variables if str(name).startswith(("dominant_entry", "shown_token"))]
        for name in names:
            assert opened.data[name].values.tolist() == whole.data[name].values.tolist(), name
        for kind in ("typical", "strongest"):
            for rate in RATES:
                tokens = [
                    [(e.token_ids, e.pair_count) for e in study.examples(0, 1, kind, rate)] for study in (opened, whole)
                ]
                assert tokens[0] == tokens[1]


def test_one_with_and_one_without_examples_are_not_merged():
    model = tiny.model("bert")
    texts = ["the cat sat on a mat.", "a dog ran."]
    first, second = (
        headscope.study(model, [text], **{**OPTIONS, "examples": keeps})
        for text, keeps in zip(texts, (True, False), strict=True)
    )
    with pytest.raises(headscope.StudyError, match="examples: 1 here, 0 there"):
        first.merge(second)


def test_without_examples_no_text_is_in_the_file(tmp_path: Path):
    text = "unmistakable zebras graze. unmistakable zebras sleep."
    study = headscope.study(tiny.model("bert"), [text], **{**OPTIONS, "examples": False})
    assert study.manifest["excerpts"] == []
    assert not [name for name in study.data.variables if str(name).startswith(("example_", "sketch", "strongest"))]
    path = study.save(tmp_path)
    assert b"zebras graze" not in path.read_bytes()
    with pytest.raises(headscope.StudyError, match="no examples in this study: it was made without them"):
        study.examples(0, 0)
    assert len(study.dominant_tokens(0, 0)) >= 1


def test_selected_heads_keep_their_examples():
    study = make_random_study(layers=3, length=20, examples=1)
    part = study.select([2, 1], heads=1)
    assert part.examples(2, 1, by="repeat_rate") == study.examples(2, 1, by="repeat_rate")
    assert part.dominant_tokens(1, 1).equals(study.dominant_tokens(1, 1))
    with pytest.raises(headscope.StudyError, match="no head L0H1 in the study"):
        part.examples(0, 1)


def test_layers_that_are_not_numbered_from_zero():
    sums = tally(
        "torch", COUNTING, [window([3, 4, 3, 5, 6, 7])], [torch.ones((1, 6, 2, 2))], [torch.full((1, 2, 6, 6), 1 / 6)]
    )
    data = label_sums(sums, lambda ids: [f"t{k}" for k in ids], [4]).assign_attrs(manifest(sums.shape, examples=1))
    study = Study(data)
    assert study.dominant_tokens(4, 0)["token"].tolist() == ["t3"]
    assert study.examples(4, 1, by="repeat_rate")[0].head == "L4H1"
    merged = merge_tokens(data, data)
    assert merged["dominant_entry_layer"].values.tolist() == [4, 4]
    assert merged["dominant_entry_count"].values.tolist() == [2, 2]


def test_hostile_tokens_are_escaped():
    sums = tally(
        "torch", COUNTING, [window([3, 4, 3, 5, 6, 7])], [torch.ones((1, 6, 2, 2))], [torch.full((1, 2, 6, 6), 1 / 6)]
    )
    hostile = [*HOSTILE, "\x1b[2J", "zero\0byte"]
    data = label_sums(sums, lambda ids: [hostile[k % len(hostile)] for k in ids])
    study = Study(data.assign_attrs(manifest(sums.shape, examples=1)))
    examples = study.examples(0, 0, by="repeat_rate")
    for page in (examples[0]._repr_html_(), examples._repr_html_()):
        assert not any(tag in page for tag in ("<script", "<img", "<b>"))
    assert len(study.dominant_tokens(0, 0)) == 1


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("sketch_window", 99, "windows that are not there"),
        ("strongest_window", 99, "windows that are not there"),
        ("example_length", 1, "lengths do not fit"),
        ("sketch_i", 250, "pairs that their texts do not have"),
        ("dominant_entry_count", 0, "counts of dominant tokens"),
        ("dominant_entry_token", 99, "tokens without a text"),
        ("example_token", 99, "tokens without a text"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, name: str, value: int, message: str):
    study = make_study(3)
    values = study.data[name].values.copy()
    values[...] = value
    path = Study(study.data.assign({name: (study.data[name].dims, values)})).save(tmp_path)
    with pytest.raises(headscope.StudyError, match=message):
        open_study(path)


@pytest.mark.parametrize("name", ["sketch_counts", "shown_token_names", "example_rate"])
def test_files_that_lack_a_part_are_refused(tmp_path: Path, name: str):
    path = Study(make_study(3).data.drop_vars(name)).save(tmp_path)
    with pytest.raises(headscope.StudyError, match="damaged"):
        open_study(path)


def test_studies_of_older_versions_have_none(tmp_path: Path):
    data = make_study(3).data
    old = [
        n for n in data.variables if str(n).startswith(("example_", "sketch", "strongest", "dominant_entry", "shown"))
    ]
    study = open_study(Study(data.drop_vars(old)).save(tmp_path))
    with pytest.raises(headscope.StudyError, match="no examples in this study"):
        study.examples(0, 0)
    with pytest.raises(headscope.StudyError, match="count it again"):
        study.dominant_tokens(0, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "usual"}, "unknown kind of example 'usual'"),
        ({"by": "color"}, "no examples by 'color'"),
        ({"count": 0}, "0 examples: at least 1"),
        ({"head": 7}, "no head L0H7 in the study"),
    ],
)
def test_bad_arguments(arguments: dict, message: str):
    with pytest.raises(headscope.StudyError, match=message):
        make_study(3).examples(**{"layer": 0, "head": 0, **arguments})
    with pytest.raises(headscope.StudyError, match="at least 1"):
        make_study(3).dominant_tokens(0, 0, top=0)


def test_a_head_without_pairs_has_no_examples():
    sums = tally("torch", COUNTING, [window([3, 4, 5])], [torch.zeros((1, 3, 2, 2))], [torch.full((1, 2, 3, 3), 1 / 3)])
    study = study_of(sums, examples=1)
    assert study.examples(0, 0) == study.examples(0, 0, "strongest") == []
    assert len(study.dominant_tokens(0, 0)) == 0


def test_images_have_no_examples_and_their_dominant_tokens_are_patches():
    shape = Shape(1, 2, 16, width=2, examples=False)
    counting = TallySettings(shape, 0.3, 0.3, 1.0)
    sums = tally("torch", counting, [window([0, 1, 2])], [torch.ones((1, 3, 2, 2))], [torch.full((1, 2, 3, 3), 1 / 3)])
    data = label_sums(sums, lambda ids: [f"r{k}c0" for k in ids], modality="image")
    study = Study(data.assign_attrs({**manifest(shape, examples=1), "modality": "image"}))
    with pytest.raises(headscope.StudyError, match="its texts are images"):
        study.examples(0, 0)
    assert study.dominant_tokens(0, 0)["token"].tolist() == ["r0c0"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["[CLS]", "air", "##port", "."], " [CLS]  airport ."),
        (["[CLS]", "▁air", "port", "."], " [CLS]  airport."),
        (["[CLS]", "air", "port</w>", ".</w>"], " [CLS] airport . "),
        (["[CLS]", "air@@", "port", "."], " [CLS] airport . "),
    ],
)
def test_pieces_of_a_text(names: list[str], expected: str):
    labels = [name.removeprefix("▁").removesuffix("</w>").removesuffix("@@") for name in names]
    assert "".join(list_pieces(names, labels, [True, False, False, False])) == expected


def test_a_large_study_stores_at_most_five_megabytes(tmp_path: Path):
    # 12 × 12 heads, 128 tokens, as many windows as can be kept, random pairs and counts; and the dominant tokens of
    # 20,000 texts, as frequent as words are.
    random = np.random.default_rng(0)
    shape = Shape(12, 12, 128)
    dominants = TokenCounts(12, 12)
    for layer in range(12):
        dominants.add_layer(layer, random.zipf(1.3, (20_000, 12)).clip(0, 30_000))
    windows = [window((random.zipf(1.3, 128) % 30_000).tolist()) for _ in range(1600)]
    texts = ExampleTexts(windows, shape, 0.3, None)
    for layer in range(12):
        counts = random.integers(10, 8000, (1600, 12, len(COUNTS)))
        counts[..., 0] = 8000  # else a few windows with few pairs would be the strongest of all heads
        texts.set_layer(layer, counts, random.integers(1 << 16, 1 << 24, (1600, 12, 12)).astype(np.int32))
    examples = texts.collect()
    assert len(examples.windows) > 900
    data = xr.Dataset(label_tokens(dominants, examples, range(12), True))
    data = assign_token_texts(data, PlainTokens(lambda ids: [f"token{k}" for k in ids]))
    packed = [name for name, variable in data.variables.items() if variable.dtype.kind in "iuf"]
    path = save_dataset(data, tmp_path / "large.nc", packed, headscope.StudyError)
    assert path.stat().st_size < 5_000_000
