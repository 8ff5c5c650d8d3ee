"""Test readings, and a driver for the explorer in a browser: read what it shows, and use its controls."""

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
from headscope.page.formatting import make_visible
from headscope.readings.reading import Head
from tests.helpers.browser import PATIENCE

if TYPE_CHECKING:
    from playwright.sync_api import Frame, Page

    from tests.helpers.browser import Opened

TEXT = "The airport police met the ravens. Ravens, the unpoliceable birds, left the airport!"
"""22 tokens for minilm, some of them equal, in two sentences, with a word of four tokens"""
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
"""tokens that try to become markup or code, to reverse the writing direction, or to break a file"""
DIGITS = {"fine": 3, "coarse": 2}
MAPS = ("attention", "similarity")
PLAIN = ["the", "cat", "sat", ".", "the", "dog", "un", "##like", "##ly", "met", ",", "the", "owl", "!"]
TOKENS = ["[CLS]", *PLAIN, "[SEP]"]
NEUTRAL = {"light": [251, 250, 248], "dark": [27, 30, 36]}
STRONGEST = {"attention": [253, 231, 37], "similarity": [178, 24, 43]}
DEFAULT_STATE = {
    "diagonal": False, "raw": False, "words": False, "hide": False, "segments": False, "view": "values",
    "kind": "similarity", "pairs": "all",
    "token": -1, "zoom": None,
}  # fmt: skip


def list_shown_tokens() -> list[str]:
    """Return the hostile tokens as a page should show them."""
    return [make_visible(token.replace("\ud83d", "\ufffd")) for token in HOSTILE]


def make_random_reading(
    tokens: list[str], layers: int = 3, heads: int = 2, *, seed: int = 0, maps: bool = True, **options: Any
) -> Reading:
    """Return a reading of random numbers, some of them negative, which differ between heads."""
    rng = np.random.default_rng(seed)
    length = len(tokens)
    outputs = rng.normal(0.4, 1, (layers, length, heads, 4))
    attention = rng.dirichlet(np.full(length, 0.3), (layers, heads, length)) if maps else None
    special = [token in ("[CLS]", "[SEP]") for token in tokens]
    return Reading.from_arrays(tokens, outputs, attention, **{"special": special, **options})


def make_threshold_reading() -> Reading:
    """Return a reading whose similarities and column sums are exactly on thresholds, however a sum is rounded.

    C01 = 2, C03 = 2, C13 = 4, C23 = 1, C24 = −1, C34 = −1, others 0: of the largest ½, ½, 1, ¼, −¼, −¼. Columns of the
    map sum to 3, ½, ¾, ¼, ½: of the largest 1, 1/6, ¼, 1/12, 1/6.
    """
    outputs = np.array([[1, 0], [2, 0], [0, 1], [2, 1], [0, -1]], dtype=float)
    attention = np.array(
        [[1, 0, 0, 0, 0], [0.5, 0.5, 0, 0, 0], [0.5, 0, 0.5, 0, 0], [0.5, 0, 0.25, 0.25, 0], [0.5, 0, 0, 0, 0.5]]
    )
    tokens = ["[CLS]", "a", ".", "a", "[SEP]"]
    return Reading.from_arrays(
        tokens, outputs[None, :, None], attention[None, None], special=[token[0] == "[" for token in tokens]
    )


def parse_numbers(text: str) -> list[float]:
    """Return every number in a text, with ASCII or Unicode minus signs."""
    return [float(number.replace("−", "-")) for number in re.findall(r"[−-]?\d+\.?\d*(?:e[+−-]?\d+)?", text)]


