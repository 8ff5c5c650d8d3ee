"""Figures of a comparison: rates over relative depth, heads by character, and what differs head by head.

Models are told apart by colour and by mark, characters by colour and by hatching, so that no colour alone has to do it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from headscope.comparison.measures import MEASURES, NEAR, Measure
from headscope.comparison.result import Comparison, Pair
from headscope.figures.style import BLACK, DASHED, DOUBLE, FONT, GREY, LABEL, heading, note, plain_ticks, styled
from headscope.figures.text import clipped, drawable
from headscope.studies.characters import CHARACTERS

COLOURS = ("#000000", "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
"""Okabe and Ito's, grey in place of yellow, which is too pale for a line"""
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
KINDS = ("#D55E00", "#0072B2", "#56B4E9", "#F0C419", "#CC79A7", "#E2E3E7", "#4B505A", "#B3B8C0")
"""of characters, as in the report: preferences in hues, what has none in greys"""
HATCHES = ("", "////", "", "....", r"\\\\", "", "", "xxxx")
DIVERGING = "RdBu_r"
NAME = 110.0
"""points that a model's name may take"""
NOT_MEASURABLE = "not measurable"
PANELS = (
    *((rate, "against_chance") for rate in ("repeat_rate", "same_sentence_rate", "dominant_share", "mean_distance")),
    ("mean_distance", "value"),
    (NEAR, "against_chance"),
)
"""rate and column of each panel over depth; both kinds of mean distance stand side by side"""


@dataclass(frozen=True)
class Drawn:
    """A figure of a comparison, and what to say of it."""

    stem: str
    title: str
    caption: str
    figure: Figure


def draw_comparison(made: Comparison) -> list[Drawn]:
    """Every figure that this comparison has."""
    drawn = [
        Drawn(
            "rates-over-depth",
            "Rates over relative depth",
            "Mean over the heads of a layer, against chance (in percentage points, or as a multiple), from the first "
            "layer (0) to the last (1) of each model. "
            "Bars: one jackknife standard error. Dashed: chance.",
            rates_over_depth(made),
        ),
        Drawn(
            "characters",
            "Heads by character",
            "Share of each model's heads by their measured character; the numbers are heads.",
            heads_by_character(made),
        ),
    ]
    for number, pair in enumerate(made.pairs, start=1):
        stem = "differences" if len(made.pairs) == 1 else f"differences-{number}"
        drawn.append(
            Drawn(
                stem,
                f"Head by head: {pair.other} minus {pair.one}",
                "Difference of each rate for every head. Dots: significant after Holm's correction over the heads of a "
                f"rate, alpha {made.alpha:g}; {pair.how}. Grey: nothing counted in one of the two.",
                head_differences(made, pair),
            )
        )
    return drawn


# -- rates over depth -------------------------------------------------------------------------------------------------


def rates_over_depth(made: Comparison) -> Figure:
    """The rates followed over depth against chance, and mean distances also in tokens."""
    columns = [(MEASURES[rate], column) for rate, column in PANELS]
    with styled():
        figure = Figure(figsize=(DOUBLE, 3.9 + 0.14 * _legend_rows(made)), layout="constrained")
        panels = figure.subplots(2, 3, sharex=True).ravel()
        for axes, (measure, column) in zip(panels, columns, strict=True):
            _depth_panel(axes, made, measure, column)
        for axes in panels[3:]:
            axes.set_xlabel("relative depth (0 first layer, 1 last)")
        _models_legend(figure, made)
        _warn(figure, made)
    return figure


