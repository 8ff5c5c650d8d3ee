"""Whether the heads of two studies correspond: are they of one model, or was one made from the other?

Head 3 of layer 5 of two models that were trained independently have nothing in common but their number: the difference
between them means nothing. After fine-tuning, between late checkpoints, in another dtype or on other texts, heads
keep most of what they do. Manifests do not say which model was made from which, so this is measured: heads of one model
differ from the others of their layer in the same way.
"""

from __future__ import annotations

import numpy as np

from headscope.comparison.measures import MEASURES
from headscope.settings import get_value
from headscope.studies.claim_statistics import correlate
from headscope.studies.result import Study

MIN_CORRELATION = 0.5
"""Median over rates of the correlation between heads of the same number, within layers, of related models."""
MUST_MATCH = ("stack", "model_type", "tokenizer")
"""Entries of the manifest without which heads do not correspond."""


def describe_unrelated(first: Study, second: Study) -> str:
    """Return why the heads of two studies of one shape do not correspond; empty if they do."""
    manifests = first.data.attrs, second.data.attrs
    for name in MUST_MATCH:
        values = [get_value(attributes, name) for attributes in manifests]
        if values[0] != values[1]:
            return f"their {name.replace('_', ' ')}s differ, {values[0]} and {values[1]}"
    if manifests[0].get("weight_hash") == manifests[1].get("weight_hash"):
        return ""
    correlation = correlate_profiles(first, second)
    if correlation >= MIN_CORRELATION:
        return ""
    if np.isnan(correlation):
        return "too little was counted to tell whether they do the same"
    return (
        f"within layers, heads of one number are not alike (correlation {correlation:.2f}; {MIN_CORRELATION} is "
        "needed), as in models that were trained independently"
    )


def correlate_profiles(first: Study, second: Study) -> float:
    """Return the correlation, over heads of the same number, of rates minus the mean of their layer: the median over
    rates. NaN if there is none."""
    correlations = []
    for measure in MEASURES.values():
        rates = np.stack([measure.compute_sums(study).compute_rates() for study in (first, second)])
        rates = np.where(np.isfinite(rates).all(0), rates, np.nan)
        counts = np.isfinite(rates).sum(-1, keepdims=True)
        means = np.nansum(rates, axis=-1, keepdims=True) / np.maximum(counts, 1)
        correlations.append(correlate(*(rates - means)))
    known = [value for value in correlations if np.isfinite(value)]
    return float(np.median(known)) if known else float("nan")
