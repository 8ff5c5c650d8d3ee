"""Compute the table of heads, and filter, sort and export it.

It is what `Study.heads` returns, `headscope heads` prints and `heads.csv` holds: one row per head. Its name, such as
L3H7, is in the column `head`. Every table with a row per head has the same columns `head`, `layer` and `head_number`.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from headscope.array_types import Bools, Floats
from headscope.errors import StudyError
from headscope.file_io import format_csv
from headscope.head_selection import Head
from headscope.studies.attention_types import DISTANCE, OTHER_SPECIAL
from headscope.studies.example_arrays import has_dominant_tokens
from headscope.studies.examples import list_dominant_tokens
from headscope.studies.head_types import PARTS, TYPE_COLUMNS, classify_heads, count_heads
from headscope.studies.labels import HEAD_COLUMNS, divide_sums, make_head_columns
from headscope.studies.output_spread import SPREAD
from headscope.studies.rates import ATTENTION_SCORES, HEAD_RATES, NEAR_SHARE, NEIGHBORS, has_attention_scores
from headscope.studies.result import Study
from headscope.studies.sample_size import adapt_wording, describe_errors, describe_missing_texts
from headscope.studies.signal_shares import has_signal_shares
from headscope.studies.type_criteria import Z

SHARES = ("signal_share", "position_share", "snr_db")
WORD_COLUMNS = ("description", *(part.also_column for part in PARTS.values()))
"""columns by which a table cannot be sorted"""
ASCENDING_COLUMNS = ("head", "layer", "head_number", *(part.column for part in PARTS.values()))
"""columns sorted in ascending order; all others are numbers, sorted from the largest"""


def tabulate_heads(study: Study) -> pd.DataFrame:
    """Return the table of heads of a study; `Study.heads` describes its columns."""
    table, is_certain = _measure_heads(study)
    attention, is_certain_of_attention = _measure_attention(study)
    table = table.assign(**attention)
    if has_dominant_tokens(study.data):
        table = table.assign(**list_dominant_tokens(study))
    table = classify_heads(
        table, is_certain | is_certain_of_attention, describe_missing_texts(study).partition(": ")[2]
    )
    table = table.drop(columns=[OTHER_SPECIAL, f"{OTHER_SPECIAL}_chance"])
    table["description"] = [adapt_wording(study, words) for words in table["description"]]
    table = table.assign(**_measure_signal(study), **_list_spread(study))
    if note := describe_errors(study):
        table["error_note"] = note
    if not study.data.attrs.get("verified", 1):
        table["capture"] = "unverified"
    first_columns = [*HEAD_COLUMNS, *TYPE_COLUMNS]
    table = table[[*first_columns, *table.columns.drop(first_columns)]]
    return table[study.present.values.ravel()].reset_index(drop=True)


def _measure_heads(study: Study) -> tuple[pd.DataFrame, dict[str, Bools]]:
    """Return the numbers of every head, and for each rate whether it is above chance with certainty."""

    def compute_rates_and_excess(study_part: Study) -> Floats:
        rates, chances = _stack_rates(study_part), _stack_chances(study_part)
        return np.stack([rates, rates - chances])

    (rates, excess), (errors, excess_errors) = study.jackknife(compute_rates_and_excess)
    with np.errstate(invalid="ignore"):
        is_above_chance = excess > Z * excess_errors
    pairs, chances = study.data["pairs"].values, _stack_chances(study)
    numbers: dict[str, Any] = {
        **make_head_columns(study.layers, study.head_numbers),
        "pairs": pairs.ravel(),
        "pairs_per_text": _divide(pairs, study.texts),
        "pair_share": _divide(pairs, int(study.data["all_pairs"])),
    }
    for k, name in enumerate(HEAD_RATES):
        numbers[name] = rates[k].ravel()
        numbers[f"{name}_error"] = errors[k].ravel()
        numbers[f"{name}_chance"] = chances[k].ravel()
    return pd.DataFrame(numbers), {name: is_above_chance[k].ravel() for k, name in enumerate(HEAD_RATES)}


def _measure_attention(study: Study) -> tuple[dict[str, Floats], dict[str, Bools]]:
    """Return the columns of the attention of every head (head,), and for each score whether it is certain.

    A score is certain if it is above that of even attention by more than `Z` standard errors of the difference, the
    mean distance if it is below.
    """
    names = [*ATTENTION_SCORES, OTHER_SPECIAL]
    shape = len(names), *study.data["pairs"].shape
    if has_attention_scores(study.data):
        (scores, chances, excess), (errors, _, excess_errors) = study.jackknife(_stack_attention)
    else:
        scores, chances, excess, errors, excess_errors = np.full((5, *shape), np.nan)
    excess[names.index(DISTANCE)] *= -1
    columns, is_certain = {}, {}
    for k, name in enumerate(names):
        columns[name], columns[f"{name}_chance"] = scores[k].ravel(), chances[k].ravel()
        if name in ATTENTION_SCORES:
            columns[f"{name}_error"] = errors[k].ravel()
        with np.errstate(invalid="ignore"):
            is_certain[name] = (excess[k] > Z * excess_errors[k]).ravel()
    return columns, is_certain


def _stack_attention(study: Study) -> Floats:
    """Return the scores of attention, what even attention gives, and the difference: (3, score, layer, head)."""
    shape = study.data["pairs"].shape
    values = {name: (study.rate(name).values, study.chance(name).values) for name in ATTENTION_SCORES}
    special, first = values["attends_special"], values["attends_first"]
    has_special_first = bool(str(study.data.attrs.get("first_special_token", "")))
    other_special = tuple(special[k] - first[k] if has_special_first else special[k] for k in range(2))
    both = [*values.values(), other_special]
    scores, chances = (np.stack([np.broadcast_to(value[k], shape) for value in both]) for k in range(2))
    return np.stack([scores, chances, scores - chances])


def _measure_signal(study: Study) -> dict[str, Floats]:
    """Return the columns of the signal of every head (head,) with their standard errors; NaN if it was not measured."""
    columns = [name for share in SHARES for name in (share, f"{share}_error")]
    if not has_signal_shares(study.data):
        return dict.fromkeys(columns, np.full(study.data["pairs"].size, np.nan))
    shares = study.signal_shares()
    return {name: shares[name].values.ravel() for name in columns}


def _list_spread(study: Study) -> dict[str, Floats]:
    """Return the columns of the spread of outputs (head,); NaN in studies of versions that did not measure it."""
    unknown = np.full(study.data["pairs"].size, np.nan)
    return {name: study.data[name].values.ravel() if name in study.data else unknown for name in SPREAD}


def _stack_rates(study: Study) -> Floats:
    """Return all rates: (rate, layer, head)."""
    pairs_by_distance = study.data["distance"].variable
    near_share = divide_sums(
        pairs_by_distance.isel(distance=slice(NEIGHBORS)).sum("distance"), pairs_by_distance.sum("distance")
    )
    return np.stack([near_share.values if name == NEAR_SHARE else study.rate(name).values for name in HEAD_RATES])


def _stack_chances(study: Study) -> Floats:
    """Return the rates expected by chance: (rate, layer, head)."""
    data = study.data
    texts_by_tokens, tokens = data["window_tokens"].values, data["tokens"].values
    distances = np.arange(1, NEIGHBORS + 1)[:, None]  # a window of n tokens has n − d pairs that are d tokens apart
    near_share = divide_sums(
        xr.Variable((), (texts_by_tokens * (tokens - distances).clip(min=0)).sum()), data["all_pairs"].variable
    )
    chances = (near_share if name == NEAR_SHARE else study.chance(name) for name in HEAD_RATES)
    return np.stack([np.broadcast_to(chance.values, data["pairs"].shape) for chance in chances])


def _divide(pairs: Any, total: int) -> Floats:
    shares: Floats = pairs.ravel() / total if total else np.full(pairs.size, np.nan)
    return shares


def filter_by_head(table: pd.DataFrame, heads: Collection[Head]) -> pd.DataFrame:
    """Return the rows of these heads."""
    is_chosen = [head in heads for head in zip(table["layer"], table["head_number"], strict=True)]
    return table[is_chosen].reset_index(drop=True)


def filter_by_type(table: pd.DataFrame, part: str, name: str | None) -> pd.DataFrame:
    """Return the heads that one type of a part fits, be it first or among others; with None, all heads."""
    if name is None:
        return table
    PARTS[part].check_name(name)
    others = table[PARTS[part].also_column].map(lambda names: name in names)
    return table[(table[PARTS[part].column] == name) | others.astype(bool)].reset_index(drop=True)


def sort_heads(table: pd.DataFrame, column: str | None) -> pd.DataFrame:
    """Sort heads by a column: numbers from the largest, types in the order of their part, layers and heads
    from the first. With None, keep the order."""
    if column is None:
        return table
    sortable = [str(name) for name in table.columns.drop(list(WORD_COLUMNS))]
    if column not in sortable:
        raise StudyError(f"unknown column {column!r}; there are: {', '.join(sortable)}")
    keys = {
        "head": np.arange(len(table)),
        **{part.column: table[part.column].map(part.names.index) for part in PARTS.values()},
    }
    key = pd.Series(keys.get(column, table[column]))
    order = key.sort_values(ascending=column in ASCENDING_COLUMNS, kind="stable").index
    return table.loc[order].reset_index(drop=True)


def as_csv(table: pd.DataFrame) -> str:
    """Return the table as CSV; the other types that fit share one cell."""
    others = {part.also_column: table[part.also_column].map("; ".join) for part in PARTS.values()}
    return format_csv(table.assign(**others))


def as_json(study: Study, table: pd.DataFrame, all_heads: pd.DataFrame) -> str:
    """Return the table as JSON, with the criteria, the number of all heads of each type, and the manifest of the study.

    NaN is null.
    """
    counts = {name: count_heads(all_heads, name) for name in PARTS}
    content = {
        "manifest": study.manifest,
        "head_types": {
            name: [vars(head_type) | {"heads": int(counts[name][head_type.name])} for head_type in part.types]
            for name, part in PARTS.items()
        },
        "heads": json.loads(table.to_json(orient="records", double_precision=15)),
    }
    return json.dumps(content, ensure_ascii=False, indent=2, allow_nan=False) + "\n"