class Elements(HTMLParser):
    """Start tags of a piece of HTML, its text outside of scripts and styles, and the contents of its scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        """attributes and content of each script"""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts.append((self.tags[-1][1], data))
        elif self.cdata_elem is None:
            self.text += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


@dataclass
class Explorer:
    """Driver of an explorer in a browser; every action waits until the page has drawn the result."""

    opened: Opened
    frame: Page | Frame
    """frame with the explorer: the page itself, or a frame in it"""

    @property
    def page(self) -> Page:
        return self.opened.page

    def wait(self) -> Explorer:
        self.scroll_into_view()
        self.wait_until("document.documentElement.dataset.ready === 'all'")
        self.wait_until_drawn()
        return self

    def scroll_into_view(self) -> None:
        """Scroll to the explorer, because frames out of view are not drawn."""
        if self.frame is not self.page:
            self.frame.frame_element().scroll_into_view_if_needed()

    def wait_until(self, condition: str) -> None:
        """Wait until a condition in JavaScript is true; the page's policy refuses `wait_for_function` of Playwright."""
        is_true = self.frame.evaluate(
            f"""new Promise((done) => {{
                const look = () => {{ if ({condition}) done(true); else setTimeout(look, 20); }};
                look();
                setTimeout(() => done(false), {PATIENCE});
            }})"""
        )
        assert is_true, f"waited in vain for {condition}; errors of the page: {self.opened.errors}"

    def wait_until_drawn(self) -> None:
        """Wait until changes are drawn: this happens in the next animation frame, if the explorer is in view."""
        self.scroll_into_view()
        self.frame.evaluate(
            f"""new Promise((done, failed) => {{
                requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done)));
                setTimeout(() => failed(new Error("nothing is drawn any more")), {PATIENCE});
            }})"""
        )

    def assert_quiet(self) -> None:
        """Check that there were no requests, no errors and no dialogs."""
        assert self.opened.requests == []
        assert self.opened.errors == []
        assert self.opened.dialogs == []

    # -- contents --------------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        return dict(self.frame.evaluate("headscope.state()"))

    def get_name(self) -> str:
        return str(self.get_state()["name"])

    def query(self, name: str) -> Any:
        """Return the result of a function of the page: pairs, lines, blocks, regions, dominant."""
        return self.frame.evaluate(f"headscope.{name}()")

    def get_texts(self, selector: str) -> list[str]:
        """Return the whole text of each element, visible or not."""
        return list(self.frame.locator(selector).all_text_contents())

    def read_rows(self, table: str) -> list[list[str]]:
        """Return the cells of all rows in the body of a table."""
        button = self.frame.locator("#all-pairs")
        if table == "pairs" and button.is_visible():
            button.click()
        return list(
            self.frame.locator(f"#{table} tbody tr").evaluate_all(
                "rows => rows.map((row) => [...row.cells].map((cell) => cell.textContent))"
            )
        )

    def read_pixels(self, kind: str) -> np.ndarray[Any, Any]:
        """Return the colours of a map's cells: rows × columns × RGBA."""
        return self.read_canvas(f"#{kind} canvas")

    def read_canvas(self, selector: str) -> np.ndarray[Any, Any]:
        width, height, data = self.frame.locator(selector).first.evaluate(
            "(c) => [c.width, c.height, [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]]"
        )
        return np.array(data, dtype=int).reshape(height, width, 4)

    def read_thumbnails(self) -> dict[str, str]:
        """Return the small maps as data URLs, by the names of their heads."""
        return dict(
            self.frame.locator(".thumb").evaluate_all(
                "all => all.map((each) => [each.getAttribute('aria-label'), each.firstChild.toDataURL()])"
            )
        )

    def list_marked(self, kind: str) -> list[int]:
        """Return the indices of the text's tokens that have a CSS class."""
        return [int(i) for i in self.frame.locator(f".tok.{kind}").evaluate_all("all => all.map((e) => e.dataset.i)")]

    # -- actions ---------------------------------------------------------------------------------------------------

    def choose(self, layer: int | None = None, head: Head | None = None) -> None:
        if layer is not None:
            self.frame.select_option("#layer", label=str(layer))
        if head is not None:
            self.frame.select_option("#head", label=str(head))
        self.wait_until_drawn()

    def type_threshold(self, threshold: str, value: float | str) -> None:
        """Type a threshold (`theta` or `tau`) and press Enter."""
        field = self.frame.locator(f"#{threshold}-number")
        if isinstance(value, str):  # key by key, as it may not be a number
            field.fill("")
            field.press_sequentially(value)
        else:
            field.fill(str(value))
        field.press("Enter")
        self.wait_until_drawn()

    def set_toggle(self, toggle: str, on: bool = True) -> None:
        self.frame.locator(f"#{toggle}").set_checked(on)
        self.wait_until_drawn()

    def select_option(self, group: str, value: str) -> None:
        """Select an option of a group of radio buttons, such as `view` or `kind`."""
        self.frame.locator(f"label:has([name={group}][value={value}])").click()
        self.wait_until_drawn()

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)
        self.wait_until_drawn()

    def leave_controls(self) -> None:
        """Move the focus away from controls, which would receive the keys pressed."""
        self.frame.evaluate("document.activeElement.blur()")

    def pick_token(self, token: int) -> None:
        """Click a token of the text."""
        self.frame.locator(f".tok[data-i='{token}']").click()
        self.wait_until_drawn()

    def locate_cell(self, kind: str, row: int, column: int) -> tuple[float, float]:
        """Return the screen coordinates of the middle of a map's cell."""
        canvas = self.frame.locator(f"#{kind} canvas").first
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        assert box is not None
        columns, rows = canvas.evaluate("(c) => [c.width, c.height]")
        return box["x"] + (column + 0.5) * box["width"] / columns, box["y"] + (row + 0.5) * box["height"] / rows

    def hover(self, kind: str, row: int, column: int) -> None:
        self.page.mouse.move(*self.locate_cell(kind, row, column))

    def drag(self, kind: str, start: tuple[int, int], end: tuple[int, int]) -> None:
        self.page.mouse.move(*self.locate_cell(kind, *start))
        self.page.mouse.down()
        self.page.mouse.move(*self.locate_cell(kind, *end), steps=4)
        self.page.mouse.up()
        self.wait_until_drawn()


