"""Verification by intervention: what is captured is what each head writes, and what its output projection mixes.

The network runs twice over the same few tokens. In the second run the captured output of every head at every token is
multiplied with a factor of its own. A capture is verified if

- exactly one linear map between this attention and the next gets changed inputs: the output projection;
- what it gets of each head at each token has changed by exactly this factor. So the captured outputs are its input, or
  what a gate, a norm or a rotation within each head made of them: no head or token is dropped, exchanged or mixed with
  others, and nothing is added;
- with the projection's original input put back, everything after it is as in the first run: heads' outputs have no
  other way into the model.

Each map multiplied with its values must give the captured outputs. Tensors of the first run are compared as copies,
made when they are captured: a model may change them in place later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from headscope.model.capture.records import (
    CAPTURE_TOLERANCE,
    LAYOUTS,
    CapturedAttention,
    OnCapture,
    Projection,
    read_heads,
)

HALF_TOLERANCE = 2e-2
"""the same as `CAPTURE_TOLERANCE` in half precision"""
MAP_TOLERANCE = 1e-3
"""the same for maps times values, which fused kernels compute in another order, or in TF32"""
SCALES, SIGNS = (0.5, 2.0, -0.5, -1.0, -2.0), (1.0, -1.0)
"""Factors of heads: powers of two are exact in every dtype. Signs alone pass through a norm unchanged."""
FACTOR_DRAWS = 200
WEIGHT_FUNCTIONS = frozenset({"einsum", "matmul", "__matmul__", "bmm", "tensordot"})
"""functions that a model may call with a weight of its own in place of a linear module"""

RunNetwork = Callable[[OnCapture], Any]
"""Runs a network, with the callback observing its attention, and returns what the network returned."""
OnInput = Callable[[torch.nn.Module | None, int, torch.Tensor], torch.Tensor | None]
"""Called with a linear map (its module, if it is one, and a key that identifies it) and its input; may replace it."""


@dataclass(frozen=True, eq=False)
class _LinearInput:
    key: int
    tensor: torch.Tensor


@dataclass(frozen=True)
class Verdict:
    """What verification found out about one attention computation."""

    projection: Projection | None = None
    """None: unverified, or its projection is no module"""
    problem: str = ""
    """why it is not verified"""


@dataclass(eq=False)
class Recording:
    """Copies of what one run computed."""

    captures: list[CapturedAttention] = field(default_factory=list)
    inputs: list[list[_LinearInput]] = field(default_factory=list)
    """for each captured attention, the inputs of the linear maps between it and the next"""
    map_problems: list[str] = field(default_factory=list)
    results: list[torch.Tensor] = field(default_factory=list)

    @classmethod
    def of_run(cls, network: torch.nn.Module, run: RunNetwork) -> Recording:
        recording = cls()
        with _tap_linear_maps(network, recording._add_input):
            result = run(recording._add_capture)
        recording.results = _list_tensors(result)
        return recording

    def _add_capture(self, captured: CapturedAttention) -> None:
        self.map_problems.append(_check_maps(captured))
        copy = CapturedAttention(captured.module, captured.output.clone(), captured.attention.clone(), captured.route)
        self.captures.append(copy)
        self.inputs.append([])

    def _add_input(self, module: torch.nn.Module | None, key: int, tensor: torch.Tensor) -> None:
        if self.inputs:
            self.inputs[-1].append(_LinearInput(key, tensor.clone()))

    def find_repeated_attention(self) -> CapturedAttention | None:
        """Return an attention computation whose module computes another before any linear map."""
        for number, (first, second) in enumerate(zip(self.captures, self.captures[1:], strict=False)):
            if first.module is second.module and not self.inputs[number]:
                return first
        return None


def verify_captures(
    network: torch.nn.Module, run: RunNetwork, recording: Recording, groups: Iterable[Set[int]]
) -> dict[int, Verdict]:
    """Return the verdict on each attention computation of a recording.

    Args:
        groups: Numbers of the computations that belong together. If one of a group is not verified, no later one is.
    """
    groups = [group for group in groups if group]
    verdicts = _verify_group(network, run, recording, frozenset[int]().union(*groups))
    if len(groups) > 1 and any(verdict.problem for verdict in verdicts.values()):
        verdicts = {}
        for group in groups:
            verdicts |= _verify_group(network, run, recording, group)
    return verdicts


def _verify_group(
    network: torch.nn.Module, run: RunNetwork, recording: Recording, numbers: Set[int]
) -> dict[int, Verdict]:
    first: dict[int, Verdict] = {}
    if not numbers:
        return first
    for factors in (SCALES, SIGNS):
        intervention = _Intervention(recording, numbers, factors)
        with _tap_linear_maps(network, intervention.handle_input):
            result = run(intervention.handle_capture)
        verdicts = intervention.finish(result)
        if not any(verdict.problem for verdict in verdicts.values()):
            return verdicts
        first = first or verdicts
    again = Recording.of_run(network, run)
    pairs = zip(again.captures, recording.captures, strict=False)
    if not all(_is_equal(actual.output, expected.output) for actual, expected in pairs):
        return {min(numbers): Verdict(problem="two runs over the same tokens differ: the model draws random numbers")}
    return first


class _Intervention:
    """Multiply heads' outputs with factors during a run, and compare the run with a recording."""

    def __init__(self, recording: Recording, numbers: Set[int], factors: tuple[float, ...]) -> None:
        self.recording, self.numbers, self.factor_values = recording, numbers, factors
        self.problems = {number: recording.map_problems[number] for number in numbers}
        self.projections: dict[int, list[Projection | None]] = {number: [] for number in numbers}
        """None: a projection that is no module, which cannot be watched and need not be, as it gets what is captured"""
        self.number = -1
        """number of the last attention computation"""
        self.position = 0
        """number of the next linear map after it"""
        self.last_changed: int | None = None
        """number of the last attention computation whose outputs were multiplied"""
        self.factors = torch.ones(1)
        self.has_diverged = False
        """the rest of the run cannot be compared"""

    def handle_capture(self, captured: CapturedAttention) -> None:
        self._close()
        self.number += 1
        self.position = 0
        if self.has_diverged:
            return
        if self.number >= len(self.recording.captures) or not _is_equal(
            captured.output, self.recording.captures[self.number].output
        ):
            self._report_leak()
        elif self.number in self.numbers:
            self.factors = _draw_factors(captured.output, self.number, self.factor_values)
            captured.output.mul_(self.factors)
            self.last_changed = self.number

    def handle_input(self, module: torch.nn.Module | None, key: int, tensor: torch.Tensor) -> torch.Tensor | None:
        """Compare the input of a linear map, and return the recorded one where it is what the heads write."""
        if self.has_diverged or self.number < 0:
            return None
        inputs = self.recording.inputs[self.number]
        if self.position >= len(inputs) or inputs[self.position].key != key:
            self._report_leak()
            return None
        expected = inputs[self.position].tensor
        self.position += 1
        if _is_equal(tensor, expected):
            return None
        if self.number != self.last_changed:
            self._report_leak()
            return None
        is_first = not self.projections[self.number]
        output = self.recording.captures[self.number].output
        for layout in LAYOUTS:
            heads = read_heads(expected, layout, output.shape)
            changed = read_heads(tensor, layout, output.shape)
            if heads is None or changed is None or not _is_equal(changed, heads * self.factors):
                continue
            if layout == "followed by others" and not _is_equal(
                tensor[..., output[0, 0].numel() :], expected[..., output[0, 0].numel() :]
            ):
                continue
            is_direct = _is_equal(heads, output)
            if module is None and not is_direct:
                self._report("its projection is no module of its own, and gets other numbers than what was captured")
                return None
            self.projections[self.number].append(None if module is None else Projection(module, is_direct, layout))
            return expected
        if is_first:
            self._report(_describe_change(tensor, expected, output, self.factors))
        else:
            self._report_leak()
        return None

    def _close(self) -> None:
        """Judge the last attention computation when no further linear map can be its projection."""
        if self.number not in self.numbers or self.has_diverged:
            return
        count = len(self.projections[self.number])
        if not count:
            self._report("no linear map takes its heads' outputs")
        elif count > 1:
            self._report(f"its heads' outputs enter {count} linear maps, of which only one can be the projection")

    def _report_leak(self) -> None:
        self._report("its heads' outputs reach the next layers by another way than its output projection")

    def _report(self, problem: str) -> None:
        self.has_diverged = True
        number = min(self.numbers) if self.last_changed is None else self.last_changed
        self.problems[number] = self.problems[number] or problem

    def finish(self, result: Any) -> dict[int, Verdict]:
        self._close()
        if not self.has_diverged:
            results = _list_tensors(result)
            is_complete = self.number == len(self.recording.captures) - 1 and len(results) == len(
                self.recording.results
            )
            if not is_complete or not all(map(_is_equal, results, self.recording.results)):
                self._report_leak()
        return {
            number: Verdict(projections[0] if len(projections) == 1 else None, self.problems[number])
            for number, projections in self.projections.items()
        }


