"""A study that is cut, wherever and by whatever, and taken up again is the study that was never cut."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headscope
from headscope.corpus import shards
from headscope.errors import Changed, Stopped, StudyError
from headscope.model.model import Model
from headscope.output import finish
from headscope.studies import checkpoint, job
from headscope.studies.checkpoint import Checkpoints
from headscope.studies.result import Study
from headscope.tally.quantities import Shape
from tests import tiny
from tests.cutting import OPTIONS, assert_equal, checkpoint_of, cut, files, stopping, texts

pytestmark = pytest.mark.usefixtures("small_portions")


@pytest.fixture(scope="module")
def model() -> Model:
    return tiny.model("bert")


@given(
    counts=st.lists(st.integers(0, 30), min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 9), max_size=8),
    windows=st.sampled_from(["first", "all"]),
    every=st.sampled_from([0.0, 60.0]),
)
@settings(max_examples=10, deadline=None, derandomize=True)
def test_a_study_that_was_cut_is_the_study_that_was_not(
    model: Model,
    tmp_path_factory: pytest.TempPathFactory,
    counts: list[int],
    cuts: list[int],
    windows: str,
    every: float,
):
    folder = tmp_path_factory.mktemp("cut")
    corpus = files(folder, [9, *counts])
    options = {**OPTIONS, "windows": windows}
    whole = headscope.study(model, headscope.documents(corpus), **options)
    again = cut(model, headscope.documents(corpus), folder / "out", cuts, every=every, **options)
    assert_equal(whole, again)
    assert 1 <= again.manifest["runs"] <= len(cuts) + 1


def interrupted(model: Model, documents: Any, folder: Path, after: int = 3, **options: Any) -> int:
    """Leave an unfinished study in a folder; returns its texts."""
    with pytest.raises(Stopped) as caught:
        headscope.study(model, documents, checkpoints=folder, progress=stopping(after), **{**OPTIONS, **options})
    assert caught.value.study is not None
    return caught.value.study.texts


def test_the_comparison_can_fail(model: Model):
    study = headscope.study(model, texts(20), **OPTIONS)
    other = Study(study.data.copy(deep=True))
    other.data["pairs"][0, 0] += 1
    with pytest.raises(AssertionError):
        assert_equal(study, other)


@pytest.mark.parametrize("kernel", ["compiled", "vectorized", "reference"])
def test_texts_given_in_python_go_on_too(model: Model, tmp_path: Path, kernel: str):
    given = texts(60)
    whole = headscope.study(model, given, kernel=kernel, **OPTIONS)
    assert_equal(whole, cut(model, given, tmp_path, [2, 5, 1], kernel=kernel, every=0.0, **OPTIONS))


def test_a_stream_is_gone_on_with_when_it_is_fed_again(model: Model, tmp_path: Path):
    given = texts(60)
    whole = headscope.study(model, given, **OPTIONS)
    interrupted(model, iter(given), tmp_path)
    assert_equal(whole, headscope.study(model, iter(given), checkpoints=tmp_path, **OPTIONS))


def test_two_studies_do_not_share_a_folder(model: Model, tmp_path: Path):
    def again(_: Any) -> None:
        headscope.study(model, texts(5), checkpoints=tmp_path, **OPTIONS)

    with pytest.raises(Stopped, match="is in use: process"):
        headscope.study(model, texts(20), checkpoints=tmp_path, progress=again, **OPTIONS)


@pytest.mark.parametrize("every", [-1.0, float("nan")])
def test_no_time_between_checkpoints_is_negative(model: Model, tmp_path: Path, every: float):
    with pytest.raises(StudyError, match="seconds between checkpoints: at least 0"):
        headscope.study(model, texts(5), checkpoints=tmp_path, every=every, **OPTIONS)


def test_nothing_is_left_of_a_study_of_nothing(model: Model, tmp_path: Path):
    with pytest.raises(StudyError, match="no text to study"):
        headscope.study(model, ["", ""], checkpoints=tmp_path, **OPTIONS)
    assert list(tmp_path.iterdir()) == []


def test_a_finished_study_is_not_computed_twice(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    corpus = headscope.documents(files(tmp_path / "in", [20, 20]))
    whole = headscope.study(model, corpus, checkpoints=tmp_path, **OPTIONS)

    def refuse(*_: Any) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr(Model, "observe", refuse)
    monkeypatch.setattr(shards.Shard, "documents", refuse)  # nor read: its files are as they were
    assert_equal(whole, headscope.study(model, corpus, checkpoints=tmp_path, **OPTIONS))
    finish(tmp_path)
    assert not (tmp_path / "checkpoint").exists()
    with pytest.raises(AssertionError, match="computed again"):
        headscope.study(model, corpus, checkpoints=tmp_path, **OPTIONS)


CHANGED = {
    "theta": ({"theta": 0.4}, r"theta \(0.3 before, 0.4 now\)"),
    "tau": ({"tau": 0.2}, "tau"),
    "length": ({"length": 20}, r"length \(24 before, 20 now\)"),
    "windows": ({"windows": "all"}, "windows"),
    "sample": ({"sample": 0.25}, "sample"),
    "maps": ({"maps": False}, "maps"),
    "batch size": ({"batch_size": 4}, r"batch_size \(3 before, 4 now\)"),
    "kernel": ({"kernel": "vectorized"}, r"kernel \(compiled before, vectorized now\)"),
    "skipping": ({"skip_broken": True}, "skip_broken"),
}


@pytest.mark.parametrize("what", CHANGED)
def test_other_settings_are_refused_and_named(model: Model, tmp_path: Path, what: str):
    corpus = headscope.documents(files(tmp_path / "in", [30]))
    interrupted(model, corpus, tmp_path / "out")
    changed, message = CHANGED[what]
    before = (tmp_path / "out" / "checkpoint" / "last").read_bytes()
    with pytest.raises(Changed, match=message) as caught:
        headscope.study(model, corpus, checkpoints=tmp_path / "out", **{**OPTIONS, **changed})
    assert "--overwrite" in str(caught.value)
    assert str(caught.value).count(" before, ") == 1
    assert (tmp_path / "out" / "checkpoint" / "last").read_bytes() == before


def test_another_model_is_refused(model: Model, tmp_path: Path):
    corpus = headscope.documents(files(tmp_path / "in", [30]))
    interrupted(model, corpus, tmp_path)
    other = headscope.load(tiny.network("bert", seed=1), tiny.tokenizer())
    with pytest.raises(Changed, match="weight_hash"):
        headscope.study(other, corpus, checkpoints=tmp_path, **OPTIONS)
    with pytest.raises(Changed, match=r"model \("):
        headscope.study(tiny.model("gpt2"), corpus, checkpoints=tmp_path, **OPTIONS)


def test_other_files_are_refused_and_named(model: Model, tmp_path: Path):
    made = files(tmp_path / "in", [30, 30, 30])
    interrupted(model, headscope.documents(made), tmp_path)
    for sources, message in (
        (made[:2], r"texts \(.*02\.jsonl no longer there\)"),
        ([*made, *files(tmp_path / "more", [3])], r"texts \(.*00\.jsonl new\)"),
        (made[::-1], "the same files in another order"),
    ):
        with pytest.raises(Changed, match=message):
            headscope.study(model, headscope.documents(sources), checkpoints=tmp_path, **OPTIONS)
    with pytest.raises(Changed, match=r"limit \(none before, 5 now\)"):
        headscope.study(model, headscope.documents(made, limit=5), checkpoints=tmp_path, **OPTIONS)
    with pytest.raises(Changed, match=r"encoding \(utf-8 before, latin-1 now\)"):
        headscope.study(model, headscope.documents(made, encoding="latin-1"), checkpoints=tmp_path, **OPTIONS)


@pytest.mark.parametrize(
    ("line", "ended"),
    [(0, False), (7, False), (5, True)],
    ids=["a whole portion", "a portion under way", "a shard that was ended"],
)
def test_changed_texts_are_refused(model: Model, tmp_path: Path, line: int, ended: bool):
    made = files(tmp_path / "in", [40, 40])
    interrupted(model, headscope.documents(made), tmp_path, 18 if ended else 3)  # batches of three
    done = checkpoint.opened(tmp_path / "checkpoint" / "last").about["done"]
    assert (len(done["ended"]) == 1) == ended
    assert done["portions"][0] == [0, [[0, 6 if ended else 1]]]
    target = made[0]
    lines = target.read_text("utf-8").splitlines(keepends=True)
    lines[line] = json.dumps({"text": "the owl and the owl and the cat."}) + "\n"
    target.write_text("".join(lines), "utf-8")
    before = (tmp_path / "checkpoint" / "last").read_bytes()
    with pytest.raises(Changed, match=r"00\.jsonl.*not the texts that were studied until now.*--overwrite"):
        headscope.study(model, headscope.documents(made), checkpoints=tmp_path, **OPTIONS)
    assert (tmp_path / "checkpoint" / "last").read_bytes() == before


def test_files_that_were_copied_are_the_same_texts(model: Model, tmp_path: Path):
    made = files(tmp_path / "in", [40, 40])
    whole = headscope.study(model, headscope.documents(made), **OPTIONS)
    interrupted(model, headscope.documents(made), tmp_path, 18)
    for file in made:
        content = file.read_bytes()
        file.unlink()
        file.write_bytes(content)
    assert_equal(whole, headscope.study(model, headscope.documents(made), checkpoints=tmp_path, **OPTIONS))


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "a bit": lambda content: content[:5000] + bytes([content[5000] ^ 1]) + content[5001:],
    "the hash": lambda content: content[:30] + bytes([content[30] ^ 128]) + content[31:],
    "cut off": lambda content: content[: len(content) // 2],
    "nothing left": lambda content: b"",
    "something else": lambda content: b"\x89HDF\r\n\x1a\n" + content,
    "longer": lambda content: content + b"\0",
}


@pytest.mark.parametrize("how", DAMAGE)
def test_of_a_damaged_checkpoint_the_one_before_is_used_and_said(model: Model, tmp_path: Path, how: str):
    given = texts(60)
    whole = headscope.study(model, given, **OPTIONS)
    interrupted(model, given, tmp_path, 5, every=0.0)
    last = tmp_path / "checkpoint" / "last"
    last.write_bytes(DAMAGE[how](last.read_bytes()))
    said: list[str] = []
    again = headscope.study(model, given, checkpoints=tmp_path, say=said.append, **OPTIONS)
    assert_equal(whole, again)
    assert "The one before it is used" in said[0]
    assert str(last) in said[0]


def test_a_damaged_checkpoint_never_takes_the_place_of_a_good_one(model: Model, tmp_path: Path):
    given = texts(60)
    interrupted(model, given, tmp_path, 5, every=0.0)
    last, previous = (tmp_path / "checkpoint" / name for name in ("last", "previous"))
    last.write_bytes(b"junk")
    interrupted(model, given, tmp_path, 0, every=60.0)  # one checkpoint, when it ends
    shape = Shape(model.anatomy.layers, model.anatomy.heads, 24)
    texts_of = [checkpoint.opened(path).standing(shape).texts for path in (previous, last)]
    assert 0 < texts_of[0] <= texts_of[1]


def test_when_all_checkpoints_are_damaged_it_says_what_to_do(model: Model, tmp_path: Path):
    given = texts(60)
    interrupted(model, given, tmp_path, 5, every=0.0)
    for name in ("last", "previous"):
        (tmp_path / "checkpoint" / name).write_bytes(b"junk")
    with pytest.raises(StudyError, match=r"last: not a checkpoint; .*previous: not a checkpoint.*--overwrite"):
        headscope.study(model, given, checkpoints=tmp_path, **OPTIONS)


def test_a_checkpoint_of_another_version_is_not_misread(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    given = texts(30)
    interrupted(model, given, tmp_path, 2, every=0.0)
    monkeypatch.setattr(checkpoint, "FORMAT", 2)
    with pytest.raises(StudyError, match="of format 1, and this version of headscope reads 2"):
        headscope.study(model, given, checkpoints=tmp_path, **OPTIONS)


def test_a_broken_document_is_mended_and_the_study_goes_on(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(job, "SMALL_CORPUS", 10)  # in a small corpus it is found before anything is studied
    (made,) = files(tmp_path / "in", [60])
    whole = headscope.study(model, headscope.documents(made), **OPTIONS)
    right = made.read_text("utf-8")
    lines = right.splitlines(keepends=True)
    for place in (31, 50):
        made.write_text("".join([*lines[:place], "no JSON\n", *lines[place + 1 :]]), "utf-8")
        with pytest.raises(Stopped, match=rf"00\.jsonl:{place + 1}: not a JSON object") as caught:
            headscope.study(model, headscope.documents(made), checkpoints=tmp_path, **OPTIONS)
        assert caught.value.study is not None
        assert caught.value.study.manifest["documents_read"] == place  # all before it
    made.write_text(right, "utf-8")
    assert_equal(whole, headscope.study(model, headscope.documents(made), checkpoints=tmp_path, **OPTIONS))


def test_running_out_of_memory_and_being_cut_is_the_same_as_running_out_of_memory(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    import torch

    given, observe = texts(80), Model.observe

    def crowded(most: int) -> None:
        def observed(self: Model, batch: Any, *see: Any) -> None:
            if len(batch) > most:
                raise torch.OutOfMemoryError("CUDA out of memory")
            observe(self, batch, *see)

        monkeypatch.setattr(Model, "observe", observed)

    options = {**OPTIONS, "batch_size": 8, "kernel": "vectorized"}
    crowded(3)
    whole = headscope.study(model, given, **options)
    again = cut(model, given, tmp_path, [3, 1, 7], **options)
    assert_equal(whole, again)
    assert again.manifest["batch_size_note"] == "halved from 8 after running out of memory"


def test_a_checkpoint_that_cannot_be_written_does_not_end_a_study(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    given, said = texts(60), list[str]()
    whole = headscope.study(model, given, **OPTIONS)
    flush, tried = checkpoint.os.fsync, iter(range(100))

    def full(descriptor: int) -> None:
        if next(tried) in (2, 3, 4):
            raise OSError(28, "No space left on device")
        flush(descriptor)

    monkeypatch.setattr(checkpoint.os, "fsync", full)
    again = headscope.study(model, given, checkpoints=tmp_path, every=0.0, say=said.append, **OPTIONS)
    assert_equal(whole, again)
    assert [word for word in said if "No space left on device" in word and "The study goes on" in word]
    assert said.count("checkpoints can be written again") == 1
    assert sorted(path.name for path in (tmp_path / "checkpoint").iterdir()) == ["last", "previous"]


def test_a_folder_that_is_removed_is_made_again(model: Model, tmp_path: Path):
    import shutil

    given, said, out = texts(60), list[str](), tmp_path / "out"
    whole = headscope.study(model, given, **OPTIONS)
    steps = iter(range(100))

    def remove(_: Any) -> None:
        if next(steps) == 6:
            shutil.rmtree(out)

    again = headscope.study(model, given, checkpoints=out, every=0.0, say=said.append, progress=remove, **OPTIONS)
    assert_equal(whole, again)
    assert any("was removed, and is made again" in word for word in said)
    assert (out / "checkpoint" / "last").exists()


def test_checkpoints_do_not_depend_on_the_time_of_day(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import time

    jumping = iter([10**9, 0, -(10**9), 10**12] * 1000)
    monkeypatch.setattr(time, "time", lambda: float(next(jumping)))
    kept = Checkpoints(tmp_path, {}, every=3600.0)
    assert not any(kept.due for _ in range(10))
    study = headscope.study(model, texts(20), checkpoints=tmp_path, **OPTIONS)
    assert study.manifest["duration_seconds"] < 3600


def test_large_checkpoints_are_written_less_often(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    headscope.study(model, texts(5), checkpoints=tmp_path, **OPTIONS)
    shape = Shape(model.anatomy.layers, model.anatomy.heads, 24)
    standing = checkpoint.opened(tmp_path / "checkpoint" / "last").standing(shape)
    now = [0.0]
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: now[0])
    kept = Checkpoints(tmp_path / "other", {}, every=60.0)

    def slow(*_: Any) -> list[bytes]:
        now[0] += 30.0
        return [b""]

    monkeypatch.setattr(checkpoint, "packed", slow)
    assert kept.write(standing)  # took 30 seconds: one part in twenty of ten minutes
    for moment, due in ((100.0, False), (629.0, False), (631.0, True)):
        now[0] = moment
        assert kept.due == due


def test_everything_of_a_standing_is_kept(model: Model, tmp_path: Path):
    shape_of = headscope.study(model, texts(60), checkpoints=tmp_path, **OPTIONS)
    held = checkpoint.opened(tmp_path / "checkpoint" / "last")
    about = held.about
    assert about["done"]["ended"] == [[0, 9]]
    assert about["done"]["portions"] == [[0, [[0, 9]]]]
    assert about["account"]["read"] == 60
    assert about["identity"]["texts"] == ["texts given in Python"]
    assert sum(count for _, count, _ in about["account"]["sources"]) == 60
    assert shape_of.manifest["documents_read"] == 60


SHAPE = Shape(2, 4, 16)


def sealed(payload: bytes) -> bytes:
    """A checkpoint whose hash is right, whatever it holds."""
    return checkpoint.MARK + hashlib.blake2b(payload, digest_size=checkpoint.DIGEST).digest() + payload


def about_of(payload: bytes) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    length = int.from_bytes(payload[:8], "little")
    header = json.loads(payload[8 : 8 + length])
    return header, json.loads(header["__metadata__"]["checkpoint"]), payload[8 + length :]


def with_header(header: dict[str, Any], rest: bytes) -> bytes:
    raw = json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + rest


@given(data=st.data())
@settings(max_examples=100, deadline=None, derandomize=True)
def test_no_bytes_make_more_of_a_checkpoint_than_a_word_of_what_is_wrong(tmp_path_factory, data: st.DataObject):
    valid = checkpoint_of(SHAPE)
    payload = bytearray(valid)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, min(len(payload) - 1, 9000)))
        payload[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    path = tmp_path_factory.getbasetemp() / "checkpoint"
    path.write_bytes(data.draw(st.sampled_from([sealed(bytes(payload)), sealed(data.draw(st.binary(max_size=40)))])))
    try:
        standing = checkpoint.opened(path).standing(SHAPE)
    except checkpoint.Damaged:
        return
    assert _all_numbers(standing.done.plain())
    assert standing.tally.shape == SHAPE


def _all_numbers(plain: dict[str, Any]) -> bool:
    return all(isinstance(k, int) for _, runs in plain["portions"] for run in runs for k in run)


LIES: dict[str, Callable[[dict[str, Any], dict[str, Any]], None]] = {
    "a sum beyond the file": lambda header, about: header["pairs"]["data_offsets"].__setitem__(1, 10**12),
    "sums that overlap": lambda header, about: header.__setitem__("pairs", header["equal"]),
    "an unknown number type": lambda header, about: header["pairs"].__setitem__("dtype", "I65"),
    "a sum that is missing": lambda header, about: header.pop("pairs"),
    "another shape": lambda header, about: header["pairs"].__setitem__("shape", [20, 4, 2]),
    "portions that are words": lambda header, about: about["done"].__setitem__("portions", [["a", [["b", "c"]]]]),
    "portions backwards": lambda header, about: about["done"].__setitem__("portions", [[0, [[5, 2]]]]),
    "no account": lambda header, about: about.pop("account"),
    "an account of words": lambda header, about: about["account"].__setitem__("read", "many"),
    "no identity": lambda header, about: about.pop("identity"),
    "a list": lambda header, about: about.__setitem__("done", [1, 2]),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_checkpoint_that_lies_is_refused(tmp_path: Path, lie: str):
    header, about, rest = about_of(checkpoint_of(SHAPE))
    path = tmp_path / "last"
    path.write_bytes(sealed(with_header(header, rest)))
    assert checkpoint.opened(path).standing(SHAPE).done.portions == {0: [[0, 1]]}
    LIES[lie](header, about)
    header["__metadata__"]["checkpoint"] = json.dumps(about)
    path.write_bytes(sealed(with_header(header, rest)))
    with pytest.raises(checkpoint.Damaged):
        checkpoint.opened(path).standing(SHAPE)
