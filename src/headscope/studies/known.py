"""What was studied before a run began. It is read again on the way, and must be what it was."""

from __future__ import annotations

from headscope.corpus.documents import Corpus
from headscope.corpus.shards import Portion, Shard, limit_of, portions
from headscope.corpus.windows import Cut
from headscope.errors import Changed
from headscope.studies.account import HASHES, digest
from headscope.studies.done import Done, UnderWay
from headscope.studies.events import Text


class KnownPortions:
    """The portions of a shard that were done."""

    def __init__(self, done: Done, shard: Shard) -> None:
        self.shard, self.content = shard, done.content.get(shard.number, 0)
        self.numbers = {k for first, after in done.portions.get(shard.number, []) for k in range(first, after)}
        self.left = len(self.numbers)

    def __contains__(self, portion: int) -> bool:
        return portion in self.numbers

    def skip(self, portion: Portion) -> None:
        self.content = (self.content - sum(digest(document) for _, document in portion)) % HASHES
        self.left -= 1
        if not self.left and self.content:
            raise _changed(self.shard)

    def check(self) -> None:
        """At the end of the shard."""
        if self.left:
            raise _changed(self.shard)


class KnownTexts:
    """The texts of a portion under way that count already: they come first."""

    def __init__(self, under_way: UnderWay | None, shard: Shard) -> None:
        self.shard = shard
        self.texts, self.digests = (under_way.texts, under_way.digests) if under_way is not None else (0, 0)

    def rest(self, texts: list[Text]) -> list[Text]:
        """Those of some texts that do not count yet."""
        if not self.texts:
            return texts
        known, rest = texts[: self.texts], texts[self.texts :]
        self.texts -= len(known)
        for text in known:
            text.account.added = True
            self.digests = (self.digests - text.window.digest) % HASHES
        if not self.texts and self.digests:
            raise _changed(self.shard)
        return rest

    def check(self) -> None:
        """At the end of the portion."""
        if self.texts:
            raise _changed(self.shard)


def check_unchanged(corpus: Corpus, done: Done, cut: Cut) -> None:
    """Refuse texts that are not those studied before. Files of the same size and last change are not read for that."""
    for shard in corpus.shards:
        stamp = shard.stamp()
        if not done.begun(shard.number) or (stamp is not None and stamp == done.stamps.get(shard.number)):
            continue
        known = KnownPortions(done, shard)
        for portion in portions(shard.documents(), limit_of(cut)):
            if portion.number in known:
                known.skip(portion)
            if not known.left:
                break
        known.check()


def _changed(shard: Shard) -> Changed:
    newest = shard.newest()
    named = f" (the file that changed last: {newest})" if newest and len(shard.sources) > 1 else ""
    return Changed(
        f"{shard.name}: not the texts that were studied until now: they changed since this study began{named}. Put the "
        "old ones back, choose another folder with --out, or begin anew with --overwrite"
    )
