"""Errors with messages for users: what was wrong, where, and what to do about it.

The command line prints them without a traceback and exits with 1. Any other exception is a bug in headscope.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headscope.studies.result import Study


class HeadscopeError(Exception):
    """Base of every error headscope raises on purpose; the message says what is wrong, where, and what to do."""


class CorpusError(HeadscopeError):
    """A document could not be read."""


class StorageError(CorpusError):
    """Remote storage failed; trying again may help."""


class ModelError(HeadscopeError):
    """A model cannot be loaded, or its heads cannot be observed."""


class NonFiniteError(ModelError):
    """What a model computes for a text is NaN or infinite."""


def make_nonfinite_error(layer: int, head: int, subject: str = "outputs") -> NonFiniteError:
    """Return the error for outputs that are NaN or infinite."""
    return NonFiniteError(
        f"the {subject} of head L{layer}H{head} are not finite numbers (NaN or infinity): broken weights, "
        "or a dtype too narrow for this model (try --dtype float32)"
    )


class StudyError(HeadscopeError):
    """A study cannot be run, opened, merged or written."""


class Changed(StudyError):
    """A study cannot be resumed, because something it depends on has changed since it began."""


class ReadingError(HeadscopeError):
    """A text cannot be processed into a reading, or a reading cannot be opened, shown or written."""


class SelectionError(StudyError, ReadingError):
    """Selected heads or layers do not exist, or are not written as such."""


class Stopped(HeadscopeError):
    """A study, or an ablation, stopped before the end of its corpus.

    Attributes
    ----------
    study : Study or None
        The texts counted so far; None without any.
    interrupted : bool
        Whether it was interrupted (Ctrl-C), not stopped by an error.
    """

    def __init__(self, reason: str, study: Study | None, *, interrupted: bool) -> None:
        super().__init__(reason)
        self.study = study
        self.interrupted = interrupted
