"""Figures draw what the study holds. The studies here are made of numbers, without a model, so the tests are quick."""

from __future__ import annotations

import warnings
from itertools import combinations
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from headscope import figures
from headscope.errors import StudyError
from headscope.figures.distributions import plus_minus
from headscope.figures.style import styled
from headscope.studies.labels import labelled
from headscope.studies.result import Study
from headscope.tally.quantities import Shape
from headscope.tally.tally import Tally

NUMBERS = ["2", "3", "6a", "6b", "7", "8", "10", "11a", "11b", "13", "values"]
MAPS = {"2", "3", "10"}
KINDS = ["2", "3", "6a", "7", "10", "11b", "13", "values"]
"""one figure of each kind: the four of rates are drawn alike"""
RATE_FIGURES = {
    "6a": "repeat_rate",
    "6b": "repeat_rate_in_sentence",
    "8": "same_sentence_rate",
    "11a": "dominant_share",
}
TEXTS = np.array([3, 2, 1])
"""texts in the first three of the 20 blocks"""


def made(layers: int = 12, heads: int = 12, length: int = 12, *, maps: bool = True, texts: Any = TEXTS) -> Study:
    """A study whose sums agree with each other: rates are parts of wholes, distances add up to the pairs."""
    random = np.random.default_rng(7)
    tally = Tally.zeros(Shape(layers, heads, length, maps))
    here = range(len(texts))
    for name in ("texts", "sample_texts"):
        tally[name][list(here)] = texts
    tally["window_tokens"][here[0], length - 2] = 1  # one text is shorter than the others
    tally["window_tokens"][list(here), length] = np.array(texts) - (np.array(here) == 0)
    for block in here:
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
    data = labelled(tally, lambda ids: [str(token) for token in ids])
    return Study(data.assign_attrs(theta=0.3, length=length, layers=layers, heads=heads, model="made", corpus="made"))


@pytest.fixture(scope="module")
def twelve() -> Study:
    return made()


@pytest.fixture(scope="module")
def drawn(twelve: Study) -> dict[str, Figure]:
    """Every figure as it is by default; tests look at these and leave them as they are."""
    return figures.draw_all(twelve)


@pytest.fixture(scope="module")
def without_pairs() -> Study:
    """Head 1 of the last of two layers has no pairs in any text."""
    study = made(2, 3)
    tally = Tally.zeros(Shape(2, 3, 12))
    for name, array in tally.arrays.items():
        held = f"{name}_blocks" if f"{name}_blocks" in study.data else name
        array[:] = study.data[held].values
        if study.data[held].dims[:3] == ("block", "layer", "head"):
            array[:, 1, 1] = 0
        elif study.data[held].dims[:2] == ("layer", "head"):
            array[1, 1] = 0
    return Study(labelled(tally, lambda ids: [str(token) for token in ids]).assign_attrs(study.data.attrs))


def panels(figure: Figure) -> dict[str, Axes]:
    """Axes by their names, colour bars left out; a name that stands twice is told apart by its words."""
    named: dict[str, Axes] = {}
    for axes in figure.axes:
        name = axes.get_title(loc="left")
        if name:
            named[name if name not in named else f"{name} {axes.get_title(loc='right')}"] = axes
    return named


def bars(axes: Axes) -> Any:
    (steps,) = [patch for patch in axes.patches if isinstance(patch, StepPatch)]
    return steps.get_data()


def mark(axes: Axes, label: str) -> float:
    (line,) = [line for line in axes.lines if line.get_label() == label]
    return float(line.get_xdata()[0])


def labels_of(axes: Axes) -> set[str]:
    return {str(line.get_label()) for line in axes.lines}


def image(axes: Axes) -> Any:
    return axes.images[0].get_array()


# -- the catalogue


def test_drawings_stand_in_the_order_of_the_paper_and_say_what_they_are() -> None:
    assert list(figures.DRAWINGS) == NUMBERS
    for number, drawing in figures.DRAWINGS.items():
        assert drawing.number == number
        assert drawing.draw is getattr(figures, drawing.name)
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


def test_unknown_figure_names_those_there_are(twelve: Study) -> None:
    with pytest.raises(StudyError, match=r"no figure '4'; there are: 2, 3, 6a"):
        figures.draw(twelve, "4")


