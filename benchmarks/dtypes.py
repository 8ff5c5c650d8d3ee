"""What narrower dtypes change in each statistic, beside the sampling error of the same study.

    python benchmarks/dtypes.py [--model NAME] [--texts 64] [--device cpu|cuda] [--json FILE]
    python benchmarks/dtypes.py --docs benchmarks/results/dtypes-*.json

The truth is float32 with exact products; the others are bfloat16, float16 and, on CUDA, float32 with TF32 products. All
study the same texts, so every difference is the dtype's. A standard error is the jackknife's of the study in float32: a
change far below it is one that other texts would make anyway. Pairs are compared text by text.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from measuring import setup
from measuring.dtype_tables import SECTIONS, dtypes_table
from measuring.tables import DOCS, machine, read_all, save, write_page

TRUTH = "float32"
OTHERS = {"cpu": ("bfloat16", "float16"), "cuda": ("tf32", "bfloat16", "float16")}
TOUCHED = 5
NEAR = slice(-1, 1)
"""offsets to a token itself and its neighbours"""
Statistic = Callable[[Any], np.ndarray]


@dataclass(frozen=True)
class Quantity:
    """A number that people read, of every head or of every layer."""

    name: str
    of: Statistic
    percent: bool = False
    receivers: bool = False
    """a number for every layer and receiver"""


def rate(name: str) -> Statistic:
    return lambda study: study.rate(name).values


def near(study: Any) -> np.ndarray:
    offsets = study.data["attention_offset"]
    return (offsets.sel(offset=NEAR).sum("offset") / offsets.sum("offset")).values


def distinct(study: Any) -> np.ndarray:
    held = study.data["distinct_dominants"]
    return ((held * held["count"]).sum("count") / held.sum("count")).values


def below(study: Any) -> np.ndarray:
    held = study.data["value_histogram"]
    return (held.sel(value_bin=slice(None, 0.1)).sum("value_bin") / held.sum("value_bin")).values


QUANTITIES = (
    Quantity("pairs per text", lambda study: (study.data["pairs"] / study.data["texts"]).values),
    Quantity("repeat rate", rate("repeat_rate"), percent=True),
    Quantity("repeat rate in sentence", rate("repeat_rate_in_sentence"), percent=True),
    Quantity("same-sentence rate", rate("same_sentence_rate"), percent=True),
    Quantity("mean distance, tokens", rate("mean_distance")),
    Quantity("dominant share", rate("dominant_share"), percent=True),
    Quantity("distinct dominants of a layer", distinct),
    Quantity("similarities below 0.1", below, percent=True),
    Quantity("attention within ±1", near, percent=True),
    Quantity(
        "attention received", lambda study: study.data["attention_received_share"].values, percent=True, receivers=True
    ),
)


# -- one dtype ---------------------------------------------------------------------------------------------------------


@contextmanager
def model_in(kind: str, options: argparse.Namespace) -> Iterator[Any]:
    """The model in a dtype, its float32 products exact unless it is TF32 that is asked for."""
    chosen = argparse.Namespace(**vars(options))
    chosen.dtype, chosen.tf32 = ("float32", True) if kind == "tf32" else (kind, False)
    before = torch.get_float32_matmul_precision()
    try:
        yield setup.model_of(chosen)
    finally:
        torch.set_float32_matmul_precision(before)


def studied(kind: str, options: argparse.Namespace) -> tuple[Any, list[np.ndarray]]:
    """A study in a dtype, and the high pairs of the first few texts (layer, head, i, j)."""
    import headscope

    print(f"studying in {kind} …", file=sys.stderr, flush=True)
    texts = list(setup.texts_of(options, options.texts))
    with model_in(kind, options) as model:
        study = headscope.study(model, texts, length=options.length, sample=1.0, tf32=kind == "tf32")
        readings = [headscope.read(model, text, length=options.length) for text in texts[: options.read]]
    return study, [high_pairs(reading.similarity.values) for reading in readings]


def high_pairs(similarity: np.ndarray, theta: float = 0.3) -> np.ndarray:
    return np.triu(similarity > theta * similarity.max((-2, -1), keepdims=True), k=1)


# -- two dtypes --------------------------------------------------------------------------------------------------------


def change(quantity: Quantity, truth: Any, other: Any) -> dict[str, Any]:
    """How much a quantity changes: mean and largest over heads, where, and how large the sampling errors are."""
    before, error = truth.jackknife(quantity.of)
    moved = np.abs(quantity.of(other) - before)
    at = np.unravel_index(np.nanargmax(moved), moved.shape)
    scale = 100 if quantity.percent else 1
    return {
        "name": quantity.name,
        "percent": quantity.percent,
        "error": scale * float(np.nanmedian(error)) if np.isfinite(error).any() else None,
        "mean": scale * float(np.nanmean(moved)),
        "largest": scale * float(moved[at]),
        "where": place(quantity, truth, at),
        "in_errors": in_errors(moved, error),
    }


def in_errors(moved: np.ndarray, error: np.ndarray) -> float | None:
    """The largest change in units of the same head's own standard error; None where there are no errors."""
    known = np.isfinite(moved) & (error > 0)
    return float((moved[known] / error[known]).max()) if known.any() else None


