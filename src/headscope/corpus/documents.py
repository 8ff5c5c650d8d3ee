"""Documents: one stream of texts, whatever they are stored in.

A corpus is read in a fixed order (sources as given, folders and globs sorted by path, files from top to bottom), so
that the same command reads the same documents. Which formats there are, and what each expects, is in `formats.py`.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np

from headscope.corpus import bundled
from headscope.corpus.formats import (
    FORMATS,
    Document,
    ReadOptions,
    format_of,
    read_hub,
    read_stream,
    whole_characters,
)
from headscope.corpus.images import ENDINGS, as_picture
from headscope.corpus.places import found, is_url
from headscope.corpus.shards import Shard, Source, packed
from headscope.errors import CorpusError

__all__ = ["Corpus", "Document", "as_corpus", "documents"]


@dataclass(frozen=True)
class Corpus:
    """Documents in a fixed order, read as a stream, as often as wanted (standard input only once).

    `size` is the number of documents where it is known without reading them; `limit` reads no more than so many.
    `options` says how texts are found in its files.
    """

    name: str
    sources: Sequence[Source]
    size: int | None = None
    limit: int | None = None
    rereadable: bool = True
    options: ReadOptions = field(default_factory=ReadOptions)
    anywhere: bool = True
    """another process, on another machine, can read it too"""

    @classmethod
    def of(cls, name: str, read: Callable[[], Iterator[Document]], **more: Any) -> Corpus:
        """A corpus of one stream."""
        return cls(name, [Source(name, read)], **more)

    def __iter__(self) -> Iterator[Document]:
        return islice((document for source in self.sources for document in source.read()), self.limit)

    @cached_property
    def shards(self) -> list[Shard]:
        """The pieces that can be read apart."""
        return packed(self.sources, self.limit)

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
    skip_broken: bool = False,
) -> Corpus:
    """Open text files, folders, globs, JSONL, CSV, Parquet (each also `.gz`), images, `-` (standard input), `hf:NAME`,
    `example:NAME`; nothing at all is the bundled corpus.

    `skip_broken`: documents that cannot be read are skipped and counted; else the first of them is an error.

    >>> corpus = documents(limit=2)
    >>> [document.name for document in corpus]
    ['openings:1', 'openings:2']
    """
    if limit is not None and limit < 1:
        raise CorpusError(f"limit is {limit}: ask for at least one document")
    if format != "auto" and format not in FORMATS:
        raise CorpusError(f"unknown format {format!r}; there are: auto, {', '.join(FORMATS)}")
    options = ReadOptions(field=field, format=format, encoding=_known_encoding(encoding), skip_broken=skip_broken)
    if sources is None:
        return Corpus.of("bundled openings", bundled.openings, size=bundled.OPENINGS, limit=limit)
    given = [sources] if isinstance(sources, (str, Path)) else list(sources)
    if not given:
        raise CorpusError("the list of sources is empty: name at least one, or give None for the bundled texts")
    items = [item for source in given for item in _expand(str(source), options)]
    size = len(items) if all(_is_one_document(item, options) for item in items) else None
    return Corpus(
        name=whole_characters(" ".join(str(source) for source in given)),
        sources=[_source(item, options) for item in items],
        size=size,
        limit=limit,
        rereadable=all(_is_rereadable(item) for item in items),
        options=options,
        anywhere="-" not in items,
    )


def as_corpus(texts: Corpus | str | Path | Iterable[Any] | None) -> Corpus:
    """What people pass as documents: a corpus, a source, or an iterable of strings, mappings with `text`, documents,
    images (of PIL, or arrays of bytes)."""
    if isinstance(texts, Corpus):
        return texts
    if texts is None or isinstance(texts, (str, Path)):
        return documents(texts)
    one = isinstance(texts, Mapping) or (isinstance(texts, np.ndarray) and texts.ndim in (2, 3))
    if one or not isinstance(texts, Iterable):
        raise CorpusError(f"documents are given as {type(texts).__name__}: give a list of them, even of a single one")
    source: Iterable[Any] = texts
    size = len(texts) if isinstance(texts, Sized) else None
    first = texts[0] if isinstance(texts, (list, tuple, np.ndarray)) and size else ""
    what = "texts" if isinstance(first, (str, Mapping, Document)) else "images"
    return Corpus.of(
        f"{what} given in Python",
        lambda: (_as_document(text, k) for k, text in enumerate(source, start=1)),
        size=size,
        rereadable=size is not None,
        anywhere=isinstance(texts, (list, tuple)),
    )


def _as_document(text: Any, number: int) -> Document:
    if isinstance(text, Document):
        return text
    value = text.get("text") if isinstance(text, Mapping) else text
    if isinstance(value, str):
        return Document(value, f"text {number}")
    try:
        made = None if isinstance(text, Mapping) else as_picture(text)
    except CorpusError as error:
        raise CorpusError(f"document {number}: {error}") from None
    if made is None:
        raise CorpusError(
            f"document {number} is {type(text).__name__}: give strings, or mappings with a string under 'text'; or "
            "images of PIL, or arrays (height, width, 3) of bytes"
        )
    return Document.of_image(made, f"image {number}")


def _expand(source: str, options: ReadOptions) -> list[str]:
    """A source as people name it, as the files and streams it stands for."""
    if source == "-" or (source.startswith(("hf:", "example:")) and not is_url(source)):
        return [source]
    kind, files = found(source)
    if kind == "pattern" and not files:
        raise CorpusError(f"{source}: no file matches this pattern")
    if kind != "folder":
        return files
    formats = {file: format_of(file) for file in files}
    images = [file for file in files if formats[file] == "image"]
    texts = [file for file in files if formats[file] not in (None, "image")]
    # Many texts have images beside them that are not meant: a folder is one of images where it holds no texts.
    chosen = images if options.format == "image" else texts or (images if options.format == "auto" else [])
    if not chosen:
        raise CorpusError(
            f"{source}: no file in this folder has an ending headscope reads "
            f"(.txt .md .jsonl .csv .tsv .parquet, also .gz; or {' '.join(ENDINGS)})"
        )
    return chosen


def _is_one_document(item: str, options: ReadOptions) -> bool:
    if item == "-" or item.startswith("hf:"):
        return False
    return item.startswith("example:") or _format(item, options) in ("text", "image")


def _is_rereadable(item: str) -> bool:
    """Pipes, such as `<(zcat …)` makes, give their bytes only once; a hub's would be fetched twice."""
    return item.startswith("example:") or is_url(item) or Path(item).is_file()


