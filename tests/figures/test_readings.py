"""Figures of one text show the data of the reading, for all kinds of readings and tokens."""

from __future__ import annotations

import re

import numpy as np
import pytest
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from headscope import figures
from headscope.errors import ReadingError, StudyError
from headscope.figures import text
from headscope.readings.reading import Reading
from tests.helpers.figures import assert_legible, get_image, get_panels, make_study
from tests.helpers.reading_figures import (
    NUMBERS,
    draw_default_figures,
    find_marks,
    find_sheet,
    make_large_reading,
    make_reading,
    make_tokens,
    read_running_text,
    read_tables,
    read_token_list,
)


@pytest.fixture
def large_reading() -> Reading:
    return make_large_reading()


@pytest.fixture
def default_figures() -> dict[str, Figure]:
    return draw_default_figures()


# -- the catalogue


def test_drawings_are_in_the_order_of_the_paper_and_have_captions() -> None:
    assert list(figures.READING_DRAWINGS) == NUMBERS
    for number, drawing in figures.READING_DRAWINGS.items():
        assert drawing.number == number
        assert drawing.draw is getattr(figures, drawing.draw.__name__)
        assert drawing.draw.__name__.removeprefix("draw_") == drawing.name
        assert drawing.caption.endswith(".")
        assert drawing.needs_maps == (number in ("4", "5"))
    drawings = [*figures.DRAWINGS.values(), *figures.READING_DRAWINGS.values()]
    assert len({drawing.title for drawing in drawings}) == len({drawing.stem for drawing in drawings}) == len(drawings)
    assert [drawing.stem for drawing in figures.READING_DRAWINGS.values()] == [
        "fig-04-attention-of-text",
        "fig-05-lines-and-regions",
        "fig-09-pairs-in-text",
        "fig-12-summed-similarities",
    ]


@pytest.mark.parametrize("number", NUMBERS)
def test_a_study_has_no_figures_of_one_text(number: str) -> None:
    with pytest.raises(
        StudyError, match=rf"figure {number} is drawn from a reading of one text \(headscope read\)"
    ) as e:
        figures.draw(make_study(1, 1), number)
    assert "a study has: 2, 3, 6a" in str(e.value)


def test_a_reading_has_no_figures_of_a_corpus(large_reading: Reading) -> None:
    with pytest.raises(
        ReadingError, match=r"figure 7 is drawn from a study of many texts \(headscope study\)"
    ) as error:
        figures.draw(large_reading, "7")
    assert str(error.value).endswith("a reading has: 4, 5, 9, 12")
    with pytest.raises(ReadingError, match="no figure '99'; there are: 4, 5, 9, 12"):
        figures.draw(large_reading, "99")


@pytest.mark.parametrize("number", NUMBERS)
def test_bad_layers_and_heads_are_refused(large_reading: Reading, number: str) -> None:
    with pytest.raises(ReadingError, match="no layer 12: this reading has layers 0 to 11"):
        figures.draw(large_reading, number, layers=12)
    with pytest.raises(ReadingError, match="no head 99"):
        figures.draw(large_reading, number, heads=[0, 99])
    with pytest.raises(ReadingError, match="the list given is empty"):
        figures.draw(large_reading, number, layers=[])


def test_without_attention() -> None:
    reading = make_reading(["a", "b", "a"], attention=False)
    assert list(figures.draw_all(reading)) == ["9", "12"]
    for number in ("4", "5"):
        assert not figures.READING_DRAWINGS[number].can_draw(reading)
        with pytest.raises(ReadingError, match="no attention maps"):
            figures.draw(reading, number)


def test_draw_all_takes_layers_and_heads_once(large_reading: Reading) -> None:
    drawn = figures.draw_all(large_reading, layers=iter([3, 10, 3]), heads=iter([2]))
    assert list(drawn) == NUMBERS
    assert list(get_panels(drawn["4"])) == ["L3H2", "L3", "L10H2", "L10"]
    assert {name.split()[0] for name in get_panels(drawn["5"])} == {"L3H2", "L10H2"}
    assert list(read_tables(drawn["9"])) == ["L3H2", "L10H2"]
    assert list(get_panels(drawn["12"])) == ["L3", "L10"]


# -- defaults

LAYERS = {12: [1, 6, 11], 6: [0, 3, 5], 2: [0, 1], 1: [0]}


