"""Test studies of the bundled model: invariances, manifests, files, merging, errors and interruptions."""

from __future__ import annotations

import hashlib
import inspect
import json
import random
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import xarray as xr
from matplotlib.text import Text

import headscope
from headscope.comparison import result
from headscope.corpus.chunks import ChunkSize
from headscope.corpus.formats import load_openings
from headscope.figures import DRAWINGS, draw
from headscope.model.model import Model
from headscope.run import local_engine, plan
from headscope.settings import Settings
from headscope.studies.findings import as_json, as_markdown
from headscope.studies.rates import RATES
from headscope.studies.result import Study
from headscope.studies.sample_size import describe_errors
from headscope.tally.quantities import BY_NAME
from tests.helpers.study_equality import assert_same_sums
from tests.helpers.synthetic import make_random_study

TEXTS = 12


@pytest.fixture
def small_sections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sections of four texts, each handed over at once."""
    monkeypatch.setattr(plan, "choose_chunk_size", lambda *more: ChunkSize(2, 10**6))
    monkeypatch.setattr(local_engine, "FLUSH_SECONDS", 0.0)


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Bundled openings, every third cut short, so that batches have padding; and some that are skipped."""
    complete = [document.text for document, _ in zip(load_openings(), range(TEXTS), strict=False)]
    shortened = [" ".join(text.split()[: 10 + 7 * k]) if k % 3 == 1 else text for k, text in enumerate(complete)]
    return [*shortened, "", "   \n", "[CLS]", "word"]


@pytest.fixture(scope="module")
def study(minilm: Model, texts: list[str]) -> Study:
    return headscope.study(minilm, texts, batch_size=7)


def hash_texts(texts: Iterable[str]) -> str:
    digests = (hashlib.blake2b(text.encode(), digest_size=16).digest() for text in texts)
    return f"{sum(int.from_bytes(digest, 'little') for digest in digests) % 2**128:032x}"


def test_the_settings_are_keyword_arguments():
    parameters = inspect.signature(headscope.study).parameters
    for setting in fields(Settings):
        parameter = parameters[setting.name]
        # Relations may be given as a function, whose name is the setting.
        expected = "str | FindRelations" if setting.name == "relations" else setting.type
        assert (parameter.default, parameter.annotation) == (setting.default, expected), setting.name
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
        assert f"{setting.name}\n" in headscope.study.__doc__ or f"{setting.name}, " in headscope.study.__doc__
    assert all(parameter.kind is not inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())


def test_every_setting_is_used(minilm: Model):
    changed: dict[str, Any] = {
        "length": 16, "windows": "all", "sentences": "text", "blocks": "windows", "min_tokens": 3, "theta": 0.4,
        "tau": 0.2, "similarity": "centered", "sample": 0.5, "maps": False, "skip_broken": True,
        "relations": "conj", "examples": False,
    }  # fmt: skip
    assert changed.keys() == {setting.name for setting in fields(Settings)}
    manifest = headscope.study(minilm, ["Two ravens met. The ravens left."], **changed).manifest
    assert {name: manifest[name] for name in changed} == changed


@pytest.mark.parametrize("batch_size", [1, 32])
def test_batch_size_does_not_matter(minilm: Model, texts: list[str], study: Study, batch_size: int):
    other = headscope.study(minilm, texts, batch_size=batch_size)
    explained = assert_same_sums(study, other)
    print(f"batch size {batch_size}: {explained} counts differ, all of elements near a threshold")
    assert other.manifest["corpus_hash"] == study.manifest["corpus_hash"]


def test_order_of_documents_does_not_matter(minilm: Model, texts: list[str], study: Study):
    shuffled = random.Random(3).sample(texts, len(texts))
    other = headscope.study(minilm, shuffled, batch_size=7)
    assert_same_sums(study, other)
    assert other.manifest["corpus_hash"] == study.manifest["corpus_hash"]