def _describe_change(tensor: torch.Tensor, expected: torch.Tensor, output: torch.Tensor, factors: torch.Tensor) -> str:
    """Say what a model does with heads' outputs before they enter the first linear map."""
    if tensor.numel() < output.numel():
        return (
            f"its heads write {output.numel():,} numbers and the next linear map gets {tensor.numel():,}: heads are "
            "left out or merged"
        )
    if tensor.numel() == output.numel() and tensor.shape == expected.shape:
        if _is_equal(tensor.flatten().sort().values, (output * factors).flatten().sort().values):
            return "heads or tokens are rearranged before the output projection (routed to experts, for instance)"
        for layout in LAYOUTS:
            before, after = (read_heads(value, layout, output.shape) for value in (expected, tensor))
            if before is not None and after is not None and _is_equal(after - before, output * (factors - 1)):
                return "something else is added to its heads' outputs before the output projection"
    return "its heads' outputs are mixed with each other or with something else before the output projection"


def _draw_factors(output: torch.Tensor, seed: int, values: tuple[float, ...]) -> torch.Tensor:
    """Return a factor for each (text, token, head, 1), such that no two heads and no two tokens have the same ones.

    Few heads and tokens may leave no such choice: then the last draw is taken.
    """
    random = np.random.default_rng(seed)
    texts, tokens, heads = output.shape[:3]
    chosen = np.ones((texts, tokens, heads))
    for _ in range(FACTOR_DRAWS):
        chosen = random.choice(values, (texts, tokens, heads))
        by_head, by_token = chosen.reshape(-1, heads), np.moveaxis(chosen, 1, 0).reshape(tokens, -1)
        if len(np.unique(by_head, axis=1).T) == heads and len(np.unique(by_token, axis=0)) == tokens:
            break
    return torch.from_numpy(chosen[..., None]).to(output.device, output.dtype)


