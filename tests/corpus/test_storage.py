"""Test storage: files behind URLs are listed, opened and stamped like local files, with clear errors."""

from __future__ import annotations

import gzip
import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec
import pytest
from fsspec.registry import known_implementations

from headscope.corpus.chunks import Source
from headscope.corpus.documents import documents
from headscope.corpus.formats import detect_format
from headscope.corpus.storage import Stamp, can_read_parts, get_stamp, is_url, list_files, open_file
from headscope.errors import CorpusError
from tests.helpers.document_formats import TABLES, TEXTS, as_jsonl, as_parquet, get_error, names_of, put, texts_of


@pytest.fixture
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    system = fsspec.filesystem("memory")
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


def get_message(source: str) -> str:
    with pytest.raises(CorpusError) as caught:
        documents(source)
    return str(caught.value)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("s3://bucket/a.txt", True),
        ("hf://datasets/a/b.parquet", True),
        ("simplecache::https://example.org/a", True),
        ("hf:owner/name", False),
        ("example:gerstenslager", False),
        ("C://texts", False),
        ("texts/https://a", False),
        ("", False),
    ],
)
def test_what_a_url_is(source: str, expected: bool):
    assert is_url(source) is expected


def test_endings_of_addresses():
    assert detect_format("https://example.org/a.jsonl.gz?download=1#top") == "jsonl"
    assert detect_format(Path("https://example.org/a.csv?x=b.txt")) == "csv"
    assert detect_format("zip://a.parquet::https://example.org/b.zip") == "parquet"
    assert detect_format("what?.txt") == "text"
    assert detect_format("a::b.csv") == "csv"


@pytest.mark.parametrize("kind", [*TABLES, *(f"{kind}.gz" for kind in TABLES)])
def test_every_format_in_memory(memory: fsspec.AbstractFileSystem, kind: str):
    raw = TABLES[kind.removesuffix(".gz")](TEXTS)
    memory.pipe(f"/d/a.{kind}", gzip.compress(raw) if kind.endswith(".gz") else raw)
    corpus = documents(f"memory://d/a.{kind}")
    assert texts_of(corpus) == TEXTS
    assert texts_of(corpus) == TEXTS
    assert names_of(corpus)[0].startswith(f"memory://d/a.{kind}:")


def test_folders_and_globs_follow_the_rules_of_local_ones(memory: fsspec.AbstractFileSystem, tmp_path: Path):
    names = [
        "b.txt",
        "a/z.txt",
        "a/b/deep.md",
        ".hidden.txt",
        ".git/x.txt",
        "a/.cache/y.txt",
        "c.bin",
        "a.png",
        "?[1].md",
    ]
    for name in names:
        put(tmp_path / name, name)
        memory.pipe(f"/texts/{name}", name.encode())
    for ending in ("", "/*.txt", "/**/*.txt", "/a/*", "/?[1].md"):
        here = texts_of(documents(f"{tmp_path}{ending}"))
        assert here
        assert texts_of(documents(f"memory://texts{ending}")) == here, ending
        assert texts_of(documents(f"file://{tmp_path}{ending}")) == here, ending
    assert names_of(documents("memory://texts"))[0] == "memory:///texts/?[1].md"


def test_a_folder_under_a_hidden_one(memory: fsspec.AbstractFileSystem):
    memory.pipe("/.data/a.txt", b"a")
    assert texts_of(documents("memory://.data")) == ["a"]
    assert texts_of(documents("memory://.data/*.txt")) == ["a"]
    memory.pipe("/texts/.b.txt", b"b")
    assert texts_of(documents("memory://texts/.*.txt")) == ["b"]


def test_a_file_in_an_archive(tmp_path: Path):
    import zipfile

    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("in/b.jsonl", as_jsonl(["one", "two"]))
    assert texts_of(documents(f"zip://in/b.jsonl::{tmp_path}/a.zip")) == ["one", "two"]
    assert texts_of(documents(f"zip://in/*.jsonl::{tmp_path}/a.zip")) == ["one", "two"]


def test_what_is_not_there(memory: fsspec.AbstractFileSystem):
    memory.pipe("/d/a.bin", b"a")
    assert get_message("memory://nowhere.txt").startswith("'memory://nowhere.txt': no such file or folder")
    assert get_message("memory://d/*.txt") == "memory://d/*.txt: no file matches this pattern"
    assert "no file in this folder has an ending" in get_message("memory://d")
    assert "nosuch" in get_message("nosuch://a.txt")
    memory.pipe("/d/a.txt", b"a")
    corpus = documents("memory://d/a.txt")
    memory.rm("/d/a.txt")
    assert get_error(lambda: corpus) == "memory://d/a.txt: cannot be read: No such file or directory"


def test_a_driver_that_is_not_installed(monkeypatch: pytest.MonkeyPatch):
    known = {"class": "nosuchpackage.fs.System", "err": "Install nosuchpackage to access lakes"}
    monkeypatch.setitem(known_implementations, "lake", known)
    expected = "lake://a.txt: lake:// needs the package nosuchpackage: pip install nosuchpackage (Install nosuchpackage"
    assert get_message("lake://a.txt").startswith(expected)


