"""Readings to explore, and an explorer opened in a browser: what is shown in it, and how to work its controls."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd

from headscope import Reading
from headscope.page.words import visible
from headscope.readings.reading import Head
from tests.browser import PATIENCE

if TYPE_CHECKING:
    from playwright.sync_api import Frame, Page

    from tests.browser import Opened

TEXT = "The airport police met the ravens. Ravens, the unpoliceable birds, left the airport!"
"""22 tokens for minilm, with equal ones, two sentences and a word of four pieces"""
HOSTILE = [
    "[CLS]",
    "<script>alert(1)</script>",
    "</script>",
    "\"'><img src=x onerror=alert(1)>",
    "\u202eoverride",
    "\u202e",
    "👩\u200d👩\u200d👧",
    "nul\0bell\a",
    "\x1b[2J",
    "\0",
    "half\ud83d",
    "{{7*7}}",
    "{%raw%}",
    "line\u2028end\u2029",
    "&amp;&#60;",
    "]]>--><b>bold</b>",
    "\ufffe\uffff",
    " ",
    "",
    "##piece",
    "javascript:alert(1)",
    "w" * 90,
    '=1+1,"x"\n;\'',
    "[SEP]",
]
"""tokens that try to become markup, code, another direction of writing or a broken file"""
DIGITS = {"fine": 3, "coarse": 2}
MAPS = ("attention", "similarity")
PLAIN = ["the", "cat", "sat", ".", "the", "dog", "un", "##like", "##ly", "met", ",", "the", "owl", "!"]
TOKENS = ["[CLS]", *PLAIN, "[SEP]"]
NEUTRAL = {"light": [251, 250, 248], "dark": [27, 30, 36]}
STRONGEST = {"attention": [253, 231, 37], "similarity": [178, 24, 43]}
NOTHING_CHOSEN = {
    "diagonal": False, "raw": False, "words": False, "hide": False, "segments": False, "view": "values",
    "kind": "similarity", "pairs": "all",
    "token": -1, "zoom": None,
}  # fmt: skip


def names() -> list[str]:
    """The hostile tokens as a page is to show them."""
    return [visible(token.replace("\ud83d", "\ufffd")) for token in HOSTILE]


def random_reading(
    tokens: list[str], layers: int = 3, heads: int = 2, *, seed: int = 0, maps: bool = True, **options: Any
) -> Reading:
    """A reading of numbers that mean nothing, some of them negative, of unlike heads."""
    random = np.random.default_rng(seed)
    n = len(tokens)
    outputs = random.normal(0.4, 1, (layers, n, heads, 4))
    attention = random.dirichlet(np.full(n, 0.3), (layers, heads, n)) if maps else None
    special = [token in ("[CLS]", "[SEP]") for token in tokens]
    return Reading.from_arrays(tokens, outputs, attention, **{"special": special, **options})


def on_thresholds() -> Reading:
    """A reading whose similarities and column sums stand exactly on thresholds, in every way a sum can be rounded.

    C01 = 2, C03 = 2, C13 = 4, C23 = 1, C24 = −1, C34 = −1, others 0: of the largest ½, ½, 1, ¼, −¼, −¼. Columns of the
    map sum to 3, ½, ¾, ¼, ½: of the largest 1, 1/6, ¼, 1/12, 1/6.
    """
    written = np.array([[1, 0], [2, 0], [0, 1], [2, 1], [0, -1]], dtype=float)
    looks = np.array(
        [[1, 0, 0, 0, 0], [0.5, 0.5, 0, 0, 0], [0.5, 0, 0.5, 0, 0], [0.5, 0, 0.25, 0.25, 0], [0.5, 0, 0, 0, 0.5]]
    )
    tokens = ["[CLS]", "a", ".", "a", "[SEP]"]
    return Reading.from_arrays(
        tokens, written[None, :, None], looks[None, None], special=[token[0] == "[" for token in tokens]
    )


def numbers(text: str) -> list[float]:
    """Every number of a text, whichever minus it is written with."""
    return [float(found.replace("−", "-")) for found in re.findall(r"[−-]?\d+\.?\d*(?:e[+−-]?\d+)?", text)]


class Elements(HTMLParser):
    """All start tags of a piece of HTML, its text outside of scripts and styles, and what these hold."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.inside: list[tuple[dict[str, str | None], str]] = []
        """attributes and content of each script"""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.inside.append((self.tags[-1][1], data))
        elif self.cdata_elem is None:
            self.text += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


