"""Do signal shares say what they should? Planted signals of known strength, and real models.

    python benchmarks/noise.py [--model NAME …] [--texts FILE] [--windows 128] [--json FILE]
    python benchmarks/noise.py --docs benchmarks/results/noise.json

Planted: heads that write noise, position, a signal shared by equal tokens, by a sentence's tokens or by neighbours, or
a mixture, over the windows of the bundled texts; their shares are known. Coverage: how often the known share lies
within one and two standard errors, over many such heads. Real: shares of each model's heads, and their rank correlation
with the same heads on other texts.

`--docs` writes the tables of docs/noise.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import headscope
from headscope.corpus.windows import Window, WindowSpec
from measuring.noise_tables import SECTIONS, planted_table
from measuring.planting import RELATIONS, plant_head, study_heads
from measuring.tables import DOCS, machine, read_all, save, write_page
from pruning import correlation

MIXTURE = {"equal": 0.2, "same": 0.2, "near": 0.2}
PLANTED: list[tuple[str, dict[str, float], dict[str, float]]] = [
    ("noise", {}, {}),
    ("noise, lengths by token", {}, {"tail": 0.7}),
    ("position only", {"position": 1.0}, {}),
    ("position and noise", {"position": 0.5}, {}),
    ("much position and noise", {"position": 0.95}, {}),
    ("mixture, places exchanged", {"equal": 0.3, "same": 0.3, "near": 0.35}, {"shuffle": 1}),
    *(
        (relation, {name: share}, {})
        for name, relation in zip(RELATIONS, ("equal tokens", "one sentence", "neighbours"), strict=True)
        for share in (0.05, 0.2, 0.5, 0.8, 0.95)
    ),
    ("equal and sentence", {"equal": 0.3, "same": 0.2}, {}),
    ("equal and neighbours", {"equal": 0.2, "near": 0.3}, {}),
    ("sentence and neighbours", {"same": 0.3, "near": 0.3}, {}),
    ("all three", MIXTURE, {}),
    ("all three and position", {**MIXTURE, "position": 0.5}, {}),
    ("all three and much position", {**MIXTURE, "position": 0.9}, {}),
    ("all three, common vector", MIXTURE, {"offset": 3.0}),
    ("all three, lengths by token", MIXTURE, {"tail": 0.7}),
    ("all three, one table of tokens", MIXTURE, {"constant": 1}),
]
"""name, shares, and other arguments of `plant_head`"""
COVERED: dict[str, dict[str, float]] = {
    "noise": {},
    "position and noise": {"position": 0.5},
    "all three": MIXTURE,
    "all three and position": {**MIXTURE, "position": 0.5},
}


def windows_of(count: int) -> list[Window]:
    cut, model = WindowSpec(windows="all", min_tokens=60), headscope.load()
    cut_documents = (model.windows(document, cut) for document in headscope.documents())
    return [window for windows in cut_documents if not isinstance(windows, str) for window in windows][:count]


def expected_share(shares: dict[str, float], how: dict[str, float]) -> float:
    return 0.0 if how.get("shuffle") else sum(shares.get(name, 0.0) for name in RELATIONS)


def recovered(windows: Sequence[Window]) -> list[dict[str, Any]]:
    heads = [plant_head(windows, shares, k, **how) for k, (_, shares, how) in enumerate(PLANTED)]  # type: ignore[arg-type]
    measured = study_heads(windows, heads).signal_shares()
    names = ("signal_share", "signal_share_error", "position_share", "snr_db")
    return [
        {
            "name": name,
            "planted": expected_share(shares, how),
            "planted_position": shares.get("position", 0.0),
            **{each: float(measured[each].values[0, k]) for each in names},
            "relations": measured["relation_share"].values[0, k].tolist(),
        }
        for k, (name, shares, how) in enumerate(PLANTED)
    ]


def covered(windows: Sequence[Window], heads: int) -> list[dict[str, Any]]:
    """How often the planted share lies within so many errors, over many heads."""
    results = []
    for name, shares in COVERED.items():
        planted = [plant_head(windows, shares, 1000 + k, width=8) for k in range(heads)]
        measured = study_heads(windows, planted).signal_shares()
        difference = np.abs(measured["signal_share"].values[0] - expected_share(shares, {}))
        ratios = difference / measured["signal_share_error"].values[0]
        spread = float(np.std(measured["signal_share"].values[0]) / measured["signal_share_error"].values[0].mean())
        results.append(
            {"name": name, "within": [float((ratios < k).mean()) for k in (1, 2)], "spread": spread, "heads": heads}
        )
    return results


def of_model(name: str, texts: str | None, count: int) -> dict[str, Any]:
    """Shares of a model's heads by layer, and how well those of half the documents agree with those of the others."""
    model = headscope.load(name)
    documents = list(headscope.documents(texts) if texts else headscope.documents())
    chosen = documents[:: max(1, len(documents) // count)][:count]  # all kinds of texts, which lie in the file in a row
    study = headscope.study(model, chosen, sample=1.0)
    shares = study.signal_shares()
    first, second = (headscope.study(model, chosen[k::2], sample=1.0).signal_shares() for k in range(2))
    return {
        "texts": study.texts,
        "signal": np.median(shares["signal_share"], axis=1).tolist(),
        "position": np.median(shares["position_share"], axis=1).tolist(),
        "relations": np.median(shares["relation_share"], axis=1).tolist(),
        "error": float(np.nanmedian(shares["signal_share_error"])),
        "range": [float(np.nanmin(shares["signal_share"])), float(np.nanmax(shares["signal_share"]))],
        "halves": correlation(first["signal_share"].values, second["signal_share"].values),
        "without_ratio": int(np.isnan(shares["snr_db"]).sum()),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=["minilm"])
    parser.add_argument("--texts")
    parser.add_argument("--windows", type=int, default=128, help="of the bundled texts, for planted signals")
    parser.add_argument("--heads", type=int, default=200, help="for the coverage of errors")
    parser.add_argument("--documents", type=int, default=200, help="for the models")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--docs", type=Path, nargs="+", help="results to write docs/noise.md from")
    options = parser.parse_args(arguments)
    if options.docs:
        write_page(DOCS / "noise.md", SECTIONS, read_all(options.docs))
        return
    windows = windows_of(options.windows)
    result = {
        "kind": "noise",
        "windows": len(windows),
        "planted": recovered(windows),
        "covered": covered(windows, options.heads),
        "models": {Path(name).name: of_model(name, options.texts, options.documents) for name in options.model},
        "machine": machine("cpu"),
    }
    print(planted_table(result))
    if options.json:
        save(result, options.json)


if __name__ == "__main__":
    main()
