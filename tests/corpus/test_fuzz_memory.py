"""Test decompression bombs: reading them takes bounded memory, measured in a process of its own."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from headscope.corpus import document, tables
from headscope.corpus.documents import documents
from headscope.corpus.formats import LARGEST, Document
from headscope.corpus.windows import WindowSpec
from headscope.model import tokenizer
from headscope.model.model import Model
from tests.helpers.document_formats import as_parquet, get_error, put

SIZE, BOUND = 600, 400
"""megabytes a bomb unpacks to, and megabytes that reading it may take"""
MEASURE = """
import re, sys
import pyarrow.parquet
from PIL import Image
from headscope.corpus.documents import documents
from headscope.errors import CorpusError
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) // 1024
before, told = peak(), []
try:
    for document in documents(sys.argv[1], skip_broken=sys.argv[2] == "skip"):
        told.append(document.broken or str(len(document.text)))
except CorpusError as error:
    told.append(str(error).replace(sys.argv[1], "")[:60])
print(peak() - before, *told, sep="|")
"""
BOMBS: dict[str, tuple[bytes, bytes, bytes]] = {
    # the file's name: how it begins, what is repeated, how it ends
    "a.txt": (b"", b"\0", b""),
    "b.txt": (b"", b"a", b""),
    "c.jsonl": (b'{"text": "ok"}\n{"text": "', b"a", b'"}\n{"text": "after"}\n'),
    "d.csv": (b'text\nok\n"', b"a", b'"\nafter\n'),
    "e.csv": (b"text\nok\n", b"ab,", b"\nafter\n"),
    "f.jsonl": (b'{"text": "ok"}\n{"text": [[]', b",[]", b']}\n{"text": "after"}\n'),
    "g.png": (b"\x89PNG\r\n\x1a\n", b"\0", b""),
}
linux = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="measured where /proc tells")


def write_bomb(path: Path, begin: bytes, middle: bytes, end: bytes, megabytes: int = SIZE) -> Path:
    part = gzip.compress(middle * (2**20 // len(middle)))
    path.write_bytes(gzip.compress(begin) + part * megabytes + gzip.compress(end))
    return path


def measure_reading(path: Path, mode: str) -> tuple[int, list[str]]:
    run = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path), mode],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    peak, *results = run.stdout.strip().split("|")
    return int(peak), results


@linux
@pytest.mark.parametrize("name", BOMBS)
def test_bombs(tmp_path: Path, name: str):
    path = write_bomb(tmp_path / f"{name}.gz", *BOMBS[name])
    peak, results = measure_reading(path, "stop")
    assert peak < BOUND
    good = ["ok"] if BOMBS[name][0].endswith((b'"', b"ok\n", b"[]")) else []
    assert results[: len(good)] == ["2"] * len(good)
    assert len(results) == len(good) + 1
    assert "too large" in results[-1] or f"more than {LARGEST:,} characters" in results[-1]


@linux
@pytest.mark.parametrize("name", ["c.jsonl", "d.csv", "e.csv"])
def test_what_follows_a_bomb_is_read_where_broken_ones_are_skipped(tmp_path: Path, name: str):
    peak, results = measure_reading(write_bomb(tmp_path / f"{name}.gz", *BOMBS[name], megabytes=150), "skip")
    assert results == ["2", "too large", "5"]
    assert peak < BOUND


@linux
def test_a_text_that_a_parquet_file_repeats(tmp_path: Path):
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 60, pa.int32()), pa.array(["a" * 20_000_000]))
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet", store_schema=False)
    peak, results = measure_reading(tmp_path / "a.parquet", "stop")
    assert results == ["20000000"] * 60
    assert peak < BOUND


# Limits, at their edges


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("document", "lines", "tables"):
        monkeypatch.setattr(f"headscope.corpus.{module}.LARGEST", 100)


@pytest.mark.parametrize("name", ["a.txt", "a.lines", "a.jsonl", "a.csv", "a.parquet"])
@pytest.mark.usefixtures("small_limit")
def test_the_largest_document_and_one_more(tmp_path: Path, name: str):
    def make_content(size: int) -> bytes:
        room = {"a.jsonl": size - len('{"text": ""}'), "a.csv": size - 1}.get(name, size)
        text = "é" * room
        table = {"a.jsonl": f'{{"text": "{text}"}}\n', "a.csv": f"text\n{text}\n", "a.lines": f"{text}\n"}
        return as_parquet([text]) if name == "a.parquet" else table.get(name, text).encode()

    format = "lines" if name == "a.lines" else "auto"
    assert len(list(documents(put(tmp_path / name, make_content(100)), format=format))) == 1
    message = get_error(lambda: documents(put(tmp_path / name, make_content(101)), format=format))
    assert "more than 100 characters" in message
    (broken,) = documents(tmp_path / name, format=format, skip_broken=True)
    assert (broken.text, broken.broken, broken.is_image) == ("", "too large", False)


@pytest.mark.usefixtures("small_limit")
def test_the_last_line_counts_without_its_end(tmp_path: Path):
    for end in ("", "\n", "\r\n"):
        path = put(tmp_path / "a.txt", "a" * (100 - len(end.removesuffix("\n"))) + end)
        assert len(list(documents(path, format="lines"))) == 1
        path = put(tmp_path / "a.txt", "a" * 101 + end + "b")
        assert [d.broken for d in documents(path, format="lines", skip_broken=True)] == ["too large", ""][
            : 1 + bool(end)
        ]


def test_values_and_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headscope.corpus.formats.MOST_VALUES", 50)
    monkeypatch.setattr(tables, "MOST_VALUES", 50)
    fits = '{"text": "a", "n": [1' + ",1" * 47 + "]}\n"
    path = put(tmp_path / "a.jsonl", fits + fits.replace("[1", "[1,1"))
    assert "a.jsonl:2: this line has more than 50 commas and brackets" in get_error(lambda: documents(path), good=1)
    path = put(tmp_path / "a.csv", "text\na" + ",b" * 50 + "\na" + ",b" * 51 + "\nc\n")
    assert [d.broken for d in documents(path, skip_broken=True)] == ["", "too large", ""]


def test_a_packed_parquet_file_is_unpacked_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = put(tmp_path / "a.parquet.gz", as_parquet(["a"]))
    monkeypatch.setattr(tables, "UNPACKED", 10)
    assert "unpacks to more than 10 bytes" in get_error(lambda: documents(path))


def test_images_of_too_many_pixels_or_bytes(monkeypatch: pytest.MonkeyPatch):
    buffer = io.BytesIO()
    Image.new("RGB", (20, 10)).save(buffer, "PNG")
    monkeypatch.setattr(document, "MOST_PIXELS", 200)
    assert isinstance(document.decode_image(buffer.getvalue()), document.Picture)
    monkeypatch.setattr(document, "MOST_PIXELS", 199)
    assert document.decode_image(buffer.getvalue()) == document.IMAGE_TOO_LARGE
    monkeypatch.setattr(document, "LARGEST_IMAGE", len(buffer.getvalue()) - 1)
    assert document.decode_image(buffer.getvalue()) == document.IMAGE_TOO_MANY_BYTES


def test_no_program_is_started_for_an_image():
    raw = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n"
    assert document.decode_image(raw) == document.IMAGE_UNKNOWN


# Long texts


def test_long_texts_have_the_windows_they_have_as_a_whole(minilm: Model, monkeypatch: pytest.MonkeyPatch):
    text = " ".join(f"Word{k % 91} isn't 漢字 unbelievably, é{k}." for k in range(3000))
    for windows in ("first", "all"):
        cut = WindowSpec(length=32, windows=windows, sentences="text")  # type: ignore[arg-type]
        monkeypatch.setattr(tokenizer, "LONG", 10**9)
        expected = cut(Document(text, "a"), minilm.tokens)
        monkeypatch.setattr(tokenizer, "LONG", 2000)
        windows_found = cut(Document(text, "a"), minilm.tokens)
        assert len(windows_found) == len(expected)
        for window, other in zip(windows_found, expected, strict=True):
            for name in ("ids", "special", "sentence", "end", "comma"):
                assert np.array_equal(getattr(window, name), getattr(other, name))


def test_first_windows_do_not_need_the_whole(minilm: Model, monkeypatch: pytest.MonkeyPatch):
    seen: list[int] = []
    real = type(minilm.tokens.tokenizer).__call__
    monkeypatch.setattr(
        type(minilm.tokens.tokenizer),
        "__call__",
        lambda self, text, **options: seen.append(len(text)) or real(self, text, **options),
    )
    monkeypatch.setattr(tokenizer, "LONG", 16_000)
    assert len(WindowSpec()(Document("some words " * 20_000, "a"), minilm.tokens)) == 1
    assert len(WindowSpec()(Document("漢字" * 100_000, "a"), minilm.tokens)) == 1
    assert max(seen) <= 4000
    cut = WindowSpec(skip_broken=True)
    assert cut(Document("a" * 200_000, "a"), minilm.tokens) == "not tokenizable"
    assert max(seen) == 64_000
