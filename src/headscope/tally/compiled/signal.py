"""What signal-to-noise ratios are made of, one head of one text at a time.

Σ½|oᵢ−oⱼ|² over the pairs of a group of n is n·Σ|oᵢ|² − |Σoᵢ|², halved: distances need a look at every token, not at
every pair. Similarities are looked at once, while they are in the cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headscope.tally.compiled.bits import WORD, first_bits, ones
from headscope.tally.compiled.compiling import compiled
from headscope.tally.compiled.high import at_most, row_largest

GROUPINGS = ("equal", "same", "both", "every")
"""what the tokens of a group share: the token, the sentence, both, or nothing"""


@compiled()
def find_groups(n: int, ids: Any, sentence: Any, groups: Any) -> None:
    """Find the groups of `GROUPINGS` that each place is in; a group is called after its first place."""
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
    written: Any, means: Any, n: int, groups: Any, ids: Any, sentence: Any, order: Any, apart: Any
) -> None:
    """Add ½|oᵢ−oⱼ|² to the sums `apart` of every head: by kind of pair, in a sentence and of all; then shuffled."""
    heads, width = len(written), written.shape[2]
    output = np.empty((n, width), written.dtype)
    place = np.zeros(n, np.int64)
    held, lengths, sizes = np.zeros((n, width)), np.zeros(n), np.zeros(n)
    squares, found, near = np.zeros(n), np.zeros(4), np.zeros(4)
    for head in range(heads):
        every = 0.0
        for i in range(n):
            squares[i] = 0.0
            for k in range(width):
                output[i, k] = written[head, i, k] - means[head, k]
                squares[i] += output[i, k] * output[i, k]
        for shuffled in range(2):
            for i in range(n):
                place[order[i] if shuffled else i] = i  # what stands at each place of the text
            for g in range(len(groups)):
                found[g] = 0.0
                held[:] = 0.0
                lengths[:] = 0.0
                sizes[:] = 0.0
                for k in range(n):
                    group, i = groups[g, k], place[k]
                    sizes[group] += 1
                    lengths[group] += squares[i]
                    for w in range(width):
                        held[group, w] += output[i, w]
                for group in range(n):
                    if sizes[group] > 0:
                        whole = 0.0
                        for w in range(width):
                            whole += held[group, w] * held[group, w]
                        found[g] += (sizes[group] * lengths[group] - whole) / 2
            near[:] = 0.0
            for k in range(n - 1):
                one, two, between = output[place[k]], output[place[k + 1]], 0.0
                for w in range(width):
                    between += (one[w] - two[w]) * (one[w] - two[w])
                near[(ids[k] == ids[k + 1]) + 2 * (sentence[k] == sentence[k + 1])] += between / 2
            equal, same, both, every = found[0], found[1], found[2], found[3]
            sums = apart[head, shuffled]
            sums[0] += every - equal - same + both - near[0]
            sums[1] += equal - both - near[1]
            sums[2] += same - both - near[2]
            sums[3] += both - near[3]
            sums[4] += near[2]
            sums[5] += same
            sums[6] += every


@compiled()
def find_explained(n: int, ids: Any, sentence: Any, order: Any, explained: Any) -> None:
    """Bits of the pairs i < j that are of equal tokens, of one sentence or neighbours; then the same for the places
    that these were shuffled to."""
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
    matrix: Any, whole: Any, n: int, explained: Any, blocks: Any, theta: float, high: Any, energy: Any
) -> None:
    """Add high pairs and C² of every head to `high` and `energy`.

    `whole` is `matrix` as integers of the same bits, of which the largest is found sooner.
    """
    found = np.zeros(explained.shape[2] * WORD, np.uint8)
    words, largest = found.view(np.uint64), np.zeros(1, whole.dtype)
    top = largest.view(matrix.dtype)
    for head in range(len(matrix)):
        largest[0] = 0
        for i in range(n - 1):
            largest[0] = max(largest[0], row_largest(whole[head, i, i + 1 : n]))
        found[:] = 0
        bound = at_most(theta * np.float64(top[0]), matrix)
        for i in range(n - 1):
            row = matrix[head, i]
            _add_energy(row, i, n, blocks, energy[head])
            found[i] = 0
            _mark(row[i + 1 : n], bound, found[i + 1 : n])
            for w in range(i // WORD, len(words) // 8):
                word = first_bits(words[w * 8 : w * 8 + 8])
                high[head, 0] += np.int64(ones(word))
                high[head, 1] += np.int64(ones(word & explained[0, i, w]))
                high[head, 2] += np.int64(ones(word & explained[1, i, w]))


@compiled(fast=True)
def _add_energy(row: Any, i: int, n: int, blocks: Any, energy: Any) -> None:
    """In a loop of its own, which the compiler turns into one over many pairs at once."""
    every, inside, shuffled = row.dtype.type(0), row.dtype.type(0), row.dtype.type(0)
    zero, own, other = row.dtype.type(0), blocks[0, i], blocks[1, i]
    for j in range(i + 1, n):
        square = row[j] * row[j]
        every += square
        inside += square if blocks[0, j] == own else zero
        shuffled += square if blocks[1, j] == other else zero
    energy[0] += every
    energy[1] += inside
    energy[2] += shuffled


@compiled(fast=True)
def _mark(row: Any, bound: Any, found: Any) -> None:
    for k in range(row.size):
        found[k] = row[k] > bound
