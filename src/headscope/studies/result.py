"""`Study`: labelled sums over a corpus, the rates computed from them, and the manifest of how they were measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

from headscope import registry
from headscope.array_types import Floats
from headscope.atomic_io import load_dataset, save_dataset
from headscope.errors import StudyError
from headscope.netcdf_validation import get_scalar_attribute
from headscope.settings import list_of_kind
from headscope.studies import signal_to_noise
from headscope.studies.labels import compute_derived, divide_sums, format_shape, has_images
from headscope.studies.rates import RATES, sum_distances
from headscope.studies.validation import check_study

if TYPE_CHECKING:
    from headscope.studies.findings import Findings

FORMAT = 1
FILE = "study.nc"
OTHERS = {"reading": "a reading of one text", "ablation": "an ablation"}
"""kinds of headscope files that are not studies"""
JSON_ATTRIBUTES = list_of_kind("JSON")


class Study:
    """Measurements of every head of a model over a corpus. `data` is the xarray Dataset of METHOD §3.

    >>> import headscope
    >>> study = headscope.study(headscope.load(), headscope.documents(limit=3))
    >>> int(study.data.texts), study.data.pairs.dims
    (3, ('layer', 'head'))
    """

    def __init__(self, data: xr.Dataset) -> None:
        self.data = data

    # -- description --------------------------------------------------------------------------------------------------

    @property
    def manifest(self) -> dict[str, Any]:
        """How the study was measured: model, corpus, settings and run, as plain values."""
        attributes = {str(name): _convert_scalar(value) for name, value in self.data.attrs.items()}
        return {name: json.loads(value) if name in JSON_ATTRIBUTES else value for name, value in attributes.items()}

    @property
    def has_images(self) -> bool:
        """Whether the texts are images and the tokens their patches. Rates about words are then not measured."""
        return has_images(self.data.attrs)

    @property
    def texts(self) -> int:
        return int(self.data["texts"])

    @property
    def layers(self) -> list[int]:
        return [int(layer) for layer in self.data["layer"].values]

    @property
    def heads(self) -> list[int]:
        return [int(head) for head in self.data["head"].values]

    @property
    def size(self) -> str:
        """Number of layers and heads, formatted."""
        return format_shape(self.data.attrs, len(self.layers), len(self.heads))

    @property
    def whole(self) -> bool:
        """Whether all layers and heads are present, not only selected ones."""
        attributes = self.data.attrs
        return (len(self.layers), len(self.heads)) == (int(attributes["layers"]), int(attributes["heads"]))

    @property
    def has_maps(self) -> bool:
        return "attention" in self.data

    def require_maps(self, purpose: str) -> None:
        if not self.has_maps:
            raise StudyError(
                f"{purpose} needs the N×N maps, which this study of {self.data.attrs['length']}-token windows did not "
                "keep: run it with --maps"
            )

    # -- rates and their uncertainty ----------------------------------------------------------------------------------

    def rate(self, name: str) -> xr.DataArray:
        """Return a rate: (layer, head).

        The rates are repeat_rate, repeat_rate_in_sentence, same_sentence_rate, mean_distance and dominant_share.
        """
        _check_rate_name(name)
        return self.data[name]

    def chance(self, name: str) -> xr.DataArray:
        """Return a rate as expected by chance: over all pairs of the texts, or over pairs drawn at random."""
        _check_rate_name(name)
        data, rate = self.data, RATES[name]
        numerator = (
            data[rate.chance_numerator]
            if rate.chance_numerator
            else xr.DataArray(sum_distances(data["window_tokens"].values, data["tokens"].values))
        )
        chance = divide_sums(numerator, data[rate.chance_denominator])
        return xr.full_like(chance, np.nan) if rate.of_words and self.has_images else chance

    def standard_error(self, name: str) -> xr.DataArray:
        """Return the jackknife standard errors of a rate, over the blocks of texts: (layer, head)."""
        _, error = self.jackknife(lambda study: study.rate(name).values)
        return self.rate(name).copy(data=error)

    def signal_to_noise(self, name: str = signal_to_noise.DEFAULT) -> xr.DataArray:
        """Return the signal-to-noise ratio of every head in decibels: (layer, head).

        The definitions (ours, docs/noise.md) are structure, contrast, explained and energy.
        """
        return signal_to_noise.signal_to_noise(self.data, name)

    def jackknife(self, statistic: Callable[[Study], Any]) -> tuple[Floats, Floats]:
        """Return a number or array computed from the sums, and its delete-one-block standard error.

        The error is NaN if fewer than two blocks contain texts.
        """
        value = np.asarray(statistic(self), dtype=np.float64)
        if len(self._leave_one_out_studies) < 2:
            return value, np.full_like(value, np.nan)
        values = np.stack([np.asarray(statistic(study), dtype=np.float64) for study in self._leave_one_out_studies])
        spread = ((values - values.mean(axis=0)) ** 2).sum(axis=0)
        return value, np.sqrt(spread * (len(values) - 1) / len(values))

    @cached_property
    def _leave_one_out_studies(self) -> list[Study]:
        """This study without one block, for each block that contains texts. Maps are left out: they have no blocks.

        Datasets are created at once from plain variables: aligning labels, which are equal anyway, would take longer
        than the computations.
        """
        variables = self.data.variables
        blocked = [str(name).removesuffix("_blocks") for name in self.data if str(name).endswith("_blocks")]
        dims = {name: variables[name].dims for name in blocked}
        block_sums = {name: variables[f"{name}_blocks"].transpose("block", *dims[name]).values for name in blocked}
        coordinates = self.data[[name for name in self.data.coords if name != "distance"]].drop_vars("distance").coords
        studies = []
        for block in np.flatnonzero(block_sums["texts"]):
            sums = {name: xr.Variable(dims[name], variables[name].values - block_sums[name][block]) for name in blocked}
            studies.append(
                Study(xr.Dataset(sums | compute_derived(sums, self.data.attrs), coordinates, self.data.attrs))
            )
        return studies

    @property
    def present(self) -> xr.DataArray:
        """Whether a layer has each head (layer, head): where heads were removed, layers may differ in them.

        The rows of an attention map sum to 1, so only of a head that does not exist all attention is 0.
        """
        if "attention_offset" not in self.data:
            return xr.ones_like(self.data["pairs"], dtype=bool)
        attends = self.data["attention_offset"].sum("offset") > 0
        return attends | (self.data["pairs"] > 0) | ~attends.any("head")

    def table(self) -> pd.DataFrame:
        """Return one row per head: its rates, their standard errors, its number of pairs and its signal-to-noise."""
        rows: dict[str, Any] = {
            "head": [f"L{layer}H{head}" for layer in self.layers for head in self.heads],
            "layer": np.repeat(self.layers, len(self.heads)),
            "head_number": np.tile(self.heads, len(self.layers)),
            "pairs": self.data["pairs"].values.ravel(),
        }
        for name in RATES:
            rows[name] = self.rate(name).values.ravel()
            rows[f"{name}_error"] = self.standard_error(name).values.ravel()
        if signal_to_noise.has_signal_to_noise(self.data):
            ratios, errors = self.jackknife(lambda study: study.signal_to_noise().values)
            if np.isfinite(ratios).any():  # images, and studies without a sample, have none
                rows["signal_to_noise"], rows["signal_to_noise_error"] = ratios.ravel(), errors.ravel()
        return pd.DataFrame(rows)[self.present.values.ravel()].reset_index(drop=True)

    def findings(self) -> Findings:
        """Return the paper's twelve claims, each with a number, its standard error and a verdict.

        Returns
        -------
        Findings
            A list of `headscope.Finding`, shown as a table.

        Raises
        ------
        StudyError
            If only selected layers or heads are in the study.

        Examples
        --------
        >>> import headscope
        >>> study = headscope.study("minilm", headscope.documents(limit=4))
        >>> len(study.findings())
        12
        """
        from headscope.studies.findings import findings

        return findings(self)

    # -- parts and sums -----------------------------------------------------------------------------------------------

    def select(self, layers: int | Iterable[int] | None = None, heads: int | Iterable[int] | None = None) -> Study:
        """Return the study of selected layers and heads."""
        chosen = {
            name: _select_numbers(name, requested, present)
            for name, requested, present in (("layer", layers, self.layers), ("head", heads, self.heads))
            if requested is not None
        }
        data = self.data.sel(chosen)
        if heads is not None:  # sums over all heads of a layer are not those of the selected heads
            over_heads = (
                "distinct_dominants",
                "attention_received",
                "attention_without_lines",
                "most_attended",
                "similarity",
            )
            data = data.drop_vars([name for name in data if str(name).startswith(over_heads)])
        return Study(data)

    def merge(self, other: Study, *, allow_changed_files: bool = False) -> Study:
        """Return the study of both corpora together.

        Parameters
        ----------
        other
            A study of other texts, or another share of the same corpus, by the same model with the same settings.
        allow_changed_files
            Merge shares although sizes or times of the files differ: they were copied, or repaired in between.

        Raises
        ------
        StudyError
            Model or settings differ, or texts may be in both.
        """
        from headscope.studies.merge import merge_studies

        return merge_studies(self, other, allow_changed_files=allow_changed_files)

    # -- files --------------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> Path:
        """Write one netCDF file; in a folder it is named `study.nc`. An existing file is replaced atomically."""
        target = Path(path)
        target = target / FILE if target.is_dir() else target
        variables = self.data.variables.items()
        packed = [name for name, variable in variables if variable.ndim and variable.dtype.kind in "iuf"]
        return save_dataset(self.data, target, packed, StudyError)

    def report(self, path: str | Path) -> Path:
        """Write the report, one self-contained HTML page: findings, heads, figures, manifest.

        Parameters
        ----------
        path
            The file; in a folder it is named `report.html`. A page of headscope is replaced.

        Returns
        -------
        Path
            The file.

        Raises
        ------
        StudyError
            If the file cannot be written, or is there already and is no page of headscope.

        Examples
        --------
        >>> import headscope, tempfile
        >>> study = headscope.study("minilm", headscope.documents(limit=4))
        >>> study.report(tempfile.mkdtemp()).name
        'report.html'
        """
        target: Path = registry.call("write_report", self, Path(path))
        return target

    # -- representations -----------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        attributes = self.data.attrs
        state = "" if attributes.get("complete", 1) else ", incomplete"
        texts = "images" if self.has_images else "texts"
        return f"<Study of {attributes['model']}: {self.size}, {self.texts:,} {texts} of {attributes['corpus']}{state}>"

    def _repr_html_(self) -> str:
        return str(registry.call("render_study_card", self))


def open_study(path: str | Path) -> Study:
    """Open a study, given its folder or its `study.nc`."""
    source = Path(path)
    source = source / FILE if source.is_dir() else source
    if not source.is_file():
        raise StudyError(f"{source}: no study there")
    data = load_dataset(source, StudyError)
    kind = str(data.attrs.get("kind", "study"))
    if kind != "study":
        description = f"{OTHERS[kind]}, not a study: open it with open_{kind}" if kind in OTHERS else "not a study"
        raise StudyError(f"{source}: {description}")
    if get_scalar_attribute(data, "format") != FORMAT:
        raise StudyError(
            f"{source}: not a headscope study of format {FORMAT} (its format is {data.attrs.get('format', 'unknown')})"
        )
    check_study(data, source)
    return Study(data)


def _convert_scalar(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _check_rate_name(name: str) -> None:
    if name not in RATES:
        raise StudyError(f"unknown rate {name!r}; there are: {', '.join(RATES)}")


def _select_numbers(name: str, requested: int | Iterable[int], present: list[int]) -> list[int]:
    chosen = [requested] if isinstance(requested, (int, np.integer)) else [int(k) for k in requested]
    absent = [k for k in chosen if k not in present]
    if absent:
        raise StudyError(
            f"no {name} {', '.join(map(str, absent))}: this study has {name}s {present[0]} to {present[-1]}"
        )
    return [int(k) for k in chosen]
