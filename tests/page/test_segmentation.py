"""The page of a segmentation: the text is unchanged, nothing in it becomes markup, and the controls work."""

from __future__ import annotations

import html as entities
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from headscope import file_io
from headscope.page import notebook
from headscope.page.formatting import compute_contrast
from headscope.page.segmentation import HEIGHT, MAX_BARS, WIDTH, _build_chart, _list_bars, get_first_words
from headscope.segmentation.result import HeadWeight, Segmentation
from tests.helpers.hostile import ALL, HOSTILE
from tests.helpers.html_elements import Elements
from tests.helpers.segmentations import long, segmentation

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.helpers.browser import PageOpener

ARABIC = "هذا نص من اليمين إلى اليسار. "
ODD = "\ufeff𝒜 line\r\nand  two\tspaces\x0b. \x85\xa0\x1f\n\n"
"""a byte order mark, a letter outside the basic plane, a carriage return, and white space that only Python strips"""
PARTS = [
    ["  The first sentence. ", "A second one, 😀 with a face.\n\n", "Third.\r\n"],
    [ODD, "After it comes more. ", "And more. ", "The end of it.\n\n\n"],
    [ARABIC, "Left to right again.\n", "Tail sentence here. ", "Last of them. "],
    ["Only one here.\n"],
]
SHOWN = "[...document.querySelectorAll('.said')].map((part) => part.textContent)"
IN_VIEW = (
    "(all) => all.map((e) => { const b = e.getBoundingClientRect(); return b.top > 40 && b.bottom < innerHeight; })"
)


@pytest.fixture(scope="module")
def result() -> Segmentation:
    return segmentation(PARTS)


@pytest.fixture(scope="module")
def html(result: Segmentation) -> str:
    return result.to_html()


@pytest.fixture(scope="module")
def book() -> Segmentation:
    return long(4000, 50, 60)


@pytest.fixture(scope="module")
def hostile() -> Segmentation:
    pieces = [f"{text} \ud800 " for text in (*HOSTILE, ALL)]
    return segmentation([pieces[:3], pieces[3:]], model=ALL, something_new=ALL, nested={ALL: ALL})


