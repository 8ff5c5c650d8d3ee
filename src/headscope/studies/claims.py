"""The twelve claims of METHOD §6: what the paper reports, how a study measures it, and whether the claim holds.

The first, middle and last layers that the paper mentions are the first quarter of the layers, those in the middle
third, and the last quarter. The criteria are ours; they were set before any model was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xarray as xr

from headscope.array_types import Floats
from headscope.model import token_text
from headscope.studies import claim_statistics as stats
from headscope.studies.result import Study

MOST_HEADS = 0.9
FEW_VALUES = 0.2
STRONG_CORRELATION = 0.9
FAR = 50 / 128
"""The paper's distance of 50 tokens, as a share of its window of 128."""
NO_MIDDLE = "the model has too few layers to speak of first, middle and last ones"


class CannotMeasure(Exception):
    """A claim cannot be measured in this study; the message says why."""


@dataclass(frozen=True)
class Measured:
    """Result of measuring a claim: the number that decides the verdict, its standard error, and a description."""

    words: str
    holds: Any
    """truth value: `bool`, or a numpy scalar"""
    value: Any
    error: Any
    unit: str = ""
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, and how it is measured."""

    number: int
    claim: str
    paper: str
    criterion: str
    measure: Callable[[Study], Measured]
    of_words: bool = False
    """it is about words or sentences, which images do not have"""


def measure_local_attention(study: Study) -> Measured:
    """Measure the share of heads whose attention, summed by offset, is strongest at −1, 0 or +1."""
    present = study.present.values
    share, error = study.jackknife(lambda s: stats.is_strongest_local(s.data["attention_offset"])[present].mean())
    local = stats.is_strongest_local(study.data["attention_offset"]) & present
    by_element = stats.is_strongest_local(stats.compute_attention_per_element(study))
    return Measured(
        f"{int(local.sum())} of {int(present.sum())} heads ({_format_percent(share, error)}). Attention spread evenly "
        "would also peak at 0; divided by how often each offset occurs, the strongest is local in "
        f"{int(by_element.sum())} heads",
        share >= MOST_HEADS,
        share,
        error,
        "%",
        {"by_layer": local.mean(axis=1).tolist(), "by_layer_per_element": by_element.mean(axis=1).tolist()},
    )


def measure_first_token(study: Study) -> Measured:
    """Measure the share of texts in which the first special token is the most attended, in the first layers."""
    token, role = str(study.data.attrs["first_special_token"]), str(study.data.attrs.get("first_token_role", ""))
    layers = stats.get_first_layers(study)
    by_layer = _get_first_token_share(study)
    received, received_error = study.jackknife(lambda s: _get_first_token_share(s)[layers].mean())
    spread = study.data["attention_spread"]
    even = _format_share(spread.sel(receiver="first token") / spread.sum())
    received_words = f"receives {_format_percent(received, received_error)} of the attention, spread evenly {even}"
    if not token:
        most = int(np.argmax(by_layer))
        raise CannotMeasure(
            "this model's tokenizer puts no special token first. What stands first in a text, whatever it is, "
            f"{received_words}, in {_format_layers(layers)}; most in layer {most}: {_format_share(by_layer[most])}"
        )
    share, error = study.jackknife(lambda s: stats.compute_most_attended_share(s, [token])[layers].mean())
    description = f"{token}, {role}," if role else token
    return Measured(
        f"{description} is the most attended token in {_format_percent(share, error)} of texts, "
        f"in {_format_layers(layers)}, where it {received_words}",
        share > 0.5,
        share,
        error,
        "%",
        {
            "token": token,
            "role": role,
            "by_layer": stats.compute_most_attended_share(study, [token]).tolist(),
            "attention_share_by_layer": by_layer.tolist(),
        },
    )


def measure_separators(study: Study) -> Measured:
    """Measure the share of texts in which `.` or `,` is the most attended token, in the last layers."""
    layers = stats.get_last_layers(study)
    marks = [str(name) for name in study.data["token"].values if token_text.strip_marks(str(name)) in (".", ",")]
    share, error = study.jackknife(lambda s: stats.compute_most_attended_share(s, marks)[layers].mean())
    received, received_error = study.jackknife(
        lambda s: stats.compute_separator_share(s.data["attention_received_share"])[layers].mean()
    )
    spread = study.data["attention_spread"]
    even = float(stats.compute_separator_share(spread / spread.sum()))
    return Measured(
        f"“.” or “,” is the most attended token in {_format_percent(share, error)} of texts, in "
        f"{_format_layers(layers)}; sentence ends and commas receive {_format_percent(received, received_error)} of "
        f"the attention, spread evenly {_format_share(even)}",
        share > 0.5,
        share,
        error,
        "%",
        {
            "by_layer": stats.compute_most_attended_share(study, marks).tolist(),
            "attention_share_by_layer": stats.compute_separator_share(study.data["attention_received_share"]).tolist(),
            "attention_share_spread_evenly": even,
            "most_attended_by_layer": stats.find_top_tokens(study),
        },
    )


def measure_diagonal(study: Study) -> Measured:
    """Measure the attention within ±1 token, in the first, middle and last layers."""
    values, errors = study.jackknife(
        lambda s: [stats.compute_diagonal_share(s)[group].mean() for group in _get_layer_groups(s)]
    )
    return Measured(
        f"attention within ±1 token: {_format_groups(values, errors, _format_percent)}",
        values[1] > values[0] and values[1] > values[2],
        values[1],
        errors[1],
        "%",
        {"by_layer": stats.compute_diagonal_share(study).tolist()},
    )


def measure_value_gap(study: Study) -> Measured:
    """Measure the shares of normalized similarities below 0.1 and between 0.1 and 0.6."""
    histogram = study.data["value_histogram"]
    if int(histogram.sum()) == 0:
        raise CannotMeasure("no text is in the sample this is measured on")
    shares, errors = study.jackknife(
        lambda s: stats.compute_value_shares(s.data["value_histogram"].sum(("layer", "head")))
    )
    below, between = shares
    return Measured(
        f"{_format_percent(below, errors[0])} below 0.1, {_format_percent(between, errors[1])} between 0.1 and 0.6, "
        "over all heads",
        below > 0.5 and between < FEW_VALUES,
        below,
        errors[0],
        "%",
        {"below_and_between_by_layer": [stats.compute_value_shares(layer) for layer in histogram.sum("head")]},
    )


def measure_repeat_rates(study: Study) -> Measured:
    """Measure the spread of repeat rates over heads, and their correlation with those within one sentence."""
    inner = "repeat_rate_in_sentence"
    value, error = study.jackknife(lambda s: stats.correlate(s.rate("repeat_rate"), s.rate(inner)))
    if np.isnan(value):
        raise CannotMeasure("too few heads have high pairs within sentences")
    rates, errors = study.rate("repeat_rate"), study.standard_error("repeat_rate")
    if int(errors.count()) == 0:
        raise CannotMeasure("too few texts for a standard error to hold the differences against")
    typical = float(np.sqrt((errors**2).mean()))
    spread = float(rates.std())
    lowest, highest = (_format_extreme(study, rates, pick) for pick in (np.nanargmin, np.nanargmax))
    return Measured(
        f"repeat rates from {lowest} to {highest} (chance {_format_share(study.chance('repeat_rate'))}), spread over "
        f"heads {spread:.3f} against a typical standard error of {typical:.3f}; correlation of 6a with 6b "
        f"{_format_number(value, error)}",
        spread > 3 * typical and value >= STRONG_CORRELATION,
        value,
        error,
        "(r)",
        {
            "spread": spread,
            "typical_error": typical,
            "last_layer_correlation": stats.correlate(rates[-1], study.rate(inner)[-1]),
        },
    )


def measure_short_distances(study: Study) -> Measured:
    """Measure mean distances of the last layer's heads; one far head is allowed if it is the repeat-token head."""
    limit, layer = FAR * int(study.data.attrs["length"]), study.layers[-1]
    distances, repeat = study.rate("mean_distance")[-1], study.rate("repeat_rate")[-1]
    if int(distances.count()) < 2:
        raise CannotMeasure("fewer than two heads of the last layer have high pairs")
    value, error = study.jackknife(lambda s: np.sort(s.rate("mean_distance")[-1].dropna("head").values)[-2:][0])
    far = [int(head) for head in distances["head"].values[distances.values >= limit]]
    repeat_head = int(repeat["head"].values[np.nanargmax(repeat.values)])
    far_names = ", ".join(f"L{layer}H{head} ({float(distances.sel(head=head)):.1f})" for head in far) or "none"
    return Measured(
        f"second largest {_format_number(value, error)} tokens; at or above {limit:.0f}: {far_names}; all pairs alike "
        f"would give {float(study.chance('mean_distance')):.1f}; the layer's highest repeat rate is "
        f"L{layer}H{repeat_head}'s",
        not far or far == [repeat_head],
        value,
        error,
        "tokens",
        {"by_head": distances.values.tolist(), "heads_at_or_above": far, "limit": limit},
    )


