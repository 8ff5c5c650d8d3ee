"""Readings and their tables as files: round trips, and the errors for files that are not readings."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

import headscope
from headscope import Reading, open_reading, open_study
from headscope.errors import ReadingError, StudyError
from headscope.file_io import format_csv
from headscope.readings.files import _escape, _unescape, write_table
from tests.helpers import tiny
from tests.helpers.synthetic import make_random_study

STRANGE = [
    "a\0b",
    "\0",
    "back\\slash",
    "\\0000",
    "\\\\",
    "🦉",
    "\u202eشلوم",
    "line\nbreak",
    "carriage\rreturn",
    'quote"d, comma',
    "NA",
    "",
    " ",
    "=1+1",
    "\ud800",
    "é́",
]


@pytest.fixture(scope="module")
def reading() -> Reading:
    return headscope.read(tiny.model("bert"), "the cat sat. the dog ran, the owl!", length=40, theta=0.25, tau=0.2)


@pytest.fixture(scope="module")
def strange() -> Reading:
    random = np.random.default_rng(1)
    n = len(STRANGE)
    maps = random.dirichlet(np.ones(n), (2, 3, n))
    return Reading.from_arrays(STRANGE, random.normal(size=(2, n, 3, 4)), maps, name="na\0me\ud800 \\ 🦉")


def save(reading: Reading, folder: Path) -> Path:
    return reading.save(folder / "reading.nc")


def save_with_attributes(reading: Reading, path: Path, **attributes: Any) -> Path:
    """Save a reading with other attributes; None removes one."""
    save(reading, path.parent).rename(path)
    with h5py.File(path, "r+") as file:
        for name, value in attributes.items():
            del file.attrs[name]
            if value is not None:
                file.attrs[name] = value
    return path


# Round trips


@pytest.mark.parametrize("which", ["reading", "strange"])
def test_a_reading_comes_back_as_it_was(which: str, request: pytest.FixtureRequest, tmp_path: Path):
    original: Reading = request.getfixturevalue(which)
    opened = open_reading(save(original, tmp_path))
    xr.testing.assert_identical(opened.data, original.data)
    assert {name: array.dtype for name, array in opened.data.variables.items()} == {
        name: array.dtype for name, array in original.data.variables.items()
    }
    assert set(opened.data.coords) == set(original.data.coords)
    assert opened.manifest == original.manifest
    assert {name: type(value) for name, value in opened.manifest.items()} == {
        name: type(value) for name, value in original.manifest.items()
    }
    assert repr(opened) == repr(original)
    assert opened.text == original.text
    for theta in (None, 0.0, 0.1, 0.3, 0.7):
        assert opened.pairs(theta=theta).equals(original.pairs(theta=theta))
        assert opened.pairs(theta=theta, special=False, words=True).equals(
            original.pairs(theta=theta, special=False, words=True)
        )
    assert opened.blocks(1, 2).equals(original.blocks(1, 2))
    assert opened.dominant().equals(original.dominant())
    np.testing.assert_array_equal(opened.regions(0, 1).values, original.regions(0, 1).values)


def test_a_path_may_be_a_string(reading: Reading, tmp_path: Path):
    path = reading.save(str(tmp_path / "reading.nc"))
    assert path == tmp_path / "reading.nc"
    assert len(open_reading(str(path))) == len(reading)


def test_strange_tokens_come_back(strange: Reading, tmp_path: Path):
    again = open_reading(save(strange, tmp_path))
    expected = [token.replace("\ud800", "�") for token in STRANGE]
    assert again.tokens.values.tolist() == expected
    assert again.text == " ".join(expected)
    assert again.manifest["model"] == "na�me� \\ 🦉"


@given(st.text(st.characters(codec="utf-8") | st.sampled_from("\0\\0f")))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_any_text_can_be_escaped(text: str):
    assert "\0" not in _escape(text)
    assert _unescape(_escape(text)) == text


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numbers_keep_their_type(dtype: str, tmp_path: Path):
    outputs = np.random.default_rng(0).normal(size=(1, 3, 2, 2)).astype(dtype)
    again = open_reading(save(Reading.from_arrays(["a", "b", "c"], outputs), tmp_path))
    assert again.outputs.dtype == dtype
    assert again.outputs.values.tolist() == outputs.tolist()
    assert not again.has_attention


def test_a_part_of_a_reading_is_a_reading(reading: Reading, tmp_path: Path):
    part = reading.select(layers=1, heads=[3, 1])
    again = open_reading(save(part, tmp_path))
    assert (again.layers, again.head_numbers) == ([1], [3, 1])
    assert again.pairs(1, "sum").equals(part.pairs(1, "sum"))
    second = open_reading(save(again, tmp_path))
    xr.testing.assert_identical(second.data, part.data)


def test_saving_leaves_the_reading_as_it_was(strange: Reading, tmp_path: Path):
    before = strange.data.copy(deep=True)
    save(strange, tmp_path)
    xr.testing.assert_identical(strange.data, before)


def test_saving_writes_over_and_leaves_nothing_else(reading: Reading, strange: Reading, tmp_path: Path):
    save(reading, tmp_path)
    save(strange, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["reading.nc"]
    assert len(open_reading(tmp_path / "reading.nc")) == len(STRANGE)


def test_the_old_file_stays_when_writing_fails(reading: Reading, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = save(reading, tmp_path)

    def fail_to_write(self: Path, content: bytes) -> None:
        with open(self, "wb") as file:
            file.write(content[: len(content) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail_to_write)
    with pytest.raises(ReadingError, match=r"reading.nc: cannot be written: No space left on device"):
        save(reading, tmp_path)
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["reading.nc"]
    assert len(open_reading(path)) == len(reading)


# Paths that cannot be written


UNWRITABLE = [
    ("nowhere/it.csv", "there is no folder .*nowhere: create it"),
    ("file/it.csv", "there is no folder .*file: create it"),
    ("a" * 300 + ".csv", "cannot be written: .*File name too long"),
    ("folder.csv", "a folder: name the file"),
]


@pytest.mark.parametrize(("name", "message"), UNWRITABLE)
def test_what_cannot_be_written_is_said(reading: Reading, tmp_path: Path, name: str, message: str):
    (tmp_path / "file").write_text("a file")
    (tmp_path / "folder.csv").mkdir()
    path = tmp_path / name
    for write in (reading.save, lambda p: write_table(reading.pairs(), p)):
        with pytest.raises(ReadingError, match=message) as raised:
            write(path)
        assert str(raised.value).startswith(f"{path}: ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.csv"]


def test_the_working_folder_is_a_folder(reading: Reading, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for path in (".", ""):
        with pytest.raises(ReadingError, match="a folder"):
            reading.save(path)


# Files that are not readings


def test_files_that_are_no_readings(reading: Reading, tmp_path: Path):
    study = make_random_study().save(tmp_path / "study.nc")
    garbage = tmp_path / "garbage.nc"
    garbage.write_bytes(np.random.default_rng(0).bytes(2000))
    empty = tmp_path / "empty.nc"
    empty.touch()
    cut = tmp_path / "cut.nc"
    cut.write_bytes(save(reading, tmp_path).read_bytes()[:-500])
    other = tmp_path / "other.nc"
    xr.Dataset({"depth": ("x", [1.0, 2.0])}).to_netcdf(other, engine="h5netcdf")
    for path, message in (
        (study, "a study: open it with open_study"),
        (garbage, "not readable as netCDF"),
        (empty, "not readable as netCDF"),
        (cut, "not readable as netCDF"),
        (other, "not a headscope reading"),
        (tmp_path / "missing.nc", "no such file"),
        (tmp_path / ("a" * 300), "no such file"),
        (tmp_path, "a folder: a reading is one file"),
    ):
        with pytest.raises(ReadingError, match=message) as raised:
            open_reading(path)
        assert str(raised.value).startswith(f"{path}: ")


def test_a_reading_of_another_format(reading: Reading, tmp_path: Path):
    path = save_with_attributes(reading, tmp_path / "new.nc", format=2)
    with pytest.raises(ReadingError, match=r"new.nc: a reading of format 2; this headscope reads 1"):
        open_reading(path)


@pytest.mark.parametrize("name", ["outputs", "token", "text", "token_id", "word", "start"])
def test_a_reading_with_a_part_missing(reading: Reading, tmp_path: Path, name: str):
    path = save(Reading(reading.data), tmp_path)
    data = xr.load_dataset(path, engine="h5netcdf").drop_vars(name)
    data.to_netcdf(path, engine="h5netcdf")
    with pytest.raises(ReadingError, match=f"not a whole one: no {name}"):
        open_reading(path)


@pytest.mark.parametrize("name", ["theta", "tau", "model"])
def test_a_reading_with_an_attribute_missing(reading: Reading, tmp_path: Path, name: str):
    with pytest.raises(ReadingError, match=f"not a whole one: no {name}"):
        open_reading(save_with_attributes(reading, tmp_path / "less.nc", **{name: None}))


def test_a_reading_is_no_study(reading: Reading, tmp_path: Path):
    with pytest.raises(StudyError, match=r"reading.nc: .*not a study: open it with open_reading"):
        open_study(save(reading, tmp_path))


# Tables


TABLES = {
    "pairs": lambda r: r.pairs(),
    "pairs of one head": lambda r: r.pairs(0, 0),
    "pairs of the sum": lambda r: r.pairs(head="sum"),
    "pairs of words": lambda r: r.pairs(words=True),
    "no pairs": lambda r: r.pairs(theta=0.999)[:0],
    "lines": lambda r: r.lines(0),
    "blocks": lambda r: r.blocks(0),
    "dominant": lambda r: r.dominant(),
    "dominant of the sum": lambda r: r.dominant(head="sum"),
}


@pytest.mark.parametrize("which", ["reading", "strange"])
@pytest.mark.parametrize("table", TABLES)
def test_parquet_comes_back(table: str, which: str, request: pytest.FixtureRequest, tmp_path: Path):
    written = TABLES[table](request.getfixturevalue(which))
    path = write_table(written, tmp_path / "table.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(path), written, check_exact=True)


@pytest.mark.parametrize("which", ["reading", "strange"])
@pytest.mark.parametrize("table", TABLES)
def test_csv_comes_back(table: str, which: str, request: pytest.FixtureRequest, tmp_path: Path):
    written = TABLES[table](request.getfixturevalue(which))
    path = write_table(written, tmp_path / "table.CSV")
    types = {name: str for name in written if not pd.api.types.is_numeric_dtype(written[name])}
    read = pd.read_csv(path, dtype=types, keep_default_na=False, na_values={"share": [""]})
    assert list(read.columns) == list(written.columns)
    is_formula = re.compile("[=+@\t\r\n-]")  # which gets a quote before it
    expected = written.map(lambda value: f"'{value}" if isinstance(value, str) and is_formula.match(value) else value)
    assert read.values.tolist() == expected.values.tolist()


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20"])
def test_no_text_of_a_csv_is_a_formula(start: str, tmp_path: Path):
    token = f"{start}cmd|' /C calc'!A0"
    reading = Reading.from_arrays([token, "b=1"], [[[[-2.0]], [[-1.0]]]])
    (row,) = csv.DictReader(io.StringIO(format_csv(reading.pairs(0, 0)), newline=""))
    assert (row["token_i"], row["token_j"], row["value"]) == (f"'{token}", "b=1", "2.0")
    numbers = pd.DataFrame({"n": [-1.5, 2], "mixed": ["sum", -3], "text": ["-3", "plain"]})
    assert format_csv(numbers) == "n,mixed,text\n-1.5,sum,'-3\n2.0,-3,plain\n"
    written = pd.read_parquet(write_table(reading.pairs(0, 0), tmp_path / "pairs.parquet"))
    assert written["token_i"].tolist() == [token]


def test_every_csv_is_written_by_one_function():
    sources = Path(headscope.__file__).parent.rglob("*.py")
    assert [path.name for path in sources if ".to_csv(" in path.read_text("utf-8")] == ["file_io.py"]


def test_a_plain_csv_has_no_needless_quotes(tmp_path: Path):
    reading = Reading.from_arrays(["the", "cat"], np.ones((1, 2, 1, 4)))
    path = write_table(reading.pairs(0, 0), tmp_path / "pairs.csv")
    assert path.read_bytes() == b"token_i,token_j,index_i,index_j,value,relative\nthe,cat,0,1,4.0,1.0\n"


def test_no_pairs_at_all(tmp_path: Path):
    reading = Reading.from_arrays(["a", "b"], np.zeros((2, 2, 2, 1)))
    for written in (reading.pairs(), reading.pairs(0, 0), reading.pairs(head="sum"), reading.dominant()):
        read = pd.read_parquet(write_table(written, tmp_path / "none.parquet"))
        assert list(read.columns) == list(written.columns)
        assert len(read) == len(written)
        assert write_table(written, tmp_path / "none.csv").read_text().startswith(",".join(written.columns) + "\n")


@pytest.mark.parametrize("name", ["table.xlsx", "table", ".csv", "table.csv.gz"])
def test_other_endings(reading: Reading, tmp_path: Path, name: str):
    with pytest.raises(ReadingError, match=rf"{name}: tables are written as .csv or .parquet"):
        write_table(reading.pairs(), tmp_path / name)
    assert not list(tmp_path.iterdir())
