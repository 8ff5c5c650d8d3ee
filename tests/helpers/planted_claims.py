"""A synthetic model that behaves as the paper says, over random texts: every structure that a claim speaks of is
planted, and each can be left out.

Eight layers of four heads: the first two are the first layers, the last two the last ones. Head 0 of every layer
relates equal tokens. The others relate one token, the hub, to some spokes: C is 1 between hub and spoke and near 0
elsewhere. Which spokes depends on the layers: anywhere, neighbours, or the same part of a sentence.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import torch

from headscope.corpus.windows import Window
from headscope.studies.result import Study
from headscope.tally.quantities import Shape
from headscope.tally.tally import TallySettings
from tests.helpers.synthetic import CLS, COMMA, SEP, STOP, study_of, tally, window

LAYERS, HEADS, TOKENS, WIDTH = 8, 4, 48, 8
FIRST, MIDDLE, LAST = range(2), range(3, 6), range(6, 8)
TEXTS = 60
HUB = 10.0
"""length of a hub's output; a spoke's is 1 / HUB, so that two spokes are not similar"""
ALL = frozenset(range(1, 19))


def make_claim_study(without: Collection[int] = (), seed: int = 0, texts: int = TEXTS) -> Study:
    """Return a study of the synthetic model, without the structures that these claims speak of."""
    random = np.random.default_rng(seed)
    windows = [_make_window(random) for _ in range(texts)]
    outputs, maps = zip(
        *(_make_layer(random, windows, layer, frozenset(without)) for layer in range(LAYERS)), strict=True
    )
    counting = TallySettings(Shape(LAYERS, HEADS, TOKENS, maps=False), 0.3, 0.3, 1.0)
    return _name_marks(study_of(tally("torch", counting, windows, list(outputs), list(maps)), length=TOKENS))


def make_null_study(seed: int = 0, texts: int = TEXTS) -> Study:
    """Return a study of even attention and random outputs over the same texts."""
    random = np.random.default_rng(seed)
    windows = [_make_window(random) for _ in range(texts)]
    outputs = [torch.from_numpy(random.normal(size=(texts, TOKENS, HEADS, 32))) for _ in range(LAYERS)]
    maps = [torch.full((texts, HEADS, TOKENS, TOKENS), 1 / TOKENS, dtype=torch.float64)] * LAYERS
    counting = TallySettings(Shape(LAYERS, HEADS, TOKENS, maps=False), 0.3, 0.3, 1.0)
    return _name_marks(study_of(tally("torch", counting, windows, outputs, maps), length=TOKENS))


def _name_marks(study: Study) -> Study:
    marks = {f"t{STOP}": ".", f"t{COMMA}": ","}
    return Study(study.data.assign_coords(token=[marks.get(name, name) for name in study.data["token"].values]))


def _make_window(random: np.random.Generator) -> Window:
    ids = random.integers(10, 40, TOKENS)
    marks = np.arange(6, TOKENS - 1, 7) + random.integers(-1, 2, len(range(6, TOKENS - 1, 7)))
    ids[marks] = np.where(np.arange(len(marks)) % 2, STOP, COMMA)
    ids[0], ids[-1] = CLS, SEP
    return window(ids.tolist())


def _make_layer(
    random: np.random.Generator, windows: list[Window], layer: int, without: frozenset[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return outputs (text, position, head, width) and maps (text, head, query, key) of a layer."""
    outputs = np.stack([_make_outputs(random, text, layer, without) for text in windows])
    maps = np.stack([_make_maps(random, text, layer, without) for text in windows])
    return torch.from_numpy(outputs), torch.from_numpy(maps)


# -- attention ---------------------------------------------------------------------------------------------------------


def _make_maps(random: np.random.Generator, text: Window, layer: int, without: frozenset[int]) -> np.ndarray:
    """Mix even attention with the diagonal and with columns, which are the lines."""
    n = len(text)
    even, diagonal = np.full((n, n), 1 / n), np.eye(n)
    near = (np.abs(np.subtract.outer(np.arange(n), np.arange(n))) <= 1) * 1.0
    near /= near.sum(axis=1, keepdims=True)
    if layer in LAST:
        if 16 in without:
            return np.stack([0.9 * even + 0.1 * near] * HEADS)
        columns = _choose_line_columns(random, text, without)
        own = 0.0 if 1 in without else 0.1
        return np.stack([0.6 * column + own * diagonal + (0.4 - own) * even for column in columns])
    if layer in FIRST:
        position = int(random.integers(1, n - 1)) if 2 in without else 0
        column = np.zeros((n, n))
        column[:, position] = 1
        own = 0.0 if 1 in without else 0.1
        return np.stack([0.3 * column + own * diagonal + (0.7 - own) * even] * HEADS)
    own = 0.05 if 4 in without else 0.4
    columns = np.zeros((HEADS, n, n))
    columns[np.arange(HEADS), :, random.choice(np.arange(1, n - 1), HEADS, replace=False)] = 0.15
    return columns + own * near + own * diagonal + (0.85 - 2 * own) * even


