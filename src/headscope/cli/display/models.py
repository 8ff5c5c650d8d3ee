"""Terminal output of commands on one model: its architecture, and the check against the paper.

Terminal table of a model's architecture: its stacks, and whether what is observed of them was verified.

Terminal output of the check against Fig. 9 of the paper.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headscope.cli.display.console import to_printable
from headscope.model.architecture import StackArchitecture
from headscope.model.image_patches import Patches
from headscope.model.model import Model
from headscope.readings.paper_alternatives import Alternative, Outcome
from headscope.readings.paper_check import HeadCheck, Pair, PaperCheck
from headscope.similarity import THETA


def to_plain_values(model: Model) -> dict[str, Any]:
    """Return what is known of a model, for JSON."""
    return {
        "model": model.name,
        "model_type": model.type,
        "reads": model.modality,
        "longest_window": model.max_length,
        "ignores_padding": model.ignores_padding,
        "batching": model.batching,
        "stacks": [asdict(model.on(stack).architecture) for stack in model.stacks],
    }


def show_architecture(model: Model) -> None:
    """Print the stacks of a model as a table."""
    table = Table(title=Text(to_printable(f"{model.name} ({model.type})")), title_justify="left", box=box.SIMPLE_HEAD)
    for column in ("stack", "layers", "heads", "attention", "captured by", "verified"):
        table.add_column(column, overflow="fold")
    for stack in model.stacks:
        table.add_row(*_format_row(model.on(stack).architecture))
    console = Console()
    console.print(table)
    notes = [_describe_length(model.max_length)]
    if isinstance(model.tokens, Patches):
        layout = model.tokens.layout
        notes = [f"An image has {layout.length:,} tokens, {layout.rows} × {layout.columns} patches among them."]
    if model.batching == "equal lengths":
        notes.append("It sees its padding: windows of different lengths are not batched together.")
    elif model.batching == "single texts":
        notes.append("A text's outputs depend on the other texts of a batch: each window is run alone.")
    if any(model.on(stack).architecture.gated for stack in model.stacks):
        notes.append(
            "Its heads' outputs are gated or normed before the projection; what enters the projection is observed."
        )
    console.print("\n".join(notes), soft_wrap=True, markup=False, highlight=False)


def _format_row(architecture: StackArchitecture) -> tuple[str, ...]:
    layers = str(architecture.layers)
    if architecture.layers < architecture.depth:
        layers += f" of {architecture.depth}: {', '.join(map(str, architecture.numbers))}"
    direction = (
        "to the encoder" if architecture.stack == "cross" else "causal" if architecture.causal else "bidirectional"
    )
    verified = "yes" if architecture.verified else f"no: {architecture.problem}"
    return architecture.stack, layers, str(architecture.heads), direction, " + ".join(architecture.routes), verified


def _describe_length(max_length: int | None) -> str:
    return "Windows may have any length." if max_length is None else f"Windows of up to {max_length:,} tokens."


MAX_SHOWN = 10
"""Pairs shown of a head that has more than twice as many: a model that is not the paper's may have thousands."""


def show_check(check: PaperCheck) -> None:
    """Print counts for each head, the pairs that differ, the choices that match better, and the verdict."""
    console = Console()
    tables = [_make_counts_table(check)]
    for title, kind in (
        (f"Missing: published, and not above θ = {THETA} here", "missing"),
        ("Extra: high here, and not published", "extra"),
    ):
        pairs_by_head = [(head.head, getattr(head, kind)) for head in check.heads if getattr(head, kind)]
        if pairs_by_head:
            tables.append(_make_pairs_table(title, pairs_by_head))
    if check.better:
        tables.append(_make_choices_table(check))
    for table in tables:
        console.print(table)
        if table.caption:  # a caption is not followed by an empty line
            console.print()
    if not check.agrees and not check.better:
        console.print(f"None of {check.choices_tried:,} other choices matches better.\n", highlight=False)
    verdict = Text(to_printable(check.verdict))
    verdict.stylize("bold green" if check.agrees else "bold red", 0, check.verdict.index(":"))
    console.print(verdict)


