"""What the compared studies are called: short, each different, and telling what sets them apart."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from headscope.errors import StudyError
from headscope.studies.result import Study

APART = ("stack", "dtype", "corpus")
"""attributes that tell studies of one model apart, in the order they are tried"""


def names_of(studies: Sequence[Study], given: Sequence[str] | None = None) -> list[str]:
    """The names given, or those of the models, as short as they can be told apart."""
    if given is None:
        return _made(studies)
    names = [str(name).strip() for name in given]
    if len(names) != len(studies):
        raise StudyError(f"{len(names)} names for {len(studies)} studies: give one name for each, in their order")
    if not all(names):
        raise StudyError("a name is empty: give one name for each study, in their order")
    twice = [name for name, number in Counter(names).items() if number > 1]
    if twice:
        raise StudyError(f"the name {twice[0]!r} is given twice: name each study differently")
    return names


def _made(studies: Sequence[Study]) -> list[str]:
    names = shortened([str(study.data.attrs["model"]) for study in studies])
    for attribute in APART:
        values = [str(study.data.attrs.get(attribute, "")) for study in studies]
        names = [
            f"{name} {value}" if value and _differ(name, names, values) else name
            for name, value in zip(names, values, strict=True)
        ]
    seen: Counter[str] = Counter()
    numbered = []
    for name in names:
        seen[name] += 1
        numbered.append(f"{name} ({seen[name]})" if names.count(name) > 1 else name)
    return numbered


def _differ(name: str, names: Sequence[str], values: Sequence[str]) -> bool:
    """Whether studies of one name have different values."""
    return len({value for each, value in zip(names, values, strict=True) if each == name}) > 1


def shortened(models: Sequence[str]) -> list[str]:
    """Paths and hub names without what they have in front, as far as different ones stay different.

    >>> shortened(["google-bert/bert-base", "/models/gpt2/"]), shortened(["a/best", "b/best"])
    (['bert-base', 'gpt2'], ['a/best', 'b/best'])
    """
    parts = [re.split(r"[/\\]+", model.rstrip("/\\")) if _path(model) else [model] for model in models]
    for kept in range(1, max(map(len, parts)) + 1):
        tails = ["/".join(part[-kept:]) or model for part, model in zip(parts, models, strict=True)]
        if len(set(tails)) == len(set(models)):
            return tails
    return list(models)


def _path(model: str) -> bool:
    return not re.search(r"[<>\"'\x00-\x1f]", model)
