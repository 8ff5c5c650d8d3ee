"""Replay the layers below a silenced head: they return what they returned before and need not be computed again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch

from headscope.array_types import Floats
from headscope.model.architecture import find_layer_positions
from headscope.model.model import Model


class LayerReplay:
    """Outputs of the layers of a model's observed stack in one run, to be returned again in later runs.

    This is exact where the layers are in one list and are called in turn. That is not assumed: before layers are
    skipped for the first time, `verify` compares the result with that of a full run.
    """

    def __init__(self, model: Model) -> None:
        architecture = model.architecture
        places = find_layer_positions(model.network, model._plan.of([architecture.stack]))
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
