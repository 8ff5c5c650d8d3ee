"""The paper's own check: the pairs printed in Fig. 9, recomputed with a model at hand.

Fig. 9 lists the high pairs of heads 5, 7 and 8 in the last layer of google-bert/bert-base-uncased for a text that the
paper prints too. Where a model gives other pairs, the question is whether the model differs or one of the choices that
the paper leaves open was made otherwise; so every combination of these choices is tried over the same reading.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from headscope import similarity as equations
from headscope.corpus.bundled import paper_examples
from headscope.errors import ModelError, ReadingError
from headscope.model.model import Model
from headscope.model.patches import Patches
from headscope.readings.paper_choices import THETAS, Alternative, Outcome, Published, better, output_of, tried
from headscope.readings.read import read
from headscope.readings.reading import Reading
from headscope.similarity import THETA
from headscope.types import Bools, Floats

MODEL = "google-bert/bert-base-uncased"
EXAMPLE = "airport-policing"
LAYERS = HEADS = 12
"""the size of the paper's model"""
FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt")
"""all that is needed of the model's repository, which holds the same weights in further formats"""

NEAR = 0.5
"""below this Jaccard index, two lists of pairs are not called alike"""


@lru_cache(maxsize=1)
def figure_9() -> Published:
    """Fig. 9 of the paper.

    >>> {head: len(pairs) for head, pairs in figure_9().pairs.items()}
    {5: 9, 7: 18, 8: 8}
    """
    held = paper_examples()[EXAMPLE]
    pairs = {int(head): tuple((int(i), int(j)) for i, j in listed) for head, listed in held["pairs_by_head"].items()}
    return Published(
        text=held["text"],
        tokens=tuple(held["tokens"]),
        layer=int(held["layer"]),
        pairs=dict(sorted(pairs.items())),
    )


@dataclass(frozen=True)
class Pair:
    """Two related tokens; `relative` is C_ij / max(C), None where max(C) is 0."""

    token_i: str
    token_j: str
    index_i: int
    index_j: int
    relative: float | None


@dataclass(frozen=True)
class Place:
    """A head of the model, and how its pairs agree with those of a published one."""

    layer: int
    head: int
    outcome: Outcome

    def __str__(self) -> str:
        return f"L{self.layer}H{self.head}"


@dataclass(frozen=True)
class HeadCheck:
    """One published head against the model's of the same number."""

    layer: int
    head: int
    matched: tuple[Pair, ...]
    missing: tuple[Pair, ...]
    """published, and not high here"""
    extra: tuple[Pair, ...]
    """high here, and not published"""
    closest: Place | None
    """of all heads in the model, the one whose pairs agree best; None where no head gives any of the pairs"""

    @property
    def outcome(self) -> Outcome:
        return Outcome(len(self.matched), len(self.missing), len(self.extra))

    @property
    def moved(self) -> bool:
        """Whether another head of the model gives the published pairs, and gives them better."""
        return self.closest is not None and self.closest.outcome.jaccard > max(self.outcome.jaccard, NEAR)


