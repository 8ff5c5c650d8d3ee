"""The tally in plain loops: the definition in code (METHOD §3). Slow, and meant to be read side by side with METHOD.

All other backends are tested against this one.
"""

from __future__ import annotations

import numpy as np
import torch

from headscope import similarity as equations
from headscope.array_types import Bools, Floats, Ints
from headscope.corpus.windows import Batch, Window
from headscope.tally.claim_sums import FLAT
from headscope.tally.quantities import (
    CONTRASTS,
    ENTROPY,
    FIRST_DISTANT,
    HALVES,
    RATE_BINS,
    RECENT,
    SINK,
    SUMMED_SCORES,
    VALUE_BINS,
)
from headscope.tally.signal_shares import mark_places
from headscope.tally.tally import Tally, TallySettings
from headscope.tally.text_structure import draw_position_order, find_receivers, rank_pairs


class ReferenceTallier:
    """Backend that counts one text after the other, one head after the other."""

    def __init__(self, counting: TallySettings) -> None:
        self.counting = counting
        self.ended = Tally.zeros(counting.shape)

    def begin(self, batch: Batch) -> None:
        self.batch = batch
        self.tally = Tally.zeros(self.counting.shape)
        for window in batch.windows:
            self._count_text(window)

    def observe_layer(self, layer: int, output: torch.Tensor, attention: torch.Tensor) -> None:
        for row, window in enumerate(self.batch.windows):
            n, keys = len(window), len(window.keys)
            outputs = output[row, :n].double().cpu().numpy()
            maps = attention[row, :, :n, :keys].double().cpu().numpy()
            dominants = [self._count_head(window, layer, head, outputs[:, head]) for head in range(outputs.shape[1])]
            distinct = len({token for token in dominants if token is not None})
            self.tally["distinct_dominants"][window.block, layer, distinct] += 1
            self._count_attention(window, layer, maps)
            if window.is_sampled(self.counting.fraction):
                self._count_signal(window, layer, outputs)
                self._count_claims(window, layer, outputs, maps)

    def end(self) -> None:
        self.ended = self.ended + self.tally  # a new object, so that an interrupt cannot leave half a batch in it

    def get_sums(self) -> Tally:
        return self.ended

    def _count_text(self, window: Window) -> None:
        """Add what belongs to the text alone: the chance levels."""
        t, block, n = self.tally, window.block, len(window)
        t["texts"][block] += 1
        t["sample_texts"][block] += window.is_sampled(self.counting.fraction)
        t["window_tokens"][block, n] += 1
        starts = [i for i in range(n) if i == 0 or window.sentence[i] != window.sentence[i - 1]]
        for start, stop in zip(starts, [*starts[1:], n], strict=True):
            t["sentence_tokens"][block, stop - start] += 1
        for i in range(n):
            for j in range(i + 1, n):
                equal, same = window.ids[i] == window.ids[j], window.sentence[i] == window.sentence[j]
                t["all_pairs"][block] += 1
                t["all_equal"][block] += equal
                t["all_same"][block] += same
                t["all_equal_same"][block] += equal and same
        if window.is_sampled(self.counting.fraction):
            pairs, marks, weights = compute_contrasts(window)
            t["contrast_products"][block] += weights @ marks.T
            for (i, j), pair_weights in zip(pairs, weights.T, strict=True):
                t["pair_weights"][block, :, i, j] += pair_weights
                t["pair_weights"][block, :, j, i] += pair_weights
            for place in np.flatnonzero(mark_places(window)).tolist():
                t["position_counts"][block % HALVES, place] += 1
        if window.is_sampled(self.counting.fraction):
            words = ~window.keys.special
            t["word_texts"][block] += words.any()
            if words.any():
                t["separator_share"][block] += (window.keys.end | window.keys.comma)[words].mean()
            t["column_texts"][block] += len(window.keys) >= 3
        if "attention_texts" in t.arrays:
            t["attention_texts"][:n, : len(window.keys)] += 1
        kinds = find_receivers(window)
        for i in range(n):
            reached = range(i + 1) if self.counting.causal else range(len(window.keys))
            for j in reached:
                t["attention_spread"][block, kinds[i, j]] += 1 / len(reached)
        for i, reached in enumerate(list_keys(window, causal=self.counting.causal)):
            for name, targets in find_targets(window, i, reached, causal=self.counting.causal).items():
                t[f"{name}_queries"][block] += 1
                t[f"{name}_chance_sum"][block] += len(targets) / len(reached)
            if len(reached) > 1:
                t[f"{ENTROPY}_queries"][block] += 1
            if not window.crosses:
                t["attention_distance_queries"][block] += 1
                t["attention_distance_chance_sum"][block] += sum(abs(i - j) for j in reached) / len(reached)

    def _count_head(self, window: Window, layer: int, head: int, output: Floats) -> int | None:
        """Add everything about one head's similarity matrix; return its dominant token."""
        t, block, at = self.tally, window.block, (window.block, layer, head)
        if not np.isfinite(output).all():
            raise self.counting.make_nonfinite_error(layer, head)
        matrix = equations.compute_similarity(output)
        largest = matrix.max()
        elements = equations.mark_high(matrix, self.counting.theta)
        pairs = equations.list_pairs(elements)
        equal = [window.ids[i] == window.ids[j] for i, j in pairs]
        same = [window.sentence[i] == window.sentence[j] for i, j in pairs]
        n_equal, n_same = sum(equal), sum(same)
        n_both = sum(e and s for e, s in zip(equal, same, strict=True))

        t["pairs"][at] += len(pairs)
        t["equal"][at] += n_equal
        t["same"][at] += n_same
        t["equal_same"][at] += n_both
        for i, j in pairs:
            t["distance_sum"][at] += j - i
            t["distance"][(*at, j - i - 1)] += 1
        if self.counting.shape.maps:
            t["location"][layer, head, : len(window), : len(window)] += elements

        if pairs:
            t["repeat_rate_texts"][(*at, get_rate_bin(n_equal, len(pairs)))] += 1
            t["same_sentence_rate_texts"][(*at, get_rate_bin(n_same, len(pairs)))] += 1
        if n_same:
            t["repeat_rate_in_sentence_texts"][(*at, get_rate_bin(n_both, n_same))] += 1

        upper = matrix[np.triu_indices(len(window), k=1)]
        if largest > 0:
            t["near_threshold"][at] += (np.abs(upper / largest - self.counting.theta) <= equations.NEAR).sum()
        if window.is_sampled(self.counting.fraction):
            if largest > 0:
                for value in upper / largest:
                    t["value_histogram"][(*at, get_value_bin(value))] += 1
                    t["near_bin_edge"][at] += is_near_bin_edge(value)
                if self.counting.shape.maps:
                    t["similarity"][layer, : len(window), : len(window)] += matrix / largest
            if pairs:
                ranks = rank_pairs(window)
                shuffled = equations.find_dominant(equations.list_pairs(ranks < len(pairs)), window.ids)
                assert shuffled is not None
                t["shuffled_share_sum"][at] += shuffled[1] / len(pairs)
                t["shuffled_share_texts"][at] += 1

        dominant = equations.find_dominant(pairs, window.ids)
        if dominant is None:
            return None
        token, count = dominant
        t["texts_with_pairs"][at] += 1
        t["dominant_share_sum"][at] += count / len(pairs)
        t["dominant_share_texts"][(block, layer, head, get_rate_bin(count, len(pairs)))] += 1
        return token

    def _count_attention(self, window: Window, layer: int, maps: Floats) -> None:
        t, block, maximum = self.tally, window.block, self.counting.shape.length
        n, keys = maps.shape[1:]
        summed = maps.sum(axis=0)
        kinds = find_receivers(window)
        for i in range(n):
            for j in range(keys):
                if not self.counting.shape.crosses:
                    t["attention_offset"][block, layer, :, j - i + maximum - 1] += maps[:, i, j]
                t["attention_received"][block, layer, kinds[i, j]] += summed[i, j]
        for i, reached in enumerate(list_keys(window, causal=self.counting.causal)):
            for name, targets in find_targets(window, i, reached, causal=self.counting.causal).items():
                if name in SUMMED_SCORES:
                    t[f"{name}_sum"][block, layer] += maps[:, i, targets].sum(axis=1)
            if len(reached) > 1:
                logarithms = np.log(maps[:, i], out=np.zeros_like(maps[:, i]), where=maps[:, i] > 0)
                entropies = -(maps[:, i] * logarithms).sum(axis=1)
                t[f"{ENTROPY}_sum"][block, layer] += entropies / np.log(len(reached))
            if self.counting.causal:
                far_sinks = [j for j in range(min(SINK, keys)) if i - j >= RECENT]
                t["far_sink_sum"][block, layer] += maps[:, i, far_sinks].sum(axis=1)
        most_attended = int(window.keys.ids[np.argmax(summed.sum(axis=0))])
        counts = np.zeros((t["texts"].shape[0], self.counting.shape.layers), dtype=np.int64)
        counts[block, layer] = 1
        t.attend(most_attended, counts)
        if not self.counting.shape.maps:
            return
        t["attention"][layer, :, :n, :keys] += maps
        if window.is_sampled(self.counting.fraction):
            without = np.where(equations.mark_lines(summed, self.counting.tau)[None, :], 0.0, summed)
            t["attention_without_lines"][layer, :n, :keys] += without
            if not self.counting.shape.crosses:
                t["attention_without_lines_and_diagonal"][layer, :n, :n] += without * (1 - np.eye(n))

    def _count_signal(self, window: Window, layer: int, outputs: Floats) -> None:
        """Add what signal shares are made of (docs/noise.md)."""
        t, block = self.tally, window.block
        pairs, _, weights = compute_contrasts(window)
        for head in range(outputs.shape[1]):
            output = outputs[:, head]
            if self.counting.shape.width:
                for place in np.flatnonzero(mark_places(window)).tolist():
                    t["position_sums"][block % HALVES, layer, head, place, : output.shape[1]] += output[place]
            for (i, j), pair_weights in zip(pairs, weights.T, strict=True):
                t["contrast_sums"][block, layer, head] += pair_weights * ((output[i] - output[j]) ** 2).sum() / 2

    def _count_claims(self, window: Window, layer: int, outputs: Floats, maps: Floats) -> None:
        """Add what only the claims need (`claim_sums`)."""
        t, block, n, heads = self.tally, window.block, len(window), len(maps)
        received = maps.sum(axis=(0, 1))
        words = np.flatnonzero(~window.keys.special)
        if len(words):
            top = words[np.argmax(received[words])]
            t["separator_texts"][block, layer] += window.keys.end[top] or window.keys.comma[top]

        keys = maps.shape[2]
        even = np.tril(np.ones((n, n))) if self.counting.causal else np.ones((n, keys))
        even /= even.sum(axis=1, keepdims=True)
        relative = maps.sum(axis=1) / even.sum(axis=0)
        for head in range(heads):
            for other in range(heads):
                if head != other and keys >= 3:
                    correlation = correlate_columns(relative[head], relative[other])
                    t["column_correlation_sum"][block, layer] += correlation / (heads * (heads - 1))

        lines = equations.mark_lines(maps.sum(axis=0), self.counting.tau)
        for name, attention in (("attention", maps.sum(axis=0)), ("even", even)):
            t[f"line_{name}_sum"][block, layer] += attention[:, lines].sum() / attention.sum()
            if not self.counting.shape.crosses:
                t[f"diagonal_{name}_sum"][block, layer] += np.diagonal(attention)[~lines].sum() / attention.sum()

        matrices = [equations.compute_similarity(outputs[:, head]) for head in range(heads)]
        random_dominants = set()
        ranks, order, count = rank_pairs(window), draw_position_order(window), n * (n - 1) // 2
        for head, matrix in enumerate(matrices):
            p, start = (
                len(equations.list_pairs(equations.mark_high(matrix, self.counting.theta))),
                head * count // heads,
            )
            drawn = [(i, j) for i in range(n) for j in range(i + 1, n) if (ranks[i, j] - start) % count < p]
            dominant = equations.find_dominant(drawn, window.ids)
            random_dominants |= {dominant[0]} if dominant else set()
        t["shuffled_distinct_dominants"][block, layer, len(random_dominants)] += 1
        if not window.crosses:
            self._count_regions(window, layer, matrices, lines, order)
            self._count_delineated(window, layer, outputs, matrices, lines)

    def _count_regions(self, window: Window, layer: int, matrices: list[Floats], lines: Bools, order: Ints) -> None:
        t, block, cuts = self.tally, window.block, equations.cut_blocks(lines)
        on_diagonal = [len(cut) > 1 for cut in cuts]
        if len(cuts) < 2 or not any(on_diagonal):
            return
        t["region_texts"][block, layer] += 1
        off_count = len(cuts) * (len(cuts) - 1) // 2
        t["region_chance_sum"][block, layer] += sum(on_diagonal) / (sum(on_diagonal) + off_count)
        for head, matrix in enumerate(matrices):
            for name, placed in (("", matrix), ("shuffled_", matrix[np.ix_(order, order)])):
                means = equations.average_regions(placed, cuts)
                off = means[np.triu_indices(len(cuts), k=1)]
                difference = np.nanmax(np.diagonal(means)) - off.max()
                is_on_diagonal = difference > equations.NEAR * np.nanmax(np.abs(means))
                t[f"{name}diagonal_region_texts"][block, layer, head] += is_on_diagonal

    def _count_delineated(
        self, window: Window, layer: int, outputs: Floats, matrices: list[Floats], lines: Bools
    ) -> None:
        t, block, n = self.tally, window.block, len(window)
        number = [k for k, cut in enumerate(equations.cut_blocks(lines)) for _ in cut]
        pairs = [(i, j) for i in range(n) for j in range(i + 1, n) if not (lines[i] or lines[j])]
        inside = {d: [(i, j) for i, j in pairs if j - i == d and number[i] == number[j]] for d in range(1, n)}
        across = {d: [(i, j) for i, j in pairs if j - i == d and number[i] != number[j]] for d in range(1, n)}
        distances = [d for d in range(1, n) if inside[d] and across[d]]
        if not distances:
            return
        t["delineated_texts"][block, layer] += 1
        total = sum(len(inside[d]) for d in distances)
        for head, matrix in enumerate(matrices):
            power = (outputs[:, head] ** 2).sum() / n
            if power == 0:
                continue
            for d in distances:
                weight = len(inside[d]) / total / power
                t["delineated_inside_sum"][block, layer, head] += weight * np.mean([matrix[pair] for pair in inside[d]])
                t["delineated_across_sum"][block, layer, head] += weight * np.mean([matrix[pair] for pair in across[d]])


