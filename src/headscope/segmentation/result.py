"""The result of a segmentation, as text, JSON and HTML; and the options that it may be made with."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from headscope import registry
from headscope.array_types import Floats, Ints
from headscope.errors import StudyError
from headscope.file_io import write_atomically

Level = Literal["topic", "fine"]
SEPARATOR = "=" * 10
"""the line between segments in plain text"""


@dataclass(frozen=True)
class Segment:
    """A segment of a text. Its text is exactly `text[start:end]`; joined, the segments are the whole text.

    Examples
    --------
    >>> import headscope
    >>> reading = headscope.read("minilm", "Two ravens met. The ravens left.")
    >>> (segment,) = reading.segments(count=1)
    >>> segment.start, segment.end, segment.text
    (0, 32, 'Two ravens met. The ravens left.')
    """

    number: int
    start: int
    """first character"""
    end: int
    """the character after the last one"""
    first: int
    """number of its first piece: a sentence of a topic segment, a block of a fine one"""
    pieces: int
    """number of pieces"""
    strength: float | None
    """of the boundary at its start; None for the first segment"""
    text: str


@dataclass(frozen=True)
class HeadWeight:
    """Weight of one head in the segmentation, and its contrast: how well its similarities tell near pieces from far."""

    layer: int
    head: int
    weight: float
    """the weights of all heads add up to 1"""
    contrast: float
    """mean similarity of near pieces minus that of distant ones, in standard deviations of the latter"""

    @property
    def name(self) -> str:
        return f"L{self.layer}H{self.head}"


def list_votes(weights: Floats, contrasts: Floats, heads: Sequence[tuple[int, int]]) -> tuple[HeadWeight, ...]:
    """Return the heads with a positive weight, largest first.

    Args:
        weights: Of the heads of all layers (layer · head).
        contrasts: Of the same heads (layer · head).
        heads: Layer and number of these heads.
    """
    return tuple(
        HeadWeight(heads[k][0], heads[k][1], float(weights[k]), float(contrasts[k]))
        for k in np.argsort(-weights, kind="stable")
        if weights[k] > 0
    )


@dataclass(frozen=True, eq=False)
class Segmentation:
    """A text and its segments. Iterating over it yields each `Segment`.

    `headscope.segment` makes one, or `Reading.segments`.

    Examples
    --------
    >>> import headscope
    >>> reading = headscope.read("minilm", "Two ravens met. The ravens left.")
    >>> reading.segments(count=1)
    <Segmentation, fine: 1 segment of 2 blocks>
    """

    text: str
    level: Level
    edges: Ints
    """(piece + 1): where each piece starts in the text, and the length of the text"""
    boundaries: Ints
    """numbers of the pieces that start a segment, except the first"""
    strengths: Floats
    """(piece − 1): for every gap between two pieces, what a boundary adds divided by what it costs; NaN if no boundary
    was considered, as after a heading"""
    similarity: Floats
    """(cell, cell): mean similarity of the pieces of two cells, as the segmentation used it"""
    cells: Ints
    """(cell + 1): first piece of each cell of the map; cells have one piece, except in long texts"""
    heads: tuple[HeadWeight, ...]
    """those with a positive weight, largest first"""
    manifest: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.boundaries) + 1

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.segments)

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """The segments in their order."""
        starts = [0, *self.boundaries.tolist()]
        stops = [*self.boundaries.tolist(), len(self.edges) - 1]
        return tuple(
            Segment(
                number=k,
                start=int(self.edges[a]),
                end=int(self.edges[b]),
                first=a,
                pieces=b - a,
                strength=None if k == 0 else float(self.strengths[a - 1]),
                text=self.text[self.edges[a] : self.edges[b]],
            )
            for k, (a, b) in enumerate(zip(starts, stops, strict=True))
        )

    @property
    def piece_name(self) -> str:
        """What a piece is: a sentence or a block."""
        return "sentence" if self.level == "topic" else "block"

    @property
    def leaves_out(self) -> bool:
        """Whether there are sentences of which only the beginning was read, because they are too long for the model."""
        return bool(self.manifest.get("sentences_read_in_part"))

    def to_text(self, separator: str = SEPARATOR) -> str:
        r"""Return the text with a line between segments, for people to read; `segments` has the exact texts.

        Parameters
        ----------
        separator
            The line.

        Returns
        -------
        str

        Examples
        --------
        >>> import headscope
        >>> reading = headscope.read("minilm", "Two ravens met. The ravens left.")
        >>> reading.segments(count=1).to_text()
        'Two ravens met. The ravens left.\n'
        """
        return f"\n{separator}\n".join(segment.text.strip() for segment in self.segments) + "\n"

    def as_dict(self) -> dict[str, Any]:
        """Return everything but the similarities as JSON values.

        Returns
        -------
        dict
            Offsets count characters of `text`, as in Python; NaN is None.

        Examples
        --------
        >>> import headscope
        >>> reading = headscope.read("minilm", "Two ravens met. The ravens left.")
        >>> reading.segments(count=1).as_dict()["segments"][0]["end"]
        32
        """
        return {
            "level": self.level,
            "characters": len(self.text),
            "pieces": len(self.edges) - 1,
            "segments": [
                {
                    "number": segment.number,
                    "start": segment.start,
                    "end": segment.end,
                    "first_piece": segment.first,
                    "pieces": segment.pieces,
                    "strength": _replace_nan(segment.strength),
                    "text": segment.text,
                }
                for segment in self.segments
            ],
            "edges": self.edges.tolist(),
            "strengths": [_replace_nan(value) for value in self.strengths.tolist()],
            "heads": [
                {
                    "head": vote.name,
                    "layer": vote.layer,
                    "head_number": vote.head,
                    "weight": vote.weight,
                    "contrast": _replace_nan(vote.contrast),
                }
                for vote in self.heads
            ],
            "manifest": self.manifest,
        }

    def to_json(self) -> str:
        """Return what `as_dict` returns, as JSON.

        Returns
        -------
        str

        Examples
        --------
        >>> import headscope, json
        >>> reading = headscope.read("minilm", "Two ravens met. The ravens left.")
        >>> json.loads(reading.segments(count=1).to_json())["level"]
        'fine'
        """
        return json.dumps(self.as_dict(), indent=2, ensure_ascii=True, allow_nan=False) + "\n"

    def to_html(self, path: str | Path | None = None) -> str:
        """Return a self-contained HTML page with segments, strengths, similarity map and heads.

        Parameters
        ----------
        path
            A file to write.

        Returns
        -------
        str
            The page.

        Raises
        ------
        StudyError
            The file cannot be written.

        Examples
        --------
        >>> import headscope
        >>> reading = headscope.read("minilm", "Two ravens met. The ravens left.")
        >>> reading.segments(count=1).to_html().startswith("<!doctype html>")
        True
        """
        html: str = registry.call("render_segmentation_page", self)
        if path is not None:
            write_atomically(Path(path), html.encode("utf-8", "replace"), StudyError)
        return html

    def _repr_html_(self) -> str:
        return str(registry.call("render_segmentation_frame", self))

    def __repr__(self) -> str:
        segments, pieces = len(self), len(self.edges) - 1
        rest = f", {self.manifest['sentences_read_in_part']} of them read in part" if self.leaves_out else ""
        return (
            f"<Segmentation, {self.level}: {segments} segment{'s' * (segments != 1)} "
            f"of {pieces} {self.piece_name}{'s' * (pieces != 1)}{rest}>"
        )


def _replace_nan(value: float | None) -> float | None:
    return None if value is None or not np.isfinite(value) else float(value)


MIN_GRANULARITY, MAX_GRANULARITY = 0.01, 100.0


def validate_options(count: Any, granularity: Any) -> None:
    """Raise StudyError unless count is None or a positive integer, and granularity is a number in its range."""
    if count is not None and (isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 1):
        raise StudyError(f"count is {count!r}: it is the number of segments wanted, 1 or more; None finds it")
    try:
        value = float(granularity)
    except (TypeError, ValueError):
        value = np.nan
    if not MIN_GRANULARITY <= value <= MAX_GRANULARITY:
        raise StudyError(
            f"granularity is {granularity!r}: it is a number from {MIN_GRANULARITY} to {MAX_GRANULARITY:g}; "
            "1 is the default"
        )