@pytest.mark.parametrize(("layers", "shown"), LAYERS.items())
@pytest.mark.parametrize(("heads", "head"), [(12, 8), (9, 8), (8, 7), (1, 0)])
def test_default_layers_and_head_of_maps(layers: int, shown: list[int], heads: int, head: int) -> None:
    reading = make_reading(["a", "b", "c"], layers, heads)
    assert list(get_panels(figures.draw(reading, "4"))) == [name for k in shown for name in (f"L{k}H{head}", f"L{k}")]
    assert list(get_panels(figures.draw(reading, "12"))) == [f"L{k}" for k in shown]
    assert {name.split()[0] for name in get_panels(figures.draw(reading, "5"))} == {f"L{layers - 1}H{head}"}


@pytest.mark.parametrize(("heads", "shown"), [(12, [5, 7, 8]), (9, [5, 7, 8]), (8, [0, 4, 7]), (2, [0, 1]), (1, [0])])
def test_default_heads_of_pairs(heads: int, shown: list[int]) -> None:
    assert list(read_tables(figures.draw(make_reading(["a", "b", "c"], 2, heads), "9"))) == [
        f"L1H{head}" for head in shown
    ]


# -- Fig. 4


def test_attention_is_drawn_as_read(large_reading: Reading, default_figures: dict[str, Figure]) -> None:
    panels = get_panels(default_figures["4"])
    for layer in (1, 6, 11):
        np.testing.assert_array_equal(get_image(panels[f"L{layer}H8"]), large_reading.attention_map(layer, 8).values)
        np.testing.assert_array_equal(get_image(panels[f"L{layer}"]), large_reading.attention_map(layer, "sum").values)
        assert panels[f"L{layer}H8"].get_position().x0 < panels[f"L{layer}"].get_position().x0
    tops = [panels[f"L{layer}"].get_position().y0 for layer in (1, 6, 11)]
    assert tops == sorted(tops, reverse=True)
    assert isinstance(panels["L1"].images[0].norm, LogNorm)
    assert panels["L1"].images[0].get_cmap().name == "viridis"
    assert (panels["L11"].get_xlabel(), panels["L11H8"].get_ylabel()) == ("key position", "query position")
    assert panels["L11"].get_ylim()[0] > panels["L11"].get_ylim()[1]  # the first token is the top row
    bars = {axes.get_xlabel() for axes in default_figures["4"].axes if not axes.get_title(loc="left")}
    assert {"attention of one head", "attention, sum of 12 heads"} <= bars


def test_tokens_are_listed_and_lines_of_the_last_layer_marked(
    large_reading: Reading, default_figures: dict[str, Figure]
) -> None:
    assert read_token_list(default_figures["4"]) == dict(enumerate(make_tokens(40)))
    lines = large_reading.lines(11)["index"].tolist()
    assert 0 < len(lines) < 40
    assert sorted(find_marks(default_figures["4"])) == lines != large_reading.lines(6)["index"].tolist()
    other = figures.draw(large_reading, "4", layers=[11, 2], heads=[3, 0])
    assert list(get_panels(other)) == ["L11H3", "L11H0", "L11", "L2H3", "L2H0", "L2"]
    assert sorted(find_marks(other)) == large_reading.lines(2)["index"].tolist()
    assert any("lines of L2, sum of 12 heads (τ = 0.3)" in item.get_text() for item in find_sheet(other).texts)


@pytest.mark.parametrize(("n", "columns", "width"), [(2, 1, 3.5), (48, 3, 3.5), (128, 8, 7.0), (512, 8, 7.0)])
def test_columns_of_tokens(n: int, columns: int, width: float) -> None:
    figure = figures.draw(make_reading(make_tokens(n), 3, 1), "4")
    assert figure.get_figwidth() == width
    assert figure.get_figheight() <= 9
    numbers = [item for item in find_sheet(figure).texts if re.fullmatch(r"\d+:", item.get_text())]
    assert len(numbers) == n
    assert len({round(item.get_position()[0], 6) for item in numbers}) == columns
    assert read_token_list(figure) == dict(enumerate(make_tokens(n)))  # none cut short


def test_long_tokens_are_cut_short_only_where_the_page_would_not_do() -> None:
    tokens = [f"{'long' * 4}{k}" for k in range(128)]
    assert all(
        word.endswith("…") for word in read_token_list(figures.draw(make_reading(tokens * 4, 1, 1), "4")).values()
    )
    assert list(read_token_list(figures.draw(make_reading(tokens[:40], 1, 1), "4")).values()) == tokens[:40]


# -- Fig. 5


