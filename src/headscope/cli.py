"""The command line: arguments in, one call, words out.

Exit codes: 0 done; 1 an error that the message explains; 2 the command itself was not understood; 3 `paper` made its
check and found differences; 130 interrupted.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headscope.errors import HeadscopeError, Stopped, StudyError

if TYPE_CHECKING:
    from headscope.corpus.documents import Corpus
    from headscope.model.model import Model
    from headscope.readings.reading import Head, Reading
    from headscope.studies.findings import Finding
    from headscope.studies.result import Study
    from headscope.studies.settings import Settings

FAILED, INTERRUPTED = 1, 130
DIFFERS = 3
"""`paper` made its check, and the pairs are not the published ones"""

app = typer.Typer(
    name="headscope",
    help="What every attention head of a transformer writes, measured over whole corpora.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="markdown",
)

StudyPath = Annotated[Path, typer.Argument(metavar="STUDY", help="A study's folder, or its study.nc.")]
ModelName = Annotated[str, typer.Option("--model", help="Hub name, folder, or `minilm`, the bundled model.")]
Length = Annotated[int, typer.Option("--length", help="Tokens in a window.")]
Sentences = Annotated[
    str,
    typer.Option(
        "--sentences", help="tokens: a sentence ends with a token . ! ?; text: a sentence splitter on the raw text."
    ),
]
Theta = Annotated[float, typer.Option("--theta", help="θ: high similarities exceed θ times the largest.")]
Tau = Annotated[float, typer.Option("--tau", help="τ: lines draw more than τ of the strongest column's attention.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1, …")]
Dtype = Annotated[str, typer.Option("--dtype", help="float32, bfloat16, float16.")]
TrustRemoteCode = Annotated[bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.")]
AllowPickle = Annotated[bool, typer.Option("--allow-pickle", help="Open pickled weights, which can run code.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
Formats = Annotated[str, typer.Option("--formats", help="Any of png,svg,pdf.")]
Layers = Annotated[str | None, typer.Option("--layers", help="Layers: 0,5,10-11. Default: the paper's, or all.")]
Heads = Annotated[str | None, typer.Option("--heads", help="Heads: 2,8 or 0-3.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout instead of a table.")]


@app.command()
def study(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TEXTS",
            help="Files, folders, globs, `-` (stdin), `hf:NAME`, `example:NAME`. None: the bundled texts.",
        ),
    ] = None,
    model: ModelName = "minilm",
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("study"),
    field: Annotated[
        str, typer.Option(help="The field or column that holds the text (JSONL, CSV, Parquet, hf:).")
    ] = "text",
    format: Annotated[str, typer.Option(help="auto (by ending), text, lines, jsonl, csv, parquet.")] = "auto",
    encoding: Annotated[str, typer.Option(help="Of text files.")] = "utf-8",
    limit: Annotated[int | None, typer.Option(help="Read at most so many documents.")] = None,
    length: Length = 128,
    windows: Annotated[
        str, typer.Option(help="first: each document's first window; all: every window of it.")
    ] = "first",
    sentences: Sentences = "tokens",
    min_tokens: Annotated[int, typer.Option(help="Skip documents with fewer tokens, special ones aside.")] = 2,
    theta: Theta = 0.3,
    tau: Tau = 0.3,
    sample: Annotated[
        float | None,
        typer.Option(help="Fraction of texts for the costly quantities. Default: 1 up to 2,000 documents, else 0.05."),
    ] = None,
    maps: Annotated[
        bool | None, typer.Option("--maps/--no-maps", help="Keep N×N maps. Default: up to 256 tokens.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Texts at once; the result does not depend on it.")] = None,
    device: Device = "auto",
    dtype: Dtype = "float32",
    kernel: Annotated[
        str, typer.Option(help="vectorized, or reference: the definition in plain loops, slow.")
    ] = "vectorized",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace another study in the output folder.")] = False,
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Study a corpus: from texts to every corpus figure and finding.

    Examples:

        headscope study

        headscope study articles.jsonl --model google-bert/bert-base-uncased --out bert/

        headscope study books/ --windows all --sentences text --out books-study/

        zcat corpus.jsonl.gz | headscope study - --field body --limit 500
    """
    from headscope import output, terminal
    from headscope.corpus.documents import documents
    from headscope.model.loading import load
    from headscope.studies.run import study as run
    from headscope.studies.settings import Settings

    options: dict[str, Any] = {
        "length": length, "windows": windows, "sentences": sentences, "min_tokens": min_tokens,
        "theta": theta, "tau": tau, "sample": sample, "maps": maps,
    }  # fmt: skip
    settings = Settings(**options)
    corpus = documents(sources or None, field=field, format=format, encoding=encoding, limit=limit)
    command = shlex.join(["headscope", *sys.argv[1:]])
    try:
        loaded = load(model, device=device, dtype=dtype, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle)
        output.prepare(out, expected=_identity(loaded, settings, corpus), overwrite=overwrite)
        with terminal.metering(quiet=quiet or as_json) as meter:
            made = run(loaded, corpus, batch_size=batch_size, kernel=kernel, progress=meter, command=command, **options)
    except Stopped as stopped:
        _save_unfinished(stopped, out)
        raise typer.Exit(INTERRUPTED if stopped.interrupted else FAILED) from None
    except KeyboardInterrupt:
        _complain("interrupted before any text was studied")
        raise typer.Exit(INTERRUPTED) from None
    with terminal.working("drawing figures and writing the report", quiet=quiet or as_json):
        found = output.write(made, out)
    _show(made, found, as_json=as_json)
    skipped = made.manifest["documents_skipped"]
    if skipped:
        terminal.note("skipped: " + ", ".join(f"{count} {reason}" for reason, count in skipped.items()))
    if not as_json:
        terminal.note(
            f"{sum(f.verdict == 'holds' for f in found)} of {len(found)} claims hold. Report: {out / output.REPORT}"
        )


