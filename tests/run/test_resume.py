"""Test resuming: an interrupted and resumed study equals one that was never interrupted."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headscope
from headscope.corpus import chunks
from headscope.corpus.documents import as_corpus
from headscope.errors import Changed, CorpusError, Stopped, StudyError
from headscope.model.model import Model
from headscope.output_folder import has_checkpoint, remove_checkpoints
from headscope.run import checkpoint, local_engine, plan, run
from headscope.run.checkpoint import parse_checkpoint
from headscope.run.state import RunState
from headscope.settings import Settings
from headscope.studies.result import Study
from headscope.tally.quantities import Shape
from tests.helpers import tiny
from tests.helpers.interrupting import (
    CORPORA,
    OPTIONS,
    SMALL,
    assert_equal,
    files,
    make_gz,
    make_jsonl,
    run_interrupted,
    save_tiny_model,
    stop_after,
    texts,
)
from tests.helpers.study_equality import assert_same_sums

pytestmark = pytest.mark.usefixtures("small_chunks")


@pytest.fixture(scope="module")
def model() -> Model:
    tiny_model = tiny.model("bert")
    assert tiny_model.ignores_padding  # runs the model, so ask before a test counts how often it runs
    return tiny_model


def study(model: Model, documents: Any, folder: Path | str | None = None, **options: Any) -> Study:
    return headscope.study(model, documents, **{"checkpoint_dir": folder, **OPTIONS, **options})


def interrupt(model: Model, documents: Any, folder: Path | str, after: int = 3, **options: Any) -> Study:
    """Leave an unfinished study in a folder, and return what it counted."""
    with pytest.raises(Stopped) as caught:
        study(model, documents, folder, progress=stop_after(after), **options)
    assert caught.value.interrupted
    assert caught.value.study is not None
    return caught.value.study


def load_state(path: Path, model: Model) -> RunState:
    shape = Shape(
        model.architecture.layers, model.architecture.heads, OPTIONS["length"], width=model.architecture.width
    )
    return parse_checkpoint(path.read_bytes()).load_state(shape)


class Failure(Exception):
    """An error that the code does not expect."""


# Interruptions


class Interruption:
    """Raise an error after `after` calls, from a progress callback or where batches run."""

    def __init__(self, where: str, after: int, error: type[BaseException]) -> None:
        self.where, self.after, self.error = where, after, error

    def __repr__(self) -> str:
        return f"{self.error.__name__} in {self.where} {self.after}"

    def count_down(self) -> None:
        self.after -= 1
        if self.after < 0:
            raise self.error

    def run(self, model: Model, documents: Any, folder: Path, **options: Any) -> Study | None:
        """Return the study if it ends before it is interrupted."""
        observe = Model.observe

        def observe_until(*arguments: Any) -> None:
            self.count_down()
            observe(*arguments)

        with pytest.MonkeyPatch.context() as patch:
            if self.where == "progress":
                options["progress"] = lambda _: self.count_down()
            else:
                patch.setattr(Model, "observe", observe_until)
            with suppress(Stopped, Failure):
                return study(model, documents, folder, **options)
        return None


INTERRUPTIONS = st.builds(
    Interruption,
    st.sampled_from(["progress", "a batch"]),
    st.integers(0, 9),
    st.sampled_from([KeyboardInterrupt, Failure]),
)


@pytest.mark.parametrize("limit", [None, 41])
@pytest.mark.parametrize("kind", CORPORA)
@given(
    interruptions=st.lists(INTERRUPTIONS, max_size=5),
    windows=st.sampled_from(["first", "all"]),
    interval=st.sampled_from([0.0, 60.0]),
)
@settings(max_examples=4, derandomize=True)
def test_a_resumed_study_equals_an_uninterrupted_one(
    model: Model,
    tmp_path_factory: pytest.TempPathFactory,
    kind: str,
    limit: int | None,
    interruptions: list[Interruption],
    windows: str,
    interval: float,
):
    folder = tmp_path_factory.mktemp("resumed")
    (folder / "in").mkdir()
    paths = CORPORA[kind](folder / "in")
    expected = study(model, headscope.documents(paths, limit=limit), windows=windows)
    options = {"windows": windows, "checkpoint_interval": interval}
    for interruption in interruptions:
        documents = headscope.documents(paths, limit=limit)
        if (again := interruption.run(model, documents, folder / "out", **options)) is not None:
            break
    else:
        again = study(model, headscope.documents(paths, limit=limit), folder / "out", **options)
    assert_equal(expected, again)
    assert 1 <= again.manifest["runs"] <= len(interruptions) + 1


@pytest.mark.parametrize("kind", CORPORA)
def test_the_corpora_have_many_chunks_or_sections(model: Model, tmp_path: Path, kind: str):
    (tmp_path / "in").mkdir()
    steps: list[headscope.Progress] = []
    study(model, headscope.documents(CORPORA[kind](tmp_path / "in")), progress=steps.append)
    assert len({step.documents for step in steps}) >= 6


def test_nothing_is_counted_again(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, ran = make_jsonl(tmp_path), watch_texts(monkeypatch)
    part = interrupt(model, headscope.documents(path), tmp_path / "out", 8)
    assert 0 < part.texts <= sum(ran)
    del ran[:]
    expected = study(model, headscope.documents(path), tmp_path / "out")
    assert expected.manifest["runs"] == 2
    assert sum(ran) == expected.texts - part.texts > 0


def test_progress_says_what_earlier_runs_counted(model: Model, tmp_path: Path):
    path = make_jsonl(tmp_path)
    part = interrupt(model, headscope.documents(path), tmp_path / "out", 8)
    steps, messages = list[headscope.Progress](), list[str]()
    expected = study(
        model, headscope.documents(path), tmp_path / "out", progress=steps.append, on_message=messages.append
    )
    assert messages == [f"resuming: {part.texts:,} texts are counted already"]
    assert {(step.texts_before, step.documents_before) for step in steps} == {
        (part.texts, part.manifest["documents_read"])
    }
    numbers = [(step.texts, step.documents) for step in steps]
    assert numbers == sorted(numbers)
    assert numbers[0] > (part.texts, part.manifest["documents_read"])
    assert numbers[-1] == (expected.texts, 60)


def test_the_comparison_can_fail(model: Model):
    original = study(model, texts(20))
    for change in (lambda data: data["pairs"], lambda data: data["attention_offset"]):
        changed = Study(original.data.copy(deep=True))
        values = change(changed.data).values
        values.flat[values.argmax()] += 1
        with pytest.raises(AssertionError):
            assert_equal(original, changed)


@pytest.mark.parametrize("kernel", ["numba", "torch", "reference"])
def test_texts_given_in_python_are_resumed_too(model: Model, tmp_path: Path, kernel: str):
    given_texts, options = texts(24 if kernel == "reference" else 60), {**OPTIONS, "kernel": kernel}
    expected = study(model, given_texts, kernel=kernel)
    assert_equal(expected, run_interrupted(model, given_texts, tmp_path, [2, 5, 1], checkpoint_interval=0.0, **options))


def test_a_generator_is_resumed_when_it_is_given_again(model: Model, tmp_path: Path):
    given_texts = texts(60)
    expected = study(model, iter(given_texts))
    part = interrupt(model, iter(given_texts), tmp_path, 8)
    interrupt(model, iter(given_texts), tmp_path, 2)
    again = study(model, (text for text in given_texts), tmp_path)
    assert_equal(expected, again)
    assert again.texts > part.texts
    assert_equal(expected, study(model, iter(given_texts), tmp_path))  # it is complete: all of it is compared


@pytest.mark.parametrize("change", ["another text", "one text less", "another order"])
@pytest.mark.parametrize("complete", [False, True])
def test_a_generator_of_other_texts_is_refused(model: Model, tmp_path: Path, change: str, complete: bool):
    given_texts = texts(60)
    if complete:
        study(model, iter(given_texts), tmp_path)
        count = 60
    else:
        count = interrupt(model, iter(given_texts), tmp_path, 8).manifest["documents_read"]
    other = {
        "another text": ["the owl and the cat", *given_texts[1:]],
        "one text less": given_texts[: count - 1],
        "another order": given_texts[::-1],
    }[change]
    if complete and change == "another order":  # the sums are the same
        assert study(model, iter(other), tmp_path).texts
        return
    before = (tmp_path / "last").read_bytes()
    with pytest.raises(Changed, match="texts given in Python: not the texts that were counted before"):
        study(model, iter(other), tmp_path)
    assert (tmp_path / "last").read_bytes() == before


def test_two_studies_do_not_share_a_folder(model: Model, tmp_path: Path):
    def start_again(_: Any) -> None:
        study(model, texts(5), tmp_path)

    with pytest.raises(headscope.HeadscopeError, match="is in use: process"):
        study(model, texts(20), tmp_path, progress=start_again)


@pytest.mark.parametrize("interval", [-1.0, float("nan")])
def test_no_time_between_checkpoints_is_negative(model: Model, tmp_path: Path, interval: float):
    with pytest.raises(StudyError, match="seconds between checkpoints"):
        study(model, texts(5), tmp_path, checkpoint_interval=interval)


def test_nothing_is_left_of_a_study_of_nothing(model: Model, tmp_path: Path):
    with pytest.raises(StudyError, match="no text to study"):
        study(model, ["", ""], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def refuse(*_: Any) -> None:
    raise AssertionError("computed again")


@pytest.mark.parametrize("kind", CORPORA)
def test_a_finished_study_is_not_computed_twice(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
):
    (tmp_path / "in").mkdir()
    corpus = headscope.documents(CORPORA[kind](tmp_path / "in"))
    expected = study(model, corpus, tmp_path / "out")
    monkeypatch.setattr(Model, "observe", refuse)
    monkeypatch.setattr(chunks, "read_chunk", refuse)  # nor read: its files are as they were
    assert_equal(expected, study(model, corpus, tmp_path / "out"))
    remove_checkpoints(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(AssertionError, match="computed again"):
        study(model, corpus, tmp_path / "out")


# Killed processes

KILLED = """
import os, signal, sys, types
import headscope
from headscope.corpus.chunks import ChunkSize
from headscope.run import checkpoint, local_engine, plan

