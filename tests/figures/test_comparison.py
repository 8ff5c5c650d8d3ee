"""Figures of a comparison: legible with two and with eight models, showing the tables' data and all warnings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.text import Text

import headscope
from headscope.figures.comparison import COLORS, MARKERS, draw_rates_over_depth, list_comparison_figures
from headscope.figures.style import render_svg
from headscope.studies.result import Study
from tests.helpers.comparison_studies import change_head, make_model_study
from tests.helpers.figures import assert_legible, get_panels
from tests.helpers.hostile import ALL


def make_small_study(number: int, **options: Any) -> Study:
    return make_model_study(number, **{"texts": 60, "blocks": 12} | options)


@pytest.fixture(scope="module")
def comparison() -> headscope.Comparison:
    before = make_small_study(0, layers=12, heads=12)
    return headscope.compare([before, change_head(before, 11, 3, share=0.6)], ["before", "after"])


def draw_figures(comparison: headscope.Comparison) -> dict[str, Figure]:
    return {drawing.stem: drawing.draw() for drawing in list_comparison_figures(comparison)}


def read_text(figure: Figure) -> str:
    return " ".join(text.get_text() for text in figure.findobj(Text))


def test_legible_with_two_models(comparison: headscope.Comparison) -> None:
    figures = draw_figures(comparison)
    assert list(figures) == ["rates-over-depth", "head-types", "differences"]
    for figure in figures.values():
        assert_legible(figure)


def test_legible_with_eight_models_of_any_name() -> None:
    names = ["bert-base-uncased", "$x^2$ and $", "_hidden", ALL, "中文", "a" * 60, "all-MiniLM-L6-v2", "x\ny"]
    comparison = headscope.compare([make_small_study(k, layers=2 + k, heads=2, texts=12) for k in range(8)], names)
    figures = draw_figures(comparison)
    assert list(figures) == ["rates-over-depth", "head-types"]
    for figure in figures.values():
        assert_legible(figure)
        assert "<script>alert" not in render_svg(figure)
    legend = [text.get_text() for text in figures["rates-over-depth"].legends[0].get_texts()]
    assert not any(text.get_parse_math() for text in figures["rates-over-depth"].legends[0].get_texts())
    assert len(legend) == 8
    assert legend[1:3] == ["$x^2$ and $", "_hidden"]
    assert len(set(COLORS)) == len(set(MARKERS)) == 8


def test_curves_are_the_table(comparison: headscope.Comparison) -> None:
    figure = draw_rates_over_depth(comparison)
    panels = get_panels(figure)
    table = comparison.depth.set_index(["rate", "model"])
    for panel, rate, column, factor in (
        ("repeat rate", "repeat_rate", "against_chance", 100),
        ("mean distance", "mean_distance", "against_chance", 1),
        ("mean distance tokens", "mean_distance", "value", 1),
        ("attention within ±1", "near_attention", "against_chance", 100),
    ):
        curves = [container for container in panels[panel].containers if isinstance(container, ErrorbarContainer)]
        for container, name in zip(curves, comparison.names, strict=True):
            rows = table.loc[[(rate, name)]]
            np.testing.assert_allclose(container.lines[0].get_xdata(), rows["depth"])
            np.testing.assert_allclose(container.lines[0].get_ydata(), rows[column] * factor)


def test_figures_by_name(comparison: headscope.Comparison) -> None:
    figure = comparison.plot("differences")
    assert get_panels(figure).keys() == get_panels(draw_figures(comparison)["differences"]).keys()
    with pytest.raises(headscope.StudyError, match="no figure '7'; there are: rates-over-depth, head-types, diff"):
        comparison.plot("7")


def test_maps_are_the_table_and_dots_its_significant_heads(comparison: headscope.Comparison) -> None:
    panels = get_panels(draw_figures(comparison)["differences"])
    table = comparison.differences("repeat_rate")
    axes = panels["repeat rate"]
    np.testing.assert_allclose(axes.images[0].get_array(), table["difference"].to_numpy().reshape(12, 12) * 100)
    low, high = axes.images[0].get_clim()
    assert -low == high == pytest.approx(float(table["difference"].abs().max()) * 100)
    dots = [(x, y) for line in axes.lines for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)]
    assert dots == [(3, 11)]
    assert axes.get_title(loc="right") == "1 of 144"
    assert not any(len(line.get_xdata()) for line in panels["mean distance"].lines)


def test_bars_are_the_counts(comparison: headscope.Comparison) -> None:
    figure = draw_figures(comparison)["head-types"]
    counted = comparison.head_types[comparison.head_types["heads"] > 0]
    for axes, subfigure, (_, rows) in zip(
        figure.axes, figure.subfigs, counted.groupby("part", sort=False), strict=True
    ):
        widths = np.zeros(2)
        for container in axes.containers:
            widths += [bar.get_width() for bar in container]
        np.testing.assert_allclose(widths, 100)
        names = [text.get_text() for text in subfigure.legends[0].get_texts()]
        assert sorted(names) == sorted(rows["type"].unique())


def test_warnings_are_drawn() -> None:
    comparison = headscope.compare(
        [make_small_study(0), make_small_study(1, theta=0.5, corpus=1, complete=0, stopped_by=ALL)], force=True
    )
    for figure in draw_figures(comparison).values():
        shown = read_text(figure)
        assert "Compared by force" in shown
        assert "Different texts" in shown
        assert_legible(figure)


def test_unmeasurable_rates_have_a_note() -> None:
    studies = []
    for k in range(2):
        data = make_small_study(k).data.copy(deep=True)
        data["same_sentence_rate"][:] = np.nan
        studies.append(Study(data))
    figures = draw_figures(headscope.compare(studies, by_head=True))
    for stem in ("rates-over-depth", "differences"):
        assert "not measurable" in read_text(figures[stem])
        assert_legible(figures[stem])


def test_several_pairs_have_figures_of_their_own() -> None:
    comparison = headscope.compare([make_small_study(k, texts=12) for k in range(3)], by_head=True)
    assert list(draw_figures(comparison))[2:] == ["differences-1", "differences-2"]
