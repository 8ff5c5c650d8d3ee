"""The texts of a study on their way to the model: documents in, batches of windows out, made while the model runs.

Read, unpacked, tokenized, cut, ordered and padded in a thread of its own, so that the model finds the next batch ready;
a fast tokenizer gets many texts in one call and spreads them over all cores. What comes out depends on none of this: it
is the same windows, with the same errors at the same places, as of one document after the other.

They come portion by portion, batches never hold texts of two, and after each comes a mark: so a run can go on from any
batch, and anyone can take any portion.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from headscope.corpus.documents import Corpus
from headscope.corpus.formats import Document
from headscope.corpus.shards import Portion, Shard, limit_of, portions
from headscope.corpus.windows import LOOK_AHEAD, LOOK_AHEAD_MOST, Cut, Window, grouped
from headscope.model.model import Model
from headscope.studies.account import EXCERPT_LENGTH, EXCERPTS, HASHES, Account
from headscope.studies.ahead import Ahead
from headscope.studies.done import Done
from headscope.studies.events import Event, Load, Mark, Tear, Text
from headscope.studies.known import KnownPortions, KnownTexts

TOGETHER_FIRST, TOGETHER_MOST = 16, 128
"""Documents that are tokenized in one call: few at first, so that the model can start; more gain nothing."""
CHARACTERS = 1_000_000
"""Books are not taken by the hundred: so many characters are enough for one call."""

T = TypeVar("T")


@dataclass
class Texts:
    """The texts of a corpus in loads of at most `size`, those aside that are `done`.

    `account` is that of the documents counted so far. A document is counted with the first of its windows that is, and
    with it those before it that have none; not when it was read, which is long before. So a study that stops early
    speaks of the documents that its texts come from, and of no others.
    """

    corpus: Corpus
    model: Model
    cut: Cut
    size: int
    account: Account = field(default_factory=Account)
    done: Done = field(default_factory=Done)
    broken: BaseException | None = None
    """the error at which the corpus ended: it is raised after all that was read before it was studied"""
    reading: bool = False
    """it waits for the next document"""
    by_length: bool = True
    """short texts first, among those that are looked at together; else in the order of the corpus"""
    made: Ahead[Event] | None = None
    """the thread, if there is one"""

    @contextmanager
    def loads(self, *, ahead: bool, shards: Sequence[Shard] | None = None) -> Iterator[Iterator[Event]]:
        """All loads in turn, with marks between them. `ahead`: made in a thread; else in the thread that asks."""
        with self.taken(self._events(self.corpus.shards if shards is None else shards), ahead=ahead) as taken:
            yield taken

    @contextmanager
    def taken(self, events: Generator[Event], *, ahead: bool) -> Iterator[Iterator[Event]]:
        """Events, made in a thread or not; an error of the corpus comes after all of them."""
        _ = self.model.ignores_padding  # asks the model, so not in the thread
        if not ahead:
            yield self._ended(events)
            return
        images = self.model.modality == "image"
        # While a look-ahead's batches are taken, the next can be made: so many are let wait. An image is a thousand
        # times a text's size, so that of these there is only one batch more.
        depth = 1 if images else max(1, min(LOOK_AHEAD, LOOK_AHEAD_MOST // self.size))
        self.made = Ahead(events, depth, lambda: self.reading)
        with self.made as made:
            yield self._ended(made)

    def count(self, event: Event) -> None:
        """The texts of a load, or all before a mark, were counted."""
        if isinstance(event, Load):
            for account in event.accounts:
                self.account.add(account)
            self.done.count(event.shard, event.portion, [window.digest for window in event.batch.windows])
        elif isinstance(event, Mark):
            self.account.add(event.account)
            if event.portion is not None:
                self.done.close(event.shard, event.portion, event.content)
            else:
                self.done.ended[event.shard] = event.count

    def _ended(self, events: Iterable[Event]) -> Iterator[Event]:
        yield from events
        if self.broken is not None:
            raise self.broken

    def _events(self, shards: Sequence[Shard]) -> Generator[Event]:
        for shard in shards:
            if not self.done.all_of(shard.number) or not self._unchanged(shard):
                yield from self._shard(shard)
            if self.broken is not None or self._stopped:
                return

    @property
    def _stopped(self) -> bool:
        return self.made is not None and self.made.stopped

    def portions(self, shard: Shard) -> Iterator[Portion]:
        """The portions of a shard, until it ends or breaks."""
        return portions(self._documents(shard), limit_of(self.cut))

    def _shard(self, shard: Shard) -> Iterator[Event]:
        known = KnownPortions(self.done, shard)
        count = 0
        for portion in self.portions(shard):
            count = portion.number + 1
            if portion.number in known:
                known.skip(portion)
            else:
                yield from self.portion(shard, portion)
            if self.broken is not None or self._stopped:
                return
        if self.broken is None and not self._stopped:
            known.check()
            yield Mark(shard.number, count=count)

    def portion(self, shard: Shard, portion: Portion) -> Iterator[Event]:
        """The loads of a portion that are not done, and its mark."""
        left, content = _Left(shard.number, portion.number), _Sum()
        before = KnownTexts(self.done.under_way.get((shard.number, portion.number)), shard)
        groups = grouped(
            self._texts(portion, left, content),
            self.size,
            alike=not self.model.ignores_padding,
            by_length=self.by_length,
            at_once=portion.number > 0,  # only at the very beginning the model waits for the first batch
        )
        torn = False
        for group in groups:
            texts = before.rest(group)
            if texts and self.broken is not None and not torn:
                torn = True
                yield Tear()
            if texts:
                yield Load.of(texts, self.model.tokens.pad_id, shard.number, portion.number)
        if self.broken is None and not self._stopped:
            before.check()
            yield Mark(shard.number, portion.number, left.account, content.total)

    def _texts(self, portion: Portion, left: _Left, content: _Sum) -> Iterator[Text]:
        excerpts = 0
        for source, document, windows in self._windows(portion):
            content.add(left.account.note(document, source))
            if isinstance(windows, str):
                left.account.skip(windows)
                continue
            if excerpts < EXCERPTS:
                left.account.excerpts[left.shard, left.portion, excerpts] = {
                    "name": document.name,
                    "text": document.excerpt[:EXCERPT_LENGTH],
                }
                excerpts += 1
            account = left.take()
            for window in windows:
                _ = window.digest  # computed here, and kept: one thing less to do while the model waits
                yield Text(window, account)

    def _windows(self, portion: Portion) -> Iterator[tuple[int, Document, list[Window] | str]]:
        for together in self._together(portion):
            made = self._until_broken(self.model.windows_of([document for _, document in together], self.cut))
            cut = 0
            for cut, windows in enumerate(made, start=1):
                yield *together[cut - 1], windows
            if cut < len(together):  # one of them is broken, and what comes after it is not looked at
                return

    def _together(self, portion: Portion) -> Iterator[list[tuple[int, Document]]]:
        """Documents in lists of as many as are tokenized in one call."""
        most = 1 if self.model.modality == "image" else max(TOGETHER_FIRST, min(4 * self.size, TOGETHER_MOST))
        wanted, characters, held = min(TOGETHER_FIRST, most), 0, list[tuple[int, Document]]()
        for source, document in portion:
            held.append((source, document))
            characters += len(document.text)
            if len(held) >= wanted or characters >= CHARACTERS:
                yield held
                wanted, characters, held = min(2 * wanted, most), 0, []
        if held:
            yield held

    def _documents(self, shard: Shard) -> Iterator[tuple[int, Document]]:
        stamp = shard.stamp()
        if stamp is not None:
            self.done.stamps[shard.number] = stamp
        documents = self._until_broken(shard.documents())
        while not self._stopped:
            self.reading = True
            document = next(documents, None)
            self.reading = False
            if document is None:
                return
            yield document

    def _unchanged(self, shard: Shard) -> bool:
        """Whether the files of a shard are those that were read before, by their sizes and last changes."""
        stamp = shard.stamp()
        return stamp is not None and stamp == self.done.stamps.get(shard.number)

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


class _Left:
    """The account of the documents after the last one that has windows."""

    def __init__(self, shard: int, portion: int) -> None:
        self.shard, self.portion, self.account = shard, portion, Account()

    def take(self) -> Account:
        taken, self.account = self.account, Account()
        return taken


class _Sum:
    """Hashes, added up."""

    total: int = 0

    def add(self, found: int) -> None:
        self.total = (self.total + found) % HASHES
