"""Checkpoints: how a study stands, kept in its folder: whatever ends a run, the same command goes on.

A checkpoint is one file: a mark, the BLAKE2b hash of all that follows, then the sums in the safetensors format, with
the rest as JSON in its header. It is written beside the last one, flushed to the disk, and only then takes its place;
the one before is kept too. One whose hash is wrong was damaged, and the one before it counts.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from headscope.corpus.windows import BLOCKS
from headscope.errors import Changed, StudyError
from headscope.studies.account import Account
from headscope.studies.done import Done
from headscope.studies.identity import differing
from headscope.studies.standing import Standing
from headscope.tally.quantities import Shape
from headscope.tally.tally import Array, Tally

FOLDER = "checkpoint"
LAST, PREVIOUS = "last", "previous"
FORMAT = 1
MARK = b"headscope checkpoint\n"
DIGEST = 32
EVERY = 60.0
"""seconds between two checkpoints"""
SHARE = 0.05
"""of the time may go into writing them: large ones are written less often"""
TOKENS, ATTENDED = "most_attended tokens", "most_attended counts"


class Damaged(Exception):
    """A file that is no whole checkpoint; says why."""


class Checkpoints:
    """The checkpoints of one study in a folder. `say` is told what people should know."""

    def __init__(
        self,
        folder: Path,
        identity: dict[str, Any],
        *,
        every: float = EVERY,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.folder, self.identity, self.every, self.say = folder, identity, every, say
        self.failed = False
        self._next = time.monotonic() + every

    def found(self, shape: Shape) -> Standing | None:
        """How the study stood when its last run ended; None if there was none. Refused if it was another study."""
        damaged: list[str] = []
        for path in (self.folder / LAST, self.folder / PREVIOUS):
            if not path.exists():
                continue
            try:
                held = opened(path)
                self._check(held.about)
                standing = held.standing(shape)
            except Damaged as reason:
                damaged.append(f"{path}: {reason}")
                continue
            if damaged:
                self.say(f"{damaged[0]}. The one before it is used: {standing.texts:,} texts")
                with suppress(OSError):  # the next checkpoint is not to put it in the place of the good one
                    (self.folder / LAST).unlink()
            standing.runs += 1
            return standing
        if damaged:
            raise StudyError(
                f"no checkpoint of the unfinished study can be read ({'; '.join(damaged)}): begin anew with --overwrite"
            )
        return None

    def _check(self, about: dict[str, Any]) -> None:
        changes = differing(about["identity"], json.loads(json.dumps(self.identity)))
        if changes:
            raise Changed(
                f"{self.folder.parent} holds an unfinished study, and this command is for another one. What changed: "
                f"{'; '.join(changes)}. Give the same command to go on with it, choose another folder with --out, or "
                "begin anew with --overwrite"
            )

    @property
    def due(self) -> bool:
        return time.monotonic() >= self._next

    def write(self, standing: Standing) -> bool:
        """Keep how the study stands. Where that fails the study goes on, and it is tried again the next time."""
        began = time.monotonic()
        try:
            if not self.folder.parent.is_dir():
                self.say(f"{self.folder.parent} was removed, and is made again")
            self.folder.mkdir(parents=True, exist_ok=True)
            self._replace(packed(self.identity, standing))
            if self.failed:
                self.say("checkpoints can be written again")
            self.failed = False
        except OSError as reason:
            if not self.failed:
                self.say(
                    f"{self.folder}: no checkpoint could be written: {reason.strerror or reason}. The study goes on, "
                    "and it is tried again"
                )
            self.failed = True
        now = time.monotonic()
        self._next = now + max(self.every, (now - began) / SHARE if self.every else 0.0)
        return not self.failed

    def _replace(self, content: list[bytes]) -> None:
        waiting, last = self.folder / ".next", self.folder / LAST
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

    def clear(self) -> None:
        """The study is finished."""
        for name in (LAST, PREVIOUS, ".next"):
            with suppress(OSError):
                (self.folder / name).unlink()
        self.tidy()

    def tidy(self) -> None:
        """Leave no folder behind that holds nothing."""
        with suppress(OSError):
            self.folder.rmdir()


def packed(identity: dict[str, Any], standing: Standing) -> list[bytes]:
    """A checkpoint's bytes."""
    tally = standing.tally
    tokens = sorted(tally.most_attended)
    attended = [tally.most_attended[token] for token in tokens]
    arrays = {name: np.ascontiguousarray(array) for name, array in tally.arrays.items()}
    arrays[TOKENS] = np.array(tokens, dtype=np.int64)
    arrays[ATTENDED] = np.stack(attended) if attended else np.zeros((0, BLOCKS, tally.shape.layers), dtype=np.int64)
    about = {
        "format": FORMAT,
        "identity": identity,
        "account": standing.account.plain(),
        "done": standing.done.plain(),
        "batch_size": standing.batch_size,
        "seconds": standing.seconds,
        "shown": standing.shown,
        "runs": standing.runs,
    }
    payload = save_arrays(arrays, metadata={"checkpoint": json.dumps(about)})
    return [MARK, hashlib.blake2b(payload, digest_size=DIGEST).digest(), payload]