def measure_same_sentence_rate(study: Study) -> Measured:
    """Measure the last layer's lowest same-sentence rate."""
    rates = study.rate("same_sentence_rate")[-1].dropna("head")
    if rates.size == 0:
        raise CannotMeasure("no head of the last layer has high pairs")
    value, error = study.jackknife(lambda s: s.rate("same_sentence_rate")[-1].min())
    chance = float(study.chance("same_sentence_rate"))
    above_third, above_chance = int((rates > 0.33).sum()), int((rates > chance).sum())
    return Measured(
        f"lowest {_format_percent(value, error)}; {above_third} of {rates.size} heads exceed 33 %, "
        f"{above_chance} exceed the chance of {_format_share(chance)}",
        above_third == rates.size == above_chance,
        value,
        error,
        "%",
        {"by_head": study.rate("same_sentence_rate")[-1].values.tolist(), "chance": chance},
    )


def measure_dominant_token(study: Study) -> Measured:
    """Measure the dominant token's share of a head's pairs, against that of as many pairs drawn at random."""
    if int(study.data["shuffled_share_texts"].sum()) == 0:
        raise CannotMeasure("no text with high pairs is in the sample that random pairs are drawn for")
    value, error = study.jackknife(lambda s: s.rate("dominant_share").mean())
    random_value, random_error = study.jackknife(lambda s: s.chance("dominant_share").mean())
    return Measured(
        f"{_format_percent(value, error)} of a head's pairs include its dominant token; of as many pairs drawn at "
        f"random {_format_percent(random_value, random_error)}",
        value >= 2 * random_value,
        value,
        error,
        "%",
        {
            "by_layer": study.rate("dominant_share").mean("head").values.tolist(),
            "random_by_layer": study.chance("dominant_share").mean("head").values.tolist(),
            "last_layer_by_head": study.rate("dominant_share")[-1].values.tolist(),
        },
    )


