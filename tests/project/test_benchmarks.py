"""The benchmarks run, compute what they say, and the tables in the docs are what they write."""

from __future__ import annotations

import argparse
import json
import math
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headscope
from headscope.corpus.chunks import ChunkSize
from headscope.corpus.document import Document
from headscope.corpus.windows import WindowSpec
from headscope.model.model import Model
from headscope.run import plan
from headscope.studies.findings import Finding

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import calibration  # noqa: E402
import chunks  # noqa: E402
import dtypes  # noqa: E402
import gpu  # noqa: E402
import host  # noqa: E402
import job as paper_job  # noqa: E402
import profiling  # noqa: E402
import speed  # noqa: E402
from measuring import (  # noqa: E402
    calibration_tables,
    cost_tables,
    dtype_tables,
    lens,
    noise_tables,
    notebook,
    prune_tables,
    reaction_tables,
    rounds,
    segment_tables,
    setup,
    speed_tables,
    tables,
    ways,
)

TINY = ["--shape", "2x2x32", "--length", "24", "--texts", "4"]
RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*.json"))


def tiny(**changes: Any) -> argparse.Namespace:
    options = speed.parser().parse_args([*TINY, "--batch", "2"])
    return argparse.Namespace(**{**vars(options), **changes})


def test_kernels_are_told_beside_the_bare_model(capsys: pytest.CaptureFixture[str]):
    profiling.main([*TINY, "--batch", "2", "--most", "5"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["ms", "for", "4", "texts", "bare", "study"]
    assert len(lines) == 9
    shown, (bare, study) = lines[1:6], map(float, lines[6].split()[-2:])
    assert any(line.startswith("aten::") for line in shown)
    assert min(bare, study) > 0
    assert lines[-1].endswith("× the bare forward")


def test_speed_measures_every_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    speed.main([*TINY, "--batch", "2", "--rounds", "1", "--no-memory", "--json", str(tmp_path / "made.json")])
    made = json.loads((tmp_path / "made.json").read_text(encoding="utf-8"))
    assert made["kind"] == "speed"
    assert (made["about"]["layers"], made["about"]["heads"], made["about"]["texts"]) == (2, 2, 4)
    held = {way["key"]: way for way in made["ways"]}
    assert {"bare", "eager", "torch-0", "torch-0.05", "torch-1", "notebook", "lens"} <= set(held)
    for way in made["ways"]:
        assert "absent" in way or min(way["ms"], way["texts_per_second"], way["ratio"]) > 0
    shown = capsys.readouterr().out
    assert all(way["name"] in shown for way in made["ways"])


def test_an_unknown_way_names_those_there_are():
    with pytest.raises(SystemExit, match=r"no way nonsense; there are: .*notebook"):
        speed.chosen(tiny(ways="nonsense"))


def test_ratios_are_to_the_bare_passes_around():
    turns = rounds.Turns(taken=[3.0, 2.0], before=[1.0, 1.0], after=[2.0, 1.0])
    assert turns.ratios == [2.0, 2.0]
    made = turns.summary()
    assert (made["ratio"], made["ms"], made["unsteady_rounds"]) == (2.0, 2500.0, 1)


def test_the_bare_pass_stands_around_every_way():
    said: list[str] = []
    runners = {name: rounds.Runner(lambda name=name: said.append(name), 1, 2) for name in ("one", "other")}
    bare = rounds.Runner(lambda: said.append("bare"), 1, 2)
    device = setup.model_of(tiny()).device
    turns, bares = rounds.take_turns(bare, runners, device)
    assert said[3:8] == ["bare", "one", "bare", "other", "bare"]
    assert turns["other"].before == [bares[1], bares[4]]


def test_the_notebook_counts_what_a_study_counts():
    options = tiny(ragged=True)
    model = setup.model_of(options)
    texts = list(setup.texts_of(options, 2))
    study = headscope.study(model, texts, length=24)
    job = ways.job_of(argparse.Namespace(**{**vars(options), "texts": 2}), model)
    assert len({len(window) for window in job.batches[0].windows}) == 2  # one of them is padded
    sums = notebook.add_up(model, job.batches, 24).arrays
    assert sums["pairs"].sum() > 100
    for name, array in sums.items():
        np.testing.assert_allclose(array, study.data[name].values, atol=1e-5, err_msg=name)


@pytest.mark.skipif(not lens.is_installed(), reason="TransformerLens is not installed")
@pytest.mark.parametrize("everything", [True, False])
def test_transformer_lens_gives_what_headscope_sees(everything: bool):
    options = tiny(ragged=True)
    model = setup.model_of(options)
    job = ways.job_of(options, model)
    ours, theirs = (ways.make_executor(job, "torch", 0.0) for _ in range(2))
    ways.run_batches(ours, job.batches)
    lens.runner(model, job.batches, theirs.talliers[0], everything=everything)()
    expected, seen = ours.flush(), theirs.flush()
    for name, array in expected.arrays.items():
        np.testing.assert_allclose(seen[name], array, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("ragged", [False, True])
def test_random_windows_are_like_texts(ragged: bool):
    options = tiny(ragged=ragged, length=128)
    model = setup.model_of(options)
    windows = setup.windows_of(model, options, 20)
    lengths = {len(window) for window in windows}
    assert (len(lengths) > 5) if ragged else (lengths == {128})
    assert all(window.special[[0, -1]].all() and window.special.sum() == 2 for window in windows)
    sentences = np.mean([window.sentence[-1] / len(window) for window in windows])
    assert 1 / 40 < sentences < 1 / 8
    assert len({window.digest for window in windows}) == 20


def test_dtypes_compare_with_float32(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(headscope, "findings", lambda study: [], raising=False)  # they take seconds
    dtypes.main([*TINY, "--read", "2", "--json", str(tmp_path / "made.json")])
    made = json.loads((tmp_path / "made.json").read_text(encoding="utf-8"))
    assert set(made["dtypes"]) == {"bfloat16", "float16"}
    for held in made["dtypes"].values():
        assert len(held["quantities"]) == len(dtypes.QUANTITIES)
        assert 0 <= held["pairs"]["share"] < 1
        assert 0 <= held["most_attended"] <= 1
    coarse, fine = (made["dtypes"][name]["pairs"]["share"] for name in ("bfloat16", "float16"))
    assert coarse > fine
    assert "same-sentence rate" in capsys.readouterr().out


def test_verdicts_that_change_are_told_with_their_numbers():
    before, after = (
        Finding(8, "", "", "", verdict, "", 0.34, 0.01, "%") for verdict in ("consistent", "not consistent")
    )
    assert dtypes.changed_verdicts([before], [before]) == []
    (told,) = dtypes.changed_verdicts([before], [after])
    assert told == {"number": 8, "before": "consistent, 34.0 ± 1.0 %", "after": "not consistent, 34.0 ± 1.0 %"}


def test_float32_does_not_differ_from_itself():
    (study, pairs), (again, same) = (dtypes.studied("float32", tiny(read=2)) for _ in range(2))
    assert all(dtypes.change(each, study, again)["largest"] == 0 for each in dtypes.QUANTITIES)
    assert dtypes.pairs_changed(pairs, same, study)["share"] == 0
    assert dtypes.most_attended(study, again) == dtypes.strongest_offset(study, again) == 1


def test_the_jobs_texts_fill_their_windows(tmp_path: Path):
    sentences = paper_job.sentences_of(None)
    words = paper_job.common_words(sentences)
    paper_job.write_texts(tmp_path / "texts.jsonl", sentences, 5, 128)
    paper_job.write_model(tmp_path / "model", "1x2x32", words, 128)
    model = headscope.load(tmp_path / "model")
    documents = list(headscope.documents(str(tmp_path / "texts.jsonl")))
    assert len({document.text for document in documents}) == 5
    windows = [window for document in documents for window in model.windows(document, WindowSpec())]
    assert [len(window) for window in windows] == [128] * 5
    unknown = model.tokens.tokenizer.unk_token_id
    assert np.mean([np.mean(window.ids == unknown) for window in windows]) < 0.05


def test_what_the_host_does_for_a_text_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    host.main(["--texts", "40", "--batch", "8", "--rounds", "1", "--json", str(tmp_path / "made.json")])
    made = json.loads((tmp_path / "made.json").read_text(encoding="utf-8"))
    assert made["kind"] == "host"
    held = {name: value for name, value in made["microseconds"].items() if value is not None}
    assert len(held) >= 3
    # Some are differences of two times, which load may make negative.
    assert all(
        math.isfinite(value) for value in [*held.values(), *made["tokenizer"].values(), *made["making"].values()]
    )
    assert "in the interpreter, all" in capsys.readouterr().out


def test_chunks_of_every_size_are_timed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(plan, "choose_chunk_size", lambda *more: ChunkSize(8, 1000))
    chunks.main([*TINY[:-1], "64", "--rounds", "1", "--json", str(tmp_path / "made.json")])
    rows = json.loads((tmp_path / "made.json").read_text(encoding="utf-8"))["rows"]
    assert [row["documents"] for row in rows] == [2, 4, 8, 16, 32]
    assert [row["chunks"] for row in rows] == sorted((row["chunks"] for row in rows), reverse=True)
    assert rows[0]["chunks"] > rows[-1]["chunks"] >= 2
    assert rows[-1]["ratio"] == 1
    assert "seconds per chunk" in capsys.readouterr().out


@pytest.mark.skipif(not chunks.IO.exists(), reason="only Linux tells what a process reads")
def test_chunks_that_are_lost_are_the_only_ones_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(chunks, "READERS", (2,))
    monkeypatch.setattr(chunks, "LOST", 1)
    monkeypatch.setattr(plan, "choose_chunk_size", lambda *more: ChunkSize(100, 2**18))
    chunks.main(["--bytes", "--size", "0.004", "--shape", "2x2x32", "--json", str(tmp_path / "made.json")])
    made = json.loads((tmp_path / "made.json").read_text(encoding="utf-8"))
    whole, lost = made["rows"]
    assert (whole["lost"], lost["lost"]) == (0, 1)
    assert whole["documents"] == lost["documents"] == made["documents"]
    assert made["file_bytes"] <= whole["bytes"] < 1.05 * made["file_bytes"]
    assert 0 < lost["read_again"] < 1.1 * made["chunk_bytes"]
    assert abs(lost["bytes"] - lost["read_again"] - whole["bytes"]) < made["chunk_bytes"]


def test_requests_of_planning_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(chunks, "FILES_PER_FOLDER", 10)
    chunks.main(["--plan", "25", "--latency", "0", "--shape", "2x2x32", "--json", str(tmp_path / "made.json")])
    lines, _ = json.loads((tmp_path / "made.json").read_text(encoding="utf-8"))["rows"]
    assert (lines["listing_requests"], lines["metadata_requests"], lines["files_opened"]) == (4, 1, 1)
    assert lines["chunks"] > 25


def test_the_driver_of_a_simulated_cluster_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    ray_driver = pytest.importorskip("ray_driver", reason="Ray is not installed")
    path = tmp_path / "driver.json"
    ray_driver.main(["--workers", "16", "--minutes", "0.5", "--shape", "2x2", "--json", str(path)])
    result = json.loads(path.read_text(encoding="utf-8"))
    assert result["right"]
    assert result["workers"] == 16
    assert result["results"] < result["chunks"]
    assert "driver busy" in capsys.readouterr().out


def test_steps_on_a_gpu_are_taken_while_there_is_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    asked: list[str] = []

    def run(step: gpu.Step, results: Path) -> int:
        asked.append(step.name)
        way = {"key": "triton-0", "ratio": 1.12}
        (results / f"{step.file}.json").write_text(json.dumps({"ways": [way]}), encoding="utf-8")
        return int(step.name == "float32")

    monkeypatch.setattr(gpu, "run", run)
    with pytest.raises(SystemExit, match="failed: float32"):
        gpu.main(["--only", "bfloat16,float32,growth", "--minutes", "4", "--results", str(tmp_path / "made")])
    assert asked == ["bfloat16", "float32"]
    said = capsys.readouterr().out.splitlines()
    assert "speed-gpu-float32: at most 1.10 × the bare forward: 1.12, MISSED" in said
    assert "speed-gpu-bfloat16: at most 1.15 × the bare forward: 1.12, met" in said
    assert "speed-gpu-bfloat16-512: at most 1.25 × the bare forward: not measured" in said
    assert said[-1] == "left for want of time: --only growth"
    with pytest.raises(SystemExit, match="no step none; there are: tests, bfloat16-512"):
        gpu.main(["--only", "none"])


def test_the_commands_of_those_steps_are_understood():
    """Without a GPU they cannot be run, but what they are asked for must be there to be asked for."""
    parsers = {"speed.py": speed.parser}
    keys = set(ways.ways("cuda"))
    for step in gpu.STEPS:
        script, *given = step.command.split()
        assert script == "-m" or (ROOT / "benchmarks" / script).exists()
        if script in parsers:
            options = parsers[script]().parse_args(given)
            assert set((options.ways or "eager").split(",")) <= keys
    assert {step.file for step in gpu.STEPS} >= set(gpu.MARKS)


def test_other_ways_to_start_kernels_are_timed_and_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("triton")
    import variants
    from headscope.tally.triton_backend import launches

    before = launches.find_high
    tried = [variants.Launch(64, 32), variants.Launch(48, 32)]
    monkeypatch.setitem(variants.VARIANTS, "find_high", tried)
    small = "--only find_high --device cpu --texts 2 --heads 1 --width 16 --length 130 --rounds 1 --dtype float32"
    variants.main([*small.split(), "--json", str(tmp_path / "made.json")])
    made = json.loads((tmp_path / "made.json").read_text(encoding="utf-8"))["rows"]
    assert [("ms" in row, "wrong" in row) for row in made] == [(True, False), (False, True)]
    assert "power of 2" in made[1]["wrong"]
    assert "64 × 32" in capsys.readouterr().out
    assert launches.find_high is before
    with pytest.raises(SystemExit, match="no kernel none; there are: attend"):
        variants.main(["--only", "none"])
    right = [torch.ones(2, 300) for _ in range(4)]
    for place, said in enumerate(("outputs differ", *2 * ["bits or nearness differ"], "what keys receive differ")):
        wrong = [each.clone() for each in right]
        assert variants._difference(wrong, right, 1e-3) == ""
        wrong[place][:] = 2
        assert variants._difference(wrong, right, 1e-3) == said


@pytest.mark.parametrize(
    ("page", "sections", "kinds"),
    [
        ("speed.md", speed_tables.SECTIONS, {"speed", "growth", "job", "host"}),
        ("dtypes.md", dtype_tables.SECTIONS, {"dtypes"}),
        ("segmentation.md", segment_tables.SECTIONS, {"segmentation"}),
        ("noise.md", noise_tables.SECTIONS, {"noise"}),
        ("errors.md", calibration_tables.SECTIONS, {"calibration"}),
        ("pruning.md", prune_tables.SECTIONS, {"pruning", "pruned"}),
        ("rxnmapper.md", reaction_tables.RXNMAPPER_SECTIONS, {"rxnmapper"}),
        ("rxnfp.md", reaction_tables.RXNFP_SECTIONS, {"rxnfp"}),
        (
            "cluster.md",
            cost_tables.SECTIONS,
            {"cost", "reduce", "ray-driver", "chunk-sizes", "chunk-bytes", "planning"},
        ),
    ],
)
def test_the_tables_in_the_docs_are_written_from_the_results(page: str, sections: dict[str, Any], kinds: set[str]):
    written = (ROOT / "docs" / page).read_text(encoding="utf-8")
    results = tables.read_all(RESULTS)
    assert {result["kind"] for result in results} & kinds
    made = tables.written(written, sections, results)
    assert made == written, f"write docs/{page} anew: it says itself how"
    assert tables.written(made, sections, results) == made


def test_windows_are_counted_one_by_one(minilm: Model):
    documents = [document for document, _ in zip(headscope.documents(), range(5), strict=False)]
    texts = [Document(f"{first.text} {second.text}", first.name) for first, second in pairwise(documents)]
    sums = calibration.count_windows("minilm", [Document(" ", "empty"), *texts], "all")
    study = headscope.study(minilm, texts, windows="all")
    by_document = sums["repeat_rate"].sum_documents()
    assert len(sums["repeat_rate"].documents) == study.texts > len(by_document.documents) == len(texts)
    for rate in ("repeat_rate", "mean_distance", "dominant_share"):
        population = calibration.Population.create(sums[rate])
        np.testing.assert_allclose(population.compute_rates(), study.rate(rate).values, rtol=0.02, atol=1e-3)
    for number, text in enumerate(texts):
        pairs = headscope.study(minilm, [text], windows="all").data["pairs"].values
        np.testing.assert_allclose(by_document.denominators[number], pairs, rtol=0.02, atol=3)


def test_calibration_finds_errors_that_are_too_small():
    """Documents of equal windows: blocks of windows give small errors and false alarms, blocks of documents do not."""
    random = np.random.default_rng(0)
    documents = np.repeat(np.arange(80), random.integers(5, 15, 80))
    denominators = np.full((len(documents), 1, 4), 100.0)
    rates = np.clip(0.3 + 0.1 * random.standard_normal((80, 1, 4)), 0, 1)[documents]
    sums = calibration.WindowSums(rates * denominators, denominators, documents)
    populations = {mode: {"rate": calibration.Population.create(sums)} for mode in calibration.MODES}
    rows = calibration.calibrate("planted", populations, 60)
    result = {"kind": "calibration", "rows": rows}
    measured = {
        (row["blocks"], row["measured"], row.get("drawn")): row["rates"]["rate"]
        for row in rows
        if row["windows"] == "all"
    }
    right, small = measured["documents", "errors", None], measured["windows", "errors", None]
    assert 0.85 < right["ratio"] < 1.15
    assert right["coverage"] > 0.88
    assert small["ratio"] < 0.5
    assert small["coverage"] < 0.75
    assert measured["documents", "halves", None]["tests"] < 0.1 < measured["windows", "halves", None]["tests"]
    assert measured["documents", "paired", None]["tests"] < 0.1 < measured["windows", "paired", None]["tests"]
    assert len(calibration_tables.tabulate_errors(result).splitlines()) == 1 + 6
    assert len(calibration_tables.tabulate_alarms(result).splitlines()) == 1 + 6
    assert len(calibration_tables.tabulate_outliers(result).splitlines()) == 1 + 2


def test_calibration_shows_what_one_document_outside_of_a_sample_does():
    """Of 60 documents one repeats tokens all the time: intervals of samples without it cannot reach the truth."""
    random = np.random.default_rng(0)
    denominators = np.full((60, 1, 2), 100.0)
    rates = 0.1 + 0.01 * random.standard_normal((60, 1, 2))
    rates[17] = 0.9
    population = calibration.Population.create(
        calibration.WindowSums(rates * denominators, denominators, np.arange(60))
    )
    assert population.find_largest_document() == 17
    assert population.measure_largest_document() > 0.9
    measured = calibration.measure_outliers({"rate": population}, "documents", 100)["rate"]
    assert measured["not_drawn"] < 0.2
    assert measured["drawn"] > 0.9
    assert measured["not_drawn"] < measured["coverage"] < measured["drawn"]
    assert min(measured["without_one"], measured["without_two"]) > 0.85


def test_degrees_of_freedom_from_kurtosis_worked_by_hand():
    # ±1: kurtosis 20 · 20 / 20² − 3 < 0, so all degrees. One block alone is 0.95 from the mean, the others 0.05.
    even = np.array([1.0, -1.0] * 10)[:, None]
    alone = np.array([1.0] + [0.0] * 19)[:, None]
    assert calibration.compute_degrees_from_kurtosis(even) == pytest.approx(19)
    kurtosis = 20 * (0.95**4 + 19 * 0.05**4) / (0.95**2 + 19 * 0.05**2) ** 2 - 3
    assert calibration.compute_degrees_from_kurtosis(alone) == pytest.approx(2 / (2 / 19 + kurtosis / 20))


def test_a_way_that_is_not_there_says_so_and_has_no_numbers():
    about = {"processor": "CPU", "load": 0, "date": "2026-01-01", "versions": {}}
    about |= {"model": "m", "layers": 1, "heads": 1, "length": 8, "ragged": False, "batch": 1, "device": "cpu"}
    absent = {"key": "lens", "name": "lens", "texts": 1, "absent": "not installed: pip install it"}
    made = speed_tables.speed_table({"about": {**about, "dtype": "float32"}, "ways": [absent]}, markdown=True)
    assert "| lens |           – |" in made
    assert "- lens: not installed: pip install it." in made
