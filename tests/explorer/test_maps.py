"""In a browser that can reach nothing: the small maps of all heads, the two maps of one, and their views."""

from __future__ import annotations

import numpy as np
import pytest

from headscope import Reading
from tests.explorer.explored import (
    MAPS,
    NEUTRAL,
    STRONGEST,
    TOKENS,
    Explorer,
    Open,
    close,
    numbers,
    wanted,
)

pytestmark = pytest.mark.browser


# All heads


def test_every_head_has_a_small_map(reading: Reading, html: str, explore: Open) -> None:
    explorer = explore(html)
    before = explorer.thumbs()
    assert list(before) == [f"L{layer}{'sum' if h == 12 else f'H{h}'}" for layer in range(6) for h in range(13)]
    assert len(set(before.values())) == len(before)  # none blank, no two alike
    painted = explorer.canvas("[aria-label=L1H6] canvas")
    assert painted.shape == (22, 22, 4)
    assert (painted[..., 3] == 255).all()
    matrix = reading.matrix(1, 6).values
    i, j = np.unravel_index(matrix.argmax(), matrix.shape)
    assert close(painted[i, j], STRONGEST["similarity"])
    assert close(painted[np.arange(22), np.arange(22)], NEUTRAL["light"])
    explorer.switch("kind", "attention")
    after = explorer.thumbs()
    assert len(set(after.values())) == len(after)
    assert not set(after.values()) & set(before.values())
    assert "Attention" in explorer.texts("#overview-note")[0]
    for name, looks in (("L3H4", reading.attention_map(3, 4)), ("L3sum", reading.attention_map(3, "sum"))):
        painted = explorer.canvas(f"[aria-label={name}] canvas")
        row, column = np.unravel_index(looks.values.argmax(), looks.shape)
        assert close(painted[row, column], STRONGEST["attention"])
    explorer.switch("kind", "similarity")
    assert explorer.thumbs() == before


def test_small_maps_of_many_tokens_keep_single_elements(explore: Open) -> None:
    written = np.zeros((70, 3))
    written[:, 2] = 0.01
    written[[11, 64], 0] = 1
    looks = np.full((70, 70), 0.5 / 69)
    looks[np.arange(70), np.arange(70)] = 0.5
    looks[41] = 0.3 / 69
    looks[41, 9] = 0.7
    explorer = explore(Reading.from_arrays([f"t{k}" for k in range(70)], written[None, :, None], looks[None, None]))
    assert "2 × 2" in explorer.texts("#overview-note")[0]
    painted = explorer.canvas("[aria-label=L0H0] canvas")
    assert painted.shape == (35, 35, 4)
    red = {(int(a), int(b)) for a, b in np.argwhere((np.abs(painted[..., :3] - STRONGEST["similarity"]) <= 3).all(-1))}
    assert red == {(5, 32), (32, 5)}
    explorer.switch("kind", "attention")
    painted = explorer.canvas("[aria-label=L0H0] canvas")
    strong = np.argwhere((np.abs(painted[..., :3] - STRONGEST["attention"]) <= 3).all(-1))
    assert strong.tolist() == [[20, 4]]


def test_a_click_opens_the_head(html: str, explore: Open) -> None:
    explorer = explore(html)
    assert explorer.texts("h2#head-title") == ["L5H0"]
    for name, layer, head in (("L2H7", "2", "7"), ("L0sum", "0", "12"), ("L5H11", "5", "11")):
        explorer.page.locator(f"[aria-label={name}]").click()
        explorer.settle()
        assert explorer.texts("#head-title") == [name]
        assert (explorer.page.input_value("#layer"), explorer.page.input_value("#head")) == (layer, head)
        assert explorer.page.evaluate("location.hash") == f"#{name}"
        assert explorer.page.locator(".thumb.current").evaluate_all("all => all.map((e) => e.ariaLabel)") == [name]
        assert name in explorer.texts("#pairs-title")[0]


# Maps


