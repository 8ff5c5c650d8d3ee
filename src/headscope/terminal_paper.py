"""The paper's own check as people see it in a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headscope.readings.paper import HeadCheck, Pair, PaperCheck
from headscope.readings.paper_choices import Alternative, Outcome
from headscope.similarity import THETA
from headscope.terminal import printable

MOST = 10
"""extra pairs shown of one head: a model that is not the paper's may have thousands"""


def show_check(made: PaperCheck) -> None:
    """Counts for each head, the pairs that differ, the choices that match better, and the verdict."""
    console = Console()
    tables = [_counts(made)]
    for title, kind in (
        (f"Missing: published, and not above θ = {THETA} here", "missing"),
        ("Extra: high here, and not published", "extra"),
    ):
        listed = [(check.head, getattr(check, kind)) for check in made.heads if getattr(check, kind)]
        if listed:
            tables.append(_pairs(title, listed))
    if made.better:
        tables.append(_choices(made))
    for table in tables:
        console.print(table)
        if table.caption:  # which ends without the empty line that a table ends with
            console.print()
    if not made.agrees and not made.better:
        console.print(f"None of {made.tried:,} other choices matches better.\n", highlight=False)
    verdict = Text(printable(made.verdict))
    verdict.stylize("bold green" if made.agrees else "bold red", 0, made.verdict.index(":"))
    console.print(verdict)


def _table(title: str) -> Table:
    return Table(title=Text(printable(title)), title_justify="left", caption_justify="left", box=box.SIMPLE_HEAD)


def _counts(made: PaperCheck) -> Table:
    table = _table(f"Fig. 9 of the paper, layer {made.layer}, with {made.model}")
    table.add_column("head")
    for name in ("published", "matched", "missing", "extra"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("closest in the model")
    for check in made.heads:
        table.add_row(
            str(check.head),
            str(len(check.matched) + len(check.missing)),
            *_numbers(check.outcome),
            _closest(check),
            style="green" if check.outcome.jaccard == 1 else None,
        )
    table.add_section()
    table.add_row("all", str(made.published), *_numbers(made.outcome), "")
    about = made.manifest
    if about.get("weight_hash"):
        table.caption = f"weights SHA-256 {about['weight_hash'][:16]}…, {about['dtype']}, {printable(about['device'])}"
    return table


def _closest(check: HeadCheck) -> str:
    place = check.closest
    if place is None:
        return "none has any of the pairs"
    held = place.outcome
    return f"{place}: {held.matched} of {held.matched + held.missing}, {held.extra:,} extra"


def _pairs(title: str, listed: Iterable[tuple[int, tuple[Pair, ...]]]) -> Table:
    table = _table(title)
    table.add_column("head")
    table.add_column("token i")
    table.add_column("token j")
    table.add_column("i", justify="right")
    table.add_column("j", justify="right")
    table.add_column("C / max C", justify="right")
    for head, pairs in listed:
        # Those nearest to θ first where they are missing, the strongest first where they are too many: highest first.
        ordered = sorted(pairs, key=lambda pair: -(pair.relative or 0.0))
        shown = ordered if len(ordered) <= 2 * MOST else ordered[:MOST]
        for row, pair in enumerate(shown):
            table.add_row(
                str(head) if row == 0 else "",
                Text(printable(pair.token_i)),
                Text(printable(pair.token_j)),
                str(pair.index_i),
                str(pair.index_j),
                "–" if pair.relative is None else f"{pair.relative:.3f}".replace("-", "−"),
            )
        if len(shown) < len(ordered):
            table.add_row("", f"… {len(ordered) - len(shown):,} more")
            table.caption = "The highest are shown; --json lists all."
        table.add_section()
    return table


def _choices(made: PaperCheck) -> Table:
    table = _table(f"Would match better, of {made.tried:,} other choices")
    table.add_column("what is chosen otherwise", ratio=1)
    for name in ("matched", "missing", "extra", "Jaccard"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in made.nearest():
        table.add_row(Text(_words(each)), *_numbers(each.outcome), f"{each.outcome.jaccard:.2f}")
    table.add_section()
    table.add_row(Text("nothing (the method page)"), *_numbers(made.outcome), f"{made.outcome.jaccard:.2f}")
    return table


def _words(alternative: Alternative) -> str:
    words = ", ".join(alternative.choice.changes)
    if "theta" in alternative.choice.changed and alternative.theta_from < alternative.theta_to:
        words += f" (θ from {alternative.theta_from:.2f} to {alternative.theta_to:.2f} does the same)"
    return words


def _numbers(outcome: Outcome) -> tuple[str, str, str]:
    return f"{outcome.matched:,}", f"{outcome.missing:,}", f"{outcome.extra:,}"