def test_the_reference_gives_the_same_study(minilm: Model, texts: list[str]):
    short = [" ".join(text.split()[:20]) for text in texts[:5]]
    plain = headscope.study(minilm, short, kernel="reference", length=24)
    assert_same_sums(headscope.study(minilm, short, length=24), plain)
    assert plain.manifest["kernel"] == "reference"


def test_the_comparison_of_studies_can_fail(study: Study):
    changed = study.data.copy(deep=True)
    changed["pairs"][3, 4] += int(changed["near_threshold"][3, 4]) + 1 + study.data.attrs["length"]
    with pytest.raises(AssertionError, match="pairs"):
        assert_same_sums(study, Study(changed))


def test_the_manifest_says_how(study: Study, minilm: Model):
    manifest = study.manifest
    assert manifest["model"] == "minilm"
    assert manifest["weight_hash"].startswith("53aa51172d14")
    assert manifest["documents_read"] == TEXTS + 4
    assert manifest["documents_skipped"] == {"empty": 2, "only special tokens": 1, "too short": 1}
    assert (manifest["length"], manifest["windows"], manifest["sentences"], manifest["theta"], manifest["tau"]) == (
        128,
        "first",
        "tokens",
        0.3,
        0.3,
    )
    assert (manifest["sample"], manifest["dtype"], manifest["device"], manifest["complete"]) == (
        1.0,
        "float32",
        str(minilm.device),
        1,
    )
    assert manifest["first_special_token"] == "[CLS]"
    assert set(manifest["versions"]) >= {"torch", "transformers", "numpy", "xarray", "python"}
    assert manifest["excerpts"][0]["text"]
    assert len(manifest["corpus_hash"]) == 32


def test_saves_and_opens(study: Study, tmp_path):
    written = study.save(tmp_path)
    assert written == tmp_path / "study.nc"
    again = headscope.open_study(tmp_path)
    assert again.manifest == study.manifest
    assert set(again.data.variables) == set(study.data.variables)
    for name, variable in study.data.variables.items():
        np.testing.assert_array_equal(again.data[name].values, variable.values, err_msg=str(name))
        assert again.data[name].dims == variable.dims
    assert [path.name for path in tmp_path.iterdir()] == ["study.nc"]
    # Anyone's script can read it without headscope.
    with xr.open_dataset(written) as plain:
        assert plain["distance"].dims == ("layer", "head", "distance")
        assert float(plain["repeat_rate"][0, 0]) == float(study.rate("repeat_rate")[0, 0])


@pytest.mark.parametrize("content", [b"", b"not netCDF at all", b"\x89HDF\r\n\x1a\n" + b"\0" * 100])
def test_a_file_that_is_no_study(tmp_path, content: bytes):
    path = tmp_path / "study.nc"
    path.write_bytes(content)
    with pytest.raises(headscope.StudyError, match=r"study\.nc"):
        headscope.open_study(path)


def test_a_dataset_from_elsewhere_is_refused(tmp_path):
    xr.Dataset({"x": ("y", [1, 2])}).to_netcdf(tmp_path / "other.nc", engine="h5netcdf")
    with pytest.raises(headscope.StudyError, match="not a headscope study"):
        headscope.open_study(tmp_path / "other.nc")
    with pytest.raises(headscope.StudyError, match="no study there"):
        headscope.open_study(tmp_path / "absent")


def test_a_study_cannot_be_written_into_nothing(study: Study, tmp_path):
    with pytest.raises(headscope.StudyError, match="cannot be written"):
        study.save(tmp_path / "no" / "such" / "folder" / "study.nc")


def test_merging_halves_gives_the_whole(minilm: Model, texts: list[str], study: Study):
    halves = [headscope.study(minilm, part, batch_size=7) for part in (texts[:7], texts[7:])]
    merged = halves[0].merge(halves[1])
    assert_same_sums(study, merged)
    for name in RATES:
        np.testing.assert_allclose(merged.rate(name), study.rate(name), rtol=1e-3, atol=1e-4)
    assert merged.manifest["corpus_hash"] == study.manifest["corpus_hash"]
    assert merged.manifest["documents_read"] == TEXTS + 4
    assert merged.manifest["documents_skipped"] == study.manifest["documents_skipped"]
    assert merged.texts == study.texts == TEXTS
    assert merged.data["pairs"].dtype == np.int64


