"""The topic level: segments with one subject each, against the background of how a model's outputs vary anyway.

Segments with one subject each, for documents of any length: from the head outputs of sentences to boundaries.

Background statistics: how the head outputs of a model vary within texts that have one subject each.

The texts are the 64 bundled openings of encyclopaedia articles. Sentences of one text also differ, in length, style and
grammar. This is noise when subjects are searched for, and the outputs of a head vary far more along some directions
than along others because of it. The outputs of each head are multiplied by

    (V_h + κ·tr(V_h)/d)^(−½)         V_h: covariance of head h within texts, d: its width

which makes this noise nearly equal in all directions. The same texts show how well each head separates subjects:
a short document, which provides few data, takes its weights from there. Nothing is trained, and the only labels used
are the boundaries of the bundled texts; nothing of the document to be segmented enters here.

Measuring a model's background takes a pass over some 570 sentences. The result is cached in a file, by the hash of the
model's weights.
"""

from __future__ import annotations

import logging
import zipfile
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np

from headscope.array_types import Floats, Ints
from headscope.corpus.formats import load_openings
from headscope.errors import HeadscopeError
from headscope.file_io import find_cache_folder, replace_atomically
from headscope.model.model import Model
from headscope.segmentation import boundaries, pieces
from headscope.segmentation import boundaries as boundary_search
from headscope.segmentation.boundaries import NEAR, Contrast, compute_contrast, compute_products, scale_outputs
from headscope.segmentation.pieces import ReadCallback, compute_head_means

SHRINKAGE = 0.3
"""κ: limits how much directions in which a head hardly varies are amplified"""
FAR_PAIRS = 20_000
"""sampled pairs of sentences of different texts"""
VERSION = 1
"""of the cache file; other versions are ignored"""


@dataclass(frozen=True, eq=False)
class Background:
    """Background statistics of one model and stack."""

    maps: Floats
    """whitening matrices (head, width, width)"""
    mean: Floats
    """mean whitened output of the sentences (head, width)"""
    contrast: Contrast

    def whiten(self, vectors: Floats) -> Floats:
        """Return outputs (piece, head, width) multiplied by the whitening matrices."""
        return np.asarray((vectors.transpose(1, 0, 2) @ self.maps).transpose(1, 0, 2), dtype=np.float32)


def load_background(model: Model, done: ReadCallback | None = None) -> Background:
    """Return the background of a model, from its cache file or else measured and cached."""
    path = _get_path(model)
    cached = None if path is None else _read_cache(path)
    if cached is not None:
        return cached
    statistics = measure_background(model, done)
    if path is not None:
        _write_cache(statistics, path)
    return statistics


def load_bundled_sentences() -> tuple[list[str], list[int]]:
    """Return the sentences of the bundled texts that have a subject, and the number of the text of each."""
    texts: list[str] = []
    sources: list[int] = []
    for number, document in enumerate(load_openings()):
        edges = pieces.find_sentence_edges(document.text)
        sentences = [document.text[a:b].strip() for a, b in pairwise(edges)]
        starts = [*pieces.find_units(sentences).tolist(), len(sentences)]
        for a, b in pairwise(starts):
            texts.append(" ".join(sentences[a:b]))
            sources.append(number)
    return texts, sources


def measure_background(model: Model, done: ReadCallback | None = None) -> Background:
    """Measure the background of a model with a pass over the bundled texts."""
    texts, sources = load_bundled_sentences()
    return _estimate_background(compute_head_means(model, texts, done), np.asarray(sources))


def _estimate_background(vectors: Floats, source: Ints) -> Background:
    """Return the statistics of outputs (sentence, head, width), given the number of the text of each sentence."""
    maps = np.stack(
        [_compute_whitening(vectors[:, head].astype(np.float64), source) for head in range(vectors.shape[1])]
    )
    whitening = Background(maps.astype(np.float32), np.zeros(0), Contrast(np.zeros(0), np.zeros((0, 0))))
    white = whitening.whiten(vectors)
    mean = white.mean(axis=0)
    scaled = scale_outputs(white, mean)
    n = len(source)
    lags = range(1, NEAR + 1)
    i = np.concatenate([np.arange(n - lag) for lag in lags])
    j = np.concatenate([np.arange(lag, n) for lag in lags])
    same = source[i] == source[j]
    a, b = np.random.default_rng(0).integers(0, n, size=(2, 2 * FAR_PAIRS))
    apart = np.flatnonzero(source[a] != source[b])[:FAR_PAIRS]
    near_products = compute_products(scaled, (i[same], j[same]))
    far_products = compute_products(scaled, (a[apart], b[apart]))
    return Background(whitening.maps, mean, compute_contrast(near_products, far_products))


