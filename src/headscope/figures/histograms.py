"""Histograms over pairs: how far apart high pairs are (Figs. 7 and 13), and how similar all pairs are (values)."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, MultipleLocator, NullLocator

from headscope.figures.distributions import Counts, plus_minus, shares
from headscope.figures.selection import Numbers, early_to_late, heads_of, last_layer, layers_of
from headscope.figures.style import (
    BLACK,
    DASHED,
    GREY,
    SKY,
    VERMILION,
    head_grid,
    head_label,
    heading,
    layer_grid,
    legend,
    note,
    root_scale,
    styled,
)
from headscope.studies.result import Study
from headscope.types import Floats

GAP = (0.1, 0.6)
"""normalized similarities that the paper finds rare"""
GAP_LABEL = f"{GAP[0]} to {GAP[1]}, the paper's gap"


def distances(study: Study, layers: Numbers = None, heads: Numbers = None) -> Figure:
    """Fig. 7: how many tokens apart a head's high pairs are."""
    rows = layers_of(study, layers, last_layer(study))
    columns = heads_of(study, heads, study.heads)
    mean, error = study.rate("mean_distance"), study.standard_error("mean_distance")
    cases = [(layer, head) for layer in rows for head in columns]
    with styled():
        figure, panels = head_grid([len(columns)] * len(rows))
        largest = []
        for axes, (layer, head) in zip(panels, cases, strict=True):
            at = {"layer": layer, "head": head}
            words = plus_minus(float(mean.sel(at)), float(error.sel(at)))
            counts = study.data["distance"].sel(at).values
            largest.append(_distance_panel(axes, study, head_label(layer, head), counts, words))
        _distance_axes(figure, panels, study, max(largest))
    return figure


def distances_by_layer(study: Study, layers: Numbers = None, heads: Numbers = None) -> Figure:
    """Fig. 13: how many tokens apart the high pairs of a layer's heads are, all heads pooled (or those asked for)."""
    rows = layers_of(study, layers, early_to_late(study))
    pooled = heads_of(study, heads, study.heads)
    with styled():
        figure, panels = layer_grid(len(rows))
        largest = []
        for axes, layer in zip(panels, rows, strict=True):
            counts = study.data["distance"].sel(layer=layer, head=pooled).sum("head").values
            mean = float(counts @ study.data["tokens_apart"].values) / max(counts.sum(), 1)
            largest.append(_distance_panel(axes, study, f"L{layer}", counts, f"mean {mean:.1f} tokens"))
        _distance_axes(figure, panels, study, max(largest))
    return figure


def chance_profile(study: Study) -> Floats:
    """Percent of all pairs by distance: a window of N tokens has N−d pairs that are d apart."""
    apart, tokens = study.data["tokens_apart"].values, study.data["tokens"].values
    pairs = np.maximum(tokens[None, :] - apart[:, None], 0) @ study.data["window_tokens"].values
    return shares(pairs)


def _distance_panel(axes: Axes, study: Study, name: str, counts: Counts, words: str) -> float:
    """Draws one histogram; its largest share."""
    apart = study.data["tokens_apart"].values
    if counts.sum() == 0:
        heading(axes, name)
        note(axes, "no pairs")
    else:
        heading(axes, name, words)
        axes.stairs(shares(counts), np.append(apart, len(apart) + 1) - 0.5, fill=True, color=SKY, label="high pairs")
        axes.axvline(float(counts @ apart) / counts.sum(), color=BLACK, linewidth=1.0, label="their mean")
    axes.plot(
        apart, chance_profile(study), color=VERMILION, linewidth=1.0, linestyle=DASHED, label="all pairs (chance)"
    )
    return float(shares(counts).max(initial=0))


def _distance_axes(figure: Figure, panels: list[Axes], study: Study, largest: float) -> None:
    panels[0].set_xlim(0, len(study.data["tokens_apart"]) + 1)
    panels[0].xaxis.set_major_locator(MaxNLocator(3 if len(panels) > 4 else 6, integer=True))
    root_scale(panels, max(largest, chance_profile(study).max()))
    figure.supxlabel("distance j − i (tokens)")
    figure.supylabel("share of pairs (%, square-root scale)")
    legend(figure, panels, ("high pairs", "their mean", "all pairs (chance)"))


def values(study: Study, layers: Numbers = None, heads: Numbers = None) -> Figure:
    """How similar the pairs of a layer are, C/max(C), all heads pooled (or those asked for): the paper's gap."""
    rows = layers_of(study, layers, early_to_late(study))
    pooled = heads_of(study, heads, study.heads)
    centres, theta = study.data["value_bin"].values, float(study.data.attrs["theta"])
    counts = study.data["value_histogram"].sel(layer=rows, head=pooled).sum("head").values
    share = np.array([shares(row) for row in counts])
    floor = share[share > 0].min(initial=1.0) / 2
    with styled():
        figure, panels = layer_grid(len(rows))
        for axes, layer, row in zip(panels, rows, share, strict=True):
            _value_panel(axes, f"L{layer}", row, centres, theta, floor)
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(numticks=5))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.yaxis.set_minor_locator(NullLocator())
        panels[0].set_ylim(floor, max(2 * share.max(), 2 * floor))
        panels[0].set_xlim(-1, 1)
        panels[0].xaxis.set_major_locator(MultipleLocator(0.5))
        figure.supxlabel("normalized similarity C / max(C) of a pair")
        figure.supylabel("share of pairs (%, log scale)")
        legend(figure, panels, ("pairs", GAP_LABEL, f"θ = {theta:g}"))
    return figure


def _value_panel(axes: Axes, name: str, share: Floats, centres: Floats, theta: float, floor: float) -> None:
    low, high = GAP
    axes.axvspan(low, high, color=GREY, linewidth=0, label=GAP_LABEL)
    if share.any():
        below, between = share[centres < low].sum(), share[(centres > low) & (centres < high)].sum()
        heading(axes, name, f"below {low}: {below:.1f} %     {low} to {high}: {between:.1f} %")
        edges = np.linspace(-1, 1, len(share) + 1)
        # a log axis has no zero to stand on
        axes.stairs(np.maximum(share, floor), edges, baseline=floor, fill=True, color=SKY, zorder=2, label="pairs")
    else:
        heading(axes, name)
        note(axes, "no values")
    axes.axvline(theta, color=VERMILION, linewidth=1.0, linestyle=DASHED, label=f"θ = {theta:g}")