def test_a_driver_that_breaks_midway(memory: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch):
    memory.pipe("/a.jsonl", as_jsonl(["one", "two"]))
    corpus = documents("memory://a.jsonl")

    class Breaking:
        left = 1

        def read(self, size: int) -> bytes:
            if not self.left:
                raise RuntimeError("the line is dead")
            self.left -= 1
            return as_jsonl(["one", "two"])

        def seekable(self) -> bool:
            return False

        def close(self) -> None:
            raise OSError("nor can it be closed")

    monkeypatch.setattr(type(memory), "open", lambda *_, **__: Breaking())
    message = get_error(lambda: corpus, good=2)
    assert message == "memory://a.jsonl: cannot be read: RuntimeError: the line is dead"


def test_a_stream_that_cannot_seek_gives_parquet(memory: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch):
    memory.pipe("/a.parquet", as_parquet(TEXTS))
    real = memory.open("/a.parquet", "rb")
    monkeypatch.setattr(type(real), "seekable", lambda self: False)
    assert texts_of(documents("memory://a.parquet")) == TEXTS


# Stamps


def test_stamps_of_local_files(tmp_path: Path):
    path = put(tmp_path / "a.txt", "four")
    os.utime(path, ns=(1, 1234567890123456789))
    assert get_stamp(str(path)) == Stamp(4, "1234567890123456789")
    (tmp_path / "b.txt").symlink_to(path)
    for source in (str(tmp_path), f"{tmp_path}/*.txt", f"{tmp_path}/**"):
        assert list_files(source)[1] == [
            (f"{tmp_path}/a.txt", Stamp(4, "1234567890123456789")),
            (f"{tmp_path}/b.txt", Stamp(4, "1234567890123456789")),
        ]
    assert list_files(str(path)) == ("file", [(str(path), Stamp(4, "1234567890123456789"))])
    os.mkfifo(tmp_path / "pipe")
    assert list_files(str(tmp_path / "pipe")) == ("file", [(str(tmp_path / "pipe"), None)])
    for nothing in (str(tmp_path / "pipe"), "-", "hf:owner/name", "example:gerstenslager"):
        assert get_stamp(nothing) is None
    path.unlink()
    with pytest.raises(CorpusError, match=r"a\.txt: cannot be read: No such file"):
        get_stamp(str(path))
    with pytest.raises(CorpusError, match="cannot be read"):
        get_stamp("a\0b")


def test_names_of_files_in_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    put(tmp_path / "in" / "deep" / "a.txt", "a")
    monkeypatch.chdir(tmp_path)
    for source, expected in (
        ("in", "in/deep/a.txt"),
        ("./in/", "in/deep/a.txt"),
        (".", "in/deep/a.txt"),
        ("in/**/*.txt", "in/deep/a.txt"),
        ("**/*.txt", "in/deep/a.txt"),
        ("./**/a.txt", "./in/deep/a.txt"),
        ("i*/**/d*/*", "in/deep/a.txt"),
        ("**/deep/**", "in/deep/a.txt"),
        ("**/**/a.txt", "in/deep/a.txt"),
    ):
        assert [path for path, _ in list_files(source)[1]] == [expected], source
    for source in ("**/", "in/**/", "nowhere/**/*.txt", "nowhere*/**"):
        assert list_files(source) == ("pattern", [])


