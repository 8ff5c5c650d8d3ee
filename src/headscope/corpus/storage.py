"""Access to files: local paths and, through fsspec, any `scheme://…` whose driver is installed."""

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
"""storage errors for which retrying does not help"""
RESULT = "study.nc"
"""Folders with a file of this name contain results of headscope, not documents."""
UNREADABLE = "lost+found"
"""folder at the root of a file system that users are not permitted to read"""
SHOWN = 200
"""characters of a source name that are shown in error messages"""
PIECE = 2**18
"""bytes per request to a remote file"""
VERSIONS = (
    *("ETag", "etag", "blob_id", "mtime", "LastModified", "Last-Modified", "last_modified", "updated", "modified"),
    "created",
)
"""Fields in which drivers give the version of a file or the time of its last change; the first one present is used. For
these fields, object stores return the same values in listings and for single files."""
DESCRIPTOR = re.compile(r"/dev/(stdin|fd/\d+)|/proc/(self|\d+)/fd/\d+")
"""names of open file descriptors, such as from `<(zcat …)`; in another process they refer to other files"""

Kind = Literal["file", "folder", "pattern"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stamp:
    """Size and version of a file, to detect changes."""

    size: int
    """in bytes"""
    version: str
    """For a local file, the time of its last change in nanoseconds. For a remote file, the name of the field in which
    its driver gives a version, and that version; empty if it gives none."""

    @property
    def kind(self) -> str:
        """Field that contains the version. Versions from different fields cannot be compared."""
        return self.version.partition(" ")[0] if " " in self.version else ""


FileListing: TypeAlias = list[tuple[str, Stamp | None]]


def is_url(source: str) -> bool:
    """Return whether a source is a URL for fsspec, not a local path.

    >>> is_url("s3://bucket/a.jsonl"), is_url("hf:wikimedia/wikipedia"), is_url("C:/texts")
    (True, False, False)
    """
    return re.match(r"[a-zA-Z][a-zA-Z0-9+.-]+(::[a-z0-9]+)*://", source) is not None


def strip_query(path: str) -> str:
    """Return a path in lower case, for web addresses without query and fragment, to detect file name endings.

    >>> strip_query("https://example.org/A.jsonl.gz?download=1")
    'https://example.org/a.jsonl.gz'
    """
    if re.match(r"https?:/", path):
        path = re.split(r"[?#]", path, maxsplit=1)[0]
    elif re.match(r"[a-zA-Z][a-zA-Z0-9+.-]+:/", path):  # `zip://a.jsonl::https://…` is a file inside another
        path = path.partition("::")[0]
    return path.lower()


def list_files(source: str, left_out: list[str] | None = None) -> tuple[Kind, FileListing]:
    """List the files to which a source refers, sorted, with the stamps from the listing of their folders.

    These are the file itself, the files in a folder, or those that match a pattern. Hidden files and folders with
    results of headscope are excluded; the latter are added to `left_out`. A stamp is None if the size is unknown.
    """
    excluded: list[str] = [] if left_out is None else left_out
    return _list_remote(source, excluded) if is_url(source) else _list_local(source, excluded)


def get_stamp(path: str) -> Stamp | None:
    """Return the current stamp of a file; None for pipes, standard input and hub datasets."""
    if is_url(path):
        return _query_driver(path, _get_remote_stamp)
    if path == "-" or path.startswith(("hf:", "example:")):
        return None
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:
        raise _make_read_error(path, error) from None
    return _get_local_stamp(path, status)


def identify_file(path: str, real_folders: dict[str, str]) -> str:
    """Return an identifier that is the same for all names of a local file. `real_folders` is a cache of real paths."""
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
    """Return a URL in the form used in listings."""
    return _query_driver(url, lambda system, remote_path: _name_remote(url, system, remote_path))


@contextmanager
def open_file(path: str, *, read_ahead: bool = True) -> Iterator[BinaryIO]:
    """Open a file as a binary stream; `.gz` files are decompressed.

    Without `read_ahead` the stream is seekable, and only requested bytes are fetched.
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
        raise CorpusError(
            f"{path}: a damaged .gz file: {error}. If it is not compressed, name it without .gz"
        ) from None
    except OSError as error:
        raise _make_read_error(path, error) from None


def can_read_parts(path: str) -> bool:
    """Return whether a file can be read from its middle, which not every web server supports."""
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
        remote = _query_driver(
            path, lambda system, remote_path: _RemoteFile(path, system, _open_remote(system, remote_path, read_ahead))
        )
        return cast(BinaryIO, io.BufferedReader(remote, PIECE) if read_ahead else remote)
    try:
        return open(path, "rb") if read_ahead else cast(BinaryIO, open(path, "rb", buffering=0))
    except ValueError as error:  # a name with NUL in it
        raise _make_read_error(path, error) from None


def _open_remote(system: Any, remote_path: str, read_ahead: bool) -> Any:
    if read_ahead:
        return system.open(remote_path, "rb")
    try:
        return system.open(remote_path, "rb", cache_type="none")
    except TypeError:  # a driver without caches
        return system.open(remote_path, "rb")


class _RemoteFile(io.RawIOBase):
    """A remote file. Errors of its driver, of many types, are raised as CorpusError."""

    def __init__(self, path: str, system: Any, file: Any) -> None:
        self.path, self.file = path, file
        self.system = system  # kept alive: an archive is closed when nothing refers to its file system

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self.file.seekable())

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._call(lambda: self.file.seek(offset, whence)))

    def tell(self) -> int:
        return int(self._call(self.file.tell))

    def readinto(self, buffer: Any) -> int:
        piece: bytes = self._call(lambda: self.file.read(len(buffer)))
        buffer[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        if not self.closed:
            with suppress(Exception):  # reading is done, so errors do not matter
                self.file.close()
        super().close()

    def _call(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except Exception as error:
            raise _make_read_error(self.path, error) from None


# Local files


def _list_local(source: str, left_out: list[str]) -> tuple[Kind, FileListing]:
    try:
        # An empty name would be the current folder; a whole text is too long for a file name.
        status = os.stat(source) if source else None
    except (OSError, ValueError):
        status = None
    if status is not None and stat.S_ISDIR(status.st_mode):
        # Always with "/" as the separator, so that names and their order are the same on all systems.
        prefix = (Path(source) / "x").as_posix()[:-1]
        files = [(prefix + entry.name, entry) for prefix, entries in _walk(prefix, left_out) for entry in entries]
        return "folder", sorted(((path, _get_entry_stamp(entry)) for path, entry in files), key=itemgetter(0))
    if status is not None:
        if not DESCRIPTOR.fullmatch(source):
            _refuse_device(source, status.st_mode)
        return "file", [(source, _get_local_stamp(source, status))]
    if glob.has_magic(source) and "\0" not in source:
        return "pattern", sorted(_match_files(source), key=itemgetter(0))
    raise _make_missing_error(source)


def _get_local_stamp(path: str, status: os.stat_result) -> Stamp | None:
    is_file = stat.S_ISREG(status.st_mode) and not DESCRIPTOR.fullmatch(path)
    return Stamp(status.st_size, str(status.st_mtime_ns)) if is_file else None


def _get_entry_stamp(entry: os.DirEntry[str]) -> Stamp:
    # On Windows, directory entries may be older than the file.
    status = os.stat(entry.path) if os.name == "nt" else entry.stat()
    return Stamp(status.st_size, str(status.st_mtime_ns))


def _refuse_device(source: str, mode: int) -> None:
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        raise CorpusError(f"{_shorten(source)}: a device, not a file with documents: name files or folders")


def _walk(prefix: str, left_out: list[str]) -> Iterator[tuple[str, list[os.DirEntry[str]]]]:
    """Yield a folder and all folders below it, each as the prefix of its file names, with its files.

    Hidden files and folders are excluded, and so are subfolders with results of headscope; these are added to
    `left_out`.

    Links to folders are followed after all real folders. Each real folder is yielded once, and parents of the first
    folder are not: links may form loops, or lead to the root of the file system.
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
        raise _make_read_error(prefix, error) from None
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
    """Yield what matches a pattern, like `glob`; but `**` does not follow links in a loop."""
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


def _list_remote(source: str, left_out: list[str]) -> tuple[Kind, FileListing]:
    return _query_driver(source, lambda system, remote_path: _list_remote_path(source, system, remote_path, left_out))


def _list_remote_path(source: str, system: Any, remote_path: str, left_out: list[str]) -> tuple[Kind, FileListing]:
    def list_all(entries: Mapping[str, Mapping[str, Any]], folder: str, *, hidden_too: bool = False) -> FileListing:
        infos = [(path, _resolve_link(system, path, info)) for path, info in entries.items()]
        files = [(path, info) for path, info in infos if info.get("type") != "directory"]
        shown = [(path, info) for path, info in files if hidden_too or not _is_hidden(_list_parts(path, folder))]
        stamped = ((_name_remote(source, system, path), _read_stamp(info)) for path, info in shown)
        return sorted(stamped, key=itemgetter(0))

    web = source.startswith(("http:", "https:"))
    info = {"type": "directory"} if web and source.endswith("/") else _get_info(system, remote_path)
    if info is not None and info["type"] == "directory":
        entries = system.find(remote_path, detail=True)
        results = {path.rpartition("/")[0] + "/" for path in entries if path.endswith(f"/{RESULT}")}
        results.discard(remote_path.rstrip("/") + "/")
        left_out.extend(sorted(f"{_name_remote(source, system, path[:-1])}/" for path in results))
        return "folder", list_all(
            {path: info for path, info in entries.items() if not _is_below(path, results)}, remote_path
        )
    if info is not None:
        mode = info.get("mode")
        if isinstance(mode, int):
            _refuse_device(source, mode)
        return "file", [(source, _read_stamp(info))]
    if any(sign in remote_path for sign in ("*[" if web else "*?[")):
        fixed = re.split(r"[*?\[]", remote_path, maxsplit=1)[0].rpartition("/")[0]
        hidden_too = "/." in remote_path.removeprefix(fixed)
        return "pattern", list_all(system.glob(remote_path, detail=True), fixed, hidden_too=hidden_too)
    raise _make_missing_error(source)


def _is_below(path: str, folders: set[str]) -> bool:
    return bool(folders) and any(path.startswith(folder) for folder in folders)


def _name_remote(source: str, system: Any, remote_path: str) -> str:
    """Return the full URL of a file, given its path in the driver of a source."""
    _, _, chained = source.partition("::")
    return str(system.unstrip_protocol(remote_path)) + (f"::{chained}" if chained else "")


def _get_info(system: Any, remote_path: str) -> dict[str, Any] | None:
    try:
        return dict(system.info(remote_path))
    except (FileNotFoundError, NotADirectoryError):
        return None


def _resolve_link(system: Any, remote_path: str, info: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the entry of the target if a listing describes a link, otherwise the entry itself."""
    return info if not info.get("islink") else _get_info(system, remote_path) or {"type": "directory"}


def _list_parts(path: str, folder: str) -> tuple[str, ...]:
    return PurePosixPath(path.lstrip("/").removeprefix(folder.strip("/"))).parts


def _is_hidden(parts: tuple[str, ...]) -> bool:
    return any(part.startswith(".") for part in parts)


def _get_remote_stamp(system: Any, remote_path: str) -> Stamp | None:
    with suppress(Exception):  # not every driver has a cache
        system.invalidate_cache(remote_path)
    return _read_stamp(system.info(remote_path))


def _read_stamp(info: Mapping[str, Any]) -> Stamp | None:
    if info.get("size") is None:
        return None
    field = next((name for name in VERSIONS if info.get(name)), None)
    version = f"{field.lower()} {_format_version(info[field])}" if field is not None else ""
    return Stamp(int(info["size"]), version)


def _format_version(value: Any) -> str:
    """Format a version in the same way from listings and from single files; drivers do not."""
    if isinstance(value, datetime):
        value = value.timestamp()
    if isinstance(value, int | float):
        return f"{value:.6f}"
    return str(value).strip('"')  # Azure puts quotes around the tag of a single file only


def _query_driver(source: str, query: Callable[[Any, str], T]) -> T:
    """Call a function with the file system and path of a source; raise any error as a CorpusError."""
    from fsspec.core import url_to_fs

    try:
        system, remote_path = url_to_fs(source)
        return query(system, remote_path)
    except CorpusError:
        raise
    except ImportError as error:
        missing = getattr(error.__cause__, "name", None) or error.name
        needs = f"needs the package {missing}: pip install {missing}" if missing else "needs a driver"
        raise CorpusError(f"{_shorten(source)}: {source.partition('://')[0]}:// {needs} ({error})") from None
    except Exception as error:  # every driver raises errors of its own types
        raise _make_read_error(source, error) from None


def _make_read_error(path: str, error: Exception) -> CorpusError:
    if isinstance(error, CorpusError):
        return error
    kind = StorageError if is_url(path) and not isinstance(error, PERMANENT) else CorpusError
    if isinstance(error, FileNotFoundError):
        reason = "No such file or directory"
    elif isinstance(error, OSError):
        reason = error.strerror or str(error) or type(error).__name__
    else:
        reason = f"{type(error).__name__}: {error}"
    return kind(f"{_shorten(path)}: cannot be read: {reason}")


def _make_missing_error(source: str) -> CorpusError:
    return CorpusError(
        f"{_shorten(source)!r}: no such file or folder. A text itself is given in a list, or on standard input (-)"
    )


def _shorten(source: str) -> str:
    return source if len(source) <= SHOWN else f"{source[:SHOWN]}…"