@pytest.mark.parametrize("number", NUMBERS)
def test_bad_layers_and_heads_are_refused(twelve: Study, number: str) -> None:
    with pytest.raises(StudyError, match="no layer 12: this study has layers 0 to 11"):
        figures.draw(twelve, number, layers=12)
    with pytest.raises(StudyError, match="no head 99"):
        figures.draw(twelve, number, heads=[0, 99])
    with pytest.raises(StudyError, match="no layers to draw"):
        figures.draw(twelve, number, layers=[])


# -- default panels

FIRST_MIDDLE_LAST = {12: [1, 6, 11], 6: [0, 3, 5], 3: [0, 1, 2], 2: [0, 1], 1: [0]}
FIRST_MIDDLE_LAST_TWO = {12: [1, 6, 10, 11], 6: [0, 3, 4, 5], 3: [0, 1, 2], 2: [0, 1], 1: [0], 5: [0, 2, 3, 4]}


@pytest.mark.parametrize(("layers", "shown"), FIRST_MIDDLE_LAST.items())
@pytest.mark.parametrize("number", ["13", "values"])
def test_default_layers(number: str, layers: int, shown: list[int]) -> None:
    assert list(panels(figures.draw(made(layers, 2), number))) == [f"L{layer}" for layer in shown]


@pytest.mark.parametrize(("layers", "shown"), FIRST_MIDDLE_LAST_TWO.items())
def test_default_layers_of_attention_maps(layers: int, shown: list[int]) -> None:
    names = list(panels(figures.attention_maps(made(layers, 2))))
    assert names == [name for layer in shown for name in (f"L{layer}H0", f"L{layer}")]


@pytest.mark.parametrize("number", [*RATE_FIGURES, "7"])
def test_one_panel_for_each_head_of_the_last_layer(drawn: dict[str, Figure], number: str) -> None:
    figure = drawn[number]
    assert list(panels(figure)) == [f"L11H{head}" for head in range(12)]
    grid = figure.axes[0].get_gridspec()
    assert (grid.nrows, grid.ncols) == (4, 3)
    assert figure.get_figwidth() == 3.5


@pytest.mark.parametrize("number", [*RATE_FIGURES, "7", "10"])
def test_layers_and_heads_asked_for(twelve: Study, number: str) -> None:
    names = list(panels(figures.draw(twelve, number, layers=[3, 10], heads=[5, 0, 5])))
    assert names == ["L3H5", "L3H0", "L10H5", "L10H0"]


def test_each_layer_begins_on_a_new_row(twelve: Study) -> None:
    named = panels(figures.distances(twelve, layers=[0, 1], heads=range(7)))
    rows = {name: axes.get_subplotspec().rowspan.start for name, axes in named.items()}  # type: ignore[union-attr]
    assert [rows[name] for name in ("L0H0", "L0H5", "L0H6", "L1H0", "L1H6")] == [0, 0, 1, 2, 3]


def test_heads_of_attention_maps_are_columns(twelve: Study) -> None:
    assert list(panels(figures.attention_maps(twelve, layers=4, heads=[2, 7]))) == ["L4H2", "L4H7", "L4"]


@pytest.mark.parametrize(("heads", "shown"), [(12, [2, 8]), (9, [2, 8]), (8, [0, 7]), (1, [0])])
def test_default_heads_of_locations(heads: int, shown: list[int]) -> None:
    assert list(panels(figures.locations(made(2, heads)))) == [f"L1H{head}" for head in shown]


# -- what is drawn


@pytest.mark.parametrize(("number", "name"), RATE_FIGURES.items())
def test_rates_show_texts_rate_and_chance(twelve: Study, number: str, name: str, drawn: dict[str, Figure]) -> None:
    axes = panels(drawn[number])["L11H4"]
    counts = twelve.data[f"{name}_texts"].sel(layer=11, head=4).values
    steps = bars(axes)
    np.testing.assert_allclose(steps.values, counts / counts.sum() * 100)
    np.testing.assert_allclose(steps.edges, np.linspace(0, 100, 51))
    rate = float(twelve.rate(name).sel(layer=11, head=4)) * 100
    error = float(twelve.standard_error(name).sel(layer=11, head=4)) * 100
    assert mark(axes, "rate of the head") == pytest.approx(rate)
    assert axes.get_title(loc="right") == plus_minus(rate, error)
    assert "±" in axes.get_title(loc="right")
    chance = twelve.chance(name)
    expected = chance.sel(layer=11, head=4) if chance.ndim else chance
    assert mark(axes, "chance") == pytest.approx(float(expected) * 100)
    low, high = axes.get_xlim()
    assert (low, high) == (0, 100)  # this head's texts lie everywhere


