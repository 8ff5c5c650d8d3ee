"""`headscope.ablate`: measure what each head is worth to its model by silencing it alone."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from headscope import provenance, registry
from headscope.array_types import Floats
from headscope.atomic_io import load_dataset, save_dataset
from headscope.corpus.windows import WindowMode
from headscope.errors import Stopped, StudyError
from headscope.model.loading import ModelSource, resolve_model
from headscope.model.model import Model
from headscope.netcdf_validation import check_arrays, check_json, get_scalar_attribute
from headscope.pruning.ablation_runner import AblationRunner, ProgressCallback
from headscope.pruning.head_names import Head, Heads, list_heads, resolve_heads
from headscope.pruning.silencing import SilencingMode
from headscope.pruning.text_batches import (
    DEFAULT_LIMIT,
    CorpusWindows,
    Documents,
    check_limit,
    describe_limit,
    read_windows,
    show_warning,
)
from headscope.studies.labels import format_shape, make_head_columns

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
"""arrays that the file must contain: dimensions and kind of number"""


class Ablation:
    """What silencing each head changes.

    `headscope.ablate` makes one, `headscope.open_ablation` opens one. `data` is an xarray Dataset: `change` (layer,
    head) is the mean over texts of the objective with the head silent minus the untouched model's; above 0 the model
    needs the head. `error` is its standard error over texts, each paired with itself. `change_texts` (text, layer,
    head) and `objective_texts` (text) are the same for each text, `objective` is the untouched model's mean. Heads that
    were not silenced are NaN. The attributes are the manifest.

    Parameters
    ----------
    data
        The Dataset.

    Examples
    --------
    >>> import headscope
    >>> headscope.ablate("minilm", ["Two ravens met. The ravens left."], heads="L0H0-1")
    <Ablation of minilm: 6 layers × 12 heads, embedding distance on 1 text of texts given in Python>
    """

    def __init__(self, data: xr.Dataset) -> None:
        self.data = data

    @property
    def manifest(self) -> dict[str, Any]:
        """Model, corpus, settings and software versions, as plain Python values."""
        values = {str(k): v.item() if isinstance(v, np.generic) else v for k, v in self.data.attrs.items()}
        return {name: json.loads(value) if name in JSON_ATTRIBUTES else value for name, value in values.items()}

    @property
    def texts(self) -> int:
        """Number of texts."""
        return int(self.data.sizes["text"])

    @property
    def leaves_out(self) -> bool:
        """Whether the corpus has documents beyond the limit. A stream that reached the limit is taken to have more."""
        return bool(self.data.attrs["documents_left_out"])

    def table(self) -> pd.DataFrame:
        """Return one row for each head that was silenced, layer by layer.

        Returns
        -------
        DataFrame
            With the columns head, layer, head_number, change and error.

        Examples
        --------
        >>> import headscope
        >>> ablation = headscope.ablate("minilm", ["Two ravens met. The ravens left."], heads="L0H0-1")
        >>> ablation.table().columns.tolist()
        ['head', 'layer', 'head_number', 'change', 'error']
        """
        rows = pd.DataFrame(
            {
                **make_head_columns(self.data["layer"].values.tolist(), self.data["head"].values.tolist()),
                "change": self.data["change"].values.ravel(),
                "error": self.data["error"].values.ravel(),
            }
        )
        if not self.data.attrs.get("verified", 1):
            rows["capture"] = "unverified"
        return rows[rows["change"].notna()].reset_index(drop=True)

    def save(self, path: str | Path) -> Path:
        """Write one netCDF file. An existing file is replaced atomically.

        Parameters
        ----------
        path
            The file; in a folder it is named `ablation.nc`.

        Returns
        -------
        Path
            The file.

        Raises
        ------
        StudyError
            If the file cannot be written.

        Examples
        --------
        >>> import headscope, tempfile
        >>> ablation = headscope.ablate("minilm", ["Two ravens met. The ravens left."], heads="L0H0-1")
        >>> folder = tempfile.mkdtemp()
        >>> ablation.save(folder).name
        'ablation.nc'
        >>> len(headscope.open_ablation(folder).table())
        2
        """
        target = Path(path)
        target = target / FILE if target.is_dir() else target
        packed = [name for name, variable in self.data.variables.items() if variable.ndim]
        return save_dataset(self.data, target, packed, StudyError)

    def __repr__(self) -> str:
        attributes = self.data.attrs
        size = format_shape(attributes, self.data.sizes["layer"], self.data.sizes["head"])
        state = "" if attributes["complete"] else ", incomplete"
        state += "" if attributes.get("verified", 1) else ", unverified capture"
        unit = "image" if attributes["modality"] == "image" else "text"
        texts = f"{self.texts:,} {unit}{'s' * (self.texts != 1)} of {attributes['corpus']}"
        rest = ", further documents left out" if self.leaves_out else ""
        return f"<Ablation of {attributes['model']}: {size}, {attributes['objective']} on {texts}{rest}{state}>"

    def _repr_html_(self) -> str:
        from html import escape

        return f"<p>{escape(repr(self))}</p>{self.table().sort_values('change', ascending=False).to_html(index=False)}"


class AblationInterrupted(Stopped):
    """Raised when an ablation is interrupted; `ablation` has the texts finished until then, or is None."""

    def __init__(self, ablation: Ablation | None) -> None:
        super().__init__("interrupted", None, interrupted=True)
        self.ablation = ablation


def ablate(
    model: ModelSource,
    documents: Documents = None,
    *,
    heads: Heads | None = None,
    by: SilencingMode = "zero",
    field: str = "text",
    length: int = 128,
    windows: WindowMode = "first",
    limit: int | None = DEFAULT_LIMIT,
    batch_size: int | None = None,
    progress: bool | ProgressCallback | None = None,
    on_message: Callable[[str], None] = show_warning,
    command: str = "",
    allow_unverified: bool = False,
) -> Ablation:
    """Silence each head alone and measure how the model's own objective changes on each text.

    The objective is the loss of a model that predicts words, else how far its embedding moves; see
    `headscope.pruning.objective`.

    Parameters
    ----------
    model
        From `headscope.load`, or a hub name, a folder, `minilm`, or a pair (transformers model, tokenizer). A model
        given by name is loaded with the part that predicts words, if it has one, as `load(name, objective=True)` does.
    documents
        Texts, as `headscope.study` takes them; the bundled texts by default.
    field
        The column, or field, of `documents` that holds the text.
    heads
        Heads to silence, such as `"L0H1,L3H4-7"`; all by default.
    by
        What a silenced head writes: `zero`, or `mean`, its mean over these texts.
    length, windows
        How documents are cut, as in `headscope.study`.
    limit
        Read at most this many documents, the first ones, because every head takes a run over all of them; None reads
        all. If the default leaves documents out, `on_message` says so; `Ablation.leaves_out` says it for any limit.
    batch_size
        Texts per batch. By default as many as the device has room for.
    progress
        True shows it on stderr; a function is called with the current step, how much of it is done, and of how much
        in all.
    on_message
        Called with messages for the user; by default they are warnings.
    command
        The command line, recorded in the manifest.
    allow_unverified
        Measure a model whose captured heads cannot be verified, which is refused otherwise, and mark all results.

    Returns
    -------
    Ablation

    Raises
    ------
    Stopped
        Interrupted; its `ablation` has the texts finished until then.

    Examples
    --------
    >>> import headscope
    >>> ablation = headscope.ablate("minilm", ["Two ravens met. The ravens left."], heads="L0H0-1")
    >>> ablation.table()["head"].tolist()
    ['L0H0', 'L0H1']
    """
    check_limit(limit)
    loaded = resolve_model(model, objective=True, allow_unverified=allow_unverified)
    selected = list_heads(loaded.architecture)
    if heads is not None:
        selected = resolve_heads(loaded.architecture, heads, some_left=False)
    if not selected:
        raise StudyError("no heads are named: name at least one, or leave them out to silence each in turn")
    corpus = read_windows(loaded, documents, field=field, length=length, windows=windows, limit=limit)
    if corpus.leaves_out and limit == DEFAULT_LIMIT:  # any other was chosen by the user
        on_message(f"{corpus.corpus.name}: {describe_limit(limit)}")
    started = time.monotonic()
    bench = AblationRunner.create(loaded, corpus.windows, by, batch_size)
    sums = _TextResults(selected)

    def build_result(stopped_by: str = "") -> Ablation:
        attributes = {
            "objective": bench.objective.name,
            "by": by,
            "complete": int(not stopped_by),
            "stopped_by": stopped_by,
            "duration_seconds": time.monotonic() - started,
            "command": command,
        }
        return Ablation(_build_dataset(loaded, sums).assign_attrs({**_build_manifest(loaded, corpus), **attributes}))

    try:
        with registry.open_progress(progress) as on_progress:
            for numbered, base, changes in bench.measure_changes(selected, progress=on_progress):
                sums.add(numbered.places, base, changes)
    except KeyboardInterrupt:
        raise AblationInterrupted(build_result("interrupted") if sums.places else None) from None
    return build_result()


@dataclass
class _TextResults:
    """Results of the finished texts."""

    heads: Sequence[Head]
    places: list[int] = field(default_factory=list)
    """positions of the finished texts in the corpus"""
    bases: list[Floats] = field(default_factory=list)
    """objectives of the untouched model, (texts,) for each batch"""
    changes: list[Floats] = field(default_factory=list)
    """(texts, heads) for each batch"""

    def add(self, places: Sequence[int], base: Floats, changes: Floats) -> None:
        self.bases.append(base)
        self.changes.append(changes)
        self.places += places

    def sort_by_place(self) -> tuple[Floats, Floats]:
        order = np.argsort(self.places)
        return np.concatenate(self.bases)[order], np.concatenate(self.changes)[order]


def _build_dataset(model: Model, sums: _TextResults) -> xr.Dataset:
    architecture = model.architecture
    base, changes = sums.sort_by_place()
    texts = len(base)
    all_changes = np.full((texts, architecture.layers, architecture.heads), np.nan)
    for k, (layer, head) in enumerate(sums.heads):
        all_changes[:, architecture.numbers.index(layer), head] = changes[:, k]
    return xr.Dataset(
        {
            "change": (("layer", "head"), all_changes.mean(axis=0)),
            "error": (("layer", "head"), compute_standard_error(all_changes)),
            "change_texts": (("text", "layer", "head"), all_changes.astype(np.float32)),
            "objective": ((), base.mean()),
            "objective_error": ((), compute_standard_error(base)),
            "objective_texts": (("text",), base),
        },
        coords={
            "layer": np.array(architecture.numbers, dtype=np.int64),
            "head": np.arange(architecture.heads),
            "text": np.sort(np.array(sums.places, dtype=np.int64)),
        },
    )


def compute_standard_error(values: Floats) -> Floats:
    """Return the standard error of the mean over the first axis; NaN for a single value."""
    if len(values) < 2:
        return np.full(values.shape[1:], np.nan)
    return np.asarray(values.std(axis=0, ddof=1) / np.sqrt(len(values)))


def _build_manifest(model: Model, corpus: CorpusWindows) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "kind": KIND,
        **provenance.describe_model(model),
        "length": corpus.settings.length,
        "windows": corpus.settings.windows,
        "corpus": corpus.corpus.name,
        "corpus_hash": f"{corpus.stats.content:032x}",
        "limit": corpus.corpus.limit or "none",
        "documents_left_out": int(corpus.leaves_out),
        "texts": len(corpus.windows),
        "documents_read": corpus.stats.documents,
        "documents_skipped": json.dumps(dict(sorted(corpus.stats.skipped.items()))),
        **provenance.describe_run(),
    }


def open_ablation(path: str | Path) -> Ablation:
    """Open an ablation that was saved.

    Parameters
    ----------
    path
        Its folder, or its file `ablation.nc`.

    Returns
    -------
    Ablation

    Raises
    ------
    StudyError
        There is no ablation, or the file is damaged or something else.

    Examples
    --------
    >>> open_ablation("nowhere")
    Traceback (most recent call last):
    headscope.errors.StudyError: nowhere: no ablation there
    """
    source = Path(path)
    source = source / FILE if source.is_dir() else source
    if not source.is_file():
        raise StudyError(f"{source}: no ablation there")
    data = load_dataset(source, StudyError)
    if (get_scalar_attribute(data, "kind"), get_scalar_attribute(data, "format")) != (KIND, FORMAT):
        raise StudyError(f"{source}: not an ablation of headscope, of format {FORMAT}")
    label = f"{source}: an ablation"
    check_arrays(data, label, (*SHAPES, "model", "objective", "documents_left_out"), SHAPES, StudyError)
    check_json(data, label, JSON_ATTRIBUTES, StudyError)
    return Ablation(data)
