"""The tables of the dtypes, for the terminal and for docs/dtypes.md."""

from __future__ import annotations

from typing import Any

from measuring.tables import NONE, Section, made_with, number, of_kind, table

Result = dict[str, Any]
NO_RUN = "*Not measured yet.*"


def figure(value: float | None, percent: bool) -> str:
    """Three significant figures, in plain digits; percentages are percentage points."""
    if value is None:
        return "–"
    digits = 3 if abs(value) < 1 else 2 if abs(value) < 10 else 1
    return f"{value:.{digits}f}{' %' if percent else ''}"


def dtypes_table(result: Result, *, markdown: bool = False) -> str:
    """Quantities down, dtypes across: mean and largest change, beside the standard error."""
    dtypes = {name: held for name, held in result["dtypes"].items() if "failed" not in held}
    if not dtypes:
        return words_of(result)
    header = ["change of", "standard error"]
    for name in dtypes:
        header += [f"{name}: mean", "largest", "in errors"]
    rows = []
    for at, first in enumerate(next(iter(dtypes.values()))["quantities"]):
        row = [first["name"], figure(first["error"], first["percent"])]
        for held in dtypes.values():
            each = held["quantities"][at]
            largest = f"{figure(each['largest'], each['percent'])} ({each['where']})"
            row += [figure(each["mean"], each["percent"]), largest, number(each["in_errors"])]
        rows.append(row)
    return "\n\n".join([table(header, rows, markdown=markdown), agreement(dtypes, markdown), words_of(result)])


def agreement(dtypes: dict[str, Result], markdown: bool) -> str:
    """What either stays or changes: pairs, most attended tokens, strongest offsets, verdicts."""
    rows = [
        ["high pairs not in both", *(f"{held['pairs']['share']:.2%}" for held in dtypes.values())],
        ["most attended token the same", *(f"{held['most_attended']:.2%}" for held in dtypes.values())],
        ["strongest offset the same", *(f"{held['strongest_offset']:.1%}" for held in dtypes.values())],
        ["verdicts changed", *(f"{len(held['changed_verdicts'])} of {held['verdicts']}" for held in dtypes.values())],
    ]
    return table(("", *dtypes), rows, markdown=markdown)


def words_of(result: Result) -> str:
    about, words = result["about"], []
    for name, held in result["dtypes"].items():
        if "failed" in held:
            words.append(f"- {name}: {held['failed']}.")
            continue
        heads = ", ".join(f"{head} ({share:.1%})" for head, share in held["pairs"]["heads"])
        words.append(f"- {name}: pairs of {held['pairs']['texts']} texts were compared; most touched: {heads or NONE}.")
        words += [
            f"- {name}: finding {each['number']}: {each['before']}; in {name} {each['after']}."
            for each in held["changed_verdicts"]
        ]
    words.append(
        f"- {about['model']} ({about['layers']} × {about['heads']}), {about['texts']} windows of {about['length']}, "
        f"{about['device']}; {made_with(about)}."
    )
    return "\n".join(words)


def dtypes_section(results: list[Result]) -> str:
    runs = of_kind(results, "dtypes")
    parts = [f"### {run['name'].removeprefix('dtypes-')}\n\n{dtypes_table(run, markdown=True)}" for run in runs]
    return "\n\n".join(parts) or NO_RUN


SECTIONS: dict[str, Section] = {"dtypes": dtypes_section}