def test_rate_axis_ends_after_the_last_text_and_the_last_mark() -> None:
    study = made(1, 2)
    counts = study.data["repeat_rate_texts"]
    counts[:] = 0
    counts[0, 0, 10] = 6  # a rate of 20 to 22 %
    figure = figures.repeat_rates(study)
    assert panels(figure)["L0H1"].get_xlim() == (0, 30)
    study.data["repeat_rate"][0, 1] = 0.61
    assert panels(figures.repeat_rates(study))["L0H1"].get_xlim() == (0, 70)


def test_panels_share_axes_and_show_every_bar(drawn: dict[str, Figure]) -> None:
    named = panels(drawn["8"]).values()
    assert len({(axes.get_xlim(), axes.get_ylim()) for axes in named}) == 1
    assert all(bars(axes).values.max() < axes.get_ylim()[1] for axes in named)


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [(12.34, 0.51, "12.3 ± 0.5"), (12.345, 0.021, "12.35 ± 0.02"), (12.34, 0.0, "12.3 ± 0.0"), (12.34, np.nan, "12.3")],
)
def test_plus_minus(value: float, error: float, words: str) -> None:
    assert plus_minus(value + 1e-9, error) == words


def test_distances_show_pairs_mean_and_all_pairs(twelve: Study, drawn: dict[str, Figure]) -> None:
    axes = panels(drawn["7"])["L11H8"]
    counts = twelve.data["distance"].sel(layer=11, head=8).values
    np.testing.assert_allclose(bars(axes).values, counts / counts.sum() * 100)
    np.testing.assert_allclose(bars(axes).edges, np.arange(0.5, 12))
    assert mark(axes, "their mean") == pytest.approx(float(twelve.rate("mean_distance").sel(layer=11, head=8)))
    mean, error = (
        float(array.sel(layer=11, head=8))
        for array in (twelve.rate("mean_distance"), twelve.standard_error("mean_distance"))
    )
    assert axes.get_title(loc="right") == plus_minus(mean, error)


def test_chance_profile_counts_the_pairs_of_every_window(drawn: dict[str, Figure]) -> None:
    axes = panels(drawn["7"])["L11H0"]
    (line,) = [line for line in axes.lines if line.get_label() == "all pairs (chance)"]
    pairs = np.zeros(11)
    for tokens in [10] + [12] * 5:
        for i, j in combinations(range(tokens), 2):
            pairs[j - i - 1] += 1
    np.testing.assert_allclose(line.get_ydata(), pairs / pairs.sum() * 100)
    np.testing.assert_array_equal(line.get_xdata(), np.arange(1, 12))


def test_distances_by_layer_pool_heads(twelve: Study, drawn: dict[str, Figure]) -> None:
    everything = panels(drawn["13"])["L6"]
    counts = twelve.data["distance"].sel(layer=6).sum("head").values
    np.testing.assert_allclose(bars(everything).values, counts / counts.sum() * 100)
    mean = counts @ np.arange(1, 12) / counts.sum()
    assert mark(everything, "their mean") == pytest.approx(mean)
    assert everything.get_title(loc="right") == f"mean {mean:.1f} tokens"
    some = panels(figures.distances_by_layer(twelve, heads=[1, 2]))["L6"]
    counts = twelve.data["distance"].sel(layer=6, head=[1, 2]).sum("head").values
    np.testing.assert_allclose(bars(some).values, counts / counts.sum() * 100)


def test_distinct_dominants(twelve: Study, drawn: dict[str, Figure]) -> None:
    axes = panels(drawn["11b"])["L11"]
    counts = twelve.data["distinct_dominants"].sel(layer=11).values
    np.testing.assert_allclose([bar.get_height() for bar in axes.patches], counts / counts.sum() * 100)
    np.testing.assert_allclose([bar.get_x() + bar.get_width() / 2 for bar in axes.patches], np.arange(13), atol=1e-9)
    mean = counts @ np.arange(13) / counts.sum()
    assert mark(axes, "mean") == pytest.approx(mean)
    assert axes.get_title(loc="right") == f"mean {mean:.1f} of 12"
    assert list(panels(figures.distinct_dominants(twelve, layers=[2, 5]))) == ["L2", "L5"]


