"""Change what a model computes while it runs, and leave it unchanged afterwards: silence heads, gate them, skip layers.

What a head writes is changed where it enters the output projection, so all other computation is the model's own,
however it is called: by headscope, by user code, by `generate`. Two threads cannot use it on the same model.

The architecture of a model lists the projections. In which layout a projection receives the heads (as a sequence,
channels first, beside other columns) is found out in one run over a few tokens, by comparing the outputs that were
observed with what entered the projection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal, get_args
from weakref import WeakKeyDictionary

import numpy as np
import torch
from transformers import PreTrainedModel

from headscope.array_types import Bools, Floats
from headscope.corpus.windows import Batch, Window
from headscope.devices import send, to_float64
from headscope.errors import ModelError, StudyError
from headscope.head_selection import Head, Heads, select_heads
from headscope.model.architecture import TOKENS, StackArchitecture, find_layer_positions
from headscope.model.capture.records import CAPTURE_TOLERANCE, watch_inputs
from headscope.model.image_patches import Patches
from headscope.model.model import Model

AblationType = Literal["zero", "mean"]
"""what a silenced head writes: zero, or its mean output"""

# -- heads of a model -------------------------------------------------------------------------------------------------


def list_heads(architecture: StackArchitecture) -> list[Head]:
    """Return every head of a stack, layer by layer."""
    return architecture.list_heads()


def resolve_heads(architecture: StackArchitecture, heads: Heads, *, some_left: bool = True) -> list[Head]:
    """Return heads of a stack as pairs of numbers.

    Raises:
        StudyError: A head is not in the stack or is named twice; with `some_left`, also if these are all heads.
    """
    layer_heads = {
        layer: range(count) for layer, count in zip(architecture.numbers, architecture.head_counts, strict=True)
    }
    pairs = select_heads(heads, architecture.numbers, layer_heads, owner=f"the model's {architecture.stack}")
    if some_left and len(pairs) == sum(architecture.head_counts):
        raise StudyError(
            f"these are all {len(pairs)} heads of the model's {architecture.stack}: leave at least one that is not "
            "silenced"
        )
    return pairs


def _as_mask(architecture: StackArchitecture, heads: Iterable[Head]) -> Bools:
    """Return a mask (layers, heads) that is True for these heads."""
    mask = np.zeros((architecture.layers, architecture.heads), dtype=bool)
    for layer, head in heads:
        mask[architecture.numbers.index(layer), head] = True
    return mask


# -- silencing --------------------------------------------------------------------------------------------------------


def check_ablation_type(ablation_type: str) -> None:
    """Raise a StudyError unless it is one of `AblationType`."""
    if ablation_type not in get_args(AblationType):
        raise StudyError(f"ablation type {ablation_type!r}: choose one of {', '.join(get_args(AblationType))}")


@contextmanager
def silenced(
    model: Model, heads: Heads, *, ablation_type: AblationType = "zero", means: Floats | None = None
) -> Iterator[Model]:
    """Run the model with these heads silent within this context.

    Nothing of what they write reaches the output projection; with `ablation_type="mean"`, their mean output does, for
    every token. Contexts can be nested. What `observe` reports of a silenced head is what it would have written.

    Parameters
    ----------
    model
        From `headscope.load`.
    heads
        Heads of the observed stack, such as `L0H1,L3H4-7`, a layer `L3`, or pairs (layer, head).
    ablation_type
        What they write: `zero`, or `mean`, their mean output.
    means
        Mean outputs (layer, head, width), which `headscope.model.interventions.compute_head_means` returns; required
        for `ablation_type="mean"`.

    Yields
    ------
    Model
        The same model.

    Raises
    ------
    StudyError
        There is no such head, or all are named.

    Examples
    --------
    >>> import headscope
    >>> model = headscope.load()
    >>> with headscope.silenced(model, "L0H1,L3H4-7"):
    ...     study = headscope.study(model, ["Two ravens met. The ravens left."])
    """
    architecture = model.architecture
    check_ablation_type(ablation_type)
    silent = _as_mask(architecture, resolve_heads(architecture, heads))
    layers = set(np.flatnonzero(silent.any(axis=1)).tolist())
    masks = torch.from_numpy(silent).to(model.device)[..., None]
    values = _convert_means(model, means) if ablation_type == "mean" else None

    def silence(layer: int, written: torch.Tensor) -> torch.Tensor:
        mask = masks[layer, : architecture.head_counts[layer]]
        if values is None:
            # Not multiplied by 0, which would turn infinite outputs into NaN.
            return written.masked_fill(mask, 0)
        return torch.where(mask, values[layer, : len(mask)].to(written.dtype), written)

    with edit_outputs(model, silence, layers):
        yield model


@contextmanager
def gated(model: Model, gates: torch.Tensor) -> Iterator[Model]:
    """Multiply what each head writes with its gate within this context.

    Results of the network are a differentiable function of the gates. 1 leaves a head as it is, 0 silences it.

    Args:
        gates: (layers, heads)
    """
    architecture = model.architecture
    if tuple(gates.shape) != (architecture.layers, architecture.heads):
        raise StudyError(
            f"gates are {tuple(gates.shape)}: {model.name} needs one for each of its {architecture.layers} × "
            f"{architecture.heads} heads"
        )
    gates_on_device = gates.to(model.device)

    def apply_gate(layer: int, written: torch.Tensor) -> torch.Tensor:
        return written * gates_on_device[layer, : architecture.head_counts[layer], None].to(written.dtype)

    with edit_outputs(model, apply_gate, set(range(architecture.layers))):
        yield model


def compute_head_means(model: Model, batches: Iterable[Batch]) -> Floats:
    """Return the mean output of each head over all real tokens of these batches: (layers, heads, width), float64."""
    widths = find_sites(model).widths
    if len(set(widths)) > 1:
        raise ModelError(
            f"{model.name}: the heads of its layers are of different width ({', '.join(map(str, sorted(set(widths))))})"
            ": silence them by zero"
        )
    sums: list[torch.Tensor | float] = [0.0] * model.architecture.layers
    tokens = 0
    for batch in batches:
        (real,) = send([batch.real], model.device)

        def add_outputs(layer: int, output: torch.Tensor, attention: torch.Tensor, real: torch.Tensor = real) -> None:
            # Outputs of padding may be NaN: they are left out, not multiplied by 0.
            sums[layer] = sums[layer] + to_float64(output[real]).sum(dim=0)

        model.observe(batch, add_outputs)
        tokens += int(batch.real.sum())
    if not tokens:
        raise StudyError("means need at least one text")
    return np.stack([torch.as_tensor(layer_sum).cpu().numpy() for layer_sum in sums]) / tokens


def _convert_means(model: Model, means: Floats | None) -> torch.Tensor:
    """Check the means, and return them as float32 on the model's device."""
    architecture, widths = model.architecture, find_sites(model).widths
    if means is None:
        raise StudyError('ablation_type="mean" needs the means: pass means=compute_head_means(model, batches)')
    array = np.asarray(means)
    expected = (architecture.layers, architecture.heads, *sorted(set(widths)))
    if array.shape != expected:
        raise StudyError(f"means are {array.shape}: {model.name} needs {expected}, for each layer, head and width")
    if not np.isfinite(array).all():
        raise StudyError("means contain numbers that are not finite")
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32)).to(model.device)