def list_keys(window: Window, *, causal: bool) -> list[range]:
    """Return for each query of a window the keys that it may look at."""
    return [range(i + 1) if causal else range(len(window.keys)) for i in range(len(window))]


def find_targets(window: Window, i: int, keys: range, *, causal: bool) -> dict[str, list[int]]:
    """Return for each attention score that query i counts for its targets among the keys it may look at (METHOD §7)."""
    special, punctuation = window.keys.special, window.keys.punctuation
    targets: dict[str, list[int]] = {}
    if i >= 1:
        targets["attends_first"] = [0]
    if not window.special[i]:
        targets["attends_special"] = [j for j in keys if special[j]]
    if marks := [j for j in keys if punctuation[j] and (j != i or window.crosses)]:
        targets["attends_punctuation"] = marks
    if window.crosses:
        return targets
    targets["attends_self"] = [i]
    if i >= 1:
        targets["attends_previous"] = [i - 1]
    if i + 1 in keys:
        targets["attends_next"] = [i + 1]
    if not window.special[i]:
        if equal := [j for j in keys if j != i and window.ids[j] == window.ids[i]]:
            targets["attends_duplicate"] = equal
        if followers := [j for j in range(1, i) if window.ids[j - 1] == window.ids[i]]:
            targets["attends_induction"] = followers
    if causal and i >= FIRST_DISTANT:
        targets["attends_sink"] = [j for j in keys if j < SINK]
        targets["attends_recent"] = [j for j in keys if i - j < RECENT]
        targets["attends_distant"] = [j for j in keys if j >= SINK and i - j >= RECENT]
    return targets


