"""The map of head types in the report, as text and in a browser; and the line in a notebook's card."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from headscope.page.formatting import compute_contrast, pick_text_color
from headscope.page.heat_maps import LOOKS, build_head_type_maps
from headscope.page.notebook import render_study_card
from headscope.page.report import render_report
from headscope.studies.head_types import PARTS, count_heads
from headscope.studies.result import Study
from tests.helpers.planted import VARIED, Planted, planted
from tests.helpers.planted_attention import VARIED_ATTENTION, plant_attention

if TYPE_CHECKING:
    from tests.helpers.browser import PageOpener

BOTH = Planted(equal=0.4, same=0.9)
"""a head to which two types apply"""


@pytest.fixture(scope="module")
def study() -> Study:
    rest = {"attends_induction": 0.15, "attends_first": 0.6}
    return plant_attention(
        planted(*VARIED, [BOTH, Planted(), Planted(), Planted(pairs=0)]),
        VARIED_ATTENTION[:4],
        VARIED_ATTENTION[4:8],
        [*VARIED_ATTENTION[8:], rest],
    )


@pytest.fixture(scope="module")
def html(study: Study) -> str:
    return render_report(study, [], [])


def test_every_head_type_has_a_letter_and_colours_that_can_be_read() -> None:
    assert tuple(LOOKS) == tuple(PARTS)
    for name, part in PARTS.items():
        assert tuple(LOOKS[name]) == part.names
        for theme in (0, 1):
            colours = [look[theme] for look in LOOKS[name].values()]
            assert len(set(colours)) == len(part.names)
            assert min(compute_contrast(colour, pick_text_color(colour)) for colour in colours) >= 4.5


def test_a_study_of_too_few_texts_has_one_type_that_the_legend_explains() -> None:
    for head_map in build_head_type_maps(planted(*VARIED, blocks=9)):
        assert head_map.summary == "8 too few texts"
        assert head_map.kinds[-1].head_type.name == "too few texts"
        assert {cell.kind.letter for cell in head_map.cells} == {"·"}
        assert {cell.description for cell in head_map.cells} == {
            "too few texts: they fill 9 of 20 blocks, and 10 are needed"
        }


def test_the_map_is_that_of_the_table(study: Study) -> None:
    table = study.heads()
    for head_map, part in zip(build_head_type_maps(study), PARTS.values(), strict=True):
        assert [cell.kind.head_type.name for cell in head_map.cells] == table[part.column].tolist()
        assert [cell.index for cell in head_map.cells] == list(range(12))
        assert [cell.description for cell in head_map.cells] == table["description"].tolist()
        counts = count_heads(table, part.name)
        assert {kind.head_type.name: kind.heads for kind in head_map.kinds} == counts[
            [name for name in part.names if counts[name] or name not in ("too few texts", "not measured")]
        ].to_dict()
    assert head_map.summary.startswith("2 repeat-token, 1 local, ")


def test_cells_stand_where_the_study_has_them(study: Study) -> None:
    """Heads selected in another order, and layers with other numbers."""
    selected = Study(study.data.assign_coords(layer=[3, 7, 9])).select(heads=[3, 0])
    _, head_map = build_head_type_maps(selected)
    assert [layer for layer, _ in head_map.rows] == [3, 7, 9]
    assert [(cell.name, cell.kind.head_type.name) for cell in head_map.cells[:4]] == [
        ("L3H3", "one-token"), ("L3H0", "repeat-token"), ("L7H3", "undecided"), ("L7H0", "long-range"),
    ]  # fmt: skip
    assert "L7H0" in render_report(selected, [], [])


def test_the_card_counts(study: Study) -> None:
    for head_map in build_head_type_maps(study):
        assert f"heads: {head_map.part.label}" in render_study_card(study)
        assert head_map.summary in render_study_card(study)


@pytest.mark.browser
def test_the_maps_come_first_and_say_what_each_head_is(html: str, study: Study, page_opener: PageOpener) -> None:
    opened = page_opener(html)
    page, table = opened.page, study.heads()
    assert page.locator("[role=tab][aria-selected=true]").inner_text() == "attends to"
    for k, (head_map, part) in enumerate(zip(build_head_type_maps(study), PARTS.values(), strict=True)):
        page.locator(f"[data-rate={part.column}]").click()
        panel = page.locator(f"#panel-{k}")
        assert panel.locator("h3").inner_text() == f"Head type: {part.label}"
        letters = panel.locator("td[data-i]").all_inner_texts()
        assert letters == [part.types[part.names.index(name)].letter for name in table[part.column]]
        panel.locator("td[data-i='8']").focus()
        assert page.locator("#tip > *").all_inner_texts() == [
            "L2H0", *table["description"][8].split("; "), "2,000,000 pairs counted",
        ]  # fmt: skip
        labels = panel.locator("td[data-i]").evaluate_all("all => all.map((cell) => cell.ariaLabel)")
        descriptions = table["description"].str.replace("; ", ", ")
        assert all(words in label for words, label in zip(descriptions, labels, strict=True))
        legend = [tuple(text.split()) for text in panel.locator(".kinds-key li").all_inner_texts()]
        assert legend == [(kind.letter, kind.head_type.name, str(kind.heads)) for kind in head_map.kinds]
        panel.locator("summary").click()
        for kind in head_map.kinds:
            assert panel.get_by_text(kind.head_type.criterion, exact=True).is_visible()
    assert opened.errors == []


@pytest.mark.browser
def test_the_head_table_has_head_types_to_sort_and_filter_by(html: str, study: Study, page_opener: PageOpener) -> None:
    page = page_opener(html).page
    table = study.heads()
    for place, part in enumerate(PARTS.values(), start=2):
        page.locator("#table th[data-column=head] button").click()
        column = page.locator(f"#table tbody tr:visible > :nth-child({place})")
        assert sorted(column.all_inner_texts()) == sorted(table[part.column])
        assert column.nth(4).get_attribute("title") in table["description"].tolist()
        button = page.locator(f"#table th[data-column={part.column}] button")
        for order in (1, -1):
            button.click()
            shown = [part.names.index(name) for name in column.all_inner_texts()]
            assert [order * number for number in shown] == sorted(order * number for number in shown)
    page.locator("#filter").fill("repeat, long-range")
    assert set(column.all_inner_texts()) == {"repeat-token", "long-range"}
    assert page.locator("#filtered").inner_text() == "3 of 12 heads"
    page.locator("#filter").fill("induction")
    assert page.locator("#filtered").inner_text() == "2 of 12 heads"


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_differ_and_letters_can_be_read(html: str, scheme: str, page_opener: PageOpener) -> None:
    page = page_opener(html, color_scheme=scheme, viewport={"width": 390, "height": 800}).page
    cell_colors = page.locator("#panel-0 td[data-i]").evaluate_all(
        "all => all.map((cell) => { const s = getComputedStyle(cell); return [s.backgroundColor, s.color]; })"
    )
    backgrounds = {background for background, _ in cell_colors}
    assert len(backgrounds) == len(VARIED_ATTENTION)
    for colors in cell_colors:
        background, letter = ("#" + "".join(f"{int(k):02x}" for k in re.findall(r"\d+", color)[:3]) for color in colors)
        assert compute_contrast(background, letter) >= 4.5
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.locator("#panel-0 td[data-i='11']").focus()  # pointing would scroll the page, which hides the tip
    box = page.locator("#tip").bounding_box()
    assert box is not None
    assert 0 <= box["x"] <= 390 - box["width"]
