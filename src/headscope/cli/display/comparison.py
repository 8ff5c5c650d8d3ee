"""Terminal tables of a comparison, as wide as the terminal allows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headscope.cli.display.console import VERDICT_STYLE, to_printable
from headscope.comparison.claims import NO_VERDICT, SHORT_CLAIMS, VERDICT_LEGEND, VERDICT_SIGNS
from headscope.comparison.measures import MEASURES, OVER_DEPTH, Measure
from headscope.comparison.result import Comparison, Pair
from headscope.studies.head_types import PARTS, TypePart
from headscope.studies.sample_size import TOO_FEW_TEXTS

CLAIM = 28
"""Width of the column of short claims."""
WIDE = 118
"""Terminal width from which claims are printed in full."""
LONGEST_NAME = 32
BARS = "▁▂▃▄▅▆▇█"
NOT_MEASURABLE = "not measurable"


def show_comparison(comparison: Comparison) -> None:
    """Print warnings, findings, rates over depth, head types, and differences head by head."""
    console = Console()
    _print_remarks(console, comparison)
    parts = [
        *_make_claims_tables(comparison, console.width),
        _make_depth_table(comparison, console.width),
        *_make_head_type_tables(comparison, console.width),
    ]
    for part in parts:
        console.print(part)
        if isinstance(part, Table) and part.caption:  # a caption is not followed by an empty line
            console.print()
    for pair in comparison.pairs:
        console.print(_make_differences_table(comparison, pair))
        console.print(_summarize_changes(comparison, pair), soft_wrap=False)
        console.print()


def _print_remarks(console: Console, comparison: Comparison) -> None:
    for prefix, style, remarks in (
        ("warning: ", "bold yellow", comparison.warnings),
        ("note: ", "bold", comparison.notes),
    ):
        for remark in remarks:
            console.print(Text.assemble((prefix, style), to_printable(remark)))
    if comparison.warnings or comparison.notes:
        console.print()


def _make_table(title: str, caption: str = "") -> Table:
    return Table(
        title=Text(to_printable(title)),
        caption=Text(caption) if caption else None,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
    )


def _replace_hyphen(number: str) -> str:
    return number.replace("-", "−")


def _shorten_name(name: str, max_length: int = LONGEST_NAME) -> str:
    printable = to_printable(name)
    return printable if len(printable) <= max_length else f"{printable[: max_length - 1]}…"


# -- findings ---------------------------------------------------------------------------------------------------------


def _make_claims_tables(comparison: Comparison, width: int) -> list[Table | Text]:
    """Return the tables of claims.

    All models are in one table if they fit, with their errors or without; otherwise each table has as many as fit
    without.
    """
    cells_with_errors, cells = (_format_cells(comparison, errors=errors) for errors in (True, False))
    if _count_fitting_columns(cells_with_errors, width) >= len(comparison.names):
        hint = "± is one standard error. "
        table = _make_claims_table(comparison, cells_with_errors, comparison.names, hint, width)
        return [table, _make_summary(comparison)]
    columns = max(1, _count_fitting_columns(cells, width))
    hint = "Errors: in a wider terminal, --json, comparison.html. "
    parts = [comparison.names[k : k + columns] for k in range(0, len(comparison.names), columns)]
    return [*(_make_claims_table(comparison, cells, part, hint, width) for part in parts), _make_summary(comparison)]


def _format_cells(comparison: Comparison, *, errors: bool) -> dict[str, list[str]]:
    """Return the cells of the column of each model."""
    return {
        name: [
            f"{VERDICT_SIGNS[finding.verdict]} "
            f"{_format_number(finding.value, finding.error if errors else None, finding.unit)}"
            for finding in comparison.findings_by_model[name]
        ]
        for name in comparison.names
    }


def _format_number(value: float | None, error: float | None, unit: str) -> str:
    if value is None or math.isnan(value):
        return ""
    scale, digits = (100, 1) if unit == "%" else (1, 2)
    text = _replace_hyphen(f"{value * scale:z.{digits}f}")
    return text if error is None or math.isnan(error) else f"{text} ± {error * scale:.{digits}f}"


def _count_fitting_columns(cells: dict[str, list[str]], width: int) -> int:
    """Return how many models fit beside the claims."""
    widest = max(len(cell) for column in cells.values() for cell in column)
    return (width - CLAIM - 4 - 10) // (widest + 2)


def _make_claims_table(
    comparison: Comparison, cells: dict[str, list[str]], names: Sequence[str], hint: str, width: int
) -> Table:
    table = _make_table("The paper's claims", f"{hint}{VERDICT_LEGEND}")
    table.add_column("", justify="right")
    table.add_column("claim", ratio=1 if width >= WIDE else None, min_width=CLAIM)
    table.add_column("in")
    widest = max(len(cell) for name in names for cell in cells[name])
    max_width = max(widest, (width - CLAIM - 19) // len(names) - 3)  # 19 and 3: the other columns, and space between
    for name in names:
        table.add_column(Text(_shorten_name(name)), overflow="fold", vertical="top", max_width=max_width)
    for row, finding in enumerate(comparison.findings_by_model[names[0]]):
        findings = {name: comparison.findings_by_model[name][row] for name in names}
        units = dict.fromkeys(item.unit for item in findings.values() if item.unit)
        values = [Text(cells[name][row], style=VERDICT_STYLE[findings[name].verdict]) for name in names]
        claim = finding.title if width >= WIDE else SHORT_CLAIMS.get(finding.number, finding.title)
        table.add_row(str(finding.number), Text(claim), _join_units(list(units)), *values)
    return table


def _join_units(units: Sequence[str]) -> str:
    """Return the unit; for models with different numbers of heads, all units."""
    return (
        units[0] if len(units) == 1 else "of " + "/".join(unit.removeprefix("of ") for unit in units) if units else ""
    )


def _make_summary(comparison: Comparison) -> Text:
    text = Text()
    for models, scope in (("all", "all"), ("some", "some"), ("none", "none"), (NO_VERDICT, "")):
        numbers = comparison.summary.loc[comparison.summary["consistent_for"] == models, "number"].tolist()
        if numbers:
            text.append(f"{f'Consistent for {scope}' if scope else 'No verdict for any'}: ", style="bold")
            text.append(", ".join(map(str, numbers)) + ". ")
    text.append("\n")
    return text


# -- depth ------------------------------------------------------------------------------------------------------------


def _make_depth_table(comparison: Comparison, width: int) -> Table:
    caption = "Each bar a layer, the first to the left; bars of one rate share a scale. pp: percentage points."
    table = _make_table("Rates over depth, mean over heads, against chance", caption)
    table.add_column("rate")
    table.add_column("model", overflow="fold")
    table.add_column("first", justify="right", no_wrap=True)
    table.add_column("by layer", no_wrap=True, overflow="crop")
    table.add_column("last", justify="right", no_wrap=True)
    for rate in OVER_DEPTH:
        measure, rows = MEASURES[rate], comparison.depth[comparison.depth["rate"] == rate]
        known = rows["against_chance"].dropna()
        for k, name in enumerate(comparison.names):
            model_rows = rows[rows["model"] == name]
            values = model_rows["against_chance"].tolist()
            label = (measure.label, "× chance" if measure.over else "pp over chance", *[""] * k)[k]
            if model_rows["against_chance"].isna().all():
                table.add_row(label, Text(_shorten_name(name)), "", NOT_MEASURABLE, "")
                continue
            bars = _draw_bars(values, min(0.0, known.min()), known.max(), max(8, width - 66))
            first, last = (_format_end(measure, model_rows, index) for index in (0, -1))
            table.add_row(label, Text(_shorten_name(name)), first, bars, last)
        table.add_section()
    return table


def _format_end(measure: Measure, rows: pd.DataFrame, index: int) -> str:
    row = rows.iloc[index]
    scale, digits = (1, 2) if measure.over else (100, 1)
    value, error = float(row["against_chance"]) * scale, float(row["against_chance_error"]) * scale
    if math.isnan(value):
        return "–"
    sign = "" if measure.over else "+"
    text = _replace_hyphen(f"{value:{sign}.{digits}f}")
    return text if math.isnan(error) else f"{text} ± {error:.{digits}f}"


def _draw_bars(values: Sequence[float], low: float, high: float, max_bars: int) -> str:
    """Draw one character per layer; of many layers, evenly spaced ones."""
    if len(values) > max_bars:
        values = [values[round(k * (len(values) - 1) / (max_bars - 1))] for k in range(max_bars)]
    span = (high - low) or 1.0
    return "".join(
        " " if math.isnan(value) else BARS[min(int((value - low) / span * len(BARS)), len(BARS) - 1)]
        for value in values
    )


# -- head types -------------------------------------------------------------------------------------------------------


def _make_head_type_tables(comparison: Comparison, width: int) -> list[Table]:
    """Return tables of the number of heads of each type, by part, each with as many models as fit."""
    return [table for part in PARTS.values() for table in _make_tables_of_part(comparison, part, width)]


def _make_tables_of_part(comparison: Comparison, part: TypePart, width: int) -> list[Table]:
    counts = comparison.head_types[comparison.head_types["part"] == part.name]
    present = [str(head_type) for head_type, rows in counts.groupby("type", sort=False) if rows["heads"].any()]
    tables = []
    for names in _split_names(comparison.names, width - 6 - max(map(len, [part.label, *present]))):
        table = _make_table("Heads by type")
        table.add_column(part.label)
        for name in names:
            table.add_column(Text(_shorten_name(name)), justify="right", overflow="fold")
        for head_type in present:
            rows = counts[counts["type"] == head_type]
            cells = {
                name: (heads, share)
                for name, heads, share in zip(rows["model"], rows["heads"], rows["share"], strict=True)
            }
            table.add_row(Text(head_type), *("{} ({:.0%})".format(*cells[name]) for name in names))
        tables.append(table)
    return tables


def _split_names(names: Sequence[str], width: int) -> list[list[str]]:
    """Split names into groups whose columns fit into the width, as few as possible."""
    groups: list[list[str]] = [[]]
    remaining = width
    for name in names:
        column_width = min(max(len(name), 9), LONGEST_NAME) + 3
        if groups[-1] and column_width > remaining:
            groups.append([])
            remaining = width
        groups[-1].append(name)
        remaining -= column_width
    return groups


# -- head by head -----------------------------------------------------------------------------------------------------


def _make_differences_table(comparison: Comparison, pair: Pair) -> Table:
    table = _make_table(
        f"Head by head: {_shorten_name(pair.model)} minus {_shorten_name(pair.baseline)}",
        f"{pair.how[0].upper()}{pair.how[1:]}. Significant: Student's t, p ≤ {comparison.alpha:g} after Holm's "
        "correction over the heads of a rate. r: correlation over heads.",
    )
    table.add_column("rate")
    table.add_column("significant", justify="right")
    table.add_column("largest of them")
    table.add_column("r", justify="right")
    pair_rows = comparison.correlations[comparison.correlations["model"] == pair.model]
    correlations = pair_rows.set_index("rate")["correlation"]
    for name, measure in MEASURES.items():
        rows = comparison.differences(name, pair.model)
        tests, significant = int(rows["p"].notna().sum()), rows[rows["significant"].astype(bool)]
        count = f"{len(significant)} of {tests}" if tests else TOO_FEW_TEXTS if pair.missing else NOT_MEASURABLE
        correlation = float(correlations[name])
        formatted = "–" if math.isnan(correlation) else _replace_hyphen(f"{correlation:.3f}")
        table.add_row(measure.label, count, _format_largest(measure, significant), formatted)
    return table


def _format_largest(measure: Measure, rows: pd.DataFrame) -> str:
    if not len(rows):
        return "–"
    row = rows.iloc[int(rows["difference"].abs().to_numpy().argmax())]
    value, error = float(row["difference"]) * measure.factor, float(row["error"]) * measure.factor
    unit = "pp" if measure.unit == "%" else measure.unit
    return _replace_hyphen(f"{row['head']}: {value:+.2f} ± {error:.2f} {unit}")


def _summarize_changes(comparison: Comparison, pair: Pair) -> Text:
    if pair.missing:
        return Text("Types of heads are not compared: too few texts.")
    rows = comparison.changes[comparison.changes["model"] == pair.model]
    parts = ((part, rows[rows["part"] == part.name]) for part in PARTS.values())
    return Text(to_printable("\n".join(_summarize_changes_of_part(part, changes) for part, changes in parts)))


def _summarize_changes_of_part(part: TypePart, rows: pd.DataFrame) -> str:
    changed = rows[rows["changed"].astype(bool)]
    summary = f"{part.label}: {len(changed)} of {len(rows)} heads changed type"
    if len(changed):
        transitions = Counter(zip(changed["before"], changed["after"], strict=True))
        most_common = [f"{count} from {before} to {after}" for (before, after), count in transitions.most_common(3)]
        summary += f": {', '.join(most_common)}{', …' if len(transitions) > 3 else ''}"
    return f"{summary[0].upper()}{summary[1:]}."
