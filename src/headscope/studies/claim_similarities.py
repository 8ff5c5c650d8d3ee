"""Measure the claims that are about similarities and high pairs: 5 to 12, 14, 15, 17 and 18 of METHOD §6."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from headscope.array_types import Floats
from headscope.studies import claim_statistics as stats
from headscope.studies.claim_statistics import (
    ALMOST_RANDOM,
    CLEARLY,
    FAR,
    FEW_VALUES,
    MANY_VALUES,
    NO_SAMPLE,
    PAPER_LENGTH,
    STRONG_CORRELATION,
    THIRD,
    THIRD_OF_CHANCE,
    TWICE,
    CannotMeasure,
    Condition,
    Measurement,
    NothingCounted,
    average,
    compute_median,
    format_groups,
    format_layers,
    format_number,
    format_percent,
    format_share,
    get_layer_groups,
    require_sample,
)
from headscope.studies.result import Study

# -- high pairs --------------------------------------------------------------------------------------------------------


def measure_value_gap(study: Study) -> Measurement:
    """Measure the shares of normalized similarities below 0.1 and between 0.1 and 0.6."""
    histogram = study.data["value_histogram"]
    if int(histogram.sum()) == 0:
        raise NothingCounted(NO_SAMPLE)

    def compute(s: Study) -> list[float]:
        below, between = stats.compute_value_shares(s.data["value_histogram"].sum(("layer", "head")))
        return [below, between, below - stats.compute_scattered_share(s)]

    values, errors = study.jackknife(compute)
    null = stats.compute_scattered_share(study)
    return Measurement(
        f"{format_percent(values[0], errors[0])} of the similarities are below 0.1 of the largest, "
        f"{format_percent(values[1], errors[1])} between 0.1 and 0.6, over all heads. Of unrelated outputs, which "
        f"scatter around 0, {format_share(null)} would be below 0.1.",
        values[0],
        errors[0],
        null,
        [
            Condition(f"at least {MANY_VALUES:.0%} below 0.1", values[0], errors[0], MANY_VALUES),
            Condition(f"at most {FEW_VALUES:.0%} between", values[1], errors[1], FEW_VALUES, at_most=True),
            Condition("more below 0.1 than of unrelated outputs", values[2], errors[2]),
        ],
        "%",
        {"below_and_between_by_layer": [stats.compute_value_shares(layer) for layer in histogram.sum("head")]},
    )


def measure_repeat_rates(study: Study) -> Measurement:
    """Measure the spread of repeat rates over heads, and their correlation with those within one sentence."""
    names = ("repeat_rate", "repeat_rate_in_sentence")
    both = np.stack([study.rate(name).values.ravel() for name in names])
    counted = np.isfinite(both).all(axis=0)
    if counted.sum() < 3:
        raise NothingCounted("too few heads have high pairs within sentences")
    error_covariance = _average_error_covariance(study, names, counted)
    typical = math.sqrt(error_covariance[0, 0])

    def compute(s: Study) -> list[float]:
        rates, inner = (s.rate(name).values.ravel()[counted] for name in names)
        spread = math.sqrt(max(float(np.var(rates)) - error_covariance[0, 0], 0.0))
        chance = float(s.data["all_equal"]) / max(float(s.data["all_pairs"]), 1.0)
        return [stats.correlate_true(rates, inner, error_covariance), spread, spread - chance, spread - 3 * typical]

    values, errors = study.jackknife(compute)
    rates = study.rate("repeat_rate")
    lowest, highest = (_format_extreme(study, rates.values, pick) for pick in (np.nanargmin, np.nanargmax))
    difference = float(np.abs(both[0] - both[1])[counted].mean())
    correlation = (
        f"Corrected for their errors, they correlate with the rates within one sentence by "
        f"{format_number(values[0], errors[0])}"
        if np.isfinite(values[0])
        else "Beyond their errors, they do not differ enough to correlate with the rates within one sentence"
    )
    return Measurement(
        f"Repeat rates go from {lowest} to {highest}, where chance gives {format_share(study.chance('repeat_rate'))}; "
        f"they spread over heads by {format_percent(values[1], errors[1])}, their typical standard error is "
        f"{format_share(typical)}. {correlation}; the two differ by {format_share(difference)} on average.",
        values[0],
        errors[0],
        0.0,
        [
            Condition("spread over heads at least the chance rate", values[2], errors[2]),
            Condition("spread over heads at least three standard errors", values[3], errors[3]),
            Condition(f"correlation at least {STRONG_CORRELATION}", values[0], errors[0], STRONG_CORRELATION),
        ],
        "(r)",
        {"spread": values[1], "typical_error": typical, "mean_difference": difference},
    )


def measure_short_distances(study: Study) -> Measurement:
    """Measure mean distances of the last layer's heads; one far head is allowed if it is the repeat-token head."""
    limit, layer = FAR * int(study.data.attrs["length"]), study.layers[-1]
    distances, repeat = study.rate("mean_distance").values[-1], study.rate("repeat_rate").values[-1]
    if np.isfinite(distances).sum() < 2:
        raise NothingCounted("fewer than two heads of the last layer have high pairs")
    repeat_head = int(np.nanargmax(repeat))
    others = np.isfinite(distances) & (np.arange(len(distances)) != repeat_head)

    def compute(s: Study) -> list[float]:
        farthest = np.fmax.reduce(s.rate("mean_distance").values[-1][others])
        chance = float(s.chance("mean_distance"))
        return [farthest, chance, farthest / chance]

    values, errors = study.jackknife(compute)
    is_far, far = distances >= limit, distances >= values[1]
    names = ", ".join(f"L{layer}H{study.head_numbers[head]} ({distances[head]:.1f})" for head in np.flatnonzero(is_far))
    return Measurement(
        f"Without L{layer}H{study.head_numbers[repeat_head]}, whose repeat rate is the layer's highest (mean distance "
        f"{distances[repeat_head]:.1f}), the largest mean distance in layer {layer} is "
        f"{format_number(values[0], errors[0])} tokens; all pairs have {values[1]:.1f}. At or above {limit:.0f}: "
        f"{names or 'none'}.",
        values[0],
        errors[0],
        values[1],
        [
            Condition("shorter than all pairs", values[2], errors[2], 1.0, at_most=True),
            Condition(f"by at least {CLEARLY:.0%}", values[2], errors[2], 1 - CLEARLY, at_most=True),
        ],
        "tokens",
        {
            "by_head": distances.tolist(),
            "not_shorter_than_all_pairs": [study.head_numbers[head] for head in np.flatnonzero(far)],
            "heads_at_or_above": [study.head_numbers[head] for head in np.flatnonzero(is_far)],
            "limit": limit,
        },
    )


