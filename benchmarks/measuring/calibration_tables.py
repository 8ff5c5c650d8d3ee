"""The tables of the calibration benchmark."""

from __future__ import annotations

from typing import Any

import numpy as np

from measuring.tables import Section, made_with, of_kind, table


def tabulate_errors(result: dict[str, Any], *, markdown: bool = False) -> str:
    """Return jackknife errors over true ones, and the coverage of intervals: the mean over rates, and their range."""
    header = ["model", "windows", "blocks of", "documents", "texts"]
    header += ["error / true error", "coverage of 95 %", "largest document"]
    rows = []
    for row in result["rows"]:
        if row["measured"] != "errors":
            continue
        drawn = row["drawn"] or row["documents"]
        texts = round(row["texts"] * drawn / row["documents"])
        numbers = [
            _format_range(row, "ratio", 1, 2, ""),
            _format_range(row, "coverage", 100, 1, " %"),
            _format_range(row, "largest_document", 100, 0, " %"),
        ]
        rows.append([row["model"], row["windows"], row["blocks"], f"{drawn:,}", f"{texts:,}", *numbers])
    return table(header, rows, markdown=markdown)


OUTLIERS = {
    "coverage": "coverage of 95 %",
    "drawn": "document drawn",
    "not_drawn": "not drawn",
    "logarithm": "logarithm, kurtosis",
    "without_one": "without it",
    "without_two": "without two",
}


def tabulate_outliers(result: dict[str, Any], *, markdown: bool = False) -> str:
    """Return the coverage of every rate, by what happens to the documents that influence it most."""
    rows = [
        [row["model"], row["windows"], rate.replace("_", " "), *(f"{100 * shares[name]:.1f} %" for name in OUTLIERS)]
        for row in result["rows"]
        if row["measured"] == "outliers"
        for rate, shares in row["rates"].items()
    ]
    return table(["model", "windows", "rate", *OUTLIERS.values()], rows, markdown=markdown)


def tabulate_alarms(result: dict[str, Any], *, markdown: bool = False) -> str:
    """Return the shares of tests, and of families, that are false alarms: the mean over rates, and their range."""
    header = ["model", "windows", "blocks of", "compared", "tests, p ≤ 0.05", "families, corrected p ≤ 0.05"]
    rows = [
        [
            row["model"],
            row["windows"],
            row["blocks"],
            row["measured"],
            *(_format_range(row, name, 100, 1, " %") for name in ("tests", "families")),
        ]
        for row in result["rows"]
        if row["measured"] in ("halves", "paired")
    ]
    return table(header, rows, markdown=markdown)


def _format_range(row: dict[str, Any], name: str, factor: float, digits: int, unit: str) -> str:
    values = [rate[name] * factor for rate in row["rates"].values()]
    return f"{np.mean(values):.{digits}f}{unit} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def _write_errors(results: list[dict[str, Any]]) -> str:
    (result,) = of_kind(results, "calibration")
    return (
        f"{tabulate_errors(result, markdown=True)}\n\n{result['draws']} draws, texts of {result['source']}, "
        f"{made_with(result['machine'])}."
    )


def _write_alarms(results: list[dict[str, Any]]) -> str:
    (result,) = of_kind(results, "calibration")
    return f"{tabulate_alarms(result, markdown=True)}\n\n{result['draws']} splits of the same texts."


def _write_outliers(results: list[dict[str, Any]]) -> str:
    (result,) = of_kind(results, "calibration")
    return f"{tabulate_outliers(result, markdown=True)}\n\n{result['draws']} draws of as many documents as there are."


SECTIONS: dict[str, Section] = {"errors": _write_errors, "outliers": _write_outliers, "alarms": _write_alarms}
