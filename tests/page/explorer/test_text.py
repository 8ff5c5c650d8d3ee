"""In a browser without network: the text with its pairs, a chosen token, and how it changes over the layers."""

from __future__ import annotations

import numpy as np
import pytest

from headscope import Model, Reading, read
from tests.helpers.explorer import NEUTRAL, ExplorerOpener, find_pairs, is_close, parse_numbers

pytestmark = pytest.mark.browser


# The text


def test_equal_tokens_share_a_colour(reading: Reading, html: str, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(html)
    ids, words = reading.tokens["token_id"].values, reading.word_labels()[reading.tokens["word"].values]
    background = "all => all.map((e) => [Number(e.dataset.i), getComputedStyle(e).backgroundColor])"
    for layer, head, theta, joined in ((1, 6, 0.3, False), (5, 0, 0.3, False), (3, 4, 0.6, False), (5, 0, 0.3, True)):
        explorer.choose(layer, head)
        explorer.type_threshold("theta", theta)
        explorer.set_toggle("words", joined)
        pairs = find_pairs(reading, layer, head, theta, words=joined)
        first = {*pairs["index_i"], *pairs["index_j"]}
        member = reading.tokens["word"].values
        inside = sorted(
            {i for i in range(len(reading)) for k in first if (member[i] == member[k] if joined else i == k)}
        )
        assert explorer.list_marked("in") == inside
        colours = dict(explorer.page.locator(".tok").evaluate_all(background))
        assert all(colours[i] == "rgba(0, 0, 0, 0)" for i in range(len(reading)) if i not in inside)
        values = words if joined else ids
        assert all((colours[i] == colours[j]) == (values[i] == values[j]) for i in inside for j in inside)
        assert explorer.page.locator("#arcs path").count() == len(pairs)


def test_segments_are_marked_where_they_begin(minilm: Model, open_explorer: ExplorerOpener) -> None:
    rain = "Rain fell on the hills. Clouds hid the sun, and it rained all day. The storm brought heavy rain. "
    bank = "The bank raised its interest rates. Loans became dear, and shares fell. Investors sold their bonds."
    reading = read(minilm, rain + bank)
    starts = [part.start for part in reading.segments()][1:]
    assert len(rain) in starts
    explorer = open_explorer(reading)
    assert explorer.list_marked("cut") == []
    explorer.set_toggle("segments", True)
    places = reading.data["start"].values
    assert [int(places[i]) for i in explorer.list_marked("cut")] == starts
    assert "segments" in explorer.page.url
    explorer.page.keyboard.press("g")
    explorer.wait_until_drawn()
    assert explorer.list_marked("cut") == []


def test_where_there_are_no_segments_none_are_offered(open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(Reading.from_arrays(["a", "b", "a"], np.eye(3)[None, :, None, :] + 0.5))
    assert explorer.page.locator("#segments").count() == 0
    explorer.page.keyboard.press("g")
    assert not explorer.opened.errors


def test_at_most_so_many_arcs(open_explorer: ExplorerOpener) -> None:
    tokens = [f"t{k}" for k in range(30)]
    outputs = np.abs(np.random.default_rng(1).normal(1, 0.3, (1, 30, 1, 3)))
    reading = Reading.from_arrays(tokens, outputs)
    explorer = open_explorer(reading)
    for theta in (0.0, 0.7, 0.99):
        explorer.type_threshold("theta", theta)
        pairs = len(reading.pairs(0, 0, theta))
        assert explorer.page.locator("#arcs path").count() == min(250, pairs)
        assert ("250 strongest of 435" in explorer.get_texts("#text-note")[0]) == (theta == 0)
    explorer.type_threshold("theta", 0.0)
    explorer.pick_token(4)
    assert explorer.page.locator("#arcs path").count() == 29
    assert "29 partners" in explorer.get_texts("#token-card p")[0]


def test_arcs_join_their_tokens(small_reading: Reading, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(small_reading, viewport={"width": 420, "height": 900})  # a text of several lines
    explorer.pick_token(7)
    partners = [p for p in explorer.query("pairs") if 7 in (p["index_i"], p["index_j"])]
    positions = explorer.page.evaluate(
        """() => { const box = document.getElementById('textbox').getBoundingClientRect();
        const middle = (i) => { const [b] = document.querySelector(`.tok[data-i='${i}']`).getClientRects();
            return [b.x + b.width / 2 - box.x, b.y - box.y]; };
        return [[...document.querySelectorAll('#arcs path')].map((p) => [p.getPointAtLength(0),
            p.getPointAtLength(p.getTotalLength())].flatMap((at) => [at.x, at.y])), headscope.pairs().map((p) =>
            [...middle(p.index_i), ...middle(p.index_j)])]; }"""
    )
    arc_ends, token_positions = positions
    expected = [position for position, p in zip(token_positions, explorer.query("pairs"), strict=True) if p in partners]
    assert len(arc_ends) == len(partners) > 2
    np.testing.assert_allclose(arc_ends, expected, atol=3)
    assert len({round(y) for position in expected for y in position[1::2]}) > 1


def test_choosing_a_token(reading: Reading, html: str, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(html)
    explorer.choose(1, 6)
    token = 8
    explorer.pick_token(token)
    assert explorer.get_state()["token"] == token
    pairs = find_pairs(reading, 1, 6, 0.3)
    near = pairs[(pairs["index_i"] == token) | (pairs["index_j"] == token)]
    partners = [i + j - token for i, j in zip(near["index_i"], near["index_j"], strict=True)]
    assert len(partners) > 2
    assert explorer.list_marked("partner") == sorted(partners)
    assert explorer.list_marked("chosen") == [token]
    assert explorer.list_marked("in") == []
    assert explorer.page.locator("#arcs path").count() == len(partners)
    card = explorer.page.locator("#token-card")
    assert card.is_visible()
    assert explorer.get_texts("#token-card h3 bdi") == ["ravens"]
    assert f"token 8, sentence {int(reading.tokens['sentence'][8])}" in explorer.get_texts("#token-card h3")[0]
    in_order = [p for _, p in sorted(zip(-near["relative"], partners, strict=True))]
    chips = card.locator("p").first.locator(".chip")
    assert chips.locator("sub").all_text_contents() == [str(p) for p in in_order]
    assert chips.locator("bdi").all_text_contents() == [reading.tokens.values[p] for p in in_order]
    (here,) = reading.dominant(1, 6).to_dict("records")
    assert (
        f"“\u2068{here['token']}\u2069”: {round(here['share'] * here['pairs'])} of {here['pairs']}"
        in explorer.get_texts(".dominant-here")[0]
    )


def find_dominated_heads(reading: Reading, token: int, theta: float | None = None) -> list[str]:
    """Return the heads in which a token is the dominant one."""
    table = reading.dominant(theta=theta)
    rows = table[(table["token_id"] == int(reading.tokens["token_id"][token])) & (table["pairs"] > 0)]
    return [str(name) for name in rows["head"]]


def test_heads_where_a_token_is_dominant(reading: Reading, html: str, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(html)
    current = -1
    for token, theta in ((0, 0.3), (1, 0.3), (1, 0.6), (6, 0.6), (4, 0.3)):
        explorer.type_threshold("theta", theta)
        if token != current:
            explorer.pick_token(token)
        current = token
        expected = find_dominated_heads(reading, token, theta)
        assert explorer.get_texts("#dominant-list .chip bdi") == expected
        marked = explorer.page.locator(".thumb.dominant").evaluate_all("all => all.map((e) => e.ariaLabel)")
        assert marked == expected
        if expected:
            table = reading.dominant(theta=theta).set_index("head")
            share = float(table["share"][expected[0]])
            assert parse_numbers(explorer.get_texts("#dominant-list .chip span")[0]) == [
                pytest.approx(100 * share, abs=0.51)
            ]
        else:
            assert "no head" in explorer.get_texts("#dominant-list")[0]
    assert len(find_dominated_heads(reading, 1)) > 3


def test_chips_jump_and_escape_clears(reading: Reading, html: str, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(html)
    explorer.pick_token(1)
    expected = find_dominated_heads(reading, 1)[2]
    explorer.page.locator("#dominant-list .chip").nth(2).click()
    explorer.wait_until_drawn()
    assert (explorer.get_name(), explorer.get_state()["token"]) == (expected, 1)
    partner = explorer.page.locator("#token-card p").first.locator(".chip").first
    place = int(partner.locator("sub").inner_text())
    partner.click()
    explorer.wait_until_drawn()
    assert explorer.get_state()["token"] == place
    assert explorer.list_marked("chosen") == [place]
    explorer.press("Escape")
    assert explorer.get_state()["token"] == -1
    assert explorer.page.locator("#token-card").is_hidden()
    assert explorer.list_marked("chosen") == explorer.list_marked("partner") == []
    assert explorer.page.locator(".thumb.dominant").count() == 0
    explorer.pick_token(3)
    explorer.pick_token(3)  # a second click deselects it
    assert explorer.get_state()["token"] == -1
    explorer.pick_token(3)
    explorer.page.locator("#token-card h3 button").click()
    explorer.wait_until_drawn()
    assert explorer.get_state()["token"] == -1
    explorer.page.locator(".tok[data-i='0']").focus()
    explorer.press("Enter")
    assert explorer.get_state()["token"] == 0


def test_words_are_chosen_whole(reading: Reading, html: str, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(html)
    explorer.choose(1, 6)
    explorer.set_toggle("words")
    explorer.pick_token(13)
    assert explorer.list_marked("chosen") == [11, 12, 13, 14]
    assert explorer.get_texts("#token-card h3 bdi") == ["unpoliceable"]
    pairs = find_pairs(reading, 1, 6, 0.3, words=True)
    near = pairs[(pairs["index_i"] == 11) | (pairs["index_j"] == 11)]
    partners = sorted(i + j - 11 for i, j in zip(near["index_i"], near["index_j"], strict=True))
    assert len(partners) > 0
    assert explorer.list_marked("partner") == partners


# Through the layers


def test_a_token_through_the_layers(reading: Reading, html: str, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(html)
    strips = explorer.page.locator("#strips")
    assert strips.is_hidden()
    explorer.choose(1, 6)
    explorer.pick_token(8)
    assert strips.is_visible()
    assert explorer.get_texts(".strip button") == [f"L{layer}" for layer in range(6)]
    for theta in (0.3, 0.62):
        explorer.type_threshold("theta", theta)
        for layer in reading.layers:
            matrix = reading.matrix(layer, 6).values
            order = [
                j for j in np.argsort(-matrix[8], kind="stable") if j != 8 and matrix[8, j] > theta * matrix.max()
            ][:4]
            strip = explorer.page.locator(".strip").nth(layer)
            expected = [f"{reading.tokens.values[j]}{j}" for j in order]
            assert strip.locator(".partners bdi").all_text_contents() == expected
            assert ("no partner" in strip.inner_text()) == (not expected)
            painted = explorer.read_canvas(f".strip:nth-child({layer + 1}) canvas")
            assert painted.shape == (1, 22, 4)
            assert is_close(painted[0, 8], NEUTRAL["light"])
            strong = np.abs(matrix[8]) > 0.1 * matrix.max()
            assert ((painted[0, :, 0] > painted[0, :, 2]) == (matrix[8] > 0))[strong].all()
    explorer.page.locator(".strip button").nth(4).click()
    explorer.wait_until_drawn()
    assert explorer.get_name() == "L4H6"
    assert explorer.page.locator(".strip.current button").all_inner_texts() == ["L4"]
    explorer.page.locator(".strip canvas").nth(2).click()
    explorer.wait_until_drawn()
    assert explorer.get_name() == "L2H6"
    explorer.choose(head="sum")
    assert "the sum of each layer’s heads" in explorer.get_texts("#through-note")[0]
    explorer.type_threshold("theta", 0.1)
    matrix = reading.matrix(2, "sum").values
    best = f"{reading.tokens.values[matrix[8].argmax()]}{matrix[8].argmax()}"
    assert explorer.page.locator(".strip").nth(2).locator(".partners bdi").first.text_content() == best


def test_play_and_pause(reading: Reading, html: str, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(html)
    play = explorer.page.locator("#play")
    explorer.choose(4, 6)
    play.click()
    assert (play.inner_text(), play.get_attribute("aria-pressed")) == ("Pause", "true")
    token = str(reading.dominant(4, 6)["token"].iloc[0])
    assert explorer.get_state()["token"] == reading.tokens.values.tolist().index(token)
    for layer in (5, 0):  # the first layer follows the last one
        explorer.wait_until(f"headscope.state().layer === {layer}")
    play.click()
    assert (play.inner_text(), play.get_attribute("aria-pressed")) == ("Play", "false")
    stopped = explorer.get_name()
    explorer.page.wait_for_timeout(1100)
    assert explorer.get_name() == stopped
    explorer.leave_controls()
    explorer.press("p")
    assert play.inner_text() == "Pause"
    explorer.press("Escape")
    assert play.inner_text() == "Play"
