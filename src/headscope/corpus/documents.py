"""Documents: one stream of texts, whatever they are stored in.

A corpus is read in a fixed order (sources as given, folders and globs sorted by path, files from top to bottom), so
that the same command reads the same documents. Which formats there are, and what each expects, is in `formats.py`.
"""

from __future__ import annotations

import glob
import io
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, cast

from headscope.corpus import bundled
from headscope.corpus.formats import FORMATS, Document, ReadOptions, format_of, read_hub, read_stream
from headscope.errors import CorpusError

__all__ = ["Corpus", "Document", "as_corpus", "documents"]


@dataclass(frozen=True)
class Corpus:
    """Documents in a fixed order, read as a stream, as often as wanted (standard input only once).

    `size` is the number of documents where it is known without reading them; `limit` reads no more than so many.
    """

    name: str
    read: Callable[[], Iterator[Document]]
    size: int | None = None
    limit: int | None = None
    rereadable: bool = True

    def __iter__(self) -> Iterator[Document]:
        return islice(self.read(), self.limit)

    def count(self, at_most: int) -> int | None:
        """How many documents there are, if they can be counted and are not more than `at_most`; else None."""
        if self.size is not None:
            size = self.size if self.limit is None else min(self.size, self.limit)
            return size if size <= at_most else None
        if not self.rereadable:
            return None
        counted = sum(1 for _ in islice(self, at_most + 1))
        return counted if counted <= at_most else None


def documents(
    sources: str | Path | Iterable[str | Path] | None = None,
    *,
    field: str = "text",
    format: str = "auto",
    encoding: str = "utf-8",
    limit: int | None = None,
) -> Corpus:
    """Open text files, folders, globs, JSONL, CSV, Parquet (each also `.gz`), `-` (standard input), `hf:NAME`,
    `example:NAME`; nothing at all is the bundled corpus.

    >>> corpus = documents(limit=2)
    >>> [document.name for document in corpus]
    ['openings:1', 'openings:2']
    """
    if limit is not None and limit < 1:
        raise CorpusError(f"limit is {limit}: ask for at least one document")
    if format != "auto" and format not in FORMATS:
        raise CorpusError(f"unknown format {format!r}; there are: auto, {', '.join(FORMATS)}")
    options = ReadOptions(field=field, format=format, encoding=_known_encoding(encoding))
    given = [sources] if isinstance(sources, (str, Path)) else list(sources or [])
    if not given:
        return Corpus("bundled openings", bundled.openings, size=bundled.OPENINGS, limit=limit)
    items = [item for source in given for item in _expand(str(source), options)]
    size = len(items) if all(_is_one_document(item, options) for item in items) else None
    return Corpus(
        name=" ".join(str(source) for source in given),
        read=lambda: (document for item in items for document in _read(item, options)),
        size=size,
        limit=limit,
        rereadable="-" not in items,
    )


def as_corpus(texts: Corpus | str | Path | Iterable[str | Document | Mapping[str, Any]] | None) -> Corpus:
    """What people pass as documents: a corpus, a source, or an iterable of strings, mappings with `text`, documents."""
    if isinstance(texts, Corpus):
        return texts
    if texts is None or isinstance(texts, (str, Path)):
        return documents(texts)
    kept = texts if isinstance(texts, (list, tuple)) else None
    source: Iterable[str | Document | Mapping[str, Any]] = texts
    return Corpus(
        name="texts given in Python",
        read=lambda: (_as_document(text, k) for k, text in enumerate(source, start=1)),
        size=None if kept is None else len(kept),
        rereadable=kept is not None,
    )


def _as_document(text: str | Document | Mapping[str, Any], number: int) -> Document:
    if isinstance(text, Document):
        return text
    value = text.get("text") if isinstance(text, Mapping) else text
    if not isinstance(value, str):
        raise CorpusError(
            f"document {number} is {type(text).__name__}: give strings, or mappings with a string under 'text'"
        )
    return Document(value, f"text {number}")


def _expand(source: str, options: ReadOptions) -> list[str]:
    """A source as people name it, as the files and streams it stands for."""
    if source == "-" or source.startswith(("hf:", "example:")):
        return [source]
    path = Path(source)
    if path.is_dir():
        found = sorted(p.as_posix() for p in path.rglob("*") if p.is_file() and not _hidden(p, path) and format_of(p))
        if not found:
            raise CorpusError(
                f"{source}: no file in this folder has an ending headscope reads "
                "(.txt .md .jsonl .csv .tsv .parquet, also .gz)"
            )
        return found
    if path.exists():
        return [source]
    if glob.has_magic(source):
        found = sorted(p for p in glob.glob(source, recursive=True) if Path(p).is_file())
        if not found:
            raise CorpusError(f"{source}: no file matches this pattern")
        return found
    raise CorpusError(f"{source}: no such file or folder")


def _hidden(path: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(root).parts)


def _is_one_document(item: str, options: ReadOptions) -> bool:
    if item == "-" or item.startswith("hf:"):
        return False
    return (
        item.startswith("example:")
        or (options.format if options.format != "auto" else format_of(Path(item)) or "text") == "text"
    )


def _read(item: str, options: ReadOptions) -> Iterator[Document]:
    if item == "-":
        return read_stream(cast(io.BufferedReader, sys.stdin.buffer), options)
    if item.startswith("hf:"):
        return read_hub(item, options)
    if item.startswith("example:"):
        return iter([bundled.example_document(item.removeprefix("example:"))])
    name = options.format if options.format != "auto" else format_of(Path(item)) or "text"
    return FORMATS[name](item, options)


def _known_encoding(encoding: str) -> str:
    try:
        b"".decode(encoding)
    except LookupError:
        raise CorpusError(f"unknown encoding {encoding!r}; for instance utf-8, latin-1, cp1252, utf-16") from None
    return encoding
