"""`headscope.compare`: studies in, one comparison out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from headscope.comparison.compatible import check, notes, warnings
from headscope.comparison.names import names_of
from headscope.comparison.result import ALPHA, Comparison
from headscope.errors import StudyError
from headscope.readings.reading import Reading
from headscope.studies.result import Study, open_study

Source = Study | str | Path
TOO_FEW = "a comparison needs at least two studies"


def compare(
    studies: Iterable[Source],
    names: Sequence[str] | None = None,
    *,
    baseline: str | None = None,
    alpha: float = ALPHA,
    force: bool = False,
) -> Comparison:
    """Models side by side: findings, rates over depth, characters of heads, and head by head where shapes are one.

    `studies` are studies, their folders or files; `names` what to call them. Studies of one shape are held against the
    first of them, or against the one named `baseline`. Studies whose settings make their numbers incomparable are
    refused, unless that is forced.

    >>> import headscope
    >>> model = headscope.load()
    >>> texts = list(headscope.documents(limit=6))
    >>> both = [headscope.study(model, texts[:3]), headscope.study(model, texts[3:])]
    >>> headscope.compare(both, ["front", "back"])
    <Comparison of front, back: 2 studies, 1 warning>
    """
    if isinstance(studies, (Study, Reading, str, Path)):
        raise StudyError(f"{TOO_FEW}, and one was given: give a list of them")
    opened = [_opened(source) for source in studies]
    if len(opened) < 2:
        raise StudyError(f"{TOO_FEW}, and {'one was' if opened else 'none was'} given")
    if not 0 < alpha < 1:
        raise StudyError(f"alpha is {alpha}: it is the chance of a false alarm that is put up with, between 0 and 1")
    called = names_of(opened, names)
    if baseline is not None and baseline not in called:
        raise StudyError(f"no study is called {baseline!r} to be the baseline; there are: {', '.join(called)}")
    named = list(zip(called, opened, strict=True))
    forced = check(named, force=force)
    return Comparison(
        names=called,
        studies=opened,
        baseline=baseline,
        alpha=alpha,
        forced=forced,
        warnings=[*forced, *warnings(named)],
        notes=notes(named),
    )


def _opened(source: object) -> Study:
    if isinstance(source, Study):
        return source
    if isinstance(source, Reading):
        raise StudyError(
            "a reading of one text was given in place of a study: headscope.study makes studies, of many texts"
        )
    if isinstance(source, (str, Path)):
        return open_study(source)
    raise StudyError(f"a comparison takes studies, or their folders, not {type(source).__name__}")
