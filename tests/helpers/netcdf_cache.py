"""Cache opened netCDF files: opening one takes half a second, so files of equal bytes are opened once in a test run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import xarray as xr

from headscope import file_io

MAX_FILES = 12
"""files in the cache"""


@pytest.fixture(scope="session", autouse=True)
def opened_once() -> Iterator[None]:
    """Return a copy of the cached dataset for files of equal bytes."""
    datasets: dict[bytes, xr.Dataset] = {}
    read_file = file_io._read

    def read_cached(source: Path) -> xr.Dataset:
        key = hashlib.sha256(Path(source).read_bytes()).digest()
        if key not in datasets:
            datasets[key] = read_file(source)  # errors are not cached
            if len(datasets) > MAX_FILES:
                del datasets[next(iter(datasets))]
        return datasets[key].copy(deep=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_io, "_read", read_cached)
        yield
