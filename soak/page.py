# ruff: noqa: D103
"""The page of results: nothing is said in it that was not run."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from runs import Row

HEAD = """# What happens to a study that is disturbed

Written by `make soak` (`python soak/soak.py --docs`): {kind}, {date}, {minutes:.0f} minutes on {cores} cores with
{memory:.0f} GiB of memory. `python soak/soak.py --help` says how to run parts of it.

Every row is a fault, provoked on studies by the real command line, each a process of its own. The bundled model studies
files of all kinds (JSON lines, packed ones, a folder of texts, CSV, Parquet) with
`{options}`; memory and Ray are
soaked with a random BERT of 2 layers and many short texts. *Runs* is how often the command was given until a study was
finished. Every finished study is compared with an undisturbed one of the same texts: every integer must be the same,
every real to 1e-12, also the documents it speaks of, their hash, and what was skipped. *Lost* and *twice* are texts or
documents that are missing, or counted more than once; – where only memory was measured, and nothing compared. With
`--skip-broken` only the numbers of texts and documents are.

"""
FOOT = """
How faults are provoked: signals are sent to the process; the full disk is a small file system in memory; a slow reader,
the jumping clock, the batch that finds no memory and the failing tokenizer are put underneath the command by
`soak/child.py`. It also makes chunks of 16 documents, because the texts here would be one or two chunks of the usual
size; but memory and Ray are soaked with the usual ones. Except for kill −9 and for Ctrl-C given twice, it draws one
blank figure in place of all, because drawing takes longer than the rest. Out of memory changes batches, and with them
the last digits of the model's numbers: there reals are compared to 1e-4, and one in 10,000 similarities
may be in the next bin of its histogram.
"""


def table(rows: Sequence[Row]) -> str:
    """All rows, in Markdown."""
    lines = [
        "| fault | times | runs | finished | lost | twice | as it should be | note |",
        "|---|--:|--:|--:|--:|--:|---|---|",
    ]
    for row in rows:
        lost, twice = ("–" if count is None else count for count in (row.lost, row.twice))
        note = row.note.replace("|", "\\|").replace("\n", " ")
        right = "not run" if not row.often and row.right else "yes" if row.right else "**NO**"
        lines.append(
            f"| {row.fault} | {row.often} | {row.runs} | {row.finished} | {lost} | {twice} | {right} | {note} |"
        )
    faults, runs, finished = (sum(getattr(row, name) for row in rows) for name in ("often", "runs", "finished"))
    all_lost, all_twice = (sum(getattr(row, name) or 0 for row in rows) for name in ("lost", "twice"))
    lines.append(f"| **all** | {faults} | {runs} | {finished} | **{all_lost}** | **{all_twice}** | | |")
    return "\n".join(lines) + "\n"


def written(path: Path, rows: Sequence[Row], minutes: float, options: str, *, quick: bool) -> None:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    kind = "the quick version" if quick else "all of it"
    head = HEAD.format(
        kind=kind, date=time.strftime("%Y-%m-%d"), minutes=minutes, cores=os.cpu_count(), memory=memory, options=options
    )
    path.write_text(head + table(rows) + FOOT, encoding="utf-8")
