"""`headscope match`: which heads of two models write the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headscope.cli import options
from headscope.cli.options import convert_interrupts, end_interrupted

if TYPE_CHECKING:
    from headscope.comparison.matching import HeadMatch


def match_models(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Model: a hub name, a folder, or `minilm`.")],
    other: Annotated[str, typer.Argument(metavar="OTHER", help="A model with the same tokenizer.")],
    sources: options.Texts = None,
    stack: options.Stack = None,
    csv: Annotated[Path | None, typer.Option(help="Also write the table to this file.")] = None,
    field: options.Field = "text",
    format: options.Format = "auto",
    encoding: options.Encoding = "utf-8",
    limit: Annotated[int, typer.Option(help="Read at most this many documents.")] = 200,
    length: options.Length = 128,
    windows: options.Windows = "first",
    batch_size: Annotated[int | None, typer.Option(help="Texts per batch.")] = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    trust_remote_code: options.TrustRemoteCode = False,
    allow_pickle: options.AllowPickle = False,
    allow_unverified: options.AllowUnverified = False,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Find for each head of a model the head of another that writes the same, in the same texts.

    Both models must cut texts into the same tokens. Heads are matched one to one, by the mean correlation of their
    similarity matrices.

    Examples:

        headscope match ./bert ./bert-tuned articles.jsonl

        headscope match minilm ./other --csv heads.csv --json | jq '.heads[] | {head, other, correlation}'
    """
    from headscope.corpus.documents import documents
    from headscope.errors import StudyError
    from headscope.file_io import check_output_file, format_csv, write_atomically
    from headscope.settings import AUTO, Settings, check_run_options

    # Mistakes are reported at once: importing torch and loading a model takes seconds.
    checked: dict[str, Any] = {"windows": windows}
    Settings(length=length, **checked)
    check_run_options(batch_size, AUTO, 0)
    if csv is not None:
        check_output_file(csv, StudyError, "--csv")
    for name in (model, other):
        options.check_inputs(name, None, length=length, allow_pickle=allow_pickle)
    corpus = documents(sources or None, field=field, format=format, encoding=encoding)
    document = corpus.check_opening(limit)
    for name in (model, other):
        options.check_inputs(name, document, length=length, allow_pickle=allow_pickle)

    from headscope.cli.display import console
    from headscope.comparison.matching import match_heads
    from headscope.model.loading import load

    for note in corpus.notes:
        console.print_note(note)
    models = [
        load(
            name,
            stack=stack,
            device=device,
            dtype=dtype,
            trust_remote_code=trust_remote_code,
            allow_pickle=allow_pickle,
        )
        for name in (model, other)
    ]
    try:
        with convert_interrupts(), console.show_progress(quiet=quiet or as_json) as progress:
            match = match_heads(
                models[0], models[1], corpus, length=length, limit=limit, batch_size=batch_size, progress=progress,
                allow_unverified=allow_unverified, **checked,
            )  # fmt: skip
    except KeyboardInterrupt as stopped:
        end_interrupted(stopped, "")
    if csv is not None:
        write_atomically(csv, format_csv(match.table).encode("utf-8", "replace"), StudyError)
        console.print_note(f"written: {csv}")
    if as_json:
        rows = json.loads(match.table.to_json(orient="records"))
        result = {"model": match.models[0], "other": match.models[1], "texts": match.texts, "heads": rows}
        options.show_json(json.dumps(result, indent=2) + "\n")
    else:
        _show(match)


def _show(match: HeadMatch) -> None:
    import pandas as pd
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from headscope.cli.display.console import to_printable

    first, second = match.models
    table = Table(
        title=Text(to_printable(f"{first} and {second}: {match.texts:,} text{'s' * (match.texts != 1)}")),
        caption="Mean correlation of the similarity matrices; most similar: also if another head is matched with it",
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
    )
    for name, justify in (
        ("head", "left"),
        ("matched", "left"),
        ("r", "right"),
        ("most similar", "left"),
        ("r", "right"),
    ):
        table.add_column(name, justify="right" if justify == "right" else "left", no_wrap=True)
    for _, row in match.table.iterrows():
        numbers = [
            "–" if pd.isna(value) else f"{value:.2f}".replace("-", "−")
            for value in (row["correlation"], row["best_correlation"])
        ]
        table.add_row(row["head"], row["other"] or "–", numbers[0], row["best"], numbers[1])
    Console().print(table)
