"""Places: files behind URLs are found, opened and stamped as local ones are, and what goes wrong there is told."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec
import pytest
from fsspec.registry import known_implementations

from headscope.corpus.documents import documents
from headscope.corpus.formats import format_of
from headscope.corpus.places import Stamp, found, is_url, opened, stamp
from headscope.errors import CorpusError
from tests.writing import TABLES, TEXTS, as_jsonl, as_parquet, error_of, names_of, put, texts_of


@pytest.fixture
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    system = fsspec.filesystem("memory")
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


def message_of(place: str) -> str:
    with pytest.raises(CorpusError) as caught:
        documents(place)
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
    assert format_of("https://example.org/a.jsonl.gz?download=1#top") == "jsonl"
    assert format_of(Path("https://example.org/a.csv?x=b.txt")) == "csv"
    assert format_of("zip://a.parquet::https://example.org/b.zip") == "parquet"
    assert format_of("what?.txt") == "text"
    assert format_of("a::b.csv") == "csv"


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
    assert message_of("memory://nowhere.txt").startswith("'memory://nowhere.txt': no such file or folder")
    assert message_of("memory://d/*.txt") == "memory://d/*.txt: no file matches this pattern"
    assert "no file in this folder has an ending" in message_of("memory://d")
    assert "nosuch" in message_of("nosuch://a.txt")
    memory.pipe("/d/a.txt", b"a")
    corpus = documents("memory://d/a.txt")
    memory.rm("/d/a.txt")
    assert error_of(lambda: corpus) == "memory://d/a.txt: cannot be read: No such file or directory"


def test_a_driver_that_is_not_installed(monkeypatch: pytest.MonkeyPatch):
    known = {"class": "nosuchpackage.fs.System", "err": "Install nosuchpackage to access lakes"}
    monkeypatch.setitem(known_implementations, "lake", known)
    expected = "lake://a.txt: lake:// needs the package nosuchpackage: pip install nosuchpackage (Install nosuchpackage"
    assert message_of("lake://a.txt").startswith(expected)


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
    message = error_of(lambda: corpus, good=2)
    assert message == "memory://a.jsonl: cannot be read: RuntimeError: the line is dead"


def test_a_stream_that_cannot_seek_gives_parquet(memory: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch):
    memory.pipe("/a.parquet", as_parquet(TEXTS))
    real = memory.open("/a.parquet", "rb")
    monkeypatch.setattr(type(real), "seekable", lambda self: False)
    assert texts_of(documents("memory://a.parquet")) == TEXTS


# Stamps


def test_stamps_of_local_files(tmp_path: Path):
    import os

    path = put(tmp_path / "a.txt", "four")
    os.utime(path, ns=(1, 1234567890123456789))
    assert stamp(str(path)) == Stamp(4, "1234567890123456789")
    os.mkfifo(tmp_path / "pipe")
    for nothing in (str(tmp_path / "pipe"), "-", "hf:owner/name", "example:gerstenslager"):
        assert stamp(nothing) is None
    path.unlink()
    with pytest.raises(CorpusError, match=r"a\.txt: cannot be read: No such file"):
        stamp(str(path))
    with pytest.raises(CorpusError, match="cannot be read"):
        stamp("a\0b")


def test_stamps_of_urls(memory: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch):
    memory.pipe("/a.txt", b"four")
    first = stamp("memory://a.txt")
    assert first is not None
    assert first.size == 4
    memory.pipe("/a.txt", b"five!")
    assert stamp("memory://a.txt") != first
    for about, expected in (
        ({"size": 7, "ETag": "abc", "mtime": 5.0}, Stamp(7, "abc")),
        ({"size": 7, "mtime": 5.5}, Stamp(7, "5.5")),
        ({"size": 7, "LastModified": None}, Stamp(7, "")),
        ({"size": None, "ETag": "abc"}, None),
    ):
        monkeypatch.setattr(type(memory), "info", lambda *_, about=about: about)
        assert stamp("memory://a.txt") == expected
    monkeypatch.undo()
    memory.rm("/a.txt")
    with pytest.raises(CorpusError, match=r"memory://a\.txt: cannot be read: No such file"):
        stamp("memory://a.txt")


def test_names_that_no_place_has():
    for source in ("a\0b.txt", "*\0", "memory://a\0b"):
        with pytest.raises(CorpusError, match="no such file or folder"):
            found(source)
    with pytest.raises(CorpusError, match="cannot be read"), opened("a\0b"):
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
    stamped = stamp(f"{web}/in/c.txt")
    assert stamped is not None
    assert stamped.size == 3
    assert message_of(f"{web}/nowhere.txt").startswith(f"'{web}/nowhere.txt': no such file")
