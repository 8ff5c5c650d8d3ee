"""The command line: arguments in, one call, words out.

Exit codes: 0 done; 1 an error that the message explains; 2 the command itself was not understood; 3 `paper` made its
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

from headscope.cli import ablate, compare, heads, merge, models, options, prune, read, results, segment, study
from headscope.errors import HeadscopeError

app = typer.Typer(
    name="headscope",
    help="What every attention head of a transformer writes, measured over whole corpora.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="markdown",
)
for command in (
    study.study, merge.merge, read.read, segment.segment, results.findings, heads.heads, results.figures,
    results.report, compare.compare, ablate.ablate, prune.prune, models.models, models.anatomy, models.paper,
):  # fmt: skip
    app.command()(command)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        from headscope import __version__

        options.show(f"headscope {__version__}")
        raise typer.Exit


def _replace_unencodable() -> None:
    """Have stdout and stderr show `?` for characters that their encoding lacks, instead of raising an error."""
    for stream in (sys.stdout, sys.stderr):
        if not isinstance(stream, io.TextIOWrapper):  # closed, or replaced by a program that calls this
            continue
        utf8 = stream.encoding.lower() in ("utf-8", "utf8")
        # In UTF-8, `surrogateescape` gives file names of other encodings back as they are; elsewhere it is strict.
        if stream.errors == "strict" or (stream.errors == "surrogateescape" and not utf8):
            stream.reconfigure(errors="replace")


def main() -> None:
    """Run the command line; every error of ours ends in one message, without a traceback."""
    _replace_unencodable()
    with _record_failures(sys.stdout) as failures:
        try:
            try:
                app()
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
            if isinstance(error, BrokenPipeError):  # whoever reads the results has enough of them
                sys.exit(options.FAILED)
            _fail(f"standard output cannot be written: {error.strerror or error}")


def _fail(message: object) -> NoReturn:
    from headscope import terminal

    terminal.complain(message)
    sys.exit(options.FAILED)


@contextmanager
def _record_failures(stream: Any) -> Iterator[list[OSError]]:
    """Collect the errors of writing to a stream: nothing else tells them from those of other files."""
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
    """Have nothing written to a stream any more: Python would try to, and complain, when the process ends."""
    with suppress(OSError, ValueError):  # it may be no file
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
