"""The tables of the segmentation benchmark."""

from __future__ import annotations

from typing import Any

from measuring.tables import NONE, Section, made_with, number, of_kind, table


def quality_table(result: dict[str, Any], *, markdown: bool = False) -> str:
    """Pk / WindowDiff of every way, for documents of so many segments."""
    counts = list(result["documents"])
    header = ["way"]
    for count in counts:
        header += [f"{count}: known", "unknown", "found"]
    rows = [[name, *_cells(held, counts)] for name, held in result["classics"].items()]
    for model, ways in result["models"].items():
        rows += [[f"{model}: {name}", *_cells(held, counts)] for name, held in ways.items()]
    return table(header, rows, markdown=markdown)


def _cells(held: dict[str, Any], counts: list[str]) -> list[str]:
    cells = []
    for count in counts:
        found = held[count]
        cells += [_errors(found["known"]), _errors(found.get("unknown")), number(found.get("segments_found"), 1)]
    return cells


def _errors(found: dict[str, float] | None) -> str:
    if found is None:
        return NONE
    return f"{number(found['pk'])} ± {number(found['pk_half'])} / {number(found['window_diff'])}"


def length_table(result: dict[str, Any], *, markdown: bool = False) -> str:
    """Pk by the mean length of a document's segments."""
    first = next(iter(result["documents"]))
    ways = {name: held[first] for name, held in result["classics"].items()}
    for model, each in result["models"].items():
        ways |= {f"{model}: {name}": held[first] for name, held in each.items()}
    sizes = next(iter(ways.values()))["by_length"]["known"]
    header = ["way", *(f"{name} ({held['documents']})" for name, held in sizes.items())]
    rows = [
        [
            name,
            *(
                " / ".join(_of_size(held["by_length"].get(mode), size) for mode in ("known", "unknown"))
                for size in sizes
            ),
        ]
        for name, held in ways.items()
    ]
    return table(header, rows, markdown=markdown)


def _of_size(found: dict[str, Any] | None, size: str) -> str:
    return NONE if found is None else number(found[size]["pk"])


def growth_table(result: dict[str, Any], *, markdown: bool = False) -> str:
    rows = [
        [
            f"{row['sentences']:,}",
            f"{row['words']:,}",
            number(row["seconds"]),
            number(1000 * row["seconds"] / row["sentences"], 1),
        ]
        for row in result["rows"]
    ]
    return table(["sentences", "words", "seconds", "ms per sentence"], rows, markdown=markdown)


def _quality(results: list[dict[str, Any]]) -> str:
    parts = []
    for result in of_kind(results, "segmentation"):
        parts.append(quality_table(result, markdown=True))
        parts.append("By the mean length of a document's segments in sentences, Pk known / unknown:")
        parts.append(length_table(result, markdown=True))
        parts.append(f"{result['file']}, {made_with(result['machine'])}.")
    return "\n\n".join(parts)


def _growth(results: list[dict[str, Any]]) -> str:
    parts = []
    for result in of_kind(results, "segmentation-growth"):
        parts.append(growth_table(result, markdown=True))
        parts.append(f"{result['model']}, {made_with(result['machine'])}.")
    return "\n\n".join(parts)


SECTIONS: dict[str, Section] = {"quality": _quality, "growth": _growth}
