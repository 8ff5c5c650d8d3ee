"""`headscope.ablate`: what each head is worth to its model, measured by silencing it alone."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from headscope import manifest
from headscope.corpus.windows import WindowMode
from headscope.declared import attribute, check_arrays, check_json
from headscope.errors import Stopped, StudyError
from headscope.model.loading import load
from headscope.model.model import Model
from headscope.pruning.measuring import Bench, Told
from headscope.pruning.naming import Head, Heads, all_heads, chosen, name_of
from headscope.pruning.silencing import By
from headscope.pruning.texts import LIMIT, Documents, Read, read_windows
from headscope.studies.labels import shape_in_words
from headscope.types import Floats
from headscope.writing import load_dataset, save_dataset

FORMAT, KIND, FILE = 1, "ablation", "ablation.nc"
JSON_ATTRIBUTES = ("documents_skipped", "versions")
SHAPES = {
    "layer": (("layer",), "i"),
    "head": (("head",), "i"),
    "change": (("layer", "head"), "f"),
    "error": (("layer", "head"), "f"),
    "change_texts": (("text", "layer", "head"), "f"),
    "objective_texts": (("text",), "f"),
    "objective": ((), "f"),
    "objective_error": ((), "f"),
}
"""what its file must hold, over which axes"""


class Ablation:
    """What silencing each head changes. `data` is an xarray Dataset:

    `change` (layer, head): the mean over texts of the objective with the head silent minus the untouched model's; above
    0 the model needs the head. `error`: its standard error over texts, each paired with itself. `change_texts` (text,
    layer, head) and `objective_texts` (text): the same text by text. `objective`: the untouched model's mean. Heads
    that were not silenced are NaN. The attributes say how it was made.
    """

    def __init__(self, data: xr.Dataset) -> None:
        self.data = data

    @property
    def manifest(self) -> dict[str, Any]:
        """How it was made, as plain values."""
        held = {str(k): v.item() if isinstance(v, np.generic) else v for k, v in self.data.attrs.items()}
        return {name: json.loads(value) if name in JSON_ATTRIBUTES else value for name, value in held.items()}

    @property
    def texts(self) -> int:
        return int(self.data.sizes["text"])

    def table(self) -> pd.DataFrame:
        """One row for each head that was silenced, layer by layer."""
        layers, heads = self.data["layer"].values, self.data["head"].values
        rows = pd.DataFrame(
            {
                "name": [name_of((layer, head)) for layer in layers for head in heads],
                "layer": np.repeat(layers, len(heads)),
                "head": np.tile(heads, len(layers)),
                "change": self.data["change"].values.ravel(),
                "error": self.data["error"].values.ravel(),
            }
        )
        return rows[rows["change"].notna()].reset_index(drop=True)

    def save(self, path: str | Path) -> Path:
        """Write one netCDF file; into a folder, as `ablation.nc`."""
        target = Path(path)
        target = target / FILE if target.is_dir() else target
        packed = [name for name, held in self.data.variables.items() if held.ndim]
        return save_dataset(self.data, target, packed, StudyError)

    def __repr__(self) -> str:
        about = self.data.attrs
        size = shape_in_words(about, self.data.sizes["layer"], self.data.sizes["head"])
        state = "" if about["complete"] else ", incomplete"
        texts = f"{self.texts:,} {'image' if about['modality'] == 'image' else 'text'}{'s' * (self.texts != 1)}"
        return f"<Ablation of {about['model']}: {size}, {about['objective']} on {texts} of {about['corpus']}{state}>"

    def _repr_html_(self) -> str:
        from html import escape

        return f"<p>{escape(repr(self))}</p>{self.table().sort_values('change', ascending=False).to_html(index=False)}"


class Unfinished(Stopped):
    """An ablation that was interrupted; `ablation` holds the texts finished until then, if there are any."""

    def __init__(self, ablation: Ablation | None) -> None:
        super().__init__("interrupted", None, interrupted=True)
        self.ablation = ablation


def ablate(
    model: Model | str | Path,
    documents: Documents = None,
    *,
    heads: Heads | None = None,
    by: By = "zero",
    length: int = 128,
    windows: WindowMode = "first",
    limit: int | None = LIMIT,
    batch_size: int | None = None,
    progress: Told | None = None,
    command: str = "",
) -> Ablation:
    """Silence each head alone, by zero or by its mean over these texts, and measure how the model's own objective
    changes on each text: its loss where it predicts words, else how far its embedding moves (see `objective`).

    A model given by name is opened with the part that predicts words, if it has one; `load(name, objective=True)` does
    the same. `heads` are all, or some: `"L0H1,L3H4-7"`. Interrupted, it raises `Unfinished`, with the texts done until
    then.

    >>> import headscope
    >>> ablation = headscope.ablate("minilm", ["Two ravens met. The ravens left."], heads="L0H0-1")
    >>> ablation.table()["name"].tolist()
    ['L0H0', 'L0H1']
    """
    watched = model if isinstance(model, Model) else load(model, objective=True)
    asked = all_heads(watched.anatomy)
    if heads is not None:
        asked = chosen(watched.anatomy, heads, some_left=False)
    if not asked:
        raise StudyError("no heads are named: name at least one, or leave them out to silence each in turn")
    read = read_windows(watched, documents, length=length, windows=windows, limit=limit)
    started = time.monotonic()
    bench = Bench.of(watched, read.windows, by, batch_size)
    sums = _Sums(asked)

    def result(stopped_by: str = "") -> Ablation:
        how = {
            "objective": bench.objective.name,
            "by": by,
            "complete": int(not stopped_by),
            "stopped_by": stopped_by,
            "duration_seconds": time.monotonic() - started,
            "command": command,
        }
        return Ablation(_dataset(watched, sums).assign_attrs({**_manifest(watched, read), **how}))

    try:
        for each, base, made in bench.changes(asked, progress=progress):
            sums.add(each.places, base, made)
    except KeyboardInterrupt:
        raise Unfinished(result("interrupted") if sums.places else None) from None
    return result()


@dataclass
class _Sums:
    """What is known so far, by the texts' places in the corpus."""

    heads: Sequence[Head]
    places: list[int] = field(default_factory=list)
    bases: list[Floats] = field(default_factory=list)
    changes: list[Floats] = field(default_factory=list)

    def add(self, places: Sequence[int], base: Floats, changes: Floats) -> None:
        self.bases.append(base)
        self.changes.append(changes)
        self.places += places

    def ordered(self) -> tuple[Floats, Floats]:
        order = np.argsort(self.places)
        return np.concatenate(self.bases)[order], np.concatenate(self.changes)[order]


