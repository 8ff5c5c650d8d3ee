"""`headscope read`: one text, every head, one page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headscope.cli import options

if TYPE_CHECKING:
    from headscope.readings.reading import Head, Reading


def read(
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="TEXT",
            help="The text itself, a file (for a vision model: an image), `-` (stdin), `example:NAME`, or a saved "
            "reading (.nc), which needs no model. None: the input of the paper's Fig. 9.",
        ),
    ] = None,
    model: options.ModelName = "minilm",
    stack: options.Stack = None,
    out: Annotated[Path, typer.Option(help="The page's file.")] = Path("reading.html"),
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    head: Annotated[
        str | None, typer.Option(help="Print the pairs of this head, L11H8 or L11sum; the page opens at it.")
    ] = None,
    save: Annotated[Path | None, typer.Option(help="Keep the reading, a netCDF file, to open it again.")] = None,
    pairs: Annotated[Path | None, typer.Option(help="Write the pairs of all heads: .csv or .parquet.")] = None,
    figures: Annotated[Path | None, typer.Option(help="Folder for Fig. 4, 5, 9 and 12 of this text.")] = None,
    formats: options.Formats = "png,svg,pdf",
    layers: options.Layers = None,
    heads: options.Heads = None,
    precision: Annotated[
        str, typer.Option(help="Of the page. fine: θ of three decimals exact; coarse: of two, smaller; auto.")
    ] = "auto",
    encoding: options.Encoding = "utf-8",
    length: options.Length = 128,
    sentences: options.Sentences = "tokens",
    theta: Annotated[
        float | None, typer.Option(help="θ: high similarities exceed θ times the largest. Default: 0.3, or as saved.")
    ] = None,
    tau: Annotated[
        float | None,
        typer.Option(help="τ: lines draw more than τ of the strongest column's attention. Default: 0.3, or as saved."),
    ] = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    trust_remote_code: options.TrustRemoteCode = False,
    allow_pickle: options.AllowPickle = False,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Read one text: every head's matrices, pairs, lines and regions, in one page.

    Examples:

        headscope read "Two ravens met. The ravens left." --open

        headscope read article.txt --model google-bert/bert-base-uncased --length 256 --out article.html

        headscope read example:airport-policing --head L1H6

        headscope read article.txt --save article.nc --pairs pairs.csv --figures figures/

        headscope read article.nc --layers 10-11 --out last-layers.html
    """
    from headscope import output, terminal
    from headscope.readings import sources
    from headscope.readings.files import check_table, open_reading, write_table

    start = None if head is None else sources.head_named(head)
    if pairs is not None:
        check_table(pairs)
    output.check_page(out)
    if text is not None and text.endswith(sources.SAVED) and sources.is_file(text):
        made = open_reading(text)
    else:
        from headscope.model.loading import load
        from headscope.readings.read import read as run

        words, name = sources.text_named(text, encoding=encoding)
        if not quiet and not as_json:
            terminal.note(f"reading {name}")
        loaded = load(
            model, stack=stack, device=device, dtype=dtype, trust_remote_code=trust_remote_code,
            allow_pickle=allow_pickle,
        )  # fmt: skip
        command = options.command()
        asked: dict[str, Any] = {"sentences": sentences}
        made = run(loaded, words, length=length, command=command, **asked)
    made = made.at(theta=theta, tau=tau)
    chosen = made.select(layers=options.numbers(layers, "layers"), heads=options.numbers(heads, "heads"))
    if save is not None:
        made.save(save)
    if pairs is not None:
        write_table(chosen.pairs(), pairs)
    with terminal.working("drawing", quiet=quiet or as_json):
        chosen.page(out, precision=precision, start=start)
        if figures is not None:
            output.write_figures(chosen, figures, options.listed(formats))
    _show(chosen, out, start, as_json=as_json)
    if open_page:
        import webbrowser

        if not webbrowser.open(out.resolve().as_uri()):
            terminal.note(f"no browser could be opened: open {out} in one")


def _show(made: Reading, page: Path, start: tuple[int, Head] | None, *, as_json: bool) -> None:
    from headscope import terminal

    whole = int(made.manifest["tokens_in_text"])
    if as_json:
        found: dict[str, Any] = {"page": str(page), "tokens": made.tokens.values.tolist(), "tokens_in_text": whole}
        if start is None:
            found["heads"] = json.loads(made.dominant().to_json(orient="records"))
        else:
            found["pairs"] = json.loads(made.pairs(*start).to_json(orient="records", double_precision=15))
        options.show(json.dumps(found, indent=2))
        return
    if start is not None:
        terminal.show_pairs(made, *start)
    if whole > len(made):
        terminal.note(f"the first {len(made):,} of {whole:,} tokens were read: --length {whole} reads more")
    options.show(page)
