"""What a model's heads do in texts that are each about one thing: the 64 bundled openings of an encyclopaedia.

Their sentences differ within a text too, by length, style and grammar. That is noise to a search for subjects, and a
head's outputs vary far more along some directions than others by it. Each head's outputs are multiplied by

    (V_h + κ·tr(V_h)/d)^(−½)         V_h: covariance of head h within texts, d: its width

which makes this noise alike in all directions. The same texts say how well each head tells one subject from another:
that is where a short document, which says little of its own, gets its weights from. Nothing is trained and no label is
used but where one text ends; of a document to be cut nothing is known here.

A model's background takes a pass over some 570 sentences. It is kept in a file, by the hash of the model's weights.
"""

from __future__ import annotations

import logging
import zipfile
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np

from headscope.corpus.bundled import openings
from headscope.errors import HeadscopeError
from headscope.folders import find_cache_folder
from headscope.model.model import Model
from headscope.segmentation import pieces
from headscope.segmentation.vectors import Done, head_means
from headscope.segmentation.weights import NEAR, Contrast, contrast, products, scaled
from headscope.types import Floats
from headscope.writing import replacing

SHRINKAGE = 0.3
"""κ: directions in which a head hardly varies are not blown up beyond this"""
FAR_PAIRS = 20_000
"""pairs of sentences of different texts that are looked at"""
VERSION = 1
"""of the file; another is made anew"""


@dataclass(frozen=True, eq=False)
class Background:
    """Of one model and stack."""

    maps: Floats
    """(heads, width, width)"""
    mean: Floats
    """(heads, width), of sentences that went through the maps"""
    contrast: Contrast

    def whitened(self, vectors: Floats) -> Floats:
        return np.asarray((vectors.transpose(1, 0, 2) @ self.maps).transpose(1, 0, 2), dtype=np.float32)


def background(model: Model, done: Done | None = None) -> Background:
    """From its file, or measured and kept."""
    path = _path(model)
    kept = None if path is None else _opened(path)
    if kept is not None:
        return kept
    made = measured(model, done)
    if path is not None:
        _keep(made, path)
    return made


def sentences_of_bundled() -> tuple[list[str], list[int]]:
    """Sentences with a subject, and the number of the text each is from."""
    texts: list[str] = []
    sources: list[int] = []
    for number, document in enumerate(openings()):
        edges = pieces.edges_of(document.text)
        found = [document.text[a:b].strip() for a, b in pairwise(edges)]
        starts = [*pieces.units(found).tolist(), len(found)]
        for a, b in pairwise(starts):
            texts.append(" ".join(found[a:b]))
            sources.append(number)
    return texts, sources


def measured(model: Model, done: Done | None = None) -> Background:
    """By a pass over the bundled texts."""
    texts, sources = sentences_of_bundled()
    return _of(head_means(model, texts, done), np.asarray(sources))


def _of(vectors: Floats, source: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Background:
    maps = np.stack([_whitening(vectors[:, head].astype(np.float64), source) for head in range(vectors.shape[1])])
    unmixed = Background(maps.astype(np.float32), np.zeros(0), Contrast(np.zeros(0), np.zeros((0, 0))))
    white = unmixed.whitened(vectors)
    mean = white.mean(axis=0)
    moved = scaled(white, mean)
    n = len(source)
    lags = range(1, NEAR + 1)
    i = np.concatenate([np.arange(n - lag) for lag in lags])
    j = np.concatenate([np.arange(lag, n) for lag in lags])
    same = source[i] == source[j]
    drawn = np.random.default_rng(0)
    a, b = drawn.integers(0, n, size=(2, 2 * FAR_PAIRS))
    apart = np.flatnonzero(source[a] != source[b])[:FAR_PAIRS]
    found = contrast(products(moved, (i[same], j[same])), products(moved, (a[apart], b[apart])))
    return Background(unmixed.maps, mean, found)


def _whitening(vectors: Floats, source: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Floats:
    """(V + κ·tr(V)/d)^(−½) of one head; the identity of a head that never varies."""
    within = vectors.copy()
    for number in np.unique(source):
        within[source == number] -= within[source == number].mean(axis=0)
    covariance = within.T @ within / len(within)
    level = np.trace(covariance) / len(covariance)
    if level <= 0:
        return np.eye(len(covariance))
    spectrum, directions = np.linalg.eigh(covariance)
    return np.asarray((directions * (np.maximum(spectrum, 0) + SHRINKAGE * level) ** -0.5) @ directions.T)


def _path(model: Model) -> Path | None:
    """Return the file that keeps a model's background; None where there is no folder for it."""
    folder = find_cache_folder()
    if folder is None:
        _warn("there is no home folder")
        return None
    name = "-".join([model.weight_hash.replace(":", "-"), model.anatomy.stack, model.dtype])
    return folder / f"background-{VERSION}-{name}.npz"


def _opened(path: Path) -> Background | None:
    """None where there is no such file, or none that is whole."""
    try:
        # Opened here: numpy leaves a damaged file open, and Windows replaces no file that is.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as held:
            found = Background(held["maps"], held["mean"], Contrast(held["gain"], held["noise"]))
        return found if _whole(found) else None
    except (OSError, ValueError, TypeError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile):
        return None  # a damaged archive may also claim to be encrypted, or packed in a way nobody knows


def _whole(found: Background) -> bool:
    maps, mean, gain, noise = found.maps, found.mean, found.contrast.gain, found.contrast.noise
    if maps.ndim != 3 or maps.shape[1] != maps.shape[2]:
        return False
    fits = mean.shape == maps.shape[:2] and gain.shape == maps.shape[:1] and noise.shape == 2 * maps.shape[:1]
    return fits and all(bool(np.isfinite(part).all()) for part in (maps, mean, gain, noise))


def _keep(made: Background, path: Path) -> None:
    """Where no file can be written the next run measures again: that is no reason to fail."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, HeadscopeError) as waiting, waiting.open("wb") as file:
            np.savez(file, maps=made.maps, mean=made.mean, gain=made.contrast.gain, noise=made.contrast.noise)
    except (OSError, HeadscopeError) as error:
        _warn(str(error))


@cache
def _warn(reason: str) -> None:
    """Say once that nothing is kept."""
    logging.getLogger("headscope").warning(
        "headscope: what is measured of a model is not kept for the next run: %s. Set XDG_CACHE_HOME to a folder that "
        "can be written",
        reason,
    )
