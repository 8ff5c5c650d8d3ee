"""What a study knows of the documents it read."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

from headscope.corpus.formats import Document

EXCERPTS = 3
EXCERPT_LENGTH = 160
HASHES = 2**128
"""Hashes are added up to this number: so they are the same for the same documents in any order."""

Place = tuple[int, int, int]
"""shard, portion, number in it"""


def digest(document: Document) -> int:
    """A document's content hash."""
    return int.from_bytes(hashlib.blake2b(document.content, digest_size=16).digest(), "little")


@dataclass(slots=True)
class Account:
    """What a manifest says of the documents that were read. Accounts add."""

    read: int = 0
    content: int = 0
    """the sum of all documents' hashes"""
    skipped: dict[str, int] = field(default_factory=dict)
    """documents, by the reason why they have no windows"""
    excerpts: dict[Place, dict[str, str]] = field(default_factory=dict)
    """how the first few texts begin, by their place in the corpus"""
    sources: dict[int, tuple[int, int]] = field(default_factory=dict)
    """documents and the sum of their hashes, by source"""
    added: bool = False
    """it is part of another one already"""

    def note(self, document: Document, source: int = 0) -> int:
        """Take a document in, and return its hash."""
        found = digest(document)
        self._add(source, 1, found)
        self.read += 1
        self.content = (self.content + found) % HASHES
        return found

    def skip(self, reason: str, documents: int = 1) -> None:
        self.skipped[reason] = self.skipped.get(reason, 0) + documents

    def add(self, other: Account) -> None:
        """Add another one, if that was not done before."""
        if other.added:
            return
        other.added = True
        self.read += other.read
        self.content = (self.content + other.content) % HASHES
        for reason, skipped in other.skipped.items():
            self.skip(reason, skipped)
        for source, (documents, content) in other.sources.items():
            self._add(source, documents, content)
        if other.excerpts:
            self.excerpts.update(other.excerpts)
            self.excerpts = dict(sorted(self.excerpts.items())[:EXCERPTS])

    def _add(self, source: int, documents: int, content: int) -> None:
        before = self.sources.get(source, (0, 0))
        self.sources[source] = (before[0] + documents, (before[1] + content) % HASHES)

    def plain(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "read": self.read,
            "content": f"{self.content:x}",
            "skipped": dict(self.skipped),
            "excerpts": [[*place, text] for place, text in self.excerpts.items()],
            "sources": [[number, count, f"{content:x}"] for number, (count, content) in self.sources.items()],
        }

    @classmethod
    def of_plain(cls, plain: dict[str, Any]) -> Account:
        return cls(
            read=int(plain["read"]),
            content=int(plain["content"], 16),
            skipped={str(reason): int(count) for reason, count in plain["skipped"].items()},
            excerpts={
                (int(shard), int(portion), int(k)): {str(name): str(words) for name, words in text.items()}
                for shard, portion, k, text in plain["excerpts"]
            },
            sources={int(number): (int(count), int(content, 16)) for number, count, content in plain["sources"]},
        )
