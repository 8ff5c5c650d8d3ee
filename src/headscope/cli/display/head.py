"""Terminal output of one head: its numbers, its tokens, and example texts."""

from __future__ import annotations

import json

import pandas as pd
from rich.console import Console
from rich.text import Text

from headscope.cli.display.console import to_printable
from headscope.studies.example_arrays import has_examples
from headscope.studies.examples import Example, Examples
from headscope.studies.rates import HEAD_RATES
from headscope.studies.result import Study
from headscope.studies.sample_size import count_texts


def print_head(study: Study, table: pd.DataFrame, tokens: pd.DataFrame | None, examples: Examples) -> None:
    """Print one head.

    Args:
        study: The study.
        table: Its row of the table of heads.
        tokens: Its most frequent dominant tokens; None: they were not counted.
        examples: Texts that show it.
    """
    console, row, manifest = Console(highlight=False), table.iloc[0], study.manifest
    title = f"{row['head']} of {manifest['model']} on {manifest['corpus']}: {count_texts(study)}"
    console.print(Text(to_printable(title), style="bold"))
    console.print(Text(to_printable(row["description"])))
    console.print(Text(f"{row['pairs_per_text']:,.1f} high pairs per text"))
    for name, rate in HEAD_RATES.items():
        console.print(Text(f"  {rate.label}: {_format_rate(row, name)}"))
    if tokens is not None and len(tokens):
        console.print(Text("\nTokens it centers on (share of the texts in which it has pairs)", style="bold"))
        shares = (f"{token} {share:.1%}" for token, share in zip(tokens["token"], tokens["share"], strict=True))
        console.print(Text(to_printable("  " + ", ".join(shares))))
    for example in examples:
        _print_example(console, example)
    if not has_examples(study.data):
        console.print(Text("\nThis study has no example texts.", style="dim"))


def _print_example(console: Console, example: Example) -> None:
    console.print(Text("\n" + to_printable(example.title), style="bold"))
    text = Text()
    for k, piece in example.split_blanks():
        is_paired = k in example.paired
        text.append(f"[{to_printable(piece)}]" if is_paired else to_printable(piece), "bold" if is_paired else "")
    text.rstrip()
    console.print(text)
    console.print(Text(to_printable("; ".join(example.list_pair_names())), style="dim"))


def _format_rate(row: pd.Series, name: str) -> str:
    factor, unit = HEAD_RATES[name].factor, HEAD_RATES[name].unit
    value, chance, error = (row[column] * factor for column in (name, f"{name}_chance", f"{name}_error"))
    if pd.isna(value):
        return "not measured"
    deviation = "" if pd.isna(error) else f" ± {error:.2g}"
    return f"{value:.3g}{deviation} {unit} (chance {chance:.3g})"


def format_head_json(study: Study, table: pd.DataFrame, tokens: pd.DataFrame | None, examples: Examples) -> str:
    """Return one head as JSON, with the manifest of the study; NaN is null."""
    content = {
        "manifest": study.manifest,
        "head": json.loads(table.to_json(orient="records", double_precision=15))[0],
        "dominant_tokens": [] if tokens is None else json.loads(tokens.to_json(orient="records", double_precision=15)),
        "examples": [example.to_json() for example in examples],
    }
    return json.dumps(content, ensure_ascii=False, indent=2, allow_nan=False) + "\n"
