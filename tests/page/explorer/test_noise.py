"""In a browser without network: explained pairs and noise are distinguished as in Python."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import pytest

import headscope
from headscope import Reading
from headscope.readings.reading import Head
from tests.helpers import tiny
from tests.helpers.explorer import NEUTRAL, Elements, Explorer, ExplorerOpener, find_pairs, list_texts, read_svg, save

pytestmark = pytest.mark.browser

STATES = {"all": ("explained", "noise"), "explained": ("explained",), "noise": ("noise",)}
KEYS = ["token_i", "token_j", "index_i", "index_j", "relation"]


def classify(table: pd.DataFrame) -> pd.Series:
    return table["relation"].map(lambda relation: "explained" if relation else "noise")


def assert_related(explorer: Explorer, expected: pd.DataFrame, state: str = "all") -> None:
    """Check that the page counts all pairs, and lists, returns and draws those of the selected kinds."""
    counts = Counter(classify(expected))
    title = explorer.get_texts("#pairs-title")[0]
    assert re.sub(r" in L\d+(H\d+|sum)", "", title) == (
        f"{len(expected)} pair{'s' * (len(expected) != 1)}, {counts['explained']} explained, {counts['noise']} noise"
    )
    shown_pairs = expected[classify(expected).isin(STATES[state])]
    answer = [[pair[key] for key in KEYS] for pair in explorer.query("pairs")]
    assert answer == shown_pairs[KEYS].values.tolist()
    shown = [[*row[:2], int(row[2]), int(row[3]), row[5]] for row in explorer.read_rows("pairs")]
    assert shown == shown_pairs[KEYS].replace({"relation": {"": "noise"}}).values.tolist()
    for row in ("tr.noise", "tr:not(.noise)"):
        relations = set(explorer.get_texts(f"#pairs tbody {row} td:last-child"))
        assert ("noise" in relations) == (row == "tr.noise") or not relations
    noise = Counter(classify(shown_pairs))["noise"]
    assert explorer.page.locator("#arcs path.noise").count() == noise
    assert explorer.page.locator("#arcs path").count() == len(shown_pairs)


def test_relations_agree(reading: Reading, html: str, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(html)
    seen: set[str] = set()
    heads: tuple[tuple[int, Head], ...] = ((0, 3), (4, 8), (2, "sum"))
    for words in (False, True):
        explorer.set_toggle("words", words)
        explorer.set_toggle("hide", words)
        for layer, head in heads:
            explorer.choose(layer, head)
            for theta in (0.3,) if words else (0.3, 0.517):
                explorer.type_threshold("theta", theta)
                expected = find_pairs(reading, layer, head, theta, words=words, special=not words, explain=True)
                seen |= set(expected["relation"])
                assert_related(explorer, expected)
    assert {"", "equal", "sentence", "sentence + neighbours"} <= seen


DOTS = """([box, n]) => { const data = box.getContext('2d').getImageData(0, 0, box.width, box.height).data;
    const alpha = (r, c) => data[(Math.floor(r * box.width / n) * box.width + Math.floor(c * box.width / n)) * 4 + 3];
    const all = [...Array(n).keys()], places = [[0.5, 0.5], [0.5, 0.1], [0.1, 0.5]];
    return places.map(([y, x]) => all.map((r) => all.map((c) => alpha(r + y, c + x)))); }"""


def find_dots(explorer: Explorer, n: int) -> np.ndarray[Any, Any]:
    """Return which cells of the similarity map have a dot; a dot is in the middle and does not reach the edges."""
    canvas = explorer.page.locator("#similarity canvas.dots")
    if canvas.is_hidden():
        return np.zeros((n, n), dtype=bool)
    middle, *edges = np.array(explorer.page.evaluate(DOTS, [canvas.element_handle(), n]))
    assert not np.any(edges)
    return np.asarray(middle > 0)


def test_the_switch(small_reading: Reading, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(small_reading)
    n = len(small_reading)
    explorer.select_option("view", "high")
    for layer, head, theta, step in ((2, 0, 0.3, "n"), (1, "sum", 0.2, "click")):
        explorer.choose(layer, head)
        explorer.type_threshold("theta", theta)
        expected = find_pairs(small_reading, layer, head, theta, explain=True)
        assert set(classify(expected)) == {"explained", "noise"}
        for state in ("explained", "noise", "all"):
            explorer.leave_controls()
            if step == "n":
                explorer.press("n")
            else:
                explorer.select_option("pairs", state)
            assert_related(explorer, expected, state)
            assert (f"pairs={state}" in explorer.page.url) == (state != "all")
            shown_pairs = expected[classify(expected).isin(STATES[state])]
            assert explorer.list_marked("in") == sorted({*shown_pairs["index_i"], *shown_pairs["index_j"]})
            coloured = ~(np.abs(explorer.read_pixels("similarity")[..., :3] - NEUTRAL["light"]) <= 3).all(-1)
            for kind, is_drawn in (("explained", coloured), ("noise", find_dots(explorer, n))):
                pairs = shown_pairs[classify(shown_pairs) == kind]
                cells = np.zeros((n, n), dtype=bool)
                cells[pairs["index_i"], pairs["index_j"]] = True
                assert (is_drawn == cells | cells.T).all(), (state, kind)
    explorer.select_option("view", "values")
    assert not find_dots(explorer, n).any()


LOOKS = """(path) => { path.style.setProperty('--strength', 0.5); const style = getComputedStyle(path);
    return [style.strokeDasharray, parseFloat(style.strokeWidth)]; }"""


def assert_distinct_without_colors(explorer: Explorer) -> None:
    arcs = explorer.page.locator("#arcs")
    dashed, width = arcs.locator("path.noise").first.evaluate(LOOKS)
    solid, solid_width = arcs.locator("path:not(.noise)").first.evaluate(LOOKS)
    assert dashed != solid == "none"
    assert width < solid_width


def test_a_chosen_token_and_the_switch_after_a_reload(small_reading: Reading, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(small_reading)
    token = 7
    assert_distinct_without_colors(explorer)
    explorer.pick_token(token)
    assert_distinct_without_colors(explorer)
    table = find_pairs(small_reading, 2, 0, 0.3, explain=True)
    near = table[(table["index_i"] == token) | (table["index_j"] == token)]
    partners = {kind: sorted(part["index_i"] + part["index_j"] - token) for kind, part in near.groupby(classify(near))}
    assert set(partners) == {"explained", "noise"}
    for state, shown in (("all", STATES["all"]), ("noise", ("noise",)), ("explained", ("explained",))):
        explorer.select_option("pairs", state)
        if state == "noise":
            explorer.page.reload()
            explorer.wait()
            assert explorer.get_state()["pairs"] == state
        assert explorer.list_marked("partner") == sorted(i for kind in shown for i in partners[kind])
        assert explorer.list_marked("partner.noise") == (partners["noise"] if "noise" in shown else [])
        chips = explorer.page.locator("#token-card p").first.locator(".chip")
        assert chips.count() == sum(len(partners[kind]) for kind in shown)
        assert chips.and_(explorer.page.locator(".noise")).count() == len(partners["noise"]) * ("noise" in shown)
        first = explorer.get_texts("#token-card p")[0]
        assert (f"{state} partner" in first) == (state != "all")
        assert (f"{len(partners['noise'])} noise:" in first) == (state == "all")
        for layer in small_reading.layers:
            rows = find_pairs(small_reading, layer, 0, 0.3, explain=True)
            rows = rows[((rows["index_i"] == token) | (rows["index_j"] == token)) & classify(rows).isin(shown)]
            best = rows.sort_values("value", ascending=False)[:4]
            listed = explorer.page.locator(".strip").nth(layer).locator(".partners bdi")
            assert listed.locator("sub").all_text_contents() == [
                str(i + j - token) for i, j in zip(best["index_i"], best["index_j"], strict=True)
            ]
    explorer.press("Escape")
    explorer.hover("similarity", *table.loc[table["relation"] == "", ["index_i", "index_j"]].iloc[0])
    assert explorer.get_texts("#tip span")[-1].endswith("high pair: noise")


def test_files_hold_what_is_shown(small_reading: Reading, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(small_reading)
    explorer.select_option("view", "high")
    table = find_pairs(small_reading, 2, 0, 0.3, explain=True)
    for state, shown in STATES.items():
        explorer.select_option("pairs", state)
        part = table[classify(table).isin(shown)]
        rows = list(csv.DictReader(io.StringIO(save(explorer, "pairs", "csv").read_text(encoding="utf-8"))))
        assert [row["relation"] for row in rows] == part["relation"].tolist()
        assert [int(row["index_j"]) for row in rows] == part["index_j"].tolist()
        noise = int((part["relation"] == "").sum())
        root = read_svg(save(explorer, "text", "svg"))
        paths = [attributes.attrib for attributes in root.iter("{http://www.w3.org/2000/svg}path")]
        assert len(paths) == len(part)
        assert sum("stroke-dasharray" in attributes for attributes in paths) == noise
        caption = {"all": "noise dashed", "explained": "explained pairs only", "noise": "noise pairs only"}[state]
        assert list_texts(root)[0].endswith(caption)
        paths = [
            attributes.attrib
            for attributes in read_svg(save(explorer, "maps", "svg")).iter("{http://www.w3.org/2000/svg}path")
        ]
        drawn = [attributes["d"].count("M") for attributes in paths if attributes.get("fill") == "#6b707a"]
        assert drawn == [2 * noise] * (noise > 0)
    with explorer.page.expect_download() as download:
        explorer.page.locator("[data-save=pairs]").click()
    assert download.value.suggested_filename.endswith("L2H0-pairs-noise.csv")


def test_pairs_of_an_image_have_no_relations(open_explorer: ExplorerOpener) -> None:
    reading = headscope.read(tiny.vision_model(), tiny.pictures(1)[0])
    explorer = open_explorer(reading)
    explorer.page.goto(f"{explorer.page.url.partition('#')[0]}#L0H0&pairs=noise")
    explorer.wait_until_drawn()
    explorer.press("n")
    assert explorer.get_state()["pairs"] == "all"
    pairs = find_pairs(reading, 0, 0, 0.3)
    assert explorer.get_texts("#pairs-title")[0] == f"{len(pairs)} pairs in L0H0"
    assert explorer.page.locator("[name=pairs], .noise, .dots, #pairs-note").count() == 0
    assert {len(row) for row in explorer.read_rows("pairs")} == {5}
    assert "relation" not in save(explorer, "pairs", "csv").read_text(encoding="utf-8").partition("\n")[0]
    explorer.select_option("view", "high")
    coloured = ~(np.abs(explorer.read_pixels("similarity")[..., :3] - NEUTRAL["light"]) <= 3).all(-1)
    assert coloured.sum() == 2 * len(pairs)


def test_what_the_page_says_of_noise(small_reading: Reading, open_explorer: ExplorerOpener) -> None:
    assert "they are equal, lie in one sentence, or are neighbours" in Elements(small_reading.to_html()).text
    unknown = Reading.from_arrays(["a", "##b", "c", "d", "##b", "e"], np.ones((1, 6, 1, 1)))
    explorer = open_explorer(unknown)
    assert "they are equal or neighbours (sentences are not known here)" in explorer.get_texts(".meaning p")[1]
    for words in (False, True):  # a##b and d##b are equal in their second tokens
        explorer.set_toggle("words", words)
        assert_related(explorer, find_pairs(unknown, 0, 0, 0.3, words=words, explain=True))
    image = headscope.read(tiny.vision_model(), tiny.pictures(1)[0])
    assert "noise" not in Elements(image.to_html()).text
