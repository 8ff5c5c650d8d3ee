"""What a head's signal-to-noise ratios are made of (docs/noise.md), for the texts in the sample.

Each asks how well the similarities of a head fit some structure of the text, and asks it once more of the same
similarities when the places of the text were shuffled. What is left there is chance, and is measured, not assumed.

    structure   how far outputs are apart, by whether tokens are equal, of one sentence, neighbours, or unrelated
    contrast    how far outputs of one sentence are apart, against those of different sentences
    explained   high pairs of equal tokens, of one sentence or of neighbours, against all others
    energy      C² within the blocks that attention lines delineate, against outside of them
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headscope.corpus.windows import Batch, Window
from headscope.tally.chance import place_order
from headscope.types import Bools, Ints

ENERGIES = ("inside_energy_sum", "outside_energy_sum", "shuffled_inside_energy_sum", "shuffled_outside_energy_sum")
NAMES = (
    "output_power", "apart_sum", "shuffled_apart_sum", "within_sum", "across_sum", "shuffled_within_sum",
    "shuffled_across_sum", "sample_pairs", "explained", "shuffled_explained", *ENERGIES,
)  # fmt: skip
AT_ONCE = 1 << 25
"""similarities computed at a time"""


def relations(window: Window) -> Bools:
    """What each pair is, one N×N matrix each: equal tokens, of one sentence, neighbours."""
    places = np.arange(len(window))
    equal = window.ids[:, None] == window.ids[None, :]
    same = window.sentence[:, None] == window.sentence[None, :]
    return np.stack([equal, same, np.abs(places[:, None] - places[None, :]) == 1])


def kinds_of(relations: Bools) -> Bools:
    """The same by `KINDS`: which pairs are of each; some are of none."""
    equal, same, near = relations
    kinds = (~equal & ~same & ~near, equal & ~same & ~near, ~equal & same & ~near, equal & same & ~near)
    return np.stack([*kinds, ~equal & same & near])


def explains(relations: Bools) -> Bools:
    """Which pairs the text itself explains: those that are related in any way."""
    found: Bools = np.logical_or.reduce(relations)
    return found


@dataclass(frozen=True, eq=False)
class Structure:
    """What the sampled texts of a batch are made of; S of them, N tokens in the longest."""

    rows: Ints
    """their places in the batch"""
    real: Tensor
    """(S, N)"""
    ids: Tensor
    sentence: Tensor
    order: Tensor
    """(S, N): what place each was shuffled to; padding stays where it is"""
    pairs: Tensor
    """(S, kinds + 1): how many pairs are of each kind, and how many lie in a sentence"""
    crosses: bool
    """attention looks at another text, so that its lines cut nothing"""

    @classmethod
    def of(cls, batch: Batch, fraction: float, device: torch.device | str) -> Structure | None:
        """None where no text of the batch is in the sample."""
        rows = np.flatnonzero([window.sampled(fraction) for window in batch.windows])
        if not len(rows):
            return None
        windows = [batch.windows[row] for row in rows]
        sentence, order = np.zeros((len(rows), batch.ids.shape[1]), np.int64), np.zeros_like(batch.ids[rows])
        order[:] = np.arange(order.shape[1])
        for k, window in enumerate(windows):
            sentence[k, : len(window)] = window.sentence
            order[k, : len(window)] = place_order(window)
        pairs = np.stack([_pairs_of(window) for window in windows])
        arrays = (batch.real[rows], batch.ids[rows], sentence, order, pairs)
        real, ids, sentences, ordered, counts = (torch.from_numpy(each).to(device) for each in arrays)
        return cls(rows, real, ids, sentences, ordered, counts, any(window.crosses for window in windows))

    def part(self, part: slice) -> Structure:
        """Of some of the texts."""
        tensors = [each[part] for each in (self.real, self.ids, self.sentence, self.order, self.pairs)]
        real, ids, sentence, order, pairs = tensors
        return Structure(self.rows[part], real, ids, sentence, order, pairs, self.crosses)

    @property
    def all_pairs(self) -> Tensor:
        """(S,)"""
        tokens = self.real.sum(1).double()
        return tokens * (tokens - 1) / 2

    @property
    def of_sentences(self) -> Tensor:
        """(S,): whether a text has pairs both within and across sentences."""
        return (self.pairs[:, -1] > 0) & (self.pairs[:, -1] < self.all_pairs)

    @property
    def of_texts(self) -> dict[str, Tensor]:
        """What belongs to the texts alone."""
        shares = self.pairs[:, :-1] / self.all_pairs.clamp(min=1)[:, None]
        return {"sentence_texts": self.of_sentences.long(), "kind_share": shares}


def _pairs_of(window: Window) -> Ints:
    """How many pairs are of each kind, and how many lie in a sentence; counted by groups, not one by one."""

    def within(labels: Ints) -> int:
        sizes = np.unique(labels, axis=-1, return_counts=True)[1]
        return int((sizes * (sizes - 1) // 2).sum())

    n, ids, sentence = len(window), window.ids, window.sentence
    equal, same, both = within(ids), within(sentence), within(np.stack([ids, sentence]))
    near = np.bincount((ids[1:] == ids[:-1]) + 2 * (sentence[1:] == sentence[:-1]), minlength=4)
    apart = np.array([n * (n - 1) // 2 - equal - same + both, equal - both, same - both, both])
    return np.concatenate([apart - near, near[2:3], [same]])


@dataclass(frozen=True)
class Raw:
    """What is added up over the pairs i < j of each text and head, before anything is scaled."""

    apart: Tensor
    """(S, H, 2, kinds + 1): ½|oᵢ−oⱼ|² by kind of pair, and in a sentence; as places are and shuffled"""
    high: Tensor
    """(S, H, 3): high pairs, those explained, and those when places were shuffled"""
    energy: Tensor
    """(S, H, 3): C² of all pairs, of those in one block, and of those when places were shuffled"""


AddUp = Callable[["Structure", Tensor, Tensor, Tensor, float], Raw]
"""From texts, outputs (S, H, N, d), the same around their means, blocks of places (2, S, N), and θ."""


def measure(
    structure: Structure, output: Tensor, columns: Tensor, theta: float, tau: float, add_up: AddUp | None = None
) -> dict[str, Tensor]:
    """The summands of one layer for each sampled text: (S,), (S, H), or (S, H, kinds).

    `output`: (S, N, H, d); `columns`: (S, N), the attention each place gets from all heads. `add_up` may be a faster
    way than `in_torch`.
    """
    wide = torch.float64 if output.dtype == torch.float64 else torch.float32
    written = output.to(wide).transpose(1, 2).masked_fill(~structure.real[:, None, :, None], 0).contiguous()
    tokens = structure.real.sum(1)[:, None].double()
    # Distances do not know where 0 is; around the mean, no small number is the difference of large ones.
    mean = written.sum(2, keepdim=True) / tokens[..., None, None].to(wide)
    centred = (written - mean).masked_fill_(~structure.real[:, None, :, None], 0)
    lines = columns > tau * columns.amax(1, keepdim=True)
    # A line's token closes its block: the block of a place is the number of lines before it.
    block = lines.cumsum(1) - lines.long()
    blocks = torch.stack([block, block.gather(1, structure.order)]).to(torch.int16)
    raw = (add_up or in_torch)(structure, written, centred, blocks, theta)
    power = written.square().sum((2, 3)).double() / tokens
    every = (tokens * centred.square().sum((2, 3)).double() - centred.sum(2).double().square().sum(2)) / 2
    made = {"output_power": power} | _distances(structure, raw, power, every)
    made["sample_pairs"], made["explained"], made["shuffled_explained"] = raw.high.unbind(2)
    return made | _energies(structure, raw, power, blocks[0])


def in_torch(structure: Structure, written: Tensor, centred: Tensor, blocks: Tensor, theta: float) -> Raw:
    """Anywhere torch runs: sums over pairs are products with matrices of 0 and 1."""
    step = max(1, AT_ONCE // (written.shape[1] * written.shape[2] ** 2))
    parts = [slice(start, start + step) for start in range(0, len(written), step)]
    made = [_in_torch(structure.part(part), written[part], centred[part], blocks[:, part], theta) for part in parts]
    return Raw(*(torch.cat(each) for each in zip(*made, strict=True)))


def _in_torch(
    structure: Structure, written: Tensor, centred: Tensor, blocks: Tensor, theta: float
) -> tuple[Tensor, Tensor, Tensor]:
    texts, heads, n, _ = written.shape
    upper = structure.real[:, None, :] & torch.ones(n, n, dtype=torch.bool, device=written.device).triu(1)
    own, shuffled = (_related(structure, order) for order in (None, structure.order))
    masks = torch.stack([kind & upper for kind in (*_kinds(*own), *_kinds(*shuffled))], 3).to(written.dtype)
    # ½|oᵢ−oⱼ|² = ½|oᵢ|² + ½|oⱼ|² − oᵢ·oⱼ, and the first two need only know how many pairs of a kind a place is in.
    degrees = (masks.sum(1) + masks.sum(2)) / 2
    products = _similarities(centred) @ masks.flatten(1, 2)
    apart = ((centred.square().sum(3) @ degrees).double() - products.double()).clamp_(min=0)
    matrix = _similarities(written)
    high = (matrix > theta * matrix.amax(2, keepdim=True)).to(written.dtype)
    explained = [upper, *(equal | same | near for equal, same, near in (own, shuffled))]
    inside = [upper, *(each[:, :, None] == each[:, None, :] for each in blocks)]
    counts, energy = (
        values @ torch.stack([(mask & upper).flatten(1) for mask in chosen], 2).to(written.dtype)
        for values, chosen in ((high, explained), (matrix.square_(), inside))
    )
    return apart.view(texts, heads, 2, -1), counts.round_().long(), energy.double()


def _related(structure: Structure, order: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """`relations` of all texts, (S, N, N) each; shuffled where an order is given."""
    ids, sentence = structure.ids, structure.sentence
    places = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    if order is not None:
        ids, sentence, places = ids.gather(1, order), sentence.gather(1, order), order
    near = (places[:, :, None] - places[:, None, :]).abs() == 1
    return ids[:, :, None] == ids[:, None, :], sentence[:, :, None] == sentence[:, None, :], near


def _kinds(equal: Tensor, same: Tensor, near: Tensor) -> tuple[Tensor, ...]:
    """`kinds_of`, and which pairs lie in a sentence."""
    far = ~near
    apart = (~equal & ~same & far, equal & ~same & far, ~equal & same & far, equal & same & far)
    return *apart, ~equal & same & near, same


def _similarities(written: Tensor) -> Tensor:
    """C of each text and head in a row, (S, H, N·N)."""
    matrix = written @ written.transpose(2, 3)
    matrix.diagonal(dim1=2, dim2=3).zero_()
    return matrix.flatten(2)


def _distances(structure: Structure, raw: Raw, power: Tensor, every: Tensor) -> dict[str, Tensor]:
    """D = ½|oᵢ−oⱼ|²/T, T the mean square length of outputs: summed by kind of pair in units of all pairs, and averaged
    over the pairs within and across sentences."""
    whole, same = structure.all_pairs.clamp(min=1)[:, None], structure.pairs[:, -1:].double()
    unit = torch.where(power > 0, 1 / power.clamp(min=1e-300), 0)
    counted = structure.of_sentences[:, None]
    made = {}
    for start, sums in zip(("", "shuffled_"), raw.apart.unbind(2), strict=True):
        made[f"{start}apart_sum"] = sums[..., :-1] * (unit / whole)[..., None]
        within = sums[..., -1]
        made[f"{start}within_sum"] = torch.where(counted, within * unit / same.clamp(min=1), 0)
        across = (every - within).clamp(min=0) * unit / (whole - same).clamp(min=1)
        made[f"{start}across_sum"] = torch.where(counted, across, 0)
    return made


def _energies(structure: Structure, raw: Raw, power: Tensor, block: Tensor) -> dict[str, Tensor]:
    """The mean of (C/T)² over pairs in one of the blocks that lines cut a text into, and over all other pairs, as
    places are and shuffled; and which texts are cut so that there are pairs of both kinds."""
    n = block.shape[1]
    sizes = torch.zeros((len(block), n), dtype=torch.float64, device=block.device)
    sizes.scatter_add_(1, block.long(), structure.real.double())
    inside = (sizes * (sizes - 1) / 2).sum(1)
    outside = structure.all_pairs - inside
    cut = (inside > 0) & (outside > 0) & (not structure.crosses)
    scale = torch.where(cut[:, None] & (power > 0), 1 / power.clamp(min=1e-300) ** 2, 0)[..., None]
    within = raw.energy[..., 1:] * scale / inside.clamp(min=1)[:, None, None]
    across = (raw.energy[..., :1] - raw.energy[..., 1:]).clamp(min=0) * scale / outside.clamp(min=1)[:, None, None]
    values = (within[..., 0], across[..., 0], within[..., 1], across[..., 1])
    return dict(zip(ENERGIES, values, strict=True)) | {"block_texts": cut.long()}
