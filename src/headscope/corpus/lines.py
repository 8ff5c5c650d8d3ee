"""Files in lines: split while they are read, and recognized where each line is a document.

Decode and split files piece by piece: memory holds one document, whatever the size of the (uncompressed) file.

Recognize plain text files that hold one document per line, though they are read as one document each.

The rule is conservative: a note about a file that is one document is worse than no note about one that is not.
"""

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
    BrokenDocumentError,
    Document,
    ReadOptions,
    build_document,
    make_size_error,
)
from headscope.corpus.storage import get_stamp, is_url, open_file
from headscope.errors import CorpusError

PIECE = 2**16
"""bytes that are decompressed and decoded at once"""
REMOTE_PIECE = 2**22
"""bytes per request to a remote file of which a part is read: each request has the latency of the network"""
TAIL = 2**9
"""bytes of the first read that completes the last line of a part"""
RECOUNTED = 2**30
"""largest remote file, in bytes, in which lines are counted for an error message"""
BOM = "\ufeff"
OPENINGS = (
    ("\udcff\udcfe", "it begins like UTF-16: say --encoding utf-16"),
    ("\udcfe\udcff", "it begins like UTF-16: say --encoding utf-16"),
    ("\x1f\udc8b", "it is compressed with gzip: give it a name that ends in .gz"),
    ("%PDF-", "it is a PDF: extract its text first"),
    ("PK\x03\x04", "it is an archive (.zip, .docx, …): extract its text first"),
    ("\udc89HDF", "it is an HDF5 or netCDF file, such as a saved study or reading, not a text"),
)
"""how files that are no text in the encoding begin, and what to do"""
_LONE_SURROGATE = re.compile("[\udc00-\udcff]")
_LINE_BYTES = re.compile(r"utf-8|ascii|iso8859-.*|cp125.*|koi8-.*")
_PART_NAME = re.compile(r"(?P<path>.+?):byte (?P<start>\d+), line (?P<line>\d+)", re.DOTALL)


class Readable(Protocol):
    """Binary stream from which lines are read."""

    def read(self, size: int, /) -> bytes: ...


