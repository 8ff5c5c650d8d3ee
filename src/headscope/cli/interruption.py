"""End `headscope study` after errors and signals: what was counted is kept, and a message says how to resume."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import typer

from headscope.cli import options
from headscope.errors import Stopped, StudyError
from headscope.interrupts import InterruptFlag, Terminated, raise_interrupts

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
                raise typer.Exit(options.INTERRUPTED if interrupted else options.FAILED) from None
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
    raise typer.Exit(options.TERMINATED if terminated else options.INTERRUPTED) from None


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