def _choose_line_columns(random: np.random.Generator, text: Window, without: frozenset[int]) -> list[np.ndarray]:
    """Return for each head the attention that goes to lines alone."""
    n, marks = len(text), np.flatnonzero(text.end | text.comma)
    if 3 in without:
        marks = marks - 2  # words, as many and as far apart
    columns = []
    for _ in range(HEADS):
        own = random.choice(np.arange(1, n - 1), len(marks), replace=False) if 13 in without else marks
        column = np.zeros((n, n))
        column[:, own] = 1 / len(own)
        columns.append(column)
    return columns


# -- outputs -----------------------------------------------------------------------------------------------------------


def _make_outputs(random: np.random.Generator, text: Window, layer: int, without: frozenset[int]) -> np.ndarray:
    n = len(text)
    block = np.cumsum(np.concatenate([[False], (text.end | text.comma)[:-1]]))
    outputs = random.normal(0, 0.005, (n, HEADS, WIDTH))
    roles = random.permutation(HEADS) if 12 in without else range(HEADS)
    hubs = _choose_hubs(random, text)
    for head, role in enumerate(roles):
        if role == 0 and 6 not in without:
            _add_group(outputs[:, head], _find_repeated(text, block, layer))
            continue
        hub = hubs[0 if 10 in without else role]
        spokes = _choose_spokes(random, text, block, layer, hub, without)
        if 9 in without:
            _add_group(outputs[:, head], np.array([hub, *spokes]))
        else:
            outputs[hub, head, 0] += HUB
            outputs[spokes, head, 0] += 1 / HUB
    if 5 in without:
        outputs[..., -1] += 0.45  # C of any two tokens is about 0.2
    return outputs


def _add_group(output: np.ndarray, positions: np.ndarray) -> None:
    output[positions, 1] += 1


def _choose_hubs(random: np.random.Generator, text: Window) -> np.ndarray:
    """Return positions of different tokens, one for each head."""
    words = random.permutation(np.flatnonzero(~text.special & ~text.end & ~text.comma))
    _, firsts = np.unique(text.ids[words], return_index=True)
    return words[np.sort(firsts)[:HEADS]]


def _find_repeated(text: Window, block: np.ndarray, layer: int) -> np.ndarray:
    """Return positions of the word that is repeated most: anywhere in the first layers, else within one sentence."""
    group = np.zeros_like(block) if layer in FIRST else text.sentence
    words = ~text.special & ~text.end & ~text.comma
    keys = np.where(words, text.ids * 100 + group, -1 - np.arange(len(text)))
    values, counts = np.unique(keys, return_counts=True)
    return np.flatnonzero(keys == values[counts.argmax()]) if counts.max() > 1 else np.zeros(0, dtype=np.int64)


def _choose_spokes(
    random: np.random.Generator, text: Window, block: np.ndarray, layer: int, hub: int, without: frozenset[int]
) -> np.ndarray:
    """Return the positions that a head relates to its hub."""
    n, positions = len(text), np.arange(len(text))
    distance = np.abs(positions - hub)
    if layer in FIRST and 18 not in without:
        return random.choice(np.delete(positions, hub), 8, replace=False)
    if layer not in LAST:
        if (layer in MIDDLE and 11 in without) or (layer not in MIDDLE and layer not in FIRST):
            return random.choice(np.delete(positions, hub), 5, replace=False)
        return positions[(distance >= 1) & (distance <= 2)]
    if 7 in without:
        return positions[distance >= n // 2 - 2]
    if without & {8, 15, 17}:
        return positions[(distance >= 1) & (distance <= 3)]
    if 14 in without:
        return positions[(text.sentence == text.sentence[hub]) & (block != block[hub])]
    return positions[(block == block[hub]) & (distance >= 1)]
