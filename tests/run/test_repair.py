"""Test repairs of broken documents that change the length of a file: only their chunks are counted again."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import headscope
from headscope.corpus import chunks
from headscope.corpus.chunks import ChunkSize, adjust_repaired_chunks
from headscope.errors import Changed, CorpusError, Stopped
from headscope.model.model import Model
from headscope.run import plan, run
from tests.helpers import tiny
from tests.helpers.interrupting import OPTIONS, files, stop_after, texts, write_parquet
from tests.helpers.study_equality import assert_same_sums

pytestmark = pytest.mark.usefixtures("small_chunks")

BROKEN = '{"text": "no end\n'


@pytest.fixture(scope="module")
def model() -> Model:
    return tiny.model("bert")


@pytest.fixture(autouse=True)
def large_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat small corpora as large ones, which are not read before they are counted."""
    monkeypatch.setattr(plan, "MAX_SMALL_CORPUS", 10)


def study(model: Model, paths: list[Path], folder: Path | None = None, **options: Any) -> Any:
    return headscope.study(model, headscope.documents(paths), checkpoint_dir=folder, **{**OPTIONS, **options})


def replace_lines(path: Path, numbers: list[int], line: str) -> None:
    lines = path.read_text("utf-8").splitlines(keepends=True)
    for number in numbers:
        lines[number] = line
    path.write_text("".join(lines), "utf-8")


@pytest.mark.parametrize("text", ["a much longer line than that which stood there before, " * 9, "x"])
@pytest.mark.parametrize(
    ("counts", "file", "line"), [([20, 90, 20], 1, 50), ([3] * 12, 7, 1)], ids=["a part of a file", "small files"]
)
def test_a_repaired_line_may_have_another_length(
    model: Model, tmp_path: Path, text: str, counts: list[int], file: int, line: int
):
    paths = files(tmp_path / "in", counts)
    replace_lines(paths[file], [line], BROKEN)
    with pytest.raises(Stopped, match=rf"0{file}\.jsonl:{line + 1}: not a JSON object"):
        study(model, paths, tmp_path / "checkpoint")
    replace_lines(paths[file], [line], f'{{"text": "{text}"}}\n')
    reports = list[Any]()
    again = study(model, paths, tmp_path / "checkpoint", progress=reports.append)
    assert_same_sums(study(model, paths), again)  # texts share other batches, so reals differ by rounding
    assert reports[0].documents_before > sum(counts) / 2


def test_a_repaired_study_that_is_interrupted_can_be_resumed_again(model: Model, tmp_path: Path):
    paths = files(tmp_path / "in", [20, 90, 60])
    replace_lines(paths[1], [50], BROKEN)
    with pytest.raises(Stopped):
        study(model, paths, tmp_path / "checkpoint")
    replace_lines(paths[1], [50], '{"text": "still broken, and longer than before\n')
    with pytest.raises(Stopped, match=r"01\.jsonl:51: not a JSON object"):
        study(model, paths, tmp_path / "checkpoint")
    replace_lines(paths[1], [50], '{"text": "the cat sat."}\n')
    with pytest.raises(Stopped):
        study(model, paths, tmp_path / "checkpoint", progress=stop_after(1))
    assert_same_sums(study(model, paths), study(model, paths, tmp_path / "checkpoint"))


@pytest.mark.parametrize(
    "change",
    [
        lambda path: replace_lines(path, [3, 50], '{"text": "another text than before"}\n'),
        lambda path: path.write_text(path.read_text("utf-8") * 2, "utf-8"),
        lambda path: path.write_text("", "utf-8"),
    ],
    ids=["another text elsewhere", "twice as long", "empty"],
)
def test_what_was_counted_must_be_the_same(model: Model, tmp_path: Path, change: Callable[[Path], None]):
    paths = files(tmp_path / "in", [20, 90, 20])
    replace_lines(paths[1], [50], BROKEN)
    with pytest.raises(Stopped):
        study(model, paths, tmp_path / "checkpoint")
    change(paths[1])
    with pytest.raises((Changed, Stopped), match=r"01\.jsonl"):
        study(model, paths, tmp_path / "checkpoint")


