"""The tables of the noise benchmark."""

from __future__ import annotations

from typing import Any

import numpy as np

from measuring.tables import NONE, Section, made_with, number, of_kind, table


def planted_table(result: dict[str, Any], *, markdown: bool = False) -> str:
    """What is found of what was planted."""
    header = ["head", "planted", "signal share", "error", "equal", "sentence", "neighbours", "position", "dB"]
    rows = []
    for case in result["planted"]:
        ratio = number(case["snr_db"], 1) if np.isfinite(case["snr_db"]) else NONE
        parts = [number(share, 3) for share in case["relations"]]
        position = f"{number(case['position_share'], 2)} of {number(case['planted_position'], 2)}"
        share = [number(case[name], 3) for name in ("signal_share", "signal_share_error")]
        rows.append([case["name"], number(case["planted"], 2), *share, *parts, position, ratio])
    return table(header, rows, markdown=markdown)


def _planted(results: list[dict[str, Any]]) -> str:
    (result,) = of_kind(results, "noise")
    return f"{planted_table(result, markdown=True)}\n\n{result['windows']} windows, {made_with(result['machine'])}."


def _covered(results: list[dict[str, Any]]) -> str:
    """How often the planted share is within one and two errors."""
    (result,) = of_kind(results, "noise")
    rows = [
        [case["name"], str(case["heads"]), *(f"{100 * x:.0f} %" for x in case["within"]), number(case["spread"])]
        for case in result["covered"]
    ]
    header = ["heads that write", "heads", "within 1 error", "within 2 errors", "spread / error"]
    return table(header, rows, markdown=True)


def _layers(results: list[dict[str, Any]]) -> str:
    """The median head of each layer."""
    (result,) = of_kind(results, "noise")
    rows = []
    for model, held in result["models"].items():
        for layer, signal in enumerate(held["signal"]):
            shares = [signal, *held["relations"][layer], held["position"][layer]]
            rows.append([model, str(layer), *(f"{100 * share:.0f} %" for share in shares)])
    header = ["model", "layer", "signal", "equal tokens", "one sentence", "neighbours", "position"]
    return table(header, rows, markdown=True)


def _models(results: list[dict[str, Any]]) -> str:
    """How well a model's shares are known."""
    (result,) = of_kind(results, "noise")
    rows = [
        [
            model,
            str(held["texts"]),
            " … ".join(f"{100 * share:.0f}" for share in held["range"]) + " %",
            f"{100 * held['error']:.1f} %",
            f"{held['halves']:+.2f}",
            str(held["without_ratio"]),
        ]
        for model, held in result["models"].items()
    ]
    header = ["model", "texts", "signal shares of heads", "median error", "with other texts", "heads without signal"]
    return table(header, rows, markdown=True)


SECTIONS: dict[str, Section] = {"planted": _planted, "covered": _covered, "models": _models, "layers": _layers}
