"""Fixtures of the examples in docstrings. Those of the tests are in tests/conftest.py."""

from __future__ import annotations

from typing import Any

import pytest

import headscope
from headscope.corpus.documents import Corpus
from headscope.model import loading
from headscope.readings import read as readings
from headscope.studies import study as studies

_RESULTS: dict[tuple[str, ...], Any] = {}
"""results of `load`, `read` and `study`, by function and arguments: each takes seconds, and most examples begin so"""


def _describe_argument(argument: Any) -> str:
    return f"{argument.name}:{argument.limit}" if isinstance(argument, Corpus) else repr(argument)


@pytest.fixture(autouse=True)
def compute_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an example, compute the same model, reading or study once for all examples."""
    if not isinstance(request.node, pytest.DoctestItem):
        return

    def remember(module: Any, name: str) -> None:
        function = getattr(module, name)

        def call(*arguments: Any, **options: Any) -> Any:
            named_options = (f"{key}={_describe_argument(value)}" for key, value in options.items())
            key = (name, *map(_describe_argument, arguments), *named_options)
            if key not in _RESULTS:
                _RESULTS[key] = function(*arguments, **options)
            return _RESULTS[key]

        monkeypatch.setattr(module, name, call)
        monkeypatch.setattr(headscope, name, call, raising=False)

    remember(loading, "load")
    remember(readings, "read")
    remember(studies, "study")