def test_values_show_theta_gap_and_shares(twelve: Study, drawn: dict[str, Figure]) -> None:
    figure = drawn["values"]
    axes = panels(figure)["L6"]
    share = twelve.data["value_histogram"].sel(layer=6).sum("head").values.astype(float)
    share *= 100 / share.sum()
    np.testing.assert_allclose(bars(axes).values, share)
    assert axes.get_yscale() == "log"
    assert mark(axes, "θ = 0.3") == 0.3
    (gap,) = [patch for patch in axes.patches if not isinstance(patch, StepPatch)]
    assert gap.get_extents().transformed(axes.transData.inverted()).intervalx == pytest.approx([0.1, 0.6])
    below, between = share[:110].sum(), share[110:160].sum()
    assert axes.get_title(loc="right").split() == f"below 0.1: {below:.1f} % 0.1 to 0.6: {between:.1f} %".split()
    assert "0.1 to 0.6, the paper's gap" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_values_keep_bins_without_pairs_at_the_foot() -> None:
    study = made(1, 1)
    study.data["value_histogram"][0, 0, :50] = 0
    drawn = bars(panels(figures.values(study))["L0"])
    assert (drawn.values[:50] == drawn.baseline).all()
    assert (drawn.values[50:][study.data["value_histogram"].values[0, 0, 50:] > 0] > drawn.baseline).all()


def test_attention_maps_are_means_over_the_texts_that_reach(twelve: Study) -> None:
    named = panels(figures.attention_maps(twelve, heads=3))
    sums = twelve.data["attention"].sel(layer=10).values
    reach = np.full((12, 12), 6)
    reach[10:, :] = reach[:, 10:] = 5  # one text ends after 10 tokens
    np.testing.assert_allclose(image(named["L10H3"]), sums[3] / reach)
    np.testing.assert_allclose(image(named["L10"]), sums.sum(axis=0) / reach)
    assert named["L10H3"].get_xlim()[0] < named["L10H3"].get_xlim()[1]
    assert named["L10H3"].get_ylim()[0] > named["L10H3"].get_ylim()[1]  # the first token is the top row


def test_maps_of_a_kind_share_a_labelled_colour_bar(drawn: dict[str, Figure]) -> None:
    figure = drawn["2"]
    named = panels(figure)
    single = [axes.images[0].norm for name, axes in named.items() if "H" in name]
    top = max(float(image(axes).max()) for name, axes in named.items() if "H" in name)
    assert len(single) == 4
    assert all(isinstance(norm, LogNorm) and norm.vmax == pytest.approx(top) for norm in single)
    bar_labels = {axes.get_xlabel() for axes in figure.axes if not axes.get_title(loc="left")}
    assert bar_labels == {"mean attention of one head", "mean attention, sum of 12 heads"}


def test_positions_no_text_reaches_are_blank() -> None:
    study = made(1, 1, texts=np.array([1]))  # its only text ends after 10 of 12 tokens
    for figure in (figures.attention_maps(study), figures.locations(study)):
        drawn = image(panels(figure)["L0H0"])
        assert drawn.mask[10:].all()
        assert drawn.mask[:, 10:].all()
        assert not drawn.mask[:10, :10].any()


def test_zeros_of_a_causal_map_are_drawn_in_the_lowest_colour() -> None:
    study = made(1, 1)
    study.data["attention"][:] = np.tril(study.data["attention"].values)
    drawn = panels(figures.attention_maps(study))["L0H0"].images[0]
    lowest, upper = drawn.cmap(0.0), drawn.to_rgba(drawn.get_array())[0, -1]
    np.testing.assert_allclose(upper, lowest)


def test_attention_without_lines(twelve: Study) -> None:
    study = made(2, 3)
    study.data["sample_texts"] = study.data["sample_texts"] * 0 + 4
    figure = figures.attention_without_lines(study)
    named = {
        axes.get_title(loc="right"): axes for axes in figure.axes if axes.images and axes.get_title(loc="left") == "L1"
    }
    here = study.data.sel(layer=1)
    np.testing.assert_allclose(image(named["mean map"]), here["attention"].sum("head") / 6)
    np.testing.assert_allclose(image(named["lines zeroed"]), here["attention_without_lines"] / 4)
    np.testing.assert_allclose(image(named["diagonal too"]), here["attention_without_lines_and_diagonal"] / 4)
    both = figures.attention_without_lines(twelve, layers=[0, 11])
    assert [axes.get_title(loc="left") for axes in both.axes if axes.get_title(loc="left")] == ["L0"] * 3 + ["L11"] * 3


def test_locations_are_shares_of_texts(twelve: Study, drawn: dict[str, Figure]) -> None:
    shown = image(panels(drawn["10"])["L11H8"])
    counts = twelve.data["location"].sel(layer=11, head=8).values
    np.testing.assert_allclose(shown, 100 * counts / twelve.data["position_texts"].values)


