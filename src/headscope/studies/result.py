"""A study: the sums of a corpus under labels, the rates beside them, and the manifest of how they were made."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from headscope.declared import attribute
from headscope.errors import StudyError
from headscope.studies import noise
from headscope.studies.checks import check_study
from headscope.studies.labels import OF_WORDS, RATES, following, of_images, ratio, shape_in_words
from headscope.types import Floats
from headscope.writing import load_dataset, save_dataset

FORMAT = 1
FILE = "study.nc"
OTHERS = {"reading": "a reading of one text", "ablation": "an ablation"}
"""files of ours that are no studies"""
JSON_ATTRIBUTES = ("documents_skipped", "excerpts", "timing", "versions")


class Study:
    """The measured character of every head of a model over a corpus. `data` is the xarray Dataset of METHOD §3.

    >>> import headscope
    >>> study = headscope.study(headscope.load(), headscope.documents(limit=3))
    >>> int(study.data.texts), study.data.pairs.dims
    (3, ('layer', 'head'))
    """

    def __init__(self, data: xr.Dataset) -> None:
        self.data = data

    # -- what it is ---------------------------------------------------------------------------------------------------

    @property
    def manifest(self) -> dict[str, Any]:
        """How the study was made, as plain values."""
        attributes = {str(name): _plain(value) for name, value in self.data.attrs.items()}
        return {name: json.loads(value) if name in JSON_ATTRIBUTES else value for name, value in attributes.items()}

    @property
    def of_images(self) -> bool:
        """Whether its texts are images, and its tokens their patches: what speaks of words is then not measured."""
        return of_images(self.data.attrs)

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
        """Layers and heads in words."""
        return shape_in_words(self.data.attrs, len(self.layers), len(self.heads))

    @property
    def whole(self) -> bool:
        """Whether all layers and heads are here, or only selected ones."""
        about = self.data.attrs
        return (len(self.layers), len(self.heads)) == (int(about["layers"]), int(about["heads"]))

    @property
    def has_maps(self) -> bool:
        return "attention" in self.data

    def require_maps(self, wanted: str) -> None:
        if not self.has_maps:
            raise StudyError(
                f"{wanted} needs the N×N maps, which this study of {self.data.attrs['length']}-token windows did not "
                "keep: run it with --maps"
            )

    # -- rates and their uncertainty ----------------------------------------------------------------------------------

    def rate(self, name: str) -> xr.DataArray:
        """One of the rates over layers and heads: repeat_rate, repeat_rate_in_sentence, same_sentence_rate,
        mean_distance, dominant_share."""
        _known_rate(name)
        return self.data[name]

    def chance(self, name: str) -> xr.DataArray:
        """What a rate would be without any preference: over all pairs of the texts, or over pairs drawn at random."""
        _known_rate(name)
        data = self.data
        if name == "dominant_share":
            return ratio(data["shuffled_share_sum"], data["shuffled_share_texts"])
        if name == "mean_distance":
            n = data["tokens"].values.astype(np.float64)
            apart = xr.Variable((), (data["window_tokens"].values * n * (n**2 - 1) / 6).sum())
            return xr.DataArray(ratio(apart, data["all_pairs"].variable))
        part, whole = RATES[name]
        chance = ratio(data[f"all_{part}"], data[f"all_{whole}"])
        return xr.full_like(chance, np.nan) if name in OF_WORDS and self.of_images else chance

    def standard_error(self, name: str) -> xr.DataArray:
        """Jackknife standard errors of a rate, over the blocks of texts."""
        _, error = self.jackknife(lambda study: study.rate(name).values)
        return self.rate(name).copy(data=error)

    def signal_to_noise(self, name: str = noise.DEFAULT) -> xr.DataArray:
        """The signal-to-noise ratio of every head in decibels (ours, docs/noise.md): contrast, explained or energy."""
        return noise.signal_to_noise(self.data, name)

    def jackknife(self, statistic: Callable[[Study], Any]) -> tuple[Floats, Floats]:
        """Any number (or array) derived from the sums, and its delete-one-block standard error (NaN below two)."""
        value = np.asarray(statistic(self), dtype=np.float64)
        if len(self._left_out) < 2:
            return value, np.full_like(value, np.nan)
        values = np.stack([np.asarray(statistic(study), dtype=np.float64) for study in self._left_out])
        spread = ((values - values.mean(axis=0)) ** 2).sum(axis=0)
        return value, np.sqrt(spread * (len(values) - 1) / len(values))

    @cached_property
    def _left_out(self) -> list[Study]:
        """This study without each block that holds texts, in turn (without maps, which are not kept in blocks).

        Datasets are made whole and of bare variables: aligning labels that are equal anyway would take longer than all
        that is computed.
        """
        there = self.data.variables
        blocked = [str(name).removesuffix("_blocks") for name in self.data if str(name).endswith("_blocks")]
        dims = {name: there[name].dims for name in blocked}
        parts = {name: there[f"{name}_blocks"].transpose("block", *dims[name]).values for name in blocked}
        labels = self.data[[name for name in self.data.coords if name != "distance"]].drop_vars("distance").coords
        without = []
        for block in np.flatnonzero(parts["texts"]):
            sums = {name: xr.Variable(dims[name], there[name].values - parts[name][block]) for name in blocked}
            without.append(Study(xr.Dataset(sums | following(sums, self.data.attrs), labels, self.data.attrs)))
        return without

    def table(self) -> pd.DataFrame:
        """One row a head: its rates, their standard errors, how many pairs they rest on, and its signal-to-noise."""
        rows: dict[str, Any] = {
            "head": [f"L{layer}H{head}" for layer in self.layers for head in self.heads],
            "layer": np.repeat(self.layers, len(self.heads)),
            "head_number": np.tile(self.heads, len(self.layers)),
            "pairs": self.data["pairs"].values.ravel(),
        }
        for name in RATES:
            rows[name] = self.rate(name).values.ravel()
            rows[f"{name}_error"] = self.standard_error(name).values.ravel()
        if noise.measured(self.data):
            found, errors = self.jackknife(lambda study: study.signal_to_noise().values)
            if np.isfinite(found).any():  # images, and studies without a sample, have none
                rows["signal_to_noise"], rows["signal_to_noise_error"] = found.ravel(), errors.ravel()
        return pd.DataFrame(rows)

    # -- parts and sums -----------------------------------------------------------------------------------------------

    def select(self, layers: int | Iterable[int] | None = None, heads: int | Iterable[int] | None = None) -> Study:
        """Only some layers and heads."""
        chosen = {
            name: _listed(name, wanted, there)
            for name, wanted, there in (("layer", layers, self.layers), ("head", heads, self.heads))
            if wanted is not None
        }
        data = self.data.sel(chosen)
        if heads is not None:  # counted over all heads of a layer, so no longer true of the selected ones
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
        from headscope.studies.merging import merged

        return merged(self, other, allow_changed_files=allow_changed_files)

    # -- files --------------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> Path:
        """Write one netCDF file; into a folder, as `study.nc`. What was there stays whole until the new one is."""
        target = Path(path)
        target = target / FILE if target.is_dir() else target
        variables = self.data.variables.items()
        packed = [name for name, variable in variables if variable.ndim and variable.dtype.kind in "iuf"]
        return save_dataset(self.data, target, packed, StudyError)

    # -- how it shows itself ------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        about = self.data.attrs
        state = "" if about.get("complete", 1) else ", incomplete"
        texts = "images" if self.of_images else "texts"
        return f"<Study of {about['model']}: {self.size}, {self.texts:,} {texts} of {about['corpus']}{state}>"

    def _repr_html_(self) -> str:
        from headscope.page.card import study_card  # the page knows the study; here it only lends its looks

        return study_card(self)


def open_study(path: str | Path) -> Study:
    """Open a study: its folder or its `study.nc`."""
    source = Path(path)
    source = source / FILE if source.is_dir() else source
    if not source.is_file():
        raise StudyError(f"{source}: no study there")
    data = load_dataset(source, StudyError)
    kind = str(data.attrs.get("kind", "study"))
    if kind != "study":
        what = f"{OTHERS[kind]}, not a study: open it with open_{kind}" if kind in OTHERS else "not a study"
        raise StudyError(f"{source}: {what}")
    if attribute(data, "format") != FORMAT:
        raise StudyError(
            f"{source}: not a headscope study of format {FORMAT} (its format is {data.attrs.get('format', 'unknown')})"
        )
    check_study(data, source)
    return Study(data)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _known_rate(name: str) -> None:
    if name not in RATES:
        raise StudyError(f"unknown rate {name!r}; there are: {', '.join(RATES)}")


def _listed(name: str, wanted: int | Iterable[int], there: list[int]) -> list[int]:
    chosen = [wanted] if isinstance(wanted, (int, np.integer)) else [int(k) for k in wanted]
    absent = [k for k in chosen if k not in there]
    if absent:
        raise StudyError(f"no {name} {', '.join(map(str, absent))}: this study has {name}s {there[0]} to {there[-1]}")
    return [int(k) for k in chosen]
