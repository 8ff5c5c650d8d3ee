"""Measure the claims that are about attention: 1 to 4, 13 and 16 of METHOD §6."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from headscope.array_types import Floats
from headscope.model import token_text
from headscope.studies import claim_statistics as stats
from headscope.studies.claim_statistics import (
    MOST_HEADS,
    SHARED_COLUMNS,
    TWICE,
    CannotMeasure,
    Condition,
    Measurement,
    format_groups,
    format_layers,
    format_number,
    format_percent,
    format_share,
    get_layer_groups,
    require_own_keys,
    require_sample,
)
from headscope.studies.result import Study


def measure_local_attention(study: Study) -> Measurement:
    """Measure the share of heads whose attention per element is strongest at −1, 0 or +1, and twice that of even
    attention."""
    require_own_keys(study)
    present = study.present.values
    share, error = study.jackknife(lambda s: stats.is_strongest_local(s)[present].mean())
    local = stats.is_strongest_local(study)
    return Measurement(
        f"In {int(local.sum())} of {int(present.sum())} heads ({format_percent(share, error)}) the mean attention of "
        "an element is largest on the diagonal or beside it, and there at least twice that of attention spread evenly.",
        share,
        error,
        0.0,
        [Condition(f"share of heads at least {MOST_HEADS:.0%}", float(share), float(error), MOST_HEADS, or_equal=True)],
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
    even = format_share(spread.sel(receiver="first token") / spread.sum())
    received_words = f"receives {format_percent(values[1], errors[1])} of the attention, spread evenly {even}"
    if not token:
        most = int(np.argmax(by_layer))
        raise CannotMeasure(
            "this model's tokenizer puts no special token first. What stands first in a text, whatever it is, "
            f"{received_words}, in {format_layers(layers)}; most in layer {most}: {format_share(by_layer[most])}"
        )
    description = f"{token}, {role}," if role else token
    counts, tokens = study.data["window_tokens"].values, study.data["tokens"].values
    return Measurement(
        f"{description} is the most attended token in {format_percent(values[0], errors[0])} of texts, "
        f"in {format_layers(layers)}, where it {received_words}.",
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
        " Among words and punctuation alone, a separator is the most attended in "
        f"{format_percent(values[3], errors[3])} of texts, where chance gives "
        f"{format_share(_get_separator_chance(study))}."
        if np.isfinite(values[3])
        else ""
    )
    others = f" In layer {layers[-1]} {leader} is the most attended token in {format_share(top[leader])} of texts."
    return Measurement(
        f"“.” or “,” is the most attended token in {format_percent(values[0], errors[0])} of texts, in "
        f"{format_layers(layers)}; sentence ends and commas receive {format_percent(values[1], errors[1])} of "
        f"the attention, spread evenly {format_share(even)}.{others if leader and leader not in marks else ''}{words}",
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
    require_own_keys(study)
    groups = get_layer_groups(study)

    def compute(s: Study) -> list[float]:
        by_layer = stats.compute_diagonal_share(s)
        first, middle, last = (float(by_layer[group].mean()) for group in groups)
        return [first, middle, last, middle - first, middle - last, middle / stats.compute_even_diagonal_share(s)]

    values, errors = study.jackknife(compute)
    even = stats.compute_even_diagonal_share(study)
    return Measurement(
        f"Attention within ±1 token: {format_groups(values, errors, format_percent)}; spread evenly "
        f"{format_share(even)}.",
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
    require_sample(study, "column_texts")
    last = stats.get_last_layers(study)
    others = [layer for layer in range(len(study.layers)) if layer not in last]
    if len(study.head_numbers) < 2 or not others:
        raise CannotMeasure("it takes two heads in a layer, and two layers")

    def compute(s: Study) -> list[float]:
        by_layer = stats.get_values(s, "column_correlation_sum") / stats.get_values(s, "column_texts")
        at_end, before = float(by_layer[last].mean()), float(by_layer[others].mean())
        return [at_end, before, at_end - before]

    values, errors = study.jackknife(compute)
    return Measurement(
        f"What positions receive correlates between the heads of a layer by {format_number(values[0], errors[0])} in "
        f"{format_layers(last)}, and by {format_number(values[1], errors[1])} in the other layers.",
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
    require_own_keys(study)
    require_sample(study)

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
        f"In layer {study.layers[-1]}, line columns have {format_percent(values[0], errors[0])} of a text's "
        f"attention, {values[3]:.1f} times what even attention would have there, and the diagonal outside of them has "
        f"{format_percent(values[1], errors[1])}, {values[4]:.1f} times. Without both, "
        f"{format_share(1 - values[2])} remains.",
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
