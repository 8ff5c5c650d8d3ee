"""Figures show the data of the study: numbers in bars, lines, maps and titles."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch

from headscope import figures
from headscope.figures.distributions import format_plus_minus
from headscope.studies.result import Study
from tests.helpers.figures import RATE_FIGURES, get_bars, get_image, get_line_position, get_panels, make_study


@pytest.fixture(scope="module")
def large_study() -> Study:
    return make_study()


@pytest.fixture(scope="module")
def default_figures(large_study: Study) -> dict[str, Figure]:
    """All figures with default options; tests must not change them."""
    return figures.draw_all(large_study)


@pytest.mark.parametrize(("number", "name"), RATE_FIGURES.items())
def test_rates_show_texts_rate_and_chance(
    large_study: Study, number: str, name: str, default_figures: dict[str, Figure]
) -> None:
    axes = get_panels(default_figures[number])["L11H4"]
    counts = large_study.data[f"{name}_texts"].sel(layer=11, head=4).values
    steps = get_bars(axes)
    np.testing.assert_allclose(steps.values, counts / counts.sum() * 100)
    np.testing.assert_allclose(steps.edges, np.linspace(0, 100, 51))
    rate = float(large_study.rate(name).sel(layer=11, head=4)) * 100
    error = float(large_study.standard_error(name).sel(layer=11, head=4)) * 100
    assert get_line_position(axes, "rate of the head") == pytest.approx(rate)
    assert axes.get_title(loc="right") == format_plus_minus(rate, error)
    chance = large_study.chance(name)
    expected = chance.sel(layer=11, head=4) if chance.ndim else chance
    assert get_line_position(axes, "chance") == pytest.approx(float(expected) * 100)
    low, high = axes.get_xlim()
    assert (low, high) == (0, 100)  # this head's texts lie everywhere


def test_rate_axis_ends_after_the_last_text_and_the_last_mark() -> None:
    study = make_study(1, 2)
    counts = study.data["repeat_rate_texts"]
    counts[:] = 0
    counts[0, 0, 10] = 6  # a rate of 20 to 22 %
    figure = figures.draw_repeat_rates(study)
    assert get_panels(figure)["L0H1"].get_xlim() == (0, 30)
    study.data["repeat_rate"][0, 1] = 0.61
    assert get_panels(figures.draw_repeat_rates(study))["L0H1"].get_xlim() == (0, 70)


def test_panels_share_axes_and_show_every_bar(default_figures: dict[str, Figure]) -> None:
    panels = get_panels(default_figures["8"]).values()
    assert len({(axes.get_xlim(), axes.get_ylim()) for axes in panels}) == 1
    assert all(get_bars(axes).values.max() < axes.get_ylim()[1] for axes in panels)


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [(12.34, 0.51, "12.3 ± 0.5"), (12.345, 0.021, "12.35 ± 0.02"), (12.34, 0.0, "12.3 ± 0.0"), (12.34, np.nan, "12.3")],
)
def test_plus_minus(value: float, error: float, words: str) -> None:
    assert format_plus_minus(value + 1e-9, error) == words


def test_distances_show_pairs_mean_and_all_pairs(large_study: Study, default_figures: dict[str, Figure]) -> None:
    axes = get_panels(default_figures["7"])["L11H8"]
    counts = large_study.data["distance"].sel(layer=11, head=8).values
    np.testing.assert_allclose(get_bars(axes).values, counts / counts.sum() * 100)
    np.testing.assert_allclose(get_bars(axes).edges, np.arange(0.5, 12))
    assert get_line_position(axes, "their mean") == pytest.approx(
        float(large_study.rate("mean_distance").sel(layer=11, head=8))
    )
    mean, error = (
        float(array.sel(layer=11, head=8))
        for array in (large_study.rate("mean_distance"), large_study.standard_error("mean_distance"))
    )
    assert axes.get_title(loc="right") == format_plus_minus(mean, error)


def test_chance_profile_counts_the_pairs_of_every_window(default_figures: dict[str, Figure]) -> None:
    axes = get_panels(default_figures["7"])["L11H0"]
    (line,) = [line for line in axes.lines if line.get_label() == "all pairs (chance)"]
    pairs = np.zeros(11)
    for tokens in [10] + [12] * 5:
        for i, j in combinations(range(tokens), 2):
            pairs[j - i - 1] += 1
    np.testing.assert_allclose(line.get_ydata(), pairs / pairs.sum() * 100)
    np.testing.assert_array_equal(line.get_xdata(), np.arange(1, 12))


def test_distances_by_layer_pool_heads(large_study: Study, default_figures: dict[str, Figure]) -> None:
    all_heads = get_panels(default_figures["13"])["L6"]
    counts = large_study.data["distance"].sel(layer=6).sum("head").values
    np.testing.assert_allclose(get_bars(all_heads).values, counts / counts.sum() * 100)
    mean = counts @ np.arange(1, 12) / counts.sum()
    assert get_line_position(all_heads, "their mean") == pytest.approx(mean)
    assert all_heads.get_title(loc="right") == f"mean {mean:.1f} tokens"
    two_heads = get_panels(figures.draw_distances_by_layer(large_study, heads=[1, 2]))["L6"]
    counts = large_study.data["distance"].sel(layer=6, head=[1, 2]).sum("head").values
    np.testing.assert_allclose(get_bars(two_heads).values, counts / counts.sum() * 100)


def test_distinct_dominants(large_study: Study, default_figures: dict[str, Figure]) -> None:
    axes = get_panels(default_figures["11b"])["L11"]
    counts = large_study.data["distinct_dominants"].sel(layer=11).values
    np.testing.assert_allclose([bar.get_height() for bar in axes.patches], counts / counts.sum() * 100)
    np.testing.assert_allclose([bar.get_x() + bar.get_width() / 2 for bar in axes.patches], np.arange(13), atol=1e-9)
    mean = counts @ np.arange(13) / counts.sum()
    assert get_line_position(axes, "mean") == pytest.approx(mean)
    assert axes.get_title(loc="right") == f"mean {mean:.1f} of 12"
    assert list(get_panels(figures.draw_distinct_dominants(large_study, layers=[2, 5]))) == ["L2", "L5"]


def test_values_show_theta_gap_and_shares(large_study: Study, default_figures: dict[str, Figure]) -> None:
    figure = default_figures["values"]
    axes = get_panels(figure)["L6"]
    share = large_study.data["value_histogram"].sel(layer=6).sum("head").values.astype(float)
    share *= 100 / share.sum()
    np.testing.assert_allclose(get_bars(axes).values, share)
    assert axes.get_yscale() == "log"
    assert get_line_position(axes, "θ = 0.3") == 0.3
    (gap,) = [patch for patch in axes.patches if not isinstance(patch, StepPatch)]
    assert gap.get_extents().transformed(axes.transData.inverted()).intervalx == pytest.approx([0.1, 0.6])
    below, between = share[:110].sum(), share[110:160].sum()
    assert axes.get_title(loc="right").split() == f"below 0.1: {below:.1f} % 0.1 to 0.6: {between:.1f} %".split()
    assert "0.1 to 0.6, the paper's gap" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_values_keep_bins_without_pairs_at_the_foot() -> None:
    study = make_study(1, 1)
    study.data["value_histogram"][0, 0, :50] = 0
    steps = get_bars(get_panels(figures.draw_values(study))["L0"])
    assert (steps.values[:50] == steps.baseline).all()
    assert (steps.values[50:][study.data["value_histogram"].values[0, 0, 50:] > 0] > steps.baseline).all()


def test_attention_maps_are_means_over_the_texts_that_reach(large_study: Study) -> None:
    panels = get_panels(figures.draw_attention_maps(large_study, heads=3))
    sums = large_study.data["attention"].sel(layer=10).values
    reach = np.full((12, 12), 6)
    reach[10:, :] = reach[:, 10:] = 5  # one text ends after 10 tokens
    np.testing.assert_allclose(get_image(panels["L10H3"]), sums[3] / reach)
    np.testing.assert_allclose(get_image(panels["L10"]), sums.sum(axis=0) / reach)
    assert panels["L10H3"].get_xlim()[0] < panels["L10H3"].get_xlim()[1]
    assert panels["L10H3"].get_ylim()[0] > panels["L10H3"].get_ylim()[1]  # the first token is the top row


def test_maps_of_a_kind_share_a_labelled_colour_bar(default_figures: dict[str, Figure]) -> None:
    figure = default_figures["2"]
    panels = get_panels(figure)
    single = [axes.images[0].norm for name, axes in panels.items() if "H" in name]
    top = max(float(get_image(axes).max()) for name, axes in panels.items() if "H" in name)
    assert len(single) == 4
    assert all(isinstance(norm, LogNorm) and norm.vmax == pytest.approx(top) for norm in single)
    bar_labels = {axes.get_xlabel() for axes in figure.axes if not axes.get_title(loc="left")}
    assert bar_labels == {"mean attention of one head", "mean attention, sum of 12 heads"}


def test_positions_no_text_reaches_are_blank() -> None:
    study = make_study(1, 1, texts=np.array([1]))  # its only text ends after 10 of 12 tokens
    for figure in (figures.draw_attention_maps(study), figures.draw_locations(study)):
        values = get_image(get_panels(figure)["L0H0"])
        assert values.mask[10:].all()
        assert values.mask[:, 10:].all()
        assert not values.mask[:10, :10].any()


def test_zeros_of_a_causal_map_are_drawn_in_the_lowest_colour() -> None:
    study = make_study(1, 1)
    study.data["attention"][:] = np.tril(study.data["attention"].values)
    image = get_panels(figures.draw_attention_maps(study))["L0H0"].images[0]
    lowest, upper = image.cmap(0.0), image.to_rgba(image.get_array())[0, -1]
    np.testing.assert_allclose(upper, lowest)


def test_attention_without_lines(large_study: Study) -> None:
    study = make_study(2, 3)
    study.data["sample_texts"] = study.data["sample_texts"] * 0 + 4
    figure = figures.draw_attention_without_lines(study)
    panels = {
        axes.get_title(loc="right"): axes for axes in figure.axes if axes.images and axes.get_title(loc="left") == "L1"
    }
    layer_data = study.data.sel(layer=1)
    np.testing.assert_allclose(get_image(panels["mean map"]), layer_data["attention"].sum("head") / 6)
    np.testing.assert_allclose(get_image(panels["lines zeroed"]), layer_data["attention_without_lines"] / 4)
    np.testing.assert_allclose(
        get_image(panels["diagonal too"]), layer_data["attention_without_lines_and_diagonal"] / 4
    )
    both = figures.draw_attention_without_lines(large_study, layers=[0, 11])
    assert [axes.get_title(loc="left") for axes in both.axes if axes.get_title(loc="left")] == ["L0"] * 3 + ["L11"] * 3


def test_locations_are_shares_of_texts(large_study: Study, default_figures: dict[str, Figure]) -> None:
    shown = get_image(get_panels(default_figures["10"])["L11H8"])
    counts = large_study.data["location"].sel(layer=11, head=8).values
    np.testing.assert_allclose(shown, 100 * counts / large_study.data["position_texts"].values)
