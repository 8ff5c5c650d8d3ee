"""Fixtures: readings, and a browser to explore them in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

import headscope
from headscope import Reading
from headscope.model.model import Model
from tests.helpers.explorer import TEXT, TOKENS, Explorer, ExplorerOpener, make_random_reading

if TYPE_CHECKING:
    from tests.helpers.browser import PageOpener


@pytest.fixture(scope="module")
def reading(minilm: Model) -> Reading:
    return headscope.read(minilm, TEXT)


@pytest.fixture(scope="module")
def html(reading: Reading) -> str:
    return reading.to_html()


@pytest.fixture(scope="module")
def small_reading() -> Reading:
    """A small reading, quick to open."""
    return make_random_reading(TOKENS)


@pytest.fixture
def open_explorer(page_opener: PageOpener) -> Iterator[ExplorerOpener]:
    """Return a function that opens HTML or a reading; at the end, check that there were no requests and no errors."""
    explorers = []

    def open_page(shown: str | Reading, **options: Any) -> Explorer:
        page = shown.to_html() if isinstance(shown, Reading) else shown
        opened = page_opener(page, **{"viewport": {"width": 1100, "height": 850}, **options})
        explorers.append(Explorer(opened, opened.page))
        return explorers[-1].wait()

    yield open_page
    for explorer in explorers:
        explorer.assert_quiet()
