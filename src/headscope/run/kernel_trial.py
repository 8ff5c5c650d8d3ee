"""Choose a kernel, and verify it before it is used.

Verify a fast kernel before it is used: compare its sums over a few synthetic texts with those of plain torch.

The result of compiling a kernel depends on the processor, its driver and the compiler's version, and tests cannot cover
all of them. So before a study begins, its own model runs over a few synthetic texts, up to its first layer. The head
outputs from the kernel are also counted in plain torch and in double precision, with attention maps computed by the
formula. Both must give the same sums, except for elements so close to a threshold that rounding decides.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from headscope.corpus import sentences
from headscope.corpus.windows import Batch, Window
from headscope.devices import find_float64_device, to_float64
from headscope.errors import ModelError, StudyError
from headscope.model.capture import plain_attention
from headscope.model.capture.plain_attention import AttentionInputs
from headscope.model.image_patches import Patches
from headscope.model.model import Model
from headscope.run.plan import RunPlan
from headscope.tally.backends import AUTO, FASTEST, Choice, choose_kernel
from headscope.tally.quantities import QUANTITIES, Quantity
from headscope.tally.tally import Tallier, Tally, TallySettings
from headscope.tally.torch_backend import TorchTallier

TEXTS = 5
"""Number of texts: three in the same block, so that sums over texts are verified, and two with padding."""
WORDS = 12
"""number of different tokens: few, so that many tokens are equal"""
SAMPLE = 0.6
"""fraction of the texts in the sample, if the study has one"""
NO_LINES = 1.0
"""τ for which there are no lines (columns with more than τ of the maximum), so that rounding cannot affect them."""
OF_HIGH_PAIRS = ("dominant_share_sum", "shuffled_share_sum")
"""floating-point sums that depend on which pairs are high"""


class _FirstLayerDone(Exception):
    """The first layer was observed."""


def select_one_layer(counting: TallySettings) -> TallySettings:
    """Return the settings for counting one layer in a trial."""
    fraction = SAMPLE if counting.fraction else 0.0
    return replace(
        counting, shape=replace(counting.shape, layers=1), tau=NO_LINES, fraction=fraction, numbers=counting.numbers[:1]
    )


def find_disagreement(tallier: Tallier, counting: TallySettings, model: Model, *, rounded: bool = False) -> str:
    """Return how a tallier differs from plain torch, or why it fails; empty if all sums agree.

    Args:
        tallier: The tallier to verify.
        counting: Its settings, from `select_one_layer`.
        rounded: Products are in TF32.
    """
    half = model.dtype in ("float16", "bfloat16")
    reference = TorchTallier(counting, find_float64_device(model.device))
    comparison = _Comparison(tallier, reference, plain_attention.NARROW if half or rounded else plain_attention.WIDE)
    windows = _make_windows(model, counting.shape.length)
    try:
        # With and without padding: kernels have a faster path for the latter.
        for batch in (windows, windows[:3]):
            comparison.run_batch(model, Batch.of(batch, model.tokens.pad_id))
        difference = comparison.difference or _find_difference(
            tallier.get_sums(), comparison.reference.get_sums(), comparison.tolerance
        )
    except ModelError:  # not caused by the kernel
        raise
    except Exception as error:  # whatever fails, another kernel can be used
        first_line = next(iter(str(error).splitlines()), "")
        return f"it does not run here ({type(error).__name__}: {first_line[:120]})"
    return f"{difference} of {2 * TEXTS - 2} made-up texts differs from plain torch" if difference else ""


@dataclass
class _Comparison:
    """Run a tallier and plain torch on the same batches."""

    tallier: Any
    reference: TorchTallier
    tolerance: float
    """allowed difference of floating-point sums, relative to the largest"""
    difference: str = ""

    def run_batch(self, model: Model, batch: Batch) -> None:
        self.real = torch.from_numpy(batch.real).to(model.device)
        self.tallier.begin(batch)
        self.reference.begin(batch)
        try:
            model.observe(batch, self.observe_layer, self.attend if hasattr(self.tallier, "attend") else None)
        except _FirstLayerDone:
            self.tallier.end()
            self.reference.end()

    def observe_layer(self, layer: int, output: torch.Tensor, attention: torch.Tensor) -> None:
        self.tallier.observe_layer(layer, output, attention)
        self.reference.observe_layer(layer, to_float64(output), to_float64(attention))
        raise _FirstLayerDone

    def attend(self, layer: int, question: AttentionInputs) -> torch.Tensor | None:
        output: torch.Tensor | None = self.tallier.attend(layer, question)
        if output is None:
            return None
        query, key, value = (tensor.double() for tensor in (question.query, question.key, question.value))
        expected, maps = plain_attention.attend(replace(question, query=query, key=key, value=value))
        if not bool(expected[self.real].isfinite().all()):
            self.reference.observe_layer(layer, expected, maps)  # raises the error for this
        if not _is_close(output[self.real].double(), expected[self.real], self.tolerance):
            self.difference = "what heads write"
        else:
            self.reference.observe_layer(layer, output.double(), maps)
        raise _FirstLayerDone


def _make_windows(model: Model, length: int) -> list[Window]:
    """Return three texts of the full length in one block and two shorter ones; or images of noise."""
    random = np.random.default_rng(0)
    if isinstance(model.tokens, Patches):
        return [_make_image(model.tokens, random, k) for k in (0, 20, 40, 1, 2)]  # blocks 0, 0, 0, 1, 2
    words = np.array(model.pick_ordinary_tokens(WORDS))
    first = _make_text(model, random, words, length)
    windows = [first]
    while len(windows) < 3:
        window = _make_text(model, random, words, length)
        if window.block == first.block:
            windows.append(window)
    return windows + [_make_text(model, random, words, max(2, n)) for n in (length - 1, length // 3)]


def _make_text(model: Model, random: np.random.Generator, words: Any, length: int) -> Window:
    ends, commas = random.random(length) < 0.08, random.random(length) < 0.1
    special = np.zeros(length, dtype=bool)
    special[[0, -1]] = True
    ids = random.choice(words, length)
    return model.adapt_window(Window(ids, special, sentences.number_by_tokens(ends), ends, commas & ~ends))


def _make_image(patches: Patches, random: np.random.Generator, digest: int) -> Window:
    pixels = random.standard_normal(patches.shape).astype(np.float32)
    return replace(Window.plain(np.arange(patches.length)), pixels=pixels, u=digest)


def _find_difference(counted: Tally, reference: Tally, tolerance: float) -> str:
    for quantity in QUANTITIES:
        if quantity.name in reference.arrays and not _is_sum_close(quantity, counted, reference, tolerance):
            return quantity.name
    if counted.dominant_tokens.total != counted["texts_with_pairs"].sum():
        return "dominant_tokens"
    texts = [sum(int(counts.sum()) for counts in tally.most_attended.values()) for tally in (counted, reference)]
    return "most_attended" if texts[0] != texts[1] else ""


def _is_sum_close(quantity: Quantity, tally: Tally, reference: Tally, tolerance: float) -> bool:
    counted, expected = tally[quantity.name], reference[quantity.name]
    near = int(reference["near_threshold"].sum())
    if quantity.real:
        slack = 2.0 * near if quantity.name in OF_HIGH_PAIRS else 0.0
        if quantity.name == "output_sums":  # of centered outputs the sum is zero, and what is left of them rounding
            slack = tolerance * float(reference["output_products"].max() * reference["output_tokens"].sum()) ** 0.5
        return _is_close(torch.from_numpy(counted), torch.from_numpy(expected), tolerance, slack)
    if quantity.name in ("near_bin_edge", "value_histogram"):
        near = int(reference["near_bin_edge"].sum())
    if quantity.name.startswith("near_"):  # elements at the limit of nearness itself may differ
        return bool(np.abs(counted - expected).max() <= 2 + int(expected.max()) // 10)
    slack = 2 * near * (tally.shape.length if quantity.name == "distance_sum" else 1)
    return bool(np.abs(counted - expected).sum() <= slack)


def _is_close(values: torch.Tensor, expected: torch.Tensor, tolerance: float, slack: float = 0.0) -> bool:
    if not expected.numel():
        return True
    return bool((values - expected).abs().max() <= tolerance * expected.abs().max() + slack)


def choose_backend(plan: RunPlan, model: Model) -> Choice:
    """Return the kernel for a model on this machine.

    A fast kernel counts a few made-up texts first. One that differs from plain torch is replaced by `torch` and
    the reason is noted; one that was asked for by name is an error.
    """
    tf32 = plan.tf32 and can_use_tf32(model)
    counting = plan.get_counting(model)
    choice = choose_kernel(plan.kernel, counting, model.device, tf32=tf32)
    if choice.name not in FASTEST.values():
        return choice
    trial_counting = select_one_layer(counting)
    # Of the map, its kind: its numbers do not decide whether a kernel works, and are too large to be kept.
    key = choice.name, replace(trial_counting, output_map=None), plan.settings.similarity, tf32
    if key not in model.kernel_errors:
        tallier = choose_kernel(choice.name, trial_counting, model.device, tf32=tf32).make()
        model.kernel_errors[key] = find_disagreement(tallier, trial_counting, model, rounded=tf32)
    difference = model.kernel_errors[key]
    if not difference:
        return choice
    if plan.kernel != AUTO:
        raise StudyError(f"the kernel {choice.name} cannot do this: {difference}: choose --kernel torch")
    plain = choose_kernel("torch", counting, model.device, tf32=tf32)
    return replace(plain, note=f"not {choice.name}: {difference}")


def can_use_tf32(model: Model) -> bool:
    """Return whether a model's products of single-precision numbers can be in TF32 on its device.

    TF32 rounds to eleven bits before each product, which is several times faster on NVIDIA GPUs from 2020 on.
    """
    if model.device.type != "cuda" or model.dtype != "float32":
        return False
    return torch.cuda.get_device_capability(model.device) >= (8, 0)
