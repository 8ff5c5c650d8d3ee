"""When two studies of the same texts are the same study."""

from __future__ import annotations

import numpy as np
import xarray as xr

from headscope.studies.result import Study
from headscope.tally.quantities import QUANTITIES


def assert_same_sums(one: Study, other: Study) -> int:
    """Equal in every integer, but for elements so near a threshold that floating-point order decides them.

    Those are counted by the studies themselves; returns how many integers they explain.
    """
    explained = 0
    near = np.maximum(one.data["near_threshold"].values, other.data["near_threshold"].values)
    edge = np.maximum(one.data["near_bin_edge"].values, other.data["near_bin_edge"].values)
    length = one.data.attrs["length"]
    for quantity in QUANTITIES:
        mine, theirs = one.data[quantity.name], other.data[quantity.name]
        if quantity.real:
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4 * max(1, one.texts), err_msg=quantity.name)
            continue
        differing = np.abs(mine - theirs)
        if quantity.name in ("near_threshold", "near_bin_edge"):
            # On the rim of nearness itself a few elements may fall either way.
            assert int(differing.max()) <= 2 + int(mine.max()) // 10, quantity.name
            continue
        if int(differing.sum()) == 0:
            continue
        if quantity.dims[:2] != ("layer", "head"):
            allowed = 2 * near.sum(axis=1) if quantity.dims[:1] == ("layer",) else np.array(0)
            moved = differing.sum([dim for dim in quantity.dims if dim != "layer"]).values
        else:
            allowed = edge if quantity.name == "value_histogram" else near
            allowed = 2 * allowed * (length if quantity.name == "distance_sum" else 1)
            moved = differing.sum([dim for dim in quantity.dims if dim not in ("layer", "head")]).values
        assert (moved <= allowed).all(), quantity.name
        explained += int(np.sum(moved))
    xr.testing.assert_identical(one.data["most_attended"], other.data["most_attended"])
    return explained
