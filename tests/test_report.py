from __future__ import annotations

import csv
import io
import json
import math
import re
from html.parser import HTMLParser
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from headscope.page.card import study_card
from headscope.page.colours import colour, contrast, ink
from headscope.page.layers import most_attended, receivers
from headscope.page.report import Plate, embedded, report
from headscope.studies.findings import Finding
from headscope.studies.labels import RATES, labelled
from headscope.studies.result import Study
from headscope.tally.quantities import Shape
from headscope.tally.tally import Tally

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.browser import PageOpener

pytest_plugins = ("tests.browser",)

LAYERS, HEADS, BLOCKS = 11, 4, 20
USED = 5
"""blocks that hold texts; few, as a jackknife goes over all of them"""
SCRIPT = "<script>alert(1)</script>"
IMAGE = '"><img src=x onerror=alert(1)>'
CLOSE = "</script></style></title></textarea>--><b>bold</b>"
TEMPLATE = "{{7*7}} {% raw %}"
DIRECTION = "\u202eright to left\u2066 \u2028 \u2029 नमस्ते"
HOSTILE = (SCRIPT, IMAGE, CLOSE, TEMPLATE, DIRECTION)
ALL = " ".join(HOSTILE)
NOTHING = (2, 1)
"""a head without pairs"""
SVG = (
    '<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg" width="{0}pt" height="100pt" viewBox="0 0 {0} 100">'
    '<rect width="50" height="50" fill="teal"/></svg>'
)


# -- a study without a model ------------------------------------------------------------------------------------------


def tally() -> Tally:
    random = np.random.default_rng(7)
    made = Tally.zeros(Shape(LAYERS, HEADS, 16, maps=False))
    heads = (BLOCKS, LAYERS, HEADS)
    pairs = random.integers(40, 2000, heads)
    pairs[:, NOTHING[0], NOTHING[1]] = 0
    # Heads have characters of their own, so that no two of them look alike in a table.
    character = random.random((LAYERS, HEADS))
    sums = {
        "texts": np.full(BLOCKS, 3),
        "sample_texts": np.full(BLOCKS, 3),
        "all_pairs": np.full(BLOCKS, 360),
        "all_equal": np.full(BLOCKS, 9),
        "all_same": np.full(BLOCKS, 120),
        "all_equal_same": np.full(BLOCKS, 4),
        "pairs": pairs,
        "equal": (pairs * character * 0.4).astype(np.int64),
        "same": (pairs * (1 - character)).astype(np.int64),
        "equal_same": (pairs * (1 - character) * character * 0.3).astype(np.int64),
        "distance_sum": (pairs * (1 + 12 * character)).astype(np.int64) + random.integers(0, 9, heads) * (pairs > 0),
        "texts_with_pairs": np.where(pairs > 0, 3, 0),
        "dominant_share_sum": np.where(pairs > 0, 3 * (0.2 + 0.7 * random.random(heads)), 0.0),
        "shuffled_share_sum": np.where(pairs > 0, 0.2 + character, 0.0),
        "shuffled_share_texts": np.where(pairs > 0, 3, 0),
        "attention_received": random.random((BLOCKS, LAYERS, 7)),
        "attention_spread": np.tile(np.arange(1.0, 8.0), (BLOCKS, 1)),
    }
    for name, array in sums.items():
        made[name][...] = array
    made["window_tokens"][:, 16] = 3
    for array in made.arrays.values():
        array[USED:] = 0
    for token, texts in enumerate((8, 1, 1, 1, 1, 1, 1, 1)):  # more tokens than are listed, 15 texts
        counts = np.zeros((BLOCKS, LAYERS), dtype=np.int64)
        counts[token % USED] = texts
        made.attend(token, counts)
    return made


