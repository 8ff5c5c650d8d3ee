"""Units from which heads can be removed: an attention module and the output projection behind it; and trial runs that
compare a changed network with the unchanged one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from headscope.devices import to_float64
from headscope.errors import ModelError
from headscope.model.architecture import disable_image_masking
from headscope.model.capture.attention_interface import prepare_network
from headscope.model.image_patches import Patches
from headscope.model.model import Model
from headscope.pruning.module_changes import KeptIndices, get_input_axis
from headscope.pruning.projection_sites import find_sites

TOLERANCE = 1e-5
"""largest difference, relative to the largest value, between a network without heads and one where they are silent"""
TRIAL_LENGTHS = (12, 7)
"""tokens of the two texts of a trial run; one of them is padded"""

Inputs = dict[str, Any]


@dataclass(frozen=True)
class Unit:
    """One attention module and its projection, by their paths in the base model."""

    layers: tuple[int, ...]
    """the layers that it serves, by their numbers in the model; most serve one"""
    attention: str
    projection: str
    heads: int
    width: int
    weight_axis: int
    """axis of the projection's weight along which the heads are concatenated, from its start"""
    channel_axis: int
    """the same axis of the projection's input"""

    def list_columns(self, heads: Iterable[int]) -> list[int]:
        return [head * self.width + k for head in heads for k in range(self.width)]

    def select_silenced(self, heads: Iterable[int]) -> dict[str, KeptIndices]:
        """Return the columns of the projection's weight that silence these heads when set to 0, by its path."""
        return {f"{self.projection}.weight": KeptIndices(self.weight_axis, self.list_columns(heads))}


def find_units(model: Model) -> list[Unit]:
    """Return the units of the observed stack, in the order of its layers."""
    calls, sites = model._plan.of([model.architecture.stack]), find_sites(model).layers
    paths = {id(module): path for path, module in model.network.base_model.named_modules()}
    layers: dict[int, list[int]] = {}
    units: dict[int, Unit] = {}
    for number, call, site in zip(model.architecture.numbers, calls, sites, strict=True):
        if site is None or id(call.module) not in paths or id(site.module) not in paths:
            raise ModelError(
                f"{model.name}: heads of the model type {model.type!r} cannot be taken out: what mixes those of layer "
                f"{number} is no module of it"
            )
        layers.setdefault(id(site.module), []).append(number)
        units[id(site.module)] = Unit(
            tuple(layers[id(site.module)]),
            paths[id(call.module)],
            paths[id(site.module)],
            site.heads,
            site.width,
            get_input_axis(site.module),
            site.axis,
        )
    return list(units.values())


# -- trial runs -------------------------------------------------------------------------------------------------------


def make_trial_inputs(model: Model) -> Inputs:
    """Return two short texts, one of them padded, or an image of noise."""
    if isinstance(model.tokens, Patches):
        return model.tokens.inputs(model.tokens.noise())
    longest = min(TRIAL_LENGTHS[0], model.max_length or TRIAL_LENGTHS[0])
    ids = np.array([model.pick_ordinary_tokens(longest)] * len(TRIAL_LENGTHS), dtype=np.int64)
    ids[1] = ids[1, ::-1]
    real = np.arange(longest) < np.array(TRIAL_LENGTHS)[:, None]
    ids[~real] = model.tokens.pad_id
    inputs = model.make_token_inputs(ids, real)
    return inputs | model.make_decoder_inputs(ids[:, :-1], real[:, :-1]) if model.is_encoder_decoder else inputs


def convert_inputs(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    """Convert floating-point inputs (pixels) to a dtype; token ids stay integers."""
    return {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in inputs.items()}


def run_network(network: Any, inputs: Inputs) -> torch.Tensor:
    """Return the first output of a network: its last hidden state, or what its head makes of it."""
    arguments = dict(inputs)
    if "use_cache" in inspect.signature(network.forward).parameters:
        arguments["use_cache"] = False
    with disable_image_masking(network):
        return torch.as_tensor(network(**arguments)[0])


def capture_results(network: Any, inputs: Inputs, units: Iterable[Unit] = ()) -> list[torch.Tensor]:
    """Run a network; return its first output, followed by those of the projections of these units."""
    outputs: list[torch.Tensor] = []

    def keep_output(module: torch.nn.Module, args: Any, returned: Any) -> None:
        outputs.append(returned[0] if isinstance(returned, tuple) else returned)

    hooks = [network.base_model.get_submodule(unit.projection).register_forward_hook(keep_output) for unit in units]
    try:
        with prepare_network(network), torch.no_grad():  # some models (Switch) convert weights in a run
            return [run_network(network, inputs), *outputs]
    finally:
        for hook in hooks:
            hook.remove()


def measure_difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the largest difference, relative to the largest value; infinite if they cannot be compared."""
    if one.shape != other.shape:
        return float("inf")
    expected, actual = to_float64(one), to_float64(other)
    largest = float((expected - actual).abs().max() / expected.abs().max().clamp_min(1e-30))
    return largest if np.isfinite(largest) else float("inf")


def has_same_results(network: Any, inputs: Inputs, units: list[Unit], expected: list[torch.Tensor]) -> bool:
    """Return whether a network runs and gives what `capture_results` gave before, within the tolerance."""
    results = _try_run(lambda: capture_results(network, inputs, units))
    if results is None or len(results) != len(expected):
        return False
    return all(measure_difference(before, after) <= TOLERANCE for before, after in zip(expected, results, strict=True))


def _try_run(call: Callable[[], list[torch.Tensor]]) -> list[torch.Tensor] | None:
    try:
        return call()
    except Exception:  # a network whose shapes do not fit may raise anything
        return None