# -- studies that lack something


def test_maps_that_were_not_kept() -> None:
    study = made(3, 2, maps=False)
    for number in MAPS:
        with pytest.raises(StudyError, match=f"Fig. {number} needs the N×N maps"):
            figures.draw(study, number)
    assert list(figures.draw_all(study)) == [number for number in NUMBERS if number not in MAPS]


def test_draw_all(twelve: Study) -> None:
    all_of_them = figures.draw_all(twelve, layers=[4], heads=iter([1, 2]))
    assert list(all_of_them) == NUMBERS
    assert list(panels(all_of_them["6a"])) == list(panels(all_of_them["11a"])) == ["L4H1", "L4H2"]
    with pytest.raises(StudyError, match="no layer 40"):
        figures.draw_all(twelve, layers=40)


def test_what_is_counted_over_all_heads_needs_all_heads(twelve: Study) -> None:
    selected = twelve.select(heads=[0, 1])
    for number in ("3", "11b"):
        with pytest.raises(StudyError, match=f"Fig. {number} is counted over all heads"):
            figures.draw(selected, number)
        assert not figures.DRAWINGS[number].can_draw(selected)
    assert figures.DRAWINGS["2"].can_draw(selected)


@pytest.mark.parametrize("number", [*RATE_FIGURES, "7"])
def test_head_without_pairs_says_so(without_pairs: Study, number: str) -> None:
    named = panels(figures.draw(without_pairs, number))
    assert [text.get_text() for text in named["L1H1"].texts] == ["no pairs"]
    assert not {"rate of the head", "their mean"} & labels_of(named["L1H1"])
    assert named["L1H1"].get_title(loc="right") == ""
    assert not named["L1H0"].texts
    assert {"rate of the head", "their mean"} & labels_of(named["L1H0"])


def nothing_counted() -> Study:
    data = labelled(Tally.zeros(Shape(1, 2, 12)), lambda ids: [])
    return Study(data.assign_attrs(theta=0.3, length=12, layers=1, heads=2))


@pytest.mark.parametrize("number", KINDS)
@pytest.mark.parametrize(
    "study",
    [made(1, 1, texts=np.array([1])), made(1, 2, 300), nothing_counted()],
    ids=["one text, one head", "long window", "no texts"],
)
def test_unusual_studies_draw_without_warnings(number: str, study: Study) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_legible(figures.draw(study, number))


@pytest.mark.parametrize("number", ["7", "11b"])
def test_forty_heads(number: str) -> None:
    figure = figures.draw(made(1, 40, 6, maps=False), number)
    assert len(panels(figure)) == (40 if number == "7" else 1)
    assert_legible(figure)


# -- how it looks


def shown_texts(figure: Figure) -> list[Text]:
    """Every text that is drawn: tick labels only where their tick lies within the axis."""
    hidden: set[int] = set()
    for axes in figure.axes:
        for axis, limits in ((axes.xaxis, sorted(axes.get_xlim())), (axes.yaxis, sorted(axes.get_ylim()))):
            for tick in axis.get_major_ticks():
                outside = not limits[0] - 1e-9 <= tick.get_loc() <= limits[1] + 1e-9
                hidden |= {id(label) for label in (tick.label1, tick.label2) if outside or not label.get_visible()}
            hidden |= {id(label) for tick in axis.get_minor_ticks() for label in (tick.label1, tick.label2)}
    return [text for text in figure.findobj(Text) if id(text) not in hidden and text.get_visible() and text.get_text()]


def assert_legible(figure: Figure) -> None:
    """Nothing too small, too wide, cut off or written over something else."""
    assert figure.get_figwidth() <= 7.1
    with styled():
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        boxes = [(text, text.get_window_extent(canvas.get_renderer())) for text in shown_texts(figure)]
    assert boxes
    page = figure.bbox
    for text, box in boxes:
        assert text.get_fontsize() >= 6, f"{text} is too small"
        assert page.x0 - 1 <= box.x0 <= box.x1 <= page.x1 + 1, f"{text} is cut off at a side"
        assert page.y0 - 1 <= box.y0 <= box.y1 <= page.y1 + 1, f"{text} is cut off above or below"
    for (one, box), (other, another) in combinations(boxes, 2):
        common = Bbox.intersection(box, another)
        assert common is None or min(common.width, common.height) <= 1, f"{one} and {other} overlap"