def parse_data(page: str) -> dict[str, Any]:
    element = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert element is not None
    assert not set("<>&\u2028\u2029") & set(element[1])
    data: dict[str, Any] = json.loads(element[1], parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    return data


# -- as text ----------------------------------------------------------------------------------------------------------


def test_no_text_becomes_an_element(hostile: Segmentation) -> None:
    page = hostile.to_html()
    elements = Elements(page)
    assert elements.count("script") == 2
    assert elements.count("img") == 0
    assert elements.count("b") == len(hostile)
    assert not [tag for tag, attributes in elements.tags if any(name.startswith("on") for name in attributes)]
    assert elements.text.count(ALL) >= 4
    parse_data(page)
    page.encode("utf-8")


def test_page_is_recognized_as_ours(result: Segmentation, tmp_path: Path) -> None:
    path = tmp_path / "segments.html"
    result.to_html(path)
    file_io.check_page(path)
    assert file_io.GENERATOR_TAG in path.read_bytes()[: file_io.TAG_SEARCH_BYTES]
    assert "default-src &#39;none&#39;" in path.read_text("utf-8")


def test_what_the_header_says(html: str) -> None:
    text = " ".join(Elements(html).text.split())
    assert "4 segments of 12 sentences" in text
    assert "attention heads of a-model" in text
    assert "Boundary cost 0.5" in text.replace("Boundary cost0.5", "Boundary cost 0.5")
    assert "Stopped by" not in text


def test_outline_names_every_segment(html: str, result: Segmentation) -> None:
    rows = re.findall(r'<li><a href="#(segment-\d+)">.*?<bdi>(.*?)</bdi><small>(.*?)</small>', html)
    assert [row[0] for row in rows] == [f"segment-{k + 1}" for k in range(4)]
    assert [entities.unescape(row[1]) for row in rows] == [get_first_words(segment.text) for segment in result]
    assert rows[0][2] == "3 sentences"
    assert rows[3][2] == f"1 sentence · strength {result.segments[3].strength:.2f}"
    assert all(f'id="{row[0]}"' in html for row in rows)


def test_every_piece_has_its_number(html: str) -> None:
    assert [int(k) for k in re.findall(r'<span title="Sentence (\d+)">', html)] == list(range(1, 13))


def test_a_book_has_no_element_for_each_piece(book: Segmentation) -> None:
    page = book.to_html()
    assert Elements(page).count("span") < 1000
    assert 'title="Sentence' not in page


def test_bars_lie_where_the_strengths_are(result: Segmentation) -> None:
    chart = _build_chart(result)
    assert chart is not None
    number = r"-?[\d.]+"
    bars = re.findall(rf"M({number}) ({number})V({number})h({number})", chart.bars + chart.chosen)
    assert len(bars) == np.isfinite(result.strengths).sum()
    places = [float(x) + float(width) / 2 for x, _, _, width in bars]
    gaps = [round(place / WIDTH * 12) - 1 for place in places]
    unit = (chart.zero - chart.cost) / 1
    heights = [(float(zero) - float(top)) / unit for _, zero, top, _ in bars]
    np.testing.assert_allclose(heights, result.strengths[gaps], atol=0.01)
    assert sorted(gaps)[0] >= 0
    assert chart.chosen.count("M") == chart.marks.count("M") == 3
    assert gaps[-3:] == [cut - 1 for cut in result.boundaries]
    assert 0 <= chart.cost < chart.zero <= HEIGHT


def test_a_long_chart_shows_the_highest_and_all_boundaries(book: Segmentation) -> None:
    chart = _build_chart(book)
    assert chart is not None
    assert len(_list_bars(book)) <= MAX_BARS
    assert chart.marks.count("M") == 49
    others = np.delete(book.strengths, book.boundaries - 1)
    assert max(value for _, value in _list_bars(book)) == np.nanmax(others)


def test_the_script_gets_the_very_numbers(html: str, result: Segmentation) -> None:
    import base64

    data = parse_data(html)
    codes = np.frombuffer(base64.b64decode(data["codes"]), dtype="<i2").reshape(12, 12).astype(float)
    assert (codes == -32768).sum() == 2
    codes[codes == -32768] = np.nan
    np.testing.assert_allclose(codes * data["step"], result.similarity, atol=data["step"])
    expected = result.as_dict() | {"segments": []}
    assert data["saved"] == json.loads(json.dumps(expected))


def test_heads_are_listed_by_weight(html: str, result: Segmentation) -> None:
    rows = re.findall(
        r'<tr><th scope="row">(L\d+H\d+)</th><td>([\d.]+) %</td>.*?width:([\d.]+)%.*?<td>([\d.−]+)</td></tr>', html
    )
    assert [row[0] for row in rows] == [vote.name for vote in result.heads[:12]]
    assert float(rows[3][1]) == pytest.approx(result.heads[3].weight * 100, abs=0.06)
    assert float(rows[3][2]) == pytest.approx(result.heads[3].weight / result.heads[0].weight * 100, abs=0.06)
    assert float(rows[3][3]) == pytest.approx(result.heads[3].contrast, abs=0.006)
    assert html.count('fill-opacity="') == 20


def test_a_page_of_numbers_that_are_not_there(result: Segmentation) -> None:
    blank = Segmentation(
        result.text,
        "fine",
        result.edges,
        result.boundaries,
        np.full(11, np.nan),
        np.full((12, 12), np.nan),
        result.cells,
        (HeadWeight(0, 0, 1.0, float("nan")),),
        {},
    )
    page = blank.to_html()
    assert "12 blocks" in page
    assert "strength –" in page
    assert "unknown model" in page
    parse_data(page)


def test_frame_holds_the_page(result: Segmentation, html: str, monkeypatch: pytest.MonkeyPatch) -> None:
    elements = Elements(result._repr_html_())
    assert [tag for tag, _ in elements.tags] == ["div", "strong", "iframe"]
    assert elements.tags[-1][1]["srcdoc"] == html
    assert elements.tags[-1][1]["sandbox"] == "allow-scripts allow-downloads"
    assert "4 segments of 12 sentences" in elements.text
    monkeypatch.setattr(notebook, "MAX_PAGE_SIZE", 1000)
    note = Elements(result._repr_html_())
    assert not note.count("iframe")
    assert 'segmentation.to_html("segments.html")' in note.text


def test_a_hundred_sentences_make_a_small_page() -> None:
    parts = [[f"{'A sentence of some words that goes on for a while ' * 3}{k}. " for k in range(10)] for _ in range(10)]
    assert len(segmentation(parts).to_html()) < 300_000


# -- in a browser -----------------------------------------------------------------------------------------------------


def pause_flashes(page: Page) -> None:
    """Keep flashing elements until `end_flashes`, as a busy machine may take longer to look at them."""
    page.evaluate(
        """() => {
            const usual = window.setTimeout;
            window.held = [];
            window.setTimeout = (act, delay, ...more) => delay >= 1000 ? -held.push(act) : usual(act, delay, ...more);
        }"""
    )


def end_flashes(page: Page) -> None:
    assert page.evaluate("held.length") > 0
    page.evaluate("held.splice(0).forEach((act) => act())")


def download(page: Any, button: str) -> bytes:
    with page.expect_download() as event:
        page.locator(button).click()
    assert event.value.suggested_filename.endswith("-segments.json" if button == "#json" else "-segments.txt")
    content: bytes = event.value.path().read_bytes()
    return content


@pytest.mark.browser
def test_hostile_text_stays_text(hostile: Segmentation, page_opener: PageOpener) -> None:
    opened = page_opener(hostile.to_html())
    page = opened.page
    assert page.evaluate(SHOWN) == [segment.text.replace("\ud800", "\ufffd") for segment in hostile]
    page.locator("#chart").hover()
    assert "Boundary" in page.locator("#tip").inner_text()
    page.locator("#similarity").hover(position={"x": 2, "y": 2})
    assert "<script>alert(1)" in page.locator("#tip").inner_text()
    assert opened.is_quiet()
    assert page.locator("[onerror], img").count() == 0


@pytest.mark.browser
def test_policy_refuses_what_is_injected(html: str, page_opener: PageOpener) -> None:
    opened = page_opener(html.replace("<main ", "<script>window.got_in = 1</script><main ", 1))
    assert opened.page.evaluate("window.got_in") is None
    assert any("Content Security Policy" in error for error in opened.errors)


@pytest.mark.browser
def test_text_and_files_are_what_was_given(result: Segmentation, html: str, page_opener: PageOpener) -> None:
    opened = page_opener(html, accept_downloads=True)
    page = opened.page
    assert page.evaluate(SHOWN) == [segment.text for segment in result]
    assert "".join(page.evaluate(SHOWN)) == result.text
    assert page.locator(".said").nth(1).evaluate("e => e.innerText").endswith("it.")  # white space at the end is hidden
    assert download(page, "#plain").decode() == result.to_text()
    assert json.loads(download(page, "#json")) == json.loads(result.to_json())
    assert opened.is_quiet()


@pytest.mark.browser
def test_the_text_is_copied(result: Segmentation, html: str, page_opener: PageOpener) -> None:
    allowed = page_opener(html, permissions=["clipboard-read", "clipboard-write"]).page
    pause_flashes(allowed)
    allowed.locator("#copy").click()
    allowed.locator("#saved", has_text="Copied").wait_for()
    assert allowed.evaluate("navigator.clipboard.readText()").replace("\r\n", "\n") == result.to_text().replace(
        "\r\n", "\n"
    )
    end_flashes(allowed)
    assert allowed.locator("#saved").text_content() == ""


@pytest.mark.browser
def test_a_book_is_whole_and_its_places_are_found(book: Segmentation, page_opener: PageOpener) -> None:
    opened = page_opener(book.to_html(), accept_downloads=True)
    page = opened.page
    pause_flashes(page)
    assert "".join(page.evaluate(SHOWN)) == book.text
    width = page.locator("#chart").bounding_box()["width"]  # type: ignore[index]
    cut = int(book.boundaries[20])
    page.locator("#chart").click(position={"x": cut / 4000 * width + 1, "y": 30})
    mark = page.locator(".said mark.flash")
    assert mark.text_content() == book.text[book.edges[cut] : book.edges[cut + 1]]
    assert mark.evaluate_all(IN_VIEW) == [True]
    assert page.locator("#where").inner_text() == "22 / 50"
    assert "".join(page.evaluate(SHOWN)) == book.text
    page.locator("#similarity").click(position={"x": 100, "y": 400})  # two sentences far from each other
    assert page.locator(".said mark.flash").evaluate_all(IN_VIEW) == [False, True]
    assert download(page, "#plain").decode() == book.to_text()
    end_flashes(page)
    assert page.locator(".said mark").count() == 0
    assert "".join(page.evaluate(SHOWN)) == book.text
    assert page.evaluate("Math.max(...[...document.querySelectorAll('.said')].map((e) => e.childNodes.length))") <= 2
    assert opened.is_quiet()


@pytest.mark.browser
def test_gaps_link_to_the_text(result: Segmentation, html: str, page_opener: PageOpener) -> None:
    page = page_opener(html).page
    pause_flashes(page)
    plot = page.locator("#chart")
    width = plot.bounding_box()["width"]  # type: ignore[index]

    def locate_gap(gap: int) -> Any:
        return {"x": (gap + 1) / 12 * width, "y": 60}

    plot.hover(position=locate_gap(6))
    lines = page.locator("#tip > *").all_inner_texts()
    assert lines[:2] == ["Boundary between sentences 7 and 8", f"strength {result.strengths[6]:.2f}"]
    assert lines[2] == "The end of it."
    assert lines[3] == ARABIC.strip()
    plot.hover(position=locate_gap(5))
    assert page.locator("#tip > *").all_inner_texts()[:2] == ["Gap between sentences 6 and 7", "not considered"]
    plot.click(position=locate_gap(6))
    assert page.locator(".said .flash").get_attribute("title") == "Sentence 8"
    assert page.locator(".said .flash").evaluate_all(IN_VIEW) == [True]
    assert page.locator("#tip").is_hidden()


@pytest.mark.browser
def test_the_map_links_to_the_text(result: Segmentation, html: str, page_opener: PageOpener) -> None:
    page = page_opener(html).page
    pause_flashes(page)
    box = page.locator("#similarity")
    size = page.locator("canvas").bounding_box()["width"]  # type: ignore[index]

    def locate_cell(row: int, column: int) -> Any:
        return {"x": (column + 0.5) / 12 * size + 1, "y": (row + 0.5) / 12 * size + 1}

    box.hover(position=locate_cell(8, 1))
    value = f"{result.similarity[8, 1]:.3f}".replace("-", "−")
    assert page.locator("#tip > *").all_inner_texts() == [
        f"similarity {value}",
        "sentence 9: Left to right again.",
        "sentence 2: A second one, 😀 with a face.",
    ]
    box.hover(position=locate_cell(1, 3))
    assert page.locator("#tip strong").inner_text() == "not measured"
    pixel = "([x, y]) => [...document.querySelector('canvas').getContext('2d').getImageData(x, y, 1, 1).data]"
    assert page.evaluate(pixel, [3, 1])[3] == 0
    assert page.evaluate(pixel, [0, 0]) == [178, 24, 43, 255]
    red, _, blue, _ = page.evaluate(pixel, [10, 0])
    assert (red < blue) == (result.similarity[0, 10] < 0)
    box.click(position=locate_cell(8, 1))
    titles = page.locator(".said .flash").evaluate_all("all => all.map((e) => e.title)")
    assert titles == ["Sentence 2", "Sentence 9"]
    assert page.locator("[title='Sentence 9']").evaluate_all(IN_VIEW) == [True]
    outlines = page.locator(".matrix-box .over").get_attribute("d") or ""
    assert re.findall(r"M([\d.]+) ", outlines) == ["0.000", "3.000", "7.000", "11.000"]


@pytest.mark.browser
def test_keys_and_outline_go_from_segment_to_segment(html: str, page_opener: PageOpener) -> None:
    page = page_opener(html, viewport={"width": 1000, "height": 500}).page
    where, chosen = page.locator("#where"), page.locator("article:focus")
    for key, number in (("n", 1), ("n", 2), ("ArrowRight", 3), ("n", 4), ("n", 4), ("p", 3), ("ArrowLeft", 2)):
        page.keyboard.press(key)
        assert chosen.get_attribute("id") == f"segment-{number}"
        assert where.inner_text() == f"{number} / 4"
    assert page.locator("[aria-current]").get_attribute("href") == "#segment-2"
    page.locator(".outline a").nth(3).click()
    assert chosen.get_attribute("id") == "segment-4"
    assert page.locator("#segment-4").evaluate_all(IN_VIEW) == [True]
    box = page.locator("#previous").bounding_box()
    assert box is not None
    page.mouse.click(
        box["x"] + 9, box["y"] + 9
    )  # Playwright's click scrolls a page to where its bar would be otherwise
    assert chosen.get_attribute("id") == "segment-3"


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_legible_and_neighbours_differ(result: Segmentation, page_opener: PageOpener, scheme: Any) -> None:
    parts = [[f"Segment {k}. "] for k in range(7)]
    page = page_opener(segmentation(parts).to_html(), color_scheme=scheme).page

    def read_colors(selector: str, name: str) -> list[str]:
        values = page.locator(selector).evaluate_all(f"all => all.map((e) => getComputedStyle(e).{name})")
        return ["#" + "".join(f"{int(k):02x}" for k in re.findall(r"\d+", value)[:3]) for value in values]

    backgrounds = read_colors(".segment", "backgroundColor")
    for foregrounds in (read_colors(".said", "color"), read_colors(".margin", "color")):
        assert min(compute_contrast(a, b) for a, b in zip(backgrounds, foregrounds, strict=True)) >= 7
    assert all(a != b for a, b in pairwise(backgrounds))
    assert (compute_contrast(backgrounds[0], "#ffffff") < 2) == (scheme == "light")
    page.locator("#theme").click()
    assert (compute_contrast(read_colors(".segment", "backgroundColor")[0], "#ffffff") < 2) == (scheme == "dark")


@pytest.mark.browser
def test_nothing_is_wider_than_the_page(html: str, hostile: Segmentation, page_opener: PageOpener) -> None:
    wide = segmentation([["w" * 900 + ". ", "x. "], ["y" * 500]], heads=72, layers=48, model="m" * 300)
    for content in (html, hostile.to_html(), wide.to_html()):
        page = page_opener(content, viewport={"width": 390, "height": 800}).page
        for width in (390, 800, 1280):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.browser
def test_one_piece_is_a_page(page_opener: PageOpener) -> None:
    result = segmentation([["Only one."]], heads=0, level="fine")
    opened = page_opener(result.to_html(), accept_downloads=True)
    page = opened.page
    assert page.locator("h1").inner_text() == "1 segment of 1 block"
    assert page.locator("#chart").count() == 0
    page.locator("#similarity").hover()
    assert page.locator("#tip > *").all_inner_texts() == ["similarity 1.000", "block 1: Only one."]
    page.keyboard.press("n")
    assert json.loads(download(page, "#json")) == json.loads(result.to_json())
    assert download(page, "#plain").decode() == "Only one.\n"
    assert opened.is_quiet()


@pytest.mark.browser
def test_paper_and_no_script(html: str, page_opener: PageOpener) -> None:
    page = page_opener(html, java_script_enabled=False).page
    assert page.locator(".said").first.is_visible()
    assert page.locator("noscript").inner_text()
    assert page.locator("#copy").is_hidden()
    printed = page_opener(segmentation([["One. "]] * 60).to_html(), color_scheme="dark").page
    printed.emulate_media(media="print")
    assert printed.locator("#copy").is_hidden()
    assert printed.locator(".bar").is_hidden()
    assert printed.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    fits = "e => e.scrollHeight <= e.clientHeight + 1 && e.scrollWidth <= e.clientWidth + 1"
    assert printed.locator(".outline").evaluate(fits)


@pytest.mark.browser
def test_in_a_notebook_it_works_in_its_frame(result: Segmentation, page_opener: PageOpener) -> None:
    opened = page_opener(f"<!doctype html><meta charset='utf-8'>{result._repr_html_()}")
    inside = opened.page.frames[1]
    inside.locator("#next").click()
    assert inside.locator("#where").inner_text() == "1 / 4"
    inside.locator("#copy").click()
    inside.locator("#saved", has_text="Copied").wait_for()
    assert "".join(inside.evaluate(SHOWN)) == result.text
    assert opened.errors == opened.requests == []
