"""Head characters: what each head's rates say against chance, in one declared word.

A character is given for an effect that is both large and certain. Large: the odds of a rate are at least so many times
the odds that chance gives (for mean distances: the mean itself). Certain: the rate exceeds chance by more than `Z`
jackknife standard errors of that difference, over at least `MIN_BLOCKS` blocks of texts. The *strength* of an effect
is the logarithm of the odds ratio over the logarithm of its own criterion, so 1 is just enough for every character.
docs/characters.md says where the numbers come from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from headscope.studies import noise
from headscope.studies.labels import ratio
from headscope.studies.result import Study
from headscope.studies.speaking import spoken
from headscope.types import Bools, Floats

Z = 5
"""standard errors; by Student's t over 20 blocks, one rate in 25,000 gets there by chance"""
MIN_BLOCKS = 10
"""below so many blocks with texts, a jackknife error is too uncertain itself for `Z` to mean that"""
NEIGHBOURS = 2
"""tokens apart, at most"""
EXTREME = 0.001
"""shares below it, or above 1 minus it, count as that: no odds are infinite"""
FEW_PAIRS = 2
"""pairs a text; a text's largest similarity alone makes one"""
MANY_PAIRS = 0.1
"""of all pairs of the texts"""
NEAR = "near_share"
RATES = ("repeat_rate", "same_sentence_rate", "mean_distance", "dominant_share", NEAR)


@dataclass(frozen=True)
class Character:
    """What a head can be."""

    name: str
    about: str
    """what it means, in one sentence"""
    criterion: str
    """when a head counts as that, in one sentence with its numbers"""


@dataclass(frozen=True)
class _Preference:
    """A character that one rate decides."""

    name: str
    rate: str
    times: float
    """how many times the odds (of a mean distance: the mean) of chance are enough"""
    about: str
    measured: str
    """what the rate counts, for the criterion"""
    words: str
    """of one head, with its {rate} and {chance}, {apart} and {chance_apart}"""
    apart: float = math.inf
    """how many times the mean distance of chance the head's may be, at most"""

    @property
    def character(self) -> Character:
        odds = "" if self.rate == "mean_distance" else "the odds of "
        criterion = f"at least {self.times:g} times {odds}chance, and more than {Z} standard errors above it"
        if math.isfinite(self.apart):
            criterion += f"; and a mean distance of at most {self.apart:g} times chance"
        return Character(self.name, self.about, f"{self.measured}: {criterion}.")

    def large(self, table: pd.DataFrame, strength: Floats) -> Bools:
        """Whether the effect is as large as the criterion asks."""
        with np.errstate(invalid="ignore"):
            return (strength >= 1) & ~(table["mean_distance"] > self.apart * table["mean_distance_chance"]).to_numpy()

    def strength(self, rate: Floats, chance: Floats) -> Floats:
        """The effect on the common scale; NaN where there is no rate, or where chance leaves no room for one."""
        scale = np.log if self.rate == "mean_distance" else _log_odds
        no_room = (chance <= 0) | ((chance >= 1) & (self.rate != "mean_distance"))
        with np.errstate(invalid="ignore", divide="ignore"):
            effect: Floats = (scale(rate) - scale(chance)) / math.log(self.times)
        return np.where(no_room | np.isnan(rate), np.nan, effect)

    def words_of(self, head: pd.Series) -> str:
        say = _tokens if self.rate == "mean_distance" else _percent
        distances = {"apart": _tokens(head["mean_distance"]), "chance_apart": _tokens(head["mean_distance_chance"])}
        return self.words.format(rate=say(head[self.rate]), chance=say(head[f"{self.rate}_chance"]), **distances)