def measure_different_tokens(study: Study) -> Measured:
    """Measure the mean number of different dominant tokens over the last layer's heads."""
    heads = len(study.heads)
    if heads < 2:
        raise CannotMeasure("the model has one head per layer")
    value, error = study.jackknife(lambda s: stats.average_distinct_dominants(s)[-1])
    by_layer = stats.average_distinct_dominants(study)
    return Measured(
        f"{_format_number(value, error)} different dominant tokens of {heads} in the last layer; "
        f"over all layers {by_layer.mean():.2f}",
        value > heads / 2,
        value,
        error,
        f"of {heads}",
        {"by_layer": by_layer.tolist()},
    )


def measure_distances_over_layers(study: Study) -> Measured:
    """Measure the mean distance in the first, middle and last layers."""
    values, errors = study.jackknife(
        lambda s: [s.rate("mean_distance")[group].mean() for group in _get_layer_groups(s)]
    )
    return Measured(
        f"mean distance in tokens, averaged over heads: {_format_groups(values, errors, _format_number)}; all pairs "
        f"alike would give {float(study.chance('mean_distance')):.1f}",
        values[0] > values[2] > values[1],
        values[1],
        errors[1],
        "tokens",
        {"by_layer": study.rate("mean_distance").mean("head").values.tolist()},
    )


def measure_independence_of_text(study: Study) -> Measured:
    """Measure the correlation over heads between random halves of the corpus, of the rate that agrees least."""
    halves = stats.compute_half_correlations(study)
    if not halves:
        raise CannotMeasure("two halves of the corpus with pairs in at least three heads are needed")
    means = {name: float(np.mean(correlations)) for name, correlations in halves.items()}
    spreads = {name: float(np.std(correlations)) for name, correlations in halves.items()}
    worst = min(means, key=lambda name: means[name])
    listed = ", ".join(f"{name.replace('_', ' ')} {mean:.3f}" for name, mean in means.items())
    return Measured(
        f"correlation over heads between halves, mean of {stats.HALVINGS} halvings (± their spread): {listed}",
        means[worst] >= STRONG_CORRELATION,
        means[worst],
        spreads[worst],
        "(r)",
        {name: {"mean": means[name], "spread": spreads[name]} for name in means},
    )