def _compute_whitening(vectors: Floats, source: Ints) -> Floats:
    """Return (V + κ·tr(V)/d)^(−½) of one head (width, width); the identity for a head that never varies."""
    within = vectors.copy()
    for number in np.unique(source):
        within[source == number] -= within[source == number].mean(axis=0)
    covariance = within.T @ within / len(within)
    # Without the zeros that fill up a head that is narrower than others.
    level = np.trace(covariance) / max(1, np.count_nonzero(vectors.any(axis=0)))
    if level <= 0:
        return np.eye(len(covariance))
    spectrum, directions = np.linalg.eigh(covariance)
    return np.asarray((directions * (np.maximum(spectrum, 0) + SHRINKAGE * level) ** -0.5) @ directions.T)


def _get_path(model: Model) -> Path | None:
    """Return the cache file of a model's background; None if there is no folder for it."""
    folder = find_cache_folder()
    if folder is None:
        _warn("there is no home folder")
        return None
    name = "-".join([model.weight_hash.replace(":", "-"), model.architecture.stack, model.dtype])
    return folder / f"background-{VERSION}-{name}.npz"


def _read_cache(path: Path) -> Background | None:
    """Return the background in a file; None if there is no such file or it is damaged."""
    try:
        # Opened here: numpy leaves a damaged file open, and Windows cannot replace an open file.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            cached = Background(arrays["maps"], arrays["mean"], Contrast(arrays["gain"], arrays["noise"]))
        return cached if _is_valid(cached) else None
    except (OSError, ValueError, TypeError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile):
        return None  # zipfile raises RuntimeError if a damaged archive claims encryption or an unknown compression


def _is_valid(cached: Background) -> bool:
    maps, mean, gain, noise = cached.maps, cached.mean, cached.contrast.gain, cached.contrast.noise
    if maps.ndim != 3 or maps.shape[1] != maps.shape[2]:
        return False
    fits = mean.shape == maps.shape[:2] and gain.shape == maps.shape[:1] and noise.shape == 2 * maps.shape[:1]
    return fits and all(bool(np.isfinite(array).all()) for array in (maps, mean, gain, noise))


def _write_cache(statistics: Background, path: Path) -> None:
    """Write the cache file. A failure is only a warning: the next run measures again."""
    contrast = statistics.contrast
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_atomically(path, HeadscopeError) as temporary, temporary.open("wb") as file:
            np.savez(file, maps=statistics.maps, mean=statistics.mean, gain=contrast.gain, noise=contrast.noise)
    except (OSError, HeadscopeError) as error:
        _warn(str(error))


@cache
def _warn(reason: str) -> None:
    """Warn, once for each reason, that nothing is cached."""
    logging.getLogger("headscope").warning(
        "headscope: the background statistics of the model are not kept for the next run: %s. Set XDG_CACHE_HOME to a "
        "writable folder",
        reason,
    )


TRUST = 70
"""number of sentences at which a document's own contrast counts as much as the background's"""
CENTER = 5
"""weight of the background's mean, in sentences, when it is mixed with a document's: two sentences give no mean"""
CELLS = 300
"""largest width of the similarity map, in cells"""


@dataclass(frozen=True, eq=False)
class WeightedUnits:
    """The units of a document as weighted head outputs."""

    vectors: Floats
    """Y (unit, numbers), each of length 1: the weighted outputs of all heads; K = Y·Yᵀ"""
    weights: Floats
    """(head)"""
    contrast: Contrast


def weight_units(vectors: Floats, known: Background) -> WeightedUnits:
    """Return the units weighted by what their outputs (unit, head, width) and the background say of the heads."""
    white = known.whiten(vectors)
    n = len(white)
    mean = (white.sum(axis=0) + CENTER * known.mean) / (n + CENTER)
    scaled = boundaries.scale_outputs(white, mean)
    background_share = TRUST / (TRUST + n)
    own = boundaries.compute_own_contrast(scaled)
    contrast = known.contrast if own is None else own.mix(known.contrast, background_share)
    head_weights = boundaries.compute_weights(contrast)
    return WeightedUnits(boundaries.join_heads(scaled, head_weights), head_weights, contrast)


def cut(units: WeightedUnits, count: int | None, granularity: float) -> tuple[Ints, Floats]:
    """Return the boundaries between units, and the strength of every gap (unit − 1)."""
    band = boundary_search.choose_band(len(units.vectors), count)
    worth, price = (
        boundary_search.compute_worths(units.vectors, band),
        boundary_search.compute_prices(band, granularity),
    )
    boundaries = boundary_search.cut(worth, price, count)
    return boundaries, boundary_search.compute_strengths(worth, price, boundaries)


def compute_overview(vectors: Floats, starts: Ints, sentences: int) -> tuple[Floats, Ints]:
    """Return the map of K (cell, cell) with at most `CELLS` cells, and the sentences at which they start (cell + 1).

    The mean of K over two cells is the product of their mean vectors. It includes the diagonal, each unit with itself.

    Args:
        vectors: Units (unit, numbers).
        starts: First sentence of each unit (unit).
        sentences: Number of sentences.
    """
    n = len(vectors)
    size = -(-n // CELLS)
    firsts = np.arange(0, n, size)
    means = np.add.reduceat(vectors.astype(np.float64), firsts, axis=0) / np.diff(np.append(firsts, n))[:, None]
    return (means @ means.T).astype(np.float32), np.append(starts[firsts], sentences)
