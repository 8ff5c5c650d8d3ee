"""Maps over positions: mean attention (Fig. 2), attention without lines (Fig. 3), locations of high pairs (Fig. 10).

Rows of an attention map are queries (the tokens that attend), columns are keys (the tokens attended to).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize, PowerNorm
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from headscope.array_types import Floats, Ints
from headscope.figures.style import (
    COLORMAP,
    DOUBLE_COLUMN,
    FONT_SIZE,
    GRAY,
    SINGLE_COLUMN,
    Figure,
    Selection,
    choose_early_to_last_two,
    choose_paper_heads,
    get_last_layer,
    list_cells,
    make_cell_axes,
    require_variables,
    select_heads,
    select_layers,
    style_ticks,
    styled,
    write_heading,
    write_note,
)
from headscope.studies.labels import format_head
from headscope.studies.result import Study

DYNAMIC_RANGE = 1e3
"""largest divided by smallest attention on the colour scale: the diagonal is weak compared to the strongest columns"""
MAX_EXACT_SIZE = 256
"""number of positions up to which each cell of a map is drawn; larger maps are resampled to the available pixels"""


@dataclass(frozen=True)
class Panel:
    """One map and its name; maps with the same `scale` share their colours and their colour bar."""

    name: str
    values: Floats
    scale: str
    detail: str = ""
    colormap: str = COLORMAP
    blank_color: str = GRAY
    """colour of cells without a value (NaN)"""
    empty_note: str = "no texts"
    """text to write if no cell has a value"""


def draw_attention_maps(study: Study, layers: Selection = None, heads: Selection = None) -> Figure:
    """Draw Fig. 2: mean attention maps of single heads (by default head 0) and of the sum over the layer's heads."""
    study.require_maps("Fig. 2")
    rows = select_layers(study, layers, choose_early_to_last_two(study))
    single = select_heads(study, heads, study.head_numbers[:1])
    counts = study.data["attention_texts" if "attention_texts" in study.data else "position_texts"].values
    head_label, sum_label = "mean attention of one head", _format_sum_label(study)
    blocks = []
    for layer in rows:
        sums = study.data["attention"].sel(layer=layer)
        maps = [
            Panel(format_head(layer, head), compute_mean(sums.sel(head=head).values, counts), head_label)
            for head in single
        ]
        blocks.append(
            [*maps, Panel(f"L{layer}", compute_mean(sums.sum("head").values, counts), sum_label, "sum of heads")]
        )
    return draw_maps(blocks, "key position", "query position", make_attention_norm)


def draw_attention_without_lines(study: Study, layers: Selection = None, heads: Selection = None) -> Figure:
    """Draw Fig. 3: the mean head-summed attention map; with line columns zeroed; with lines and diagonal zeroed.

    It is summed over all heads of a layer; `heads` is validated but has no effect.
    """
    study.require_maps("Fig. 3")
    require_variables(study, "Fig. 3", ["attention_without_lines", "attention_without_lines_and_diagonal"])
    select_heads(study, heads, study.head_numbers)
    texts, sample = (study.data[name].values for name in ("texts", "sample_texts"))
    sum_label = _format_sum_label(study)
    blocks = []
    for layer in select_layers(study, layers, get_last_layer(study)):
        layer_data = study.data.sel(layer=layer)
        maps = {
            "mean map": compute_mean(layer_data["attention"].sum("head").values, texts),
            "lines zeroed": compute_mean(layer_data["attention_without_lines"].values, sample),
            "diagonal too": compute_mean(layer_data["attention_without_lines_and_diagonal"].values, sample),
        }
        blocks.append([Panel(f"L{layer}", values, sum_label, detail) for detail, values in maps.items()])
    return draw_maps(blocks, "key position", "query position", make_attention_norm)


def draw_locations(study: Study, layers: Selection = None, heads: Selection = None) -> Figure:
    """Draw Fig. 10: share of texts in which two positions are a high pair, among the texts that reach both."""
    study.require_maps("Fig. 10")
    columns = select_heads(study, heads, choose_paper_heads(study))
    counts = study.data["position_texts"].values
    scale = "texts with a high pair at (i, j) (%)"
    blocks = []
    for layer in select_layers(study, layers, get_last_layer(study)):
        sums = study.data["location"].sel(layer=layer)
        shares = [100 * compute_mean(sums.sel(head=head).values, counts) for head in columns]
        blocks.append(
            [Panel(format_head(layer, head), share, scale) for head, share in zip(columns, shares, strict=True)]
        )
    return draw_maps(blocks, "position j", "position i", make_location_norm)


def _format_sum_label(study: Study) -> str:
    number = len(study.head_numbers)
    return f"mean attention, sum of {number} head{'s' * (number > 1)}"


def compute_mean(sums: Floats, counts: Floats | Ints) -> Floats:
    """Return means of sums over texts; NaN where no text has these positions."""
    means: Floats = np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=np.asarray(counts > 0))
    return means


