"""The tables of the noise benchmark."""

from __future__ import annotations

from typing import Any

import numpy as np

from measuring.tables import Section, made_with, number, of_kind, table


def planted_table(result: dict[str, Any], *, markdown: bool = False) -> str:
    """What each definition finds of what was planted, in decibels."""
    wanted = [10 * np.log10(1 + ratio) for ratio in result["ratios"]]
    header = ["signal", "outputs", "ratio", *(f"{number(each, 1)} dB" for each in wanted), "error"]
    rows = []
    for case in result["planted"]:
        for definition, held in case["ratios"].items():
            found = [number(each, 1) for each in held["dB"]]
            error = number(float(np.median(held["error"])), 2)
            rows.append([case["signal"], case["how"], definition, *found, error])
    return table(header, rows, markdown=markdown)


def _planted(results: list[dict[str, Any]]) -> str:
    (result,) = of_kind(results, "noise")
    return f"{planted_table(result, markdown=True)}\n\n{result['windows']} windows, {made_with(result['machine'])}."


def _alike(results: list[dict[str, Any]]) -> str:
    """How the definitions agree over the heads of each model, and with themselves on other texts."""
    (result,) = of_kind(results, "noise")
    names = result["definitions"]
    rows = []
    for model, held in result["models"].items():
        for k, name in enumerate(names):
            alike = [f"{held['alike'][k][j]:+.2f}" for j in range(len(names))]
            errors = [number(each[name], 2) for each in held["errors"].values()]
            row = [model, name, " / ".join(errors), number(held["spread"][name], 1)]
            rows.append([*row, f"{held['halves'][name]:+.2f}", *alike])
    texts = " / ".join(next(iter(result["models"].values()))["errors"])
    header = ["model", "ratio", f"error with {texts} texts, dB", "spread over heads, dB", "with itself, other texts"]
    header += [f"with {name}" for name in names]
    return table(header, rows, markdown=True)


def _layers(results: list[dict[str, Any]]) -> str:
    """The median head of each layer, by the default definition, and what its signal is of."""
    (result,) = of_kind(results, "noise")
    rows = []
    for model, held in result["models"].items():
        for layer, ratio in enumerate(held["by_layer"]):
            nearer = [f"{100 * shares[layer]:.0f} %" for shares in held["shares"].values()]
            rows.append([model, str(layer), number(ratio, 1), *nearer])
    sources = next(iter(result["models"].values()))["shares"]
    return table(["model", "layer", "dB", *sources], rows, markdown=True)


SECTIONS: dict[str, Section] = {"planted": _planted, "alike": _alike, "layers": _layers}