def test_pointing_at_a_cell(reading: Reading, html: str, explore: Open) -> None:
    explorer = explore(html)
    explorer.choose(1, 6)
    tip = explorer.page.locator("#tip")
    assert tip.is_hidden()
    matrix, looks = reading.matrix(1, 6).values, reading.attention_map(1, 6).values
    tokens = reading.tokens.values
    for kind in MAPS:
        for a, b in ((3, 8), (6, 8), (20, 0), (0, 21)):
            explorer.hover(kind, a, b)
            assert tip.is_visible()
            title, attention, similarity, *high = tip.locator("> *").all_text_contents()
            assert len(high) == (matrix[a, b] > 0.3 * matrix.max())
            assert title == f"{tokens[a]}{a} · {tokens[b]}{b}"
            assert numbers(attention) == [pytest.approx(looks[a, b], abs=0.5 / 255 * 2 * looks[a, b] ** 0.5 + 6e-4)]
            relative, value = numbers(similarity)
            assert relative == pytest.approx(matrix[a, b] / matrix.max(), abs=5.4e-4)
            assert value == pytest.approx(matrix[a, b], rel=0.006, abs=6e-4 * matrix.max())
            assert explorer.texts("#readout")[0] == "".join((title, attention, similarity, *high))
            for each in MAPS:
                crosshair(explorer, each, a, b)
                assert explorer.texts(f"#{each} .flag") == [tokens[a], tokens[b]]
            assert explorer.marked("pointed") == sorted({a, b})
    explorer.page.mouse.move(2, 2)
    assert tip.is_hidden()
    assert explorer.page.locator(".cross").count() == 0
    assert explorer.marked("pointed") == []


def crosshair(explorer: Explorer, kind: str, row: int, column: int) -> None:
    """A map's crosshair lies over a row and a column."""
    boxes = explorer.page.locator(f"#{kind} .cross").evaluate_all(
        "all => all.map((e) => { const b = e.getBoundingClientRect(); return [b.x, b.y, b.width, b.height]; })"
    )
    assert len(boxes) == 2
    x, y = explorer.spot(kind, row, column)
    across, down = boxes
    assert across[2] > 10 * across[3]
    assert across[1] + across[3] / 2 == pytest.approx(y, abs=1)
    assert down[0] + down[2] / 2 == pytest.approx(x, abs=1)


def test_rows_of_a_map_look_at_columns(reading: Reading, html: str, explore: Open) -> None:
    explorer = explore(html)
    explorer.choose(1, 7)
    looks, matrix = reading.attention_map(1, 7).values, reading.matrix(1, 7).values
    for kind, values in (("attention", looks), ("similarity", matrix)):
        painted = explorer.pixels(kind)
        row, column = np.unravel_index(values.argmax(), values.shape)
        assert close(painted[row, column], STRONGEST[kind])
        assert (painted[..., 3] == 255).all()
    # brighter as attention grows, and not as its transpose does
    brightness = explorer.pixels("attention")[..., :3] @ np.array([0.3, 0.6, 0.1])
    ranks = [np.argsort(np.argsort(values.ravel())) for values in (brightness, looks, looks.T)]
    assert np.corrcoef(ranks)[0, 1] > 0.98
    assert np.corrcoef(ranks)[0, 2] < 0.9
    # red where similar, blue where opposed
    painted = explorer.pixels("similarity")
    strong = np.abs(matrix) > 0.05 * matrix.max()
    assert ((painted[..., 0] > painted[..., 2]) == (matrix > 0))[strong].all()
    assert (matrix < -0.05 * matrix.max()).any()


def test_a_row_of_the_table_and_a_token_point_too(plain: Reading, explore: Open) -> None:
    explorer = explore(plain)
    pair = explorer.ask("pairs")[4]
    explorer.page.locator("#pairs tbody tr").nth(4).hover()
    for kind in MAPS:
        assert explorer.page.locator(f"#{kind} .cross").count() == 2
    assert explorer.marked("pointed") == [pair["index_i"], pair["index_j"]]
    assert explorer.texts("#readout sub") == [str(pair["index_i"]), str(pair["index_j"])]
    explorer.page.locator("#pairs tbody tr").nth(4).click()
    explorer.settle()
    assert explorer.state()["token"] == pair["index_i"]
    explorer.page.locator(".tok[data-i='9']").hover()
    assert explorer.texts("#readout sub") == [str(pair["index_i"]), "9"]


