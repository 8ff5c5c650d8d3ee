"""In a browser without network: page and Python agree on pairs, lines, blocks, regions and dominant tokens."""

from __future__ import annotations

import numpy as np
import pytest

from headscope import Reading
from headscope.readings.reading import Head
from tests.helpers.explorer import (
    TOKENS,
    ExplorerOpener,
    assert_pairs,
    find_pairs,
    get_largest,
    make_random_reading,
    make_threshold_reading,
    parse_numbers,
)

pytestmark = pytest.mark.browser


HEADS: list[tuple[int, Head]] = [(0, 3), (1, 5), (4, 8), (2, "sum")]


def test_pairs_and_dominant_tokens_agree(reading: Reading, html: str, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(html)
    seen = set()
    for layer, head in HEADS:
        explorer.choose(layer, head)
        for theta in (0.0, 0.3, 0.517):
            explorer.type_threshold("theta", theta)
            expected = find_pairs(reading, layer, head, theta)
            assert_pairs(explorer, expected, get_largest(reading, layer, head))
            assert explorer.get_texts("#pairs-title")[0].startswith(f"{len(expected):,} pair")
            seen.add(len(expected))
            (expected_dominant,) = reading.dominant(layer, head, theta).to_dict("records")
            dominant = explorer.query("dominant")
            assert (dominant["token"], dominant["pairs"]) == (expected_dominant["token"], expected_dominant["pairs"])
            assert dominant["count"] == round(expected_dominant["share"] * expected_dominant["pairs"])
    assert len(seen) > 8
    assert max(seen) > 200  # more rows than a table shows at first


def test_pairs_of_words_without_special_tokens(reading: Reading, html: str, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(html)
    for words, hide in ((True, True), (True, False), (False, True)):
        explorer.set_toggle("words", words)
        explorer.set_toggle("hide", hide)
        for layer, head in HEADS:
            explorer.choose(layer, head)
            expected = find_pairs(reading, layer, head, 0.3, words=words, special=not hide)
            assert 0 < len(expected) < len(find_pairs(reading, layer, head, 0.3))
            assert_pairs(explorer, expected, get_largest(reading, layer, head))


def test_coarse_pages_agree_for_two_decimals(reading: Reading, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(reading.to_html(precision="coarse"))
    for layer, head in HEADS[1:]:
        explorer.choose(layer, head)
        for theta in (0.07, 0.58):
            explorer.type_threshold("theta", theta)
            assert_pairs(explorer, find_pairs(reading, layer, head, theta), get_largest(reading, layer, head), "coarse")
        for tau in (0.07, 0.29):
            explorer.type_threshold("tau", tau)
            expected = reading.blocks(layer, head, tau)
            assert explorer.query("blocks") == expected[["start", "stop"]].to_dict("records")
    explorer.type_threshold("theta", 0.314)
    assert explorer.get_state()["theta"] == 0.31


def test_lines_blocks_and_regions_agree(reading: Reading, html: str, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(html)
    counts = set()
    for layer, head in ((0, 3), (5, 11), (5, "sum")):
        explorer.choose(layer, head)
        for tau in (0.05, 0.3, 0.555):
            explorer.type_threshold("tau", tau)
            lines, blocks = reading.lines(layer, head, tau), reading.blocks(layer, head, tau)
            shown_lines = explorer.query("lines")
            assert [(line["index"], line["token"]) for line in shown_lines] == list(
                zip(lines["index"], lines["token"], strict=True)
            )
            np.testing.assert_allclose([line["received"] for line in shown_lines], lines["received"], atol=1 / 8_000)
            assert explorer.query("blocks") == blocks[["start", "stop"]].to_dict("records")
            means = reading.regions(layer, head, tau).values / get_largest(reading, layer, head)
            shown_means = np.array(explorer.query("regions"), dtype=float)
            np.testing.assert_allclose(shown_means, means, atol=1e-4, rtol=0)
            rows = explorer.read_rows("blocks")
            tokens = reading.tokens.values
            for k, (row, start, stop) in enumerate(zip(rows, blocks["start"], blocks["stop"], strict=True)):
                assert row[0] == str(k)
                assert row[1] == (str(start) if stop == start + 1 else f"{start}–{stop - 1}")
                assert row[2] == (tokens[stop - 1] if stop - 1 in set(lines["index"]) else "–")
                if np.isnan(means[k, k]):
                    assert row[3] == "–"
                else:
                    assert parse_numbers(row[3]) == [pytest.approx(means[k, k], abs=6e-4)]
            assert parse_numbers(explorer.get_texts("#blocks-title")[0]) == [len(lines), len(blocks)]
            counts.add(len(blocks))
    assert len(counts) > 4


@pytest.mark.parametrize("precision", ["fine", "coarse"])
def test_values_exactly_on_a_threshold(precision: str, open_explorer: ExplorerOpener) -> None:
    reading = make_threshold_reading()
    explorer = open_explorer(reading.to_html(precision=precision))
    pairs_found = []
    for theta in (0.24, 0.25, 0.49, 0.5, 0.99):
        explorer.type_threshold("theta", theta)
        assert_pairs(explorer, find_pairs(reading, 0, 0, theta), 4.0, precision)
        pairs_found.append([(pair["index_i"], pair["index_j"]) for pair in explorer.query("pairs")])
    assert [len(pairs) for pairs in pairs_found] == [4, 3, 3, 1, 1]
    stops = []
    for tau in (0.08, 0.24, 0.25):
        explorer.type_threshold("tau", tau)
        assert [line["index"] for line in explorer.query("lines")] == reading.lines(0, 0, tau)["index"].tolist()
        assert explorer.query("blocks") == reading.blocks(0, 0, tau)[["start", "stop"]].to_dict("records")
        stops.append([block["stop"] for block in explorer.query("blocks")])
    assert stops == [[1, 2, 3, 4, 5], [1, 3, 5], [1, 5]]


def test_every_threshold_of_a_page(reading: Reading, html: str, open_explorer: ExplorerOpener) -> None:
    """At each of 1,000 thresholds, a head and a sum have as many pairs as in Python."""
    explorer = open_explorer(html)
    for layer, head, index in ((4, 8, 8), (1, "sum", 12)):
        counts = explorer.frame.evaluate(
            f"Array.from({{ length: 1000 }}, (_, k) => reading.pairs({layer}, {index}, k / 1000).length)"
        )
        matrix = reading.matrix(layer, head).values
        upper = matrix[np.triu_indices(len(reading), k=1)]
        assert counts == [int((upper > k / 1000 * matrix.max()).sum()) for k in range(1000)]


def test_selected_layers_and_heads_keep_their_numbers(reading: Reading, open_explorer: ExplorerOpener) -> None:
    selected = reading.select(layers=[1, 4], heads=[6, 9])
    explorer = open_explorer(selected.to_html(start=(4, 9)))
    assert explorer.get_name() == "L4H9"
    assert list(explorer.read_thumbnails()) == ["L1H6", "L1H9", "L1sum", "L4H6", "L4H9", "L4sum"]
    for layer, head in ((4, 9), (1, "sum")):
        explorer.choose(layer, head)
        assert_pairs(explorer, find_pairs(selected, layer, head, 0.3), get_largest(selected, layer, head))
    assert explorer.page.evaluate("location.hash") == "#L1sum"


def test_nothing_but_outputs(open_explorer: ExplorerOpener) -> None:
    reading = make_random_reading(TOKENS, maps=False)
    explorer = open_explorer(reading)
    assert_pairs(explorer, find_pairs(reading, 2, 0, 0.3), get_largest(reading, 2, 0))
    assert explorer.page.locator(".map").count() == 1
    explorer.press("v")
    assert explorer.get_state()["view"] == "high"
    explorer.press("v", "a", ".", ",")
    assert {"view": "values", "kind": "similarity", "tau": 0.3}.items() <= explorer.get_state().items()
    explorer.hover("similarity", 2, 5)
    assert "attention" not in explorer.get_texts("#tip")[0]


def test_the_smallest_reading_and_one_without_pairs(open_explorer: ExplorerOpener) -> None:
    outputs = np.array([[1.0, 0.0], [-1.0, 1.0]])[None, :, None]
    explorer = open_explorer(Reading.from_arrays(["a", "b"], outputs, np.full((1, 1, 2, 2), 0.5)))
    assert explorer.query("pairs") == []
    assert explorer.query("dominant") is None
    explorer.pick_token(1)
    assert "No partner in L0H0" in explorer.get_texts("#token-card")[0]
    assert "L0H0 has no pairs" in explorer.get_texts("#token-card")[0]
    assert "dominant token of no head" in explorer.get_texts("#token-card")[0]
    assert explorer.get_texts(".strip .partners") == ["no partner"]
    explorer.hover("similarity", 0, 1)
    assert "−1.000 of the largest" in explorer.get_texts("#tip")[0]


DELAY_LAYERS = """(() => { let calls = 0;
    const whole = Response.prototype.arrayBuffer, gate = new Promise((open) => { globalThis.release = open; });
    Response.prototype.arrayBuffer = async function () { if (calls++) await gate; return whole.call(this); };
})()"""
"""script that lets only the first requested layer be unpacked until `release()` is called"""


def test_it_can_be_used_while_layers_are_unpacked(small_reading: Reading, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(small_reading)
    explorer.page.add_init_script(DELAY_LAYERS)
    explorer.page.reload()
    explorer.wait_until("document.documentElement.dataset.ready === 'head'")
    assert_pairs(explorer, find_pairs(small_reading, 2, 0, 0.3), get_largest(small_reading, 2, 0))
    explorer.pick_token(3)
    assert "Unpacking" in explorer.get_texts("#dominant-list")[0]
    explorer.press("Escape", "ArrowUp", "p")  # a layer that is not unpacked yet
    explorer.hover("similarity", 1, 2)
    explorer.press("p", "w", "x", "v", "Escape", "w", "x")
    assert explorer.page.evaluate("document.documentElement.dataset.ready") == "head"
    explorer.page.evaluate("release()")
    explorer.wait()
    assert explorer.get_name() == "L1H0"
    assert_pairs(explorer, find_pairs(small_reading, 1, 0, 0.3), get_largest(small_reading, 1, 0))
    assert len(set(explorer.read_thumbnails().values())) == 9
