"""Differences between two studies of the same shape, head by head, with standard errors and p-values.

Where model and settings cut the same documents into the same tokens, these are in the same block in both studies. Then
the difference itself is jackknifed block by block (paired): what a text does to both models cancels. Otherwise the
errors of both studies are taken as independent and added in quadrature.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from headscope.array_types import Floats
from headscope.comparison.measures import MEASURES, Measure, RateSums, divide
from headscope.studies.claim_statistics import correlate
from headscope.studies.labels import HEAD_COLUMNS, make_head_columns
from headscope.studies.rates import MIN_BLOCKS, compute_jackknife_error
from headscope.studies.result import Study
from headscope.studies.sample_size import describe_missing_texts, get_filled_blocks
from headscope.studies.significance import compute_p_value, correct_holm

ROUNDING = 1e-9
"""Largest difference that the order of floating-point sums can make."""
COLUMNS = (
    *HEAD_COLUMNS, "rate", "one", "other", "difference", "error", "t", "p", "p_corrected", "significant",
)  # fmt: skip


@dataclass(frozen=True)
class HeadDifferences:
    """Differences with their errors, t and p; each of shape (layers, heads)."""

    baseline: Floats
    other: Floats
    error: Floats
    t: Floats
    p: Floats
    p_corrected: Floats

    @property
    def difference(self) -> Floats:
        return self.other - self.baseline


def has_same_texts(first: Study, second: Study) -> bool:
    """Return whether both studies hold the same texts in the same blocks, cut into the same tokens.

    Token ids are not stored, but block by block their number, sentences and repetitions are: where all of them agree,
    so do the texts.
    """
    if first.data.attrs["corpus_hash"] != second.data.attrs["corpus_hash"]:
        return False
    names = ("texts", "window_tokens", "all_pairs", "all_equal", "all_same", "all_equal_same")
    return all(
        np.array_equal(first.data[f"{name}_blocks"].values, second.data[f"{name}_blocks"].values) for name in names
    )


def has_same_shape(first: Study, second: Study) -> bool:
    """Return whether the heads of both studies stand in the same layers under the same numbers."""
    return (first.layers, first.head_numbers) == (second.layers, second.head_numbers)


def compute_differences(baseline: RateSums, other: RateSums, *, paired: bool) -> HeadDifferences:
    """Return the differences of one measure, `other` minus `baseline`, with Holm's correction over all heads."""
    baseline_rates, other_rates = baseline.compute_rates(), other.compute_rates()
    error = _compute_error(baseline, other, paired=paired)
    difference = other_rates - baseline_rates
    degrees_of_freedom = compute_degrees_of_freedom(baseline, other, paired=paired)
    has_enough_blocks = _count_common_blocks(baseline, other, paired=paired) >= MIN_BLOCKS
    t = np.full(difference.shape, np.nan)
    is_known = np.isfinite(difference) & np.isfinite(error) & has_enough_blocks
    t[is_known & (np.abs(difference) <= ROUNDING)] = 0.0
    differs = is_known & (np.abs(difference) > ROUNDING)
    t[differs & (error > 0)] = difference[differs & (error > 0)] / error[differs & (error > 0)]
    t[differs & (error == 0)] = np.sign(difference[differs & (error == 0)]) * np.inf
    statistics = zip(t.ravel(), degrees_of_freedom.ravel(), strict=True)
    p = np.reshape([compute_p_value(float(statistic), float(degrees)) for statistic, degrees in statistics], t.shape)
    return HeadDifferences(baseline_rates, other_rates, error, t, p, correct_holm(p))


def _compute_error(baseline: RateSums, other: RateSums, *, paired: bool) -> Floats:
    if paired:
        return compute_jackknife_error(other.jackknife_rates() - baseline.jackknife_rates())
    errors = (compute_jackknife_error(sums.jackknife_rates()) for sums in (baseline, other))
    return np.hypot(*errors)


def _count_common_blocks(baseline: RateSums, other: RateSums, *, paired: bool) -> Floats:
    """Count the blocks in which a head has something counted in both models.

    If unpaired, return the smaller number of the two studies.
    """
    in_baseline, in_other = baseline.denominators != 0, other.denominators != 0
    if paired:
        return np.asarray((in_baseline & in_other).sum(axis=0), dtype=np.float64)
    return np.asarray(np.minimum(in_baseline.sum(axis=0), in_other.sum(axis=0)), dtype=np.float64)


def compute_degrees_of_freedom(baseline: RateSums, other: RateSums, *, paired: bool) -> Floats:
    """Return the degrees of freedom: the number of blocks less one, where blocks of unequal size count as fewer (Kish).

    Few texts fall unevenly on the blocks. The error then depends mostly on the large ones, and is less certain than
    with as many equal blocks. The effective number of blocks is (Σ w)² / Σ w², which is their number if all are equal.
    Unpaired, the degrees of both are joined as in Welch's test.
    """
    counts = [sums.denominators for sums in (baseline, other)]
    weights = [divide(count, np.broadcast_to(count.sum(axis=0), count.shape)) for count in counts]
    if paired:
        weights = [weights[0] + weights[1]]
    effective = [divide(weight.sum(axis=0) ** 2, (weight**2).sum(axis=0)) for weight in weights]
    if paired:
        return effective[0] - 1
    variances = [compute_jackknife_error(sums.jackknife_rates()) ** 2 for sums in (baseline, other)]
    joined = divide(variances[0] ** 2, effective[0] - 1) + divide(variances[1] ** 2, effective[1] - 1)
    return np.where(joined > 0, divide((variances[0] + variances[1]) ** 2, joined), np.minimum(*effective) - 1)


def tabulate_differences(
    baseline: Study, other: Study, measure: Measure, *, paired: bool, alpha: float
) -> pd.DataFrame:
    """Return a table of differences with one row per head.

    Differences between studies with too few texts for a verdict are not tested: t and p are NaN.
    """
    tested = compute_differences(measure.compute_sums(baseline), measure.compute_sums(other), paired=paired)
    if any(describe_missing_texts(study) for study in (baseline, other)):
        nothing = np.full(tested.t.shape, np.nan)
        tested = replace(tested, t=nothing, p=nothing, p_corrected=nothing)
    rows = {
        **make_head_columns(baseline.layers, baseline.head_numbers),
        "rate": measure.name,
        "one": tested.baseline.ravel(),
        "other": tested.other.ravel(),
        "difference": tested.difference.ravel(),
        "error": tested.error.ravel(),
        "t": tested.t.ravel(),
        "p": tested.p.ravel(),
        "p_corrected": tested.p_corrected.ravel(),
        "significant": tested.p_corrected.ravel() <= alpha,
    }
    return pd.DataFrame(rows)[list(COLUMNS)]


def tabulate_correlations(baseline: Study, other: Study) -> pd.DataFrame:
    """Return, for each rate, Pearson's correlation between both models over the heads that have a rate in both."""
    rows = []
    for measure in MEASURES.values():
        baseline_rates, other_rates = (measure.compute_sums(study).compute_rates() for study in (baseline, other))
        known = int((np.isfinite(baseline_rates) & np.isfinite(other_rates)).sum())
        rows.append({"rate": measure.name, "heads": known, "correlation": correlate(baseline_rates, other_rates)})
    return pd.DataFrame(rows)


def count_blocks(first: Study, second: Study) -> int:
    """Return the number of blocks that the errors of a pair depend on."""
    return min(len(get_filled_blocks(first)), len(get_filled_blocks(second)))
