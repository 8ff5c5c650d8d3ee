"""Choose names for the compared studies: short, all different, and showing what distinguishes them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from headscope.errors import StudyError
from headscope.studies.result import Study

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
