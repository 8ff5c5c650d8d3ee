"""`headscope.segment`: find where a text changes its subject, from the head outputs of a model."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, get_args

import numpy as np

from headscope import provenance, registry
from headscope.array_types import Floats, Ints
from headscope.corpus.formats import Document, is_file_name
from headscope.corpus.tables import find_column
from headscope.errors import CorpusError, StudyError
from headscope.model.image_patches import Patches
from headscope.model.loading import ModelSource, resolve_model
from headscope.model.model import Model
from headscope.readings.read import read
from headscope.segmentation import pieces, topic
from headscope.segmentation.fine import FineCut, cut_reading
from headscope.segmentation.pieces import (
    ReadCallback,
    compute_head_means,
    count_read_in_part,
    count_tokens,
    split_windows,
)
from headscope.segmentation.result import HeadWeight, Level, Segmentation, list_votes, validate_options
from headscope.segmentation.topic import load_background
from headscope.similarity import TAU

ProgressCallback = Callable[[str, int, int], None]
"""called with the current activity, how much of it is done, and of how much in all (0 if unknown)"""
_SURROGATES = re.compile("[\ud800-\udfff]")
"""lone surrogates, which no tokenizer accepts"""


def segment(
    model: ModelSource,
    text: str | Document | Sequence[str] | Any,
    *,
    field: str = "text",
    level: Level = "topic",
    count: int | None = None,
    granularity: float = 1.0,
    length: int = 128,
    tau: float = TAU,
    progress: bool | ProgressCallback | None = None,
    command: str = "",
    allow_unverified: bool = False,
) -> Segmentation:
    """Split a text where its subject changes, or into clauses and sentences that belong together.

    Nothing is trained and no labels are used. The first use of a model takes a pass over the bundled texts, to measure
    how its heads vary within a subject. Every character of the text is in a segment; of a sentence longer than 256
    tokens the first 256 say what it is about.

    Parameters
    ----------
    model
        From `headscope.load`, or a hub name, a folder, `minilm`, or a pair (transformers model, tokenizer).
    text
        A string or a `Document`, which is split into sentences, or sentences: a list, a Series or DataFrame of pandas,
        or a Dataset of the package datasets.
    field
        The column of a DataFrame or Dataset that holds the sentences.
    level
        `topic` splits where the subject changes, `fine` into clauses and sentences that belong together.
    count
        Number of segments; without it the number is found.
    granularity
        A boundary costs 1/granularity of the default: with 2 half the evidence is enough for a boundary, with 0.5 twice
        as much is needed.
    length, tau
        Tokens of a window, and threshold of the attention lines, both for `fine`.
    progress
        True shows it on stderr; a function is called with the current activity, how much of it is done, and of how
        much in all (0 if unknown).
    command
        The command line, for the manifest.
    allow_unverified
        Measure a model whose captured heads cannot be verified, which is refused otherwise, and mark all results.

    Returns
    -------
    Segmentation

    Raises
    ------
    StudyError
        An option makes no sense, or the model reads images.
    CorpusError
        There is no text.

    Examples
    --------
    >>> import headscope
    >>> rain = "Rain fell on the hills. Clouds hid the sun all day. The storm brought heavy rain and thunder. "
    >>> bank = "The bank raised its interest rates. Loans became expensive. Investors sold their shares and bonds."
    >>> [part.text[:13] for part in headscope.segment("minilm", rain + bank)]
    ['Rain fell on ', 'The bank rais']
    """
    if level not in get_args(Level):
        raise StudyError(f"level {level!r}: there are {' and '.join(get_args(Level))}")
    validate_options(count, granularity)
    count, granularity = None if count is None else int(count), float(granularity)
    full_text, edges = _split_sentences(text, field)
    loaded = resolve_model(model, allow_unverified=allow_unverified)
    if isinstance(loaded.tokens, Patches):
        raise StudyError(f"{loaded.name} reads images: choose a model of texts")
    attributes: dict[str, Any] = {
        **provenance.describe_model(loaded),
        "level": level,
        "count": "found" if count is None else count,
        "granularity": granularity,
        "command": command,
    }
    if level == "fine":
        return _segment_windows(loaded, full_text, edges, count, granularity, length, tau, attributes)
    with registry.open_progress(progress) as on_progress:
        return _segment_topics(loaded, full_text, edges, count, granularity, attributes, on_progress)


def _split_sentences(text: str | Document | Sequence[str] | Any, field: str) -> tuple[str, Ints]:
    """Return the text and where its sentences start."""
    column = find_column(text, field)
    text = text if column is None else column.list_texts()
    if isinstance(text, str) and is_file_name(text):
        raise CorpusError(
            f"the text is the name of a file, {text!r}: give what is in it. "
            "A text that is such a word is given as headscope.Document(word, name)"
        )
    if isinstance(text, Document):
        text = text.text
    if isinstance(text, str):
        edges = pieces.find_sentence_edges(text)
        full_text = text
    elif isinstance(text, Sequence) and not isinstance(text, (bytes, bytearray)):
        full_text, edges = pieces.join_sentences(text)
    else:
        raise CorpusError(f"the text is a {type(text).__name__}: give it as a string, or as a list of sentences")
    if not full_text.strip():
        raise CorpusError("the text is empty: there is nothing to cut")
    return full_text, edges


def _describe_run() -> dict[str, Any]:
    attributes = provenance.describe_run()
    return attributes | {"versions": json.loads(attributes["versions"])}


# -- topic ------------------------------------------------------------------------------------------------------------


def _segment_topics(
    model: Model,
    text: str,
    edges: Ints,
    count: int | None,
    granularity: float,
    attributes: dict[str, Any],
    progress: ProgressCallback | None,
) -> Segmentation:
    readable = _SURROGATES.sub("\N{REPLACEMENT CHARACTER}", text)
    sentences = [readable[a:b].strip() for a, b in pairwise(edges)]
    starts = pieces.find_units(sentences)
    stops = [*starts[1:].tolist(), len(sentences)]
    if count is not None and count > len(starts):
        raise StudyError(
            f"{count} segments are asked for, and the text has {len(starts)} sentence{'s' * (len(starts) != 1)} to "
            "begin one with: ask for fewer"
        )
    units = [" ".join(sentences[a:b]) for a, b in zip(starts, stops, strict=True)]
    known = load_background(model, _make_counter(progress, "learning how the heads vary", None))
    vectors = compute_head_means(model, units, _make_counter(progress, "reading", len(units)))
    if not vectors.size:
        raise CorpusError(f"the text has no token that {model.tokens.name} knows: there is nothing to cut")
    weighted = topic.weight_units(vectors, known)
    boundaries, strengths = topic.cut(weighted, count, granularity)
    sentence_strengths = np.full(len(sentences) - 1, np.nan)
    sentence_strengths[starts[1:] - 1] = strengths
    similarity, cells = topic.compute_overview(weighted.vectors, starts, len(sentences))
    contrasts = weighted.contrast.relative
    return Segmentation(
        text=text,
        level="topic",
        edges=edges,
        boundaries=starts[boundaries],
        strengths=sentence_strengths,
        similarity=similarity,
        cells=cells,
        heads=list_votes(weighted.weights, contrasts, model.architecture.list_heads()),
        manifest={
            **attributes,
            "sentences_cut": len(sentences),
            "sentences_joined": len(sentences) - len(starts),
            "sentences_read_in_part": count_read_in_part(model, units),
            **_describe_run(),
        },
    )


def _make_counter(progress: ProgressCallback | None, activity: str, total: int | None) -> ReadCallback | None:
    """Return a function that adds up the pieces read and reports their number; None without `progress`."""
    if progress is None:
        return None
    count = 0

    def add(pieces_read: int) -> None:
        nonlocal count
        count += pieces_read
        progress(activity, count, total or 0)

    return add


# -- fine -------------------------------------------------------------------------------------------------------------


def _segment_windows(
    model: Model,
    text: str,
    edges: Ints,
    count: int | None,
    granularity: float,
    length: int,
    tau: float,
    attributes: dict[str, Any],
) -> Segmentation:
    readable = _SURROGATES.sub("\N{REPLACEMENT CHARACTER}", text)
    windows = list(split_windows(model, readable, edges, length))
    if count is not None and len(windows) > 1:
        raise StudyError(
            f"the text takes {len(windows)} windows of {length} tokens, each of which is cut by itself: a count is for "
            "a text of one; leave it out, or choose a larger --length"
        )
    cuts = [(start, _cut_window(model, readable[start:end], length, tau, count, granularity)) for start, end in windows]
    block_edges: list[int] = []
    boundaries: list[int] = []
    strengths: list[float] = []
    for start, cut in cuts:
        if block_edges:
            boundaries.append(len(block_edges))
            strengths.append(np.nan)  # between windows, which end with a sentence; blocks across are not compared
        boundaries += (len(block_edges) + cut.boundaries).tolist()
        strengths += cut.strengths.tolist()
        block_edges += (start + cut.edges[:-1]).tolist()
    similarity, cells = _compute_overview([cut.vectors for _, cut in cuts])
    return Segmentation(
        text=text,
        level="fine",
        edges=np.asarray([*block_edges, len(text)], dtype=np.int64),
        boundaries=np.asarray(boundaries, dtype=np.int64),
        strengths=np.asarray(strengths),
        similarity=similarity,
        cells=cells,
        heads=_average_votes([cut.heads for _, cut in cuts]),
        manifest={**attributes, "length": length, "tau": tau, "windows": len(windows), **_describe_run()},
    )


def _cut_window(model: Model, text: str, length: int, tau: float, count: int | None, granularity: float) -> FineCut:
    if count_tokens(model, text) < 2:
        return FineCut.from_short_text(text)
    text = text.rstrip()  # a token of white space would be an empty block
    document = Document(text, "the text", target=text if model.needs_targets else None)
    reading = read(model, document, length=length, tau=tau, allow_unverified=True)  # `segment` has checked the model
    return cut_reading(reading, count=count, granularity=granularity)


def _compute_overview(window_vectors: list[Floats]) -> tuple[Floats, Ints]:
    """Return the similarities of blocks (cell, cell), NaN between windows, and first block of each cell (cell + 1).

    If there are more blocks than cells, all similarities are NaN.

    Args:
        window_vectors: Blocks of each window (block, numbers).
    """
    n = sum(map(len, window_vectors))
    size = -(-n // topic.CELLS)
    cells = np.append(np.arange(0, n, size), n)
    similarity = np.full((len(cells) - 1, len(cells) - 1), np.nan, dtype=np.float32)
    if size > 1:
        return similarity, cells
    start = 0
    for vectors in window_vectors:
        end = start + len(vectors)
        similarity[start:end, start:end] = vectors @ vectors.T
        start = end
    return similarity, cells


def _average_votes(votes: list[tuple[HeadWeight, ...]]) -> tuple[HeadWeight, ...]:
    """Return the votes of the heads, averaged over windows; in windows without a vote a head counts as 0."""
    weights: dict[tuple[int, int], float] = {}
    contrasts: dict[tuple[int, int], float] = {}
    for window_votes in votes:
        for vote in window_votes:
            key = (vote.layer, vote.head)
            weights[key] = weights.get(key, 0.0) + vote.weight / len(votes)
            contrasts[key] = contrasts.get(key, 0.0) + vote.contrast / len(votes)
    averages = [HeadWeight(*key, weights[key], contrasts[key]) for key in weights]
    return tuple(sorted(averages, key=lambda vote: (-vote.weight, vote.layer, vote.head)))