PREFERENCES = (
    _Preference(
        "repeat-token",
        "repeat_rate",
        6,
        "It relates tokens that occur again to each other; the field calls such heads duplicate-token heads.",
        "Pairs of equal tokens",
        "{rate} of its pairs join equal tokens (chance {chance})",
    ),
    _Preference(
        "local",
        NEAR,
        8,
        "Its pairs are neighbours.",
        f"Pairs at most {NEIGHBOURS} tokens apart",
        f"{{rate}} of its pairs are at most {NEIGHBOURS} tokens apart (chance {{chance}}), "
        "on average {apart} (chance {chance_apart})",
        apart=0.5,
    ),
    _Preference(
        "within-sentence",
        "same_sentence_rate",
        4,
        "It relates the tokens of one sentence to each other.",
        "Pairs within one sentence",
        "{rate} of its pairs lie within one sentence (chance {chance})",
    ),
    _Preference(
        "one-token",
        "dominant_share",
        3,
        "In each text it relates everything to one chosen token.",
        "The share of a text's pairs that include its dominant token, against as many pairs drawn at random",
        "{rate} of a text's pairs include one token (chance {chance})",
    ),
    _Preference(
        "long-range",
        "mean_distance",
        1.2,
        "Its pairs are farther apart than tokens are on average.",
        "The mean distance of its pairs",
        "its pairs are {rate} tokens apart on average (chance {chance})",
    ),
)
DIFFUSE = Character(
    "diffuse",
    "It writes nearly the same for many tokens, without any preference that is measured here.",
    f"At least {MANY_PAIRS:.0%} of all pairs are high, and every rate that can be measured is nearer to chance, above "
    "or below, than its criterion asks.".replace("%", " %"),
)
SILENT = Character(
    "silent",
    "It has no high pairs, or almost none: nothing can be said of them.",
    f"Fewer than {FEW_PAIRS} high pairs a text.",
)
UNDECIDED = Character(
    "undecided",
    "None of its preferences is both large and certain enough for a name, and yet its rates are not all near chance.",
    "None of the others.",
)
CHARACTERS = (*(preference.character for preference in PREFERENCES), DIFFUSE, SILENT, UNDECIDED)
"""every head has one of them; the last is what remains"""
NAMES = tuple(character.name for character in CHARACTERS)


def characters(study: Study) -> pd.DataFrame:
    """One row a head: its character, which others fit too, a description, and the numbers these rest on.

    >>> import headscope
    >>> table = headscope.characters(headscope.study(headscope.load(), headscope.documents(limit=3)))
    >>> len(table), table.columns[:4].tolist()
    (72, ['layer', 'head', 'name', 'character'])
    """
    table, certain = _measured(study)
    strengths = {p: p.strength(table[p.rate].to_numpy(), table[f"{p.rate}_chance"].to_numpy()) for p in PREFERENCES}
    large = {p: p.large(table, strengths[p]) for p in PREFERENCES}
    judged = []
    for k, (_, head) in enumerate(table.iterrows()):
        known = [p for p in PREFERENCES if not math.isnan(strengths[p][k])]
        effects = [_Effect(p, float(strengths[p][k]), bool(large[p][k]), bool(certain[p.rate][k])) for p in known]
        judged.append(_judged(head, sorted(effects, key=lambda effect: -effect.strength)))
    for place, column in enumerate(("character", "also", "description", "strength"), start=3):
        table.insert(place, column, [head[column] for head in judged])
    table["description"] = [spoken(study, words) for words in table["description"]]
    return table.sort_values(["layer", "head"], ignore_index=True)


def counts(table: pd.DataFrame) -> pd.Series:
    """How many heads have each character, in the order of `CHARACTERS`."""
    return table["character"].value_counts().reindex(list(NAMES), fill_value=0).rename("heads").rename_axis("character")


@dataclass(frozen=True)
class _Effect:
    """What one rate of one head says for a character."""

    of: _Preference
    strength: float
    large: bool
    certain: bool


