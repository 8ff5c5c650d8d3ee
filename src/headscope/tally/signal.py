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
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from headscope.corpus.windows import Batch
from headscope.tally.text_structure import place_orders
from headscope.types import Ints

ENERGIES = ("inside_energy_sum", "outside_energy_sum", "shuffled_inside_energy_sum", "shuffled_outside_energy_sum")
NAMES = (
    "output_power", "apart_sum", "shuffled_apart_sum", "within_sum", "across_sum", "shuffled_within_sum",
    "shuffled_across_sum", "sample_pairs", "explained", "shuffled_explained", *ENERGIES,
)  # fmt: skip
AT_ONCE = 1 << 25
"""similarities computed at a time"""


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
    padded: bool
    """some have fewer tokens than N"""
    crosses: bool
    """attention looks at another text, so that its lines cut nothing"""

    @classmethod
    def of(cls, batch: Batch, fraction: float, device: torch.device | str) -> Structure | None:
        """None where no text of the batch is in the sample."""
        rows = np.flatnonzero([window.sampled(fraction) for window in batch.windows])
        if not len(rows):
            return None
        windows = [batch.windows[row] for row in rows]
        real, ids = batch.real[rows], batch.ids[rows]
        sentence = np.zeros_like(ids)
        sentence[real] = np.concatenate([window.sentence for window in windows])
        arrays = (real, ids, sentence, place_orders(windows, real))
        where, values, sentences, order = (torch.from_numpy(each).to(device) for each in arrays)
        crosses = any(window.crosses for window in windows)
        return cls(rows, where, values, sentences, order, not real.all(), crosses)

    def part(self, part: slice) -> Structure:
        """Of some of the texts."""
        return self._with(self.rows[part], lambda each: each[part])

    def repeated(self, times: int) -> Structure:
        """The same texts once more for every layer, layer by layer."""
        return self._with(np.tile(self.rows, times), lambda each: each.repeat(times, 1))

    def _with(self, rows: Ints, make: Callable[[Tensor], Tensor]) -> Structure:
        real, ids, sentence, order = (make(each) for each in (self.real, self.ids, self.sentence, self.order))
        return replace(self, rows=rows, real=real, ids=ids, sentence=sentence, order=order)

    @cached_property
    def pairs(self) -> Tensor:
        """(S, kinds + 1): how many pairs are of each kind, and how many lie in a sentence."""
        step = max(1, AT_ONCE // self.ids.shape[1] ** 2)
        parts = [self.part(slice(start, start + step)) for start in range(0, len(self.ids), step)]
        return torch.cat([torch.stack([kind.sum((1, 2)) for kind in _masks(part, None)[:-1]], 1) for part in parts])

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


@dataclass(frozen=True)
class Raw:
    """What is added up over the pairs i < j of each text and head, before anything is scaled."""

    apart: Tensor
    """(S, H, 2, kinds + 2): ½|oᵢ−oⱼ|² by kind of pair, in a sentence, and of all; as places are and shuffled"""
    high: Tensor
    """(S, H, 3): high pairs, those explained, and those when places were shuffled"""
    energy: Tensor
    """(S, H, 3): C² of all pairs, of those in one block, and of those when places were shuffled"""


AddUp = Callable[["Structure", Tensor, Tensor, Tensor, float], Raw]
"""From texts, outputs (S, N, H, d), their means (S, H, d), blocks of places (2, S, N), and θ. Distances do not know
where 0 is; around the mean, no small number is the difference of large ones."""


def measure(
    structure: Structure, output: Tensor, columns: Tensor, theta: float, tau: float, add_up: AddUp | None = None
) -> dict[str, Tensor]:
    """The summands of one layer for each sampled text: (S,), (S, H), or (S, H, kinds).

    `output`: (S, N, H, d); `columns`: (S, N), the attention each place gets from all heads. `add_up` may be a faster
    way than `in_torch`.
    """
    wide = torch.float64 if output.dtype == torch.float64 else torch.float32
    written = (output.masked_fill(~structure.real[:, :, None, None], 0) if structure.padded else output).to(wide)
    tokens = structure.real.sum(1)[:, None].double()
    mean = written.sum(1) / tokens[..., None].to(wide)
    power = torch.linalg.vector_norm(written, dim=3).double().square().sum(1) / tokens
    lines = columns > tau * columns.amax(1, keepdim=True)
    # A line's token closes its block: the block of a place is the number of lines before it.
    block = lines.cumsum(1) - lines.long()
    blocks = torch.stack([block, block.gather(1, structure.order)]).to(torch.int16)
    raw = (add_up or in_torch)(structure, written, mean, blocks, theta)
    made = {"output_power": power} | _distances(structure, raw, power)
    made["sample_pairs"], made["explained"], made["shuffled_explained"] = raw.high.unbind(2)
    return made | _energies(structure, raw, power, blocks[0])


def in_torch(structure: Structure, written: Tensor, mean: Tensor, blocks: Tensor, theta: float) -> Raw:
    """Anywhere torch runs: sums over pairs are products with matrices of 0 and 1."""
    step = max(1, AT_ONCE // (written.shape[2] * written.shape[1] ** 2))
    parts = [slice(start, start + step) for start in range(0, len(written), step)]
    made = [_in_torch(structure.part(part), written[part], mean[part], blocks[:, part], theta) for part in parts]
    return Raw(*(torch.cat(each) for each in zip(*made, strict=True)))


def _in_torch(
    structure: Structure, output: Tensor, mean: Tensor, blocks: Tensor, theta: float
) -> tuple[Tensor, Tensor, Tensor]:
    texts, _, heads, _ = output.shape
    centred = (output - mean[:, None]).masked_fill_(~structure.real[:, :, None, None], 0)
    written, centred = (each.transpose(1, 2).contiguous() for each in (output, centred))  # head by head
    own, shuffled = (_masks(structure, order) for order in (None, structure.order))
    masks = torch.stack([*own, *shuffled], 3).to(written.dtype)
    # ½|oᵢ−oⱼ|² = ½|oᵢ|² + ½|oⱼ|² − oᵢ·oⱼ, and the first two need only know how many pairs of a kind a place is in.
    degrees = (masks.sum(1) + masks.sum(2)) / 2
    products = _similarities(centred) @ masks.flatten(1, 2)
    apart = ((centred.square().sum(3) @ degrees).double() - products.double()).clamp_(min=0)
    matrix = _similarities(written)
    high = (matrix > theta * matrix.amax(2, keepdim=True)).to(written.dtype)
    upper = own[-1]
    explained = [upper, *(upper & _explained(structure, order) for order in (None, structure.order))]
    inside = [upper, *(upper & (each[:, :, None] == each[:, None, :]) for each in blocks)]
    counts, energy = (
        values @ torch.stack([mask.flatten(1) for mask in chosen], 2).to(written.dtype)
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


def _explained(structure: Structure, order: Tensor | None) -> Tensor:
    equal, same, near = _related(structure, order)
    return equal | same | near


def _masks(structure: Structure, order: Tensor | None) -> list[Tensor]:
    """Which pairs i < j are of each kind, which lie in a sentence, and all; (S, N, N) each."""
    equal, same, near = _related(structure, order)
    n, far = equal.shape[1], ~near
    upper = structure.real[:, None, :] & torch.ones(n, n, dtype=torch.bool, device=equal.device).triu(1)
    apart = (~equal & ~same & far, equal & ~same & far, ~equal & same & far, equal & same & far)
    return [*(kind & upper for kind in (*apart, ~equal & same & near, same)), upper]


def _similarities(written: Tensor) -> Tensor:
    """C of each text and head in a row, (S, H, N·N)."""
    matrix = written @ written.transpose(2, 3)
    matrix.diagonal(dim1=2, dim2=3).zero_()
    return matrix.flatten(2)


def _distances(structure: Structure, raw: Raw, power: Tensor) -> dict[str, Tensor]:
    """D = ½|oᵢ−oⱼ|²/T, T the mean square length of outputs: summed by kind of pair in units of all pairs, and averaged
    over the pairs within and across sentences."""
    whole, same = structure.all_pairs.clamp(min=1)[:, None], structure.pairs[:, -1:].double()
    unit = torch.where(power > 0, 1 / power.clamp(min=1e-300), 0)
    counted = structure.of_sentences[:, None]
    made = {}
    for start, sums in zip(("", "shuffled_"), raw.apart.unbind(2), strict=True):
        made[f"{start}apart_sum"] = sums[..., :-2] * (unit / whole)[..., None]
        within, every = sums[..., -2], sums[..., -1]
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