def correlate_columns(first: Floats, second: Floats) -> float:
    """Return the correlation of what positions receive from two heads; 0 if one of them is flat."""
    deviations = [values - values.mean() for values in (first, second)]
    norms = [float(np.sqrt((values**2).sum())) for values in deviations]
    flat = [
        norm <= FLAT * values.mean() * np.sqrt(len(values)) for norm, values in zip(norms, (first, second), strict=True)
    ]
    return 0.0 if any(flat) else float(deviations[0] @ deviations[1]) / (norms[0] * norms[1])


def compute_contrasts(window: Window) -> tuple[list[tuple[int, int]], Floats, Floats]:
    """Return the pairs i < j of a window that signal shares are about, the pairs that each contrast marks, and its
    weights: (contrast, pair) each.

    Weights are residuals of least squares: of the marks on tokens and distances, or, for the pairs of a sentence, on
    tokens alone.
    """
    places: list[int] = np.flatnonzero(mark_places(window)).tolist()
    pairs = [(i, j) for i in places for j in places if i < j]
    marks = np.zeros((len(CONTRASTS), len(pairs)))
    has_token, has_distance = np.zeros((2, len(pairs), len(window)))
    for k, (i, j) in enumerate(pairs):
        equal, same = window.ids[i] == window.ids[j], window.sentence[i] == window.sentence[j]
        marks[:, k] = [1, equal, equal, same, same and j - i == 1, same and j - i == 2, same and equal]
        has_token[k, [i, j]] = has_distance[k, j - i] = 1
    weights = np.zeros_like(marks)
    weights[:2] = marks[:2]
    weights[2:4] = compute_residuals(marks[2:4], np.hstack([has_token, has_distance]))
    in_sentence = marks[3] == 1
    weights[4:, in_sentence] = compute_residuals(marks[4:, in_sentence], has_token[in_sentence])
    return pairs, marks, weights


def compute_residuals(values: Floats, design: Floats) -> Floats:
    """Return what least squares leaves of rows of values; the columns of the design are what they are explained by."""
    solution = np.linalg.lstsq(design, values.T, rcond=1e-10)[0]
    return (values.T - design @ solution).T


def get_rate_bin(part: int, total: int) -> int:
    """Return the bin of part/total among 50 on [0, 1], the last one closed on both sides; computed in integers, without
    rounding."""
    return min(RATE_BINS * int(part) // int(total), RATE_BINS - 1)


def get_value_bin(value: float) -> int:
    """Return the bin of a normalized value among 200 on [−1, 1]; lower values go to the first."""
    return int(np.clip(np.floor((value + 1) * (VALUE_BINS / 2)), 0, VALUE_BINS - 1))


def is_near_bin_edge(value: float) -> bool:
    """Return whether a value is so close to an inner edge of its histogram that floating-point order may decide its
    bin."""
    position = (value + 1) * (VALUE_BINS / 2)
    edge = np.round(position)
    return bool(abs(position - edge) <= equations.NEAR * (VALUE_BINS / 2) and 0 < edge < VALUE_BINS)