def test_merging_joins_tokens_that_only_one_side_has():
    first, second = make_random_study(1), make_random_study(2, corpus_hash=f"{2:032x}")
    reduced = first.data.isel(token=slice(2))
    merged = Study(reduced).merge(second)
    assert set(merged.data["token"].values) == set(reduced["token"].values) | set(second.data["token"].values)
    token = str(reduced["token"].values[0])
    expected = reduced["most_attended"].sel(token=token).values.copy()
    if token in second.data["token"].values:
        expected += second.data["most_attended"].sel(token=token).values
    np.testing.assert_array_equal(merged.data["most_attended"].sel(token=token), expected)
    assert int(merged.data["token_id"].sel(token=token)) == int(token[1:])


@pytest.mark.parametrize(
    ("name", "value"),
    [("theta", 0.25), ("length", 64), ("weight_hash", "f" * 64), ("sentences", "text"), ("windows", "all")],
)
def test_studies_that_differ_do_not_merge(name: str, value: object):
    first, second = make_random_study(1), make_random_study(2, corpus_hash=f"{2:032x}", **{name: value})
    with pytest.raises(headscope.StudyError, match=rf"{name}: .* here, {value} there"):
        first.merge(second)


def test_a_study_does_not_merge_with_itself():
    with pytest.raises(headscope.StudyError, match="same texts"):
        make_random_study(1).merge(make_random_study(1))


def test_selects_layers_and_heads(study: Study):
    part = study.select(layers=[1, 4], heads=8)
    assert (part.layers, part.head_numbers, part.whole) == ([1, 4], [8], False)
    assert float(part.rate("repeat_rate").sel(layer=4, head=8)) == float(study.rate("repeat_rate")[4, 8])
    np.testing.assert_allclose(
        part.standard_error("repeat_rate"), study.standard_error("repeat_rate").sel(layer=[1, 4], head=[8])
    )
    assert "distinct_dominants" not in part.data
    assert "distinct_dominants" in study.select(layers=2).data
    assert study.select("1,4", "H8").data.identical(part.data)
    assert study.select(heads="L1H8,L4H8").data.identical(part.data)
    with pytest.raises(headscope.StudyError, match="layer 6: the study has layers 0 to 5"):
        study.select(heads="L6H8")
    with pytest.raises(headscope.StudyError, match="no layer 6: this study has layers 0 to 5"):
        study.select(layers=[0, 6])
    with pytest.raises(headscope.StudyError, match="only whole studies"):
        make_random_study(5).select(layers=[0]).merge(make_random_study(6, corpus_hash=f"{2:032x}"))


def test_jackknife_by_hand():
    # Ten blocks: nine with equal/pairs of 1/2, one with 6/4. Left out in turn: 14/20 nine times, 9/18. Their mean is
    # 6.8/10, squared deviations 9 · 0.02² + 0.18² = 0.036; times 9/10: 0.0324.
    data = make_random_study(0, layers=1, heads=1).data.copy(deep=True)
    for name in ("texts", "pairs", "equal"):
        data[f"{name}_blocks"][:] = 0
    data["texts_blocks"][:10] = 1
    data["pairs_blocks"].values[:10, 0, 0] = [2] * 9 + [4]
    data["equal_blocks"].values[:10, 0, 0] = [1] * 9 + [6]
    for name in ("texts", "pairs", "equal"):
        data[name] = data[f"{name}_blocks"].sum("block")
    study = Study(data)
    np.testing.assert_allclose(study.standard_error("repeat_rate").values, [[0.18]])


