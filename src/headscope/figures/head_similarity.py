"""Map of how alike heads are: all heads by all heads, in the order in which they join clusters."""

from __future__ import annotations

import numpy as np
from matplotlib.patches import Rectangle

from headscope.figures.style import (
    FONT_SIZE,
    GRAY,
    SINGLE_COLUMN,
    Figure,
    Selection,
    select_heads,
    select_layers,
    style_ticks,
    styled,
)
from headscope.studies.clustering import cut_clusters, link_clusters, order_items
from headscope.studies.head_similarity import CLUSTER_CORRELATION, compute_head_similarity, get_matrix, list_heads
from headscope.studies.result import Study

MAX_NAMES = 36
"""number of heads up to which each is named; of more, each cluster is"""
MIN_NAMED = 3
"""number of heads of the smallest cluster that is named"""
MAX_CLUSTER_NAMES = 8


def draw_head_similarity(study: Study, layers: Selection = None, heads: Selection = None) -> Figure:
    """Draw the correlations between heads, clusters framed."""
    shown = study.select(select_layers(study, layers, study.layers), select_heads(study, heads, study.head_numbers))
    table = list_heads(shown.data, shown.present.values)
    matrix = get_matrix(shown.data, table)
    merges = link_clusters(matrix)
    order, labels = order_items(merges, len(table)), cut_clusters(merges, len(table), CLUSTER_CORRELATION)
    rows = table["row"].to_numpy()[order]
    similarity = compute_head_similarity(shown.data).values.reshape(-1, shown.data["pairs"].size)
    with styled():
        figure = Figure(figsize=(SINGLE_COLUMN, SINGLE_COLUMN - 0.35), layout="constrained")
        axes = figure.subplots()
        axes.set_facecolor(GRAY)
        values = np.ma.masked_invalid(similarity[np.ix_(rows, rows)])
        image = axes.imshow(values, cmap="RdBu_r", vmin=-1, vmax=1, interpolation="none")
        clusters = _list_clusters(labels[order].tolist())
        for start, stop in clusters:
            if stop - start > 1:
                size = stop - start
                axes.add_patch(Rectangle((start - 0.5, start - 0.5), size, size, fill=False, linewidth=0.6))
        names = table["head"].to_numpy()[order]
        style_ticks(axes)
        if len(names) <= MAX_NAMES:
            axes.set_xticks(range(len(names)), names, rotation=90)
            axes.set_yticks(range(len(names)), names)
        else:
            named = sorted(clusters, key=lambda edges: edges[0] - edges[1])[:MAX_CLUSTER_NAMES]
            named = [edges for edges in named if edges[1] - edges[0] >= MIN_NAMED]
            ticks = [(start + stop - 1) / 2 for start, stop in named]
            axes.set_yticks(ticks, [f"{stop - start} heads" for start, stop in named])
            axes.set_xticks([])
            axes.set_xlabel(f"{len(names):,} heads in the same order")
        bar = figure.colorbar(image, ax=axes, fraction=0.046, pad=0.02, label="mean correlation")
        style_ticks(bar.ax)
        bar.ax.tick_params(labelsize=FONT_SIZE)
        bar.outline.set_linewidth(0.5)
    return figure


def _list_clusters(labels: list[int]) -> list[tuple[int, int]]:
    """Return where the clusters begin and end in a list of heads in which those of a cluster stand side by side."""
    edges = [k for k in range(len(labels)) if k == 0 or labels[k] != labels[k - 1]]
    return list(zip(edges, [*edges[1:], len(labels)], strict=True))
