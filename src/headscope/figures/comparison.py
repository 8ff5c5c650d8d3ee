"""Draw the figures of a comparison: rates over relative depth, heads by type, differences head by head.

Models differ by colour and marker, head types by colour and hatching, so that nothing is encoded by colour alone.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, to_rgba
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from headscope.comparison.measures import DEPTH_PANELS, MEASURES, Measure
from headscope.comparison.result import Comparison, Pair
from headscope.errors import StudyError
from headscope.figures.heads import TYPE_COLORS
from headscope.figures.style import (
    BLACK,
    DASHED,
    DOUBLE_COLUMN,
    FONT_SIZE,
    GRAY,
    LABEL_SIZE,
    Figure,
    label_layers_and_heads,
    style_ticks,
    styled,
    write_heading,
    write_note,
)
from headscope.figures.text import clip_text, make_drawable
from headscope.studies.head_types import PARTS, TypePart

COLORS = ("#000000", "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
"""of models: Okabe and Ito's, with grey instead of yellow, which is too pale for a line"""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
HATCHES = {
    "attends": ("", "////", "....", r"\\\\", "xx", "..", "++", "", "oo", "", "xxxx", "", ""),
    "writes": ("", "////", "", "....", r"\\\\", "", "", "xxxx", ""),
}
"""of the types of each part"""
DIVERGING_COLORMAP = "RdBu_r"
MAX_NAME_WIDTH = 110.0
"""points: the largest width of a model's name"""
NOT_MEASURABLE = "not measurable"


@dataclass(frozen=True)
class ComparisonFigure:
    """A figure of a comparison, with its file name (`stem`), title and caption."""

    stem: str
    title: str
    caption: str
    draw: Callable[[], Figure]


def draw_comparison_figure(comparison: Comparison, name: str) -> Figure:
    """Draw one figure of a comparison, by its name."""
    figures = {drawing.stem: drawing for drawing in list_comparison_figures(comparison)}
    if name not in figures:
        raise StudyError(f"no figure {name!r}; there are: {', '.join(figures)}")
    return figures[name].draw()


def list_comparison_figures(comparison: Comparison) -> list[ComparisonFigure]:
    """Return all figures of a comparison, not yet drawn."""
    figures = [
        ComparisonFigure(
            "rates-over-depth",
            "Rates over relative depth",
            "Mean over the heads of a layer, against chance (in percentage points, or as a multiple), from the first "
            "layer (0) to the last (1) of each model. "
            "Bars: one jackknife standard error. Dashed: chance.",
            partial(draw_rates_over_depth, comparison),
        ),
        ComparisonFigure(
            "head-types",
            "Heads by type",
            "Share of each model's heads by type; the numbers are heads.",
            partial(draw_heads_by_type, comparison),
        ),
    ]
    for number, pair in enumerate(comparison.pairs, start=1):
        stem = "differences" if len(comparison.pairs) == 1 else f"differences-{number}"
        figures.append(
            ComparisonFigure(
                stem,
                f"Head by head: {pair.model} minus {pair.baseline}",
                "Difference of each rate for every head. Dots: significant after Holm's correction over the heads of a "
                f"rate, alpha {comparison.alpha:g}; {pair.how}. Grey: nothing counted in one of the two.",
                partial(draw_head_differences, comparison, pair),
            )
        )
    return figures


# -- rates over depth -------------------------------------------------------------------------------------------------


def draw_rates_over_depth(comparison: Comparison) -> Figure:
    """Draw rates against chance over relative depth, and mean distances also in tokens."""
    columns = [(MEASURES[rate], column) for rate, column in DEPTH_PANELS]
    with styled():
        figure = Figure(figsize=(DOUBLE_COLUMN, 3.9 + 0.14 * _count_legend_rows(comparison)), layout="constrained")
        panels = figure.subplots(2, 3, sharex=True).ravel()
        for axes, (measure, column) in zip(panels, columns, strict=True):
            _draw_depth_panel(axes, comparison, measure, column)
        for axes in panels[3:]:
            axes.set_xlabel("relative depth (0 first layer, 1 last)")
        _draw_model_legend(figure, comparison)
        _draw_warnings(figure, comparison)
    return figure


