"""Opening pages in a real browser that can reach nothing: for tests of what people see and click."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
LOCAL = ("file:", "data:", "blob:")
PATIENCE = 60_000
"""milliseconds for what a page is to do or to show: so long that a busy machine does not matter"""


@dataclass
class Opened:
    """A page, and what it tried to do."""

    page: Page
    requests: list[str] = field(default_factory=list)
    """addresses asked for over the network; all of them refused"""
    errors: list[str] = field(default_factory=list)
    """errors on the console (violations of the content security policy among them) and uncaught ones"""
    dialogs: list[str] = field(default_factory=list)

    def settle(self) -> None:
        """Wait until the page has drawn itself; what it did before that has been told by then."""
        self.page.evaluate(
            "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))"
        )

    def is_quiet(self) -> bool:
        """Tell whether nothing was fetched, nothing went wrong, nothing popped up."""
        self.settle()
        return self.requests == self.errors == self.dialogs == []


PageOpener = Callable[..., Opened]


def find_chromium() -> str | None:
    """The browser that HEADSCOPE_CHROMIUM names, or the first on the PATH."""
    named = os.environ.get("HEADSCOPE_CHROMIUM")
    candidates = (named, *NAMES) if named else NAMES
    return next((found for found in map(shutil.which, candidates) if found), None)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    program = find_chromium()
    if program is None:
        reason = f"no Chromium found: set HEADSCOPE_CHROMIUM, or put one of {', '.join(NAMES)} on the PATH"
        if os.environ.get("HEADSCOPE_REQUIRE_BROWSER") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(ARGUMENTS), timeout=2 * PATIENCE)
        yield browser
        browser.close()


@pytest.fixture
def page_opener(chromium: Browser, tmp_path: Path) -> Iterator[PageOpener]:
    """A function that opens HTML in a fresh context; its keywords are Playwright's for `new_context`."""
    contexts = []

    def opener(html: str, **options: Any) -> Opened:
        context = chromium.new_context(**options)
        contexts.append(context)
        file = tmp_path / f"page-{len(contexts)}.html"
        file.write_text(html, encoding="utf-8")
        opened = Opened(context.new_page())

        def refuse(route: Route) -> None:
            if route.request.url.startswith(LOCAL):
                route.continue_()
            else:
                opened.requests.append(route.request.url)
                route.abort()

        context.route("**/*", refuse)
        page = opened.page
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda message: opened.errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: opened.errors.append(str(error)))

        def dismiss(dialog: Any) -> None:
            opened.dialogs.append(dialog.message)
            dialog.dismiss()

        page.on("dialog", dismiss)
        page.goto(file.as_uri())
        return opened

    yield opener
    for context in contexts:
        context.close()
