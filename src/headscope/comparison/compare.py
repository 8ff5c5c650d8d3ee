"""`headscope.compare`: build a `Comparison` from several studies, if they may be compared.

Decide which studies may be compared, and describe what differs between them.

`check_compatible` refuses studies whose numbers do not mean the same. `collect_warnings` describes what weakens a
comparison, `collect_notes` what a reader should know of the models.

Choose names for the compared studies: short, all different, and showing what distinguishes them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from headscope.comparison.differences import has_same_texts
from headscope.comparison.measures import CROSS
from headscope.comparison.result import ALPHA, Comparison
from headscope.errors import StudyError
from headscope.readings.reading import Reading
from headscope.settings import MANIFEST, describe_unverified, get_value
from headscope.studies.result import Study, open_study
from headscope.studies.sample_size import describe_errors, describe_missing_texts

FEW_TEXTS = 3
"""Ratio of the largest to the smallest number of texts from which a warning is given."""


NamedStudies = Sequence[tuple[str, Study]]


def check_compatible(studies: NamedStudies, *, force: bool) -> list[str]:
    """Refuse studies that cannot be compared.

    Returns:
        Descriptions of the settings that differ, where the comparison was forced.

    Raises:
        StudyError: The studies cannot be compared.
    """
    for name, study in studies:
        if not study.whole:
            raise StudyError(f"{name}: only some layers or heads are selected; a comparison takes whole studies")
        if study.texts == 0:
            raise StudyError(f"{name}: the study holds no texts, so there is nothing to compare")
    images = [name for name, study in studies if study.has_images]
    if 0 < len(images) < len(studies):
        raise StudyError(
            f"studies of texts and of images cannot be compared: patches are no words. Of images: "
            f"{_join_names(images)}; compare them with each other"
        )
    for (first_name, first), (second_name, second) in combinations(studies, 2):
        if first is second or _is_same_study(first, second):
            raise StudyError(f"{first_name} and {second_name} are one and the same study: give each study once")
    differing = {
        entry.name: (f"{entry.label[0].lower()}{entry.label[1:]}", _format_values(studies, entry.name))
        for entry in MANIFEST
        if "compare" in entry.must_match and len(_group_names(studies, entry.name)) > 1
    }
    if differing and not force:
        descriptions = "; ".join(f"{label}: {values}" for label, values in differing.values())
        options = " and ".join(f"--{name.replace('_', '-')}" for name in differing)
        raise StudyError(
            f"these studies cannot be compared, as their numbers do not mean the same. {descriptions}. Study them "
            f"again with the same {options}, or compare them nevertheless with --force (in Python force=True)"
        )
    return [
        f"Compared by force although they differ in {label}: {values}. "
        "Their numbers do not mean the same, and a difference may come from that alone."
        for label, values in differing.values()
    ]


def _is_same_study(first: Study, second: Study) -> bool:
    return first.manifest == second.manifest and all(
        np.array_equal(first.data[name].values, second.data[name].values) for name in ("pairs", "equal", "texts_blocks")
    )


def collect_warnings(studies: NamedStudies) -> list[str]:
    """Describe what makes the comparison weaker than it looks."""
    return [warning for find_warnings in _WARNINGS for warning in find_warnings(studies)]


def collect_notes(studies: NamedStudies) -> list[str]:
    """Describe what a reader should know of these models."""
    return [note for find_notes in _NOTES for note in find_notes(studies)]


# -- warnings ---------------------------------------------------------------------------------------------------------


def _warn_corpora(studies: NamedStudies) -> list[str]:
    if len(_group_names(studies, "corpus_hash")) < 2:
        return []
    corpora = (
        _format_values(studies, "corpus") if len(_group_names(studies, "corpus")) > 1 else "same name, other content"
    )
    return [
        f"Different texts ({corpora}): a difference may come from the texts, and differences of heads cannot be paired "
        "text by text."
    ]


def _warn_incomplete(studies: NamedStudies) -> list[str]:
    return [
        f"{name} is incomplete: it ended before its corpus did, after {study.texts:,} texts "
        f"({study.data.attrs.get('stopped_by') or 'of an unknown cause'})."
        for name, study in studies
        if not int(study.data.attrs.get("complete", 1))
    ]


def _warn_unverified(studies: NamedStudies) -> list[str]:
    marks = [f"{name}: {mark}." for name, study in studies if (mark := describe_unverified(study.manifest))]
    return [" ".join(marks)] if marks else []


def _warn_text_counts(studies: NamedStudies) -> list[str]:
    counts = [study.texts for _, study in studies]
    if max(counts) < FEW_TEXTS * min(counts):
        return []
    listed = ", ".join(f"{name} {study.texts:,}" for name, study in studies)
    return [f"Very different numbers of texts ({listed}): the errors of the smaller studies are larger."]


def _make_attribute_warning(attribute: str, label: str, consequence: str) -> Callable[[NamedStudies], list[str]]:
    def find_difference(studies: NamedStudies) -> list[str]:
        if len(_group_names(studies, attribute)) < 2:
            return []
        return [f"{label}: {_format_values(studies, attribute)}. {consequence}"]

    return find_difference


def _warn_few_texts(studies: NamedStudies) -> list[str]:
    remarks = [(name, describe_missing_texts(study)) for name, study in studies]
    return [f"{name}: {missing}. Its heads have no type and are not tested." for name, missing in remarks if missing]


def _warn_errors(studies: NamedStudies) -> list[str]:
    remarks = [(name, describe_errors(study)) for name, study in studies]
    return [f"{name}: {remark[0].lower()}{remark[1:]}" for name, remark in remarks if remark]


_WARNINGS: tuple[Callable[[NamedStudies], list[str]], ...] = (
    _warn_corpora,
    _warn_incomplete,
    _warn_unverified,
    _warn_text_counts,
    _warn_few_texts,
    _warn_errors,
    _make_attribute_warning(
        "min_tokens", "Different shortest texts (min_tokens)", "The studies skipped different documents."
    ),
    _make_attribute_warning(
        "blocks", "Blocks of different units (blocks)", "Errors over blocks of windows are too small."
    ),
    _make_attribute_warning(
        "target", "Different targets of the decoder", "What it reads is not what the text alone decides."
    ),
    _make_attribute_warning("dtype", "Different dtypes", "Pairs near the threshold may change with them."),
    _make_attribute_warning(
        "headscope", "Made with different versions of headscope", "Changes in how they count would show as differences."
    ),
    _make_attribute_warning(
        "format", "Files of different formats", "Changes in what they hold would show as differences."
    ),
)


# -- notes ------------------------------------------------------------------------------------------------------------


def _note_same_model(studies: NamedStudies) -> list[str]:
    notes = []
    for (first_name, first), (second_name, second) in combinations(studies, 2):
        first_attributes, second_attributes = first.data.attrs, second.data.attrs
        weights = first_attributes.get("weight_hash")
        same_weights = weights and weights == second_attributes.get("weight_hash")
        stacks = {
            attributes["stack"] for attributes in (first_attributes, second_attributes) if attributes.get("stack")
        }
        if same_weights and len(stacks) < 2:
            notes.append(
                f"{first_name} and {second_name} are the very same model (equal weights): what differs comes from the "
                "texts, the settings, the dtype or the machine."
            )
    return notes


def _note_tokenizers(studies: NamedStudies) -> list[str]:
    (first_name, first), *others = studies
    cut_differently = [
        name
        for name, study in others
        if study.data.attrs["corpus_hash"] == first.data.attrs["corpus_hash"] and not has_same_texts(first, study)
    ]
    meaning = (
        "a window of the same length holds another span of text, and equal tokens, distances and sentences are counted "
        "in other units; compare against chance."
    )
    if len(_group_names(studies, "tokenizer")) > 1:
        return [f"Different tokenizers ({_format_values(studies, 'tokenizer')}): {meaning}"]
    if cut_differently:
        return [f"{_join_names(cut_differently)} cut the same texts into other tokens than {first_name}: {meaning}"]
    return []


def _note_stacks(studies: NamedStudies) -> list[str]:
    """Describe stacks of one model, and cross-attention.

    An encoder beside another model's decoder is not described here: `_note_causal` says what their tokens see.
    """
    stacks = [(name, study) for name, study in studies if study.data.attrs.get("stack")]
    stacks_by_model: dict[Any, set[str]] = {}
    for _, study in stacks:
        stacks_by_model.setdefault(study.data.attrs.get("weight_hash"), set()).add(str(study.data.attrs["stack"]))
    notes = []
    if any(len(kinds) > 1 for kinds in stacks_by_model.values()):
        notes.append(
            f"Stacks of one model ({_format_values(stacks, 'stack')}): their heads have different tasks by design."
        )
    cross = [name for name, study in stacks if study.data.attrs["stack"] == CROSS]
    if 0 < len(cross) < len(studies):
        notes.append(
            f"{_join_names(cross)} looks from one text at another (cross-attention): attention within ±1 is not "
            "measurable."
        )
    return notes


def _note_causal(studies: NamedStudies) -> list[str]:
    directions = {True: "only what came before", False: "the whole window"}
    causal = [(name, bool(int(study.data.attrs.get("causal", 0)))) for name, study in studies]
    if len({is_causal for _, is_causal in causal}) < 2:
        return []
    description = "; ".join(
        f"{_join_names([name for name, is_causal in causal if is_causal == direction])}: {visible}"
        for direction, visible in directions.items()
    )
    return [f"Decoders beside encoders (what a token sees: {description}): the tokens that attention can go to differ."]


def _note_tau(studies: NamedStudies) -> list[str]:
    if len(_group_names(studies, "tau")) < 2:
        return []
    return [
        f"Different thresholds τ of a line ({_format_values(studies, 'tau')}): nothing that is compared depends on "
        "lines, so this changes no number."
    ]


_NOTES: tuple[Callable[[NamedStudies], list[str]], ...] = (
    _note_same_model,
    _note_stacks,
    _note_causal,
    _note_tokenizers,
    _note_tau,
)


# -- formatting -------------------------------------------------------------------------------------------------------


def _group_names(studies: NamedStudies, attribute: str) -> dict[Any, list[str]]:
    """Return the values of an attribute, each with the names of the studies that have it."""
    names_by_value: dict[Any, list[str]] = {}
    for name, study in studies:
        names_by_value.setdefault(get_value(study.manifest, attribute, "unknown"), []).append(name)
    return names_by_value


def _format_values(studies: NamedStudies, attribute: str) -> str:
    return ", ".join(f"{value} ({_join_names(names)})" for value, names in _group_names(studies, attribute).items())


def _join_names(names: Sequence[str]) -> str:
    return ", ".join(names)


DISTINGUISHING = ("stack", "dtype", "corpus")
"""Attributes that distinguish studies of one model, in the order in which they are tried."""


def choose_names(studies: Sequence[Study], requested: Sequence[str] | None = None) -> list[str]:
    """Return the names given, or those of the models, as short as they can be told apart.

    Raises:
        StudyError: The names are too few, too many, empty or repeated.
    """
    if requested is None:
        return _make_names(studies)
    names = [str(name).strip() for name in requested]
    if len(names) != len(studies):
        raise StudyError(f"{len(names)} names for {len(studies)} studies: give one name for each, in their order")
    if not all(names):
        raise StudyError("a name is empty: give one name for each study, in their order")
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise StudyError(f"the name {repeated[0]!r} is given twice: give each study a different name")
    return names


def _make_names(studies: Sequence[Study]) -> list[str]:
    names = shorten_paths([str(study.data.attrs["model"]) for study in studies])
    for attribute in DISTINGUISHING:
        values = [str(study.data.attrs.get(attribute, "")) for study in studies]
        names = [
            f"{name} {value}" if value and _has_different_values(name, names, values) else name
            for name, value in zip(names, values, strict=True)
        ]
    used: Counter[str] = Counter()
    numbered_names = []
    for name in names:
        used[name] += 1
        numbered_names.append(f"{name} ({used[name]})" if names.count(name) > 1 else name)
    return numbered_names


def _has_different_values(name: str, names: Sequence[str], values: Sequence[str]) -> bool:
    """Return whether studies of this name have different values."""
    return len({value for other, value in zip(names, values, strict=True) if other == name}) > 1


def shorten_paths(models: Sequence[str]) -> list[str]:
    """Return paths and hub names without their first parts, as far as different ones stay different.

    >>> shorten_paths(["google-bert/bert-base", "/models/gpt2/"]), shorten_paths(["a/best", "b/best"])
    (['bert-base', 'gpt2'], ['a/best', 'b/best'])
    """
    parts = [re.split(r"[/\\]+", model.rstrip("/\\")) if _is_path(model) else [model] for model in models]
    for length in range(1, max(map(len, parts)) + 1):
        tails = ["/".join(part[-length:]) or model for part, model in zip(parts, models, strict=True)]
        if len(set(tails)) == len(set(models)):
            return tails
    return list(models)


def _is_path(model: str) -> bool:
    return not re.search(r"[<>\"'\x00-\x1f]", model)


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
