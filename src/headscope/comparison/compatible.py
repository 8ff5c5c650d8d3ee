"""What may be compared: which studies are refused, and what has to be said of those that are not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from headscope.comparison.differences import same_texts
from headscope.comparison.measures import CROSS, occupied
from headscope.errors import StudyError
from headscope.studies.result import Study

FEW_TEXTS = 3
"""how many times as many texts one study may rest on before that is said"""


@dataclass(frozen=True)
class Setting:
    """A setting that changes what every number means."""

    name: str
    words: str
    option: str


REFUSED = (
    Setting("length", "tokens in a window", "--length"),
    Setting("windows", "windows taken of a document", "--windows"),
    Setting("sentences", "how sentences are found", "--sentences"),
    Setting("theta", "threshold θ of a high pair", "--theta"),
)
"""τ is not among them: it decides lines only, and nothing that is compared rests on lines."""

Named = Sequence[tuple[str, Study]]


def check(named: Named, *, force: bool) -> list[str]:
    """Refuse what cannot be compared; the settings that differ all the same, in words, where that was forced."""
    for name, study in named:
        if not study.whole:
            raise StudyError(
                f"{name}: only some layers or heads are selected; a comparison takes whole studies, as they were made"
            )
        if study.texts == 0:
            raise StudyError(f"{name}: the study holds no texts, so there is nothing to compare")
    images = [name for name, study in named if study.of_images]
    if 0 < len(images) < len(named):
        raise StudyError(
            f"studies of texts and of images cannot be compared: patches are no words. Of images: {_listed(images)}; "
            "compare them with each other"
        )
    for (one, first), (other, second) in combinations(named, 2):
        if first is second or _identical(first, second):
            raise StudyError(f"{one} and {other} are one and the same study: give each study once")
    differing = [
        (setting, _grouped(named, setting.name)) for setting in REFUSED if len(_values(named, setting.name)) > 1
    ]
    if differing and not force:
        said = "; ".join(f"{setting.words}: {values}" for setting, values in differing)
        options = " and ".join(setting.option for setting, _ in differing)
        raise StudyError(
            f"these studies cannot be compared, as their numbers do not mean the same. {said}. Study them again with "
            f"one {options}, or compare them in spite of it with --force (in Python force=True)"
        )
    return [
        f"Compared by force although they differ in {setting.words}: {values}. "
        "Their numbers do not mean the same, and a difference may come from that alone."
        for setting, values in differing
    ]


def _identical(one: Study, other: Study) -> bool:
    return one.manifest == other.manifest and all(
        np.array_equal(one.data[name].values, other.data[name].values) for name in ("pairs", "equal", "texts_blocks")
    )


def warnings(named: Named) -> list[str]:
    """What makes the comparison weaker than it looks."""
    return [said for look in _WARNINGS for said in look(named)]


def notes(named: Named) -> list[str]:
    """What a reader should know of these models."""
    return [said for look in _NOTES for said in look(named)]


# -- warnings ---------------------------------------------------------------------------------------------------------


def _corpora(named: Named) -> list[str]:
    if len(_values(named, "corpus_hash")) < 2:
        return []
    corpora = _grouped(named, "corpus") if len(_values(named, "corpus")) > 1 else "one name, other content"
    return [
        f"Other texts ({corpora}): a difference may come from the texts, and differences of heads cannot be paired "
        "text by text."
    ]


def _incomplete(named: Named) -> list[str]:
    return [
        f"{name} is incomplete: it ended before its corpus did, after {study.texts:,} texts "
        f"({study.data.attrs.get('stopped_by') or 'of an unknown cause'})."
        for name, study in named
        if not int(study.data.attrs.get("complete", 1))
    ]


def _numbers_of_texts(named: Named) -> list[str]:
    texts = [study.texts for _, study in named]
    if max(texts) < FEW_TEXTS * min(texts):
        return []
    listed = ", ".join(f"{name} {study.texts:,}" for name, study in named)
    return [f"Very different numbers of texts ({listed}): the errors of the smaller studies are larger."]


def _differing(attribute: str, words: str, what_of_it: str) -> Callable[[Named], list[str]]:
    def look(named: Named) -> list[str]:
        if len(_values(named, attribute)) < 2:
            return []
        return [f"{words}: {_grouped(named, attribute)}. {what_of_it}"]

    return look


def _too_few_blocks(named: Named) -> list[str]:
    few = [name for name, study in named if len(occupied(study)) < 2]
    if not few:
        return []
    return [f"{_listed(few)}: the texts fill fewer than two blocks, so that no number of it has a standard error."]


_WARNINGS: tuple[Callable[[Named], list[str]], ...] = (
    _corpora,
    _incomplete,
    _numbers_of_texts,
    _too_few_blocks,
    _differing("min_tokens", "Other shortest texts (min_tokens)", "The studies skipped other documents."),
    _differing("dtype", "Other numeric types", "Pairs near the threshold may change with them."),
    _differing("headscope", "Made with other versions of headscope", "What a version counted otherwise would show."),
    _differing("format", "Files of other formats", "What a format holds otherwise would show."),
)


# -- notes ------------------------------------------------------------------------------------------------------------


def _same_model(named: Named) -> list[str]:
    said = []
    for (one, first), (other, second) in combinations(named, 2):
        mine, theirs = first.data.attrs, second.data.attrs
        known = mine.get("weight_hash") and mine.get("weight_hash") == theirs.get("weight_hash")
        stacks = {about["stack"] for about in (mine, theirs) if about.get("stack")}
        if known and len(stacks) < 2:
            said.append(
                f"{one} and {other} are the very same model (equal weights): what differs comes from the texts, the "
                "settings, the numeric type or the machine."
            )
    return said


def _tokenizers(named: Named) -> list[str]:
    (first_name, first), *others = named
    cut_otherwise = [
        name
        for name, study in others
        if study.data.attrs["corpus_hash"] == first.data.attrs["corpus_hash"] and not same_texts(first, study)
    ]
    meaning = (
        "a window of one length holds another span of text, and equal tokens, distances and sentences are counted in "
        "other units; compare against chance."
    )
    if len(_values(named, "tokenizer")) > 1:
        return [f"Other tokenizers ({_grouped(named, 'tokenizer')}): {meaning}"]
    if cut_otherwise:
        return [f"{_listed(cut_otherwise)} cut the same texts into other tokens than {first_name}: {meaning}"]
    return []


def _stacks(named: Named) -> list[str]:
    """Stacks of one model, and cross-attention; an encoder beside another model's decoder is said by what they see."""
    stacks = [(name, study) for name, study in named if study.data.attrs.get("stack")]
    of_model: dict[Any, set[str]] = {}
    for _, study in stacks:
        of_model.setdefault(study.data.attrs.get("weight_hash"), set()).add(str(study.data.attrs["stack"]))
    said = []
    if any(len(kinds) > 1 for kinds in of_model.values()):
        said.append(f"Stacks of one model ({_grouped(stacks, 'stack')}): their heads have other tasks by construction.")
    cross = [name for name, study in stacks if study.data.attrs["stack"] == CROSS]
    if 0 < len(cross) < len(named):
        said.append(
            f"{_listed(cross)} looks from one text at another (cross-attention): attention within ±1 is not measurable."
        )
    return said