@app.command()
def read(
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="TEXT",
            help="The text itself, a file, `-` (stdin), `example:NAME`, or a saved reading (.nc), which needs no "
            "model. None: the input of the paper's Fig. 9.",
        ),
    ] = None,
    model: ModelName = "minilm",
    out: Annotated[Path, typer.Option(help="The page's file.")] = Path("reading.html"),
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    head: Annotated[
        str | None, typer.Option(help="Print the pairs of this head, L11H8 or L11sum; the page opens at it.")
    ] = None,
    save: Annotated[Path | None, typer.Option(help="Keep the reading, a netCDF file, to open it again.")] = None,
    pairs: Annotated[Path | None, typer.Option(help="Write the pairs of all heads: .csv or .parquet.")] = None,
    figures: Annotated[Path | None, typer.Option(help="Folder for Fig. 4, 5, 9 and 12 of this text.")] = None,
    formats: Formats = "png,svg,pdf",
    layers: Layers = None,
    heads: Heads = None,
    precision: Annotated[
        str, typer.Option(help="Of the page. fine: θ of three decimals exact; coarse: of two, smaller; auto.")
    ] = "auto",
    length: Length = 128,
    sentences: Sentences = "tokens",
    theta: Annotated[
        float | None, typer.Option(help="θ: high similarities exceed θ times the largest. Default: 0.3, or as saved.")
    ] = None,
    tau: Annotated[
        float | None,
        typer.Option(help="τ: lines draw more than τ of the strongest column's attention. Default: 0.3, or as saved."),
    ] = None,
    device: Device = "auto",
    dtype: Dtype = "float32",
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
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

        words, name = sources.text_named(text)
        if not quiet and not as_json:
            terminal.note(f"reading {name}")
        loaded = load(model, device=device, dtype=dtype, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle)
        command = shlex.join(["headscope", *sys.argv[1:]])
        options: dict[str, Any] = {"sentences": sentences}
        made = run(loaded, words, length=length, command=command, **options)
    made = made.at(theta=theta, tau=tau)
    chosen = made.select(layers=_numbers(layers, "layers"), heads=_numbers(heads, "heads"))
    if save is not None:
        made.save(save)
    if pairs is not None:
        write_table(chosen.pairs(), pairs)
    with terminal.working("drawing", quiet=quiet or as_json):
        chosen.page(out, precision=precision, start=start)
        if figures is not None:
            output.write_figures(chosen, figures, _listed(formats))
    _show_reading(chosen, out, start, as_json=as_json)
    if open_page:
        import webbrowser

        if not webbrowser.open(out.resolve().as_uri()):
            terminal.note(f"no browser could be opened: open {out} in one")


