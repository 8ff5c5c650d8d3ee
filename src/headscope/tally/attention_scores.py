"""Attention scores (METHOD §7): what belongs to the texts alone, for all fast backends.

A score has for each query i a set T of keys that it may look at. The queries that count, and what evenly spread
attention would give them, follow from the texts. Only the numbers |T| of each query are computed, not the sets, so that
it costs little for windows of any length. `reference.py` defines the sets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headscope.array_types import Ints
from headscope.corpus.windows import BLOCKS, Batch
from headscope.tally.quantities import BY_NAME, CROSS_SCORES, ENTROPY, FIRST_DISTANT, RECENT, SCORES, SINK

SPECIAL_MARK, PUNCTUATION_MARK = 1, 2
"""bits of the marks of a key"""


def make_score_arrays(batch: Batch) -> tuple[Ints, np.ndarray[Any, np.dtype[np.int8]]]:
    """Return the token ids of queries, −1 for special tokens and padding, and the marks of keys (text, position)."""
    windows, real_keys = batch.windows, batch.real_keys
    special, marks = np.ones(batch.ids.shape, dtype=bool), np.zeros(batch.ids.shape, dtype=np.int8)
    special[batch.real] = np.concatenate([window.special for window in windows])
    key_marks = [window.keys.special * SPECIAL_MARK + window.keys.punctuation * PUNCTUATION_MARK for window in windows]
    marks[real_keys] = np.concatenate(key_marks)
    return np.where(special, -1, batch.ids).astype(np.int32), marks


@dataclass(frozen=True, eq=False)
class ScoreTexts:
    """The tokens of a batch as scores need them: B texts, N positions. Padding is in no mask."""

    ids: Tensor
    """token ids of queries (B, N), −1 for special tokens and padding"""
    real: Tensor
    """queries that are tokens"""
    special_keys: Tensor
    punctuation: Tensor
    """keys without letters or digits"""
    key_counts: Tensor
    """number of keys of each text (B,)"""
    causal: bool
    crosses: bool
    """keys are the tokens of another text"""

    @classmethod
    def from_batch(cls, batch: Batch, device: torch.device | str, *, causal: bool) -> ScoreTexts:
        """Return the tokens of a batch."""
        ids, marks = (torch.from_numpy(array).to(device) for array in make_score_arrays(batch))
        lengths = torch.tensor([len(window) for window in batch.windows], device=device)
        counts = torch.tensor([len(window.keys) for window in batch.windows], device=device)
        return cls.from_tensors(ids, marks, lengths, counts, causal=causal, crosses=batch.windows[0].crosses)

    @classmethod
    def from_tensors(
        cls, ids: Tensor, marks: Tensor, lengths: Tensor, key_counts: Tensor, *, causal: bool, crosses: bool
    ) -> ScoreTexts:
        """Return the tokens of a batch, given what `make_score_arrays` returns and the numbers of queries and keys."""
        real = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
        special, punctuation = (marks & SPECIAL_MARK) > 0, (marks & PUNCTUATION_MARK) > 0
        return cls(ids.long(), real, special, punctuation, key_counts.long(), causal, crosses)

    def sum_texts(self) -> dict[str, Tensor]:
        """Return for each text how many queries count, and the sums of evenly spread attention, by quantity (B,)."""
        positions = torch.arange(self.ids.shape[1], device=self.ids.device)
        counted = self.ids >= 0
        earlier, total = self._rank_equal()
        if self.causal:
            reached = (positions + 1).expand_as(self.ids)
            specials = self.special_keys.cumsum(1)
            others = self.punctuation.cumsum(1) - self.punctuation.long()
            equal, distance, first_distant = earlier, positions / 2, FIRST_DISTANT
        else:
            reached = self.key_counts[:, None].expand_as(self.ids)
            specials = self.special_keys.sum(1, keepdim=True).expand_as(self.ids)
            others = self.punctuation.sum(1, keepdim=True) - (0 if self.crosses else self.punctuation.long())
            equal, first_distant = total - 1, self.ids.shape[1]
            # Σ |i − j| over all keys: those before, and those after the query.
            after = (reached - 1 - positions).clamp(min=0)
            distance = (positions * (positions + 1) + after * (after + 1)) / 2 / reached
        repeated = torch.zeros_like(earlier)  # the token before is equal, so that what followed it is the query itself
        repeated[:, 1:] = (self.ids[:, 1:] == self.ids[:, :-1]).long()
        followed = (earlier - repeated).clamp(min=0)
        ones = torch.ones_like(self.ids)
        is_distant = self.real & (positions >= first_distant)
        distant = (positions - FIRST_DISTANT + 1).clamp(min=0)
        later = self.real & (positions < self.key_counts[:, None] - 1) & (not self.causal)
        # For each score: the queries that count, and what each gets from keys of equal shares, times their number.
        targets = {
            "attends_previous": (self.real & (positions >= 1), ones),
            "attends_next": (later, ones),
            "attends_self": (self.real, ones),
            "attends_first": (self.real & (positions >= 1), ones),
            "attends_special": (counted, specials),
            "attends_punctuation": (self.real & (others > 0), others),
            "attends_duplicate": (counted & (equal > 0), equal),
            "attends_induction": (counted & (followed > 0), followed),
            ENTROPY: (self.real & (reached > 1), ones),
            "attention_distance": (self.real, distance * reached),
            "attends_sink": (is_distant, ones * SINK),
            "attends_recent": (is_distant, reached - SINK - distant),
            "attends_distant": (is_distant, distant),
        }
        sums: dict[str, Tensor] = {}
        for name in SCORES:
            queries, numbers = targets[name]
            if self.crosses and name not in CROSS_SCORES:
                queries = torch.zeros_like(queries)
            sums[f"{name}_queries"] = queries.sum(1)
            if name != ENTROPY:
                sums[f"{name}_chance_sum"] = torch.where(queries, numbers.double() / reached, 0).sum(1)
        return sums

    def mark_targets(self) -> dict[str, Tensor]:
        """Return for each sum of attention the elements of a map that it adds up, (B, N, N)."""
        positions = torch.arange(self.ids.shape[1], device=self.ids.device)
        query, key = positions[:, None], positions
        elements = self.real[:, :, None] & (positions < self.key_counts[:, None])[:, None, :]
        if self.causal:
            elements = elements & (key <= query)
        ids, counted = self.ids[:, :, None], (self.ids >= 0)[:, :, None]
        before = torch.nn.functional.pad(self.ids, (1, 0), value=-1)[:, None, :-1]  # the token before each key
        alone = not self.crosses
        is_sink = (key < SINK) & self.causal
        targets = {
            "attends_first_sum": (key == 0) & (query >= 1),
            "attends_special_sum": counted & self.special_keys[:, None, :],
            "attends_punctuation_sum": self.punctuation[:, None, :] & ((key != query) | self.crosses),
            "attends_duplicate_sum": counted & (ids == self.ids[:, None, :]) & (key != query) & alone,
            "attends_induction_sum": counted & (ids == before) & (key < query) & alone,
            "attends_sink_sum": is_sink & (query >= FIRST_DISTANT),
            "far_sink_sum": is_sink & (query - key >= RECENT),
        }
        return {name: elements & target for name, target in targets.items()}

    def _rank_equal(self) -> tuple[Tensor, Tensor]:
        """Return for each query how many earlier tokens are equal, and how many are in all, itself included."""
        values, order = self.ids.sort(dim=1, stable=True)
        positions = torch.arange(self.ids.shape[1], device=self.ids.device).expand_as(values)
        starts = torch.ones_like(values, dtype=torch.bool)
        starts[:, 1:] = values[:, 1:] != values[:, :-1]
        first = torch.where(starts, positions, 0).cummax(1).values
        earlier = torch.empty_like(values).scatter_(1, order, positions - first)
        groups = starts.long().cumsum(1) - 1
        sizes = torch.zeros_like(values).scatter_add_(1, groups, torch.ones_like(values))
        total = torch.empty_like(values).scatter_(1, order, sizes.gather(1, groups))
        return earlier, total


def sum_entropies(maps: Tensor, texts: ScoreTexts) -> Tensor:
    """Return the relative entropies of all queries of each map (B, H, N, N), added up (B, H); 0 for one key.

    Padding in the maps must be 0.
    """
    entropies = torch.special.entr(maps).sum(-1)
    positions = torch.arange(maps.shape[-1], device=maps.device)
    reached = (positions + 1).expand_as(texts.ids) if texts.causal else texts.key_counts[:, None].expand_as(texts.ids)
    weights = torch.where(texts.real & (reached > 1), 1 / reached.double().log(), 0)
    return torch.einsum("bhi,bi->bh", entropies.double(), weights)


def sum_score_texts(texts: ScoreTexts, blocks: Tensor) -> dict[str, Tensor]:
    """Return the sums over the texts of each block, by quantity; `blocks` are those of the texts."""
    sums = {}
    for name, values in texts.sum_texts().items():
        dtype = torch.float64 if BY_NAME[name].real else torch.int64
        zeros = torch.zeros(BLOCKS, dtype=dtype, device=values.device)
        sums[name] = zeros.index_add_(0, blocks, values.to(dtype))
    return sums
