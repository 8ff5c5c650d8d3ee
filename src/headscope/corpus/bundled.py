"""What comes with headscope: a small corpus of encyclopaedia openings (CC0), and the paper's two printed inputs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

from headscope.corpus.document import Document
from headscope.errors import CorpusError

OPENINGS = 64


def openings() -> Iterator[Document]:
    """The bundled corpus."""
    for number, line in enumerate(_data("openings.jsonl").splitlines(), start=1):
        yield Document(json.loads(line)["text"], f"openings:{number}")


def examples() -> dict[str, str]:
    """The inputs the paper prints, by name.

    >>> sorted(examples())
    ['airport-policing', 'gerstenslager']
    """
    return {name: str(example["text"]) for name, example in paper_examples().items()}


def paper_examples() -> dict[str, dict[str, Any]]:
    """The printed inputs with their figure, tokens and, for Fig. 9, the high pairs the paper lists for each head."""
    loaded: dict[str, dict[str, Any]] = json.loads(_data("paper.json"))["examples"]
    return loaded


def example_document(name: str) -> Document:
    """One of the printed inputs as a document."""
    there = examples()
    if name not in there:
        raise CorpusError(f"example:{name}: no such example; there are: {', '.join(sorted(there))}")
    return Document(there[name], f"example:{name}")


def _data(name: str) -> str:
    return (files("headscope") / "data" / name).read_text(encoding="utf-8")
