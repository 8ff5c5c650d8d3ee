"""`headscope.segment`: where a text changes its subject, from what a model's heads write."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import numpy as np

from headscope import manifest
from headscope.errors import CorpusError, StudyError
from headscope.model.loading import load
from headscope.model.model import Model
from headscope.model.patches import Patches
from headscope.readings.read import read
from headscope.segmentation import pieces, topic
from headscope.segmentation.asked import check
from headscope.segmentation.background import background
from headscope.segmentation.fine import FineCut, fine_cut
from headscope.segmentation.result import HeadVote, Level, Segmentation, votes_of
from headscope.segmentation.vectors import head_means
from headscope.segmentation.windowed import tokens_in, windows_of
from headscope.similarity import TAU
from headscope.types import Floats, Ints

Told = Callable[[str, int, int], None]
"""What is being done, how much of it is done, and of how much in all"""
_HALVES = re.compile("[\ud800-\udfff]")
"""halves of surrogate pairs, which no tokenizer takes"""


def segment(
    model: Model | str | Path,
    text: str | Sequence[str],
    *,
    level: Level = "topic",
    count: int | None = None,
    granularity: float = 1.0,
    length: int = 128,
    tau: float = TAU,
    progress: Told | None = None,
    command: str = "",
) -> Segmentation:
    """Cut a text where its subject changes (`topic`), or into clauses and sentences that belong together (`fine`).

    `text` is a string, which is split into sentences here, or a list of sentences. `count` asks for so many segments;
    without it their number is found. `granularity` says how many: a boundary costs 1/granularity of what it costs by
    default, so 2 cuts where half the evidence is there, and 0.5 only where there is twice as much.

    `length` and `tau` are those of the windows and lines of `fine`. No labels are used and nothing is trained; a
    model's first use takes a pass over the bundled texts, to learn how its heads vary within a subject.

    >>> import headscope
    >>> rain = "Rain fell on the hills. Clouds hid the sun all day. The storm brought heavy rain and thunder. "
    >>> bank = "The bank raised its interest rates. Loans became expensive. Investors sold their shares and bonds."
    >>> [part.text[:13] for part in headscope.segment("minilm", rain + bank)]
    ['Rain fell on ', 'The bank rais']
    """
    if level not in get_args(Level):
        raise StudyError(f"level {level!r}: there are {' and '.join(get_args(Level))}")
    check(count, granularity)
    count, granularity = None if count is None else int(count), float(granularity)
    whole, edges = _sentences(text)
    watched = model if isinstance(model, Model) else load(model)
    if isinstance(watched.tokens, Patches):
        raise StudyError(f"{watched.name} reads images: choose a model of texts")
    about: dict[str, Any] = {
        **manifest.of_model(watched),
        "level": level,
        "count": "found" if count is None else count,
        "granularity": granularity,
        "command": command,
    }
    if level == "fine":
        return _fine(watched, whole, edges, count, granularity, length, tau, about)
    return _topic(watched, whole, edges, count, granularity, about, progress)


def _sentences(text: str | Sequence[str]) -> tuple[str, Ints]:
    if isinstance(text, str):
        edges = pieces.edges_of(text)
        whole = text
    elif isinstance(text, Sequence) and not isinstance(text, (bytes, bytearray)):
        whole, edges = pieces.joined_text(text)
    else:
        raise CorpusError(f"the text is a {type(text).__name__}: give it as a string, or as a list of sentences")
    if not whole.strip():
        raise CorpusError("the text is empty: there is nothing to cut")
    return whole, edges


def _run() -> dict[str, Any]:
    held = manifest.of_run()
    return held | {"versions": json.loads(held["versions"])}


# -- topic ------------------------------------------------------------------------------------------------------------


def _topic(
    model: Model,
    text: str,
    edges: Ints,
    count: int | None,
    granularity: float,
    about: dict[str, Any],
    progress: Told | None,
) -> Segmentation:
    readable = _HALVES.sub("\N{REPLACEMENT CHARACTER}", text)
    sentences = [readable[a:b].strip() for a, b in pairwise(edges)]
    starts = pieces.units(sentences)
    stops = [*starts[1:].tolist(), len(sentences)]
    if count is not None and count > len(starts):
        raise StudyError(
            f"{count} segments are asked for, and the text has {len(starts)} sentence{'s' * (len(starts) != 1)} to "
            "begin one with: ask for fewer"
        )
    units = [" ".join(sentences[a:b]) for a, b in zip(starts, stops, strict=True)]
    known = background(model, _teller(progress, "learning how the heads vary", None))
    vectors = head_means(model, units, _teller(progress, "reading", len(units)))
    if not vectors.size:
        raise CorpusError(f"the text has no token that {model.tokens.name} knows: there is nothing to cut")
    measured = topic.measure(vectors, known)
    found, strengths = topic.cut(measured, count, granularity)
    gaps = np.full(len(sentences) - 1, np.nan)
    gaps[starts[1:] - 1] = strengths
    similarity, cells = topic.overview(measured.vectors, starts, len(sentences))
    return Segmentation(
        text=text,
        level="topic",
        edges=edges,
        boundaries=starts[found],
        strengths=gaps,
        similarity=similarity,
        cells=cells,
        heads=votes_of(measured.weights, measured.contrast.relative, model.anatomy.numbers, range(model.anatomy.heads)),
        manifest={
            **about,
            "sentences_cut": len(sentences),
            "sentences_joined": len(sentences) - len(starts),
            **_run(),
        },
    )


def _teller(progress: Told | None, what: str, total: int | None) -> Callable[[int], None] | None:
    if progress is None:
        return None
    told = 0

    def tell(more: int) -> None:
        nonlocal told
        told += more
        progress(what, told, total or 0)

    return tell


# -- fine -------------------------------------------------------------------------------------------------------------


def _fine(
    model: Model,
    text: str,
    edges: Ints,
    count: int | None,
    granularity: float,
    length: int,
    tau: float,
    about: dict[str, Any],
) -> Segmentation:
    readable = _HALVES.sub("\N{REPLACEMENT CHARACTER}", text)
    windows = list(windows_of(model, readable, edges, length))
    if count is not None and len(windows) > 1:
        raise StudyError(
            f"the text takes {len(windows)} windows of {length} tokens, each of which is cut by itself: a count is for "
            "a text of one; leave it out, or choose a larger --length"
        )
    cuts = [(start, _cut_window(model, readable[start:end], length, tau, count, granularity)) for start, end in windows]
    all_edges: list[int] = []
    boundaries: list[int] = []
    strengths: list[float] = []
    for start, cut in cuts:
        if all_edges:
            boundaries.append(len(all_edges))
            strengths.append(np.nan)  # between windows: they end with a sentence, and nothing was compared
        boundaries += (len(all_edges) + cut.boundaries).tolist()
        strengths += cut.strengths.tolist()
        all_edges += (start + cut.edges[:-1]).tolist()
    similarity, cells = _overview([cut.vectors for _, cut in cuts])
    return Segmentation(
        text=text,
        level="fine",
        edges=np.asarray([*all_edges, len(text)], dtype=np.int64),
        boundaries=np.asarray(boundaries, dtype=np.int64),
        strengths=np.asarray(strengths),
        similarity=similarity,
        cells=cells,
        heads=_mean_votes([cut.heads for _, cut in cuts]),
        manifest={**about, "length": length, "tau": tau, "windows": len(windows), **_run()},
    )


def _cut_window(model: Model, text: str, length: int, tau: float, count: int | None, granularity: float) -> FineCut:
    if tokens_in(model, text) < 2:
        return FineCut.whole(text)
    reading = read(model, text.rstrip(), length=length, tau=tau)  # a token of white space would be an empty block
    return fine_cut(reading, count=count, granularity=granularity)


def _overview(vectors: list[Floats]) -> tuple[Floats, Ints]:
    """Regions of each window; blocks of different windows were not compared."""
    n = sum(map(len, vectors))
    size = -(-n // topic.CELLS)
    cells = np.append(np.arange(0, n, size), n)
    found = np.full((len(cells) - 1, len(cells) - 1), np.nan, dtype=np.float32)
    if size > 1:
        return found, cells
    start = 0
    for part in vectors:
        end = start + len(part)
        found[start:end, start:end] = part @ part.T
        start = end
    return found, cells


def _mean_votes(votes: list[tuple[HeadVote, ...]]) -> tuple[HeadVote, ...]:
    weight: dict[tuple[int, int], float] = {}
    contrast: dict[tuple[int, int], float] = {}
    for window in votes:
        for vote in window:
            key = (vote.layer, vote.head)
            weight[key] = weight.get(key, 0.0) + vote.weight / len(votes)
            contrast[key] = contrast.get(key, 0.0) + vote.contrast / len(votes)
    made = [HeadVote(*key, weight[key], contrast[key]) for key in weight]
    return tuple(sorted(made, key=lambda vote: (-vote.weight, vote.layer, vote.head)))
