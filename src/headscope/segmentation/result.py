"""A text cut into segments, what was measured on the way, and how it is written down."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from headscope.types import Floats, Ints

Level = Literal["topic", "fine"]
SEPARATOR = "=" * 10
"""the line between segments in plain text"""


@dataclass(frozen=True)
class Segment:
    """One part of a text. `text[start:end]` is exactly its text: joined, the segments are the text that was given."""

    number: int
    start: int
    """characters; the first of the segment"""
    end: int
    first: int
    """number of its first piece: a sentence of a topic segment, a block of a fine one"""
    pieces: int
    strength: float | None
    """of the boundary it starts with; None for the first"""
    text: str


@dataclass(frozen=True)
class HeadVote:
    """How much one head had to say, and why: its contrast is what its similarities know of nearness in the text."""

    layer: int
    head: int
    weight: float
    """its share of the decision; the weights of all heads add up to 1"""
    contrast: float
    """mean similarity of neighbouring pieces less that of distant ones, in units of the spread of the latter"""

    @property
    def name(self) -> str:
        return f"L{self.layer}H{self.head}"


def votes_of(weight: Floats, contrast: Floats, layers: Sequence[int], heads: Sequence[int]) -> tuple[HeadVote, ...]:
    """The heads that have a say, the heaviest first, of those of all layers in one row."""
    return tuple(
        HeadVote(layers[k // len(heads)], heads[k % len(heads)], float(weight[k]), float(contrast[k]))
        for k in np.argsort(-weight, kind="stable")
        if weight[k] > 0
    )


@dataclass(frozen=True, eq=False)
class Segmentation:
    """Made by `headscope.segment`."""

    text: str
    level: Level
    edges: Ints
    """(pieces + 1): where each piece starts in the text, and its end; the first is 0, the last the text's length"""
    boundaries: Ints
    """numbers of the pieces that start a segment, the first piece aside"""
    strengths: Floats
    """(pieces − 1): of every gap between two pieces, what cutting there gains, in units of what a boundary costs; NaN
    where it was not considered, as after a heading"""
    similarity: Floats
    """(cells, cells): mean similarity of the pieces of two cells, as it was decided on"""
    cells: Ints
    """(cells + 1): the pieces each cell of the map starts with; one piece to a cell in all but long texts"""
    heads: tuple[HeadVote, ...]
    """those with a say, the heaviest first"""
    manifest: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.boundaries) + 1

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.segments)

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
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
    def piece(self) -> str:
        """What its pieces are called."""
        return "sentence" if self.level == "topic" else "block"

    def plain(self, separator: str = SEPARATOR) -> str:
        """The text with a line between segments. Only for reading: what cuts the text exactly is `segments`."""
        return f"\n{separator}\n".join(segment.text.strip() for segment in self.segments) + "\n"

    def as_dict(self) -> dict[str, Any]:
        """All of it but the similarities, as JSON can hold it. Offsets count characters of `text`, as Python does."""
        return {
            "level": self.level,
            "characters": len(self.text),
            "pieces": len(self.edges) - 1,
            "segments": [
                {
                    "number": each.number,
                    "start": each.start,
                    "end": each.end,
                    "first_piece": each.first,
                    "pieces": each.pieces,
                    "strength": _finite(each.strength),
                    "text": each.text,
                }
                for each in self.segments
            ],
            "edges": self.edges.tolist(),
            "strengths": [_finite(value) for value in self.strengths.tolist()],
            "heads": [
                {"name": v.name, "layer": v.layer, "head": v.head, "weight": v.weight, "contrast": _finite(v.contrast)}
                for v in self.heads
            ],
            "manifest": self.manifest,
        }

    def json(self) -> str:
        return json.dumps(self.as_dict(), indent=2, ensure_ascii=True, allow_nan=False) + "\n"

    def page(self, path: str | Path | None = None) -> str:
        """One HTML file: the text in coloured segments, the strengths, the map, the heads. Written where a path is
        given."""
        from headscope.output import write_text
        from headscope.page.segments import segments_page

        made = segments_page(self)
        if path is not None:
            write_text(Path(path), made)
        return made

    def _repr_html_(self) -> str:
        from headscope.page.frame import segmentation_frame

        return segmentation_frame(self)

    def __repr__(self) -> str:
        plural = "" if len(self) == 1 else "s"
        pieces = len(self.edges) - 1
        held = f"{pieces} {self.piece}{'s' * (pieces != 1)}"
        return f"<Segmentation, {self.level}: {len(self)} segment{plural} of {held}>"


def _finite(value: float | None) -> float | None:
    return None if value is None or not np.isfinite(value) else float(value)
