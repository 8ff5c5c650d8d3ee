"""`Corpus`: a stream of documents from files, folders, URLs, datasets or Python objects.

A corpus is read in a fixed order (sources in the given order, folders and globs sorted by path, files from top to
bottom), so that the same command reads the same documents. File formats are defined in `formats.py`.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, repeat
from pathlib import Path
from typing import Any

import numpy as np

from headscope.corpus import chunks, formats
from headscope.corpus.chunks import Chunk, ChunkSize, Source
from headscope.corpus.document import ENDINGS, NO_TARGET, RELATIONS, BrokenDocumentError, add_own_target, as_picture
from headscope.corpus.formats import (
    FORMATS,
    Document,
    ReadOptions,
    can_split,
    choose_format,
    detect_format,
    is_file_name,
    is_stream,
    read_file,
    replace_lone_surrogates,
)
from headscope.corpus.lines import suggest_format
from headscope.corpus.storage import FileListing, Stamp, get_local_path, identify_file, identify_url, is_url, list_files
from headscope.corpus.tables import TextColumn, find_column
from headscope.errors import CorpusError

__all__ = ["Corpus", "Document", "as_corpus", "documents"]

NO_TARGETS = "none"
"""entry of a manifest if texts have no targets"""
OF_PAIRS = "second of each pair"
"""entry of a manifest if texts are given as pairs in Python"""
MAX_NAME = 80
"""characters of a name in a repr"""
MAX_INSPECTED = 3
"""text files that are inspected for a note"""
MAX_OPENED, MAX_OPENED_BYTES, MAX_BLANK = 32, 2**24, 1000
"""files, bytes, and blank documents of a file that are read at most to report errors before a model is loaded"""


@dataclass(frozen=True)
class Corpus:
    """Documents in a fixed order, read as a stream; repeatedly, except from standard input and pipes.

    `headscope.documents` makes one. Iterating over it yields each `Document`. `size` is the number of documents if it
    is known without reading them; `limit` is the largest number to read. `options` defines how texts are extracted from
    files.

    Examples
    --------
    >>> import headscope
    >>> corpus = headscope.documents(limit=2)
    >>> corpus
    <Corpus bundled openings, 64 documents, at most 2 are read>
    >>> [document.name for document in corpus]
    ['openings:1', 'openings:2']
    """

    name: str
    sources: Sequence[Source]
    size: int | None = None
    limit: int | None = None
    rereadable: bool = True
    options: ReadOptions = field(default_factory=ReadOptions)
    is_readable_elsewhere: bool = True
    """processes on other machines can read it too"""
    notes: tuple[str, ...] = ()
    """messages for the user before it is read"""
    fixed_version: str = ""
    """version of documents that are bundled with the package"""

    @property
    def version(self) -> str:
        """Hash of the names, sizes and versions of all files; empty if any of them has none."""
        if self.fixed_version or any(source.stamp is None for source in self.sources):
            return self.fixed_version
        parts = (f"{source.name}\0{source.stamp}\n".encode() for source in self.sources)
        digest = hashlib.blake2b(digest_size=16)
        for part in parts:
            digest.update(part)
        return digest.hexdigest()

    def describe(self) -> dict[str, Any]:
        """Return the entries of a manifest that depend on what is read, and how.

        Returns
        -------
        dict

        Examples
        --------
        >>> import headscope
        >>> headscope.documents(limit=2).describe()["limit"]
        2
        """
        return {
            "corpus": self.name,
            "limit": self.limit or "none",
            "field": self.options.field,
            "target": self.options.target or NO_TARGETS,
            "text_format": self.options.format,
            "encoding": self.options.encoding,
        }

    @classmethod
    def from_stream(cls, name: str, read: Callable[[], Iterator[Document]], **more: Any) -> Corpus:
        """Return a corpus of one stream of documents.

        Parameters
        ----------
        name
            What to call it.
        read
            A function that begins to read: it is called for every pass over the corpus.
        more
            Other fields of `Corpus`, such as `rereadable=False` if there can be only one pass.

        Returns
        -------
        Corpus

        Examples
        --------
        >>> from headscope import Corpus, Document
        >>> corpus = Corpus.from_stream("ravens", lambda: iter([Document("Two ravens met.", "ravens:1")]))
        >>> [document.text for document in corpus]
        ['Two ravens met.']
        """
        return cls(name, [Source(name, read)], **more)

    def __repr__(self) -> str:
        name = self.name if len(self.name) <= MAX_NAME else f"{self.name[:MAX_NAME]}…"
        size = "" if self.size is None else f", {self.size:,} document{'s' * (self.size != 1)}"
        limit = "" if self.limit is None else f", at most {self.limit:,} are read"
        return f"<Corpus {name}{size}{limit}>"

    def __iter__(self) -> Iterator[Document]:
        return islice((document for source in self.sources for document in source.read()), self.limit)

    @property
    def sizes(self) -> list[int]:
        """Bytes of all sources; -1 where unknown."""
        return [-1 if source.stamp is None else source.stamp.size for source in self.sources]

    def plan_chunks(self, size: ChunkSize) -> list[Chunk]:
        """Split the corpus into chunks that can be read independently, in its order.

        With a `limit` it is one chunk, because the number of documents before a second chunk would be unknown.

        Parameters
        ----------
        size
            Number of documents and of bytes of a chunk.

        Returns
        -------
        list of Chunk

        Examples
        --------
        >>> import headscope
        >>> from headscope.corpus.chunks import ChunkSize
        >>> len(headscope.documents(limit=3).plan_chunks(ChunkSize(documents=2, bytes=1000)))
        1
        """
        if self.limit is not None:
            return [Chunk(0, 0, len(self.sources))]
        return chunks.plan_chunks(self.sources, size)

    def read_chunk(self, chunk: Chunk) -> Iterator[tuple[int, Document]]:
        """Read the documents of a chunk.

        Parameters
        ----------
        chunk
            One of `plan_chunks`.

        Yields
        ------
        int, Document
            The number of the source, and the document. For many single-document sources, it is that of the first.

        Raises
        ------
        CorpusError
            A document cannot be read, or a file has changed since the corpus was listed.

        Examples
        --------
        >>> import headscope
        >>> from headscope.corpus.chunks import ChunkSize
        >>> corpus = headscope.documents(limit=3)
        >>> (chunk,) = corpus.plan_chunks(ChunkSize(documents=2, bytes=1000))
        >>> [document.name for _, document in corpus.read_chunk(chunk)]
        ['openings:1', 'openings:2', 'openings:3']
        """
        return chunks.read_chunk(self.sources, chunk, self.limit)

    def check_opening(self, limit: int | None = None) -> Document | None:
        """Read the first document of each of the first files, so that errors are reported before a model is loaded.

        Nothing is read of standard input, pipes and hub datasets.

        Parameters
        ----------
        limit
            Number of documents that are read at most, if it is not that of the corpus.

        Returns
        -------
        Document or None
            The first document that is not blank; None if it is not among those read.

        Raises
        ------
        CorpusError
            A document cannot be read, the field of the text is missing, or all files are blank.

        Examples
        --------
        >>> import headscope
        >>> headscope.documents().check_opening().name
        'openings:1'
        """
        if not self.rereadable:
            return None
        limit = self.limit if limit is None else limit
        at_most = MAX_BLANK if limit is None else min(limit, MAX_BLANK)
        first, blank_sources, size = None, 0, 0
        for source in (
            self.sources[:MAX_OPENED] if limit is None else self.sources[:1]
        ):  # others may be beyond the limit
            if size >= MAX_OPENED_BYTES:
                break
            size += MAX_OPENED_BYTES if is_url(source.path) else source.stamp.size if source.stamp else 0
            opening = source.read()
            document = next((document for document in islice(opening, at_most) if not document.is_blank), None)
            first = first or document
            blank_sources += document is None and next(opening, None) is None
        if blank_sources == len(self.sources):
            raise CorpusError(f"{self.name}: there is no text in it")
        return first

    def measure(self, at_most: int) -> tuple[int | None, float]:
        """Return how many documents there are, and how long their texts are.

        Parameters
        ----------
        at_most
            Number of documents up to which they are counted.

        Returns
        -------
        count : int or None
            The number of documents; None if it is unknown or larger than `at_most`.
        mean : float
            The mean size of the texts in UTF-8 bytes, over the documents read for counting; 0 if none was, because
            the number is known or documents can be read only once.

        Examples
        --------
        >>> import headscope
        >>> headscope.documents(limit=3).measure(at_most=100)
        (3, 0.0)
        """
        if self.size is not None:
            size = self.size if self.limit is None else min(self.size, self.limit)
            return size if size <= at_most else None, 0.0
        if not self.rereadable:
            return None, 0.0
        count = total = 0
        for document in islice(self, at_most + 1):
            count += 1
            total += len(document.text) if document.text.isascii() else len(document.text.encode())
        return count if count <= at_most else None, total / count if count else 0.0


def documents(
    sources: str | Path | Iterable[str | Path] | None = None,
    *,
    field: str = "text",
    format: str = "auto",
    encoding: str = "utf-8",
    limit: int | None = None,
    skip_broken: bool = False,
    target: str = "",
    relations: bool = True,
) -> Corpus:
    """Open a corpus: files, folders, URLs and datasets, or the bundled texts.

    Parameters
    ----------
    sources
        One or several: text files, folders, globs, JSONL, CSV, TSV, Parquet and CoNLL-U (each also `.gz`), images,
        URLs, `-` (standard input), `hf:NAME` (a hub dataset), `example:NAME`. None is the bundled corpus.
    field
        The field or column that holds the text.
    format
        `auto` (by file ending), `text`, `lines`, `jsonl`, `csv`, `parquet`, `conllu` or `image`.
    encoding
        Of text files and standard input.
    limit
        Read at most this many documents, the first ones.
    skip_broken
        Skip and count documents that cannot be read; otherwise the first of them is an error.
    target
        The field or column that holds what the decoder of an encoder–decoder model is to write for the text, such as
        its translation. If it is `field` itself, every text is its own target.
    relations
        Read the labelled relations of CoNLL-U and of the field `relations` of JSONL.

    Returns
    -------
    Corpus
        The documents are read when it is iterated over.

    Raises
    ------
    CorpusError
        A source does not exist or holds nothing, or an option makes no sense.

    Examples
    --------
    >>> corpus = documents(limit=2)
    >>> [document.name for document in corpus]
    ['openings:1', 'openings:2']
    """
    if limit is not None and limit < 1:
        raise CorpusError(f"limit is {limit}: ask for at least one document")
    if format != "auto" and format not in FORMATS:
        raise CorpusError(f"unknown format {format!r}; there are: auto, {', '.join(FORMATS)}")
    options = ReadOptions(field, format, _check_encoding(encoding), skip_broken, target, relations)
    limit = None if limit is None else min(limit, sys.maxsize)  # the largest number that islice takes
    if sources is None:
        if field != "text":
            raise CorpusError(f"field is {field!r}, and the bundled texts have no fields: leave --field out")
        if target not in ("", field):
            raise CorpusError(
                f"target is {target!r}, and the bundled texts have no fields: name files that have them (jsonl, csv, "
                "parquet)"
            )
        return Corpus.from_stream(
            "bundled openings",
            partial(_read_bundled, options),
            size=formats.OPENINGS,
            limit=limit,
            fixed_version="bundled",
            options=options,
        )
    names = [str(source) for source in ([sources] if isinstance(sources, (str, Path)) else sources)]
    if not names:
        raise CorpusError("the list of sources is empty: name at least one, or give None for the bundled texts")
    listing = _Listing(options)
    for name in names:
        listing.add(name)
    if field != "text" and not any(_has_fields(source.name, options) for source in listing.sources):
        raise CorpusError(
            f"{listing.sources[0].name}: has no fields, and field is {field!r}: leave --field out, or name another "
            "--format (jsonl, csv, parquet)"
        )
    if target not in ("", field) and not any(_has_fields(source.name, options) for source in listing.sources):
        raise CorpusError(
            f"{listing.sources[0].name}: has no fields, and target is {target!r}: name another --format (jsonl, csv, "
            f"parquet). --target {field} takes every text as its own target"
        )
    return Corpus(
        name=replace_lone_surrogates(" ".join(names)),
        sources=listing.sources,
        size=len(listing.sources) if all(source.is_single_document for source in listing.sources) else None,
        limit=limit,
        rereadable=all(_is_rereadable(source) for source in listing.sources),
        options=options,
        is_readable_elsewhere=all(_is_anywhere(source) for source in listing.sources),
        notes=listing.notes,
    )


def _read_bundled(options: ReadOptions) -> Iterator[Document]:
    return (add_own_target(document, options) for document in formats.load_openings())


def as_corpus(
    texts: Corpus | str | Path | Iterable[Any] | None,
    field: str = "text",
    *,
    target: str = "",
    skip_broken: bool = False,
    relations: bool = True,
) -> Corpus:
    """Return a corpus from any supported argument.

    Parameters
    ----------
    texts
        A corpus; a source that `documents` opens; a DataFrame or Series of pandas; a Dataset of the package datasets;
        or an iterable of strings, pairs (source, target) of strings, mappings, documents, or images (of PIL, or arrays
        of bytes).
    field
        The column, or field of mappings and files, that holds the text.
    target
        The column or field that holds what a decoder is to write for the text. Pairs need none; an iterator of pairs
        needs any name.
    skip_broken
        Skip and count documents without a target, or with broken relations; otherwise the first of them is an error.
    relations
        Read labelled relations, of files and of mappings with a field `relations`.

    Examples
    --------
    >>> import pandas as pd
    >>> corpus = as_corpus(pd.DataFrame({"body": ["Two ravens met.", "Bread rises."]}), field="body")
    >>> [(document.name, document.text) for document in corpus]
    [('row 0', 'Two ravens met.'), ('row 1', 'Bread rises.')]
    """
    if isinstance(texts, Corpus):
        if field not in ("text", texts.options.field):
            raise CorpusError(f"field is {field!r}, and the corpus is opened already: headscope.documents(…, field=…)")
        if target not in ("", texts.options.target):
            raise CorpusError(
                f"target is {target!r}, and the corpus is opened already: headscope.documents(…, target=…)"
            )
        return texts
    if texts is None or isinstance(texts, (str, Path)):
        return documents(texts, field=field, target=target, relations=relations)
    options = ReadOptions(field=field, skip_broken=skip_broken, target=target, relations=relations)
    column = find_column(texts, field)
    if column is not None:
        return _make_column_corpus(column, find_column(texts, target) if target else None, options)
    is_single = isinstance(texts, Mapping) or (isinstance(texts, np.ndarray) and texts.ndim in (2, 3))
    if is_single or not isinstance(texts, Iterable):
        raise CorpusError(f"documents are given as {type(texts).__name__}: give a list of them, even of a single one")
    source: Iterable[Any] = texts
    size = len(texts) if isinstance(texts, Sized) else None
    first = texts[0] if isinstance(texts, (list, tuple, np.ndarray)) and size else ""
    if isinstance(texts, (list, tuple)) and texts and all(isinstance(t, str) and is_file_name(t) for t in texts):
        raise CorpusError(
            f"the texts given are names of files ({first!r}, …): open the files with "
            f"headscope.documents([{first!r}, …]), or give names that are meant as texts as {{'text': …}}"
        )
    content = "texts" if isinstance(first, (str, Mapping, Document, tuple)) else "images"
    if not target and (isinstance(first, tuple) or (isinstance(first, Document) and first.target is not None)):
        options = replace(options, target=OF_PAIRS)
    return Corpus.from_stream(
        f"{content} given in Python",
        partial(_read_given, source, options),
        size=size,
        rereadable=size is not None,
        options=options,
        is_readable_elsewhere=isinstance(texts, (list, tuple)),
    )


def _make_column_corpus(column: TextColumn, targets: TextColumn | None, options: ReadOptions) -> Corpus:
    is_in_memory = isinstance(column.cells, list)
    read = partial(_read_column, column, targets, options)
    if is_in_memory:  # what holds no text is reported at once, not after hours
        for _ in read():
            pass
    holds_text = isinstance(next(iter(column.cells), ""), str)
    return Corpus.from_stream(
        f"{'texts' if holds_text else 'images'} given in Python",
        read,
        size=len(column.labels),
        options=options,
        is_readable_elsewhere=is_in_memory,
    )


def _read_column(column: TextColumn, targets: TextColumn | None, options: ReadOptions) -> Iterator[Document]:
    target_cells = repeat(None) if targets is None else targets.cells
    for (label, cell), target in zip(column, target_cells, strict=targets is not None):
        if isinstance(cell, str) and targets is not None:
            if isinstance(target, str):
                yield Document(cell, f"row {label}", target=target)
            elif options.skip_broken:
                yield Document("", f"row {label}", broken=NO_TARGET)
            else:
                targets.refuse(label, target)
        elif isinstance(cell, str):
            yield Document(cell, f"row {label}")
        elif (picture := as_picture(cell)) is not None:
            yield Document.from_image(picture, f"row {label}")
        else:
            column.refuse(label, cell)


def _read_given(texts: Iterable[Any], options: ReadOptions) -> Iterator[Document]:
    for number, text in enumerate(texts, start=1):
        try:
            document = _convert(text, number, options)
        except BrokenDocumentError as error:
            if not options.skip_broken:
                raise
            document = Document("", f"text {number}", broken=error.reason)
        if not options.target or document.target is not None or document.broken:
            yield document
        elif options.target == options.field:
            yield add_own_target(document, options)
        elif options.skip_broken:
            yield Document("", document.name, broken=NO_TARGET)
        else:
            advice = "" if options.target == OF_PAIRS else f", or mappings with a string under {options.target!r}"
            raise BrokenDocumentError(
                NO_TARGET, f"document {number} has no target: give pairs (source, target){advice}"
            )


def _convert(text: Any, number: int, options: ReadOptions) -> Document:
    field = options.field
    if isinstance(text, Document):
        return text
    if isinstance(text, tuple):
        return _convert_pair(text, number, options)
    value = text.get(field) if isinstance(text, Mapping) else text
    if isinstance(value, str):
        fields = text if isinstance(text, Mapping) else {}
        target = fields.get(options.target) if options.target else None
        relations = fields.get(RELATIONS) if options.relations and RELATIONS not in options.fields else None
        target = target if isinstance(target, str) else None
        return Document(value, f"text {number}", target=target, relations=relations)
    try:
        picture = None if isinstance(text, Mapping) else as_picture(text)
    except CorpusError as error:
        raise CorpusError(f"document {number}: {error}") from None
    if picture is None:
        raise CorpusError(
            f"document {number} is {type(text).__name__}: give strings, or mappings with a string under {field!r}; "
            "or images of PIL, or arrays (height, width, 3) of bytes"
        )
    return Document.from_image(picture, f"image {number}")


def _convert_pair(pair: tuple[Any, ...], number: int, options: ReadOptions) -> Document:
    if len(pair) != 2 or not all(isinstance(text, str) for text in pair):
        types = ", ".join(type(value).__name__ for value in pair[:4])
        raise CorpusError(f"document {number} is a tuple of ({types}): give pairs of two strings, (source, target)")
    if not options.target:
        raise CorpusError(
            f"document {number} is a pair (source, target), and the first document is none, or they are an iterator: "
            "give a list of pairs, or say target='target'"
        )
    return Document(pair[0], f"text {number}", target=pair[1])


class _Listing:
    """Collect the sources of a corpus in the order in which they are named, each file once."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.sources: list[Source] = []
        self._names: dict[str, str] = {}
        """the first name of each file, by its identity"""
        self._repeated: dict[str, None] = {}
        self._real_folders: dict[str, str] = {}
        self._result_folders: list[str] = []
        self._plain_texts: list[str] = []
        """the first local .txt files"""

    def add(self, source: str) -> None:
        """Add the files or the stream to which a source refers."""
        if is_stream(source):
            self._add_item(source, source, None)
            return
        kind, files = list_files(source, self._result_folders)
        if kind == "pattern" and not files:
            raise CorpusError(f"{source}: no file matches this pattern")
        for path, stamp in files if kind != "folder" else _choose_files(source, files, self.options):
            local = path if not is_url(path) else get_local_path(path)
            if local:
                identity = identify_file(local, self._real_folders)
            else:
                identity = identify_url(path) if kind == "file" else path
            self._add_item(path, identity, stamp)

    def _add_item(self, item: str, identity: str, stamp: Stamp | None) -> None:
        if identity in self._names:
            self._repeated[self._names[identity]] = None
            return
        self._names[identity] = item
        is_local = stamp is not None and not is_url(item)
        if is_local and len(self._plain_texts) < MAX_INSPECTED and item.lower().removesuffix(".gz").endswith(".txt"):
            self._plain_texts.append(item)
        self.sources.append(_make_source(item, stamp, self.options))

    @property
    def notes(self) -> tuple[str, ...]:
        """Messages for the user before the corpus is read."""
        notes = []
        if self._result_folders:
            count = len(self._result_folders)
            rest = f" and {count - 1:,} more folders hold" if count > 1 else " holds"
            notes.append(f"{self._result_folders[0]}{rest} results of headscope, which are left out")
        notes += filter(None, map(self._describe_lines, self._plain_texts))
        if self._repeated:
            first, count = next(iter(self._repeated)), len(self._repeated)
            if count == 1:
                notes.append(f"{first} is given more than once: it is read once")
            else:
                notes.append(f"{count:,} files are given more than once (the first: {first}): each is read once")
        return tuple(notes)

    def _describe_lines(self, path: str) -> str | None:
        format = suggest_format(path, self.options.encoding) if self.options.format == "auto" else None
        if format is None:
            return None
        unit = "a JSON object" if format == "jsonl" else "a text of its own"
        return (
            f"{path}: every line looks like {unit}, and the file is read as one document: "
            f"--format {format} reads it line by line (--format text: no such note)"
        )