@pytest.mark.parametrize("name", ["lost+found", "letters"])
def test_a_folder_that_may_not_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    """Except for lost+found, which users are not permitted to read."""
    put(tmp_path / "a.txt", "a")
    put(tmp_path / name / "b.txt", "b")
    real = os.scandir

    def scan(path: str) -> object:
        if path.endswith(f"{name}/"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", scan)
    if name == "lost+found":
        assert texts_of(documents(tmp_path)) == ["a"]
    else:
        with pytest.raises(CorpusError, match="letters/: cannot be read: Permission denied"):
            documents(tmp_path)


def test_stamps_of_urls(memory: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch):
    memory.pipe("/a.txt", b"four")
    first = get_stamp("memory://a.txt")
    assert first is not None
    assert (first.size, first.kind) == (4, "created")
    memory.pipe("/a.txt", b"five!")
    assert get_stamp("memory://a.txt") != first
    for info, expected in (
        ({"size": 7, "ETag": "abc", "mtime": 5.0}, Stamp(7, "etag abc")),
        ({"size": 7, "etag": '"abc"'}, Stamp(7, "etag abc")),
        ({"size": 7, "mtime": 5.5}, Stamp(7, "mtime 5.500000")),
        ({"size": 7, "created": datetime(1970, 1, 1, 0, 0, 5, 500000, tzinfo=UTC)}, Stamp(7, "created 5.500000")),
        ({"size": 7, "LastModified": None}, Stamp(7, "")),
        ({"size": None, "ETag": "abc"}, None),
    ):
        monkeypatch.setattr(type(memory), "info", lambda *_, info=info: info)
        assert get_stamp("memory://a.txt") == expected
    monkeypatch.undo()
    memory.rm("/a.txt")
    with pytest.raises(CorpusError, match=r"memory://a\.txt: cannot be read: No such file"):
        get_stamp("memory://a.txt")


def test_a_listing_gives_the_stamps_that_files_have(memory: fsspec.AbstractFileSystem, tmp_path: Path):
    memory.pipe("/texts/a.jsonl", b"{}")
    memory.pipe("/texts/in/b.jsonl", b"{ }")
    put(tmp_path / "a.jsonl", "{}")
    put(tmp_path / "in" / "b.jsonl", "{ }")
    (tmp_path / "c.jsonl").symlink_to("a.jsonl")
    (tmp_path / "folder").symlink_to("in")
    for source in ("memory://texts", "memory://texts/**", f"file://{tmp_path}", f"file://{tmp_path}/*.jsonl"):
        _, files = list_files(source)
        assert [stamp.size for _, stamp in files if stamp is not None][:1] == [2]
        assert len(files) == (2 if source.startswith("memory:") or source.endswith("*.jsonl") else 3)
        for path, stamp in files:
            assert get_stamp(path) == stamp
            assert list_files(path) == ("file", [(path, stamp)])


def test_a_listing_asks_for_no_file_by_itself(memory: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch):
    for number in range(20):
        memory.pipe(f"/texts/{number}.jsonl", b"{}")
    asked = []
    real = type(memory).info
    monkeypatch.setattr(type(memory), "info", lambda system, path, **more: asked.append(path) or real(system, path))
    documents("memory://texts")
    documents("memory://texts/*.jsonl")
    assert not [path for path in asked if path.endswith(".jsonl") and "*" not in path]


@pytest.mark.parametrize(
    ("listed", "current", "same"),
    [
        (Stamp(4, "etag a"), Stamp(4, "etag a"), True),
        (Stamp(4, "etag a"), Stamp(4, "etag b"), False),
        (Stamp(4, ""), Stamp(4, "etag b"), True),
        (Stamp(4, ""), Stamp(5, "etag b"), False),
        (Stamp(4, "etag a"), Stamp(4, ""), True),
        (Stamp(4, "mtime 2020-01-01 00:00"), Stamp(4, "etag b"), True),
        (Stamp(4, "mtime 2020-01-01 00:00"), Stamp(4, "mtime 2020-01-01 00:01"), False),
        (Stamp(4, "123"), Stamp(4, "124"), False),
        (Stamp(4, "123"), None, False),
    ],
)
def test_only_versions_of_a_kind_are_compared(
    monkeypatch: pytest.MonkeyPatch, listed: Stamp, current: Stamp | None, same: bool
):
    monkeypatch.setattr("headscope.corpus.chunks.get_stamp", lambda path: current)
    source = Source("a", lambda: iter([]), path="a", stamp=listed)
    assert (source.get_current_stamp() == source.stamp) is same


# The same file more than once


def test_a_remote_file_that_is_given_twice_is_read_once(memory: fsspec.AbstractFileSystem):
    memory.pipe("/d/a.txt", b"a")
    memory.pipe("/d/b.txt", b"b")
    corpus = documents(["memory://d/b.txt", "memory://d", "memory://d/*.txt", "memory:///d/b.txt"])
    assert texts_of(corpus) == ["b", "a"]
    assert corpus.notes == ("2 files are given more than once (the first: memory://d/b.txt): each is read once",)


def test_names_that_no_place_has():
    for source in ("a\0b.txt", "*\0", "memory://a\0b"):
        with pytest.raises(CorpusError, match="no such file or folder"):
            list_files(source)
    with pytest.raises(CorpusError, match="cannot be read"), open_file("a\0b"):
        pass


# A web server


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    pytest.importorskip("aiohttp", reason="fsspec needs aiohttp for http://")

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_the_web(web: str, tmp_path: Path):
    put(tmp_path / "a.jsonl.gz", as_jsonl(TEXTS))
    put(tmp_path / "b.parquet", as_parquet(TEXTS))
    put(tmp_path / "in" / "c.txt", "see")
    put(tmp_path / "in" / ".d.txt", "hidden")
    assert texts_of(documents(f"{web}/a.jsonl.gz")) == TEXTS
    assert texts_of(documents(f"{web}/a.jsonl.gz?download=1")) == TEXTS
    assert texts_of(documents(f"{web}/b.parquet")) == TEXTS
    assert texts_of(documents(f"{web}/in/")) == ["see"]
    assert texts_of(documents(f"{web}/*.parquet")) == TEXTS
    assert list_files(f"{web}/in/")[1] == [(f"{web}/in/c.txt", None)]  # a page with links says nothing of sizes
    stamp = get_stamp(f"{web}/in/c.txt")
    assert stamp is not None
    assert stamp.size == 3
    assert list_files(f"{web}/in/c.txt") == ("file", [(f"{web}/in/c.txt", stamp)])
    assert not can_read_parts(f"{web}/b.parquet")  # as this server gives files as a whole only
    assert get_message(f"{web}/nowhere.txt").startswith(f"'{web}/nowhere.txt': no such file")
