"""The map of head types in the report, as text and in a browser; and the line in a notebook's card."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from headscope.page.card import render_study_card
from headscope.page.colors import compute_contrast, pick_text_color
from headscope.page.head_type_map import LOOKS, build_head_type_map
from headscope.page.report import render_report
from headscope.studies.head_types import HEAD_TYPES, LETTERS, NAMES
from headscope.studies.result import Study
from tests.helpers.planted import VARIED, Planted, planted

if TYPE_CHECKING:
    from tests.helpers.browser import PageOpener

BOTH = Planted(equal=0.4, same=0.9)
"""a head to which two types apply"""


@pytest.fixture(scope="module")
def study() -> Study:
    return planted(*VARIED, [BOTH, Planted(), Planted(), Planted(pairs=0)])


@pytest.fixture(scope="module")
def html(study: Study) -> str:
    return render_report(study, [], [])


def test_every_head_type_has_a_letter_and_colours_that_can_be_read() -> None:
    assert tuple(LOOKS) == NAMES
    assert len(set(LETTERS)) == len(LETTERS) == len(NAMES)
    for theme in (0, 1):
        colours = [look[theme] for look in LOOKS.values()]
        assert len(set(colours)) == len(NAMES)
        assert min(compute_contrast(colour, pick_text_color(colour)) for colour in colours) >= 4.5


def test_a_study_of_too_few_texts_has_one_type_that_the_legend_explains() -> None:
    head_map = build_head_type_map(planted(*VARIED, blocks=9))
    assert head_map.summary == "8 too few texts"
    assert [kind.head_type.name for kind in head_map.kinds] == list(NAMES)
    assert {cell.kind.letter for cell in head_map.cells} == {"·"}
    assert {cell.description for cell in head_map.cells} == {
        "too few texts: they fill 9 of 20 blocks, and 10 are needed"
    }


def test_the_map_is_that_of_the_table(study: Study) -> None:
    head_map = build_head_type_map(study)
    table = study.heads()
    assert [cell.kind.head_type.name for cell in head_map.cells] == table["head_type"].tolist()
    assert [cell.index for cell in head_map.cells] == list(range(12))
    assert head_map.cells[8].description.endswith("join equal tokens (chance 1.0 %); also within-sentence")
    assert [kind.heads for kind in head_map.kinds] == [2, 1, 1, 1, 1, 1, 2, 3]
    assert head_map.summary.startswith("2 repeat-token, 1 local, ")


def test_cells_stand_where_the_study_has_them(study: Study) -> None:
    """Heads selected in another order, and layers with other numbers."""
    selected = Study(study.data.assign_coords(layer=[3, 7, 9])).select(heads=[3, 0])
    head_map = build_head_type_map(selected)
    assert [layer for layer, _ in head_map.rows] == [3, 7, 9]
    assert [(cell.name, cell.kind.head_type.name) for cell in head_map.cells[:4]] == [
        ("L3H3", "one-token"), ("L3H0", "repeat-token"), ("L7H3", "undecided"), ("L7H0", "long-range"),
    ]  # fmt: skip
    assert "L7H0" in render_report(selected, [], [])


def test_the_card_counts(study: Study) -> None:
    assert build_head_type_map(study).summary in render_study_card(study)


@pytest.mark.browser
def test_the_map_comes_first_and_says_what_each_head_is(html: str, study: Study, page_opener: PageOpener) -> None:
    opened = page_opener(html)
    page = opened.page
    assert page.locator("[role=tab][aria-selected=true]").inner_text() == "head type"
    letters = page.locator("#panel-0 td[data-i]").all_inner_texts()
    table = study.heads()
    assert letters == [LETTERS[NAMES.index(name)] for name in table["head_type"]]
    page.locator("#panel-0 td[data-i='8']").focus()
    assert page.locator("#tip > *").all_inner_texts() == [
        "L2H0", "repeat-token: 40 % of its pairs join equal tokens (chance 1.0 %); also within-sentence",
        "2,000,000 pairs counted",
    ]  # fmt: skip
    labels = page.locator("#panel-0 td[data-i]").evaluate_all("all => all.map((cell) => cell.ariaLabel)")
    assert all(words in label for words, label in zip(table["description"], labels, strict=True))
    legend = [tuple(text.split()) for text in page.locator(".kinds-key li").all_inner_texts()]
    assert legend == [
        (letter, name, str(number))
        for letter, name, number in zip(LETTERS[:-1], NAMES[:-1], (2, 1, 1, 1, 1, 1, 2, 3), strict=True)
    ]
    page.locator("#panel-0 summary").click()
    for head_type in HEAD_TYPES[:-1]:
        assert page.get_by_text(head_type.criterion).is_visible()
    assert opened.errors == []


@pytest.mark.browser
def test_the_head_table_has_head_types_to_sort_and_filter_by(html: str, study: Study, page_opener: PageOpener) -> None:
    page = page_opener(html).page
    table = study.heads()
    column = page.locator("#table tbody tr:visible > :nth-child(2)")
    assert column.all_inner_texts() == table["head_type"].tolist()
    assert column.nth(4).get_attribute("title") == table["description"][4]
    button = page.locator("#table th[data-column=head_type] button")
    for order in (1, -1):
        button.click()
        shown = [NAMES.index(name) for name in column.all_inner_texts()]
        assert [order * place for place in shown] == sorted(order * place for place in shown)
    page.locator("#filter").fill("repeat, long-range")
    assert set(column.all_inner_texts()) == {"repeat-token", "long-range"}
    assert page.locator("#filtered").inner_text() == "3 of 12 heads"


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_differ_and_letters_can_be_read(html: str, scheme: str, page_opener: PageOpener) -> None:
    page = page_opener(html, color_scheme=scheme, viewport={"width": 390, "height": 800}).page
    cell_colors = page.locator("#panel-0 td[data-i]").evaluate_all(
        "all => all.map((cell) => { const s = getComputedStyle(cell); return [s.backgroundColor, s.color]; })"
    )
    backgrounds = {background for background, _ in cell_colors[:8]}
    assert len(backgrounds) == len(NAMES[:-1])
    for colors in cell_colors:
        background, letter = ("#" + "".join(f"{int(k):02x}" for k in re.findall(r"\d+", color)[:3]) for color in colors)
        assert compute_contrast(background, letter) >= 4.5
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.locator("#panel-0 td[data-i='11']").focus()  # pointing would scroll the page, which hides the tip
    box = page.locator("#tip").bounding_box()
    assert box is not None
    assert 0 <= box["x"] <= 390 - box["width"]
