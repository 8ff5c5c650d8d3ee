"""Fixtures of the examples in docstrings. Those of the tests are in tests/conftest.py."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

# Nothing of headscope is imported here: tests/conftest.py sets the number of threads before torch is.
FUNCTIONS = {"load": "headscope.model.loading", "read": "headscope.readings.read", "study": "headscope.studies.study"}
"""functions that take seconds and with which most examples begin, and their modules"""
_RESULTS: dict[tuple[str, ...], Any] = {}
"""their results, by function and arguments"""


@pytest.fixture(autouse=True)
def compute_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an example, load the same model, or compute the same reading or study, once for all examples."""
    if isinstance(request.node, pytest.DoctestItem):
        for name, module in FUNCTIONS.items():
            function = _remember(name, getattr(import_module(module), name))
            monkeypatch.setattr(f"{module}.{name}", function)
            monkeypatch.setattr(f"headscope.{name}", function, raising=False)


def _remember(name: str, function: Any) -> Any:
    def call(*arguments: Any, **options: Any) -> Any:
        named_options = (f"{key}={_describe_argument(value)}" for key, value in options.items())
        key = (name, *map(_describe_argument, arguments), *named_options)
        if key not in _RESULTS:
            _RESULTS[key] = function(*arguments, **options)
        return _RESULTS[key]

    return call


def _describe_argument(argument: Any) -> str:
    is_corpus = type(argument).__name__ == "Corpus"
    return f"{argument.name}:{argument.limit}" if is_corpus else repr(argument)
