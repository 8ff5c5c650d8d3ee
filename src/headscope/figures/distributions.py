"""Distributions over texts and histograms over pairs (Figs. 6, 7, 8, 11 and 13).

Distributions over texts: rates of heads (Figs. 6, 8, 11a), numbers of different dominant tokens (Fig. 11b).

Histograms over pairs: distances of high pairs (Figs. 7 and 13) and similarities of all pairs (`values`).
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, MultipleLocator, NullLocator

from headscope.array_types import Floats, Ints
from headscope.figures.style import (
    BLACK,
    DASHED,
    GRAY,
    SKY,
    VERMILION,
    Figure,
    Selection,
    choose_early_to_late,
    draw_legend,
    get_last_layer,
    make_head_grid,
    make_layer_grid,
    require_variables,
    select_heads,
    select_layers,
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


GAP = (0.1, 0.6)
"""range of normalized similarities that are rare according to the paper"""
GAP_LABEL = f"{GAP[0]} to {GAP[1]}, the paper's gap"


def draw_distances(study: Study, layers: Selection = None, heads: Selection = None) -> Figure:
    """Draw Fig. 7: distances of a head's high pairs, in tokens."""
    rows = select_layers(study, layers, get_last_layer(study))
    columns = select_heads(study, heads, study.head_numbers)
    mean, error = study.rate("mean_distance"), study.standard_error("mean_distance")
    layer_heads = [(layer, head) for layer in rows for head in columns]
    with styled():
        figure, panels = make_head_grid([len(columns)] * len(rows))
        max_shares = []
        for axes, (layer, head) in zip(panels, layer_heads, strict=True):
            selection = {"layer": layer, "head": head}
            detail = format_plus_minus(float(mean.sel(selection)), float(error.sel(selection)))
            counts = study.data["distance"].sel(selection).values
            max_shares.append(_draw_distance_panel(axes, study, format_head(layer, head), counts, detail))
        _set_distance_axes(figure, panels, study, max(max_shares))
    return figure


def draw_distances_by_layer(study: Study, layers: Selection = None, heads: Selection = None) -> Figure:
    """Draw Fig. 13: distances of high pairs in tokens, the heads of a layer pooled (all, or the requested ones)."""
    rows = select_layers(study, layers, choose_early_to_late(study))
    pooled = select_heads(study, heads, study.head_numbers)
    with styled():
        figure, panels = make_layer_grid(len(rows))
        max_shares = []
        for axes, layer in zip(panels, rows, strict=True):
            counts = study.data["distance"].sel(layer=layer, head=pooled).sum("head").values
            mean = float(counts @ study.data["tokens_apart"].values) / max(counts.sum(), 1)
            max_shares.append(_draw_distance_panel(axes, study, f"L{layer}", counts, f"mean {mean:.1f} tokens"))
        _set_distance_axes(figure, panels, study, max(max_shares))
    return figure


def compute_chance_profile(study: Study) -> Floats:
    """Return the percentage of all pairs by distance: a window of N tokens has N−d pairs of distance d."""
    tokens_apart, tokens = study.data["tokens_apart"].values, study.data["tokens"].values
    pairs = np.maximum(tokens[None, :] - tokens_apart[:, None], 0) @ study.data["window_tokens"].values
    return compute_shares(pairs)


def _draw_distance_panel(axes: Axes, study: Study, name: str, counts: Counts, detail: str) -> float:
    """Draw one histogram, and return its largest share."""
    tokens_apart = study.data["tokens_apart"].values
    if counts.sum() == 0:
        write_heading(axes, name)
        write_note(axes, "no pairs")
    else:
        write_heading(axes, name, detail)
        edges = np.append(tokens_apart, len(tokens_apart) + 1) - 0.5
        axes.stairs(compute_shares(counts), edges, fill=True, color=SKY, label="high pairs")
        axes.axvline(float(counts @ tokens_apart) / counts.sum(), color=BLACK, linewidth=1.0, label="their mean")
    chance = compute_chance_profile(study)
    axes.plot(tokens_apart, chance, color=VERMILION, linewidth=1.0, linestyle=DASHED, label="all pairs (chance)")
    return float(compute_shares(counts).max(initial=0))


def _set_distance_axes(figure: Figure, panels: list[Axes], study: Study, max_share: float) -> None:
    panels[0].set_xlim(0, len(study.data["tokens_apart"]) + 1)
    panels[0].xaxis.set_major_locator(MaxNLocator(3 if len(panels) > 4 else 6, integer=True))
    set_root_scale(panels, max(max_share, compute_chance_profile(study).max()))
    figure.supxlabel("distance j − i (tokens)")
    figure.supylabel("share of pairs (%, square-root scale)")
    draw_legend(figure, panels, ("high pairs", "their mean", "all pairs (chance)"))


def draw_values(study: Study, layers: Selection = None, heads: Selection = None) -> Figure:
    """Draw the distribution of C/max(C) over all pairs by layer, with the paper's gap.

    The heads of a layer are pooled: all, or the requested ones.
    """
    rows = select_layers(study, layers, choose_early_to_late(study))
    pooled = select_heads(study, heads, study.head_numbers)
    centers, theta = study.data["value_bin"].values, float(study.data.attrs["theta"])
    counts = study.data["value_histogram"].sel(layer=rows, head=pooled).sum("head").values
    share = np.array([compute_shares(row) for row in counts])
    floor = share[share > 0].min(initial=1.0) / 2
    with styled():
        figure, panels = make_layer_grid(len(rows))
        for axes, layer, row in zip(panels, rows, share, strict=True):
            _draw_value_panel(axes, f"L{layer}", row, centers, theta, floor)
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(numticks=5))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.yaxis.set_minor_locator(NullLocator())
        panels[0].set_ylim(floor, max(2 * share.max(), 2 * floor))
        panels[0].set_xlim(-1, 1)
        panels[0].xaxis.set_major_locator(MultipleLocator(0.5))
        figure.supxlabel("normalized similarity C / max(C) of a pair")
        figure.supylabel("share of pairs (%, log scale)")
        draw_legend(figure, panels, ("pairs", GAP_LABEL, f"θ = {theta:g}"))
    return figure


def _draw_value_panel(axes: Axes, name: str, share: Floats, centers: Floats, theta: float, floor: float) -> None:
    low, high = GAP
    axes.axvspan(low, high, color=GRAY, linewidth=0, label=GAP_LABEL)
    if share.any():
        below, between = share[centers < low].sum(), share[(centers > low) & (centers < high)].sum()
        write_heading(axes, name, f"below {low}: {below:.1f} %     {low} to {high}: {between:.1f} %")
        edges = np.linspace(-1, 1, len(share) + 1)
        # a log axis has no zero
        axes.stairs(np.maximum(share, floor), edges, baseline=floor, fill=True, color=SKY, zorder=2, label="pairs")
    else:
        write_heading(axes, name)
        write_note(axes, "no values")
    axes.axvline(theta, color=VERMILION, linewidth=1.0, linestyle=DASHED, label=f"θ = {theta:g}")
