"""Which files a study is of: their names, how many documents each gave, and the hash of what was read of it."""

from __future__ import annotations

import numpy as np
import xarray as xr

from headscope.corpus.documents import Corpus
from headscope.studies.account import Account

NAMES = ("source_documents", "source_hash")


def with_sources(data: xr.Dataset, account: Account, corpus: Corpus) -> xr.Dataset:
    """A study's Dataset with its sources, along a dimension `source`."""
    numbers = sorted(account.sources)
    return data.assign(
        source_documents=("source", np.array([account.sources[k][0] for k in numbers], dtype=np.int64)),
        source_hash=("source", np.array([f"{account.sources[k][1]:032x}" for k in numbers], dtype=object)),
    ).assign_coords(source=np.array([corpus.sources[k].name for k in numbers], dtype=object))
