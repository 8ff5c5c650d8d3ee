"""Checkpoints: the state of a run on disk, from which the same command resumes it.

A checkpoint is one file: a signature, the BLAKE2b hash of everything after it, then the sums in the safetensors format
with the rest as JSON in its header. It is written beside the last one, flushed to disk, and only then replaces it; the
one before is kept too. A file whose hash is wrong is damaged, and the one before it is used.

The folder may be on any storage that fsspec knows (`s3://…`, `gs://…`), for machines whose disks do not outlive them.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from headscope.corpus.chunks import Chunk, ChunkSize
from headscope.corpus.storage import is_url
from headscope.corpus.windows import BLOCKS
from headscope.errors import Changed, StudyError
from headscope.run.state import RunState
from headscope.tally.example_store import ExampleStore
from headscope.tally.quantities import RELATION_QUANTITIES, Shape
from headscope.tally.tally import Array, Tally
from headscope.tally.token_counts import TokenCounts

FOLDER = "checkpoint"
LAST, PREVIOUS, NEXT = "last", "previous", ".next"
FORMAT = 3
SIGNATURE = b"headscope checkpoint\n"
DIGEST_SIZE = 32
INTERVAL = 10.0
"""seconds between two checkpoints"""
TIME_SHARE = 0.02
"""of the time may go into writing them: large ones are written less often"""
TOKENS, ATTENDED = "most_attended tokens", "most_attended counts"
RELATION = "relation "
"""beginning of the names of arrays of labelled relations, one after the other as in the header"""
DOMINANTS, DOMINANT_COUNTS, EXAMPLES = "dominant tokens", "dominant token counts", "examples "
CHUNKS, SIZES = "chunks", "source sizes"
TO_END = -1


class DamagedError(Exception):
    """A file is not a complete checkpoint; says why."""


class Checkpoint:
    """The checkpoints of one study in a folder.

    Args:
        folder: A local folder, or a URL.
        identity: What must be the same for a run to be resumed, see `RunPlan.get_identity`.
        chunk_size: How the corpus is cut into chunks; a run that is resumed uses what the checkpoint says.
        on_message: Called with messages for the user.
    """

    def __init__(
        self,
        folder: Path | str,
        identity: dict[str, Any],
        chunk_size: ChunkSize,
        *,
        interval: float = INTERVAL,
        on_message: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.files = open_folder(folder)
        self.identity, self.chunk_size = identity, chunk_size
        self.interval, self.on_message = interval, on_message
        self.failed = False
        self._due_at = time.monotonic() + interval

    def read(self, shape: Shape) -> RunState | None:
        """Return the state of the run to resume, and take over its chunk size; None if there is none.

        Raises:
            Changed: The checkpoint is of another study.
            StudyError: No checkpoint can be read, or other files are where checkpoints would be.
        """
        for name in (LAST, PREVIOUS):
            if is_foreign(self.files.read_start(name)):
                raise StudyError(
                    f"{self.files}/{name} is there already, and headscope did not write it: choose another folder with "
                    "--checkpoint-dir or --output"
                )
        damaged: list[str] = []
        for name in (LAST, PREVIOUS):
            try:
                content = self.files.read(name)
                if content is None:
                    continue
                saved = parse_checkpoint(content)
                self._check_identity(saved.header)
                state = saved.load_state(shape)
                self.chunk_size = saved.chunk_size
            except DamagedError as reason:
                damaged.append(f"{self.files}/{name}: {reason}")
                continue
            if damaged:
                self.on_message(f"{damaged[0]}. The one before it is used: {state.texts:,} texts")
                self.files.remove(LAST)  # or the next checkpoint would keep it in place of the good one
            state.runs += 1
            return state
        if damaged:
            raise StudyError(
                f"no checkpoint of the unfinished study can be read ({'; '.join(damaged)}): start again with "
                "--overwrite"
            )
        return None

    def _check_identity(self, header: dict[str, Any]) -> None:
        changes = describe_changes(header["identity"], json.loads(json.dumps(self.identity)))
        if changes:
            raise Changed(
                f"{self.files} holds an unfinished study, and this command is for another one. What changed: "
                f"{'; '.join(changes)}. Run the same command to resume it, choose another folder with --output, or "
                "start again with --overwrite"
            )

    @property
    def is_due(self) -> bool:
        """Whether it is time for the next checkpoint."""
        return time.monotonic() >= self._due_at

    def write(self, state: RunState) -> bool:
        """Write the state of a run; return whether that worked. If not, the study continues, and it is tried again."""
        started = time.monotonic()
        try:
            if self.files.prepare():
                self.on_message(f"{self.files} was removed, and is created again")
            self.files.replace(pack_checkpoint(self.identity, self.chunk_size, state))
            if self.failed:
                self.on_message("checkpoints can be written again")
            self.failed = False
        except OSError as reason:
            if not self.failed:
                self.on_message(
                    f"{self.files}: no checkpoint could be written: {reason.strerror or reason}. The study continues, "
                    "and it is tried again"
                )
            self.failed = True
        now = time.monotonic()
        self._due_at = now + max(self.interval, (now - started) / TIME_SHARE if self.interval else 0.0)
        state.seconds["checkpoints"] = state.seconds.get("checkpoints", 0.0) + now - started
        return not self.failed


class CheckpointFolder(Protocol):
    """Where checkpoint files are."""

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None if there is none. Raises `DamagedError` if it cannot be read."""

    def read_start(self, name: str) -> bytes | None:
        """Return the beginning of a file; None if there is none, or it cannot be read."""

    def prepare(self) -> bool:
        """Create the folder; return whether it had been there and was removed."""

    def replace(self, content: Sequence[bytes]) -> None:
        """Write the last checkpoint; the one there is the previous one then."""

    def remove(self, name: str) -> None:
        """Remove a file, if that is possible."""

    def clear(self) -> None:
        """Remove all checkpoints."""