@app.command()
def findings(
    source: StudyPath,
    as_json: AsJson = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
) -> None:
    """The paper's twelve claims, measured in a study.

    Examples:

        headscope findings bert/

        headscope findings bert/ --json | jq '.findings[] | {number, value, verdict}'
    """
    from headscope.studies.findings import as_markdown
    from headscope.studies.findings import findings as find
    from headscope.studies.result import open_study

    opened = open_study(source)
    found = find(opened)
    if markdown:
        typer.echo(as_markdown(opened, found), nl=False)
    else:
        _show(opened, found, as_json=as_json)


@app.command()
def figures(
    source: StudyPath,
    out: Annotated[Path, typer.Option(help="Folder for the files.")] = Path("figures"),
    only: Annotated[
        str | None, typer.Option(help="Numbers of the figures wanted: 2,3,6a,6b,7,8,10,11a,11b,13,values.")
    ] = None,
    layers: Layers = None,
    heads: Heads = None,
    formats: Formats = "png,svg,pdf",
    as_json: AsJson = False,
) -> None:
    """The paper's figures: of a corpus from a study, of one text from a saved reading.

    Examples:

        headscope figures bert/ --out figures/

        headscope figures bert/ --only 7,13 --layers 0,5,11 --formats pdf

        headscope figures article.nc --only 9 --layers 11 --heads 5,7,8
    """
    from headscope.figures import draw, drawings, save
    from headscope.output import open_result

    opened = open_result(source)
    known = drawings(opened)
    numbers = _listed(only) if only else [number for number, drawing in known.items() if drawing.can_draw(opened)]
    chosen = {"layers": _numbers(layers, "layers"), "heads": _numbers(heads, "heads")}
    written = []
    for number in numbers:
        figure = draw(opened, number, **chosen)
        written += save(figure, out, known[number].stem, _listed(formats))
    typer.echo(json.dumps([str(path) for path in written]) if as_json else "\n".join(str(path) for path in written))


@app.command()
def report(
    source: StudyPath,
    out: Annotated[Path | None, typer.Option(help="The page's file. Default: report.html beside the study.")] = None,
) -> None:
    """One self-contained page of a study: findings, heads, figures, manifest.

    Example:

        headscope report bert/ --out bert.html
    """
    from headscope.output import REPORT, make_report, write_text
    from headscope.studies.result import open_study

    target = out or (source if source.is_dir() else source.parent) / REPORT
    write_text(target, make_report(open_study(source)))
    typer.echo(target)


@app.command()
def models(as_json: AsJson = False) -> None:
    """List the models that can be used right now, and how to get more."""
    from dataclasses import asdict

    from headscope import terminal
    from headscope.model.available import available

    there = available()
    if as_json:
        typer.echo(json.dumps([asdict(model) for model in there], indent=2))
    else:
        terminal.show_models(there)


