"""Test the pipeline from chunks to batches: prefetching and tokenizing in groups do not change the windows."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

import headscope
from headscope.corpus.chunks import ChunkSize
from headscope.corpus.documents import Corpus, as_corpus
from headscope.corpus.formats import Document, load_openings
from headscope.corpus.windows import Window, WindowSpec
from headscope.errors import Changed, StorageError
from headscope.interrupts import InterruptFlag, Terminated, defer_interrupts, raise_interrupts
from headscope.model import batch_tokenizer as model_openings
from headscope.model.batch_tokenizer import cut_opening, is_opening_sufficient
from headscope.model.model import Model
from headscope.model.tokenizer import ModelTokens
from headscope.run import pipeline
from headscope.run.pipeline import DOCUMENTS_PER_TEXT, Prefetcher, Section, SectionReader, make_batches
from headscope.run.state import HASH_MODULUS, ChunkProgress, CorpusStats, hash_document
from tests.helpers import tiny
from tests.helpers.interrupting import files
from tests.helpers.study_equality import assert_same_sums

PATIENCE = 120.0
"""seconds that something may take on a machine that has other things to do; only a defect takes longer"""
LETTERS = "the cat, a owl. sat! on é  \n\t東 [CLS] 3.5 don't ##s İ\u0301 "
TEXT = st.one_of(
    st.text(max_size=60),
    st.sampled_from(["", " ", "\n\t ", "[SEP]", "word", "\u200b", "a" * 300, "東京" * 200]),
    st.lists(st.sampled_from(LETTERS.split(" ")), max_size=40).map(" ".join),
    st.integers(0, 300).map(lambda count: "One two, three. " * count),
)
CUTS = [
    WindowSpec(length=16, windows=windows, sentences=sentences)
    for windows in ("first", "all")
    for sentences in ("tokens", "text")
]


@pytest.fixture(scope="module")
def small() -> Model:
    model = tiny.model("bert")
    assert model.ignores_padding  # asked here, so that no test that watches the model sees it asked
    return model


def list_fields(window: Window) -> tuple[Any, ...]:
    arrays = (window.ids, window.special, window.sentence, window.end, window.comma)
    return (*(array.tolist() for array in arrays), *(array.dtype for array in arrays), window.digest, window.block)


def list_threads() -> list[threading.Thread]:
    """Return the prefetching threads that do not end by themselves."""
    threads = [thread for thread in threading.enumerate() if thread.name == "headscope: prefetch"]
    for thread in threads:
        thread.join(PATIENCE)
    return [thread for thread in threads if thread.is_alive()]


def list_windows(sections: list[Section]) -> list[Window]:
    return [window for section in sections for batch in section.batches for window in batch.windows]


def add_stats(sections: list[Section]) -> CorpusStats:
    total = CorpusStats()
    for section in sections:
        total.add(section.stats)
    return total


def read_sections(
    corpus: Corpus,
    model: Model,
    cut: WindowSpec | None = None,
    *,
    batch_size: int = 4,
    section_texts: int = 8,
    size: ChunkSize | None = None,
    in_progress: Mapping[int, ChunkProgress] | None = None,
    in_thread: bool = False,
) -> list[Section]:
    reader = SectionReader(corpus, model, cut or WindowSpec(), batch_size, section_texts)
    chunks = corpus.plan_chunks(size or ChunkSize(4, 300))
    with reader.prefetch(chunks, in_progress or {}, in_thread=in_thread) as sections:
        return list(sections)


# The same windows


@pytest.mark.parametrize("cut", CUTS, ids=str)
@given(texts=st.lists(TEXT, max_size=30), batch_size=st.integers(1, 9), section_texts=st.integers(1, 30))
@settings(max_examples=25, derandomize=True)
def test_many_documents_at_once_give_the_windows_of_each_alone(
    minilm: Model, cut: WindowSpec, texts: list[str], batch_size: int, section_texts: int
):
    corpus = as_corpus(texts)
    alone = [minilm.windows(document, cut) for document in corpus]
    expected = [list_fields(window) for windows in alone if isinstance(windows, list) for window in windows]
    sections = read_sections(corpus, minilm, cut, batch_size=batch_size, section_texts=section_texts, in_thread=True)
    assert sorted(map(repr, map(list_fields, list_windows(sections)))) == sorted(map(repr, expected))
    assert [section.is_last for section in sections] == [False] * (len(sections) - 1) + [True]
    stats = add_stats(sections)
    content = sum(map(hash_document, corpus)) % HASH_MODULUS
    assert (stats.documents, stats.content) == (len(texts), content)
    assert sections[-1].progress == (len(texts), content)
    reasons = [windows for windows in alone if isinstance(windows, str)]
    assert stats.skipped == {reason: reasons.count(reason) for reason in reasons}
    studied = [document for document, windows in zip(corpus, alone, strict=True) if isinstance(windows, list)][:3]
    assert [excerpt["name"] for excerpt in stats.excerpts.values()] == [document.name for document in studied]


@given(lengths=st.lists(st.integers(2, 9), max_size=40), size=st.integers(1, 9), can_pad=st.booleans())
def test_batches_hold_every_window_once_and_the_longest_first(lengths: list[int], size: int, can_pad: bool):
    windows = list(tiny.batch(*lengths).windows) if lengths else []
    batches = make_batches(windows, size, 0, can_pad=can_pad)
    batched = [window for batch in batches for window in batch.windows]
    assert sorted(map(id, batched)) == sorted(map(id, windows))
    assert list(map(len, batched)) == sorted(lengths, reverse=True)
    assert all(1 <= len(batch) <= size for batch in batches)
    if can_pad:
        assert len(batches) == -(-len(windows) // size)
    else:
        assert all(len({len(window) for window in batch.windows}) == 1 for batch in batches)


# Sections


@given(
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    size=st.builds(ChunkSize, st.integers(1, 20), st.integers(50, 900)),
    section_texts=st.integers(1, 12),
    windows=st.sampled_from(["first", "all"]),
)
@settings(max_examples=25, derandomize=True)
def test_sections_are_of_one_chunk_and_bounded(
    small: Model,
    tmp_path_factory: pytest.TempPathFactory,
    counts: list[int],
    size: ChunkSize,
    section_texts: int,
    windows: Any,
):
    corpus = headscope.documents(files(tmp_path_factory.mktemp("in"), counts))
    cut = WindowSpec(length=16, windows=windows)
    chunks = corpus.plan_chunks(size)
    sections = read_sections(corpus, small, cut, batch_size=3, section_texts=section_texts, size=size)
    assert [section.chunk for section in sections if section.is_last] == [chunk.number for chunk in chunks]
    assert [section.chunk for section in sections] == sorted(section.chunk for section in sections)
    for chunk in chunks:
        documents = [document for _, document in corpus.read_chunk(chunk)]
        chunk_sections = [section for section in sections if section.chunk == chunk.number]
        # A batch never holds windows of two chunks, and every window of a chunk is in one batch of it.
        alone = [cut_windows for document in documents if isinstance(cut_windows := small.windows(document, cut), list)]
        expected = sorted(window.digest for cut_windows in alone for window in cut_windows)
        assert sorted(window.digest for window in list_windows(chunk_sections)) == expected
        most = max((len(cut_windows) for cut_windows in alone), default=0)
        for section in chunk_sections:
            assert section.texts < section_texts + max(1, most)
            assert section.stats.documents <= DOCUMENTS_PER_TEXT * section_texts
        counted = 0
        for section in chunk_sections:
            counted += section.stats.documents
            content = sum(map(hash_document, documents[:counted])) % HASH_MODULUS
            assert section.progress == (counted, content)


def test_many_documents_without_texts_do_not_make_one_section(small: Model):
    sections = read_sections(as_corpus([""] * 400), small, section_texts=5)
    assert [section.stats.documents for section in sections] == [80] * 5 + [0]
    assert not list_windows(sections)


@given(done=st.integers(0, 60), section_texts=st.integers(1, 30))
@settings(max_examples=25, derandomize=True)
def test_a_chunk_in_progress_is_read_from_where_it_was(small: Model, done: int, section_texts: int):
    corpus = as_corpus([f"text {k} of the cat" if k % 3 else "" for k in range(60)])
    content = sum(map(hash_document, list(corpus)[:done])) % HASH_MODULUS
    sections = read_sections(corpus, small, section_texts=section_texts, in_progress={0: ChunkProgress(done, content)})
    all_sections = read_sections(corpus, small, section_texts=section_texts)
    assert sections[-1].progress == all_sections[-1].progress
    assert add_stats(sections).documents == 60 - done
    expected = [small.windows(document, WindowSpec()) for document in list(corpus)[done:]]
    digests = [window.digest for windows in expected if isinstance(windows, list) for window in windows]
    assert sorted(window.digest for window in list_windows(sections)) == sorted(digests)


@pytest.mark.parametrize("done", [ChunkProgress(3, 17), ChunkProgress(61, 17)])
def test_texts_that_are_not_those_counted_before_are_refused(small: Model, done: ChunkProgress):
    corpus = as_corpus([f"text {k} of the cat" for k in range(60)])
    for in_thread in (True, False):
        with pytest.raises(Changed, match="texts given in Python: not the texts that were counted before"):
            read_sections(corpus, small, in_progress={0: done}, in_thread=in_thread)
    assert not list_threads()


def test_sections_do_not_depend_on_the_thread_or_on_resuming(small: Model, tmp_path: Path):
    corpus = headscope.documents(files(tmp_path, [60, 50]))

    def describe(sections: list[Section]) -> list[Any]:
        return [
            (
                section.chunk,
                section.progress,
                [[window.digest for window in batch.windows] for batch in section.batches],
            )
            for section in sections
        ]

    expected = describe(read_sections(corpus, small))
    assert expected == describe(read_sections(corpus, small, in_thread=True))
    # A chunk that is resumed after any of its sections has the rest of its sections.
    large = ChunkSize(1000, 10**6)
    sections = read_sections(corpus, small, size=large)
    (chunk,) = {section.chunk for section in sections}
    assert len(sections) > 5
    for k, section in enumerate(sections[:-1]):
        rest = read_sections(corpus, small, size=large, in_progress={chunk: section.progress})
        assert describe(rest) == describe(sections[k + 1 :])


# Tokenizing


def make_byte_level_tokenizer() -> PreTrainedTokenizerFast:
    tokens = ["<e>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "Ġt", "Ġth", "ĠĠ"]
    merges = [("Ġ", "t"), ("Ġt", "h"), ("Ġ", "Ġ")]
    tokenizer = Tokenizer(models.BPE({token: k for k, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.post_processor = processors.TemplateProcessing(single="<e> $A", special_tokens=[("<e>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<e>")


WORDS = st.lists(
    st.one_of(st.sampled_from([*LETTERS.split(" "), "\u0301a", "x" * 150, "<e>", "", "  "]), st.text(max_size=8)),
    max_size=60,
)


@pytest.mark.parametrize("kind", ["wordpiece", "bytes", "minilm"])
@given(
    texts=st.lists(WORDS.map(" ".join), max_size=6),
    length=st.integers(4, 20),
    offsets=st.booleans(),
    characters=st.sampled_from([1, 2, 4]),
)
@example(texts=["a" + " " * 8 + "cd"], length=6, offsets=False, characters=1)  # a run of spaces is not to be cut
@settings(max_examples=60, deadline=None, derandomize=True)
def test_an_opening_has_the_first_tokens_of_its_text(
    minilm: Model, kind: str, texts: list[str], length: int, offsets: bool, characters: int
):
    model_tokens = (
        minilm.tokens
        if kind == "minilm"
        else ModelTokens(tiny.tokenizer() if kind == "wordpiece" else make_byte_level_tokenizer())
    )
    assert model_tokens._openings_suffice
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(model_openings, "CHARACTERS_PER_TOKEN", characters)  # so that the end of an opening matters
        encoded = model_tokens.encode_all(texts, length, all_windows=False, offsets=offsets)
    assert encoded is not None
    for text, (encoding,) in zip(texts, encoded, strict=True):
        (expected,) = model_tokens.encode(text, length, all_windows=False, offsets=offsets)
        assert encoding.ids.tolist() == expected.ids.tolist()
        assert (encoding.starts is None) == (expected.starts is None)
        assert encoding.starts is None or encoding.starts.tolist() == expected.starts.tolist()


def test_a_book_is_not_tokenized_for_its_first_page(minilm: Model, monkeypatch: pytest.MonkeyPatch):
    calls: list[list[str]] = []
    tokenizer = minilm.tokens.tokenizer

    def tokenize(texts: list[str], **options: Any) -> Any:
        calls.append(texts)
        return tokenizer(texts, **options)

    tokenize.is_fast, tokenize.backend_tokenizer = True, tokenizer.backend_tokenizer  # type: ignore[attr-defined]
    tokenize.convert_ids_to_tokens = tokenizer.convert_ids_to_tokens  # type: ignore[attr-defined]
    monkeypatch.setattr(minilm.tokens, "tokenizer", tokenize)
    long = ["once upon a time " * 9999, "internationalization " * 9999, "short"]
    encodings = minilm.tokens.encode_all(long, 32, all_windows=False, offsets=False)
    assert [len(encoding.ids) for (encoding,) in encodings] == [32, 32, 3]
    assert max(len(text) for text in calls[0]) < 200
    assert calls[1] == [long[1]]  # six characters per token were not enough
    assert len(calls) == 2


def test_which_tokenizers_need_the_whole_text():
    def make_tokenizer(model: Any = None, normalizer: Any = None, splitter: Any = None, added: str = "") -> Tokenizer:
        tokenizer = Tokenizer(model or models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
        tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter or pre_tokenizers.BertPreTokenizer()
        if added:
            tokenizer.add_tokens([added])
        return tokenizer

    class Own:
        def pre_tokenize(self, text: Any) -> None: ...

    assert is_opening_sufficient(make_tokenizer())
    assert is_opening_sufficient(
        make_tokenizer(normalizer=normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase()]))
    )
    assert not is_opening_sufficient(make_tokenizer(splitter=pre_tokenizers.Metaspace()))
    assert not is_opening_sufficient(make_tokenizer(splitter=pre_tokenizers.ByteLevel(use_regex=False)))
    assert not is_opening_sufficient(make_tokenizer(splitter=pre_tokenizers.PreTokenizer.custom(Own())))
    assert not is_opening_sufficient(make_tokenizer(normalizer=normalizers.Replace(" ", "_")))
    assert not is_opening_sufficient(make_tokenizer(added="New York"))
    assert not is_opening_sufficient(
        make_tokenizer(model=models.WordPiece({"a": 1}, unk_token="[UNK]"))
    )  # fails where a word is unknown
    assert not is_opening_sufficient(make_tokenizer(model=models.Unigram([("a", 0.0)], 0)))
    assert cut_opening("é è " * 100, 4) == "é è " * 100  # no space between two plain letters


# Errors


def test_a_text_that_breaks_the_tokenizer_is_named(minilm: Model, monkeypatch: pytest.MonkeyPatch):
    tokenizer = minilm.tokens.tokenizer

    class Choosy:
        is_fast = True

        def __call__(self, texts: Any, **options: Any) -> Any:
            if any("poison" in text for text in ([texts] if isinstance(texts, str) else texts)):
                raise OverflowError("too much")
            return tokenizer(texts, **options)

        def __getattr__(self, name: str) -> Any:
            return getattr(tokenizer, name)

    monkeypatch.setattr(minilm.tokens, "tokenizer", Choosy())
    corpus = as_corpus([f"Text number {k} is here." for k in range(20)] + ["poison it is", "more text"])
    for in_thread in (True, False):
        sections = read_sections(corpus, minilm, section_texts=4, in_thread=in_thread)
        assert sections[-1].error == "text 21: the tokenizer Choosy cannot read this text: OverflowError: too much"
        assert not sections[-1].batches
        assert not sections[-1].stats.documents
        assert not any(section.error or section.is_last for section in sections[:-1])
        assert add_stats(sections).documents == sections[-2].progress.documents >= 16
    assert not list_threads()


def test_after_a_chunk_that_cannot_be_read_the_next_one_follows(small: Model, tmp_path: Path):
    paths = files(tmp_path, [40, 40])
    lines = paths[0].read_bytes().splitlines(keepends=True)
    paths[0].write_bytes(b"".join([*lines[:20], b"#" * len(lines[20][:-1]) + b"\n", *lines[21:]]))
    corpus = headscope.documents(paths)
    sections = read_sections(corpus, small)
    (failed,) = [section for section in sections if section.error]
    assert failed.error.startswith(f"{paths[0]}:21: not a JSON object")
    last = {section.chunk for section in sections if section.is_last}
    assert last == {chunk.number for chunk in corpus.plan_chunks(ChunkSize(4, 300))} - {failed.chunk}


@pytest.mark.parametrize("failures", [1, 3, 4])
@pytest.mark.parametrize("in_thread", [False, True])
def test_remote_storage_that_fails_is_tried_again(
    small: Model, monkeypatch: pytest.MonkeyPatch, failures: int, in_thread: bool
):
    """Reading continues after the last section: nothing is lost, and nothing is repeated."""
    monkeypatch.setattr(pipeline, "RETRY_SECONDS", (0.0, 0.0, 0.0))
    remaining = [failures]

    def read() -> Iterator[Document]:
        for k in range(40):
            if k == 25 and remaining[0]:
                remaining[0] -= 1
                raise StorageError("s3://a: cannot be read: timed out")
            yield Document(f"text {k} of the cat", f"text {k}")

    sections = read_sections(Corpus.from_stream("remote", read), small, in_thread=in_thread)
    if failures > 3:
        assert sections[-1].error == "s3://a: cannot be read: timed out"
        assert add_stats(sections).documents == 16
        return
    assert sorted(window.digest for window in list_windows(sections)) == sorted(
        small.windows(Document(f"text {k} of the cat", ""), WindowSpec())[0].digest for k in range(40)
    )
    assert sections[-1].is_last
    assert sections[-1].progress.documents == 40


def test_a_pipe_that_fails_is_not_tried_again(small: Model):
    reads = list[int]()

    def read() -> Iterator[Document]:
        reads.append(1)
        yield Document("text of the cat", "text")
        raise StorageError("s3://a: cannot be read: timed out")

    sections = read_sections(Corpus.from_stream("pipe", read, rereadable=False), small)
    assert [section.error for section in sections] == ["s3://a: cannot be read: timed out"]
    assert len(reads) == 1


class Odd(Exception):
    pass


@pytest.mark.parametrize("error", [headscope.CorpusError("line 7"), Odd("of its own"), KeyboardInterrupt()], ids=repr)
def test_an_error_of_the_corpus_comes_after_all_sections_before_it(small: Model, error: BaseException):
    def read_broken() -> Iterator[Document]:
        for k in range(17):
            yield Document(f"text {k} of the cat" if k != 5 else "", f"text {k}")
        raise error

    reader = SectionReader(Corpus.from_stream("broken", read_broken), small, WindowSpec(), 4, 4)
    sections: list[Section] = []

    def read_all() -> None:
        chunks = reader.corpus.plan_chunks(ChunkSize(4, 300))
        with reader.prefetch(chunks, {}) as prefetched:
            for section in prefetched:
                sections.append(section)

    if isinstance(error, headscope.CorpusError):
        read_all()
        assert sections.pop().error == "line 7"
    else:
        with pytest.raises(type(error)) as caught:
            read_all()
        assert caught.value is error
    stats = add_stats(sections)
    assert (len(list_windows(sections)), stats.documents, stats.skipped["empty"]) == (12, 13, 1)
    assert not list_threads()


# The thread


def count_endlessly() -> Iterator[int]:
    k = 0
    while True:
        yield (k := k + 1)


@pytest.mark.parametrize("leaving", ["break", "error", "interrupt", "nothing taken"])
def test_the_thread_ends_with_whoever_takes(leaving: str):
    error = {"error": Odd, "interrupt": KeyboardInterrupt}.get(leaving)

    def take() -> None:
        with Prefetcher(count_endlessly(), 3) as numbers:
            for number in numbers if leaving != "nothing taken" else []:
                if number == 5:
                    if error:
                        raise error
                    break

    if error:
        with pytest.raises(error):
            take()
    else:
        take()
    assert not list_threads()


def test_only_so_much_is_made_ahead():
    produced: list[int] = []

    def count_up() -> Iterator[int]:
        for k in range(100):
            produced.append(k)
            yield k

    with Prefetcher(count_up(), 4) as numbers:
        taking = iter(numbers)
        assert [next(taking) for _ in range(10)] == list(range(10))
        deadline = time.monotonic() + PATIENCE
        while len(produced) < 14 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.05)  # in which a thread that knew no bound would make more
        assert len(produced) == 14
        assert list(taking) == list(range(10, 100))
        assert list(numbers) == []


def test_an_error_of_the_thread_is_the_takers():
    def read_broken() -> Iterator[int]:
        yield 1
        raise Odd("here")

    with Prefetcher(read_broken(), 4) as numbers:
        taking = iter(numbers)
        assert next(taking) == 1
        with pytest.raises(Odd, match="here"):
            next(taking)
    assert not list_threads()


def test_a_thread_that_hangs_outside_is_not_waited_for(small: Model):
    hangs, wake = threading.Event(), threading.Event()

    def read_slowly() -> Iterator[Document]:
        for k in range(40):
            yield Document(f"text {k} of the cat", f"text {k}")
        hangs.set()
        wake.wait(2 * PATIENCE)  # who waits for this thread finds that it has ended

    corpus = Corpus.from_stream("slow", read_slowly)
    reader = SectionReader(corpus, small, WindowSpec(), 1, 8)
    with reader.prefetch(corpus.plan_chunks(ChunkSize(4, 300)), {}) as sections:
        taking = iter(sections)
        for _ in range(2):  # the sixteen documents that are read first
            next(taking)
        assert hangs.wait(PATIENCE)
    assert any(thread.name == "headscope: prefetch" for thread in threading.enumerate())
    wake.set()
    assert not list_threads()


def test_a_consumer_that_waits_calls_check():
    wake = threading.Event()

    def wait_for_check() -> Iterator[int]:
        wake.wait(PATIENCE)
        yield 1

    def check() -> None:
        wake.set()
        raise Odd("stop")

    with pytest.raises(Odd, match="stop"), Prefetcher(wait_for_check(), 1, check=check) as numbers:
        list(numbers)
    assert not list_threads()


def test_a_generator_is_read_in_the_thread_that_gave_it(small: Model):
    here, threads = threading.current_thread(), []

    class Listed(list[str]):
        def __iter__(self) -> Iterator[str]:
            for text in super().__iter__():
                threads.append(threading.current_thread())
                yield text

    texts = ["the cat sat.", "a owl."] * 3
    in_thread = headscope.study(small, iter(Listed(texts)), length=16, sample=1.0)
    assert set(threads) == {here}
    threads.clear()
    in_background = headscope.study(small, Listed(texts), length=16, sample=1.0)
    assert threads[-1] is not here  # the main thread may look at a list before it is counted
    assert_same_sums(in_thread, in_background)
    assert in_thread.manifest["corpus_hash"] == in_background.manifest["corpus_hash"]


def test_a_tokenizer_serves_two_threads(minilm: Model):
    text, wrong = "one two three " * 50, []
    ended = threading.Event()

    def count_tokens() -> None:
        while not ended.is_set():
            minilm.tokens.count("one two three four")

    disturbing, patience = threading.Thread(target=count_tokens), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    disturbing.start()
    try:
        for _ in range(200):
            encodings = minilm.tokens.encode_all([text] * 3, 16, all_windows=False, offsets=False) or []
            wrong += [len(encoding.ids) for (encoding,) in encodings if len(encoding.ids) != 16]
    finally:
        sys.setswitchinterval(patience)
        ended.set()
        disturbing.join()
    assert not wrong


# What a study says of documents that it did not get to


@pytest.mark.usefixtures("small_chunks")
def test_a_study_that_stops_describes_only_what_it_counted(small: Model):
    texts = [("" if k % 4 == 1 else f"text {k} has the cat" + ", a cat" * (k % 7)) for k in range(60)]
    reports: list[headscope.Progress] = []

    def stop(done: headscope.Progress) -> None:
        reports.append(done)
        if done.texts > 10:
            raise KeyboardInterrupt

    with pytest.raises(headscope.Stopped) as caught:
        headscope.study(small, texts, length=32, batch_size=4, progress=stop)
    assert caught.value.interrupted
    study = caught.value.study
    assert study is not None
    manifest = study.manifest
    assert study.texts == 8  # a section
    counted = manifest["documents_read"]
    assert counted == study.texts + sum(manifest["documents_skipped"].values())
    assert manifest["excerpts"][0]["name"] == "text 1"
    content = sum(hash_document(Document(text, "")) for text in texts[:counted]) % HASH_MODULUS
    assert int(manifest["corpus_hash"], 16) == content
    assert_same_sums(study, headscope.study(small, texts[:counted], length=32, batch_size=4))
    assert not list_threads()


# Ctrl-C


def test_a_signal_waits_until_all_is_done():
    done = []

    @defer_interrupts()
    def work() -> None:
        signal.raise_signal(signal.SIGINT)
        done.append("all of it")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["all of it"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with defer_interrupts():
        pass


def test_sigterm_counts_more_than_a_ctrl_c_before_it():
    @defer_interrupts()
    def receive_both() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)

    with raise_interrupts(), pytest.raises(Terminated):
        receive_both()


def test_elsewhere_signals_are_left_alone():
    failed: list[BaseException] = []

    def check_handler() -> None:
        try:
            with defer_interrupts():
                assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=check_handler)
    thread.start()
    thread.join()
    assert not failed
    usual = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with defer_interrupts():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, usual)


def test_a_signal_stops_a_study_that_waits_for_texts(small: Model, monkeypatch: pytest.MonkeyPatch):
    waits, wake, ended = threading.Event(), threading.Event(), threading.Event()
    check = InterruptFlag.check

    class Waiting(list[str]):
        def __iter__(self) -> Iterator[str]:
            yield from (f"text {k} has the cat." for k in range(40))
            waits.set()
            wake.wait(PATIENCE)
            ended.set()

    def interrupt_while_waiting(flag: InterruptFlag) -> None:
        if waits.is_set():
            signal.raise_signal(signal.SIGINT)
        check(flag)

    monkeypatch.setattr(InterruptFlag, "check", interrupt_while_waiting)
    with pytest.raises(headscope.Stopped) as caught:
        headscope.study(small, Waiting(["one"]), length=16, batch_size=1)
    assert caught.value.interrupted
    assert not ended.is_set()  # the study did not wait for its texts
    wake.set()


# The rest


def test_a_study_says_where_its_time_went(small: Model):
    study = headscope.study(small, ["the cat sat.", "a owl."], length=16)
    timing = study.manifest["timing"]
    assert set(timing) == {"opening", "waiting_for_texts", "model_and_sums", "finishing"}
    assert all(seconds >= 0 for seconds in timing.values())
    other = headscope.study(small, ["the owl sat."], length=16)
    merged_timing = study.merge(other).manifest["timing"]
    assert merged_timing["opening"] == pytest.approx(timing["opening"] + other.manifest["timing"]["opening"], abs=2e-3)


def test_images_are_taken_one_by_one():
    model = tiny.vision_model()
    most: list[int] = []
    cut_documents = Model.cut_documents

    class Watched(Model):
        def cut_documents(self, documents: Any, cut: WindowSpec) -> Any:
            most.append(len(documents))
            return cut_documents(self, documents, cut)

    watched = Watched(model.name, model.network, model.tokens, model.weight_hash)
    assert headscope.study(watched, tiny.pictures(5)).texts == 5
    assert set(most) == {1}


def test_real_texts_come_out_in_the_same_order(minilm: Model):
    corpus = as_corpus([document.text for document, _ in zip(load_openings(), range(40), strict=False)])
    order = [
        [[[window.digest for window in batch.windows] for batch in section.batches] for section in sections]
        for sections in (read_sections(corpus, minilm, in_thread=in_thread) for in_thread in (True, True, False))
    ]
    assert order[0] == order[1] == order[2]
    assert [[len(batch) for batch in section] for section in order[0]] == [[4, 4]] * 5 + [[]]
    assert len({digest for section in order[0] for batch in section for digest in batch}) == 40
