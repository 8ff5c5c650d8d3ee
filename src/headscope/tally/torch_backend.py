"""The torch backend: a whole batch at once, on the CPU or a GPU. The same sums as `reference.py`.

Shapes: B texts, H heads, N tokens (of the longest text). High elements are kept as 0/1 in floating point, so that
counting is a matrix product; all such counts stay below 2²⁴ and are therefore exact in float32 (see
`_choose_count_dtype`).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from headscope.corpus.windows import BLOCKS, Batch
from headscope.similarity import NEAR
from headscope.tally.attention_scores import ScoreTexts, sum_entropies, sum_score_texts
from headscope.tally.quantities import BY_NAME, ENTROPY, RATE_BINS, RECEIVERS, VALUE_BINS
from headscope.tally.sample_sums import SampledLayer, SampleSums, add_sample_sums
from headscope.tally.tally import Tally, TallySettings
from headscope.tally.text_structure import REST, find_receivers, measure_sentences, rank_pairs

PAIR_COUNTS = ("pairs", "equal", "same", "equal_same", "distance_sum")


class TorchTallier:
    """Backend that counts all texts and heads of a batch together."""

    def __init__(self, counting: TallySettings, device: torch.device | str = "cpu") -> None:
        self.counting = counting
        self.device = torch.device(device)
        self.ended = Tally.zeros(counting.shape)

    # -- sums over the texts alone ------------------------------------------------------------------------------------

    def begin(self, batch: Batch) -> None:
        self.tally = Tally.zeros(self.counting.shape)
        self.batch = batch
        self.sample = SampleSums.from_batch(batch, self.counting, self.device)
        n = batch.ids.shape[1]
        ids = torch.from_numpy(batch.ids).to(self.device)
        real = torch.from_numpy(batch.real).to(self.device)
        sentence = self._pad_rows([window.sentence for window in batch.windows], n, fill=-1)
        self.ids, self.real = ids, real
        self.key_ids = self._pad_rows([window.keys.ids for window in batch.windows], n, fill=0)
        self.pair_mask = real[:, :, None] & real[:, None, :]
        self.map_mask = real[:, :, None] & torch.from_numpy(batch.real_keys).to(self.device)[:, None, :]
        self.blocks = torch.tensor([window.block for window in batch.windows], device=self.device)
        self.sampled = torch.tensor(
            [window.is_sampled(self.counting.fraction) for window in batch.windows], device=self.device
        )

        equal = (ids[:, :, None] == ids[:, None, :]) & self.pair_mask
        same = (sentence[:, :, None] == sentence[:, None, :]) & self.pair_mask
        upper = torch.ones(n, n, dtype=torch.bool, device=self.device).triu(1) & self.pair_mask
        distance = torch.arange(n, device=self.device)[None, :] - torch.arange(n, device=self.device)[:, None]
        self.count_dtype = _choose_count_dtype(n)
        kinds = [upper, upper & equal, upper & same, upper & equal & same, upper * distance]
        # (B, N·N, 5): a row of high elements times this gives the five counts of PAIR_COUNTS.
        self.pair_masks = torch.stack([kind.flatten(1).to(self.count_dtype) for kind in kinds], dim=2)
        # Values of pairs are taken from the upper triangle, (B, H, P); `triangle_mask` is False where one is padding.
        rows, columns = torch.triu_indices(n, n, 1, device=self.device)
        self.triangle = rows * n + columns
        self.triangle_mask = self.pair_mask.flatten(1)[:, self.triangle]
        self.equal_pairs = equal.to(self.count_dtype)
        self.receivers = torch.full((len(batch), n, n), REST, dtype=torch.int64)
        self.ranks = torch.full((len(batch), n, n), n * n, dtype=torch.int64)
        for row, window in enumerate(batch.windows):
            m = len(window)
            self.receivers[row, :m, : len(window.keys)] = torch.from_numpy(find_receivers(window))
            if bool(self.sampled[row]):
                self.ranks[row, :m, :m] = torch.from_numpy(rank_pairs(window))
        self.receivers, self.ranks = self.receivers.to(self.device), self.ranks.to(self.device)
        self._count_texts()

    def _count_texts(self) -> None:
        ones, n = torch.ones_like(self.blocks), self.ids.shape[1]
        self._add("texts", ones)
        self._add("sample_texts", self.sampled.long())
        if self.sample is not None:
            add_sample_sums(self.tally.arrays, self.sample.sum_texts())
        sizes, numbers = measure_sentences(self.batch.windows)
        np.add.at(self.tally["sentence_tokens"], (self.blocks.cpu().numpy()[numbers], sizes), 1)
        tokens = self.real.sum(1)
        self._add("window_tokens", torch.nn.functional.one_hot(tokens, self.counting.shape.length + 1))
        totals = self.pair_masks[:, :, :4].double().sum(1).long()
        for k, name in enumerate(("all_pairs", "all_equal", "all_same", "all_equal_same")):
            self._add(name, totals[:, k])
        if "attention_texts" in self.tally.arrays:
            self.tally["attention_texts"][:n, :n] += self.map_mask.sum(0).cpu().numpy()
        reached = self.map_mask.double().tril() if self.counting.causal else self.map_mask.double()
        spread = reached / reached.sum(-1, keepdim=True).clamp(min=1)
        self._add("attention_spread", self._sum_by_receiver(spread))
        self.score_texts = ScoreTexts.from_batch(self.batch, self.device, causal=self.counting.causal)
        add_sample_sums(self.tally.arrays, sum_score_texts(self.score_texts, self.blocks))
        targets = self.score_texts.mark_targets()
        self.score_targets = {name: mask for name, mask in targets.items() if name in self.tally.arrays}

    # -- one layer ----------------------------------------------------------------------------------------------------

    def observe_layer(self, layer: int, output: Tensor, attention: Tensor) -> None:
        width = torch.float64 if output.dtype == torch.float64 else torch.float32
        vectors = output.to(width).transpose(1, 2).masked_fill(~self.real[:, None, :, None], 0)
        matrix = vectors @ vectors.transpose(2, 3)
        # If every vector's product with itself is finite, so are all other products (Cauchy–Schwarz).
        finite = torch.isfinite(matrix.diagonal(dim1=2, dim2=3)).all(2).all(0)
        if not bool(finite.all()):
            raise self.counting.make_nonfinite_error(layer, int((~finite).nonzero()[0, 0]))
        matrix.diagonal(dim1=2, dim2=3).zero_()
        # Padding and diagonal are 0, so the largest is at least 0, and if it is 0, no element is above θ times it.
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
        self._add("near_threshold", self._count_near_threshold(matrix, largest), layer)
        self._add_locations(layer, high)
        self._add_dominants(layer, high, pairs)
        self._add_sample(layer, matrix, largest, pairs)
        self._add_attention(layer, attention)
        self._add_sample_sums(layer, output, attention)

    def end(self) -> None:
        self.ended = self.ended + self.tally  # a new object, so that an interrupt cannot leave half a batch in it

    def get_sums(self) -> Tally:
        return self.ended

    def _count_near_threshold(self, matrix: Tensor, largest: Tensor) -> Tensor:
        top = largest[..., None]
        near = (matrix.flatten(2)[:, :, self.triangle] - self.counting.theta * top).abs_() <= NEAR * top
        near &= self.triangle_mask[:, None] & (top > 0)
        return near.to(self.count_dtype).sum(2).round().long()

    def _add_locations(self, layer: int, high: Tensor) -> None:
        block_sums, present = self._sum_by_block(high)
        n = high.shape[-1]
        distances = sum_diagonals(block_sums)[..., n:].round().long()
        self.tally["distance"][present, layer, :, : n - 1] += distances.cpu().numpy()
        if self.counting.shape.maps:
            self.tally["location"][layer, :, :n, :n] += block_sums.sum(0).round().long().cpu().numpy()

    def _add_dominants(self, layer: int, high: Tensor, pairs: Tensor) -> None:
        scores = self._count_inclusions(high, self.equal_pairs)
        count, positions = scores.amax(2).round().long(), scores.argmax(2)  # argmax returns the first of equal scores
        has_pairs = pairs > 0
        self._add("texts_with_pairs", has_pairs.long(), layer)
        self._add("dominant_share_sum", torch.where(has_pairs, count.double() / pairs.clamp(min=1), 0), layer)
        self._add_rates("dominant_share_texts", layer, count, pairs)
        tokens = torch.where(has_pairs, self.ids.gather(1, positions), -1).sort(dim=1).values
        new = torch.ones_like(tokens, dtype=torch.bool)
        new[:, 1:] = tokens[:, 1:] != tokens[:, :-1]
        distinct = (new & (tokens >= 0)).sum(1)
        self._add("distinct_dominants", torch.nn.functional.one_hot(distinct, self.counting.shape.heads + 1), layer)

    @staticmethod
    def _count_inclusions(high: Tensor, equal: Tensor) -> Tensor:
        """Return for each position how many high pairs include its token (B, H, N); a pair of equal tokens counts once.

        The positions of a token have Σ degree pair ends. A pair with both ends among them was counted twice, so half of
        those ends, Σ_j E_ij·high_ij, is subtracted.
        """
        ends = high.sum(3) - (high * equal[:, None]).sum(3) / 2
        return ends @ equal

    def _add_sample(self, layer: int, matrix: Tensor, largest: Tensor, pairs: Tensor) -> None:
        sample = self.sampled.nonzero()[:, 0]
        if len(sample) == 0:
            return
        n, heads = matrix.shape[-1], matrix.shape[1]
        top = largest[sample]
        # If the largest is 0, a head has no normalized values; dividing by 1 leaves zeros, which are not counted.
        normalized = matrix[sample] / torch.where(top > 0, top, 1)[..., None, None]
        if self.counting.shape.maps:
            normal_sum = (normalized * (top > 0)[..., None, None]).sum(1).double().sum(0)
            self.tally["similarity"][layer, :n, :n] += normal_sum.cpu().numpy()
        counted = self.triangle_mask[sample][:, None] & (top > 0)[..., None]
        bin_position = (normalized.flatten(2)[:, :, self.triangle] + 1).mul_(VALUE_BINS / 2)
        edge = bin_position.round()
        near = counted & ((bin_position - edge).abs_() <= NEAR * (VALUE_BINS / 2)) & (edge > 0) & (edge < VALUE_BINS)
        self._add("near_bin_edge", near.to(self.count_dtype).sum(2).round(), layer, sample)
        # Values that are not counted go to an additional bin, which is dropped.
        bins = bin_position.floor_().clamp_(0, VALUE_BINS - 1).long().masked_fill_(~counted, VALUE_BINS)
        group = self.blocks[sample][:, None] * heads + torch.arange(heads, device=self.device)
        index = (group * (VALUE_BINS + 1))[..., None] + bins
        histogram = torch.bincount(index.flatten(), minlength=BLOCKS * heads * (VALUE_BINS + 1))
        self.tally["value_histogram"][:, layer] += histogram.view(BLOCKS, heads, -1)[..., :VALUE_BINS].cpu().numpy()

        random_pairs = (self.ranks[sample][:, None] < pairs[sample][..., None, None]).to(self.count_dtype)
        share = self._count_inclusions(random_pairs, self.equal_pairs[sample]).amax(2).double() / pairs[sample].clamp(
            min=1
        )
        has_pairs = pairs[sample] > 0
        self._add("shuffled_share_sum", torch.where(has_pairs, share, 0), layer, sample)
        self._add("shuffled_share_texts", has_pairs.long(), layer, sample)

    def _add_attention(self, layer: int, attention: Tensor) -> None:
        n, maximum = attention.shape[-1], self.counting.shape.length
        maps = attention.double().masked_fill(~self.map_mask[:, None], 0)
        block_sums, present = self._sum_by_block(maps)
        if not self.counting.shape.crosses:
            offsets = slice(maximum - n, maximum + n - 1)
            self.tally["attention_offset"][present, layer, :, offsets] += sum_diagonals(block_sums).cpu().numpy()
        for name, mask in self.score_targets.items():
            self._add(name, (maps.flatten(2) @ mask.flatten(1).to(maps.dtype)[..., None])[..., 0], layer)
        self._add(f"{ENTROPY}_sum", sum_entropies(maps, self.score_texts), layer)
        summed = maps.sum(1)
        self._add("attention_received", self._sum_by_receiver(summed), layer)
        columns = summed.sum(1)
        most_attended = self.key_ids.gather(1, columns.argmax(1, keepdim=True))[:, 0].cpu().numpy()
        for row, token in enumerate(most_attended):
            counts = np.zeros((BLOCKS, self.counting.shape.layers), dtype=np.int64)
            counts[self.batch.windows[row].block, layer] = 1
            self.tally.attend(int(token), counts)
        if not self.counting.shape.maps:
            return
        self.tally["attention"][layer, :, :n, :n] += block_sums.sum(0).cpu().numpy()
        sample = self.sampled.nonzero()[:, 0]
        if len(sample):
            line = columns > self.counting.tau * columns.amax(1, keepdim=True)
            without = summed[sample].masked_fill(line[sample][:, None, :], 0).sum(0)
            self.tally["attention_without_lines"][layer, :n, :n] += without.cpu().numpy()
            if not self.counting.shape.crosses:
                without.fill_diagonal_(0)
                self.tally["attention_without_lines_and_diagonal"][layer, :n, :n] += without.cpu().numpy()

    def _add_sample_sums(self, layer: int, output: Tensor, attention: Tensor) -> None:
        if self.sample is None:
            return
        maps = attention[self.sampled].double().masked_fill(~self.real[self.sampled][:, None, :, None], 0)
        itself = maps.diagonal(dim1=2, dim2=3).sum(1)
        sums = self.sample.sum_layer(SampledLayer(output[self.sampled], maps.sum(2), itself))
        add_sample_sums(self.tally.arrays, sums, layer)

    # -- adding to the sums -------------------------------------------------------------------------------------------

    def _add(self, name: str, values: Tensor, layer: int | None = None, texts: Tensor | None = None) -> None:
        """Add one value (or row of values) per text to the block of that text."""
        blocks = self.blocks if texts is None else self.blocks[texts]
        dtype = torch.float64 if BY_NAME[name].real else torch.int64
        sums = torch.zeros((BLOCKS, *values.shape[1:]), dtype=dtype, device=self.device)
        sums.index_add_(0, blocks, values.to(dtype))
        target = self.tally[name]
        (target if layer is None else target[:, layer])[...] += sums.cpu().numpy()

    def _add_rates(self, name: str, layer: int, part: Tensor, total: Tensor) -> None:
        """Add each text's own rate, if it has one, to its bin; computed in integers, without rounding."""
        bins = torch.div(RATE_BINS * part, total.clamp(min=1), rounding_mode="floor").clamp(max=RATE_BINS - 1)
        counts = torch.nn.functional.one_hot(bins, RATE_BINS) * (total > 0)[..., None]
        self._add(name, counts, layer)

    def _sum_by_block(self, values: Tensor) -> tuple[Tensor, np.ndarray[tuple[int], np.dtype[np.int64]]]:
        """Sum arrays (B, …) over the texts of each block in this batch: (block, …), and the numbers of these blocks."""
        present, group = torch.unique(self.blocks, return_inverse=True)
        sums = torch.zeros((len(present), *values.shape[1:]), dtype=values.dtype, device=self.device)
        return sums.index_add_(0, group, values), present.cpu().numpy()

    def _sum_by_receiver(self, maps: Tensor) -> Tensor:
        sums = torch.zeros((len(maps), len(RECEIVERS)), dtype=torch.float64, device=self.device)
        return sums.scatter_add_(1, self.receivers.flatten(1), maps.flatten(1))

    def _pad_rows(self, rows: list[np.ndarray[tuple[int], np.dtype[np.int64]]], n: int, fill: int) -> Tensor:
        padded = torch.full((len(rows), n), fill, dtype=torch.int64)
        for k, row in enumerate(rows):
            padded[k, : len(row)] = torch.from_numpy(row)
        return padded.to(self.device)


def sum_diagonals(matrices: Tensor) -> Tensor:
    """Sum (…, N, N) over diagonals, ordered by column − row from −(N−1) to N−1: (…, 2N−1).

    >>> sum_diagonals(torch.tensor([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [3.0, 5.0, 2.0]
    """
    n = matrices.shape[-1]
    positions = torch.arange(n, device=matrices.device)
    offset = (positions[None, :] - positions[:, None] + n - 1).flatten()
    sums = torch.zeros((*matrices.shape[:-2], 2 * n - 1), dtype=matrices.dtype, device=matrices.device)
    return sums.index_add_(-1, offset, matrices.flatten(-2))


def _choose_count_dtype(n: int) -> torch.dtype:
    """Return the narrowest floating type that holds every count of an N-token window exactly.

    The largest count is the sum of all distances, N(N²−1)/6; float32 holds integers up to 2²⁴.
    """
    return torch.float32 if n * (n * n - 1) // 6 < 2**24 else torch.float64