def test_one_text_has_no_standard_error(minilm: Model, texts: list[str]):
    study = headscope.study(minilm, texts[:1])
    assert np.isnan(study.standard_error("repeat_rate")).all()
    assert not np.isnan(study.rate("repeat_rate")).all()


def test_standard_errors_shrink_with_more_texts():
    few, many = make_random_study(0, texts=40), make_random_study(0, texts=640)
    assert (
        float(many.standard_error("same_sentence_rate").mean())
        < float(few.standard_error("same_sentence_rate").mean()) / 2
    )


def test_a_table_has_one_row_a_head():
    study = make_random_study(0, texts=60)
    table = study.heads()
    assert len(table) == 12
    assert not table.columns.duplicated().any()
    row = table[table["head"] == "L3H2"].iloc[0]
    assert (row["layer"], row["head_number"], row["pairs"]) == (3, 2, int(study.data["pairs"][3, 2]))
    for name in RATES:
        assert row[name] == float(study.rate(name)[3, 2])
        assert row[f"{name}_error"] == float(study.standard_error(name)[3, 2])
        assert row[f"{name}_chance"] == float(np.broadcast_to(study.chance(name), (4, 3))[3, 2])
    shares = study.signal_shares()
    for name in ("signal_share", "signal_share_error", "position_share", "position_share_error", "snr_db"):
        np.testing.assert_array_equal(table[name], shares[name].values.ravel())
    assert "error_note" not in table


def test_the_table_has_the_same_columns_where_nothing_was_measured(study: Study):
    data = study.data.drop_vars(
        [name for name in study.data if str(name).startswith(("contrast_sums", "position_sums"))]
    )
    table = Study(data).heads()
    assert table.columns.tolist() == study.heads().columns.tolist()
    assert table["signal_share"].isna().all()


def test_every_table_of_heads_begins_with_the_same_columns():
    studies = [make_random_study(seed, layers=2, heads=3) for seed in (0, 1)]
    comparison = headscope.compare(studies, ["a", "b"], force=True)
    reading = headscope.Reading.from_arrays(["a", "b"], np.ones((2, 2, 3, 4)))
    ablation = xr.Dataset(
        {"change": (("layer", "head"), np.ones((2, 3))), "error": (("layer", "head"), np.ones((2, 3)))},
        {"layer": [0, 1], "head": [0, 1, 2]},
    )
    names = [f"L{layer}H{head}" for layer in range(2) for head in range(3)]
    tables = [
        studies[0].heads(), comparison.heads("a"), comparison.changes.query("part == 'writes'"),
        comparison.differences("repeat_rate"),
        headscope.Ablation(ablation).table(), reading.pairs(), reading.dominant(),
    ]  # fmt: skip
    for table in tables:
        columns = [name for name in table.columns if name not in ("baseline", "model")]
        assert columns[:3] == ["head", "layer", "head_number"]
        assert table["head"].tolist() == names
        assert table["layer"].tolist() == [0, 0, 0, 1, 1, 1]
        assert table["head_number"].tolist() == [0, 1, 2, 0, 1, 2]
    exported = json.loads(result.format_json(comparison))
    assert [row["head"] for row in exported["changes"]] == [*names, *names]


def test_figures_by_name(study: Study):
    figure = study.plot("7", layers=3, heads=[0, 11])
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["L3H0", "L3H11"]
    assert figure._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]
    assert {"7", "head-types", "noise"} <= set(DRAWINGS)
    with pytest.raises(headscope.StudyError, match=f"no figure 'heads'; there are: {', '.join(DRAWINGS)}"):
        study.plot("heads")


# Blocks


def count_by_block(texts: Iterable[str]) -> list[int]:
    """Return the number of these texts in each block, by the definition."""
    digests = (hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts)
    return np.bincount([int.from_bytes(digest, "little") % 20 for digest in digests], minlength=20).tolist()


