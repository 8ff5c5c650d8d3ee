"""The sums that signal-to-noise ratios of heads are made of (docs/noise.md), for the texts in the sample.

Each measures how well the similarities of a head fit some structure of the text, and measures it again with the
positions of the text shuffled. What remains then is chance: it is measured, not assumed.

    structure   how far outputs are apart, by whether tokens are equal, of one sentence, neighbours, or unrelated
    contrast    how far outputs of one sentence are apart, against those of different sentences
    explained   high pairs of equal tokens, of one sentence or of neighbours, against all others
    energy      C² within the blocks that attention lines delineate, against outside of them
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from headscope.array_types import Ints
from headscope.corpus.windows import Batch
from headscope.tally.text_structure import draw_position_orders

ENERGIES = ("inside_energy_sum", "outside_energy_sum", "shuffled_inside_energy_sum", "shuffled_outside_energy_sum")
NAMES = (
    "output_power", "apart_sum", "shuffled_apart_sum", "within_sum", "across_sum", "shuffled_within_sum",
    "shuffled_across_sum", "sample_pairs", "explained", "shuffled_explained", *ENERGIES,
)  # fmt: skip
MAX_ELEMENTS = 1 << 25
"""number of similarities computed at a time"""


@dataclass(frozen=True, eq=False)
class Structure:
    """Tokens, sentences and random orders of the sampled texts of a batch: S texts, N tokens in the longest."""

    rows: Ints
    """numbers of these texts in the batch"""
    real: Tensor
    """(S, N)"""
    ids: Tensor
    sentence: Tensor
    order: Tensor
    """(S, N): the position that each position was shuffled to; padding stays where it is"""
    has_padding: bool
    """Some texts have fewer than N tokens."""
    crosses: bool
    """Attention goes to the tokens of another text, so that its lines do not cut this one."""

    @classmethod
    def from_batch(cls, batch: Batch, fraction: float, device: torch.device | str) -> Structure | None:
        """Return the structure of the sampled texts of a batch; None if there are none."""
        rows = np.flatnonzero([window.is_sampled(fraction) for window in batch.windows])
        if not len(rows):
            return None
        windows = [batch.windows[row] for row in rows]
        real, ids = batch.real[rows], batch.ids[rows]
        sentence = np.zeros_like(ids)
        sentence[real] = np.concatenate([window.sentence for window in windows])
        arrays = (real, ids, sentence, draw_position_orders(windows, real))
        real_tensor, id_tensor, sentence_tensor, order_tensor = (torch.from_numpy(array).to(device) for array in arrays)
        crosses = any(window.crosses for window in windows)
        return cls(rows, real_tensor, id_tensor, sentence_tensor, order_tensor, not real.all(), crosses)

    def select(self, texts: slice) -> Structure:
        """Return the structure of some of the texts."""
        return self._map_tensors(self.rows[texts], lambda tensor: tensor[texts])

    def repeat_layers(self, times: int) -> Structure:
        """Return the same texts once for every layer, layer by layer."""
        return self._map_tensors(np.tile(self.rows, times), lambda tensor: tensor.repeat(times, 1))

    def _map_tensors(self, rows: Ints, function: Callable[[Tensor], Tensor]) -> Structure:
        real, ids, sentence, order = (function(tensor) for tensor in (self.real, self.ids, self.sentence, self.order))
        return replace(self, rows=rows, real=real, ids=ids, sentence=sentence, order=order)

    @cached_property
    def kind_counts(self) -> Tensor:
        """Number of pairs of each kind, and within a sentence: (S, kinds + 1)."""
        step = max(1, MAX_ELEMENTS // self.ids.shape[1] ** 2)
        parts = [self.select(slice(start, start + step)) for start in range(0, len(self.ids), step)]
        return torch.cat(
            [torch.stack([kind.sum((1, 2)) for kind in _compute_masks(part, None)[:-1]], 1) for part in parts]
        )

    @property
    def pair_counts(self) -> Tensor:
        """Number of pairs: (S,)."""
        tokens = self.real.sum(1).double()
        return tokens * (tokens - 1) / 2

    @property
    def has_sentences(self) -> Tensor:
        """Whether a text has pairs both within and across sentences: (S,)."""
        return (self.kind_counts[:, -1] > 0) & (self.kind_counts[:, -1] < self.pair_counts)

    @property
    def text_sums(self) -> dict[str, Tensor]:
        """Sums that belong to the texts alone, by quantity."""
        shares = self.kind_counts[:, :-1] / self.pair_counts.clamp(min=1)[:, None]
        return {"sentence_texts": self.has_sentences.long(), "kind_share": shares}


@dataclass(frozen=True)
class PairSums:
    """Sums over the pairs i < j of each text and head, before they are scaled."""

    distances: Tensor
    """(S, H, 2, kinds + 2): ½|oᵢ−oⱼ|² by kind of pair, in a sentence, and of all; with positions as they are and
    shuffled"""
    high_counts: Tensor
    """(S, H, 3): high pairs, explained ones, and explained ones with positions shuffled"""
    energies: Tensor
    """(S, H, 3): C² of all pairs, of those in one block, and of those in one block with positions shuffled"""


SumPairs = Callable[["Structure", Tensor, Tensor, Tensor, float], PairSums]
"""Function of the structure, outputs (S, N, H, d), their means (S, H, d), the blocks of positions (2, S, N), and θ.

