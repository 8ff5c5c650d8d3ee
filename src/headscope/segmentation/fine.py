"""Segment one window into blocks, as in the paper's Fig. 5, and join blocks that belong together.

    lines      separators whose columns of the attention map, summed over the heads of the last layers, are above τ of
               the strongest separator's; the token of a line ends its block. If a window has no separators, any word
               may be a line. Special tokens are not part of the text and are ignored.
    regions    mean of C over two blocks, for every head of these layers: the product of the blocks' mean outputs
    segments   adjacent blocks are joined by the criterion that is used for documents (`cutting`)

Blocks of one window share their context, so this finds what belongs together within a subject: clauses and sentences.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headscope import similarity as equations
from headscope.array_types import Bools, Floats, Ints
from headscope.errors import ReadingError
from headscope.readings.reading import Reading
from headscope.segmentation import boundaries
from headscope.segmentation import boundaries as boundary_search
from headscope.segmentation.result import HeadWeight, Segmentation, list_votes, validate_options

LAST = 1 / 3
"""share of the layers used, the last ones: their lines are at the ends of sentences and clauses (Fig. 4)"""
MARKS, CLOSING = frozenset(".,;:!?…)]}–—"), frozenset("。，、；：！？")
"""Separators if a space follows (3.5 is one number), and separators of scripts without spaces."""


@dataclass(frozen=True, eq=False)
class FineCut:
    """The blocks of a window, and which of them start a segment."""

    edges: Ints
    """(block + 1): where each block starts in the text of the reading, and the length of the text"""
    boundaries: Ints
    """numbers of the blocks that start a segment, except the first"""
    strengths: Floats
    """(block − 1)"""
    vectors: Floats
    """(block, numbers), each of length 1"""
    heads: tuple[HeadWeight, ...]

    @classmethod
    def from_short_text(cls, text: str) -> FineCut:
        """Return one block for a text that is too short to be read."""
        return cls(
            edges=np.array([0, len(text)]),
            boundaries=np.zeros(0, dtype=np.int64),
            strengths=np.zeros(0),
            vectors=np.ones((1, 1), dtype=np.float32),
            heads=(),
        )


def select_last_layers(reading: Reading) -> list[int]:
    """Return the layers that are used."""
    return reading.layers[-max(1, round(LAST * len(reading.layers))) :]


def cut_reading(
    reading: Reading, *, count: int | None = None, granularity: float = 1.0, tau: float | None = None
) -> FineCut:
    """Return the fine segments of a reading.

    Raises:
        ReadingError: The reading has no attention maps or no positions of its tokens in the text, the text is empty, or
            there are fewer blocks than `count`.
    """
    if reading.is_cross:
        raise ReadingError(
            "attention of this reading goes to the source (cross-attention): it has no attention lines to cut at"
        )
    if not reading.has_attention:
        raise ReadingError("this reading was made from outputs alone: it has no attention lines to cut at")
    words, starts = _find_words(reading)
    layers = select_last_layers(reading)
    maps = reading.data["attention"].sel(layer=layers).values.astype(np.float64)
    attention = np.nansum(maps, axis=(0, 1))[np.ix_(words, words)]  # NaN: heads that a layer lacks
    blocks = equations.cut_blocks(_find_lines(reading, attention, words, reading.tau if tau is None else tau))
    if count is not None and count > len(blocks):
        raise ReadingError(
            f"{count} segments are asked for, and the attention lines cut the text into {len(blocks)} blocks: ask for "
            "fewer, or lower τ"
        )
    heads = [(layer, head) for layer in layers for head in reading.heads_of(layer)]
    # Where heads of layers differ in width, zeros fill up the narrow ones: they add nothing to a product.
    outputs = np.stack([np.nan_to_num(reading.outputs.sel(layer=a, head=b).values[words]) for a, b in heads], axis=1)
    means = np.stack([outputs[block.start : block.stop].mean(axis=0) for block in blocks])
    vectors, head_weights, contrasts = _weight_heads(means)
    band = boundary_search.choose_band(len(blocks), count)
    worth, price = (
        boundary_search.compute_worths(vectors, band),
        boundary_search.compute_prices(band, granularity),
    )
    boundaries = boundary_search.cut(worth, price, count)
    edges = [0, *(int(starts[block.start]) for block in blocks[1:]), len(reading.text)]
    return FineCut(
        edges=np.asarray(edges, dtype=np.int64),
        boundaries=boundaries,
        strengths=boundary_search.compute_strengths(worth, price, boundaries),
        vectors=vectors,
        heads=list_votes(head_weights, contrasts, heads),
    )


def segment_reading(reading: Reading, *, count: int | None, granularity: float, tau: float) -> Segmentation:
    """Return the fine segments of a reading as a segmentation of its text."""
    validate_options(count, granularity)
    cut = cut_reading(reading, count=count, granularity=granularity, tau=tau)
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


def number_token_segments(reading: Reading) -> list[int]:
    """Return the number of the fine segment of each token, −1 for special ones; empty if there are no segments."""
    try:
        cut = cut_reading(reading)
    except ReadingError:
        return []
    starts, special = reading.data["start"].values, reading.data["special"].values.astype(bool)
    segment_starts = cut.edges[cut.boundaries]
    numbers = np.searchsorted(segment_starts, starts, side="right")
    return [-1 if is_special else int(number) for is_special, number in zip(special, numbers, strict=True)]


def _find_words(reading: Reading) -> tuple[Ints, Ints]:
    """Return the positions of the tokens that are neither special nor white space, and their starts in the text."""
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


def _find_lines(reading: Reading, attention: Floats, words: Ints, tau: float) -> Bools:
    """Return which words are lines (word): separators, or if there are none any last tokens of words.

    Args:
        attention: Sum of the attention maps over heads and layers (word, word).
        words: Positions of the tokens.
    """
    starts, ends = (reading.data[name].values[words] for name in ("start", "end"))
    # Without white space: a token may include the line break after a full stop.
    labels = [reading.text[a:b].strip() for a, b in zip(starts, ends, strict=True)]
    visible_ends = [a + len(reading.text[a:b].rstrip()) for a, b in zip(starts, ends, strict=True)]
    space_follows = np.append(starts[1:] > np.asarray(visible_ends[:-1], dtype=np.int64), True)
    may_end = np.array(
        [
            label in CLOSING or (label in MARKS and has_space)
            for label, has_space in zip(labels, space_follows, strict=True)
        ]
    )
    if not may_end[:-1].any():
        may_end = space_follows.copy()
    # The window ends there anyway, and a last full stop gets attention that has nowhere else to go.
    may_end[-1] = False
    if not may_end.any():
        return may_end
    received = attention.sum(axis=0)
    lines: Bools = may_end & (received > tau * received[may_end].max())
    return lines


def _weight_heads(means: Floats) -> tuple[Floats, Floats, Floats]:
    """Return vectors of length 1 (block, numbers), weights and contrasts (head); equal weights if blocks are few.

    Args:
        means: Mean outputs of the blocks (block, head, width).
    """
    scaled = boundaries.scale_outputs(means.astype(np.float32), means.mean(axis=0))
    heads = scaled.shape[1]
    contrast = boundaries.compute_own_contrast(scaled)
    head_weights = np.full(heads, 1 / heads) if contrast is None else boundaries.compute_weights(contrast)
    contrasts = np.zeros(heads) if contrast is None else contrast.relative
    return boundaries.join_heads(scaled, head_weights), head_weights, contrasts