@pytest.mark.parametrize("engine_options", [{"batch_size": 3}, {"batch_size": 50, "kernel": "torch"}])
def test_windows_are_in_the_block_of_their_document(
    minilm: Model, small_sections: None, engine_options: dict[str, Any]
):
    documents = [document.text for document, _ in zip(load_openings(), range(7), strict=False)]
    every = headscope.study(minilm, documents, windows="all", length=32, **engine_options)
    assert every.texts > 3 * len(documents)
    counts = {text: headscope.study(minilm, [text], windows="all", length=32).texts for text in documents}
    assert every.data["texts_blocks"].values.tolist() == count_by_block(
        text for text, count in counts.items() for _ in range(count)
    )
    first = headscope.study(minilm, documents, length=32, **engine_options)
    assert first.data["texts_blocks"].values.tolist() == count_by_block(documents)


def test_blocks_of_windows_change_the_blocks_and_nothing_else(minilm: Model):
    documents = [document.text for document, _ in zip(load_openings(), range(4), strict=False)]
    by_document, by_window = (
        headscope.study(minilm, documents, windows="all", length=24, blocks=blocks)
        for blocks in ("documents", "windows")
    )
    blocked = [name for name, data in by_document.data.items() if str(name).endswith("_blocks") or "half" in data.dims]
    for name, values in by_document.data.drop_vars([*blocked, "source_hash"]).data_vars.items():
        np.testing.assert_allclose(values, by_window.data[name], rtol=1e-12, err_msg=str(name))
    assert np.count_nonzero(by_document.data["texts_blocks"]) <= 4
    assert np.count_nonzero(by_window.data["texts_blocks"]) > 10
    assert (by_document.manifest["blocks"], by_window.manifest["blocks"]) == ("documents", "windows")


def test_errors_are_said_to_be_missing_or_too_small(minilm: Model):
    document = " ".join(document.text for document, _ in zip(load_openings(), range(12), strict=False))
    one = headscope.study(minilm, [document], windows="all", length=24)
    missing = (
        "No standard errors, for want of documents: the texts fill 1 of 20 blocks of documents, and 10 are needed."
    )
    assert np.isnan(one.standard_error("repeat_rate")).all()
    by_window = headscope.study(minilm, [document], windows="all", length=24, blocks="windows")
    assert not np.isnan(by_window.standard_error("mean_distance")).all()
    for study, note in ((one, missing), (by_window, describe_errors(by_window))):
        assert study.standard_error("repeat_rate").attrs == {"note": note}
        assert set(study.heads()["error_note"]) == {note}
        assert set(study.heads()["error_note"]) == {note}
        findings = study.findings()
        assert note in as_markdown(study, findings)
        assert json.loads(as_json(study, findings))["errors"] == note
        assert note in study._repr_html_()
    assert describe_errors(by_window).startswith("All standard errors are too small: blocks are of windows")
    figures = {study: draw(study, "7", layers=[5]) for study in (one, by_window)}
    texts = {study: [text.get_text() for text in figure.findobj(Text)] for study, figure in figures.items()}
    assert not any("±" in text for text in texts[one])
    assert any("± >" in text for text in texts[by_window])


def test_studies_of_older_versions_had_blocks_of_windows():
    data = make_random_study(0, texts=60).data
    older = data.drop_attrs()
    older.attrs = {name: value for name, value in data.attrs.items() if name != "blocks"}
    assert describe_errors(Study(older)) == ""  # of the first window of each document
    older.attrs["windows"] = "all"
    assert describe_errors(Study(older)).startswith("All standard errors are too small")


def test_all_windows_and_sentences_of_the_text(minilm: Model):
    documents = [document.text for document, _ in zip(load_openings(), range(3), strict=False)]
    every = headscope.study(minilm, [" ".join(documents)], windows="all", sentences="text")
    assert every.texts > 3
    assert every.manifest["windows"] == "all"
    tokens = headscope.study(minilm, [" ".join(documents)], windows="all")
    # A real splitter does not end sentences at abbreviations and decimals, so more pairs share one.
    assert int(every.data["all_same"]) > int(tokens.data["all_same"])
    assert int(every.data["all_equal"]) == int(tokens.data["all_equal"])


