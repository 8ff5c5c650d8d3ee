"""Bytes to text, piece by piece: memory holds one document, however large its file is or unpacks to."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import BinaryIO, Protocol

from headscope.corpus.document import (
    BAD_ENCODING,
    LARGEST,
    NULS,
    Broken,
    Document,
    ReadOptions,
    build_document,
    make_size_error,
)
from headscope.corpus.storage import get_stamp, is_url, open_file
from headscope.errors import CorpusError

PIECE = 2**16
"""bytes that are unpacked and decoded at once"""
REMOTE_PIECE = 2**22
"""bytes of a part of a remote file that are asked for at once: each time takes as long as the network needs"""
TAIL = 2**9
"""bytes after a part that are read at first to complete its last line"""
RECOUNTED = 2**30
"""bytes of a remote file, at most, in which lines are counted for an error message"""
BOM = "\ufeff"
_LONE = re.compile("[\udc00-\udcff]")
_LINE_BYTES = re.compile(r"utf-8|ascii|iso8859-.*|cp125.*|koi8-.*")
_PART_NAME = re.compile(r"(?P<path>.+?):byte (?P<start>\d+), line (?P<line>\d+)", re.DOTALL)


class Readable(Protocol):
    """What lines are read from."""

    def read(self, size: int, /) -> bytes: ...


def _mark(error: UnicodeError) -> tuple[str, int]:
    """A byte that is no text becomes half a surrogate pair, which is no text either and says which byte it was."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return chr(0xDC00 + error.object[error.start]), error.end


codecs.register_error("headscope-marked", _mark)


def has_line_bytes(encoding: str) -> bool:
    r"""Return whether a line ends in an encoding where the byte `\n` stands, and nowhere else.

    >>> has_line_bytes("UTF8"), has_line_bytes("latin-1"), has_line_bytes("utf-16"), has_line_bytes("utf-8-sig")
    (True, True, False, False)
    """
    return _LINE_BYTES.fullmatch(codecs.lookup(encoding).name) is not None


@contextmanager
def open_lines(path: str, start: int = 0, stop: int | None = None) -> Iterator[Readable]:
    """Open a file of lines, or those of its lines whose first byte lies in `start`..`stop`-1."""
    if not start and stop is None:
        with open_file(path) as stream:
            yield stream
    else:
        with open_file(path, read_ahead=False) as stream:
            yield LineRange(stream, start, stop, REMOTE_PIECE if is_url(path) else PIECE)


class LineRange:
    """The lines of a file whose first byte lies in `start`..`stop`-1, as a stream.

    No more is read than this range, the byte before it, and what completes its last line.
    """

    def __init__(self, stream: BinaryIO, start: int, stop: int | None, most: int = PIECE) -> None:
        self._pieces = _read_range(stream, start, stop, most)

    def read(self, _size: int, /) -> bytes:
        """Return the next bytes, as many as come at once; none at the end."""
        return next(self._pieces, b"")


def _read_range(stream: BinaryIO, start: int, stop: int | None, most: int) -> Iterator[bytes]:
    position = max(0, start - 1)
    stream.seek(position)
    inside, ends_line = start == 0, True
    while stop is None or position < stop:
        raw = stream.read(most if stop is None else min(most, stop - position))
        if not raw:
            return
        position, ends_line = position + len(raw), raw.endswith(b"\n")
        if not inside:  # in a line that begins before the range
            end = raw.find(b"\n")
            raw, inside = (raw[end + 1 :], True) if end >= 0 else (b"", False)
        if raw:
            yield raw
    if ends_line or not inside:
        return
    size = TAIL
    while raw := stream.read(size):
        end = raw.find(b"\n")
        yield raw if end < 0 else raw[: end + 1]
        if end >= 0:
            return
        size = min(2 * size, PIECE)


def resolve_line_numbers(message: str) -> str:
    """Say in an error message `PATH:LINE` for `PATH:byte START, line K`, if the message begins so.

    Lines are counted in local files, and in remote ones up to 1 GiB; else the message stays as it is.
    """
    match = _PART_NAME.match(message)
    if match is None:
        return message
    path, start = match["path"], int(match["start"])
    try:
        stamp = get_stamp(path)
        if stamp is None or (is_url(path) and stamp.size > RECOUNTED):  # a pipe would be waited for
            return message
        newlines, last = 0, b""
        with open_file(path) as stream:
            while start and (raw := stream.read(min(start, 2**20))):
                newlines, last, start = newlines + raw.count(b"\n"), raw[-1:], start - len(raw)
    except Exception:  # whatever it is, the message that there is must not be lost
        return message
    # The line in which a part begins belongs to the part before, if it begins there.
    line = newlines + (last != b"\n") + int(match["line"])
    return f"{path}:{line}{message[match.end() :]}"


