"""Open pages in a real browser without network access, to test what people see and click."""

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

PROGRAM_NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
LOCAL_SCHEMES = ("file:", "data:", "blob:")
PATIENCE = 60_000
"""milliseconds to wait for what a page does or shows; long enough for a busy machine"""


@dataclass
class Opened:
    """An open page, and a record of its requests, errors and dialogs."""

    page: Page
    requests: list[str] = field(default_factory=list)
    """addresses requested over the network; all requests are refused"""
    errors: list[str] = field(default_factory=list)
    """errors on the console, including violations of the content security policy, and uncaught errors"""
    dialogs: list[str] = field(default_factory=list)

    def wait_until_drawn(self) -> None:
        """Wait until the page is drawn; by then its earlier requests and errors are recorded."""
        self.page.evaluate(
            "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))"
        )

    def is_quiet(self) -> bool:
        """Return whether there were no requests, no errors and no dialogs."""
        self.wait_until_drawn()
        return self.requests == self.errors == self.dialogs == []


PageOpener = Callable[..., Opened]


def find_chromium() -> str | None:
    """Return the browser that HEADSCOPE_CHROMIUM names, or the first one on the PATH."""
    named = os.environ.get("HEADSCOPE_CHROMIUM")
    candidates = (named, *PROGRAM_NAMES) if named else PROGRAM_NAMES
    return next((program for program in map(shutil.which, candidates) if program), None)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    program = find_chromium()
    if program is None:
        reason = f"no Chromium found: set HEADSCOPE_CHROMIUM, or put one of {', '.join(PROGRAM_NAMES)} on the PATH"
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
    """Return a function that opens HTML in a fresh context, with keyword arguments for Playwright's `new_context`."""
    contexts = []

    def open_page(html: str, **options: Any) -> Opened:
        context = chromium.new_context(**options)
        contexts.append(context)
        file = tmp_path / f"page-{len(contexts)}.html"
        file.write_text(html, encoding="utf-8")
        opened = Opened(context.new_page())

        def refuse(route: Route) -> None:
            if route.request.url.startswith(LOCAL_SCHEMES):
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

    yield open_page
    for context in contexts:
        context.close()
