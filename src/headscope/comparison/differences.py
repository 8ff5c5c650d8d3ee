"""Head by head: how two studies of one shape differ, and which differences are more than chance.

Texts fall into the same blocks in both studies where model and settings cut them into the same tokens. Then the
difference itself is jackknifed, block for block (paired): what a text does to both models cancels. Else the errors of
the two are independent, or taken to be so, and add in quadrature.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from headscope.comparison.measures import MEASURES, Measure, Sums, divided, jackknife_error, occupied
from headscope.comparison.student import holm, two_sided
from headscope.studies.result import Study
from headscope.studies.statistics import correlation
from headscope.types import Floats

FEWEST_BLOCKS = 5
"""blocks in which both models' heads have something counted, below which a spread over blocks says little"""
ROUNDING = 1e-9
"""a difference that the order of floating-point sums can make"""
COLUMNS = (
    "layer", "head", "name", "rate", "one", "other", "difference", "error", "t", "p", "p_corrected", "significant",
)  # fmt: skip


@dataclass(frozen=True)
class Judged:
    """Differences and their errors, t and p, by layer and head."""

    one: Floats
    other: Floats
    error: Floats
    t: Floats
    p: Floats
    p_corrected: Floats

    @property
    def difference(self) -> Floats:
        return self.other - self.one


def same_texts(one: Study, other: Study) -> bool:
    """Whether both studies hold the same texts in the same blocks, cut into the same tokens.

    The block of a text depends on its token ids alone. Ids are not kept, but their number, sentences and repetitions
    are, block by block: where all of them agree, so do the texts.
    """
    if one.data.attrs["corpus_hash"] != other.data.attrs["corpus_hash"]:
        return False
    names = ("texts", "window_tokens", "all_pairs", "all_equal", "all_same", "all_equal_same")
    return all(np.array_equal(one.data[f"{name}_blocks"].values, other.data[f"{name}_blocks"].values) for name in names)


def same_shape(one: Study, other: Study) -> bool:
    """Whether the heads of both stand in the same layers under the same numbers."""
    return (one.layers, one.heads) == (other.layers, other.heads)


def judged(one: Sums, other: Sums, *, paired: bool) -> Judged:
    """The differences of one measure, `other` minus `one`, with Holm's correction over all heads."""
    before, after = one.rates(), other.rates()
    error = _error(one, other, paired=paired)
    difference = after - before
    freedom = _freedom(one, other, paired=paired)
    enough = _blocks_counted(one, other, paired=paired) >= FEWEST_BLOCKS
    t = np.full(difference.shape, np.nan)
    known = np.isfinite(difference) & np.isfinite(error) & enough
    t[known & (np.abs(difference) <= ROUNDING)] = 0.0
    apart = known & (np.abs(difference) > ROUNDING)
    t[apart & (error > 0)] = difference[apart & (error > 0)] / error[apart & (error > 0)]
    t[apart & (error == 0)] = np.sign(difference[apart & (error == 0)]) * np.inf
    p = np.reshape(
        [two_sided(float(each), float(k)) for each, k in zip(t.ravel(), freedom.ravel(), strict=True)], t.shape
    )
    return Judged(before, after, error, t, p, holm(p))


def _error(one: Sums, other: Sums, *, paired: bool) -> Floats:
    if paired:
        return jackknife_error(other.rates_left_out() - one.rates_left_out())
    both = (jackknife_error(each.rates_left_out()) for each in (one, other))
    return np.hypot(*both)


def _blocks_counted(one: Sums, other: Sums, *, paired: bool) -> Floats:
    """In how many blocks a head has something counted in both models; of unequal numbers the smaller."""
    here, there = one.whole != 0, other.whole != 0
    if paired:
        return np.asarray((here & there).sum(axis=0), dtype=np.float64)
    return np.asarray(np.minimum(here.sum(axis=0), there.sum(axis=0)), dtype=np.float64)


def _freedom(one: Sums, other: Sums, *, paired: bool) -> Floats:
    """Degrees of freedom: the number of blocks less one, where blocks of unequal size count as fewer (Kish).

    Few texts fall unevenly on the blocks. The error then rests on the large ones, and is itself less certain than as
    many equal blocks would make it: (Σ w)² / Σ w² of them, which is their number where all are equal.
    """
    weights = [divided(each.whole, np.broadcast_to(each.whole.sum(axis=0), each.whole.shape)) for each in (one, other)]
    if paired:
        weights = [weights[0] + weights[1]]
    effective = [divided(w.sum(axis=0) ** 2, (w**2).sum(axis=0)) for w in weights]
    return effective[0] - 1 if paired else np.minimum(*effective) - 1


def differences(one: Study, other: Study, measure: Measure, *, paired: bool, alpha: float) -> pd.DataFrame:
    """One row a head."""
    found = judged(measure.sums(one), measure.sums(other), paired=paired)
    layers, heads = np.repeat(one.layers, len(one.heads)), np.tile(one.heads, len(one.layers))
    rows = {
        "layer": layers,
        "head": heads,
        "name": [f"L{layer}H{head}" for layer, head in zip(layers, heads, strict=True)],
        "rate": measure.name,
        "one": found.one.ravel(),
        "other": found.other.ravel(),
        "difference": found.difference.ravel(),
        "error": found.error.ravel(),
        "t": found.t.ravel(),
        "p": found.p.ravel(),
        "p_corrected": found.p_corrected.ravel(),
        "significant": found.p_corrected.ravel() <= alpha,
    }
    return pd.DataFrame(rows)[list(COLUMNS)]


def correlations(one: Study, other: Study) -> pd.DataFrame:
    """For each rate, how alike the heads of both models are ordered: Pearson's correlation over heads known in both."""
    rows = []
    for measure in MEASURES.values():
        here, there = measure.sums(one).rates(), measure.sums(other).rates()
        known = int((np.isfinite(here) & np.isfinite(there)).sum())
        rows.append({"rate": measure.name, "heads": known, "correlation": correlation(here, there)})
    return pd.DataFrame(rows)


def blocks_of(one: Study, other: Study) -> int:
    """How many blocks the errors of a pair rest on."""
    return min(len(occupied(one)), len(occupied(other)))