plan.choose_chunk_size = lambda *more: ChunkSize(4, 300)
local_engine.FLUSH_SECONDS = 0.0
model, texts, out, where, after, options = sys.argv[1:]
steps = iter(range(int(after)))

def count_down(*arguments):
    if next(steps, None) is None:
        os.kill(os.getpid(), signal.SIGKILL)

def kill_before(name):
    # Calls of other modules are left alone: numba's cache replaces files too.
    call = getattr(os, name)
    checkpoint.os = types.SimpleNamespace(**vars(os))
    setattr(checkpoint.os, name, lambda *arguments: (count_down(), call(*arguments))[1])

if where != "progress":
    kill_before(where)
progress = count_down if where == "progress" else None
corpus = headscope.documents(texts)
headscope.study(headscope.load(model), corpus, checkpoint_dir=out, progress=progress, **eval(options))
print("not killed")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
@pytest.mark.parametrize(
    ("make", "kills"),
    [(make_jsonl, [("progress", 5), ("fsync", 2), ("replace", 3)]), (make_gz, [("replace", 2), ("progress", 9)])],
    ids=["jsonl", "gz"],
)
def test_a_killed_study_is_resumed(tmp_path: Path, make: Callable[[Path], Path], kills: list[tuple[str, int]]):
    """Killed while it counts, and at any moment of writing a checkpoint: before it is flushed, and between renames."""
    model_path, corpus_path = save_tiny_model(tmp_path / "model"), make(tmp_path)
    expected = study(headscope.load(str(model_path)), headscope.documents(corpus_path))
    options = {**OPTIONS, "checkpoint_interval": 0.0}
    for where, after in kills:
        arguments = [str(model_path), str(corpus_path), str(tmp_path / "out"), where, str(after), repr(options)]
        ran = subprocess.run([sys.executable, "-c", KILLED, *arguments], capture_output=True, text=True, check=False)
        assert ran.returncode == -signal.SIGKILL, ran.stdout + ran.stderr
    messages: list[str] = []
    again = study(
        headscope.load(str(model_path)), headscope.documents(corpus_path), tmp_path / "out", on_message=messages.append
    )
    assert_equal(expected, again)
    assert again.manifest["runs"] == len(kills) + 1
    assert len(messages) == 1
    assert "resuming: " in messages[0]
    assert not (tmp_path / "out" / ".next").exists()


