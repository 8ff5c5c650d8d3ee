"""The eighteen claims of METHOD §6: what the paper reports, how a study measures it, and what the number would be without
the structure that is claimed (the null).

A claim is a list of conditions on numbers of the study; at least one of them compares with the null. The first, middle
and last layers that the paper mentions are the first quarter of the layers, those in the middle third, and the last
quarter. docs/findings.md explains every claim, criterion and null.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headscope.array_types import Floats
from headscope.model import token_text
from headscope.studies import claim_statistics as stats
from headscope.studies.claim_statistics import CannotMeasure
from headscope.studies.result import Study

MOST_HEADS = 0.9
TWICE = 2.0
"""Attention is where a claim says if there is at least so many times the attention that even attention would have."""
MANY_VALUES, FEW_VALUES = 0.75, 0.2
STRONG_CORRELATION = 0.9
SHARED_COLUMNS = 0.5
FAR = 50 / 128
"""The paper's distance of 50 tokens, as a share of its window of 128."""
THIRD, THIRD_OF_CHANCE = 0.33, 0.33 * 3.5
"""The paper's limit of 33 % at windows of 128 tokens "of around 3–4 sentences", where chance gives about 1/3.5."""
PAPER_LENGTH = 128
CLEARLY = 0.1
"""Differences between layers that a fixed network has by accident are smaller than this share of chance."""
ALMOST_RANDOM = 0.2
NO_MIDDLE = "the model has too few layers to speak of first, middle and last ones"
NO_SAMPLE = "no text is in the sample this is measured on"


@dataclass(frozen=True)
class Condition:
    """What a claim asks of one number: to be at least, or at most, some limit."""

    text: str
    value: float
    error: float
    limit: float = 0.0
    at_most: bool = False

    @property
    def is_met(self) -> bool | None:
        """Whether it is met; None within two standard errors of the limit, or if the number is not known."""
        margin = (self.limit - self.value) if self.at_most else (self.value - self.limit)
        error = 0.0 if math.isnan(self.error) else self.error
        if math.isnan(margin) or abs(margin) < 2 * error:
            return None
        return margin >= 0

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for the details of a finding."""
        outcome = {True: "met", False: "not met", None: "undecided"}[self.is_met]
        return {"condition": self.text, "value": self.value, "error": self.error, "limit": self.limit, "is": outcome}


@dataclass(frozen=True)
class Measurement:
    """Result of measuring a claim: the number with its standard error and its null, and what the claim asks."""

    explanation: str
    value: Any
    error: Any
    null: Any
    conditions: Sequence[Condition]
    unit: str = ""
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, and how it is measured."""

    number: int
    title: str
    paper: str
    paper_number: str
    """the number that the paper gives; empty if it gives none"""
    criterion: str
    measure: Callable[[Study], Measurement]
    of_words: bool = False
    """it is about words or sentences, which images do not have"""
    of_sample: bool = False
    """it is measured on the texts in the sample"""


# -- attention ---------------------------------------------------------------------------------------------------------


def measure_local_attention(study: Study) -> Measurement:
    """Measure the share of heads whose attention per element is strongest at −1, 0 or +1, and twice that of even
    attention."""
    _require_own_keys(study)
    present = study.present.values
    share, error = study.jackknife(lambda s: stats.is_strongest_local(s)[present].mean())
    local = stats.is_strongest_local(study)[present]
    return Measurement(
        f"In {int(local.sum())} of {local.size} heads ({_format_percent(share, error)}) the mean attention of an element "
        "is largest on the diagonal or beside it, and there at least twice that of attention spread evenly.",
        share,
        error,
        0.0,
        [Condition(f"share of heads at least {MOST_HEADS:.0%}", float(share), float(error), MOST_HEADS)],
        "%",
        {"by_layer": local.mean(axis=1).tolist()},
    )


