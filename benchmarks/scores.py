"""What attention scores cost: a study with and without their sums, in turns, in one process on the CPU.

    python benchmarks/scores.py [--model minilm] [--texts 64] [--length 128] [--rounds 9]

Without them, everything in numba's backend that serves them alone is replaced by nothing, and the softmax by one that
adds up no entropy. Reported are processor seconds, so that other processes disturb little, as medians over rounds, and
the median of the ratios of neighbouring runs.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from contextlib import ExitStack
from typing import Any
from unittest import mock

import numpy as np

import headscope
from headscope.run import kernel_trial
from headscope.tally.numba_backend import softmax, tallier
from headscope.tally.numba_backend.jit import compiled
from headscope.tally.numba_backend.softmax import as_float, find_max_bits, order_bits, scale_row
from measuring import setup

C = [np.float32(math.log(2) ** k / math.factorial(k)) for k in range(8)]
C_0, C_1, C_2, C_3, C_4, C_5, C_6, C_7 = C
MIN_EXPONENT, EXPONENT_BIAS, EXPONENT_BIT = softmax.MIN_EXPONENT, softmax.EXPONENT_BIAS, softmax.EXPONENT_BIT


@compiled(fast=True, finite=False)
def compute_powers(row: Any, scale: Any, row_max: Any) -> Any:
    """The same as in `softmax`, without the products of powers and exponents."""
    total = np.float32(0)
    for k in range(row.size):
        power = row[k] * scale - row_max
        power = MIN_EXPONENT if power < MIN_EXPONENT else power
        nearest = np.rint(power)
        x = power - nearest
        fraction = C_0 + x * (C_1 + x * (C_2 + x * (C_3 + x * (C_4 + x * (C_5 + x * (C_6 + x * C_7))))))
        value = fraction * as_float((np.int32(nearest) + EXPONENT_BIAS) << EXPONENT_BIT)
        row[k] = value
        total += value
    return total


@compiled()
def compute_softmax(scores: Any, int_scores: Any, scaling: Any, n: int, causal: bool, entropies: Any) -> None:
    """The same as in `softmax`, without entropies."""
    scale = np.float32(scaling * math.log2(math.e))
    for head in range(len(scores)):
        for query in range(scores.shape[1]):
            stop = min(n, query + 1) if causal else n
            row = scores[head, query, :stop]
            row_max = order_bits(find_max_bits(int_scores[head, query, :stop]))
            scale_row(row, np.float32(1) / compute_powers(row, scale, as_float(row_max) * scale))
            scores[head, query, stop:] = 0


def leave_out_scores(resources: ExitStack) -> None:
    """Replace what serves attention scores alone, for as long as `resources` is open."""
    replaced: dict[Any, dict[str, Any]] = {
        tallier: {
            "compute_softmax": compute_softmax,
            "ScorePlaces": lambda batch, causal: None,
            "sum_score_texts": lambda texts, blocks: {},
        },
        kernel_trial: {"find_disagreement": lambda *_, **__: ""},
        tallier.ScoreTexts: {"from_batch": lambda *_, **__: None},
        tallier._LayerSums: {"_add_scores": lambda *_, **__: None, "_finish_scores": lambda _: None},
    }
    for owner, members in replaced.items():
        for name, member in members.items():
            resources.enter_context(mock.patch.object(owner, name, member))


def time_study(model: headscope.Model, texts: list[str], length: int, *, scores: bool) -> float:
    """Return the processor seconds of a study."""
    with ExitStack() as resources:
        if not scores:
            leave_out_scores(resources)
        started = time.process_time()
        headscope.study(model, texts, length=length, sample=0.05, kernel="numba")
        return time.process_time() - started


def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    setup.add_options(parser)
    parser.add_argument("--texts", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args(arguments)
    model, texts = setup.model_of(options), list(setup.texts_of(options, options.texts))
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for round_number in range(options.rounds + 1):
        for scores in (True, False) if round_number % 2 else (False, True):
            taken = time_study(model, texts, options.length, scores=scores)
            if round_number:  # the first compiles
                seconds[scores].append(taken)
    ratios = [first / second for first, second in zip(seconds[True], seconds[False], strict=True)]
    result = {
        "seconds": statistics.median(seconds[True]),
        "seconds_without": statistics.median(seconds[False]),
        "ratio": statistics.median(ratios),
        "lowest_ratio": min(ratios),
        "highest_ratio": max(ratios),
    }
    print(", ".join(f"{name} {value:.3f}" for name, value in result.items()))
    return result


if __name__ == "__main__":
    main()
