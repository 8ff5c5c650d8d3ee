"""The page of a comparison: what it says, that no text in it becomes markup, and what people do with it."""

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
from headscope.page.colours import contrast, ink
from headscope.page.curves import panels
from headscope.page.differences import diverging
from headscope.studies.result import Study
from tests.compared import changed, model_study
from tests.hostile import ALL, make_study
from tests.test_report import Elements

if TYPE_CHECKING:
    from tests.browser import PageOpener


def quick(number: int, **options: Any) -> Study:
    return model_study(number, **{"texts": 30, "blocks": 6} | options)


@pytest.fixture(scope="module")
def made() -> headscope.Comparison:
    """Three of one shape, and one of another."""
    before = quick(0)
    after = changed(before, 1, 2, share=0.7)
    return headscope.compare(
        [before, after, quick(1), quick(2, layers=5, heads=2)], ["before", "after", "other", "deep"]
    )


@pytest.fixture(scope="module")
def html(made: headscope.Comparison) -> str:
    return made.page()


@pytest.fixture(scope="module")
def hostile() -> str:
    studies = [make_study(weight_hash="1" * 64), make_study(weight_hash="2" * 64, theta=0.5, model=f"two {ALL}")]
    return headscope.compare(studies, force=True).page()


# -- as text ----------------------------------------------------------------------------------------------------------