def measure_first_token(study: Study) -> Measurement:
    """Measure the share of texts in which the first special token is the most attended, in the first layers."""
    token, role = str(study.data.attrs["first_special_token"]), str(study.data.attrs.get("first_token_role", ""))
    layers, spread = stats.get_first_layers(study), study.data["attention_spread"]
    by_layer = _get_first_token_share(study)
    values, errors = study.jackknife(
        lambda s: [
            stats.compute_most_attended_share(s, [token])[layers].mean(),
            received := _get_first_token_share(s)[layers].mean(),
            received / _get_even_share(s, ["first token"]),
        ]
    )
    even = _format_share(spread.sel(receiver="first token") / spread.sum())
    received_words = f"receives {_format_percent(values[1], errors[1])} of the attention, spread evenly {even}"
    if not token:
        most = int(np.argmax(by_layer))
        raise CannotMeasure(
            "this model's tokenizer puts no special token first. What stands first in a text, whatever it is, "
            f"{received_words}, in {_format_layers(layers)}; most in layer {most}: {_format_share(by_layer[most])}"
        )
    description = f"{token}, {role}," if role else token
    counts, tokens = study.data["window_tokens"].values, study.data["tokens"].values
    return Measurement(
        f"{description} is the most attended token in {_format_percent(values[0], errors[0])} of texts, "
        f"in {_format_layers(layers)}, where it {received_words}.",
        values[0],
        errors[0],
        float(counts[1:] @ (1 / tokens[1:]) / counts.sum()),
        [
            Condition("more than half of the texts", values[0], errors[0], 0.5),
            Condition("at least twice its attention if spread evenly", values[2], errors[2], TWICE),
        ],
        "%",
        {
            "token": token,
            "role": role,
            "by_layer": stats.compute_most_attended_share(study, [token]).tolist(),
            "attention_share_by_layer": by_layer.tolist(),
        },
    )


def measure_separators(study: Study) -> Measurement:
    """Measure the share of texts in which `.` or `,` is the most attended token, in the last layers."""
    layers = stats.get_last_layers(study)
    marks = [str(name) for name in study.data["token"].values if token_text.strip_marks(str(name)) in (".", ",")]
    values, errors = study.jackknife(
        lambda s: [
            stats.compute_most_attended_share(s, marks)[layers].mean(),
            received := stats.compute_separator_share(s.data["attention_received_share"])[layers].mean(),
            received / _get_even_share(s, stats.SEPARATORS),
            _get_separator_share_of_words(s)[layers].mean(),
        ]
    )
    even = _get_even_share(study, stats.SEPARATORS)
    top = stats.find_top_tokens(study)[layers[-1]]
    leader = next(iter(top), "")
    words = (
        f" Among words and punctuation alone, a separator is the most attended in {_format_percent(values[3], errors[3])}"
        f" of texts, where chance gives {_format_share(_get_separator_chance(study))}."
        if np.isfinite(values[3])
        else ""
    )
    others = f" In layer {layers[-1]} {leader} is the most attended token in {_format_share(top[leader])} of texts."
    return Measurement(
        f"“.” or “,” is the most attended token in {_format_percent(values[0], errors[0])} of texts, in "
        f"{_format_layers(layers)}; sentence ends and commas receive {_format_percent(values[1], errors[1])} of "
        f"the attention, spread evenly {_format_share(even)}.{others if leader and leader not in marks else ''}{words}",
        values[0],
        errors[0],
        even,
        [
            Condition("more than half of the texts", values[0], errors[0], 0.5),
            Condition("at least twice their attention if spread evenly", values[2], errors[2], TWICE),
        ],
        "%",
        {
            "by_layer": stats.compute_most_attended_share(study, marks).tolist(),
            "among_words_by_layer": _get_separator_share_of_words(study).tolist(),
            "attention_share_by_layer": stats.compute_separator_share(study.data["attention_received_share"]).tolist(),
            "attention_share_spread_evenly": even,
            "most_attended_by_layer": stats.find_top_tokens(study),
        },
    )


