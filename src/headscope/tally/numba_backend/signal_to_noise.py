"""The sums of signal-to-noise ratios, one head of one text at a time.

Σ½|oᵢ−oⱼ|² over the pairs of a group of n is n·Σ|oᵢ|² − |Σoᵢ|², halved: distances need one pass over tokens, not over
pairs. Similarities are read once, while they are in the cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headscope.tally.numba_backend.bits import WORD, count_bits, pack_lowest_bits
from headscope.tally.numba_backend.high import find_max, round_down
from headscope.tally.numba_backend.jit import compiled

GROUPINGS = ("equal", "same", "both", "every")
"""what the tokens of a group share: the token, the sentence, both, or nothing"""


@compiled()
def find_groups(n: int, ids: Any, sentence: Any, groups: Any) -> None:
    """Set the group of each position in each of `GROUPINGS`; a group is numbered by its first position."""
    for i in range(n):
        groups[:, i] = i
        for j in range(i - 1, -1, -1):
            equal, same = ids[i] == ids[j], sentence[i] == sentence[j]
            if equal:
                groups[0, i] = j
            if same:
                groups[1, i] = j
            if equal and same:
                groups[2, i] = j
    groups[3, :n] = 0


@compiled(fast=True)
def add_distances(
    vectors: Any, means: Any, n: int, groups: Any, ids: Any, sentence: Any, order: Any, distance_sums: Any
) -> None:
    """Add ½|oᵢ−oⱼ|² to the sums `distance_sums` (head, 2, kinds + 2): by kind of pair, in a sentence and of all, with
    positions as they are and shuffled."""
    heads, width = len(vectors), vectors.shape[2]
    output = np.empty((n, width), vectors.dtype)
    token_at = np.zeros(n, np.int64)
    vector_sums, square_sums, sizes = np.zeros((n, width)), np.zeros(n), np.zeros(n)
    squares, group_distances, neighbor_distances = np.zeros(n), np.zeros(4), np.zeros(4)
    for head in range(heads):
        total = 0.0
        for i in range(n):
            squares[i] = 0.0
            for k in range(width):
                output[i, k] = vectors[head, i, k] - means[head, k]
                squares[i] += output[i, k] * output[i, k]
        for shuffled in range(2):
            for i in range(n):
                token_at[order[i] if shuffled else i] = i  # the token at each position
            for g in range(len(groups)):
                group_distances[g] = 0.0
                vector_sums[:] = 0.0
                square_sums[:] = 0.0
                sizes[:] = 0.0
                for k in range(n):
                    group, i = groups[g, k], token_at[k]
                    sizes[group] += 1
                    square_sums[group] += squares[i]
                    for w in range(width):
                        vector_sums[group, w] += output[i, w]
                for group in range(n):
                    if sizes[group] > 0:
                        sum_square = 0.0
                        for w in range(width):
                            sum_square += vector_sums[group, w] * vector_sums[group, w]
                        group_distances[g] += (sizes[group] * square_sums[group] - sum_square) / 2
            neighbor_distances[:] = 0.0
            for k in range(n - 1):
                first, second, distance = output[token_at[k]], output[token_at[k + 1]], 0.0
                for w in range(width):
                    distance += (first[w] - second[w]) * (first[w] - second[w])
                neighbor_distances[(ids[k] == ids[k + 1]) + 2 * (sentence[k] == sentence[k + 1])] += distance / 2
            equal, same, both, total = group_distances[0], group_distances[1], group_distances[2], group_distances[3]
            sums = distance_sums[head, shuffled]
            sums[0] += total - equal - same + both - neighbor_distances[0]
            sums[1] += equal - both - neighbor_distances[1]
            sums[2] += same - both - neighbor_distances[2]
            sums[3] += both - neighbor_distances[3]
            sums[4] += neighbor_distances[2]
            sums[5] += same
            sums[6] += total


@compiled()
def find_explained(n: int, ids: Any, sentence: Any, order: Any, explained: Any) -> None:
    """Set the bits of the pairs i < j that are of equal tokens, of one sentence or neighbours; then the same for
    shuffled positions."""
    for i in range(n - 1):
        a = order[i]
        for j in range(i + 1, n):
            b, bit = order[j], np.uint64(1) << np.uint64(j % WORD)
            if (ids[i] == ids[j]) | (sentence[i] == sentence[j]) | (j == i + 1):
                explained[0, i, j // WORD] |= bit
            if (ids[a] == ids[b]) | (sentence[a] == sentence[b]) | (abs(a - b) == 1):
                explained[1, i, j // WORD] |= bit


@compiled()
def add_similarities(
    matrix: Any, int_matrix: Any, n: int, explained: Any, blocks: Any, theta: float, high_counts: Any, energies: Any
) -> None:
    """Add the high pairs and C² of every head to `high_counts` and `energies`.

    `int_matrix` is `matrix` as integers of the same bits, whose maximum is found faster.
    """
    marks = np.zeros(explained.shape[2] * WORD, np.uint8)
    mark_words, int_max = marks.view(np.uint64), np.zeros(1, int_matrix.dtype)
    max_value = int_max.view(matrix.dtype)
    for head in range(len(matrix)):
        int_max[0] = 0
        for i in range(n - 1):
            int_max[0] = max(int_max[0], find_max(int_matrix[head, i, i + 1 : n]))
        marks[:] = 0
        threshold = round_down(theta * np.float64(max_value[0]), matrix)
        for i in range(n - 1):
            row = matrix[head, i]
            _add_energy(row, i, n, blocks, energies[head])
            marks[i] = 0
            _mark_high(row[i + 1 : n], threshold, marks[i + 1 : n])
            for w in range(i // WORD, len(mark_words) // 8):
                word = pack_lowest_bits(mark_words[w * 8 : w * 8 + 8])
                high_counts[head, 0] += np.int64(count_bits(word))
                high_counts[head, 1] += np.int64(count_bits(word & explained[0, i, w]))
                high_counts[head, 2] += np.int64(count_bits(word & explained[1, i, w]))


@compiled(fast=True)
def _add_energy(row: Any, i: int, n: int, blocks: Any, energy: Any) -> None:
    """Add one row. A loop of its own, which the compiler vectorizes."""
    total, inside, shuffled = row.dtype.type(0), row.dtype.type(0), row.dtype.type(0)
    zero, block, shuffled_block = row.dtype.type(0), blocks[0, i], blocks[1, i]
    for j in range(i + 1, n):
        square = row[j] * row[j]
        total += square
        inside += square if blocks[0, j] == block else zero
        shuffled += square if blocks[1, j] == shuffled_block else zero
    energy[0] += total
    energy[1] += inside
    energy[2] += shuffled


@compiled(fast=True)
def _mark_high(row: Any, threshold: Any, marks: Any) -> None:
    for k in range(row.size):
        marks[k] = row[k] > threshold
