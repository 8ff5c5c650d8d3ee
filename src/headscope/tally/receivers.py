"""Who attention goes to: for each query and key of a window, which of the receivers the key is."""

from __future__ import annotations

import numpy as np

from headscope.corpus.windows import Window
from headscope.tally.quantities import RECEIVERS
from headscope.types import Ints

FIRST, LAST_SPECIAL, SENTENCE_END, COMMA, ITSELF, NEIGHBOUR, REST = range(len(RECEIVERS))


def receivers(window: Window) -> Ints:
    """An N×N matrix of receiver numbers, row = query, column = key; of several that fit, the first in order counts.

    Keys may be another window's tokens (cross-attention); itself and neighbours are then those of the same place.
    """
    n, window = len(window), window.keys
    apart = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    kinds = np.full((n, n), REST, dtype=np.int64)
    kinds[apart == 1] = NEIGHBOUR
    kinds[apart == 0] = ITSELF
    kinds[:, window.comma] = COMMA
    kinds[:, window.end] = SENTENCE_END
    special = np.flatnonzero(window.special)
    if len(special):
        kinds[:, special[-1]] = LAST_SPECIAL
    kinds[:, 0] = FIRST
    return kinds