def measure_diagonal(study: Study) -> Measurement:
    """Measure the attention within ±1 token, in the first, middle and last layers."""
    _require_own_keys(study)
    groups = _get_layer_groups(study)

    def compute(s: Study) -> list[float]:
        by_layer = stats.compute_diagonal_share(s)
        first, middle, last = (float(by_layer[group].mean()) for group in groups)
        return [first, middle, last, middle - first, middle - last, middle / stats.compute_even_diagonal_share(s)]

    values, errors = study.jackknife(compute)
    even = stats.compute_even_diagonal_share(study)
    return Measurement(
        f"Attention within ±1 token: {_format_groups(values, errors, _format_percent)}; spread evenly "
        f"{_format_share(even)}.",
        values[1],
        errors[1],
        even,
        [
            Condition("more than in the first layers", values[3], errors[3]),
            Condition("more than in the last layers", values[4], errors[4]),
            Condition("at least twice that of even attention", values[5], errors[5], TWICE),
        ],
        "%",
        {"by_layer": stats.compute_diagonal_share(study).tolist()},
    )


def measure_shared_columns(study: Study) -> Measurement:
    """Measure the correlation between a layer's heads of the attention that positions receive."""
    _require_sample(study, "column_texts")
    last = stats.get_last_layers(study)
    others = [layer for layer in range(len(study.layers)) if layer not in last]
    if len(study.head_numbers) < 2 or not others:
        raise CannotMeasure("it takes two heads in a layer, and two layers")

    def compute(s: Study) -> list[float]:
        by_layer = stats.get_values(s, "column_correlation_sum") / stats.get_values(s, "column_texts")
        return [by_layer[last].mean(), by_layer[others].mean(), by_layer[last].mean() - by_layer[others].mean()]

    values, errors = study.jackknife(compute)
    return Measurement(
        f"What positions receive correlates between the heads of a layer by {_format_number(values[0], errors[0])} in "
        f"{_format_layers(last)}, and by {_format_number(values[1], errors[1])} in the other layers.",
        values[0],
        errors[0],
        values[1],
        [
            Condition(f"correlation at least {SHARED_COLUMNS}", values[0], errors[0], SHARED_COLUMNS),
            Condition("larger than in the other layers", values[2], errors[2]),
        ],
        "(r)",
        {"by_layer": (study.data["column_correlation_sum"] / study.data["column_texts"]).values.tolist()},
    )


def measure_lines_and_diagonal(study: Study) -> Measurement:
    """Measure what lines and diagonal have of the last layer's attention, against even attention."""
    _require_own_keys(study)
    _require_sample(study)

    def compute(s: Study) -> list[float]:
        line, line_even, diagonal, diagonal_even = (
            stats.get_values(s, f"{name}_sum")[-1] / stats.get_values(s, "sample_texts")
            for name in ("line_attention", "line_even", "diagonal_attention", "diagonal_even")
        )
        ratios = [float(stats.divide(line, line_even)), float(stats.divide(diagonal, diagonal_even))]
        return [line, diagonal, line + diagonal, *ratios, line_even + diagonal_even]

    values, errors = study.jackknife(compute)
    if np.isnan(values[4]):  # every column is a line
        values[4], errors[4] = 1.0, 0.0
    return Measurement(
        f"In layer {study.layers[-1]}, line columns have {_format_percent(values[0], errors[0])} of a text's attention, "
        f"{values[3]:.1f} times what even attention would have there, and the diagonal outside of them has "
        f"{_format_percent(values[1], errors[1])}, {values[4]:.1f} times. Without both, "
        f"{_format_share(1 - values[2])} remains.",
        values[2],
        errors[2],
        values[5],
        [
            Condition("lines have at least twice their share of elements", values[3], errors[3], TWICE),
            Condition("the diagonal has at least twice its share of elements", values[4], errors[4], TWICE),
        ],
        "%",
        {
            name: (study.data[f"{name}_sum"] / study.data["sample_texts"]).values.tolist()
            for name in ("line_attention", "line_even", "diagonal_attention", "diagonal_even")
        },
    )


# -- high pairs --------------------------------------------------------------------------------------------------------