def manifest(**changes: Any) -> dict[str, Any]:
    return {
        "format": 1,
        "headscope": "0.1.0",
        "model": ALL,
        "model_type": IMAGE,
        "weight_hash": "ab" * 32,
        "tokenizer": CLOSE,
        "first_special_token": "[CLS]",
        "causal": 0,
        "layers": LAYERS,
        "heads": HEADS,
        "length": 16,
        "windows": "first",
        "sentences": "tokens",
        "min_tokens": 2,
        "theta": 0.3,
        "tau": 0.3,
        "maps": 0,
        "dtype": "float32",
        "device": "cpu",
        "corpus": ALL,
        "corpus_hash": "cd" * 16,
        "documents_read": 64,
        "documents_skipped": json.dumps({ALL: 4}),
        "excerpts": json.dumps([{"name": ALL, "text": ALL}]),
        "complete": 0,
        "stopped_by": ALL,
        "versions": json.dumps({"torch": CLOSE}),
        "date": "2026-01-02T03:04:05+00:00",
        "platform": "linux",
        "sample": 1.0,
        "batch_size": 8,
        "kernel": "vectorized",
        "command": ALL,
        "duration_seconds": 75.0,
        "something_new": ALL,
        **changes,
    }


def make_study(**changes: Any) -> Study:
    def names(tokens: list[int]) -> list[str]:
        return [ALL, " ", "", *HOSTILE][: len(tokens)]

    return Study(labelled(tally(), names).assign_attrs(manifest(**changes)))


def make_findings() -> list[Finding]:
    verdicts = ("holds", "does not hold", "cannot be measured")
    plain = [
        Finding(
            number,
            f"Claim {number}: heads of one layer do something that takes a sentence to say.",
            "What the paper reports.",
            "What was measured here.",
            verdicts[number % 3],  # type: ignore[arg-type]
            f"criterion of {number}",
            value=None if number % 3 == 2 else 0.123456 * number,
            error=None if number == 3 else 0.0123,
            unit="%" if number == 3 else "tokens",
            details={"by_layer": [0.25, float("nan"), None, 1], "heads": {"L0H1": 0.5}, "rows": [[1, 2], [3, 4]]},
        )
        for number in range(1, 12)
    ]
    return [*plain, Finding(12, ALL, ALL, ALL, "holds", ALL, 1.0, 0.1, ALL, {ALL: ALL, "list": [ALL, {ALL: [ALL]}]})]


PLATES = [Plate("6a", "Repeats", "A caption.", SVG.format(200)), Plate(ALL, ALL, ALL, SVG.format(900))]


@pytest.fixture(scope="module")
def study() -> Study:
    return make_study()


@pytest.fixture(scope="module")
def html(study: Study) -> str:
    return report(study, make_findings(), PLATES)


def numbers(text: str) -> list[float]:
    return [float(found.replace("−", "-").replace(",", "")) for found in re.findall(r"[−-]?\d[\d,]*\.?\d*", text)]


def factor(name: str) -> float:
    return 1.0 if name == "mean_distance" else 100.0


# -- without a browser ------------------------------------------------------------------------------------------------


