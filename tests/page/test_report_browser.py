"""Reports and cards in a browser: what people see, click, type, save and print."""

from __future__ import annotations

import csv
import io
import math
import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from headscope.page.notebook import render_study_card
from headscope.page.report import render_report
from headscope.studies.head_table import as_csv
from headscope.studies.head_types import PARTS
from headscope.studies.rates import RATES
from headscope.studies.result import Study
from tests.helpers.hostile import ALL, HEADS, LAYERS, PLATES, make_findings, make_study

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.helpers.browser import PageOpener


@pytest.fixture(scope="module")
def study() -> Study:
    return make_study()


@pytest.fixture(scope="module")
def html(study: Study) -> str:
    return render_report(study, make_findings(), PLATES)


def parse_numbers(text: str) -> list[float]:
    return [float(number.replace("−", "-").replace(",", "")) for number in re.findall(r"[−-]?\d[\d,]*\.?\d*", text)]


def get_factor(name: str) -> float:
    return 1.0 if name == "mean_distance" else 100.0


def find_cell(page: Page, name: str) -> Any:
    layer, head = map(int, re.findall(r"\d+", name))
    return page.locator(f".panel.shown td[data-i='{layer * HEADS + head}']")


def read_column(page: Page, place: int) -> list[str]:
    return page.locator(f"#table tbody tr:visible > :nth-child({place})").all_inner_texts()


@pytest.mark.browser
def test_opens_alone_and_shows_hostile_text_as_text(html: str, page_opener: PageOpener) -> None:
    opened = page_opener(html)
    page = opened.page
    assert opened.is_quiet()
    assert page.locator("h1").text_content() == ALL
    assert ALL in (page.locator("#finding-12 h3").text_content() or "")
    assert page.locator("blockquote").text_content() == ALL
    assert page.locator(".tokens code").first.text_content() == ALL
    assert ALL in (page.locator(".notice").text_content() or "")
    assert page.locator("b, [onerror], img:not(figure .card img)").count() == 0
    assert page.locator("script").count() == 2
    assert page.evaluate("[...document.images].every((image) => image.complete && image.naturalWidth > 0)")
    assert page.locator("img").count() == len(PLATES)


@pytest.mark.browser
def test_policy_refuses_what_is_injected(html: str, page_opener: PageOpener) -> None:
    injected = html.replace(
        "<main ", '<script>window.got_in = 1</script><img src="https://example.org/x.png"><main ', 1
    )
    opened = page_opener(injected)
    assert opened.page.evaluate("window.got_in") is None
    assert opened.requests == []
    assert any("Content Security Policy" in error for error in opened.errors)


@pytest.mark.browser
def test_tabs_choose_the_rate_and_pointing_shows_its_numbers(html: str, study: Study, page_opener: PageOpener) -> None:
    page = page_opener(html).page
    tip = page.locator("#tip")
    assert tip.is_hidden()
    seen = set()
    for name in RATES:
        page.locator(f"[data-rate={name}]").click()
        assert page.locator(".panel:visible").count() == 1
        assert page.locator("[role=tab][aria-selected=true]").get_attribute("data-rate") == name
        seen.add(find_cell(page, "L4H3").inner_text() + page.locator(".panel:visible h3").inner_text())
        find_cell(page, "L4H3").hover()
        title, value, chance, pairs = tip.locator("> *").all_inner_texts()
        shown = parse_numbers(value)
        assert title == "L4H3"
        assert shown[0] == pytest.approx(float(study.rate(name)[4, 3]) * get_factor(name), abs=0.051)
        assert shown[1] == pytest.approx(float(study.standard_error(name)[4, 3]) * get_factor(name), abs=0.051)
        expected = np.broadcast_to(study.chance(name).values, (LAYERS, HEADS))[4, 3] * get_factor(name)
        assert parse_numbers(chance) == [pytest.approx(expected, abs=0.051)]
        assert parse_numbers(pairs) == [int(study.data["pairs"][4, 3])]
    assert len(seen) == len(RATES)
    find_cell(page, "L2H1").hover()
    assert tip.locator("> *").all_inner_texts()[1] == "nothing counted"
    page.locator("h1").hover()
    assert tip.is_hidden()


@pytest.mark.browser
def test_chance_is_marked_on_the_scale(html: str, study: Study, page_opener: PageOpener) -> None:
    page = page_opener(html).page
    for name in RATES:
        page.locator(f"[data-rate={name}]").click()
        expected = float(study.chance(name).mean()) * get_factor(name)
        assert parse_numbers(page.locator(".chance:visible").inner_text()) == [pytest.approx(expected, abs=0.051)]
        ticks = [parse_numbers(text)[0] for text in page.locator(".below:visible span").all_inner_texts()]
        ramp, tick = (page.locator(f"{part}:visible").first.bounding_box() for part in (".ramp", ".ramp .tick"))
        assert ramp is not None
        assert tick is not None
        place = (tick["x"] + tick["width"] / 2 - ramp["x"]) / ramp["width"]
        assert place == pytest.approx((expected - ticks[0]) / (ticks[-1] - ticks[0]), abs=0.01)


