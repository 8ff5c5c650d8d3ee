"""The layers below a silenced head give what they gave before: they need not be computed again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch

from headscope.model.anatomy import places_of
from headscope.model.model import Model
from headscope.types import Floats


class Reuse:
    """What the layers of a model's watched stack returned in one run, to be returned again.

    Where layers stand in one list and are called in turn this is exact, and nothing is taken on trust: `proven` is
    asked before a layer's reuse for the first time, with the result of a whole run to compare with.
    """

    def __init__(self, model: Model) -> None:
        anatomy = model.anatomy
        places = places_of(model.network, model._plan.of([anatomy.stack]))
        self._layers: list[torch.nn.Module] = [] if places is None else list(model.network.get_submodule(places[0]))
        self._numbers = anatomy.numbers if places is None else places[1]
        self._returned: list[Any] = []
        self.proven: dict[int, bool] = {}
        """by layer, counted from 0: whether those below it need not be computed again"""

    def prove(self, layer: int, whole: Floats, run: Callable[[], Floats]) -> None:
        """Hold a run with the layers below this one left out against a whole run: every bit has to be the same."""
        self.proven[layer] = False
        if not self._layers or self._numbers[layer] == 0:
            return
        # A model that calls its layers in a way of its own may break in one of its own.
        with suppress(Exception), self._replayed(self._numbers[layer]):
            self.proven[layer] = np.array_equal(run(), whole)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Within this context the network is run once, and what its layers return is kept."""
        self._returned = [None] * len(self._layers)

        def keep(place: int, returned: Any) -> None:
            self._returned[place] = returned

        handles = [
            layer.register_forward_hook(lambda module, args, returned, place=place: keep(place, returned))
            for place, layer in enumerate(self._layers)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @contextmanager
    def below(self, layer: int) -> Iterator[None]:
        """Within this context the layers below this one return what they returned before."""
        with self._replayed(self._numbers[layer] if self.proven[layer] else 0):
            yield

    @contextmanager
    def _replayed(self, count: int) -> Iterator[None]:
        own = [vars(each).get("forward") for each in self._layers[:count]]
        for each, returned in zip(self._layers[:count], self._returned, strict=False):
            each.forward = lambda *args, returned=returned, **options: returned
        try:
            yield
        finally:
            for each, before in zip(self._layers[:count], own, strict=True):
                if before is None:
                    del each.forward
                else:
                    each.forward = before
