"""In a browser without network: saved files, hostile tokens, notebooks, and the layout of the page."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from matplotlib import image

from headscope import Reading
from headscope.page.explorer import replace_controls
from headscope.page.formatting import make_visible
from tests.helpers.explorer import (
    DEFAULT_STATE,
    HOSTILE,
    NEUTRAL,
    PLAIN,
    TOKENS,
    Elements,
    Explorer,
    ExplorerOpener,
    assert_pairs,
    find_pairs,
    get_largest,
    get_size,
    is_close,
    list_shown_tokens,
    list_texts,
    make_random_reading,
    read_svg,
    save,
)
from tests.helpers.hostile import ALL
from tests.helpers.synthetic import make_random_study

if TYPE_CHECKING:
    from tests.helpers.browser import PageOpener

pytestmark = pytest.mark.browser


# Files


def test_pictures_are_saved(reading: Reading, html: str, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(html, color_scheme="dark")
    explorer.choose(1, 6)
    explorer.pick_token(8)
    explorer.select_option("view", "lines")
    tokens = set(reading.tokens.values)
    dark = {f"#{r:02x}{g:02x}{b:02x}" for r, g, b, _ in explorer.read_pixels("similarity").reshape(-1, 4).tolist()}
    for part in ("maps", "text", "overview", "layers"):
        root = read_svg(save(explorer, part, "svg"))
        assert not dark & {element.attrib.get("fill") for element in root.iter("{http://www.w3.org/2000/svg}path")}
        labels = list_texts(root)
        assert "minilm" in labels[0]
        if part == "overview":
            assert labels[1:] == [*(f"H{head}" for head in range(12)), "sum", *(f"L{layer}" for layer in range(6))]
            assert sum(element.tag.endswith("image") for element in root.iter()) == 6 * 13
        elif part == "text":
            assert labels[1:] == explorer.get_texts(".tok")
        else:
            assert tokens <= set(labels)
        picture = image.imread(save(explorer, part, "png"))
        width, height = get_size(root)
        assert picture.shape[:2] == pytest.approx((3 * height, 3 * width), abs=3)
        assert (picture[:3, :3] == 1).all()  # on white, though the page is dark
        assert np.median(picture[..., :3]) > 0.8 or part == "maps"
        ink = (picture[..., :3] < 0.9).any(axis=-1)
        assert 0.005 < ink.mean() < 0.95
        rows, columns = np.flatnonzero(ink.any(axis=1)), np.flatnonzero(ink.any(axis=0))
        assert rows[-1] - rows[0] > 0.6 * len(picture)
        assert columns[-1] - columns[0] > 0.3 * picture.shape[1]
    assert explorer.page.evaluate("document.documentElement.dataset.theme") is None  # unchanged
    assert is_close(explorer.read_pixels("similarity")[5, 5], NEUTRAL["dark"])


def test_saved_maps_hold_every_cell(small_reading: Reading, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(small_reading)
    root = read_svg(save(explorer, "maps", "svg"))
    painted = explorer.read_pixels("similarity")
    colours = {f"#{r:02x}{g:02x}{b:02x}" for r, g, b, _ in painted.reshape(-1, 4).tolist()}
    filled = {element.attrib.get("fill") for element in root.iter("{http://www.w3.org/2000/svg}path")}
    assert colours <= filled
    labels = list_texts(root)
    assert "L2H0, θ = 0.3, τ = 0.3" in labels[0]
    for token in TOKENS:
        assert labels.count(token) == 4 * TOKENS.count(token)  # two axes of two maps
    explorer.drag("similarity", (2, 4), (6, 8))
    labels = list_texts(read_svg(save(explorer, "maps", "svg")))
    assert "[CLS]" not in labels
    assert labels.count("owl") == 0


def test_nothing_to_follow_is_nothing_to_save(small_reading: Reading, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(small_reading)
    button = explorer.page.locator("[data-save=layers][data-as=svg]")
    assert button.is_disabled()
    explorer.pick_token(3)
    assert button.is_enabled()


def test_pairs_are_saved_as_shown(small_reading: Reading, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(small_reading)
    for flag in ("words", "hide"):
        rows = list(csv.DictReader(io.StringIO(save(explorer, "pairs", "csv").read_text(encoding="utf-8"))))
        pairs = explorer.query("pairs")
        assert list(rows[0]) == list(find_pairs(small_reading, 0, 0, 0.3, explain=True).columns) == list(pairs[0])
        assert [[*row.values()][:2] for row in rows] == [[pair["token_i"], pair["token_j"]] for pair in pairs]
        for name in ("index_i", "index_j", "value", "relative"):
            assert [float(row[name]) for row in rows] == [pair[name] for pair in pairs]
        assert [row["relation"] for row in rows] == [pair["relation"] for pair in pairs]
        explorer.set_toggle(flag)


def test_saved_pairs_of_an_unverified_capture_are_marked(small_reading: Reading, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(Reading(small_reading.data.assign_attrs(verified=0)))
    rows = list(csv.DictReader(io.StringIO(save(explorer, "pairs", "csv").read_text(encoding="utf-8"))))
    assert list(rows[0])[-1] == "capture"
    assert {row["capture"] for row in rows} == {"unverified"}


# Hostile tokens


def test_hostile_tokens_are_shown_as_text(open_explorer: ExplorerOpener) -> None:
    reading = make_random_reading(HOSTILE, layers=2, heads=1, name=ALL)
    explorer = open_explorer(reading)
    shown = list_shown_tokens()
    explorer.type_threshold("theta", 0.0)
    assert ALL in explorer.get_texts(".bar .title")[0]
    # "##piece" follows a token without letters, so it does not continue a word and keeps its "##"
    assert explorer.get_texts(".tok") == [
        make_visible(replace_controls(token.replace("\ud83d", "\ufffd"))) for token in HOSTILE
    ]
    rows = explorer.page.locator("#pairs tbody bdi").evaluate_all("all => all.map((e) => e.title)")
    assert set(rows) <= set(shown)
    assert {HOSTILE[1], HOSTILE[2], HOSTILE[3], HOSTILE[11], HOSTILE[15]} <= set(rows)
    for i in range(len(HOSTILE) // 2):
        ends = (i, len(HOSTILE) - 1 - i)
        explorer.hover("similarity", *ends)
        for text, k in zip(explorer.get_texts("#tip bdi"), ends, strict=True):
            assert shown[k].startswith(text.removesuffix("…"))
            assert text == shown[k] or len(text) >= 24
    ticks = explorer.get_texts("#similarity .tick")
    assert any(tick.startswith("<script") for tick in ticks)
    for i in range(len(HOSTILE)):
        explorer.frame.evaluate(f"headscope.show({{ token: {i} }})")
        explorer.wait_until_drawn()
        assert explorer.get_texts("#token-card h3 bdi") == [shown[i]]
        assert f"“\u2068{shown[i]}\u2069”" in explorer.get_texts("#through-note")[0]
    explorer.set_toggle("words")
    elements = explorer.page.evaluate("[...new Set([...document.querySelectorAll('*')].map((e) => e.localName))]")
    assert not {"img", "b", "iframe", "object", "link"} & set(elements)
    assert explorer.page.locator("script").count() == 2
    assert explorer.page.locator("[onerror], [onclick]").count() == 0
    assert explorer.page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_hostile_tokens_in_files(open_explorer: ExplorerOpener) -> None:
    reading = make_random_reading(HOSTILE, layers=2, heads=1, name=ALL)
    explorer = open_explorer(reading)
    explorer.type_threshold("theta", 0.0)
    explorer.pick_token(1)
    for part in ("maps", "text", "overview", "layers"):
        labels = list_texts(read_svg(save(explorer, part, "svg")))
        assert "{{7*7}}" in labels[0]
        if part != "overview":
            assert any(label.startswith("<script>al") for label in labels)
            assert any(label.startswith("nul\ufffdbell") for label in labels)
    assert image.imread(save(explorer, "text", "png")).min() < 0.5
    rows = list(csv.DictReader(io.StringIO(save(explorer, "pairs", "csv").read_bytes().decode("utf-8"), newline="")))
    pairs = explorer.query("pairs")

    def mark(token: str) -> str:  # formulas get a quote before them
        return f"'{token}" if token.startswith("=") else token

    expected = [(mark(pair["token_i"]), mark(pair["token_j"])) for pair in pairs]
    assert [(row["token_i"], row["token_j"]) for row in rows] == expected
    assert {*map(mark, list_shown_tokens())} >= {row["token_i"] for row in rows}
    assert any(row["token_j"] == mark(HOSTILE[22]) == f"'{HOSTILE[22]}" for row in rows)


def test_policy_refuses_what_is_injected(small_reading: Reading, page_opener: PageOpener) -> None:
    injected = small_reading.to_html().replace(
        "<main ", '<script>window.got_in = 1</script><img src="https://example.org/x.png"><main ', 1
    )
    opened = page_opener(injected)
    assert opened.page.evaluate("window.got_in") is None
    assert opened.requests == []
    assert any("Content Security Policy" in error for error in opened.errors)


# In a notebook


def test_frames_of_a_notebook_work_side_by_side(small_reading: Reading, page_opener: PageOpener) -> None:
    other = make_random_reading(["a", "b", "c", "a"], layers=2, heads=1, seed=5, name=ALL)
    study = make_random_study(layers=2, heads=2, texts=4)
    body = "".join(result._repr_html_() for result in (small_reading, study, other))
    page = f'<!doctype html><meta charset=utf-8><title>notebook</title><body><p id="main">A notebook.</p>{body}'
    opened = page_opener(page, viewport={"width": 1100, "height": 900})
    first, second = (Explorer(opened, frame).wait() for frame in opened.page.frames[1:])
    assert opened.page.locator("svg").count() == Elements(study._repr_html_()).count("svg") > 0
    assert (first.get_name(), second.get_name()) == ("L2H0", "L1H0")
    first.choose(1, "sum")
    first.type_threshold("theta", 0.6)
    first.frame.locator("#theme").click()
    second.pick_token(2)
    assert first.get_state() == {
        **DEFAULT_STATE, "layer": 1, "head": 2, "theta": 0.6, "tau": 0.3, "name": "L1sum",
    }  # fmt: skip
    assert second.get_state() == {
        **DEFAULT_STATE, "layer": 1, "head": 0, "theta": 0.3, "tau": 0.3, "token": 2, "name": "L1H0",
    }  # fmt: skip
    theme = "document.documentElement.dataset.theme"
    assert (first.frame.evaluate(theme), second.frame.evaluate(theme)) == ("dark", None)
    assert_pairs(first, find_pairs(small_reading, 1, "sum", 0.6), get_largest(small_reading, 1, "sum"))
    assert_pairs(second, find_pairs(other, 1, 0, 0.3), get_largest(other, 1, 0))
    # the help closes, the skip link stays inside the frame, and files can be saved
    # events instead of the pointer: under load a click in a frame was lost
    first.frame.locator("#help-button").dispatch_event("click")
    first.frame.locator("#help-close").dispatch_event("click")
    assert first.frame.locator("#help").is_hidden()
    first.frame.locator(".skip").focus()
    first.press("Enter")
    assert first.frame.evaluate("document.activeElement.id") == "main"
    assert first.get_name() == "L1sum"
    assert len(list_texts(read_svg(save(second, "maps", "svg")))) > 8
    assert image.imread(save(second, "overview", "png")).min() < 0.5
    # neither frame can reach the notebook or the other frame
    reach = "(() => { try { return [WHAT].length; } catch (error) { return error.name; } })()"
    for expression in ("parent.document", "parent[1].document", "top.location.href", "localStorage"):
        assert first.frame.evaluate(reach.replace("WHAT", expression)) == "SecurityError"
    assert opened.page.evaluate("[typeof headscope, document.title]") == ["undefined", "notebook"]
    first.assert_quiet()


# Layout

BOXES = """(selector) => [...document.querySelectorAll(selector)].filter((e) => e.checkVisibility())
    .map((e) => { const b = e.getBoundingClientRect(), name = `${e.tagName}#${e.id}.${e.className}`;
    return [`${name} ${e.textContent.slice(0, 20)}`, b.left, b.top, b.right, b.bottom]; })"""


def find_overlaps(boxes: list[Any]) -> list[tuple[str, str]]:
    return [
        (box[0], earlier[0])
        for k, box in enumerate(boxes)
        for earlier in boxes[:k]
        if min(box[3], earlier[3]) - max(box[1], earlier[1]) > 1
        and min(box[4], earlier[4]) - max(box[2], earlier[2]) > 1
    ]


def test_everything_has_room(html: str, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(html)
    explorer.pick_token(8)
    explorer.drag("similarity", (2, 2), (20, 20))  # shows all buttons
    for width in (360, 390, 768, 1024, 1440, 2400):
        explorer.page.set_viewport_size({"width": width, "height": 900})
        explorer.wait_until_drawn()
        assert_room(explorer, width)


def assert_room(explorer: Explorer, width: int) -> None:
    """Check that nothing is beyond the edges or over something else, and that every control can be reached."""
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
    page.evaluate("scrollTo(0, 0)")  # elsewhere the sticky bar and controls would cover other elements
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
        assert find_overlaps(boxes) == [], group
    for outer in (".deck", ".bar"):
        ((_, left, top, right, bottom),) = page.evaluate(BOXES, outer)
        for _, *box in page.evaluate(BOXES, f"{outer} > *"):
            assert left <= box[0] <= box[2] <= right
            assert top <= box[1] <= box[3] <= bottom


def test_a_long_text_has_room_on_a_phone(open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(make_random_reading(PLAIN * 30, layers=1, heads=1), viewport={"width": 390, "height": 800})
    explorer.pick_token(3)
    last, card = (
        explorer.page.locator(selector).bounding_box() for selector in (f".tok[data-i='{30 * 14 - 1}']", "#token-card")
    )
    assert last is not None
    assert card is not None
    assert last["y"] + last["height"] <= card["y"]


def test_a_frame_that_is_hidden_at_first_works_once_it_is_shown(
    small_reading: Reading, page_opener: PageOpener
) -> None:
    folded = f"<!doctype html><meta charset=utf-8><title>folded</title><div hidden>{small_reading._repr_html_()}</div>"
    opened = page_opener(folded, viewport={"width": 1100, "height": 900})
    explorer = Explorer(opened, opened.page.frames[1])
    explorer.wait_until("document.documentElement.dataset.ready === 'all'")
    opened.page.evaluate("document.querySelector('div').hidden = false")
    explorer.wait()
    explorer.wait_until("document.querySelectorAll('#arcs path').length > 0")
    assert explorer.get_name() == "L2H0"
    explorer.assert_quiet()