def _draw_depth_panel(axes: Axes, comparison: Comparison, measure: Measure, column: str) -> None:
    style_ticks(axes)
    in_units = column == "value"
    scale = measure.factor if in_units or not measure.over else 1.0
    write_heading(axes, measure.label, _format_axis_label(measure, in_units=in_units))
    any_known = False
    for k, name in enumerate(comparison.names):
        rows = comparison.depth[(comparison.depth["rate"] == measure.name) & (comparison.depth["model"] == name)]
        known = rows[rows[column].notna()]
        any_known |= bool(len(known))
        axes.errorbar(
            known["depth"].to_numpy(),
            known[column].to_numpy() * scale,
            yerr=known["error" if in_units else f"{column}_error"].fillna(0.0).to_numpy() * scale,
            **_get_line_style(k),
            ecolor=to_rgba(COLORS[k % len(COLORS)], 0.55),
            elinewidth=0.6,
            linewidth=0.9,
            label=f"model {k}",
        )
    if not any_known:
        write_note(axes, NOT_MEASURABLE)
    elif not in_units:
        axes.axhline(1.0 if measure.over else 0.0, color=BLACK, linewidth=0.7, linestyle=DASHED, zorder=1)
    axes.set_xlim(-0.04, 1.04)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}".replace("-", "−")))


def _format_axis_label(measure: Measure, *, in_units: bool) -> str:
    if in_units:
        return measure.unit
    return "over chance" if measure.over else "points above chance"


