"""Sources (files) of a study: their names, their numbers of documents, and the content hashes of what was read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr

NAMES = ("source_documents", "source_hash")


def assign_sources(data: xr.Dataset, sources: Mapping[int, tuple[int, int]], names: Sequence[str]) -> xr.Dataset:
    """Return a study's Dataset with its sources, along a dimension `source`.

    Args:
        sources: Number of documents and sum of their hashes, by source.
        names: Names of all sources of the corpus.
    """
    numbers = sorted(sources)
    return data.assign(
        source_documents=("source", np.array([sources[k][0] for k in numbers], dtype=np.int64)),
        source_hash=("source", np.array([f"{sources[k][1]:032x}" for k in numbers], dtype=object)),
    ).assign_coords(source=np.array([names[k] for k in numbers], dtype=object))
