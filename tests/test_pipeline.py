"""Texts on their way to the model: whatever runs ahead and together, they come out as one after the other."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

import headscope
from headscope.corpus.bundled import openings
from headscope.corpus.documents import Corpus, as_corpus
from headscope.corpus.formats import Document
from headscope.corpus.windows import Cut, Window
from headscope.model import openings as model_openings
from headscope.model.model import Model
from headscope.model.openings import opening, suffice
from headscope.model.tokens import ModelTokens
from headscope.studies.ahead import Ahead
from headscope.studies.events import Event, Load
from headscope.studies.memory import Room, fitting, ran_out
from headscope.studies.texts import Texts
from headscope.studies.undisturbed import undisturbed
from headscope.tally.vectorized import VectorizedTallier
from tests import tiny
from tests.comparing import assert_same_sums

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
    Cut(length=16, windows=windows, sentences=sentences)
    for windows in ("first", "all")
    for sentences in ("tokens", "text")
]


@pytest.fixture(scope="module")
def small() -> Model:
    made = tiny.model("bert")
    assert made.ignores_padding  # asked here, so that no test that watches the model sees it asked
    return made


def fields(window: Window) -> tuple[Any, ...]:
    arrays = (window.ids, window.special, window.sentence, window.end, window.comma)
    return (*(array.tolist() for array in arrays), *(array.dtype for array in arrays), window.digest)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("headscope")]


def hash_of(texts: list[str]) -> int:
    digests = (hashlib.blake2b(text.encode(), digest_size=16).digest() for text in texts)
    return sum(int.from_bytes(digest, "little") for digest in digests) % 2**128


def take(texts: Texts, taken: list[Window], *, ahead: bool) -> None:
    with texts.loads(ahead=ahead) as events:
        for event in events:
            taken += event.batch.windows if isinstance(event, Load) else []
            texts.count(event)


def loads_of(events: Iterator[Event]) -> Iterator[Load]:
    return (event for event in events if isinstance(event, Load))


# The same windows


@pytest.mark.parametrize("cut", CUTS, ids=str)
@given(texts=st.lists(TEXT, max_size=30), size=st.integers(1, 9))
@settings(max_examples=25, deadline=None, derandomize=True)
def test_many_documents_at_once_give_the_windows_of_each_alone(minilm: Model, cut: Cut, texts: list[str], size: int):
    corpus = as_corpus(texts)
    alone = [minilm.windows(document, cut) for document in corpus]
    expected = [fields(window) for windows in alone if isinstance(windows, list) for window in windows]
    straight = Texts(corpus, minilm, cut, 1, by_length=False)
    with straight.loads(ahead=False) as events:
        assert [fields(window) for load in loads_of(events) for window in load.batch.windows] == expected
    ahead = Texts(corpus, minilm, cut, size)
    with ahead.loads(ahead=True) as events:
        made = list(loads_of(event for event in events if not ahead.count(event)))
    assert sorted(map(repr, (fields(w) for load in made for w in load.batch.windows))) == sorted(map(repr, expected))
    assert ahead.account.read == len(texts)
    assert ahead.account.content == hash_of([document.text for document in corpus])
    reasons = [windows for windows in alone if isinstance(windows, str)]
    assert dict(ahead.account.skipped) == {reason: reasons.count(reason) for reason in reasons}
    begun = [document for document, windows in zip(corpus, alone, strict=True) if isinstance(windows, list)][:3]
    assert [text["name"] for _, text in sorted(ahead.account.excerpts.items())] == [one.name for one in begun]


def byte_level() -> PreTrainedTokenizerFast:
    tokens = ["<e>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "Ġt", "Ġth", "ĠĠ"]
    merges = [("Ġ", "t"), ("Ġt", "h"), ("Ġ", "Ġ")]
    made = Tokenizer(models.BPE({token: k for k, token in enumerate(tokens)}, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    made.post_processor = processors.TemplateProcessing(single="<e> $A", special_tokens=[("<e>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<e>")


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
    made = minilm.tokens if kind == "minilm" else ModelTokens(tiny.tokenizer() if kind == "wordpiece" else byte_level())
    assert made._openings_suffice
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(model_openings, "CHARACTERS_A_TOKEN", characters)  # so that the end of an opening matters
        encoded = made.encode_all(texts, length, all_windows=False, offsets=offsets)
    assert encoded is not None
    for text, (found,) in zip(texts, encoded, strict=True):
        (expected,) = made.encode(text, length, all_windows=False, offsets=offsets)
        assert found.ids.tolist() == expected.ids.tolist()
        assert (found.starts is None) == (expected.starts is None)
        assert found.starts is None or found.starts.tolist() == expected.starts.tolist()


def test_a_book_is_not_tokenized_for_its_first_page(minilm: Model, monkeypatch: pytest.MonkeyPatch):
    given: list[list[str]] = []
    tokenizer = minilm.tokens.tokenizer

    def watched(texts: list[str], **options: Any) -> Any:
        given.append(texts)
        return tokenizer(texts, **options)

    watched.is_fast, watched.backend_tokenizer = True, tokenizer.backend_tokenizer  # type: ignore[attr-defined]
    watched.convert_ids_to_tokens = tokenizer.convert_ids_to_tokens  # type: ignore[attr-defined]
    monkeypatch.setattr(minilm.tokens, "tokenizer", watched)
    long = ["once upon a time " * 9999, "internationalization " * 9999, "short"]
    found = minilm.tokens.encode_all(long, 32, all_windows=False, offsets=False)
    assert [len(one.ids) for (one,) in found] == [32, 32, 3]
    assert max(len(text) for text in given[0]) < 200
    assert given[1] == [long[1]]  # six characters a token were not enough
    assert len(given) == 2


def test_which_tokenizers_need_the_whole_text():
    def made(model: Any = None, normalizer: Any = None, splitter: Any = None, added: str = "") -> Tokenizer:
        tokenizer = Tokenizer(model or models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
        tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter or pre_tokenizers.BertPreTokenizer()
        if added:
            tokenizer.add_tokens([added])
        return tokenizer

    class Own:
        def pre_tokenize(self, text: Any) -> None: ...

    assert suffice(made())
    assert suffice(made(normalizer=normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase()])))
    assert not suffice(made(splitter=pre_tokenizers.Metaspace()))
    assert not suffice(made(splitter=pre_tokenizers.ByteLevel(use_regex=False)))
    assert not suffice(made(splitter=pre_tokenizers.PreTokenizer.custom(Own())))
    assert not suffice(made(normalizer=normalizers.Replace(" ", "_")))
    assert not suffice(made(added="New York"))
    assert not suffice(made(model=models.WordPiece({"a": 1}, unk_token="[UNK]")))  # fails where a word is unknown
    assert not suffice(made(model=models.Unigram([("a", 0.0)], 0)))
    assert opening("é è " * 100, 4) == "é è " * 100  # no space between two plain letters


# Errors


def test_a_text_that_breaks_the_tokenizer_is_named_after_those_before_it(
    minilm: Model, monkeypatch: pytest.MonkeyPatch
):
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
    for ahead in (True, False):
        corpus = as_corpus([f"Text number {k} is here." for k in range(20)] + ["poison it is", "more text"])
        texts = Texts(corpus, minilm, Cut(), 4)
        taken: list[Window] = []
        message = "^text 21: the tokenizer Choosy cannot read this text: OverflowError: too much$"
        with pytest.raises(headscope.CorpusError, match=message):
            take(texts, taken, ahead=ahead)
        assert len(taken) == texts.account.read == 20
    assert not threads()


class Odd(Exception):
    pass


@pytest.mark.parametrize("error", [headscope.CorpusError("line 7"), Odd("of its own"), KeyboardInterrupt()], ids=repr)
def test_an_error_of_the_corpus_comes_after_all_before_it(small: Model, error: BaseException):
    def broken() -> Iterator[Document]:
        for k in range(7):
            yield Document(f"text {k} of the cat" if k != 5 else "", f"text {k}")
        raise error

    texts = Texts(Corpus.of("broken", broken), small, Cut(), 4)
    taken: list[Window] = []
    with pytest.raises(type(error)) as caught:
        take(texts, taken, ahead=True)
    assert caught.value is error
    assert (len(taken), texts.account.read, texts.account.skipped["empty"]) == (6, 7, 1)


# The thread


def endless() -> Iterator[int]:
    k = 0
    while True:
        yield (k := k + 1)


@pytest.mark.parametrize("leaving", ["break", "error", "interrupt", "nothing taken"])
def test_the_thread_ends_with_whoever_takes(leaving: str):
    error = {"error": Odd, "interrupt": KeyboardInterrupt}.get(leaving)

    def take() -> None:
        with Ahead(endless(), 3) as numbers:
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
    assert not threads()


def test_only_so_much_is_made_ahead():
    made: list[int] = []

    def counted() -> Iterator[int]:
        for k in range(100):
            made.append(k)
            yield k

    with Ahead(counted(), 4) as numbers:
        taking = iter(numbers)
        assert [next(taking) for _ in range(10)] == list(range(10))
        deadline = time.monotonic() + PATIENCE
        while len(made) < 14 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.05)  # in which a thread that knew no bound would make more
        assert len(made) == 14
        assert list(taking) == list(range(10, 100))
        assert list(numbers) == []


def test_an_error_of_the_thread_is_the_takers():
    def broken() -> Iterator[int]:
        yield 1
        raise Odd("here")

    with Ahead(broken(), 4) as numbers:
        taking = iter(numbers)
        assert next(taking) == 1
        with pytest.raises(Odd, match="here"):
            next(taking)
    assert not threads()


def test_a_thread_that_hangs_outside_is_not_waited_for(small: Model):
    hangs, wake = threading.Event(), threading.Event()

    def slow() -> Iterator[Document]:
        for k in range(40):
            yield Document(f"text {k} of the cat", f"text {k}")
        hangs.set()
        wake.wait(2 * PATIENCE)  # who waits for this thread finds that it has ended

    texts = Texts(Corpus.of("slow", slow), small, Cut(), 1)
    with texts.loads(ahead=True) as events:
        for _ in range(31):
            next(events)
        assert hangs.wait(PATIENCE)
    (hanging,) = threads()
    wake.set()
    hanging.join(PATIENCE)
    assert not threads()


def test_a_generator_is_read_in_the_thread_that_gave_it(small: Model):
    here, seen = threading.current_thread(), []

    class Listed(list[str]):
        def __iter__(self) -> Iterator[str]:
            for text in super().__iter__():
                seen.append(threading.current_thread())
                yield text

    texts = ["the cat sat.", "a owl."] * 3
    one = headscope.study(small, iter(Listed(texts)), length=16, sample=1.0)
    assert set(seen) == {here}
    seen.clear()
    other = headscope.study(small, Listed(texts), length=16, sample=1.0)
    assert here not in seen
    assert_same_sums(one, other)
    assert one.manifest["corpus_hash"] == other.manifest["corpus_hash"]


def test_a_tokenizer_serves_two_threads(minilm: Model):
    text, wrong = "one two three " * 50, []
    ended = threading.Event()

    def disturb() -> None:
        while not ended.is_set():
            minilm.tokens.count("one two three four")

    disturbing, patience = threading.Thread(target=disturb), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    disturbing.start()
    try:
        for _ in range(200):
            made = minilm.tokens.encode_all([text] * 3, 16, all_windows=False, offsets=False) or []
            wrong += [len(one.ids) for (one,) in made if len(one.ids) != 16]
    finally:
        sys.setswitchinterval(patience)
        ended.set()
        disturbing.join()
    assert not wrong


# What a study says of documents that it did not get to


def test_a_study_that_stops_speaks_only_of_what_it_counted(small: Model):
    all_read = threading.Event()

    class Listed(list[str]):
        def __iter__(self) -> Iterator[str]:
            all_read.clear()
            yield from super().__iter__()
            all_read.set()

    texts = Listed(("" if k % 4 == 1 else f"text {k} has the cat" + ", a cat" * (k % 7)) for k in range(60))
    told: list[headscope.Progress] = []

    def stop(done: headscope.Progress) -> None:
        told.append(done)
        if len(told) == 2:
            assert all_read.wait(PATIENCE)
            raise KeyboardInterrupt

    with pytest.raises(headscope.Stopped) as caught:
        headscope.study(small, texts, length=32, batch_size=4, progress=stop)
    study = caught.value.study
    assert study is not None
    about = study.manifest
    assert study.texts == 8
    skipped = sum(about["documents_skipped"].values())
    assert about["documents_read"] == told[-1].documents == 8 + skipped < 20
    assert 2 <= skipped <= 4
    assert about["excerpts"][0]["name"] == "text 1"
    assert int(about["corpus_hash"], 16) != hash_of(texts)


def test_a_document_counts_with_its_first_window(small: Model):
    texts = Texts(as_corpus(["", "the cat sat. " * 20, "a owl " * 20]), small, Cut(length=16, windows="all"), 2)
    with texts.loads(ahead=True) as events:
        texts.count(next(events))
        assert (texts.account.read, texts.account.skipped["empty"]) == (2, 1)
        for event in events:
            texts.count(event)
    assert texts.account.read == 3


# Room


def crowded(monkeypatch: pytest.MonkeyPatch, most: int, error: Exception) -> list[int]:
    observe, tried = Model.observe, []

    def observed(self: Model, batch: Any, see: Any, attend: Any = None) -> None:
        tried.append(len(batch))
        if len(batch) > most:
            observe(self, batch, lambda layer, *seen: see(layer, *seen) if layer == 0 else None)  # half of it was seen
            raise error
        observe(self, batch, see)

    monkeypatch.setattr(Model, "observe", observed)
    return tried


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried"),
        MemoryError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_without_room_batches_are_halved_and_nothing_is_lost(
    small: Model, monkeypatch: pytest.MonkeyPatch, error: Exception
):
    texts = [f"text {k} has the cat" + ", a cat" * (k % 7) for k in range(30)]
    expected = headscope.study(small, texts, length=32, batch_size=3, kernel="vectorized")
    tried = crowded(monkeypatch, 3, error)
    study = headscope.study(small, texts, length=32, batch_size=16, kernel="vectorized")
    assert tried[:3] == [16, 8, 4]
    assert max(tried[3:]) == 2
    assert_same_sums(study, expected)
    assert study.manifest["batch_size"] == 2
    assert study.manifest["batch_size_note"] == "halved from 16 after running out of memory"
    assert study.manifest["documents_read"] == 30
    assert expected.manifest["batch_size_note"] == ""


def test_with_no_room_for_one_text_it_says_what_to_do(small: Model, monkeypatch: pytest.MonkeyPatch):
    crowded(monkeypatch, 0, torch.OutOfMemoryError("CUDA out of memory.\nOf the allocated memory …"))
    message = (
        r"one text of \d+ tokens at a time \(OutOfMemoryError: CUDA out of memory\.\): .*--length, --dtype bfloat16"
    )
    with pytest.raises(headscope.StudyError, match=message):
        headscope.study(small, ["the cat sat."], length=16, kernel="vectorized")


def test_other_errors_are_not_taken_for_a_lack_of_memory(small: Model, monkeypatch: pytest.MonkeyPatch):
    tried = crowded(monkeypatch, 0, RuntimeError("shapes do not fit"))
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        headscope.study(small, ["the cat sat."] * 4, length=16, kernel="vectorized")
    assert tried == [4]
    assert ran_out(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"))


def test_the_batch_size_is_a_power_of_two_within_bounds(small: Model):
    assert fitting(10**15, 12, 128, 3072) == 1024
    assert fitting(1, 12, 128, 3072) == 1
    sizes = [fitting(free * 2**30, 16, 512, 4096) for free in (4, 8, 16, 32, 64, 128)]
    assert sizes == sorted(sizes)
    assert all(size & (size - 1) == 0 for size in sizes)
    assert Room.of(small, 128).size == 16
    assert Room.of(small, 16_000).size == 1
    assert Room.of(small, 128, 7).size == 7


def test_parts_of_a_load_keep_what_belongs_to_each_text(small: Model):
    texts = Texts(as_corpus([f"text {k}" + " cat" * k for k in range(5)]), small, Cut(), 5)
    with texts.loads(ahead=False) as events:
        (load,) = loads_of(events)
    parts = load.parts(2)
    assert [len(part.batch) for part in parts] == [2, 2, 1]
    assert [w for part in parts for w in part.batch.windows] == load.batch.windows
    assert [a for part in parts for a in part.accounts] == load.accounts
    assert load.parts(5) == [load]
    assert isinstance(parts[0], Load)
    assert parts[0].batch.ids.shape[1] < load.batch.ids.shape[1]


# Ctrl-C


def test_a_signal_waits_until_all_is_done():
    done = []

    @undisturbed()
    def work() -> None:
        signal.raise_signal(signal.SIGINT)
        done.append("all of it")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["all of it"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with undisturbed():
        pass


def test_elsewhere_signals_are_left_alone():
    failed: list[BaseException] = []

    def other() -> None:
        try:
            with undisturbed():
                assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert not failed
    usual = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with undisturbed():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, usual)


def test_a_signal_while_a_batch_is_added_leaves_it_whole(small: Model, monkeypatch: pytest.MonkeyPatch):
    end, ended = VectorizedTallier.end, []

    def pressed(self: VectorizedTallier) -> None:
        ended.append(1)
        if len(ended) == 2:
            signal.raise_signal(signal.SIGINT)
        end(self)

    monkeypatch.setattr(VectorizedTallier, "end", pressed)
    texts = [f"text {k} has the cat." for k in range(20)]
    with pytest.raises(headscope.Stopped) as caught:
        headscope.study(small, texts, length=16, batch_size=3, kernel="vectorized")
    assert caught.value.interrupted
    assert caught.value.study is not None
    assert caught.value.study.texts == caught.value.study.manifest["documents_read"] == 6
    assert not threads()


def test_a_signal_stops_a_study_that_waits_for_texts(small: Model):
    wake, ended = threading.Event(), threading.Event()

    class Waiting(list[str]):
        def __iter__(self) -> Iterator[str]:
            yield from (f"text {k} has the cat." for k in range(40))
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            wake.wait(PATIENCE)
            ended.set()

    with pytest.raises(headscope.Stopped) as caught:
        headscope.study(small, Waiting(["one"]), length=16, batch_size=1)
    assert caught.value.interrupted
    assert not ended.is_set()  # the study did not wait for its texts
    wake.set()


# The rest


def test_a_study_says_where_its_time_went(small: Model):
    study = headscope.study(small, ["the cat sat.", "a owl."], length=16)
    spent = study.manifest["timing"]
    assert set(spent) == {"opening", "waiting_for_texts", "model_and_sums", "finishing"}
    assert all(taken >= 0 for taken in spent.values())
    other = headscope.study(small, ["the owl sat."], length=16)
    both = study.merge(other).manifest["timing"]
    assert both["opening"] == pytest.approx(spent["opening"] + other.manifest["timing"]["opening"], abs=2e-3)


def test_images_are_taken_one_by_one():
    model = tiny.vision_model()
    most: list[int] = []
    windows_of = Model.windows_of

    class Watched(Model):
        def windows_of(self, documents: Any, cut: Cut) -> Any:
            most.append(len(documents))
            return windows_of(self, documents, cut)

    watched = Watched(model.name, model.network, model.tokens, model.weight_hash)
    assert headscope.study(watched, tiny.pictures(5)).texts == 5
    assert set(most) == {1}


def test_real_texts_come_out_in_the_same_order(minilm: Model):
    texts = [document.text for document, _ in zip(openings(), range(40), strict=False)]
    order = []
    for _ in range(2):
        made = Texts(as_corpus(texts), minilm, Cut(), 4)
        with made.loads(ahead=True) as events:
            order.append([[window.digest for window in load.batch.windows] for load in loads_of(events)])
    assert order[0] == order[1]
    assert [len(batch) for batch in order[0]] == [4] * 10
    assert np.unique([digest for batch in order[0] for digest in batch]).size == 40
