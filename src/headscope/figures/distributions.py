"""Distributions over texts: rates of heads (Figs. 6, 8, 11a), numbers of different dominant tokens (Fig. 11b)."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, MaxNLocator

from headscope.array_types import Floats, Ints
from headscope.figures.selection import Selection, get_last_layer, require_variables, select_heads, select_layers
from headscope.figures.style import (
    BLACK,
    DASHED,
    SKY,
    VERMILION,
    Figure,
    draw_legend,
    make_head_grid,
    make_layer_grid,
    set_root_scale,
    styled,
    write_heading,
    write_note,
)
from headscope.studies.labels import format_head
from headscope.studies.result import Study

Counts = Floats | Ints
PERCENT = 100.0


def draw_repeat_rates(study: Study, layers: Selection = None, heads: Selection = None) -> Figure:
    """Draw Fig. 6a: share of a head's high pairs whose tokens are equal, over texts."""
    return _draw_rates(study, "repeat_rate", "high pairs of equal tokens (% of the text's high pairs)", layers, heads)


def draw_repeat_rates_in_sentence(study: Study, layers: Selection = None, heads: Selection = None) -> Figure:
    """Draw Fig. 6b: the same for high pairs within one sentence."""
    return _draw_rates(
        study, "repeat_rate_in_sentence", "high pairs of equal tokens (% of those in one sentence)", layers, heads
    )


def draw_same_sentence_rates(study: Study, layers: Selection = None, heads: Selection = None) -> Figure:
    """Draw Fig. 8: share of a head's high pairs within one sentence, over texts."""
    return _draw_rates(
        study, "same_sentence_rate", "high pairs in one sentence (% of the text's high pairs)", layers, heads
    )


def draw_dominant_shares(study: Study, layers: Selection = None, heads: Selection = None) -> Figure:
    """Draw Fig. 11a: share of a head's high pairs that include its dominant token, over texts."""
    return _draw_rates(
        study, "dominant_share", "high pairs with the dominant token (% of the text's high pairs)", layers, heads
    )


def _draw_rates(study: Study, name: str, x_label: str, layers: Selection, heads: Selection) -> Figure:
    rows = select_layers(study, layers, get_last_layer(study))
    columns = select_heads(study, heads, study.head_numbers)
    selection = {"layer": rows, "head": columns}
    rate = study.rate(name).sel(selection).values * PERCENT
    error = study.standard_error(name).sel(selection).values * PERCENT
    chance = study.chance(name).broadcast_like(study.rate(name)).sel(selection).values * PERCENT
    counts = study.data[f"{name}_texts"].sel(selection).values
    with styled():
        figure, panels = make_head_grid([len(columns)] * len(rows))
        for axes, (row, column) in zip(panels, np.ndindex(rate.shape), strict=True):
            marks = float(rate[row, column]), float(error[row, column]), float(chance[row, column])
            _draw_rate_panel(axes, format_head(rows[row], columns[column]), counts[row, column], *marks)
        axis_end = _compute_axis_end(counts, rate, chance)
        panels[0].set_xlim(0, axis_end)
        panels[0].xaxis.set_major_locator(FixedLocator([0, axis_end / 2, axis_end]))
        set_root_scale(panels, max(compute_shares(row).max() for row in counts.reshape(-1, counts.shape[-1])))
        figure.supxlabel(x_label)
        figure.supylabel("share of texts (%, square-root scale)")
        draw_legend(figure, panels, ("texts", "rate of the head", "chance"))
    return figure


def _draw_rate_panel(axes: Axes, name: str, counts: Counts, rate: float, error: float, chance: float) -> None:
    if np.isnan(rate):
        write_heading(axes, name)
        write_note(axes, "no pairs")
    else:
        write_heading(axes, name, format_plus_minus(rate, error))
        edges = np.linspace(0, PERCENT, len(counts) + 1)
        axes.stairs(compute_shares(counts), edges, fill=True, color=SKY, label="texts")
        axes.axvline(rate, color=BLACK, linewidth=1.0, label="rate of the head")
    if not np.isnan(chance):
        axes.axvline(chance, color=VERMILION, linewidth=1.0, linestyle=DASHED, label="chance")


def draw_distinct_dominants(study: Study, layers: Selection = None, heads: Selection = None) -> Figure:
    """Draw Fig. 11b: number of different dominant tokens among the heads of a layer, over texts.

    It is counted over all heads of a layer; `heads` is validated but has no effect.
    """
    require_variables(study, "Fig. 11b", ["distinct_dominants"])
    rows = select_layers(study, layers, get_last_layer(study))
    select_heads(study, heads, study.head_numbers)
    numbers = study.data["count"].values
    with styled():
        figure, panels = make_layer_grid(len(rows))
        for axes, layer in zip(panels, rows, strict=True):
            share = compute_shares(study.data["distinct_dominants"].sel(layer=layer).values)
            mean = float(share @ numbers) / PERCENT
            write_heading(axes, f"L{layer}", f"mean {mean:.1f} of {numbers[-1]}")
            axes.bar(numbers, share, width=0.8, color=SKY, label="texts")
            axes.axvline(mean, color=BLACK, linewidth=1.0, label="mean")
        panels[0].set_xlim(-0.6, numbers[-1] + 0.6)
        panels[0].xaxis.set_major_locator(MaxNLocator(13 if len(rows) <= 4 else 6, integer=True, steps=[1, 2, 5, 10]))
        panels[0].yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
        figure.supxlabel("different dominant tokens among the heads of a layer")
        figure.supylabel("share of texts (%)")
        draw_legend(figure, panels, ("texts", "mean"))
    return figure


def compute_shares(counts: Counts) -> Floats:
    """Return counts as percent of their sum; zeros if the sum is 0."""
    return np.asarray(counts * (PERCENT / max(counts.sum(), 1)), dtype=np.float64)


def format_plus_minus(value: float, error: float) -> str:
    """Return a number and its standard error as text; with two decimals if the error would round to 0.0."""
    if np.isnan(error):
        return f"{value:.1f}"
    decimals = 2 if 0 < error < 0.05 and value < 100 else 1
    return f"{value:.{decimals}f} ± {error:.{decimals}f}"


def _compute_axis_end(counts: Ints, *marks: Floats) -> float:
    """Return the end of the x axis in percent: the first multiple of ten after all bins with texts and all marks."""
    bins = np.flatnonzero(counts.reshape(-1, counts.shape[-1]).sum(axis=0))
    end = (bins[-1] + 1) / counts.shape[-1] * PERCENT if len(bins) else 10.0
    end = max(end, *(float(np.nanmax(mark, initial=0)) for mark in marks))
    return float(min(np.ceil(end / 10 - 1e-9) * 10, PERCENT))
