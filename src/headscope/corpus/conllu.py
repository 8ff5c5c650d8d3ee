"""Read CoNLL-U, the format of treebanks: documents with a relation between every word and its syntactic head.

A document begins with the comment `# newdoc`. Sentences before the first one are documents of their own: treebanks
without documents hold sentences in no order. The text is made of the words' forms, with a space after each unless it
says `SpaceAfter=No`. The words of a multiword token (`3-4`) all have its span; empty nodes (`8.1`), which stand for
nothing in the text, and enhanced dependencies are left out. So are the relations `root` and `punct`, and of the others
what follows a `:`, as in `nsubj:pass`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from headscope.corpus.document import (
    LARGEST,
    NO_CONLLU,
    BrokenDocumentError,
    Document,
    ReadOptions,
    Relation,
    add_own_target,
    check_label,
    make_size_error,
)
from headscope.corpus.lines import Readable, get_line_prefix, open_lines, split_lines

COLUMNS = 10
ID, FORM, HEAD, RELATION, MISC = 0, 1, 6, 7, 9
"""columns that are read"""
LEFT_OUT = ("root", "punct")
"""relations that are left out"""
NEW_DOCUMENT = re.compile(r"#\s*newdoc\b")
_ID = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})|(\.[0-9]+))?")
Span = tuple[int, int]


def read_conllu(path: str, options: ReadOptions) -> Iterator[Document]:
    """Read the documents of a treebank."""
    with open_lines(path) as stream:
        yield from read_treebank(stream, get_line_prefix(path), options)


def read_treebank(stream: Readable, prefix: str, options: ReadOptions) -> Iterator[Document]:
    """Yield the documents of a treebank; `prefix` precedes line numbers in their names."""
    builder: _DocumentBuilder | None = None
    has_documents = False  # whether `# newdoc` was seen
    for number, line in enumerate(split_lines(stream, prefix, options), start=1):
        where = f"{prefix}{number}"
        content = line if isinstance(line, BrokenDocumentError) else line.rstrip("\r\n")
        if isinstance(content, str) and NEW_DOCUMENT.match(content):
            if builder is not None and (has_documents or not builder.is_empty):
                yield builder.build()
            builder, has_documents = _DocumentBuilder(where, options), True
            continue
        if builder is None and isinstance(content, str) and not content.strip():
            continue
        builder = builder or _DocumentBuilder(where, options)
        builder.add_line(content, where)
        if not has_documents and builder.has_sentences:
            yield builder.build()
            builder = None
    if builder is not None and (has_documents or not builder.is_empty):
        yield builder.build()


@dataclass
class _Sentence:
    """Words of a sentence: their spans, heads (0: none) and relations, with the line of each."""

    spans: list[Span] = field(default_factory=list)
    heads: list[int] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    multiword: tuple[int, int, Span] | None = None
    """first and last word of the last multiword token, and its span"""


class _DocumentBuilder:
    """Collect the words and relations of a document, line by line. After a broken line nothing more is collected."""

    def __init__(self, name: str, options: ReadOptions) -> None:
        self.name, self.options = name, options
        self.pieces: list[str] = []
        self.size = 0
        self.needs_space = False
        self.words: list[Span] = []
        self.relations: list[Relation] = []
        self.sentence = _Sentence()
        self.error: BrokenDocumentError | None = None
        self.has_sentences = False
        """an empty line ended a sentence"""

    @property
    def is_empty(self) -> bool:
        """Whether nothing but comments was added."""
        return not (self.has_sentences or self.sentence.spans or self.pieces or self.error)

    def add_line(self, line: str | BrokenDocumentError, where: str) -> None:
        """Add a line without its end; raise its error unless broken documents are skipped."""
        if isinstance(line, str) and not line.strip():
            self._call(self._end_sentence)
            self.has_sentences = self.has_sentences or not self.is_empty
        elif isinstance(line, BrokenDocumentError):
            self._fail(line)
        elif self.error is None and not line.startswith("#"):
            try:
                self._add_word(line, where)
            except BrokenDocumentError as error:
                self._fail(error)

    def build(self) -> Document:
        """Return the document, or one that says why it is broken."""
        self._call(self._end_sentence)
        try:
            if self.error is not None:
                raise self.error
            relations = (tuple(self.relations), tuple(self.words)) if self.options.relations else (None, None)
            document = Document("".join(self.pieces), self.name, relations=relations[0], words=relations[1])
            return add_own_target(document, self.options)
        except BrokenDocumentError as error:
            if not self.options.skip_broken:
                raise
            return Document("", self.name, broken=error.reason)

    def _call(self, step: object) -> None:
        try:
            if self.error is None:
                step()  # type: ignore[operator]
        except BrokenDocumentError as error:
            self._fail(error)

    def _fail(self, error: BrokenDocumentError) -> None:
        if not self.options.skip_broken:
            raise error
        self.error = self.error or error

    def _add_word(self, line: str, where: str) -> None:
        columns = line.split("\t")
        if len(columns) != COLUMNS:
            raise _make_error(where, f"{len(columns)} columns, not {COLUMNS} with a tab between them")
        match = _ID.fullmatch(columns[ID])
        if match is None:
            raise _make_error(where, f"the id {columns[ID][:40]!r} is no number of a word")
        first, last, decimals = match.groups()
        if decimals is not None:  # an empty node
            return
        sentence, number = self.sentence, len(self.sentence.spans) + 1
        if int(first) != number:
            raise _make_error(where, f"the id {columns[ID]}, and {number} was expected")
        multiword = sentence.multiword
        if last is not None:
            if int(last) < number or (multiword is not None and multiword[1] >= number):
                raise _make_error(where, f"the words {columns[ID]} are no multiword token")
            span = self._add_form(columns, where)
            self.words.append(span)
            sentence.multiword = number, int(last), span
            return
        if multiword is not None and number <= multiword[1]:
            span = multiword[2]
        else:
            span = self._add_form(columns, where)
            self.words.append(span)
        sentence.spans.append(span)
        sentence.heads.append(_parse_head(columns[HEAD], number, where))
        sentence.labels.append(columns[RELATION].partition(":")[0].strip())
        sentence.places.append(where)

    def _add_form(self, columns: list[str], where: str) -> Span:
        """Add a form to the text; return its span."""
        form = columns[FORM]
        if not form.strip():
            raise _make_error(where, "a word without a form")
        start = self.size + self.needs_space
        if start + len(form) > LARGEST:
            raise make_size_error(self.name, "this document")
        self.pieces += [" ", form] if self.needs_space else [form]
        self.size = start + len(form)
        self.needs_space = "SpaceAfter=No" not in columns[MISC].split("|")
        return start, self.size

    def _end_sentence(self) -> None:
        """Add the relations of the sentence, of which all words are known."""
        sentence, self.sentence = self.sentence, _Sentence()
        count = len(sentence.spans)
        if sentence.multiword is not None and sentence.multiword[1] > count:
            first, last, _ = sentence.multiword
            raise _make_error(self.name, f"a sentence of {count} words has a multiword token {first}-{last}")
        for span, head, label, where in zip(
            sentence.spans, sentence.heads, sentence.labels, sentence.places, strict=True
        ):
            if head > count:
                raise _make_error(where, f"its head is word {head} of a sentence of {count} words")
            if head and label not in (*LEFT_OUT, "_", ""):
                self.relations.append(Relation(*span, *sentence.spans[head - 1], check_label(label, where)))


def _parse_head(text: str, number: int, where: str) -> int:
    """Return the number of a word's head; 0 if it has none."""
    if text == "_":
        return 0
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) == number:
        raise _make_error(where, f"the head {text[:40]!r} is no number of another word")
    return int(text)


def _make_error(where: str, reason: str) -> BrokenDocumentError:
    return BrokenDocumentError(
        NO_CONLLU,
        f"{where}: not CoNLL-U: {reason}. If it is in another format, say so with --format, or leave broken documents "
        "out with --skip-broken",
    )
