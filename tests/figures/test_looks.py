"""Figures are legible and labelled, and saved with the same bytes every time."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import pytest
from matplotlib.figure import Figure

from headscope import figures
from headscope.errors import StudyError
from headscope.studies.head_types import PARTS
from headscope.studies.result import Study
from tests.helpers.figures import KIND_EXAMPLES, NUMBERS, RATE_FIGURES, assert_legible, make_study
from tests.helpers.synthetic import make_random_study


@pytest.fixture(scope="module")
def large_study() -> Study:
    return make_study()


@pytest.fixture(scope="module")
def default_figures(large_study: Study) -> dict[str, Figure]:
    """All figures with default options; tests must not change them."""
    return figures.draw_all(large_study)


# -- legibility


@pytest.mark.parametrize("number", NUMBERS)
def test_legible_and_labelled(default_figures: dict[str, Figure], number: str) -> None:
    figure = default_figures[number]
    assert_legible(figure)
    words = {axes.get_xlabel() + axes.get_ylabel() for axes in figure.axes}
    for part in (figure, *figure.subfigs):
        words |= {part.get_supxlabel(), part.get_supylabel()}
    assert len(words - {""}) >= 2


@pytest.mark.parametrize("number", KIND_EXAMPLES)
def test_legible_for_two_heads_of_one_layer(large_study: Study, number: str) -> None:
    assert_legible(figures.draw(large_study, number, layers=3, heads=[0, 11]))


@pytest.mark.parametrize("number", ["2", "6a"])
def test_legible_for_all_heads_of_two_layers(large_study: Study, number: str) -> None:
    assert_legible(figures.draw(large_study, number, layers=[10, 11], heads=range(12)))


@pytest.mark.parametrize("number", ["11b", "values", "noise"])
def test_legible_for_all_layers(large_study: Study, number: str) -> None:
    assert_legible(figures.draw(large_study, number, layers=range(12)))


@pytest.mark.parametrize("shape", [(30, 9), (4, 3), (1, 2)])
def test_signal_and_noise_is_legible_where_it_was_measured(shape: tuple[int, int]) -> None:
    figure = figures.draw(make_random_study(layers=shape[0], heads=shape[1], texts=40), "noise")
    assert_legible(figure)
    assert [axes.get_title(loc="left") for axes in figure.axes[:2]] == ["signal share", "heads"]


@pytest.mark.parametrize("shape", [(48, 64), (24, 32), (3, 2)])
def test_head_types_are_legible_and_those_of_the_table(shape: tuple[int, int]) -> None:
    study = make_random_study(layers=shape[0], heads=shape[1], texts=40)
    figure = figures.draw(study, "head-types")
    assert_legible(figure)
    for axes, part in zip(figure.axes, PARTS.values(), strict=True):
        types = [part.names[int(number)] for number in axes.images[0].get_array().ravel()]
        assert types == study.heads()[part.column].tolist()
        assert len(axes.texts) == (len(types) if max(shape) <= 40 else 0)


def test_figures_show_themselves_without_pyplot(large_study: Study) -> None:
    figure = figures.draw(large_study, "11b")
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_illegible_figures_are_noticed(large_study: Study) -> None:
    def draw_spoilt(words: str, size: float = 6) -> Figure:
        figure = figures.draw(large_study, "6a", heads=[0, 1])
        figure.axes[0].set_title(words, loc="right", fontsize=size)
        return figure

    with pytest.raises(AssertionError, match="overlap"):
        assert_legible(draw_spoilt("a title nearly as wide as the whole panel"))
    with pytest.raises(AssertionError, match="cut off"):
        assert_legible(draw_spoilt("a title so wide that it does not even fit into the figure it is in"))
    with pytest.raises(AssertionError, match="too small"):
        assert_legible(draw_spoilt("5", 5))


@pytest.mark.parametrize("number", [*RATE_FIGURES, "7", "11b", "13", "values"])
def test_one_legend(default_figures: dict[str, Figure], number: str) -> None:
    figure = default_figures[number]
    assert len(figure.legends) == 1
    assert all(axes.get_legend() is None for axes in figure.axes)
    used = {str(label) for axes in figure.axes for label in axes.get_legend_handles_labels()[1]}
    assert sorted(text.get_text() for text in figure.legends[0].get_texts()) == sorted(used)


# -- files


def test_all_formats_are_written(default_figures: dict[str, Figure], tmp_path: Path) -> None:
    paths = figures.save(default_figures["11b"], tmp_path / "new" / "folder", "fig-11b-distinct-dominants")
    assert [path.name for path in paths] == [f"fig-11b-distinct-dominants.{kind}" for kind in ("png", "svg", "pdf")]
    assert [path.read_bytes()[:5] for path in paths] == [b"\x89PNG\r", b"<?xml", b"%PDF-"]
    only = figures.save(default_figures["11b"], tmp_path, "one", formats=["png"])
    assert only == [tmp_path / "one.png"]


def test_a_figure_is_laid_out_once_and_drawn_once_for_each_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original_draw, draws = Figure.draw, []
    monkeypatch.setattr(Figure, "draw", lambda figure, renderer: draws.append(1) or original_draw(figure, renderer))
    figures.save(figures.draw(make_study(1, 2), "7"), tmp_path, "name")
    assert len(draws) == 1 + 3


def test_files_that_cannot_be_written(default_figures: dict[str, Figure], tmp_path: Path) -> None:
    figure = default_figures["11b"]
    with pytest.raises(StudyError, match="cannot be written as gif; there are: png, svg, pdf"):
        figures.save(figure, tmp_path, "name", formats=["png", "gif"])
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StudyError, match="cannot write there"):
        figures.save(figure, tmp_path / "file", "name")


@pytest.mark.parametrize("number", ["2", "6a", "values"])
def test_the_same_study_gives_the_same_bytes(number: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = figures.save(figures.draw(make_study(2, 2), number), tmp_path, "first")
    monkeypatch.setattr("time.time", lambda: 2e9)
    with matplotlib.rc_context(
        {"font.size": 20, "lines.linewidth": 7, "svg.hashsalt": None, "axes.grid": True, "svg.fonttype": "path"}
    ):
        again = figures.save(figures.draw(make_study(2, 2), number), tmp_path, "again")
    for path, other_path in zip(first, again, strict=True):
        assert path.read_bytes() == other_path.read_bytes(), path.suffix
    assert b"<dc:date>" not in first[1].read_bytes()
    assert b"CreationDate" not in first[2].read_bytes()


def test_text_stays_text_in_svg(default_figures: dict[str, Figure]) -> None:
    text = figures.render_svg(default_figures["8"])
    assert text.startswith("<svg")
    assert text.rstrip().endswith("</svg>")
    assert "<text" in text
    for words in ("L11H7", "share of texts (%", "chance"):
        assert f">{words}" in text
    assert "DejaVu Sans" in text


def test_global_settings_are_left_alone(large_study: Study) -> None:
    before = dict(matplotlib.rcParams)
    figures.render_svg(figures.draw(large_study, "11b"))
    figures.draw(large_study, "10")
    assert dict(matplotlib.rcParams) == before