def _dataset(model: Model, sums: _Sums) -> xr.Dataset:
    anatomy = model.anatomy
    base, changes = sums.ordered()
    texts = len(base)
    whole = np.full((texts, anatomy.layers, anatomy.heads), np.nan)
    for k, (layer, head) in enumerate(sums.heads):
        whole[:, anatomy.numbers.index(layer), head] = changes[:, k]
    return xr.Dataset(
        {
            "change": (("layer", "head"), whole.mean(axis=0)),
            "error": (("layer", "head"), standard_error(whole)),
            "change_texts": (("text", "layer", "head"), whole.astype(np.float32)),
            "objective": ((), base.mean()),
            "objective_error": ((), standard_error(base)),
            "objective_texts": (("text",), base),
        },
        coords={
            "layer": np.array(anatomy.numbers, dtype=np.int64),
            "head": np.arange(anatomy.heads),
            "text": np.sort(np.array(sums.places, dtype=np.int64)),
        },
    )


def standard_error(values: Floats) -> Floats:
    """Of the mean over the first axis; NaN of a single value."""
    if len(values) < 2:
        return np.full(values.shape[1:], np.nan)
    return np.asarray(values.std(axis=0, ddof=1) / np.sqrt(len(values)))


def _manifest(model: Model, read: Read) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "kind": KIND,
        **manifest.of_model(model),
        "length": read.settings.length,
        "windows": read.settings.windows,
        "corpus": read.corpus.name,
        "corpus_hash": f"{read.stats.content:032x}",
        "limit": read.corpus.limit or "none",
        "texts": len(read.windows),
        "documents_read": read.stats.documents,
        "documents_skipped": json.dumps(dict(sorted(read.stats.skipped.items()))),
        **manifest.of_run(),
    }


def open_ablation(path: str | Path) -> Ablation:
    """Open an ablation: its folder or its `ablation.nc`."""
    source = Path(path)
    source = source / FILE if source.is_dir() else source
    if not source.is_file():
        raise StudyError(f"{source}: no ablation there")
    data = load_dataset(source, StudyError)
    if (attribute(data, "kind"), attribute(data, "format")) != (KIND, FORMAT):
        raise StudyError(f"{source}: not an ablation of headscope, of format {FORMAT}")
    whole = f"{source}: an ablation"
    check_arrays(data, whole, (*SHAPES, "model", "objective"), SHAPES, StudyError)
    check_json(data, whole, JSON_ATTRIBUTES, StudyError)
    return Ablation(data)