# Another study

CHANGED = {
    "theta": ({"theta": 0.4}, r"theta \(0.3 before, 0.4 now\)"),
    "tau": ({"tau": 0.2}, "tau"),
    "length": ({"length": 20}, r"length \(24 before, 20 now\)"),
    "windows": ({"windows": "all"}, "windows"),
    "sentences": ({"sentences": "text"}, "sentences"),
    "min_tokens": ({"min_tokens": 3}, "min_tokens"),
    "sample": ({"sample": 0.25}, "sample"),
    "maps": ({"maps": False}, "maps"),
    "batch size": ({"batch_size": 4}, r"batch_size \(3 before, 4 now\)"),
    "kernel": ({"kernel": "torch"}, r"kernel \(auto before, torch now\)"),
    "TF32": ({"tf32": False}, r"tf32 \(True before, False now\)"),
    "share": ({"share": "1/2"}, r"share \(all before, 1/2 now\)"),
}


@pytest.mark.parametrize("what", CHANGED)
def test_other_settings_are_refused_and_named(model: Model, tmp_path: Path, what: str):
    corpus = headscope.documents(files(tmp_path / "in", [30]))
    interrupt(model, corpus, tmp_path / "out")
    changed, message = CHANGED[what]
    before = (tmp_path / "out" / "last").read_bytes()
    with pytest.raises(Changed, match=message) as caught:
        study(model, corpus, tmp_path / "out", **changed)
    assert "--overwrite" in str(caught.value)
    assert str(caught.value).count(" before, ") == 1
    assert (tmp_path / "out" / "last").read_bytes() == before


def test_broken_documents_may_be_skipped_from_now_on(model: Model, tmp_path: Path):
    (path,) = files(tmp_path / "in", [30])
    expected = study(model, headscope.documents(path))
    interrupt(model, headscope.documents(path), tmp_path)
    corpus = headscope.documents(path, skip_broken=True)
    assert_equal(expected, study(model, corpus, tmp_path, skip_broken=True))


def test_another_model_is_refused(model: Model, tmp_path: Path):
    corpus = headscope.documents(files(tmp_path / "in", [30]))
    interrupt(model, corpus, tmp_path)
    other = headscope.load(tiny.network("bert", seed=1), tiny.tokenizer())
    with pytest.raises(Changed, match="weight_hash"):
        study(other, corpus, tmp_path)
    with pytest.raises(Changed, match=r"model \("):
        study(tiny.model("gpt2"), corpus, tmp_path)


def test_other_files_are_refused_and_named(model: Model, tmp_path: Path):
    paths = files(tmp_path / "in", [30, 30, 30])
    interrupt(model, headscope.documents(paths), tmp_path)
    for sources, message in (
        (paths[:2], r"texts \(.*02\.jsonl no longer there\)"),
        ([*paths, *files(tmp_path / "more", [3])], r"texts \(.*00\.jsonl new\)"),
        (paths[::-1], "the same files in another order"),
    ):
        with pytest.raises(Changed, match=message):
            study(model, headscope.documents(sources), tmp_path)
    with pytest.raises(Changed, match=r"limit \(none before, 5 now\)"):
        study(model, headscope.documents(paths, limit=5), tmp_path)
    with pytest.raises(Changed, match=r"encoding \(utf-8 before, latin-1 now\)"):
        study(model, headscope.documents(paths, encoding="latin-1"), tmp_path)


