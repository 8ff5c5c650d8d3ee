"""Errors with messages for users: what was wrong, where, and what to do about it.

The command line prints them without a traceback and exits with 1. Any other exception is a bug in headscope.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headscope.studies.result import Study


class HeadscopeError(Exception):
    """Base of every error headscope raises on purpose."""


class CorpusError(HeadscopeError):
    """A document could not be read."""


class StorageError(CorpusError):
    """Remote storage failed; trying again may help."""


class ModelError(HeadscopeError):
    """A model cannot be loaded, or its heads cannot be observed."""


class NonFiniteError(ModelError):
    """What a model computes for a text is NaN or infinite."""


class StudyError(HeadscopeError):
    """A study cannot be run, opened, merged or written."""


class Changed(StudyError):
    """A study cannot be resumed, because something it depends on has changed since it began."""


class ReadingError(HeadscopeError):
    """A text cannot be processed into a reading, or a reading cannot be opened, shown or written."""


class Stopped(HeadscopeError):
    """A study stopped before the end of its corpus; `study` contains the texts counted so far, None without any."""

    def __init__(self, reason: str, study: Study | None, *, interrupted: bool) -> None:
        super().__init__(reason)
        self.study = study
        self.interrupted = interrupted