@pytest.mark.browser
def test_keys_move_over_tabs_and_cells(html: str, page_opener: PageOpener) -> None:
    page = page_opener(html).page
    focused = "document.activeElement.dataset.i ?? document.activeElement.dataset.rate"
    page.locator("[data-rate=repeat_rate]").focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate(focused) == "repeat_rate_in_sentence"
    assert page.locator(".panel:visible h3").inner_text().startswith("Repeat rate in a sentence")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert page.evaluate(focused) == "writes_type"
    page.keyboard.press("ArrowLeft")
    assert page.evaluate(focused) == "attends_type"
    page.keyboard.press("ArrowLeft")
    assert page.evaluate(focused) == "dominant_share"
    page.keyboard.press("Tab")
    assert page.evaluate(focused) == "0"
    for key, index in (
        ("ArrowDown", 4),
        ("ArrowRight", 5),
        ("ArrowUp", 1),
        ("ArrowUp", 1),
        ("Home", 0),
        ("ArrowLeft", 0),
        ("End", 3),
    ):
        page.keyboard.press(key)
        assert page.evaluate(focused) == str(index)
    assert page.locator("#tip strong").inner_text() == "L0H3"
    page.keyboard.press("Enter")
    assert page.locator("#table tr.chosen th").inner_text() == "L0H3"


@pytest.mark.browser
def test_columns_sort_both_ways_and_nothing_counted_stays_last(
    html: str, study: Study, page_opener: PageOpener
) -> None:
    page = page_opener(html).page
    table = study.heads().set_index("head")
    for place, name in enumerate(("pairs", *RATES), start=4):
        button = page.locator(f"#table th[data-column={name}] button")
        for order in ("descending", "ascending"):
            if order == "descending":
                button.click()
            else:
                button.focus()
                page.keyboard.press("Enter")
            assert page.locator("#table th[aria-sort]").evaluate_all(
                "all => all.map((th) => [th.dataset.column, th.ariaSort])"
            ) == [[name, order]]
            heads = read_column(page, 1)
            values = [table.loc[head, name] for head in heads]
            expected = table[name].sort_values(ascending=order == "ascending", na_position="last").tolist()
            assert values == pytest.approx(expected, nan_ok=True)
            assert len(set(heads)) == LAYERS * HEADS
            if name != "pairs":
                assert heads[-1] == "L2H1"
                assert math.isnan(values[-1])
                assert read_column(page, place)[-1].strip() == "–"
    page.locator("#table th[data-column=head] button").press("Space")
    assert read_column(page, 1)[:6] == ["L0H0", "L0H1", "L0H2", "L0H3", "L1H0", "L1H1"]


@pytest.mark.browser
def test_filter_by_layer_and_head(html: str, page_opener: PageOpener) -> None:
    page = page_opener(html).page
    field = page.locator("#filter")
    for text, expected in (
        ("L1", [f"L1H{head}" for head in range(HEADS)]),
        ("h2", [f"L{layer}H2" for layer in range(LAYERS)]),
        ("L10H3, l3h0", ["L3H0", "L10H3"]),
        ("nowhere", []),
        (" ", [f"L{layer}H{head}" for layer in range(LAYERS) for head in range(HEADS)]),
    ):
        field.fill(text)
        assert read_column(page, 1) == expected
        assert parse_numbers(page.locator("#filtered").inner_text())[0] == len(expected)


@pytest.mark.browser
def test_map_and_table_point_at_each_other(html: str, page_opener: PageOpener) -> None:
    page = page_opener(html, viewport={"width": 700, "height": 600}).page
    page.locator("#filter").fill("L0")
    row = page.locator("#table tr[data-i='43']")
    find_cell(page, "L10H3").click()
    assert page.locator("#table tr.chosen th").all_inner_texts() == ["L10H3"]
    assert row.get_attribute("aria-current") == "true"
    box = row.bounding_box()
    assert box is not None
    assert 0 <= box["y"] <= 600 - box["height"]
    outline = "cell => getComputedStyle(cell).outlineStyle"
    page.mouse.move(1, 1)
    assert find_cell(page, "L10H2").evaluate(outline) == "none"
    page.locator("#table tr[data-i='42']").hover()
    assert find_cell(page, "L10H2").evaluate(outline) == "solid"
    page.locator("#table tr[data-i='41']").hover()
    assert find_cell(page, "L10H2").evaluate(outline) == "none"