def test_borders_after_a_repaired_chunk_move_with_it(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"x" * 1000)
    planned = headscope.documents(path).plan_chunks(ChunkSize(4, 300))
    assert [(chunk.start, chunk.stop) for chunk in planned] == [(0, 300), (300, 600), (600, None)]
    unmoved = [0, 300, 600]
    for size, failed, completed, starts in (
        (1100, {1}, {0}, [0, 300, 700]),
        (1100, {0}, {1, 2}, [0, 400, 700]),
        (1100, {2}, {0, 1}, unmoved),
        (1100, set[int](), {0, 2}, [0, 300, 700]),  # only one chunk is not counted
        (1100, {0, 1}, {2}, unmoved),  # which of them grew cannot be known
        (1100, set[int](), set[int](), unmoved),
        (800, {1}, {0, 2}, [0, 300, 400]),
        (700, {1}, {0, 2}, unmoved),  # nothing would be left of it
        (100, {0}, {1, 2}, unmoved),
    ):
        path.write_bytes(b"x" * size)
        moved = adjust_repaired_chunks(planned, headscope.documents(path).sources, [1000], failed, completed)
        assert [chunk.start for chunk in moved] == starts, (size, failed)
        assert [chunk.stop for chunk in moved] == [*starts[1:], None]
    assert adjust_repaired_chunks(planned, headscope.documents(path).sources, [-1], {1}, {0}) == planned


@pytest.mark.parametrize("length", [20, 600], ids=["shorter", "longer"])
def test_lines_repaired_one_run_after_the_other(model: Model, tmp_path: Path, length: int):
    """The first repair changes the length of a file in which the next run finds another broken line."""
    (path,) = files(tmp_path / "in", [90])
    replace_lines(path, [25, 70], BROKEN.replace("no end", "no end " * 30))
    with pytest.raises(Stopped):
        study(model, [path], tmp_path / "checkpoint", progress=stop_after(12))
    with pytest.raises(Stopped, match=r"00\.jsonl:26: .*\n.*00\.jsonl:71: "):
        study(model, [path], tmp_path / "checkpoint")
    replace_lines(path, [25], json.dumps({"text": "a" * length}) + "\n")
    # Which of two chunks that failed was repaired cannot be known: what was counted is compared, which comes upon the
    # other broken line.
    with pytest.raises(Stopped, match=r"00\.jsonl:71: not a JSON object"):
        study(model, [path], tmp_path / "checkpoint")
    replace_lines(path, [70], json.dumps({"text": "a" * length}) + "\n")
    with pytest.raises(Changed, match=r"00\.jsonl"):
        study(model, [path], tmp_path / "checkpoint")


