"""The sums of a study on the device, to which batches are added."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from headscope.corpus.windows import BLOCKS
from headscope.devices import PendingCopy
from headscope.similarity import NEAR
from headscope.tally.attention_scores import sum_score_texts
from headscope.tally.examples import MAX_ELEMENTS, ExampleTexts, count_head_pairs, find_strongest_pairs
from headscope.tally.quantities import RATE_BINS, VALUE_BINS, Quantity, list_quantities
from headscope.tally.sample_sums import SampledLayer, add_sample_sums
from headscope.tally.tally import Tally, TallySettings, get_array_shape
from headscope.tally.text_structure import ITSELF, NEIGHBOR, REST
from headscope.tally.triton_backend.arrays import BatchArrays
from headscope.tally.triton_backend.launches import MIN_ROWS, compute_divisor, get_side, get_step, round_up_to_power
from headscope.tally.triton_backend.pairs import count_values
from headscope.tally.triton_backend.scores import SUMS

MAX_PENDING = 1 << 18
"""The most attended tokens are counted when more than this number of tokens are pending."""
MAX_PENDING_DOMINANTS = 1 << 23
"""The same for dominant tokens, which are pending on the device: 64 MB."""


class DeviceSums:
    """One tensor per quantity, with the blocks as its first axis if the quantity is kept by block."""

    def __init__(self, counting: TallySettings, device: torch.device) -> None:
        self.counting, self.device = counting, device
        shape = counting.shape
        quantities = list_quantities(shape)
        self.tensors = {
            q.name: torch.zeros(get_array_shape(q, shape), dtype=_get_dtype(q), device=device) for q in quantities
        }
        self.pending_tokens: list[tuple[Any, Any]] = []
        self.pending_dominants: list[Tensor] = []
        self.pending_examples: tuple[ExampleTexts, PendingCopy] | None = None
        self.tokens_and_examples = Tally(shape, {})

    def add(self, arrays: BatchArrays, tokens: Any, blocks: Any) -> None:
        texts = arrays.texts
        self._add_texts(arrays)
        pairs, equal, same, both, near = (count // 2 for count in arrays.get_pair_counts())
        included, positions = arrays.get_dominants()
        count = included // 2
        for name, values in (
            ("pairs", pairs), ("equal", equal), ("same", same), ("equal_same", both), ("near_threshold", near),
        ):  # fmt: skip
            self._add_by_block(name, values.transpose(0, 1), texts.blocks)
        self._add_rates("repeat_rate_texts", equal, pairs, texts.blocks)
        self._add_rates("repeat_rate_in_sentence_texts", both, same, texts.blocks)
        self._add_rates("same_sentence_rate_texts", same, pairs, texts.blocks)
        self._add_rates("dominant_share_texts", count, pairs, texts.blocks)
        has_pairs = pairs > 0
        share = torch.where(has_pairs, count.double() / pairs.clamp(min=1), 0)
        self._add_by_block("dominant_share_sum", share.transpose(0, 1), texts.blocks)
        self._add_by_block("texts_with_pairs", has_pairs.long().transpose(0, 1), texts.blocks)
        self._add_distinct(arrays, has_pairs, positions)
        self._add_maps(arrays)
        self._add_attention(arrays)
        if len(texts.sampled):
            self._add_sample(arrays, pairs)
            self._find_examples(arrays)
        self.pending_tokens.append((tokens, blocks))
        if sum(batch_tokens.size for batch_tokens, _ in self.pending_tokens) > MAX_PENDING:
            self._count_attended()
        if sum(map(len, self.pending_dominants)) > MAX_PENDING_DOMINANTS:
            self._count_dominants()

    def to_tally(self) -> Tally:
        self._count_attended()
        self._count_dominants()
        self._choose_examples()
        arrays = {name: tensor.cpu().numpy() for name, tensor in self.tensors.items()}
        if "similarity" in arrays:  # only what is above the diagonal was added
            arrays["similarity"] = arrays["similarity"] + arrays["similarity"].swapaxes(1, 2)
        tally = self.tokens_and_examples.replace_arrays(arrays)
        tally.most_attended = dict(tally.most_attended)
        tally.dominant_tokens, tally.examples = tally.dominant_tokens.copy(), tally.examples.copy()
        return tally

    # -- parts of a batch ---------------------------------------------------------------------------------------------

    def _add_texts(self, arrays: BatchArrays) -> None:
        texts = arrays.texts
        ones = torch.ones_like(texts.blocks)
        self._add_by_block("texts", ones, texts.blocks)
        self._add_by_block("sample_texts", ones[texts.sampled], texts.blocks[texts.sampled])
        lengths = texts.lengths.long()
        tokens = self.tensors["window_tokens"]
        tokens.view(-1).index_add_(0, texts.blocks * tokens.shape[1] + lengths, ones)
        self._add_by_block("all_pairs", lengths * (lengths - 1) // 2, texts.blocks)
        # Each pair has two bits.
        for name, bits in (
            ("equal", texts.equal_bits),
            ("same", texts.same_bits),
            ("equal_same", texts.equal_bits & texts.same_bits),
        ):
            self._add_by_block(f"all_{name}", _count_bits(bits).sum((1, 2)) // 2, texts.blocks)
        self._add_by_block("attention_spread", texts.even_spread, texts.blocks)
        add_sample_sums(self.tensors, sum_score_texts(texts.score_texts, texts.blocks))
        tokens = self.tensors["sentence_tokens"]
        sizes, numbers = texts.sentence_tokens
        tokens.view(-1).index_add_(0, texts.blocks[numbers] * tokens.shape[1] + sizes, torch.ones_like(sizes))

    def _add_distinct(self, arrays: BatchArrays, has_pairs: Tensor, positions: Tensor) -> None:
        layers, _, heads = has_pairs.shape
        ids = arrays.texts.ids.expand(layers, -1, -1).gather(2, positions)
        head = torch.arange(heads, device=self.device)
        keys = (ids * layers + torch.arange(layers, device=self.device)[:, None, None]) * heads + head
        self.pending_dominants.append(torch.where(has_pairs, keys, -1).flatten())
        tokens = torch.where(has_pairs, ids, -1).sort(dim=2).values
        new = torch.ones_like(has_pairs)
        new[..., 1:] = tokens[..., 1:] != tokens[..., :-1]
        distinct = (new & (tokens >= 0)).sum(2)
        target = self.tensors["distinct_dominants"]
        layer = torch.arange(layers, device=self.device)[:, None]
        index = (arrays.texts.blocks[None, :] * layers + layer) * (heads + 1) + distinct
        target.view(-1).index_add_(0, index.flatten(), torch.ones_like(index).flatten())

    def _add_maps(self, arrays: BatchArrays) -> None:
        n = arrays.texts.length
        distances = arrays.position_diagonals[..., n:]
        self.tensors["distance"][..., : n - 1] += distances
        self.tensors["distance_sum"] += (distances * torch.arange(1, n, device=self.device)).sum(-1)
        maximum = self.counting.shape.length
        self.tensors["attention_offset"][..., maximum - n : maximum + n - 1] += arrays.map_diagonals
        if arrays.location is not None and arrays.attention is not None:
            self.tensors["location"][..., :n, :n] += arrays.location
            self.tensors["attention"][..., :n, :n] += arrays.attention

    def _add_attention(self, arrays: BatchArrays) -> None:
        texts = arrays.texts
        layers = len(arrays.received)
        receivers = self.tensors["attention_received"].shape[-1]
        sums = torch.zeros((layers, texts.count, receivers), dtype=torch.float64, device=self.device)
        sums.scatter_add_(2, texts.key_receivers.expand(layers, -1, -1), arrays.received)
        # What all keys receive from themselves and their neighbours is on the diagonals; receiver keys are subtracted.
        n, diagonals = texts.length, arrays.map_diagonals.sum(2)
        block_sums = torch.stack([diagonals[..., n - 1], diagonals[..., n - 2] + diagonals[..., n]], -1)
        near_sums = block_sums.index_add_(0, texts.blocks, arrays.near_attention.transpose(0, 1).contiguous(), alpha=-1)
        target = self.tensors["attention_received"]
        target[..., ITSELF] += near_sums[..., 0]
        target[..., NEIGHBOR] += near_sums[..., 1]
        target[..., REST] -= near_sums.sum(-1)
        self._add_by_block("attention_received", sums.transpose(0, 1), texts.blocks)
        for k, name in enumerate(SUMS):
            self._add_by_block(name, arrays.scores[..., k].transpose(0, 1), texts.blocks)

    def _add_sample(self, arrays: BatchArrays, pairs: Tensor) -> None:
        texts, shape, output = arrays.texts, self.counting.shape, arrays.sampled_outputs
        assert output is not None
        layers, count, n, heads, width = output.shape
        blocks, lengths = texts.blocks[texts.sampled], texts.lengths[texts.sampled]
        histogram = torch.zeros((layers, count, heads, 256), dtype=torch.int32, device=self.device)
        edges = torch.zeros((layers, count, heads), dtype=torch.int32, device=self.device)
        similarity_sums = torch.zeros((layers, n, n) if shape.maps else (1,), dtype=torch.float64, device=self.device)
        precision = "tf32x3" if output.dtype == torch.float32 else "ieee"
        tile = get_side(texts.tile, compute_divisor(width, output.dtype, self.device))
        tiles = -(-n // tile)
        count_values[(layers * count, tiles**2)](
            output, arrays.largest[:, texts.sampled].contiguous(), lengths, layers, histogram, edges, similarity_sums,
            count, heads, n, width, round_up_to_power(width, MIN_ROWS), STEP=get_step(width, output.dtype), TILE=tile,
            TILES=tiles, BINS=VALUE_BINS, NEAR=NEAR, MAPS=shape.maps, PRECISION=precision,
            num_warps=8 if tile > 64 else 4,
        )  # fmt: skip
        self._add_by_block("value_histogram", histogram[..., :VALUE_BINS].transpose(0, 1).long(), blocks)
        self._add_by_block("near_bin_edge", edges.transpose(0, 1).long(), blocks)
        pair_counts = pairs[:, texts.sampled]
        has_pairs = pair_counts > 0
        shares = texts.random_dominant_counts.expand(layers, -1, -1).gather(
            2, pair_counts
        ).double() / pair_counts.clamp(min=1)
        self._add_by_block("shuffled_share_sum", torch.where(has_pairs, shares, 0).transpose(0, 1), blocks)
        self._add_by_block("shuffled_share_texts", has_pairs.long().transpose(0, 1), blocks)
        received = arrays.received[:, texts.sampled]
        sample = texts.sample
        assert sample is not None
        add_sample_sums(self.tensors, sample.sum_texts())
        sample.add_relations_to(self.tokens_and_examples)
        for layer, sums in arrays.relation_sums.items():
            sample.add_relations_to(self.tokens_and_examples, sums, layer)
        for layer, (vectors, columns, maps) in enumerate(zip(output, arrays.columns, arrays.summed_maps, strict=True)):
            seen = SampledLayer(vectors, columns, maps.diagonal(dim1=1, dim2=2))
            add_sample_sums(self.tensors, sample.sum_layer(seen), layer)
        add_sample_sums(self.tensors, sample.finish())
        if not shape.maps:
            return
        self.tensors["similarity"][:, :n, :n] += similarity_sums
        lines = received > self.counting.tau * received.amax(2, keepdim=True)
        positions = torch.arange(n, device=self.device)
        real = positions < lengths[:, None]
        maps = arrays.summed_maps.masked_fill(lines[:, :, None, :] | ~(real[:, :, None] & real[:, None, :]), 0)
        without = maps.sum(1, dtype=torch.float64)
        self.tensors["attention_without_lines"][:, :n, :n] += without
        without.diagonal(dim1=1, dim2=2).zero_()
        self.tensors["attention_without_lines_and_diagonal"][:, :n, :n] += without

    def _count_attended(self) -> None:
        """Count the pending most attended tokens."""
        if not self.pending_tokens:
            return
        layers = self.counting.shape.layers
        tokens = np.concatenate([batch_tokens.T for batch_tokens, _ in self.pending_tokens])  # (text, layer)
        blocks = np.concatenate([batch_blocks for _, batch_blocks in self.pending_tokens])
        values, rows = np.unique(tokens, return_inverse=True)
        counts = np.zeros((len(values), BLOCKS, layers), np.int64)
        np.add.at(counts, (rows.reshape(tokens.shape), blocks[:, None], np.arange(layers)[None, :]), 1)
        for token, token_counts in zip(values.tolist(), counts, strict=True):
            self.tokens_and_examples.attend(token, token_counts)
        self.pending_tokens.clear()

    def _count_dominants(self) -> None:
        """Count the pending dominant tokens."""
        if not self.pending_dominants:
            return
        unique: Any = torch.unique(torch.cat(self.pending_dominants), return_counts=True)
        keys, counts = (tensor.cpu().numpy() for tensor in unique)
        self.tokens_and_examples.dominant_tokens.add_keys(keys[keys >= 0], counts[keys >= 0])
        self.pending_dominants.clear()

    def _find_examples(self, arrays: BatchArrays) -> None:
        """Find what examples are chosen from, and choose those of the batch before, whose numbers have arrived."""
        texts, output = arrays.texts, arrays.sampled_outputs
        if texts.examples is None or output is None:
            return
        ids, lengths, theta = texts.ids[texts.sampled], texts.lengths[texts.sampled], self.counting.theta
        counts, keys = [], []
        for layer_output in output:
            vectors = layer_output.double()  # products of single precision may be those of TF32
            step = max(1, MAX_ELEMENTS["other"] // (vectors.shape[2] * vectors.shape[1] ** 2))
            for start in range(0, len(vectors), step):
                part = slice(start, start + step)
                counts.append(
                    count_head_pairs(vectors[part], ids[part], texts.sampled_sentences[part], lengths[part], theta)
                )
            rows = vectors.transpose(1, 2).flatten(0, 1)
            keys.append(find_strongest_pairs(rows, lengths.repeat_interleave(vectors.shape[2]), theta))
        self._choose_examples()
        sizes = (len(output), len(lengths), output.shape[3], -1)
        self.pending_examples = (
            texts.examples, PendingCopy([torch.cat(counts).view(sizes), torch.cat(keys).view(sizes)])
        )  # fmt: skip

    def _choose_examples(self) -> None:
        """Choose the examples of the pending batch."""
        if self.pending_examples is None:
            return
        (texts, fetched), self.pending_examples = self.pending_examples, None
        texts.chosen = self.tokens_and_examples.examples
        for layer, (counts, keys) in enumerate(zip(*fetched.arrays(), strict=True)):
            texts.set_layer(layer, counts, keys)
        self.tokens_and_examples.examples.add(texts.collect())

    # -- adding -------------------------------------------------------------------------------------------------------

    def _add_by_block(self, name: str, values: Tensor, blocks: Tensor) -> None:
        """Add one value (or array of values) per text to the block of that text."""
        target = self.tensors[name]
        target.index_add_(0, blocks, values.to(target.dtype).contiguous())

    def _add_rates(self, name: str, part: Tensor, total: Tensor, blocks: Tensor) -> None:
        """Add each text's own rate (layer, text, head), if it has one, to its bin; computed in integers."""
        layers, _, heads = part.shape
        bins = torch.div(RATE_BINS * part, total.clamp(min=1), rounding_mode="floor").clamp(max=RATE_BINS - 1)
        layer = torch.arange(layers, device=self.device)[:, None, None]
        head = torch.arange(heads, device=self.device)[None, None, :]
        index = ((blocks[None, :, None] * layers + layer) * heads + head) * RATE_BINS + bins
        self.tensors[name].view(-1).index_add_(0, index.flatten(), (total > 0).long().flatten())


def _count_bits(word: Tensor) -> Tensor:
    """Return how many bits of each word are set."""
    # Shifts of signed words fill in ones from the left; the masks remove them.
    word = word - ((word >> 1) & 0x55555555)
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    word = (word + (word >> 4)) & 0x0F0F0F0F
    return (word * 0x01010101 >> 24) & 0xFF


def _get_dtype(quantity: Quantity) -> torch.dtype:
    return torch.float64 if quantity.real else torch.int64
