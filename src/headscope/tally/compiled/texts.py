"""What belongs to the texts of a batch, as the compiled loops want it, and what they add up to without any model."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from headscope.corpus.windows import Batch
from headscope.tally.chance import pair_order
from headscope.tally.compiled.bits import WORD, equals, ones
from headscope.tally.compiled.compiling import compiled
from headscope.tally.receivers import key_kinds, spread
from headscope.tally.tally import Tally

Array = np.ndarray[Any, Any]


class Texts(NamedTuple):
    """One entry for each text."""

    lengths: Array
    blocks: Array
    sampled: Array
    firsts: Array
    """(text, place): where this place's token is first met"""
    equal: Array
    """(text, i, word): bit j says that tokens i < j are equal"""
    same: Array
    """(text, i, word): bit j says that tokens i < j lie in one sentence"""
    chance: Array
    """(text, count): of so many random pairs of a sampled text, how many include the token that the most include"""
    kinds: Array
    """(text, key): what each key is to every query alike"""
    keys: Array
    """(text, key): token ids that attention looks at"""

    @classmethod
    def of(cls, batch: Batch, fraction: float) -> Texts:
        windows, (count, longest) = batch.windows, batch.ids.shape
        lengths = np.array([len(window) for window in windows])
        sampled = np.array([window.sampled(fraction) for window in windows])
        sentences, kinds, keys = (np.zeros((count, longest), np.int64) for _ in range(3))
        sentences[batch.real] = np.concatenate([window.sentence for window in windows])
        kinds[batch.real] = key_kinds(windows)
        keys[batch.real] = np.concatenate([window.keys.ids for window in windows])
        words = -(-longest // WORD)
        equal, same = np.zeros((count, longest, words), np.uint64), np.zeros((count, longest, words), np.uint64)
        firsts = np.zeros((count, longest), np.int64)
        _relate(batch.ids, sentences, lengths, firsts, equal, same)
        chance = np.zeros((count, longest * (longest - 1) // 2 + 1 if sampled.any() else 0), np.int64)
        for text in np.flatnonzero(sampled):
            _draw(pair_order(windows[text]), firsts[text], chance[text])
        blocks = np.array([window.block for window in windows])
        return cls(lengths, blocks, sampled, firsts, equal, same, chance, kinds, keys)

    def add_to(self, tally: Tally, *, causal: bool) -> None:
        np.add.at(tally["texts"], self.blocks, 1)
        np.add.at(tally["sample_texts"], self.blocks, self.sampled)
        np.add.at(tally["window_tokens"], (self.blocks, self.lengths), 1)
        counts = np.zeros((len(self.blocks), 4), np.int64)
        _count(self.lengths, self.equal, self.same, counts)
        for k, name in enumerate(("all_pairs", "all_equal", "all_same", "all_equal_same")):
            np.add.at(tally[name], self.blocks, counts[:, k])
        np.add.at(tally["attention_spread"], self.blocks, spread(self.kinds, self.lengths, causal=causal))


@compiled()
def _relate(ids: Any, sentences: Any, lengths: Any, firsts: Any, equal: Any, same: Any) -> None:
    for text in range(len(lengths)):
        n = lengths[text]
        equals(ids[text], n, equal[text])
        equals(sentences[text], n, same[text])
        firsts[text] = -1
        for i in range(n):
            if firsts[text, i] < 0:
                for j in range(i, n):
                    if ids[text, j] == ids[text, i]:
                        firsts[text, j] = i


@compiled()
def _count(lengths: Any, equal: Any, same: Any, counts: Any) -> None:
    for text in range(len(lengths)):
        n = lengths[text]
        counts[text, 0] = n * (n - 1) // 2
        for i in range(n):
            for w in range(equal.shape[2]):
                counts[text, 1] += ones(equal[text, i, w])
                counts[text, 2] += ones(same[text, i, w])
                counts[text, 3] += ones(equal[text, i, w] & same[text, i, w])


@compiled()
def _draw(order: Any, firsts: Any, chance: Any) -> None:
    """Of the first 0, 1, 2, … pairs in random order, how many include the token that the most of them include."""
    scores = np.zeros(len(firsts), np.int64)
    for k in range(len(order)):
        one, other = firsts[order[k, 0]], firsts[order[k, 1]]
        scores[one] += 1
        scores[other] += other != one
        chance[k + 1] = max(chance[k], scores[one], scores[other])
