"""A tally: the sums of a study so far. Batches add, checkpoints add, machines add; nothing else has to be known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from headscope.corpus.windows import BLOCKS, Batch
from headscope.errors import ModelError
from headscope.tally.quantities import QUANTITIES, Quantity, Shape
from headscope.types import Ints

if TYPE_CHECKING:
    import torch

Array = np.ndarray[Any, Any]


@dataclass
class Tally:
    """One array for each quantity, blocks first where it is kept in blocks; and which tokens were most attended."""

    shape: Shape
    arrays: dict[str, Array]
    most_attended: dict[int, Ints] = field(default_factory=dict)
    """token id → texts in which it is the most attended token, by block and layer"""

    @classmethod
    def zeros(cls, shape: Shape) -> Tally:
        kept = [quantity for quantity in QUANTITIES if shape.maps or not quantity.is_map]
        return cls(shape, {quantity.name: np.zeros(array_shape(quantity, shape), dtype(quantity)) for quantity in kept})

    def __add__(self, other: Tally) -> Tally:
        """Both together, as a new tally: whatever interrupts the sum leaves this one as it was."""
        if other.shape != self.shape:
            raise ValueError(f"tallies of different shape do not add: {self.shape} and {other.shape}")
        arrays = {name: array + other.arrays[name] for name, array in self.arrays.items()}
        both = Tally(self.shape, arrays, dict(self.most_attended))
        for token, counts in other.most_attended.items():
            both.attend(token, counts)
        return both

    def add(self, other: Tally) -> None:
        """Add another tally to this one, in place. For those that cannot be interrupted."""
        if other.shape != self.shape:
            raise ValueError(f"tallies of different shape do not add: {self.shape} and {other.shape}")
        for name, array in other.arrays.items():
            self.arrays[name] += array
        for token, counts in other.most_attended.items():
            self.attend(token, counts)

    def take(self, other: Tally) -> None:
        """Add another tally to this one, in place, and leave nothing in it."""
        self.add(other)
        for taken in other.arrays.values():
            taken[...] = 0
        other.most_attended.clear()

    def attend(self, token: int, counts: Ints) -> None:
        held = self.most_attended.get(token)
        self.most_attended[token] = counts.copy() if held is None else held + counts

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name]

    def __getstate__(self) -> tuple[Any, ...]:
        """Pickle the counts of all tokens as one array: thousands of small ones take longer than all the rest."""
        counts = list(self.most_attended.values())
        return self.shape, self.arrays, list(self.most_attended), np.stack(counts) if counts else np.zeros(0)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        """Unpickle."""
        self.shape, self.arrays, tokens, counts = state
        self.most_attended = dict(zip(tokens, counts, strict=True))


class Tallier(Protocol):
    """A way to add up batches. The plain one is the definition; all others must give the same sums.

    One that can compute plain attention itself has `attend` too (`model.Attend`), and counts in `shown` the layers that
    were shown to it instead. One whose batches count only some time after their end says of how many that is true in
    `lag`, and has `settle` to have them count. One for several threads has `make_peer`, see `CompiledTallier`.
    """

    def begin(self, batch: Batch) -> None:
        """Get ready for the windows of a batch. What was seen of one that did not end counts for nothing."""

    def see(self, layer: int, output: torch.Tensor, attention: torch.Tensor) -> None:
        """Add one layer: outputs (batch, position, head, width), maps (batch, head, query, key)."""

    def end(self) -> None:
        """All layers of the batch were seen: now it counts."""

    def total(self) -> Tally:
        """The sums over all batches that ended. Not for changing."""


@dataclass(frozen=True)
class Counting:
    """What the sums depend on besides the model and the texts."""

    shape: Shape
    theta: float
    tau: float
    fraction: float
    """of the texts in the sample"""
    causal: bool = False
    """no token looks at a later one, so evenly spread attention reaches only the tokens before"""
    numbers: tuple[int, ...] = ()
    """the layers' numbers, if not 0, 1, 2, …: what an error calls them"""

    def not_finite(self, layer: int, head: int) -> ModelError:
        """The error for outputs of a head that are NaN or infinite; layers are counted from 0 here."""
        return not_finite(self.numbers[layer] if self.numbers else layer, head)


def array_shape(quantity: Quantity, shape: Shape) -> tuple[int, ...]:
    """An array's shape, blocks first where the quantity is kept in blocks."""
    sizes = shape.sizes()
    return ((BLOCKS,) if quantity.in_blocks else ()) + tuple(sizes[dim] for dim in quantity.dims)


def dtype(quantity: Quantity) -> type[np.float64] | type[np.int64]:
    """Counts are exact integers, reals are summed in double precision."""
    return np.float64 if quantity.real else np.int64


def not_finite(layer: int, head: int) -> ModelError:
    """The error for outputs that are NaN or infinite."""
    return ModelError(
        f"the outputs of head L{layer}H{head} are not finite numbers (NaN or infinity): broken weights, "
        "or a numeric type too narrow for this model (try --dtype float32)"
    )
