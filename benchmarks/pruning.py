"""Which heads can a model do without, and what tells them? Rankings of heads against what their removal really does.

    make curves MODELS="FOLDER …" TEXTS=FILE
    python benchmarks/pruning.py --model FOLDER … --texts FILE [--windows 96] [--draws 10] [--json FILE]
    python benchmarks/pruning.py --model FOLDER … --texts FILE --update FILE [--only RANKING …] [--check RANKING]
    python benchmarks/pruning.py --docs benchmarks/results/prun*.json

Heads are ranked on the first windows of every other document, and removed on those of the documents between, which no
ranking has seen. For each ranking: the rank correlation of its scores with what silencing each head alone does to the
objective (a 95 % interval from 2,000 draws of heads), and the objective when ever more heads are silent, least scores
first, by zero and by each head's mean. `greedy` measures again after every step; `ablation` measures once.

`--update` adds the rankings by signal shares (those of `--only`) to an earlier result of the same texts and as many
windows: their correlations with what silencing each head did there, and their curves. `--check` measures a ranking of
that result again, and says how far the new curves are from the old ones, which another machine may have measured.
`--docs` writes the tables and the figure of docs/pruning.md.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import headscope
from headscope.model.interventions import compute_head_means, list_heads
from headscope.pruning.ablation import AblationRunner
from headscope.pruning.objective import batch_windows, read_windows
from headscope.pruning.rankings import RULES, SHARES, STUDY_RULES, order_heads, rank_greedily, score_heads, take_share
from headscope.studies.result import Study
from measuring.prune_tables import SECTIONS, draw, summary_table
from measuring.tables import DOCS, machine, read_all, save, write_page

ADDED = ("signal-share", "signal power", "noise power", "position share")
"""rankings that `--update` can measure"""
FILE = Path(__file__).parent.parent.parent / "shared" / "data" / "english.jsonl.gz"
DRAWS = 2000


def ranked(by: np.ndarray) -> np.ndarray:
    """Ranks of numbers, equal ones sharing theirs."""
    _, places, counts = np.unique(by, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[places.reshape(by.shape)]


def correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Spearman's; 0 where all of one are equal."""
    a, b = (ranked(each.ravel()) - (each.size + 1) / 2 for each in (one, other))
    spread = np.sqrt((a**2).sum() * (b**2).sum())
    return float((a * b).sum() / spread) if spread else 0.0


def interval(one: np.ndarray, other: np.ndarray, seed: int = 0) -> list[float]:
    """95 % of the correlations over draws of heads."""
    random = np.random.default_rng(seed)
    draws = random.integers(0, one.size, (DRAWS, one.size))
    found = [correlation(one.ravel()[draw], other.ravel()[draw]) for draw in draws]
    return [float(edge) for edge in np.quantile(found, [0.025, 0.975])]


def split_power(study: Study, projected_norms: np.ndarray) -> dict[str, np.ndarray]:
    """Rankings tried here and nowhere else: the power of a head's signal, and of its noise, after the projection; and
    how much of what it writes is position."""
    shares = study.signal_shares()
    signal, position = shares["signal_share"].values, shares["position_share"].values
    power = projected_norms**2
    return {"signal power": power * signal, "noise power": power * (1 - signal), "position share": position}