def _depth_panel(axes: Axes, made: Comparison, measure: Measure, column: str) -> None:
    plain_ticks(axes)
    in_units = column == "value"
    scale = measure.factor if in_units or not measure.over else 1.0
    heading(axes, measure.label, _axis_words(measure, in_units=in_units))
    any_known = False
    for k, name in enumerate(made.names):
        rows = made.depth[(made.depth["rate"] == measure.name) & (made.depth["model"] == name)]
        known = rows[rows[column].notna()]
        any_known |= bool(len(known))
        axes.errorbar(
            known["depth"].to_numpy(),
            known[column].to_numpy() * scale,
            yerr=known["error" if in_units else f"{column}_error"].fillna(0.0).to_numpy() * scale,
            **_look(k),
            ecolor=to_rgba(COLOURS[k % len(COLOURS)], 0.55),
            elinewidth=0.6,
            linewidth=0.9,
            label=f"model {k}",
        )
    if not any_known:
        note(axes, NOT_MEASURABLE)
    elif not in_units:
        axes.axhline(1.0 if measure.over else 0.0, color=BLACK, linewidth=0.7, linestyle=DASHED, zorder=1)
    axes.set_xlim(-0.04, 1.04)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}".replace("-", "−")))


def _axis_words(measure: Measure, *, in_units: bool) -> str:
    if in_units:
        return measure.unit
    return "over chance" if measure.over else "points above chance"


