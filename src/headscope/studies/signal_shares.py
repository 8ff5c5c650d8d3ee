"""Signal shares of heads (ours; docs/noise.md): how much of what a head writes follows the structure of the text.

What a head writes within a window is split into position, relations between tokens, and noise. The signal-to-noise
ratio is signal over noise: 0 dB is as much signal as noise.
"""

from __future__ import annotations

import numpy as np
import xarray as xr

from headscope.array_types import Floats
from headscope.errors import StudyError
from headscope.studies.labels import has_images
from headscope.studies.rates import MIN_BLOCKS, compute_jackknife_error
from headscope.tally.quantities import CONTRASTS

SOURCES = ("equal tokens", "one sentence", "neighbours")
"""relations that signal consists of"""
MAX_SHARE = 0.999
"""largest signal share that a ratio is computed of, 30 dB: less noise is not told from none"""
ERRORS_ABOVE_ZERO = 2.0
"""A ratio is given where the signal share is more than this number of standard errors above zero."""
ROUNDING = 1e-5
"""share of everything that is not told from none"""
ALL, REPEATS, EQUAL, SAME, ADJACENT, SECOND, _ = range(len(CONTRASTS))
EVERYWHERE, IN_SENTENCE = [EQUAL, SAME], [ADJACENT, SECOND, CONTRASTS.index("equal in a sentence")]
"""contrasts whose effects are estimated together"""


def has_signal_shares(data: xr.Dataset) -> bool:
    """Return whether a study contains the sums of signal shares: studies of old versions do not."""
    return "contrast_sums_blocks" in data and "position_sums" in data


def compute_signal_shares(data: xr.Dataset) -> xr.Dataset:
    """Return signal shares, position shares and signal-to-noise ratios of heads, with jackknife standard errors.

    The dataset contains `signal_share`, `position_share`, `relation_share` and `snr_db`, and each with `_error`. Values
    are NaN where nothing was measured; `snr_db` is also NaN where the signal is not above zero within two errors.
    """
    if not has_signal_shares(data):
        raise StudyError("this study was made by a version that did not measure signal shares: run it again")
    block_dims = ("block", "layer", "head", "contrast")
    sums = data["contrast_sums_blocks"].transpose(*block_dims).values
    products = data["contrast_products_blocks"].transpose("block", "contrast", "marked").values
    positions = _sum_position_parts(data)
    filled = np.flatnonzero(data["sample_texts_blocks"].values)
    arrays = (sums, positions, products)
    totals = [array.sum(0) for array in arrays]
    shares = _split(*totals)
    errors = np.full_like(shares, np.nan)
    if len(filled) >= MIN_BLOCKS:
        others = [[total - array[block] for total, array in zip(totals, arrays, strict=True)] for block in filled]
        errors = compute_jackknife_error(np.stack([_split(*parts) for parts in others]))
    if has_images(data.attrs):
        shares, errors = np.full_like(shares, np.nan), np.full_like(errors, np.nan)
    return _label(data, shares, errors)


def _sum_position_parts(data: xr.Dataset) -> Floats:
    """Return what the mean output at each position adds to the sums of contrasts: (block, layer, head, contrast).

    |mᵢ−mⱼ|² is the product of the differences in both halves of the texts, so that noise adds nothing to it.
    """
    weights = data["pair_weights_blocks"].transpose("block", "contrast", "place", "other_place").values
    degrees = weights.sum(-1)
    counts = data["position_counts"].transpose("half", "place").values
    sums = data["position_sums"].transpose("layer", "half", "head", "place", "width").values
    measured = (counts > 0).all(0)
    parts = np.empty((len(weights), len(sums), sums.shape[2], weights.shape[1]))
    for layer, layer_sums in enumerate(sums):
        means = layer_sums / np.maximum(counts, 1)[:, None, :, None]
        if not measured.any():  # the texts are all in one half, so that position cannot be separated from noise
            means[:] = np.nan
        else:
            means -= means[:, :, measured].mean(2, keepdims=True)
            means[:, :, ~measured] = 0  # an unknown mean is that of all positions
        products = means[0] @ means[1].swapaxes(1, 2)
        squares = np.einsum("bcp,hpp->bhc", degrees, products)
        parts[:, layer] = (squares - np.einsum("bcpq,hpq->bhc", weights, products, optimize=True)) / 2
    return parts


