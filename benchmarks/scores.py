"""What attention scores cost in a study on the CPU: the share of its time that serves them alone.

    python benchmarks/scores.py [--model minilm] [--texts 64] [--length 128] [--rounds 3]

Each part of numba's backend that serves only attention scores is timed while a study runs, in processor seconds, so
that other processes disturb little. Entropy is computed within the softmax: for every text the same scores also go, in
turns before and after, through a softmax that adds up no entropy, and its cost is the difference. Reported are shares
of the time that the study takes without all this, as medians over rounds.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest import mock

import numpy as np
import torch

import headscope
from headscope.tally.numba_backend import attention, tallier
from headscope.tally.numba_backend.attention import as_float, find_max_bits, order_bits, scale_row
from headscope.tally.numba_backend.jit import compiled
from measuring import setup

C = [np.float32(math.log(2) ** k / math.factorial(k)) for k in range(8)]
C_0, C_1, C_2, C_3, C_4, C_5, C_6, C_7 = C
MIN_EXPONENT, EXPONENT_BIAS, EXPONENT_BIT = attention.MIN_EXPONENT, attention.EXPONENT_BIAS, attention.EXPONENT_BIT


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


class Timers:
    """Processor seconds of the parts of a study, by name, while it runs."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.calls = 0

    def time(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that is timed."""

        def timed(*positional: Any, **named: Any) -> Any:
            started = time.thread_time()
            try:
                return function(*positional, **named)
            finally:
                self.seconds[name] += time.thread_time() - started

        return timed

    def compare_softmax(self, scores: Any, int_scores: Any, *settings: Any) -> None:
        """Compute the softmax, and once more, in turns before and after, without entropies."""
        started = time.thread_time()
        copy, with_entropy = scores.copy(), self.time("softmax", attention.compute_softmax)
        without = self.time("softmax without entropy", compute_softmax)
        self.calls += 1
        if self.calls % 2:
            without(copy, copy.view(np.int32), *settings)
            with_entropy(scores, int_scores, *settings)
        else:
            with_entropy(scores, int_scores, *settings)
            without(copy, copy.view(np.int32), *settings)
        self.seconds["both softmaxes"] += time.thread_time() - started


def measure(model: headscope.Model, texts: list[str], length: int) -> dict[str, float]:
    """Return the shares of the time of a study that its parts take, in percent."""
    timers = Timers()
    replaced: dict[Any, dict[str, Any]] = {
        tallier: {
            "compute_softmax": timers.compare_softmax,
            "ScorePlaces": timers.time("places", tallier.ScorePlaces),
            "sum_score_texts": timers.time("texts", tallier.sum_score_texts),
        },
        tallier.ScoreTexts: {"from_batch": timers.time("texts", tallier.ScoreTexts.from_batch)},
        tallier._LayerSums: {
            "_add_scores": timers.time("maps", tallier._LayerSums._add_scores),
            "_finish_scores": timers.time("sums", tallier._LayerSums._finish_scores),
        },
    }
    with ExitStack() as resources:
        for owner, members in replaced.items():
            for name, member in members.items():
                resources.enter_context(mock.patch.object(owner, name, member))
        started = time.process_time()
        headscope.study(model, texts, length=length, sample=0.05, kernel="numba")
        total = time.process_time() - started
    seconds = timers.seconds
    parts = {name: seconds[name] for name in ("places", "texts", "maps", "sums")}
    parts["entropy"] = seconds["softmax"] - seconds["softmax without entropy"]
    parts["all"] = sum(parts.values())
    alone = total - seconds["both softmaxes"] + seconds["softmax"] - parts["all"]
    return {name: 100 * value / alone for name, value in parts.items()} | {"seconds": alone}


def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    setup.add_options(parser)
    parser.add_argument("--texts", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    model, texts = setup.model_of(options), list(setup.texts_of(options, options.texts))
    measure(model, texts[:2], options.length)  # compiles
    rounds = [measure(model, texts, options.length) for _ in range(options.rounds)]
    result = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
    print("percent of the time of a study without attention scores:")
    for name, value in result.items():
        print(f"{name:>8} {value:7.2f}")
    return result


if __name__ == "__main__":
    main()
