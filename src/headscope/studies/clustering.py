"""Hierarchical clusters of some hundred items, by average linkage: the two clusters of largest mean similarity join."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headscope.array_types import Floats, Ints


@dataclass(frozen=True)
class Merge:
    """Two clusters that become one."""

    first: list[int]
    """numbers of the items"""
    second: list[int]
    similarity: float
    """mean over the pairs of an item of one and an item of the other"""


def link_clusters(similarity: Floats) -> list[Merge]:
    """Return the merges of all items into one cluster, the most similar first.

    Args:
        similarity: Symmetric, (n, n), without NaN. The diagonal is ignored.

    >>> [merge.similarity for merge in link_clusters(np.array([[1, 0.9, 0.2], [0.9, 1, 0.4], [0.2, 0.4, 1]]))]
    [0.9, 0.3]
    """
    means = similarity.astype(np.float64).copy()
    np.fill_diagonal(means, -np.inf)
    members = [[number] for number in range(len(means))]
    merges = []
    for _ in range(len(means) - 1):
        first, second = sorted(divmod(int(means.argmax()), len(means)))
        merges.append(Merge(members[first], members[second], round(float(means[first, second]), 12)))
        sizes = len(members[first]), len(members[second])
        joined = (sizes[0] * means[first] + sizes[1] * means[second]) / sum(sizes)
        joined[[first, second]] = -np.inf
        means[first], means[:, first] = joined, joined
        means[second], means[:, second] = -np.inf, -np.inf
        members[first] = members[first] + members[second]
    return merges


def cut_clusters(merges: list[Merge], count: int, least: float) -> Ints:
    """Return the number of the cluster of each item, where clusters join from a similarity of `least` on.

    Clusters are numbered from 0, the largest first, those of one size by their first item.

    >>> cut_clusters(link_clusters(np.array([[1, 0.9, 0.2], [0.9, 1, 0.4], [0.2, 0.4, 1]])), 3, 0.5).tolist()
    [0, 0, 1]
    """
    labels = np.arange(count)
    for merge in merges:
        if merge.similarity >= least:
            labels[merge.first + merge.second] = min(merge.first + merge.second)
    firsts, sizes = np.unique(labels, return_counts=True)
    ordered = firsts[np.lexsort((firsts, -sizes))].tolist()
    return np.array([ordered.index(label) for label in labels.tolist()], dtype=np.int64)


def order_items(merges: list[Merge], count: int) -> list[int]:
    """Return the items in the order of the merges: those of a cluster stand side by side, wherever it is cut."""
    return [*merges[-1].first, *merges[-1].second] if merges else list(range(count))
