"""The page of a comparison: its content, that no text in it becomes markup, and interaction in a browser."""

from __future__ import annotations

import csv
import io
import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import headscope
from headscope.comparison.measures import MEASURES
from headscope.page.comparison_charts import build_panels, pick_diverging_color
from headscope.page.formatting import compute_contrast, pick_text_color
from headscope.studies.result import Study
from tests.helpers.comparison_studies import change_head, make_model_study
from tests.helpers.hostile import ALL, make_study
from tests.helpers.html_elements import Elements

if TYPE_CHECKING:
    from tests.helpers.browser import PageOpener


def make_small_study(number: int, **options: Any) -> Study:
    return make_model_study(number, **{"texts": 60, "blocks": 12} | options)


@pytest.fixture(scope="module")
def comparison() -> headscope.Comparison:
    """Return a comparison of three models of one shape and one of another."""
    before = make_small_study(0)
    after = change_head(before, 1, 2, share=0.7)
    return headscope.compare(
        [before, after, make_small_study(1), make_small_study(2, layers=5, heads=2)],
        ["before", "after", "other", "deep"],
        by_head=True,
    )


@pytest.fixture(scope="module")
def page_html(comparison: headscope.Comparison) -> str:
    return comparison.to_html()


@pytest.fixture(scope="module")
def hostile_html() -> str:
    studies = [make_study(weight_hash="1" * 64), make_study(weight_hash="2" * 64, theta=0.5, model=f"two {ALL}")]
    return headscope.compare(studies, force=True).to_html()


# -- as text ----------------------------------------------------------------------------------------------------------


