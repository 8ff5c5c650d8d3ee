"""What belongs to the texts of a batch, on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headscope.corpus.windows import BLOCKS, Batch
from headscope.devices import send
from headscope.tally.gpu.pairs import relate
from headscope.tally.gpu.tiles import power_of_two
from headscope.tally.signal import Structure
from headscope.tally.text_structure import REST, key_kinds, keys_of_pairs, spread

Array = np.ndarray[Any, Any]

PART = 60
"""Maps are added up over at most so many texts of one block by one program; `pairs.add_places` counts up to 63."""
AT_ONCE = 1 << 27
"""numbers of pairs drawn at random that are held at once: half a gigabyte"""
TILE = 128
"""similarities are computed in tiles of at most so many rows and columns"""


@dataclass(frozen=True, eq=False)
class Texts:
    """One entry for each text of a batch."""

    count: int
    length: int
    """of the longest"""
    whole: bool
    """all are as long"""
    lengths: Tensor
    ids: Tensor
    """(text, place)"""
    keys: Tensor
    """(text, key): token ids that attention looks at"""
    kinds: Tensor
    """(text, key): what each key is to every query alike"""
    marked: Tensor
    """(text, place): the places of keys that are receivers by what they are, then −1"""
    blocks: Tensor
    by_token: Tensor
    """(text, k): places in the order of their tokens, padding last"""
    firsts: Tensor
    """(text, k): the first place of the token that is k-th in that order"""
    equal: Tensor
    """(text, i, word): bit j says that tokens i and j are equal"""
    same: Tensor
    """(text, i, word): bit j says that tokens i and j lie in one sentence"""
    order: Tensor
    """the texts, ordered by block"""
    parts: Tensor
    """edges of parts of that order, each within one block"""
    part_blocks: Tensor
    spread: Tensor
    """(text, receiver)"""
    chosen: Tensor
    """the texts in the sample"""
    chance: Tensor
    """(chosen, count): of so many random pairs, how many include the token that the most include"""
    structure: Structure | None
    """of the texts in the sample"""

    @property
    def tile(self) -> int:
        return _tile(self.length)

    @property
    def tiles(self) -> int:
        return -(-self.length // self.tile)

    @property
    def words(self) -> int:
        return self.tile * self.tiles // 32

    @classmethod
    def of(cls, batch: Batch, fraction: float, device: torch.device, *, causal: bool) -> Texts:
        count, length = batch.ids.shape
        arrays = arrays_of(batch, fraction, causal=causal)
        sent = dict(zip(arrays, send(list(arrays.values()), device), strict=True))
        # Numbers travel narrow; what torch is to take for an index is made wide on the device.
        ids, kinds, blocks, chosen = (sent[name].long() for name in ("ids", "kinds", "blocks", "chosen"))
        lengths = sent["lengths"]
        tile = _tile(length)
        tiles = -(-length // tile)
        equal, same = (torch.empty((count, length, tile * tiles // 32), dtype=torch.int32, device=device) for _ in "ab")
        for values, bits in ((sent["ids"], equal), (sent["sentences"], same)):
            relate[(count, tiles, tiles)](values, lengths, bits, length, tile * tiles // 32, TILE=tile)
        return cls(
            count, length, bool((arrays["lengths"] == length).all()), lengths, ids,
            sent["keys"].long() if "keys" in sent else ids, kinds, sent["marked"], blocks,
            *_by_token(sent["ids"], lengths), equal, same, sent["order"], sent["parts"], sent["part_blocks"].long(),
            sent["spread"], chosen, _chance(sent["random"], ids[chosen]), Structure.of(batch, fraction, device),
        )  # fmt: skip


def arrays_of(batch: Batch, fraction: float, *, causal: bool) -> dict[str, Array]:
    """What the device is sent of a batch, by the names of `Texts`."""
    windows, shape = batch.windows, batch.ids.shape
    lengths = np.array([len(window.ids) for window in windows], np.int32)
    kinds, sentences = np.full(shape, REST, np.int8), np.zeros(shape, np.int32)
    kinds[batch.real] = key_kinds(windows)
    sentences[batch.real] = np.concatenate([window.sentence for window in windows])
    blocks = np.array([window.block for window in windows], np.int32)
    chosen = np.flatnonzero([window.sampled(fraction) for window in windows]).astype(np.int32)
    order, parts, part_blocks = (array.astype(np.int32) for array in _parts(blocks))
    made: dict[str, Array] = {
        "ids": batch.ids.astype(np.int32), "sentences": sentences, "kinds": kinds, "lengths": lengths,
        "marked": _marked(kinds), "blocks": blocks, "order": order, "parts": parts, "part_blocks": part_blocks,
        "chosen": chosen, "spread": spread(kinds, lengths, causal=causal),
        "random": _random_keys(batch, chosen, lengths),
    }  # fmt: skip
    if any(window.crosses for window in windows):
        made["keys"] = np.zeros(shape, np.int32)
        made["keys"][batch.real] = np.concatenate([window.keys.ids for window in windows])
    return made


def _tile(length: int) -> int:
    return min(TILE, power_of_two(length, 32))


def _marked(kinds: Array) -> Array:
    """
    >>> _marked(np.array([[REST, 0, REST, 3]])).tolist()
    [[1, 3, -1, -1]]
    """
    count, length = kinds.shape
    marked = kinds != REST  # no padding is
    rows, places = np.nonzero(marked)
    numbers = marked.sum(1)
    found = np.full((count, length), -1, np.int32)
    found[rows, np.arange(len(rows)) - np.repeat(np.cumsum(numbers) - numbers, numbers)] = places
    return found


def _by_token(ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """
    >>> [found.tolist() for found in _by_token(torch.tensor([[9, 4, 9, 0]]), torch.tensor([3]))]
    [[[1, 0, 2, 3]], [[1, 0, 0, 3]]]
    """
    places = torch.arange(ids.shape[1], device=ids.device)
    padding = places >= lengths[:, None]
    tokens, order = ids.masked_fill(padding, torch.iinfo(ids.dtype).max).sort(dim=1, stable=True)
    new = torch.ones_like(padding)
    new[:, 1:] = tokens[:, 1:] != tokens[:, :-1]
    starts = torch.where(new, places, 0).cummax(1).values
    return order.int(), order.gather(1, starts).int()


def _parts(blocks: Array) -> tuple[Array, Array, Array]:
    """The texts ordered by block, where that order is cut into parts, and the block of each part.

    >>> order, edges, part_blocks = _parts(np.array([7, 3, 7]))
    >>> order.tolist(), edges.tolist(), part_blocks.tolist()
    ([1, 0, 2], [0, 1, 3], [3, 7])
    """
    order = np.argsort(blocks, kind="stable")
    edges, held = [0], []
    for block, size in enumerate(np.bincount(blocks, minlength=BLOCKS).tolist()):
        pieces = -(-size // PART)  # of like size, so that no program is long at work after the others
        held += [block] * pieces
        edges += [start + size * (piece + 1) // pieces for start in edges[-1:] for piece in range(pieces)]
    return order, np.array(edges), np.array(held)


def _random_keys(batch: Batch, chosen: Array, lengths: Array) -> Array:
    """What the pairs of the sampled texts are ordered by (chosen, pair), as signed numbers of the same order.

    Pairs with padding come last, where no count of pairs reaches.
    """
    rows, columns = np.triu_indices(batch.ids.shape[1], k=1)
    digests = np.array([batch.windows[k].digest for k in chosen], np.uint64)[:, None]
    keys = (keys_of_pairs(digests, rows, columns) ^ np.uint64(1 << 63)).view(np.int64)
    keys[columns[None, :] >= lengths[chosen][:, None]] = np.iinfo(np.int64).max
    return keys


def _chance(keys: Tensor, ids: Tensor) -> Tensor:
    """As the loops of `compiled.tallier`, but for all texts at once: how often each token is met, pair after pair."""
    chosen, n = ids.shape
    if not chosen:
        return torch.zeros((0, 1), dtype=torch.int32, device=ids.device)
    order = torch.argsort(keys, dim=1, stable=True)
    firsts = (ids[:, :, None] == ids[:, None, :]).to(torch.int8).argmax(2)
    drawn = order.shape[1] + 1
    made = torch.empty((chosen, drawn), dtype=torch.int32, device=ids.device)
    some = max(1, AT_ONCE // (drawn * n))
    for start in range(0, chosen, some):
        part = slice(start, start + some)
        met = torch.zeros((len(order[part]), n, drawn), dtype=torch.int32, device=ids.device)
        for side in torch.triu_indices(n, n, 1, device=ids.device):
            # Set, not added: a pair of equal tokens includes its token once.
            met[:, :, 1:].scatter_(1, firsts[part].gather(1, side[order[part]])[:, None], 1)
        made[part] = met.cumsum_(2, dtype=torch.int32).amax(1)
    return made
