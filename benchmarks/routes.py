"""What the two routes to the heads cost: the registry's, and the one for models that compute attention themselves.

    python benchmarks/routes.py [--model NAME | --shape LAYERSxHEADSxWIDTH] [--texts N] [--length N] [--device cpu]

A model whose attention goes through the registry can be watched on both routes, so they are compared on one network.
Each way is measured in a process of its own, for its peak memory, and the ways take turns over several rounds, for the
time; ratios are to the bare forward pass with the same (eager) attention.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import BertConfig, BertModel

import headscope
from headscope.model.capture.attention_interface import watch_attention
from headscope.model.capture.records import CapturedAttention, Route

WAYS: dict[str, tuple[Route, ...]] = {"bare": (), "registry": ("registry",), "products": ("products",)}


def network_of(options: argparse.Namespace) -> Any:
    if not options.shape:
        return headscope.load(options.model, device=options.device).network
    layers, heads, width = map(int, options.shape.split("x"))
    config = BertConfig(
        num_hidden_layers=layers, num_attention_heads=heads, hidden_size=width, intermediate_size=4 * width
    )
    config._attn_implementation = "eager"
    return BertModel(config).eval().to(options.device)


def runner(network: Any, way: str, options: argparse.Namespace) -> Callable[[], None]:
    ids = torch.randint(1000, 2000, (options.texts, options.length), device=options.device)
    mask = torch.ones_like(ids)
    seen: list[int] = []

    def note(sighting: CapturedAttention) -> None:
        seen.append(sighting.output.shape[2])

    def run() -> None:
        seen.clear()
        routes = WAYS[way]
        # Where it runs in a study, the modules that attend are known from the first look at the model.
        modules = [module for module in network.modules() if type(module).__name__.endswith("SelfAttention")]
        with torch.inference_mode():
            if routes:
                with watch_attention(network, note, batch=options.texts, routes=routes, modules=modules):
                    network(input_ids=ids, attention_mask=mask)
            else:
                network(input_ids=ids, attention_mask=mask)
        if options.device != "cpu":
            torch.cuda.synchronize()
        assert len(seen) == (network.config.num_hidden_layers if routes else 0)

    return run


def seconds(run: Callable[[], None]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def peak(network: Any, way: str, options: argparse.Namespace) -> float:
    """Megabytes at the highest, of this process or of the device."""
    run = runner(network, way, options)
    if options.device != "cpu":
        run()
        torch.cuda.reset_peak_memory_stats()
        run()
        return torch.cuda.max_memory_allocated() / 1e6
    run()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--shape", default="")
    parser.add_argument("--texts", type=int, default=32)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--peak", choices=WAYS, help="print the peak memory of one way alone, as JSON")
    options = parser.parse_args()
    network = network_of(options)
    network.set_attn_implementation("eager")
    if options.peak:
        print(json.dumps(peak(network, options.peak, options)))
        return
    runs = {way: runner(network, way, options) for way in WAYS}
    for run in runs.values():
        run()
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(options.rounds):
        for way, run in runs.items():
            times[way].append(seconds(run))
    base = statistics.median(times["bare"])
    print(f"{options.shape or options.model}, {options.texts} texts of {options.length} tokens, {options.device}")
    print(f"{'way':10} {'ms per text':>10} {'ratio':>7} {'peak MB':>9}")
    for way in WAYS:
        # ratio by round, so that a machine's moods touch both sides alike
        ratio = statistics.median(t / b for t, b in zip(times[way], times["bare"], strict=True))
        each = statistics.median(times[way]) / options.texts * 1e3
        command = [sys.executable, __file__, *sys.argv[1:], "--peak", way]
        memory = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(f"{way:10} {each:10.3f} {ratio:7.3f} {memory:9.0f}")
    print(f"bare forward pass, median: {base * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
