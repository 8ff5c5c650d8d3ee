# ruff: noqa: D103
"""Memory must not grow with the corpus, nor with what a packed file unpacks to."""

from __future__ import annotations

import gzip
import os
import time
from pathlib import Path

import small_model
from corpora import lines, texts
from runs import LONGEST, Folder, Row, Running, Wrong

FEW, SHORT = 1000, (2, 5, 9, 14)
GROWTH = 0.05
ROOM = 2**30
GIGABYTE = 10**9


def peak(running: Running, *codes: int) -> int:
    """Wait for its end; the most memory that it had, in bytes."""
    end = time.monotonic() + LONGEST
    while True:
        found, status, used = os.wait4(running.process.pid, os.WNOHANG)
        if found:
            break
        if time.monotonic() > end:
            running.process.kill()
            raise Wrong(f"took more than {LONGEST:.0f} seconds")
        time.sleep(0.05)
    running.process.returncode = os.waitstatus_to_exitcode(status)
    if running.process.returncode not in codes:
        raise Wrong(f"ended with {running.process.returncode}: {running.said[-600:]}")
    return used.ru_maxrss * 1024


def corpora(folder: Path, many: int) -> dict[int, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    held = texts(many, 5, SHORT)
    return {count: lines(folder / f"{count}.jsonl", held[:count]) for count in (FEW, many)}


def growth(root: Path, model: Path, made: dict[int, Path]) -> Row:
    """The study of many documents stays, to be compared with others."""
    peaks = {}
    asked = small_model.options(model)
    for count, path in made.items():
        peaks[count] = peak(Folder(root / f"of-{count}", path.parent, [path.name], asked).start(), 0)
    (few, less), (many, more) = sorted(peaks.items())
    grown = more / less - 1
    note = f"peak {less / 2**20:,.0f} MiB at {few:,} documents, {more / 2**20:,.0f} MiB at {many:,}: {grown:+.1%}"
    return Row(f"memory: {few:,} and {many:,} documents", 1, 2, 2, note=note, right=grown <= GROWTH)


def packed(path: Path, size: int, line: bytes) -> Path:
    """A file that unpacks to so many bytes of such lines."""
    piece = line * max(1, 2**20 // len(line))
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(size // len(piece)):
            file.write(piece)
    return path


def bombs(root: Path, model: Path, small: Path, size: int) -> list[Row]:
    root.mkdir(parents=True, exist_ok=True)
    usual = peak(Folder(root / "small", small.parent, [small.name], small_model.options(model)).start(), 0)
    asked = [*small_model.options(model), "--format", "lines"]
    kinds = {"one line": b"a cat sat on it. ", "lines of 1 MiB": (b"a cat sat on it. " * 61681)[: 2**20 - 1] + b"\n"}
    rows = []
    for name, line in kinds.items():
        path = packed(root / f"{name.replace(' ', '-')}.txt.gz", size, line)
        folder = Folder(root / name.replace(" ", "-"), root, [path.name], asked)
        running = folder.start()
        used = peak(running, 0, 1)
        said = "studied" if running.process.returncode == 0 else f"refused: {running.said.strip().splitlines()[-1]}"
        words = said.replace(str(root) + "/", "")[:160]
        path.unlink()
        note = f"peak {used / 2**20:,.0f} MiB, {(used - usual) / 2**20:+,.0f} MiB against a small text; {words}"
        fault = f"memory: a .gz of {size / GIGABYTE:.1f} GB, {name}"
        rows.append(Row(fault, 1, 1, int(running.process.returncode == 0), note=note, right=used - usual < ROOM))
    return rows
