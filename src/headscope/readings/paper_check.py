"""Check a model against the paper: recompute the pairs printed in Fig. 9.

Fig. 9 lists the high pairs of heads 5, 7 and 8 in the last layer of google-bert/bert-base-uncased, for a text that the
paper prints too. If a model gives other pairs, either the model differs, or the paper made one of the choices that it
leaves open in another way; so every combination of these choices is counted over the same reading.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from headscope import similarity as equations
from headscope.array_types import Bools, Floats
from headscope.corpus.formats import load_paper_examples
from headscope.errors import ModelError, ReadingError
from headscope.model.image_patches import Patches
from headscope.model.model import Model
from headscope.readings.paper_alternatives import (
    THETAS,
    Alternative,
    Outcome,
    Published,
    count_choices,
    select_better,
)
from headscope.readings.read import read
from headscope.readings.reading import Reading
from headscope.similarity import THETA
from headscope.studies.labels import format_head

MODEL = "google-bert/bert-base-uncased"
EXAMPLE = "airport-policing"
LAYERS = HEADS = 12
"""of the paper's model"""

NEAR = 0.5
"""Two lists of pairs are similar if their Jaccard index is at least this."""


@lru_cache(maxsize=1)
def load_figure_9() -> Published:
    """Return Fig. 9 of the paper.

    >>> {head: len(pairs) for head, pairs in load_figure_9().pairs.items()}
    {5: 9, 7: 18, 8: 8}
    """
    example = load_paper_examples()[EXAMPLE]
    pairs = {
        int(head): tuple((int(i), int(j)) for i, j in head_pairs)
        for head, head_pairs in example["pairs_by_head"].items()
    }
    return Published(
        text=example["text"],
        tokens=tuple(example["tokens"]),
        layer=int(example["layer"]),
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
class HeadMatch:
    """A head of the model, and how well its pairs agree with those of a published head."""

    layer: int
    head: int
    outcome: Outcome

    def __str__(self) -> str:
        return format_head(self.layer, self.head)


@dataclass(frozen=True)
class HeadCheck:
    """A published head compared with the model's head of the same number."""

    layer: int
    head: int
    matched: tuple[Pair, ...]
    missing: tuple[Pair, ...]
    """published, but not high in this model"""
    extra: tuple[Pair, ...]
    """high in this model, but not published"""
    closest: HeadMatch | None
    """the head of the whole model whose pairs agree best; None if no head has any of the pairs"""

    @property
    def outcome(self) -> Outcome:
        return Outcome(len(self.matched), len(self.missing), len(self.extra))

    @property
    def has_moved(self) -> bool:
        """Whether another head of the model is similar to the published one, and more so than this one."""
        return self.closest is not None and self.closest.outcome.jaccard > max(self.outcome.jaccard, NEAR)


@dataclass(frozen=True)
class PaperCheck:
    """The result of the check, with METHOD's choices and with others."""

    layer: int
    heads: tuple[HeadCheck, ...]
    choices_tried: int
    """number of choices other than METHOD's"""
    better: tuple[Alternative, ...]
    """choices that match better, best first, without those that make a further change and gain nothing by it"""
    manifest: dict[str, Any] = field(repr=False)
    """the model, how it was run, and when"""

    @property
    def model(self) -> str:
        return str(self.manifest["model"])

    @property
    def outcome(self) -> Outcome:
        """The sum over the heads."""
        return Outcome(
            matched=sum(len(head.matched) for head in self.heads),
            missing=sum(len(head.missing) for head in self.heads),
            extra=sum(len(head.extra) for head in self.heads),
        )

    @property
    def agrees(self) -> bool:
        """Whether the pairs found are exactly the published ones."""
        return self.outcome.missing == self.outcome.extra == 0

    @property
    def published(self) -> int:
        return self.outcome.matched + self.outcome.missing

    def select_nearest(self, most: int = 5) -> tuple[Alternative, ...]:
        """Return the best alternatives; the best with a single change is always among them, as the most plausible."""
        best = self.better[:most]
        single = next((alternative for alternative in self.better if len(alternative.choice.changed) == 1), None)
        return best if single is None or single in best else (*best[: most - 1], single)

    @property
    def verdict(self) -> str:
        """The result in a few sentences."""
        heads = f"heads {_join_words(str(check.head) for check in self.heads)} of layer {self.layer}"
        if self.agrees:
            return f"Fig. 9 is reproduced: all {self.published} published pairs are found in {heads}, and no others."
        outcome = self.outcome
        sentences = [
            f"Fig. 9 is not reproduced: of {self.published} published pairs in {heads}, {outcome.matched} are found "
            f"and {outcome.missing} missing; {outcome.extra:,} others are high too."
        ]
        best = self.better[0] if self.better else None
        if best is not None and best.outcome.jaccard == 1:
            sentences.append(f"With {_join_words(best.choice.changes)} the pairs are exactly the published ones.")
        elif best is not None and best.outcome.jaccard >= NEAR:
            sentences.append(
                f"With {_join_words(best.choice.changes)}, {best.outcome.matched} are found, {best.outcome.missing} "
                f"missing, {best.outcome.extra:,} others: the best of {self.choices_tried:,} other choices."
            )
        elif outcome.jaccard < NEAR:
            sentences.append(
                f"None of the {self.choices_tried:,} other choices comes near the published pairs: "
                f"this model does not do what Fig. 9 shows. The paper's is {MODEL}."
            )
        moved = [f"head {check.head} is {check.closest}" for check in self.heads if check.has_moved]
        if moved:
            sentences.append(f"By their pairs, the paper's {_join_words(moved)} of this model.")
        size = (self.manifest.get("layers", LAYERS), self.manifest.get("heads", HEADS))
        if size != (LAYERS, HEADS):
            sentences.append(f"The paper's model has {LAYERS} × {HEADS} heads, this one {size[0]} × {size[1]}.")
        return " ".join(sentences)


# -- the check --------------------------------------------------------------------------------------------------------


def check(model: Model, *, command: str = "") -> PaperCheck:
    """Recompute Fig. 9 with a model from `headscope.load`.

    Raises:
        ModelError: The model has too few layers, heads or positions, or reads images.
        ReadingError: Its tokenizer gives other tokens than the paper prints.
    """
    figure = load_figure_9()
    if isinstance(model.tokens, Patches):
        raise ModelError(f"{model.name}: reads images, and Fig. 9 is of a text")
    limit = model.max_length
    if limit is not None and limit < len(figure.tokens):
        raise ModelError(
            f"{model.name}: has positions for {limit} tokens, and the text of Fig. 9 has {len(figure.tokens)}"
        )
    # Checked before the model runs, which takes a large one a while.
    counts = dict(zip(model.architecture.numbers, model.architecture.head_counts, strict=True))
    _require_heads(model.name, model.architecture.layers, counts.get(figure.layer, model.architecture.heads), figure)
    (encoding,) = model.tokens.encode(figure.text, len(figure.tokens), all_windows=False, offsets=False)
    _require_tokens(model.name, model.tokens.labels(encoding.ids), figure)
    return compare(read(model, figure.text, length=len(figure.tokens), command=command), figure)


def compare(reading: Reading, published: Published | None = None) -> PaperCheck:
    """Compare a reading of the printed text with the printed pairs (by default those of Fig. 9)."""
    figure = published or load_figure_9()
    name = str(reading.manifest["model"])
    heads = reading.heads_of(figure.layer) if figure.layer in reading.layers else reading.head_numbers
    _require_heads(name, len(reading.layers), len(heads), figure)
    _require_tokens(name, [str(token) for token in reading.tokens.values], figure)
    counts = count_choices(reading, figure)
    return PaperCheck(
        layer=figure.layer,
        heads=_check_heads(reading, figure),
        choices_tried=len(counts) * len(THETAS) - 1,
        better=select_better(counts, figure),
        manifest=reading.manifest,
    )


def _require_heads(name: str, layers: int, heads: int, figure: Published) -> None:
    if figure.layer < layers and max(figure.pairs) < heads:
        return
    raise ModelError(
        f"{name}: the check cannot be made: this model has layers 0 to {layers - 1} with heads 0 to {heads - 1}, and "
        f"Fig. 9 shows heads {_join_words(map(str, figure.pairs))} of layer {figure.layer} of {MODEL} "
        f"({LAYERS} layers × {HEADS} heads), which `headscope paper` uses by default"
    )


def _require_tokens(name: str, tokens: list[str], figure: Published) -> None:
    """Raise ReadingError unless the tokens are the printed ones: the published pairs are indices of these tokens."""
    if tuple(tokens) == figure.tokens:
        return
    differing = next((k for k, pair in enumerate(zip(tokens, figure.tokens, strict=False)) if pair[0] != pair[1]), None)
    difference = (
        f"it cuts the printed text into {len(tokens)} tokens where the paper has {len(figure.tokens)}"
        if differing is None
        else f"token {differing} is {tokens[differing]!r} where the paper prints {figure.tokens[differing]!r}"
    )
    raise ReadingError(
        f"{name}: the check cannot be made: its tokenizer gives other tokens for the text of Fig. 9 ({difference}), so "
        f"the published indices are those of other tokens. It takes a model with the vocabulary of {MODEL}, which "
        "`headscope paper` uses by default"
    )


def _check_heads(reading: Reading, figure: Published) -> tuple[HeadCheck, ...]:
    """Compare each published head, with METHOD's choices, with the same head and find its closest head."""
    n = len(reading)
    published = {head: _mark_elements(pairs, n) for head, pairs in figure.pairs.items()}
    closest: dict[int, HeadMatch | None] = dict.fromkeys(figure.pairs)
    checks: dict[int, HeadCheck] = {}
    for layer, head in ((a, b) for a in reading.layers for b in reading.heads_of(a)):
        matrix = equations.compute_similarity(reading.output(layer, head))
        high = np.triu(equations.mark_high(matrix), k=1)
        for number, elements in published.items():
            common = int((high & elements).sum())
            outcome = Outcome(common, int(elements.sum()) - common, int(high.sum()) - common)
            closest[number] = _choose_closer(
                closest[number], HeadMatch(layer, head, outcome), published_head=(figure.layer, number)
            )
            if (layer, head) == (figure.layer, number):
                masks = (high & elements, elements & ~high, high & ~elements)
                matched, missing, extra = (_list_pairs(mask, matrix, figure.tokens) for mask in masks)
                checks[number] = HeadCheck(layer, head, matched, missing, extra, closest=None)
    return tuple(replace(checks[number], closest=closest[number]) for number in figure.pairs)


def _choose_closer(best: HeadMatch | None, match: HeadMatch, published_head: tuple[int, int]) -> HeadMatch | None:
    if match.outcome.matched == 0:
        return best
    if best is None or match.outcome.jaccard > best.outcome.jaccard:
        return match
    # Of heads that agree equally well, the one with the published number is preferred.
    is_tie = match.outcome.jaccard == best.outcome.jaccard
    return match if is_tie and (match.layer, match.head) == published_head else best


def _mark_elements(pairs: Iterable[tuple[int, int]], n: int) -> Bools:
    """Return a mask (n, n) of pairs, above the diagonal."""
    elements = np.zeros((n, n), dtype=bool)
    for i, j in pairs:
        elements[min(i, j), max(i, j)] = True
    return elements


def _list_pairs(elements: Bools, matrix: Floats, tokens: tuple[str, ...]) -> tuple[Pair, ...]:
    largest = float(matrix.max())
    return tuple(
        Pair(tokens[i], tokens[j], i, j, float(matrix[i, j]) / largest if largest > 0 else None)
        for i, j in equations.list_pairs(elements)
    )


# -- text -------------------------------------------------------------------------------------------------------------


def as_json(result: PaperCheck) -> str:
    """Return the whole result as JSON."""
    content = {
        "manifest": result.manifest,
        "figure": "9",
        "layer": result.layer,
        "theta": THETA,
        "agrees": result.agrees,
        "verdict": result.verdict,
        "published": result.published,
        **result.outcome.as_dict(),
        "heads": [_head_to_dict(head) for head in result.heads],
        "choices_tried": result.choices_tried,
        "better": [
            {
                "changes": list(alternative.choice.changes),
                "choice": asdict(alternative.choice),
                **alternative.outcome.as_dict(),
                "theta_from": alternative.theta_from,
                "theta_to": alternative.theta_to,
            }
            for alternative in result.better
        ],
    }
    return json.dumps(content, ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def _head_to_dict(head: HeadCheck) -> dict[str, Any]:
    closest = head.closest
    return {
        "head": format_head(head.layer, head.head),
        "layer": head.layer,
        "head_number": head.head,
        "published": len(head.matched) + len(head.missing),
        "counts": head.outcome.as_dict(),
        "matched": [asdict(pair) for pair in head.matched],
        "missing": [asdict(pair) for pair in head.missing],
        "extra": [asdict(pair) for pair in head.extra],
        "closest": closest
        and {"head": str(closest), "layer": closest.layer, "head_number": closest.head, **closest.outcome.as_dict()},
    }


def _join_words(parts: Iterable[str]) -> str:
    """Return `a`, `a and b`, or `a, b and c`."""
    *rest, last = parts
    return f"{', '.join(rest)} and {last}" if rest else last