@dataclass
class Explorer:
    """An explorer in a browser; every method waits until the page has drawn what it was told."""

    opened: Opened
    place: Page | Frame
    """where the explorer is: the page, or a frame of it"""

    @property
    def page(self) -> Page:
        return self.opened.page

    def wait(self) -> Explorer:
        self.look()
        self.until("document.documentElement.dataset.ready === 'all'")
        self.settle()
        return self

    def look(self) -> None:
        """Have the explorer in sight: frames that are not are not drawn."""
        if self.place is not self.page:
            self.place.frame_element().scroll_into_view_if_needed()

    def until(self, condition: str) -> None:
        """Wait for something to become true. Playwright's own way of waiting is refused by the page's policy."""
        came = self.place.evaluate(
            f"""new Promise((done) => {{
                const look = () => {{ if ({condition}) done(true); else setTimeout(look, 20); }};
                look();
                setTimeout(() => done(false), {PATIENCE});
            }})"""
        )
        assert came, f"waited in vain for {condition}; errors of the page: {self.opened.errors}"

    def settle(self) -> None:
        """Until what was changed is drawn: that happens in the next frame, of what is in sight."""
        self.look()
        self.place.evaluate(
            f"""new Promise((done, failed) => {{
                requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done)));
                setTimeout(() => failed(new Error("nothing is drawn any more")), {PATIENCE});
            }})"""
        )

    def assert_quiet(self) -> None:
        """Nothing was fetched, nothing went wrong, nothing popped up."""
        assert self.opened.requests == []
        assert self.opened.errors == []
        assert self.opened.dialogs == []

    # -- what is shown ------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return dict(self.place.evaluate("headscope.state()"))

    def name(self) -> str:
        return str(self.state()["name"])

    def ask(self, what: str) -> Any:
        """What the page tells the console: pairs, lines, blocks, regions, dominant."""
        return self.place.evaluate(f"headscope.{what}()")

    def texts(self, selector: str) -> list[str]:
        """The whole text of each element, seen or not."""
        return list(self.place.locator(selector).all_text_contents())

    def rows(self, table: str) -> list[list[str]]:
        """The cells of a table's body; every row of it."""
        button = self.place.locator("#all-pairs")
        if table == "pairs" and button.is_visible():
            button.click()
        return list(
            self.place.locator(f"#{table} tbody tr").evaluate_all(
                "rows => rows.map((row) => [...row.cells].map((cell) => cell.textContent))"
            )
        )

    def pixels(self, kind: str) -> np.ndarray[Any, Any]:
        """The colours of a map's cells: rows, columns, RGBA."""
        return self.canvas(f"#{kind} canvas")

    def canvas(self, selector: str) -> np.ndarray[Any, Any]:
        width, height, data = self.place.locator(selector).first.evaluate(
            "(c) => [c.width, c.height, [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]]"
        )
        return np.array(data, dtype=int).reshape(height, width, 4)

    def thumbs(self) -> dict[str, str]:
        """The small maps by the names of their heads, as data addresses."""
        return dict(
            self.place.locator(".thumb").evaluate_all(
                "all => all.map((each) => [each.getAttribute('aria-label'), each.firstChild.toDataURL()])"
            )
        )

    def marked(self, kind: str) -> list[int]:
        """The places of the text's tokens that carry a class."""
        return [int(i) for i in self.place.locator(f".tok.{kind}").evaluate_all("all => all.map((e) => e.dataset.i)")]

    # -- what is done -------------------------------------------------------------------------------------------------

    def choose(self, layer: int | None = None, head: Head | None = None) -> None:
        if layer is not None:
            self.place.select_option("#layer", label=str(layer))
        if head is not None:
            self.place.select_option("#head", label=str(head))
        self.settle()

    def type(self, threshold: str, value: float | str) -> None:
        """Type a threshold (`theta` or `tau`) and press Enter."""
        field = self.place.locator(f"#{threshold}-number")
        if isinstance(value, str):  # key by key, as it may be no number
            field.fill("")
            field.press_sequentially(value)
        else:
            field.fill(str(value))
        field.press("Enter")
        self.settle()

    def flip(self, toggle: str, on: bool = True) -> None:
        self.place.locator(f"#{toggle}").set_checked(on)
        self.settle()

    def switch(self, group: str, value: str) -> None:
        """Choose of a row of segments: `view` or `kind`."""
        self.place.locator(f"label:has([name={group}][value={value}])").click()
        self.settle()

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)
        self.settle()

    def leave_controls(self) -> None:
        """So that keys are not typed into one."""
        self.place.evaluate("document.activeElement.blur()")

    def pick(self, token: int) -> None:
        """Click a token of the text."""
        self.place.locator(f".tok[data-i='{token}']").click()
        self.settle()

    def spot(self, kind: str, row: int, column: int) -> tuple[float, float]:
        """Where the middle of a map's cell is on the screen."""
        canvas = self.place.locator(f"#{kind} canvas").first
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        assert box is not None
        columns, rows = canvas.evaluate("(c) => [c.width, c.height]")
        return box["x"] + (column + 0.5) * box["width"] / columns, box["y"] + (row + 0.5) * box["height"] / rows

    def hover(self, kind: str, row: int, column: int) -> None:
        self.page.mouse.move(*self.spot(kind, row, column))

    def drag(self, kind: str, start: tuple[int, int], end: tuple[int, int]) -> None:
        self.page.mouse.move(*self.spot(kind, *start))
        self.page.mouse.down()
        self.page.mouse.move(*self.spot(kind, *end), steps=4)
        self.page.mouse.up()
        self.settle()


