"""A fast kernel is tried before it is trusted: what it counts of some made-up texts, plain torch counts after it.

What a compiler makes of a kernel depends on the processor, its driver and the compiler's version, and no test can know
them all. So before a study begins, its own model runs over a few made-up texts, as far as its first layer. What the
kernel says the heads write there is also counted in plain torch and in double precision, and their maps are computed
by the formula. Both must come to the same sums, but for elements so near a threshold that rounding decides.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from headscope.corpus import sentences
from headscope.corpus.windows import Batch, Window
from headscope.devices import find_float64_device, to_float64
from headscope.errors import ModelError
from headscope.model.capture import plain
from headscope.model.capture.plain import Question
from headscope.model.model import Model
from headscope.model.patches import Patches
from headscope.tally.quantities import QUANTITIES, Quantity
from headscope.tally.tally import Counting, Tallier, Tally
from headscope.tally.vectorized import VectorizedTallier

TEXTS = 5
"""Three of the first one's block, so that sums over texts are tried too, and padding in two."""
WORDS = 12
"""different tokens, so that many are equal"""
SAMPLE = 0.6
"""of the texts, where a study has a sample"""
NO_LINES = 1.0
"""Lines are columns that get more than τ of the most: with this τ there are none, and rounding decides about none."""
OF_HIGH_PAIRS = ("dominant_share_sum", "shuffled_share_sum")
"""reals that depend on which pairs are high"""


class _Enough(Exception):
    """The first layer was seen."""


def of_one_layer(counting: Counting) -> Counting:
    """What is counted in a trial."""
    fraction = SAMPLE if counting.fraction else 0.0
    return replace(
        counting, shape=replace(counting.shape, layers=1), tau=NO_LINES, fraction=fraction, numbers=counting.numbers[:1]
    )


def disagreement(tallier: Tallier, counting: Counting, model: Model, *, rounded: bool = False) -> str:
    """What a tallier of `of_one_layer` counts otherwise than plain torch, or why it cannot count; empty if all is well.

    `rounded`: products are in TF32.
    """
    half = model.dtype in ("float16", "bfloat16")
    judge = VectorizedTallier(counting, find_float64_device(model.device))
    both = _Both(tallier, judge, plain.NARROW if half or rounded else plain.WIDE)
    windows = _windows(model, counting.shape.length)
    try:
        # With padding, and without: kernels have a shorter way for the latter.
        for batch in (windows, windows[:3]):
            both.see_all(model, Batch.of(batch, model.tokens.pad_id))
        wrong = both.apart or _first_difference(tallier.total(), both.judge.total(), both.exact)
    except ModelError:  # it is not the kernel that is broken
        raise
    except Exception as error:  # whatever it is, there are other ways to count
        first = next(iter(str(error).splitlines()), "")
        return f"it does not run here ({type(error).__name__}: {first[:120]})"
    return f"{wrong} of {2 * TEXTS - 2} made-up texts is not what plain torch makes of them" if wrong else ""


@dataclass
class _Both:
    """A tallier, and plain torch beside it."""

    tallier: Any
    judge: VectorizedTallier
    exact: float
    """to what part of the largest number reals must agree"""
    apart: str = ""

    def see_all(self, model: Model, batch: Batch) -> None:
        self.real = torch.from_numpy(batch.real).to(model.device)
        self.tallier.begin(batch)
        self.judge.begin(batch)
        try:
            model.observe(batch, self.see, self.attend if hasattr(self.tallier, "attend") else None)
        except _Enough:
            self.tallier.end()
            self.judge.end()

    def see(self, layer: int, output: torch.Tensor, attention: torch.Tensor) -> None:
        self.tallier.see(layer, output, attention)
        self.judge.see(layer, to_float64(output), to_float64(attention))
        raise _Enough

    def attend(self, layer: int, question: Question) -> torch.Tensor | None:
        output: torch.Tensor | None = self.tallier.attend(layer, question)
        if output is None:
            return None
        query, key, value = (each.double() for each in (question.query, question.key, question.value))
        wanted, maps = plain.attend(replace(question, query=query, key=key, value=value))
        if not bool(wanted[self.real].isfinite().all()):
            self.judge.see(layer, wanted, maps)  # which says so
        if not _alike(output[self.real].double(), wanted[self.real], self.exact):
            self.apart = "what heads write"
        else:
            self.judge.see(layer, output.double(), maps)
        raise _Enough


def _windows(model: Model, length: int) -> list[Window]:
    """Texts as long as windows can be, the first three of one block, and two shorter ones; or images of noise."""
    random = np.random.default_rng(0)
    if isinstance(model.tokens, Patches):
        return [_image(model.tokens, random, k) for k in (0, 20, 40, 1, 2)]  # blocks 0, 0, 0, 1, 2
    words = np.array(model.plain_tokens(WORDS))
    first = _text(model, random, words, length)
    found = [first]
    while len(found) < 3:
        made = _text(model, random, words, length)
        if made.block == first.block:
            found.append(made)
    return found + [_text(model, random, words, max(2, n)) for n in (length - 1, length // 3)]


def _text(model: Model, random: np.random.Generator, words: Any, length: int) -> Window:
    ends, commas = random.random(length) < 0.08, random.random(length) < 0.1
    special = np.zeros(length, dtype=bool)
    special[[0, -1]] = True
    ids = random.choice(words, length)
    return model.reads(Window(ids, special, sentences.by_tokens(ends), ends, commas & ~ends))


def _image(patches: Patches, random: np.random.Generator, digest: int) -> Window:
    pixels = random.standard_normal(patches.shape).astype(np.float32)
    return replace(Window.plain(np.arange(patches.length)), pixels=pixels, u=digest)


def _first_difference(mine: Tally, plainly: Tally, exact: float) -> str:
    for quantity in QUANTITIES:
        if quantity.name in plainly.arrays and not _agree(quantity, mine, plainly, exact):
            return quantity.name
    texts = [sum(int(counts.sum()) for counts in tally.most_attended.values()) for tally in (mine, plainly)]
    return "most_attended" if texts[0] != texts[1] else ""


def _agree(quantity: Quantity, mine: Tally, plainly: Tally, exact: float) -> bool:
    one, other = mine[quantity.name], plainly[quantity.name]
    near = int(plainly["near_threshold"].sum())
    if quantity.real:
        unsure = 2 * near if quantity.name in OF_HIGH_PAIRS else 0
        return _alike(torch.from_numpy(one), torch.from_numpy(other), exact, unsure)
    if quantity.name in ("near_bin_edge", "value_histogram"):
        near = int(plainly["near_bin_edge"].sum())
    if quantity.name.startswith("near_"):  # on the rim of nearness itself a few may fall either way
        return bool(np.abs(one - other).max() <= 2 + int(other.max()) // 10)
    unsure = 2 * near * (mine.shape.length if quantity.name == "distance_sum" else 1)
    return bool(np.abs(one - other).sum() <= unsure)


def _alike(one: torch.Tensor, other: torch.Tensor, exact: float, unsure: float = 0.0) -> bool:
    if not other.numel():
        return True
    return bool((one - other).abs().max() <= exact * other.abs().max() + unsure)