def test_lines_and_regions_are_drawn_as_read(large_reading: Reading, default_figures: dict[str, Figure]) -> None:
    panels = {
        axes.get_title(loc="right"): axes for axes in default_figures["5"].axes if axes.get_title(loc="left") == "L11H8"
    }
    assert list(panels) == ["attention map", "similarity", "lines masked", "regions"]
    np.testing.assert_array_equal(get_image(panels["attention map"]), large_reading.attention_map(11, 8).values)
    matrix = large_reading.matrix(11, 8).values / large_reading.matrix(11, 8).values.max()
    np.testing.assert_allclose(get_image(panels["similarity"]), matrix)
    lines = large_reading.lines(11, 8)["index"].to_numpy()
    inside = np.isin(np.arange(40), lines)
    masked = get_image(panels["lines masked"])
    np.testing.assert_array_equal(masked.mask, inside[:, None] | inside[None, :])
    np.testing.assert_allclose(masked.compressed(), matrix[~masked.mask])
    regions, blocks = large_reading.regions(11, 8).values, large_reading.blocks(11, 8)
    shown = get_image(panels["regions"])
    for a, block in enumerate(blocks.itertuples()):
        for b, other in enumerate(blocks.itertuples()):
            part = shown[block.start : block.stop, other.start : other.stop]
            if np.isnan(regions[a, b]):
                assert part.mask.all()
            else:
                np.testing.assert_allclose(part, regions[a, b] / large_reading.matrix(11, 8).values.max())
    assert np.isnan(regions[0, 0])  # the first token is a line, and a block of its own
    places = {name: axes.get_position() for name, axes in panels.items()}
    assert places["attention map"].x0 == places["lines masked"].x0 < places["similarity"].x0 == places["regions"].x0
    assert places["attention map"].y0 == places["similarity"].y0 > places["lines masked"].y0 == places["regions"].y0


def test_similarities_are_white_at_zero_red_above_blue_below(default_figures: dict[str, Figure]) -> None:
    for axes in (*get_panels(default_figures["12"]).values(), *list(get_panels(default_figures["5"]).values())[1:]):
        image = axes.images[0]
        low, middle, high = (image.to_rgba([value])[0] for value in (-1, 0, 1))
        assert middle[:3].min() > 0.95
        assert high[0] > high[2]
        assert low[2] > low[0]
        assert image.norm.vmin == -image.norm.vmax
    labels = [axes.get_xlabel() for axes in default_figures["5"].axes if not axes.get_title(loc="left")]
    assert labels == ["attention", "C / max(C)", "C / max(C)", "mean C / max(C)"]


def test_several_heads_stand_in_rows(large_reading: Reading) -> None:
    figure = figures.draw(large_reading, "5", layers=[1, 2], heads=[0, 3])
    tops = {axes.get_title(loc="left"): round(axes.get_position().y0, 6) for axes in figure.axes if axes.images}
    assert list(tops) == ["L1H0", "L1H3", "L2H0", "L2H3"]
    assert len(set(tops.values())) == 4
    assert figure.get_figwidth() == 7
    assert_legible(figure)


# -- Fig. 9


def test_tables_hold_the_strongest_pairs_in_order(large_reading: Reading, default_figures: dict[str, Figure]) -> None:
    tables = read_tables(default_figures["9"])
    assert list(tables) == ["L11H5", "L11H7", "L11H8"]
    for head in (5, 7, 8):
        pairs = large_reading.pairs(11, head)
        rows, words = tables[f"L11H{head}"]
        assert len(pairs) > 20
        strongest = pairs[pairs["value"] >= pairs["value"].sort_values().iloc[-20]]
        columns = ["token_i", "token_j", "index_i", "index_j"]
        assert rows == [[str(cell) for cell in row] for row in strongest[columns].to_numpy()]
        assert words == f"20 strongest of {len(pairs)} pairs"


def test_number_of_pairs_is_shown() -> None:
    outputs = np.zeros((1, 60, 3, 4))
    outputs[..., 0, 0] = 1  # all 1,770 pairs are equally strong
    outputs[0, :2, 1, 0] = 1  # one pair
    reading = Reading.from_arrays(make_tokens(60), outputs)
    tables = read_tables(figures.draw(reading, "9"))
    assert [words for _, words in tables.values()] == ["20 strongest of 1,770 pairs", "1 pair", "no pairs"]
    assert [len(rows) for rows, _ in tables.values()] == [20, 1, 0]
    assert [row[2:] for row in tables["L0H0"][0]] == [["0", str(k)] for k in range(1, 21)]  # of equals the first


