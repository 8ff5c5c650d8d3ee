"""Ablation: what silencing each head changes; its files `ablation.nc` and `ablation.csv`, and its JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from headscope.array_types import Floats
from headscope.errors import Stopped, StudyError
from headscope.file_io import (
    check_arrays,
    check_json,
    check_writable,
    create_folder,
    format_csv,
    get_scalar_attribute,
    load_dataset,
    save_dataset,
    write_atomically,
)
from headscope.studies.labels import format_shape, make_head_columns

FORMAT, KIND, FILE, TABLE = 1, "ablation", "ablation.nc", "ablation.csv"
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
    check_arrays(
        data, label, (*SHAPES, "model", "objective", "ablation_type", "documents_left_out"), SHAPES, StudyError
    )
    check_json(data, label, JSON_ATTRIBUTES, StudyError)
    return Ablation(data)


def compute_standard_error(values: Floats) -> Floats:
    """Return the standard error of the mean over the first axis; NaN for a single value."""
    if len(values) < 2:
        return np.full(values.shape[1:], np.nan)
    return np.asarray(values.std(axis=0, ddof=1) / np.sqrt(len(values)))


# -- files ------------------------------------------------------------------------------------------------------------


def check_output_folder(folder: Path, *, overwrite: bool) -> None:
    """Check, before anything is computed, that the files can be written and would not replace others unasked."""
    check_writable(folder, StudyError)
    existing = [name for name in (FILE, TABLE) if (folder / name).exists()]
    if existing and not overwrite:
        raise StudyError(
            f"{folder / existing[0]} is there already: choose another folder with --output, or say --overwrite"
        )


def write_files(ablation: Ablation, folder: Path) -> None:
    """Write both files, netCDF first."""
    with create_folder(folder, StudyError):
        ablation.save(folder / FILE)
        write_atomically(folder / TABLE, as_csv(ablation).encode("utf-8"), StudyError)


def as_csv(ablation: Ablation) -> str:
    """Return the table as CSV."""
    return format_csv(ablation.table())


def as_json(ablation: Ablation) -> str:
    """Return the table and the manifest as JSON; NaN becomes null."""
    error = float(ablation.data["objective_error"])
    content = {
        "manifest": ablation.manifest,
        "objective": {
            "name": ablation.manifest["objective"],
            "value": float(ablation.data["objective"]),
            "error": None if error != error else error,
        },
        "heads": json.loads(ablation.table().to_json(orient="records", double_precision=15)),
    }
    return json.dumps(content, ensure_ascii=False, indent=2, allow_nan=False) + "\n"