def make_attention_norm(maps: Iterable[Floats]) -> Normalize:
    """Return a logarithmic scale that ends at the largest value of the maps; values below it get its lowest colour."""
    maximum = _find_maximum(maps)
    return LogNorm(maximum / DYNAMIC_RANGE, maximum, clip=True)


def make_location_norm(maps: Iterable[Floats]) -> Normalize:
    """Return a square-root scale from 0 to the largest value of the maps."""
    return PowerNorm(0.5, 0, _find_maximum(maps))


def _find_maximum(maps: Iterable[Floats]) -> float:
    return max(float(np.nanmax(values, initial=0)) for values in maps) or 1.0


def draw_maps(
    blocks: list[list[Panel]], x_label: str, y_label: str, make_norm: Callable[[Iterable[Floats]], Normalize]
) -> Figure:
    """Draw blocks of maps (layers), each starting on a new row, and a colour bar for each scale.

    Args:
        blocks: The maps of each block.
        x_label: Label of the columns of all maps.
        y_label: Label of the rows of all maps.
        make_norm: Returns the colour scale of maps that share one.
    """
    max_panels = max(len(block) for block in blocks)
    columns = min(max_panels, 6)
    cells = list_cells([len(block) for block in blocks], columns)
    panels = [panel for block in blocks for panel in block]
    scales = {panel.scale: [other for other in panels if other.scale == panel.scale] for panel in panels}
    are_stacked = len(scales) > 1 and max_panels > 2  # bars below each other, as their labels do not fit side by side
    width = SINGLE_COLUMN if columns <= 3 else DOUBLE_COLUMN
    height = (cells[-1][0] + 1) * ((width - 0.35) / columns + 0.12) + 0.25 + 0.42 * (len(scales) if are_stacked else 1)
    with styled():
        figure = Figure(figsize=(width, height), layout="compressed")
        axes_by_cell = make_cell_axes(figure, cells, columns)
        for panel, cell in zip(panels, cells, strict=True):
            draw_map_panel(axes_by_cell[cell], panel, make_norm(other.values for other in scales[panel.scale]))
            if cell[1] == 0:
                axes_by_cell[cell].set_ylabel(y_label)
        for column in range(columns):
            axes_by_cell[max(cell for cell in cells if cell[1] == column)].set_xlabel(x_label)
        for scale in reversed(scales):  # bars drawn later are placed above earlier ones
            scale_axes = [axes_by_cell[cell] for cell, panel in zip(cells, panels, strict=True) if panel.scale == scale]
            bar_axes = list(axes_by_cell.values()) if are_stacked else scale_axes
            bar_columns = len({axes.get_subplotspec().colspan.start for axes in bar_axes})  # type: ignore[union-attr]
            placement = {"ax": bar_axes, "location": "bottom", "aspect": 18 * bar_columns, "pad": 0.02}
            draw_colorbar(figure, scale_axes, scale, bar_columns, **placement)
    return figure


def draw_map_panel(axes: Axes, panel: Panel, norm: Normalize) -> None:
    """Draw one map, with the first token at the top left."""
    colormap = matplotlib.colormaps[panel.colormap].with_extremes(bad=panel.blank_color)
    interpolation = "none" if len(panel.values) <= MAX_EXACT_SIZE else "antialiased"
    axes.imshow(np.ma.masked_invalid(panel.values), cmap=colormap, norm=norm, interpolation=interpolation)
    for side in ("top", "right"):
        axes.spines[side].set_visible(True)
    axes.xaxis.set_major_locator(MaxNLocator(3, integer=True, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_locator(MaxNLocator(3, integer=True, steps=[1, 2, 5, 10]))
    write_heading(axes, panel.name, panel.detail)
    if panel.empty_note and np.isnan(panel.values).all():
        write_note(axes, panel.empty_note)


def draw_colorbar(figure: Figure, maps: Sequence[Axes], label: str, columns: int = 1, **placement: Any) -> None:
    """Draw the colour bar of maps that share a scale.

    Args:
        columns: Width of the bar, in columns of maps.
        placement: Arguments of `Figure.colorbar` that place it.
    """
    image = maps[0].images[0]
    logarithmic = isinstance(image.norm, LogNorm)
    low = float(np.min(image.get_clim()))
    arrays = [np.asarray(axes.images[0].get_array(), dtype=np.float64) for axes in maps]
    signed_ticks = [low, 0.5 * low, 0.0, -0.5 * low, -low] if low == -1 else [low, 0.0, -low]
    bar = figure.colorbar(
        image,
        extend="min" if logarithmic or any(np.nanmin(values, initial=0) < low for values in arrays) else "neither",
        extendfrac=0.05 / columns,
        ticks=LogLocator() if logarithmic else FixedLocator(signed_ticks) if low < 0 else MaxNLocator(3),
        format=FuncFormatter(lambda value, _: f"{value:g}".replace("-", "−")),
        **placement,
    )
    bar.set_label(label, fontsize=FONT_SIZE)
    bar.ax.xaxis.set_minor_locator(NullLocator())
    style_ticks(bar.ax)
