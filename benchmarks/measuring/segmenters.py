"""The ways a document is cut in the benchmark: classics, embeddings, heads. Each gives boundaries of its sentences."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from classics import c99, even, texttiling, utiyama_isahara
from headscope import Model
from headscope.array_types import Floats
from headscope.segmentation import boundaries, pieces, topic
from headscope.segmentation.pieces import compute_head_means
from headscope.segmentation.topic import Background, load_background
from measuring.embeddings import embeddings, unit

Cut = Callable[[list[str], int | None], Sequence[int]]
CLASSICS: dict[str, Cut] = {
    "random": even.at_random,
    "even spacing": even.segment,
    "TextTiling": texttiling.segment,
    "C99": c99.segment,
    "Utiyama–Isahara": utiyama_isahara.segment,
}


def units_of(sentences: Sequence[str]) -> tuple[list[str], list[int]]:
    """The texts that are read, as `headscope.segment` joins them, and the sentences they start with."""
    starts = pieces.find_units(sentences).tolist()
    return [" ".join(sentences[a:b]) for a, b in pairwise([*starts, len(sentences)])], starts


@dataclass
class Ways:
    """Of one model. What is read is kept: documents share sentences, and each is read alone, so it is the same."""

    model: Model
    known: Background
    heads: dict[str, Floats] = field(default_factory=dict)
    embedded: dict[str, Floats] = field(default_factory=dict)
    worths: dict[tuple[tuple[str, ...], int], Floats] = field(default_factory=dict)

    @classmethod
    def of(cls, model: Model) -> Ways:
        return cls(model, load_background(model))

    def read(self, documents: Sequence[list[str]]) -> None:
        """Read all that is to be cut, once."""
        units = {text for sentences in documents for text in units_of(sentences)[0]}
        plain = {text for sentences in documents for text in sentences}
        new = sorted(units - self.heads.keys())
        start = time.perf_counter()
        step = 512
        for k in range(0, len(new), step):
            part = new[k : k + step]
            self.heads |= dict(zip(part, compute_head_means(self.model, part).astype(np.float16), strict=True))
            print(f"\r{self.model.name}: {k + len(part):,} of {len(new):,} units read", end="", file=sys.stderr)
        missing = sorted((units | plain) - self.embedded.keys())
        if missing:
            self.embedded |= dict(zip(missing, embeddings(self.model, missing), strict=True))
        print(f", {time.perf_counter() - start:.0f} s", file=sys.stderr)

    def by_heads(self, sentences: list[str], count: int | None) -> list[int]:
        units, starts = units_of(sentences)
        band = boundaries.choose_band(len(units), count)
        worth = self._worth(tuple(units), band)
        found = boundaries.cut(worth, boundaries.compute_prices(band), _possible(count, units))
        return [starts[k] for k in found]

    def _worth(self, units: tuple[str, ...], band: int) -> Floats:
        """Worths of a document's segments; the same with a known number of them and without, so they are kept."""
        if (units, band) not in self.worths:
            vectors = np.stack([self.heads[text] for text in units]).astype(np.float32)
            self.worths[units, band] = boundaries.compute_worths(topic.weight_units(vectors, self.known).vectors, band)
        return self.worths[units, band]

    def by_embeddings(self, sentences: list[str], count: int | None) -> list[int]:
        """Embeddings in the place of head outputs; all else as it is there."""
        units, starts = units_of(sentences)
        vectors = unit(np.stack([self.embedded[text] for text in units]))
        band = boundaries.choose_band(len(units), count)
        found = boundaries.cut(
            boundaries.compute_worths(vectors, band),
            boundaries.compute_prices(band),
            _possible(count, units),
        )
        return [starts[k] for k in found]

    def by_plain_embeddings(self, sentences: list[str], count: int | None) -> list[int]:
        """Embeddings as people cut them: sentences as they are, the criterion of k-means, its exact optimum.

        It finds no number of segments: each further one makes it better.
        """
        if count is None:
            raise NotImplementedError
        vectors = unit(np.stack([self.embedded[text] for text in sentences]))
        n = len(vectors)
        sums = np.zeros((n + 1, n + 1))
        sums[1:, 1:] = (vectors @ vectors.T).cumsum(0).cumsum(1)
        worth = np.full((n, n + 1), -np.inf)
        for b in range(1, n + 1):
            a = np.arange(b)
            worth[b - a - 1, b] = (sums[b, b] - 2 * sums[a, b] + sums[a, a]) / (b - a)
        return [int(b) for b in boundaries.cut(worth, np.zeros(n), count)]

    def each(self) -> dict[str, Cut]:
        return {
            "embeddings, k-means": self.by_plain_embeddings,
            "embeddings, our cutter": self.by_embeddings,
            "heads": self.by_heads,
        }


def _possible(count: int | None, units: Sequence[str]) -> int | None:
    return None if count is None else min(count, len(units))
