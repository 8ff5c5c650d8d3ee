"""Arrays on the device: of the texts of a batch, and those that kernels fill.

Tensors that belong to the texts of a batch, on the device.

The arrays that kernels fill while a batch goes through the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headscope.corpus.windows import BLOCKS, Batch
from headscope.devices import PendingCopy, send
from headscope.tally.attention_scores import ScoreTexts, make_score_arrays
from headscope.tally.examples import ExampleTexts
from headscope.tally.sample_sums import SampledLayer, SampleSums
from headscope.tally.tally import TallySettings
from headscope.tally.text_structure import (
    REST,
    compute_even_spread,
    find_key_receivers,
    hash_pairs,
    measure_sentences,
)
from headscope.tally.triton_backend.launches import round_up_to_power
from headscope.tally.triton_backend.pairs import LAST, mark_equal
from headscope.tally.triton_backend.scores import SUMS

Array = np.ndarray[Any, Any]

MAX_PART_TEXTS = 60
"""Maps are summed over at most this many texts of one block by one program; `pairs.add_positions` counts up to 63."""
MAX_ELEMENTS = 1 << 27
"""number of counts of pairs drawn at random that are held at once: half a gigabyte"""
TILE = 128
"""largest number of rows and columns of a tile of similarities"""


@dataclass(frozen=True, eq=False)
class TextTensors:
    """One entry for each text of a batch."""

    count: int
    length: int
    """number of tokens of the longest text"""
    unpadded: bool
    """All texts have the same length."""
    lengths: Tensor
    ids: Tensor
    """(text, position)"""
    key_ids: Tensor
    """(text, key): token ids that attention goes to"""
    key_receivers: Tensor
    """(text, key): receiver that each key is to all queries alike"""
    receiver_keys: Tensor
    """(text, index): positions of the keys that are receivers by their token, followed by −1"""
    blocks: Tensor
    token_order: Tensor
    """(text, index): positions ordered by token, padding last"""
    first_positions: Tensor
    """(text, index): first position of the token at this index of that order"""
    equal_bits: Tensor
    """(text, i, word): bit j says that tokens i and j are equal"""
    same_bits: Tensor
    """(text, i, word): bit j says that tokens i and j lie in one sentence"""
    order: Tensor
    """the texts' numbers, ordered by block"""
    parts: Tensor
    """edges of the parts of that order, each within one block"""
    part_blocks: Tensor
    even_spread: Tensor
    """(text, receiver)"""
    sampled: Tensor
    """numbers of the texts in the sample"""
    random_dominant_counts: Tensor
    """(sampled text, count): of this many random pairs, how many include the most included token"""
    sample: SampleSums | None
    sentence_tokens: tuple[Tensor, Tensor]
    """number of tokens of every sentence, and the number of its text"""
    score_ids: Tensor
    """(text, position): token ids, −1 for special tokens"""
    score_marks: Tensor
    """(text, key): bits of what keys are to attention scores"""
    score_texts: ScoreTexts
    sampled_sentences: Tensor
    """(sampled text, position): sentence of each token"""
    examples: ExampleTexts | None

    @property
    def tile(self) -> int:
        return _get_tile(self.length)

    @property
    def tiles(self) -> int:
        return -(-self.length // self.tile)

    @property
    def words(self) -> int:
        return self.tile * self.tiles // 32

    @classmethod
    def from_batch(cls, batch: Batch, counting: TallySettings, device: torch.device) -> TextTensors:
        count, length = batch.ids.shape
        arrays = make_text_arrays(batch, counting.fraction, causal=counting.causal)
        sent = dict(zip(arrays, send(list(arrays.values()), device), strict=True))
        # Integers are sent as int32; those that torch uses as an index are converted to int64 on the device.
        ids, key_receivers, blocks, sampled = (
            sent[name].long() for name in ("ids", "key_receivers", "blocks", "sampled")
        )
        lengths = sent["lengths"]
        tile = _get_tile(length)
        tiles = -(-length // tile)
        equal_bits, same_bits = (
            torch.empty((count, length, tile * tiles // 32), dtype=torch.int32, device=device) for _ in "ab"
        )
        for values, bits in ((sent["ids"], equal_bits), (sent["sentences"], same_bits)):
            mark_equal[(count, tiles, tiles)](values, lengths, bits, length, tile * tiles // 32, TILE=tile)
        return cls(
            count, length, bool((arrays["lengths"] == length).all()), lengths, ids,
            sent["key_ids"].long() if "key_ids" in sent else ids, key_receivers, sent["receiver_keys"], blocks,
            *_sort_by_token(sent["ids"], lengths), equal_bits, same_bits, sent["order"], sent["parts"],
            sent["part_blocks"].long(), sent["even_spread"], sampled,
            _count_random_dominants(sent["pair_hashes"], ids[sampled]), SampleSums.from_batch(batch, counting, device),
            (sent["sentence_sizes"].long(), sent["sentence_texts"].long()), sent["score_ids"], sent["score_marks"],
            ScoreTexts.from_tensors(
                sent["score_ids"], sent["score_marks"], lengths, lengths, causal=counting.causal,
                crosses=batch.windows[0].crosses,
            ),
            sent["sentences"][sampled], ExampleTexts.from_batch(batch, counting),
        )  # fmt: skip


def make_text_arrays(batch: Batch, fraction: float, *, causal: bool) -> dict[str, Array]:
    """Return the arrays of a batch that are sent to the device, by name."""
    windows, shape = batch.windows, batch.ids.shape
    lengths = np.array([len(window.ids) for window in windows], np.int32)
    key_receivers, sentences = np.full(shape, REST, np.int8), np.zeros(shape, np.int32)
    key_receivers[batch.real] = find_key_receivers(windows)
    sentences[batch.real] = np.concatenate([window.sentence for window in windows])
    blocks = np.array([window.block for window in windows], np.int32)
    sampled = np.flatnonzero([window.is_sampled(fraction) for window in windows]).astype(np.int32)
    order, parts, part_blocks = (array.astype(np.int32) for array in _cut_into_parts(blocks))
    arrays: dict[str, Array] = {
        "ids": batch.ids.astype(np.int32), "sentences": sentences, "key_receivers": key_receivers, "lengths": lengths,
        "receiver_keys": _list_receiver_keys(key_receivers), "blocks": blocks, "order": order, "parts": parts,
        "part_blocks": part_blocks, "sampled": sampled,
        "even_spread": compute_even_spread(key_receivers, lengths, causal=causal),
        "pair_hashes": _hash_random_pairs(batch, sampled, lengths),
    }  # fmt: skip
    sizes, numbers = measure_sentences(windows)
    arrays["score_ids"], arrays["score_marks"] = make_score_arrays(batch)
    arrays |= {"sentence_sizes": sizes.astype(np.int32), "sentence_texts": numbers.astype(np.int32)}
    if any(window.crosses for window in windows):
        arrays["key_ids"] = np.zeros(shape, np.int32)
        arrays["key_ids"][batch.real] = np.concatenate([window.keys.ids for window in windows])
    return arrays


def _get_tile(length: int) -> int:
    return min(TILE, round_up_to_power(length, 32))


def _list_receiver_keys(key_receivers: Array) -> Array:
    """Return the positions of the keys that are receivers by their token, −1 after the last one.

    >>> _list_receiver_keys(np.array([[REST, 0, REST, 3]])).tolist()
    [[1, 3, -1, -1]]
    """
    count, length = key_receivers.shape
    is_receiver = key_receivers != REST  # padding is REST
    rows, positions = np.nonzero(is_receiver)
    counts = is_receiver.sum(1)
    result = np.full((count, length), -1, np.int32)
    result[rows, np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)] = positions
    return result


def _sort_by_token(ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Return the positions of each text ordered by token, and the first position of the token at each index.

    >>> [tensor.tolist() for tensor in _sort_by_token(torch.tensor([[9, 4, 9, 0]]), torch.tensor([3]))]
    [[[1, 0, 2, 3]], [[1, 0, 0, 3]]]
    """
    positions = torch.arange(ids.shape[1], device=ids.device)
    padding = positions >= lengths[:, None]
    tokens, order = ids.masked_fill(padding, torch.iinfo(ids.dtype).max).sort(dim=1, stable=True)
    new = torch.ones_like(padding)
    new[:, 1:] = tokens[:, 1:] != tokens[:, :-1]
    starts = torch.where(new, positions, 0).cummax(1).values
    return order.int(), order.gather(1, starts).int()


def _cut_into_parts(blocks: Array) -> tuple[Array, Array, Array]:
    """Return the texts' numbers ordered by block, the edges of the parts that this order is cut into, and the block of
    each part.

    >>> order, edges, part_blocks = _cut_into_parts(np.array([7, 3, 7]))
    >>> order.tolist(), edges.tolist(), part_blocks.tolist()
    ([1, 0, 2], [0, 1, 3], [3, 7])
    """
    order = np.argsort(blocks, kind="stable")
    edges, part_blocks = [0], []
    for block, size in enumerate(np.bincount(blocks, minlength=BLOCKS).tolist()):
        pieces = -(-size // MAX_PART_TEXTS)  # of similar size, so that no program runs much longer than the others
        part_blocks += [block] * pieces
        edges += [start + size * (piece + 1) // pieces for start in edges[-1:] for piece in range(pieces)]
    return order, np.array(edges), np.array(part_blocks)


def _hash_random_pairs(batch: Batch, sampled: Array, lengths: Array) -> Array:
    """Return the hashes that the pairs of the sampled texts are ordered by (sampled text, pair), as signed integers of
    the same order.

    Pairs with padding come last, where no count of pairs reaches.
    """
    rows, columns = np.triu_indices(batch.ids.shape[1], k=1)
    digests = np.array([batch.windows[k].digest for k in sampled], np.uint64)[:, None]
    hashes = (hash_pairs(digests, rows, columns) ^ np.uint64(1 << 63)).view(np.int64)
    hashes[columns[None, :] >= lengths[sampled][:, None]] = np.iinfo(np.int64).max
    return hashes


def _count_random_dominants(hashes: Tensor, ids: Tensor) -> Tensor:
    """Count in the first 0, 1, 2, … random pairs of each text how many include the token that the most of them include.

    The same as the loops of `numba_backend.tallier`, but for all texts at once: how often each token occurs, pair after
    pair.
    """
    texts, n = ids.shape
    if not texts:
        return torch.zeros((0, 1), dtype=torch.int32, device=ids.device)
    order = torch.argsort(hashes, dim=1, stable=True)
    first_positions = (ids[:, :, None] == ids[:, None, :]).to(torch.int8).argmax(2)
    count = order.shape[1] + 1
    result = torch.empty((texts, count), dtype=torch.int32, device=ids.device)
    step = max(1, MAX_ELEMENTS // (count * n))
    for start in range(0, texts, step):
        part = slice(start, start + step)
        inclusions = torch.zeros((len(order[part]), n, count), dtype=torch.int32, device=ids.device)
        for endpoint in torch.triu_indices(n, n, 1, device=ids.device):
            # Set, not add: a pair of equal tokens includes its token once.
            inclusions[:, :, 1:].scatter_(1, first_positions[part].gather(1, endpoint[order[part]])[:, None], 1)
        result[part] = inclusions.cumsum_(2, dtype=torch.int32).amax(1)
    return result


SHORT = 128
"""Up to this many keys are in one tile: then maps are summed by the kernel that computes outputs."""


class BatchArrays:
    """The arrays of one batch."""

    def __init__(self, texts: TextTensors, counting: TallySettings) -> None:
        shape, device = counting.shape, texts.lengths.device
        layers, heads, count, n = shape.layers, shape.heads, texts.count, texts.length
        parts, sampled = len(texts.part_blocks), len(texts.sampled)
        self.texts, self.counting = texts, counting

        def allocate(*sizes: int, dtype: torch.dtype = torch.int32, zero: bool = False) -> Tensor:
            return (torch.zeros if zero else torch.empty)(sizes, dtype=dtype, device=device)

        # of one layer, reused by the next
        self.bits = allocate(count, heads, n, texts.words)
        self.pair_ends = allocate(count, heads, n)
        self.normals = allocate(count, heads, n, dtype=torch.float32)
        self.position_counts = allocate(parts, heads, n, n) if shape.maps else allocate(0)
        self.maps = allocate(parts, heads, n, n, dtype=torch.float32) if shape.maps or n <= SHORT else allocate(0)
        self.received_parts: dict[int, Tensor] = {}
        # of all layers
        self.counts = allocate(layers, count, heads, 2, dtype=torch.int64, zero=True)
        self.near = allocate(layers, count, heads, zero=True)
        self.largest = allocate(layers, count, heads, dtype=torch.float32, zero=True)
        self.dominants = allocate(layers, count, heads, dtype=torch.int64)
        self.received = allocate(layers, count, n, dtype=torch.float64)
        self.near_attention = allocate(layers, count, 2, dtype=torch.float64, zero=True)
        self.scores = allocate(layers, count, heads, len(SUMS), dtype=torch.float64, zero=True)
        self.position_diagonals = allocate(BLOCKS, layers, heads, 2 * n - 1, dtype=torch.int64, zero=True)
        self.map_diagonals = allocate(BLOCKS, layers, heads, 2 * n - 1, dtype=torch.float64, zero=True)
        self.location = allocate(layers, heads, n, n, dtype=torch.int64) if shape.maps else None
        self.attention = allocate(layers, heads, n, n, dtype=torch.float64) if shape.maps else None
        # of the sample
        self.sampled_outputs: Tensor | None = None
        self.summed_maps = allocate(layers, sampled, n, n, dtype=torch.float32)
        self.columns = allocate(layers, sampled, heads, n, dtype=torch.float64)
        self.relation_sums: dict[int, dict[str, Tensor]] = {}
        """sums of labelled relations, by layer"""

    def get_received_parts(self, tiles: int) -> Tensor:
        """Return the buffer of what keys receive from each tile of rows of a head's map, for this number of tiles:
        (text, head, tile, key)."""
        if tiles not in self.received_parts:
            sizes = (self.texts.count, self.counting.shape.heads, tiles, self.texts.length)
            self.received_parts[tiles] = torch.empty(sizes, dtype=torch.float32, device=self.texts.lengths.device)
        return self.received_parts[tiles]

    def keep_sampled(self, layer: int, output: Tensor) -> None:
        sampled = self.texts.sampled
        if not len(sampled):
            return
        if self.sampled_outputs is None:
            layers = self.counting.shape.layers
            self.sampled_outputs = output.new_empty((layers, len(sampled), *output.shape[1:]))
        self.sampled_outputs[layer] = output[sampled]

    def keep_maps(self, layer: int, maps: Tensor) -> None:
        """Keep the maps of the sampled texts (text, head, query, key), summed over heads and over queries."""
        n = maps.shape[-1]
        real = torch.arange(n, device=maps.device) < self.texts.lengths[self.texts.sampled][:, None]
        self.summed_maps[layer] = maps.sum(1)
        self.columns[layer] = (maps * real[:, None, :, None]).sum(2, dtype=torch.float64)
        sample, outputs = self.texts.sample, self.sampled_outputs
        if sample is not None and sample.labelled is not None and outputs is not None:
            itself = maps.diagonal(dim1=2, dim2=3).sum(1)
            seen = SampledLayer(outputs[layer], self.columns[layer], itself, maps)
            self.relation_sums[layer] = sample.sum_relations(seen)

    def get_pair_counts(self) -> tuple[Tensor, ...]:
        """Return twice the numbers of high pairs, of those of equal tokens, of one sentence, of both, and of pairs near
        the threshold: (layer, text, head)."""
        first, second = self.counts.unbind(-1)
        half = (1 << 32) - 1
        return first & half, first >> 32, second & half, second >> 32, self.near

    def get_dominants(self) -> tuple[Tensor, Tensor]:
        """Return twice the number of pairs that include the dominant token, and its first position: (layer, text,
        head)."""
        return self.dominants >> 32, LAST.value - (self.dominants & LAST.value)

    def send_results(self) -> None:
        """Start to transfer to the host what it needs of the batch."""
        most_attended = self.received.argmax(2)
        tokens = self.texts.key_ids.expand(len(most_attended), -1, -1).gather(2, most_attended[..., None])[..., 0]
        flags = ~self.largest.isfinite().all(1)
        self.fetched = PendingCopy([tokens, flags, self.texts.blocks])

    def receive_results(self) -> tuple[Any, Any, Any]:
        """Return the most attended token ids (layer, text), which heads' outputs are NaN or infinite (layer, head), and
        the texts' blocks."""
        tokens, nonfinite, blocks = self.fetched.arrays()
        return tokens, nonfinite, blocks
