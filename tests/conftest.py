"""What many tests share."""

from __future__ import annotations

import pytest

import headscope
from headscope.model.model import Model


@pytest.fixture(scope="session")
def minilm() -> Model:
    """The bundled model, loaded once: that takes seconds."""
    return headscope.load()
