"""The tally over a whole batch at once, in torch, on the CPU or a GPU. The same sums as `reference.py`.

Shapes: B texts, H heads, N tokens (of the longest text). High elements are held as 0/1 in floating point, so that
counting is a matrix product; all such counts stay below 2²⁴ and are therefore exact in float32 (see `_exact`).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from headscope.corpus.windows import BLOCKS, Batch
from headscope.similarity import NEAR
from headscope.tally.quantities import BY_NAME, RATE_BINS, RECEIVERS, VALUE_BINS
from headscope.tally.signal import Structure, measure
from headscope.tally.tally import Counting, Tally
from headscope.tally.text_structure import REST, pair_ranks, receivers

PAIR_COUNTS = ("pairs", "equal", "same", "equal_same", "distance_sum")


class VectorizedTallier:
    """All texts and heads of a batch together."""

    def __init__(self, counting: Counting, device: torch.device | str = "cpu") -> None:
        self.counting = counting
        self.device = torch.device(device)
        self.ended = Tally.zeros(counting.shape)

    # -- what belongs to the texts ------------------------------------------------------------------------------------

    def begin(self, batch: Batch) -> None:
        self.tally = Tally.zeros(self.counting.shape)
        self.batch = batch
        self.structure = Structure.of(batch, self.counting.fraction, self.device)
        n = batch.ids.shape[1]
        ids = torch.from_numpy(batch.ids).to(self.device)
        real = torch.from_numpy(batch.real).to(self.device)
        sentence = self._padded([window.sentence for window in batch.windows], n, fill=-1)
        self.ids, self.real = ids, real
        self.key_ids = self._padded([window.keys.ids for window in batch.windows], n, fill=0)
        self.both = real[:, :, None] & real[:, None, :]
        self.blocks = torch.tensor([window.block for window in batch.windows], device=self.device)
        self.sampled = torch.tensor(
            [window.sampled(self.counting.fraction) for window in batch.windows], device=self.device
        )

        equal = (ids[:, :, None] == ids[:, None, :]) & self.both
        same = (sentence[:, :, None] == sentence[:, None, :]) & self.both
        upper = torch.ones(n, n, dtype=torch.bool, device=self.device).triu(1) & self.both
        apart = torch.arange(n, device=self.device)[None, :] - torch.arange(n, device=self.device)[:, None]
        self.count_dtype = _exact(n)
        kinds = [upper, upper & equal, upper & same, upper & equal & same, upper * apart]
        # (B, N·N, 5): a 0/1 matrix times this gives the five counts of PAIR_COUNTS.
        self.pair_masks = torch.stack([kind.flatten(1).to(self.count_dtype) for kind in kinds], dim=2)
        # Values of pairs are taken from the upper triangle alone, (B, H, P); `counted` is False where one is padding.
        rows, columns = torch.triu_indices(n, n, 1, device=self.device)
        self.triangle = rows * n + columns
        self.counted = self.both.flatten(1)[:, self.triangle]
        self.equal = equal.to(self.count_dtype)
        self.kinds = torch.full((len(batch), n, n), REST, dtype=torch.int64)
        self.ranks = torch.full((len(batch), n, n), n * n, dtype=torch.int64)
        for row, window in enumerate(batch.windows):
            m = len(window)
            self.kinds[row, :m, :m] = torch.from_numpy(receivers(window))
            if bool(self.sampled[row]):
                self.ranks[row, :m, :m] = torch.from_numpy(pair_ranks(window))
        self.kinds, self.ranks = self.kinds.to(self.device), self.ranks.to(self.device)
        self._count_texts()

    def _count_texts(self) -> None:
        ones = torch.ones_like(self.blocks)
        self._add("texts", ones)
        self._add("sample_texts", self.sampled.long())
        if self.structure is not None:
            for name, values in self.structure.of_texts.items():
                self._add(name, values, chosen=self.sampled)
        tokens = self.real.sum(1)
        self._add("window_tokens", torch.nn.functional.one_hot(tokens, self.counting.shape.length + 1))
        totals = self.pair_masks[:, :, :4].double().sum(1).long()
        for k, name in enumerate(("all_pairs", "all_equal", "all_same", "all_equal_same")):
            self._add(name, totals[:, k])
        reached = self.both.double().tril() if self.counting.causal else self.both.double()
        spread = reached / reached.sum(-1, keepdim=True).clamp(min=1)
        self._add("attention_spread", self._by_receiver(spread))

    # -- one layer ----------------------------------------------------------------------------------------------------

    def see(self, layer: int, output: Tensor, attention: Tensor) -> None:
        width = torch.float64 if output.dtype == torch.float64 else torch.float32
        written = output.to(width).transpose(1, 2).masked_fill(~self.real[:, None, :, None], 0)
        matrix = written @ written.transpose(2, 3)
        # Where every token's product with itself is finite, so are all others (Cauchy–Schwarz).
        finite = torch.isfinite(matrix.diagonal(dim1=2, dim2=3)).all(2).all(0)
        if not bool(finite.all()):
            raise self.counting.not_finite(layer, int((~finite).nonzero()[0, 0]))
        matrix.diagonal(dim1=2, dim2=3).zero_()
        # Padding and diagonal are 0, so the largest is never below 0, and where it is 0 nothing lies above θ times it.
        largest = matrix.amax((2, 3))
        elements = matrix > self.counting.theta * largest[..., None, None]
        high = elements.to(self.count_dtype)

        counts = (high.flatten(2) @ self.pair_masks).round().long()
        pairs, equal, same, both = (counts[:, :, k] for k in range(4))
        for k, name in enumerate(PAIR_COUNTS):
            self._add(name, counts[:, :, k], layer)
        self._add_rates("repeat_rate_texts", layer, equal, pairs)
        self._add_rates("repeat_rate_in_sentence_texts", layer, both, same)
        self._add_rates("same_sentence_rate_texts", layer, same, pairs)
        self._add("near_threshold", self._near_threshold(matrix, largest), layer)
        self._add_locations(layer, high)
        self._add_dominants(layer, high, pairs)
        self._add_sample(layer, matrix, largest, pairs)
        self._add_attention(layer, attention)
        self._add_signal(layer, output, attention)

    def end(self) -> None:
        self.ended = self.ended + self.tally  # a new one: an interrupt never leaves half a batch in it

    def total(self) -> Tally:
        return self.ended

    def _near_threshold(self, matrix: Tensor, largest: Tensor) -> Tensor:
        top = largest[..., None]
        near = (matrix.flatten(2)[:, :, self.triangle] - self.counting.theta * top).abs_() <= NEAR * top
        near &= self.counted[:, None] & (top > 0)
        return near.to(self.count_dtype).sum(2).round().long()

    def _add_locations(self, layer: int, high: Tensor) -> None:
        grouped, present = self._grouped(high)
        n = high.shape[-1]
        distances = diagonal_sums(grouped)[..., n:].round().long()
        self.tally["distance"][present, layer, :, : n - 1] += distances.cpu().numpy()
        if self.counting.shape.maps:
            self.tally["location"][layer, :, :n, :n] += grouped.sum(0).round().long().cpu().numpy()

    def _add_dominants(self, layer: int, high: Tensor, pairs: Tensor) -> None:
        scores = self._inclusions(high, self.equal)
        count, where = scores.amax(2).round().long(), scores.argmax(2)  # argmax gives the first of equals
        some = pairs > 0
        self._add("texts_with_pairs", some.long(), layer)
        self._add("dominant_share_sum", torch.where(some, count.double() / pairs.clamp(min=1), 0), layer)
        self._add_rates("dominant_share_texts", layer, count, pairs)
        tokens = torch.where(some, self.ids.gather(1, where), -1).sort(dim=1).values
        new = torch.ones_like(tokens, dtype=torch.bool)
        new[:, 1:] = tokens[:, 1:] != tokens[:, :-1]
        distinct = (new & (tokens >= 0)).sum(1)
        self._add("distinct_dominants", torch.nn.functional.one_hot(distinct, self.counting.shape.heads + 1), layer)

    @staticmethod
    def _inclusions(high: Tensor, equal: Tensor) -> Tensor:
        """For each position, how many high pairs include its token's value (B, H, N); a pair of equals counts once.

        A value's positions have Σ degree pair ends; a pair with both ends among them was counted twice, so half of
        those ends, Σ_j E_ij·high_ij, is taken away.
        """
        ends = high.sum(3) - (high * equal[:, None]).sum(3) / 2
        return ends @ equal

    def _add_sample(self, layer: int, matrix: Tensor, largest: Tensor, pairs: Tensor) -> None:
        chosen = self.sampled.nonzero()[:, 0]
        if len(chosen) == 0:
            return
        n, heads = matrix.shape[-1], matrix.shape[1]
        top = largest[chosen]
        # Where the largest is 0 a head has no normalized values; dividing by 1 leaves zeros, which are not counted.
        normalized = matrix[chosen] / torch.where(top > 0, top, 1)[..., None, None]
        if self.counting.shape.maps:
            normal_sum = (normalized * (top > 0)[..., None, None]).sum(1).double().sum(0)
            self.tally["similarity"][layer, :n, :n] += normal_sum.cpu().numpy()
        counted = self.counted[chosen][:, None] & (top > 0)[..., None]
        place = (normalized.flatten(2)[:, :, self.triangle] + 1).mul_(VALUE_BINS / 2)
        edge = place.round()
        near = counted & ((place - edge).abs_() <= NEAR * (VALUE_BINS / 2)) & (edge > 0) & (edge < VALUE_BINS)
        self._add("near_bin_edge", near.to(self.count_dtype).sum(2).round(), layer, chosen)
        # What is not counted goes to one more bin, which is then dropped.
        bins = place.floor_().clamp_(0, VALUE_BINS - 1).long().masked_fill_(~counted, VALUE_BINS)
        group = self.blocks[chosen][:, None] * heads + torch.arange(heads, device=self.device)
        index = (group * (VALUE_BINS + 1))[..., None] + bins
        histogram = torch.bincount(index.flatten(), minlength=BLOCKS * heads * (VALUE_BINS + 1))
        self.tally["value_histogram"][:, layer] += histogram.view(BLOCKS, heads, -1)[..., :VALUE_BINS].cpu().numpy()

        drawn = (self.ranks[chosen][:, None] < pairs[chosen][..., None, None]).to(self.count_dtype)
        share = self._inclusions(drawn, self.equal[chosen]).amax(2).double() / pairs[chosen].clamp(min=1)
        some = pairs[chosen] > 0
        self._add("shuffled_share_sum", torch.where(some, share, 0), layer, chosen)
        self._add("shuffled_share_texts", some.long(), layer, chosen)

    def _add_attention(self, layer: int, attention: Tensor) -> None:
        n, maximum = attention.shape[-1], self.counting.shape.length
        maps = attention.double().masked_fill(~self.both[:, None], 0)
        grouped, present = self._grouped(maps)
        offsets = slice(maximum - n, maximum + n - 1)
        self.tally["attention_offset"][present, layer, :, offsets] += diagonal_sums(grouped).cpu().numpy()
        summed = maps.sum(1)
        self._add("attention_received", self._by_receiver(summed), layer)
        columns = summed.sum(1)
        most = self.key_ids.gather(1, columns.argmax(1, keepdim=True))[:, 0].cpu().numpy()
        for row, token in enumerate(most):
            counts = np.zeros((BLOCKS, self.counting.shape.layers), dtype=np.int64)
            counts[self.batch.windows[row].block, layer] = 1
            self.tally.attend(int(token), counts)
        if not self.counting.shape.maps:
            return
        self.tally["attention"][layer, :, :n, :n] += grouped.sum(0).cpu().numpy()
        chosen = self.sampled.nonzero()[:, 0]
        if len(chosen):
            line = columns > self.counting.tau * columns.amax(1, keepdim=True)
            without = summed[chosen].masked_fill(line[chosen][:, None, :], 0).sum(0)
            self.tally["attention_without_lines"][layer, :n, :n] += without.cpu().numpy()
            without.fill_diagonal_(0)
            self.tally["attention_without_lines_and_diagonal"][layer, :n, :n] += without.cpu().numpy()

    def _add_signal(self, layer: int, output: Tensor, attention: Tensor) -> None:
        if self.structure is None:
            return
        columns = attention[self.sampled].double().sum(1).masked_fill(~self.structure.real[..., None], 0).sum(1)
        made = measure(self.structure, output[self.sampled], columns, self.counting.theta, self.counting.tau)
        for name, values in made.items():
            self._add(name, values, layer, self.sampled)

    # -- adding to the sums -------------------------------------------------------------------------------------------

    def _add(self, name: str, values: Tensor, layer: int | None = None, chosen: Tensor | None = None) -> None:
        """Add one value (or row of values) per text to the block of that text."""
        blocks = self.blocks if chosen is None else self.blocks[chosen]
        kind = torch.float64 if BY_NAME[name].real else torch.int64
        sums = torch.zeros((BLOCKS, *values.shape[1:]), dtype=kind, device=self.device)
        sums.index_add_(0, blocks, values.to(kind))
        target = self.tally[name]
        (target if layer is None else target[:, layer])[...] += sums.cpu().numpy()

    def _add_rates(self, name: str, layer: int, part: Tensor, whole: Tensor) -> None:
        """Count each text's own rate, where it has one, into its bin (in integers, so never off by rounding)."""
        bins = torch.div(RATE_BINS * part, whole.clamp(min=1), rounding_mode="floor").clamp(max=RATE_BINS - 1)
        counts = torch.nn.functional.one_hot(bins, RATE_BINS) * (whole > 0)[..., None]
        self._add(name, counts, layer)

    def _grouped(self, values: Tensor) -> tuple[Tensor, np.ndarray[tuple[int], np.dtype[np.int64]]]:
        """Sum maps (B, …) over the texts of each block that occurs in this batch."""
        present, group = torch.unique(self.blocks, return_inverse=True)
        sums = torch.zeros((len(present), *values.shape[1:]), dtype=values.dtype, device=self.device)
        return sums.index_add_(0, group, values), present.cpu().numpy()

    def _by_receiver(self, maps: Tensor) -> Tensor:
        sums = torch.zeros((len(maps), len(RECEIVERS)), dtype=torch.float64, device=self.device)
        return sums.scatter_add_(1, self.kinds.flatten(1), maps.flatten(1))

    def _padded(self, rows: list[np.ndarray[tuple[int], np.dtype[np.int64]]], n: int, fill: int) -> Tensor:
        padded = torch.full((len(rows), n), fill, dtype=torch.int64)
        for k, row in enumerate(rows):
            padded[k, : len(row)] = torch.from_numpy(row)
        return padded.to(self.device)


def diagonal_sums(matrices: Tensor) -> Tensor:
    """Sums over the diagonals of (…, N, N), by column − row from −(N−1) to N−1.

    >>> diagonal_sums(torch.tensor([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [3.0, 5.0, 2.0]
    """
    n = matrices.shape[-1]
    places = torch.arange(n, device=matrices.device)
    offset = (places[None, :] - places[:, None] + n - 1).flatten()
    sums = torch.zeros((*matrices.shape[:-2], 2 * n - 1), dtype=matrices.dtype, device=matrices.device)
    return sums.index_add_(-1, offset, matrices.flatten(-2))


def _exact(n: int) -> torch.dtype:
    """The narrowest floating type that holds every count of an N-token window exactly.

    The largest is the sum of all distances, N(N²−1)/6; float32 holds integers up to 2²⁴.
    """
    return torch.float32 if n * (n * n - 1) // 6 < 2**24 else torch.float64