def _check_maps(captured: CapturedAttention) -> str:
    """Return what is wrong with the maps; empty if their product with the values is the outputs.

    Outputs of a traced softmax are that product by construction, and come without values.
    """
    value, maps = captured.value, captured.attention
    if value is None:
        return "" if captured.route == "products" else "its values are not known"
    if value.dim() != 4 or maps.shape[1] % value.shape[1] or value.shape[2] != maps.shape[3]:
        return f"its maps {tuple(maps.shape)} and values {tuple(value.shape)} cannot be multiplied"
    value = value.repeat_interleave(maps.shape[1] // value.shape[1], 1)
    product = (maps.to(value.dtype) @ value).transpose(1, 2)
    if product.shape != captured.output.shape or not _is_equal(product, captured.output, MAP_TOLERANCE):
        return "its maps multiplied with its values do not give its heads' outputs"
    return ""


def _is_equal(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = CAPTURE_TOLERANCE) -> bool:
    """Return whether tensors are equal up to rounding. NaN and infinite numbers count as equal: they are errors."""
    if actual.shape != expected.shape:
        return False
    is_finite = torch.isfinite(expected)
    if not torch.equal(torch.isfinite(actual), is_finite):
        return False
    actual, expected = actual[is_finite], expected[is_finite]
    if not actual.numel():
        return True
    if expected.dtype in (torch.float16, torch.bfloat16):
        tolerance = HALF_TOLERANCE
    return bool((actual - expected).abs().max() <= tolerance * expected.abs().max())


def _list_tensors(result: Any) -> list[torch.Tensor]:
    values = result.values() if isinstance(result, dict) else result if isinstance(result, tuple) else [result]
    return [value for value in values if isinstance(value, torch.Tensor) and value.is_floating_point()]


# -- linear maps ------------------------------------------------------------------------------------------------------


@contextmanager
def _tap_linear_maps(network: torch.nn.Module, on_input: OnInput) -> Iterator[None]:
    """Call `on_input` with the input of every linear map of a network, within this context."""

    def tap(module: torch.nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if not args or not isinstance(args[0], torch.Tensor) or not args[0].is_floating_point():
            return None
        replacement = on_input(module, id(module), args[0])
        return None if replacement is None else (replacement, *args[1:])

    handles = [module.register_forward_pre_hook(tap) for module in network.modules() if _is_linear(module)]
    try:
        with _WeightProducts(network, on_input):
            yield
    finally:
        for handle in handles:
            handle.remove()


def _is_linear(module: torch.nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(weight, torch.Tensor) and weight.dim() >= 2 and not isinstance(module, torch.nn.Embedding)


class _WeightProducts(TorchFunctionMode):
    """Call `on_input` with what a model multiplies with a weight outside of any linear module, as XLNet does."""

    def __init__(self, network: torch.nn.Module, on_input: OnInput) -> None:
        super().__init__()
        self.on_input = on_input
        self.weights = {weight.untyped_storage().data_ptr() for weight in network.parameters()}

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(function, "__name__", "") in WEIGHT_FUNCTIONS:
            args = self._replace_inputs(args)
        return function(*args, **(kwargs or {}))

    def _replace_inputs(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        operands = [arg for arg in args if isinstance(arg, torch.Tensor)]
        keys = [operand.untyped_storage().data_ptr() for operand in operands]
        weights = [key for key in keys if key in self.weights]
        if len(weights) != 1 or len(operands) != 2:
            return args
        other = operands[1 - keys.index(weights[0])]
        replacement = self.on_input(None, weights[0], other)
        return args if replacement is None else tuple(replacement if arg is other else arg for arg in args)
