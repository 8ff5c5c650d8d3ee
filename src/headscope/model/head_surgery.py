"""Take heads out of the modules of a network: which modules have heads, which numbers depend on them, how they change.

A change contains no weights. So a change that was tried on a copy can be applied to any network of the same shape: to
the same model in half precision, or with a language modeling head on top.

What an integer in a module means is inferred from its name (`num_key_value_heads`, `all_head_size`) together with its
value: either alone is ambiguous. Whether the inference was right is decided by a trial run (see
`headscope.pruning.removal`).
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers.pytorch_utils import Conv1D

from headscope.devices import to_float64
from headscope.errors import ModelError
from headscope.model.architecture import disable_image_masking
from headscope.model.capture.attention_interface import prepare_network
from headscope.model.image_patches import Patches
from headscope.model.interventions import find_sites
from headscope.model.model import Model
from headscope.model.pruned_shapes import RECORD, OwnConfig

TOLERANCE = 1e-5
"""largest difference, relative to the largest value, between a network without heads and one where they are silent"""
TRIAL_LENGTHS = (12, 7)
"""tokens of the two texts of a trial run; one of them is padded"""

NOT_A_COUNT = re.compile(r"dim|size|width|rank|scal")
SIZE = re.compile(r"dim|size|width|split|embed|channels|d_model|inner")
OF_KEYS = re.compile(r"key|kv|value")
OF_THE_MODEL = re.compile(r"hidden|embed|model|^dim$")
"""names that mean the model's size in some modules, and the size of all heads together in others"""

Inputs = dict[str, Any]
Undo = Callable[[], None]
Numbers = dict[str, dict[str, int]]
"""integers by attribute name, by the module's path in the base model"""


@dataclass(frozen=True)
class KeptIndices:
    """Indices of a weight that stay along one axis; an index that is listed twice is duplicated."""

    axis: int
    indices: list[int]


# -- modules with heads ------------------------------------------------------------------------------------------------


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
    calls, sites = model.attention_plan.of([model.architecture.stack]), find_sites(model).layers
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


def get_head_weights(model: Model, layer: int, advice: str = "rank by norm instead of projected-norm") -> torch.Tensor:
    """Return the part of a layer's output projection that each head has: (heads, width, model's width), float64.

    Args:
        advice: What to do where it is no plain linear map, for the error.
    """
    site = find_sites(model).layers[layer]
    module = None if site is None else site.module
    if site is None or not isinstance(module, (torch.nn.Linear, Conv1D)):
        raise ModelError(
            f"{model.name}: the output projection of layer {model.architecture.numbers[layer]} is no plain linear map "
            f"({type(module).__name__}), so what a head adds is not known: {advice}"
        )
    rows = module.weight.detach() if isinstance(module, Conv1D) else module.weight.detach().T
    return to_float64(rows[: site.heads * site.width].reshape(site.heads, site.width, -1))


def get_input_axis(module: torch.nn.Module) -> int:
    """Return the axis of a linear map's weight along which its input lies."""
    return 0 if isinstance(module, Conv1D) else 1


def get_size_attributes(module: torch.nn.Module) -> dict[int, str]:
    """Return the attributes in which a module stores the sizes of its weight, by axis; empty where it has none."""
    pairs = (("nx", "nf"), ("out_features", "in_features"), ("out_channels", "in_channels"),
             ("num_embeddings", "embedding_dim"))  # fmt: skip
    for pair in pairs:
        if all(isinstance(getattr(module, name, None), int) for name in pair):
            return dict(enumerate(pair))
    return {}


# -- changes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """The edits to one attention module and its output projection. Paths are relative to the base model."""

    zeroed: dict[str, KeptIndices] = field(default_factory=dict)
    """columns of output projections to set to 0, numbered as in the full weight; applied first"""
    selections: dict[str, list[KeptIndices]] = field(default_factory=dict)
    """weights that lose indices, along one axis after the other"""
    numbers: Numbers = field(default_factory=dict)
    config: Numbers = field(default_factory=dict)
    """values that modules read from the configuration"""

    def apply(self, network: Any) -> Undo:
        """Change a network; return a function that restores it."""
        modules = dict(network.base_model.named_modules())
        undo: list[Undo] = []
        for path, columns in self.zeroed.items():
            undo.append(_zero_columns(modules, path, columns))
        for path, axes in self.selections.items():
            undo.append(_select_indices(modules, path, axes))
        for path, numbers in self.numbers.items():
            undo += [_set_attribute(modules[path], name, value) for name, value in numbers.items()]
        for path, numbers in self.config.items():
            undo.append(_set_attribute(modules[path], "config", OwnConfig(modules[path].config, numbers)))
        return _combine_undo(undo)