def measure_same_sentence_rate(study: Study) -> Measurement:
    """Measure the last layer's lowest same-sentence rate, and what the heads' distances explain of it."""
    rates, matched = study.rate("same_sentence_rate").values[-1], stats.compute_matched_chance(study)[-1]
    counted = np.isfinite(rates)
    if not counted.any():
        raise NothingCounted("no head of the last layer has high pairs")
    chance = float(study.chance("same_sentence_rate"))
    limit = THIRD if int(study.data.attrs["length"]) == PAPER_LENGTH else THIRD_OF_CHANCE * chance

    def compute(s: Study) -> list[float]:
        own = s.rate("same_sentence_rate").values[-1][counted]
        return [np.fmin.reduce(own), np.fmin.reduce(own - stats.compute_matched_chance(s)[-1][counted])]

    values, errors = study.jackknife(compute)
    least = int(np.nanargmin(rates - matched))
    lowest = int(np.nanargmin(rates))
    return Measurement(
        f"In layer {study.layers[-1]}, {int((rates[counted] > limit).sum())} of {counted.sum()} heads exceed "
        f"{format_share(limit)}, and {int((rates > matched)[counted].sum())} exceed what pairs at their own distances "
        f"give by chance. The lowest rate is {format_percent(values[0], errors[0])} "
        f"(H{study.head_numbers[lowest]}); the smallest excess is {format_percent(values[1], errors[1])} "
        f"(H{study.head_numbers[least]}). All pairs alike would give {format_share(chance)}.",
        values[0],
        errors[0],
        matched[lowest],
        [
            Condition("every head above chance at its own distances", values[1], errors[1]),
            Condition(f"every head above {limit:.1%}", values[0], errors[0], limit),
        ],
        "%",
        {"by_head": rates.tolist(), "chance_at_own_distances": matched.tolist(), "chance": chance},
    )


