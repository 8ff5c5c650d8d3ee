"""The texts of a study on their way to the model: documents in, batches of windows out, made while the model runs.

Read, unpacked, tokenized, cut, ordered and padded in a thread of its own, so that the model finds the next batch ready;
a fast tokenizer gets many texts in one call and spreads them over all cores. What comes out depends on none of this: it
is the same windows, with the same errors at the same places, as of one document after the other.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from headscope.corpus.documents import Corpus
from headscope.corpus.formats import Document
from headscope.corpus.windows import LOOK_AHEAD, LOOK_AHEAD_MOST, Batch, Cut, Window, grouped
from headscope.model.model import Model
from headscope.studies.ahead import Ahead

EXCERPTS = 3
EXCERPT_LENGTH = 160
TOGETHER_FIRST, TOGETHER_MOST = 16, 128
"""Documents that are tokenized in one call: few at first, so that the model can start; more gain nothing."""
CHARACTERS = 1_000_000
"""Books are not taken by the hundred: so many characters are enough for one call."""

T = TypeVar("T")


@dataclass
class Account:
    """What a manifest says of the documents that were read. Accounts add."""

    read: int = 0
    content: int = 0
    """the sum of all documents' hashes: the same for the same texts in any order"""
    skipped: Counter[str] = field(default_factory=Counter)
    excerpts: dict[int, dict[str, str]] = field(default_factory=dict)
    """how the first few texts begin, by their place in the corpus"""
    added: bool = False
    """it is part of another one already"""

    def note(self, document: Document) -> None:
        self.read += 1
        digest = hashlib.blake2b(document.content, digest_size=16).digest()
        self.content = (self.content + int.from_bytes(digest, "little")) % 2**128

    def add(self, other: Account) -> None:
        """Add another one, if that was not done before."""
        if other.added:
            return
        other.added = True
        self.read += other.read
        self.content = (self.content + other.content) % 2**128
        self.skipped.update(other.skipped)
        self.excerpts.update(other.excerpts)


@dataclass(frozen=True, slots=True)
class Text:
    """A window, and the account of its document and of the documents before it that had none."""

    window: Window
    account: Account

    def __len__(self) -> int:
        return len(self.window)


@dataclass(frozen=True)
class Load:
    """A batch, and what each of its texts accounts for."""

    batch: Batch
    accounts: list[Account]

    @classmethod
    def of(cls, texts: list[Text], pad_id: int) -> Load:
        return cls(Batch.of([text.window for text in texts], pad_id), [text.account for text in texts])

    def parts(self, size: int) -> list[Load]:
        """The same texts, at most `size` at a time."""
        if len(self.batch) <= size:
            return [self]
        texts = [Text(window, account) for window, account in zip(self.batch.windows, self.accounts, strict=True)]
        return [Load.of(texts[k : k + size], self.batch.pad_id) for k in range(0, len(texts), size)]


@dataclass
class Texts:
    """The texts of a corpus in loads of at most `size`.

    `account` is that of the documents counted so far. A document is counted with the first of its windows that is, and
    with it those before it that have none; not when it was read, which is long before. So a study that stops early
    speaks of the documents that its texts come from, and of no others.
    """

    corpus: Corpus
    model: Model
    cut: Cut
    size: int
    account: Account = field(default_factory=Account)
    left: Account = field(default_factory=Account)
    """of the documents after the last one that has windows"""
    broken: BaseException | None = None
    """the error at which the corpus ended: it is raised after all that was read before it was studied"""
    reading: bool = False
    """it waits for the next document"""
    made: Ahead[Load] | None = None
    """the thread, if there is one"""

    @contextmanager
    def loads(self, *, ahead: bool) -> Iterator[Iterator[Load]]:
        """All loads in turn. `ahead`: made in a thread; else when they are asked for, in the thread that asks."""
        loads = self._loads(alike=not self.model.ignores_padding)  # asks the model, so not in the thread
        if not ahead:
            yield self._ended(loads)
            return
        images = self.model.modality == "image"
        # While a look-ahead's batches are taken, the next can be made: so many are let wait. An image is a thousand
        # times a text's size, so that of these there is only one batch more.
        depth = 1 if images else max(1, min(LOOK_AHEAD, LOOK_AHEAD_MOST // self.size))
        self.made = Ahead(loads, depth, lambda: self.reading)
        with self.made as made:
            yield self._ended(made)

    def count(self, load: Load) -> None:
        """The texts of a load were counted."""
        for account in load.accounts:
            self.account.add(account)

    def _ended(self, loads: Iterable[Load]) -> Iterator[Load]:
        yield from loads
        self.account.add(self.left)
        if self.broken is not None:
            raise self.broken

    def _loads(self, *, alike: bool) -> Generator[Load]:
        for texts in grouped(self._texts(), self.size, alike=alike):
            yield Load.of(texts, self.model.tokens.pad_id)

    def _texts(self) -> Iterator[Text]:
        excerpts = 0
        for document, windows in self._windows():
            self.left.note(document)
            if isinstance(windows, str):
                self.left.skipped[windows] += 1
                continue
            if excerpts < EXCERPTS:
                self.left.excerpts[excerpts] = {"name": document.name, "text": document.excerpt[:EXCERPT_LENGTH]}
                excerpts += 1
            account, self.left = self.left, Account()
            for window in windows:
                _ = window.digest  # computed here, and kept: one thing less to do while the model waits
                yield Text(window, account)

    def _windows(self) -> Iterator[tuple[Document, list[Window] | str]]:
        for documents in self._together():
            made = self._until_broken(self.model.windows_of(documents, self.cut))
            cut = 0
            for cut, windows in enumerate(made, start=1):
                yield documents[cut - 1], windows
            if cut < len(documents):  # one of them is broken, and what comes after it is not looked at
                return

    def _together(self) -> Iterator[list[Document]]:
        """Documents in lists of as many as are tokenized in one call."""
        most = 1 if self.model.modality == "image" else max(TOGETHER_FIRST, min(4 * self.size, TOGETHER_MOST))
        wanted, characters, held = min(TOGETHER_FIRST, most), 0, list[Document]()
        for document in self._documents():
            held.append(document)
            characters += len(document.text)
            if len(held) >= wanted or characters >= CHARACTERS:
                yield held
                wanted, characters, held = min(2 * wanted, most), 0, []
        if held:
            yield held

    def _documents(self) -> Iterator[Document]:
        documents = self._until_broken(iter(self.corpus))
        while self.made is None or not self.made.stopped:
            self.reading = True
            document = next(documents, None)
            self.reading = False
            if document is None:
                return
            yield document

    def _until_broken(self, items: Iterator[T]) -> Iterator[T]:
        """Items up to an error, which is kept."""
        while True:
            try:
                item = next(items)
            except StopIteration:
                return
            except KeyboardInterrupt as error:
                if self.made is None:  # someone is at the keyboard, who does not want to wait
                    raise
                self.broken = error
                return
            except Exception as error:
                self.broken = error
                return
            yield item
