"""`headscope segment`: cut a text where its subject changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headscope.cli import options

if TYPE_CHECKING:
    from headscope.corpus.documents import Document
    from headscope.segmentation.result import Segmentation


def segment_text(
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="TEXT",
            help="A file, `-` (stdin), `example:NAME`, or the text itself. A file of many documents (.jsonl, .csv, "
            ".parquet) is cut one by one. Default: the input of the paper's Fig. 9.",
        ),
    ] = None,
    literal: options.LiteralText = False,
    model: options.ModelName = "minilm",
    stack: options.Stack = None,
    level: Annotated[
        Literal["topic", "fine"],
        typer.Option(help="topic: where the subject changes, in texts of any length; fine: blocks inside a window."),
    ] = "topic",
    count: Annotated[int | None, typer.Option(help="Number of segments. Default: as many as are found.")] = None,
    granularity: Annotated[
        float, typer.Option(help="A boundary costs 1/granularity of the default: 2 cuts more often, 0.5 less.")
    ] = 1.0,
    out: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write a page to this file: map, strengths, the text in colors."),
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser (segments.html).")] = False,
    separator: Annotated[str, typer.Option(help="Line between segments.")] = "=" * 10,
    field: options.Field = "text",
    encoding: options.Encoding = "utf-8",
    length: Annotated[int, typer.Option("--length", help="Tokens per window, at the fine level.")] = 128,
    tau: options.Tau = 0.3,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    trust_remote_code: options.TrustRemoteCode = False,
    allow_pickle: options.AllowPickle = False,
    allow_unverified: options.AllowUnverified = False,
    quiet: options.Quiet = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON with character offsets; one line per document if there are many.")
    ] = False,
) -> None:
    """Cut a text where its subject changes, from what the heads write: without training or labels, with any encoder.

    Examples:

        headscope segment article.txt

        headscope segment article.txt --count 8 --output segments.html --open

        headscope segment book.txt --granularity 0.5 --json > book.json

        headscope segment example:airport-policing --level fine
    """
    from headscope.file_io import check_page
    from headscope.segmentation.result import validate_options
    from headscope.settings import Settings

    # Mistakes are reported at once: importing torch and loading a model takes seconds.
    validate_options(count, granularity)
    Settings(length=length, tau=tau)
    options.check_inputs(model, None, length=None, allow_pickle=allow_pickle)
    page = Path("segments.html") if open_page and out is None else out
    if page is not None:
        check_page(page)
    documents = _read_documents(text, field, encoding, literal=literal)
    document = next(documents)
    following = next(documents, None)
    if following is not None and page is not None:
        raise _make_several_error(document.name)
    options.check_inputs(model, document, length=length if level == "fine" else None, allow_pickle=allow_pickle)

    from headscope.cli.display import console
    from headscope.model.loading import load
    from headscope.segmentation.segment import segment as run

    loaded = load(
        model, stack=stack, device=device, dtype=dtype, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle
    )
    settings: dict[str, Any] = {
        "level": level, "count": count, "granularity": granularity, "length": length, "tau": tau,
        "command": options.get_command_line(), "allow_unverified": allow_unverified,
    }  # fmt: skip
    several = following is not None
    with console.show_progress(quiet=quiet) as progress:
        segmentation = run(loaded, document, progress=progress, **settings)
    _show(segmentation, document.name, several, separator, as_json=as_json)
    while following is not None:
        _show(run(loaded, following, **settings), following.name, several, separator, as_json=as_json)
        following = next(documents, None)
    console.print_unverified(segmentation.manifest)
    if page is not None:
        segmentation.to_html(page)
        console.print_note(f"written: {page}")
    if open_page and page is not None:
        import webbrowser

        if not webbrowser.open(page.resolve().as_uri()):
            console.print_note(f"no browser could be opened: open {page} in one")


def _read_documents(source: str | None, field: str, encoding: str, *, literal: bool) -> Iterator[Document]:
    from headscope.corpus.documents import documents
    from headscope.errors import CorpusError
    from headscope.readings import arguments

    if source is None or literal or not arguments.names_source(source):
        if source is not None and not literal and len(source.split()) == 1:
            raise CorpusError(f"{source}: there is no such file, and a single word cannot be cut")
        yield arguments.read_text_argument(source, field=field, literal=literal)
        return
    empty = True
    for document in documents([source], field=field, encoding=encoding):
        if document.is_image:
            raise CorpusError(f"{document.name}: an image; only texts can be cut into segments")
        if document.text.strip():
            empty = False
            yield document
    if empty:
        raise CorpusError(f"{'standard input' if source == '-' else source}: there is no text in it")


def _make_several_error(name: str) -> Exception:
    from headscope.errors import StudyError

    return StudyError(
        f"{name}: there are several documents, and a page shows one: leave --output, or give one document"
    )


def _show(segmentation: Segmentation, name: str, several: bool, separator: str, *, as_json: bool) -> None:
    import json

    from headscope.cli.display import console

    if as_json:
        result = {"document": name, **segmentation.as_dict()}
        options.show(json.dumps(result, indent=None if several else 2, allow_nan=False))
    else:
        if several:
            options.show(f"{separator} {name} {separator}")
        options.show(segmentation.to_text(separator), end="")
    if segmentation.manifest["level"] == "topic" and len(segmentation.edges) == 2:
        console.print_note(f"{name}: one sentence, in which no boundary is looked for; --level fine cuts inside of it")
    if segmentation.leaves_out:
        count = segmentation.manifest["sentences_read_in_part"]
        console.print_note(
            f"{name}: of {count} sentence{'s' * (count != 1)}, longer than this model reads at once, only the "
            "beginning was read; --level fine reads all of it"
        )
