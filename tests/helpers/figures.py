"""Helpers for tests of figures: studies of random numbers, access to what is drawn, and a check of legibility."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch
from matplotlib.text import Text

from headscope.figures.style import styled
from headscope.studies.labels import label_sums
from headscope.studies.result import Study
from headscope.tally.quantities import Shape
from headscope.tally.tally import Tally

NUMBERS = ["2", "3", "6a", "6b", "7", "8", "10", "11a", "11b", "13", "values", "noise", "head-types", "head-similarity"]
KIND_EXAMPLES = ["2", "3", "6a", "7", "10", "11b", "13", "values"]
"""one figure of each kind: the four figures of rates share their code"""
RATE_FIGURES = {
    "6a": "repeat_rate",
    "6b": "repeat_rate_in_sentence",
    "8": "same_sentence_rate",
    "11a": "dominant_share",
}
TEXTS = np.array([3, 2, 1])
"""texts in the first three of the 20 blocks"""


def make_study(layers: int = 12, heads: int = 12, length: int = 12, *, maps: bool = True, texts: Any = TEXTS) -> Study:
    """Return a study of random but consistent sums: parts do not exceed totals, distances add up to the pairs.

    Args:
        texts: Number of texts in each of the first blocks.
    """
    random = np.random.default_rng(7)
    tally = Tally.zeros(Shape(layers, heads, length, maps, width=2))
    blocks = range(len(texts))
    for name in ("texts", "sample_texts"):
        tally[name][list(blocks)] = texts
    tally["window_tokens"][blocks[0], length - 2] = 1  # one text is shorter than the others
    tally["window_tokens"][list(blocks), length] = np.array(texts) - (np.array(blocks) == 0)
    for block in blocks:
        tally["all_pairs"][block], tally["all_same"][block] = 1000, 300 + block
        tally["all_equal"][block], tally["all_equal_same"][block] = 20 + block, 10
        tally["distance"][block] = random.integers(0, 9, (layers, heads, length - 1)) + 4
        tally["pairs"][block] = tally["distance"][block].sum(axis=-1)
        tally["distance_sum"][block] = tally["distance"][block] @ np.arange(1, length)
        tally["same"][block] = tally["pairs"][block] // 2 + random.integers(0, 5, (layers, heads))
        tally["equal"][block] = random.integers(0, 20, (layers, heads))
        tally["equal_same"][block] = tally["equal"][block] // 3
        tally["texts_with_pairs"][block] = texts[block]
        tally["dominant_share_sum"][block] = texts[block] * random.uniform(0.3, 0.9, (layers, heads))
        tally["shuffled_share_texts"][block] = texts[block]
        tally["shuffled_share_sum"][block] = texts[block] * random.uniform(0.05, 0.3, (layers, heads))
        tally["value_histogram"][block] = random.integers(0, 50, (layers, heads, 200))
        tally["distinct_dominants"][block] = random.multinomial(texts[block], np.ones(heads + 1) / (heads + 1), layers)
        for name in RATE_FIGURES.values():
            tally[f"{name}_texts"][block] = random.multinomial(texts[block], np.ones(50) / 50, (layers, heads))
    if maps:
        for name in ("attention", "attention_without_lines", "attention_without_lines_and_diagonal"):
            tally[name][:] = random.random(tally[name].shape) + 0.01
            tally[name][..., length - 1, :] += 1  # no map is its own transpose
        tally["location"][:] = random.integers(0, 6, tally["location"].shape)
    data = label_sums(tally, lambda ids: [str(token) for token in ids])
    return Study(data.assign_attrs(theta=0.3, length=length, layers=layers, heads=heads, model="made", corpus="made"))


def get_panels(figure: Figure) -> dict[str, Axes]:
    """Return axes by name, without colour bars; repeated names are followed by the panel's detail."""
    panels: dict[str, Axes] = {}
    for axes in figure.axes:
        name = axes.get_title(loc="left")
        if name:
            panels[name if name not in panels else f"{name} {axes.get_title(loc='right')}"] = axes
    return panels


def get_bars(axes: Axes) -> Any:
    (steps,) = [patch for patch in axes.patches if isinstance(patch, StepPatch)]
    return steps.get_data()


def get_line_position(axes: Axes, label: str) -> float:
    (line,) = [line for line in axes.lines if line.get_label() == label]
    return float(line.get_xdata()[0])


def get_image(axes: Axes) -> Any:
    return axes.images[0].get_array()


def list_shown_texts(figure: Figure) -> list[Text]:
    """Return all texts that are drawn, without labels of ticks outside of their axis."""
    hidden: set[int] = set()
    for axes in figure.axes:
        for axis, limits in ((axes.xaxis, sorted(axes.get_xlim())), (axes.yaxis, sorted(axes.get_ylim()))):
            for tick in axis.get_major_ticks():
                outside = not limits[0] - 1e-9 <= tick.get_loc() <= limits[1] + 1e-9
                hidden |= {id(label) for label in (tick.label1, tick.label2) if outside or not label.get_visible()}
            hidden |= {id(label) for tick in axis.get_minor_ticks() for label in (tick.label1, tick.label2)}
    return [text for text in figure.findobj(Text) if id(text) not in hidden and text.get_visible() and text.get_text()]


def assert_legible(figure: Figure) -> None:
    """Assert that no text is too small, cut off or overlaps another, and that the figure is not too wide."""
    assert figure.get_figwidth() <= 7.1
    with styled():
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        boxes = [(text, text.get_window_extent(canvas.get_renderer())) for text in list_shown_texts(figure)]
    assert boxes
    page = figure.bbox
    for text, box in boxes:
        assert text.get_fontsize() >= 6, f"{text} is too small"
        assert page.x0 - 1 <= box.x0 <= box.x1 <= page.x1 + 1, f"{text} is cut off at a side"
        assert page.y0 - 1 <= box.y0 <= box.y1 <= page.y1 + 1, f"{text} is cut off above or below"
    x0, y0, x1, y1 = np.array([box.extents for _, box in boxes]).T
    widths = np.minimum(x1[:, None], x1) - np.maximum(x0[:, None], x0)
    heights = np.minimum(y1[:, None], y1) - np.maximum(y0[:, None], y0)
    # as arrays: some figures have a thousand texts
    overlaps = np.argwhere(np.triu((widths > 1) & (heights > 1), k=1))
    assert not len(overlaps), " and ".join(str(boxes[k][0]) for k in overlaps[0]) + " overlap"