@dataclass(frozen=True)
class Held:
    """What a checkpoint file holds: words about it, and sums that are still packed."""

    about: dict[str, Any]
    payload: bytes

    def standing(self, shape: Shape) -> Standing:
        """How the study stands whose sums have this shape."""
        about, tally = self.about, Tally.zeros(shape)
        try:
            arrays = load_arrays(self.payload)
            tokens, attended = arrays.pop(TOKENS), arrays.pop(ATTENDED)
            tally.most_attended = {int(token): counts for token, counts in zip(tokens, attended, strict=True)}
            if _kinds(arrays) != _kinds(tally.arrays) or attended.shape[1:] != (BLOCKS, shape.layers):
                raise Damaged("its sums are not those of this version of headscope")
            tally.arrays = {name: np.require(array, requirements="W") for name, array in arrays.items()}
            return Standing(
                tally,
                Account.of_plain(about["account"]),
                Done.of_plain(about["done"]),
                int(about["batch_size"]),
                {str(name): float(taken) for name, taken in about["seconds"].items()},
                bool(about["shown"]),
                int(about["runs"]),
            )
        except Damaged:
            raise
        except Exception as error:  # whatever a file holds that has the right hash and is not ours
            raise Damaged(f"not a checkpoint of this version ({type(error).__name__}: {error})") from None


def opened(path: Path) -> Held:
    """A checkpoint file that is whole."""
    try:
        content = path.read_bytes()
    except OSError as reason:
        raise Damaged(f"cannot be read: {reason.strerror or reason}") from None
    if not content.startswith(MARK):
        raise Damaged("not a checkpoint")
    digest, payload = content[len(MARK) : len(MARK) + DIGEST], content[len(MARK) + DIGEST :]
    if hashlib.blake2b(payload, digest_size=DIGEST).digest() != digest:
        raise Damaged("damaged: its hash is wrong")
    try:
        length = int.from_bytes(payload[:8], "little")
        about = json.loads(json.loads(payload[8 : 8 + length])["__metadata__"]["checkpoint"])
        known, identity = about["format"], dict(about["identity"])
    except Exception as error:
        raise Damaged(f"not a checkpoint of this version ({type(error).__name__}: {error})") from None
    if known != FORMAT:
        raise Damaged(f"of format {known}, and this version of headscope reads {FORMAT}")
    return Held({**about, "identity": identity}, payload)


def _kinds(arrays: dict[str, Array]) -> dict[str, tuple[Any, ...]]:
    return {name: (array.shape, array.dtype) for name, array in arrays.items()}


def _flush_folder(folder: Path) -> None:
    """Have the new names on the disk, where a folder can be flushed (not on Windows)."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