def measure_dominant_token(study: Study) -> Measurement:
    """Measure the dominant token's share of a head's pairs, against that of as many pairs drawn at random."""
    if int(study.data["shuffled_share_texts"].sum()) == 0:
        raise NothingCounted("no text with high pairs is in the sample that random pairs are drawn for")

    def compute(s: Study) -> list[float]:
        shares, random = s.rate("dominant_share").values, s.chance("dominant_share").values
        return [compute_median(shares), compute_median(random), compute_median(shares / random)]

    values, errors = study.jackknife(compute)
    shares = study.rate("dominant_share").values
    return Measurement(
        f"In {int((shares > 0.5).sum())} of {int(np.isfinite(shares).sum())} heads, more than half of the pairs "
        f"include the dominant token; in the median head {format_percent(values[0], errors[0])}. Of as many pairs "
        f"drawn at random {format_percent(values[1], errors[1])} would, a factor of {values[2]:.2f}.",
        values[0],
        errors[0],
        values[1],
        [
            Condition("more than half in the median head", values[0], errors[0], 0.5),
            Condition("more than of as many random pairs", values[2], errors[2], 1.0),
        ],
        "%",
        {
            "by_layer": [average(row) for row in shares],
            "random_by_layer": [average(row) for row in study.chance("dominant_share").values],
            "last_layer_by_head": shares[-1].tolist(),
        },
    )


def measure_different_tokens(study: Study) -> Measurement:
    """Measure the mean number of different dominant tokens over the last layer's heads."""
    heads = len(study.head_numbers)
    if heads < 2:
        raise CannotMeasure("the model has one head per layer")
    require_sample(study, "shuffled_distinct_dominants")

    def compute(s: Study) -> list[float]:
        actual = stats.average_distinct(s)[-1]
        random = stats.average_distinct(s, "shuffled_distinct_dominants")[-1]
        with np.errstate(invalid="ignore"):
            ratio = compute_median(s.rate("dominant_share").values[-1] / s.chance("dominant_share").values[-1])
        return [actual, random, actual - random, ratio]

    values, errors = study.jackknife(compute)
    by_layer = stats.average_distinct(study)
    return Measurement(
        f"The {heads} heads of layer {study.layers[-1]} choose {format_number(values[0], errors[0])} different "
        f"dominant tokens on average, with as many random pairs {format_number(values[1], errors[1])}; a layer's "
        f"mean is {average(by_layer):.2f}. The dominant tokens are in {values[3]:.2f} times as many pairs as random "
        "ones.",
        values[0],
        errors[0],
        values[1],
        [
            Condition("more than half the number of heads", values[0], errors[0], heads / 2),
            Condition("more than with as many random pairs", values[2], errors[2]),
            Condition("pairs centre on them, twice as much as random pairs", values[3], errors[3], TWICE),
        ],
        f"of {heads}",
        {
            "by_layer": by_layer.tolist(),
            "random_by_layer": stats.average_distinct(study, "shuffled_distinct_dominants").tolist(),
        },
    )


def measure_independence_of_text(study: Study) -> Measurement:
    """Measure the correlation over heads between random halves of the corpus, of the rate that agrees least."""
    halves = stats.compute_half_correlations(study)
    if not halves:
        raise NothingCounted("two halves of the corpus with pairs in at least three heads are needed")
    means = {name: float(np.mean(correlations)) for name, correlations in halves.items()}
    spreads = {name: float(np.std(correlations)) for name, correlations in halves.items()}
    worst = min(means, key=lambda name: means[name])
    listed = ", ".join(f"{name.replace('_', ' ')} {mean:.3f}" for name, mean in means.items())
    return Measurement(
        f"Correlation over heads between two halves of the corpus, corrected to the whole, mean of {stats.HALVINGS} "
        f"halvings (± their spread): {listed}.",
        means[worst],
        spreads[worst],
        0.0,
        [
            Condition(
                f"{name.replace('_', ' ')} at least {STRONG_CORRELATION}", mean, spreads[name], STRONG_CORRELATION
            )
            for name, mean in means.items()
        ],
        "(r)",
        {name: {"mean": means[name], "spread": spreads[name]} for name in means},
    )