def test_no_text_becomes_an_element(hostile_html: str) -> None:
    elements = Elements(hostile_html)
    assert elements.count("script") == 2
    assert elements.count("img") == 0
    assert not [tag for tag, attributes in elements.tags if any(name.startswith("on") for name in attributes)]
    assert elements.text.count(ALL) >= 12
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', hostile_html, re.DOTALL)
    assert data is not None
    assert not set("<>&\u2028\u2029") & set(data[1])
    json.loads(data[1], parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_findings_and_summary(page_html: str, comparison: headscope.Comparison) -> None:
    cells = re.findall(r'<td class="verdict (\w+)" data-words="([^"]*)"', page_html)
    assert len(cells) == 4 * 18
    kinds = {"consistent": "yes", "not consistent": "no"}
    assert [kind for kind, _ in cells] == [kinds.get(verdict, "open") for verdict in comparison.findings["verdict"]]
    text = " ".join(Elements(page_html).text.split())
    for value in comparison.findings["text"]:
        assert value in text or value == "–"
    for explanation in comparison.findings["explanation"]:
        assert " ".join(explanation.split()) in text


def test_warnings_stand_on_top(hostile_html: str, page_html: str) -> None:
    assert hostile_html.index("Compared by force") < hostile_html.index('id="findings"')
    assert "is incomplete" in hostile_html
    assert 'class="notice"' not in page_html


def test_curves_lie_where_the_numbers_are(comparison: headscope.Comparison) -> None:
    first = build_panels(comparison)[0]
    rows = comparison.depth[(comparison.depth["rate"] == "repeat_rate") & (comparison.depth["model"] == "deep")]
    line = first.lines[3]
    x_positions = [point.x for point in line.points]
    np.testing.assert_allclose(np.diff(x_positions), np.diff(x_positions)[0], atol=0.02)
    values, y_positions = rows["against_chance"].to_numpy(), np.array([point.y for point in line.points])
    assert np.corrcoef(values, y_positions)[0, 1] == pytest.approx(-1, abs=1e-3)
    assert f"{values[0] * 100:.2f}".replace("-", "−") in line.points[0].words
    assert all(point.high <= point.y <= point.low for curve in first.lines for point in curve.points)


def test_without_pairs_there_is_no_section_of_heads() -> None:
    page = headscope.compare([make_small_study(0, texts=10), make_small_study(1, texts=10, layers=2)]).to_html()
    assert 'id="heads"' not in page
    assert 'id="head-types"' in page


def test_what_cannot_be_measured_is_said() -> None:
    studies = []
    for k in range(2):
        data = make_small_study(k).data.copy(deep=True)
        data["same_sentence_rate"][:] = np.nan
        studies.append(Study(data))
    page = headscope.compare(studies, by_head=True).to_html()
    assert ">not measurable</text>" in page
    assert "Not measurable in one of the two." in page
    assert page.count('class="nothing"') == 12


def test_ink_is_legible_on_every_colour() -> None:
    assert (
        min(
            compute_contrast(pick_diverging_color(k / 200), pick_text_color(pick_diverging_color(k / 200)))
            for k in range(-200, 201)
        )
        >= 4.5
    )


def test_the_card_of_a_notebook(comparison: headscope.Comparison) -> None:
    card = comparison._repr_html_()
    elements = Elements(card)
    assert {tag for tag, _ in elements.tags} <= {
        "div",
        "span",
        "strong",
        "bdi",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
    }
    assert elements.count("td") == 4 * 18
    assert not [tag for tag, attributes in elements.tags if "id" in attributes or "class" in attributes]
    forced = headscope.compare([make_study(weight_hash="1"), make_study(weight_hash="2", theta=0.5)], force=True)
    elements_of_forced = Elements(forced._repr_html_())
    assert elements_of_forced.count("script") == 0
    assert ALL in elements_of_forced.text
    assert "Compared by force" in elements_of_forced.text


# -- in a browser -----------------------------------------------------------------------------------------------------


@pytest.mark.browser
def test_opens_alone_and_shows_hostile_text_as_text(hostile_html: str, page_opener: PageOpener) -> None:
    opened = page_opener(hostile_html)
    page = opened.page
    assert opened.is_quiet()
    assert ALL in (page.locator(".matrix thead").text_content() or "")
    assert page.locator("[onerror], img").count() == 0
    page.locator("td.verdict").first.hover()
    assert page.locator("#tip strong").text_content() == page.locator(".matrix thead bdi").first.text_content()


@pytest.mark.browser
def test_policy_refuses_what_is_injected(page_html: str, page_opener: PageOpener) -> None:
    opened = page_opener(page_html.replace("<main ", "<script>window.got_in = 1</script><main ", 1))
    assert opened.page.evaluate("window.got_in") is None
    assert any("Content Security Policy" in error for error in opened.errors)


@pytest.mark.browser
def test_words_on_pointing_and_clicking(
    page_html: str, comparison: headscope.Comparison, page_opener: PageOpener
) -> None:
    page = page_opener(page_html).page
    cell = page.locator("#claim-5 td.verdict").nth(1)
    cell.hover()
    expected = comparison.findings_by_model["after"][4].explanation
    assert page.locator("#tip > *").all_inner_texts() == ["after", expected]
    words = page.locator("#claim-5 .words")
    assert not words.is_visible()
    cell.click()
    assert words.is_visible()
    assert page.locator("#claim-5 .chosen dd").inner_text() == expected
    cell.press("Enter")
    assert not words.is_visible()


@pytest.mark.browser
def test_curves_tell_their_values(page_html: str, comparison: headscope.Comparison, page_opener: PageOpener) -> None:
    page = page_opener(page_html).page
    drawing = page.locator("svg.curve").first
    drawing.scroll_into_view_if_needed()
    box = drawing.bounding_box()
    assert box is not None
    point = build_panels(comparison)[0].lines[3].points[2]
    scale = box["width"] / 380
    page.mouse.move(box["x"] + point.x * scale + 1, box["y"] + point.y * scale + 1)
    assert point.words in page.locator("#tip").inner_text()
    assert float(page.locator("svg.curve .ring").first.get_attribute("cx") or 0) == point.x
    page.mouse.move(box["x"] + 20, box["y"] - 60)
    assert page.locator("#tip").is_hidden()


def list_visible_cells(page: Any, column: int) -> list[str]:
    texts: list[str] = page.locator(f"#table tbody tr:visible > :nth-child({column})").all_inner_texts()
    return texts


@pytest.mark.browser
def test_differences_can_be_chosen_sorted_and_filtered(
    page_html: str, comparison: headscope.Comparison, page_opener: PageOpener
) -> None:
    page = page_opener(page_html).page
    assert page.locator(".panel:visible").count() == 1
    assert list_visible_cells(page, 1)[:5] == ["L0H0", "L0H1", "L0H2", "L0H3", "L1H0"]
    page.locator("#only").check()
    assert list_visible_cells(page, 1) == ["L1H2"]
    page.locator("#only").uncheck()
    page.locator(".choose button").nth(1).click()
    page.locator("[role=tab]").nth(3).click()
    assert "Mean distance" in page.locator(".panel:visible h3").inner_text()
    assert page.locator("#table thead bdi").all_inner_texts() == ["before", "other"]
    table = comparison.differences("mean_distance", "other")
    for column, ascending in (("difference", False), ("p", True)):
        page.locator(f"#table th[data-column={column}] button").click()
        assert (
            list_visible_cells(page, 1)
            == table.sort_values(column, ascending=ascending, kind="stable")["head"].tolist()
        )
        page.locator(f"#table th[data-column={column}] button").click()
        assert (
            list_visible_cells(page, 1)[0]
            == table.sort_values(column, ascending=not ascending, kind="stable")["head"].iloc[0]
        )
    page.locator("#filter").fill("L2, h0")
    assert set(list_visible_cells(page, 1)) == {"L0H0", "L1H0", "L2H0", "L2H1", "L2H2", "L2H3"}
    assert page.locator("#filtered").inner_text() == "6 of 12 heads"
    page.locator(".panel:visible td[data-i='4']").click()
    assert page.locator("#table tr.chosen th").inner_text() == "L1H0"


@pytest.mark.browser
def test_maps_mark_what_is_significant(
    page_html: str, comparison: headscope.Comparison, page_opener: PageOpener
) -> None:
    page = page_opener(page_html).page
    assert page.locator(".panel:visible td.found").evaluate_all("all => all.map((cell) => cell.dataset.i)") == ["6"]
    page.locator(".panel:visible td[data-i='6']").hover()
    lines = page.locator("#tip > *").all_inner_texts()
    row = comparison.differences("repeat_rate", "after").iloc[6]
    assert lines[0] == "L1H2"
    assert f"{row['one'] * 100:.2f}" in lines[1]
    assert f"+{row['difference'] * 100:.2f} ± {row['error'] * 100:.2f}" in lines[3]
    page.locator(".panel:visible td[data-i='6']").focus()
    page.keyboard.press("ArrowDown")
    assert page.locator("#tip strong").inner_text() == "L2H2"
    page.keyboard.press("Escape")
    assert page.locator("#tip").is_hidden()


@pytest.mark.browser
def test_the_table_is_saved_as_the_csv_file(
    page_html: str, comparison: headscope.Comparison, page_opener: PageOpener
) -> None:
    page = page_opener(page_html, accept_downloads=True).page
    with page.expect_download() as waiting:
        page.locator("#csv").click()
    assert waiting.value.suggested_filename == "before-after-other-deep-differences.csv"
    text = waiting.value.path().read_text("utf-8")
    rows = list(csv.DictReader(io.StringIO(text)))
    expected = list(csv.DictReader(io.StringIO(comparison.differences().to_csv(index=False))))
    assert len(rows) == len(expected) == 2 * 12 * len(MEASURES)
    for row, expected_row in zip(rows, expected, strict=True):
        assert row.keys() == expected_row.keys()
        for name, value in row.items():
            if (
                name in ("one", "other", "difference", "error", "t", "p", "p_corrected")
                and value
                and "inf" not in expected_row[name]
            ):
                assert float(value) == pytest.approx(float(expected_row[name]), rel=1e-9, abs=1e-15)
            elif name != "t":
                assert value == expected_row[name]


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 800, 1280])
def test_nothing_is_wider_than_the_page(page_html: str, hostile_html: str, page_opener: PageOpener, width: int) -> None:
    for content in (page_html, hostile_html):
        page = page_opener(content, viewport={"width": width, "height": 800}).page
        assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.browser
def test_light_dark_and_paper(page_html: str, page_opener: PageOpener) -> None:
    from playwright.sync_api import expect

    page = page_opener(page_html, color_scheme="dark").page
    colour = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(colour)
    page.locator("#theme").click()
    assert page.evaluate(colour) != dark
    page.emulate_media(media="print")
    expect(page.locator(".words").first).to_be_visible()
    assert page.locator(".panel:visible").count() == 2 * len(MEASURES)
    assert page.locator("#theme").is_hidden()


@pytest.mark.browser
def test_without_script_everything_is_there(page_html: str, page_opener: PageOpener) -> None:
    page = page_opener(page_html, java_script_enabled=False).page
    assert page.locator(".panel:visible").count() == 2 * len(MEASURES)
    assert page.locator("svg.curve path.point").first.is_visible()
    assert "differences.csv" in page.locator("noscript").inner_text()
