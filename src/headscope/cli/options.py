"""What several commands share: options, exit codes, parsing of lists, and how a command ends.

End `headscope study` after errors and signals: what was counted is kept, and a message says how to resume.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

from headscope.errors import Stopped, StudyError
from headscope.head_selection import parse_heads, parse_layers
from headscope.interrupts import InterruptFlag, Terminated, raise_interrupts

if TYPE_CHECKING:
    from headscope.corpus.document import Document


FIGURE_FORMATS = ("png", "svg", "pdf")
STUDY_FIGURES = (
    "2",
    "3",
    "6a",
    "6b",
    "7",
    "8",
    "10",
    "11a",
    "11b",
    "13",
    "values",
    "noise",
    "head-types",
    "head-similarity",
)
READING_FIGURES = ("4", "5", "9", "12")

FAILED, INTERRUPTED, TERMINATED = 1, 130, 143
DIFFERS = 3
"""`paper` finished its check, and the pairs are not the published ones"""

StudyPath = Annotated[Path, typer.Argument(metavar="STUDY", help="A study's folder, or its study.nc.")]
Texts = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TEXTS",
        help="Files, folders, globs, URLs (`s3://…`, `https://…`), `-` (stdin), `hf:NAME`, `example:NAME`. "
        "Default: the bundled texts. For a vision model: images.",
    ),
]
LiteralText = Annotated[bool, typer.Option("--text", help="TEXT is the text itself, even if it looks like a file.")]
Field = Annotated[str, typer.Option("--field", help="Field or column that holds the text (JSONL, CSV, Parquet, hf:).")]
Target = Annotated[
    str,
    typer.Option(
        "--target",
        metavar="FIELD",
        help="For --stack decoder and cross: field or column that holds what the decoder is to write, such as the "
        "text's translation.",
    ),
]
Format = Annotated[
    Literal["auto", "text", "lines", "jsonl", "csv", "parquet", "conllu", "image"],
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="Format of the texts: auto (by file ending), text, lines, jsonl, csv, parquet, conllu, image.",
    ),
]
Encoding = Annotated[str, typer.Option("--encoding", help="Encoding of text files and stdin.")]
Windows = Annotated[
    Literal["first", "all"],
    typer.Option("--windows", help="first: the first window of each document; all: every window."),
]
Blocks = Annotated[
    Literal["documents", "windows"],
    typer.Option(
        "--blocks",
        help="What standard errors are computed over: documents, or windows, for a single long document (errors are "
        "then too small).",
    ),
]
ModelName = Annotated[str, typer.Option("--model", help="Model: a hub name, a folder, or `minilm`.")]
Stack = Annotated[
    Literal["encoder", "decoder", "cross"] | None,
    typer.Option(
        "--stack",
        metavar="STACK",
        help="For a model with encoder and decoder: encoder (the default), decoder, or cross (the decoder's attention "
        "to the encoder).",
    ),
]
Length = Annotated[int, typer.Option("--length", help="Tokens per window.")]
Sentences = Annotated[
    Literal["tokens", "text"],
    typer.Option(
        "--sentences",
        help="How sentences are found. tokens: a sentence ends with a token . ! ?; text: by a sentence splitter on "
        "the raw text.",
    ),
]
Theta = Annotated[float, typer.Option("--theta", help="θ: a similarity is high if it exceeds θ times the largest.")]
Tau = Annotated[
    float, typer.Option("--tau", help="τ: a line draws more than τ times the attention of the strongest column.")
]
SIMILARITY_HELP = (
    "Of what outputs similarities are. dot: as they are; centered: less their mean over the window; projected: as the "
    "output projection adds them to the residual stream; projected-centered: both."
)
Similarity = Annotated[
    Literal["dot", "centered", "projected", "projected-centered"],
    typer.Option("--similarity", metavar="SIMILARITY", help=SIMILARITY_HELP),
]
Device = Annotated[str, typer.Option("--device", help="Device to compute on: auto, cpu, cuda, cuda:1, mps, …")]
Dtype = Annotated[
    Literal["float32", "bfloat16", "float16"],
    typer.Option("--dtype", metavar="DTYPE", help="Numbers to compute with: float32, bfloat16, float16."),
]
TrustRemoteCode = Annotated[bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.")]
AllowPickle = Annotated[bool, typer.Option("--allow-pickle", help="Load pickled weights, which can run code.")]
AllowUnverified = Annotated[
    bool,
    typer.Option(
        "--allow-unverified",
        help="Measure a model whose captured heads cannot be verified, and mark all results. Default: refuse it.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]


def check_figure_formats(text: str) -> str:
    """Refuse unknown formats of figures before anything is computed."""
    if any(kind not in FIGURE_FORMATS for kind in split_list(text)):
        raise typer.BadParameter(f"{text!r} is not a list of {', '.join(map(repr, FIGURE_FORMATS))}, such as png,svg.")
    return text


Formats = Annotated[
    str,
    typer.Option(
        "--formats", callback=check_figure_formats, metavar="LIST", help="Formats of the figures: any of png,svg,pdf."
    ),
]
Figures = Annotated[
    str | None,
    typer.Option(
        "--only",
        metavar="LIST",
        help=f"Figures to draw: {','.join(STUDY_FIGURES)}; of a reading: {','.join(READING_FIGURES)}. Default: all.",
    ),
]


def check_layers(text: str | None) -> str | None:
    """Refuse what names no layers, before anything is computed."""
    if text is not None:
        parse_layers(text)
    return text


def check_heads(text: str | None) -> str | None:
    """Refuse what names no heads, before anything is computed."""
    if text is not None:
        parse_heads(text)
    return text


Layers = Annotated[str | None, typer.Option("--layers", callback=check_layers, help="Select layers: 3; 0,5,10-11.")]
Heads = Annotated[
    str | None,
    typer.Option(
        "--heads",
        callback=check_heads,
        help="Select heads: L3H7; L0H1,L3H4-7; L3 (all of a layer), L3-5; H2 (head 2 of every layer).",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON to stdout instead of a table.")]


def check_inputs(model: str, document: Document | None, *, length: int | None, allow_pickle: bool) -> None:
    """Report that a model is missing, or that a document or window is not for it, before anything slow is imported.

    Args:
        document: The first document, if it is known.
        length: Tokens per window; None if windows adapt to the model.
    """
    from headscope.model.model_files import check_length, check_modality, check_name

    check_name(model, allow_pickle=allow_pickle)
    if length is not None:
        check_length(model, length)
    check_modality(model, document)


def get_command_line() -> str:
    """Return the command line as it was typed, for the manifest."""
    return shlex.join(["headscope", *sys.argv[1:]])


def show(result: object, *, end: str = "\n") -> None:
    """Print a result to stdout and flush."""
    print(result, end=end, flush=True)  # not typer.echo, which writes UTF-8 where stdout's encoding is ASCII


def show_json(text: str) -> None:
    """Print JSON to stdout. Programs expect UTF-8: where stdout has another encoding, escape everything but ASCII."""
    if (getattr(sys.stdout, "encoding", None) or "").lower() not in ("utf-8", "utf8"):
        text = re.sub(r"[^\x00-\x7f]", lambda match: json.dumps(match[0])[1:-1], text)
    show(text, end="")


def split_list(text: str) -> list[str]:
    """Split a comma-separated list.

    >>> split_list("png, svg")
    ['png', 'svg']
    """
    return [part.strip() for part in text.split(",")]


def parse_figures(text: str | None) -> list[str] | None:
    """Parse a comma-separated list of figures; None if no list is given.

    >>> parse_figures("7, 11b")
    ['7', '11b']
    """
    if text is None:
        return None
    numbers = split_list(text)
    for number in numbers:
        if number not in STUDY_FIGURES + READING_FIGURES:
            of_study, of_reading = ", ".join(STUDY_FIGURES), ", ".join(READING_FIGURES)
            raise StudyError(f"no figure {number!r}; there are: {of_study}; of a reading: {of_reading}")
    return numbers


RESUME = "Run the same command again to resume."
RESUME_FIXED = "Fix that, or skip such documents with --skip-broken, and run the same command again to resume."


@contextmanager
def handle_endings(out: Path, checkpoints: str) -> Iterator[InterruptFlag]:
    """End the command with a message and an exit code on errors within this context; keep what was counted."""
    try:
        with convert_interrupts() as interrupt:
            try:
                yield interrupt
            except Stopped as stopped:
                # Whoever sends SIGTERM does not wait until figures are drawn.
                if interrupt.exception is Terminated or isinstance(stopped.__cause__, Terminated):
                    raise Terminated from None
                interrupted = stopped.interrupted or interrupt.exception is not None
                _save_unfinished(stopped, out, interrupted=interrupted)
                raise typer.Exit(INTERRUPTED if interrupted else FAILED) from None
            except StudyError as error:
                from headscope import output_folder

                if output_folder.has_checkpoint(checkpoints):
                    raise StudyError(f"{error}\nWhat was counted is kept in {checkpoints}.") from None
                raise
    except KeyboardInterrupt as error:
        end_interrupted(error, _describe_checkpoint(out, checkpoints))


@contextmanager
def convert_interrupts() -> Iterator[InterruptFlag]:
    """Raise Ctrl-C and SIGTERM as exceptions, also where a library turns them into other errors."""
    with raise_interrupts() as interrupt:
        try:
            yield interrupt
        except (Stopped, typer.Exit):
            raise
        except Exception:
            interrupt.check()
            raise


def end_interrupted(error: KeyboardInterrupt, message: str) -> NoReturn:
    """End the command after Ctrl-C or SIGTERM."""
    from headscope.cli.display import console

    terminated = isinstance(error, Terminated)
    console.print_error(f"{'terminated' if terminated else 'interrupted'}{message}")
    raise typer.Exit(TERMINATED if terminated else INTERRUPTED) from None


def _describe_checkpoint(out: Path, checkpoints: str) -> str:
    from headscope import output_folder

    has_checkpoint = output_folder.has_checkpoint(checkpoints)
    return f". What was counted is kept in {checkpoints}. {RESUME}" if has_checkpoint else ": nothing was counted"


def _save_unfinished(stopped: Stopped, out: Path, *, interrupted: bool) -> None:
    from headscope import output_folder
    from headscope.cli.display import console

    reason = "interrupted" if interrupted else stopped
    if stopped.study is None:
        console.print_error(f"{reason}: no text was finished")
    elif output_folder.has_more_texts(out, stopped.study):
        console.print_error(f"{reason}\n{out} already holds more texts of this study, and was not changed")
    else:
        console.print_note(f"writing the {stopped.study.texts:,} texts finished until now …")
        output_folder.write_study(stopped.study, out)
        console.print_error(
            f"{reason}\nThe {stopped.study.texts:,} texts finished until then are in {out}, marked incomplete. "
            + (RESUME if interrupted else RESUME_FIXED)
        )
