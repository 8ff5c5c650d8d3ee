"""How a study's command ends when it does not finish: what is there is kept, and people are told how to go on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from headscope.cli import options
from headscope.errors import Stopped, StudyError

GO_ON = "Give the same command to go on."
MENDED = "When that is mended, give the same command to go on; the last texts before it are computed again."


@contextmanager
def ending(out: Path) -> Iterator[None]:
    """Errors within this context end the command in words, with an exit code; what was computed is in the folder."""
    from headscope import output, terminal
    from headscope.studies.undisturbed import Terminated

    try:
        try:
            yield
        except Stopped as stopped:
            terminated = isinstance(stopped.__cause__, Terminated)
            if terminated:  # whoever sends that signal does not wait until figures are drawn
                texts = 0 if stopped.study is None else stopped.study.texts
                terminal.complain(f"terminated. {texts:,} texts are kept in {out}. {GO_ON}")
                raise typer.Exit(options.TERMINATED) from None
            _save_unfinished(stopped, out)
            raise typer.Exit(options.INTERRUPTED if stopped.interrupted else options.FAILED) from None
        except StudyError as error:
            if output.unfinished(out):
                raise StudyError(f"{error}\nWhat was studied is kept in {out / output.CHECKPOINTS}.") from None
            raise
    except Terminated:
        terminal.complain(f"terminated. {_kept(out)}")
        raise typer.Exit(options.TERMINATED) from None
    except KeyboardInterrupt:
        terminal.complain(f"interrupted. {_kept(out)}")
        raise typer.Exit(options.INTERRUPTED) from None


def _kept(out: Path) -> str:
    from headscope import output

    return f"What was studied is kept in {out}. {GO_ON}" if output.unfinished(out) else "No text was studied"


def _save_unfinished(stopped: Stopped, out: Path) -> None:
    from headscope import output, terminal

    if stopped.study is None:
        terminal.complain(f"{stopped}: no text was finished")
    elif output.keeps_more(out, stopped.study):
        terminal.complain(f"{stopped}\n{out} already holds more texts of this study, and was left as it is")
    else:
        terminal.note(f"writing the {stopped.study.texts:,} texts finished until now …")
        output.write(stopped.study, out)
        terminal.complain(
            f"{stopped}\nThe {stopped.study.texts:,} texts finished until then are in {out}, marked incomplete. "
            + (GO_ON if stopped.interrupted else MENDED)
        )