def test_the_sample_fraction(minilm: Model, texts: list[str], study: Study):
    half = headscope.study(minilm, texts, sample=0.5)
    none = headscope.study(minilm, texts, sample=0.0)
    assert 0 < int(half.data["sample_texts"]) < TEXTS
    assert int(none.data["sample_texts"]) == int(none.data["value_histogram"].sum()) == 0
    assert int(half.data["value_histogram"].sum()) < int(study.data["value_histogram"].sum())
    np.testing.assert_array_equal(none.data["pairs"], half.data["pairs"])


def test_the_default_sample_depends_on_the_known_size(minilm: Model, texts: list[str]):
    listed = headscope.study(minilm, texts[:2])
    streamed = headscope.study(minilm, (text for text in texts[:2]))
    assert (listed.manifest["sample"], streamed.manifest["sample"]) == (1.0, 0.05)


def test_long_windows_keep_no_maps_unless_asked(minilm: Model, texts: list[str]):
    long = headscope.study(minilm, texts[:2], length=300)
    assert not long.has_maps
    assert {name for name, q in BY_NAME.items() if q.is_map}.isdisjoint(long.data)
    with pytest.raises(headscope.StudyError, match=r"Fig\. 2 needs the N×N maps"):
        long.require_maps("Fig. 2")
    assert headscope.study(minilm, texts[:1], length=300, maps=True).has_maps


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 513}, "positions for 512 tokens"),
        ({"length": 3}, "special tokens take 2"),
        ({"theta": 0.0}, "theta is 0.0"),
        ({"theta": 1.5}, "theta is 1.5"),
        ({"tau": 1.0}, "tau is 1.0"),
        ({"sample": 1.5}, "sample is 1.5"),
        ({"windows": "some"}, "choose one of first, all"),
        ({"sentences": "lines"}, "choose one of tokens, text"),
        ({"min_tokens": 0}, "min_tokens is 0"),
        ({"kernel": "fast"}, "there are: auto, triton, numba, torch, reference"),
        ({"batch_size": 0}, "batch size is 0"),
    ],
)
def test_settings_that_make_no_sense(minilm: Model, options: dict, message: str):
    with pytest.raises(headscope.StudyError, match=message):
        headscope.study(minilm, ["Some text to read."], **options)


def test_nothing_to_study(minilm: Model):
    with pytest.raises(headscope.StudyError, match="3 documents read, 1 empty, 1 only special tokens, 1 too short"):
        headscope.study(minilm, ["", "[SEP]", "word"])
    message = r"1 too short: a text needs 5 tokens that are not special, and the longest has 3$"
    with pytest.raises(headscope.StudyError, match=message):
        headscope.study(minilm, ["two more words"], min_tokens=5)
    with pytest.raises(headscope.StudyError, match=r"needs 2 tokens that are not special$"):
        headscope.study(minilm, iter(["word"]))
    with pytest.raises(headscope.StudyError, match=r"special tokens take 2: choose --length 12 or more$"):
        headscope.study(minilm, ["word"], length=5, min_tokens=10)


@pytest.mark.usefixtures("small_sections")
def test_an_error_loses_no_section_before_it(minilm: Model, texts: list[str]):
    def yield_broken():
        yield from texts[:12]
        yield from texts[:5]
        raise headscope.CorpusError("corpus.jsonl:4: not a JSON object")

    with pytest.raises(headscope.Stopped, match=r"corpus\.jsonl:4") as caught:
        headscope.study(minilm, yield_broken(), batch_size=2)
    partial = caught.value.study
    assert partial is not None
    assert not caught.value.interrupted
    # The tokenizer takes sixteen at once: the last of them is in no section that ended.
    assert partial.texts == partial.manifest["documents_read"] == 16
    assert partial.manifest["complete"] == 0
    assert "corpus.jsonl:4" in partial.manifest["stopped_by"]
    assert "incomplete" in repr(partial)


