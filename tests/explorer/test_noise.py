"""In a browser that can reach nothing: pairs that the text explains are told from noise, as Python tells them."""

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
from tests import tiny
from tests.explorer.explored import NEUTRAL, Elements, Explorer, Open, save, svg, wanted, written

pytestmark = pytest.mark.browser

STATES = {"all": ("explained", "noise"), "explained": ("explained",), "noise": ("noise",)}
KEYS = ["token_i", "token_j", "index_i", "index_j", "relation"]


def kinds(table: pd.DataFrame) -> pd.Series:
    return table["relation"].map(lambda relation: "explained" if relation else "noise")


def assert_related(explorer: Explorer, expected: pd.DataFrame, which: str = "all") -> None:
    """The page counts all pairs, and lists, tells and draws those of the kinds asked for, each as what it is."""
    counts = Counter(kinds(expected))
    title = explorer.texts("#pairs-title")[0]
    assert re.sub(r" in L\d+(H\d+|sum)", "", title) == (
        f"{len(expected)} pair{'s' * (len(expected) != 1)}, {counts['explained']} explained, {counts['noise']} noise"
    )
    part = expected[kinds(expected).isin(STATES[which])]
    told = [[pair[key] for key in KEYS] for pair in explorer.ask("pairs")]
    assert told == part[KEYS].values.tolist()
    shown = [[*row[:2], int(row[2]), int(row[3]), row[5]] for row in explorer.rows("pairs")]
    assert shown == part[KEYS].replace({"relation": {"": "noise"}}).values.tolist()
    for row in ("tr.noise", "tr:not(.noise)"):
        words = set(explorer.texts(f"#pairs tbody {row} td:last-child"))
        assert ("noise" in words) == (row == "tr.noise") or not words
    noise = Counter(kinds(part))["noise"]
    assert explorer.page.locator("#arcs path.noise").count() == noise
    assert explorer.page.locator("#arcs path").count() == len(part)


def test_relations_are_pythons(reading: Reading, html: str, explore: Open) -> None:
    explorer = explore(html)
    seen: set[str] = set()
    heads: tuple[tuple[int, Head], ...] = ((0, 3), (4, 8), (2, "sum"))
    for words in (False, True):
        explorer.flip("words", words)
        explorer.flip("hide", words)
        for layer, head in heads:
            explorer.choose(layer, head)
            for theta in (0.3,) if words else (0.3, 0.517):
                explorer.type("theta", theta)
                expected = wanted(reading, layer, head, theta, words=words, special=not words, explain=True)
                seen |= set(expected["relation"])
                assert_related(explorer, expected)
    assert {"", "equal", "sentence", "sentence + neighbours"} <= seen


DOTS = """([box, n]) => { const data = box.getContext('2d').getImageData(0, 0, box.width, box.height).data;
    const alpha = (r, c) => data[(Math.floor(r * box.width / n) * box.width + Math.floor(c * box.width / n)) * 4 + 3];
    const all = [...Array(n).keys()], places = [[0.5, 0.5], [0.5, 0.1], [0.1, 0.5]];
    return places.map(([y, x]) => all.map((r) => all.map((c) => alpha(r + y, c + x)))); }"""


def dots(explorer: Explorer, n: int) -> np.ndarray[Any, Any]:
    """Which cells of the similarity map have a dot in their middle, and nothing at their edges."""
    box = explorer.page.locator("#similarity canvas.dots")
    if box.is_hidden():
        return np.zeros((n, n), dtype=bool)
    middle, *edges = np.array(explorer.page.evaluate(DOTS, [box.element_handle(), n]))
    assert not np.any(edges)
    return np.asarray(middle > 0)


def test_the_switch(plain: Reading, explore: Open) -> None:
    explorer = explore(plain)
    n = len(plain)
    explorer.switch("view", "high")
    for layer, head, theta, step in ((2, 0, 0.3, "n"), (1, "sum", 0.2, "click")):
        explorer.choose(layer, head)
        explorer.type("theta", theta)
        expected = wanted(plain, layer, head, theta, explain=True)
        assert set(kinds(expected)) == {"explained", "noise"}
        for which in ("explained", "noise", "all"):
            explorer.leave_controls()
            if step == "n":
                explorer.press("n")
            else:
                explorer.switch("pairs", which)
            assert_related(explorer, expected, which)
            assert (f"pairs={which}" in explorer.page.url) == (which != "all")
            part = expected[kinds(expected).isin(STATES[which])]
            assert explorer.marked("in") == sorted({*part["index_i"], *part["index_j"]})
            coloured = ~(np.abs(explorer.pixels("similarity")[..., :3] - NEUTRAL["light"]) <= 3).all(-1)
            for kind, found in (("explained", coloured), ("noise", dots(explorer, n))):
                drawn = part[kinds(part) == kind]
                cells = np.zeros((n, n), dtype=bool)
                cells[drawn["index_i"], drawn["index_j"]] = True
                assert (found == cells | cells.T).all(), (which, kind)
    explorer.switch("view", "values")
    assert not dots(explorer, n).any()


LOOKS = """(path) => { path.style.setProperty('--strength', 0.5); const style = getComputedStyle(path);
    return [style.strokeDasharray, parseFloat(style.strokeWidth)]; }"""


def assert_told_without_colours(explorer: Explorer) -> None:
    arcs = explorer.page.locator("#arcs")
    dashed, width = arcs.locator("path.noise").first.evaluate(LOOKS)
    whole, wider = arcs.locator("path:not(.noise)").first.evaluate(LOOKS)
    assert dashed != whole == "none"
    assert width < wider


