"""Studies to compare, built without a model: several models on the same texts, in the same blocks."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch

from headscope.array_types import Floats, Ints
from headscope.comparison.measures import RateSums
from headscope.corpus.windows import Window
from headscope.studies.result import Study
from headscope.tally.quantities import Shape
from headscope.tally.tally import TallySettings
from tests.helpers.synthetic import CLS, SEP, make_masked_maps, study_of, tally, window


@lru_cache(maxsize=32)
def make_model_study(
    number: int = 0,
    texts: int = 80,
    layers: int = 3,
    heads: int = 4,
    length: int = 16,
    corpus: int = 0,
    blocks: int = 20,
    blocks_of: str = "documents",
    **changes: Any,
) -> Study:
    """Return a study of a model without any preference.

    Results are cached, so tests must not modify them.

    Args:
        number: Decides what the heads of the model write.
        corpus: Decides the texts.
        blocks: Only texts of the first so many blocks are used.
        blocks_of: The attribute `blocks` of the study.
        changes: Attributes of the study.
    """
    random = np.random.default_rng(corpus)
    windows: list[Window] = []
    while len(windows) < texts:
        candidate = window([CLS, *random.integers(3, 9, random.integers(4, length - 1)).tolist(), SEP])
        windows += [candidate] * (candidate.block < blocks)
    longest = max(len(w) for w in windows)
    random = np.random.default_rng([corpus, number])
    outputs = [torch.from_numpy(random.normal(0.4, 1, (texts, longest, heads, 4))) for _ in range(layers)]
    maps = [make_masked_maps(random, windows, heads, longest) for _ in range(layers)]
    counting = TallySettings(Shape(layers, heads, length, False), 0.3, 0.3, 1.0)
    sums_of_texts = tally("torch", counting, windows, outputs, maps)
    attributes = {
        "blocks": blocks_of,
        "model": f"models/model-{number}",
        "weight_hash": f"{number:064x}",
        "corpus_hash": f"{corpus:032x}",
    }
    return study_of(sums_of_texts, **attributes | changes)


def change_head(study: Study, layer: int, head: int, share: float = 0.5, **changes: Any) -> Study:
    """Return the study as after training changed one head: this share of its other pairs now joins equal tokens."""
    data = study.data.copy(deep=True)
    position = {"layer": layer, "head": head}
    equal_pairs = data["equal_blocks"].sel(position)
    added_pairs = ((data["pairs_blocks"].sel(position) - equal_pairs) * share).astype(np.int64)
    changed = (equal_pairs + added_pairs).copy()
    data["equal_blocks"].loc[position] = changed
    data["equal"].loc[position] = changed.sum()
    data["repeat_rate"].loc[position] = data["equal"].sel(position) / data["pairs"].sel(position)
    attributes = {"model": "models/tuned", "weight_hash": "f" * 64, "date": "2026-02-01T00:00:00+00:00"}
    return Study(data.assign_attrs(attributes | changes))


def make_sums(numerators: Any, denominators: Any) -> RateSums:
    """Return the sums of one layer.

    Args:
        numerators: Of shape (blocks, heads).
        denominators: Of the same shape. The chance level is 0 of 1.
    """
    numerators, denominators = (
        np.asarray(values, dtype=np.float64)[:, None, :] for values in (numerators, denominators)
    )
    zeros = np.zeros((len(numerators), 1, 1))
    return RateSums(numerators, denominators, zeros, zeros + 1)


def draw_counts(random: np.random.Generator, blocks: Ints, effect: Floats, heads: int, rate: Any = 0.1) -> RateSums:
    """Draw what one model counts: pairs of each text, of which more are equal where the text repeats itself.

    Args:
        blocks: Block of each text.
        effect: How much each text repeats itself.
    """
    text_count = len(blocks)
    pairs = random.poisson(40, (text_count, heads))
    probabilities = np.clip(
        rate + 0.06 * effect[:, None] + 0.05 * random.standard_normal((text_count, heads)), 0.001, 0.999
    )
    numerators, denominators = np.zeros((20, heads)), np.zeros((20, heads))
    np.add.at(numerators, blocks, random.binomial(pairs, probabilities))
    np.add.at(denominators, blocks, pairs)
    is_filled = np.bincount(blocks, minlength=20) > 0
    return make_sums(numerators[is_filled], denominators[is_filled])