@pytest.mark.parametrize("number", NUMBERS)
def test_legible_and_labelled(drawn: dict[str, Figure], number: str) -> None:
    figure = drawn[number]
    assert_legible(figure)
    words = {figure.get_supxlabel(), figure.get_supylabel()} | {
        axes.get_xlabel() + axes.get_ylabel() for axes in figure.axes
    }
    assert len(words - {""}) >= 2


@pytest.mark.parametrize("number", KINDS)
def test_legible_for_two_heads_of_one_layer(twelve: Study, number: str) -> None:
    assert_legible(figures.draw(twelve, number, layers=3, heads=[0, 11]))


@pytest.mark.parametrize("number", ["2", "6a"])
def test_legible_for_all_heads_of_two_layers(twelve: Study, number: str) -> None:
    assert_legible(figures.draw(twelve, number, layers=[10, 11], heads=range(12)))


@pytest.mark.parametrize("number", ["11b", "values"])
def test_legible_for_all_layers(twelve: Study, number: str) -> None:
    assert_legible(figures.draw(twelve, number, layers=range(12)))


def test_illegible_figures_are_noticed(twelve: Study) -> None:
    def spoilt(words: str, size: float = 6) -> Figure:
        figure = figures.draw(twelve, "6a", heads=[0, 1])
        figure.axes[0].set_title(words, loc="right", fontsize=size)
        return figure

    with pytest.raises(AssertionError, match="overlap"):
        assert_legible(spoilt("a title nearly as wide as the whole panel"))
    with pytest.raises(AssertionError, match="cut off"):
        assert_legible(spoilt("a title so wide that it does not even fit into the figure it is in"))
    with pytest.raises(AssertionError, match="too small"):
        assert_legible(spoilt("5", 5))


@pytest.mark.parametrize("number", [*RATE_FIGURES, "7", "11b", "13", "values"])
def test_one_legend(drawn: dict[str, Figure], number: str) -> None:
    figure = drawn[number]
    assert len(figure.legends) == 1
    assert all(axes.get_legend() is None for axes in figure.axes)
    used = {str(label) for axes in figure.axes for label in axes.get_legend_handles_labels()[1]}
    assert sorted(text.get_text() for text in figure.legends[0].get_texts()) == sorted(used)


# -- files


def test_all_formats_are_written(drawn: dict[str, Figure], tmp_path: Path) -> None:
    paths = figures.save(drawn["11b"], tmp_path / "new" / "folder", "fig-11b-distinct-dominants")
    assert [path.name for path in paths] == [f"fig-11b-distinct-dominants.{kind}" for kind in ("png", "svg", "pdf")]
    assert [path.read_bytes()[:5] for path in paths] == [b"\x89PNG\r", b"<?xml", b"%PDF-"]
    only = figures.save(drawn["11b"], tmp_path, "one", formats=["png"])
    assert only == [tmp_path / "one.png"]


def test_files_that_cannot_be_written(drawn: dict[str, Figure], tmp_path: Path) -> None:
    figure = drawn["11b"]
    with pytest.raises(StudyError, match="cannot be written as gif; there are: png, svg, pdf"):
        figures.save(figure, tmp_path, "name", formats=["png", "gif"])
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StudyError, match="cannot be written"):
        figures.save(figure, tmp_path / "file", "name")


@pytest.mark.parametrize("number", ["2", "6a", "values"])
def test_the_same_study_gives_the_same_bytes(number: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = figures.save(figures.draw(made(2, 2), number), tmp_path, "first")
    monkeypatch.setattr("time.time", lambda: 2e9)
    with matplotlib.rc_context(
        {"font.size": 20, "lines.linewidth": 7, "svg.hashsalt": None, "axes.grid": True, "svg.fonttype": "path"}
    ):
        again = figures.save(figures.draw(made(2, 2), number), tmp_path, "again")
    for one, other in zip(first, again, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.suffix
    assert b"<dc:date>" not in first[1].read_bytes()
    assert b"CreationDate" not in first[2].read_bytes()


def test_text_stays_text_in_svg(drawn: dict[str, Figure]) -> None:
    text = figures.svg(drawn["8"])
    assert text.startswith("<svg")
    assert text.rstrip().endswith("</svg>")
    assert "<text" in text
    for words in ("L11H7", "share of texts (%", "chance"):
        assert f">{words}" in text
    assert "DejaVu Sans" in text


def test_global_settings_are_left_alone(twelve: Study) -> None:
    before = dict(matplotlib.rcParams)
    figures.svg(figures.draw(twelve, "11b"))
    figures.draw(twelve, "10")
    assert dict(matplotlib.rcParams) == before
