"""Opening a netCDF file takes half a second whatever it holds, so the same bytes are opened once in a run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import xarray as xr

from headscope import writing

MOST = 12
"""files that are kept"""


@pytest.fixture(scope="session", autouse=True)
def opened_once() -> Iterator[None]:
    """Files of equal bytes hold equal data: after the first, a copy of it is handed out, everybody's own."""
    kept: dict[bytes, xr.Dataset] = {}
    read = writing._read

    def once(source: Path) -> xr.Dataset:
        key = hashlib.sha256(Path(source).read_bytes()).digest()
        if key not in kept:
            kept[key] = read(source)  # what cannot be opened is tried every time
            if len(kept) > MOST:
                del kept[next(iter(kept))]
        return kept[key].copy(deep=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "_read", once)
        yield
