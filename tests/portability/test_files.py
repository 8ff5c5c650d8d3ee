"""Files on Windows and elsewhere: names, line ends, permissions."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

import headscope
from headscope.corpus import storage
from headscope.corpus.documents import documents
from headscope.errors import CorpusError, StudyError
from headscope.file_io import write_atomically
from headscope.run import checkpoint
from headscope.settings import Settings
from headscope.studies.head_table import as_csv
from tests.helpers.portability import LENGTH, TEXTS, make_model


@pytest.fixture
def windows_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate Windows: only files open for writing can be flushed, and folders cannot be opened."""
    import fcntl

    real_fsync, real_open = os.fsync, os.open

    def fsync(descriptor: int) -> None:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "Bad file descriptor")
        real_fsync(descriptor)

    def open_file(path: Any, *args: Any, **options: Any) -> int:
        if not isinstance(path, int) and os.path.isdir(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real_open(path, *args, **options)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "open", open_file)


@pytest.mark.usefixtures("windows_files")
def test_result_files_are_written_on_windows(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    for content in (b"first", b"second"):
        write_atomically(path, content, StudyError)
        assert path.read_bytes() == content
    assert [file.name for file in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.usefixtures("windows_files")
def test_a_study_with_checkpoints_is_written_on_windows(tmp_path: Path) -> None:
    messages: list[str] = []
    study = headscope.study(
        make_model(), TEXTS, length=LENGTH, checkpoint_dir=tmp_path, checkpoint_interval=0, on_message=messages.append
    )
    assert (tmp_path / checkpoint.LAST).is_file()
    assert not messages
    assert headscope.open_study(study.save(tmp_path / "study.nc")).texts == len(TEXTS)


def test_tables_have_the_same_line_ends_everywhere(study_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = headscope.open_study(study_folder).heads()
    monkeypatch.setattr(os, "linesep", "\r\n")
    assert "\r" not in as_csv(table)


def test_a_pruned_folder_has_the_same_line_ends_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.write_text

    def write_as_windows(path: Path, text: str, encoding: str, errors: str | None = None, newline: Any = None) -> int:
        return real(path, text, encoding, errors, newline="\r\n" if newline is None else newline)

    monkeypatch.setattr(Path, "write_text", write_as_windows)
    headscope.prune(make_model(), "L0H1").save(tmp_path / "pruned")
    ours = [path for path in (tmp_path / "pruned").iterdir() if path.name in ("pruning.json", "pruned_heads.py")]
    assert len(ours) == 2
    assert not any(b"\r" in path.read_bytes() for path in ours)


def test_names_of_a_pattern_are_the_same_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = ["texts\\a\\z.txt", "texts\\aB.txt"]
    for name in names:
        Path(name).write_text("a", encoding="utf-8")  # one name here, folders there
    monkeypatch.setattr(storage.glob, "glob", lambda pattern, recursive: names)
    monkeypatch.setattr(storage.os, "sep", "\\")
    kind, listed = storage.list_files("texts/*")
    assert kind == "pattern"
    assert [name for name, _ in listed] == ["texts/a/z.txt", "texts/aB.txt"]


@pytest.mark.parametrize("source", ["C:\\texts\\a.jsonl", "C:/texts/a.jsonl", "c://texts", "d:a.txt"])
def test_a_drive_is_no_url(source: str) -> None:
    assert not storage.is_url(source)
    assert storage.strip_query(source) == source.lower()
    with pytest.raises(CorpusError, match="no such file or folder"):
        documents([source])


def test_line_ends_of_documents_are_what_is_in_the_file(tmp_path: Path) -> None:
    model, token_ids = make_model(), []
    for ends in (b"\n", b"\r\n"):
        path = tmp_path / "a.txt"
        path.write_bytes(ends.join([b"a b c.", b"the d", b""]))
        (document,) = documents([path])
        assert document.text.encode() == path.read_bytes()
        token_ids.append(model.windows(document, Settings(length=LENGTH).cut)[0].ids.tolist())
    assert token_ids[0] == token_ids[1]