def assert_pairs(explorer: Explorer, expected: pd.DataFrame, max_value: float, precision: str = "fine") -> None:
    """Check that the table of the page and the answer of its script agree with Python, row by row."""
    digits, step = DIGITS[precision], {"fine": 1 / 8_000, "coarse": 1 / 100}[precision]
    shown = explorer.read_rows("pairs")
    expected_rows = [[i, j, str(a), str(b)] for i, j, a, b, *_ in expected.values.tolist()]
    assert [row[:4] for row in shown] == expected_rows
    shown_values = [float(row[4]) for row in shown]
    np.testing.assert_allclose(shown_values, expected["relative"], atol=0.5 * 10**-digits + step, rtol=0)
    assert all(re.fullmatch(rf"\d\.\d{{{digits}}}", row[4]) for row in shown)
    answer = pd.DataFrame(explorer.query("pairs"), columns=list(expected.columns))
    for name in ("token_i", "token_j", "index_i", "index_j"):
        assert answer[name].tolist() == expected[name].tolist()
    np.testing.assert_allclose(answer["relative"].astype(float), expected["relative"], atol=step, rtol=0)
    np.testing.assert_allclose(answer["value"].astype(float), expected["value"], atol=step * max_value, rtol=0)


def find_pairs(reading: Reading, layer: int, head: Head, theta: float, **options: Any) -> pd.DataFrame:
    return reading.pairs(layer, head, theta, **options)


def get_largest(reading: Reading, layer: int, head: Head) -> float:
    return float(reading.matrix(layer, head).values.max())


def is_close(colors: Any, expected: list[int]) -> bool:
    return bool((np.abs(np.asarray(colors)[..., :3] - expected) <= 3).all())


def save(explorer: Explorer, part: str, kind: str) -> Path:
    with explorer.page.expect_download() as download:
        explorer.frame.locator(f"[data-save={part}][data-as={kind}]").click()
    assert download.value.suggested_filename.endswith(f".{kind}")
    return Path(download.value.path())


def read_svg(path: Path) -> ElementTree.Element:
    """Return the root of a picture, after a check that it cannot run or fetch anything."""
    root = ElementTree.parse(path).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    for element in root.iter():
        tag = element.tag.partition("}")[2]
        assert tag in ("svg", "g", "rect", "path", "text", "image")
        assert not [name for name in element.attrib if name.startswith("on")]
        assert element.attrib.get("href", "data:image/png;").startswith("data:image/png;")
    return root


def list_texts(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]


def get_size(root: ElementTree.Element) -> tuple[float, float]:
    return float(root.attrib["width"]), float(root.attrib["height"])


ExplorerOpener = Callable[..., Explorer]
"""opens a page or reading, and returns its driver when the page is drawn"""
