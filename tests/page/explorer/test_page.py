"""The explorer as text: its contents and data, and that no token, text or name in it becomes markup."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headscope
from headscope import Reading
from headscope.errors import ReadingError
from headscope.model.model import Model
from headscope.page import notebook
from headscope.page.explorer import split_into_pieces
from tests.helpers.explorer import (
    HOSTILE,
    TEXT,
    Elements,
    list_shown_tokens,
    make_random_reading,
    make_threshold_reading,
)
from tests.helpers.hostile import ALL

MAX_PAGE_BYTES = 5_000_000
"""limit in bytes for the page of 12 × 12 heads and 128 tokens"""


@pytest.fixture(scope="module")
def reading(minilm: Model) -> Reading:
    return headscope.read(minilm, TEXT)


@pytest.fixture(scope="module")
def hostile() -> str:
    reading = make_random_reading(HOSTILE, name=ALL + "\0\ud83d")
    return reading.to_html()


def parse_data(html: str) -> Any:
    """Return the JSON data of a page, which are all data but the matrices."""
    (text,) = [data for attributes, data in Elements(html).scripts if attributes.get("id") == "data"]
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_one_script_that_the_policy_allows(reading: Reading) -> None:
    html = reading.to_html()
    scripts = Elements(html).scripts
    running = [data for attributes, data in scripts if attributes.get("type") is None]
    others = [attributes["type"] for attributes, _ in scripts if "type" in attributes]
    assert len(running) == 1
    assert others == ["application/json", *["text/plain"] * 6]
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', html)
    assert policy is not None
    digest = base64.b64encode(hashlib.sha256(running[0].encode()).digest()).decode()
    allowed = policy[1].replace("&#39;", "'").split("; ")
    assert allowed[0] == "default-src 'none'"
    assert [rule for rule in allowed if rule.startswith("script-src")] == [f"script-src 'sha256-{digest}'"]
    assert "connect-src" not in policy[1]
    assert html.index("Content-Security-Policy") < html.index("<style>") < html.index("<script>")


def test_nothing_is_fetched_and_no_handler_stands_in_the_markup(reading: Reading, hostile: str) -> None:
    for html in (reading.to_html(), hostile):
        elements = Elements(html)
        attributes = [(tag, name, value or "") for tag, attrs in elements.tags for name, value in attrs.items()]
        assert not [attribute for attribute in attributes if attribute[1].startswith("on")]
        assert not [
            attribute for attribute in attributes if attribute[1] in ("src", "srcset", "srcdoc", "action", "style")
        ]
        assert [value for _, name, value in attributes if name == "href"] == ["#main"]
        addresses = set(
            re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"'`]*", re.sub(r">[A-Za-z0-9+/=]+</script>", "", html))
        )
        assert addresses == {"http://www.w3.org/2000/svg"}  # an XML namespace, which is not fetched
        assert "@import" not in html
        assert "url(" not in html


def test_no_text_becomes_an_element(hostile: str) -> None:
    elements = Elements(hostile)
    assert elements.count("script") == 2 + 3
    assert not [tag for tag, _ in elements.tags if tag in ("b", "img", "iframe", "object", "embed", "link")]
    assert elements.count("style") == elements.count("title") == 1
    assert "{{7*7}}" in elements.text
    name = ALL + "\ufffd\ufffd"
    assert elements.text.count(name) == 3  # in the title, bar and manifest
    assert "\0" not in hostile
    hostile.encode("utf-8")


def test_tokens_are_carried_as_json_that_cannot_end_its_element(hostile: str) -> None:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', hostile, re.DOTALL)
    assert not set("<>&\u2028\u2029") & set(text)
    data = parse_data(hostile)
    assert data["tokens"] == list_shown_tokens()
    assert data["model"] == ALL + "\ufffd\ufffd"
    assert data["tokens"][5] == "U+202E"
    assert data["tokens"][9] == "U+0000"
    assert data["tokens"][17:19] == ["U+0020", "empty token"]
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,80}", data["file"])


def test_the_text_in_pieces(reading: Reading) -> None:
    shown_pieces = split_into_pieces(reading)
    assert "".join(gap + shown for gap, shown in shown_pieces) == f"[CLS] {TEXT} [SEP]"
    assert [shown for _, shown in shown_pieces][11:15] == ["un", "pol", "ice", "able"]
    assert [gap for gap, _ in shown_pieces][11:15] == [" ", "", "", ""]


def test_pieces_of_a_hostile_text(minilm: Model) -> None:
    text = "Hi \x1b[2J\0 <b>you</b>\n\n\n\n\u202ethere \u2028 👩\u200d👩 x" + "\n" * 9 + "end"
    reading = headscope.read(minilm, text)
    data = parse_data(reading.to_html())
    joined = "".join(gap + shown for gap, shown in data["pieces"])
    assert "\x1b" not in joined
    assert "\0" not in joined
    assert "\n\n\n" not in joined
    assert "<b>you</b>" in joined
    assert joined.endswith("end [SEP]")
    assert Elements(reading.to_html()).count("b") == 0


def test_size_of_a_page_like_berts(minilm: Model) -> None:
    small = headscope.read(minilm, headscope.examples()["airport-policing"])
    data = small.data
    twice = Reading.from_arrays(
        data["token"].values.tolist(),
        np.concatenate([data["outputs"].values] * 2),
        np.concatenate([data["attention"].values] * 2),
        ids=data["token_id"].values,
        special=data["special"].values,
    )
    assert (len(twice.layers), len(twice.head_numbers), len(twice)) == (12, 12, 128)
    html = twice.to_html()
    assert "(fine)" in Elements(html).text
    assert len(html.encode()) < MAX_PAGE_BYTES
    assert len(twice.to_html(precision="coarse")) < 0.45 * len(html)


def test_what_the_page_says_of_its_precision(reading: Reading) -> None:
    fine, coarse = Elements(reading.to_html()).text, Elements(reading.to_html(precision="coarse")).text
    assert "72 heads and 6 sums, in steps of 1/8,000 of each matrix's largest (fine)" in fine
    assert "exactly those of Python, for θ and τ of 3 decimals" in fine
    assert "255 levels" in fine
    assert "in steps of 1/100 of each matrix's largest (coarse)" in coarse
    assert "exactly those of Python, for θ and τ of 2 decimals" in coarse
    assert "15 levels" in coarse
    assert parse_data(reading.to_html(precision="coarse"))["thresholds"] == 100
    for attribute in ('step="0.01"', 'max="0.99"'):
        assert attribute in reading.to_html(precision="coarse")
    for attribute in ('step="0.001"', 'max="0.999"'):
        assert attribute in reading.to_html()


def test_what_the_page_says_of_the_reading(reading: Reading, minilm: Model) -> None:
    text = Elements(reading.to_html()).text
    assert "6 layers × 12 heads · 22 tokens" in text
    assert reading.manifest["weight_hash"] in text
    assert f"torch {reading.manifest['versions']['torch']}" in text
    cut = headscope.read(minilm, TEXT, length=10)
    assert "the first 10 of 22 tokens" in Elements(cut.to_html()).text


def test_without_attention() -> None:
    html = make_random_reading(["a", "b", "c", "a"], maps=False).to_html()
    elements = Elements(html)
    ids = [attributes.get("id") for _, attributes in elements.tags]
    assert "none: this reading was made from outputs alone" in elements.text
    assert {"similarity", "theta", "pairs"} <= set(ids)
    assert not {"attention", "tau", "tau-number", "blocks"} & set(ids)
    values = [attributes.get("value") for tag, attributes in elements.tags if tag == "input"]
    assert {"values", "high"} <= set(values)
    assert not {"lines", "regions", "attention"} & set(values)
    assert parse_data(html)["attention"] is False


def test_one_layer_one_head_two_tokens() -> None:
    outputs = np.array([[1.0, 0.0], [1.0, 1.0]])[None, :, None]
    data = parse_data(Reading.from_arrays(["a", "b"], outputs, np.full((1, 1, 2, 2), 0.5)).to_html())
    assert (data["layers"], data["heads"], data["tokens"]) == ([0], [0], ["a", "b"])
    assert data["scales"] == [[1.0, 1.0]]
    assert data["kind"] == [0, 1]


def test_where_it_opens() -> None:
    reading = make_random_reading(["a", "b", "c"], layers=3, heads=2)
    assert parse_data(reading.to_html())["start"] is None
    assert parse_data(reading.to_html(start=(1, 1)))["start"] == [1, 1]
    assert parse_data(reading.to_html(start=(0, "sum")))["start"] == [0, 2]
    for absent, named in (((3, 0), "L3H0"), ((0, 2), "L0H2"), ((7, "sum"), "L7sum")):
        with pytest.raises(ReadingError, match=f"no head {named}"):
            reading.to_html(start=absent)


def test_selected_heads_keep_their_numbers(reading: Reading) -> None:
    selected = reading.select(layers=[4, 1], heads=[7, 9])
    html = selected.to_html(start=(1, 9))
    data = parse_data(html)
    assert (data["layers"], data["heads"], data["start"]) == ([4, 1], [7, 9], [1, 1])
    labels = re.findall(r"<option value=\"(\d+)\">(\w+)</option>", html)
    assert labels == [("0", "4"), ("1", "1"), ("0", "7"), ("1", "9"), ("2", "sum")]
    with pytest.raises(ReadingError, match="no head L4H0"):
        selected.to_html(start=(4, 0))
    largest = selected.matrix(1, "sum").values.max()
    assert data["scales"][1][2] == pytest.approx(largest)
    assert largest < reading.matrix(1, "sum").values.max()


def test_thresholds_of_the_reading_are_where_the_page_starts() -> None:
    for precision, theta, tau in (("fine", 0.123, 0.988), ("coarse", 0.12, 0.99)):
        reading = make_random_reading(["a", "b", "c"], theta=0.1234, tau=0.9876)
        data = parse_data(reading.to_html(precision=precision))
        assert (data["theta"], data["tau"]) == (theta, tau)
    almost = parse_data(make_random_reading(["a", "b", "c"], theta=0.9999).to_html())
    assert almost["theta"] == 0.999


def test_written_to_a_file(tmp_path: Path) -> None:
    reading = make_threshold_reading()
    html = reading.to_html(tmp_path / "reading.html")
    assert (tmp_path / "reading.html").read_text(encoding="utf-8") == html
    assert html.startswith("<!doctype html>")


# In a notebook


def test_frame_holds_the_whole_page_and_nothing_else() -> None:
    reading = make_random_reading(HOSTILE, name=ALL)
    html = reading._repr_html_()
    elements = Elements(html)
    assert [tag for tag, _ in elements.tags] == ["div", "strong", "bdi", "iframe"]
    assert elements.text.startswith(f"Reading of {ALL}")
    attributes = elements.tags[-1][1]
    assert attributes["sandbox"] == "allow-scripts allow-downloads"
    assert attributes["srcdoc"] == reading.to_html()
    assert "src" not in attributes


def test_frame_of_a_very_large_reading_says_how_to_see_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "MAX_PAGE_SIZE", 1000)
    html = make_random_reading(HOSTILE, name=ALL)._repr_html_()
    elements = Elements(html)
    assert not elements.count("iframe")
    assert not elements.count("script")
    assert "too large for a notebook" in elements.text
    assert 'reading.to_html("reading.html")' in elements.text
    assert ALL in elements.text
