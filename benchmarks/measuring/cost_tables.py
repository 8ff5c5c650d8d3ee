"""The tables of docs/cluster.md: what was measured, and what follows from it for corpora nobody here has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headscope.run.engines import TASK_SECONDS
from measuring.chunk_tables import bytes_table, planning_table, ray_bytes_table, sizes_table
from measuring.tables import DOCS, Section, made_with, number, of_kind, read_all, table, write_page

DOCUMENTS = (10**6, 10**8, 10**10)
DOCUMENT_BYTES = 2000
"""of a document, as articles of the web are, unpacked; packed it is about a third"""
PACKED = 0.35
WORKERS = (8, 64, 1000)
GPUS_PER_NODE = 8
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


def driver_table(results: list[dict[str, Any]]) -> str:
    """How busy the driver of a simulated cluster is."""
    rows = [
        [
            f"{each['workers']:,}",
            f"{each['nodes']:,}",
            f"{each['simulated_seconds']:,.0f} s",
            f"{each['results']:,}",
            _bytes(each["received_bytes_per_second"]) + "/s",
            f"{1e3 * each['driver_seconds'] / each['results']:.0f} ms",
            f"{each['busy']:.0%}",
            f"{each['workers_lost']}",
            "yes" if each["right"] else "no",
        ]
        for each in of_kind(results, "ray-driver")
    ]
    header = [
        "workers", "nodes", "study", "results", "to the driver", "driver's time for each", "driver busy",
        "workers lost", "sums right",
    ]  # fmt: skip
    machines = "\n".join(made_with(each["about"]) + "." for each in of_kind(results, "ray-driver"))
    return table(header, rows, markdown=True) + "\n\n" + machines


def _gpu(results: list[dict[str, Any]]) -> tuple[float, float]:
    """Texts per second of one GPU in float32, and bytes of sums."""
    (cost,) = [
        each
        for each in of_kind(results, "cost")
        if each["about"]["device"] == "cuda" and each["about"]["dtype"] == "float32"
    ]
    (sums,) = of_kind(results, "reduce")
    return cost["texts"] / cost["seconds"], sums["bytes"]


def corpora_table(results: list[dict[str, Any]]) -> str:
    """What a corpus costs, whoever computes it."""
    rate, size = _gpu(results)
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
    """What travels, by the number of workers; a corpus may be as long as it likes."""
    rate, size = _gpu(results)
    rows = []
    for workers in WORKERS:
        arrivals = workers / GPUS_PER_NODE / TASK_SECONDS
        rows.append(
            [
                f"{workers:,}",
                f"{workers // GPUS_PER_NODE:,}",
                _bytes(arrivals * size) + "/s",
                f"{TASK_SECONDS * rate:,.0f}",
                _bytes(workers * rate * DOCUMENT_BYTES * PACKED) + "/s",
            ]
        )
    header = [
        "GPUs", "machines", "sums to the driver", "texts lost with a worker, about",
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
    "ray driver": driver_table,
    "workers": workers_table,
    "chunk sizes": lambda results: "\n\n".join(
        sizes_table(result, markdown=True) for result in of_kind(results, "chunk-sizes")
    ),
    "chunk bytes": lambda results: "\n\n".join(
        bytes_table(result, markdown=True) for result in of_kind(results, "chunk-bytes")
    ),
    "ray bytes": lambda results: "\n\n".join(
        ray_bytes_table(result, markdown=True) for result in of_kind(results, "ray-bytes")
    ),
    "planning": lambda results: "\n\n".join(
        planning_table(result, markdown=True) for result in of_kind(results, "planning")
    ),
}


def write_docs(paths: list[Path]) -> None:
    write_page(DOCS / "cluster.md", SECTIONS, read_all(paths))
