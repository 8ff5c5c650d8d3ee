"""The public API is documented: every function, method and property that a user can reach from `headscope`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import pytest

import headscope
from headscope.studies.findings import Findings

RETURNED = (Findings,)
"""classes of objects that users get and that are not in `headscope.__all__`"""
SECTION = re.compile(r"^(\w[\w ]*)\n-+$", re.MULTILINE)
SUMMARY_LENGTH = 130


def list_public() -> Iterator[tuple[str, Any]]:
    """Yield the qualified names of everything public with the object: classes, functions, methods, properties."""
    objects = {name: getattr(headscope, name) for name in headscope.__all__}
    for name, value in (objects | {value.__name__: value for value in RETURNED}).items():
        yield name, value
        if inspect.isclass(value):
            for member in (member for member in vars(value) if not member.startswith("_")):
                attribute = inspect.getattr_static(value, member)
                if isinstance(attribute, (property, cached_property, classmethod, staticmethod)) or inspect.isfunction(
                    attribute
                ):
                    yield f"{name}.{member}", attribute


PUBLIC = dict(list_public())


def unwrap(value: Any) -> Any:
    return value.__func__ if isinstance(value, (classmethod, staticmethod)) else value


CALLABLES = {name: unwrap(value) for name, value in PUBLIC.items() if inspect.isfunction(unwrap(value))}


def split_sections(docstring: str) -> dict[str, str]:
    """Return the text of each section of a docstring in numpy's style; the text before the first is under ''."""
    parts = SECTION.split(inspect.cleandoc(docstring))
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def list_parameters(section: str) -> list[str]:
    """Return the names that a section `Parameters` describes; several may share a line."""
    lines = [line.partition(" : ")[0] for line in section.splitlines() if line and not line.startswith(" ")]
    return [name.strip().lstrip("*") for line in lines for name in line.split(",")]


def find_faults(function: Any) -> list[str]:
    """Return what the docstring of a function lacks."""
    sections = split_sections(function.__doc__ or "")
    signature = inspect.signature(function)
    names = [name for name in signature.parameters if name not in ("self", "cls")]
    described = list_parameters(sections.get("Parameters", ""))
    faults = [f"no description of the parameter {name}" for name in names if name not in described]
    faults += [f"describes {name}, which is no parameter" for name in described if name not in names]
    if signature.return_annotation not in (None, "None") and not {"Returns", "Yields"} & sections.keys():
        faults.append("no section Returns")
    if ">>> " not in sections.get("Examples", ""):
        faults.append("no section Examples with a runnable example")
    return faults


@pytest.mark.parametrize("name", PUBLIC)
def test_there_is_a_summary(name: str):
    lines = inspect.cleandoc(PUBLIC[name].__doc__ or "").splitlines()
    assert lines, f"{name} has no docstring"
    assert lines[0].rstrip(":").endswith((".", "?")) or lines[0].endswith(":"), f"{name}: the summary is one sentence"
    assert len(lines[0]) <= SUMMARY_LENGTH
    assert lines[1:2] in ([], [""]), f"{name}: the summary is one line, and an empty one follows"


@pytest.mark.parametrize("name", CALLABLES)
def test_parameters_result_and_an_example(name: str):
    assert find_faults(CALLABLES[name]) == []


@pytest.mark.parametrize("name", [name for name, value in PUBLIC.items() if inspect.isclass(value)])
def test_classes_have_an_example(name: str):
    if not issubclass(PUBLIC[name], Exception):
        assert ">>> " in split_sections(PUBLIC[name].__doc__ or "").get("Examples", "")


def test_no_example_is_skipped():
    assert [name for name, value in PUBLIC.items() if "+SKIP" in (value.__doc__ or "")] == []


def test_faults_are_found():
    def add(first: int, *others: int) -> int:
        """Add numbers.

        Parameters
        ----------
        second
            Another.
        """
        return first + sum(others)

    assert find_faults(add) == [
        "no description of the parameter first",
        "no description of the parameter others",
        "describes second, which is no parameter",
        "no section Returns",
        "no section Examples with a runnable example",
    ]


def test_dir_and_help_list_what_is_public():
    assert set(dir(headscope)) == {*headscope.__all__, "__version__"}
    assert headscope.__all__ == sorted(headscope.__all__)
    text = inspect.getdoc(headscope) or ""
    functions = [name for name in headscope.__all__ if inspect.isfunction(getattr(headscope, name))]
    assert [name for name in functions if f"{name}(" not in text and f"`{name}`" not in text] == []
    with pytest.raises(AttributeError, match="no attribute 'studdy'"):
        headscope.__getattr__("studdy")