@dataclass(frozen=True)
class PaperCheck:
    """What came of the check, at METHOD's choices and at others."""

    layer: int
    heads: tuple[HeadCheck, ...]
    tried: int
    """how many choices beside METHOD's"""
    better: tuple[Alternative, ...]
    """choices that match better, best first; one that adds a change and gains nothing by it is left out"""
    manifest: dict[str, Any] = field(repr=False)
    """which model, how it was run, and when"""

    @property
    def model(self) -> str:
        return str(self.manifest["model"])

    @property
    def outcome(self) -> Outcome:
        """Summed over the heads."""
        each = [head.outcome for head in self.heads]
        return Outcome(sum(o.matched for o in each), sum(o.missing for o in each), sum(o.extra for o in each))

    @property
    def agrees(self) -> bool:
        """Whether every published pair is found, and no other."""
        return self.outcome.missing == self.outcome.extra == 0

    @property
    def published(self) -> int:
        return self.outcome.matched + self.outcome.missing

    def nearest(self, most: int = 5) -> tuple[Alternative, ...]:
        """The best of the better choices, with the best single change among them, which is the easiest to believe."""
        best = self.better[:most]
        single = next((each for each in self.better if len(each.choice.changed) == 1), None)
        return best if single is None or single in best else (*best[: most - 1], single)

    @property
    def verdict(self) -> str:
        """The result in a few sentences."""
        heads = f"heads {_listed(str(each.head) for each in self.heads)} of layer {self.layer}"
        if self.agrees:
            return f"Fig. 9 is reproduced: all {self.published} published pairs are found in {heads}, and no others."
        here = self.outcome
        said = [
            f"Fig. 9 is not reproduced: of {self.published} published pairs in {heads}, {here.matched} are found and "
            f"{here.missing} missing; {here.extra:,} others are high too."
        ]
        best = self.better[0] if self.better else None
        if best is not None and best.outcome.jaccard == 1:
            said.append(f"With {_listed(best.choice.changes)} the pairs are exactly the published ones.")
        elif best is not None and best.outcome.jaccard >= NEAR:
            said.append(
                f"With {_listed(best.choice.changes)}, {best.outcome.matched} are found, {best.outcome.missing} "
                f"missing, {best.outcome.extra:,} others: the best of {self.tried:,} other choices."
            )
        elif here.jaccard < NEAR:
            said.append(
                f"None of the {self.tried:,} other choices comes near the published pairs: "
                f"this model does not do what Fig. 9 shows. The paper's is {MODEL}."
            )
        moved = [f"head {each.head} is {each.closest}" for each in self.heads if each.moved]
        if moved:
            said.append(f"By their pairs, the paper's {_listed(moved)} of this model.")
        size = (self.manifest.get("layers", LAYERS), self.manifest.get("heads", HEADS))
        if size != (LAYERS, HEADS):
            said.append(f"The paper's model has {LAYERS} × {HEADS} heads, this one {size[0]} × {size[1]}.")
        return " ".join(said)


# -- the check --------------------------------------------------------------------------------------------------------


def check(model: Model, *, command: str = "") -> PaperCheck:
    """Recompute Fig. 9 with a model from `headscope.load`."""
    figure = figure_9()
    if isinstance(model.tokens, Patches):
        raise ModelError(f"{model.name}: reads images, and Fig. 9 is of a text")
    limit = model.max_length
    if limit is not None and limit < len(figure.tokens):
        raise ModelError(
            f"{model.name}: has positions for {limit} tokens, and the text of Fig. 9 has {len(figure.tokens)}"
        )
    # Both are known before the text is read, which takes a large model a while.
    _need_heads(model.name, model.anatomy.layers, model.anatomy.heads, figure)
    (encoding,) = model.tokens.encode(figure.text, len(figure.tokens), all_windows=False, offsets=False)
    _need_tokens(model.name, model.tokens.labels(encoding.ids), figure)
    return compare(read(model, figure.text, length=len(figure.tokens), command=command), figure)


def compare(reading: Reading, published: Published | None = None) -> PaperCheck:
    """A reading of the printed text against the printed pairs (Fig. 9's, where no others are given)."""
    figure = published or figure_9()
    name = str(reading.manifest["model"])
    _need_heads(name, len(reading.layers), len(reading.heads), figure)
    _need_tokens(name, [str(token) for token in reading.tokens.values], figure)
    choices = tried(reading, figure)
    return PaperCheck(
        layer=figure.layer,
        heads=_heads(reading, figure),
        tried=len(choices) * len(THETAS) - 1,
        better=better(choices, figure),
        manifest=reading.manifest,
    )


def _need_heads(name: str, layers: int, heads: int, figure: Published) -> None:
    if figure.layer < layers and max(figure.pairs) < heads:
        return
    raise ModelError(
        f"{name}: the check cannot be made: this model has layers 0 to {layers - 1} with heads 0 to {heads - 1}, and "
        f"Fig. 9 shows heads {_listed(map(str, figure.pairs))} of layer {figure.layer} of {MODEL} "
        f"({LAYERS} layers × {HEADS} heads), which `headscope paper` takes by default"
    )


def _need_tokens(name: str, tokens: list[str], figure: Published) -> None:
    """Pairs are printed as indices; between other tokens they would be other pairs."""
    if tuple(tokens) == figure.tokens:
        return
    at = next((k for k, (ours, its) in enumerate(zip(tokens, figure.tokens, strict=False)) if ours != its), None)
    where = (
        f"it cuts the printed text into {len(tokens)} tokens where the paper has {len(figure.tokens)}"
        if at is None
        else f"token {at} is {tokens[at]!r} where the paper prints {figure.tokens[at]!r}"
    )
    raise ReadingError(
        f"{name}: the check cannot be made: its tokenizer cuts the text of Fig. 9 otherwise ({where}), so the "
        f"published indices name other tokens. It takes a model with the vocabulary of {MODEL}, which "
        "`headscope paper` takes by default"
    )


