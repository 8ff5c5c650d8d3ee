"""Maps over positions: mean attention (Fig. 2), attention without its lines (Fig. 3), where high pairs lie (Fig. 10).

Rows of an attention map are the tokens that look (queries), columns the tokens looked at (keys).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from headscope.figures.selection import Numbers, early_to_last_two, heads_of, last_layer, layers_of, need, paper_heads
from headscope.figures.style import (
    DOUBLE,
    FONT,
    GREY,
    MAP,
    SINGLE,
    cell_table,
    head_label,
    heading,
    note,
    places,
    plain_ticks,
    styled,
)
from headscope.studies.result import Study
from headscope.types import Floats, Ints

DECADES = 1e3
"""span of the colour scale of attention: the diagonal is weak against the columns that draw most attention"""
FINE = 256
"""positions up to which a map's cells are drawn as they are; finer maps are averaged down to the pixels there are"""


@dataclass(frozen=True)
class Panel:
    """One map and its name; maps of one `scale` share their colours and their colour bar."""

    name: str
    values: Floats
    scale: str
    words: str = ""
    colours: str = MAP
    blank: str = GREY
    """the colour of cells that hold nothing (NaN)"""
    nothing: str = "no texts"
    """what to say where no cell holds anything"""


def attention_maps(study: Study, layers: Numbers = None, heads: Numbers = None) -> Figure:
    """Fig. 2: mean attention maps of a head (0 unless others are asked for) and of the sum over the layer's heads."""
    study.require_maps("Fig. 2")
    rows = layers_of(study, layers, early_to_last_two(study))
    single = heads_of(study, heads, study.heads[:1])
    counts = study.data["position_texts"].values
    one, all_heads = "mean attention of one head", _summed(study)
    blocks = []
    for layer in rows:
        sums = study.data["attention"].sel(layer=layer)
        maps = [Panel(head_label(layer, head), mean(sums.sel(head=head).values, counts), one) for head in single]
        blocks.append([*maps, Panel(f"L{layer}", mean(sums.sum("head").values, counts), all_heads, "sum of heads")])
    return draw_maps(blocks, "key position", "query position", attention_norm)


def attention_without_lines(study: Study, layers: Numbers = None, heads: Numbers = None) -> Figure:
    """Fig. 3: the mean head-summed attention map; with its line columns zeroed; with its diagonal zeroed as well.

    It is summed over all heads of a layer; `heads` is checked and changes nothing.
    """
    study.require_maps("Fig. 3")
    need(study, "Fig. 3", ["attention_without_lines", "attention_without_lines_and_diagonal"])
    heads_of(study, heads, study.heads)
    texts, sample = (study.data[name].values for name in ("texts", "sample_texts"))
    scale = _summed(study)
    blocks = []
    for layer in layers_of(study, layers, last_layer(study)):
        here = study.data.sel(layer=layer)
        maps = {
            "mean map": mean(here["attention"].sum("head").values, texts),
            "lines zeroed": mean(here["attention_without_lines"].values, sample),
            "diagonal too": mean(here["attention_without_lines_and_diagonal"].values, sample),
        }
        blocks.append([Panel(f"L{layer}", values, scale, words) for words, values in maps.items()])
    return draw_maps(blocks, "key position", "query position", attention_norm)


def locations(study: Study, layers: Numbers = None, heads: Numbers = None) -> Figure:
    """Fig. 10: where in the window a head's high pairs lie, as the share of the texts that reach both positions."""
    study.require_maps("Fig. 10")
    columns = heads_of(study, heads, paper_heads(study))
    counts = study.data["position_texts"].values
    scale = "texts with a high pair at (i, j) (%)"
    blocks = []
    for layer in layers_of(study, layers, last_layer(study)):
        sums = study.data["location"].sel(layer=layer)
        shares = [100 * mean(sums.sel(head=head).values, counts) for head in columns]
        blocks.append(
            [Panel(head_label(layer, head), share, scale) for head, share in zip(columns, shares, strict=True)]
        )
    return draw_maps(blocks, "position j", "position i", location_norm)


def _summed(study: Study) -> str:
    number = len(study.heads)
    return f"mean attention, sum of {number} head{'s' * (number > 1)}"


def mean(sums: Floats, counts: Floats | Ints) -> Floats:
    """Sums over texts as means; NaN where no text has these positions."""
    means: Floats = np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=np.asarray(counts > 0))
    return means


