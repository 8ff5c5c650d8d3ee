"""How alike heads are (ours; docs/method.md): mean correlations of their similarity matrices, and clusters of heads."""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr

from headscope.array_types import Bools, Floats
from headscope.errors import StudyError
from headscope.studies.clustering import cut_clusters, link_clusters
from headscope.studies.labels import HEAD_COLUMNS, divide_sums, format_head
from headscope.tally.quantities import HEAD_PAIR, MAX_RELATED_HEADS

CLUSTER_CORRELATION = 0.5
"""Mean correlation between two clusters from which they are one."""


def compute_head_similarity(data: xr.Dataset) -> xr.DataArray:
    """Return the mean correlations between heads, of dims `HEAD_PAIR`; their reliability is an attribute.

    Reliability is the correlation, over pairs of different heads, between texts of even and of odd blocks, corrected
    to all texts (Spearman–Brown); NaN where one of the halves has no texts.
    """
    if "head_similarity_sum" not in data:
        heads = data.sizes["layer"] * data.sizes["head"]
        raise StudyError(
            f"this model has {heads:,} heads: those of more than {MAX_RELATED_HEADS:,} are not correlated"
            if heads > MAX_RELATED_HEADS
            else "this study was made by a version that did not correlate heads with each other: run it again"
        )
    sums, texts = (data[f"head_similarity_{name}"].transpose("half", *HEAD_PAIR) for name in ("sum", "texts"))
    means = divide_sums(sums.sum("half"), texts.sum("half"))
    halves = [flatten_pairs(divide_sums(sums[half], texts[half])) for half in range(sums.sizes["half"])]
    attributes = {
        "long_name": "mean correlation of the similarity matrices of two heads",
        "reliability": estimate_reliability(*halves),
    }
    return means.rename("head_similarity").assign_attrs(attributes)


def flatten_pairs(similarity: xr.DataArray) -> Floats:
    """Return the correlations as a square matrix, heads in the order of layers."""
    values = similarity.transpose(*HEAD_PAIR).values
    return np.asarray(values.reshape(values.shape[0] * values.shape[1], -1), dtype=np.float64)


def estimate_reliability(first: Floats, second: Floats) -> float:
    """Return the correlation between two halves over pairs of different heads, corrected to the whole."""
    upper = np.triu_indices(len(first), k=1)
    values = np.stack([first[upper], second[upper]])
    values = values[:, np.isfinite(values).all(0)]
    if values.shape[1] < 3 or not values.std(axis=1).all():
        return float("nan")
    correlation = float(np.corrcoef(values)[0, 1])
    return 2 * correlation / (1 + correlation) if correlation > 0 else correlation


def list_heads(data: xr.Dataset, present: Bools) -> pd.DataFrame:
    """Return the columns of heads, layer by layer, and the row of each in the matrix of correlations."""
    layers, heads = data["layer"].values.tolist(), data["head"].values.tolist()
    rows = [
        (format_head(layer, head), layer, head, number)
        for number, (layer, head) in enumerate((layer, head) for layer in layers for head in heads)
        if present.ravel()[number]
    ]
    return pd.DataFrame(rows, columns=[*HEAD_COLUMNS, "row"])


def tabulate_clusters(data: xr.Dataset, present: Bools, correlation: float) -> pd.DataFrame:
    """Return the cluster of each head, see `Study.head_clusters`."""
    if not -1 <= correlation <= 1:
        raise StudyError(f"correlation is {correlation}: clusters are cut at a correlation, between -1 and 1")
    table = list_heads(data, present)
    matrix = get_matrix(data, table)
    merges = link_clusters(matrix)
    labels = cut_clusters(merges, len(table), correlation)
    sizes = np.bincount(labels, minlength=1)
    together = (labels[:, None] == labels[None, :]) & ~np.eye(len(labels), dtype=bool)
    others = together.sum(1)
    similarity = np.where(others > 0, (matrix * together).sum(1) / np.maximum(others, 1), np.nan)
    return table.drop(columns="row").assign(cluster=labels, size=sizes[labels], similarity=similarity)


def get_matrix(data: xr.Dataset, table: pd.DataFrame) -> Floats:
    """Return the correlations of the heads of a table; 0 where they were not measured in common."""
    rows = table["row"].to_numpy()
    return np.asarray(np.nan_to_num(flatten_pairs(compute_head_similarity(data))[np.ix_(rows, rows)]))


def tabulate_similar_heads(data: xr.Dataset, present: Bools, head: tuple[int, int], count: int) -> pd.DataFrame:
    """Return the most similar heads of a head, see `Study.similar_heads`."""
    if count < 1:
        raise StudyError(f"count is {count}: ask for at least one head")
    similarity = compute_head_similarity(data).sel(layer=head[0], head=head[1])
    texts = data["head_similarity_texts"].sum("half").sel(layer=head[0], head=head[1])
    table = list_heads(data, present)
    rows = table["row"].to_numpy()
    table = table.drop(columns="row").assign(
        correlation=similarity.transpose("other_layer", "other_head").values.ravel()[rows],
        texts=texts.transpose("other_layer", "other_head").values.ravel()[rows],
    )
    others = table[(table["head"] != format_head(*head)) & table["correlation"].notna()]
    return others.sort_values("correlation", ascending=False, kind="stable").head(count).reset_index(drop=True)