def assert_pairs(explorer: Explorer, expected: pd.DataFrame, largest: float, precision: str = "fine") -> None:
    """The table of the page and the console's are Python's, row by row."""
    digits, step = DIGITS[precision], {"fine": 1 / 8_000, "coarse": 1 / 100}[precision]
    shown = explorer.rows("pairs")
    wanted = [[i, j, str(a), str(b)] for i, j, a, b, *_ in expected.values.tolist()]
    assert [row[:4] for row in shown] == wanted
    printed = [float(row[4]) for row in shown]
    np.testing.assert_allclose(printed, expected["relative"], atol=0.5 * 10**-digits + step, rtol=0)
    assert all(re.fullmatch(rf"\d\.\d{{{digits}}}", row[4]) for row in shown)
    told = pd.DataFrame(explorer.ask("pairs"), columns=list(expected.columns))
    for name in ("token_i", "token_j", "index_i", "index_j"):
        assert told[name].tolist() == expected[name].tolist()
    np.testing.assert_allclose(told["relative"].astype(float), expected["relative"], atol=step, rtol=0)
    np.testing.assert_allclose(told["value"].astype(float), expected["value"], atol=step * largest, rtol=0)


def wanted(reading: Reading, layer: int, head: Head, theta: float, **options: Any) -> pd.DataFrame:
    return reading.pairs(layer, head, theta, **options)


def largest(reading: Reading, layer: int, head: Head) -> float:
    return float(reading.matrix(layer, head).values.max())


def close(colour: Any, other: list[int]) -> bool:
    return bool((np.abs(np.asarray(colour)[..., :3] - other) <= 3).all())


def save(explorer: Explorer, what: str, kind: str) -> Path:
    with explorer.page.expect_download() as download:
        explorer.place.locator(f"[data-save={what}][data-as={kind}]").click()
    assert download.value.suggested_filename.endswith(f".{kind}")
    return Path(download.value.path())


def svg(path: Path) -> ElementTree.Element:
    """The picture, which runs and fetches nothing."""
    root = ElementTree.parse(path).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    for each in root.iter():
        kind = each.tag.partition("}")[2]
        assert kind in ("svg", "g", "rect", "path", "text", "image")
        assert not [name for name in each.attrib if name.startswith("on")]
        assert each.attrib.get("href", "data:image/png;").startswith("data:image/png;")
    return root


def written(root: ElementTree.Element) -> list[str]:
    return [each.text or "" for each in root.iter("{http://www.w3.org/2000/svg}text")]


def size(root: ElementTree.Element) -> tuple[float, float]:
    return float(root.attrib["width"]), float(root.attrib["height"])


Open = Callable[..., Explorer]
"""opens a page, and hands it back when its first head is drawn"""
