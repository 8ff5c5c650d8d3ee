"""In a browser without network: the small maps of all heads, the two maps of one, and their views."""

from __future__ import annotations

import numpy as np
import pytest

from headscope import Reading
from tests.helpers.explorer import (
    MAPS,
    NEUTRAL,
    STRONGEST,
    TOKENS,
    Explorer,
    ExplorerOpener,
    find_pairs,
    is_close,
    parse_numbers,
)

pytestmark = pytest.mark.browser


# All heads


def test_every_head_has_a_small_map(reading: Reading, html: str, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(html)
    before = explorer.read_thumbnails()
    assert list(before) == [f"L{layer}{'sum' if h == 12 else f'H{h}'}" for layer in range(6) for h in range(13)]
    assert len(set(before.values())) == len(before)  # none blank, no two alike
    painted = explorer.read_canvas("[aria-label=L1H6] canvas")
    assert painted.shape == (22, 22, 4)
    assert (painted[..., 3] == 255).all()
    matrix = reading.matrix(1, 6).values
    i, j = np.unravel_index(matrix.argmax(), matrix.shape)
    assert is_close(painted[i, j], STRONGEST["similarity"])
    assert is_close(painted[np.arange(22), np.arange(22)], NEUTRAL["light"])
    explorer.select_option("kind", "attention")
    after = explorer.read_thumbnails()
    assert len(set(after.values())) == len(after)
    assert not set(after.values()) & set(before.values())
    assert "Attention" in explorer.get_texts("#overview-note")[0]
    for name, attention in (("L3H4", reading.attention_map(3, 4)), ("L3sum", reading.attention_map(3, "sum"))):
        painted = explorer.read_canvas(f"[aria-label={name}] canvas")
        row, column = np.unravel_index(attention.values.argmax(), attention.shape)
        assert is_close(painted[row, column], STRONGEST["attention"])
    explorer.select_option("kind", "similarity")
    assert explorer.read_thumbnails() == before


def test_small_maps_of_many_tokens_keep_single_elements(open_explorer: ExplorerOpener) -> None:
    outputs = np.zeros((70, 3))
    outputs[:, 2] = 0.01
    outputs[[11, 64], 0] = 1
    attention = np.full((70, 70), 0.5 / 69)
    attention[np.arange(70), np.arange(70)] = 0.5
    attention[41] = 0.3 / 69
    attention[41, 9] = 0.7
    explorer = open_explorer(
        Reading.from_arrays([f"t{k}" for k in range(70)], outputs[None, :, None], attention[None, None])
    )
    assert "2 × 2" in explorer.get_texts("#overview-note")[0]
    painted = explorer.read_canvas("[aria-label=L0H0] canvas")
    assert painted.shape == (35, 35, 4)
    red = {(int(a), int(b)) for a, b in np.argwhere((np.abs(painted[..., :3] - STRONGEST["similarity"]) <= 3).all(-1))}
    assert red == {(5, 32), (32, 5)}
    explorer.select_option("kind", "attention")
    painted = explorer.read_canvas("[aria-label=L0H0] canvas")
    strong = np.argwhere((np.abs(painted[..., :3] - STRONGEST["attention"]) <= 3).all(-1))
    assert strong.tolist() == [[20, 4]]


def test_a_click_opens_the_head(html: str, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(html)
    assert explorer.get_texts("h2#head-title") == ["L5H0"]
    for name, layer, head in (("L2H7", "2", "7"), ("L0sum", "0", "12"), ("L5H11", "5", "11")):
        explorer.page.locator(f"[aria-label={name}]").click()
        explorer.wait_until_drawn()
        assert explorer.get_texts("#head-title") == [name]
        assert (explorer.page.input_value("#layer"), explorer.page.input_value("#head")) == (layer, head)
        assert explorer.page.evaluate("location.hash") == f"#{name}"
        assert explorer.page.locator(".thumb.current").evaluate_all("all => all.map((e) => e.ariaLabel)") == [name]
        assert name in explorer.get_texts("#pairs-title")[0]


# Maps


def test_pointing_at_a_cell(reading: Reading, html: str, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(html)
    explorer.choose(1, 6)
    tip = explorer.page.locator("#tip")
    assert tip.is_hidden()
    matrix, weights = reading.matrix(1, 6).values, reading.attention_map(1, 6).values
    tokens = reading.tokens.values
    for kind in MAPS:
        for a, b in ((3, 8), (6, 8), (20, 0), (0, 21)):
            explorer.hover(kind, a, b)
            assert tip.is_visible()
            title, attention, similarity, *high = tip.locator("> *").all_text_contents()
            assert len(high) == (matrix[a, b] > 0.3 * matrix.max())
            assert title == f"{tokens[a]}{a} · {tokens[b]}{b}"
            assert parse_numbers(attention) == [
                pytest.approx(weights[a, b], abs=0.5 / 255 * 2 * weights[a, b] ** 0.5 + 6e-4)
            ]
            relative, value = parse_numbers(similarity)
            assert relative == pytest.approx(matrix[a, b] / matrix.max(), abs=5.4e-4)
            assert value == pytest.approx(matrix[a, b], rel=0.006, abs=6e-4 * matrix.max())
            assert explorer.get_texts("#readout")[0] == "".join((title, attention, similarity, *high))
            for name in MAPS:
                assert_crosshair(explorer, name, a, b)
                assert explorer.get_texts(f"#{name} .flag") == [tokens[a], tokens[b]]
            assert explorer.list_marked("pointed") == sorted({a, b})
    explorer.page.mouse.move(2, 2)
    assert tip.is_hidden()
    assert explorer.page.locator(".cross").count() == 0
    assert explorer.list_marked("pointed") == []


def assert_crosshair(explorer: Explorer, kind: str, row: int, column: int) -> None:
    """Check that a map's crosshair is over a row and a column."""
    boxes = explorer.page.locator(f"#{kind} .cross").evaluate_all(
        "all => all.map((e) => { const b = e.getBoundingClientRect(); return [b.x, b.y, b.width, b.height]; })"
    )
    assert len(boxes) == 2
    x, y = explorer.locate_cell(kind, row, column)
    across, down = boxes
    assert across[2] > 10 * across[3]
    assert across[1] + across[3] / 2 == pytest.approx(y, abs=1)
    assert down[0] + down[2] / 2 == pytest.approx(x, abs=1)


def test_rows_of_a_map_look_at_columns(reading: Reading, html: str, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(html)
    explorer.choose(1, 7)
    attention, matrix = reading.attention_map(1, 7).values, reading.matrix(1, 7).values
    for kind, values in (("attention", attention), ("similarity", matrix)):
        painted = explorer.read_pixels(kind)
        row, column = np.unravel_index(values.argmax(), values.shape)
        assert is_close(painted[row, column], STRONGEST[kind])
        assert (painted[..., 3] == 255).all()
    # brightness grows with attention, not with its transpose
    brightness = explorer.read_pixels("attention")[..., :3] @ np.array([0.3, 0.6, 0.1])
    ranks = [np.argsort(np.argsort(values.ravel())) for values in (brightness, attention, attention.T)]
    assert np.corrcoef(ranks)[0, 1] > 0.98
    assert np.corrcoef(ranks)[0, 2] < 0.9
    # red where similar, blue where opposed
    painted = explorer.read_pixels("similarity")
    strong = np.abs(matrix) > 0.05 * matrix.max()
    assert ((painted[..., 0] > painted[..., 2]) == (matrix > 0))[strong].all()
    assert (matrix < -0.05 * matrix.max()).any()


def test_a_row_of_the_table_and_a_token_point_too(small_reading: Reading, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(small_reading)
    pair = explorer.query("pairs")[4]
    explorer.page.locator("#pairs tbody tr").nth(4).hover()
    for kind in MAPS:
        assert explorer.page.locator(f"#{kind} .cross").count() == 2
    assert explorer.list_marked("pointed") == [pair["index_i"], pair["index_j"]]
    assert explorer.get_texts("#readout sub") == [str(pair["index_i"]), str(pair["index_j"])]
    explorer.page.locator("#pairs tbody tr").nth(4).click()
    explorer.wait_until_drawn()
    assert explorer.get_state()["token"] == pair["index_i"]
    explorer.page.locator(".tok[data-i='9']").hover()
    assert explorer.get_texts("#readout sub") == [str(pair["index_i"]), "9"]


def test_a_click_on_a_map_chooses_the_rows_token(small_reading: Reading, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(small_reading)
    for kind in MAPS:
        explorer.hover(kind, 5, 9)
        for chosen in (5, -1):
            explorer.page.mouse.down()
            explorer.page.mouse.up()
            explorer.wait_until_drawn()
            assert explorer.get_state()["token"] == chosen


def test_a_tap_chooses_it_too(small_reading: Reading, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(small_reading, has_touch=True)
    for row, chosen in ((5, 5), (5, -1), (7, 7)):
        if row != chosen:  # at the same place as the tap before
            explorer.page.wait_for_timeout(600)  # longer than the interval of a double tap
        explorer.page.touchscreen.tap(*explorer.locate_cell("similarity", row, 9))
        explorer.wait_until(f"headscope.state().token === {chosen}")


def test_dragging_enlarges_both_maps(small_reading: Reading, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(small_reading)
    n = len(small_reading)
    before = {name: explorer.read_pixels(name) for name in MAPS}
    button = explorer.page.locator("#unzoom")
    assert button.is_hidden()
    for end, kind in (("button", "similarity"), ("double click", "attention"), ("Escape", "similarity")):
        explorer.drag(kind, (2, 10), (6, 4))  # down and to the left
        assert explorer.get_state()["zoom"] == [2, 7, 4, 11]
        assert explorer.get_state()["token"] == -1
        for name in MAPS:
            assert explorer.read_pixels(name).tolist() == before[name][2:7, 4:11].tolist()
            assert explorer.get_texts(f"#{name} .tick:not(.flag)") == [*TOKENS[2:7], *TOKENS[4:11]]
        explorer.hover(kind, 1, 3)
        assert explorer.get_texts("#readout sub") == ["3", "7"]
        if end == "button":
            button.click()
        elif end == "Escape":
            explorer.press("Escape")
        else:
            explorer.page.mouse.dblclick(*explorer.locate_cell(kind, 1, 1))
        explorer.wait_until_drawn()
        assert explorer.get_state()["zoom"] is None
        assert explorer.get_state()["token"] == -1
        assert button.is_hidden()
        assert explorer.read_pixels(kind).shape == (n, n, 4)


def test_a_double_click_keeps_the_chosen_token(small_reading: Reading, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(small_reading)
    explorer.pick_token(5)
    explorer.drag("similarity", (2, 10), (6, 4))
    assert explorer.get_state()["zoom"] == [2, 7, 4, 11]
    explorer.page.mouse.dblclick(*explorer.locate_cell("similarity", 1, 1))
    explorer.wait_until_drawn()
    assert (explorer.get_state()["token"], explorer.get_state()["zoom"]) == (5, None)


def test_a_double_click_may_be_as_slow_as_the_browser_allows(
    small_reading: Reading, open_explorer: ExplorerOpener
) -> None:
    """The interval of a double click is a setting of the system, and under load clicks are late."""
    explorer = open_explorer(small_reading)
    mouse = explorer.page.mouse
    explorer.pick_token(5)
    explorer.hover("similarity", 1, 1)
    for count in (1, 2):
        mouse.down(click_count=count)
        mouse.up(click_count=count)
        explorer.page.wait_for_timeout(600)
    explorer.wait_until_drawn()
    assert explorer.get_state()["token"] == 5
    for row, chosen in ((1, 1), (3, 3)):  # and two single clicks are never a double click, however quick
        explorer.hover("similarity", row, 1)
        mouse.down(click_count=1)
        mouse.up(click_count=1)
        explorer.wait_until_drawn()
        assert explorer.get_state()["token"] == chosen


def test_other_axes_show_the_whole_map(small_reading: Reading, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(small_reading)
    for flag, size in (("words", 14), ("hide", 12)):
        explorer.drag("similarity", (2, 2), (6, 7))
        assert explorer.get_state()["zoom"] == [2, 7, 2, 8]
        explorer.set_toggle(flag)
        assert explorer.get_state()["zoom"] is None
        assert explorer.read_pixels("similarity").shape == (size, size, 4)


def test_a_part_is_shown_while_dragging(small_reading: Reading, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(small_reading)
    explorer.hover("similarity", 2, 2)
    explorer.page.mouse.down()
    explorer.page.mouse.move(*explorer.locate_cell("similarity", 6, 9), steps=3)
    box = explorer.page.locator("#similarity .part").bounding_box()
    assert box is not None
    (x0, y0), (x1, y1) = explorer.locate_cell("similarity", 2, 2), explorer.locate_cell("similarity", 6, 9)
    assert [box["x"], box["y"], box["width"], box["height"]] == pytest.approx([x0, y0, x1 - x0, y1 - y0], abs=2)
    # back to one row: nothing to enlarge
    explorer.page.mouse.move(*explorer.locate_cell("similarity", 2, 9))
    explorer.page.mouse.up()
    explorer.wait_until_drawn()
    assert explorer.get_state()["zoom"] is None
    assert explorer.page.locator(".part").count() == 0


def test_shift_and_arrows_move_the_crosshair(small_reading: Reading, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(small_reading)
    before = explorer.get_state()
    explorer.page.locator("#similarity svg").focus()
    steps = (("Down", 1, 0), ("Right", 1, 1), ("Right", 1, 2), ("Up", 0, 2), ("Up", 0, 2), ("Left", 0, 1))
    for key, a, b in steps:
        explorer.press(f"Shift+Arrow{key}")
        assert explorer.get_texts("#readout sub") == [str(a), str(b)]
        for kind in MAPS:
            assert_crosshair(explorer, kind, a, b)
    explorer.press(*["Shift+ArrowRight"] * 30)
    assert explorer.get_texts("#readout sub") == ["0", str(len(small_reading) - 1)]
    assert explorer.get_state() == before


# Views of the similarity


def test_views(reading: Reading, html: str, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(html)
    n = len(reading)
    above = np.triu(np.ones((n, n), dtype=bool), k=1)
    for layer, head in ((1, 6), (4, "sum")):
        explorer.choose(layer, head)
        explorer.type_threshold("tau", 0.2)
        explorer.select_option("view", "values")
        attention, values = explorer.read_pixels("attention"), explorer.read_pixels("similarity")
        assert explorer.page.locator("#similarity .mark, #similarity .edge").count() == 0

        explorer.select_option("view", "high")
        high = explorer.read_pixels("similarity")
        coloured = ~(np.abs(high[..., :3] - NEUTRAL["light"]) <= 3).all(-1)
        pairs = find_pairs(reading, layer, head, 0.3, explain=True)
        pairs = pairs[pairs["relation"] != ""]  # noise has dots instead
        expected = np.zeros((n, n), dtype=bool)
        expected[pairs["index_i"], pairs["index_j"]] = True
        assert (coloured & above == expected).all()
        assert (coloured == coloured.T).all()
        assert (high[coloured] == values[coloured]).all()

        explorer.select_option("view", "lines")
        masked = explorer.read_pixels("similarity")
        lines = np.zeros(n, dtype=bool)
        lines[reading.lines(layer, head, 0.2)["index"]] = True
        assert lines.any()
        blank = masked[..., 3] == 0
        assert (blank == (lines[:, None] | lines[None, :])).all()
        assert (masked[~blank] == values[~blank]).all()
        blocks = reading.blocks(layer, head, 0.2)
        assert explorer.page.locator("#similarity .edge").count() == 2 * (len(blocks) - 1)
        assert explorer.page.locator("#similarity .mark").count() == lines.sum()
        assert explorer.page.locator("#attention .mark").count() == lines.sum()

        explorer.select_option("view", "regions")
        regions = explorer.read_pixels("similarity")
        means = reading.regions(layer, head, 0.2).values
        colours = {}
        for a, (first, last) in enumerate(zip(blocks["start"], blocks["stop"], strict=True)):
            for b, (left, right) in enumerate(zip(blocks["start"], blocks["stop"], strict=True)):
                part = np.unique(regions[first:last, left:right].reshape(-1, 4), axis=0)
                assert len(part) == 1
                assert (part[0][3] == 0) == np.isnan(means[a, b])
                colours[a, b] = part[0]
        strongest = np.unravel_index(np.nanargmax(np.abs(means)), means.shape)
        assert is_close(colours[strongest], STRONGEST["similarity"]) == (means[strongest] > 0)
        assert len({tuple(colour) for colour in colours.values()}) > len(blocks) // 2
        assert (explorer.read_pixels("attention") == attention).all()
        assert "means between blocks" in explorer.get_texts("#similarity-words")[0]