def _causal(named: Named) -> list[str]:
    directions = {True: "only what came before", False: "the whole window"}
    causal = [bool(int(study.data.attrs.get("causal", 0))) for _, study in named]
    if len(set(causal)) < 2:
        return []
    said = "; ".join(
        f"{_listed([name for (name, _), one in zip(named, causal, strict=True) if one == kind])}: {words}"
        for kind, words in directions.items()
    )
    return [f"Decoders beside encoders (what a token sees: {said}): attention has other places to go to."]


def _tau(named: Named) -> list[str]:
    if len(_values(named, "tau")) < 2:
        return []
    return [
        f"Other thresholds τ of a line ({_grouped(named, 'tau')}): nothing that is compared here rests on lines, so "
        "this changes no number."
    ]


_NOTES: tuple[Callable[[Named], list[str]], ...] = (_same_model, _stacks, _causal, _tokenizers, _tau)


# -- words ------------------------------------------------------------------------------------------------------------


def _values(named: Named, attribute: str) -> dict[Any, list[str]]:
    """The values of an attribute, each with the names of the studies that have it."""
    held: dict[Any, list[str]] = {}
    for name, study in named:
        held.setdefault(study.manifest.get(attribute, "unknown"), []).append(name)
    return held


def _grouped(named: Named, attribute: str) -> str:
    return ", ".join(f"{value} ({_listed(names)})" for value, names in _values(named, attribute).items())


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)