@app.command()
def paper(
    model: Annotated[str, typer.Option(help="Hub name, or the folder of a model.")] = "google-bert/bert-base-uncased",
    device: Device = "auto",
    dtype: Dtype = "float32",
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
    as_json: AsJson = False,
) -> None:
    """The paper's own check: the pairs printed in Fig. 9, recomputed.

    Prints which published pairs of heads 5, 7 and 8 of layer 11 are matched and missing, which others are high, and
    which other choices (θ, special tokens, numbering, …) would match better.

    Exit codes: 0 exactly the published pairs; 3 the check was made and differs; 1 an error that the message explains;
    2 a command not understood.

    Examples:

        headscope paper

        headscope paper --model ./bert-base-uncased

        headscope paper --json | jq '.heads[] | {head, counts}'
    """
    from headscope.errors import ModelError
    from headscope.model.loading import load
    from headscope.readings import paper as figure
    from headscope.terminal_paper import show_check

    try:
        loaded = load(model, device=device, dtype=dtype, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle)
    except ModelError as error:
        raise figure.how_to_get(error, model) from error
    made = figure.check(loaded, command=shlex.join(["headscope", *sys.argv[1:]]))
    if as_json:
        typer.echo(figure.as_json(made), nl=False)
    else:
        show_check(made)
    if not made.agrees:
        raise typer.Exit(DIFFERS)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        from headscope import __version__

        typer.echo(f"headscope {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; every error of ours ends in one message, without a traceback."""
    try:
        app()
    except HeadscopeError as error:
        _complain(error)
        sys.exit(FAILED)


def _complain(message: object) -> None:
    from headscope import terminal

    terminal.complain(message)


def _show(made: Study, found: list[Finding], *, as_json: bool) -> None:
    from headscope import terminal
    from headscope.studies.findings import as_json as dumped

    if as_json:
        typer.echo(dumped(made, found), nl=False)
    else:
        terminal.show_findings(made, found)


def _show_reading(made: Reading, page: Path, start: tuple[int, Head] | None, *, as_json: bool) -> None:
    from headscope import terminal

    whole = int(made.manifest["tokens_in_text"])
    if as_json:
        found: dict[str, Any] = {"page": str(page), "tokens": made.tokens.values.tolist(), "tokens_in_text": whole}
        if start is None:
            found["heads"] = json.loads(made.dominant().to_json(orient="records"))
        else:
            found["pairs"] = json.loads(made.pairs(*start).to_json(orient="records", double_precision=15))
        typer.echo(json.dumps(found, indent=2))
        return
    if start is not None:
        terminal.show_pairs(made, *start)
    if whole > len(made):
        terminal.note(f"the first {len(made):,} of {whole:,} tokens were read: --length {whole} reads more")
    typer.echo(page)


def _identity(model: Model, settings: Settings, corpus: Corpus) -> dict[str, Any]:
    """What must agree with a study already in the output folder for this run to replace it."""
    named = ("length", "windows", "sentences", "min_tokens", "theta", "tau")
    return {
        "model": model.name,
        "weight_hash": model.weight_hash,
        "dtype": model.dtype,
        "corpus": corpus.name,
        "limit": corpus.limit or "none",
    } | {name: getattr(settings, name) for name in named}


def _save_unfinished(stopped: Stopped, out: Path) -> None:
    from headscope import output, terminal

    if stopped.study is None:
        _complain(f"{stopped}: no text was finished")
    elif output.keeps_more(out, stopped.study):
        _complain(f"{stopped}\n{out} already holds more texts of this study, and was left as it is")
    else:
        terminal.note(f"writing the {stopped.study.texts:,} texts finished until now …")
        output.write(stopped.study, out)
        _complain(f"{stopped}\nThe {stopped.study.texts:,} texts finished until then are in {out}, marked incomplete")


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _numbers(text: str | None, name: str) -> list[int] | None:
    """`0,5,10-11` as numbers."""
    if text is None:
        return None
    numbers: list[int] = []
    for part in _listed(text):
        start, dash, end = part.partition("-")
        if not start.isdigit() or (dash and not end.isdigit()):
            raise StudyError(f"{name} {text!r}: write numbers and ranges, like 0,5,10-11")
        numbers += range(int(start), int(end or start) + 1)
    return numbers
