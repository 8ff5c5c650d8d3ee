"""In a browser that can reach nothing: page and Python agree on pairs, lines, blocks, regions and dominant tokens."""

from __future__ import annotations

import numpy as np
import pytest

from headscope import Reading
from headscope.readings.reading import Head
from tests.explorer.explored import (
    TOKENS,
    Open,
    assert_pairs,
    largest,
    numbers,
    on_thresholds,
    random_reading,
    wanted,
)

pytestmark = pytest.mark.browser


# The page and Python agree

HEADS: list[tuple[int, Head]] = [(0, 3), (1, 5), (4, 8), (2, "sum")]


def test_pairs_and_dominant_tokens_are_pythons(reading: Reading, html: str, explore: Open) -> None:
    explorer = explore(html)
    seen = set()
    for layer, head in HEADS:
        explorer.choose(layer, head)
        for theta in (0.0, 0.3, 0.517):
            explorer.type("theta", theta)
            expected = wanted(reading, layer, head, theta)
            assert_pairs(explorer, expected, largest(reading, layer, head))
            assert explorer.texts("#pairs-title")[0].startswith(f"{len(expected):,} pair")
            seen.add(len(expected))
            (most,) = reading.dominant(layer, head, theta).to_dict("records")
            told = explorer.ask("dominant")
            assert (told["token"], told["pairs"]) == (most["token"], most["pairs"])
            assert told["count"] == round(most["share"] * most["pairs"])
    assert len(seen) > 8
    assert max(seen) > 200  # more rows than a table shows unasked


def test_pairs_of_words_without_special_tokens(reading: Reading, html: str, explore: Open) -> None:
    explorer = explore(html)
    for words, hide in ((True, True), (True, False), (False, True)):
        explorer.flip("words", words)
        explorer.flip("hide", hide)
        for layer, head in HEADS:
            explorer.choose(layer, head)
            expected = wanted(reading, layer, head, 0.3, words=words, special=not hide)
            assert 0 < len(expected) < len(wanted(reading, layer, head, 0.3))
            assert_pairs(explorer, expected, largest(reading, layer, head))


def test_coarse_pages_agree_for_two_decimals(reading: Reading, explore: Open) -> None:
    explorer = explore(reading.page(precision="coarse"))
    for layer, head in HEADS[1:]:
        explorer.choose(layer, head)
        for theta in (0.07, 0.58):
            explorer.type("theta", theta)
            assert_pairs(explorer, wanted(reading, layer, head, theta), largest(reading, layer, head), "coarse")
        for tau in (0.07, 0.29):
            explorer.type("tau", tau)
            expected = reading.blocks(layer, head, tau)
            assert explorer.ask("blocks") == expected[["start", "stop"]].to_dict("records")
    explorer.type("theta", 0.314)
    assert explorer.state()["theta"] == 0.31


def test_lines_blocks_and_regions_are_pythons(reading: Reading, html: str, explore: Open) -> None:
    explorer = explore(html)
    counts = set()
    for layer, head in ((0, 3), (5, 11), (5, "sum")):
        explorer.choose(layer, head)
        for tau in (0.05, 0.3, 0.555):
            explorer.type("tau", tau)
            lines, cut = reading.lines(layer, head, tau), reading.blocks(layer, head, tau)
            told = explorer.ask("lines")
            assert [(line["index"], line["token"]) for line in told] == list(
                zip(lines["index"], lines["token"], strict=True)
            )
            np.testing.assert_allclose([line["received"] for line in told], lines["received"], atol=1 / 8_000)
            assert explorer.ask("blocks") == cut[["start", "stop"]].to_dict("records")
            means = reading.regions(layer, head, tau).values / largest(reading, layer, head)
            shown = np.array(explorer.ask("regions"), dtype=float)
            np.testing.assert_allclose(shown, means, atol=1e-4, rtol=0)
            rows = explorer.rows("blocks")
            names_ = reading.tokens.values
            for k, (row, start, stop) in enumerate(zip(rows, cut["start"], cut["stop"], strict=True)):
                assert row[0] == str(k)
                assert row[1] == (str(start) if stop == start + 1 else f"{start}–{stop - 1}")
                assert row[2] == (names_[stop - 1] if stop - 1 in set(lines["index"]) else "–")
                if np.isnan(means[k, k]):
                    assert row[3] == "–"
                else:
                    assert numbers(row[3]) == [pytest.approx(means[k, k], abs=6e-4)]
            assert numbers(explorer.texts("#blocks-title")[0]) == [len(lines), len(cut)]
            counts.add(len(cut))
    assert len(counts) > 4