def attention_norm(maps: Iterable[Floats]) -> Normalize:
    """A logarithmic scale below the largest value of the maps; what is lower still has the lowest colour."""
    top = _largest(maps)
    return LogNorm(top / DECADES, top, clip=True)


def location_norm(maps: Iterable[Floats]) -> Normalize:
    """A square-root scale from 0 to the largest value of the maps."""
    return PowerNorm(0.5, 0, _largest(maps))


def _largest(maps: Iterable[Floats]) -> float:
    return max(float(np.nanmax(values, initial=0)) for values in maps) or 1.0


def draw_maps(
    blocks: list[list[Panel]], across: str, down: str, norm: Callable[[Iterable[Floats]], Normalize]
) -> Figure:
    """Blocks of maps (layers), each beginning on a new row, and a colour bar for each scale."""
    widest = max(len(block) for block in blocks)
    columns = min(widest, 6)
    cells = places([len(block) for block in blocks], columns)
    panels = [panel for block in blocks for panel in block]
    scales = {panel.scale: [one for one in panels if one.scale == panel.scale] for panel in panels}
    stacked = len(scales) > 1 and widest > 2  # bars above each other, where their words would not fit side by side
    width = SINGLE if columns <= 3 else DOUBLE
    height = (cells[-1][0] + 1) * ((width - 0.35) / columns + 0.12) + 0.25 + 0.42 * (len(scales) if stacked else 1)
    with styled():
        figure = Figure(figsize=(width, height), layout="compressed")
        table = cell_table(figure, cells, columns)
        for panel, cell in zip(panels, cells, strict=True):
            map_panel(table[cell], panel, norm(one.values for one in scales[panel.scale]))
            if cell[1] == 0:
                table[cell].set_ylabel(down)
        for column in range(columns):
            table[max(cell for cell in cells if cell[1] == column)].set_xlabel(across)
        for scale in reversed(scales):  # the first, drawn last, lies uppermost
            own = [table[cell] for cell, panel in zip(cells, panels, strict=True) if panel.scale == scale]
            under = list(table.values()) if stacked else own
            across_columns = len({axes.get_subplotspec().colspan.start for axes in under})  # type: ignore[union-attr]
            place = {"ax": under, "location": "bottom", "aspect": 18 * across_columns, "pad": 0.02}
            colour_bar(figure, own, scale, across_columns, **place)
    return figure


def map_panel(axes: Axes, panel: Panel, norm: Normalize) -> None:
    """One map, its first token at the top left."""
    colours = matplotlib.colormaps[panel.colours].with_extremes(bad=panel.blank)
    interpolation = "none" if len(panel.values) <= FINE else "antialiased"
    axes.imshow(np.ma.masked_invalid(panel.values), cmap=colours, norm=norm, interpolation=interpolation)
    for side in ("top", "right"):
        axes.spines[side].set_visible(True)
    axes.xaxis.set_major_locator(MaxNLocator(3, integer=True, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_locator(MaxNLocator(3, integer=True, steps=[1, 2, 5, 10]))
    heading(axes, panel.name, panel.words)
    if panel.nothing and np.isnan(panel.values).all():
        note(axes, panel.nothing)


def colour_bar(figure: Figure, maps: Sequence[Axes], words: str, columns: int = 1, **place: Any) -> None:
    """The bar of these maps, which share a scale; `place` is where matplotlib is to put it, so many columns wide."""
    image = maps[0].images[0]
    logarithmic = isinstance(image.norm, LogNorm)
    least = float(np.min(image.get_clim()))
    shown = [np.asarray(axes.images[0].get_array(), dtype=np.float64) for axes in maps]
    signed = [least, 0.5 * least, 0.0, -0.5 * least, -least] if least == -1 else [least, 0.0, -least]
    bar = figure.colorbar(
        image,
        extend="min" if logarithmic or any(np.nanmin(values, initial=0) < least for values in shown) else "neither",
        extendfrac=0.05 / columns,
        ticks=LogLocator() if logarithmic else FixedLocator(signed) if least < 0 else MaxNLocator(3),
        format=FuncFormatter(lambda value, _: f"{value:g}".replace("-", "−")),
        **place,
    )
    bar.set_label(words, fontsize=FONT)
    bar.ax.xaxis.set_minor_locator(NullLocator())
    plain_ticks(bar.ax)
