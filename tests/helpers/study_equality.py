"""Compare the sums of two studies of the same texts."""

from __future__ import annotations

import numpy as np
import xarray as xr

from headscope.studies.result import Study
from headscope.tally.quantities import QUANTITIES


def assert_same_sums(first: Study, second: Study) -> int:
    """Assert that two studies are equal in every integer, except for elements that floating-point order decides.

    Such elements are near a threshold or a bin edge. The studies count them themselves.

    Returns:
        How many differing integers they explain.
    """
    explained = 0
    near_threshold = np.maximum(first.data["near_threshold"].values, second.data["near_threshold"].values)
    near_edge = np.maximum(first.data["near_bin_edge"].values, second.data["near_bin_edge"].values)
    length = first.data.attrs["length"]
    for quantity in QUANTITIES:
        if quantity.name not in first.data:
            assert quantity.name not in second.data, quantity.name
            continue
        first_values, second_values = first.data[quantity.name], second.data[quantity.name]
        if quantity.real:
            np.testing.assert_allclose(
                first_values, second_values, rtol=1e-4, atol=1e-4 * max(1, first.texts), err_msg=quantity.name
            )
            continue
        differences = np.abs(first_values - second_values)
        if quantity.name in ("near_threshold", "near_bin_edge"):
            # Whether an element is near is itself a threshold: a few elements may fall either way.
            assert int(differences.max()) <= 2 + int(first_values.max()) // 10, quantity.name
            continue
        if int(differences.sum()) == 0:
            continue
        if quantity.dims[:2] != ("layer", "head"):
            allowed = 2 * near_threshold.sum(axis=1) if quantity.dims[:1] == ("layer",) else np.array(0)
            difference = differences.sum([dim for dim in quantity.dims if dim != "layer"]).values
        else:
            allowed = near_edge if quantity.name == "value_histogram" else near_threshold
            allowed = 2 * allowed * (length if quantity.name == "distance_sum" else 1)
            difference = differences.sum([dim for dim in quantity.dims if dim not in ("layer", "head")]).values
        assert (difference <= allowed).all(), quantity.name
        explained += int(np.sum(difference))
    xr.testing.assert_identical(first.data["most_attended"], second.data["most_attended"])
    return explained
