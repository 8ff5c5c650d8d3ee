"""The signal-to-noise ratio of a head (ours; docs/noise.md): by how much the text's structure shows in what it writes.

All are (signal + noise) / noise in decibels: 10·log₁₀ of how much larger a head's noise would be if its text were
shuffled. So 0 dB is a head that knows nothing of the structure, 3 dB one with as much signal as noise.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import xarray as xr

from headscope.errors import StudyError
from headscope.studies.labels import of_images, ratio

DEFAULT = "structure"
DEFINITIONS = {
    "structure": "how far outputs are apart, by whether tokens are equal, of one sentence, neighbours",
    "contrast": "how far outputs are apart across sentences, against within one",
    "explained": "high pairs of equal tokens, of one sentence or of neighbours, against all others",
    "energy": "C² within the blocks that attention lines delineate, against outside of them",
}
MOST = 30.0
"""dB: noise below a thousandth is not told from none"""
OF_WORDS = ("structure", "contrast", "explained")
"""those that ask for sentences, which images do not have"""


def signal_to_noise(data: xr.Dataset, name: str = DEFAULT) -> xr.DataArray:
    """One of the ratios over layers and heads, in decibels; NaN where nothing was measured."""
    if name not in DEFINITIONS:
        raise StudyError(f"unknown signal-to-noise ratio {name!r}; there are: {', '.join(DEFINITIONS)}")
    if not measured(data):
        raise StudyError("this study was made by a version that did not measure signal-to-noise: run it again")
    found = _RATIOS[name](data)
    if name in OF_WORDS and of_images(data.attrs):
        found = xr.full_like(found, np.nan)
    made = found.copy(data=10 * np.log10(found.values)).rename(f"snr_{name}")
    return made.assign_attrs(long_name=f"signal-to-noise: {DEFINITIONS[name]}", units="dB")


def measured(data: xr.Dataset) -> bool:
    """Whether a study holds what the ratios are made of: those of earlier versions do not."""
    return "apart_sum" in data and "within_sum" in data


def output_norm(data: xr.Dataset) -> xr.DataArray:
    """The root mean square length of what a head writes for a token."""
    power = ratio(data["output_power"], data["sample_texts"])
    return power.copy(data=np.sqrt(power.values)).rename("output_norm")


def apart(data: xr.Dataset, *, shuffled: bool = False) -> xr.DataArray:
    """Half the mean square distance of two outputs in units of their mean square length, by kind of pair: over layers,
    heads and `kind`. Unrelated tokens of a head that writes no common part are 1 apart."""
    return ratio(data["shuffled_apart_sum" if shuffled else "apart_sum"], data["kind_share"])


def shares(data: xr.Dataset) -> xr.DataArray:
    """By what share outputs are nearer to each other than those of unrelated tokens where tokens are equal, where they
    are of one sentence, and where they are neighbours besides: over layers, heads and `source`."""
    kind = _by_kind(apart(data))
    alone = kind["unrelated"].where(kind["unrelated"] > 0)
    same = kind["same sentence"].where(kind["same sentence"] > 0)
    made = [1 - kind["equal"] / alone, 1 - kind["same sentence"] / alone, 1 - kind["neighbours"] / same]
    sources = xr.Variable("source", ["equal tokens", "one sentence", "neighbours"])
    return xr.concat(made, sources).transpose(..., "source")


def _by_kind(found: xr.DataArray) -> dict[str, xr.DataArray]:
    return {str(name): found.sel(kind=name, drop=True) for name in found["kind"].values}


def _structure(data: xr.Dataset) -> xr.DataArray:
    own, chance = (_noise_share(apart(data, shuffled=shuffled)) for shuffled in (False, True))
    return chance.copy(data=chance.values / own.values.clip(min=10 ** (-MOST / 10)))


def _noise_share(found: xr.DataArray) -> xr.DataArray:
    """What is left of the distance where all is shared: the token, the sentence, and the neighbourhood."""
    kind = _by_kind(found)
    shared = ratio(kind["equal in a sentence"], kind["unrelated"])
    return shared.copy(data=shared.values * ratio(kind["neighbours"], kind["same sentence"]).values)


def _contrast(data: xr.Dataset) -> xr.DataArray:
    own = _over(data["across_sum"], data["within_sum"])
    return own / _over(data["shuffled_across_sum"], data["shuffled_within_sum"])


def _explained(data: xr.Dataset) -> xr.DataArray:
    pairs = data["sample_pairs"].where(data["sample_pairs"] > 0)
    # Half a pair more on both sides: a head of which every pair is explained has a ratio, too.
    return (pairs - data["shuffled_explained"] + 0.5) / (pairs - data["explained"] + 0.5)


def _energy(data: xr.Dataset) -> xr.DataArray:
    own = _over(data["inside_energy_sum"], data["outside_energy_sum"])
    return own / _over(data["shuffled_inside_energy_sum"], data["shuffled_outside_energy_sum"])


def _over(part: xr.DataArray, whole: xr.DataArray) -> xr.DataArray:
    made: xr.DataArray = part.where(part > 0) / whole.where(whole > 0)
    return made


_RATIOS: dict[str, Callable[[xr.Dataset], xr.DataArray]] = {
    "structure": _structure,
    "contrast": _contrast,
    "explained": _explained,
    "energy": _energy,
}