@pytest.mark.usefixtures("small_sections")
def test_an_interrupt_loses_no_section_before_it(minilm: Model, texts: list[str]):
    def interrupt(done: headscope.Progress) -> None:
        if done.texts > 8:
            raise KeyboardInterrupt

    with pytest.raises(headscope.Stopped) as caught:
        headscope.study(minilm, texts, batch_size=2, progress=interrupt)
    assert caught.value.interrupted
    stopped = caught.value.study
    assert stopped is not None
    assert stopped.texts == stopped.manifest["documents_read"] == 8
    assert stopped.manifest["corpus_hash"] == hash_texts(texts[:8])
    assert_same_sums(stopped, headscope.study(minilm, texts[:8], batch_size=2))


def test_an_interrupt_before_any_section_leaves_no_study(minilm: Model, texts: list[str]):
    def interrupt(_: headscope.Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(headscope.Stopped, match="interrupted") as caught:
        headscope.study(minilm, texts, batch_size=2, progress=interrupt)
    assert caught.value.interrupted
    assert caught.value.study is None


@pytest.mark.usefixtures("small_sections")
def test_running_out_of_memory_loses_no_section_before_it(
    minilm: Model, texts: list[str], monkeypatch: pytest.MonkeyPatch
):
    observe, calls = Model.observe, []

    def observe_until_exhausted(self: Model, batch, see, attend=None) -> None:
        calls.append(len(batch))
        if len(calls) >= 4:
            raise MemoryError("no room for the maps")
        observe(self, batch, see)

    monkeypatch.setattr(Model, "observe", observe_until_exhausted)
    message = r"one text of \d+ tokens at a time \(MemoryError: no room for the maps\): choose a shorter --length"
    with pytest.raises(headscope.Stopped, match=message) as caught:
        headscope.study(minilm, texts, batch_size=2, kernel="torch")
    assert calls == [2, 2, 2, 2, 1]
    assert caught.value.study is not None
    assert caught.value.study.texts == caught.value.study.manifest["documents_read"] == 4


def test_an_error_before_any_text_is_raised_as_it_is(minilm: Model):
    def yield_broken():
        raise headscope.CorpusError("missing.txt: no such file")
        yield ""

    with pytest.raises(headscope.CorpusError, match=r"missing\.txt"):
        headscope.study(minilm, yield_broken())


def test_progress_is_reported(minilm: Model, texts: list[str]):
    reports: list[headscope.Progress] = []
    headscope.study(minilm, texts[:5], batch_size=2, progress=reports.append)
    assert [done.texts for done in reports] == [2, 4, 5, 5]  # after every batch, and when their sums are added
    assert [done.documents for done in reports] == [2, 4, 5, 5]
    assert reports[-1].expected == 5


def test_shows_itself(study: Study):
    assert repr(study) == f"<Study of minilm: 6 layers × 12 heads, {TEXTS} texts of texts given in Python>"
    assert "minilm" in study._repr_html_()


@pytest.mark.parametrize("in_notebook", [False, True])
def test_a_bar_is_shown_on_stderr(
    minilm: Model, in_notebook: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("rich.console._is_jupyter", lambda: in_notebook)
    monkeypatch.setenv("TERM", "xterm")
    if not in_notebook:
        monkeypatch.setenv("TTY_COMPATIBLE", "1")  # stderr is a terminal
    headscope.study(minilm, ["Two ravens met. The ravens left."], progress=True)
    output = capsys.readouterr()
    assert "studying" in output.err
    assert "1 texts" in output.err
    assert output.out == ""


@pytest.mark.parametrize("progress", [False, None])
def test_no_bar_is_shown_unasked(minilm: Model, progress: bool | None, capsys: pytest.CaptureFixture[str]):
    headscope.study(minilm, ["Two ravens met. The ravens left."], progress=progress)
    assert capsys.readouterr() == ("", "")
