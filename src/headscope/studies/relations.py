"""The table of labelled relations (METHOD §9): does a head relate what linguists relate?

Errors are of the jackknife over the blocks of documents that have pairs of a relation. A rate is tested against chance
by Student's t, one-sided: pairs that are seldom high say nothing below chance. All heads and relations that have
enough pairs are tested together (Holm).
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd

from headscope.array_types import Floats
from headscope.errors import StudyError
from headscope.studies.labels import HEAD_COLUMNS, RELATION_RATES, make_head_columns
from headscope.studies.rates import MIN_BLOCKS, compute_jackknife_error, leave_out_blocks
from headscope.studies.result import Study
from headscope.studies.significance import compute_p_value, correct_holm

MIN_PAIRS = 50
"""Least number of pairs of a relation of which rates are tested."""
SIGNIFICANT = 0.05
ATTENTION = ("attention_ab", "attention_ba")


def has_relations(study: Study) -> bool:
    """Return whether a study has labelled relations."""
    return study.data.sizes.get("relation", 0) > 0


def tabulate_relations(study: Study) -> pd.DataFrame:
    """Return the table of labelled relations of a study; `Study.relations` describes its columns."""
    if not has_relations(study):
        raise StudyError(
            "this study has no labelled relations: study a treebank (.conllu), JSONL with a field relations, or texts "
            "with relations= in Python (in texts a decoder writes, cross-attention and images there are none)"
        )
    labels = study.data["relation"].values
    table = pd.concat([_measure_relation(study, str(label)) for label in labels], ignore_index=True)
    table["p_corrected"] = correct_holm(table["p"].to_numpy())
    first = ["relation", *HEAD_COLUMNS, "pairs", "texts", "rate", "rate_error", "chance", "ratio", "odds_ratio", "p"]
    table = table[[*first, "p_corrected", *table.columns.drop([*first, "p_corrected", "note"]), "note"]]
    is_present = np.tile(study.present.values.ravel(), study.data.sizes["relation"])
    return table[is_present].reset_index(drop=True)


def _measure_relation(study: Study, label: str) -> pd.DataFrame:
    data = study.data.sel(relation=label)
    block_pairs = data["relation_pairs_blocks"].values.astype(np.float64)
    pairs, texts = int(data["relation_pairs"]), int(data["relation_texts"])
    filled = np.flatnonzero(block_pairs)
    remaining_pairs = leave_out_blocks(block_pairs[filled])[:, None, None]

    def compute_errors(*names: str) -> Floats:
        """Return the standard error of the mean of sums, of which the second is subtracted from the first."""
        first, *others = (leave_out_blocks(data[f"{name}_blocks"].values[filled].astype(float)) for name in names)
        with np.errstate(invalid="ignore", divide="ignore"):
            return compute_jackknife_error((first - sum(others)) / remaining_pairs)

    means = {name: data[name].values for name in RELATION_RATES}
    rate, chance = means["relation_rate"], means["relation_chance"]
    excess_error = compute_errors("relation_high", "relation_expected")
    columns: dict[str, Any] = {
        "rate": rate,
        "rate_error": compute_errors("relation_high"),
        "chance": chance,
        "ratio": _divide(rate, chance),
        "odds_ratio": data["relation_odds_ratio"].values,
        "p": _test(rate - chance, excess_error, len(filled)) if pairs >= MIN_PAIRS else np.full_like(rate, np.nan),
    }
    for name in ATTENTION:
        columns |= {
            name: means[f"relation_{name}_mean"],
            f"{name}_error": compute_errors(f"relation_{name}"),
            f"{name}_chance": means[f"relation_{name}_chance"],
        }
    heads = make_head_columns(study.layers, study.head_numbers)
    values = {name: array.ravel() for name, array in columns.items()}
    note = describe_missing(pairs, len(filled))
    return pd.DataFrame({"relation": label, **heads, "pairs": pairs, "texts": texts, **values, "note": note})


def describe_missing(pairs: int, blocks: int) -> str:
    """Return why a relation is not tested; empty if it is.

    >>> describe_missing(12, 20)
    'too few pairs: 12, and 50 are needed'
    """
    if pairs < MIN_PAIRS:
        return f"too few pairs: {pairs}, and {MIN_PAIRS} are needed"
    if blocks < MIN_BLOCKS:
        return f"too few documents: pairs in {blocks} of 20 blocks, and {MIN_BLOCKS} are needed"
    return ""


def _test(excess: Floats, errors: Floats, blocks: int) -> Floats:
    """Return the one-sided p-values of means above 0; NaN without an error."""
    p_values = np.full(excess.shape, np.nan)
    for place in np.argwhere(errors > 0):
        t = excess[tuple(place)] / errors[tuple(place)]
        two_sided = compute_p_value(float(t), blocks - 1)
        p_values[tuple(place)] = two_sided / 2 if t > 0 else 1 - two_sided / 2
    return p_values


def _divide(first: Floats, second: Floats) -> Floats:
    return np.divide(first, second, out=np.full_like(first, np.nan), where=second > 0)


def select_relations(table: pd.DataFrame, labels: list[str] | None) -> pd.DataFrame:
    """Return the rows of some relations; with None, of all."""
    present = table["relation"].unique().tolist()
    for label in labels or []:
        if label not in present:
            raise StudyError(f"no relation {label!r} in this study; there are: {', '.join(present)}")
    return table if labels is None else table[table["relation"].isin(labels)].reset_index(drop=True)


def rank_relations(table: pd.DataFrame, top: int) -> pd.DataFrame:
    """Return the strongest heads of each relation, the most frequent relations first.

    Significant heads come first, by how many times chance their rate is; then the others, by how much they exceed it.
    """
    significant = table["p_corrected"] < SIGNIFICANT
    strength = table["ratio"].where(significant, table["rate"] - table["chance"])
    keys = ["pairs", "relation", "is_significant", "strength"]
    order = table.assign(is_significant=significant, strength=strength)
    order = order.sort_values(keys, ascending=[False, True, False, False], kind="stable")
    return order.groupby("relation", sort=False).head(top).drop(columns=keys[2:]).reset_index(drop=True)


def as_json(study: Study, table: pd.DataFrame) -> str:
    """Return the table as JSON, with the manifest of the study; NaN is null."""
    content = {
        "manifest": study.manifest,
        "relations": json.loads(table.to_json(orient="records", double_precision=15)),
    }
    return json.dumps(content, ensure_ascii=False, indent=2, allow_nan=False) + "\n"