# Files that change between runs


def change_line(path: Path, line: int) -> None:
    """Replace the text in a line of a file."""
    lines = path.read_text("utf-8").splitlines(keepends=True)
    lines[line] = json.dumps({"text": "the owl and the owl and the cat."}) + "\n"
    path.write_text("".join(lines), "utf-8")


@pytest.mark.parametrize("limit", [None, 70])
@pytest.mark.parametrize(("line", "after"), [(0, 3), (0, 20), (39, 20)])
def test_changed_texts_are_refused(model: Model, tmp_path: Path, line: int, after: int, limit: int | None):
    paths = files(tmp_path / "in", [40, 40])
    part = interrupt(model, headscope.documents(paths, limit=limit), tmp_path, after)
    assert part.manifest["documents_read"] > line
    change_line(paths[0], line)
    before = (tmp_path / "last").read_bytes()
    with pytest.raises(Changed, match=r"00\.jsonl.*not the texts that were counted before.*--overwrite"):
        study(model, headscope.documents(paths, limit=limit), tmp_path)
    assert (tmp_path / "last").read_bytes() == before


def test_texts_that_were_added_to_a_file_that_was_counted_are_refused(model: Model, tmp_path: Path):
    (path,) = files(tmp_path / "in", [40])
    study(model, headscope.documents(path), tmp_path)
    with path.open("a") as file:
        file.write('{"text": "the owl."}\n' * 30)
    with pytest.raises(Changed, match=r"00\.jsonl.*not the texts that were counted before"):
        study(model, headscope.documents(path), tmp_path)


def test_texts_that_were_removed_from_a_file_are_refused(model: Model, tmp_path: Path):
    (path,) = files(tmp_path / "in", [40])
    study(model, headscope.documents(path), tmp_path)
    path.write_text("".join(path.read_text("utf-8").splitlines(keepends=True)[:3]), "utf-8")
    with pytest.raises(Changed, match=r"00\.jsonl.*not the texts that were counted before"):
        study(model, headscope.documents(path), tmp_path)


def test_a_changed_gz_is_refused_when_it_is_resumed(model: Model, tmp_path: Path):
    path = make_gz(tmp_path)
    part = interrupt(model, headscope.documents(path), tmp_path / "out", 12)
    state = load_state(tmp_path / "out" / "last", model)
    assert not state.completed
    assert state.in_progress[0].documents == part.manifest["documents_read"] >= 8
    lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    path.write_bytes(gzip.compress(b"".join([*lines[1:], lines[0]])))
    with pytest.raises(Changed, match=r"a\.jsonl\.gz: not the texts that were counted before"):
        study(model, headscope.documents(path), tmp_path / "out")


def test_copied_files_are_the_same_texts(model: Model, tmp_path: Path):
    paths = files(tmp_path / "in", [40, 40])
    expected = study(model, headscope.documents(paths))
    interrupt(model, headscope.documents(paths), tmp_path, 18)
    for file in paths:
        content = file.read_bytes()
        file.unlink()
        file.write_bytes(content)
    assert_equal(expected, study(model, headscope.documents(paths), tmp_path))


def test_a_file_of_a_folder_that_vanished_is_named(model: Model, tmp_path: Path):
    paths = files(tmp_path / "in", [40, 40])
    interrupt(model, headscope.documents(tmp_path / "in"), tmp_path / "out")
    paths[1].unlink()
    with pytest.raises(Changed, match=r"01\.jsonl no longer there"):
        study(model, headscope.documents(tmp_path / "in"), tmp_path / "out")


def test_of_many_small_files_the_newest_is_named(model: Model, tmp_path: Path):
    for k in range(9):
        (tmp_path / f"{k}.txt").write_text("the cat sat on a mat.")
        os.utime(tmp_path / f"{k}.txt", ns=(0, k))
    study(model, headscope.documents(tmp_path), tmp_path / "out")
    (tmp_path / "1.txt").write_text("the owl sat on a mat.")
    with pytest.raises(Changed, match=r"/1\.txt or one of 3 files read with it: not the texts"):
        study(model, headscope.documents(tmp_path), tmp_path / "out")


# Files that change during a run

COUNT = 400
"""documents of the file that changes: more than are read ahead"""

CHANGES: dict[str, Callable[[Path], None]] = {
    "a line changes": lambda path: change_line(path, COUNT - 2),
    "it is replaced": lambda path: shutil.copy(path.with_name("other"), path),
    "it grows": lambda path: path.write_bytes(path.read_bytes() + b'{"text": "the owl."}\n' * 9),
    "it shrinks": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "it vanishes": lambda path: path.unlink(),
}