def test_a_second_failure_found_in_a_later_run_moves_no_borders(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (path,) = files(tmp_path / "in", [90])
    lines = path.read_text("utf-8").splitlines(keepends=True)
    replace_lines(path, [25], BROKEN)
    replace_lines(path, [70], BROKEN)
    with monkeypatch.context() as patched:
        patched.setattr(run, "MAX_FAILED_CHUNKS", 1)  # as if nine other files had failed before
        with pytest.raises(Stopped, match=r"00\.jsonl:26: "):
            study(model, [path], tmp_path / "checkpoint")
    replace_lines(path, [25], json.dumps({"text": "the cat sat on it " * 20}) + "\n")
    with pytest.raises(Stopped, match=r"00\.jsonl:71: "):
        study(model, [path], tmp_path / "checkpoint")
    replace_lines(path, [70], lines[70])
    assert_same_sums(study(model, [path]), study(model, [path], tmp_path / "checkpoint"))


def test_a_failure_that_passes_moves_no_borders(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The disk fails in the run after a repair; the run after that counts the rest."""
    (path,) = files(tmp_path / "in", [90])
    replace_lines(path, [25], BROKEN)
    with monkeypatch.context() as patched:
        patched.setattr(run, "MAX_FAILED_CHUNKS", 1)
        with pytest.raises(Stopped, match=r"00\.jsonl:26: "):
            study(model, [path], tmp_path / "checkpoint")
    replace_lines(path, [25], json.dumps({"text": "the cat sat on it " * 20}) + "\n")
    read = chunks._read_source

    def fail_once(source: Any, chunk: Any) -> Any:
        if chunk.number == 9:
            raise CorpusError(f"{source.name}: cannot be read: Input/output error")
        return read(source, chunk)

    with monkeypatch.context() as patched:
        patched.setattr(chunks, "_read_source", fail_once)
        with pytest.raises(Stopped, match="Input/output error"):
            study(model, [path], tmp_path / "checkpoint")
    assert_same_sums(study(model, [path]), study(model, [path], tmp_path / "checkpoint"))


@pytest.mark.parametrize("stops", [False, True])
def test_a_repair_that_is_much_shorter(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stops: bool):
    """The broken line reaches over many chunks, so that the borders after it would lie before it."""
    (path,) = files(tmp_path / "in", [90])
    replace_lines(path, [25], BROKEN.replace("no end", "x" * 3000))
    with monkeypatch.context() as patched:
        patched.setattr(run, "MAX_FAILED_CHUNKS", 1 if stops else 10)
        with pytest.raises(Stopped, match=r"00\.jsonl:26: "):
            study(model, [path], tmp_path / "checkpoint")
    replace_lines(path, [25], '{"text": "mended."}\n')
    if stops:  # nothing behind it was counted
        assert_same_sums(study(model, [path]), study(model, [path], tmp_path / "checkpoint"))
    else:
        with pytest.raises(Changed, match=r"00\.jsonl"):
            study(model, [path], tmp_path / "checkpoint")


@pytest.mark.parametrize("after", [14, 30, 44])
def test_storage_that_fails_while_chunks_are_planned(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
):
    """A resumed run uses the chunks of the first one, also if a second look at the files would give others."""
    packed = write_parquet(tmp_path / "a.parquet", [texts(5, number) for number in range(12)])
    paths = [packed, *files(tmp_path / "in", [60])]

    def fail(path: str) -> list[int]:
        raise CorpusError(f"{path}: timed out")

    with monkeypatch.context() as patched:
        patched.setattr(chunks, "count_rows", fail)
        with pytest.raises(Stopped):
            study(model, paths, tmp_path / "checkpoint", progress=stop_after(after))
    again = study(model, paths, tmp_path / "checkpoint")
    assert again.manifest["documents_read"] == 120
    assert again.manifest["corpus_hash"] == study(model, paths).manifest["corpus_hash"]


@pytest.mark.parametrize(("first", "second"), [(14, 14), (14, 30), (10, 40)])
def test_a_file_that_is_edited_and_put_back(model: Model, tmp_path: Path, first: int, second: int):
    """A compressed file is edited behind what is counted of it, counted on, and restored with its old time."""
    (lines,) = files(tmp_path / "in", [80])
    rows = lines.read_text("utf-8").splitlines(keepends=True)
    path = tmp_path / "a.jsonl.gz"

    def write(content: list[str], seconds: float) -> None:
        path.write_bytes(gzip.compress("".join(content).encode(), mtime=0))
        os.utime(path, (seconds, seconds))

    write(rows, 1e9)
    with pytest.raises(Stopped):
        study(model, [path], tmp_path / "checkpoint", progress=stop_after(first))
    write([*rows[:70], '{"text": "the owl sat."}\n', *rows[70:]], 2e9)
    with suppress(Stopped):
        study(model, [path], tmp_path / "checkpoint", progress=stop_after(second))
    write(rows, 1e9)
    with suppress(Changed, Stopped):  # it was counted in part from the edited file
        again = study(model, [path], tmp_path / "checkpoint")
        assert_same_sums(study(model, [path]), again)


def test_that_broken_documents_were_skipped_is_remembered(model: Model, tmp_path: Path):
    (path,) = files(tmp_path / "in", [60])
    replace_lines(path, [20], BROKEN)
    corpus = headscope.documents(path, skip_broken=True)
    with pytest.raises(Stopped):
        headscope.study(model, corpus, checkpoint_dir=tmp_path / "out", progress=stop_after(20), **OPTIONS)
    again = study(model, [path], tmp_path / "out")
    assert again.manifest["documents_skipped"]["not JSON"] == 1
    assert again.manifest["skip_broken"]
