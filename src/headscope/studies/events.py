"""What comes to a model: loads of texts, and marks between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headscope.corpus.windows import Batch, Window
from headscope.studies.account import Account


@dataclass(frozen=True, slots=True)
class Text:
    """A window, and the account of its document and of the documents before it that had none."""

    window: Window
    account: Account

    def __len__(self) -> int:
        return len(self.window)


@dataclass(frozen=True)
class Load:
    """A batch, what each of its texts accounts for, and the portion that they are of."""

    batch: Batch
    accounts: list[Account]
    shard: int = 0
    portion: int = 0

    @classmethod
    def of(cls, texts: Sequence[Text], pad_id: int, shard: int = 0, portion: int = 0) -> Load:
        batch = Batch.of([text.window for text in texts], pad_id)
        return cls(batch, [text.account for text in texts], shard, portion)

    @property
    def texts(self) -> list[Text]:
        return [Text(window, account) for window, account in zip(self.batch.windows, self.accounts, strict=True)]

    def parts(self, size: int) -> list[Load]:
        """The same texts, at most `size` at a time."""
        if len(self.batch) <= size:
            return [self]
        texts = self.texts
        return [
            Load.of(texts[k : k + size], self.batch.pad_id, self.shard, self.portion)
            for k in range(0, len(texts), size)
        ]


@dataclass(frozen=True)
class Mark:
    """The end of a portion; without a portion, the end of a shard, which had `count` portions."""

    shard: int
    portion: int | None = None
    account: Account = field(default_factory=Account)
    """of its documents after the last one that has windows"""
    content: int = 0
    """the sum of the hashes of all its documents"""
    count: int = 0


@dataclass(frozen=True)
class Tear:
    """From here on batches are what an error in the corpus left of a look-ahead: another run would make others."""


Event = Load | Mark | Tear
