"""Command line of headscope.

Exit codes: 0 success; 1 an error that the message explains; 2 the command was not understood; 3 `paper` finished its
check and found differences; 130 interrupted; 143 terminated.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand

from headscope.cli import export, head, match, models, options, pruning, read, relations, results, segment, study
from headscope.errors import HeadscopeError

PANELS = {
    "Texts": ("literal", "field", "target", "format", "encoding", "limit", "min_tokens", "skip_broken", "share"),
    "Model": ("model", "stack", "dtype", "trust_remote_code", "allow_pickle", "allow_unverified"),
    "Method": (
        "length", "windows", "sentences", "blocks", "theta", "tau", "similarity", "sample", "maps", "relations",
        "examples", "level", "count", "granularity", "keep", "by", "ablation_type", "heads", "per_layer", "how",
        "study", "seed", "layers", "precision", "what",
    ),
    "Running": (
        "device", "kernel", "tf32", "batch_size", "engine", "workers", "worker_timeout", "address", "checkpoint_dir",
        "checkpoint_interval", "quiet",
    ),
    "Output": (
        "out", "overwrite", "head", "save", "pairs", "figures", "formats", "csv", "numbers", "separator", "open_page",
        "as_json", "help",
    ),
}  # fmt: skip
"""panels of options in the `--help` of long commands, in order, and the parameters in each"""
MAX_OPTIONS_WITHOUT_PANELS = 10


class _Command(TyperCommand):
    """Command whose `--help` shows many options in panels."""

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters in the order of the panels."""
        panels = {name: panel for panel, names in PANELS.items() for name in names}
        params: list[Any] = super().get_params(ctx)
        if len(params) <= MAX_OPTIONS_WITHOUT_PANELS:
            return params
        for param in params:
            if param.param_type_name == "option":
                param.rich_help_panel = panels.get(param.name)
        return sorted(params, key=lambda param: [None, *PANELS].index(getattr(param, "rich_help_panel", None)))


def _expand_alias(name: str) -> str:
    """Return the name of the option that `--out` is short for, and other names unchanged."""
    return "output" if name == "out" else name


app = typer.Typer(
    name="headscope",
    help="What every attention head of a transformer writes, measured over whole corpora.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "token_normalize_func": _expand_alias},
    rich_markup_mode="markdown",
)
COMMANDS: dict[str, Callable[..., None]] = {
    "study": study.run_study,
    "merge": study.merge_studies,
    "read": read.read_text,
    "segment": segment.segment_text,
    "findings": results.print_findings,
    "heads": results.list_heads,
    "relations": relations.list_relations,
    "head": head.show_head,
    "figures": results.draw_figures,
    "report": results.write_report,
    "compare": results.compare_studies,
    "match": match.match_models,
    "export": export.export_heads,
    "ablate": pruning.ablate_heads,
    "prune": pruning.prune_model,
    "models": models.list_models,
    "inspect": models.inspect_model,
    "paper": models.check_paper,
}
for name, command in COMMANDS.items():
    app.command(name, cls=_Command)(command)


@app.callback(invoke_without_command=True)
def _print_version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        from headscope import __version__

        options.show(f"headscope {__version__}")
        raise typer.Exit


def _replace_unencodable() -> None:
    """Make stdout and stderr show `?` for characters that their encoding lacks, instead of raising an error."""
    for stream in (sys.stdout, sys.stderr):
        if not isinstance(stream, io.TextIOWrapper):  # closed, or replaced by a program that calls this
            continue
        utf8 = stream.encoding.lower() in ("utf-8", "utf8")
        # In UTF-8, `surrogateescape` reproduces file names of other encodings; in other encodings it is strict.
        if stream.errors == "strict" or (stream.errors == "surrogateescape" and not utf8):
            stream.reconfigure(errors="replace")


def main() -> None:
    """Run the command line. Errors raised by headscope end in one message, without a traceback."""
    _replace_unencodable()
    with _record_failures(sys.stdout) as failures:
        try:
            try:
                app(prog_name="headscope")
            finally:
                if sys.stdout is not None:
                    sys.stdout.flush()
        except HeadscopeError as error:
            _fail(error)
        except MemoryError as error:
            _fail(f"not enough memory: {str(error) or 'choose a shorter --length or a smaller --batch-size'}")
        except OSError as error:
            if error not in failures:
                raise
            _silence(sys.stdout)
            if isinstance(error, BrokenPipeError):  # the reader of the results closed the pipe
                sys.exit(options.FAILED)
            _fail(f"standard output cannot be written: {error.strerror or error}")


def _fail(message: object) -> NoReturn:
    from headscope.cli.display import console

    console.print_error(message)
    sys.exit(options.FAILED)


@contextmanager
def _record_failures(stream: Any) -> Iterator[list[OSError]]:
    """Collect the errors of writing to a stream, to tell them from those of other files."""
    failures: list[OSError] = []

    def record(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            try:
                return method(*arguments)
            except OSError as error:
                failures.append(error)
                raise

        return call

    if not isinstance(stream, io.TextIOWrapper):
        yield failures
        return
    stream.write, stream.flush = record(stream.write), record(stream.flush)  # type: ignore[method-assign]
    try:
        yield failures
    finally:
        del stream.write, stream.flush


def _silence(stream: Any) -> None:
    """Discard what is still written to a stream: Python would write it, and complain, when the process ends."""
    with suppress(OSError, ValueError):  # the stream may not be a file
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
