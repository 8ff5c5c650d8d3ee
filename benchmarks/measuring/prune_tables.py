"""The tables and the figure of the pruning benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from measuring.tables import NONE, Section, made_with, number, of_kind, table

SHOWN = (0.1, 0.3, 0.5)
"""shares of heads removed that stand in the tables"""
DRAWN = {
    "signal-share": ("signal share", "#0072B2"),
    "norm": ("output norm", "#E69F00"),
    "projected-norm": ("projected norm", "#CC79A7"),
    "gradient": ("gradient", "#009E73"),
    "ablation": ("ablation, once", "#D55E00"),
    "greedy": ("greedy", "#000000"),
}


def _models(results: list[dict[str, Any]]) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Each model's part, and the result it stands in."""
    return {name: (held, each) for each in of_kind(results, "pruning") for name, held in each["models"].items()}


def _random(held: dict[str, Any], by: str) -> np.ndarray:
    """(draws, shares)"""
    return np.array([each[by] for each in held["random"]])


def summary_table(result: dict[str, Any], *, markdown: bool = False) -> str:
    """Of each model and ranking: the rank correlation, and the objective at some shares of heads removed by zero."""
    parts = []
    for name, held in result["models"].items():
        parts.append(f"{name}: {held['objective']} {held['base']:.4f}")
        parts.append(_ranking_table(held, result["shares"], markdown=markdown))
    return "\n\n".join(parts)


def _ranking_table(held: dict[str, Any], shares: list[float], *, markdown: bool) -> str:
    at = [shares.index(share) for share in SHOWN]
    header = ["ranking", "correlation", "95 %"]
    header += [f"−{share:.0%} by {by}" for by in ("zero", "mean") for share in SHOWN]
    rows = []
    for name, each in held["rankings"].items():
        edges = each.get("interval")
        shown = f"{edges[0]:+.2f} … {edges[1]:+.2f}" if edges else NONE
        found = f"{each['correlation']:+.2f}" if "correlation" in each else NONE
        losses = _losses(each["curves"], at) if "curves" in each else [NONE] * 2 * len(at)
        rows.append([name, found, shown, *losses])
        if "reversed" in each:
            rows.append([f"{name}, most first", NONE, NONE, *_losses(each["reversed"], at)])
    chance = {by: _random(held, by) for by in ("zero", "mean")}
    rows.append(["random, mean", NONE, NONE, *_losses({by: each.mean(0) for by, each in chance.items()}, at)])
    rows.append(["random, best of all", NONE, NONE, *_losses({by: each.min(0) for by, each in chance.items()}, at)])
    return table(header, rows, markdown=markdown)


def _losses(curves: Any, at: list[int]) -> list[str]:
    return [number(float(curves[by][k]), 3) for by in ("zero", "mean") for k in at]


def _rankings(results: list[dict[str, Any]]) -> str:
    parts = []
    for name, (held, result) in _models(results).items():
        words = f"{held['objective']}, {held['base']:.3f} with all heads" if held["base"] > 1e-6 else held["objective"]
        parts.append(f"**{name}** ({held['layers']} × {held['heads']} heads; {words}; {held['texts']} windows)")
        parts.append(_ranking_table(held, result["shares"], markdown=True))
    made = dict.fromkeys(made_with(result["machine"]) for _, result in _models(results).values())
    added = [
        f"{', '.join(held['added']['rankings'])} of {name}: {made_with(held['added']['machine'])}."
        for name, (held, _) in _models(results).items()
        if "added" in held
    ]
    return "\n\n".join([*parts, " ".join([f"{'; '.join(made)}.", *added])])


def _correlations(results: list[dict[str, Any]]) -> str:
    """The rank correlations of all models side by side."""
    models = _models(results)
    names = dict.fromkeys(rule for held, _ in models.values() for rule in held["rankings"])
    rows = []
    for rule in names:
        cells = []
        for held, _ in models.values():
            each = held["rankings"].get(rule, {})
            low, high = each.get("interval", (None, None))
            cells.append(NONE if low is None else f"{each['correlation']:+.2f} ({low:+.2f} … {high:+.2f})")
        if any(cell != NONE for cell in cells):
            rows.append([rule, *cells])
    return table(["ranking", *models], rows, markdown=True)


def _removed(results: list[dict[str, Any]]) -> str:
    """What real removal saves."""
    rows = []
    for result in of_kind(results, "pruned"):
        for case in result["cases"]:
            whole, masked, pruned = (case["ways"][name] for name in ("whole", "masked", "pruned"))
            size = f"{pruned['parameters'] / whole['parameters']:.1%}"
            times = [number(way["ratio"]) for way in (masked, pruned)]
            gone = f"{case['heads_removed']} of {case['heads']}"
            rows.append(
                [result["model"], gone, ", ".join(case["how"]), size, *times, f"{case['difference_float32']:.0e}"]
            )
    header = ["model", "heads removed", "how", "parameters", "time, masked", "time, removed", "differ by"]
    made = dict.fromkeys(made_with(result["machine"]) for result in of_kind(results, "pruned"))
    return f"{table(header, rows, markdown=True)}\n\n{'; '.join(made)}."


SECTIONS: dict[str, Section] = {"correlations": _correlations, "rankings": _rankings, "removed": _removed}


def draw(results: list[dict[str, Any]], path: Path) -> None:
    """The curves of all models, heads removed by zero: rankings as lines, random orders as a band."""
    from matplotlib.figure import Figure

    from headscope.figures.style import DOUBLE_COLUMN, style_ticks, styled, write_heading

    models = _models(results)
    with styled():
        figure = Figure(figsize=(DOUBLE_COLUMN, 2.6), layout="constrained")
        panels = figure.subplots(1, len(models), squeeze=False)[0]
        for axes, (name, (held, result)) in zip(panels, models.items(), strict=True):
            style_ticks(axes)
            write_heading(axes, name, held["objective"])
            share = 100 * np.array(result["shares"])
            chance = _random(held, "zero")
            axes.fill_between(share, chance.min(0), chance.max(0), color="#D9D9D9", linewidth=0, label="random, range")
            axes.plot(
                share, chance.mean(0), color="#888888", linewidth=1.0, linestyle=(0, (3, 2)), label="random, mean"
            )
            for rule, (label, colour) in DRAWN.items():
                curves = held["rankings"].get(rule, {}).get("curves")
                if curves:
                    axes.plot(share, curves["zero"], color=colour, linewidth=1.2, label=label)
            axes.set_xlabel("heads removed (%)")
            axes.set_xlim(0, share[-1])
            axes.set_ylim(bottom=min(0.0, held["base"]) if held["base"] < 0.1 else 0.95 * held["base"])
        panels[0].set_ylabel("objective (less is better)")
        shown = {
            label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=4, frameon=False)
        figure.savefig(path, dpi=200)
    print(path)