def test_token_values_of_shown_pairs_are_coloured_and_no_others(large_reading: Reading) -> None:
    figure = figures.draw(large_reading, "9", heads=[5, 7])
    tokens, colours = make_tokens(40), find_marks(figure)
    assert read_running_text(figure) == tokens
    rows = [row for table, _ in read_tables(figure).values() for row in table]
    shown = {cell for row in rows for cell in row[:2]}
    assert 14 < len(shown) < len(set(tokens))  # more than there are colours, fewer than all
    assert sorted(colours) == [k for k, token in enumerate(tokens) if token in shown]
    styles_by_token: dict[str, set[tuple[str, str, float]]] = {}
    for position, style in colours.items():
        styles_by_token.setdefault(tokens[position], set()).add(style)
    assert all(len(styles) == 1 for styles in styles_by_token.values())  # equal tokens look the same
    assert len(set.union(*styles_by_token.values())) == len(shown)  # different ones do not
    for head in (5, 7):
        for position, style in find_marks(figure, f"L11H{head}").items():
            assert style == colours[position]
    small = [item.get_text() for item in find_sheet(figure).texts if item.get_fontsize() == 6]
    assert all(small.count(index) >= 2 for row in rows for index in row[2:])  # in the table, and beside its token


def test_tokens_are_equal_by_their_ids() -> None:
    reading = Reading.from_arrays(["a", "a", "b"], np.ones((1, 3, 1, 1)), ids=[1, 2, 2])
    styles = find_marks(figures.draw(reading, "9"))
    assert styles[0] != styles[1] == styles[2]


def test_styles_are_unique_and_black_text_is_legible_on_all() -> None:
    styles = text.assign_styles(range(126))
    assert len(set(styles.values())) == 126
    assert len({style.fill for style in list(styles.values())[:14]}) == 14
    assert text.assign_styles([5, 5, 6]) == {5: styles[0], 6: styles[1]}
    for color in text.PALETTE:
        channels = [int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
        assert (luminance + 0.05) / 0.05 > 7  # black on it


def test_many_values_look_different() -> None:
    figure = figures.draw(make_reading([f"word{k}" for k in range(60)], 1, 3, width=30), "9")
    styles = find_marks(figure)
    assert len(styles) > 42  # more than colours and borders make
    ruled = {round(float(line.get_ydata()[0]), 3) for line in find_sheet(figure).lines[3:]}
    assert ruled
    assert len(set(styles.values())) == 42


# -- Fig. 12


def test_summed_similarities(large_reading: Reading, default_figures: dict[str, Figure]) -> None:
    panels = get_panels(default_figures["12"])
    for layer in (1, 6, 11):
        matrix = sum(large_reading.matrix(layer, head).values for head in range(12))
        np.testing.assert_allclose(get_image(panels[f"L{layer}"]), matrix / matrix.max(), atol=1e-12)
    lefts = [panels[f"L{layer}"].get_subplotspec().colspan.start for layer in (1, 6, 11)]  # type: ignore[union-attr]
    assert lefts == [0, 1, 2]
    assert [axes.get_xlabel() for axes in default_figures["12"].axes][-1] == "C / max(C)"
    np.testing.assert_array_equal(
        get_image(get_panels(figures.draw(large_reading, "12", heads=3))["L1"]), get_image(panels["L1"])
    )


def test_similarities_below_the_scale_have_its_lowest_colour_and_an_arrow() -> None:
    reading = Reading.from_arrays(["a", "b", "c"], np.array([1.0, 1.0, -9.0]).reshape(1, 3, 1, 1))
    figure = figures.draw(reading, "12")
    image = get_panels(figure)["L0"].images[0]
    assert image.get_array().min() == -9
    np.testing.assert_array_equal(image.to_rgba(image.get_array())[0, 2], image.cmap(0.0))
    assert image.colorbar.extend == "min"
    other = figures.draw(make_reading(["a", "b", "c"], 1, 1), "12")
    assert get_panels(other)["L0"].images[0].colorbar.extend == "neither"


def test_no_similarity_above_zero() -> None:
    opposite = Reading.from_arrays(["a", "b"], np.array([2.0, -1.0]).reshape(1, 2, 1, 1), np.full((1, 1, 2, 2), 0.5))
    zero = Reading.from_arrays(["a", "b"], np.zeros((1, 2, 1, 1)), np.full((1, 1, 2, 2), 0.5))
    for reading, value in ((opposite, -1.0), (zero, 0.0)):
        drawn = figures.draw_all(reading)
        np.testing.assert_array_equal(get_image(get_panels(drawn["12"])["L0"]), [[0, value], [value, 0]])
        labels = [axes.get_xlabel() for axes in drawn["12"].axes]
        assert "C / max |C|, none above 0" in labels
        assert read_tables(drawn["9"]) == {"L0H0": ([], "no pairs")}
        assert find_marks(drawn["9"]) == {}
