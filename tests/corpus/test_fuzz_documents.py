"""Fuzz document reading: any bytes give documents or a CorpusError, after the good documents before the damage."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from headscope.corpus.documents import documents
from headscope.corpus.formats import Document
from headscope.errors import CorpusError
from tests.helpers.document_formats import TABLES, TEXTS, as_csv, as_jsonl, as_parquet, put, texts_of
from tests.helpers.mutation import PIECES, mutate
from tests.helpers.treebank import SENTENCE, as_treebank

FAST = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
REASONS = {
    "not JSON",
    "no text in its field",
    "badly encoded",
    "holds NUL bytes",
    "too large",
    "not a CSV row",
    "not CoNLL-U",
    "broken relations",
    "damaged image",
    "no image of a known kind",
    "image of too many pixels",
    "image of 32-bit numbers",
}


def make_png() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (9, 7), "teal").save(buffer, "PNG")
    return buffer.getvalue()


VALID: dict[str, Callable[[], bytes]] = {
    "a.txt": lambda: "\n".join(TEXTS).encode(),
    "a.jsonl": lambda: as_jsonl(TEXTS),
    "a.csv": lambda: as_csv(TEXTS),
    "a.parquet": lambda: as_parquet(TEXTS),
    "a.png": make_png,
    "a.conllu": lambda: as_treebank([[SENTENCE], [SENTENCE, SENTENCE]]).encode(),
    "a.conllu.gz": lambda: gzip.compress(as_treebank([[SENTENCE], [SENTENCE, SENTENCE]]).encode()),
    "a.txt.gz": lambda: gzip.compress(b"text" * 50),
    "a.jsonl.gz": lambda: gzip.compress(as_jsonl(TEXTS)),
    "a.csv.gz": lambda: gzip.compress(as_csv(TEXTS)),
    "a.parquet.gz": lambda: gzip.compress(as_parquet(TEXTS)),
}


def read_documents(path: Path, **options: object) -> tuple[list[Document], str]:
    read: list[Document] = []
    try:
        for document in documents(path, **options):  # type: ignore[arg-type]
            read.append(document)
    except CorpusError as error:
        return read, str(error)
    return read, ""


def check_reading(path: Path, **options: object) -> tuple[list[Document], str]:
    """Read a file twice, then with broken documents skipped, and check what holds for any file."""
    read, message = read_documents(path, **options)
    again = read_documents(path, **options)
    assert ([(d.text, d.name, d.broken) for d in again[0]], again[1]) == (
        [(d.text, d.name, d.broken) for d in read],
        message,
    )
    for document in read:
        document.text.encode()
        assert document.is_image or not document.broken
    assert not message or message.startswith(str(path))
    skipping, _ = read_documents(path, skip_broken=True, **options)
    assert [d.text for d in skipping[: len(read)]] == [d.text for d in read]
    assert {d.broken for d in skipping} <= {"", *REASONS}
    return read, message


@pytest.mark.parametrize("name", VALID)
@pytest.mark.parametrize("way", ["bytes", "pieces", "mutated"])
def test_any_file(tmp_path: Path, name: str, way: str):
    kinds = {"bytes": st.binary(max_size=80), "pieces": st.lists(PIECES, max_size=12).map(b"".join)}
    drawn = mutate(VALID[name]()) if way == "mutated" else kinds[way]

    @FAST
    @given(drawn)
    def is_read_or_refused(raw: bytes) -> None:
        (tmp_path / name).write_bytes(raw)
        check_reading(tmp_path / name)

    is_read_or_refused()


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig", "gb18030", "utf-7", "utf-32", "shift_jis"])
@pytest.mark.parametrize("format", ["text", "lines", "jsonl", "csv"])
def test_any_file_in_any_encoding(tmp_path: Path, encoding: str, format: str):
    written = '{"text": "é"}\ntext\n"a"\n'.encode(encoding, "replace")

    @settings(FAST, max_examples=25)
    @given(st.one_of(st.binary(max_size=60), mutate(written)))
    def is_read_or_refused(raw: bytes) -> None:
        (tmp_path / "a").write_bytes(raw)
        check_reading(tmp_path / "a", encoding=encoding, format=format)

    is_read_or_refused()


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.floats(), st.integers(), st.text(st.characters())),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["text", "", "a"]), inner)),
    max_leaves=8,
)


@FAST
@given(values=st.lists(JSON, max_size=6))
def test_any_json(tmp_path_factory: pytest.TempPathFactory, values: list[object]):
    path = tmp_path_factory.mktemp("json") / "a.jsonl"
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    read, message = check_reading(path)
    good = 0
    for value in values:
        if not (isinstance(value, dict) and isinstance(value.get("text", 0), str | None)):
            break
        good += 1
    assert len(read) == good
    assert bool(message) == (good < len(values))
    skipping, message = read_documents(path, skip_broken=True)
    assert len(skipping) == len(values)
    assert message == ""


POSITIONS = st.one_of(st.integers(-2, 20), st.booleans(), st.floats(), st.text(max_size=2))
ROWS = st.one_of(JSON, st.lists(st.one_of(JSON, st.tuples(*[POSITIONS] * 4, st.text(max_size=3))), max_size=3))


@FAST
@given(relations=ROWS)
def test_any_relations(tmp_path_factory: pytest.TempPathFactory, relations: object):
    path = tmp_path_factory.mktemp("json") / "a.jsonl"
    path.write_text(json.dumps({"text": "Two ravens met.", "relations": relations}) + "\n")
    read, message = check_reading(path)
    assert not message or ":1: its relations " in message
    for row in read[0].relations or () if read else ():
        assert 0 <= row.start_a < row.end_a <= len("Two ravens met.")


@FAST
@given(damage=st.sampled_from([b"{\n", b"\xff\n", b"\0\n", b'{"a": 1}\n', b'{"text": 1}\n']), before=st.integers(0, 9))
def test_documents_around_the_damage(tmp_path_factory: pytest.TempPathFactory, damage: bytes, before: int):
    path = tmp_path_factory.mktemp("around") / "a.jsonl"
    path.write_bytes(as_jsonl(["before"] * before) + damage + as_jsonl(["after"]))
    read, message = check_reading(path)
    assert [d.text for d in read] == ["before"] * before
    assert f"a.jsonl:{before + 1}: " in message
    skipping, _ = read_documents(path, skip_broken=True)
    assert [d.text for d in skipping] == [*["before"] * before, "", "after"]
    assert [bool(d.broken) for d in skipping] == [*[False] * before, True, False]


def test_what_is_skipped_is_counted_under_one_reason_each(tmp_path: Path):
    lines = [
        b'{"text": "a"}',
        b"{",
        b"[1]",
        b'{"b": 1}',
        b'{"text": 1}',
        b'"\xe9"',
        b"\0",
        b'{"text": null}',
        b'{"text": "b"}',
    ]
    path = put(tmp_path / "a.jsonl", b"\n".join(lines))
    assert [d.broken for d in documents(path, skip_broken=True)] == [
        *("", "not JSON", "not JSON", "no text in its field", "no text in its field"),
        *("badly encoded", "holds NUL bytes", "", ""),
    ]
    path = put(tmp_path / "a.csv", b'id,text\n1,a\n2,"b"c\n3\n\n4,\xe9\n5,"never\n6,closed\n')
    read = list(documents(path, skip_broken=True))
    assert [(d.text, d.broken) for d in read] == [
        *(("a", ""), ("", "not a CSV row"), ("", ""), ("", "badly encoded"), ("", "not a CSV row")),
        ("closed", ""),
    ]
    (document,) = documents(put(tmp_path / "a.txt", b"caf\xe9"), skip_broken=True)
    assert (document.broken, document.is_image) == ("badly encoded", False)
    packed = put(tmp_path / "b.jsonl.gz", as_jsonl(["a"]))
    packed.write_bytes(packed.read_bytes()[:-4])
    assert "damaged .gz" in read_documents(packed, skip_broken=True)[1]


def test_utf_16_goes_on_after_a_broken_line(tmp_path: Path):
    raw = as_jsonl(["one"], encoding="utf-16") + b"\x00\xdc\n\0" + as_jsonl(["two"], encoding="utf-16-le")
    read = list(documents(put(tmp_path / "a.jsonl", raw), encoding="utf-16", skip_broken=True))
    assert [(d.text, d.broken) for d in read] == [("one", ""), ("", "badly encoded"), ("two", "")]


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_a_hundred_thousand_empty_documents(tmp_path: Path, name: str):
    content = TABLES[name.split(".")[1]]([""] * 100_000)
    assert texts_of(documents(put(tmp_path / name, content))) == [""] * 100_000
    assert len(texts_of(documents(put(tmp_path / "b.txt", "\n" * 100_000), format="lines"))) == 100_000
