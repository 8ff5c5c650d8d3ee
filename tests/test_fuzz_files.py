"""Files that are opened: whatever bytes stand under the name of a study, a reading, an ablation or a model, they are
opened or refused in words, and nothing that such a file declares is believed before it is looked at."""

from __future__ import annotations

import json
import os
import runpy
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headscope
from headscope import writing
from headscope.errors import HeadscopeError, ModelError, ReadingError, StudyError
from headscope.pruning.ablation import ablate, open_ablation
from headscope.readings.files import open_reading
from headscope.studies.result import open_study
from tests import tiny
from tests.synthetic import random_study
from tests.test_fuzz_documents import mutated

FAST = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
OPENERS: dict[str, tuple[Callable[[Path], Any], type[HeadscopeError]]] = {
    "study": (open_study, StudyError),
    "reading": (open_reading, ReadingError),
    "ablation": (open_ablation, StudyError),
}
TEXT = "the cat sat. the dog ran, the owl!"


@cache
def valid(kind: str) -> bytes:
    """The bytes of a small file of this kind."""
    with tempfile.TemporaryDirectory() as held:
        path = Path(held) / "a.nc"
        if kind == "study":
            random_study(layers=1, heads=2, texts=3, length=8, maps=False).save(path)
        elif kind == "reading":
            headscope.read(tiny.model("bert"), TEXT, length=16).save(path)
        else:
            ablate(tiny.model("bert"), [TEXT], heads="L0H0", length=16).save(path)
        return path.read_bytes()


