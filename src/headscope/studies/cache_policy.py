"""Which heads need the whole context: scores of retrieval heads, and the files that KV-cache tools read.

A streaming head attends to sinks and recent tokens only, so that a cache needs to keep no others for it. A retrieval
head attends to what is between them.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import xarray as xr

from headscope.errors import StudyError
from headscope.file_io import write_atomically
from headscope.studies.result import Study
from headscope.tally.quantities import FIRST_DISTANT, RECENT, SINK

SCORES_FILE, CONFIG_FILE = "full_attention_heads.tsv", "config.json"
"""the names that DuoAttention gives the files of a head pattern"""


def compute_retrieval_scores(study: Study, key_value_heads: int | None = None) -> xr.DataArray:
    """Return how much each head attends to distant tokens; see `Study.retrieval_scores`."""
    scores = study.rate("attends_distant")
    if not study.data.attrs.get("causal", 0):
        raise StudyError(f"a cache is kept by decoders only: {study.data.attrs['model']} looks at all tokens")
    if not int(study.data["attends_distant_queries"]):
        raise StudyError(
            f"no text has more than {FIRST_DISTANT} tokens, so that nothing is distant: study longer texts, or longer "
            f"windows (--length), than the {study.data.attrs['length']} tokens of this study"
        )
    if key_value_heads is None:
        return scores
    count = len(study.head_numbers)
    if not study.whole or key_value_heads < 1 or count % key_value_heads:
        raise StudyError(f"{count} heads cannot share {key_value_heads} heads of keys and values in equal groups")
    groups = scores.values.reshape(len(study.layers), key_value_heads, -1)
    coordinates = {"layer": scores["layer"], "head": np.arange(key_value_heads)}
    return xr.DataArray(groups.max(axis=2), coordinates, dims=("layer", "head"), attrs=scores.attrs)


def write_cache_policy(study: Study, folder: Path, key_value_heads: int | None = None) -> Path:
    """Write the files of a head pattern; see `Study.write_cache_policy`."""
    if not study.whole:
        raise StudyError("a cache policy is of all heads of a model: write it from the whole study")
    scores = compute_retrieval_scores(study, key_value_heads)
    if bool(scores.isnull().any()):
        raise StudyError("some heads have no score: this study does not cover all heads of the model")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StudyError(f"{folder}: cannot be made a folder: {error.strerror or error}") from None
    rows = ["\t".join(f"{value:.6f}" for value in row) for row in scores.values.clip(0, 1)]
    config = {"sink_size": SINK, "recent_size": RECENT}
    write_atomically(folder / SCORES_FILE, ("\n".join(rows) + "\n").encode(), StudyError)
    write_atomically(folder / CONFIG_FILE, (json.dumps(config) + "\n").encode(), StudyError)
    return folder
