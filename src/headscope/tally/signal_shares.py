"""The sums that signal shares of heads are made of (docs/noise.md), for the texts in the sample. All backends use them.

Every text has seven *contrasts*: weights w of its pairs of tokens, which depend on the text alone. A head's sums are
Σ w·½|oᵢ−oⱼ|² over the pairs i < j:

    all, repeats            1 for every pair, or for every pair of equal tokens
    equal, same             whether tokens are equal, or in one sentence: the part of it that is explained neither by
                            which two tokens a pair has nor by how far they are apart
    adjacent, second,       whether tokens are 1 or 2 apart, or equal, among the pairs of one sentence: the part that is
    equal in a sentence     not explained by which two tokens a pair has

The last five sum to zero over the pairs of every token, and the first two of them over the pairs of every distance too.
So these sums contain nothing that all tokens of a text share, that depends on one token alone, such as its length, or
(equal, same) on the distance. Special tokens take no part, and of long windows the first `MAX_PLACES` tokens do.

What remains is the mean output at each position. It is summed over two halves of the texts, because a product of sums
of different texts has no noise in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headscope.array_types import Bools, Ints
from headscope.corpus.windows import BLOCKS, Batch, Window
from headscope.tally.quantities import CONTRASTS, HALVES, MAX_PLACES

MAX_ELEMENTS = 1 << 25
"""number of similarities, or of weights, computed at a time"""
CACHED_MASKS = 64
"""number of masks whose inverses are kept: most windows of a study have one of a few"""
CUTOFF = 1e-9
"""eigenvalues below this share of the largest are zero"""


@dataclass(frozen=True, eq=False)
class PairWeights:
    """The contrasts of the sampled texts of a batch: S texts, N places in the longest."""

    blocks: Tensor
    mask: Tensor
    """(S, N): tokens that take part"""
    weights: Tensor
    """(S, contrast, N, N): symmetric, 0 on the diagonal"""
    products: Tensor
    """(S, contrast, contrast): sum of the first one's weights over the pairs that the second one marks"""

    @classmethod
    def from_batch(cls, batch: Batch, rows: Ints, device: torch.device | str) -> PairWeights:
        """Return the contrasts of some texts of a batch, given by their numbers."""
        windows = [batch.windows[row] for row in rows]
        mask = _pad([mark_places(window) for window in windows])
        ids, sentence = (
            torch.from_numpy(_pad([getattr(window, name)[:MAX_PLACES] for window in windows])).to(device)
            for name in ("ids", "sentence")
        )
        inverses = torch.stack([_invert_distances(row.tobytes()) for row in mask]).to(device)
        places = torch.from_numpy(mask).to(device)
        step = max(1, MAX_ELEMENTS // (len(CONTRASTS) * mask.shape[1] ** 2))
        parts = [
            _compute_weights(*(tensor[start : start + step] for tensor in (places, ids, sentence, inverses)))
            for start in range(0, len(rows), step)
        ]
        weights, products = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        blocks = torch.tensor([window.block for window in windows], device=device)
        return cls(blocks, places, weights, products)

    def sum_texts(self) -> dict[str, Tensor]:
        """Return the sums that belong to the texts alone, by quantity."""
        return {
            "contrast_products": self._sum_by_block(self.products),
            "pair_weights": self._sum_by_block(self.weights),
            "position_counts": self._sum_by_half(self.mask.long()),
        }

    def sum_layer(self, output: Tensor) -> dict[str, Tensor]:
        """Return the sums of one layer by quantity, of outputs of the sampled texts (S, position, H, d)."""
        dtype = torch.float64 if output.dtype == torch.float64 else torch.float32
        mask = self.mask[:, :, None, None]
        vectors = output[:, : mask.shape[1]].to(dtype).masked_fill(~mask, 0)
        tokens = mask.sum(1).clamp(min=1)
        # Distances do not depend on the origin. Around the mean, no small number is the difference of large ones.
        centered = (vectors - vectors.sum(1, keepdim=True) / tokens[:, None].to(dtype)).masked_fill(~mask, 0)
        step = max(1, MAX_ELEMENTS // (vectors.shape[2] * vectors.shape[1] ** 2))
        parts = [slice(start, start + step) for start in range(0, len(vectors), step)]
        contrasts = torch.cat([_sum_contrasts(centered[part], self.weights[part]) for part in parts])
        return {
            "contrast_sums": self._sum_by_block(contrasts),
            "position_sums": self._sum_by_half(vectors.double()).transpose(1, 2),
        }

    def _sum_by_block(self, values: Tensor) -> Tensor:
        return values.new_zeros((BLOCKS, *values.shape[1:])).index_add_(0, self.blocks, values)

    def _sum_by_half(self, values: Tensor) -> Tensor:
        return values.new_zeros((HALVES, *values.shape[1:])).index_add_(0, self.blocks % HALVES, values)


def mark_places(window: Window) -> Bools:
    """Return which of the first `MAX_PLACES` tokens take part: those that are not special."""
    return ~window.special[:MAX_PLACES]


def _sum_contrasts(vectors: Tensor, weights: Tensor) -> Tensor:
    """Return Σ w·½|oᵢ−oⱼ|² over the pairs i < j, of outputs (S, N, H, d): (S, H, contrast)."""
    heads = vectors.transpose(1, 2)
    degrees = weights.sum(3).to(vectors.dtype)
    squares = heads.square().sum(3) @ degrees.transpose(1, 2)
    matrix = (heads @ heads.transpose(2, 3)).flatten(2)
    products = matrix @ weights.flatten(2).to(vectors.dtype).transpose(1, 2)
    return (squares.double() - products.double()) / 2


def _compute_weights(mask: Tensor, ids: Tensor, sentence: Tensor, inverses: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weights of each contrast, (S, contrast, N, N), and their sums over the pairs that each one marks.

    Args:
        mask: (S, N), like `ids` and `sentence`.
        inverses: (S, N, N), see `_invert_distances`.
    """
    positions = torch.arange(mask.shape[1], device=mask.device)
    apart = (positions[:, None] - positions[None, :]).abs()
    together = mask[:, :, None] & mask[:, None, :]
    pair = together & (apart > 0)
    same = pair & (sentence[:, :, None] == sentence[:, None, :])
    equal = pair & (ids[:, :, None] == ids[:, None, :])
    near = (same & (apart == 1), same & (apart == 2), same & equal)
    marks = torch.stack([pair, equal, equal, same, *near], 1).double()
    related = marks[:, 2:4]
    in_sentence = together & (sentence[:, :, None] == sentence[:, None, :])
    effects = _sum_distances(_remove_tokens(related, together), apart) @ inverses
    related = _remove_tokens(related - effects[..., apart] * pair[:, None], together)
    weights = torch.cat([marks[:, :2], related, _remove_tokens(marks[:, 4:], in_sentence)], 1)
    return weights, torch.einsum("sain,sbin->sab", weights, marks) / 2


def _remove_tokens(values: Tensor, groups: Tensor) -> Tensor:
    """Subtract from the values of pairs what depends on one of their tokens: the residuals yᵢⱼ − aᵢ − aⱼ of least
    squares among the pairs of each group of tokens. They are zero in a group of fewer than three.

    Args:
        values: (S, k, N, N), symmetric.
        groups: (S, N, N), which tokens are in one group.
    """
    members = groups.double()[:, None]
    sizes = members.sum(3)
    sums = (values * members).sum(3)
    group_sums = (members @ sums[..., None])[..., 0]
    effects = (sums - group_sums / (2 * (sizes - 1).clamp(min=1))) / (sizes - 2).clamp(min=1)
    residuals = (values - effects[..., :, None] - effects[..., None, :]) * members * (sizes > 2)[..., None]
    residuals.diagonal(dim1=2, dim2=3).zero_()
    return residuals


def _sum_distances(values: Tensor, apart: Tensor) -> Tensor:
    """Sum symmetric values of pairs (S, k, N, N) over the pairs i < j of each distance: (S, k, N)."""
    sums = values.new_zeros(values.shape[:3])
    return sums.index_add_(2, apart.flatten(), values.flatten(2)) / 2


@lru_cache(CACHED_MASKS)
def _invert_distances(mask: bytes) -> Tensor:
    """Return the pseudo-inverse (N, N) of the products of the marks of two distances, tokens removed.

    It turns sums of values by distance into the effects of distances that least squares finds beside those of tokens.
    """
    places = np.frombuffer(mask, dtype=bool)
    n, tokens = len(places), int(places.sum())
    if tokens < 3:
        return torch.zeros((n, n), dtype=torch.float64)
    apart = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    pair = places[:, None] & places[None, :] & (apart > 0)
    degrees = np.zeros((n, n))  # number of pairs of each token at each distance
    np.add.at(degrees, (np.nonzero(pair)[0], apart[pair]), 1)
    totals = degrees.sum(0)
    explained = (degrees.T @ degrees - np.outer(totals, totals) / (2 * (tokens - 1))) / (tokens - 2)
    products = torch.from_numpy(np.diag(totals / 2) - explained)
    inverse: Tensor = torch.linalg.pinv(products, rtol=CUTOFF, hermitian=True)
    return inverse


def _pad(rows: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    padded = np.zeros((len(rows), max(len(row) for row in rows)), rows[0].dtype)
    for target, row in zip(padded, rows, strict=True):
        target[: len(row)] = row
    return padded
