"""`headscope.compare`: build a `Comparison` from several studies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from headscope.comparison.compatibility import check_compatible, collect_notes, collect_warnings
from headscope.comparison.names import choose_names
from headscope.comparison.result import ALPHA, Comparison
from headscope.errors import StudyError
from headscope.readings.reading import Reading
from headscope.studies.result import Study, open_study

StudySource = Study | str | Path
TOO_FEW = "a comparison needs at least two studies"


def compare(
    studies: Iterable[StudySource],
    names: Sequence[str] | None = None,
    *,
    baseline: str | None = None,
    alpha: float = ALPHA,
    force: bool = False,
    by_head: bool | None = None,
) -> Comparison:
    """Compare models: the paper's claims, rates over depth, head types, and single heads of related models.

    Parameters
    ----------
    studies
        Studies, or their folders or files.
    names
        What to call them; by default the names of their models.
    baseline
        Name of the study that studies of the same shape are compared with; by default the first of that shape.
    alpha
        Accepted probability of any false alarm among all heads of a rate.
    force
        Compare studies although their settings make their numbers incomparable.
    by_head
        Whether studies with the same layers and heads are compared head by head. By default those are whose heads
        correspond: of one model, or of models of which one was made from the other, as docs/comparison.md says.

    Returns
    -------
    Comparison

    Raises
    ------
    StudyError
        The studies cannot be compared, or an option makes no sense.

    Examples
    --------
    >>> import headscope
    >>> ravens = headscope.study("minilm", ["Two ravens met. The ravens left."])
    >>> bread = headscope.study("minilm", ["Bread is made of flour. Dough needs yeast."])
    >>> comparison = headscope.compare([ravens, bread], ["ravens", "bread"])
    >>> comparison.names
    ['ravens', 'bread']
    """
    if isinstance(studies, (Study, Reading, str, Path)):
        raise StudyError(f"{TOO_FEW}, and one was given: give a list of them")
    opened = [_open_source(source) for source in studies]
    if len(opened) < 2:
        raise StudyError(f"{TOO_FEW}, and {'one was' if opened else 'none was'} given")
    if not 0 < alpha < 1:
        raise StudyError(f"alpha is {alpha}: it is the accepted probability of a false alarm, between 0 and 1")
    study_names = choose_names(opened, names)
    if baseline is not None and baseline not in study_names:
        raise StudyError(
            f"no study is called {baseline!r}, which was to be the baseline; there are: {', '.join(study_names)}"
        )
    named_studies = list(zip(study_names, opened, strict=True))
    forced = check_compatible(named_studies, force=force)
    comparison = Comparison(
        names=study_names,
        studies=opened,
        baseline=baseline,
        alpha=alpha,
        forced=forced,
        warnings=[*forced, *collect_warnings(named_studies)],
        by_head=by_head,
    )
    return replace(comparison, notes=[*collect_notes(named_studies), *comparison.unrelated])


def _open_source(source: object) -> Study:
    if isinstance(source, Study):
        return source
    if isinstance(source, Reading):
        raise StudyError(
            "a reading of one text was given in place of a study: headscope.study makes a study, which is of many texts"
        )
    if isinstance(source, (str, Path)):
        return open_study(source)
    raise StudyError(f"a comparison takes studies, or their folders, not {type(source).__name__}")
