"""Fuzz opening studies, readings, ablations and models: any file is opened or refused with a clear error, and its
declared sizes are validated before it is read.
"""

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
from headscope import file_io
from headscope.errors import HeadscopeError, ModelError, ReadingError, StudyError
from headscope.pruning.ablation import ablate
from headscope.pruning.ablation_result import open_ablation
from headscope.readings.files import open_reading
from headscope.studies.result import open_study
from tests.helpers import tiny
from tests.helpers.mutation import mutate
from tests.helpers.synthetic import make_random_study

FAST = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
OPENERS: dict[str, tuple[Callable[[Path], Any], type[HeadscopeError]]] = {
    "study": (open_study, StudyError),
    "reading": (open_reading, ReadingError),
    "ablation": (open_ablation, StudyError),
}
TEXT = "the cat sat. the dog ran, the owl!"


@cache
def valid(kind: str) -> bytes:
    """Return the bytes of a small file of this kind."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.nc"
        if kind == "study":
            make_random_study(layers=1, heads=2, texts=3, length=8, maps=False).save(path)
        elif kind == "reading":
            headscope.read(tiny.model("bert"), TEXT, length=16).save(path)
        else:
            ablate(tiny.model("bert"), [TEXT], heads="L0H0", length=16).save(path)
        return path.read_bytes()


def test_the_fuzzer_by_hand_works(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """`fuzz/readers.py` needs atheris, which is not installed; this test notices if it no longer works."""
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


def get_refusal(kind: str, path: Path) -> str:
    opener, error = OPENERS[kind]
    with pytest.raises(error) as caught:
        opener(path)
    assert str(caught.value).startswith(str(path))
    return str(caught.value)


def use_file(kind: str, path: Path) -> None:
    """Open a file and access its usual contents."""
    opened = OPENERS[kind][0](path)
    repr(opened)
    if kind == "reading":
        opened.pairs(layer=opened.layers[0], head=0)
    else:
        opened.heads() if kind == "study" else opened.table()
        opened.manifest  # noqa: B018


@pytest.mark.parametrize("kind", OPENERS)
def test_valid_files_open(tmp_path: Path, kind: str):
    (tmp_path / "a.nc").write_bytes(valid(kind))
    use_file(kind, tmp_path / "a.nc")


@pytest.mark.parametrize("kind", OPENERS)
@pytest.mark.parametrize("way", ["bytes", "mutated"])
def test_any_file(tmp_path: Path, kind: str, way: str):
    @FAST
    @given(st.binary(max_size=200) if way == "bytes" else mutate(valid(kind)))
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
    assert "not readable as netCDF" in get_refusal(kind, tmp_path / "a.nc")


# Files of another content


def change_file(kind: str, path: Path, change: Callable[[h5py.File], None]) -> Path:
    path.write_bytes(valid(kind))
    with h5py.File(path, "r+") as file:
        change(file)
    return path


@pytest.mark.parametrize("kind", OPENERS)
def test_files_from_elsewhere(tmp_path: Path, kind: str):
    xr.Dataset({"rain": ("time", [1.0, 2.0])}, {"time": [0, 1]}).to_netcdf(tmp_path / "a.nc", engine="h5netcdf")
    get_refusal(kind, tmp_path / "a.nc")
    attributes = dict(xr.load_dataset(write_valid_file(tmp_path, kind), engine="h5netcdf").attrs)
    xr.Dataset({"rain": ("time", [1.0, 2.0])}, attrs=attributes).to_netcdf(tmp_path / "a.nc", engine="h5netcdf")
    assert "not a whole one: no " in get_refusal(kind, tmp_path / "a.nc")


def write_valid_file(folder: Path, kind: str) -> Path:
    (folder / "valid.nc").write_bytes(valid(kind))
    return folder / "valid.nc"


LAYERS = {"study": "pairs", "reading": "outputs", "ablation": "change"}


@pytest.mark.parametrize("kind", OPENERS)
@pytest.mark.parametrize("what", ["absent", "dims", "text", "layers"])
def test_variables_that_are_not_as_they_must_be(tmp_path: Path, kind: str, what: str):
    name = LAYERS[kind]
    data = xr.load_dataset(write_valid_file(tmp_path, kind), engine="h5netcdf").drop_encoding()
    if what == "absent":
        data = data.drop_vars(name)
    elif what == "dims":
        data[name] = data[name].rename(head="somewhere")
    elif what == "text":
        data[name] = (data[name].dims, np.full(data[name].shape, "a", dtype=object))
    else:
        data = data.drop_vars("layer")
    data.to_netcdf(tmp_path / "a.nc", engine="h5netcdf")
    message = get_refusal(kind, tmp_path / "a.nc")
    assert "not a whole one" in message
    assert ("layer" if what == "layers" else name) in message


def test_a_study_whose_axes_are_not_those_of_its_manifest(tmp_path: Path):
    def set_attribute(name: str, value: Any) -> Path:
        return change_file("study", tmp_path / "a.nc", lambda file: file.attrs.__setitem__(name, value))

    for name, value in (("length", 9), ("layers", 0), ("heads", 1)):
        assert "instead of" in get_refusal("study", set_attribute(name, value))
    for name, value in (("length", "many"), ("theta", float("nan")), ("layers", [1, 2]), ("layers", float("inf"))):
        assert f"its {name} is no number" in get_refusal("study", set_attribute(name, value))


@pytest.mark.parametrize("value", ["{", "", "[" * 100_000, 7])
@pytest.mark.parametrize(("kind", "name"), [("study", "excerpts"), ("ablation", "versions")])
def test_attributes_that_are_no_json(tmp_path: Path, kind: str, name: str, value: Any):
    def replace_attribute(file: h5py.File) -> None:
        del file.attrs[name]
        file.attrs.create(name, value[:60_000] if isinstance(value, str) else value)

    assert f"its {name} are not JSON" in get_refusal(kind, change_file(kind, tmp_path / "a.nc", replace_attribute))


@pytest.mark.parametrize("kind", OPENERS)
@pytest.mark.parametrize("name", ["format", "kind"])
@pytest.mark.parametrize("value", [[1, 2], "", -1])
def test_attributes_of_another_kind(tmp_path: Path, kind: str, name: str, value: Any):
    path = change_file(kind, tmp_path / "a.nc", lambda file: file.attrs.__setitem__(name, value))
    get_refusal(kind, path)


def add_huge_array(file: h5py.File) -> None:
    file.create_dataset("huge", (10**6, 10**6), "f8", chunks=(1000, 1000), compression="gzip")


def add_large_chunk(file: h5py.File) -> None:
    file.create_dataset("chunk", (1,), "f8", maxshape=(None,), chunks=(2**28,), compression="gzip")


HOSTILE: dict[str, tuple[Callable[[h5py.File], None], str]] = {
    "a huge array": (add_huge_array, "'huge' it declares more"),
    "a huge chunk": (add_large_chunk, "'chunk' it declares more"),
    "a group": (lambda file: file.create_group("more"), "'more' is not an array"),
    "a link": (lambda file: file.__setitem__("there", h5py.SoftLink("/nowhere")), "'there' is a link"),
    "a link to a file": (
        lambda file: file.__setitem__("there", h5py.ExternalLink("/etc/passwd", "/")),
        "'there' is a link",
    ),
    "another file's bytes": (
        lambda file: file.create_dataset("raw", (4,), "u1", external=[("/etc/hostname", 0, 4)]),
        "'raw' is stored in a way",
    ),
    "a virtual array": (
        lambda file: file.create_virtual_dataset("virtual", h5py.VirtualLayout((4,), "f8")),
        "'virtual' is stored in a way",
    ),
    "lists": (lambda file: file.create_dataset("v", (2,), h5py.vlen_dtype("f8")), "'v' holds neither"),
    "records": (lambda file: file.create_dataset("v", (2,), [("a", "f8")]), "'v' holds neither"),
    "references": (lambda file: file.create_dataset("v", (2,), h5py.ref_dtype), "'v' holds neither"),
    "complex": (lambda file: file.create_dataset("v", (2,), "c16"), "'v' holds neither"),
}


@pytest.mark.parametrize("kind", OPENERS)
@pytest.mark.parametrize("what", HOSTILE)
def test_what_no_file_of_ours_holds(tmp_path: Path, kind: str, what: str):
    change, words = HOSTILE[what]
    message = get_refusal(kind, change_file(kind, tmp_path / "a.nc", change))
    assert "not a file that headscope wrote" in message
    assert words in message


def test_a_million_declared_elements_are_not_read(tmp_path: Path):
    """A small file that declares 10^12 elements is refused in a separate process."""
    path = change_file("study", tmp_path / "a.nc", add_huge_array)
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
    path = tmp_path_factory.mktemp("model")
    tiny.model("bert").network.save_pretrained(path)
    tiny.model("bert").tokens.tokenizer.save_pretrained(path)
    return path


def make_header(**entries: Any) -> bytes:
    raw = json.dumps(entries).encode()
    return struct.pack("<Q", len(raw)) + raw


ENTRY = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
LIES: dict[str, bytes] = {
    "nothing": b"",
    "noise": bytes(range(256)) * 4,
    "a length beyond the file": struct.pack("<Q", 2**40) + b"{}",
    "the largest length": struct.pack("<Q", 2**64 - 1) + b"{}",
    "an unknown type": make_header(a={**ENTRY, "dtype": "F7"}) + bytes(16),
    "offsets beyond the file": make_header(a={**ENTRY, "data_offsets": [0, 2**50]}) + bytes(16),
    "offsets backwards": make_header(a={**ENTRY, "data_offsets": [16, 0]}) + bytes(16),
    "offsets that overlap": make_header(a=ENTRY, b={**ENTRY, "data_offsets": [8, 24]}) + bytes(24),
    "a shape beyond all memory": make_header(a={**ENTRY, "shape": [2**40, 2**40]}) + bytes(16),
    "a negative shape": make_header(a={**ENTRY, "shape": [-1, 2]}) + bytes(16),
    "sizes that are no numbers": make_header(a={**ENTRY, "shape": [float("nan")]}) + bytes(16),
    "no JSON": struct.pack("<Q", 8) + b"{{{{{{{{",
    "deep JSON": struct.pack("<Q", 100_000) + b"[" * 100_000,
    "a pickle": b"\x80\x04K\x01.",
    "other weights": make_header(a=ENTRY) + bytes(16),
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
    @given(st.one_of(st.binary(max_size=200), mutate(valid_file)))
    def is_loaded_or_refused(raw: bytes) -> None:
        (tmp_path / name).write_bytes(raw)
        try:
            headscope.load(tmp_path)
        except HeadscopeError as error:
            assert str(tmp_path) in str(error)  # noqa: PT017

    is_loaded_or_refused()


def test_a_damaged_file_of_ours_is_not_given_to_hdf5(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """HDF5 may hang on a damaged heap, so the seal after its data is checked first."""
    study = headscope.study(tiny.model("bert"), ["the cat sat.", "a owl sat."], length=16)
    path = study.save(tmp_path / "study.nc")
    assert headscope.open_study(path).texts == 2
    content = path.read_bytes()
    monkeypatch.setattr(file_io, "check_file", lambda _: pytest.fail("opened"))
    for place in (10, len(content) // 2, len(content) - 60, len(content) - 1):
        path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        with pytest.raises(headscope.StudyError, match="damaged, its hash is wrong"):
            headscope.open_study(path)


@pytest.mark.parametrize("extra", [b"\0", b"x" * 600, b"\nsealed by headscope: " + bytes(32)])
def test_bytes_before_and_after_a_sealed_file_are_detected(tmp_path: Path, extra: bytes):
    """HDF5 ignores them, and the seal would no longer be where it was expected."""
    study = headscope.study(tiny.model("bert"), ["the cat sat.", "a owl sat."], length=16)
    reading = headscope.read(tiny.model("bert"), "the cat sat.", length=16)
    for saved, open_file, error in (
        (study, headscope.open_study, headscope.StudyError),
        (reading, headscope.open_reading, ReadingError),
    ):
        path = saved.save(tmp_path / "file.nc")
        content = path.read_bytes()
        damaged = bytearray(content)
        damaged[len(content) // 2] ^= 4
        before = extra + bytes(512 - len(extra)) if len(extra) < 512 else extra + bytes(1024 - len(extra))
        for bad in (content + extra, bytes(damaged) + extra, before + content, content[:-1], content[:-40]):
            path.write_bytes(bad)
            with pytest.raises(error, match=r"file\.nc: not a file that headscope wrote: damaged"):
                open_file(path)
        path.write_bytes(content)
        open_file(path)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("pairs", -5, "pairs holds what no sum can be"),
        ("texts", -1, "texts holds what no sum can be"),
        ("distance_blocks", -1, "distance_blocks holds what no sum can be"),
        ("pairs", 2**40, "the blocks of pairs do not add up to it"),
        ("texts", 0, "the blocks of texts do not add up to it"),
        ("attention_offset", np.nan, "attention_offset holds what no sum can be"),
        ("contrast_sums", np.inf, "contrast_sums holds what no sum can be"),
    ],
)
def test_sums_that_no_study_has(tmp_path: Path, name: str, value: float, message: str):
    study = headscope.study(tiny.model("bert"), ["the cat sat.", "a owl sat."], length=16)
    study.data[name].values[(0,) * study.data[name].ndim] = value
    with pytest.raises(StudyError, match=f"study.nc: a headscope study, but damaged: {message}"):
        open_study(study.save(tmp_path / "study.nc"))


def test_a_text_that_quotes_a_seal_is_no_damage(tmp_path: Path):
    reading = headscope.Reading.from_arrays(["\nsealed by headscope: " + "x" * 32, "b"], np.ones((1, 2, 1, 1)))
    assert len(headscope.open_reading(reading.save(tmp_path / "file.nc"))) == 2


def test_others_open_a_sealed_file_too(tmp_path: Path):
    study = headscope.study(tiny.model("bert"), ["the cat sat.", "a owl sat."], length=16)
    path = study.save(tmp_path / "study.nc")
    with xr.open_dataset(path) as data:
        assert int(data["texts"]) == 2
        data.load().to_netcdf(tmp_path / "again.nc")  # which has no seal
    assert headscope.open_study(tmp_path / "again.nc").texts == 2