@pytest.mark.parametrize("precision", ["fine", "coarse"])
def test_values_exactly_on_a_threshold(precision: str, explore: Open) -> None:
    reading = on_thresholds()
    explorer = explore(reading.page(precision=precision))
    found = []
    for theta in (0.24, 0.25, 0.49, 0.5, 0.99):
        explorer.type("theta", theta)
        assert_pairs(explorer, wanted(reading, 0, 0, theta), 4.0, precision)
        found.append([(pair["index_i"], pair["index_j"]) for pair in explorer.ask("pairs")])
    assert [len(pairs) for pairs in found] == [4, 3, 3, 1, 1]
    cuts = []
    for tau in (0.08, 0.24, 0.25):
        explorer.type("tau", tau)
        assert [line["index"] for line in explorer.ask("lines")] == reading.lines(0, 0, tau)["index"].tolist()
        assert explorer.ask("blocks") == reading.blocks(0, 0, tau)[["start", "stop"]].to_dict("records")
        cuts.append([block["stop"] for block in explorer.ask("blocks")])
    assert cuts == [[1, 2, 3, 4, 5], [1, 3, 5], [1, 5]]


def test_every_threshold_of_a_page(reading: Reading, html: str, explore: Open) -> None:
    """All thousand of them, of a head and of a sum: as many pairs as Python finds."""
    explorer = explore(html)
    for layer, head, index in ((4, 8, 8), (1, "sum", 12)):
        counts = explorer.place.evaluate(
            f"Array.from({{ length: 1000 }}, (_, k) => reading.pairs({layer}, {index}, k / 1000).length)"
        )
        matrix = reading.matrix(layer, head).values
        upper = matrix[np.triu_indices(len(reading), k=1)]
        assert counts == [int((upper > k / 1000 * matrix.max()).sum()) for k in range(1000)]


def test_selected_layers_and_heads_keep_their_numbers(reading: Reading, explore: Open) -> None:
    chosen = reading.select(layers=[1, 4], heads=[6, 9])
    explorer = explore(chosen.page(start=(4, 9)))
    assert explorer.name() == "L4H9"
    assert list(explorer.thumbs()) == ["L1H6", "L1H9", "L1sum", "L4H6", "L4H9", "L4sum"]
    for layer, head in ((4, 9), (1, "sum")):
        explorer.choose(layer, head)
        assert_pairs(explorer, wanted(chosen, layer, head, 0.3), largest(chosen, layer, head))
    assert explorer.page.evaluate("location.hash") == "#L1sum"


def test_nothing_but_outputs(explore: Open) -> None:
    reading = random_reading(TOKENS, maps=False)
    explorer = explore(reading)
    assert_pairs(explorer, wanted(reading, 2, 0, 0.3), largest(reading, 2, 0))
    assert explorer.page.locator(".map").count() == 1
    explorer.press("v")
    assert explorer.state()["view"] == "high"
    explorer.press("v", "a", ".", ",")
    assert {"view": "values", "kind": "similarity", "tau": 0.3}.items() <= explorer.state().items()
    explorer.hover("similarity", 2, 5)
    assert "attention" not in explorer.texts("#tip")[0]


def test_the_smallest_reading_and_one_without_pairs(explore: Open) -> None:
    outputs = np.array([[1.0, 0.0], [-1.0, 1.0]])[None, :, None]
    explorer = explore(Reading.from_arrays(["a", "b"], outputs, np.full((1, 1, 2, 2), 0.5)))
    assert explorer.ask("pairs") == []
    assert explorer.ask("dominant") is None
    explorer.pick(1)
    assert "No partner in L0H0" in explorer.texts("#token-card")[0]
    assert "L0H0 has no pairs" in explorer.texts("#token-card")[0]
    assert "dominant token of no head" in explorer.texts("#token-card")[0]
    assert explorer.texts(".strip .partners") == ["no partner"]
    explorer.hover("similarity", 0, 1)
    assert "−1.000 of the largest" in explorer.texts("#tip")[0]


HELD_BACK = """(() => { let calls = 0;
    const whole = Response.prototype.arrayBuffer, gate = new Promise((open) => { globalThis.release = open; });
    Response.prototype.arrayBuffer = async function () { if (calls++) await gate; return whole.call(this); };
})()"""
"""only the first layer asked for is unpacked before `release()`"""


def test_it_can_be_used_while_layers_are_unpacked(plain: Reading, explore: Open) -> None:
    explorer = explore(plain)
    explorer.page.add_init_script(HELD_BACK)
    explorer.page.reload()
    explorer.until("document.documentElement.dataset.ready === 'head'")
    assert_pairs(explorer, wanted(plain, 2, 0, 0.3), largest(plain, 2, 0))
    explorer.pick(3)
    assert "Unpacking" in explorer.texts("#dominant-list")[0]
    explorer.press("Escape", "ArrowUp", "p")  # a layer that is not there yet
    explorer.hover("similarity", 1, 2)
    explorer.press("p", "w", "x", "v", "Escape", "w", "x")
    assert explorer.page.evaluate("document.documentElement.dataset.ready") == "head"
    explorer.page.evaluate("release()")
    explorer.wait()
    assert explorer.name() == "L1H0"
    assert_pairs(explorer, wanted(plain, 1, 0, 0.3), largest(plain, 1, 0))
    assert len(set(explorer.thumbs().values())) == 9
