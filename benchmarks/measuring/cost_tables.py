"""The tables of docs/cluster.md: what was measured, and what follows from it for corpora nobody here has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from measuring.tables import DOCS, Section, made_with, number, of_kind, read_all, table, write_page

DOCUMENTS = (10**6, 10**8, 10**10)
DOCUMENT_BYTES = 2000
"""of a document, as articles of the web are, unpacked; packed it is about a third"""
PACKED = 0.35
WORKERS = (8, 64, 1000)
LEASE_SECONDS, BUSY = 20.0, 0.25
"""as in headscope/engines/ray_cluster.py"""
POWERS = {10**6: "10⁶", 10**8: "10⁸", 10**10: "10¹⁰"}


def measured_table(results: list[dict[str, Any]]) -> str:
    rows = []
    for each in of_kind(results, "cost"):
        about = each["about"]
        rate = each["texts"] / each["seconds"]
        rows.append(
            [
                f"{about['model']}, {about['dtype']}",
                about["processor"],
                f"{each['texts']:,}",
                f"{rate:,.0f}",
                f"{1e6 / rate / 3600:,.2f}",
                f"{each['checkpoint_bytes'] / 1e6:.0f} MB",
                f"{each['seconds_with_checkpoints'] / each['seconds']:.2f}",
                "yes" if each["same_integers"] else "no",
                f"{each['largest_relative_difference_of_reals']:.0e}",
            ]
        )
    header = [
        "model", "on", "texts", "texts/s", "hours for 10⁶", "checkpoint", "with checkpoints", "same integers",
        "reals apart",
    ]  # fmt: skip
    said = "\n".join(
        f"{each['about']['processor']}: a checkpoint every {each['every']:g} s; {made_with(each['about'])}."
        for each in of_kind(results, "cost")
    )
    return table(header, rows, markdown=True) + "\n\n" + said


def reduce_table(results: list[dict[str, Any]]) -> str:
    rows = [
        [
            each["about"]["shape"],
            f"{each['workers']:,}",
            f"{each['bytes'] / 1e6:.0f} MB",
            f"{each['seconds']:.1f} s",
            f"{1e3 * each['seconds'] / each['workers']:.0f} ms",
            f"{each['tree_seconds']:.2f} s",
            f"{each['peak_megabytes']:,.0f} MB",
            "yes" if each["right"] else "no",
            "refused" if each["twice_refused"] else "counted",
        ]
        for each in of_kind(results, "reduce")
    ]
    header = [
        "model", "workers", "sums of one", "all added in", "each", "as a tree", "driver's memory", "right",
        "one sent twice",
    ]  # fmt: skip
    said = "\n".join(made_with(each["about"]) + "." for each in of_kind(results, "reduce"))
    return table(header, rows, markdown=True) + "\n\n" + said


def _gpu(results: list[dict[str, Any]]) -> tuple[float, float, float]:
    """Texts a second of one GPU in float32, bytes of sums, and seconds in which a driver takes them in."""
    (cost,) = [
        each
        for each in of_kind(results, "cost")
        if each["about"]["device"] == "cuda" and each["about"]["dtype"] == "float32"
    ]
    (sums,) = of_kind(results, "reduce")
    return cost["texts"] / cost["seconds"], sums["bytes"], sums["seconds"] / sums["workers"]


def corpora_table(results: list[dict[str, Any]]) -> str:
    """What a corpus costs, whoever computes it."""
    rate, size, _ = _gpu(results)
    rows = []
    for documents in DOCUMENTS:
        stored = documents * DOCUMENT_BYTES
        hours = documents / rate / 3600
        rows.append(
            [
                POWERS[documents],
                f"{hours:,.2f}" if hours < 10 else f"{hours:,.0f}",
                _time(documents / rate / 8),
                _time(documents / rate / 1000),
                _bytes(stored),
                _bytes(stored * PACKED),
                _bytes(size),
            ]
        )
    header = [
        "documents", "GPU-hours", "on 8 GPUs", "on 1,000 GPUs", "text, unpacked", "packed", "sums at any moment",
    ]  # fmt: skip
    return table(header, rows, markdown=True)


def workers_table(results: list[dict[str, Any]]) -> str:
    """What the driver has to do, by the number of workers; a corpus may be as long as it likes."""
    rate, size, taking = _gpu(results)
    rows = []
    for workers in WORKERS:
        lease = max(LEASE_SECONDS, workers * taking / BUSY)
        rows.append(
            [
                f"{workers:,}",
                f"{lease:.0f} s",
                _bytes(workers * size / lease) + "/s",
                f"{workers * taking / lease:.0%}",
                f"{lease * rate:,.0f}",
                _bytes(workers * rate * DOCUMENT_BYTES * PACKED) + "/s",
            ]
        )
    header = [
        "GPUs", "length of a lease", "sums to the driver", "driver busy", "texts lost with a worker",
        "texts from storage",
    ]  # fmt: skip
    return table(header, rows, markdown=True)


def _bytes(count: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{number(count / size, 1)} {unit}"
    return f"{count:,.0f} B"


def _time(seconds: float) -> str:
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{number(seconds / size, 1)} {unit}"
    return f"{seconds:,.1f} s"


SECTIONS: dict[str, Section] = {
    "measured": measured_table,
    "reduce": reduce_table,
    "corpora": corpora_table,
    "workers": workers_table,
}


def write_docs(paths: list[Path]) -> None:
    write_page(DOCS / "cluster.md", SECTIONS, read_all(paths))
