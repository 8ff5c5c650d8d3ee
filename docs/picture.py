"""Make the README's picture: the heads of the demo study, as its report shows them.

make demo && .venv/bin/python docs/picture.py demo/report.html docs/images/heads.png
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright


def main(report: str, picture: str) -> None:
    """Open the report, point at a head, and photograph the section."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 800}, device_scale_factor=1.5)
        page.goto(Path(report).resolve().as_uri())
        page.get_by_role("tab", name="same-sentence rate").click()
        page.evaluate("document.querySelector('#heads').scrollIntoView()")
        page.locator(".panel:visible td[data-i='14']").hover()  # the third head of the second layer, of twelve a layer
        page.wait_for_timeout(300)
        page.screenshot(path=picture, clip={"x": 0, "y": 48, "width": 1280, "height": 645})
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