def _get_line_style(k: int) -> dict[str, Any]:
    """Return colour and marker of the k-th model; they repeat after eight, with dashed lines and hollow markers."""
    repeats = (k // len(COLORS)) % 2 == 1
    color = COLORS[k % len(COLORS)]
    return {
        "color": color,
        "marker": MARKERS[k % len(MARKERS)],
        "markersize": 2.8,
        "markeredgewidth": 0.5,
        "markerfacecolor": "white" if repeats else color,
        "linestyle": DASHED if repeats else "solid",
    }


def _draw_model_legend(figure: Figure, comparison: Comparison) -> None:
    handles = [Line2D([], [], linewidth=0.9, **_get_line_style(k)) for k in range(len(comparison.names))]
    _draw_legend(figure, handles, comparison.names, _count_legend_columns(comparison))


def _count_legend_columns(comparison: Comparison) -> int:
    return min(len(comparison.names), 4)


def _count_legend_rows(comparison: Comparison) -> int:
    return -(-len(comparison.names) // _count_legend_columns(comparison))


def _draw_legend(figure: Figure, handles: Sequence[Line2D | Patch], names: Sequence[str], columns: int) -> None:
    """Draw a legend below the figure.

    Names are set after matplotlib has created the texts: it would hide entries that start with an underscore.
    """
    legend = figure.legend(
        list(handles),
        [str(k) for k in range(len(names))],
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        handlelength=2.0,
        columnspacing=1.4,
        borderaxespad=0.2,
        fontsize=LABEL_SIZE,
    )
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set_parse_math(False)
        text.set_text(clip_text(make_drawable(name), MAX_NAME_WIDTH, LABEL_SIZE))


# -- head types -------------------------------------------------------------------------------------------------------


def draw_heads_by_type(comparison: Comparison) -> Figure:
    """Draw a bar for each model and part of the types: the shares of its heads by type."""
    height = 0.55 + 0.24 * len(comparison.names)
    with styled():
        figure = Figure(figsize=(DOUBLE_COLUMN, 2 * height + 0.5), layout="constrained")
        parts = figure.subfigures(2, 1, squeeze=False).ravel()
        for subfigure, part in zip(parts, PARTS.values(), strict=True):
            patches = _draw_bars(subfigure.subplots(), comparison, part)
            _draw_legend(subfigure, list(patches.values()), list(patches), min(len(patches), 7))
        parts[-1].axes[0].set_xlabel("share of heads (%); the numbers are heads")
        _draw_warnings(figure, comparison)
    return figure


def _draw_bars(axes: Axes, comparison: Comparison, part: TypePart) -> dict[str, Patch]:
    """Draw the bars of one part, and return how each of its types is drawn."""
    models = range(len(comparison.names))
    counts = comparison.head_types[comparison.head_types["part"] == part.name]
    style_ticks(axes)
    write_heading(axes, part.label)
    left = np.zeros(len(models))
    patches = {}
    for name, color, hatch in zip(part.names, TYPE_COLORS[part.name], HATCHES[part.name], strict=True):
        rows = counts[counts["type"] == name]
        share, heads = rows["share"].to_numpy() * 100, rows["heads"].to_numpy()
        if not heads.any():
            continue
        style: dict[str, Any] = {"facecolor": color, "hatch": hatch, "edgecolor": BLACK}
        patches[name] = Patch(**style, linewidth=0.4)
        axes.barh(models, share, left=left, height=0.72, linewidth=0.4, **style)
        for row in np.flatnonzero(share >= 3.5).tolist():
            box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
            center = left[row] + share[row] / 2
            axes.text(center, row, str(heads[row]), ha="center", va="center", fontsize=FONT_SIZE, bbox=box)
        left += share
    axes.set_yticks(models, [clip_text(make_drawable(name), MAX_NAME_WIDTH) for name in comparison.names])
    for label in axes.get_yticklabels():
        label.set_parse_math(False)
    axes.set_xlim(0, 100)
    axes.invert_yaxis()
    return patches


# -- head by head -----------------------------------------------------------------------------------------------------


def draw_head_differences(comparison: Comparison, pair: Pair) -> Figure:
    """Draw a map of differences for each rate, layers down and heads across, on a colour scale symmetric around 0."""
    study = comparison.study(pair.baseline)
    shape = len(study.layers), len(study.head_numbers)
    panel_height = min(max(shape[0] / shape[1], 0.5), 1.6) * 1.75 + 0.62
    with styled():
        figure = Figure(figsize=(DOUBLE_COLUMN, 2 * panel_height + 0.35), layout="constrained")
        panels = figure.subplots(2, 3).ravel()
        for axes, measure in zip(panels, MEASURES.values(), strict=True):
            table = comparison.differences(measure.name, pair.model)
            _draw_difference_panel(figure, axes, measure, table, study.layers, study.head_numbers)
        for axes in panels[3:]:
            axes.set_xlabel("head")
        for axes in panels[::3]:
            axes.set_ylabel("layer")
        first, second = (clip_text(make_drawable(name), MAX_NAME_WIDTH) for name in (pair.baseline, pair.model))
        kind = "paired" if pair.paired else "not paired"
        dots = f"Dots, counted above: significant, p ≤ {comparison.alpha:g} after Holm's correction"
        figure.supxlabel(f"{second} minus {first} ({kind}). {dots}", fontsize=LABEL_SIZE, parse_math=False)
        _draw_warnings(figure, comparison)
    return figure


def _draw_difference_panel(
    figure: Figure, axes: Axes, measure: Measure, table: pd.DataFrame, layers: list[int], heads: list[int]
) -> None:
    style_ticks(axes)
    shape = len(layers), len(heads)
    values = table["difference"].to_numpy(np.float64).reshape(shape) * measure.factor
    significant = table["significant"].to_numpy(bool).reshape(shape)
    tests = int(table["p"].notna().sum())
    write_heading(axes, measure.label, f"{int(significant.sum())} of {tests}" if tests else "")
    limit = float(np.nanmax(np.abs(values), initial=0.0)) or 1.0
    colormap = matplotlib.colormaps[DIVERGING_COLORMAP].with_extremes(bad=GRAY)
    image = axes.imshow(
        np.ma.masked_invalid(values), cmap=colormap, norm=Normalize(-limit, limit), aspect="auto", interpolation="none"
    )
    rows, columns = np.nonzero(significant)
    on_dark = np.abs(values[rows, columns]) > 0.62 * limit  # a black dot would not be visible on a dark colour
    for subset, color in ((~on_dark, BLACK), (on_dark, "white")):
        axes.plot(columns[subset], rows[subset], linestyle="none", marker="o", markersize=1.8, color=color)
    label_layers_and_heads(axes, layers, heads, 8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(True)
    if np.isnan(values).all():
        write_note(axes, NOT_MEASURABLE)
    bar = figure.colorbar(
        image, ax=axes, pad=0.02, aspect=14, format=FuncFormatter(lambda value, _: _format_signed(value))
    )
    bar.locator = MaxNLocator(5, symmetric=True)
    bar.update_ticks()
    bar.set_label("points of %" if measure.unit == "%" else measure.unit, fontsize=FONT_SIZE)
    style_ticks(bar.ax)


def _format_signed(value: float) -> str:
    return f"{value:+g}".replace("-", "−") if value else "0"


# -- warnings ---------------------------------------------------------------------------------------------------------


def _draw_warnings(figure: Figure, comparison: Comparison) -> None:
    """Write the comparison's warnings above the figure, which grows by their height."""
    if not comparison.warnings:
        return
    lines = [
        line
        for warning in comparison.warnings
        for line in textwrap.wrap(make_drawable(f"Warning: {warning}"), 140, max_lines=3, placeholder=" …")
    ]
    figure.suptitle("\n".join(lines), fontsize=FONT_SIZE, color="#A33C00", parse_math=False, ha="left", x=0.01)
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + 0.12 * len(lines) + 0.05)
