# ruff: noqa: D103
"""The soak: everything that may happen to a study is done to it, and what comes out must be what it always is.

    python soak/soak.py [--quick] [--only kills,ray] [--lanes 2] [--docs]

Studies run by the real command line, as processes of their own; each fault in an output folder of its own. Every
finished study is compared with an undisturbed one of the same texts: integers exactly, reals to 1e-12, and the
documents it speaks of. Takes about a quarter of an hour on two cores, `--quick` a few minutes. Exit code 1 if
anything was wrong. `--docs` writes docs/soak.md.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import cluster
import documents
import ends
import kills
import memory
import places
import small_model
from corpora import mixed
from runs import QUICKLY, STUDYING, Folder, Row, Wrong, opened

from headscope.studies.result import Study
from page import table, written

ROOT = Path(__file__).parent.parent


@dataclass
class Soak:
    """The faults, each in folders under `root`."""

    root: Path
    quick: bool

    def __post_init__(self) -> None:
        self.names = mixed(self.root / "small", 300)
        mixed(self.root / "large", 400 if self.quick else 1800, seed=1)
        self.model = small_model.saved(self.root / "tiny")
        self.short = memory.corpora(self.root / "short", 20_000 if self.quick else 100_000)
        self._once = threading.Lock()
        self._grown: Row | None = None

    def folder(self, name: str) -> Folder:
        """An output folder for a study of the small corpus; its files may be changed, so it has its own."""
        copied = self.root / f"{name}-texts"
        shutil.copytree(self.root / "small", copied)
        return Folder(self.root / name / "out", copied, self.names, hooks=QUICKLY)

    @cached_property
    def whole(self) -> Study:
        made = Folder(self.root / "undisturbed" / "out", self.root / "small", self.names, hooks=QUICKLY)
        made.finish()
        return opened(made.out)

    def kills(self) -> Iterator[Row]:
        texts = self.root / "large"
        whole = Folder(self.root / "large-undisturbed" / "out", texts, self.names, hooks=("chunks",))
        pace = kills.paced(whole)
        told(f"undisturbed: loading {pace.loading:.0f} s, studying {pace.studying:.0f} s, drawing {pace.drawing:.0f} s")
        folder = Folder(self.root / "kills" / "out", texts, self.names, hooks=("chunks",))
        yield kills.killed(folder, opened(whole.out), pace, 6 if self.quick else 25)

    def ends(self) -> Iterator[Row]:
        yield ends.terminated(self.folder("terminated"), self.whole, 1 if self.quick else 3)
        yield ends.interrupted(self.folder("interrupted"), self.whole)
        yield ends.interrupted_twice(self.folder("interrupted-twice"), self.whole)

    def disk(self) -> Iterator[Row]:
        yield from places.full(self.folder("full"), self.whole)

    def places(self) -> Iterator[Row]:
        yield places.removed(self.folder("removed"), self.whole)
        yield from places.damaged(self.folder("damaged"), self.whole)
        yield places.wanted_by_two(self.folder("two"), self.whole)

    def texts(self) -> Iterator[Row]:
        vanish, reading, between = (self.folder(name) for name in ("vanish", "reading", "between"))
        yield documents.vanished(vanish, self.whole, vanish.at / "e.jsonl")
        yield documents.changed_while_read(reading, self.whole, reading.at / "e.jsonl")
        yield documents.changed_between(between, self.whole, between.at / "a.jsonl")
        yield documents.tokenizer(self.folder("tokenizer"), self.whole)
        whole, path = self.many()
        copied = self.root / "line-texts" / path.name
        copied.parent.mkdir()
        shutil.copy(path, copied)
        line, skip = (
            Folder(self.root / name / "out", copied.parent, [copied.name], small_model.options(self.model))
            for name in ("line", "skip")
        )
        yield from documents.broken(line, skip, whole, copied)

    def machine(self) -> Iterator[Row]:
        yield documents.clock(self.folder("clock"), self.whole)
        yield documents.memory(self.folder("memory"), self.whole)

    def memory(self) -> Iterator[Row]:
        size = 300_000_000 if self.quick else 3 * memory.GIGABYTE
        yield self.growth()
        yield from memory.bombs(self.root / "bombs", self.model, self.short[memory.FEW], size)

    def ray(self) -> Iterator[Row]:
        (whole, path), every = self.many(), 10.0 if self.quick else 15.0
        asked = [path.name], small_model.options(self.model)
        one, other = (Folder(self.root / name / "out", path.parent, *asked) for name in ("ray", "nodes"))
        yield cluster.workers_killed(one, whole, every)
        yield cluster.nodes_replaced(other, whole, every)

    def many(self) -> tuple[Study, Path]:
        """The undisturbed study of many short texts, and their file."""
        count, path = max(self.short.items())
        self.growth()
        return opened(self.root / "growth" / f"of-{count}"), path

    def growth(self) -> Row:
        with self._once:  # two kinds of faults need it
            if self._grown is None:
                self._grown = memory.growth(self.root / "growth", self.model, self.short)
            return self._grown


FAULTS: dict[str, Callable[[Soak], Iterator[Row]]] = {
    "kills": Soak.kills, "ends": Soak.ends, "disk": Soak.disk, "places": Soak.places, "texts": Soak.texts,
    "machine": Soak.machine, "memory": Soak.memory, "ray": Soak.ray,
}  # fmt: skip


def told(words: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {words}", file=sys.stderr, flush=True)


def provoked(soak: Soak, name: str) -> list[Row]:
    """The rows of one kind of fault; what goes wrong is a row too."""
    began, rows = time.monotonic(), list[Row]()
    try:
        rows.extend(FAULTS[name](soak))
    except Exception as error:
        words = str(error) if isinstance(error, Wrong) else f"{type(error).__name__}: {error}"
        rows.append(Row(f"{name}: the next fault of this kind", 0, 0, 0, note=f"WRONG: {words}", right=False))
    for row in rows:
        row.note = row.note.replace(f"{soak.root}/", "")
        told(f"{'right' if row.right else 'WRONG'}: {row.fault}: {row.often}×, {row.runs} runs, {row.note}")
    told(f"{name}: {time.monotonic() - began:.0f} s")
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    # A script's shell has what it starts with `&` ignore Ctrl-C, and every process below would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer and smaller: a few minutes")
    parser.add_argument("--only", default=",".join(FAULTS), help="kinds of faults, with commas: %(default)s")
    parser.add_argument("--lanes", type=int, default=2, help="kinds of faults provoked at a time (default 2)")
    parser.add_argument("--docs", action="store_true", help="write docs/soak.md")
    parser.add_argument("--keep", action="store_true", help="leave the folders it worked in")
    asked = parser.parse_args(arguments)
    names = asked.only.split(",")
    for name in names:
        if name not in FAULTS:
            parser.error(f"unknown kind {name!r}; there are: {', '.join(FAULTS)}")
    began, root = time.monotonic(), Path(tempfile.mkdtemp(prefix="soak-"))
    told(f"in {root}")
    soak = Soak(root, asked.quick)
    _ = soak.whole
    with ThreadPoolExecutor(asked.lanes) as lanes:
        coming = lanes.map(lambda name: provoked(soak, name), [name for name in names if name != "ray"])
        last = provoked(soak, "ray") if "ray" in names else []  # Ray starts only in the main thread
        rows = [*(row for made in coming for row in made), *last]
    minutes = (time.monotonic() - began) / 60
    print(table(rows))
    if asked.docs:
        written(ROOT / "docs" / "soak.md", rows, minutes, " ".join(STUDYING), quick=asked.quick)
    if not asked.keep:
        shutil.rmtree(root, ignore_errors=True)
    return 0 if all(row.right for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
