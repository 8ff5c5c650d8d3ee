"""Bundled data: a small corpus of encyclopaedia openings (CC0), and the two inputs printed in the paper."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

from headscope.corpus.document import Document
from headscope.errors import CorpusError

OPENINGS = 64


def load_openings() -> Iterator[Document]:
    """Yield the documents of the bundled corpus."""
    for number, line in enumerate(_read_data("openings.jsonl").splitlines(), start=1):
        yield Document(json.loads(line)["text"], f"openings:{number}")


def examples() -> dict[str, str]:
    """Return the inputs printed in the paper.

    Returns
    -------
    dict of str to str
        The texts, by name.

    Examples
    --------
    >>> sorted(examples())
    ['airport-policing', 'gerstenslager']
    """
    return {name: str(example["text"]) for name, example in load_paper_examples().items()}


def load_paper_examples() -> dict[str, dict[str, Any]]:
    """Return the printed inputs with figure, tokens and, for Fig. 9, the high pairs listed for each head."""
    records: dict[str, dict[str, Any]] = json.loads(_read_data("paper.json"))["examples"]
    return records


def load_example(name: str) -> Document:
    """Return one of the printed inputs as a document."""
    available = examples()
    if name not in available:
        raise CorpusError(f"example:{name}: no such example; there are: {', '.join(sorted(available))}")
    return Document(available[name], f"example:{name}")


def _read_data(name: str) -> str:
    return (files("headscope") / "data" / name).read_text(encoding="utf-8")
