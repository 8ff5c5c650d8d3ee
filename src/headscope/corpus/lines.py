"""Bytes to text, piece by piece: memory holds one document, however large its file is or unpacks to."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from typing import BinaryIO

from headscope.corpus.document import BAD_ENCODING, LARGEST, NULS, Broken, Document, ReadOptions, made, too_large
from headscope.errors import CorpusError

PIECE = 2**16
"""bytes that are unpacked and decoded at once"""
BOM = "\ufeff"
_LONE = re.compile("[\udc00-\udcff]")


def _marked(error: UnicodeError) -> tuple[str, int]:
    """A byte that is no text becomes half a surrogate pair, which is no text either and says which byte it was."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return chr(0xDC00 + error.object[error.start]), error.end


codecs.register_error("headscope-marked", _marked)


def whole(stream: BinaryIO, name: str, options: ReadOptions) -> Document:
    """All of a stream as one text."""
    return made(name, options, lambda: _whole(stream, name, options))


def lines(stream: BinaryIO, name: str, options: ReadOptions) -> Iterator[Document]:
    """One document a line."""
    for number, line in enumerate(text_lines(stream, name, options), start=1):
        yield made(f"{name}:{number}", options, lambda line=line: _held(line).removesuffix("\n").removesuffix("\r"))  # type: ignore[misc]


def text_lines(stream: BinaryIO, name: str, options: ReadOptions) -> Iterator[str | Broken]:
    """A file's lines with their ends, or why one cannot be read."""
    number, parts, size = 1, list[str](), 0
    for text in _pieces(stream, f"{name}:1", options):
        start, plain = 0, text.isascii() and "\0" not in text
        while (end := text.find("\n", start)) >= 0:
            part = text[start : end + 1]
            whole = plain and not size and len(part) <= LARGEST
            yield part if whole else _line(parts, size, part, name, number, options)
            number, parts, size, start = number + 1, [], 0, end + 1
        size += len(text) - start
        if size > LARGEST and not options.skip_broken:
            break
        if size > LARGEST:
            parts = []  # the rest of such a line is only looked through for its end
        elif start < len(text):
            parts.append(text[start:])
    if size:
        yield _line(parts, size, "", name, number, options)


def _held(line: str | Broken) -> str:
    if isinstance(line, Broken):
        raise line
    return line


def _line(parts: list[str], size: int, last: str, name: str, number: int, options: ReadOptions) -> str | Broken:
    where = f"{name}:{number}"
    if size + len(last.removesuffix("\n")) > LARGEST:
        return too_large(where, "this line", "is it one document a line? Cut it into documents")
    try:
        return _checked("".join([*parts, last]) if parts else last, where, options, first=number == 1)
    except Broken as error:
        return error


def _whole(stream: BinaryIO, name: str, options: ReadOptions) -> str:
    parts, size = [], 0
    for text in _pieces(stream, name, options):
        parts.append(text)
        size += len(text)
        if size > LARGEST:
            advice = "one document a line? Say so with --format lines or jsonl; else cut it into documents"
            raise too_large(name, "this file", advice)
    return _checked("".join(parts), name, options, first=True)


def _pieces(stream: BinaryIO, where: str, options: ReadOptions) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder(options.encoding)(errors="headscope-marked")
    read = getattr(stream, "read1", stream.read)  # what is there: a pipe's next bytes may take long
    while True:
        raw = read(PIECE)
        try:
            text = decoder.decode(raw, final=not raw)
        except UnicodeError as error:  # of the whole: UTF-16 that does not say in which order its bytes are
            raise CorpusError(_not_text(where, str(error), options)) from None
        if text:
            yield text
        if not raw:
            return


def _checked(text: str, where: str, options: ReadOptions, *, first: bool) -> str:
    if not text.isascii() and (lone := _LONE.search(text)):
        raise _badly_encoded(text, lone, where, options, first=first)
    if "\0" in text:
        raise Broken(
            NULS,
            f"{where}: holds NUL bytes: a binary file, or text in another encoding (say so with --encoding utf-16)",
        )
    return text.removeprefix(BOM) if first else text


def _badly_encoded(text: str, lone: re.Match[str], where: str, options: ReadOptions, *, first: bool) -> Broken:
    before = len(text[: lone.start()].encode(options.encoding, "replace"))
    before -= 0 if first else len("".encode(options.encoding))  # the mark that only a file's beginning has
    byte = ord(lone[0]) - 0xDC00
    return Broken(BAD_ENCODING, _not_text(where, f"byte {byte:#04x} at position {before}", options))


def _not_text(where: str, what: str, options: ReadOptions) -> str:
    return (
        f"{where}: not {options.encoding} text ({what}): "
        "a binary file, or text in another encoding (say so with --encoding, for instance latin-1 or utf-16)"
    )
