"""Which figures and panels are drawn of all kinds of studies, and which are refused."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headscope import figures
from headscope.errors import StudyError
from headscope.studies.labels import label_sums
from headscope.studies.result import Study
from headscope.tally.quantities import Shape
from headscope.tally.tally import Tally
from tests.helpers.figures import KIND_EXAMPLES, NUMBERS, RATE_FIGURES, assert_legible, get_panels, make_study

MAPS = {"2", "3", "10"}


@pytest.fixture(scope="module")
def large_study() -> Study:
    return make_study()


@pytest.fixture(scope="module")
def default_figures(large_study: Study) -> dict[str, Figure]:
    """All figures with default options; tests must not change them."""
    return figures.draw_all(large_study)


# -- the catalogue


def test_drawings_are_in_the_order_of_the_paper_and_have_captions() -> None:
    assert list(figures.DRAWINGS) == NUMBERS
    for number, drawing in figures.DRAWINGS.items():
        assert drawing.number == number
        assert drawing.draw is getattr(figures, drawing.draw.__name__)
        assert drawing.draw.__name__.removeprefix("draw_") == drawing.name
        assert drawing.caption.endswith(".")
        assert drawing.needs_maps == (number in MAPS)
    assert len({drawing.title for drawing in figures.DRAWINGS.values()}) == len(NUMBERS)


@pytest.mark.parametrize(
    ("number", "stem"),
    [
        ("2", "fig-02-attention-maps"),
        ("6a", "fig-06a-repeat-rates"),
        ("11b", "fig-11b-distinct-dominants"),
        ("values", "fig-values"),
    ],
)
def test_stem(number: str, stem: str) -> None:
    assert figures.DRAWINGS[number].stem == stem


def test_unknown_figure_names_those_there_are(large_study: Study) -> None:
    with pytest.raises(StudyError, match=r"no figure '1'; there are: 2, 3, 6a"):
        figures.draw(large_study, "1")


@pytest.mark.parametrize("number", NUMBERS)
def test_bad_layers_and_heads_are_refused(large_study: Study, number: str) -> None:
    with pytest.raises(StudyError, match="no layer 12: this study has layers 0 to 11"):
        figures.draw(large_study, number, layers=12)
    with pytest.raises(StudyError, match="no head 99"):
        figures.draw(large_study, number, heads=[0, 99])
    with pytest.raises(StudyError, match="no layers to draw"):
        figures.draw(large_study, number, layers=[])


# -- default panels

FIRST_MIDDLE_LAST = {12: [1, 6, 11], 6: [0, 3, 5], 3: [0, 1, 2], 2: [0, 1], 1: [0]}
FIRST_MIDDLE_LAST_TWO = {12: [1, 6, 10, 11], 6: [0, 3, 4, 5], 3: [0, 1, 2], 2: [0, 1], 1: [0], 5: [0, 2, 3, 4]}


@pytest.mark.parametrize(("layers", "shown"), FIRST_MIDDLE_LAST.items())
@pytest.mark.parametrize("number", ["13", "values"])
def test_default_layers(number: str, layers: int, shown: list[int]) -> None:
    assert list(get_panels(figures.draw(make_study(layers, 2), number))) == [f"L{layer}" for layer in shown]


@pytest.mark.parametrize(("layers", "shown"), FIRST_MIDDLE_LAST_TWO.items())
def test_default_layers_of_attention_maps(layers: int, shown: list[int]) -> None:
    names = list(get_panels(figures.draw_attention_maps(make_study(layers, 2))))
    assert names == [name for layer in shown for name in (f"L{layer}H0", f"L{layer}")]


@pytest.mark.parametrize("number", [*RATE_FIGURES, "7"])
def test_one_panel_for_each_head_of_the_last_layer(default_figures: dict[str, Figure], number: str) -> None:
    figure = default_figures[number]
    assert list(get_panels(figure)) == [f"L11H{head}" for head in range(12)]
    grid = figure.axes[0].get_gridspec()
    assert (grid.nrows, grid.ncols) == (4, 3)
    assert figure.get_figwidth() == 3.5


@pytest.mark.parametrize("number", [*RATE_FIGURES, "7", "10"])
def test_requested_layers_and_heads(large_study: Study, number: str) -> None:
    names = list(get_panels(figures.draw(large_study, number, layers=[3, 10], heads=[5, 0, 5])))
    assert names == ["L3H5", "L3H0", "L10H5", "L10H0"]


def test_layers_and_heads_are_requested_by_name(large_study: Study) -> None:
    for layers, heads in (("3,10", "H5,H0"), (None, "L3H5,L10H5,L3H0,L10H0"), ([3, 10], "H5,H0"), ("L3,L10", [5, 0])):
        panels = get_panels(figures.draw(large_study, "7", layers=layers, heads=heads))
        assert list(panels) == ["L3H5", "L3H0", "L10H5", "L10H0"]
    assert list(get_panels(figures.draw_all(large_study, heads="L4H1")["7"])) == ["L4H1"]
    with pytest.raises(StudyError, match="head 12: a layer has heads 0 to 11"):
        figures.draw(large_study, "7", heads="L3H12")
    names: Any = "L3H5"
    with pytest.raises(StudyError, match=r"this function takes numbers; headscope\.figures\.draw takes names"):
        figures.draw_distances(large_study, heads=names)


def test_each_layer_begins_on_a_new_row(large_study: Study) -> None:
    panels = get_panels(figures.draw_distances(large_study, layers=[0, 1], heads=range(7)))
    rows = {name: axes.get_subplotspec().rowspan.start for name, axes in panels.items()}  # type: ignore[union-attr]
    assert [rows[name] for name in ("L0H0", "L0H5", "L0H6", "L1H0", "L1H6")] == [0, 0, 1, 2, 3]


def test_heads_of_attention_maps_are_columns(large_study: Study) -> None:
    assert list(get_panels(figures.draw_attention_maps(large_study, layers=4, heads=[2, 7]))) == ["L4H2", "L4H7", "L4"]


@pytest.mark.parametrize(("heads", "shown"), [(12, [2, 8]), (9, [2, 8]), (8, [0, 7]), (1, [0])])
def test_default_heads_of_locations(heads: int, shown: list[int]) -> None:
    assert list(get_panels(figures.draw_locations(make_study(2, heads)))) == [f"L1H{head}" for head in shown]


# -- studies that lack something


@pytest.fixture(scope="module")
def study_without_pairs() -> Study:
    """A study in which head 1 of the last of two layers has no pairs in any text."""
    study = make_study(2, 3)
    tally = Tally.zeros(Shape(2, 3, 12))
    for name, array in tally.arrays.items():
        variable = f"{name}_blocks" if f"{name}_blocks" in study.data else name
        array[:] = study.data[variable].values
        if study.data[variable].dims[:3] == ("block", "layer", "head"):
            array[:, 1, 1] = 0
        elif study.data[variable].dims[:2] == ("layer", "head"):
            array[1, 1] = 0
    return Study(label_sums(tally, lambda ids: [str(token) for token in ids]).assign_attrs(study.data.attrs))


def list_line_labels(axes: Axes) -> set[str]:
    return {str(line.get_label()) for line in axes.lines}


def make_empty_study() -> Study:
    data = label_sums(Tally.zeros(Shape(1, 2, 12)), lambda ids: [])
    return Study(data.assign_attrs(theta=0.3, length=12, layers=1, heads=2))


def test_maps_that_were_not_kept() -> None:
    study = make_study(3, 2, maps=False)
    for number in MAPS:
        with pytest.raises(StudyError, match=f"Fig. {number} needs the N×N maps"):
            figures.draw(study, number)
    assert list(figures.draw_all(study)) == [number for number in NUMBERS if number not in MAPS]


def test_draw_all(large_study: Study) -> None:
    drawn = figures.draw_all(large_study, layers=[4], heads=iter([1, 2]))
    assert list(drawn) == NUMBERS
    assert list(get_panels(drawn["6a"])) == list(get_panels(drawn["11a"])) == ["L4H1", "L4H2"]
    with pytest.raises(StudyError, match="no layer 40"):
        figures.draw_all(large_study, layers=40)


def test_what_is_counted_over_all_heads_needs_all_heads(large_study: Study) -> None:
    selected = large_study.select(heads=[0, 1])
    for number in ("3", "11b"):
        with pytest.raises(StudyError, match=f"Fig. {number} is counted over all heads"):
            figures.draw(selected, number)
        assert not figures.DRAWINGS[number].can_draw(selected)
    assert figures.DRAWINGS["2"].can_draw(selected)


@pytest.mark.parametrize("number", [*RATE_FIGURES, "7"])
def test_head_without_pairs_has_a_note(study_without_pairs: Study, number: str) -> None:
    panels = get_panels(figures.draw(study_without_pairs, number))
    assert [text.get_text() for text in panels["L1H1"].texts] == ["no pairs"]
    assert not {"rate of the head", "their mean"} & list_line_labels(panels["L1H1"])
    assert panels["L1H1"].get_title(loc="right") == ""
    assert not panels["L1H0"].texts
    assert {"rate of the head", "their mean"} & list_line_labels(panels["L1H0"])


@pytest.mark.parametrize("number", KIND_EXAMPLES)
@pytest.mark.parametrize(
    "study",
    [make_study(1, 1, texts=np.array([1])), make_study(1, 2, 300), make_empty_study()],
    ids=["one text, one head", "long window", "no texts"],
)
def test_unusual_studies_draw_without_warnings(number: str, study: Study) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_legible(figures.draw(study, number))


@pytest.mark.parametrize("number", ["7", "11b"])
def test_forty_heads(number: str) -> None:
    figure = figures.draw(make_study(1, 40, 6, maps=False), number)
    assert len(get_panels(figure)) == (40 if number == "7" else 1)
    assert_legible(figure)