def _judged(head: pd.Series, effects: Sequence[_Effect]) -> dict[str, Any]:
    """From the effects, the strongest first: the character, what else fits, the words for it and its strength."""
    if not head["pairs_per_text"] >= FEW_PAIRS:
        words = f"{head['pairs_per_text']:.1f} high pairs a text" if head["pairs"] else "no high pairs"
        return _named(SILENT.name, words)
    fitting = [effect for effect in effects if effect.large and effect.certain]
    if fitting:
        first, *others = fitting
        return _named(first.of.name, first.of.words_of(head), tuple(e.of.name for e in others), first.strength)
    if head["pair_share"] >= MANY_PAIRS and all(abs(effect.strength) < 1 for effect in effects):
        return _named(DIFFUSE.name, f"{_percent(head['pair_share'])} of all pairs are high, no rate is far from chance")
    if not effects or effects[0].strength <= 0:
        return _named(UNDECIDED.name, "no rate is above chance")
    nearest = effects[0]
    short = "not certain" if nearest.large else "not enough"
    return _named(UNDECIDED.name, f"nearest to {nearest.of.name}, {short}: {nearest.of.words_of(head)}")


def _named(name: str, words: str, also: tuple[str, ...] = (), strength: float = math.nan) -> dict[str, Any]:
    return {"character": name, "also": also, "description": f"{name}: {words}", "strength": strength}


def _measured(study: Study) -> tuple[pd.DataFrame, dict[str, Bools]]:
    """The numbers of every head, and for each rate whether it is above chance beyond doubt."""

    def both(held: Study) -> Floats:
        rates, chances = _rates(held), _chances(held)
        return np.stack([rates, rates - chances])

    (rates, excess), (errors, excess_errors) = study.jackknife(both)
    enough = np.count_nonzero(study.data["texts_blocks"]) >= MIN_BLOCKS
    with np.errstate(invalid="ignore"):
        above = (excess > Z * excess_errors) & enough
    pairs, chances = study.data["pairs"].values, _chances(study)
    numbers: dict[str, Any] = {
        "layer": np.repeat(study.layers, len(study.heads)),
        "head": np.tile(study.heads, len(study.layers)),
        "name": [f"L{layer}H{head}" for layer in study.layers for head in study.heads],
        "pairs": pairs.ravel(),
        "pairs_per_text": _over(pairs, study.texts),
        "pair_share": _over(pairs, int(study.data["all_pairs"])),
    }
    for k, name in enumerate(RATES):
        numbers[name] = rates[k].ravel()
        numbers[f"{name}_error"] = errors[k].ravel()
        numbers[f"{name}_chance"] = chances[k].ravel()
    if noise.measured(study.data):
        numbers["signal_to_noise"] = study.signal_to_noise().values.ravel()
    return pd.DataFrame(numbers), {name: above[k].ravel() for k, name in enumerate(RATES)}


def _rates(study: Study) -> Floats:
    """All rates: rate × layer × head."""
    by_distance = study.data["distance"].variable
    near = ratio(by_distance.isel(distance=slice(NEIGHBOURS)).sum("distance"), by_distance.sum("distance"))
    return np.stack([near.values if name == NEAR else study.rate(name).values for name in RATES])


def _chances(study: Study) -> Floats:
    """What each would be without any preference, likewise."""
    data = study.data
    texts, tokens = data["window_tokens"].values, data["tokens"].values
    apart = np.arange(1, NEIGHBOURS + 1)[:, None]  # a window of n tokens has n − d pairs that are d tokens apart
    near = ratio(xr.Variable((), (texts * (tokens - apart).clip(min=0)).sum()), data["all_pairs"].variable)
    chances = (near if name == NEAR else study.chance(name) for name in RATES)
    return np.stack([np.broadcast_to(chance.values, data["pairs"].shape) for chance in chances])


def _over(pairs: Any, whole: int) -> Floats:
    shares: Floats = pairs.ravel() / whole if whole else np.full(pairs.size, np.nan)
    return shares


def _log_odds(shares: Floats) -> Floats:
    held = np.clip(shares, EXTREME, 1 - EXTREME)
    odds: Floats = np.log(held / (1 - held))
    return odds


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %" if share >= 0.0995 else f"{share * 100:.1f} %"


def _tokens(distance: float) -> str:
    return f"{distance:.0f}" if distance >= 9.95 else f"{distance:.1f}"
