"""The sums of a study on the device, and how a batch is added to them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from headscope.corpus.windows import BLOCKS
from headscope.similarity import NEAR
from headscope.tally.gpu.held import Held
from headscope.tally.gpu.sample import see_values
from headscope.tally.gpu.signal import by_kernel
from headscope.tally.gpu.tiles import LEAST, at_once, narrowing, power_of_two, side
from headscope.tally.quantities import QUANTITIES, RATE_BINS, VALUE_BINS, Quantity
from headscope.tally.signal import measure
from headscope.tally.tally import Counting, Tally, array_shape
from headscope.tally.text_structure import ITSELF, NEIGHBOUR, REST

AT_ONCE = 1 << 28
"""numbers of outputs of the sample looked at together"""
ATTENDED = 1 << 18
"""Most attended tokens are counted together when so many are waiting."""


class Sums:
    """One tensor for each quantity, blocks first where it is kept in blocks."""

    def __init__(self, counting: Counting, device: torch.device) -> None:
        self.counting, self.device = counting, device
        shape = counting.shape
        kept = [quantity for quantity in QUANTITIES if shape.maps or not quantity.is_map]
        self.tensors = {q.name: torch.zeros(array_shape(q, shape), dtype=_type(q), device=device) for q in kept}
        self.attended: list[tuple[Any, Any]] = []
        self.most_attended = Tally(shape, {})

    def add(self, held: Held, attended: Any, blocks: Any) -> None:
        texts = held.texts
        self._add_texts(held)
        pairs, equal, same, both, near = (count // 2 for count in held.numbers())
        included, places = held.dominant()
        count = included // 2
        for name, values in (
            ("pairs", pairs), ("equal", equal), ("same", same), ("equal_same", both), ("near_threshold", near),
        ):  # fmt: skip
            self._by_block(name, values.transpose(0, 1), texts.blocks)
        self._rates("repeat_rate_texts", equal, pairs, texts.blocks)
        self._rates("repeat_rate_in_sentence_texts", both, same, texts.blocks)
        self._rates("same_sentence_rate_texts", same, pairs, texts.blocks)
        self._rates("dominant_share_texts", count, pairs, texts.blocks)
        some = pairs > 0
        share = torch.where(some, count.double() / pairs.clamp(min=1), 0)
        self._by_block("dominant_share_sum", share.transpose(0, 1), texts.blocks)
        self._by_block("texts_with_pairs", some.long().transpose(0, 1), texts.blocks)
        self._add_distinct(held, some, places)
        self._add_maps(held)
        self._add_attention(held)
        if len(texts.chosen):
            self._add_sample(held, pairs)
        self.attended.append((attended, blocks))
        if sum(tokens.size for tokens, _ in self.attended) > ATTENDED:
            self._settle()

    def tally(self) -> Tally:
        self._settle()
        arrays = {name: tensor.cpu().numpy() for name, tensor in self.tensors.items()}
        if "similarity" in arrays:  # only what is above the diagonal was added
            arrays["similarity"] = arrays["similarity"] + arrays["similarity"].swapaxes(1, 2)
        return Tally(self.counting.shape, arrays, dict(self.most_attended.most_attended))

    # -- parts of a batch ---------------------------------------------------------------------------------------------

    def _add_texts(self, held: Held) -> None:
        texts = held.texts
        ones = torch.ones_like(texts.blocks)
        self._by_block("texts", ones, texts.blocks)
        self._by_block("sample_texts", ones[texts.chosen], texts.blocks[texts.chosen])
        lengths = texts.lengths.long()
        tokens = self.tensors["window_tokens"]
        tokens.view(-1).index_add_(0, texts.blocks * tokens.shape[1] + lengths, ones)
        self._by_block("all_pairs", lengths * (lengths - 1) // 2, texts.blocks)
        # Each pair has two bits.
        for name, bits in (("equal", texts.equal), ("same", texts.same), ("equal_same", texts.equal & texts.same)):
            self._by_block(f"all_{name}", _ones(bits).sum((1, 2)) // 2, texts.blocks)
        self._by_block("attention_spread", texts.spread, texts.blocks)

    def _add_distinct(self, held: Held, some: Tensor, places: Tensor) -> None:
        layers, _, heads = some.shape
        ids = held.texts.ids.expand(layers, -1, -1).gather(2, places)
        tokens = torch.where(some, ids, -1).sort(dim=2).values
        new = torch.ones_like(some)
        new[..., 1:] = tokens[..., 1:] != tokens[..., :-1]
        distinct = (new & (tokens >= 0)).sum(2)
        target = self.tensors["distinct_dominants"]
        layer = torch.arange(layers, device=self.device)[:, None]
        index = (held.texts.blocks[None, :] * layers + layer) * (heads + 1) + distinct
        target.view(-1).index_add_(0, index.flatten(), torch.ones_like(index).flatten())

    def _add_maps(self, held: Held) -> None:
        n = held.texts.length
        distances = held.place_diagonals[..., n:]
        self.tensors["distance"][..., : n - 1] += distances
        self.tensors["distance_sum"] += (distances * torch.arange(1, n, device=self.device)).sum(-1)
        maximum = self.counting.shape.length
        self.tensors["attention_offset"][..., maximum - n : maximum + n - 1] += held.map_diagonals
        if held.location is not None and held.attention is not None:
            self.tensors["location"][..., :n, :n] += held.location
            self.tensors["attention"][..., :n, :n] += held.attention

    def _add_attention(self, held: Held) -> None:
        texts = held.texts
        layers = len(held.received)
        receivers = self.tensors["attention_received"].shape[-1]
        sums = torch.zeros((layers, texts.count, receivers), dtype=torch.float64, device=self.device)
        sums.scatter_add_(2, texts.kinds.expand(layers, -1, -1), held.received)
        # What all keys get from themselves and from their neighbours is on the diagonals; marked keys count apart.
        n, diagonals = texts.length, held.map_diagonals.sum(2)
        of_blocks = torch.stack([diagonals[..., n - 1], diagonals[..., n - 2] + diagonals[..., n]], -1)
        beside = of_blocks.index_add_(0, texts.blocks, held.beside.transpose(0, 1).contiguous(), alpha=-1)
        target = self.tensors["attention_received"]
        target[..., ITSELF] += beside[..., 0]
        target[..., NEIGHBOUR] += beside[..., 1]
        target[..., REST] -= beside.sum(-1)
        self._by_block("attention_received", sums.transpose(0, 1), texts.blocks)

    def _add_sample(self, held: Held, pairs: Tensor) -> None:
        texts, shape, output = held.texts, self.counting.shape, held.kept
        assert output is not None
        layers, chosen, n, heads, width = output.shape
        blocks, lengths = texts.blocks[texts.chosen], texts.lengths[texts.chosen]
        histogram = torch.zeros((layers, chosen, heads, 256), dtype=torch.int32, device=self.device)
        edges = torch.zeros((layers, chosen, heads), dtype=torch.int32, device=self.device)
        summed = torch.zeros((layers, n, n) if shape.maps else (1,), dtype=torch.float64, device=self.device)
        precision = "tf32x3" if output.dtype == torch.float32 else "ieee"
        tile = side(texts.tile, narrowing(width, output.dtype, self.device))
        tiles = -(-n // tile)
        see_values[(layers * chosen, tiles**2)](
            output, held.largest[:, texts.chosen].contiguous(), lengths, layers, histogram, edges, summed, chosen,
            heads, n, width, power_of_two(width, LEAST), WIDE=at_once(width, output.dtype), TILE=tile, TILES=tiles,
            BINS=VALUE_BINS, NEAR=NEAR, MAPS=shape.maps, PRECISION=precision, num_warps=8 if tile > 64 else 4,
        )  # fmt: skip
        self._by_block("value_histogram", histogram[..., :VALUE_BINS].transpose(0, 1).long(), blocks)
        self._by_block("near_bin_edge", edges.transpose(0, 1).long(), blocks)
        own = pairs[:, texts.chosen]
        some = own > 0
        drawn = texts.chance.expand(layers, -1, -1).gather(2, own).double() / own.clamp(min=1)
        self._by_block("shuffled_share_sum", torch.where(some, drawn, 0).transpose(0, 1), blocks)
        self._by_block("shuffled_share_texts", some.long().transpose(0, 1), blocks)
        received = held.received[:, texts.chosen]
        self._add_signal(held, output, received, blocks)
        if not shape.maps:
            return
        self.tensors["similarity"][:, :n, :n] += summed
        lines = received > self.counting.tau * received.amax(2, keepdim=True)
        places = torch.arange(n, device=self.device)
        real = places < lengths[:, None]
        seen = held.summed_maps.masked_fill(lines[:, :, None, :] | ~(real[:, :, None] & real[:, None, :]), 0)
        without = seen.sum(1, dtype=torch.float64)
        self.tensors["attention_without_lines"][:, :n, :n] += without
        without.diagonal(dim1=1, dim2=2).zero_()
        self.tensors["attention_without_lines_and_diagonal"][:, :n, :n] += without

    def _add_signal(self, held: Held, output: Tensor, received: Tensor, blocks: Tensor) -> None:
        structure = held.texts.structure
        assert structure is not None
        for name, values in structure.of_texts.items():
            self._by_block(name, values, blocks)
        layers, chosen = output.shape[:2]
        largest = held.largest[:, held.texts.chosen]
        step = max(1, AT_ONCE // output[0].numel())
        for start in range(0, layers, step):
            some = slice(start, min(start + step, layers))
            count = some.stop - start
            made = measure(
                structure.repeated(count), output[some].flatten(0, 1), received[some].flatten(0, 1),
                self.counting.theta, self.counting.tau, by_kernel(largest[some].flatten(0, 1).contiguous()),
            )  # fmt: skip
            for name, values in made.items():
                target = self.tensors[name][:, some]
                each = values.view(count, chosen, *values.shape[1:]).transpose(0, 1)
                target.index_add_(0, blocks, each.to(target.dtype))

    def _settle(self) -> None:
        """Count the most attended tokens that are waiting."""
        if not self.attended:
            return
        layers = self.counting.shape.layers
        tokens = np.concatenate([held.T for held, _ in self.attended])  # (text, layer)
        blocks = np.concatenate([held for _, held in self.attended])
        values, places = np.unique(tokens, return_inverse=True)
        counts = np.zeros((len(values), BLOCKS, layers), np.int64)
        np.add.at(counts, (places.reshape(tokens.shape), blocks[:, None], np.arange(layers)[None, :]), 1)
        for token, each in zip(values.tolist(), counts, strict=True):
            self.most_attended.attend(token, each)
        self.attended.clear()

    # -- adding -------------------------------------------------------------------------------------------------------

    def _by_block(self, name: str, values: Tensor, blocks: Tensor) -> None:
        """Add one value (or array of values) per text to the block of that text."""
        target = self.tensors[name]
        target.index_add_(0, blocks, values.to(target.dtype).contiguous())

    def _rates(self, name: str, part: Tensor, whole: Tensor, blocks: Tensor) -> None:
        """Count each text's own rate (layer, text, head), where it has one, into its bin; in integers."""
        layers, _, heads = part.shape
        bins = torch.div(RATE_BINS * part, whole.clamp(min=1), rounding_mode="floor").clamp(max=RATE_BINS - 1)
        layer = torch.arange(layers, device=self.device)[:, None, None]
        head = torch.arange(heads, device=self.device)[None, None, :]
        index = ((blocks[None, :, None] * layers + layer) * heads + head) * RATE_BINS + bins
        self.tensors[name].view(-1).index_add_(0, index.flatten(), (whole > 0).long().flatten())


def _ones(word: Tensor) -> Tensor:
    """How many bits of each word are set."""
    # Shifts bring ones in from the left, where the sign was; the masks take them out again.
    word = word - ((word >> 1) & 0x55555555)
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    word = (word + (word >> 4)) & 0x0F0F0F0F
    return (word * 0x01010101 >> 24) & 0xFF


def _type(quantity: Quantity) -> torch.dtype:
    return torch.float64 if quantity.real else torch.int64