def test_the_fuzzer_by_hand_works(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """`fuzz/readers.py` needs atheris, which is not installed: this keeps it in step with what it calls."""
    atheris = SimpleNamespace(instrument_imports=lambda **_: nullcontext())
    monkeypatch.setitem(sys.modules, "atheris", atheris)
    readers = runpy.run_path(str(Path(__file__).parent.parent / "fuzz" / "readers.py"))
    for target in ("a.jsonl", *readers["OPENERS"]):
        (seed,) = readers["seeds"](target)
        for raw in (seed, seed[: len(seed) // 2], b""):
            readers["once"](
                target, tmp_path / f"{target}.nc" if target in readers["OPENERS"] else tmp_path / target, raw
            )
    (seed,) = readers["seeds"]("checkpoint")
    (tmp_path / "checkpoint").write_bytes(seed)
    assert readers["open_checkpoint"](tmp_path / "checkpoint") == 0


def refused(kind: str, path: Path) -> str:
    opener, error = OPENERS[kind]
    with pytest.raises(error) as caught:
        opener(path)
    assert str(caught.value).startswith(str(path))
    return str(caught.value)


def used(kind: str, path: Path) -> None:
    """Opens a file and takes from it what everybody does."""
    opened = OPENERS[kind][0](path)
    repr(opened)
    if kind == "reading":
        opened.pairs(layer=opened.layers[0], head=0)
    else:
        opened.table()
        opened.manifest  # noqa: B018


@pytest.mark.parametrize("kind", OPENERS)
def test_valid_files_open(tmp_path: Path, kind: str):
    (tmp_path / "a.nc").write_bytes(valid(kind))
    used(kind, tmp_path / "a.nc")


@pytest.mark.parametrize("kind", OPENERS)
@pytest.mark.parametrize("way", ["bytes", "mutated"])
def test_any_file(tmp_path: Path, kind: str, way: str):
    @FAST
    @given(st.binary(max_size=200) if way == "bytes" else mutated(valid(kind)))
    def is_opened_or_refused(raw: bytes) -> None:
        (tmp_path / "a.nc").write_bytes(raw)
        try:
            OPENERS[kind][0](tmp_path / "a.nc")
        except HeadscopeError as error:
            assert str(error).startswith(str(tmp_path / "a.nc"))  # noqa: PT017

    is_opened_or_refused()


@pytest.mark.parametrize("kind", OPENERS)
@pytest.mark.parametrize("part", [0, 0.1, 0.5, 0.9, 0.98])
def test_truncated_files(tmp_path: Path, kind: str, part: float):
    (tmp_path / "a.nc").write_bytes(valid(kind)[: int(part * len(valid(kind)))])
    assert "not readable as netCDF" in refused(kind, tmp_path / "a.nc")


# Files of another content


def changed(kind: str, path: Path, change: Callable[[h5py.File], None]) -> Path:
    path.write_bytes(valid(kind))
    with h5py.File(path, "r+") as held:
        change(held)
    return path


@pytest.mark.parametrize("kind", OPENERS)
def test_files_from_elsewhere(tmp_path: Path, kind: str):
    xr.Dataset({"rain": ("time", [1.0, 2.0])}, {"time": [0, 1]}).to_netcdf(tmp_path / "a.nc", engine="h5netcdf")
    refused(kind, tmp_path / "a.nc")
    about = dict(xr.load_dataset(_put(tmp_path, kind), engine="h5netcdf").attrs)
    xr.Dataset({"rain": ("time", [1.0, 2.0])}, attrs=about).to_netcdf(tmp_path / "a.nc", engine="h5netcdf")
    assert "not a whole one: no " in refused(kind, tmp_path / "a.nc")


def _put(folder: Path, kind: str) -> Path:
    (folder / "valid.nc").write_bytes(valid(kind))
    return folder / "valid.nc"


LAYERS = {"study": "pairs", "reading": "outputs", "ablation": "change"}


@pytest.mark.parametrize("kind", OPENERS)
@pytest.mark.parametrize("what", ["absent", "dims", "text", "layers"])
def test_variables_that_are_not_as_they_must_be(tmp_path: Path, kind: str, what: str):
    name = LAYERS[kind]
    data = xr.load_dataset(_put(tmp_path, kind), engine="h5netcdf").drop_encoding()
    if what == "absent":
        data = data.drop_vars(name)
    elif what == "dims":
        data[name] = data[name].rename(head="somewhere")
    elif what == "text":
        data[name] = (data[name].dims, np.full(data[name].shape, "a", dtype=object))
    else:
        data = data.drop_vars("layer")
    data.to_netcdf(tmp_path / "a.nc", engine="h5netcdf")
    message = refused(kind, tmp_path / "a.nc")
    assert "not a whole one" in message
    assert ("layer" if what == "layers" else name) in message


def test_a_study_whose_axes_are_not_those_of_its_manifest(tmp_path: Path):
    def says(name: str, value: Any) -> Path:
        return changed("study", tmp_path / "a.nc", lambda held: held.attrs.__setitem__(name, value))

    for name, value in (("length", 9), ("layers", 0), ("heads", 1)):
        assert "belong" in refused("study", says(name, value))
    for name, value in (("length", "many"), ("theta", float("nan")), ("layers", [1, 2]), ("layers", float("inf"))):
        assert f"its {name} is no number" in refused("study", says(name, value))


@pytest.mark.parametrize("value", ["{", "", "[" * 100_000, 7])
@pytest.mark.parametrize(("kind", "name"), [("study", "excerpts"), ("ablation", "versions")])
def test_attributes_that_are_no_json(tmp_path: Path, kind: str, name: str, value: Any):
    def change(held: h5py.File) -> None:
        del held.attrs[name]
        held.attrs.create(name, value[:60_000] if isinstance(value, str) else value)

    assert f"its {name} are not JSON" in refused(kind, changed(kind, tmp_path / "a.nc", change))


@pytest.mark.parametrize("kind", OPENERS)
@pytest.mark.parametrize("name", ["format", "kind"])
@pytest.mark.parametrize("value", [[1, 2], "", -1])
def test_attributes_of_another_kind(tmp_path: Path, kind: str, name: str, value: Any):
    path = changed(kind, tmp_path / "a.nc", lambda held: held.attrs.__setitem__(name, value))
    refused(kind, path)


def huge(held: h5py.File) -> None:
    held.create_dataset("huge", (10**6, 10**6), "f8", chunks=(1000, 1000), compression="gzip")


def large_chunk(held: h5py.File) -> None:
    held.create_dataset("chunk", (1,), "f8", maxshape=(None,), chunks=(2**28,), compression="gzip")


HOSTILE: dict[str, tuple[Callable[[h5py.File], None], str]] = {
    "a huge array": (huge, "'huge' it declares more"),
    "a huge chunk": (large_chunk, "'chunk' it declares more"),
    "a group": (lambda held: held.create_group("more"), "'more' is no array"),
    "a link": (lambda held: held.__setitem__("there", h5py.SoftLink("/nowhere")), "'there' is a link"),
    "a link to a file": (
        lambda held: held.__setitem__("there", h5py.ExternalLink("/etc/passwd", "/")),
        "'there' is a link",
    ),
    "another file's bytes": (
        lambda held: held.create_dataset("raw", (4,), "u1", external=[("/etc/hostname", 0, 4)]),
        "'raw' is stored in a way",
    ),
    "a virtual array": (
        lambda held: held.create_virtual_dataset("virtual", h5py.VirtualLayout((4,), "f8")),
        "'virtual' is stored in a way",
    ),
    "lists": (lambda held: held.create_dataset("v", (2,), h5py.vlen_dtype("f8")), "'v' holds neither"),
    "records": (lambda held: held.create_dataset("v", (2,), [("a", "f8")]), "'v' holds neither"),
    "references": (lambda held: held.create_dataset("v", (2,), h5py.ref_dtype), "'v' holds neither"),
    "complex": (lambda held: held.create_dataset("v", (2,), "c16"), "'v' holds neither"),
}


@pytest.mark.parametrize("kind", OPENERS)
@pytest.mark.parametrize("what", HOSTILE)
def test_what_no_file_of_ours_holds(tmp_path: Path, kind: str, what: str):
    change, words = HOSTILE[what]
    message = refused(kind, changed(kind, tmp_path / "a.nc", change))
    assert "not a file that headscope wrote" in message
    assert words in message


def test_a_million_declared_elements_are_not_read(tmp_path: Path):
    """A small file with 10^12 elements opens in little memory: in a process that may not take more."""
    path = changed("study", tmp_path / "a.nc", huge)
    assert path.stat().st_size < 2_000_000
    code = (
        "import sys\nfrom headscope.studies.result import open_study\nfrom headscope.errors import StudyError\n"
        "try:\n    open_study(sys.argv[1])\nexcept StudyError:\n    print('refused')"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True, timeout=300
    )
    assert ran.stdout == "refused\n"


# Models


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    held = tmp_path_factory.mktemp("model")
    tiny.model("bert").network.save_pretrained(held)
    tiny.model("bert").tokens.tokenizer.save_pretrained(held)
    return held


def header(**entries: Any) -> bytes:
    raw = json.dumps(entries).encode()
    return struct.pack("<Q", len(raw)) + raw


ENTRY = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
LIES: dict[str, bytes] = {
    "nothing": b"",
    "noise": bytes(range(256)) * 4,
    "a length beyond the file": struct.pack("<Q", 2**40) + b"{}",
    "the largest length": struct.pack("<Q", 2**64 - 1) + b"{}",
    "an unknown type": header(a={**ENTRY, "dtype": "F7"}) + bytes(16),
    "offsets beyond the file": header(a={**ENTRY, "data_offsets": [0, 2**50]}) + bytes(16),
    "offsets backwards": header(a={**ENTRY, "data_offsets": [16, 0]}) + bytes(16),
    "offsets that overlap": header(a=ENTRY, b={**ENTRY, "data_offsets": [8, 24]}) + bytes(24),
    "a shape beyond all memory": header(a={**ENTRY, "shape": [2**40, 2**40]}) + bytes(16),
    "a negative shape": header(a={**ENTRY, "shape": [-1, 2]}) + bytes(16),
    "sizes that are no numbers": header(a={**ENTRY, "shape": [float("nan")]}) + bytes(16),
    "no JSON": struct.pack("<Q", 8) + b"{{{{{{{{",
    "deep JSON": struct.pack("<Q", 100_000) + b"[" * 100_000,
    "a pickle": b"\x80\x04K\x01.",
    "other weights": header(a=ENTRY) + bytes(16),
}


@pytest.mark.parametrize("what", LIES)
def test_models_whose_weights_lie(folder: Path, tmp_path: Path, what: str):
    for path in folder.iterdir():
        if path.name != "model.safetensors":
            os.link(path, tmp_path / path.name)
    (tmp_path / "model.safetensors").write_bytes(LIES[what])
    with pytest.raises(ModelError, match=str(tmp_path)):
        headscope.load(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_models_with_damaged_files(folder: Path, tmp_path: Path, name: str):
    for path in folder.iterdir():
        if path.name != name:
            os.link(path, tmp_path / path.name)
    valid_file = (folder / name).read_bytes()

    @settings(FAST, max_examples=15)
    @given(st.one_of(st.binary(max_size=200), mutated(valid_file)))
    def is_loaded_or_refused(raw: bytes) -> None:
        (tmp_path / name).write_bytes(raw)
        try:
            headscope.load(tmp_path)
        except HeadscopeError as error:
            assert str(tmp_path) in str(error)  # noqa: PT017

    is_loaded_or_refused()


def test_a_damaged_file_of_ours_is_not_given_to_hdf5(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """On a damaged heap HDF5 may never come back: the seal behind its data is looked at first."""
    study = headscope.study(tiny.model("bert"), ["the cat sat.", "a owl sat."], length=16)
    path = study.save(tmp_path / "study.nc")
    assert headscope.open_study(path).texts == 2
    whole = path.read_bytes()
    monkeypatch.setattr(writing, "check_file", lambda _: pytest.fail("opened"))
    for place in (10, len(whole) // 2, len(whole) - 60, len(whole) - 1):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(headscope.StudyError, match="damaged, its hash is wrong"):
            headscope.open_study(path)


def test_others_open_a_sealed_file_too(tmp_path: Path):
    study = headscope.study(tiny.model("bert"), ["the cat sat.", "a owl sat."], length=16)
    path = study.save(tmp_path / "study.nc")
    with xr.open_dataset(path) as data:
        assert int(data["texts"]) == 2
        data.load().to_netcdf(tmp_path / "again.nc")  # which has no seal
    assert headscope.open_study(tmp_path / "again.nc").texts == 2
