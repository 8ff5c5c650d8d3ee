"""Distributions over texts: the rates of heads (Figs. 6, 8, 11a) and their different dominant tokens (Fig. 11b)."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator

from headscope.figures.selection import Numbers, heads_of, last_layer, layers_of, need
from headscope.figures.style import (
    BLACK,
    DASHED,
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
from headscope.types import Floats, Ints

Counts = Floats | Ints
PERCENT = 100.0


def repeat_rates(study: Study, layers: Numbers = None, heads: Numbers = None) -> Figure:
    """Fig. 6a: how often a head's high pairs are of equal tokens, over texts."""
    return _rates(study, "repeat_rate", "high pairs of equal tokens (% of the text's high pairs)", layers, heads)


def repeat_rates_in_sentence(study: Study, layers: Numbers = None, heads: Numbers = None) -> Figure:
    """Fig. 6b: the same among the high pairs within one sentence."""
    return _rates(
        study, "repeat_rate_in_sentence", "high pairs of equal tokens (% of those in one sentence)", layers, heads
    )


def same_sentence_rates(study: Study, layers: Numbers = None, heads: Numbers = None) -> Figure:
    """Fig. 8: how often a head's high pairs lie within one sentence, over texts."""
    return _rates(study, "same_sentence_rate", "high pairs in one sentence (% of the text's high pairs)", layers, heads)


def dominant_shares(study: Study, layers: Numbers = None, heads: Numbers = None) -> Figure:
    """Fig. 11a: the share of a head's high pairs that include its dominant token, over texts."""
    return _rates(
        study, "dominant_share", "high pairs with the dominant token (% of the text's high pairs)", layers, heads
    )


def _rates(study: Study, name: str, words: str, layers: Numbers, heads: Numbers) -> Figure:
    rows = layers_of(study, layers, last_layer(study))
    columns = heads_of(study, heads, study.heads)
    at = {"layer": rows, "head": columns}
    rate = study.rate(name).sel(at).values * PERCENT
    error = study.standard_error(name).sel(at).values * PERCENT
    chance = study.chance(name).broadcast_like(study.rate(name)).sel(at).values * PERCENT
    counts = study.data[f"{name}_texts"].sel(at).values
    with styled():
        figure, panels = head_grid([len(columns)] * len(rows))
        for axes, (row, column) in zip(panels, np.ndindex(rate.shape), strict=True):
            marks = float(rate[row, column]), float(error[row, column]), float(chance[row, column])
            _rate_panel(axes, head_label(rows[row], columns[column]), counts[row, column], *marks)
        reach = _reach(counts, rate, chance)
        panels[0].set_xlim(0, reach)
        panels[0].xaxis.set_major_locator(FixedLocator([0, reach / 2, reach]))
        root_scale(panels, max(shares(row).max() for row in counts.reshape(-1, counts.shape[-1])))
        figure.supxlabel(words)
        figure.supylabel("share of texts (%, square-root scale)")
        legend(figure, panels, ("texts", "rate of the head", "chance"))
    return figure


def _rate_panel(axes: Axes, name: str, counts: Counts, rate: float, error: float, chance: float) -> None:
    if np.isnan(rate):
        heading(axes, name)
        note(axes, "no pairs")
    else:
        heading(axes, name, plus_minus(rate, error))
        edges = np.linspace(0, PERCENT, len(counts) + 1)
        axes.stairs(shares(counts), edges, fill=True, color=SKY, label="texts")
        axes.axvline(rate, color=BLACK, linewidth=1.0, label="rate of the head")
    if not np.isnan(chance):
        axes.axvline(chance, color=VERMILION, linewidth=1.0, linestyle=DASHED, label="chance")


def distinct_dominants(study: Study, layers: Numbers = None, heads: Numbers = None) -> Figure:
    """Fig. 11b: how many different dominant tokens the heads of a layer have, over texts.

    It is counted over all heads of a layer; `heads` is checked and changes nothing.
    """
    need(study, "Fig. 11b", ["distinct_dominants"])
    rows = layers_of(study, layers, last_layer(study))
    heads_of(study, heads, study.heads)
    number = study.data["count"].values
    with styled():
        figure, panels = layer_grid(len(rows))
        for axes, layer in zip(panels, rows, strict=True):
            share = shares(study.data["distinct_dominants"].sel(layer=layer).values)
            mean = float(share @ number) / PERCENT
            heading(axes, f"L{layer}", f"mean {mean:.1f} of {number[-1]}")
            axes.bar(number, share, width=0.8, color=SKY, label="texts")
            axes.axvline(mean, color=BLACK, linewidth=1.0, label="mean")
        panels[0].set_xlim(-0.6, number[-1] + 0.6)
        panels[0].xaxis.set_major_locator(MaxNLocator(13 if len(rows) <= 4 else 6, integer=True, steps=[1, 2, 5, 10]))
        panels[0].yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
        figure.supxlabel("different dominant tokens among the heads of a layer")
        figure.supylabel("share of texts (%)")
        legend(figure, panels, ("texts", "mean"))
    return figure


def shares(counts: Counts) -> Floats:
    """Counts as percent of their sum; zeros where there are none."""
    return np.asarray(counts * (PERCENT / max(counts.sum(), 1)), dtype=np.float64)


def plus_minus(value: float, error: float) -> str:
    """A number and its standard error; two decimals where one would make the error look like nothing."""
    if np.isnan(error):
        return f"{value:.1f}"
    decimals = 2 if 0 < error < 0.05 and value < 100 else 1
    return f"{value:.{decimals}f} ± {error:.{decimals}f}"


def _reach(counts: Ints, *marks: Floats) -> float:
    """Where the x axis ends, in percent: at the next full ten after the last bin that holds texts, and the marks."""
    bins = np.flatnonzero(counts.reshape(-1, counts.shape[-1]).sum(axis=0))
    last = (bins[-1] + 1) / counts.shape[-1] * PERCENT if len(bins) else 10.0
    last = max(last, *(float(np.nanmax(mark, initial=0)) for mark in marks))
    return float(min(np.ceil(last / 10 - 1e-9) * 10, PERCENT))
