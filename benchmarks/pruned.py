"""What removing heads saves: size and forward time of the whole, the masked and the pruned model.

    python benchmarks/pruned.py [--model NAME] [--keep 50% 70%] [--by random] [--per-layer] [--attention sdpa] …

All are in one process and take turns, round by round, so that a machine's moods touch all alike; ratios are to the
whole model in the same round. The masked model does all the work of the whole one: it is here to show that.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import headscope
from headscope.model.head_surgery import measure_difference
from headscope.pruning.removal import remove
from measuring.tables import machine, save


def runner(network: Any, options: argparse.Namespace, words: int) -> Callable[[], torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    ids = torch.randint(0, words, (options.texts, options.length), generator=random).to(options.device)
    mask = torch.ones_like(ids)

    def run() -> torch.Tensor:
        with torch.inference_mode():
            made = network(input_ids=ids, attention_mask=mask)[0]
        if options.device != "cpu":
            torch.cuda.synchronize()
        return made

    return run


def seconds(run: Callable[[], torch.Tensor]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def measured(model: headscope.Model, keep: str, options: argparse.Namespace) -> dict[str, Any]:
    made = headscope.prune(model, keep=keep, by=options.by, per_layer=options.per_layer)
    masked = remove(model, ",".join(made.manifest["heads_removed"]), how="mask")
    networks = {"whole": model.network, "masked": masked.network, "pruned": made.network}
    for network in networks.values():
        network.set_attn_implementation(options.attention)
    words = model.network.get_input_embeddings().num_embeddings
    runs = {name: runner(network, options, words) for name, network in networks.items()}
    outputs = {name: run() for name, run in runs.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(options.rounds):
        for name, run in runs.items():
            times[name].append(seconds(run))
    ways = {
        name: {
            "milliseconds_a_text": statistics.median(times[name]) / options.texts * 1e3,
            "ratio": statistics.median(t / w for t, w in zip(times[name], times["whole"], strict=True)),
            "parameters": sum(weight.numel() for weight in network.parameters()),
        }
        for name, network in networks.items()
    }
    return {
        "keep": keep,
        "heads_removed": len(made.manifest["heads_removed"]),
        "heads": made.manifest["heads_before"],
        "how": sorted({each.how for each in made.removal.layers}),
        "difference_float32": measure_difference(outputs["masked"], outputs["pruned"]),
        "ways": ways,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--keep", nargs="+", default=["50%", "70%"])
    parser.add_argument("--by", default="random")
    parser.add_argument("--per-layer", action="store_true")
    parser.add_argument("--attention", default="sdpa")
    parser.add_argument("--texts", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, help="write the numbers to this file, too")
    options = parser.parse_args()
    model = headscope.load(options.model, device=options.device)
    print(f"{options.model}, {options.texts} texts of {options.length} tokens, {options.device}, {options.attention}")
    found = []
    for keep in options.keep:
        made = measured(model, keep, options)
        found.append(made)
        print(
            f"keep {keep}: {made['heads_removed']} of {made['heads']} heads gone ({', '.join(made['how'])}), "
            f"pruned differs from masked by {made['difference_float32']:.1e}"
        )
        print(f"  {'way':8} {'ms per text':>10} {'ratio':>7} {'parameters':>12} {'ratio':>7}")
        for name, way in made["ways"].items():
            share = way["parameters"] / made["ways"]["whole"]["parameters"]
            each = f"{way['milliseconds_a_text']:10.3f} {way['ratio']:7.3f}"
            print(f"  {name:8} {each} {way['parameters']:12,} {share:7.3f}")
    if options.json is not None:
        about = {name: getattr(options, name) for name in ("texts", "length", "attention", "by")}
        result = {"kind": "pruned", "model": Path(options.model).name, **about, "cases": found}
        save({**result, "machine": machine(options.device)}, options.json)


if __name__ == "__main__":
    main()