# -- where heads enter their projections ------------------------------------------------------------------------------

OutputEdit = Callable[[int, torch.Tensor], torch.Tensor]
"""Given a layer of the observed stack, counted from 0, and what its heads write (…, heads, width), returns what they
write instead, of the same shape."""


@dataclass(frozen=True, eq=False)
class Site:
    """Where the heads of one layer enter their projection."""

    module: torch.nn.Module
    heads: int
    width: int
    axis: int
    """axis of the projection's input along which the heads are concatenated, from its start"""

    def edit_input(self, inputs: torch.Tensor, edit: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """Return the projection's input with the heads' outputs (…, heads, width) edited."""
        columns = inputs.movedim(self.axis, -1)
        joined = self.heads * self.width
        own, others = columns[..., :joined], columns[..., joined:]
        edited = edit(own.reshape(*own.shape[:-1], self.heads, self.width)).flatten(-2).to(inputs.dtype)
        return (torch.cat([edited, others], dim=-1) if others.shape[-1] else edited).movedim(-1, self.axis)


@dataclass(frozen=True, eq=False)
class Sites:
    """The sites of a model's observed stack."""

    layers: list[Site | None]
    """None: what mixes the heads of this layer is no module"""
    calls: dict[torch.nn.Module, list[int | None]]
    """layer that each call of a projection serves, in the order of the calls in one run; None: of another stack"""

    @property
    def widths(self) -> list[int]:
        return [site.width for site in self.layers if site is not None]


_cache: WeakKeyDictionary[torch.nn.Module, dict[str, Sites]] = WeakKeyDictionary()
"""by network and stack"""


def find_sites(model: Model) -> Sites:
    """Return where the heads of the observed stack enter their projections; computed once for a network."""
    by_stack, stack = _cache.setdefault(model.network, {}), model.architecture.stack
    if stack not in by_stack:
        by_stack[stack] = _detect_sites(model)
    return by_stack[stack]


@contextmanager
def edit_outputs(model: Model, edit: OutputEdit, layers: set[int]) -> Iterator[None]:
    """Within this context, edit what the heads of these layers (counted from 0) write, however the network is run."""
    sites = find_sites(model)
    missing = [model.architecture.numbers[k] for k in sorted(layers) if sites.layers[k] is None]
    if missing:
        raise ModelError(
            f"{model.name}: its heads cannot be silenced: what mixes them in layer {missing[0]} is no module of the "
            f"model type {model.type!r}"
        )
    projections = [module for module, calls in sites.calls.items() if layers.intersection(calls)]
    with ExitStack() as stack:
        for module in projections:
            stack.enter_context(_hook_projection(model.network, module, sites, edit, layers))
        yield


@contextmanager
def _hook_projection(
    network: torch.nn.Module, module: torch.nn.Module, sites: Sites, edit: OutputEdit, layers: set[int]
) -> Iterator[None]:
    """Edit the input of one projection. It may serve several layers: its calls are counted from the start of a run."""
    calls, call_count = sites.calls[module], 0

    def reset_count(_: torch.nn.Module, args: Any) -> None:
        nonlocal call_count
        call_count = 0

    def edit_call(_: torch.nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        nonlocal call_count
        layer = calls[call_count % len(calls)]
        call_count += 1
        site = None if layer is None or layer not in layers else sites.layers[layer]
        if site is None or layer is None:
            return None
        return (site.edit_input(args[0], lambda written: edit(layer, written)), *args[1:])

    # A run starts with the whole network or with its encoder or decoder: either may be called alone.
    entry_points = [
        other for other in network.modules() if isinstance(other, PreTrainedModel) and _has_submodule(other, module)
    ]
    handles = [module.register_forward_pre_hook(edit_call)]
    if len(calls) > 1:
        handles += [entry_point.register_forward_pre_hook(reset_count) for entry_point in entry_points]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _has_submodule(parent: torch.nn.Module, module: torch.nn.Module) -> bool:
    return any(submodule is module for submodule in parent.modules())


def _detect_sites(model: Model) -> Sites:
    stack = model.architecture.stack
    calls, layer_calls = dict[torch.nn.Module, list[int | None]](), list[_ProjectionCall | None]()
    for call in model.attention_plan.calls:
        is_own = call.stack == stack
        if call.projection is not None:
            served = calls.setdefault(call.projection.module, [])
            layer_calls += [_ProjectionCall(call.projection.module, len(served))] * is_own
            served.append(len(layer_calls) - 1 if is_own else None)
        else:
            layer_calls += [None] * is_own
    outputs: list[torch.Tensor] = []
    entered: dict[torch.nn.Module, list[torch.Tensor]] = {module: [] for module in calls}
    head_counts = model.architecture.head_counts
    with watch_inputs(calls, lambda module, inputs: entered[module].append(inputs)):
        model.observe(make_probe(model), lambda layer, output, _: outputs.append(output[:, :, : head_counts[layer]]))
    layers = [
        None if call is None else _match_site(model, call.module, entered[call.module][call.index], output)
        for call, output in zip(layer_calls, outputs, strict=True)
    ]
    return Sites(layers, calls)


@dataclass(frozen=True, eq=False)
class _ProjectionCall:
    module: torch.nn.Module
    index: int
    """number of the call among those of the module in one run"""


def make_probe(model: Model) -> Batch:
    """Return one window of a few tokens, or one image of noise."""
    if isinstance(model.tokens, Patches):
        plain = Window.plain(np.arange(model.tokens.length))
        return Batch.of([Window(**{**vars(plain), "pixels": model.tokens.noise()[0], "u": 0})])
    return Batch.of(
        [model.adapt_window(Window.plain(np.array(model.pick_ordinary_tokens(TOKENS), dtype=np.int64)))],
        model.tokens.pad_id,
    )


def _match_site(model: Model, module: torch.nn.Module, inputs: torch.Tensor, output: torch.Tensor) -> Site:
    """Return the layout in which a projection's input contains the output of the heads (…, heads, width)."""
    heads, width = output.shape[2:]
    joined = output.reshape(-1, heads * width)
    for axis in (-1, 1):
        if inputs.dim() <= 1 or inputs.shape[axis] < heads * width:
            continue
        rows = inputs.movedim(axis, -1)[..., : heads * width].reshape(-1, heads * width)
        # In half precision, too, the input is the very tensor that was observed: no larger tolerance is needed.
        if rows.shape == joined.shape and bool((rows - joined).abs().max() <= CAPTURE_TOLERANCE * joined.abs().max()):
            return Site(module, heads, width, axis)
    raise ModelError(
        f"{model.name}: its heads cannot be silenced: the projection of the model type {model.type!r} is given them in "
        f"a form that is not known here ({tuple(inputs.shape)} for {heads} heads of width {width})"
    )


# -- skipping layers --------------------------------------------------------------------------------------------------


class LayerReplay:
    """Outputs of the layers of a model's observed stack in one run, to be returned again in later runs.

    This is exact where the layers are in one list and are called in turn. That is not assumed: before layers are
    skipped for the first time, `verify` compares the result with that of a full run.
    """

    def __init__(self, model: Model) -> None:
        architecture = model.architecture
        places = find_layer_positions(model.network, model.attention_plan.of([architecture.stack]))
        self._layers: list[torch.nn.Module] = [] if places is None else list(model.network.get_submodule(places[0]))
        self._numbers = architecture.numbers if places is None else places[1]
        self._outputs: list[Any] = []
        self.verified: dict[int, bool] = {}
        """by layer, counted from 0: whether those below it can be skipped; without an entry it is not known"""

    def verify(self, layer: int, expected: Floats, run: Callable[[], Floats]) -> None:
        """Compare a run that skips the layers below this one with a full run: they must be equal bit for bit."""
        self.verified[layer] = False
        if not self._layers or self._numbers[layer] == 0:
            return
        # A model that calls its layers in an unusual way may raise anything.
        with suppress(Exception), self._replay(self._numbers[layer]):
            self.verified[layer] = np.array_equal(run(), expected)

    @contextmanager
    def record(self) -> Iterator[None]:
        """Within this context the network is run once, and the outputs of its layers are recorded."""
        self._outputs = [None] * len(self._layers)

        def keep_output(position: int, output: Any) -> None:
            self._outputs[position] = output

        handles = [
            layer.register_forward_hook(lambda module, args, output, position=position: keep_output(position, output))
            for position, layer in enumerate(self._layers)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @contextmanager
    def skip_below(self, layer: int) -> Iterator[None]:
        """Within this context the layers below this one return what they returned before, if that is verified."""
        with self._replay(self._numbers[layer] if self.verified[layer] else 0):
            yield

    @contextmanager
    def _replay(self, count: int) -> Iterator[None]:
        overrides = [vars(layer).get("forward") for layer in self._layers[:count]]
        for layer, recorded in zip(self._layers[:count], self._outputs, strict=False):
            layer.forward = lambda *args, recorded=recorded, **options: recorded
        try:
            yield
        finally:
            for layer, forward in zip(self._layers[:count], overrides, strict=True):
                if forward is None:
                    del layer.forward
                else:
                    layer.forward = forward
