"""The best one-to-one assignment between two sets of heads: that of the largest sum of correlations."""

from __future__ import annotations

import numpy as np

from headscope.array_types import Floats, Ints


def assign_rows(gains: Floats) -> Ints:
    """Return the column of each row, each column at most once, with the largest sum of gains; −1: no column is left.

    The Hungarian method with shortest augmenting paths: rows are added one by one.

    >>> assign_rows(np.array([[0.9, 0.8], [0.8, 0.1]])).tolist()
    [1, 0]
    """
    if gains.shape[0] > gains.shape[1]:
        columns = np.full(len(gains), -1, dtype=np.int64)
        rows = assign_rows(gains.T)
        columns[rows] = np.arange(len(rows))
        return columns
    costs, columns_count = -gains, gains.shape[1]
    row_prices, column_prices = np.zeros(len(costs)), np.zeros(columns_count)
    row_of = np.full(columns_count, -1, dtype=np.int64)
    for start in range(len(costs)):
        lengths, previous = np.full(columns_count, np.inf), np.full(columns_count, -1, dtype=np.int64)
        visited, row, column, shortest = np.zeros(columns_count, dtype=bool), start, -1, 0.0
        while row >= 0:  # extend the shortest path until it ends in a free column
            through = shortest + costs[row] - row_prices[row] - column_prices
            is_shorter = ~visited & (through < lengths)
            lengths[is_shorter], previous[is_shorter] = through[is_shorter], column
            column = int(np.where(visited, np.inf, lengths).argmin())
            shortest, visited[column] = float(lengths[column]), True
            row = int(row_of[column])
        others = visited & (row_of >= 0)
        row_prices[row_of[others]] += shortest - lengths[others]
        row_prices[start] += shortest
        column_prices[visited] -= shortest - lengths[visited]
        while column >= 0:  # every row of the path moves to the next column of it
            before = int(previous[column])
            row_of[column] = start if before < 0 else row_of[before]
            column = before
    result = np.full(len(costs), -1, dtype=np.int64)
    result[row_of[row_of >= 0]] = np.flatnonzero(row_of >= 0)
    return result