@pytest.mark.browser
def test_csv_is_the_head_table(html: str, study: Study, page_opener: PageOpener) -> None:
    page = page_opener(html).page
    with page.expect_download() as download:
        page.locator("#csv").click()
    assert download.value.suggested_filename.endswith("-heads.csv")
    rows = list(csv.DictReader(io.StringIO(download.value.path().read_text(encoding="utf-8"))))
    assert rows == list(csv.DictReader(io.StringIO(as_csv(study.heads()))))
    assert [row["head"] for row in rows] == study.heads()["head"].tolist()


@pytest.mark.browser
def test_figures_can_be_saved(html: str, page_opener: PageOpener) -> None:
    page = page_opener(html).page
    with page.expect_download() as download:
        page.locator("a.save").first.click()
    assert download.value.suggested_filename == "figure-6a.svg"
    assert download.value.path().read_text(encoding="utf-8") == PLATES[0].svg


THEME_KEY = "headscope-theme"


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(html: str, scheme: str, page_opener: PageOpener) -> None:
    page = page_opener(html, color_scheme=scheme).page
    background = "getComputedStyle(document.body).backgroundColor"

    def measure_brightness() -> float:
        return sum(parse_numbers(page.evaluate(background))[:3]) / 3

    initial = measure_brightness()
    assert (initial > 128) == (scheme == "light")
    page.locator("#theme").click()
    switched = measure_brightness()
    assert (switched > 128) != (initial > 128)
    page.locator("[data-rate=mean_distance]").click()
    assert measure_brightness() == switched
    # Chromium writes storage to disk asynchronously and may lose it between loads of a file: test both halves instead.
    assert page.evaluate(f"localStorage.getItem('{THEME_KEY}')") == ("dark" if scheme == "light" else "light")
    page.add_init_script(f"localStorage.setItem('{THEME_KEY}', '{'dark' if scheme == 'light' else 'light'}')")
    page.reload()
    assert measure_brightness() == switched
    assert (
        page.locator(".card").first.evaluate("card => getComputedStyle(card).backgroundColor") == "rgb(255, 255, 255)"
    )
    page.locator("#theme").click()
    assert measure_brightness() == initial


@pytest.mark.browser
def test_paper_is_light_whole_and_without_controls(html: str, page_opener: PageOpener) -> None:
    from playwright.sync_api import expect

    page = page_opener(html, color_scheme="dark").page
    assert not page.get_by_text("criterion of 7").is_visible()
    assert page.locator(".controls:visible").count() > 0
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator(".controls:visible, .skip:visible").count() == 0
    assert page.locator(".panel:visible").count() == len(PARTS) + len(RATES)
    expect(page.get_by_text("criterion of 7")).to_be_visible()
    for number in range(1, 12):
        assert page.get_by_text(f"Claim {number}:").is_visible()
        assert page.get_by_text(f"criterion of {number}").first.is_visible()
    assert page.locator("figure").first.evaluate("figure => getComputedStyle(figure).breakInside") == "avoid"
    page.emulate_media(media="screen", color_scheme="dark")
    expect(page.get_by_text("criterion of 7")).to_be_hidden()


@pytest.mark.browser
def test_the_page_never_scrolls_sideways(html: str, page_opener: PageOpener) -> None:
    page = page_opener(html).page
    page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    beyond = """all => all
        .filter((e) => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('.scroll, nav, .spoken'))
        .map((e) => e.tagName + '.' + e.className)"""
    for width in (360, 700, 1000, 1280, 2400):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("main *").evaluate_all(beyond) == []


@pytest.mark.browser
def test_headings_in_order_and_skip_link(html: str, page_opener: PageOpener) -> None:
    page = page_opener(html).page
    levels = [int(tag[1]) for tag in page.locator("h1, h2, h3, h4").evaluate_all("all => all.map((e) => e.tagName)")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    page.keyboard.press("Tab")
    box = page.locator(".skip").bounding_box()
    assert box is not None
    assert box["y"] >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


@pytest.mark.browser
def test_several_cards_in_one_page(study: Study, page_opener: PageOpener) -> None:
    card = render_study_card(study)
    opened = page_opener(
        f"<!doctype html><meta charset=utf-8><body>{card}{card}", viewport={"width": 360, "height": 800}
    )
    assert opened.dialogs == []
    assert opened.errors == []
    assert opened.page.locator("strong bdi").all_text_contents() == [ALL, ALL]
    assert opened.page.locator("svg").count() == 10
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 360