def test_a_click_on_a_map_chooses_the_rows_token(plain: Reading, explore: Open) -> None:
    explorer = explore(plain)
    for kind in MAPS:
        explorer.hover(kind, 5, 9)
        for chosen in (5, -1):
            explorer.page.mouse.down()
            explorer.page.mouse.up()
            explorer.settle()
            assert explorer.state()["token"] == chosen


def test_a_tap_chooses_it_too(plain: Reading, explore: Open) -> None:
    explorer = explore(plain, has_touch=True)
    for row, chosen in ((5, 5), (5, -1), (7, 7)):
        if row != chosen:  # at the place of the tap before
            explorer.page.wait_for_timeout(600)  # longer than two taps of a double one are apart
        explorer.page.touchscreen.tap(*explorer.spot("similarity", row, 9))
        explorer.until(f"headscope.state().token === {chosen}")


def test_dragging_enlarges_both_maps(plain: Reading, explore: Open) -> None:
    explorer = explore(plain)
    n = len(plain)
    whole = {each: explorer.pixels(each) for each in MAPS}
    button = explorer.page.locator("#unzoom")
    assert button.is_hidden()
    for end, kind in (("button", "similarity"), ("double click", "attention"), ("Escape", "similarity")):
        explorer.drag(kind, (2, 10), (6, 4))  # down and to the left
        assert explorer.state()["zoom"] == [2, 7, 4, 11]
        assert explorer.state()["token"] == -1
        for each in MAPS:
            assert explorer.pixels(each).tolist() == whole[each][2:7, 4:11].tolist()
            assert explorer.texts(f"#{each} .tick:not(.flag)") == [*TOKENS[2:7], *TOKENS[4:11]]
        explorer.hover(kind, 1, 3)
        assert explorer.texts("#readout sub") == ["3", "7"]
        if end == "button":
            button.click()
        elif end == "Escape":
            explorer.press("Escape")
        else:
            explorer.page.mouse.dblclick(*explorer.spot(kind, 1, 1))
        explorer.settle()
        assert explorer.state()["zoom"] is None
        assert explorer.state()["token"] == -1
        assert button.is_hidden()
        assert explorer.pixels(kind).shape == (n, n, 4)


def test_a_double_click_keeps_the_chosen_token(plain: Reading, explore: Open) -> None:
    explorer = explore(plain)
    explorer.pick(5)
    explorer.drag("similarity", (2, 10), (6, 4))
    assert explorer.state()["zoom"] == [2, 7, 4, 11]
    explorer.page.mouse.dblclick(*explorer.spot("similarity", 1, 1))
    explorer.settle()
    assert (explorer.state()["token"], explorer.state()["zoom"]) == (5, None)


def test_a_double_click_may_be_as_slow_as_the_browser_allows(plain: Reading, explore: Open) -> None:
    """Which clicks are one double click is a setting of the system, and under load they come late."""
    explorer = explore(plain)
    mouse = explorer.page.mouse
    explorer.pick(5)
    explorer.hover("similarity", 1, 1)
    for count in (1, 2):
        mouse.down(click_count=count)
        mouse.up(click_count=count)
        explorer.page.wait_for_timeout(600)
    explorer.settle()
    assert explorer.state()["token"] == 5
    for row, chosen in ((1, 1), (3, 3)):  # and two single ones are never a double one, however quick
        explorer.hover("similarity", row, 1)
        mouse.down(click_count=1)
        mouse.up(click_count=1)
        explorer.settle()
        assert explorer.state()["token"] == chosen


def test_other_axes_show_the_whole_map(plain: Reading, explore: Open) -> None:
    explorer = explore(plain)
    for flag, size in (("words", 14), ("hide", 12)):
        explorer.drag("similarity", (2, 2), (6, 7))
        assert explorer.state()["zoom"] == [2, 7, 2, 8]
        explorer.flip(flag)
        assert explorer.state()["zoom"] is None
        assert explorer.pixels("similarity").shape == (size, size, 4)


