"""Tables of what chunks cost, for the terminal and for docs/cluster.md."""

from __future__ import annotations

from typing import Any

from measuring.tables import made_with, table


def sizes_table(result: dict[str, Any], *, markdown: bool = False) -> str:
    largest = result["rows"][-1]
    rows, header = [], ["chunk", "documents", "batches", "tokens, largest = 1"]
    for row in result["rows"]:
        cells = [f"{row['factor']:g} ×", f"{row['documents']:,}", f"{row['batches']:,}"]
        rows.append([*cells, f"{row['tokens'] / largest['tokens']:.3f}"])
    if "seconds" in largest:
        header += ["seconds per chunk", "texts/s", "time, largest = 1", "of processors"]
        for cells, row in zip(rows, result["rows"], strict=True):
            cells += [f"{row['seconds_per_chunk']:.1f}", f"{result['texts'] / row['seconds']:,.1f}"]
            cells += [f"{row['ratio']:.3f}", f"{row['processor_ratio']:.3f}"]
    about = result["about"]
    rounds = f", {result['rounds']} rounds" if result["rounds"] else ""
    words = (
        f"{result['texts']:,} texts of up to {about['length']} tokens, {about['model']}{rounds}; {made_with(about)}."
    )
    return f"{words}\n\n{table(header, rows, markdown=markdown)}"


def bytes_table(result: dict[str, Any], *, markdown: bool = False) -> str:
    rows = [
        [
            str(row["readers"]), str(row["lost"]), f"{row['bytes'] / 1e6:,.1f}", f"{row['read_again'] / 1e6:.1f}",
            f"{row['ratio']:.4f}", f"{row['seconds']:.1f}",
        ]
        for row in result["rows"]
    ]  # fmt: skip
    header = ("readers", "ended midway", "MB read", "of it lost with them", "of the file, with planning", "seconds")
    words = (
        f"A file of {result['file_bytes'] / 1e6:,.1f} MB, {result['documents']:,} documents, in {result['chunks']:,} "
        f"chunks of {result['chunk_bytes']:,} bytes ({result['about']['model']}); planning reads "
        f"{result['planning_bytes'] / 1e6:.1f} MB. {made_with(result['about'])}."
    )
    return f"{words}\n\n{table(header, rows, markdown=markdown)}"


def ray_bytes_table(result: dict[str, Any], *, markdown: bool = False) -> str:
    rows = [
        [
            str(row["workers"]), str(row["killed"]), f"{row['bytes'] / 1e6:,.1f}", f"{row['read_again'] / 1e6:.1f}",
            f"{(row['bytes'] - row['read_again']) / result['file_bytes']:.4f}", f"{row['ratio']:.4f}",
            f"{row['seconds']:.0f}",
        ]
        for row in result["rows"]
    ]  # fmt: skip
    header = (
        "workers", "killed", "MB read", "of it in tasks that died", "of the file, without these", "of the file",
        "seconds",
    )  # fmt: skip
    words = (
        f"A file of {result['file_bytes'] / 1e6:,.1f} MB, {result['documents']:,} documents, all counted in every row. "
        f"{made_with(result['about'])}."
    )
    return f"{words}\n\n{table(header, rows, markdown=markdown)}"


def planning_table(result: dict[str, Any], *, markdown: bool = False) -> str:
    rows = [
        [
            row["files"], f"{row['seconds']:.1f}", f"{row['seconds_listing']:.1f}", f"{row['listing_requests']:,}",
            f"{row['metadata_requests']:,}", f"{row['files_opened']:,}", f"{row['chunks']:,}",
            f"{row['identity_bytes'] / 1e6:.1f} MB",
        ]
        for row in result["rows"]
    ]  # fmt: skip
    header = (
        "files", "seconds", "of it listing", "listing requests", "metadata requests", "files opened", "chunks",
        "names in a checkpoint",
    )  # fmt: skip
    words = f"Every request takes {1000 * result['latency']:.0f} ms; {made_with(result['about'])}."
    return f"{words}\n\n{table(header, rows, markdown=markdown)}"
