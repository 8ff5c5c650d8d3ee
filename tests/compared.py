"""Studies to compare, made without a model: several models on the same texts, in the same blocks."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch

from headscope.comparison.measures import Sums
from headscope.corpus.windows import Window
from headscope.studies.result import Study
from headscope.tally.quantities import Shape
from headscope.tally.tally import Counting
from headscope.types import Floats, Ints
from tests.synthetic import CLS, SEP, masked_maps, study_of, tally, window


@lru_cache(maxsize=32)
def model_study(
    number: int = 0,
    texts: int = 80,
    layers: int = 3,
    heads: int = 4,
    length: int = 16,
    corpus: int = 0,
    blocks: int = 20,
    **changes: Any,
) -> Study:
    """A study of a model without any preference: `corpus` decides the texts, `number` what the model's heads write.

    Only texts of the first `blocks` blocks are taken: a jackknife goes over all of them, and fewer are faster.
    The same study is handed out again, with what it has found out about itself: tests leave it as it is.
    """
    random = np.random.default_rng(corpus)
    windows: list[Window] = []
    while len(windows) < texts:
        made = window([CLS, *random.integers(3, 9, random.integers(4, length - 1)).tolist(), SEP])
        windows += [made] * (made.block < blocks)
    longest = max(len(w) for w in windows)
    random = np.random.default_rng([corpus, number])
    outputs = [torch.from_numpy(random.normal(0.4, 1, (texts, longest, heads, 4))) for _ in range(layers)]
    maps = [masked_maps(random, windows, heads, longest) for _ in range(layers)]
    counting = Counting(Shape(layers, heads, length, False), 0.3, 0.3, 1.0)
    sums_of_texts = tally("vectorized", counting, windows, outputs, maps)
    about = {"model": f"models/model-{number}", "weight_hash": f"{number:064x}", "corpus_hash": f"{corpus:032x}"}
    return study_of(sums_of_texts, **about | changes)


def changed(study: Study, layer: int, head: int, share: float = 0.5, **changes: Any) -> Study:
    """The same study after training changed one head: this share of its other pairs now joins equal tokens."""
    data = study.data.copy(deep=True)
    at = {"layer": layer, "head": head}
    blocks = data["equal_blocks"].sel(at)
    more = ((data["pairs_blocks"].sel(at) - blocks) * share).astype(np.int64)
    data["equal_blocks"].loc[at] = blocks + more
    data["equal"].loc[at] = (blocks + more).sum()
    data["repeat_rate"].loc[at] = data["equal"].sel(at) / data["pairs"].sel(at)
    about = {"model": "models/tuned", "weight_hash": "f" * 64, "date": "2026-02-01T00:00:00+00:00"}
    return Study(data.assign_attrs(about | changes))


def sums(part: Any, whole: Any) -> Sums:
    """The sums of one layer, from part and whole by block and head; chance is 0 of 1."""
    parts, wholes = (np.asarray(each, dtype=np.float64)[:, None, :] for each in (part, whole))
    none = np.zeros((len(parts), 1, 1))
    return Sums(parts, wholes, none, none + 1)


def drawn(random: np.random.Generator, blocks: Ints, effect: Floats, heads: int, rate: Any = 0.1) -> Sums:
    """What one model counts: pairs of each text, more of them equal where the text repeats itself (its `effect`)."""
    texts = len(blocks)
    pairs = random.poisson(40, (texts, heads))
    own = np.clip(rate + 0.06 * effect[:, None] + 0.05 * random.standard_normal((texts, heads)), 0.001, 0.999)
    part, whole = np.zeros((20, heads)), np.zeros((20, heads))
    np.add.at(part, blocks, random.binomial(pairs, own))
    np.add.at(whole, blocks, pairs)
    there = np.bincount(blocks, minlength=20) > 0
    return sums(part[there], whole[there])