def place(quantity: Quantity, study: Any, at: tuple[Any, ...]) -> str:
    layer = f"L{study.layers[int(at[0])]}"
    if quantity.receivers:
        return f"{layer}, {study.data['receiver'].values[int(at[1])]}"
    return f"{layer}H{study.head_numbers[int(at[1])]}" if len(at) > 1 else layer


def pairs_changed(truth: list[np.ndarray], other: list[np.ndarray], study: Any) -> dict[str, Any]:
    """Of the pairs that are high in either dtype, the share that is not in both; and the heads with the most such."""
    either = sum((a | b).sum((-2, -1)) for a, b in zip(truth, other, strict=True))
    differing = sum((a ^ b).sum((-2, -1)) for a, b in zip(truth, other, strict=True))
    share = differing / np.maximum(either, 1)
    order = np.argsort(share, axis=None)[::-1][:TOUCHED]
    places = [np.unravel_index(k, share.shape) for k in order]
    return {
        "texts": len(truth),
        "share": float(np.sum(differing) / max(1, np.sum(either))),
        "heads": [[f"L{study.layers[at[0]]}H{study.head_numbers[at[1]]}", float(share[at])] for at in places],
    }


def most_attended(truth: Any, other: Any) -> float:
    """Over all layers, the share of texts whose most attended token can be the same in both."""
    a, b = (dict(zip(s.data["token"].values, s.data["most_attended"].values.T, strict=True)) for s in (truth, other))
    common = sum(np.minimum(a[token], b[token]).sum() for token in a.keys() & b.keys())
    return float(common / (truth.texts * len(truth.layers)))


def strongest_offset(truth: Any, other: Any) -> float:
    """The share of heads whose attention is strongest at the same offset."""
    a, b = (study.data["attention_offset"].values.argmax(-1) for study in (truth, other))
    return float((a == b).mean())


def changed_verdicts(found: list[Any], others: list[Any]) -> list[dict[str, Any]]:
    return [
        {"number": a.number, "before": f"{a.verdict}, {a.number_text}", "after": f"{b.verdict}, {b.number_text}"}
        for a, b in zip(found, others, strict=True)
        if a.verdict != b.verdict
    ]


def compared(truth: Any, other: Any, pairs: tuple[list[np.ndarray], list[np.ndarray]]) -> dict[str, Any]:
    return {
        "quantities": [change(quantity, truth, other) for quantity in QUANTITIES],
        "pairs": pairs_changed(*pairs, truth),
        "most_attended": most_attended(truth, other),
        "strongest_offset": strongest_offset(truth, other),
    }


def measured(options: argparse.Namespace) -> dict[str, Any]:
    import headscope
    from headscope.errors import HeadscopeError

    made_on = machine(options.device)
    truth, pairs = studied(TRUTH, options)
    found = headscope.findings(truth)
    dtypes: dict[str, Any] = {}
    for kind in OTHERS[options.device]:
        try:
            other, others_pairs = studied(kind, options)
        except HeadscopeError as why:  # a dtype too narrow for the model
            dtypes[kind] = {"failed": str(why)}
        else:
            dtypes[kind] = compared(truth, other, (pairs, others_pairs))
            dtypes[kind] |= {
                "verdicts": len(found),
                "changed_verdicts": changed_verdicts(found, headscope.findings(other)),
            }
    about = {
        "model": f"random weights, {options.shape}" if options.shape else Path(options.model).name,
        "texts": truth.texts,
        "length": options.length,
        "device": options.device,
        "layers": len(truth.layers),
        "heads": len(truth.head_numbers),
        **made_on,
    }
    return {"kind": "dtypes", "about": about, "dtypes": dtypes}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    setup.add_options(parser)
    parser.add_argument("--texts", type=int, default=64)
    parser.add_argument("--read", type=int, default=8, help="texts whose own pairs are compared")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the result there")
    parser.add_argument("--docs", type=Path, nargs="+", metavar="FILE", help="write docs/dtypes.md from these")
    options = parser.parse_args(arguments)
    if options.docs:
        write_page(DOCS / "dtypes.md", SECTIONS, read_all(options.docs))
        return
    result = measured(options)
    print(dtypes_table(result))
    if options.json:
        save(result, options.json)


if __name__ == "__main__":
    main()