def _heads(reading: Reading, figure: Published) -> tuple[HeadCheck, ...]:
    """Each published head at METHOD's choices, and where in the model its pairs are found best."""
    n = len(reading)
    wanted = {head: _elements(pairs, n) for head, pairs in figure.pairs.items()}
    closest: dict[int, Place | None] = dict.fromkeys(figure.pairs)
    made: dict[int, HeadCheck] = {}
    for layer, head in product(reading.layers, reading.heads):
        matrix = equations.similarity(output_of(reading, layer, head))
        found = np.triu(equations.high(matrix), k=1)
        for number, elements in wanted.items():
            both = int((found & elements).sum())
            place = Place(layer, head, Outcome(both, int(elements.sum()) - both, int(found.sum()) - both))
            closest[number] = _closer(closest[number], place, (figure.layer, number))
            if (layer, head) == (figure.layer, number):
                kinds = (found & elements, elements & ~found, found & ~elements)
                matched, missing, extra = (_pairs(kind, matrix, figure.tokens) for kind in kinds)
                made[number] = HeadCheck(layer, head, matched, missing, extra, None)
    return tuple(replace(made[number], closest=closest[number]) for number in figure.pairs)


def _closer(held: Place | None, place: Place, own: tuple[int, int]) -> Place | None:
    if place.outcome.matched == 0:
        return held
    if held is None or place.outcome.jaccard > held.outcome.jaccard:
        return place
    # Of heads that agree equally well, the one that bears the published number is meant.
    return place if place.outcome.jaccard == held.outcome.jaccard and (place.layer, place.head) == own else held


def _elements(pairs: Iterable[tuple[int, int]], n: int) -> Bools:
    elements = np.zeros((n, n), dtype=bool)
    for i, j in pairs:
        elements[min(i, j), max(i, j)] = True
    return elements


def _pairs(elements: Bools, matrix: Floats, tokens: tuple[str, ...]) -> tuple[Pair, ...]:
    largest = float(matrix.max())
    return tuple(
        Pair(tokens[i], tokens[j], i, j, float(matrix[i, j]) / largest if largest > 0 else None)
        for i, j in equations.pairs_of(elements)
    )


# -- words ------------------------------------------------------------------------------------------------------------


def how_to_get(error: ModelError, name: str) -> ModelError:
    """The error of a model that is not there, with how to get the paper's; any other error as it is."""
    absent = any(words in str(error) for words in ("cannot be loaded", "no such folder"))
    if not absent or Path(name).expanduser().exists():
        return error
    folder = MODEL.rpartition("/")[2]
    return ModelError(
        f"{error}\n\n"
        f"The paper's model is {MODEL}. On a machine that reaches the hub (440 MB):\n\n"
        f"    pip install huggingface_hub\n"
        f"    hf download {MODEL} {' '.join(FILES)} --local-dir {folder}\n\n"
        f"Take the folder to this machine, then:\n\n"
        f"    headscope paper --model ./{folder}"
    )


def as_json(made: PaperCheck) -> str:
    """Everything the check found, for programs."""
    content = {
        "manifest": made.manifest,
        "figure": "9",
        "layer": made.layer,
        "theta": THETA,
        "agrees": made.agrees,
        "verdict": made.verdict,
        "published": made.published,
        **made.outcome.as_dict(),
        "heads": [_head_dict(head) for head in made.heads],
        "choices_tried": made.tried,
        "better": [
            {
                "changes": list(each.choice.changes),
                "choice": asdict(each.choice),
                **each.outcome.as_dict(),
                "theta_from": each.theta_from,
                "theta_to": each.theta_to,
            }
            for each in made.better
        ],
    }
    return json.dumps(content, ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def _head_dict(head: HeadCheck) -> dict[str, Any]:
    place = head.closest
    return {
        "layer": head.layer,
        "head": head.head,
        "published": len(head.matched) + len(head.missing),
        "counts": head.outcome.as_dict(),
        "matched": [asdict(pair) for pair in head.matched],
        "missing": [asdict(pair) for pair in head.missing],
        "extra": [asdict(pair) for pair in head.extra],
        "closest": place and {"layer": place.layer, "head": place.head, **place.outcome.as_dict()},
    }


def _listed(parts: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *rest, last = parts
    return f"{', '.join(rest)} and {last}" if rest else last
