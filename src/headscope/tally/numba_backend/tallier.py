"""The numba tallier, and the arrays that it computes from the texts of a batch before the model runs."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from headscope.corpus.windows import BLOCKS, Batch
from headscope.model.capture.plain_attention import AttentionInputs
from headscope.tally.attention_scores import ScoreTexts, sum_score_texts
from headscope.tally.example_store import COUNTS
from headscope.tally.examples import ExampleTexts
from headscope.tally.numba_backend.attention import add_attention_sums, add_entropies, add_heads, compute_softmax
from headscope.tally.numba_backend.jit import compiled
from headscope.tally.numba_backend.pairs import MAX_BYTE, WORD, add_pair_sums, count_bits, mark_equal
from headscope.tally.numba_backend.scores import (
    DUPLICATE,
    FAR_SINKS,
    INDUCTION,
    SINKS,
    SPECIAL,
    ScorePlaces,
    add_score_sums,
    measure_entropies,
)
from headscope.tally.quantities import ATTENTION_SCORE_QUANTITIES, CLAIM_QUANTITIES, ENTROPY, QUANTITIES
from headscope.tally.sample_sums import SampledLayer, SampleSums, add_sample_sums
from headscope.tally.tally import Tally, TallySettings
from headscope.tally.text_structure import (
    ITSELF,
    NEIGHBOR,
    REST,
    compute_even_spread,
    draw_pair_order,
    find_key_receivers,
    measure_sentences,
)

Array = np.ndarray[Any, Any]

CACHED_ELEMENTS = 1 << 19
"""number of similarities or attention weights computed at a time, 2 MB, so that they are still in the cache when they
are used"""
PAIR_QUANTITIES = tuple(
    q.name
    for q in QUANTITIES
    if q.dims[:2] == ("layer", "head")
    and q.in_blocks
    and not q.name.startswith("attention")
    and q.name != "contrast_sums"
    and q not in (*CLAIM_QUANTITIES, *ATTENTION_SCORE_QUANTITIES)
)
"""the quantities that `add_pair_sums` adds to"""
Sums = namedtuple("Sums", [*PAIR_QUANTITIES, "similarity"])  # type: ignore[misc]
make_sums: Any = Sums


# numba's caches on disk refer to this class and to `Sums` by module and name. If they are moved or renamed, the
# functions that take them (`add_pair_sums`, `_add_head_sums`, `add_attention_sums`) must be renamed too, or numba fails
# to read caches of older versions.
class TextArrays(NamedTuple):
    """What belongs to the texts of a batch, as arrays for the compiled loops: one entry per text."""

    lengths: Array
    blocks: Array
    sampled: Array
    first_positions: Array
    """(text, position): first position of this position's token"""
    equal_bits: Array
    """(text, i, word): bit j says that tokens i < j are equal"""
    same_bits: Array
    """(text, i, word): bit j says that tokens i < j lie in one sentence"""
    random_dominant_counts: Array
    """(text, count): of this many random pairs of a sampled text, how many include the most included token"""
    key_receivers: Array
    """(text, key): receiver that each key is to all queries alike"""
    key_ids: Array
    """(text, key): token ids that attention goes to"""

    @classmethod
    def from_batch(cls, batch: Batch, fraction: float) -> TextArrays:
        windows, (count, longest) = batch.windows, batch.ids.shape
        lengths = np.array([len(window) for window in windows])
        sampled = np.array([window.is_sampled(fraction) for window in windows])
        sentences, key_receivers, key_ids = (np.zeros((count, longest), np.int64) for _ in range(3))
        sentences[batch.real] = np.concatenate([window.sentence for window in windows])
        key_receivers[batch.real] = find_key_receivers(windows)
        key_ids[batch.real] = np.concatenate([window.keys.ids for window in windows])
        words = -(-longest // WORD)
        equal_bits, same_bits = (
            np.zeros((count, longest, words), np.uint64),
            np.zeros((count, longest, words), np.uint64),
        )
        first_positions = np.zeros((count, longest), np.int64)
        _mark_relations(batch.ids, sentences, lengths, first_positions, equal_bits, same_bits)
        random_dominant_counts = np.zeros((count, longest * (longest - 1) // 2 + 1 if sampled.any() else 0), np.int64)
        for text in np.flatnonzero(sampled):
            _count_random_dominants(draw_pair_order(windows[text]), first_positions[text], random_dominant_counts[text])
        blocks = np.array([window.block for window in windows])
        return cls(
            lengths,
            blocks,
            sampled,
            first_positions,
            equal_bits,
            same_bits,
            random_dominant_counts,
            key_receivers,
            key_ids,
        )

    def add_to(self, tally: Tally, *, causal: bool) -> None:
        """Add the sums that need no model."""
        np.add.at(tally["texts"], self.blocks, 1)
        np.add.at(tally["sample_texts"], self.blocks, self.sampled)
        np.add.at(tally["window_tokens"], (self.blocks, self.lengths), 1)
        counts = np.zeros((len(self.blocks), 4), np.int64)
        _count_pairs(self.lengths, self.equal_bits, self.same_bits, counts)
        for k, name in enumerate(("all_pairs", "all_equal", "all_same", "all_equal_same")):
            np.add.at(tally[name], self.blocks, counts[:, k])
        np.add.at(
            tally["attention_spread"], self.blocks, compute_even_spread(self.key_receivers, self.lengths, causal=causal)
        )


class NumbaTallier:
    """Backend that counts one head of one text at a time, in one thread. Several threads may have a tallier each.

    Args:
        ended: Sums of the batches that ended, if other talliers add to them too.
    """

    def __init__(self, counting: TallySettings, device: torch.device | str = "cpu", ended: Tally | None = None) -> None:
        if torch.device(device).type != "cpu":
            raise ValueError(f"compiled loops run on the CPU, not on {device}")
        self.counting = counting
        self.ended = ended or Tally.zeros(counting.shape)
        self.tally = Tally.zeros(counting.shape)
        self.clean = True
        self.layers_shown = 0

    def make_peer(self) -> NumbaTallier:
        """Return a tallier for another thread that adds its batches to the same sums. Only one may end a batch at a
        time."""
        return type(self)(self.counting, ended=self.ended)

    def begin(self, batch: Batch) -> None:
        if not self.clean:
            self.tally = Tally.zeros(self.counting.shape)
        self.clean = False
        self.ids, self.real = batch.ids, torch.from_numpy(batch.real)
        self.texts = TextArrays.from_batch(batch, self.counting.fraction)
        self.texts.add_to(self.tally, causal=self.counting.causal)
        causal = self.counting.causal
        self.places = ScorePlaces(batch, causal=causal)
        score_texts = ScoreTexts.from_batch(batch, "cpu", causal=causal)
        add_sample_sums(self.tally.arrays, sum_score_texts(score_texts, torch.from_numpy(self.texts.blocks)))
        self.sample = SampleSums.from_batch(batch, self.counting, "cpu")
        self.examples = ExampleTexts.from_batch(batch, self.counting, self.ended.examples)
        if self.sample is not None:
            self.sample.add_texts_to(self.tally)
        sizes, numbers = measure_sentences(batch.windows)
        np.add.at(self.tally["sentence_tokens"], (self.texts.blocks[numbers], sizes), 1)

    def observe_layer(self, layer: int, output: torch.Tensor, attention: torch.Tensor) -> None:
        self.layers_shown += 1
        layer_sums = _LayerSums(self, layer)
        for part in layer_sums.iterate_parts():
            layer_sums.add(
                part, _to_full_precision(output[part]).transpose(1, 2), _to_full_precision(attention[part]).contiguous()
            )
        layer_sums.finish()

    def attend(self, layer: int, question: AttentionInputs) -> torch.Tensor | None:
        """Compute attention for a few texts at a time, so that no map is ever written to memory."""
        if question.query.dtype not in (torch.float32, torch.float64):
            return None
        layer_sums = _LayerSums(self, layer)
        count, heads, n, _ = question.query.shape
        output = question.query.new_empty((count, n, heads, question.value.shape[3]))
        maps = question.query.new_empty((layer_sums.step, heads, n, n))
        part_output = question.query.new_empty((layer_sums.step, heads, n, question.value.shape[3]))
        entropies = layer_sums.entropies
        for part in layer_sums.iterate_parts():
            texts = range(part.start, part.stop)
            # One text at a time: its heads are views into the model's tensors, so that nothing has to be copied.
            for text, scores, values in zip(texts, maps, part_output, strict=False):
                query, key, value = question.query[text], question.key[text], question.value[text]
                if question.group > 1:
                    key, value = (tensor.repeat_interleave(question.group, 0) for tensor in (key, value))
                torch.bmm(query, key.transpose(1, 2), out=scores)
                has_entropies = _apply_softmax(scores, question, text, int(self.texts.lengths[text]), entropies[text])
                torch.bmm(scores, value, out=values)
                output[text] = values.transpose(0, 1)
            layer_sums.add(part, part_output[: len(texts)], maps[: len(texts)], has_entropies=has_entropies)
        layer_sums.finish()
        return output

    def end(self) -> None:
        if self.examples is not None:
            self.tally.examples = self.examples.collect()
        self.ended.move_from(self.tally)
        self.clean = True

    def get_sums(self) -> Tally:
        """Return the sums, with the lower triangle of symmetric maps filled in: only the upper one was counted."""
        total = self.ended.replace_arrays(dict(self.ended.arrays))
        if total.shape.maps:
            for name in ("location", "similarity"):
                total.arrays[name] = total[name] + total[name].swapaxes(-1, -2)
        return total


class _LayerSums:
    """Sums of one layer of a batch, to which a few texts are added at a time."""

    def __init__(self, tallier: NumbaTallier, layer: int) -> None:
        self.layer, self.counting, self.tally = layer, tallier.counting, tallier.tally
        self.texts, self.ids, self.real = tallier.texts, tallier.ids, tallier.real
        self.sample, self.examples = tallier.sample, tallier.examples
        self.sampled_outputs: list[torch.Tensor] = []
        self.sampled_maps: list[torch.Tensor] = []
        shape, tally = self.counting.shape, self.tally
        count, n = self.ids.shape
        self.step = min(count, MAX_BYTE, max(1, CACHED_ELEMENTS // (shape.heads * n * n)))
        sampled = int(self.texts.sampled.sum()) if shape.maps else 0
        self.similarity_sums = np.zeros((shape.heads, shape.length, shape.length) if sampled else (1, 1, 1))
        self.head_map_sums = np.zeros((sampled, n, n))
        self.sample_index = np.cumsum(self.texts.sampled) - 1
        self.sums = make_sums(*(tally[name][:, layer] for name in PAIR_QUANTITIES), self.similarity_sums)
        words = self.texts.equal_bits.shape[2]
        self.position_counts = np.zeros((shape.heads, n, words * WORD) if shape.maps else (shape.heads, 0, 0), np.uint8)
        self.position_texts = 0
        """number of texts whose pairs are in `position_counts`"""
        self.nonfinite = np.zeros(shape.heads, bool)
        self.maps = tally["attention"][layer] if shape.maps else np.zeros((shape.heads, 0, 0))
        self.dominants = np.full((count, shape.heads), -1)
        self.head_counts = np.zeros((count, shape.heads, len(COUNTS)), np.int64)
        self.received, self.near_attention = np.zeros((count, shape.heads, n)), np.zeros((count, shape.heads, 3, n))
        self.places, self.score_sums = tallier.places, np.zeros((FAR_SINKS + 1, count, shape.heads))
        self.entropies = np.zeros((count, shape.heads))
        """relative entropies of maps, added up over queries (text, head)"""

    def iterate_parts(self) -> Iterator[slice]:
        count = len(self.ids)
        for start in range(0, count, self.step):
            yield slice(start, min(start + self.step, count))

    def add(self, part: slice, output: torch.Tensor, maps: torch.Tensor, *, has_entropies: bool = False) -> None:
        """Add outputs (text, head, position, width) and maps (text, head, query, key) of some texts.

        `has_entropies`: the entropies of these maps are set already.
        """
        texts, shape, start = self.texts, self.counting.shape, part.start
        if self.counting.output_map is not None:
            mapped = self.counting.output_map.apply(self.layer, output.transpose(1, 2), self.real[part])
            output = mapped.transpose(1, 2)
        count, heads, n, _ = output.shape
        half = -(-n // 2)
        upper, lower = (output.new_empty((count, heads, rows, k)) for rows, k in ((half, n), (n - half, n - half)))
        for vectors, upper_part, lower_part in zip(output, upper, lower, strict=True):
            torch.bmm(vectors[:, :half], vectors.transpose(1, 2), out=upper_part)
            torch.bmm(vectors[:, half:], vectors[:, half:].transpose(1, 2), out=lower_part)
        self._make_room_for_positions(count)
        halves, theta = (upper.numpy(), lower.numpy()), self.counting.theta
        integers = torch.int32 if upper.dtype == torch.float32 else torch.int64
        int_halves, position_counts = (
            (upper.view(integers).numpy(), lower.view(integers).numpy()),
            self.position_counts.view(np.uint64),
        )
        add_pair_sums(
            halves, int_halves, start, texts, theta, self.sums, position_counts, self.dominants, self.nonfinite,
            self.head_counts,
        )  # fmt: skip
        if self.nonfinite.any():
            raise self.counting.make_nonfinite_error(self.layer, int(self.nonfinite.argmax()))
        attention = maps.numpy()
        offsets = self.tally["attention_offset"][:, self.layer]
        add_attention_sums(attention, start, texts, offsets, self.maps, self.received, self.near_attention)
        self._add_scores(maps, start, has_entropies=has_entropies)
        sampled = np.flatnonzero(texts.sampled[part])
        if len(sampled):
            self.sampled_outputs.append(output[torch.from_numpy(sampled)])
            if self.sample is not None and self.sample.labelled is not None:
                self.sampled_maps.append(maps[torch.from_numpy(sampled)])
        if shape.maps:
            for text in sampled:
                index = self.sample_index[start + text]
                add_heads(attention[text], texts.lengths[start + text], self.head_map_sums[index])

    def finish(self) -> None:
        """Add the sums that need all heads of the layer."""
        shape, texts = self.counting.shape, self.texts
        self._flush_positions()
        self._add_distinct()
        self._add_received()
        self._finish_scores()
        self._add_sample_sums()
        if not (shape.maps and texts.sampled.any()):
            return
        self.tally["similarity"][self.layer] += self.similarity_sums.sum(0)
        received, n = self.received[texts.sampled].sum(1), self.ids.shape[1]
        lines = received > self.counting.tau * received.max(1, keepdims=True)
        without = (self.head_map_sums * ~lines[:, None, :]).sum(0)
        self.tally["attention_without_lines"][self.layer, :n, :n] += without
        np.fill_diagonal(without, 0.0)
        self.tally["attention_without_lines_and_diagonal"][self.layer, :n, :n] += without

    def _add_scores(self, maps: torch.Tensor, start: int, *, has_entropies: bool) -> None:
        """Set what the attention scores of these maps (text, head, query, key) are made of."""
        places, lengths, causal = self.places, self.texts.lengths, self.counting.causal
        flat_maps = maps.flatten(2).numpy()
        n = maps.shape[3]
        add_score_sums(flat_maps, n, start, lengths, places.edges, places.elements, causal, self.score_sums)
        if has_entropies:
            return
        if maps.dtype == torch.float32:
            integers = maps.view(torch.int32).numpy()
            measure_entropies(maps.numpy(), integers, start, lengths, causal, self.entropies)
            return
        for row, text_maps in enumerate(maps):
            n = lengths[start + row]
            bits = torch.special.entr(text_maps[:, :n, :n]).sum(-1).numpy() / np.log(2)
            self.entropies[start + row] = [add_entropies(head_bits, n, causal) for head_bits in bits]

    def _finish_scores(self) -> None:
        """Add the attention scores of all texts to their blocks."""
        itself, places, sums = self.near_attention[:, :, 1], self.places, self.score_sums
        to_special = np.einsum("thk,tk->th", self.received, places.special)
        to_others = self.received if places.crosses else self.received - itself
        scores = {
            "attends_first": self.received[:, :, 0] - itself[:, :, 0],
            "attends_special": to_special - sums[SPECIAL],
            "attends_punctuation": np.einsum("thk,tk->th", to_others, places.punctuation),
            "attends_duplicate": sums[DUPLICATE],
            "attends_induction": sums[INDUCTION],
            "attends_sink": sums[SINKS],
            "far_sink": sums[FAR_SINKS],
            ENTROPY: self.entropies,
        }
        for name, values in scores.items():
            np.add.at(self.tally[f"{name}_sum"][:, self.layer], self.texts.blocks, values)

    def _add_sample_sums(self) -> None:
        if self.sample is None:
            return
        sampled = self.texts.sampled
        output = torch.cat(self.sampled_outputs).transpose(1, 2)
        columns = torch.from_numpy(self.received[sampled])
        itself = torch.from_numpy(self.near_attention[sampled, :, 1].sum(1))
        maps = torch.cat(self.sampled_maps) if self.sampled_maps else None
        self.sample.add_layer_to(self.tally, SampledLayer(output, columns, itself, maps), self.layer)
        if self.layer == self.counting.shape.layers - 1:  # not when the batch ends: then other threads wait
            add_sample_sums(self.tally.arrays, self.sample.finish())
        if self.examples is not None:
            self.examples.observe_layer(self.layer, output, self.head_counts[sampled])

    def _make_room_for_positions(self, texts: int) -> None:
        """Add the positions to the sums before there could be too many for a byte."""
        if self.position_texts + texts > MAX_BYTE:
            self._flush_positions()
        self.position_texts += texts

    def _flush_positions(self) -> None:
        n = self.position_counts.shape[1]
        if n:
            self.tally["location"][self.layer, :, :n, :n] += self.position_counts[..., :n]
            self.position_counts[:] = 0
        self.position_texts = 0

    def _add_distinct(self) -> None:
        dominants = np.take_along_axis(self.ids, self.dominants.clip(0), 1)
        tokens = np.where(self.dominants < 0, -1, dominants)
        self.tally.dominant_tokens.add_layer(self.layer, tokens)
        tokens = np.sort(tokens, axis=1)
        new = np.ones_like(tokens, dtype=bool)
        new[:, 1:] = tokens[:, 1:] != tokens[:, :-1]
        counts = self.tally["distinct_dominants"][:, self.layer]
        np.add.at(counts, (self.texts.blocks, (new & (tokens >= 0)).sum(1)), 1)

    def _add_received(self) -> None:
        texts, received, near_attention = self.texts, self.received.sum(1), self.near_attention.sum(1)
        is_rest = texts.key_receivers == REST
        itself, neighbor = near_attention[:, 1] * is_rest, (near_attention[:, 0] + near_attention[:, 2]) * is_rest
        sums = self.tally["attention_received"][:, self.layer]
        rest = np.maximum(received - itself - neighbor, 0.0)  # negative only by rounding
        np.add.at(sums, (texts.blocks[:, None], texts.key_receivers), rest)
        np.add.at(sums[:, ITSELF], texts.blocks, itself.sum(1))
        np.add.at(sums[:, NEIGHBOR], texts.blocks, neighbor.sum(1))
        most_attended = np.take_along_axis(texts.key_ids, received.argmax(1)[:, None], 1)[:, 0]
        for token, block in zip(most_attended.tolist(), texts.blocks.tolist(), strict=True):
            counts = np.zeros((BLOCKS, self.counting.shape.layers), dtype=np.int64)
            counts[block, self.layer] = 1
            self.tally.attend(token, counts)


def _apply_softmax(scores: torch.Tensor, question: AttentionInputs, text: int, length: int, entropies: Array) -> bool:
    """Turn the scores of a text into attention maps, in place; return whether the entropies (head,) were set."""
    if scores.dtype == torch.float32 and question.scaling > 0:
        integers = scores.view(torch.int32).numpy()
        compute_softmax(scores.numpy(), integers, question.scaling, length, question.causal, entropies)
        return True
    scores.mul_(question.scaling)
    if question.mask is not None:
        scores.add_(question.mask[text])
    torch.softmax(scores, -1, out=scores)
    return False


def _to_full_precision(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


@compiled()
def _mark_relations(
    ids: Any, sentences: Any, lengths: Any, first_positions: Any, equal_bits: Any, same_bits: Any
) -> None:
    for text in range(len(lengths)):
        n = lengths[text]
        mark_equal(ids[text], n, equal_bits[text])
        mark_equal(sentences[text], n, same_bits[text])
        first_positions[text] = -1
        for i in range(n):
            if first_positions[text, i] < 0:
                for j in range(i, n):
                    if ids[text, j] == ids[text, i]:
                        first_positions[text, j] = i


@compiled()
def _count_pairs(lengths: Any, equal_bits: Any, same_bits: Any, counts: Any) -> None:
    for text in range(len(lengths)):
        n = lengths[text]
        counts[text, 0] = n * (n - 1) // 2
        for i in range(n):
            for w in range(equal_bits.shape[2]):
                counts[text, 1] += count_bits(equal_bits[text, i, w])
                counts[text, 2] += count_bits(same_bits[text, i, w])
                counts[text, 3] += count_bits(equal_bits[text, i, w] & same_bits[text, i, w])


@compiled()
def _count_random_dominants(pairs: Any, first_positions: Any, counts: Any) -> None:
    """Set for the first 0, 1, 2, … pairs in random order how many include the token that the most of them include."""
    inclusions = np.zeros(len(first_positions), np.int64)
    for k in range(len(pairs)):
        first, second = first_positions[pairs[k, 0]], first_positions[pairs[k, 1]]
        inclusions[first] += 1
        inclusions[second] += second != first
        counts[k + 1] = max(counts[k], inclusions[first], inclusions[second])
