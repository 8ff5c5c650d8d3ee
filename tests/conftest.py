"""What many tests share."""

from __future__ import annotations

import pytest

import headscope
from headscope.model.model import Model
from tests.browser import chromium, page_opener
from tests.commanding import headscope_command, one_figure

__all__ = ["chromium", "headscope_command", "minilm", "one_figure", "page_opener"]


@pytest.fixture(scope="session")
def minilm() -> Model:
    """The bundled model, loaded once: that takes seconds."""
    return headscope.load()