@pytest.mark.parametrize("limit", [None, COUNT - 1, COUNT + 19])
@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_during_the_run_is_named_and_not_complete(
    model: Model, tmp_path: Path, change: str, limit: int | None
):
    paths = files(tmp_path / "in", [COUNT, 20])
    (tmp_path / "in" / "other").write_text('{"text": "the owl and a cat"}\n' * COUNT)
    original, state = paths[0].read_bytes(), paths[0].stat()
    expected = study(model, headscope.documents(paths, limit=limit))
    steps = iter(range(5))

    def change_file(_: Any) -> None:
        if next(steps, None) == 3:
            CHANGES[change](paths[0])

    with pytest.raises(Stopped, match=r"00\.jsonl") as caught:
        study(model, headscope.documents(paths, limit=limit), tmp_path, progress=change_file)
    assert caught.value.study is not None
    assert not caught.value.study.manifest["complete"]
    assert caught.value.study.data["source_documents"].values[0] < COUNT
    # With the file as it was, what was counted is right: nothing of the other version is in it.
    paths[0].write_bytes(original)
    os.utime(paths[0], ns=(state.st_atime_ns, state.st_mtime_ns))
    assert_equal(expected, study(model, headscope.documents(paths, limit=limit), tmp_path))


@pytest.mark.parametrize("limit", [None, COUNT + 30])
def test_a_file_that_changed_during_the_run_is_never_mixed(model: Model, tmp_path: Path, limit: int | None):
    paths = files(tmp_path / "in", [COUNT, 40])
    steps = iter(range(20))

    def change_file(_: Any) -> None:
        if next(steps, None) == 8:
            change_line(paths[0], 0)

    with pytest.raises(Stopped, match=r"00\.jsonl: changed since this study began"):
        study(model, headscope.documents(paths, limit=limit), tmp_path, progress=change_file)
    with pytest.raises(Changed, match=r"00\.jsonl.*not the texts that were counted before"):
        study(model, headscope.documents(paths, limit=limit), tmp_path)


def test_a_file_given_twice_is_counted_once(model: Model, tmp_path: Path):
    first, second = files(tmp_path / "in", [20, 25])
    link = tmp_path / "in" / "link.jsonl"
    link.symlink_to(first)
    messages: list[str] = []
    expected = study(model, headscope.documents([first, second]))
    again = study(model, headscope.documents([first, second, first, tmp_path / "in"]), on_message=messages.append)
    assert_equal(expected, again)
    assert messages == [f"2 files are given more than once (the first: {first}): each is read once"]


@pytest.fixture
def storage() -> Iterator[str]:
    url = "memory://headscope-tests/study"
    yield url
    system = fsspec.filesystem("memory")
    if system.exists("/headscope-tests"):
        system.rm("/headscope-tests", recursive=True)


# Damaged checkpoints

DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "a bit": lambda content: content[:5000] + bytes([content[5000] ^ 1]) + content[5001:],
    "the hash": lambda content: content[:30] + bytes([content[30] ^ 128]) + content[31:],
    "cut off": lambda content: content[: len(content) // 2],
    "nothing left": lambda content: b"",
    "longer": lambda content: content + b"\0",
}


@pytest.mark.parametrize("how", DAMAGE)
def test_instead_of_a_damaged_checkpoint_the_previous_one_is_used(model: Model, tmp_path: Path, how: str):
    given_texts = texts(60)
    expected = study(model, given_texts)
    interrupt(model, given_texts, tmp_path, 15, checkpoint_interval=0.0)
    last = tmp_path / "last"
    last.write_bytes(DAMAGE[how](last.read_bytes()))
    messages: list[str] = []
    assert_equal(expected, study(model, given_texts, tmp_path, on_message=messages.append))
    assert "The one before it is used" in messages[0]
    assert str(last) in messages[0]


@pytest.mark.parametrize("name", ["last", "previous"])
def test_files_of_others_are_left_alone(model: Model, tmp_path: Path, storage: str, name: str):
    given_texts, content = texts(20), b"my own notes"
    (tmp_path / name).write_bytes(content)
    fsspec.filesystem("memory").pipe_file(f"/headscope-tests/study/{name}", content)
    for folder in (tmp_path, storage):
        with pytest.raises(StudyError, match=rf"{name} is there already, and headscope did not write it"):
            study(model, given_texts, folder)
        remove_checkpoints(str(folder))
        assert not has_checkpoint(str(folder))
    assert (tmp_path / name).read_bytes() == content
    assert fsspec.filesystem("memory").cat_file(f"/headscope-tests/study/{name}") == content


def test_a_damaged_checkpoint_never_replaces_a_good_one(model: Model, tmp_path: Path):
    given_texts = texts(60)
    interrupt(model, given_texts, tmp_path, 15, checkpoint_interval=0.0)
    last, previous = (tmp_path / name for name in ("last", "previous"))
    last.write_bytes(b"headscope")
    interrupt(model, given_texts, tmp_path, 0, checkpoint_interval=60.0)  # one checkpoint, when it ends
    counted = [load_state(path, model).texts for path in (previous, last)]
    assert 0 < counted[0] <= counted[1]


