"""A comparison as people see it in a terminal: as much of it as the width has room for."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headscope.comparison.measures import MEASURES, OVER_DEPTH, Measure
from headscope.comparison.result import Comparison, Pair
from headscope.comparison.verdicts import SHORT, SIGNS
from headscope.terminal import VERDICT_STYLE, printable

CLAIM = 28
"""columns that a claim takes, in its short words"""
WIDE = 118
"""columns from which claims are said in full"""
LONGEST_NAME = 32
BARS = "▁▂▃▄▅▆▇█"
NOT_MEASURABLE = "not measurable"


def show_comparison(made: Comparison) -> None:
    """Warnings, findings, rates over depth, characters, and what differs head by head."""
    console = Console()
    _remarks(console, made)
    for part in [*_findings(made, console.width), _depth(made, console.width), *_characters(made, console.width)]:
        console.print(part)
        if isinstance(part, Table) and part.caption:  # which ends without the empty line that a table ends with
            console.print()
    for pair in made.pairs:
        console.print(_differences(made, pair))
        console.print(_changed(made, pair), soft_wrap=False)
        console.print()


def _remarks(console: Console, made: Comparison) -> None:
    for words, style, said in (("warning: ", "bold yellow", made.warnings), ("note: ", "bold", made.notes)):
        for each in said:
            console.print(Text.assemble((words, style), printable(each)))
    if made.warnings or made.notes:
        console.print()


def _table(title: str, caption: str = "") -> Table:
    return Table(
        title=Text(printable(title)),
        caption=Text(caption) if caption else None,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
    )


def _minus(number: str) -> str:
    return number.replace("-", "−")


def _name(name: str, most: int = LONGEST_NAME) -> str:
    shown = printable(name)
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


# -- findings ---------------------------------------------------------------------------------------------------------


def _findings(made: Comparison, width: int) -> list[Table | Text]:
    """All models in one table where they fit with their errors, or without; else so many to a table as fit without."""
    full, brief = (_cells(made, errors=errors) for errors in (True, False))
    if _columns(full, width) >= len(made.names):
        return [_matrix(made, full, made.names, "± is one standard error. ", width), _summary(made)]
    room = max(1, _columns(brief, width))
    told = "Errors: in a wider terminal, --json, comparison.html. "
    parts = [made.names[k : k + room] for k in range(0, len(made.names), room)]
    return [*(_matrix(made, brief, part, told, width) for part in parts), _summary(made)]


def _cells(made: Comparison, *, errors: bool) -> dict[str, list[str]]:
    """By model, what stands in its column."""
    return {
        name: [
            f"{SIGNS[one.verdict]} {_number(one.value, one.error if errors else None, one.unit)}"
            for one in made.found[name]
        ]
        for name in made.names
    }


def _number(value: float | None, error: float | None, unit: str) -> str:
    if value is None or math.isnan(value):
        return ""
    scale, digits = (100, 1) if unit == "%" else (1, 2)
    text = _minus(f"{value * scale:.{digits}f}")
    return text if error is None or math.isnan(error) else f"{text} ± {error * scale:.{digits}f}"


def _columns(cells: dict[str, list[str]], width: int) -> int:
    """How many models fit beside the claims."""
    widest = max(len(cell) for column in cells.values() for cell in column)
    return (width - CLAIM - 4 - 10) // (widest + 2)


def _matrix(made: Comparison, cells: dict[str, list[str]], names: Sequence[str], told: str, width: int) -> Table:
    table = _table("The paper's claims", f"{told}✓ holds  ✗ does not hold  – cannot be measured")
    table.add_column("", justify="right")
    table.add_column("claim", ratio=1 if width >= WIDE else None, min_width=CLAIM)
    table.add_column("in")
    for name in names:
        table.add_column(Text(_name(name)), overflow="fold", vertical="top")
    first = made.found[names[0]]
    for row, finding in enumerate(first):
        units = dict.fromkeys(made.found[name][row].unit for name in names if made.found[name][row].unit)
        values = [Text(cells[name][row], style=VERDICT_STYLE[made.found[name][row].verdict]) for name in names]
        claim = finding.claim if width >= WIDE else SHORT.get(finding.number, finding.claim)
        table.add_row(str(finding.number), Text(claim), _units(list(units)), *values)
    return table


def _units(units: Sequence[str]) -> str:
    """One unit; of models with other numbers of heads, all of these."""
    return (
        units[0] if len(units) == 1 else "of " + "/".join(unit.removeprefix("of ") for unit in units) if units else ""
    )


def _summary(made: Comparison) -> Text:
    said = Text()
    for holds, words in (("all", "all"), ("some", "some"), ("none", "none"), (NOT_MEASURABLE, "")):
        numbers = made.summary.loc[made.summary["holds_for"] == holds, "number"].tolist()
        if numbers:
            said.append(f"{f'Hold for {words}' if words else 'Measurable for none'}: ", style="bold")
            said.append(", ".join(map(str, numbers)) + ". ")
    said.append("\n")
    return said


# -- depth ------------------------------------------------------------------------------------------------------------


def _depth(made: Comparison, width: int) -> Table:
    told = "Each bar a layer, the first to the left; bars of one rate share a scale. pp: percentage points."
    table = _table("Rates over depth, mean over heads, against chance", told)
    table.add_column("rate")
    table.add_column("model", overflow="fold")
    table.add_column("first", justify="right", no_wrap=True)
    table.add_column("by layer", no_wrap=True, overflow="crop")
    table.add_column("last", justify="right", no_wrap=True)
    for rate in OVER_DEPTH:
        measure, rows = MEASURES[rate], made.depth[made.depth["rate"] == rate]
        known = rows["against_chance"].dropna()
        for k, name in enumerate(made.names):
            own = rows[rows["model"] == name]
            values = own["against_chance"].tolist()
            label = (measure.label, "× chance" if measure.over else "pp over chance", *[""] * k)[k]
            if own["against_chance"].isna().all():
                table.add_row(label, Text(_name(name)), "", NOT_MEASURABLE, "")
                continue
            bars = _bars(values, min(0.0, known.min()), known.max(), max(8, width - 66))
            table.add_row(label, Text(_name(name)), _end(measure, own, 0), bars, _end(measure, own, -1))
        table.add_section()
    return table


def _end(measure: Measure, rows: pd.DataFrame, place: int) -> str:
    row = rows.iloc[place]
    scale, digits = (1, 2) if measure.over else (100, 1)
    value, error = float(row["against_chance"]) * scale, float(row["against_chance_error"]) * scale
    if math.isnan(value):
        return "–"
    sign = "" if measure.over else "+"
    text = _minus(f"{value:{sign}.{digits}f}")
    return text if math.isnan(error) else f"{text} ± {error:.{digits}f}"


def _bars(values: Sequence[float], low: float, high: float, most: int) -> str:
    """One character a layer; of many layers, evenly chosen ones."""
    if len(values) > most:
        values = [values[round(k * (len(values) - 1) / (most - 1))] for k in range(most)]
    reach = (high - low) or 1.0
    return "".join(
        " " if math.isnan(value) else BARS[min(int((value - low) / reach * len(BARS)), len(BARS) - 1)]
        for value in values
    )


# -- characters -------------------------------------------------------------------------------------------------------


def _characters(made: Comparison, width: int) -> list[Table]:
    """Heads of each character; so many models to a table as fit."""
    counted = made.characters
    there = [str(kind) for kind, rows in counted.groupby("character", sort=False) if rows["heads"].any()]
    tables = []
    for names in _parts(made.names, width - 6 - max(map(len, there))):
        table = _table("Heads by character")
        table.add_column("character")
        for name in names:
            table.add_column(Text(_name(name)), justify="right", overflow="fold")
        for kind in there:
            rows = counted[counted["character"] == kind]
            of = {
                name: (heads, share)
                for name, heads, share in zip(rows["model"], rows["heads"], rows["share"], strict=True)
            }
            table.add_row(Text(kind), *("{} ({:.0%})".format(*of[name]) for name in names))
        tables.append(table)
    return tables


def _parts(names: Sequence[str], width: int) -> list[list[str]]:
    """Names in as few lines of columns as the width allows."""
    parts: list[list[str]] = [[]]
    left = width
    for name in names:
        wide = min(max(len(name), 9), LONGEST_NAME) + 3
        if parts[-1] and wide > left:
            parts.append([])
            left = width
        parts[-1].append(name)
        left -= wide
    return parts


# -- head by head -----------------------------------------------------------------------------------------------------


def _differences(made: Comparison, pair: Pair) -> Table:
    table = _table(
        f"Head by head: {_name(pair.other)} minus {_name(pair.one)}",
        f"{pair.how[0].upper()}{pair.how[1:]}. Significant: Student's t, p ≤ {made.alpha:g} after Holm's correction "
        "over the heads of a rate. r: correlation over heads.",
    )
    table.add_column("rate")
    table.add_column("significant", justify="right")
    table.add_column("largest of them")
    table.add_column("r", justify="right")
    alike = made.correlations[made.correlations["model"] == pair.other].set_index("rate")["correlation"]
    for name, measure in MEASURES.items():
        rows = made.differences(name, pair.other)
        tests, found = int(rows["p"].notna().sum()), rows[rows["significant"].astype(bool)]
        said = f"{len(found)} of {tests}" if tests else NOT_MEASURABLE
        r = float(alike[name])
        table.add_row(measure.label, said, _largest(measure, found), "–" if math.isnan(r) else _minus(f"{r:.3f}"))
    return table


def _largest(measure: Measure, found: pd.DataFrame) -> str:
    if not len(found):
        return "–"
    row = found.iloc[int(found["difference"].abs().to_numpy().argmax())]
    value, error = float(row["difference"]) * measure.factor, float(row["error"]) * measure.factor
    unit = "pp" if measure.unit == "%" else measure.unit
    return _minus(f"{row['name']}: {value:+.2f} ± {error:.2f} {unit}")


def _changed(made: Comparison, pair: Pair) -> Text:
    rows = made.changes[made.changes["model"] == pair.other]
    changed = rows[rows["changed"].astype(bool)]
    said = f"{len(changed)} of {len(rows)} heads changed character"
    if len(changed):
        steps = Counter(zip(changed["before"], changed["after"], strict=True))
        most = [f"{count} from {before} to {after}" for (before, after), count in steps.most_common(3)]
        said += f": {', '.join(most)}{', …' if len(steps) > 3 else ''}"
    return Text(printable(f"{said}."))
