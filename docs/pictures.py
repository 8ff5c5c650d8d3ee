"""The pictures of the README and the docs, photographed from the pages themselves.

make demo && .venv/bin/python docs/pictures.py
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

import headscope
from headscope.figures import draw, save

HERE = Path(__file__).parent
IMAGES = HERE / "images"
REPORT = HERE.parent / "demo" / "report.html"


def heads(page: Page) -> None:
    """The report's heat map, pointing at a head."""
    page.goto(REPORT.as_uri())
    page.get_by_role("tab", name="same-sentence rate").click()
    page.evaluate("document.querySelector('#heads').scrollIntoView()")
    page.locator(".panel:visible td[data-i='14']").hover()  # the third head of the second layer, of twelve per layer
    page.wait_for_timeout(300)
    page.screenshot(path=IMAGES / "heads.png", clip={"x": 0, "y": 48, "width": 1280, "height": 645})


def reading(page: Page, file: Path) -> None:
    """The explorer: a head that keeps to sentences, a head around one token, its regions, the layers."""

    def show(address: str) -> None:
        page.goto("about:blank")
        page.goto(f"{file.as_uri()}#{address}")
        page.wait_for_selector("html[data-ready=all]")

    show("L2H3")
    page.locator("#similarity svg").hover(position={"x": 196, "y": 120})
    page.wait_for_timeout(200)
    page.screenshot(path=IMAGES / "reading.png", clip={"x": 0, "y": 0, "width": 1280, "height": 640})
    show("L1H10&token=56")
    section(page, ".textside", "reading-token.png")
    section(page, ".through", "reading-layers.png")
    show("L2H3&tau=0.05&view=regions")
    section(page, ".maps", "reading-regions.png")


def segments(page: Page, file: Path) -> None:
    """The page of a segmentation: strengths, and the text in its segments."""
    page.goto(file.as_uri())
    page.wait_for_timeout(500)
    page.screenshot(path=IMAGES / "segments.png", clip={"x": 0, "y": 0, "width": 1280, "height": 1180}, full_page=True)


def section(page: Page, selector: str, name: str) -> None:
    """One part of the page, as it is."""
    page.locator(selector).scroll_into_view_if_needed()
    page.wait_for_timeout(200)
    page.locator(selector).screenshot(path=IMAGES / name)


def main() -> None:
    """Make all pictures."""
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "reading.html"
        made = headscope.read("minilm", headscope.examples()["airport-policing"])
        made.to_html(file)
        cut = Path(folder) / "segments.html"
        texts = [document.text for document in headscope.documents(limit=6)]
        headscope.segment("minilm", "\n\n".join(texts)).to_html(cut)
        save(draw(made, "9", layers=1, heads=[4, 6, 10]), IMAGES, "fig-09", ["svg"])
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 800}, device_scale_factor=1.5)
        if REPORT.exists():
            heads(page)
        reading(page, file)
        segments(page, cut)
        browser.close()


if __name__ == "__main__":
    main()