def test_a_part_is_shown_while_dragging(plain: Reading, explore: Open) -> None:
    explorer = explore(plain)
    explorer.hover("similarity", 2, 2)
    explorer.page.mouse.down()
    explorer.page.mouse.move(*explorer.spot("similarity", 6, 9), steps=3)
    box = explorer.page.locator("#similarity .part").bounding_box()
    assert box is not None
    (x0, y0), (x1, y1) = explorer.spot("similarity", 2, 2), explorer.spot("similarity", 6, 9)
    assert [box["x"], box["y"], box["width"], box["height"]] == pytest.approx([x0, y0, x1 - x0, y1 - y0], abs=2)
    # back to one row: nothing to enlarge
    explorer.page.mouse.move(*explorer.spot("similarity", 2, 9))
    explorer.page.mouse.up()
    explorer.settle()
    assert explorer.state()["zoom"] is None
    assert explorer.page.locator(".part").count() == 0


def test_shift_and_arrows_move_the_crosshair(plain: Reading, explore: Open) -> None:
    explorer = explore(plain)
    before = explorer.state()
    explorer.page.locator("#similarity svg").focus()
    steps = (("Down", 1, 0), ("Right", 1, 1), ("Right", 1, 2), ("Up", 0, 2), ("Up", 0, 2), ("Left", 0, 1))
    for key, a, b in steps:
        explorer.press(f"Shift+Arrow{key}")
        assert explorer.texts("#readout sub") == [str(a), str(b)]
        for kind in MAPS:
            crosshair(explorer, kind, a, b)
    explorer.press(*["Shift+ArrowRight"] * 30)
    assert explorer.texts("#readout sub") == ["0", str(len(plain) - 1)]
    assert explorer.state() == before


# What the similarity is shown as


def test_views(reading: Reading, html: str, explore: Open) -> None:
    explorer = explore(html)
    n = len(reading)
    above = np.triu(np.ones((n, n), dtype=bool), k=1)
    for layer, head in ((1, 6), (4, "sum")):
        explorer.choose(layer, head)
        explorer.type("tau", 0.2)
        explorer.switch("view", "values")
        attention, values = explorer.pixels("attention"), explorer.pixels("similarity")
        assert explorer.page.locator("#similarity .mark, #similarity .edge").count() == 0

        explorer.switch("view", "high")
        high = explorer.pixels("similarity")
        coloured = ~(np.abs(high[..., :3] - NEUTRAL["light"]) <= 3).all(-1)
        pairs = wanted(reading, layer, head, 0.3, explain=True)
        pairs = pairs[pairs["relation"] != ""]  # noise has dots instead
        found = np.zeros((n, n), dtype=bool)
        found[pairs["index_i"], pairs["index_j"]] = True
        assert (coloured & above == found).all()
        assert (coloured == coloured.T).all()
        assert (high[coloured] == values[coloured]).all()

        explorer.switch("view", "lines")
        masked = explorer.pixels("similarity")
        lines = np.zeros(n, dtype=bool)
        lines[reading.lines(layer, head, 0.2)["index"]] = True
        assert lines.any()
        blank = masked[..., 3] == 0
        assert (blank == (lines[:, None] | lines[None, :])).all()
        assert (masked[~blank] == values[~blank]).all()
        cut = reading.blocks(layer, head, 0.2)
        assert explorer.page.locator("#similarity .edge").count() == 2 * (len(cut) - 1)
        assert explorer.page.locator("#similarity .mark").count() == lines.sum()
        assert explorer.page.locator("#attention .mark").count() == lines.sum()

        explorer.switch("view", "regions")
        regions = explorer.pixels("similarity")
        means = reading.regions(layer, head, 0.2).values
        colours = {}
        for a, (first, last) in enumerate(zip(cut["start"], cut["stop"], strict=True)):
            for b, (left, right) in enumerate(zip(cut["start"], cut["stop"], strict=True)):
                part = np.unique(regions[first:last, left:right].reshape(-1, 4), axis=0)
                assert len(part) == 1
                assert (part[0][3] == 0) == np.isnan(means[a, b])
                colours[a, b] = part[0]
        strongest = np.unravel_index(np.nanargmax(np.abs(means)), means.shape)
        assert close(colours[strongest], STRONGEST["similarity"]) == (means[strongest] > 0)
        assert len({tuple(colour) for colour in colours.values()}) > len(cut) // 2
        assert (explorer.pixels("attention") == attention).all()
        assert "means between blocks" in explorer.texts("#similarity-words")[0]