def _make_table(title: str) -> Table:
    return Table(title=Text(to_printable(title)), title_justify="left", caption_justify="left", box=box.SIMPLE_HEAD)


def _make_counts_table(check: PaperCheck) -> Table:
    table = _make_table(f"Fig. 9 of the paper, layer {check.layer}, with {check.model}")
    table.add_column("head")
    for name in ("published", "matched", "missing", "extra"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("closest in the model")
    for head_check in check.heads:
        table.add_row(
            str(head_check.head),
            str(len(head_check.matched) + len(head_check.missing)),
            *_format_counts(head_check.outcome),
            _describe_closest(head_check),
            style="green" if head_check.outcome.jaccard == 1 else None,
        )
    table.add_section()
    table.add_row("all", str(check.published), *_format_counts(check.outcome), "")
    manifest = check.manifest
    if manifest.get("weight_hash"):
        weight_hash, device = manifest["weight_hash"][:16], to_printable(manifest["device"])
        table.caption = f"weights SHA-256 {weight_hash}…, {manifest['dtype']}, {device}"
    return table


def _describe_closest(check: HeadCheck) -> str:
    closest = check.closest
    if closest is None:
        return "none has any of the pairs"
    outcome = closest.outcome
    return f"{closest}: {outcome.matched} of {outcome.matched + outcome.missing}, {outcome.extra:,} extra"


def _make_pairs_table(title: str, pairs_by_head: Iterable[tuple[int, tuple[Pair, ...]]]) -> Table:
    table = _make_table(title)
    table.add_column("head")
    table.add_column("token i")
    table.add_column("token j")
    table.add_column("i", justify="right")
    table.add_column("j", justify="right")
    table.add_column("C / max C", justify="right")
    for head, pairs in pairs_by_head:
        # Highest first: of missing pairs those nearest to θ, of extra pairs the strongest.
        ordered = sorted(pairs, key=lambda pair: -(pair.relative or 0.0))
        shown = ordered if len(ordered) <= 2 * MAX_SHOWN else ordered[:MAX_SHOWN]
        for row, pair in enumerate(shown):
            table.add_row(
                str(head) if row == 0 else "",
                Text(to_printable(pair.token_i)),
                Text(to_printable(pair.token_j)),
                str(pair.index_i),
                str(pair.index_j),
                "–" if pair.relative is None else f"{pair.relative:.3f}".replace("-", "−"),
            )
        if len(shown) < len(ordered):
            table.add_row("", f"… {len(ordered) - len(shown):,} more")
            table.caption = "The highest are shown; --json lists all."
        table.add_section()
    return table


def _make_choices_table(check: PaperCheck) -> Table:
    table = _make_table(f"Would match better, of {check.choices_tried:,} other choices")
    table.add_column("different choice", ratio=1)
    for name in ("matched", "missing", "extra", "Jaccard"):
        table.add_column(name, justify="right", no_wrap=True)
    for alternative in check.select_nearest():
        outcome = alternative.outcome
        table.add_row(Text(_describe_choices(alternative)), *_format_counts(outcome), f"{outcome.jaccard:.2f}")
    table.add_section()
    table.add_row(Text("none (as in docs/method.md)"), *_format_counts(check.outcome), f"{check.outcome.jaccard:.2f}")
    return table


def _describe_choices(alternative: Alternative) -> str:
    description = ", ".join(alternative.choice.changes)
    if "theta" in alternative.choice.changed and alternative.theta_from < alternative.theta_to:
        description += f" (θ from {alternative.theta_from:.2f} to {alternative.theta_to:.2f} does the same)"
    return description


def _format_counts(outcome: Outcome) -> tuple[str, str, str]:
    return f"{outcome.matched:,}", f"{outcome.missing:,}", f"{outcome.extra:,}"
