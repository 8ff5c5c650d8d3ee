"""Test checkpoint files: what is written is read again, damaged files are detected, and writing is timed."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headscope
from headscope.corpus.chunks import Chunk, ChunkSize
from headscope.errors import Changed
from headscope.run import checkpoint
from headscope.run.checkpoint import Checkpoint, DamagedError, LocalFolder, pack_checkpoint, parse_checkpoint
from headscope.run.state import ChunkProgress, RunState
from headscope.tally.examples import ExampleTexts
from headscope.tally.quantities import Shape
from tests.helpers import tiny
from tests.helpers.interrupting import OPTIONS, SMALL, make_checkpoint_payload, texts
from tests.helpers.synthetic import window
from tests.helpers.tally_cases import assert_same_tokens_and_examples

SHAPE = Shape(2, 4, 16)


def make_state(texts: int = 3) -> RunState:
    state = RunState.empty(SHAPE)
    state.batch_size = 3
    state.sums["texts"][0] = texts
    state.sums.attend(7, np.ones((20, SHAPE.layers), dtype=np.int64))
    state.sums.dominant_tokens.add_layer(1, np.array([[3, -1, 5, 3]]))
    shown = ExampleTexts([window([1, 3, 5, 3, 2]), window([1, 4, 2])], SHAPE, 0.3, None)
    for layer in range(SHAPE.layers):
        shown.set_layer(layer, np.full((2, 4, 6), 10 + layer), np.full((2, 4, 12), 70_000, np.int32))
    state.sums.examples = shown.collect()
    state.chunks = [Chunk(0, 0, 1, 0, 300), Chunk(1, 0, 1, 300), *(Chunk(k, k - 1, k) for k in range(2, 6))]
    state.source_sizes = [700, 1, 1, 1, -1]
    state.completed = {0, 1, 5}
    state.in_progress[2] = ChunkProgress(3, 2**100)
    return state


def make_checkpoint(folder: Path | str, **options: Any) -> Checkpoint:
    return Checkpoint(folder, {"theta": 0.3, "texts": ["a"]}, SMALL, **options)


def test_everything_in_a_state_is_read_again(tmp_path: Path):
    state, written = make_state(), make_checkpoint(tmp_path)
    assert written.write(state)
    read = make_checkpoint(tmp_path)
    read.chunk_size = ChunkSize(99, 99)
    again = read.read(SHAPE)
    assert again is not None
    assert again.runs == state.runs + 1
    assert read.chunk_size == SMALL
    assert {**again.to_json(), "runs": 0, "seconds": 0} == {**state.to_json(), "runs": 0, "seconds": 0}
    assert {token: counts.tolist() for token, counts in again.sums.most_attended.items()} == {
        token: counts.tolist() for token, counts in state.sums.most_attended.items()
    }
    for name, array in state.sums.arrays.items():
        np.testing.assert_array_equal(again.sums[name], array, err_msg=name)
    assert_same_tokens_and_examples(again.sums, state.sums)
    again.sums.add(state.sums)  # they can be added to


def test_without_a_checkpoint_there_is_nothing_to_resume(tmp_path: Path):
    assert make_checkpoint(tmp_path / "absent").read(SHAPE) is None
    assert not (tmp_path / "absent").exists()


def test_killed_between_the_two_renames_the_previous_one_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    written, replace = make_checkpoint(tmp_path), os.replace
    written.write(make_state(1))

    def stop_at_second(source: Any, target: Any) -> None:
        if Path(target).name == "last":
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(checkpoint.os, "replace", stop_at_second)
    with pytest.raises(KeyboardInterrupt):
        written.write(make_state(2))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["previous"]
    again = make_checkpoint(tmp_path).read(SHAPE)
    assert again is not None
    assert again.texts == 1


def test_the_last_two_are_kept_and_cleared(tmp_path: Path):
    written = make_checkpoint(tmp_path / "out")
    for count in range(1, 5):
        written.write(make_state(count))
    counted = [
        parse_checkpoint((tmp_path / "out" / name).read_bytes()).load_state(SHAPE).texts
        for name in ("last", "previous")
    ]
    assert counted == [4, 3]
    LocalFolder(tmp_path / "out").clear()
    assert not (tmp_path / "out").exists()


def test_another_identity_is_refused(tmp_path: Path):
    make_checkpoint(tmp_path).write(make_state())
    other = Checkpoint(tmp_path, {"theta": 0.4, "texts": ["a", "b"]}, SMALL)
    with pytest.raises(Changed, match=r"What changed: theta \(0.3 before, 0.4 now\); texts \(b new\)\."):
        other.read(SHAPE)


def test_checkpoints_do_not_depend_on_the_time_of_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    jumping = itertools.cycle([10**9, 0, -(10**9), 10**12])
    monkeypatch.setattr(time, "time", lambda: float(next(jumping)))
    current = make_checkpoint(tmp_path, interval=3600.0)
    assert not any(current.is_due for _ in range(10))
    study = headscope.study(tiny.model("bert"), texts(20), checkpoint_dir=tmp_path, **OPTIONS)
    assert study.manifest["duration_seconds"] < 3600


def test_large_checkpoints_are_written_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    now = [0.0]
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: now[0])
    current, state = make_checkpoint(tmp_path, interval=60.0), make_state()

    def pack_slowly(*_: Any) -> list[bytes]:
        now[0] += 30.0
        return [b""]

    monkeypatch.setattr(checkpoint, "pack_checkpoint", pack_slowly)
    assert current.write(state)  # took 30 seconds: 2 % of 25 minutes
    for moment, due in ((100.0, False), (1529.0, False), (1531.0, True)):
        now[0] = moment
        assert current.is_due == due
    assert state.seconds["checkpoints"] == 30.0


def test_without_an_interval_a_checkpoint_is_always_due(tmp_path: Path):
    current = make_checkpoint(tmp_path, interval=0.0)
    assert current.is_due
    assert current.write(make_state())
    assert current.is_due


# Files that hold anything


def seal(payload: bytes) -> bytes:
    """Return a checkpoint with this payload and the right hash."""
    return checkpoint.SIGNATURE + hashlib.blake2b(payload, digest_size=checkpoint.DIGEST_SIZE).digest() + payload


def split_payload(payload: bytes) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    length = int.from_bytes(payload[:8], "little")
    header = json.loads(payload[8 : 8 + length])
    return header, json.loads(header["__metadata__"]["checkpoint"]), payload[8 + length :]


def join_payload(header: dict[str, Any], rest: bytes) -> bytes:
    raw = json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + rest


@given(data=st.data())
@settings(max_examples=100, derandomize=True)
def test_any_bytes_are_a_state_or_damaged(data: st.DataObject):
    payload = bytearray(make_checkpoint_payload(SHAPE))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, min(len(payload) - 1, 9000)))
        payload[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    content = data.draw(st.sampled_from([seal(bytes(payload)), seal(data.draw(st.binary(max_size=40)))]))
    try:
        state = parse_checkpoint(content).load_state(SHAPE)
    except DamagedError:
        return
    assert all(isinstance(number, int) for number in state.completed | state.in_progress.keys())
    assert state.sums.shape == SHAPE


LIES: dict[str, Callable[[dict[str, Any], dict[str, Any]], None]] = {
    "a sum beyond the file": lambda header, details: header["pairs"]["data_offsets"].__setitem__(1, 10**12),
    "sums that overlap": lambda header, details: header.__setitem__("pairs", header["equal"]),
    "an unknown number type": lambda header, details: header["pairs"].__setitem__("dtype", "I65"),
    "a sum that is missing": lambda header, details: header.pop("pairs"),
    "another shape": lambda header, details: header["pairs"].__setitem__("shape", [20, 4, 2]),
    "chunks that are words": lambda header, details: details["state"].__setitem__("completed", [["a", "b"]]),
    "chunks backwards": lambda header, details: details["state"].__setitem__("completed", [[5, 2]]),
    "too many chunks": lambda header, details: details["state"].__setitem__("completed", [[0, 10**12]]),
    "chunks in progress by name": lambda header, details: details["state"].__setitem__("in_progress", [["a", 1, "f"]]),
    "no statistics": lambda header, details: details["state"].pop("stats"),
    "statistics of words": lambda header, details: details["state"]["stats"].__setitem__("documents", "many"),
    "no identity": lambda header, details: details.pop("identity"),
    "no chunk size": lambda header, details: details.pop("chunk_size"),
    "a chunk size of words": lambda header, details: details["chunk_size"].__setitem__("bytes", "many"),
    "a list": lambda header, details: details.__setitem__("state", [1, 2]),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_checkpoint_that_lies_is_damaged(tmp_path: Path, lie: str):
    header, details, rest = split_payload(make_checkpoint_payload(SHAPE))
    path = tmp_path / "last"
    path.write_bytes(seal(join_payload(header, rest)))
    right = make_checkpoint(tmp_path).read(SHAPE)
    assert right is not None
    assert right.completed == {0, 1, 5}
    LIES[lie](header, details)
    header["__metadata__"]["checkpoint"] = json.dumps(details)
    path.write_bytes(seal(join_payload(header, rest)))
    with pytest.raises(DamagedError):
        parse_checkpoint(path.read_bytes()).load_state(SHAPE)
    (tmp_path / "previous").write_bytes(b"".join(pack_checkpoint({"theta": 0.3, "texts": ["a"]}, SMALL, make_state(9))))
    messages: list[str] = []
    again = make_checkpoint(tmp_path, on_message=messages.append).read(SHAPE)
    assert again is not None
    assert again.texts == 9
    assert "The one before it is used: 9 texts" in messages[0]
