"""Where files lie: local paths and, through fsspec, any `scheme://…` whose driver is installed."""

from __future__ import annotations

import glob
import gzip
import io
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Literal, TypeAlias, TypeVar, cast

from headscope.errors import CorpusError, StorageError

PERMANENT = FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, ValueError
"""errors of storage that another try does not mend"""
RESULT = "study.nc"
"""Folders with a file of this name hold results of headscope, which are no texts."""
UNREADABLE = "lost+found"
"""folder at the root of a file system that its users may not read"""
SHOWN = 200
"""characters of a source that an error message repeats"""
PIECE = 2**18
"""bytes of a remote file that are asked for at once"""
VERSIONS = (
    *("ETag", "etag", "blob_id", "mtime", "LastModified", "Last-Modified", "last_modified", "updated", "modified"),
    "created",
)
"""where drivers say which version of a file this is, or when it last changed; the first that is there counts. What
object stores list under these names is what they say of a single file as well."""
DESCRIPTOR = re.compile(r"/dev/(stdin|fd/\d+)|/proc/(self|\d+)/fd/\d+")
"""names of what a process has open, such as `<(zcat …)` gives; another process has other files under them"""

Kind = Literal["file", "folder", "pattern"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stamp:
    """The size and version of a file, which tell whether it is still the same."""

    size: int
    """in bytes"""
    version: str
    """of a local file, the nanosecond of its last change; of a remote one, the name of the field in which its driver
    gives a version, and that version; empty where it gives none"""

    @property
    def kind(self) -> str:
        """The field that the version is from. Versions from different fields cannot be compared."""
        return self.version.partition(" ")[0] if " " in self.version else ""


Listed: TypeAlias = list[tuple[str, Stamp | None]]


def is_url(source: str) -> bool:
    """Return whether a source is a place that fsspec knows, and not a local path.

    >>> is_url("s3://bucket/a.jsonl"), is_url("hf:wikimedia/wikipedia"), is_url("C:/texts")
    (True, False, False)
    """
    return re.match(r"[a-zA-Z][a-zA-Z0-9+.-]+(::[a-z0-9]+)*://", source) is not None


def strip_query(path: str) -> str:
    """Return a path in small letters without what a web address says after its name, to look for endings in.

    >>> strip_query("https://example.org/A.jsonl.gz?download=1")
    'https://example.org/a.jsonl.gz'
    """
    if re.match(r"https?:/", path):
        path = re.split(r"[?#]", path, maxsplit=1)[0]
    elif re.match(r"[a-zA-Z][a-zA-Z0-9+.-]+:/", path):  # `zip://a.jsonl::https://…` is a file in another
        path = path.partition("::")[0]
    return path.lower()


def list_files(source: str, left_out: list[str] | None = None) -> tuple[Kind, Listed]:
    """List the files a source stands for, sorted, with the stamps that one look at their folders gives.

    These are the file itself, those in the folder, or those that match a pattern. Hidden files and folders with results
    of headscope are left out; the latter are added to `left_out`. A stamp is None where the size is not known.
    """
    excluded: list[str] = [] if left_out is None else left_out
    return _list_remote(source, excluded) if is_url(source) else _list_local(source, excluded)


def get_stamp(path: str) -> Stamp | None:
    """Ask for the stamp of a file; None where there is nothing to ask (pipes, standard input, hub datasets)."""
    if is_url(path):
        return _ask(path, _get_remote_stamp)
    if path == "-" or path.startswith(("hf:", "example:")):
        return None
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    return _get_local_stamp(path, status)


def identify_file(path: str, real_folders: dict[str, str]) -> str:
    """Return what is the same for all names of a local file. `real_folders` keeps what is known of folders."""
    folder, name = os.path.split(path)
    try:
        status = os.stat(path)
        if status.st_nlink > 1 and status.st_ino:  # hard links
            return f"{status.st_dev}:{status.st_ino}"
        if os.path.islink(path):
            return os.path.realpath(path)
        if folder not in real_folders:
            real_folders[folder] = os.path.realpath(folder)
    except (OSError, ValueError):
        return path
    return os.path.join(real_folders[folder], name)


def get_local_path(url: str) -> str:
    """Return the path of a file on this machine that is given as a URL; empty for any other URL.

    >>> get_local_path("file:///texts/../a.jsonl"), get_local_path("s3://bucket/a.jsonl")
    ('/a.jsonl', '')
    """
    if not url.startswith(("file://", "local://")) or "::" in url:
        return ""
    from fsspec.implementations.local import LocalFileSystem

    return os.path.normpath(str(LocalFileSystem._strip_protocol(url)))


def identify_url(url: str) -> str:
    """Return a URL as listings spell it."""
    return _ask(url, lambda system, place: _name_remote(url, system, place))


@contextmanager
def open_file(path: str, *, read_ahead: bool = True) -> Iterator[BinaryIO]:
    """Open a file's bytes as a stream, a `.gz` unpacked on the way.

    Without `read_ahead` the stream seeks, and no more bytes are fetched than are asked for.
    """
    try:
        with _open_stream(path, read_ahead) as raw:
            if not strip_query(path).endswith(".gz"):
                yield raw
                return
            if isinstance(raw, io.BufferedReader) and not raw.peek(1):
                raise EOFError("it is empty")
            with gzip.GzipFile(fileobj=raw, mode="rb") as unpacked:
                yield cast(BinaryIO, unpacked)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise CorpusError(f"{path}: a damaged .gz file: {error}") from None
    except OSError as error:
        raise _unreadable(path, error) from None


def can_read_parts(path: str) -> bool:
    """Return whether a file gives bytes from its middle, which not every web server does."""
    if not path.startswith(("http:", "https:")):
        return True
    try:
        with open_file(path, read_ahead=False) as stream:
            stream.seek(1)
            return len(stream.read(1)) == 1
    except CorpusError:
        return False


def _open_stream(path: str, read_ahead: bool) -> BinaryIO:
    if is_url(path):
        guarded = _ask(path, lambda system, place: _Guarded(path, system, _open_remote(system, place, read_ahead)))
        return cast(BinaryIO, io.BufferedReader(guarded, PIECE) if read_ahead else guarded)
    try:
        return open(path, "rb") if read_ahead else cast(BinaryIO, open(path, "rb", buffering=0))
    except ValueError as error:  # a name with NUL in it
        raise _unreadable(path, error) from None


def _open_remote(system: Any, place: str, read_ahead: bool) -> Any:
    if read_ahead:
        return system.open(place, "rb")
    try:
        return system.open(place, "rb", cache_type="none")
    except TypeError:  # a driver without caches
        return system.open(place, "rb")


class _Guarded(io.RawIOBase):
    """A remote file whose driver's errors, of many kinds, are raised as ours."""

    def __init__(self, path: str, system: Any, there: Any) -> None:
        self.path, self.there = path, there
        self.system = system  # that of an archive closes it when nobody holds it any more

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self.there.seekable())

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._ask(lambda: self.there.seek(offset, whence)))

    def tell(self) -> int:
        return int(self._ask(self.there.tell))

    def readinto(self, buffer: Any) -> int:
        piece: bytes = self._ask(lambda: self.there.read(len(buffer)))
        buffer[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        if not self.closed:
            with suppress(Exception):  # what was read is read
                self.there.close()
        super().close()

    def _ask(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except Exception as error:
            raise _unreadable(self.path, error) from None


# Local files


def _list_local(source: str, left_out: list[str]) -> tuple[Kind, Listed]:
    try:
        # An empty name would be the current folder, one of a text's length is more than a file system takes.
        status = os.stat(source) if source else None
    except (OSError, ValueError):
        status = None
    if status is not None and stat.S_ISDIR(status.st_mode):
        # The same sign between folders everywhere: names stay the same, and their order.
        prefix = (Path(source) / "x").as_posix()[:-1]
        files = [(prefix + entry.name, entry) for prefix, entries in _walk(prefix, left_out) for entry in entries]
        return "folder", sorted(((path, _stamp_entry(entry)) for path, entry in files), key=itemgetter(0))
    if status is not None:
        if not DESCRIPTOR.fullmatch(source):
            _refuse_device(source, status.st_mode)
        return "file", [(source, _get_local_stamp(source, status))]
    if glob.has_magic(source) and "\0" not in source:
        return "pattern", sorted(_match_files(source), key=itemgetter(0))
    raise _absent(source)


def _get_local_stamp(path: str, status: os.stat_result) -> Stamp | None:
    is_file = stat.S_ISREG(status.st_mode) and not DESCRIPTOR.fullmatch(path)
    return Stamp(status.st_size, str(status.st_mtime_ns)) if is_file else None


def _stamp_entry(entry: os.DirEntry[str]) -> Stamp:
    # On Windows the folder's own note of a file may be older than the file.
    status = os.stat(entry.path) if os.name == "nt" else entry.stat()
    return Stamp(status.st_size, str(status.st_mtime_ns))


def _refuse_device(source: str, mode: int) -> None:
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        raise CorpusError(f"{_shorten(source)}: a device, not a file with documents: name files or folders")


def _walk(prefix: str, left_out: list[str]) -> Iterator[tuple[str, list[os.DirEntry[str]]]]:
    """Give every folder below one, as the beginning of its files' names, and its files.

    Hidden ones are left out, and folders below the first one with results of headscope, which are added to `left_out`.

    Links to folders are followed when all real folders are done, each real folder is given once, and none in which the
    first one lies: links may form loops, or lead to the root of the file system.
    """
    top, root = prefix, os.path.realpath(prefix or ".")
    visited = set[str]()
    pending, links = [(prefix, root)], list[tuple[str, str]]()
    while pending or links:
        if not pending:
            links.sort(reverse=True)
            prefix, real = links.pop()
            if os.path.join(root, "").startswith(os.path.join(real, "")):
                continue
        else:
            prefix, real = pending.pop()
        if real in visited:
            continue
        visited.add(real)
        files, folders = _scan(prefix)
        if prefix != top and any(entry.name == RESULT for entry in files):
            left_out.append(prefix)
            continue
        yield prefix, files
        for entry in folders:
            below = f"{prefix}{entry.name}/"
            if entry.is_symlink():
                links.append((below, os.path.realpath(entry.path)))
            else:
                pending.append((below, os.path.join(real, entry.name)))


def _scan(prefix: str) -> tuple[list[os.DirEntry[str]], list[os.DirEntry[str]]]:
    """Return the files and the folders in a folder, without hidden ones."""
    try:
        with os.scandir(prefix or ".") as scanned:
            entries = [entry for entry in scanned if not entry.name.startswith(".")]
    except OSError as error:
        if isinstance(error, PermissionError) and os.path.basename(prefix.rstrip("/")) == UNREADABLE:
            return [], []
        raise _unreadable(prefix, error) from None
    return [entry for entry in entries if _is_file(entry)], [entry for entry in entries if _is_folder(entry)]


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link to itself
        return False


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _match_files(pattern: str) -> Iterator[tuple[str, Stamp]]:
    for path in dict.fromkeys(_match(pattern)):
        with suppress(OSError):  # a link to nowhere
            status = os.stat(path)
            if stat.S_ISREG(status.st_mode):
                yield path.replace(os.sep, "/"), Stamp(status.st_size, str(status.st_mtime_ns))


def _match(pattern: str) -> Iterator[str]:
    """Give what matches a pattern as `glob` does; but `**` does not follow links in a loop."""
    sign = r"[/\\]" if os.sep == "\\" else "/"
    recursive = re.search(rf"(?:(?<={sign})|^)\*\*(?={sign}|$)", pattern)
    if recursive is None:
        yield from glob.glob(pattern, recursive=True)
        return
    before, after = pattern[: recursive.start()], pattern[recursive.end() :]
    for base in glob.glob(before) if glob.has_magic(before) else [before]:
        for prefix, entries in _walk(base, []) if os.path.isdir(base or ".") else ():
            if after:
                yield from _match(glob.escape(prefix) + after[1:])
            else:
                yield from (prefix + entry.name for entry in entries)


# Remote files


def _list_remote(source: str, left_out: list[str]) -> tuple[Kind, Listed]:
    return _ask(source, lambda system, place: _list_place(source, system, place, left_out))


def _list_place(source: str, system: Any, place: str, left_out: list[str]) -> tuple[Kind, Listed]:
    def list_all(entries: Mapping[str, Mapping[str, Any]], folder: str, *, hidden_too: bool = False) -> Listed:
        infos = [(path, _follow_link(system, path, info)) for path, info in entries.items()]
        files = [(path, info) for path, info in infos if info.get("type") != "directory"]
        shown = [(path, info) for path, info in files if hidden_too or not _is_hidden(_list_parts(path, folder))]
        named = ((_name_remote(source, system, path), _read_stamp(info)) for path, info in shown)
        return sorted(named, key=itemgetter(0))

    web = source.startswith(("http:", "https:"))
    info = {"type": "directory"} if web and source.endswith("/") else _get_info(system, place)
    if info is not None and info["type"] == "directory":
        entries = system.find(place, detail=True)
        results = {path.rpartition("/")[0] + "/" for path in entries if path.endswith(f"/{RESULT}")}
        results.discard(place.rstrip("/") + "/")
        left_out.extend(sorted(f"{_name_remote(source, system, path[:-1])}/" for path in results))
        return "folder", list_all({path: info for path, info in entries.items() if not _is_below(path, results)}, place)
    if info is not None:
        mode = info.get("mode")
        if isinstance(mode, int):
            _refuse_device(source, mode)
        return "file", [(source, _read_stamp(info))]
    if any(sign in place for sign in ("*[" if web else "*?[")):
        fixed = re.split(r"[*?\[]", place, maxsplit=1)[0].rpartition("/")[0]
        hidden_too = "/." in place.removeprefix(fixed)
        return "pattern", list_all(system.glob(place, detail=True), fixed, hidden_too=hidden_too)
    raise _absent(source)


def _is_below(path: str, folders: set[str]) -> bool:
    return bool(folders) and any(path.startswith(folder) for folder in folders)


def _name_remote(source: str, system: Any, place: str) -> str:
    """Name a file of the driver that a source is read with."""
    _, _, chained = source.partition("::")
    return str(system.unstrip_protocol(place)) + (f"::{chained}" if chained else "")


def _get_info(system: Any, place: str) -> dict[str, Any] | None:
    try:
        return dict(system.info(place))
    except (FileNotFoundError, NotADirectoryError):
        return None


def _follow_link(system: Any, place: str, info: Mapping[str, Any]) -> Mapping[str, Any]:
    """Where a listing describes a link, ask for the file it leads to."""
    return info if not info.get("islink") else _get_info(system, place) or {"type": "directory"}


def _list_parts(path: str, folder: str) -> tuple[str, ...]:
    return PurePosixPath(path.lstrip("/").removeprefix(folder.strip("/"))).parts


def _is_hidden(parts: tuple[str, ...]) -> bool:
    return any(part.startswith(".") for part in parts)


def _get_remote_stamp(system: Any, place: str) -> Stamp | None:
    with suppress(Exception):  # not every driver keeps what it was told before
        system.invalidate_cache(place)
    return _read_stamp(system.info(place))


def _read_stamp(info: Mapping[str, Any]) -> Stamp | None:
    if info.get("size") is None:
        return None
    field = next((name for name in VERSIONS if info.get(name)), None)
    version = f"{field.lower()} {_write_version(info[field])}" if field is not None else ""
    return Stamp(int(info["size"]), version)


def _write_version(value: Any) -> str:
    """Write a version in the same way whether it is from a listing or of a single file, which drivers do not."""
    if isinstance(value, datetime):
        value = value.timestamp()
    if isinstance(value, int | float):
        return f"{value:.6f}"
    return str(value).strip('"')  # Azure puts quotes around the tag of a single file only


def _ask(source: str, question: Callable[[Any, str], T]) -> T:
    """Ask the driver of a place; whatever it raises becomes a sentence."""
    from fsspec.core import url_to_fs

    try:
        system, place = url_to_fs(source)
        return question(system, place)
    except CorpusError:
        raise
    except ImportError as error:
        missing = getattr(error.__cause__, "name", None) or error.name
        needs = f"needs the package {missing}: pip install {missing}" if missing else "needs a driver"
        raise CorpusError(f"{_shorten(source)}: {source.partition('://')[0]}:// {needs} ({error})") from None
    except Exception as error:  # every driver has errors of its own
        raise _unreadable(source, error) from None


def _unreadable(path: str, error: Exception) -> CorpusError:
    if isinstance(error, CorpusError):
        return error
    kind = StorageError if is_url(path) and not isinstance(error, PERMANENT) else CorpusError
    if isinstance(error, FileNotFoundError):
        why = "No such file or directory"
    elif isinstance(error, OSError):
        why = error.strerror or str(error) or type(error).__name__
    else:
        why = f"{type(error).__name__}: {error}"
    return kind(f"{_shorten(path)}: cannot be read: {why}")


def _absent(source: str) -> CorpusError:
    return CorpusError(
        f"{_shorten(source)!r}: no such file or folder. A text itself is given in a list, or on standard input (-)"
    )


def _shorten(source: str) -> str:
    return source if len(source) <= SHOWN else f"{source[:SHOWN]}…"
