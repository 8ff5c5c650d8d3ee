"""Signal-to-noise ratios of heads (ours; docs/noise.md): how much of the text's structure shows in a head's output.

All ratios are (signal + noise) / noise in decibels: 10·log₁₀ of the factor by which a head's noise would increase if
its text were shuffled. A head that ignores the structure has 0 dB, one with as much signal as noise 3 dB.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import xarray as xr

from headscope.errors import StudyError
from headscope.studies.labels import divide_sums, has_images

DEFAULT = "structure"
DEFINITIONS = {
    "structure": "how far outputs are apart, by whether tokens are equal, of one sentence, neighbours",
    "contrast": "how far outputs are apart across sentences, against within one",
    "explained": "high pairs of equal tokens, of one sentence or of neighbours, against all others",
    "energy": "C² within the blocks that attention lines delineate, against outside of them",
}
MOST = 30.0
"""Upper limit of the ratio `structure` in dB: noise below a thousandth counts as a thousandth."""
OF_WORDS = ("structure", "contrast", "explained")
"""ratios that depend on sentences, which images do not have"""


def signal_to_noise(data: xr.Dataset, name: str = DEFAULT) -> xr.DataArray:
    """Return one of the ratios in decibels: (layer, head). It is NaN where nothing was measured."""
    if name not in DEFINITIONS:
        raise StudyError(f"unknown signal-to-noise ratio {name!r}; there are: {', '.join(DEFINITIONS)}")
    if not has_signal_to_noise(data):
        raise StudyError("this study was made by a version that did not measure signal-to-noise: run it again")
    ratios = _RATIOS[name](data)
    if name in OF_WORDS and has_images(data.attrs):
        ratios = xr.full_like(ratios, np.nan)
    decibels = ratios.copy(data=10 * np.log10(ratios.values)).rename(f"snr_{name}")
    return decibels.assign_attrs(long_name=f"signal-to-noise: {DEFINITIONS[name]}", units="dB")


def has_signal_to_noise(data: xr.Dataset) -> bool:
    """Return whether a study contains the sums from which the ratios are computed: studies of old versions do not."""
    return "apart_sum" in data and "within_sum" in data


def compute_output_norm(data: xr.Dataset) -> xr.DataArray:
    """Return the root mean square length of the output of each head for a token: (layer, head)."""
    power = divide_sums(data["output_power"], data["sample_texts"])
    return power.copy(data=np.sqrt(power.values)).rename("output_norm")


def compute_distances(data: xr.Dataset, *, shuffled: bool = False) -> xr.DataArray:
    """Return half the mean square distance of two outputs, in units of their mean square length: (layer, head, kind).

    `kind` is the kind of the pair of tokens. If outputs have no common part, the distance of unrelated tokens is 1.
    """
    return divide_sums(data["shuffled_apart_sum" if shuffled else "apart_sum"], data["kind_share"])


def compute_reductions(data: xr.Dataset) -> xr.DataArray:
    """Return by what share related tokens reduce the distance of outputs: (layer, head, source).

    Equal tokens and tokens of one sentence are compared with unrelated tokens; neighbours are compared with other
    tokens of one sentence.
    """
    distances = _split_by_kind(compute_distances(data))
    unrelated = distances["unrelated"].where(distances["unrelated"] > 0)
    same_sentence = distances["same sentence"].where(distances["same sentence"] > 0)
    reductions = [
        1 - distances["equal"] / unrelated,
        1 - distances["same sentence"] / unrelated,
        1 - distances["neighbours"] / same_sentence,
    ]
    sources = xr.Variable("source", ["equal tokens", "one sentence", "neighbours"])
    return xr.concat(reductions, sources).transpose(..., "source")


def _split_by_kind(distances: xr.DataArray) -> dict[str, xr.DataArray]:
    return {str(name): distances.sel(kind=name, drop=True) for name in distances["kind"].values}


def _compute_structure(data: xr.Dataset) -> xr.DataArray:
    noise, shuffled_noise = (
        _compute_noise_share(compute_distances(data, shuffled=shuffled)) for shuffled in (False, True)
    )
    return shuffled_noise.copy(data=shuffled_noise.values / noise.values.clip(min=10 ** (-MOST / 10)))


def _compute_noise_share(distances: xr.DataArray) -> xr.DataArray:
    """Return the share of the distance that remains if token, sentence and neighbourhood are the same."""
    by_kind = _split_by_kind(distances)
    noise = divide_sums(by_kind["equal in a sentence"], by_kind["unrelated"])
    return noise.copy(data=noise.values * divide_sums(by_kind["neighbours"], by_kind["same sentence"]).values)


def _compute_contrast(data: xr.Dataset) -> xr.DataArray:
    measured_ratio = _divide(data["across_sum"], data["within_sum"])
    return measured_ratio / _divide(data["shuffled_across_sum"], data["shuffled_within_sum"])


def _compute_explained(data: xr.Dataset) -> xr.DataArray:
    pairs = data["sample_pairs"].where(data["sample_pairs"] > 0)
    # Half a pair is added to both counts, so that the ratio is finite if every pair is explained.
    return (pairs - data["shuffled_explained"] + 0.5) / (pairs - data["explained"] + 0.5)


def _compute_energy(data: xr.Dataset) -> xr.DataArray:
    measured_ratio = _divide(data["inside_energy_sum"], data["outside_energy_sum"])
    return measured_ratio / _divide(data["shuffled_inside_energy_sum"], data["shuffled_outside_energy_sum"])


def _divide(numerator: xr.DataArray, denominator: xr.DataArray) -> xr.DataArray:
    quotient: xr.DataArray = numerator.where(numerator > 0) / denominator.where(denominator > 0)
    return quotient


_RATIOS: dict[str, Callable[[xr.Dataset], xr.DataArray]] = {
    "structure": _compute_structure,
    "contrast": _compute_contrast,
    "explained": _compute_explained,
    "energy": _compute_energy,
}