def _replace_byte(error: UnicodeError) -> tuple[str, int]:
    """Replace an undecodable byte by a lone surrogate that encodes the byte."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return chr(0xDC00 + error.object[error.start]), error.end


codecs.register_error("headscope-marked", _replace_byte)


def has_line_bytes(encoding: str) -> bool:
    r"""Return whether, in an encoding, lines end exactly at the bytes `\n`.

    >>> has_line_bytes("UTF8"), has_line_bytes("latin-1"), has_line_bytes("utf-16"), has_line_bytes("utf-8-sig")
    (True, True, False, False)
    """
    return _LINE_BYTES.fullmatch(codecs.lookup(encoding).name) is not None


@contextmanager
def open_lines(path: str, start: int = 0, stop: int | None = None) -> Iterator[Readable]:
    """Open a file, or those of its lines whose first byte is in `start`..`stop`-1."""
    if not start and stop is None:
        with open_file(path) as stream:
            yield stream
    else:
        with open_file(path, read_ahead=False) as stream:
            yield LineRange(stream, start, stop, REMOTE_PIECE if is_url(path) else PIECE)


class LineRange:
    """The lines of a file whose first byte is in `start`..`stop`-1, as a stream.

    Reads only this range, the byte before it, and the rest of its last line.
    """

    def __init__(self, stream: BinaryIO, start: int, stop: int | None, piece_size: int = PIECE) -> None:
        self._pieces = _read_range(stream, start, stop, piece_size)

    def read(self, _size: int, /) -> bytes:
        """Return the next bytes, of any number; none at the end."""
        return next(self._pieces, b"")


def _read_range(stream: BinaryIO, start: int, stop: int | None, piece_size: int) -> Iterator[bytes]:
    position = max(0, start - 1)
    stream.seek(position)
    inside, ends_line = start == 0, True
    while stop is None or position < stop:
        raw = stream.read(piece_size if stop is None else min(piece_size, stop - position))
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
    """Replace `PATH:byte START, line K` at the beginning of an error message by `PATH:LINE`.

    Lines are counted in local files, and in remote files up to 1 GiB; otherwise the message is unchanged.
    """
    match = _PART_NAME.match(message)
    if match is None:
        return message
    path, start = match["path"], int(match["start"])
    try:
        stamp = get_stamp(path)
        if stamp is None or (is_url(path) and stamp.size > RECOUNTED):  # reading a pipe could block
            return message
        newlines, last = 0, b""
        with open_file(path) as stream:
            while start and (raw := stream.read(min(start, 2**20))):
                newlines, last, start = newlines + raw.count(b"\n"), raw[-1:], start - len(raw)
    except Exception:  # whatever fails here, keep the original message
        return message
    # A line that begins before the part belongs to the previous part.
    line = newlines + (last != b"\n") + int(match["line"])
    return f"{path}:{line}{message[match.end() :]}"


def get_line_prefix(path: str, start: int = 0) -> str:
    """Return the prefix of document names before the line number, for a file or a part of a file."""
    return f"{path}:byte {start}, line " if start else f"{path}:"


def read_whole(stream: Readable, name: str, options: ReadOptions) -> Document:
    """Read a stream as one document."""
    return build_document(name, options, lambda: _read_all(stream, name, options))


def read_line_documents(
    stream: Readable, prefix: str, options: ReadOptions, *, from_start: bool = True
) -> Iterator[Document]:
    """Yield one document per line."""
    lines = split_lines(stream, prefix, options, from_start=from_start)
    for number, line in enumerate(lines, start=1):
        yield build_document(f"{prefix}{number}", options, partial(_strip_end, line))


def split_lines(
    stream: Readable, prefix: str, options: ReadOptions, *, from_start: bool = True
) -> Iterator[str | BrokenDocumentError]:
    """Yield the lines of a stream with their ends, or the error of a line that cannot be read.

    `prefix` precedes line numbers in messages. `from_start`: the stream is the beginning of the file, where a byte
    order mark is possible.
    """
    number, parts, size = 1, list[str](), 0

    def join_parts(last: str) -> str | BrokenDocumentError:
        where, is_first = f"{prefix}{number}", from_start and number == 1
        return _join_line(parts, size, last, where, options, is_first=is_first)

    for text in _decode_pieces(stream, f"{prefix}1", options):
        start, is_plain = 0, text.isascii() and "\0" not in text
        while (end := text.find("\n", start)) >= 0:
            part = text[start : end + 1]
            is_complete = is_plain and not size and len(part) <= LARGEST
            yield part if is_complete else join_parts(part)
            number, parts, size, start = number + 1, [], 0, end + 1
        size += len(text) - start
        if size > LARGEST and not options.skip_broken:
            break
        if size > LARGEST:
            parts = []  # of such a line, only its end is searched
        elif start < len(text):
            parts.append(text[start:])
    if size:
        yield join_parts("")


def _strip_end(line: str | BrokenDocumentError) -> str:
    if isinstance(line, BrokenDocumentError):
        raise line
    return line.removesuffix("\n").removesuffix("\r")


def _join_line(
    parts: list[str], size: int, last: str, where: str, options: ReadOptions, *, is_first: bool
) -> str | BrokenDocumentError:
    if size + len(last.removesuffix("\n")) > LARGEST:
        return make_size_error(where, "this line", "is it one document a line? Cut it into documents")
    try:
        return _check_text("".join([*parts, last]) if parts else last, where, options, is_first=is_first)
    except BrokenDocumentError as error:
        return error


def _read_all(stream: Readable, name: str, options: ReadOptions) -> str:
    parts, size = [], 0
    for text in _decode_pieces(stream, name, options):
        parts.append(text)
        size += len(text)
        if size > LARGEST:
            advice = "one document a line? Say so with --format lines or jsonl; else cut it into documents"
            raise make_size_error(name, "this file", advice)
    return _check_text("".join(parts), name, options, is_first=True)


def _decode_pieces(stream: Readable, where: str, options: ReadOptions) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder(options.encoding)(errors="headscope-marked")
    read = getattr(stream, "read1", stream.read)  # returns available bytes: waiting for more from a pipe may take long
    while True:
        raw = read(PIECE)
        try:
            text = decoder.decode(raw, final=not raw)
        except UnicodeError as error:  # raised for the stream: UTF-16 without a byte order mark
            raise CorpusError(_explain_encoding(where, str(error), options)) from None
        if text:
            yield text
        if not raw:
            return


def _check_text(text: str, where: str, options: ReadOptions, *, is_first: bool) -> str:
    if not text.isascii() and (match := _LONE_SURROGATE.search(text)):
        raise _make_encoding_error(text, match, where, options, is_first=is_first)
    if "\0" in text:
        raise BrokenDocumentError(
            NULS,
            f"{where}: holds NUL bytes: a binary file, or text in another encoding (say so with --encoding utf-16)",
        )
    return text.removeprefix(BOM) if is_first else text


def _make_encoding_error(
    text: str, match: re.Match[str], where: str, options: ReadOptions, *, is_first: bool
) -> BrokenDocumentError:
    position = len(text[: match.start()].encode(options.encoding, "replace"))
    position -= (
        0 if is_first else len("".encode(options.encoding))
    )  # the byte order mark, only at the beginning of a file
    byte = ord(match[0]) - 0xDC00
    advice = next((advice for start, advice in OPENINGS if is_first and text.startswith(start)), "")
    if advice:
        return BrokenDocumentError(BAD_ENCODING, f"{where}: not {options.encoding} text: {advice}")
    return BrokenDocumentError(
        BAD_ENCODING, _explain_encoding(where, f"byte {byte:#04x} at position {position}", options)
    )


def _explain_encoding(where: str, reason: str, options: ReadOptions) -> str:
    return (
        f"{where}: not {options.encoding} text ({reason}): "
        "a binary file, or text in another encoding (say so with --encoding, for instance latin-1 or utf-16)"
    )


OPENING = 2**16
"""bytes of a file that are looked at"""
MIN_LINES = 10
MIN_CHARACTERS = 50
"""characters of a line that can be a document"""
SHARE = 0.8
"""share of the lines that must be like documents"""
_SENTENCE_END = re.compile(r"""[.!?…。！？]["'”’»)\]]*$""")
_MARKUP = re.compile(r"([#>|*+-]|\d+[.)]\s|```|//|/\*|<|\S*,\S)")
"""how lines of Markdown, code, tables, and CSV begin"""


