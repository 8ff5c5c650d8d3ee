"""Readings to explore, and a browser to open them in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

import headscope
from headscope import Reading
from headscope.model.model import Model
from tests.explorer.explored import (
    TEXT,
    TOKENS,
    Explorer,
    Open,
    random_reading,
)

if TYPE_CHECKING:
    from tests.browser import PageOpener


@pytest.fixture(scope="module")
def reading(minilm: Model) -> Reading:
    return headscope.read(minilm, TEXT)


@pytest.fixture(scope="module")
def html(reading: Reading) -> str:
    return reading.page()


@pytest.fixture(scope="module")
def plain() -> Reading:
    """Small and quick to open."""
    return random_reading(TOKENS)


@pytest.fixture
def explore(page_opener: PageOpener) -> Iterator[Open]:
    """Open a page's HTML or a reading's; at the end nothing was fetched and nothing went wrong."""
    explorers = []

    def opener(shown: str | Reading, **options: Any) -> Explorer:
        page = shown.page() if isinstance(shown, Reading) else shown
        opened = page_opener(page, **{"viewport": {"width": 1100, "height": 850}, **options})
        explorers.append(Explorer(opened, opened.page))
        return explorers[-1].wait()

    yield opener
    for each in explorers:
        each.assert_quiet()