def test_no_text_becomes_an_element(hostile: str) -> None:
    elements = Elements(hostile)
    assert elements.count("script") == 2
    assert elements.count("img") == 0
    assert not [tag for tag, attributes in elements.tags if any(name.startswith("on") for name in attributes)]
    assert elements.text.count(ALL) >= 12
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', hostile, re.DOTALL)
    assert found is not None
    assert not set("<>&\u2028\u2029") & set(found[1])
    json.loads(found[1], parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_findings_and_summary(html: str, made: headscope.Comparison) -> None:
    cells = re.findall(r'<td class="verdict (\w+)" data-words="([^"]*)"', html)
    assert len(cells) == 4 * 12
    kinds = {"holds": "yes", "does not hold": "no", "cannot be measured": "open"}
    assert [kind for kind, _ in cells] == [kinds[verdict] for verdict in made.findings["verdict"]]
    text = " ".join(Elements(html).text.split())
    for value in made.findings["text"]:
        assert value in text or value == "–"
    for measured in made.findings["measured"]:
        assert " ".join(measured.split()) in text


def test_warnings_stand_on_top(hostile: str, html: str) -> None:
    assert hostile.index("Compared by force") < hostile.index('id="findings"')
    assert "is incomplete" in hostile
    assert 'class="notice"' not in html


def test_curves_lie_where_the_numbers_are(made: headscope.Comparison) -> None:
    first = panels(made)[0]
    rows = made.depth[(made.depth["rate"] == "repeat_rate") & (made.depth["model"] == "deep")]
    line = first.lines[3]
    across = [point.x for point in line.points]
    np.testing.assert_allclose(np.diff(across), np.diff(across)[0], atol=0.02)
    values, down = rows["against_chance"].to_numpy(), np.array([point.y for point in line.points])
    assert np.corrcoef(values, down)[0, 1] == pytest.approx(-1, abs=1e-3)
    assert f"{values[0] * 100:.2f}".replace("-", "−") in line.points[0].words
    assert all(point.high <= point.y <= point.low for each in first.lines for point in each.points)


def test_without_pairs_there_is_no_section_of_heads() -> None:
    page = headscope.compare([quick(0, texts=10), quick(1, texts=10, layers=2)]).page()
    assert 'id="heads"' not in page
    assert 'id="characters"' in page


def test_what_cannot_be_measured_is_said() -> None:
    studies = []
    for k in range(2):
        data = quick(k).data.copy(deep=True)
        data["same_sentence_rate"][:] = np.nan
        studies.append(Study(data))
    page = headscope.compare(studies).page()
    assert ">not measurable</text>" in page
    assert "Not measurable in one of the two." in page
    assert page.count('class="nothing"') == 12


def test_ink_is_legible_on_every_colour() -> None:
    assert min(contrast(diverging(k / 200), ink(diverging(k / 200))) for k in range(-200, 201)) >= 4.5


def test_the_card_of_a_notebook(made: headscope.Comparison) -> None:
    card = made._repr_html_()
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
    assert elements.count("td") == 4 * 12
    assert not [tag for tag, attributes in elements.tags if "id" in attributes or "class" in attributes]
    forced = headscope.compare([make_study(weight_hash="1"), make_study(weight_hash="2", theta=0.5)], force=True)
    told = Elements(forced._repr_html_())
    assert told.count("script") == 0
    assert ALL in told.text
    assert "Compared by force" in told.text


# -- in a browser -----------------------------------------------------------------------------------------------------


@pytest.mark.browser
def test_opens_alone_and_shows_hostile_text_as_text(hostile: str, page_opener: PageOpener) -> None:
    opened = page_opener(hostile)
    page = opened.page
    assert opened.is_quiet()
    assert ALL in (page.locator(".matrix thead").text_content() or "")
    assert page.locator("[onerror], img").count() == 0
    page.locator("td.verdict").first.hover()
    assert page.locator("#tip strong").text_content() == page.locator(".matrix thead bdi").first.text_content()


@pytest.mark.browser
def test_policy_refuses_what_is_injected(html: str, page_opener: PageOpener) -> None:
    opened = page_opener(html.replace("<main ", "<script>window.got_in = 1</script><main ", 1))
    assert opened.page.evaluate("window.got_in") is None
    assert any("Content Security Policy" in error for error in opened.errors)


@pytest.mark.browser
def test_words_on_pointing_and_clicking(html: str, made: headscope.Comparison, page_opener: PageOpener) -> None:
    page = page_opener(html).page
    cell = page.locator("#claim-5 td.verdict").nth(1)
    cell.hover()
    expected = made.found["after"][4].measured
    assert page.locator("#tip > *").all_inner_texts() == ["after", expected]
    words = page.locator("#claim-5 .words")
    assert not words.is_visible()
    cell.click()
    assert words.is_visible()
    assert page.locator("#claim-5 .chosen dd").inner_text() == expected
    cell.press("Enter")
    assert not words.is_visible()


@pytest.mark.browser
def test_curves_tell_their_values(html: str, made: headscope.Comparison, page_opener: PageOpener) -> None:
    page = page_opener(html).page
    drawing = page.locator("svg.curve").first
    drawing.scroll_into_view_if_needed()
    box = drawing.bounding_box()
    assert box is not None
    point = panels(made)[0].lines[3].points[2]
    scale = box["width"] / 380
    page.mouse.move(box["x"] + point.x * scale + 1, box["y"] + point.y * scale + 1)
    assert point.words in page.locator("#tip").inner_text()
    assert float(page.locator("svg.curve .ring").first.get_attribute("cx") or 0) == point.x
    page.mouse.move(box["x"] + 20, box["y"] - 60)
    assert page.locator("#tip").is_hidden()


def shown(page: Any, place: int) -> list[str]:
    texts: list[str] = page.locator(f"#table tbody tr:visible > :nth-child({place})").all_inner_texts()
    return texts


@pytest.mark.browser
def test_differences_can_be_chosen_sorted_and_filtered(
    html: str, made: headscope.Comparison, page_opener: PageOpener
) -> None:
    page = page_opener(html).page
    assert page.locator(".panel:visible").count() == 1
    assert shown(page, 1)[:5] == ["L0H0", "L0H1", "L0H2", "L0H3", "L1H0"]
    page.locator("#only").check()
    assert shown(page, 1) == ["L1H2"]
    page.locator("#only").uncheck()
    page.locator(".choose button").nth(1).click()
    page.locator("[role=tab]").nth(3).click()
    assert "Mean distance" in page.locator(".panel:visible h3").inner_text()
    assert page.locator("#table thead bdi").all_inner_texts() == ["before", "other"]
    table = made.differences("mean_distance", "other")
    for column, ascending in (("difference", False), ("p", True)):
        page.locator(f"#table th[data-column={column}] button").click()
        assert shown(page, 1) == table.sort_values(column, ascending=ascending, kind="stable")["name"].tolist()
        page.locator(f"#table th[data-column={column}] button").click()
        assert shown(page, 1)[0] == table.sort_values(column, ascending=not ascending, kind="stable")["name"].iloc[0]
    page.locator("#filter").fill("L2, h0")
    assert set(shown(page, 1)) == {"L0H0", "L1H0", "L2H0", "L2H1", "L2H2", "L2H3"}
    assert page.locator("#filtered").inner_text() == "6 of 12 heads"
    page.locator(".panel:visible td[data-i='4']").click()
    assert page.locator("#table tr.chosen th").inner_text() == "L1H0"


@pytest.mark.browser
def test_maps_mark_what_is_significant(html: str, made: headscope.Comparison, page_opener: PageOpener) -> None:
    page = page_opener(html).page
    assert page.locator(".panel:visible td.found").evaluate_all("all => all.map((cell) => cell.dataset.i)") == ["6"]
    page.locator(".panel:visible td[data-i='6']").hover()
    lines = page.locator("#tip > *").all_inner_texts()
    row = made.differences("repeat_rate", "after").iloc[6]
    assert lines[0] == "L1H2"
    assert f"{row['one'] * 100:.2f}" in lines[1]
    assert f"+{row['difference'] * 100:.2f} ± {row['error'] * 100:.2f}" in lines[3]
    page.locator(".panel:visible td[data-i='6']").focus()
    page.keyboard.press("ArrowDown")
    assert page.locator("#tip strong").inner_text() == "L2H2"
    page.keyboard.press("Escape")
    assert page.locator("#tip").is_hidden()


@pytest.mark.browser
def test_the_table_is_saved_as_the_csv_file(html: str, made: headscope.Comparison, page_opener: PageOpener) -> None:
    page = page_opener(html, accept_downloads=True).page
    with page.expect_download() as waiting:
        page.locator("#csv").click()
    assert waiting.value.suggested_filename == "before-after-other-deep-differences.csv"
    text = waiting.value.path().read_text("utf-8")
    rows = list(csv.DictReader(io.StringIO(text)))
    expected = list(csv.DictReader(io.StringIO(made.differences().to_csv(index=False))))
    assert len(rows) == len(expected) == 2 * 12 * len(MEASURES)
    for mine, theirs in zip(rows, expected, strict=True):
        assert mine.keys() == theirs.keys()
        for name, value in mine.items():
            if (
                name in ("one", "other", "difference", "error", "t", "p", "p_corrected")
                and value
                and "inf" not in theirs[name]
            ):
                assert float(value) == pytest.approx(float(theirs[name]), rel=1e-9, abs=1e-15)
            elif name != "t":
                assert value == theirs[name]


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 800, 1280])
def test_nothing_is_wider_than_the_page(html: str, hostile: str, page_opener: PageOpener, width: int) -> None:
    for content in (html, hostile):
        page = page_opener(content, viewport={"width": width, "height": 800}).page
        assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.browser
def test_light_dark_and_paper(html: str, page_opener: PageOpener) -> None:
    from playwright.sync_api import expect

    page = page_opener(html, color_scheme="dark").page
    colour = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(colour)
    page.locator("#theme").click()
    assert page.evaluate(colour) != dark
    page.emulate_media(media="print")
    expect(page.locator(".words").first).to_be_visible()
    assert page.locator(".panel:visible").count() == 2 * len(MEASURES)
    assert page.locator("#theme").is_hidden()


@pytest.mark.browser
def test_without_script_everything_is_there(html: str, page_opener: PageOpener) -> None:
    page = page_opener(html, java_script_enabled=False).page
    assert page.locator(".panel:visible").count() == 2 * len(MEASURES)
    assert page.locator("svg.curve path.point").first.is_visible()
    assert "differences.csv" in page.locator("noscript").inner_text()