def halves(texts: str | None, count: int) -> tuple[Any, Any]:
    """The documents heads are ranked on, and those they are removed on."""
    held = list(headscope.documents(texts))
    step = max(2, len(held) // (2 * count) * 2)  # all kinds of texts, which lie in the file one after the other
    return held[::step][:count], held[step // 2 :: step][:count]


def round_scores(scores: np.ndarray) -> list[list[float | None]]:
    return [[float(f"{score:.6g}") if np.isfinite(score) else None for score in row] for row in scores]


def measure_curves(
    runner: AblationRunner, means: np.ndarray, base: float, order: Sequence[Any]
) -> dict[str, list[float]]:
    """Return the objective at every share of heads removed in this order, by zero and by each head's mean."""
    runners = {"zero": runner, "mean": replace(runner, ablation_type="mean", means=means)}  # with the same baseline
    return {
        kind: [base, *(float(each.measure_losses(take_share(order, share)).mean()) for share in SHARES[1:])]
        for kind, each in runners.items()
    }


def measured(name: str, options: argparse.Namespace) -> dict[str, Any]:
    model = headscope.load(name, objective=True, device=options.device)
    started = time.monotonic()
    first, second = halves(options.texts, options.windows)
    ranking, removal = (
        read_windows(model, each, length=options.length, limit=None).windows for each in (first, second)
    )
    study = headscope.study(model, first, length=options.length, sample=1.0)
    bench = AblationRunner.create(model, removal, batch_size=options.batch)
    shape = (model.architecture.layers, model.architecture.heads)
    heads = list_heads(model.architecture)
    truth = bench.compute_mean_changes(heads).reshape(shape)
    base = bench.measure_losses([])
    means = compute_head_means(model, (each.batch for each in batch_windows(model, ranking, options.batch)))
    print(f"{model.name}: {bench.objective.name} {base.mean():.4f}, {len(heads)} heads", flush=True)

    def curves(order: Sequence[Any]) -> dict[str, list[float]]:
        return measure_curves(bench, means, float(base.mean()), order)

    found: dict[str, Any] = {}
    given = {
        by: score_heads(model, by, ranking, study=study, batch_size=options.batch) for by in RULES if by != "random"
    }
    given |= split_power(study, given["projected-norm"])
    for by, each in given.items():
        found[by] = {
            "correlation": correlation(each, truth),
            "interval": interval(each, truth),
            "scores": round_scores(each),
            "curves": curves(order_heads(each, model.architecture.numbers)),
        }
        print(f"  {by}: {found[by]['correlation']:+.2f}, {time.monotonic() - started:.0f} s", flush=True)
    for by in STUDY_RULES:
        if by == "signal-share":  # is it the noisy heads that matter?
            found[by]["reversed"] = curves(order_heads(-given[by], model.architecture.numbers))
    chance = [
        curves(order_heads(score_heads(model, "random", ranking, seed=seed), model.architecture.numbers))
        for seed in range(options.draws)
    ]
    step = max(1, len(heads) // options.steps)
    found["greedy"] = {"curves": curves(rank_greedily(model, ranking, step=step, batch_size=options.batch))}
    print(f"  greedy, {time.monotonic() - started:.0f} s", flush=True)
    return {
        "objective": bench.objective.name,
        "base": float(base.mean()),
        "texts": len(removal),
        "layers": shape[0],
        "heads": shape[1],
        "step": step,
        "truth": [[float(f"{x:.6g}") for x in row] for row in truth],
        "rankings": found,
        "random": chance,
        "seconds": time.monotonic() - started,
    }


def updated(name: str, earlier: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """An earlier result of a model with rankings by signal shares measured anew, and their curves."""
    model = headscope.load(name, objective=True, device=options.device)
    first, second = halves(options.texts, options.windows)
    ranking, removal = (
        read_windows(model, documents, length=options.length, limit=None).windows for documents in (first, second)
    )
    if len(removal) != earlier["texts"]:
        raise SystemExit(f"{name}: {len(removal)} windows, and {earlier['texts']} in the earlier result: see --windows")
    means = compute_head_means(model, (numbered.batch for numbered in batch_windows(model, ranking, options.batch)))
    bench = AblationRunner.create(model, removal, batch_size=options.batch)
    base = float(bench.measure_losses([]).mean())

    def curves(scores: np.ndarray) -> dict[str, list[float]]:
        return measure_curves(bench, means, base, order_heads(scores, model.architecture.numbers))

    added: dict[str, Any] = {**earlier.get("added", {}), "study_texts": len(first)}
    added["machine"] = machine(model.device.type)
    added["rankings"] = list(dict.fromkeys([*added.get("rankings", []), *options.only]))
    if options.check:
        old = earlier["rankings"][options.check]
        scores = np.array([[-np.inf if score is None else score for score in row] for row in old["scores"]])
        new = curves(scores)
        added["check"] = {
            "ranking": options.check,
            "largest_difference": max(float(np.abs(np.subtract(new[by], old["curves"][by])).max()) for by in new),
        }
        print(f"  {options.check}, again: {added['check']}", flush=True)
    study = headscope.study(model, first, length=options.length, sample=1.0)
    truth, norms = np.array(earlier["truth"]), np.array(earlier["rankings"]["projected-norm"]["scores"])
    scores_by_ranking = split_power(study, norms) | {
        "signal-share": score_heads(model, "signal-share", [], study=study)
    }
    rankings: dict[str, Any] = {}
    for by in options.only:
        scores = scores_by_ranking[by]
        rankings[by] = {
            "correlation": correlation(scores, truth),
            "interval": interval(scores, truth),
            "scores": round_scores(scores),
            "curves": curves(scores),
        }
        print(f"  {by}: {rankings[by]['correlation']:+.2f} {rankings[by]['interval']}", flush=True)
    others = {by: ranking for by, ranking in earlier["rankings"].items() if by not in (*ADDED, *rankings)}
    kept = {by: ranking for by, ranking in earlier["rankings"].items() if by in ADDED and by not in rankings}
    result = {**earlier, "rankings": {**rankings, **kept, **others}, "added": added}
    result.pop("study_texts", None)
    return result


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--model", nargs="+", default=["minilm"])
    made.add_argument("--texts", default=str(FILE) if FILE.is_file() else None, help="default: the bundled ones")
    made.add_argument("--windows", type=int, default=96, help="to rank on, and as many to remove on")
    made.add_argument("--length", type=int, default=128)
    made.add_argument("--draws", type=int, default=10, help="random orders")
    made.add_argument("--steps", type=int, default=36, help="of the greedy search")
    made.add_argument("--batch", type=int, default=None)
    made.add_argument("--device", default="auto")
    made.add_argument("--json", type=Path)
    made.add_argument("--update", type=Path, metavar="FILE", help="an earlier result, which is changed")
    made.add_argument("--only", nargs="+", choices=ADDED, default=list(ADDED), help="rankings that --update measures")
    made.add_argument("--check", metavar="RANKING", help="of the earlier result, to be measured again")
    made.add_argument("--docs", type=Path, nargs="+", help="results to write docs/pruning.md from")
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    if options.docs:
        results = read_all(options.docs)
        write_page(DOCS / "pruning.md", SECTIONS, results)
        draw(results, DOCS / "images" / "pruning.png")
        return
    if options.update:
        result = json.loads(options.update.read_text(encoding="utf-8"))
        for name in options.model:
            result["models"][Path(name).name] = updated(name, result["models"][Path(name).name], options)
            save(result, options.update)
        return
    models = {Path(name).name: measured(name, options) for name in options.model}
    device = "cuda" if torch.cuda.is_available() and options.device != "cpu" else "cpu"
    result = {
        "kind": "pruning",
        "texts": Path(options.texts).name if options.texts else "bundled texts",
        "shares": list(SHARES),
        "machine": machine(device),
        "models": models,
    }
    print(summary_table(result))
    if options.json:
        save(result, options.json)


if __name__ == "__main__":
    main()
