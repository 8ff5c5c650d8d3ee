"""What signal-to-noise ratios are made of, one head of one text at a time.

Σ½|oᵢ−oⱼ|² over the pairs of a group of n is n·Σ|oᵢ|² − |Σoᵢ|², halved: distances need a look at every token, not at
every pair. Similarities are looked at once, while they are in the cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from headscope.tally.compiled.compiling import compiled
from headscope.tally.quantities import KINDS
from headscope.tally.signal import Raw, Structure, apart_heads


def in_loops(structure: Structure, output: Tensor, mean: Tensor, blocks: Tensor, theta: float) -> Raw:
    """The same as `signal.in_torch`."""
    texts, n, heads, _ = output.shape
    written, centred = apart_heads(structure, output, mean)
    apart, high = np.zeros((texts, heads, 2, len(KINDS) + 2)), np.zeros((texts, heads, 3), np.int64)
    energy = np.zeros((texts, heads, 3))
    lengths, ids, sentence = structure.real.sum(1).numpy(), structure.ids.numpy(), structure.sentence.numpy()
    order, cut, around = structure.order.numpy(), blocks.numpy(), centred.numpy()
    matrix = written.new_empty((heads, n, n))
    for text, m in enumerate(lengths.tolist()):
        torch.bmm(written[text], written[text].transpose(1, 2), out=matrix)
        about = ids[text], sentence[text], order[text]
        _add_distances(around[text], m, *about, apart[text])
        _add_similarities(matrix.numpy(), m, *about, cut[:, text], theta, high[text], energy[text])
    return Raw(torch.from_numpy(np.maximum(apart, 0)), torch.from_numpy(high), torch.from_numpy(energy))


@compiled(fast=True)
def _add_distances(centred: Any, n: int, ids: Any, sentence: Any, order: Any, apart: Any) -> None:
    heads, width = len(centred), centred.shape[2]
    groups = np.zeros((3, n), np.int64)
    for i in range(n):  # a group is called after its first place
        for g in range(3):
            groups[g, i] = i
        for j in range(i - 1, -1, -1):
            equal, same = ids[i] == ids[j], sentence[i] == sentence[j]
            if equal:
                groups[0, i] = j
            if same:
                groups[1, i] = j
            if equal and same:
                groups[2, i] = j
    place = np.zeros(n, np.int64)
    held, lengths, sizes = np.zeros((n, width)), np.zeros(n), np.zeros(n)
    squares, found, near = np.zeros(n), np.zeros(4), np.zeros(4)
    for head in range(heads):
        output, every = centred[head], 0.0
        for i in range(n):
            squares[i] = 0.0
            for k in range(width):
                squares[i] += output[i, k] * output[i, k]
        for shuffled in range(2):
            for i in range(n):
                place[order[i] if shuffled else i] = i  # what stands at each place of the text
            for g in range(4):  # the last: all tokens in one group
                found[g] = 0.0
                held[:] = 0.0
                lengths[:] = 0.0
                sizes[:] = 0.0
                for k in range(n):
                    group, i = groups[g, k] if g < 3 else 0, place[k]
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


@compiled(fast=True)
def _add_similarities(
    matrix: Any, n: int, ids: Any, sentence: Any, order: Any, blocks: Any, theta: float, high: Any, energy: Any
) -> None:
    for head in range(len(matrix)):
        largest = matrix.dtype.type(0)
        for i in range(n):
            for j in range(i + 1, n):
                largest = max(largest, matrix[head, i, j])
        bound = theta * largest
        for i in range(n):
            row, a = matrix[head, i], order[i]
            _add_energy(row, i, n, blocks, energy[head])
            for j in range(i + 1, n):
                if row[j] > bound:
                    b = order[j]
                    high[head, 0] += 1
                    high[head, 1] += (ids[i] == ids[j]) | (sentence[i] == sentence[j]) | (j == i + 1)
                    high[head, 2] += (ids[a] == ids[b]) | (sentence[a] == sentence[b]) | (abs(a - b) == 1)


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