def get_line_prefix(path: str, start: int = 0) -> str:
    """Return what stands before the number of a line, in a file or in a part of one, in the name of a document."""
    return f"{path}:byte {start}, line " if start else f"{path}:"


def read_whole(stream: Readable, name: str, options: ReadOptions) -> Document:
    """Read all of a stream as one text."""
    return build_document(name, options, lambda: _read_all(stream, name, options))


def read_line_documents(
    stream: Readable, prefix: str, options: ReadOptions, *, from_start: bool = True
) -> Iterator[Document]:
    """Read one document a line."""
    lines = split_lines(stream, prefix, options, from_start=from_start)
    for number, line in enumerate(lines, start=1):
        yield build_document(f"{prefix}{number}", options, partial(_strip_end, line))


def split_lines(
    stream: Readable, prefix: str, options: ReadOptions, *, from_start: bool = True
) -> Iterator[str | Broken]:
    """Give a file's lines with their ends, or why one cannot be read.

    `prefix` stands before the number of a line in messages. `from_start`: it is the beginning of the file, where a byte
    order mark may stand.
    """
    number, parts, size = 1, list[str](), 0

    def join_line(last: str) -> str | Broken:
        where, is_first = f"{prefix}{number}", from_start and number == 1
        return _join_line(parts, size, last, where, options, is_first=is_first)

    for text in _decode_pieces(stream, f"{prefix}1", options):
        start, plain = 0, text.isascii() and "\0" not in text
        while (end := text.find("\n", start)) >= 0:
            part = text[start : end + 1]
            whole = plain and not size and len(part) <= LARGEST
            yield part if whole else join_line(part)
            number, parts, size, start = number + 1, [], 0, end + 1
        size += len(text) - start
        if size > LARGEST and not options.skip_broken:
            break
        if size > LARGEST:
            parts = []  # the rest of such a line is only looked through for its end
        elif start < len(text):
            parts.append(text[start:])
    if size:
        yield join_line("")


def _strip_end(line: str | Broken) -> str:
    if isinstance(line, Broken):
        raise line
    return line.removesuffix("\n").removesuffix("\r")


def _join_line(
    parts: list[str], size: int, last: str, where: str, options: ReadOptions, *, is_first: bool
) -> str | Broken:
    if size + len(last.removesuffix("\n")) > LARGEST:
        return make_size_error(where, "this line", "is it one document a line? Cut it into documents")
    try:
        return _check("".join([*parts, last]) if parts else last, where, options, is_first=is_first)
    except Broken as error:
        return error


def _read_all(stream: Readable, name: str, options: ReadOptions) -> str:
    parts, size = [], 0
    for text in _decode_pieces(stream, name, options):
        parts.append(text)
        size += len(text)
        if size > LARGEST:
            advice = "one document a line? Say so with --format lines or jsonl; else cut it into documents"
            raise make_size_error(name, "this file", advice)
    return _check("".join(parts), name, options, is_first=True)


def _decode_pieces(stream: Readable, where: str, options: ReadOptions) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder(options.encoding)(errors="headscope-marked")
    read = getattr(stream, "read1", stream.read)  # what is there: a pipe's next bytes may take long
    while True:
        raw = read(PIECE)
        try:
            text = decoder.decode(raw, final=not raw)
        except UnicodeError as error:  # of the whole: UTF-16 that does not say in which order its bytes are
            raise CorpusError(_explain_encoding(where, str(error), options)) from None
        if text:
            yield text
        if not raw:
            return


def _check(text: str, where: str, options: ReadOptions, *, is_first: bool) -> str:
    if not text.isascii() and (lone := _LONE.search(text)):
        raise _make_encoding_error(text, lone, where, options, is_first=is_first)
    if "\0" in text:
        raise Broken(
            NULS,
            f"{where}: holds NUL bytes: a binary file, or text in another encoding (say so with --encoding utf-16)",
        )
    return text.removeprefix(BOM) if is_first else text


def _make_encoding_error(text: str, lone: re.Match[str], where: str, options: ReadOptions, *, is_first: bool) -> Broken:
    before = len(text[: lone.start()].encode(options.encoding, "replace"))
    before -= 0 if is_first else len("".encode(options.encoding))  # the mark that only a file's beginning has
    byte = ord(lone[0]) - 0xDC00
    return Broken(BAD_ENCODING, _explain_encoding(where, f"byte {byte:#04x} at position {before}", options))


def _explain_encoding(where: str, what: str, options: ReadOptions) -> str:
    return (
        f"{where}: not {options.encoding} text ({what}): "
        "a binary file, or text in another encoding (say so with --encoding, for instance latin-1 or utf-16)"
    )