Distances do not depend on the origin. Around the mean, no small number is the difference of large ones.
"""


def measure(
    structure: Structure, output: Tensor, received: Tensor, theta: float, tau: float, sum_pairs: SumPairs | None = None
) -> dict[str, Tensor]:
    """Return the summands of one layer for each sampled text: (S,), (S, H), or (S, H, kinds).

    Args:
        output: (S, N, H, d)
        received: (S, N), the attention that each position receives from all heads
        sum_pairs: A faster function than `sum_pairs_in_torch`.
    """
    dtype = torch.float64 if output.dtype == torch.float64 else torch.float32
    vectors = (output.masked_fill(~structure.real[:, :, None, None], 0) if structure.has_padding else output).to(dtype)
    tokens = structure.real.sum(1)[:, None].double()
    mean = vectors.sum(1) / tokens[..., None].to(dtype)
    power = torch.linalg.vector_norm(vectors, dim=3).double().square().sum(1) / tokens
    lines = received > tau * received.amax(1, keepdim=True)
    # A line's token closes its block: the block of a position is the number of lines before it.
    block = lines.cumsum(1) - lines.long()
    blocks = torch.stack([block, block.gather(1, structure.order)]).to(torch.int16)
    pair_sums = (sum_pairs or sum_pairs_in_torch)(structure, vectors, mean, blocks, theta)
    sums = {"output_power": power} | _scale_distances(structure, pair_sums, power)
    sums["sample_pairs"], sums["explained"], sums["shuffled_explained"] = pair_sums.high_counts.unbind(2)
    return sums | _scale_energies(structure, pair_sums, power, blocks[0])


def sum_pairs_in_torch(structure: Structure, vectors: Tensor, mean: Tensor, blocks: Tensor, theta: float) -> PairSums:
    """Compute the sums in torch, on any device: sums over pairs are products with matrices of 0 and 1."""
    step = max(1, MAX_ELEMENTS // (vectors.shape[2] * vectors.shape[1] ** 2))
    parts = [slice(start, start + step) for start in range(0, len(vectors), step)]
    results = [_sum_part(structure.select(part), vectors[part], mean[part], blocks[:, part], theta) for part in parts]
    return PairSums(*(torch.cat(tensors) for tensors in zip(*results, strict=True)))


def _sum_part(
    structure: Structure, output: Tensor, mean: Tensor, blocks: Tensor, theta: float
) -> tuple[Tensor, Tensor, Tensor]:
    texts, _, heads, _ = output.shape
    centered = (output - mean[:, None]).masked_fill_(~structure.real[:, :, None, None], 0)
    vectors, centered = (tensor.transpose(1, 2).contiguous() for tensor in (output, centered))  # (S, H, N, d)
    masks, shuffled = (_compute_masks(structure, order) for order in (None, structure.order))
    mask_matrix = torch.stack([*masks, *shuffled], 3).to(vectors.dtype)
    # ½|oᵢ−oⱼ|² = ½|oᵢ|² + ½|oⱼ|² − oᵢ·oⱼ; the first two terms need only the number of pairs of a kind at each position.
    degrees = (mask_matrix.sum(1) + mask_matrix.sum(2)) / 2
    dot_products = _compute_similarities(centered) @ mask_matrix.flatten(1, 2)
    distances = ((centered.square().sum(3) @ degrees).double() - dot_products.double()).clamp_(min=0)
    matrix = _compute_similarities(vectors)
    high = (matrix > theta * matrix.amax(2, keepdim=True)).to(vectors.dtype)
    upper = masks[-1]
    explained = [upper, *(upper & _find_explained(structure, order) for order in (None, structure.order))]
    inside = [upper, *(upper & (ids[:, :, None] == ids[:, None, :]) for ids in blocks)]
    counts, energy = (
        values @ torch.stack([mask.flatten(1) for mask in masks_of_counts], 2).to(vectors.dtype)
        for values, masks_of_counts in ((high, explained), (matrix.square_(), inside))
    )
    return distances.view(texts, heads, 2, -1), counts.round_().long(), energy.double()


def _compute_relations(structure: Structure, order: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return `relations` of all texts, (S, N, N) each; shuffled if an order is given."""
    ids, sentence = structure.ids, structure.sentence
    positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    if order is not None:
        ids, sentence, positions = ids.gather(1, order), sentence.gather(1, order), order
    near = (positions[:, :, None] - positions[:, None, :]).abs() == 1
    return ids[:, :, None] == ids[:, None, :], sentence[:, :, None] == sentence[:, None, :], near


