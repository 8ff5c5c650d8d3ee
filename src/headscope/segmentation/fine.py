"""Blocks inside a window, as in the paper's Fig. 5: attention lines of the last layers cut, region averages join.

    lines      separators whose columns of the attention map, summed over the heads of the last layers, are above τ of
               the strongest separator's; a line's token closes its block. Where a window has no separators, any word
               may be a line. Special tokens are no part of the text and take no part.
    regions    mean of C over two blocks, for every head of these layers: the product of the blocks' mean outputs
    segments   neighbouring blocks stay together where that is worth more, by the criterion that cuts documents

Blocks of one window share their context, so this finds what belongs together within a subject: clauses and sentences.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headscope import similarity as equations
from headscope.errors import ReadingError
from headscope.readings.reading import Reading
from headscope.segmentation import cutting, weights
from headscope.segmentation.asked import check
from headscope.segmentation.result import HeadVote, Segmentation, votes_of
from headscope.types import Bools, Floats, Ints

LAST = 1 / 3
"""of the layers, from the top, are asked: there lines stand at the ends of sentences and clauses (Fig. 4)"""
MARKS, CLOSING = frozenset(".,;:!?…)]}–—"), frozenset("。，、；：！？")
"""Separators: those that a space follows (3.5 is one number), and those of scripts that have none."""


@dataclass(frozen=True, eq=False)
class FineCut:
    """A window in blocks, and which of them start a segment."""

    edges: Ints
    """(blocks + 1): where each block starts in the text of the reading"""
    boundaries: Ints
    strengths: Floats
    vectors: Floats
    """(blocks, numbers), each of length 1"""
    heads: tuple[HeadVote, ...]

    @classmethod
    def whole(cls, text: str) -> FineCut:
        """Of a text too short to be read: one block."""
        none = np.zeros(0)
        return cls(np.array([0, len(text)]), none.astype(np.int64), none, np.ones((1, 1), dtype=np.float32), ())


def last_layers(reading: Reading) -> list[int]:
    """The layers that are asked."""
    return reading.layers[-max(1, round(LAST * len(reading.layers))) :]


def fine_cut(
    reading: Reading, *, count: int | None = None, granularity: float = 1.0, tau: float | None = None
) -> FineCut:
    """The fine segments of a reading."""
    if not reading.has_attention:
        raise ReadingError("this reading was made from outputs alone: it has no attention lines to cut at")
    words, starts = _words(reading)
    layers = last_layers(reading)
    chosen = reading.data.sel(layer=layers)
    attention = chosen["attention"].values.astype(np.float64).sum(axis=(0, 1))[np.ix_(words, words)]
    blocks = equations.blocks(_lines(reading, attention, words, reading.tau if tau is None else tau))
    if count is not None and count > len(blocks):
        raise ReadingError(
            f"{count} segments are asked for, and the attention lines cut the text into {len(blocks)} blocks: ask for "
            "fewer, or lower τ"
        )
    outputs = chosen["outputs"].transpose("position", "layer", "head", ...).values[words]
    outputs = outputs.reshape(len(words), -1, outputs.shape[-1])
    vectors, weight, relative = _weighted(np.stack([outputs[block].mean(axis=0) for block in map(_slice, blocks)]))
    band = cutting.band_for(len(blocks), count)
    worth, price = cutting.worths(vectors, band), cutting.prices(band, granularity)
    found = cutting.cut(worth, price, count)
    votes = votes_of(weight, relative, layers, reading.heads)
    edges = [0, *(int(starts[block.start]) for block in blocks[1:]), len(reading.text)]
    strengths = cutting.strengths(worth, price, found)
    return FineCut(np.asarray(edges, dtype=np.int64), found, strengths, vectors, votes)


def segmentation_of(reading: Reading, *, count: int | None, granularity: float, tau: float) -> Segmentation:
    """The same as a segmentation of the text that was read."""
    check(count, granularity)
    cut = fine_cut(reading, count=count, granularity=granularity, tau=tau)
    return Segmentation(
        text=reading.text,
        level="fine",
        edges=cut.edges,
        boundaries=cut.boundaries,
        strengths=cut.strengths,
        similarity=cut.vectors @ cut.vectors.T,
        cells=np.arange(len(cut.edges)),
        heads=cut.heads,
        manifest={**reading.manifest, "level": "fine", "granularity": granularity, "tau": tau},
    )


def token_segments(reading: Reading) -> list[int]:
    """The number of the fine segment each token is in, −1 for special ones; empty where there are none to be had."""
    try:
        made = fine_cut(reading)
    except ReadingError:
        return []
    starts, special = reading.data["start"].values, reading.data["special"].values.astype(bool)
    first = made.edges[made.boundaries]
    return [-1 if no else int(k) for no, k in zip(special, np.searchsorted(first, starts, side="right"), strict=True)]


def _words(reading: Reading) -> tuple[Ints, Ints]:
    """The tokens that are neither special nor white space, and where they stand in the text."""
    words = np.flatnonzero(~reading.data["special"].values.astype(bool))
    if not len(words):
        raise ReadingError("the text has only special tokens: there is nothing to cut")
    starts, ends = reading.data["start"].values, reading.data["end"].values
    if (starts[words] < 0).any():
        raise ReadingError("the tokenizer does not say where its tokens stand in the text, which segments need")
    words = np.array([k for k in words if reading.text[starts[k] : ends[k]].strip()], dtype=np.int64)
    if not len(words):
        raise ReadingError("the text is white space: there is nothing to cut")
    return words, starts[words]


def _lines(reading: Reading, attention: Floats, words: Ints, tau: float) -> Bools:
    """The lines among the places where a block may end: after a separator, or where there is none after any word."""
    starts, ends = (reading.data[name].values[words] for name in ("start", "end"))
    # Of a token that holds the line break after a full stop, only what can be seen.
    labels = [reading.text[a:b].strip() for a, b in zip(starts, ends, strict=True)]
    seen = [a + len(reading.text[a:b].rstrip()) for a, b in zip(starts, ends, strict=True)]
    spaced = np.append(starts[1:] > np.asarray(seen[:-1], dtype=np.int64), True)
    closing = np.array(
        [label in CLOSING or (label in MARKS and apart) for label, apart in zip(labels, spaced, strict=True)]
    )
    if not closing[:-1].any():
        closing = spaced.copy()
    closing[-1] = False  # the window ends there anyhow, and a last full stop draws what attention has no place for
    if not closing.any():
        return closing
    received = attention.sum(axis=0)
    found: Bools = closing & (received > tau * received[closing].max())
    return found


def _slice(block: range) -> slice:
    return slice(block.start, block.stop)


def _weighted(means: Floats) -> tuple[Floats, Floats, Floats]:
    """Blocks' vectors of length 1, the heads' weights and contrasts; all heads weigh the same where blocks are few."""
    moved = weights.scaled(means.astype(np.float32), means.mean(axis=0))
    heads = moved.shape[1]
    found = weights.own_contrast(moved)
    weight = np.full(heads, 1 / heads) if found is None else weights.weights(found)
    return weights.joined(moved, weight), weight, np.zeros(heads) if found is None else found.relative
