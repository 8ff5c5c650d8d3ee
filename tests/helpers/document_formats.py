"""Write texts in every document format, and list what is read from them."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headscope.corpus.documents import Corpus
from headscope.errors import CorpusError

TEXTS = ["Two ravens met.", 'She said "no",\nand left.', "", "Zwölf Boxkämpfer, 3.5 €", "\ttabs\tand, commas\r\nlast"]


def as_jsonl(texts: list[str], field: str = "text", encoding: str = "utf-8") -> bytes:
    rows = ({"id": k, field: text} for k, text in enumerate(texts))
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode(encoding)


def as_csv(texts: list[str], field: str = "text", delimiter: str = ",", encoding: str = "utf-8") -> bytes:
    table = io.StringIO(newline="")
    csv.writer(table, delimiter=delimiter).writerows([["id", field], *([k, text] for k, text in enumerate(texts))])
    return table.getvalue().encode(encoding)


def as_parquet(texts: list[str], field: str = "text") -> bytes:
    columns = {"id": pa.array(range(len(texts)), pa.int64()), field: pa.array(texts, pa.string())}
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer, row_group_size=2)
    return buffer.getvalue()


TABLES: dict[str, Callable[..., bytes]] = {
    "jsonl": as_jsonl,
    "ndjson": as_jsonl,
    "csv": as_csv,
    "tsv": lambda texts, field="text": as_csv(texts, field, "\t"),
    "parquet": as_parquet,
}


def texts_of(corpus: Corpus) -> list[str]:
    return [document.text for document in corpus]


def names_of(corpus: Corpus) -> list[str]:
    return [document.name for document in corpus]


def put(path: Path, content: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(raw) if path.suffix.lower() == ".gz" else raw)
    return path


def get_error(corpus: Callable[[], Corpus], good: int = 0) -> str:
    """Return the message of the CorpusError that is raised after `good` documents."""
    read = 0
    with pytest.raises(CorpusError) as caught:  # noqa: PT012
        for _ in corpus():
            read += 1
    assert read == good, f"{read} good documents, not {good}"
    return str(caught.value)