def test_a_chosen_token_and_the_switch_after_a_reload(plain: Reading, explore: Open) -> None:
    explorer = explore(plain)
    token = 7
    assert_told_without_colours(explorer)
    explorer.pick(token)
    assert_told_without_colours(explorer)
    table = wanted(plain, 2, 0, 0.3, explain=True)
    near = table[(table["index_i"] == token) | (table["index_j"] == token)]
    partners = {kind: sorted(part["index_i"] + part["index_j"] - token) for kind, part in near.groupby(kinds(near))}
    assert set(partners) == {"explained", "noise"}
    for which, shown in (("all", STATES["all"]), ("noise", ("noise",)), ("explained", ("explained",))):
        explorer.switch("pairs", which)
        if which == "noise":
            explorer.page.reload()
            explorer.wait()
            assert explorer.state()["pairs"] == which
        assert explorer.marked("partner") == sorted(i for kind in shown for i in partners[kind])
        assert explorer.marked("partner.noise") == (partners["noise"] if "noise" in shown else [])
        chips = explorer.page.locator("#token-card p").first.locator(".chip")
        assert chips.count() == sum(len(partners[kind]) for kind in shown)
        assert chips.and_(explorer.page.locator(".noise")).count() == len(partners["noise"]) * ("noise" in shown)
        first = explorer.texts("#token-card p")[0]
        assert (f"{which} partner" in first) == (which != "all")
        assert (f"{len(partners['noise'])} noise:" in first) == (which == "all")
        for layer in plain.layers:
            rows = wanted(plain, layer, 0, 0.3, explain=True)
            rows = rows[((rows["index_i"] == token) | (rows["index_j"] == token)) & kinds(rows).isin(shown)]
            best = rows.sort_values("value", ascending=False)[:4]
            listed = explorer.page.locator(".strip").nth(layer).locator(".partners bdi")
            assert listed.locator("sub").all_text_contents() == [
                str(i + j - token) for i, j in zip(best["index_i"], best["index_j"], strict=True)
            ]
    explorer.press("Escape")
    explorer.hover("similarity", *table.loc[table["relation"] == "", ["index_i", "index_j"]].iloc[0])
    assert explorer.texts("#tip span")[-1].endswith("high pair: noise")


def test_files_hold_what_is_shown(plain: Reading, explore: Open) -> None:
    explorer = explore(plain)
    explorer.switch("view", "high")
    table = wanted(plain, 2, 0, 0.3, explain=True)
    for which, shown in STATES.items():
        explorer.switch("pairs", which)
        part = table[kinds(table).isin(shown)]
        rows = list(csv.DictReader(io.StringIO(save(explorer, "pairs", "csv").read_text(encoding="utf-8"))))
        assert [row["relation"] for row in rows] == part["relation"].tolist()
        assert [int(row["index_j"]) for row in rows] == part["index_j"].tolist()
        noise = int((part["relation"] == "").sum())
        root = svg(save(explorer, "text", "svg"))
        paths = [each.attrib for each in root.iter("{http://www.w3.org/2000/svg}path")]
        assert len(paths) == len(part)
        assert sum("stroke-dasharray" in each for each in paths) == noise
        caption = {"all": "noise dashed", "explained": "explained pairs only", "noise": "noise pairs only"}[which]
        assert written(root)[0].endswith(caption)
        paths = [each.attrib for each in svg(save(explorer, "maps", "svg")).iter("{http://www.w3.org/2000/svg}path")]
        drawn = [each["d"].count("M") for each in paths if each.get("fill") == "#6b707a"]
        assert drawn == [2 * noise] * (noise > 0)
    with explorer.page.expect_download() as download:
        explorer.page.locator("[data-save=pairs]").click()
    assert download.value.suggested_filename.endswith("L2H0-pairs-noise.csv")


def test_of_an_image_nothing_is_told(explore: Open) -> None:
    reading = headscope.read(tiny.vision_model(), tiny.pictures(1)[0])
    explorer = explore(reading)
    explorer.page.goto(f"{explorer.page.url.partition('#')[0]}#L0H0&pairs=noise")
    explorer.settle()
    explorer.press("n")
    assert explorer.state()["pairs"] == "all"
    pairs = wanted(reading, 0, 0, 0.3)
    assert explorer.texts("#pairs-title")[0] == f"{len(pairs)} pairs in L0H0"
    assert explorer.page.locator("[name=pairs], .noise, .dots, #pairs-note").count() == 0
    assert {len(row) for row in explorer.rows("pairs")} == {5}
    assert "relation" not in save(explorer, "pairs", "csv").read_text(encoding="utf-8").partition("\n")[0]
    explorer.switch("view", "high")
    coloured = ~(np.abs(explorer.pixels("similarity")[..., :3] - NEUTRAL["light"]) <= 3).all(-1)
    assert coloured.sum() == 2 * len(pairs)


def test_what_the_page_says_of_noise(plain: Reading, explore: Open) -> None:
    assert "they are equal, lie in one sentence, or are neighbours" in Elements(plain.page()).text
    unknown = Reading.from_arrays(["a", "##b", "c", "d", "##b", "e"], np.ones((1, 6, 1, 1)))
    explorer = explore(unknown)
    assert "they are equal or neighbours (sentences are not known here)" in explorer.texts(".meaning p")[1]
    for words in (False, True):  # a##b and d##b are equal in their second tokens
        explorer.flip("words", words)
        assert_related(explorer, wanted(unknown, 0, 0, 0.3, words=words, explain=True))
    image = headscope.read(tiny.vision_model(), tiny.pictures(1)[0])
    assert "noise" not in Elements(image.page()).text
