"""Figures of a reading are legible for any tokens, and their text stays text."""

from __future__ import annotations

import warnings
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

import headscope
from headscope import figures
from headscope.figures import text
from headscope.figures.style import styled
from headscope.model.model import Model
from headscope.readings.reading import Reading
from tests.helpers.figures import assert_legible, get_image, get_panels, list_shown_texts
from tests.helpers.reading_figures import (
    HOSTILE,
    NUMBERS,
    draw_default_figures,
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


# -- every reading


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize(
    "reading",
    [
        make_reading(["yes", "no"], 1, 1),
        make_reading(make_tokens(40), 1, 1),
        make_reading([f"{'long' * 9}{k}" for k in range(150)], 3, 3),
        make_reading(HOSTILE),
    ],
    ids=["two tokens", "one head", "long tokens", "hostile tokens"],
)
def test_legible_and_without_warnings(number: str, reading: Reading) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = figures.draw(reading, number)
        assert_legible(figure)


@pytest.mark.parametrize("number", NUMBERS)
def test_512_tokens_are_legible(number: str) -> None:
    figure = figures.draw(make_reading(make_tokens(512), 3, 3), number)
    assert max(figure.get_size_inches()) <= 9
    with styled():
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        texts = list_shown_texts(figure)
        boxes = np.array([item.get_window_extent(canvas.get_renderer()).extents for item in texts])
    assert min(item.get_fontsize() for item in texts) >= 6
    assert boxes[:, :2].min() >= -1
    assert (boxes[:, 2:].max(axis=0) <= np.array([figure.bbox.width, figure.bbox.height]) + 1).all()
    lows, highs = np.maximum(boxes[:, None, :2], boxes[:, :2]), np.minimum(boxes[:, None, 2:], boxes[:, 2:])
    overlapping = ((highs - lows) > 1).all(axis=-1) & ~np.eye(len(boxes), dtype=bool)
    assert not [(texts[a], texts[b]) for a, b in np.argwhere(overlapping)]


@pytest.mark.parametrize("number", NUMBERS)
def test_legible_by_default(default_figures: dict[str, Figure], number: str) -> None:
    assert_legible(default_figures[number])


@pytest.mark.parametrize(
    ("number", "layers", "heads"),
    [("4", 3, range(12)), ("4", range(6), [0, 1]), ("9", [1, 2], [0, 1]), ("12", range(12), 1)],
)
def test_legible_for_requested_layers_and_heads(
    large_reading: Reading, number: str, layers: object, heads: object
) -> None:
    assert_legible(figures.draw(large_reading, number, layers=layers, heads=heads))  # type: ignore[arg-type]


def test_the_bundled_model(minilm: Model) -> None:
    reading = headscope.read(minilm, headscope.examples()["airport-policing"])
    drawn = figures.draw_all(reading)
    assert list(drawn) == NUMBERS
    for figure in drawn.values():
        assert_legible(figure)
    assert read_token_list(drawn["4"])[127] == "[SEP]"
    rows, words = read_tables(drawn["9"])["L5H7"]
    assert words == f"20 strongest of {len(reading.pairs(5, 7))} pairs"
    assert ["airports", "airport", "29", "109"] in rows
    assert read_running_text(drawn["9"])[:3] == ["[CLS]", "airport", "policing"]
    np.testing.assert_array_equal(get_image(get_panels(drawn["4"])["L3"]), reading.attention_map(3, "sum").values)


# -- text and files


def test_hostile_tokens_are_written_as_text(tmp_path: Path) -> None:
    reading = make_reading(HOSTILE, 1, 2)
    for number in ("4", "9"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            figure = figures.draw(reading, number)
            figures.save(figure, tmp_path, number)
        svg = (tmp_path / f"{number}.svg").read_text(encoding="utf-8")
        words = [
            "".join(element.itertext())
            for element in ElementTree.fromstring(svg).iter()
            if element.tag.endswith("text")
        ]
        for token in ("$x_1$", "a_b^{c}", "\\alpha", "<script>alert(1)</script>", "&amp;", "]]>", "שלום", "__init__"):
            assert token in words, (number, token)
        assert "<script" not in svg
        assert "U+4E2D U+6587" in words
        assert all(isinstance(item, Text) and not item.get_parse_math() for item in find_sheet(figure).texts)


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        ("plain", "plain"),
        ("two words", "two words"),
        ("", "empty token"),
        ("\n", "U+000A"),
        (" \xa0", "U+0020 U+00A0"),
        ("a\nb", "a�b"),
        ("\u202eevil", "�evil"),
        ("\ud800", "U+D800"),
        ("x中", "x U+4E2D"),
        ("😀", "😀"),
        ("Ġthe", "Ġthe"),
    ],
)
def test_drawable(token: str, shown: str) -> None:
    assert text.make_drawable(token) == shown


def test_every_drawable_character_is_in_the_font() -> None:
    all_characters = "".join(map(chr, range(0x110000)))
    shown = text.make_drawable(all_characters)
    assert {ord(character) for character in shown} <= text._list_characters()
    assert not set(shown) & set("\n\r\t\x00\x7f\x85\u2028\u202e\u200b")


def test_widths_are_those_drawn(default_figures: dict[str, Figure]) -> None:
    figure = figures.draw(make_reading(["responsibility", "##bular"], 1, 1), "9")
    assert_legible(figure)  # draws it
    for item in find_sheet(figure).texts:
        if item.get_text() in ("responsibility", "##bular"):
            drawn_width = item.get_window_extent().width / figure.dpi * 72
            assert drawn_width == pytest.approx(text.measure_width(item.get_text(), item.get_fontsize()), rel=0.05)


def test_clipped() -> None:
    assert text.clip_text("short", 100) == "short"
    for room in (5.0, 20.0, 40.0):
        cut = text.clip_text("responsibility", room)
        assert cut.endswith("…")
        assert text.measure_width(cut) <= max(room, text.measure_width("…"))
    assert text.clip_text("responsibility", text.measure_width("responsibility")) == "responsibility"


def test_flow_breaks_lines_between_words_and_nowhere_else() -> None:
    words = ["aaa", "bbb", "##b", "##b", "c"]
    word_ids = [0, 1, 1, 1, 2]
    max_width = text.measure_width("bbb##b##b", 10) + 2
    placed = text.wrap_tokens(words, word_ids, [0.0] * 5, max_width, 10)
    assert [token.row for token in placed] == [0, 1, 1, 1, 2]
    assert [token.left for token in placed][::4] == [0, 0]
    assert placed[1].left < placed[2].left < placed[3].left
    narrow = text.wrap_tokens(words, word_ids, [0.0] * 5, text.measure_width("bbb", 10) + 1, 10)
    assert [token.row for token in narrow] == [0, 1, 2, 3, 4]
    assert all(token.left + token.width <= text.measure_width("bbb", 10) + 1 for token in narrow)


@pytest.mark.parametrize("number", NUMBERS)
def test_the_same_reading_gives_the_same_bytes(number: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = figures.save(figures.draw(make_reading(make_tokens(20)), number), tmp_path, "first")
    monkeypatch.setattr("time.time", lambda: 2e9)
    again = figures.save(figures.draw(make_reading(make_tokens(20)), number), tmp_path, "again")
    for path, other_path in zip(first, again, strict=True):
        assert path.read_bytes() == other_path.read_bytes(), path.suffix


def test_words_stay_text_in_svg(default_figures: dict[str, Figure]) -> None:
    for number, words in {"4": ">policing<", "5": ">query position<", "9": ">Token_i<", "12": ">C / max(C)<"}.items():
        assert words in figures.render_svg(default_figures[number])
