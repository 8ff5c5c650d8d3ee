"""The tallier of the compiled loops, and what it takes from the texts of a batch before any model runs."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from headscope.corpus.windows import BLOCKS, Batch
from headscope.model.capture.plain import Question
from headscope.tally import signal
from headscope.tally.compiled.attention import add_attention, add_heads
from headscope.tally.compiled.bits import WORD, equals, ones
from headscope.tally.compiled.compiling import compiled
from headscope.tally.compiled.high import MOST
from headscope.tally.compiled.pairs import add_pairs
from headscope.tally.compiled.signal import GROUPINGS, add_distances, add_similarities, find_explained, find_groups
from headscope.tally.compiled.softmax import soften
from headscope.tally.quantities import KINDS, QUANTITIES
from headscope.tally.tally import Counting, Tally
from headscope.tally.text_structure import ITSELF, NEIGHBOUR, REST, key_kinds, pair_order, spread

Array = np.ndarray[Any, Any]

CACHED = 1 << 19
"""elements of similarities or maps at a time, 2 MB: what is computed of them is then still in the cache"""
OF_PAIRS = tuple(
    q.name
    for q in QUANTITIES
    if q.dims[:2] == ("layer", "head")
    and q.in_blocks
    and not q.name.startswith("attention")
    and q.name not in signal.NAMES
)
"""the quantities that `add_pairs` fills"""
Sums = namedtuple("Sums", [*OF_PAIRS, "similarity"])  # type: ignore[misc]
make_sums: Any = Sums


# numba's caches hold this class by its module: whoever moves it renames the functions that take it (`add_pairs`,
# `_add_head`, `add_attention`), or caches of older versions can no longer be read.
class Texts(NamedTuple):
    """What belongs to the texts of a batch, as the compiled loops want it: one entry for each text."""

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
        """Add what the texts amount to without any model."""
        np.add.at(tally["texts"], self.blocks, 1)
        np.add.at(tally["sample_texts"], self.blocks, self.sampled)
        np.add.at(tally["window_tokens"], (self.blocks, self.lengths), 1)
        counts = np.zeros((len(self.blocks), 4), np.int64)
        _count(self.lengths, self.equal, self.same, counts)
        for k, name in enumerate(("all_pairs", "all_equal", "all_same", "all_equal_same")):
            np.add.at(tally[name], self.blocks, counts[:, k])
        np.add.at(tally["attention_spread"], self.blocks, spread(self.kinds, self.lengths, causal=causal))


class SignalLoops:
    """`signal.in_torch` in compiled loops, for texts whose structure is looked at once for all layers."""

    def __init__(self, structure: signal.Structure) -> None:
        texts, n = structure.ids.shape
        self.lengths: list[int] = structure.real.sum(1).tolist()
        self.about = [each.numpy() for each in (structure.ids, structure.sentence, structure.order)]
        self.explained = np.zeros((texts, 2, n, -(-n // WORD)), np.uint64)
        self.groups = np.zeros((texts, len(GROUPINGS), n), np.int64)
        for text, m in enumerate(self.lengths):
            ids, sentence, order = (each[text] for each in self.about)
            find_explained(m, ids, sentence, order, self.explained[text])
            find_groups(m, ids, sentence, self.groups[text])

    def __call__(
        self, structure: signal.Structure, output: torch.Tensor, mean: torch.Tensor, blocks: torch.Tensor, theta: float
    ) -> signal.Raw:
        texts, n, heads, _ = output.shape
        apart, high = np.zeros((texts, heads, 2, len(KINDS) + 2)), np.zeros((texts, heads, 3), np.int64)
        energy, means, cut = np.zeros((texts, heads, 3)), mean.numpy(), blocks.numpy()
        matrix = output.new_empty((heads, n, n))
        whole = matrix.view(torch.int32 if matrix.dtype == torch.float32 else torch.int64).numpy()
        for text, m in enumerate(self.lengths):
            written = output[text].transpose(0, 1)  # one text at a time: what is made of it stays in the cache
            torch.bmm(written, written.transpose(1, 2), out=matrix)
            about = [each[text] for each in self.about]
            add_distances(written.numpy(), means[text], m, self.groups[text], *about, apart[text])
            explained = self.explained[text]
            add_similarities(matrix.numpy(), whole, m, explained, cut[:, text], theta, high[text], energy[text])
        return signal.Raw(torch.from_numpy(np.maximum(apart, 0)), torch.from_numpy(high), torch.from_numpy(energy))


class CompiledTallier:
    """One head of one text at a time, in one thread; several threads may have a tallier each.

    Args:
        ended: Sums of the batches that ended, if other talliers add to them too.
    """

    def __init__(self, counting: Counting, device: torch.device | str = "cpu", ended: Tally | None = None) -> None:
        if torch.device(device).type != "cpu":
            raise ValueError(f"compiled loops run on the CPU, not on {device}")
        self.counting = counting
        self.ended = ended or Tally.zeros(counting.shape)
        self.tally = Tally.zeros(counting.shape)
        self.clean = True
        self.shown = 0

    def make_peer(self) -> CompiledTallier:
        """Return a tallier for another thread whose batches count in the same sums. Only one may end at a time."""
        return type(self)(self.counting, ended=self.ended)

    def begin(self, batch: Batch) -> None:
        if not self.clean:
            self.tally = Tally.zeros(self.counting.shape)
        self.clean = False
        self.ids = batch.ids
        self.texts = Texts.of(batch, self.counting.fraction)
        self.texts.add_to(self.tally, causal=self.counting.causal)
        self.structure = signal.Structure.of(batch, self.counting.fraction, "cpu")
        self.add_up = None if self.structure is None else SignalLoops(self.structure)
        if self.structure is not None:
            blocks = self.texts.blocks[self.structure.rows]
            for name, values in self.structure.of_texts.items():
                np.add.at(self.tally[name], blocks, values.numpy())

    def see(self, layer: int, output: torch.Tensor, attention: torch.Tensor) -> None:
        self.shown += 1
        seen = _Layer(self, layer)
        for part in seen.parts():
            seen.add(part, _wide(output[part]).transpose(1, 2), _wide(attention[part]).contiguous())
        seen.finish()

    def attend(self, layer: int, question: Question) -> torch.Tensor | None:
        """Some texts at a time, so that no map is ever written to memory."""
        if question.query.dtype not in (torch.float32, torch.float64):
            return None
        seen = _Layer(self, layer)
        count, heads, n, _ = question.query.shape
        output = question.query.new_empty((count, n, heads, question.value.shape[3]))
        maps = question.query.new_empty((seen.step, heads, n, n))
        written = question.query.new_empty((seen.step, heads, n, question.value.shape[3]))
        for part in seen.parts():
            texts = range(part.start, part.stop)
            # One text at a time: its heads are views into what the model made, and nothing has to be copied.
            for text, scores, made in zip(texts, maps, written, strict=False):
                query, key, value = question.query[text], question.key[text], question.value[text]
                if question.group > 1:
                    key, value = (each.repeat_interleave(question.group, 0) for each in (key, value))
                torch.bmm(query, key.transpose(1, 2), out=scores)
                _soften(scores, question, text, int(self.texts.lengths[text]))
                torch.bmm(scores, value, out=made)
                output[text] = made.transpose(0, 1)
            seen.add(part, written[: len(texts)], maps[: len(texts)])
        seen.finish()
        return output

    def end(self) -> None:
        self.ended.take(self.tally)
        self.clean = True

    def total(self) -> Tally:
        """Only what is above the diagonal was counted: the other half of symmetric maps is the same."""
        total = Tally(self.ended.shape, dict(self.ended.arrays), self.ended.most_attended)
        if total.shape.maps:
            for name in ("location", "similarity"):
                total.arrays[name] = total[name] + total[name].swapaxes(-1, -2)
        return total


class _Layer:
    """One layer of a batch, added some texts at a time."""

    def __init__(self, tallier: CompiledTallier, layer: int) -> None:
        self.layer, self.counting, self.tally = layer, tallier.counting, tallier.tally
        self.texts, self.ids = tallier.texts, tallier.ids
        self.structure, self.add_up = tallier.structure, tallier.add_up
        self.kept: list[torch.Tensor] = []
        shape, tally = self.counting.shape, self.tally
        count, n = self.ids.shape
        self.step = min(count, MOST, max(1, CACHED // (shape.heads * n * n)))
        sampled = int(self.texts.sampled.sum()) if shape.maps else 0
        self.summed = np.zeros((shape.heads, shape.length, shape.length) if sampled else (1, 1, 1))
        self.head_sums = np.zeros((sampled, n, n))
        self.chosen = np.cumsum(self.texts.sampled) - 1
        self.sums = make_sums(*(tally[name][:, layer] for name in OF_PAIRS), self.summed)
        words = self.texts.equal.shape[2]
        self.places = np.zeros((shape.heads, n, words * WORD) if shape.maps else (shape.heads, 0, 0), np.uint8)
        self.placed = 0
        """texts whose pairs are in these"""
        self.broken = np.zeros(shape.heads, bool)
        self.maps = tally["attention"][layer] if shape.maps else np.zeros((shape.heads, 0, 0))
        self.dominants = np.full((count, shape.heads), -1)
        self.columns, self.beside = np.zeros((count, shape.heads, n)), np.zeros((count, shape.heads, 3, n))

    def parts(self) -> Iterator[slice]:
        count = len(self.ids)
        for start in range(0, count, self.step):
            yield slice(start, min(start + self.step, count))

    def add(self, part: slice, written: torch.Tensor, maps: torch.Tensor) -> None:
        """Add outputs (text, head, place, width) and maps (text, head, query, key) of some texts."""
        texts, shape, start = self.texts, self.counting.shape, part.start
        count, heads, n, _ = written.shape
        half = -(-n // 2)
        upper, lower = (written.new_empty((count, heads, rows, k)) for rows, k in ((half, n), (n - half, n - half)))
        for made, above, below in zip(written, upper, lower, strict=True):
            torch.bmm(made[:, :half], made.transpose(1, 2), out=above)
            torch.bmm(made[:, half:], made[:, half:].transpose(1, 2), out=below)
        self._make_room(count)
        halves, theta = (upper.numpy(), lower.numpy()), self.counting.theta
        integers = torch.int32 if upper.dtype == torch.float32 else torch.int64
        whole, places = (upper.view(integers).numpy(), lower.view(integers).numpy()), self.places.view(np.uint64)
        add_pairs(halves, whole, start, texts, theta, self.sums, places, self.dominants, self.broken)
        if self.broken.any():
            raise self.counting.not_finite(self.layer, int(self.broken.argmax()))
        attention = maps.numpy()
        offsets = self.tally["attention_offset"][:, self.layer]
        add_attention(attention, start, texts, offsets, self.maps, self.columns, self.beside)
        sampled = np.flatnonzero(texts.sampled[part])
        if len(sampled):
            self.kept.append(written[torch.from_numpy(sampled)])
        if shape.maps:
            for text in sampled:
                place = self.chosen[start + text]
                add_heads(attention[text], texts.lengths[start + text], self.head_sums[place])

    def finish(self) -> None:
        """Add what all heads of the layer have to be known for."""
        shape, texts = self.counting.shape, self.texts
        self._take_places()
        self._add_distinct()
        self._add_received()
        self._add_signal()
        if not (shape.maps and texts.sampled.any()):
            return
        self.tally["similarity"][self.layer] += self.summed.sum(0)
        received, n = self.columns[texts.sampled].sum(1), self.ids.shape[1]
        lines = received > self.counting.tau * received.max(1, keepdims=True)
        without = (self.head_sums * ~lines[:, None, :]).sum(0)
        self.tally["attention_without_lines"][self.layer, :n, :n] += without
        np.fill_diagonal(without, 0.0)
        self.tally["attention_without_lines_and_diagonal"][self.layer, :n, :n] += without

    def _add_signal(self) -> None:
        if self.structure is None:
            return
        columns = torch.from_numpy(self.columns[self.structure.rows].sum(1))
        output = torch.cat(self.kept).transpose(1, 2)
        counting = self.counting
        made = signal.measure(self.structure, output, columns, counting.theta, counting.tau, self.add_up)
        blocks = self.texts.blocks[self.structure.rows]
        for name, values in made.items():
            np.add.at(self.tally[name][:, self.layer], blocks, values.numpy())

    def _make_room(self, texts: int) -> None:
        """Places count in bytes: before there could be too many for one, they are added to the sums."""
        if self.placed + texts > MOST:
            self._take_places()
        self.placed += texts

    def _take_places(self) -> None:
        n = self.places.shape[1]
        if n:
            self.tally["location"][self.layer, :, :n, :n] += self.places[..., :n]
            self.places[:] = 0
        self.placed = 0

    def _add_distinct(self) -> None:
        chosen = np.take_along_axis(self.ids, self.dominants.clip(0), 1)
        tokens = np.sort(np.where(self.dominants < 0, -1, chosen), axis=1)
        new = np.ones_like(tokens, dtype=bool)
        new[:, 1:] = tokens[:, 1:] != tokens[:, :-1]
        counts = self.tally["distinct_dominants"][:, self.layer]
        np.add.at(counts, (self.texts.blocks, (new & (tokens >= 0)).sum(1)), 1)

    def _add_received(self) -> None:
        texts, received, near = self.texts, self.columns.sum(1), self.beside.sum(1)
        plain = texts.kinds == REST
        itself, neighbour = near[:, 1] * plain, (near[:, 0] + near[:, 2]) * plain
        sums = self.tally["attention_received"][:, self.layer]
        rest = np.maximum(received - itself - neighbour, 0.0)  # below 0 by rounding alone
        np.add.at(sums, (texts.blocks[:, None], texts.kinds), rest)
        np.add.at(sums[:, ITSELF], texts.blocks, itself.sum(1))
        np.add.at(sums[:, NEIGHBOUR], texts.blocks, neighbour.sum(1))
        most = np.take_along_axis(texts.keys, received.argmax(1)[:, None], 1)[:, 0]
        for token, block in zip(most.tolist(), texts.blocks.tolist(), strict=True):
            counts = np.zeros((BLOCKS, self.counting.shape.layers), dtype=np.int64)
            counts[block, self.layer] = 1
            self.tally.attend(token, counts)


def _soften(scores: torch.Tensor, question: Question, text: int, length: int) -> None:
    """Turn the scores of a text into its maps, in place."""
    if scores.dtype == torch.float32 and question.scaling > 0:
        soften(scores.numpy(), scores.view(torch.int32).numpy(), question.scaling, length, question.causal)
        return
    scores.mul_(question.scaling)
    if question.mask is not None:
        scores.add_(question.mask[text])
    torch.softmax(scores, -1, out=scores)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


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