class LocalFolder:
    """Checkpoint files on a local disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.existed = False

    def __str__(self) -> str:
        return str(self.folder)

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None if there is none."""
        try:
            return (self.folder / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as reason:
            raise DamagedError(f"cannot be read: {reason.strerror or reason}") from None

    def read_start(self, name: str) -> bytes | None:
        """Return the beginning of a file; None if there is none, or it cannot be read."""
        try:
            with open(self.folder / name, "rb") as file:
                return file.read(len(SIGNATURE))
        except OSError:
            return None

    def prepare(self) -> bool:
        """Create the folder; return whether it had been there and was removed."""
        removed = self.existed and not self.folder.is_dir()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.existed = True
        return removed

    def replace(self, content: Sequence[bytes]) -> None:
        """Write the last checkpoint, flush it to disk, and only then put it in place."""
        waiting, last = self.folder / NEXT, self.folder / LAST
        try:
            with open(waiting, "wb") as file:
                for part in content:
                    file.write(part)
                file.flush()
                os.fsync(file.fileno())
            if last.exists():
                os.replace(last, self.folder / PREVIOUS)
            os.replace(waiting, last)
            _flush_folder(self.folder)
        finally:
            with suppress(OSError):
                waiting.unlink()

    def remove(self, name: str) -> None:
        """Remove a file, if that is possible."""
        with suppress(OSError):
            (self.folder / name).unlink()

    def clear(self) -> None:
        """Remove all checkpoints, and the folder if it is empty then."""
        for name in (LAST, PREVIOUS, NEXT):
            if not is_foreign(self.read_start(name)):
                self.remove(name)
        self.remove_if_empty()

    def remove_if_empty(self) -> None:
        """Leave no empty folder behind."""
        with suppress(OSError):
            self.folder.rmdir()


class RemoteFolder:
    """Checkpoint files on storage that fsspec knows. Writing an object is atomic there; renaming need not be."""

    def __init__(self, url: str) -> None:
        from fsspec.core import url_to_fs

        self.url = url.rstrip("/")
        try:
            self.system, self.path = url_to_fs(self.url)
        except Exception as error:  # drivers raise errors of many kinds
            raise StudyError(f"{url}: checkpoints cannot be kept there: {type(error).__name__}: {error}") from None

    def __str__(self) -> str:
        return self.url

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None if there is none."""
        try:
            self.system.invalidate_cache()
            return bytes(self.system.cat_file(f"{self.path}/{name}"))
        except FileNotFoundError:
            return None
        except Exception as error:
            raise DamagedError(f"cannot be read: {type(error).__name__}: {error}") from None

    def read_start(self, name: str) -> bytes | None:
        """Return the beginning of a file; None if there is none, or it cannot be read."""
        try:
            self.system.invalidate_cache()
            return bytes(self.system.cat_file(f"{self.path}/{name}", start=0, end=len(SIGNATURE)))
        except Exception:  # drivers raise errors of many kinds
            return None

    def prepare(self) -> bool:
        """Create the folder, where the storage has folders."""
        with suppress(Exception):  # object stores have none
            self.system.makedirs(self.path, exist_ok=True)
        return False

    def replace(self, content: Sequence[bytes]) -> None:
        """Copy the last checkpoint to the previous one, then write the new one over it."""
        last, previous = f"{self.path}/{LAST}", f"{self.path}/{PREVIOUS}"
        try:
            if self.system.exists(last):
                self.system.copy(last, previous)
            self.system.pipe_file(last, b"".join(content))
        except Exception as error:
            raise OSError(f"{type(error).__name__}: {error}") from None

    def remove(self, name: str) -> None:
        """Remove a file, if that is possible."""
        with suppress(Exception):
            self.system.rm_file(f"{self.path}/{name}")

    def clear(self) -> None:
        """Remove all checkpoints."""
        for name in (LAST, PREVIOUS):
            if not is_foreign(self.read_start(name)):
                self.remove(name)


def open_folder(folder: Path | str) -> LocalFolder | RemoteFolder:
    """Return the folder of a study's checkpoints."""
    return RemoteFolder(folder) if isinstance(folder, str) and is_url(folder) else LocalFolder(Path(folder))


def is_foreign(start: bytes | None) -> bool:
    """Return whether a file that begins in this way is no checkpoint, not even one that is cut off."""
    return start is not None and not SIGNATURE.startswith(start)


def pack_checkpoint(identity: dict[str, Any], chunk_size: ChunkSize, state: RunState) -> list[bytes]:
    """Return the content of a checkpoint file."""
    sums = state.sums
    tokens = sorted(sums.most_attended)
    attended = [sums.most_attended[token] for token in tokens]
    arrays = {name: np.ascontiguousarray(array) for name, array in sums.arrays.items()}
    arrays[TOKENS] = np.array(tokens, dtype=np.int64)
    arrays[ATTENDED] = np.stack(attended) if attended else np.zeros((0, BLOCKS, sums.shape.layers), dtype=np.int64)
    labels = sorted(sums.relations)
    for quantity in RELATION_QUANTITIES if labels else ():
        arrays[RELATION + quantity.name] = np.stack([sums.relations[label][quantity.name] for label in labels])
    dominants = sums.dominant_tokens.get_arrays()
    arrays |= dict(zip((DOMINANTS, DOMINANT_COUNTS), dominants, strict=True))
    arrays |= {f"{EXAMPLES}{name}": np.ascontiguousarray(array) for name, array in sums.examples.to_arrays().items()}
    arrays[CHUNKS] = pack_chunks(state.chunks)
    arrays[SIZES] = np.array(state.source_sizes, dtype=np.int64)
    header = {
        "format": FORMAT,
        "identity": identity,
        "chunk_size": asdict(chunk_size),
        "state": state.to_json(),
        "relations": labels,
    }
    payload = save_arrays(arrays, metadata={"checkpoint": json.dumps(header)})
    return [SIGNATURE, hashlib.blake2b(payload, digest_size=DIGEST_SIZE).digest(), payload]


@dataclass(frozen=True)
class SavedState:
    """Content of a checkpoint file: its header, and sums that are not unpacked yet."""

    header: dict[str, Any]
    payload: bytes

    @property
    def chunk_size(self) -> ChunkSize:
        """How the corpus is cut into chunks."""
        return ChunkSize(**{name: int(value) for name, value in self.header["chunk_size"].items()})

    def load_state(self, shape: Shape) -> RunState:
        """Return the state of a run whose sums have this shape."""
        sums = Tally.zeros(shape)
        try:
            arrays = load_arrays(self.payload)
            tokens, attended = arrays.pop(TOKENS), arrays.pop(ATTENDED)
            examples = {name: arrays.pop(name) for name in list(arrays) if name.startswith(EXAMPLES)}
            examples = {name.removeprefix(EXAMPLES): array for name, array in examples.items()}
            sums.examples = ExampleStore.from_arrays(shape.layers, shape.heads, examples)
            dominants, counts = arrays.pop(DOMINANTS), arrays.pop(DOMINANT_COUNTS)
            sums.dominant_tokens = TokenCounts.from_arrays(shape.layers, shape.heads, dominants, counts)
            chunks, sizes = unpack_chunks(arrays.pop(CHUNKS)), arrays.pop(SIZES).tolist()
            sums.most_attended = {int(token): counts for token, counts in zip(tokens, attended, strict=True)}
            for number, label in enumerate(map(str, self.header["relations"])):
                for name, array in sums.relate(label).items():
                    saved = arrays[RELATION + name]
                    if saved.shape[1:] != array.shape or saved.dtype != array.dtype:
                        raise DamagedError(f"its sums of the relation {label!r} are not those of this version")
                    array[...] = saved[number]
            arrays = {name: array for name, array in arrays.items() if not name.startswith(RELATION)}
            if _describe(arrays) != _describe(sums.arrays) or attended.shape[1:] != (BLOCKS, shape.layers):
                raise DamagedError("its sums are not those of this version of headscope")
            sums.arrays = {name: np.require(array, requirements="W") for name, array in arrays.items()}
            _ = self.chunk_size  # it can be read
            state = RunState.from_json(sums, self.header["state"])
            state.chunks, state.source_sizes = chunks, sizes
            numbers = state.completed | state.in_progress.keys() | state.failed
            if max(numbers, default=-1) >= len(chunks) or max((c.after for c in chunks), default=0) > len(sizes):
                raise DamagedError("it holds chunks that are not in its plan")
            return state
        except DamagedError:
            raise
        except Exception as error:  # whatever a file holds that has the right hash and is not ours
            raise DamagedError(f"not a checkpoint of this version ({type(error).__name__}: {error})") from None


def parse_checkpoint(content: bytes) -> SavedState:
    """Return what a complete checkpoint file holds."""
    if not content.startswith(SIGNATURE):
        raise DamagedError("not a checkpoint")
    start = len(SIGNATURE)
    digest, payload = content[start : start + DIGEST_SIZE], content[start + DIGEST_SIZE :]
    if hashlib.blake2b(payload, digest_size=DIGEST_SIZE).digest() != digest:
        raise DamagedError("damaged: its hash is wrong")
    try:
        length = int.from_bytes(payload[:8], "little")
        header = json.loads(json.loads(payload[8 : 8 + length])["__metadata__"]["checkpoint"])
        version, identity = header["format"], dict(header["identity"])
    except Exception as error:
        raise DamagedError(f"not a checkpoint of this version ({type(error).__name__}: {error})") from None
    if version != FORMAT:
        raise DamagedError(f"of format {version}, and this version of headscope reads {FORMAT}")
    return SavedState({**header, "identity": identity}, payload)


def pack_chunks(chunks: Sequence[Chunk]) -> Array:
    """Return chunks as an array, one in each row."""
    rows = [(c.first, c.after, c.start, TO_END if c.stop is None else c.stop) for c in chunks]
    return np.array(rows, dtype=np.int64).reshape(-1, 4)


def unpack_chunks(rows: Array) -> list[Chunk]:
    """Return the chunks that `pack_chunks` wrote."""
    return [
        Chunk(number, first, after, start, None if stop == TO_END else stop)
        for number, (first, after, start, stop) in enumerate(rows.tolist())
    ]


def _describe(arrays: dict[str, Array]) -> dict[str, tuple[Any, ...]]:
    return {name: (array.shape, array.dtype) for name, array in arrays.items()}


def _flush_folder(folder: Path) -> None:
    """Have the new names on the disk, where a folder can be flushed (not on Windows)."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


NAMED_FILES = 3
"""files that a message names"""


def describe_changes(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return what differs between two identities, in words."""
    changes = [
        f"{name} ({before.get(name)} before, {value} now)"
        for name, value in now.items()
        if name != "texts" and before.get(name) != value
    ]
    return changes + _describe_other_files(list(before.get("texts", [])), list(now.get("texts", [])))


def _describe_other_files(before: list[str], now: list[str]) -> list[str]:
    if before == now:
        return []
    known, present = set(before), set(now)
    removed, new = [name for name in before if name not in present], [name for name in now if name not in known]
    if not removed and not new:
        return ["texts (the same files in another order)"]
    parts = [f"{_list_names(names)} {state}" for names, state in ((removed, "no longer there"), (new, "new")) if names]
    return [f"texts ({'; '.join(parts)})"]


def _list_names(names: list[str]) -> str:
    return ", ".join(names[:NAMED_FILES]) + (
        f" and {len(names) - NAMED_FILES:,} more" if len(names) > NAMED_FILES else ""
    )
