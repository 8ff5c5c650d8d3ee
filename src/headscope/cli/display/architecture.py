"""Terminal table of a model's architecture: its stacks, and whether what is observed of them was verified."""

from __future__ import annotations

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