def _choose_files(folder: str, files: FileListing, options: ReadOptions) -> FileListing:
    """Return the files in a folder that are documents."""
    formats = [detect_format(path) for path, _ in files]
    images = [file for file, format in zip(files, formats, strict=True) if format == "image"]
    texts = [file for file, format in zip(files, formats, strict=True) if format not in (None, "image")]
    # Texts often have images beside them that are not documents, so images are read only if there are no texts.
    chosen = images if options.format == "image" else texts or (images if options.format == "auto" else [])
    if not chosen and os.path.isfile(os.path.join(folder, "study.nc")):
        raise CorpusError(f"{folder}: holds a study, not texts: `headscope findings {folder}` shows it")
    if not chosen:
        raise CorpusError(
            f"{folder}: no file in this folder has an ending headscope reads "
            f"(.txt .md .jsonl .csv .tsv .parquet .conllu, also .gz; or {' '.join(ENDINGS)})"
        )
    return chosen


def _make_source(item: str, stamp: Stamp | None, options: ReadOptions) -> Source:
    read = partial(read_file, item, options)
    if is_stream(item):
        return Source(item, read, is_single_document=item.startswith("example:"))
    format = choose_format(item, options)
    is_splittable = stamp is not None and can_split(item, format, options)
    # Pipes have neither a stamp nor a path from which to query one.
    return Source(
        name=item,
        read=read,
        path=item if stamp is not None or is_url(item) else "",
        is_single_document=format in ("text", "image"),
        is_splittable=is_splittable,
        stamp=stamp,
        has_row_groups=is_splittable and format == "parquet",
    )


def _has_fields(item: str, options: ReadOptions) -> bool:
    """Return whether the documents of a source may be in a field of a row."""
    if is_stream(item):
        return item.startswith("hf:") or (item == "-" and options.format not in ("text", "lines"))
    return choose_format(item, options) in ("jsonl", "csv", "parquet")


def _is_rereadable(source: Source) -> bool:
    """Return whether a source can be read twice: not pipes such as `<(zcat …)`, nor hub datasets (a new download)."""
    return bool(source.path) or (source.name.startswith("example:") and source.is_single_document)


def _is_anywhere(source: Source) -> bool:
    """Return whether other processes can read a source: not pipes."""
    return _is_rereadable(source) or (source.name.startswith("hf:") and is_stream(source.name))


def _check_encoding(encoding: str) -> str:
    try:
        " ".encode(encoding)
    except (LookupError, ValueError):
        raise CorpusError(f"unknown encoding {encoding!r}; for instance utf-8, latin-1, cp1252, utf-16") from None
    return encoding