def measure_value_gap(study: Study) -> Measurement:
    """Measure the shares of normalized similarities below 0.1 and between 0.1 and 0.6."""
    histogram = study.data["value_histogram"]
    if int(histogram.sum()) == 0:
        raise CannotMeasure(NO_SAMPLE)

    def compute(s: Study) -> list[float]:
        below, between = stats.compute_value_shares(s.data["value_histogram"].sum(("layer", "head")))
        return [below, between, below - stats.compute_scattered_share(s)]

    values, errors = study.jackknife(compute)
    null = stats.compute_scattered_share(study)
    return Measurement(
        f"{_format_percent(values[0], errors[0])} of the similarities are below 0.1 of the largest, "
        f"{_format_percent(values[1], errors[1])} between 0.1 and 0.6, over all heads. Of unrelated outputs, which "
        f"scatter around 0, {_format_share(null)} would be below 0.1.",
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
        raise CannotMeasure("too few heads have high pairs within sentences")
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
    return Measurement(
        f"Repeat rates go from {lowest} to {highest}, where chance gives {_format_share(study.chance('repeat_rate'))}; "
        f"they spread over heads by {_format_percent(values[1], errors[1])}, their typical standard error is "
        f"{_format_share(typical)}. Corrected for their errors, they correlate with the rates within one sentence by "
        f"{_format_number(values[0], errors[0])}; the two differ by {_format_share(difference)} on average.",
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
        raise CannotMeasure("fewer than two heads of the last layer have high pairs")
    repeat_head = int(np.nanargmax(repeat))
    others = np.isfinite(distances) & (np.arange(len(distances)) != repeat_head)

    def compute(s: Study) -> list[float]:
        farthest = np.nanmax(s.rate("mean_distance").values[-1][others])
        chance = float(s.chance("mean_distance"))
        return [farthest, chance, farthest / chance]

    values, errors = study.jackknife(compute)
    is_far, far = distances >= limit, distances >= values[1]
    names = ", ".join(f"L{layer}H{study.head_numbers[head]} ({distances[head]:.1f})" for head in np.flatnonzero(is_far))
    return Measurement(
        f"Without L{layer}H{study.head_numbers[repeat_head]}, whose repeat rate is the layer's highest (mean distance "
        f"{distances[repeat_head]:.1f}), the largest mean distance in layer {layer} is "
        f"{_format_number(values[0], errors[0])} tokens; all pairs have {values[1]:.1f}. At or above {limit:.0f}: "
        f"{names or 'none'}.",
        values[0],
        errors[0],
        values[1],
        [Condition("shorter than all pairs", values[2], errors[2], 1.0, at_most=True)],
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
        raise CannotMeasure("no head of the last layer has high pairs")
    chance = float(study.chance("same_sentence_rate"))
    limit = THIRD if int(study.data.attrs["length"]) == PAPER_LENGTH else THIRD_OF_CHANCE * chance

    def compute(s: Study) -> list[float]:
        own = s.rate("same_sentence_rate").values[-1][counted]
        return [own.min(), (own - stats.compute_matched_chance(s)[-1][counted]).min()]

    values, errors = study.jackknife(compute)
    least = int(np.nanargmin(rates - matched))
    lowest = int(np.nanargmin(rates))
    return Measurement(
        f"In layer {study.layers[-1]}, {int((rates[counted] > limit).sum())} of {counted.sum()} heads exceed "
        f"{_format_share(limit)}, and {int((rates > matched)[counted].sum())} exceed what pairs at their own distances "
        f"give by chance. The lowest rate is {_format_percent(values[0], errors[0])} (H{study.head_numbers[lowest]}); the "
        f"smallest excess is {_format_percent(values[1], errors[1])} (H{study.head_numbers[least]}). All pairs alike would give "
        f"{_format_share(chance)}.",
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
        raise CannotMeasure("no text with high pairs is in the sample that random pairs are drawn for")

    def compute(s: Study) -> list[float]:
        shares, random = s.rate("dominant_share").values, s.chance("dominant_share").values
        return [np.nanmedian(shares), np.nanmedian(random), np.nanmedian(shares / random)]

    values, errors = study.jackknife(compute)
    shares = study.rate("dominant_share").values
    return Measurement(
        f"In {int((shares > 0.5).sum())} of {int(np.isfinite(shares).sum())} heads, more than half of the pairs include "
        f"the dominant token; in the median head {_format_percent(values[0], errors[0])}. Of as many pairs drawn at random "
        f"{_format_percent(values[1], errors[1])} would: {values[2]:.2f} times less.",
        values[0],
        errors[0],
        values[1],
        [
            Condition("more than half in the median head", values[0], errors[0], 0.5),
            Condition("more than of as many random pairs", values[2], errors[2], 1.0),
        ],
        "%",
        {
            "by_layer": [_average(row) for row in shares],
            "random_by_layer": [_average(row) for row in study.chance("dominant_share").values],
            "last_layer_by_head": shares[-1].tolist(),
        },
    )


def measure_different_tokens(study: Study) -> Measurement:
    """Measure the mean number of different dominant tokens over the last layer's heads."""
    heads = len(study.head_numbers)
    if heads < 2:
        raise CannotMeasure("the model has one head per layer")
    _require_sample(study, "shuffled_distinct_dominants")

    def compute(s: Study) -> list[float]:
        actual = stats.average_distinct(s)[-1]
        random = stats.average_distinct(s, "shuffled_distinct_dominants")[-1]
        with np.errstate(invalid="ignore"):
            ratio = np.nanmedian(s.rate("dominant_share").values[-1] / s.chance("dominant_share").values[-1])
        return [actual, random, actual - random, ratio]

    values, errors = study.jackknife(compute)
    by_layer = stats.average_distinct(study)
    return Measurement(
        f"The {heads} heads of layer {study.layers[-1]} choose {_format_number(values[0], errors[0])} different dominant "
        f"tokens on average, with as many random pairs {_format_number(values[1], errors[1])}; a layer's mean is "
        f"{_average(by_layer):.2f}. The dominant tokens are in {values[3]:.2f} times as many pairs as random ones.",
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
        raise CannotMeasure("two halves of the corpus with pairs in at least three heads are needed")
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
        f"The strongest region of C between attention lines lies on the diagonal in {_format_percent(values[0], errors[0])}"
        f" of texts, averaged over the heads of {_format_layers(layers)}. If every region were as likely, it would in "
        f"{_format_share(values[1])}; with the text's places shuffled it does in "
        f"{_format_percent(values[2], errors[2])}.",
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
                _average(row)
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
        f"In {_format_layers(layers)} the similarity of two tokens between the same lines is "
        f"{_format_number(values[0], errors[0], 3)} of the mean square output, of two tokens as far apart with a line "
        f"between them {_format_number(values[1], errors[1], 3)}: a difference of "
        f"{_format_number(values[2], errors[2], 3)}. Line tokens are left out.",
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
                _average(row)
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
    groups = _get_layer_groups(study)

    def compute(s: Study) -> list[float]:
        by_layer = np.array([_average(row) for row in s.rate("mean_distance").values])
        first, middle, last = (float(np.nanmean(by_layer[group])) for group in groups)
        chance = float(s.chance("mean_distance"))
        return [first, middle, last, first - last, last - middle, middle / chance, chance]

    values, errors = study.jackknife(compute)
    return Measurement(
        f"Mean distance in tokens, averaged over heads: {_format_groups(values, errors, _format_number)}; all pairs have "
        f"{values[6]:.1f}.",
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
        {"by_layer": [_average(row) for row in study.rate("mean_distance").values]},
    )


def measure_growing_sentence_preference(study: Study) -> Measurement:
    """Measure how much more the last layers prefer pairs of one sentence than the first, beyond their distances."""
    first, last = stats.get_first_layers(study), stats.get_last_layers(study)
    if first == last:
        raise CannotMeasure("the model has one layer")

    def compute(s: Study) -> list[float]:
        rates, matched = s.rate("same_sentence_rate").values, stats.compute_matched_chance(s)
        excess = np.array([_average(row) for row in rates - matched])
        ratio = np.array([_average(row) for row in stats.divide(rates, matched)])
        at_end, at_start = float(np.nanmean(excess[last])), float(np.nanmean(excess[first]))
        return [at_start, at_end, at_end - at_start, float(np.nanmean(ratio[last]))]

    values, errors = study.jackknife(compute)
    return Measurement(
        f"Beyond what their distances explain, pairs lie within one sentence by {_format_percent(values[0], errors[0])} "
        f"more in the first layers and by {_format_percent(values[1], errors[1])} in the last, where they are "
        f"{values[3]:.2f} times as many as by chance.",
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
                _average(row) for row in study.rate("same_sentence_rate").values - stats.compute_matched_chance(study)
            ]
        },
    )


def measure_random_early_distances(study: Study) -> Measurement:
    """Measure how far the distances of the first layers' pairs are from those of all pairs, beside the other layers'."""
    first = stats.get_first_layers(study)
    others = [layer for layer in range(len(study.layers)) if layer not in first]
    if not others:
        raise CannotMeasure("the model has one layer")

    def compute(s: Study) -> list[float]:
        by_layer = stats.compute_distance_deviation(s)
        early, late = float(np.nanmean(by_layer[first])), float(np.nanmean(by_layer[others]))
        return [early, late, late - early]

    values, errors = study.jackknife(compute)
    return Measurement(
        f"{_format_percent(values[0], errors[0])} of the pairs in {_format_layers(first)} would have to be at another "
        f"distance to be spread as all pairs are; in the other layers {_format_percent(values[1], errors[1])}.",
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


CLAIMS = (
    Claim(
        1,
        "Each head's attention, summed over texts, is centred on the diagonal or one beside it",
        "summed maps are centred on the diagonal, or one token beside it (Fig. 2)",
        "all heads",
        "mean attention per element strongest at −1, 0 or +1, and at least twice even attention there, in at least "
        f"{MOST_HEADS:.0%} of all heads",
        measure_local_attention,
    ),
    Claim(
        2,
        "In the first layers the most attended token is the first special token",
        "summing the attention, the most common token is [CLS] (Fig. 4)",
        "",
        "in more than half of the texts, and with at least twice the attention it would get if spread evenly",
        measure_first_token,
    ),
    Claim(
        3,
        "In the last layers the most attended tokens are sentence separators",
        "attention is focused on “.” and “,” (Fig. 4)",
        "",
        "“.” or “,” in more than half of the texts, and with at least twice the attention they would get if spread evenly",
        measure_separators,
        of_words=True,
    ),
    Claim(
        4,
        "The middle layers' attention is centred on the diagonal",
        "in the middle layers attention is more centralized along the diagonal (Fig. 4, layer 6)",
        "",
        "more attention within ±1 token in the middle layers than in the first and than in the last, and at least twice "
        "that of even attention",
        measure_diagonal,
    ),
    Claim(
        5,
        "Most normalized similarities are below 0.1, few lie between 0.1 and 0.6",
        "the vast majority is below 0.1, with a large gap between 0.1 and 0.6 (not shown)",
        "“the vast majority”",
        f"at least {MANY_VALUES:.0%} below 0.1 and more than of unrelated outputs, at most {FEW_VALUES:.0%} between 0.1 "
        "and 0.6",
        measure_value_gap,
        of_sample=True,
    ),
    Claim(
        6,
        "Heads differ in how often they relate equal tokens, and within one sentence they differ alike",
        "some heads recognize repeated tokens, others different ones; one sentence or all matters little (Fig. 6)",
        "",
        "repeat rates spread over heads by at least the chance rate and three standard errors, and correlate with those "
        f"within one sentence by at least {STRONG_CORRELATION}",
        measure_repeat_rates,
        of_words=True,
    ),
    Claim(
        7,
        "In the last layer every head's pairs are near each other, except at most one repeat-token head's",
        "all heads of layer 11 have a mean distance below 50 except head 8, which recognizes identical tokens (Fig. 7)",
        "below 50 tokens",
        "every mean distance is shorter than that of all pairs, except at most that of the head with the highest repeat "
        "rate",
        measure_short_distances,
        of_words=True,
    ),
    Claim(
        8,
        "In the last layer every head prefers pairs of one sentence",
        "a strong preference for the same sentence, exceeding 33 % (Fig. 8)",
        "above 33 %",
        "every same-sentence rate is above chance among pairs at the head's own distances, and above 33 % (in proportion to "
        "chance for windows other than 128 tokens)",
        measure_same_sentence_rate,
        of_words=True,
    ),
    Claim(
        9,
        "A head's pairs centre on one token",
        "the vast majority of high elements include a single most common token (Fig. 11a)",
        "“the vast majority”",
        "in the median head more than half of the pairs include the dominant token, and more than of as many random pairs",
        measure_dominant_token,
        of_sample=True,
    ),
    Claim(
        10,
        "Heads of one layer choose different tokens",
        "each head tends to a distinct token for each text (Fig. 11b)",
        "",
        "in the last layer more different dominant tokens than half the number of heads and than with as many random pairs; "
        "and these are in at least twice as many pairs as of random ones",
        measure_different_tokens,
        of_sample=True,
    ),
    Claim(
        11,
        "Distances are long in the first layers, shortest in the middle, slightly longer at the end",
        "early layers are spread out, middle layers extremely short-range, the last slightly longer (Fig. 13)",
        "",
        "mean distance of the first layers above that of the last, and that above that of the middle, which is at least "
        f"{CLEARLY:.0%} below that of all pairs",
        measure_distances_over_layers,
    ),
    Claim(
        12,
        "Head behaviour does not depend on the text",
        "the behavior of the heads was independent of the text presented",
        "",
        f"over heads, every rate correlates at least {STRONG_CORRELATION} between two random halves of the corpus, "
        "corrected to the whole",
        measure_independence_of_text,
    ),
    Claim(
        13,
        "The heads of the last layers attend to the same columns",
        "nearly all heads of the last layers have similar attention maps, in columns (Fig. 4, 5)",
        "“nearly all heads”",
        f"the attention that positions receive correlates by at least {SHARED_COLUMNS} between heads of the last layers, and "
        "more than in other layers",
        measure_shared_columns,
        of_sample=True,
    ),
    Claim(
        14,
        "The strongest similarities between attention lines lie on the diagonal of blocks",
        "each head has an area of high similarity in one of the squares, most commonly along the diagonal (Fig. 5)",
        "“most commonly”",
        "in more than half of the texts, and more often than by chance and than with the text's places shuffled",
        measure_strongest_region,
        of_sample=True,
    ),
    Claim(
        15,
        "Attention lines delineate similarity",
        "tokens with high attention delineate areas of common similarity (Fig. 5)",
        "",
        f"C between lines is at least {CLEARLY:.0%} larger than across a line at the same distance",
        measure_delineation,
        of_sample=True,
    ),
    Claim(
        16,
        "Lines and the diagonal hold the attention of the last layer",
        "summed maps lose their structure without the most influential columns and the diagonal (Fig. 3)",
        "",
        "lines, and the diagonal outside of them, each have at least twice their share of elements",
        measure_lines_and_diagonal,
        of_sample=True,
    ),
    Claim(
        17,
        "The preference for one sentence grows over the layers",
        "similarity ends bound within sentences (Fig. 12, abstract)",
        "",
        "beyond chance at equal distances, more pairs of one sentence in the last layers than in the first, and in the last "
        f"at least {CLEARLY:.0%} above that chance",
        measure_growing_sentence_preference,
        of_words=True,
    ),
    Claim(
        18,
        "In the first layers, distances are almost random",
        "early layers relate tokens almost regardless of their range (Fig. 13)",
        "“almost random”",
        f"at most {ALMOST_RANDOM:.0%} of the first layers' pairs are at other distances than all pairs are, in the other "
        f"layers at least {CLEARLY:.0%} more",
        measure_random_early_distances,
    ),
)


# -- helpers -----------------------------------------------------------------------------------------------------------


def _require_own_keys(study: Study) -> None:
    if str(study.data.attrs.get("stack", "")) == "cross":
        raise CannotMeasure("attention goes to the tokens of another text, which have no place on a diagonal")


def _require_sample(study: Study, name: str = "sample_texts") -> None:
    if not stats.get_values(study, name).sum():
        raise CannotMeasure(NO_SAMPLE)


def _require_lines(study: Study, name: str, layers: list[int]) -> None:
    _require_sample(study)
    if not stats.get_values(study, name)[layers].all():
        raise CannotMeasure("attention has no lines that cut the texts of the sample into blocks, in some last layer")


def _get_first_token_share(study: Study) -> Floats:
    """Return for each layer the share of attention that the first token receives, whatever it is: (layer,)."""
    shares: Floats = study.data["attention_received_share"].sel(receiver="first token").values
    return shares


def _get_even_share(study: Study, receivers: Sequence[str]) -> float:
    """Return the share of attention that these receivers would get if it were spread evenly."""
    spread = study.data["attention_spread"]
    share = float(spread.sel(receiver=list(receivers)).sum() / spread.sum())
    return share or math.nan


def _get_separator_share_of_words(study: Study) -> Floats:
    """Return the share of texts whose most attended token that is not special is a separator: (layer,)."""
    if "separator_texts" not in study.data:
        return np.full(len(study.layers), np.nan)
    return stats.divide(study.data["separator_texts"].values, study.data["word_texts"].values)


def _get_separator_chance(study: Study) -> float:
    return float(study.data["separator_share"] / study.data["word_texts"])


def _average_error_covariance(study: Study, names: Sequence[str], counted: Any) -> Floats:
    """Return the covariance of the jackknife errors of two rates, averaged over heads: (2, 2)."""

    def compute(s: Study) -> Floats:
        first, second = (s.rate(name).values.ravel()[counted] for name in names)
        return np.stack([first, second, first + second])

    variances = np.nan_to_num(study.jackknife(compute)[1] ** 2).mean(axis=1)
    covariance = (variances[2] - variances[0] - variances[1]) / 2
    return np.array([[variances[0], covariance], [covariance, variances[1]]])


def _get_layer_groups(study: Study) -> tuple[list[int], list[int], list[int]]:
    middle = stats.get_middle_layers(study)
    if not middle:
        raise CannotMeasure(NO_MIDDLE)
    return stats.get_first_layers(study), middle, stats.get_last_layers(study)


def _average(values: Any) -> float:
    """Return the mean of the numbers that are known; NaN if there are none."""
    finite = np.asarray(values)[np.isfinite(values)]
    return float(finite.mean()) if finite.size else math.nan


def _format_layers(layers: Sequence[int]) -> str:
    return f"layer {layers[0]}" if len(layers) == 1 else f"layers {layers[0]} to {layers[-1]}"


def _format_percent(value: Any, error: Any) -> str:
    return _format_share(value) if np.isnan(error) else f"{value * 100:.1f} ± {error * 100:.1f} %"


def _format_share(value: Any) -> str:
    return f"{float(value) * 100:.1f} %"


def _format_number(value: Any, error: Any, digits: int = 2) -> str:
    return f"{value:.{digits}f}" if np.isnan(error) else f"{value:.{digits}f} ± {error:.{digits}f}"


def _format_groups(values: Floats, errors: Floats, format_value: Callable[[Any, Any], str]) -> str:
    parts = [format_value(value, error) for value, error in zip(values[:3], errors[:3], strict=True)]
    return f"{parts[0]} in the first layers, {parts[1]} in the middle, {parts[2]} in the last"


def _format_extreme(study: Study, rates: Floats, argextreme: Callable[[Floats], Any]) -> str:
    layer, head = np.unravel_index(int(argextreme(rates)), rates.shape)
    return f"{_format_share(rates[layer, head])} (L{study.layers[layer]}H{study.head_numbers[head]})"