# -- lines in the similarities -----------------------------------------------------------------------------------------


def measure_strongest_region(study: Study) -> Measurement:
    """Measure in how many texts the strongest region between attention lines lies on the diagonal of blocks."""
    layers = stats.get_last_layers(study)
    _require_lines(study, "region_texts", layers)

    def compute(s: Study) -> list[float]:
        texts = stats.get_values(s, "region_texts")
        on_diagonal, shuffled, chance = (
            float(stats.divide(sums, count)[layers].mean())
            for sums, count in (
                (stats.get_values(s, "diagonal_region_texts"), texts[:, None]),
                (stats.get_values(s, "shuffled_diagonal_region_texts"), texts[:, None]),
                (stats.get_values(s, "region_chance_sum"), texts),
            )
        )
        return [on_diagonal, chance, shuffled, on_diagonal - max(chance, shuffled)]

    values, errors = study.jackknife(compute)
    return Measurement(
        "The strongest region of C between attention lines lies on the diagonal in "
        f"{format_percent(values[0], errors[0])} of texts, averaged over the heads of {format_layers(layers)}. If "
        f"every region were as likely, it would in {format_share(values[1])}; with the text's places shuffled it "
        f"does in {format_percent(values[2], errors[2])}.",
        values[0],
        errors[0],
        max(values[1], values[2]),
        [
            Condition("more than half of the texts", values[0], errors[0], 0.5),
            Condition("more than chance, and than with places shuffled", values[3], errors[3]),
        ],
        "%",
        {
            "by_layer": [
                average(row)
                for row in stats.divide(
                    study.data["diagonal_region_texts"].values, study.data["region_texts"].values[:, None]
                )
            ]
        },
    )


def measure_delineation(study: Study) -> Measurement:
    """Measure the similarity of tokens between lines, against tokens across a line at the same distances."""
    layers = stats.get_last_layers(study)
    _require_lines(study, "delineated_texts", layers)

    def compute(s: Study) -> list[float]:
        texts = stats.get_values(s, "delineated_texts")[:, None]
        inside, across = (
            float(stats.divide(stats.get_values(s, f"delineated_{name}_sum"), texts)[layers].mean())
            for name in ("inside", "across")
        )
        return [inside, across, inside - across, inside - (1 + CLEARLY) * across]

    values, errors = study.jackknife(compute)
    return Measurement(
        f"In {format_layers(layers)} the similarity of two tokens between the same lines is "
        f"{format_number(values[0], errors[0], 3)} of the mean square output, of two tokens as far apart with a line "
        f"between them {format_number(values[1], errors[1], 3)}: a difference of "
        f"{format_number(values[2], errors[2], 3)}. Line tokens are left out.",
        values[0],
        errors[0],
        values[1],
        [
            Condition("larger than across lines at the same distance", values[2], errors[2]),
            Condition(f"larger by {CLEARLY:.0%}", values[3], errors[3]),
        ],
        "of |o|²",
        {
            f"{name}_by_layer": [
                average(row)
                for row in stats.divide(
                    study.data[f"delineated_{name}_sum"].values, study.data["delineated_texts"].values[:, None]
                )
            ]
            for name in ("inside", "across")
        },
    )


# -- over the layers ---------------------------------------------------------------------------------------------------


def measure_distances_over_layers(study: Study) -> Measurement:
    """Measure the mean distance in the first, middle and last layers."""
    groups = get_layer_groups(study)

    def compute(s: Study) -> list[float]:
        by_layer = np.array([average(row) for row in s.rate("mean_distance").values])
        first, middle, last = (average(by_layer[group]) for group in groups)
        chance = float(s.chance("mean_distance"))
        return [first, middle, last, first - last, last - middle, middle / chance, chance]

    values, errors = study.jackknife(compute)
    return Measurement(
        f"Mean distance in tokens, averaged over heads: {format_groups(values, errors, format_number)}; all pairs "
        f"have {values[6]:.1f}.",
        values[1],
        errors[1],
        values[6],
        [
            Condition("longer in the first layers than in the last", values[3], errors[3]),
            Condition("longer in the last layers than in the middle", values[4], errors[4]),
            Condition(
                f"in the middle at least {CLEARLY:.0%} shorter than all pairs",
                values[5],
                errors[5],
                1 - CLEARLY,
                at_most=True,
            ),
        ],
        "tokens",
        {"by_layer": [average(row) for row in study.rate("mean_distance").values]},
    )


