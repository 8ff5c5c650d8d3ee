"""`headscope read`: show every head on one text, in one page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headscope.cli import options

if TYPE_CHECKING:
    from headscope.readings.reading import Head, Reading


def read_text(
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="TEXT",
            help="The text itself, a file (for a vision model: an image), `-` (stdin), `example:NAME`, or a saved "
            "reading (.nc), which needs no model. Default: the input of the paper's Fig. 9.",
        ),
    ] = None,
    literal: options.LiteralText = False,
    model: options.ModelName = "minilm",
    stack: options.Stack = None,
    out: Annotated[Path, typer.Option("--output", "-o", help="File of the page.")] = Path("reading.html"),
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    head: Annotated[
        str | None, typer.Option(help="Print the pairs of this head, such as L11H8 or L11sum; the page opens at it.")
    ] = None,
    save: Annotated[Path | None, typer.Option(help="Save the reading to this netCDF file, to open it again.")] = None,
    pairs: Annotated[
        Path | None, typer.Option(help="Write the pairs of all heads to this .csv or .parquet file.")
    ] = None,
    figures: Annotated[Path | None, typer.Option(help="Folder for Fig. 4, 5, 9 and 12 of this text.")] = None,
    formats: options.Formats = "png,svg,pdf",
    layers: options.Layers = None,
    heads: options.Heads = None,
    precision: Annotated[
        Literal["auto", "fine", "coarse"],
        typer.Option(
            help="Precision of the page. fine: exact for θ with three decimals; coarse: with two, in a smaller file; "
            "auto: by the size of the maps."
        ),
    ] = "auto",
    field: options.Field = "text",
    target: options.Target = "",
    encoding: options.Encoding = "utf-8",
    length: options.Length = 128,
    sentences: options.Sentences = "tokens",
    theta: Annotated[
        float | None,
        typer.Option(help="θ: a similarity is high if it exceeds θ times the largest. Default: 0.3, or as saved."),
    ] = None,
    tau: Annotated[
        float | None,
        typer.Option(
            help="τ: a line draws more than τ times the attention of the strongest column. Default: 0.3, or as saved."
        ),
    ] = None,
    similarity: Annotated[
        Literal["dot", "centered", "projected", "projected-centered"] | None,
        typer.Option(metavar="SIMILARITY", help=f"{options.SIMILARITY_HELP} Default: dot, or as saved."),
    ] = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    trust_remote_code: options.TrustRemoteCode = False,
    allow_pickle: options.AllowPickle = False,
    allow_unverified: options.AllowUnverified = False,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Read one text: show the matrices, pairs, lines and regions of every head, in one page.

    Examples:

        headscope read "Two ravens met. The ravens left." --open

        headscope read article.txt --model google-bert/bert-base-uncased --length 256 --output article.html

        headscope read example:airport-policing --head L1H6

        headscope read article.txt --save article.nc --pairs pairs.csv --figures figures/

        headscope read pairs.jsonl --field en --target de --model ./marian-en-de --stack cross --save cross.nc

        headscope read article.nc --layers 10-11 --output last-layers.html
    """
    from headscope.errors import ReadingError, StudyError
    from headscope.file_io import check_output_file, check_page, check_writable
    from headscope.head_selection import select_grid
    from headscope.readings import arguments
    from headscope.readings.files import check_table, open_reading, write_table
    from headscope.settings import Settings

    # Mistakes are reported at once: importing torch and loading a model takes seconds.
    start = None if head is None else arguments.parse_head(head)
    if pairs is not None:
        check_table(pairs)
    check_page(out)
    if save is not None:
        check_output_file(save, ReadingError)
    if figures is not None:
        check_writable(figures, StudyError, "--figures")
    checked: dict[str, Any] = {"sentences": sentences}
    Settings(length=length, min_tokens=1, **checked)
    arguments.check_thresholds(theta=theta, tau=tau)
    is_saved = text is not None and not literal and text.endswith(arguments.READING_SUFFIX) and arguments.is_file(text)
    if not is_saved:
        document = arguments.read_text_argument(text, field=field, encoding=encoding, literal=literal, target=target)
        options.check_inputs(model, document, length=length, allow_pickle=allow_pickle)

    from headscope import output_folder
    from headscope.cli.display import console

    if is_saved:
        reading = open_reading(str(text))
        if similarity not in (None, reading.manifest.get("similarity", "dot")):
            raise ReadingError(
                f"{text} holds outputs for the similarity {reading.manifest.get('similarity', 'dot')}: read the text "
                f"again for {similarity}, or leave --similarity out"
            )
    else:
        from headscope.model.loading import load
        from headscope.readings.read import read as run

        if not quiet and not as_json:
            console.print_note(f"reading {document.name}")
        loaded = load(
            model, stack=stack, device=device, dtype=dtype, trust_remote_code=trust_remote_code,
            allow_pickle=allow_pickle,
        )  # fmt: skip
        architecture = loaded.architecture
        select_grid(layers, heads, architecture.numbers, range(architecture.heads), "the model")  # raises early
        command = options.get_command_line()
        reading_options: dict[str, Any] = {"sentences": sentences, "similarity": similarity or "dot"}
        reading = run(
            loaded, document, length=length, command=command, allow_unverified=allow_unverified, **reading_options
        )
    reading = reading.with_thresholds(theta=theta, tau=tau)
    selected = reading.select(layers=layers, heads=heads)
    if start is not None:  # before anything is written
        _check_head(selected, str(head), *start)
    if save is not None:
        reading.save(save)
    if pairs is not None:
        write_table(selected.pairs(), pairs)
    with console.show_status("drawing", quiet=quiet or as_json):
        selected.to_html(out, precision=precision, start=start)
        if figures is not None:
            output_folder.write_figures(selected, figures, options.split_list(formats))
    _show(selected, out, start, as_json=as_json)
    console.print_unverified(reading.manifest)
    if open_page:
        import webbrowser

        if not webbrowser.open(out.resolve().as_uri()):
            console.print_note(f"no browser could be opened: open {out} in one")


def _check_head(reading: Reading, name: str, layer: int, head: Head) -> None:
    from headscope.errors import ReadingError

    if layer not in reading.layers or (isinstance(head, int) and head not in reading.head_numbers):
        raise ReadingError(f"no head {name.strip()} in this reading to start with")


def _show(reading: Reading, page: Path, start: tuple[int, Head] | None, *, as_json: bool) -> None:
    from headscope.cli.display import console

    token_count = int(reading.manifest["tokens_in_text"])
    if as_json:
        result: dict[str, Any] = {
            "page": str(page),
            "tokens": reading.tokens.values.tolist(),
            "tokens_in_text": token_count,
        }
        if "source_token" in reading.data.coords:
            result["source_tokens"] = reading.source_tokens.values.tolist()
            result["tokens_in_source"] = int(reading.manifest["tokens_in_source"])
        if start is None:
            result["heads"] = json.loads(reading.dominant().to_json(orient="records"))
        else:
            result["pairs"] = json.loads(reading.pairs(*start).to_json(orient="records", double_precision=15))
        options.show(json.dumps(result, indent=2))
        return
    if start is not None:
        console.show_pairs(reading, *start)
    if token_count > len(reading):
        console.print_note(
            f"the first {len(reading):,} of {token_count:,} tokens were read: --length {token_count} reads more"
        )
    source_count = reading.data.sizes.get("source_position", 0)
    source_total = int(reading.manifest.get("tokens_in_source", source_count))
    if source_total > source_count:
        console.print_note(
            f"of the source the first {source_count:,} of {source_total:,} tokens were read: --length {source_total} "
            "reads more"
        )
    options.show(page)
