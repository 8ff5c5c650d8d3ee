"""What a study costs beside the bare model: ratios measured in one run, on the bundled model and texts.

    python benchmarks/study.py [--model NAME] [--texts N] [--rounds N] [--device cpu]

The ways take turns in every round, so that a machine's moods touch all alike; the median of the rounds is reported.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

import headscope
from headscope.corpus.windows import Batch, Cut
from headscope.model.model import Model
from headscope.tally.quantities import Shape
from headscope.tally.reference import ReferenceTallier
from headscope.tally.tally import Counting, Tallier
from headscope.tally.vectorized import VectorizedTallier

REFERENCE_TEXTS = 1
"""The plain loops are so slow that one text says enough."""


def bare(model: Model, batch: Batch, implementation: str) -> Callable[[], None]:
    ids = torch.from_numpy(batch.ids).to(model.device)
    mask = torch.from_numpy(batch.real).long().to(model.device)

    def run() -> None:
        before = model.network.config._attn_implementation
        model.network.set_attn_implementation(implementation)
        with torch.inference_mode():
            model.network(input_ids=ids, attention_mask=mask)
        model.network.set_attn_implementation(before)

    return run


def observed(model: Model, batch: Batch, tallier: Tallier) -> Callable[[], None]:
    def run() -> None:
        tallier.begin(batch)
        model.observe(batch, tallier.see)
        tallier.end()

    return run


def seconds(run: Callable[[], None], device: torch.device) -> float:
    started = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--texts", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()

    model = headscope.load(options.model, device=options.device)
    cut = Cut()
    windows = [
        w for d in headscope.documents(limit=options.texts) for w in cut(d, model.tokens) if not isinstance(w, str)
    ]
    batch, few = Batch.of(windows, model.tokens.pad_id), Batch.of(windows[:REFERENCE_TEXTS], model.tokens.pad_id)
    shape = Shape(model.anatomy.layers, model.anatomy.heads, cut.length)

    def counting(fraction: float) -> Counting:
        return Counting(shape, 0.3, 0.3, fraction)

    ways: dict[str, tuple[Callable[[], None], int]] = {
        "bare forward, sdpa": (bare(model, batch, "sdpa"), len(batch)),
        "bare forward, eager": (bare(model, batch, "eager"), len(batch)),
        "study, without the sample": (
            observed(model, batch, VectorizedTallier(counting(0.0), model.device)),
            len(batch),
        ),
        "study, all texts sampled": (
            observed(model, batch, VectorizedTallier(counting(1.0), model.device)),
            len(batch),
        ),
        "reference in plain loops": (observed(model, few, ReferenceTallier(counting(1.0))), len(few)),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for round_ in range(options.rounds + 1):
        for name, (run, texts) in ways.items():
            if name.startswith("reference") and round_ > 1:
                continue
            taken = seconds(run, model.device) / texts
            if round_:  # the first round warms up
                times[name].append(taken)
    base = statistics.median(times["bare forward, sdpa"])
    print(f"{model.name}, {len(batch)} windows of {cut.length} tokens, {model.device}, {options.rounds} rounds")
    for name, held in times.items():
        median = statistics.median(held)
        print(f"{name:28s} {median * 1000:10.2f} ms a text   {median / base:8.2f} × the bare forward pass")


if __name__ == "__main__":
    main()