def _split(sums: Floats, positions: Floats, products: Floats) -> Floats:
    """Return the signal share, the position share, and the share of each relation: (layer, head, 5).

    The mean of ½|oᵢ−oⱼ|² is that of unrelated tokens without each relation's effect on the pairs that it relates.

    Args:
        sums: Σ w·½|oᵢ−oⱼ|², (layer, head, contrast).
        positions: The part of these sums that positions explain.
        products: (contrast, contrast).
    """
    rest = sums - positions
    effects = np.full_like(rest, np.nan)
    for group in (EVERYWHERE, IN_SENTENCE):
        matrix = products[np.ix_(group, group)]
        if np.linalg.matrix_rank(matrix, tol=1e-6) == len(group):
            effects[..., group] = -np.linalg.solve(matrix, rest[..., group, None])[..., 0]
    pairs = np.maximum(products[[ALL, REPEATS], ALL], 1.0)
    related = [EQUAL, SAME, ADJACENT, SECOND]
    unrelated = (rest[..., [ALL, REPEATS]] + effects[..., related] @ products[[ALL, REPEATS]][:, related].T) / pairs
    position = positions[..., ALL] / pairs[0]
    # The line through the effects at distances 1 and 2, at distance 0: what the neighbourhood of a token adds to it.
    neighbors = 2 * effects[..., ADJACENT] - effects[..., SECOND]
    parts = np.stack([effects[..., EQUAL], effects[..., SAME], neighbors], -1)
    # Repeated tokens are not like others: what they have in common is a share of how far apart they would be.
    references = unrelated[..., [1, 0, 0]]
    everything = position + unrelated[..., 0]
    everything = np.where(everything > 0, everything, np.nan)
    # A head that writes nothing but positions has no signal.
    is_rest = references > ROUNDING * everything[..., None]
    shares = parts / np.where(is_rest, references, np.inf) + 0 * everything[..., None]
    result: Floats = np.concatenate([shares.sum(-1)[..., None], (position / everything)[..., None], shares], -1)
    return result


def _label(data: xr.Dataset, shares: Floats, errors: Floats) -> xr.Dataset:
    signal, signal_error = shares[..., 0], errors[..., 0]
    is_signal = signal > ERRORS_ABOVE_ZERO * signal_error
    share = np.where(is_signal, np.minimum(signal, MAX_SHARE), np.nan)
    decibels = 10 * np.log10(share / (1 - share))
    is_capped = share >= MAX_SHARE  # at the most that is given, an error says nothing
    decibel_errors = np.where(is_capped, np.nan, 10 / np.log(10) * signal_error / (share * (1 - share)))
    heads, relations = ("layer", "head"), ("layer", "head", "source")
    dataset = xr.Dataset(
        {
            "signal_share": (heads, signal, {"long_name": "share of what a head writes that follows the text"}),
            "signal_share_error": (heads, signal_error),
            "position_share": (heads, shares[..., 1], {"long_name": "share of what a head writes that is position"}),
            "position_share_error": (heads, errors[..., 1]),
            "relation_share": (relations, shares[..., 2:], {"long_name": "share that follows each relation"}),
            "relation_share_error": (relations, errors[..., 2:]),
            "snr_db": (heads, decibels, {"long_name": "signal over noise", "units": "dB"}),
            "snr_db_error": (heads, decibel_errors, {"units": "dB"}),
        },
        coords={"source": np.array(SOURCES, dtype=object)},
    )
    return dataset.assign_coords(layer=data["layer"], head=data["head"])