def measure_growing_sentence_preference(study: Study) -> Measurement:
    """Measure how much more the last layers prefer pairs of one sentence than the first, beyond their distances."""
    first, last = stats.get_first_layers(study), stats.get_last_layers(study)
    if first == last:
        raise CannotMeasure("the model has one layer")

    def compute(s: Study) -> list[float]:
        rates, matched = s.rate("same_sentence_rate").values, stats.compute_matched_chance(s)
        excess = np.array([average(row) for row in rates - matched])
        ratio = np.array([average(row) for row in stats.divide(rates, matched)])
        at_end, at_start = average(excess[last]), average(excess[first])
        return [at_start, at_end, at_end - at_start, average(ratio[last])]

    values, errors = study.jackknife(compute)
    return Measurement(
        "Beyond what their distances explain, pairs lie within one sentence by "
        f"{format_percent(values[0], errors[0])} more in the first layers and by "
        f"{format_percent(values[1], errors[1])} in the last, where they are {values[3]:.2f} times as many as by "
        "chance.",
        values[1],
        errors[1],
        values[0],
        [
            Condition("more in the last layers than in the first", values[2], errors[2]),
            Condition(f"in the last {CLEARLY:.0%} above chance at equal distances", values[3], errors[3], 1 + CLEARLY),
        ],
        "%",
        {
            "by_layer": [
                average(row) for row in study.rate("same_sentence_rate").values - stats.compute_matched_chance(study)
            ]
        },
    )


def measure_random_early_distances(study: Study) -> Measurement:
    """Measure how far the distances of the first and of the other layers' pairs are from those of all pairs."""
    first = stats.get_first_layers(study)
    others = [layer for layer in range(len(study.layers)) if layer not in first]
    if not others:
        raise CannotMeasure("the model has one layer")

    def compute(s: Study) -> list[float]:
        by_layer = stats.compute_distance_deviation(s)
        early, late = average(by_layer[first]), average(by_layer[others])
        return [early, late, late - early]

    values, errors = study.jackknife(compute)
    return Measurement(
        f"{format_percent(values[0], errors[0])} of the pairs in {format_layers(first)} would have to be at another "
        f"distance to be spread as all pairs are; in the other layers {format_percent(values[1], errors[1])}.",
        values[0],
        errors[0],
        values[1],
        [
            Condition(
                f"at most {ALMOST_RANDOM:.0%} in the first layers", values[0], errors[0], ALMOST_RANDOM, at_most=True
            ),
            Condition(f"at least {CLEARLY:.0%} more in the other layers", values[2], errors[2], CLEARLY),
        ],
        "%",
        {"by_layer": stats.compute_distance_deviation(study).tolist()},
    )


def _require_lines(study: Study, name: str, layers: list[int]) -> None:
    require_sample(study)
    if not stats.get_values(study, name)[layers].all():
        raise NothingCounted("attention has no lines that cut the texts of the sample into blocks, in some last layer")


def _average_error_covariance(study: Study, names: Sequence[str], counted: Any) -> Floats:
    """Return the covariance of the jackknife errors of two rates, averaged over heads: (2, 2)."""

    def compute(s: Study) -> Floats:
        first, second = (s.rate(name).values.ravel()[counted] for name in names)
        return np.stack([first, second, first + second])

    variances = np.nan_to_num(study.jackknife(compute)[1] ** 2).mean(axis=1)
    covariance = (variances[2] - variances[0] - variances[1]) / 2
    return np.array([[variances[0], covariance], [covariance, variances[1]]])


def _format_extreme(study: Study, rates: Floats, argextreme: Callable[[Floats], Any]) -> str:
    layer, head = np.unravel_index(int(argextreme(rates)), rates.shape)
    return f"{format_share(rates[layer, head])} (L{study.layers[layer]}H{study.head_numbers[head]})"