def build_record(network: Any) -> dict[str, Any]:
    """Return how a network differs from the one that its configuration describes, in the form that `shrink` reads."""
    config = copy.deepcopy(network.config)
    config.__dict__.pop(RECORD, None)
    with torch.device("meta"):
        original = type(network)(config).base_model
    weights, original_weights = (
        dict(base.named_parameters(remove_duplicate=False)) for base in (network.base_model, original)
    )
    numbers: Numbers = {}
    own_config: Numbers = {}
    modules = zip(network.base_model.named_modules(), original.named_modules(), strict=True)
    for (path, module), (_, original_module) in modules:
        current, expected = _list_integers(module), _list_integers(original_module)
        if changed := {name: value for name, value in current.items() if value != expected.get(name, value)}:
            numbers[path] = changed
        module_config = getattr(module, "config", None)
        if isinstance(module_config, OwnConfig):
            own_config[path] = {name: value for name, value in vars(module_config).items() if name != "_shared"}
    shapes = {
        path: list(weight.shape) for path, weight in weights.items() if weight.shape != original_weights[path].shape
    }
    return {"shapes": shapes, "numbers": numbers, "config": own_config}


def _list_integers(module: torch.nn.Module) -> dict[str, int]:
    return {name: value for name, value in vars(module).items() if type(value) is int}


def _combine_undo(undo: list[Undo]) -> Undo:
    def restore_last_first() -> None:
        for restore in reversed(undo):
            restore()

    return restore_last_first


def _zero_columns(modules: dict[str, Any], path: str, columns: KeptIndices) -> Undo:
    owner, _, name = path.rpartition(".")
    module = modules[owner]
    before = module._parameters[name]
    changed = before.detach().clone()
    changed.index_fill_(columns.axis, torch.tensor(columns.indices, device=changed.device), 0)
    return _replace_parameter(module, name, changed)


def _select_indices(modules: dict[str, Any], path: str, axes: list[KeptIndices]) -> Undo:
    owner, _, name = path.rpartition(".")
    module = modules[owner]
    changed = module._parameters[name].detach()
    for kept_indices in axes:
        indices = torch.tensor(kept_indices.indices, device=changed.device)
        changed = changed.index_select(kept_indices.axis, indices)
    undo = [_replace_parameter(module, name, changed.contiguous())]
    if name == "weight":
        sizes = get_size_attributes(module)
        undo += [_set_attribute(module, attribute, changed.shape[axis]) for axis, attribute in sizes.items()]
    return _combine_undo(undo)


def _replace_parameter(module: Any, name: str, changed: torch.Tensor) -> Undo:
    before = module._parameters[name]
    module._parameters[name] = torch.nn.Parameter(changed, requires_grad=before.requires_grad)

    def restore() -> None:
        module._parameters[name] = before

    return restore


def _set_attribute(module: Any, name: str, value: Any) -> Undo:
    before = getattr(module, name)
    setattr(module, name, value)
    return lambda: setattr(module, name, before)


# -- numbers that depend on the heads ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sizes:
    """Heads, key heads (the same number if each head has its own keys), and the width of a head's output."""

    heads: int
    key_heads: int
    width: int


def update_number(name: str, value: int, before: Sizes, after: Sizes) -> int:
    """Return the value of an attribute after the number of heads has changed."""
    lower = name.lower()
    is_of_keys = bool(OF_KEYS.search(lower))
    if "group" in lower:
        # One key head for all may look like one for each: then the group is all heads.
        new_values = {before.heads // before.key_heads: after.heads // after.key_heads}
        return new_values.get(value, after.heads if value == before.heads and is_of_keys else value)
    old_heads, new_heads = (before.key_heads, after.key_heads) if is_of_keys else (before.heads, after.heads)
    if "head" in lower and not NOT_A_COUNT.search(lower):
        return new_heads if value == old_heads else value
    if SIZE.search(lower):
        return new_heads * after.width if value == old_heads * before.width else value
    return value


def collect_module_numbers(
    attention: torch.nn.Module, path: str, before: Sizes, after: Sizes, *, model_sizes: bool
) -> dict[str, dict[str, int]]:
    """Return the integers that change in an attention module and its submodules: new values by path and name.

    Args:
        path: The path of the module, put before those of its submodules.
        model_sizes: Include names that match `OF_THE_MODEL`.
    """
    new_numbers: dict[str, dict[str, int]] = {}
    for inner, module in attention.named_modules():
        if isinstance(getattr(module, "weight", None), torch.nn.Parameter):
            continue  # its sizes follow those of its weight
        numbers = _collect_changed(vars(module), before, after)
        if not model_sizes:
            numbers = {name: value for name, value in numbers.items() if not OF_THE_MODEL.search(name)}
        if numbers:
            new_numbers[".".join(filter(None, (path, inner)))] = numbers
    return new_numbers


def collect_config_numbers(config: Any, before: Sizes, after: Sizes) -> dict[str, int]:
    """Return the new numbers of heads in a configuration, under all names that it has for them."""
    names = [*vars(config), *getattr(config, "attribute_map", {})]
    counts = {name: getattr(config, name, None) for name in names if "head" in name and not NOT_A_COUNT.search(name)}
    return _collect_changed(counts, before, after)


def _collect_changed(attributes: dict[str, Any], before: Sizes, after: Sizes) -> dict[str, int]:
    current = {
        name: value
        for name, value in attributes.items()
        if isinstance(value, int) and not isinstance(value, bool) and not name.startswith("_")
    }
    updated = {name: update_number(name, value, before, after) for name, value in current.items()}
    return {name: value for name, value in updated.items() if value != current[name]}


# -- trial runs --------------------------------------------------------------------------------------------------------


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