def test_without_any_readable_checkpoint_the_error_says_what_to_do(model: Model, tmp_path: Path):
    given_texts = texts(60)
    interrupt(model, given_texts, tmp_path, 15, checkpoint_interval=0.0)
    for name in ("last", "previous"):
        (tmp_path / name).write_bytes(b"headscope")
    with pytest.raises(StudyError, match=r"last: not a checkpoint; .*previous: not a checkpoint.*--overwrite"):
        study(model, given_texts, tmp_path)
    assert (tmp_path / "last").read_bytes() == b"headscope"


def test_a_checkpoint_of_another_version_is_not_misread(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    given_texts = texts(30)
    interrupt(model, given_texts, tmp_path, 6, checkpoint_interval=0.0)
    monkeypatch.setattr(checkpoint, "FORMAT", 4)
    with pytest.raises(StudyError, match="of format 3, and this version of headscope reads 4"):
        study(model, given_texts, tmp_path)


# Checkpoints that cannot be written


def test_a_full_disk_does_not_end_a_study(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    given_texts, messages = texts(60), list[str]()
    expected = study(model, given_texts)
    flush, attempts = checkpoint.os.fsync, iter(range(100))

    def fail_sometimes(descriptor: int) -> None:
        if next(attempts) in (2, 3, 4):
            raise OSError(28, "No space left on device")
        flush(descriptor)

    monkeypatch.setattr(checkpoint.os, "fsync", fail_sometimes)
    again = study(model, given_texts, tmp_path, checkpoint_interval=0.0, on_message=messages.append)
    assert_equal(expected, again)
    (message,) = [message for message in messages if "No space left on device" in message]
    assert "The study continues" in message
    assert messages.count("checkpoints can be written again") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last", "previous"]


def test_a_folder_that_is_removed_is_created_again(model: Model, tmp_path: Path):
    given_texts, messages, out = texts(60), list[str](), tmp_path / "out"
    expected = study(model, given_texts)
    steps = iter(range(100))

    def remove(_: Any) -> None:
        if next(steps) == 12:
            shutil.rmtree(out)

    again = study(model, given_texts, out, checkpoint_interval=0.0, on_message=messages.append, progress=remove)
    assert_equal(expected, again)
    assert any("was removed, and is created again" in message for message in messages)
    assert (out / "last").exists()


# Checkpoints on other storage


def test_checkpoints_are_kept_on_any_storage(model: Model, tmp_path: Path, storage: str):
    corpus = headscope.documents(make_jsonl(tmp_path))
    expected = study(model, corpus)
    options = {**OPTIONS, "checkpoint_interval": 0.0}
    again = run_interrupted(model, corpus, storage, [8, 3, 1, 9], **options)
    assert_equal(expected, again)
    assert again.manifest["runs"] == 5
    names = [Path(name).name for name in fsspec.filesystem("memory").find("/headscope-tests")]
    assert sorted(names) == ["last", "previous"]


def test_a_damaged_checkpoint_on_other_storage(model: Model, tmp_path: Path, storage: str):
    corpus, system = headscope.documents(make_jsonl(tmp_path)), fsspec.filesystem("memory")
    expected = study(model, corpus)
    interrupt(model, corpus, storage, 8, checkpoint_interval=0.0)
    (last,) = [name for name in system.find("/headscope-tests") if name.endswith("last")]
    system.pipe_file(last, system.cat_file(last)[:-9])
    messages: list[str] = []
    assert_equal(expected, study(model, corpus, storage, on_message=messages.append))
    assert "damaged: its hash is wrong. The one before it is used" in messages[0]
    with pytest.raises(Changed, match=r"theta \(0.3 before, 0.2 now\)"):
        study(model, corpus, storage, theta=0.2)
    for name in system.find("/headscope-tests"):
        system.pipe_file(name, b"headscope")
    with pytest.raises(StudyError, match=r"last: not a checkpoint; .*previous: not a checkpoint"):
        study(model, corpus, storage)


def test_storage_that_fails_does_not_end_a_study(
    model: Model, tmp_path: Path, storage: str, monkeypatch: pytest.MonkeyPatch
):
    corpus, messages = headscope.documents(make_jsonl(tmp_path)), list[str]()
    expected, pipe_file, attempts = study(model, corpus), type(fsspec.filesystem("memory")).pipe_file, iter(range(100))

    def fail_sometimes(*arguments: Any, **options: Any) -> Any:
        if next(attempts) in (2, 3):
            raise RuntimeError("503 Slow Down")
        return pipe_file(*arguments, **options)

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "pipe_file", fail_sometimes)
    assert_equal(expected, study(model, corpus, storage, checkpoint_interval=0.0, on_message=messages.append))
    assert [("503 Slow Down" in message, "again" in message) for message in messages] == [(True, True), (False, True)]


def test_storage_without_a_driver_is_refused(model: Model):
    with pytest.raises(StudyError, match="nosuch://place: checkpoints cannot be kept there"):
        study(model, texts(5), "nosuch://place")


# Broken documents


@pytest.fixture
def large_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat small corpora as large ones, which are not read before they are counted."""
    monkeypatch.setattr(plan, "MAX_SMALL_CORPUS", 2)


def break_lines(path: Path, *places: int) -> None:
    lines = path.read_text("utf-8").splitlines(keepends=True)
    for place in places:
        lines[place] = "#" * (len(lines[place]) - 1) + "\n"  # chunks begin where they began
    path.write_text("".join(lines), "utf-8")


def test_in_a_small_corpus_a_broken_document_is_found_before_anything_is_counted(model: Model, tmp_path: Path):
    (path,) = files(tmp_path / "in", [60])
    break_lines(path, 50)
    with pytest.raises(CorpusError, match=r"00\.jsonl:51: not a JSON object"):
        study(model, headscope.documents(path), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("large_corpus")
def test_of_broken_documents_only_their_chunks_are_left_out(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    first, second, _ = paths = files(tmp_path / "in", [60, 40, 3])
    contents = [path.read_bytes() for path in paths]
    expected = study(model, headscope.documents(paths))
    break_lines(first, 31)
    break_lines(second, 7, 39)
    with pytest.raises(Stopped) as caught:
        study(model, headscope.documents(paths), tmp_path)
    reason, part = str(caught.value), caught.value.study
    places = [line.partition(": not a JSON object")[0] for line in reason.splitlines()]
    assert places == [f"{first}:32", f"{second}:8", f"{second}:40"]
    assert part is not None
    assert (part.manifest["stopped_by"], part.manifest["complete"]) == (reason, 0)
    planned = headscope.documents(paths).plan_chunks(SMALL)
    broken = {chunk.number for chunk in planned} - load_state(tmp_path / "last", model).completed
    assert len(broken) == 3

    first.write_bytes(contents[0])
    ran = watch_texts(monkeypatch)
    with pytest.raises(Stopped, match=rf"^{second}:8: .*\n{second}:40: ") as caught:
        study(model, headscope.documents(paths), tmp_path)
    second.write_bytes(contents[1])
    assert_equal(expected, study(model, headscope.documents(paths), tmp_path))
    assert sum(ran) == expected.texts - part.texts > 0


@pytest.mark.usefixtures("large_corpus")
def test_a_study_that_a_broken_document_stopped_is_resumed_without_it(model: Model, tmp_path: Path):
    (path,) = files(tmp_path / "in", [60])
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:20], b"#" * 150 + b"\n", *lines[20:]]))
    with pytest.raises(Stopped, match=r"00\.jsonl:21: not a JSON object"):
        study(model, headscope.documents(path), tmp_path)
    skipping = study(model, headscope.documents(path, skip_broken=True), tmp_path, skip_broken=True)
    assert_equal(study(model, headscope.documents(path, skip_broken=True), skip_broken=True), skipping)
    assert skipping.manifest["documents_skipped"]["not JSON"] == 1


@pytest.mark.usefixtures("large_corpus")
def test_what_comes_before_a_broken_document_of_a_gz_is_counted_once(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = make_gz(tmp_path)
    expected, content = study(model, headscope.documents(path)), path.read_bytes()
    lines = gzip.decompress(content).splitlines(keepends=True)
    path.write_bytes(gzip.compress(b"".join([*lines[:50], b"no JSON\n", *lines[51:]])))
    with pytest.raises(Stopped, match=r"a\.jsonl\.gz:51: not a JSON object") as caught:
        study(model, headscope.documents(path), tmp_path / "out")
    part = caught.value.study
    assert part is not None
    assert 32 <= part.manifest["documents_read"] <= 50
    path.write_bytes(content)
    ran = watch_texts(monkeypatch)
    assert_equal(expected, study(model, headscope.documents(path), tmp_path / "out"))
    assert sum(ran) == expected.texts - part.texts


@pytest.mark.usefixtures("large_corpus")
def test_a_study_stops_when_too_many_chunks_have_broken_documents(model: Model, tmp_path: Path):
    first, _ = paths = files(tmp_path / "in", [200, 20])
    break_lines(first, *range(50, 200))
    with pytest.raises(Stopped) as caught:
        study(model, headscope.documents(paths), tmp_path)
    assert str(caught.value).count("not a JSON object") == run.MAX_FAILED_CHUNKS == 10
    assert str(caught.value).endswith("\nStopped after 10 errors: there may be more")
    assert caught.value.study is not None
    assert caught.value.study.data["source_documents"].values.tolist()[1:] in ([], [0])


def test_a_tokenizer_that_breaks_names_the_document(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    paths = files(tmp_path / "in", [30, 20])
    expected, cut_documents = study(model, headscope.documents(paths)), Model.cut_documents

    def break_on_one(self: Model, documents: Any, cut: Any) -> Any:
        for document in documents:
            if document.name.endswith("01.jsonl:3"):
                raise CorpusError(f"{document.name}: the tokenizer cannot read this text")
        return cut_documents(self, documents, cut)

    monkeypatch.setattr(Model, "cut_documents", break_on_one)
    with pytest.raises(Stopped, match=r"^\S*01\.jsonl:3: the tokenizer cannot read this text$") as caught:
        study(model, headscope.documents(paths), tmp_path)
    assert caught.value.study is not None
    assert caught.value.study.manifest["documents_read"] > 30
    monkeypatch.undo()
    monkeypatch.setattr(plan, "choose_chunk_size", lambda *more: SMALL)
    assert_equal(expected, study(model, headscope.documents(paths), tmp_path))


# Memory, threads, shares


def watch_texts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which the number of texts of every batch that runs is appended."""
    ran, observe = list[int](), Model.observe

    def observe_counting(self: Model, batch: Any, *more: Any) -> None:
        ran.append(len(batch))
        observe(self, batch, *more)

    monkeypatch.setattr(Model, "observe", observe_counting)
    return ran


def test_a_resumed_study_that_runs_out_of_memory_equals_an_uninterrupted_one(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    given_texts, observe, tried = texts(80), Model.observe, list[int]()

    def observe_within_limit(self: Model, batch: Any, *see: Any) -> None:
        tried.append(len(batch))
        if len(batch) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        observe(self, batch, *see)

    monkeypatch.setattr(Model, "observe", observe_within_limit)
    options = {**OPTIONS, "batch_size": 8, "kernel": "torch"}
    expected = headscope.study(model, given_texts, **options)
    assert expected.manifest["batch_size"] == 2
    interrupt(model, given_texts, tmp_path, 9, **options)
    del tried[:]
    again = run_interrupted(model, given_texts, tmp_path, [3, 1, 7], **options)
    assert max(tried) == 2  # a run that is resumed starts with batches that fit
    assert_equal(expected, again)
    assert again.manifest["batch_size_note"] == "halved from 8 after running out of memory"


@pytest.mark.parametrize(
    ("device", "asked", "before", "planned", "used"),
    [
        ("cpu", None, 0, 16, 16),
        ("cpu", None, 2, 16, 2),  # batches were halved: they are formed as before, and then divided
        ("cpu", 6, 3, 6, 3),
        ("cuda", None, 0, 16, 16),
        ("cuda", None, 64, 64, 64),  # what fits depends on the free memory, and may be less or more now
        ("cuda", None, 4, 4, 4),
        ("cuda", 6, 3, 6, 3),
    ],
)
def test_a_resumed_study_has_the_batches_it_had(
    model: Model,
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    asked: int | None,
    before: int,
    planned: int,
    used: int,
):
    class OnDevice:
        """The model on another device."""

        def __getattr__(self, name: str) -> Any:
            return torch.device(device) if name == "device" else getattr(model, name)

    monkeypatch.setattr(local_engine, "choose_backend", lambda *_: None)
    monkeypatch.setattr(local_engine, "choose_batch_size", lambda *_: 16)
    monkeypatch.setattr(local_engine.provenance, "get_device_name", str)
    run_plan = plan.RunPlan(Settings(), 1.0, SMALL, batch_size=asked, tf32=False)
    on_device: Any = OnDevice()
    engine = local_engine.LocalEngine(on_device, as_corpus(["a"]), run_plan, batch_size=before)
    assert (engine.planned_size, engine.batch_size) == (planned, used)


@pytest.fixture
def set_threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_sums_are_the_same_to_the_last_bit_for_any_number_of_threads(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, set_threads: Callable[[int], None]
):
    monkeypatch.setattr(local_engine, "FLUSH_SECONDS", float("inf"))
    corpus = headscope.documents(files(tmp_path / "in", [60, 30]))
    studies = []
    for threads in (1, 2, 4):
        set_threads(threads)
        studies.append(study(model, corpus))
    for name, variable in studies[0].data.variables.items():
        for other in studies[1:]:
            assert variable.values.tobytes() == other.data[name].values.tobytes() or variable.dtype == object, name


def test_a_study_may_be_resumed_with_another_number_of_threads(
    model: Model, tmp_path: Path, set_threads: Callable[[int], None]
):
    corpus = headscope.documents(files(tmp_path / "in", [60]))
    expected = study(model, corpus)
    for threads in (3, 1, 2):
        set_threads(threads)
        with suppress(Stopped):
            study(model, corpus, tmp_path, progress=stop_after(6))
    assert_equal(expected, study(model, corpus, tmp_path))


@pytest.mark.parametrize("total", [1, 2, 5])
@pytest.mark.parametrize("kind", CORPORA)
def test_all_shares_merged_are_the_whole_study(model: Model, tmp_path: Path, kind: str, total: int):
    (tmp_path / "in").mkdir()
    corpus = headscope.documents(CORPORA[kind](tmp_path / "in"))
    expected, shares = study(model, corpus), list[Study]()
    for number in range(1, total + 1):
        with suppress(StudyError):  # no text is in this share
            shares.append(study(model, corpus, tmp_path / str(number), share=f"{number}/{total}"))
    assert kind == "gz in many sections" or len(shares) == total
    merged = shares[0]
    for share in shares[1:]:
        merged = merged.merge(share)
    assert_same_sums(expected, merged)
    assert merged.manifest["corpus_hash"] == expected.manifest["corpus_hash"]
    assert merged.manifest["documents_read"] == expected.manifest["documents_read"]
    assert merged.texts == expected.texts


def test_a_share_is_resumed(model: Model, tmp_path: Path):
    corpus = headscope.documents(files(tmp_path / "in", [60]))
    expected = study(model, corpus, share="2/3")
    part = interrupt(model, corpus, tmp_path, 4, share="2/3")
    assert part.texts < expected.texts
    assert_equal(expected, study(model, corpus, tmp_path, share="2/3"))
    assert expected.manifest["share"] == "2/3"
    with pytest.raises(Changed, match=r"share \(2/3 before, 1/3 now\)"):
        study(model, corpus, tmp_path, share="1/3")