def suggest_format(path: str, encoding: str) -> str | None:
    """Return `lines` or `jsonl` if the beginning of a text file looks as if each line were a document, else None."""
    try:
        with open_file(path) as stream:
            raw = stream.read(OPENING)
        text = raw.decode(encoding, "ignore")
    except Exception:  # reading the documents will report the error
        return None
    lines = text.removeprefix("\ufeff").rstrip().split("\n")
    return choose_line_format(lines[:-1] if len(raw) == OPENING else lines)


def choose_line_format(lines: list[str]) -> str | None:
    """Return `lines` if most lines are whole sentences or paragraphs, `jsonl` if all are JSON objects, else None.

    >>> choose_line_format(["Two ravens met above the old tower, and one of them spoke."] * 10)
    'lines'
    >>> choose_line_format(["Two ravens met above the old tower, and", "one of them spoke."] * 10)
    """
    stripped = [line.strip() for line in lines]
    if len(stripped) < 2 or not all(stripped):
        return None
    if all(line.startswith("{") and line.endswith("}") and '"' in line for line in stripped):
        return "jsonl"
    count = sum(map(_is_like_document, stripped))
    return "lines" if len(stripped) >= MIN_LINES and count >= SHARE * len(stripped) else None


def _is_like_document(line: str) -> bool:
    return (
        len(line) >= MIN_CHARACTERS
        and "\t" not in line
        and _SENTENCE_END.search(line) is not None
        and _MARKUP.match(line) is None
    )
