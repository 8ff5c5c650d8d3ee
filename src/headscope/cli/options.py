"""What the commands share: options, each said once, exit codes, and lists written with commas."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from headscope.errors import ModelError, StudyError

DTYPES = ("float32", "bfloat16", "float16")

FAILED, INTERRUPTED, TERMINATED = 1, 130, 143
DIFFERS = 3
"""`paper` made its check, and the pairs are not the published ones"""

StudyPath = Annotated[Path, typer.Argument(metavar="STUDY", help="A study's folder, or its study.nc.")]
Texts = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TEXTS",
        help="Files, folders, globs, URLs (`s3://…`, `https://…`), `-` (stdin), `hf:NAME`, `example:NAME`. None: the "
        "bundled texts. For a vision model: images.",
    ),
]
Field = Annotated[
    str, typer.Option("--field", help="The field or column that holds the text (JSONL, CSV, Parquet, hf:).")
]
Format = Annotated[str, typer.Option("--format", help="auto (by ending), text, lines, jsonl, csv, parquet, image.")]
Encoding = Annotated[str, typer.Option("--encoding", help="Of text files, and of stdin.")]
Windows = Annotated[
    str, typer.Option("--windows", help="first: each document's first window; all: every window of it.")
]
ModelName = Annotated[str, typer.Option("--model", help="Hub name, folder, or `minilm`, the default model.")]
Stack = Annotated[
    str | None,
    typer.Option(
        "--stack",
        help="Of a model with encoder and decoder: encoder (the default), decoder, or cross, the decoder's attention "
        "to the encoder.",
    ),
]
Length = Annotated[int, typer.Option("--length", help="Tokens in a window.")]
Sentences = Annotated[
    str,
    typer.Option(
        "--sentences", help="tokens: a sentence ends with a token . ! ?; text: a sentence splitter on the raw text."
    ),
]
Theta = Annotated[float, typer.Option("--theta", help="θ: high similarities exceed θ times the largest.")]
Tau = Annotated[float, typer.Option("--tau", help="τ: lines draw more than τ of the strongest column's attention.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1, mps, …")]
Dtype = Annotated[str, typer.Option("--dtype", help="float32, bfloat16, float16.")]
TrustRemoteCode = Annotated[bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.")]
AllowPickle = Annotated[bool, typer.Option("--allow-pickle", help="Open pickled weights, which can run code.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
Formats = Annotated[str, typer.Option("--formats", help="Any of png,svg,pdf.")]
Layers = Annotated[str | None, typer.Option("--layers", help="Layers: 0,5,10-11. Default: the paper's, or all.")]
Heads = Annotated[str | None, typer.Option("--heads", help="Heads: 2,8 or 0-3.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout instead of a table.")]


def command() -> str:
    """The command as it was given, for the manifest."""
    return shlex.join(["headscope", *sys.argv[1:]])


def show(result: object, *, end: str = "\n") -> None:
    """Print a result on stdout at once."""
    print(result, end=end, flush=True)  # not typer.echo, which writes UTF-8 where stdout's encoding is ASCII


def show_json(text: str) -> None:
    """Print JSON on stdout. Programs expect it in UTF-8: where stdout has another encoding, it is all ASCII."""
    if (getattr(sys.stdout, "encoding", None) or "").lower() not in ("utf-8", "utf8"):
        text = re.sub(r"[^\x00-\x7f]", lambda found: json.dumps(found[0])[1:-1], text)
    show(text, end="")


def check_dtype(name: str) -> None:
    """Refuse an unknown type of numbers before torch is imported."""
    if name not in DTYPES:
        raise ModelError(f"unknown numeric type {name!r}; there are: {', '.join(DTYPES)}")


def listed(text: str) -> list[str]:
    """`png,svg` as parts."""
    return [part.strip() for part in text.split(",")]


def numbers(text: str | None, name: str) -> list[int] | None:
    """`0,5,10-11` as numbers."""
    if text is None:
        return None
    found: list[int] = []
    for part in listed(text):
        start, dash, end = part.partition("-")
        if not start.isdigit() or (dash and not end.isdigit()):
            raise StudyError(f"{name} {text!r}: write numbers and ranges, like 0,5,10-11")
        found += range(int(start), int(end or start) + 1)
    return found