class Elements(HTMLParser):
    """All start tags and all text of a piece of HTML."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


def test_no_text_becomes_an_element(html: str) -> None:
    elements = Elements(html)
    assert elements.count("script") == 2
    assert elements.count("img") == len(PLATES)
    assert not elements.count("b")
    assert not [tag for tag, attributes in elements.tags if any(name.startswith("on") for name in attributes)]
    assert elements.text.count(ALL) >= 12
    assert "49" not in re.findall(r"<h1>.*?</h1>", html, re.DOTALL)[0]


def test_policy_allows_the_one_script_only(html: str) -> None:
    import base64
    import hashlib

    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', html)
    script = re.search(r"<script>(.*?)</script>", html, re.DOTALL)
    assert policy is not None
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    allowed = policy[1].replace("&#39;", "'").split("; ")
    assert allowed[0] == "default-src 'none'"
    assert f"script-src 'sha256-{digest}'" in allowed
    assert html.index("Content-Security-Policy") < html.index("<style>") < html.index("<script>")


def test_data_is_json_that_cannot_end_its_element(html: str, study: Study) -> None:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert found is not None
    assert not set("<>&\u2028\u2029") & set(found[1])
    data = json.loads(found[1], parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    empty = NOTHING[0] * HEADS + NOTHING[1]
    assert data["rates"][0]["values"][empty] is None
    assert data["rates"][0]["values"][0] == pytest.approx(float(study.rate("repeat_rate")[0, 0]), rel=1e-9)


def test_any_text_survives_in_json_without_markup() -> None:
    text = str(embedded({ALL: [ALL, 1.5, None]}))
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == {ALL: [ALL, 1.5, None]}


def test_surrogates_are_replaced() -> None:
    page = report(make_study(model="half \ud83d of a pair"), [], [])
    assert "half \ufffd of a pair" in page
    page.encode("utf-8")


def test_incomplete_studies_say_so() -> None:
    stopped = report(make_study(stopped_by="the disk is full"), [], [])
    assert "This study is incomplete" in stopped
    assert "Stopped by: <bdi>the disk is full</bdi>" in stopped
    assert "incomplete" not in Elements(report(make_study(complete=1, stopped_by=""), [], [])).text


def test_findings_stand_with_value_error_and_verdict(html: str) -> None:
    items = re.findall(r'<li class="finding (\w+)" id="finding-(\d+)">(.*?)</li>\n', html, re.DOTALL)
    assert [int(number) for _, number, _ in items] == list(range(1, 13))
    first, second, third = (Elements(text).text for _, _, text in items[:3])
    assert [kind for kind, _, _ in items[:3]] == ["no", "open", "yes"]
    assert "0.12 ± 0.01 tokens" in first
    assert "does not hold" in first
    assert "no value" in second
    assert "cannot be measured" in second
    assert "37.0 %" in third
    assert "criterion of 1" in first
    assert "0.25, –, –, 1" in " ".join(first.split())


def test_every_entry_of_the_manifest_is_shown(html: str, study: Study) -> None:
    text = Elements(html).text
    for value in ("ab" * 32, "cd" * 16, "1 min 15 s", "something new", "vectorized", "2026-01-02T03:04:05+00:00"):
        assert value in text
    assert "64 read, 4 of them skipped" in text


def test_tokens_and_receivers(html: str, study: Study) -> None:
    text = Elements(html).text
    assert "53.3 %" in text  # 8 of 15 texts
    assert "U+0020" in text  # a blank can be seen
    assert "empty token" in text
    assert "3 others 20.0 %" in text
    share = float(study.data["attention_received_share"][0, 2]) * 100
    assert f'title="sentence end: {share:.1f} %"' in html
    assert f'title="rest: {100 * 7 / 28:.1f} %"' in html  # the evenly spread baseline


def test_selected_layers_and_absent_sections() -> None:
    chosen = make_study().select(layers=[1, 3])
    page = report(Study(chosen.data.drop_vars(["most_attended", "most_attended_blocks"])), [], [])
    text = Elements(page).text
    assert "L3H2" in text
    assert "L0H0" not in text
    assert "Attention received" in text
    for absent in ('id="findings"', 'id="figures"', "Most attended tokens"):
        assert absent not in page


def test_what_a_study_of_selected_heads_does_not_hold_is_left_out() -> None:
    chosen = make_study().select(heads=[2])
    assert most_attended(chosen) == []
    assert receivers(chosen) == []
    page = report(chosen, [], [])
    assert 'id="tokens"' not in page
    assert "L10H2" in Elements(page).text
    assert "L10H1" not in Elements(page).text


def test_nothing_counted_at_all() -> None:
    empty = Tally.zeros(Shape(2, 2, 16, maps=False))
    study = Study(labelled(empty, lambda tokens: []).assign_attrs(manifest(layers=2, heads=2)))
    assert report(study, [], []).count('class="nothing"') == 5 * 4
    assert study_card(study).count("nothing counted") >= 5 * 4


def test_ink_is_legible_on_every_colour() -> None:
    assert min(contrast(colour(k / 500), ink(colour(k / 500))) for k in range(501)) >= 4.5


def test_page_stays_small() -> None:
    figures = [Plate(str(k), "Title", "Caption", SVG.format(300) + "<!--" + "x" * 400_000 + "-->") for k in range(11)]
    assert len(report(make_study(), make_findings(), figures)) < 8_000_000


def test_card_escapes_and_shows_values(study: Study) -> None:
    card = study_card(study)
    elements = Elements(card)
    assert {tag for tag, _ in elements.tags} <= {"div", "span", "strong", "bdi", "svg", "rect", "path", "title", "br"}
    assert not [tag for tag, attributes in elements.tags if "id" in attributes or "class" in attributes]
    assert elements.text.count(ALL) == 3  # model, corpus, why it stopped
    assert elements.count("rect") == 5 * (LAYERS * HEADS - 1)
    assert elements.count("path") == 5
    assert elements.text.count("L2H1: nothing counted") == 5
    value, error = (
        float(f(name)[3, 2]) for f, name in ((study.rate, "mean_distance"), (study.standard_error, "mean_distance"))
    )
    shown = re.search(r"L3H2: (\S+) ± (\S+) tokens", elements.text)
    assert shown is not None
    assert float(shown[1]) == pytest.approx(value, abs=0.05)
    assert float(shown[2]) == pytest.approx(error, abs=0.05)
    assert "Incomplete" in card
    assert "Incomplete" not in study_card(make_study(complete=1))


def test_study_shows_its_card(study: Study) -> None:
    assert study._repr_html_() == study_card(study)


# -- in a browser -----------------------------------------------------------------------------------------------------


def cell(page: Page, name: str) -> Any:
    layer, head = map(int, re.findall(r"\d+", name))
    return page.locator(f".panel.shown td[data-i='{layer * HEADS + head}']")


def column(page: Page, place: int) -> list[str]:
    return page.locator(f"#table tbody tr:visible > :nth-child({place})").all_inner_texts()


@pytest.mark.browser
def test_opens_alone_and_shows_hostile_text_as_text(html: str, page_opener: PageOpener) -> None:
    opened = page_opener(html)
    page = opened.page
    page.wait_for_timeout(300)
    assert opened.requests == []
    assert opened.errors == []
    assert opened.dialogs == []
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
        seen.add(cell(page, "L4H3").inner_text() + page.locator(".panel:visible h3").inner_text())
        cell(page, "L4H3").hover()
        title, value, chance, pairs = tip.locator("> *").all_inner_texts()
        shown = numbers(value)
        assert title == "L4H3"
        assert shown[0] == pytest.approx(float(study.rate(name)[4, 3]) * factor(name), abs=0.051)
        assert shown[1] == pytest.approx(float(study.standard_error(name)[4, 3]) * factor(name), abs=0.051)
        expected = np.broadcast_to(study.chance(name).values, (LAYERS, HEADS))[4, 3] * factor(name)
        assert numbers(chance) == [pytest.approx(expected, abs=0.051)]
        assert numbers(pairs) == [int(study.data["pairs"][4, 3])]
    assert len(seen) == len(RATES)
    cell(page, "L2H1").hover()
    assert tip.locator("> *").all_inner_texts()[1] == "nothing counted"
    page.locator("h1").hover()
    assert tip.is_hidden()


@pytest.mark.browser
def test_chance_is_marked_on_the_scale(html: str, study: Study, page_opener: PageOpener) -> None:
    page = page_opener(html).page
    for name in RATES:
        page.locator(f"[data-rate={name}]").click()
        expected = float(study.chance(name).mean()) * factor(name)
        assert numbers(page.locator(".chance:visible").inner_text()) == [pytest.approx(expected, abs=0.051)]
        ticks = [numbers(text)[0] for text in page.locator(".below:visible span").all_inner_texts()]
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
    table = study.table().set_index("head")
    for place, name in enumerate(("pairs", *RATES), start=2):
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
            heads = column(page, 1)
            values = [table.loc[head, name] for head in heads]
            expected = table[name].sort_values(ascending=order == "ascending", na_position="last").tolist()
            assert values == pytest.approx(expected, nan_ok=True)
            assert len(set(heads)) == LAYERS * HEADS
            if name != "pairs":
                assert heads[-1] == "L2H1"
                assert math.isnan(values[-1])
                assert column(page, place)[-1].strip() == "–"
    page.locator("#table th[data-column=head] button").press("Space")
    assert column(page, 1)[:6] == ["L0H0", "L0H1", "L0H2", "L0H3", "L1H0", "L1H1"]


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
        assert column(page, 1) == expected
        assert numbers(page.locator("#filtered").inner_text())[0] == len(expected)


@pytest.mark.browser
def test_map_and_table_point_at_each_other(html: str, page_opener: PageOpener) -> None:
    page = page_opener(html, viewport={"width": 700, "height": 600}).page
    page.locator("#filter").fill("L0")
    row = page.locator("#table tr[data-i='43']")
    cell(page, "L10H3").click()
    assert page.locator("#table tr.chosen th").all_inner_texts() == ["L10H3"]
    assert row.get_attribute("aria-current") == "true"
    box = row.bounding_box()
    assert box is not None
    assert 0 <= box["y"] <= 600 - box["height"]
    outline = "cell => getComputedStyle(cell).outlineStyle"
    page.mouse.move(1, 1)
    assert cell(page, "L10H2").evaluate(outline) == "none"
    page.locator("#table tr[data-i='42']").hover()
    assert cell(page, "L10H2").evaluate(outline) == "solid"
    page.locator("#table tr[data-i='41']").hover()
    assert cell(page, "L10H2").evaluate(outline) == "none"


@pytest.mark.browser
def test_csv_is_the_head_table(html: str, study: Study, page_opener: PageOpener) -> None:
    page = page_opener(html).page
    with page.expect_download() as download:
        page.locator("#csv").click()
    assert download.value.suggested_filename.endswith("-heads.csv")
    rows = list(csv.DictReader(io.StringIO(download.value.path().read_text(encoding="utf-8"))))
    table = study.table()
    assert list(rows[0]) == table.columns.tolist()
    assert [row["head"] for row in rows] == table["head"].tolist()
    for name in table.columns[1:]:
        assert [float(row[name] or "nan") for row in rows] == pytest.approx(table[name].tolist(), nan_ok=True, rel=1e-9)


@pytest.mark.browser
def test_figures_can_be_saved(html: str, page_opener: PageOpener) -> None:
    page = page_opener(html).page
    with page.expect_download() as download:
        page.locator("a.save").first.click()
    assert download.value.suggested_filename == "figure-6a.svg"
    assert download.value.path().read_text(encoding="utf-8") == PLATES[0].svg


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(html: str, scheme: str, page_opener: PageOpener) -> None:
    page = page_opener(html, color_scheme=scheme).page
    background = "getComputedStyle(document.body).backgroundColor"

    def brightness() -> float:
        return sum(numbers(page.evaluate(background))[:3]) / 3

    first = brightness()
    assert (first > 128) == (scheme == "light")
    page.locator("#theme").click()
    switched = brightness()
    assert (switched > 128) != (first > 128)
    page.locator("[data-rate=mean_distance]").click()
    assert brightness() == switched
    page.reload()
    assert brightness() == switched
    assert (
        page.locator(".card").first.evaluate("card => getComputedStyle(card).backgroundColor") == "rgb(255, 255, 255)"
    )
    page.locator("#theme").click()
    assert brightness() == first


@pytest.mark.browser
def test_paper_is_light_whole_and_without_controls(html: str, page_opener: PageOpener) -> None:
    from playwright.sync_api import expect

    page = page_opener(html, color_scheme="dark").page
    assert not page.get_by_text("criterion of 7").is_visible()
    assert page.locator(".controls:visible").count() > 0
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator(".controls:visible, .skip:visible").count() == 0
    assert page.locator(".panel:visible").count() == len(RATES)
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
    card = study_card(study)
    opened = page_opener(
        f"<!doctype html><meta charset=utf-8><body>{card}{card}", viewport={"width": 360, "height": 800}
    )
    assert opened.dialogs == []
    assert opened.errors == []
    assert opened.page.locator("strong bdi").all_text_contents() == [ALL, ALL]
    assert opened.page.locator("svg").count() == 10
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 360
