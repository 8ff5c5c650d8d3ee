"""Errors meant for people: each says what was wrong, where, and what to do about it.

The command line prints them without a traceback and exits with 1. Anything else that is raised is a defect of ours.
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
    """Remote storage failed; it may work again in a moment."""


class ModelError(HeadscopeError):
    """A model cannot be loaded, or its heads cannot be seen."""


class StudyError(HeadscopeError):
    """A study cannot be made, opened, merged or written."""


class Changed(StudyError):
    """A study cannot be continued, because something it depends on is not what it was when it began."""


class ReadingError(HeadscopeError):
    """A text cannot be read into matrices, or a reading cannot be opened, shown or written."""


class Stopped(HeadscopeError):
    """A study ended before its corpus did; `study` holds the texts finished until then, if there are any."""

    def __init__(self, reason: str, study: Study | None, *, interrupted: bool) -> None:
        super().__init__(reason)
        self.study = study
        self.interrupted = interrupted
