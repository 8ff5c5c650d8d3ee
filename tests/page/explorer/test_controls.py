"""In a browser without network: sliders, switches, keys, colours and the address."""

from __future__ import annotations

import numpy as np
import pytest

from headscope import Reading
from tests.helpers.explorer import (
    DEFAULT_STATE,
    NEUTRAL,
    STRONGEST,
    ExplorerOpener,
    find_pairs,
    get_largest,
    is_close,
    parse_numbers,
)

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("threshold", ["theta", "tau"])
def test_sliders_and_numbers_act_at_once(small_reading: Reading, threshold: str, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(small_reading)
    count_shown = {"theta": lambda: len(explorer.query("pairs")), "tau": lambda: len(explorer.query("lines"))}[
        threshold
    ]

    def count_expected(share: float) -> int:
        return (
            len(find_pairs(small_reading, 2, 0, share))
            if threshold == "theta"
            else len(small_reading.lines(2, 0, share))
        )

    slider, field = explorer.page.locator(f"#{threshold}"), explorer.page.locator(f"#{threshold}-number")
    assert count_shown() == count_expected(0.3)
    counts = []
    for share in (0.05, 0.5, 0.9):
        slider.fill(str(share))
        explorer.wait_until_drawn()
        assert float(field.input_value()) == share
        assert count_shown() == count_expected(share)
        assert f"{threshold}={share}" in explorer.page.evaluate("location.hash")
        counts.append(count_shown())
    assert counts[0] > counts[1] >= counts[2]
    slider.press("ArrowLeft")
    explorer.wait_until_drawn()
    assert explorer.get_state()[threshold] == 0.899
    assert explorer.get_name() == "L2H0"  # the key moved the slider, not the head
    explorer.type_threshold(threshold, 0.123)
    assert float(slider.input_value()) == 0.123
    assert count_shown() == count_expected(0.123)


def test_nonsense_is_refused(small_reading: Reading, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(small_reading)
    for typed, shown in (
        (0.4, 0.4), ("", 0.4), ("e", 0.4), ("--", 0.4), ("-0.2", 0.4), ("1e999", 0.4), ("0.12345", 0.123), ("1", 0.999),
        ("57", 0.999), ("0", 0),
    ):  # fmt: skip
        for threshold in ("theta", "tau"):
            explorer.type_threshold(threshold, typed)
            assert explorer.get_state()[threshold] == shown, typed
            assert float(explorer.page.input_value(f"#{threshold}-number")) == shown, typed


def test_diagonal(small_reading: Reading, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(small_reading)
    n = len(small_reading)
    before = explorer.read_pixels("similarity")
    on = np.arange(n)
    assert is_close(before[on, on], NEUTRAL["light"])
    explorer.set_toggle("diagonal")
    after = explorer.read_pixels("similarity")
    assert not (np.abs(after[on, on, :3] - NEUTRAL["light"]) <= 3).all(-1).any()
    off = ~np.eye(n, dtype=bool)
    assert (after[off] == before[off]).all()
    squares = (small_reading.outputs.sel(layer=2).values ** 2).sum(axis=-1)
    for head, own in ((0, squares[4, 0]), (1, squares[4, 1]), ("sum", squares[4].sum())):
        explorer.choose(head=head)
        explorer.hover("similarity", 4, 4)
        relative, value = parse_numbers(explorer.get_texts("#tip span")[1])
        assert relative == pytest.approx(own / get_largest(small_reading, 2, head), abs=6e-4)
        assert value == pytest.approx(own, rel=0.006)
    explorer.choose(head=0)
    explorer.set_toggle("diagonal", False)
    assert (explorer.read_pixels("similarity") == before).all()


def test_raw_values(reading: Reading, html: str, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(html)
    explorer.choose(3, 5)
    assert explorer.get_texts("#value-column") == ["C / max"]
    thumbs, similarity, attention = (
        explorer.read_thumbnails(),
        explorer.read_pixels("similarity"),
        explorer.read_pixels("attention"),
    )
    explorer.set_toggle("raw")
    assert explorer.get_texts("#value-column") == ["C"]
    pairs = find_pairs(reading, 3, 5, 0.3)
    shown = [parse_numbers(row[4])[0] for row in explorer.read_rows("pairs")]
    np.testing.assert_allclose(shown, pairs["value"], rtol=0.006)
    # the layer has one scale: its strongest head keeps its colours, others become pale
    scales = [get_largest(reading, 3, head) for head in reading.head_numbers]
    assert parse_numbers(explorer.get_texts("#similarity .scale span")[2]) == [pytest.approx(max(scales), rel=0.01)]
    strongest = int(np.argmax(scales))
    assert strongest != 5
    after = explorer.read_thumbnails()
    unchanged = {name for name in after if after[name] == thumbs[name] and name.startswith("L3")}
    assert unchanged == {f"L3H{strongest}", "L3sum"}
    assert (explorer.read_pixels("similarity") != similarity).any()
    assert (explorer.read_pixels("attention") != attention).any()
    assert explorer.get_texts("#attention .scale span")[2] == "1"
    explorer.choose(3, strongest)
    assert is_close(
        explorer.read_pixels("similarity").reshape(-1, 4)[reading.matrix(3, strongest).values.argmax()],
        STRONGEST["similarity"],
    )


def test_words_and_hidden_special_tokens(reading: Reading, html: str, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(html)
    explorer.choose(1, 6)
    words = reading.word_labels().tolist()
    looks = reading.attention_map(1, 6).values
    member = reading.tokens["word"].values
    explorer.set_toggle("words")
    assert explorer.read_pixels("similarity").shape == explorer.read_pixels("attention").shape == (19, 19, 4)
    ticks = explorer.get_texts("#similarity .tick")
    assert len(ticks) == 2 * len(words)
    assert all(word.startswith(tick.rstrip("…")) for tick, word in zip(ticks, words * 2, strict=True))
    # attention to a word is the sum over its tokens, attention from a word the mean over its tokens
    explorer.hover("attention", 11, 4)
    expected = looks[member == 11][:, member == 4].sum(axis=1).mean()
    assert parse_numbers(explorer.get_texts("#tip span")[0]) == [pytest.approx(expected, abs=0.01)]
    assert explorer.get_texts("#tip bdi") == ["unpoliceable", "met"]
    explorer.hover("attention", 4, 11)
    expected = looks[member == 4][:, member == 11].sum(axis=1).mean()
    assert parse_numbers(explorer.get_texts("#tip span")[0]) == [pytest.approx(expected, abs=0.02)]
    joined = np.max(reading.matrix(1, 6).values[4, 11:15])
    assert parse_numbers(explorer.get_texts("#tip span")[1])[0] == pytest.approx(
        joined / get_largest(reading, 1, 6), abs=6e-4
    )
    explorer.set_toggle("hide")
    assert explorer.read_pixels("similarity").shape == (17, 17, 4)
    assert explorer.page.locator(".tok:visible").count() == 20
    assert explorer.page.locator(".tok.special:visible").count() == 0
    assert not any("[CLS]" in row or "[SEP]" in row for row in explorer.read_rows("pairs"))
    explorer.set_toggle("words", False)
    assert explorer.read_pixels("attention").shape == (20, 20, 4)
    assert explorer.get_texts("#similarity .tick")[0] == "the"
    explorer.hover("similarity", 0, 0)
    assert explorer.get_texts("#tip sub") == ["1", "1"]


# Keys


def test_arrows_go_over_heads_and_layers(small_reading: Reading, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(small_reading.to_html(start=(1, 0)))
    for key, name in (
        ("Left", "L1H0"), ("Right", "L1H1"), ("Right", "L1sum"), ("Right", "L1sum"), ("Up", "L0sum"), ("Up", "L0sum"),
        ("Left", "L0H1"), ("Down", "L1H1"), ("Down", "L2H1"), ("Down", "L2H1"),
    ):  # fmt: skip
        explorer.press(f"Arrow{key}")
        assert explorer.get_name() == name
        assert explorer.get_texts("#head-title") == [name]
    explorer.press("s")
    assert explorer.get_name() == "L2sum"
    explorer.press("ArrowUp", "s")
    assert explorer.get_name() == "L1H1"


def test_letters_and_signs(small_reading: Reading, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(small_reading)
    before = explorer.get_state()
    assert DEFAULT_STATE.items() <= before.items()
    for view in ("high", "lines", "regions", "values"):
        explorer.press("v")
        assert explorer.get_state()["view"] == view
        assert explorer.page.locator("[name=view]:checked").get_attribute("value") == view
    for kind in ("attention", "similarity"):
        explorer.press("a")
        assert explorer.get_state()["kind"] == kind
    for pairs in ("explained", "noise", "all"):
        explorer.press("n")
        assert explorer.get_state()["pairs"] == pairs
        assert explorer.page.locator("[name=pairs]:checked").get_attribute("value") == pairs
    for key, flag in (("d", "diagonal"), ("r", "raw"), ("w", "words"), ("x", "hide"), ("D", "diagonal")):
        on = explorer.get_state()[flag]
        explorer.press(key)
        assert explorer.get_state()[flag] is not on
        assert explorer.page.locator(f"#{flag}").is_checked() is not on
    for key, threshold, share in (("]", "theta", 0.31), ("[", "theta", 0.3), (".", "tau", 0.31), (",", "tau", 0.3)):
        explorer.press(key)
        assert explorer.get_state()[threshold] == share
    explorer.type_threshold("theta", 0.005)
    explorer.leave_controls()
    explorer.press("[", "[")
    assert explorer.get_state()["theta"] == 0
    explorer.type_threshold("tau", 0.995)
    explorer.leave_controls()
    explorer.press(".")
    assert explorer.get_state()["tau"] == 0.999
    theme = explorer.page.evaluate("document.documentElement.dataset.theme")
    explorer.press("t")
    assert explorer.page.evaluate("document.documentElement.dataset.theme") != theme


def test_help(small_reading: Reading, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(small_reading)
    dialog = explorer.page.locator("#help")
    assert dialog.is_hidden()
    explorer.press("?")
    assert dialog.is_visible()
    keys = dialog.locator("kbd").all_inner_texts()
    assert {"←", "S", "V", "N", "A", "D", "R", "W", "X", "[", "]", ",", ".", "P", "T", "Esc"} <= set(keys)
    before = explorer.get_state()
    explorer.press("s", "ArrowUp", "v")
    assert explorer.get_state() == before
    explorer.press("Escape")
    assert dialog.is_hidden()
    explorer.page.locator("#help-button").click()
    assert dialog.is_visible()
    dialog.get_by_text("Close").click()
    assert dialog.is_hidden()


def test_keys_typed_in_a_control_or_with_control_do_nothing(
    small_reading: Reading, open_explorer: ExplorerOpener
) -> None:
    explorer = open_explorer(small_reading)
    before = explorer.get_state()
    for selector in ("#theta-number", "#layer", "#head"):
        explorer.page.locator(selector).focus()
        explorer.press("v", "n", "a", "d", "r", "w", "x", "p", "t", "?")
    assert explorer.get_state() == before
    assert explorer.page.locator("#help").is_hidden()
    explorer.leave_controls()
    explorer.press("Control+d", "Alt+r", "Meta+w")
    assert explorer.get_state() == before


def test_letters_act_after_a_choice_and_arrows_change_it(small_reading: Reading, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(small_reading)
    explorer.page.get_by_text("high pairs", exact=True).click()
    before = explorer.get_state()
    assert before["view"] == "high"
    explorer.press("d")
    assert explorer.get_state() == {**before, "diagonal": True}
    explorer.press("ArrowRight")
    assert explorer.get_state() == {**before, "diagonal": True, "view": "lines"}


def test_skip_link_goes_to_the_content_and_keeps_the_view(
    small_reading: Reading, open_explorer: ExplorerOpener
) -> None:
    explorer = open_explorer(small_reading)
    explorer.choose(0, 1)
    explorer.type_threshold("theta", 0.4)
    before, address = explorer.get_state(), explorer.page.url
    explorer.page.locator(".skip").focus()
    explorer.press("Enter")
    assert explorer.page.evaluate("document.activeElement.id") == "main"
    assert explorer.get_state() == before
    assert explorer.page.url == address


# Light and dark


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(small_reading: Reading, scheme: str, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(small_reading, color_scheme=scheme)
    other = {"light": "dark", "dark": "light"}[scheme]
    explorer.pick_token(3)

    def find_theme() -> str:
        (theme,) = [
            name for name, colour in NEUTRAL.items() if is_close(explorer.read_pixels("similarity")[0, 0], colour)
        ]
        assert is_close(explorer.read_canvas("[aria-label=L0H1] canvas")[0, 0], NEUTRAL[theme])
        assert is_close(explorer.read_canvas(".strip canvas")[0, 3], NEUTRAL[theme])
        background = parse_numbers(explorer.page.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert (sum(background[:3]) / 3 > 128) == (theme == "light")
        assert explorer.get_texts("#theme") == [{"light": "Dark", "dark": "Light"}[theme]]
        return theme

    assert find_theme() == scheme
    explorer.page.emulate_media(color_scheme=other)
    explorer.wait_until_drawn()
    assert find_theme() == other
    explorer.page.emulate_media(color_scheme=scheme)
    explorer.page.locator("#theme").click()
    explorer.wait_until_drawn()
    assert find_theme() == other
    # Chromium writes storage to disk asynchronously and may lose it between loads of a file: test both halves instead.
    assert explorer.page.evaluate("localStorage.getItem('headscope-theme')") == other
    explorer.page.add_init_script(f"localStorage.setItem('headscope-theme', '{other}')")
    explorer.page.reload()
    explorer.wait()
    assert find_theme() == other
    explorer.press("t")
    assert find_theme() == scheme


# The address


def test_the_address_holds_the_view(small_reading: Reading, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(small_reading)
    explorer.choose(1, "sum")
    explorer.type_threshold("theta", 0.123)
    explorer.type_threshold("tau", 0.25)
    explorer.select_option("view", "regions")
    explorer.select_option("kind", "attention")
    explorer.select_option("pairs", "noise")
    for flag in ("diagonal", "raw", "words", "hide"):
        explorer.set_toggle(flag)
    explorer.pick_token(7)
    explorer.drag("similarity", (1, 2), (5, 8))
    state, pairs, pixels = explorer.get_state(), explorer.query("pairs"), explorer.read_pixels("similarity")
    assert state == {
        "layer": 1, "head": 2, "theta": 0.123, "tau": 0.25, "view": "regions", "kind": "attention", "pairs": "noise",
        "diagonal": True, "raw": True, "words": True,
        "hide": True, "segments": False, "token": 7, "zoom": [1, 6, 2, 9], "name": "L1sum",
    }  # fmt: skip
    explorer.page.reload()
    explorer.wait()
    assert explorer.get_state() == state
    assert explorer.query("pairs") == pairs
    assert (explorer.read_pixels("similarity") == pixels).all()
    controls = {id_: explorer.page.input_value(f"#{id_}") for id_ in ("layer", "head", "theta", "tau")}
    assert controls == {"layer": "1", "head": "2", "theta": "0.123", "tau": "0.25"}
    assert all(explorer.page.locator(f"#{flag}").is_checked() for flag in ("diagonal", "raw", "words", "hide"))
    address = explorer.page.url.partition("#")[0]
    explorer.page.goto(f"{address}#L0H1&theta=0.5&token=3")  # the address changes while the page is open
    explorer.wait_until_drawn()
    assert explorer.get_state() == {
        **DEFAULT_STATE, "layer": 0, "head": 1, "theta": 0.5, "tau": 0.3, "token": 3, "name": "L0H1",
    }  # fmt: skip


NONSENSE = (
    "L9H0&L0H7&Lsum",
    "theta=7&theta=-1&theta=abc&theta=&theta&tau=NaN&tau=1&tau=Infinity",
    "token=-1&token=1.5&token=99&token=&token=x&view=zzz&kind=regions&view=&pairs=some&pairs=",
    "zoom=&zoom=1.2&zoom=3.2.1.5&zoom=0.99.0.99&zoom=a.b.c.d&zoom=...",
    "<script>alert(1)</script>&%%%&=&&&__proto__=1&constructor&toString=2&\u202e",
)


def test_a_nonsense_address_is_ignored(small_reading: Reading, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(small_reading)
    before, file = explorer.get_state(), explorer.page.url.partition("#")[0]
    for address in NONSENSE:
        explorer.page.goto("about:blank")
        explorer.page.goto(f"{file}#{address}")
        explorer.wait()
        assert explorer.get_state() == before
    explorer.page.goto(f"{file}#{'&'.join(NONSENSE)}&L0H1&raw")  # valid parts are used
    explorer.wait_until_drawn()
    assert explorer.get_state() == {**before, "layer": 0, "head": 1, "raw": True, "name": "L0H1"}
    explorer.press("ArrowLeft")
    assert explorer.get_name() == "L0H0"