def _look(k: int) -> dict[str, Any]:
    """Colour and mark of the k-th model; after eight they come again, dashed and hollow."""
    again = (k // len(COLOURS)) % 2 == 1
    colour = COLOURS[k % len(COLOURS)]
    return {
        "color": colour,
        "marker": MARKS[k % len(MARKS)],
        "markersize": 2.8,
        "markeredgewidth": 0.5,
        "markerfacecolor": "white" if again else colour,
        "linestyle": DASHED if again else "solid",
    }


def _models_legend(figure: Figure, made: Comparison) -> None:
    handles = [Line2D([], [], linewidth=0.9, **_look(k)) for k in range(len(made.names))]
    _legend(figure, handles, made.names, _legend_columns(made))


def _legend_columns(made: Comparison) -> int:
    return min(len(made.names), 4)


def _legend_rows(made: Comparison) -> int:
    return -(-len(made.names) // _legend_columns(made))


def _legend(figure: Figure, handles: Sequence[Line2D | Patch], names: Sequence[str], columns: int) -> None:
    """A legend below, whose words are nothing but words: no mathematics, and an underscore hides none."""
    legend = figure.legend(
        list(handles),
        [str(k) for k in range(len(names))],
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        handlelength=2.0,
        columnspacing=1.4,
        borderaxespad=0.2,
        fontsize=LABEL,
    )
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set_parse_math(False)
        text.set_text(clipped(drawable(name), NAME, LABEL))


# -- characters -------------------------------------------------------------------------------------------------------


def heads_by_character(made: Comparison) -> Figure:
    """A bar for each model, of the shares of its heads."""
    number = len(made.names)
    with styled():
        figure = Figure(figsize=(DOUBLE, 0.8 + 0.24 * number), layout="constrained")
        axes = figure.subplots()
        plain_ticks(axes)
        left = np.zeros(number)
        shown = []
        for k, kind in enumerate(CHARACTERS):
            rows = made.characters[made.characters["character"] == kind.name]
            share, heads = rows["share"].to_numpy() * 100, rows["heads"].to_numpy()
            if not heads.any():
                continue
            look: dict[str, Any] = {
                "facecolor": KINDS[k % len(KINDS)],
                "hatch": HATCHES[k % len(HATCHES)],
                "edgecolor": BLACK,
            }
            shown.append((kind.name, Patch(**look, linewidth=0.4)))
            axes.barh(range(number), share, left=left, height=0.72, linewidth=0.4, **look)
            for row in np.flatnonzero(share >= 3.5).tolist():
                box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
                place = left[row] + share[row] / 2
                axes.text(place, row, str(heads[row]), ha="center", va="center", fontsize=FONT, bbox=box)
            left += share
        axes.set_yticks(range(number), [clipped(drawable(name), NAME) for name in made.names])
        for label in axes.get_yticklabels():
            label.set_parse_math(False)
        axes.set_xlim(0, 100)
        axes.invert_yaxis()
        axes.set_xlabel("share of heads (%); the numbers are heads")
        _legend(figure, [patch for _, patch in shown], [name for name, _ in shown], min(len(shown), 8))
        _warn(figure, made)
    return figure


# -- head by head -----------------------------------------------------------------------------------------------------


def head_differences(made: Comparison, pair: Pair) -> Figure:
    """A map for each rate, layers down and heads across, the same distance from 0 in the same depth of colour."""
    study = made.study(pair.one)
    shape = len(study.layers), len(study.heads)
    high = min(max(shape[0] / shape[1], 0.5), 1.6) * 1.75 + 0.62
    with styled():
        figure = Figure(figsize=(DOUBLE, 2 * high + 0.35), layout="constrained")
        panels = figure.subplots(2, 3).ravel()
        for axes, measure in zip(panels, MEASURES.values(), strict=True):
            rows = made.differences(measure.name, pair.other)
            _difference_panel(figure, axes, measure, rows, study.layers, study.heads)
        for axes in panels[3:]:
            axes.set_xlabel("head")
        for axes in panels[::3]:
            axes.set_ylabel("layer")
        one, other = (clipped(drawable(name), NAME) for name in (pair.one, pair.other))
        kind = "paired" if pair.paired else "not paired"
        dots = f"Dots, counted above: significant, p ≤ {made.alpha:g} after Holm's correction"
        figure.supxlabel(f"{other} minus {one} ({kind}). {dots}", fontsize=LABEL, parse_math=False)
        _warn(figure, made)
    return figure


def _difference_panel(
    figure: Figure, axes: Axes, measure: Measure, rows: pd.DataFrame, layers: list[int], heads: list[int]
) -> None:
    plain_ticks(axes)
    shape = len(layers), len(heads)
    values = rows["difference"].to_numpy(np.float64).reshape(shape) * measure.factor
    significant = rows["significant"].to_numpy(bool).reshape(shape)
    tests = int(rows["p"].notna().sum())
    heading(axes, measure.label, f"{int(significant.sum())} of {tests}" if tests else "")
    reach = float(np.nanmax(np.abs(values), initial=0.0)) or 1.0
    colours = matplotlib.colormaps[DIVERGING].with_extremes(bad=GREY)
    image = axes.imshow(
        np.ma.masked_invalid(values), cmap=colours, norm=Normalize(-reach, reach), aspect="auto", interpolation="none"
    )
    down, across = np.nonzero(significant)
    strong = np.abs(values[down, across]) > 0.62 * reach  # on a deep colour a dark dot would not be seen
    for there, colour in ((~strong, BLACK), (strong, "white")):
        axes.plot(across[there], down[there], linestyle="none", marker="o", markersize=1.8, color=colour)
    for axis, numbers in ((axes.xaxis, heads), (axes.yaxis, layers)):
        step = max(1, -(-len(numbers) // 8))
        axis.set_ticks(range(0, len(numbers), step), [str(number) for number in numbers[::step]])
    for side in ("top", "right"):
        axes.spines[side].set_visible(True)
    if np.isnan(values).all():
        note(axes, NOT_MEASURABLE)
    bar = figure.colorbar(image, ax=axes, pad=0.02, aspect=14, format=FuncFormatter(lambda value, _: _signed(value)))
    bar.locator = MaxNLocator(5, symmetric=True)
    bar.update_ticks()
    bar.set_label("points of %" if measure.unit == "%" else measure.unit, fontsize=FONT)
    plain_ticks(bar.ax)


def _signed(value: float) -> str:
    return f"{value:+g}".replace("-", "−") if value else "0"


# -- warnings ---------------------------------------------------------------------------------------------------------


def _warn(figure: Figure, made: Comparison) -> None:
    """What a figure must not be shown without, above it."""
    if not made.warnings:
        return
    lines = [
        line
        for warning in made.warnings
        for line in textwrap.wrap(drawable(f"Warning: {warning}"), 140, max_lines=3, placeholder=" …")
    ]
    figure.suptitle("\n".join(lines), fontsize=FONT, color="#A33C00", parse_math=False, ha="left", x=0.01)
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + 0.12 * len(lines) + 0.05)