def _find_explained(structure: Structure, order: Tensor | None) -> Tensor:
    equal, same, near = _compute_relations(structure, order)
    return equal | same | near


def _compute_masks(structure: Structure, order: Tensor | None) -> list[Tensor]:
    """Return which pairs i < j are of each kind, which lie in a sentence, and all of them; (S, N, N) each."""
    equal, same, near = _compute_relations(structure, order)
    n, far = equal.shape[1], ~near
    upper = structure.real[:, None, :] & torch.ones(n, n, dtype=torch.bool, device=equal.device).triu(1)
    kinds = (~equal & ~same & far, equal & ~same & far, ~equal & same & far, equal & same & far)
    return [*(kind & upper for kind in (*kinds, ~equal & same & near, same)), upper]


def _compute_similarities(vectors: Tensor) -> Tensor:
    """Return C of each text and head, flattened: (S, H, N·N)."""
    matrix = vectors @ vectors.transpose(2, 3)
    matrix.diagonal(dim1=2, dim2=3).zero_()
    return matrix.flatten(2)


def _scale_distances(structure: Structure, pair_sums: PairSums, power: Tensor) -> dict[str, Tensor]:
    """Scale D = ½|oᵢ−oⱼ|²/T, with T the mean square length of outputs: by kind of pair in units of all pairs, and as
    means over the pairs within and across sentences."""
    all_pairs, same = structure.pair_counts.clamp(min=1)[:, None], structure.kind_counts[:, -1:].double()
    inverse_power = torch.where(power > 0, 1 / power.clamp(min=1e-300), 0)
    has_sentences = structure.has_sentences[:, None]
    scaled = {}
    for prefix, sums in zip(("", "shuffled_"), pair_sums.distances.unbind(2), strict=True):
        scaled[f"{prefix}apart_sum"] = sums[..., :-2] * (inverse_power / all_pairs)[..., None]
        within, total = sums[..., -2], sums[..., -1]
        scaled[f"{prefix}within_sum"] = torch.where(has_sentences, within * inverse_power / same.clamp(min=1), 0)
        across = (total - within).clamp(min=0) * inverse_power / (all_pairs - same).clamp(min=1)
        scaled[f"{prefix}across_sum"] = torch.where(has_sentences, across, 0)
    return scaled


def _scale_energies(structure: Structure, pair_sums: PairSums, power: Tensor, block: Tensor) -> dict[str, Tensor]:
    """Return the mean of (C/T)² over the pairs within one of the blocks that lines cut a text into, and over all other
    pairs, with positions as they are and shuffled; and which texts have pairs of both kinds."""
    n = block.shape[1]
    sizes = torch.zeros((len(block), n), dtype=torch.float64, device=block.device)
    sizes.scatter_add_(1, block.long(), structure.real.double())
    inside = (sizes * (sizes - 1) / 2).sum(1)
    outside = structure.pair_counts - inside
    cut = (inside > 0) & (outside > 0) & (not structure.crosses)
    scale = torch.where(cut[:, None] & (power > 0), 1 / power.clamp(min=1e-300) ** 2, 0)[..., None]
    within = pair_sums.energies[..., 1:] * scale / inside.clamp(min=1)[:, None, None]
    across = (
        (pair_sums.energies[..., :1] - pair_sums.energies[..., 1:]).clamp(min=0)
        * scale
        / outside.clamp(min=1)[:, None, None]
    )
    values = (within[..., 0], across[..., 0], within[..., 1], across[..., 1])
    return dict(zip(ENERGIES, values, strict=True)) | {"block_texts": cut.long()}
