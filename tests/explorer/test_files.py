"""In a browser that can reach nothing: what is saved, what is hostile, notebooks, and room for everything."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from matplotlib import image

from headscope import Reading
from headscope.page.explorer.pieces import printable
from headscope.page.words import visible
from tests.explorer.explored import (
    HOSTILE,
    NEUTRAL,
    NOTHING_CHOSEN,
    PLAIN,
    TOKENS,
    Elements,
    Explorer,
    Open,
    assert_pairs,
    close,
    largest,
    names,
    random_reading,
    save,
    size,
    svg,
    wanted,
    written,
)
from tests.hostile import ALL
from tests.synthetic import random_study

if TYPE_CHECKING:
    from tests.browser import PageOpener

pytestmark = pytest.mark.browser


# Files


def test_pictures_are_saved(reading: Reading, html: str, explore: Open) -> None:
    explorer = explore(html, color_scheme="dark")
    explorer.choose(1, 6)
    explorer.pick(8)
    explorer.switch("view", "lines")
    tokens = set(reading.tokens.values)
    dark = {f"#{r:02x}{g:02x}{b:02x}" for r, g, b, _ in explorer.pixels("similarity").reshape(-1, 4).tolist()}
    for what in ("maps", "text", "overview", "layers"):
        root = svg(save(explorer, what, "svg"))
        assert not dark & {each.attrib.get("fill") for each in root.iter("{http://www.w3.org/2000/svg}path")}
        labels = written(root)
        assert "minilm" in labels[0]
        if what == "overview":
            assert labels[1:] == [*(f"H{head}" for head in range(12)), "sum", *(f"L{layer}" for layer in range(6))]
            assert sum(each.tag.endswith("image") for each in root.iter()) == 6 * 13
        elif what == "text":
            assert labels[1:] == explorer.texts(".tok")
        else:
            assert tokens <= set(labels)
        picture = image.imread(save(explorer, what, "png"))
        width, height = size(root)
        assert picture.shape[:2] == pytest.approx((3 * height, 3 * width), abs=3)
        assert (picture[:3, :3] == 1).all()  # on white, though the page is dark
        assert np.median(picture[..., :3]) > 0.8 or what == "maps"
        ink = (picture[..., :3] < 0.9).any(axis=-1)
        assert 0.005 < ink.mean() < 0.95
        rows, columns = np.flatnonzero(ink.any(axis=1)), np.flatnonzero(ink.any(axis=0))
        assert rows[-1] - rows[0] > 0.6 * len(picture)
        assert columns[-1] - columns[0] > 0.3 * picture.shape[1]
    assert explorer.page.evaluate("document.documentElement.dataset.theme") is None  # as it was
    assert close(explorer.pixels("similarity")[5, 5], NEUTRAL["dark"])


def test_saved_maps_hold_every_cell(plain: Reading, explore: Open) -> None:
    explorer = explore(plain)
    root = svg(save(explorer, "maps", "svg"))
    painted = explorer.pixels("similarity")
    colours = {f"#{r:02x}{g:02x}{b:02x}" for r, g, b, _ in painted.reshape(-1, 4).tolist()}
    filled = {each.attrib.get("fill") for each in root.iter("{http://www.w3.org/2000/svg}path")}
    assert colours <= filled
    labels = written(root)
    assert "L2H0, θ = 0.3, τ = 0.3" in labels[0]
    for token in TOKENS:
        assert labels.count(token) == 4 * TOKENS.count(token)  # two axes of two maps
    explorer.drag("similarity", (2, 4), (6, 8))
    labels = written(svg(save(explorer, "maps", "svg")))
    assert "[CLS]" not in labels
    assert labels.count("owl") == 0


def test_nothing_to_follow_is_nothing_to_save(plain: Reading, explore: Open) -> None:
    explorer = explore(plain)
    button = explorer.page.locator("[data-save=layers][data-as=svg]")
    assert button.is_disabled()
    explorer.pick(3)
    assert button.is_enabled()


def test_pairs_are_saved_as_shown(plain: Reading, explore: Open) -> None:
    explorer = explore(plain)
    for flag in ("words", "hide"):
        rows = list(csv.DictReader(io.StringIO(save(explorer, "pairs", "csv").read_text(encoding="utf-8"))))
        told = explorer.ask("pairs")
        assert list(rows[0]) == list(wanted(plain, 0, 0, 0.3, explain=True).columns) == list(told[0])
        assert [[*row.values()][:2] for row in rows] == [[pair["token_i"], pair["token_j"]] for pair in told]
        for name in ("index_i", "index_j", "value", "relative"):
            assert [float(row[name]) for row in rows] == [pair[name] for pair in told]
        assert [row["relation"] for row in rows] == [pair["relation"] for pair in told]
        explorer.flip(flag)


# Hostile tokens


def test_hostile_tokens_are_shown_as_text(explore: Open) -> None:
    reading = random_reading(HOSTILE, layers=2, heads=1, name=ALL)
    explorer = explore(reading)
    shown = names()
    explorer.type("theta", 0.0)
    assert ALL in explorer.texts(".bar .title")[0]
    # the piece of a word follows a token without letters, of which it is no piece, and so keeps its mark
    assert explorer.texts(".tok") == [visible(printable(token.replace("\ud83d", "\ufffd"))) for token in HOSTILE]
    rows = explorer.page.locator("#pairs tbody bdi").evaluate_all("all => all.map((e) => e.title)")
    assert set(rows) <= set(shown)
    assert {HOSTILE[1], HOSTILE[2], HOSTILE[3], HOSTILE[11], HOSTILE[15]} <= set(rows)
    for i in range(len(HOSTILE) // 2):
        ends = (i, len(HOSTILE) - 1 - i)
        explorer.hover("similarity", *ends)
        for text, k in zip(explorer.texts("#tip bdi"), ends, strict=True):
            assert shown[k].startswith(text.removesuffix("…"))
            assert text == shown[k] or len(text) >= 24
    ticks = explorer.texts("#similarity .tick")
    assert any(tick.startswith("<script") for tick in ticks)
    for i in range(len(HOSTILE)):
        explorer.place.evaluate(f"headscope.show({{ token: {i} }})")
        explorer.settle()
        assert explorer.texts("#token-card h3 bdi") == [shown[i]]
        assert f"“\u2068{shown[i]}\u2069”" in explorer.texts("#through-note")[0]
    explorer.flip("words")
    elements = explorer.page.evaluate("[...new Set([...document.querySelectorAll('*')].map((e) => e.localName))]")
    assert not {"img", "b", "iframe", "object", "link"} & set(elements)
    assert explorer.page.locator("script").count() == 2
    assert explorer.page.locator("[onerror], [onclick]").count() == 0
    assert explorer.page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_hostile_tokens_in_files(explore: Open) -> None:
    reading = random_reading(HOSTILE, layers=2, heads=1, name=ALL)
    explorer = explore(reading)
    explorer.type("theta", 0.0)
    explorer.pick(1)
    for what in ("maps", "text", "overview", "layers"):
        labels = written(svg(save(explorer, what, "svg")))
        assert "{{7*7}}" in labels[0]
        if what != "overview":
            assert any(label.startswith("<script>al") for label in labels)
            assert any(label.startswith("nul\ufffdbell") for label in labels)
    assert image.imread(save(explorer, "text", "png")).min() < 0.5
    rows = list(csv.DictReader(io.StringIO(save(explorer, "pairs", "csv").read_bytes().decode("utf-8"), newline="")))
    told = explorer.ask("pairs")
    assert [(row["token_i"], row["token_j"]) for row in rows] == [(pair["token_i"], pair["token_j"]) for pair in told]
    assert {*names()} >= {row["token_i"] for row in rows}
    assert any(row["token_j"] == HOSTILE[22] for row in rows)


def test_policy_refuses_what_is_injected(plain: Reading, page_opener: PageOpener) -> None:
    injected = plain.page().replace(
        "<main ", '<script>window.got_in = 1</script><img src="https://example.org/x.png"><main ', 1
    )
    opened = page_opener(injected)
    assert opened.page.evaluate("window.got_in") is None
    assert opened.requests == []
    assert any("Content Security Policy" in error for error in opened.errors)


# In a notebook


def test_frames_of_a_notebook_work_side_by_side(plain: Reading, page_opener: PageOpener) -> None:
    other = random_reading(["a", "b", "c", "a"], layers=2, heads=1, seed=5, name=ALL)
    study = random_study(layers=2, heads=2, texts=4)
    body = "".join(each._repr_html_() for each in (plain, study, other))
    page = f'<!doctype html><meta charset=utf-8><title>notebook</title><body><p id="main">A notebook.</p>{body}'
    opened = page_opener(page, viewport={"width": 1100, "height": 900})
    first, second = (Explorer(opened, frame).wait() for frame in opened.page.frames[1:])
    assert opened.page.locator("svg").count() == Elements(study._repr_html_()).count("svg") > 0
    assert (first.name(), second.name()) == ("L2H0", "L1H0")
    first.choose(1, "sum")
    first.type("theta", 0.6)
    first.place.locator("#theme").click()
    second.pick(2)
    assert first.state() == {
        **NOTHING_CHOSEN, "layer": 1, "head": 2, "theta": 0.6, "tau": 0.3, "name": "L1sum",
    }  # fmt: skip
    assert second.state() == {
        **NOTHING_CHOSEN, "layer": 1, "head": 0, "theta": 0.3, "tau": 0.3, "token": 2, "name": "L1H0",
    }  # fmt: skip
    theme = "document.documentElement.dataset.theme"
    assert (first.place.evaluate(theme), second.place.evaluate(theme)) == ("dark", None)
    assert_pairs(first, wanted(plain, 1, "sum", 0.6), largest(plain, 1, "sum"))
    assert_pairs(second, wanted(other, 1, 0, 0.3), largest(other, 1, 0))
    # the help closes, the skip link stays inside, files come out
    first.place.locator("#help-button").click()
    first.place.locator("#help").get_by_text("Close").click()
    assert first.place.locator("#help").is_hidden()
    first.place.locator(".skip").focus()
    first.press("Enter")
    assert first.place.evaluate("document.activeElement.id") == "main"
    assert first.name() == "L1sum"
    assert len(written(svg(save(second, "maps", "svg")))) > 8
    assert image.imread(save(second, "overview", "png")).min() < 0.5
    # neither reaches the notebook nor the other
    reach = "(() => { try { return [WHAT].length; } catch (error) { return error.name; } })()"
    for what in ("parent.document", "parent[1].document", "top.location.href", "localStorage"):
        assert first.place.evaluate(reach.replace("WHAT", what)) == "SecurityError"
    assert opened.page.evaluate("[typeof headscope, document.title]") == ["undefined", "notebook"]
    first.assert_quiet()


# Room

BOXES = """(selector) => [...document.querySelectorAll(selector)].filter((e) => e.checkVisibility())
    .map((e) => { const b = e.getBoundingClientRect(), name = `${e.tagName}#${e.id}.${e.className}`;
    return [`${name} ${e.textContent.slice(0, 20)}`, b.left, b.top, b.right, b.bottom]; })"""


def overlaps(boxes: list[Any]) -> list[tuple[str, str]]:
    return [
        (one[0], other[0])
        for k, one in enumerate(boxes)
        for other in boxes[:k]
        if min(one[3], other[3]) - max(one[1], other[1]) > 1 and min(one[4], other[4]) - max(one[2], other[2]) > 1
    ]


def test_everything_has_room(html: str, explore: Open) -> None:
    explorer = explore(html)
    explorer.pick(8)
    explorer.drag("similarity", (2, 2), (20, 20))  # every button is there
    for width in (360, 390, 768, 1024, 1440, 2400):
        explorer.page.set_viewport_size({"width": width, "height": 900})
        explorer.settle()
        assert_room(explorer, width)


def assert_room(explorer: Explorer, width: int) -> None:
    """Nothing lies beyond the edges or over something else, and every control can be reached."""
    page = explorer.page
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    beyond = """all => all.filter((e) => { const b = e.getBoundingClientRect();
        return b.width && (b.right > innerWidth + 1 || b.left < -1) && !e.closest('.scroll, .spoken, .title'); })
        .map((e) => e.tagName + '.' + e.getAttribute('class'))"""
    assert page.locator("body *:not(.skip)").evaluate_all(beyond) == []
    controls = page.evaluate(BOXES, ".deck select, .deck input, .bar button, .heading button, .segments span")
    assert len(controls) == 2 + 4 + 5 + 2 + (2 * 4 + 1) + 1 + 1 + 6 + 3
    for name, left, top, right, bottom in controls:
        assert 0 <= left < left + 8 < right <= width, name
        assert bottom > top + 8, name
    page.evaluate("scrollTo(0, 0)")  # the bar and the controls stay in sight, and else lie over what is under them
    for group in (
        "header, .deck, main > *",
        ".bar > *",
        ".deck > *",
        ".deck select, .deck .slider input, .deck .toggles label",
        ".heading > *",
        ".front > section",
        ".overview > *",
        ".maps > *, .head > .heading, .readout",
        ".map > *",
        ".textbox, .token-card, .tableside > *",
        ".token-card > *",
        ".chip",
        ".segments label, .saving button",
        ".strip > *",
        ".two p, dt, dd",
    ):
        boxes = page.evaluate(BOXES, group)
        assert len(boxes) > 1, group
        assert overlaps(boxes) == [], group
    for outer in (".deck", ".bar"):
        ((_, left, top, right, bottom),) = page.evaluate(BOXES, outer)
        for _, *box in page.evaluate(BOXES, f"{outer} > *"):
            assert left <= box[0] <= box[2] <= right
            assert top <= box[1] <= box[3] <= bottom


def test_a_long_text_has_room_on_a_phone(explore: Open) -> None:
    explorer = explore(random_reading(PLAIN * 30, layers=1, heads=1), viewport={"width": 390, "height": 800})
    explorer.pick(3)
    last, card = (
        explorer.page.locator(selector).bounding_box() for selector in (f".tok[data-i='{30 * 14 - 1}']", "#token-card")
    )
    assert last is not None
    assert card is not None
    assert last["y"] + last["height"] <= card["y"]


def test_a_frame_that_is_hidden_at_first_works_once_it_is_shown(plain: Reading, page_opener: PageOpener) -> None:
    folded = f"<!doctype html><meta charset=utf-8><title>folded</title><div hidden>{plain._repr_html_()}</div>"
    opened = page_opener(folded, viewport={"width": 1100, "height": 900})
    explorer = Explorer(opened, opened.page.frames[1])
    explorer.until("document.documentElement.dataset.ready === 'all'")
    opened.page.evaluate("document.querySelector('div').hidden = false")
    explorer.wait()
    explorer.until("document.querySelectorAll('#arcs path').length > 0")
    assert explorer.name() == "L2H0"
    explorer.assert_quiet()