CLAIMS = (
    Claim(
        1,
        "Over many texts each head's mean attention is strongest at offset −1, 0 or +1",
        "summed maps are centred on the diagonal, or one token beside it (Fig. 2)",
        f"at least {MOST_HEADS * 100:.0f} % of all heads",
        measure_local_attention,
    ),
    Claim(
        2,
        "In the first layers the most attended token is the first special token",
        "summing the attention, the most common token is [CLS] (Fig. 4)",
        "in more than half of the texts, averaged over the first quarter of the layers",
        measure_first_token,
    ),
    Claim(
        3,
        "In the last layers the most attended tokens are sentence separators",
        "attention is focused on “.” and “,” (Fig. 4)",
        "“.” or “,” in more than half of the texts, averaged over the last quarter of the layers",
        measure_separators,
        of_words=True,
    ),
    Claim(
        4,
        "The middle layers' attention is centred on the diagonal",
        "in the middle layers attention is more centralized along the diagonal (Fig. 4, layer 6)",
        "more attention within ±1 token in the middle layers than in the first and than in the last",
        measure_diagonal,
    ),
    Claim(
        5,
        "Most normalized similarities are below 0.1, few lie between 0.1 and 0.6",
        "the vast majority is below 0.1, with a large gap between 0.1 and 0.6 (not shown)",
        f"more than half below 0.1, and less than {FEW_VALUES * 100:.0f} % between 0.1 and 0.6",
        measure_value_gap,
    ),
    Claim(
        6,
        "Heads differ in how often they relate equal tokens, and within one sentence they differ alike",
        "some heads recognize repeated tokens, others different ones; one sentence or all matters little (Fig. 6)",
        "rates spread over heads more than three times their standard error, "
        f"and correlation of 6a with 6b at least {STRONG_CORRELATION}",
        measure_repeat_rates,
        of_words=True,
    ),
    Claim(
        7,
        "In the last layer every head's mean distance is below 50, but for at most one, a repeat-token head",
        "all heads of layer 11 are below 50 except head 8, which recognizes identical tokens (Fig. 7)",
        "no mean distance of 50 or more (for windows of 128; in proportion for others), "
        "or only that of the head with the layer's highest repeat rate",
        measure_short_distances,
        of_words=True,
    ),
    Claim(
        8,
        "In the last layer every head's same-sentence rate exceeds 33 %, and chance",
        "a strong preference for the same sentence, exceeding 33 % (Fig. 8)",
        "the lowest rate of the last layer is above 33 % and above chance",
        measure_same_sentence_rate,
        of_words=True,
    ),
    Claim(
        9,
        "A head's pairs centre on one token",
        "the vast majority of high elements include a single most common token (Fig. 11a)",
        "the dominant token's share of pairs is at least twice that of as many pairs drawn at random",
        measure_dominant_token,
    ),
    Claim(
        10,
        "Heads of one layer choose different tokens",
        "each head tends to a distinct token for each text (Fig. 11b)",
        "in the last layer, on average more different dominant tokens than half the number of heads",
        measure_different_tokens,
    ),
    Claim(
        11,
        "Distances are long in the first layers, shortest in the middle, slightly longer at the end",
        "early layers are spread out, middle layers extremely short-range, the last slightly longer (Fig. 13)",
        "mean distance of the first layers above that of the last, and that above that of the middle",
        measure_distances_over_layers,
    ),
    Claim(
        12,
        "Head behaviour does not depend on the text",
        "the behavior of the heads was independent of the text presented",
        f"over heads, every rate correlates at least {STRONG_CORRELATION} between two random halves of the corpus",
        measure_independence_of_text,
    ),
)


def _get_first_token_share(study: Study) -> Floats:
    """Return for each layer the share of attention that the first token receives, whatever it is: (layer,)."""
    shares: Floats = study.data["attention_received_share"].sel(receiver="first token").values
    return shares


def _get_layer_groups(study: Study) -> tuple[list[int], list[int], list[int]]:
    middle = stats.get_middle_layers(study)
    if not middle:
        raise CannotMeasure(NO_MIDDLE)
    return stats.get_first_layers(study), middle, stats.get_last_layers(study)


def _format_layers(layers: Sequence[int]) -> str:
    return f"layer {layers[0]}" if len(layers) == 1 else f"layers {layers[0]} to {layers[-1]}"


def _format_percent(value: Any, error: Any) -> str:
    return _format_share(value) if np.isnan(error) else f"{value * 100:.1f} ± {error * 100:.1f} %"


def _format_share(value: Any) -> str:
    return f"{float(value) * 100:.1f} %"


def _format_number(value: Any, error: Any) -> str:
    return f"{value:.2f}" if np.isnan(error) else f"{value:.2f} ± {error:.2f}"


def _format_groups(values: Floats, errors: Floats, format_value: Callable[[Any, Any], str]) -> str:
    parts = [format_value(value, error) for value, error in zip(values, errors, strict=True)]
    return f"{parts[0]} in the first layers, {parts[1]} in the middle, {parts[2]} in the last"


def _format_extreme(study: Study, rates: xr.DataArray, argextreme: Callable[[Floats], Any]) -> str:
    layer, head = np.unravel_index(int(argextreme(rates.values)), rates.shape)
    return f"{_format_share(rates[layer, head])} (L{study.layers[layer]}H{study.heads[head]})"