def _source(item: str, options: ReadOptions) -> Source:
    path = item if _is_rereadable(item) and not item.startswith("example:") else ""
    return Source(item, lambda: _read(item, options), path, single=_is_one_document(item, options))


def _read(item: str, options: ReadOptions) -> Iterator[Document]:
    if item == "-":
        if sys.stdin is None:
            raise CorpusError("standard input is closed: there is nothing to read from -")
        return read_stream(cast(io.BufferedReader, sys.stdin.buffer), options)
    if item.startswith("hf:"):
        return read_hub(item, options)
    if item.startswith("example:"):
        return iter([bundled.example_document(item.removeprefix("example:"))])
    return FORMATS[_format(item, options)](item, options)


def _format(item: str, options: ReadOptions) -> str:
    if options.format != "auto":
        return options.format
    if item.lower().removesuffix(".gz").endswith(".json"):
        raise CorpusError(
            f"{item}: a JSON file is read only as JSON Lines, one object a line: name it .jsonl, or say --format jsonl"
        )
    return format_of(Path(item)) or "text"


def _known_encoding(encoding: str) -> str:
    try:
        " ".encode(encoding)
    except (LookupError, ValueError):
        raise CorpusError(f"unknown encoding {encoding!r}; for instance utf-8, latin-1, cp1252, utf-16") from None
    return encoding
