"""Tally: the sums of a study. Tallies of batches, of checkpoints and of machines add."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from headscope.array_types import Ints
from headscope.corpus.windows import BLOCKS, Batch
from headscope.errors import NonFiniteError, StudyError, make_nonfinite_error
from headscope.tally.example_store import ExampleStore
from headscope.tally.quantities import (
    MAX_RELATIONS,
    QUANTITIES,
    RELATION_QUANTITIES,
    Quantity,
    Shape,
    list_quantities,
)
from headscope.tally.token_counts import TokenCounts

if TYPE_CHECKING:
    import torch

    from headscope.tally.output_maps import OutputMap

Array = np.ndarray[Any, Any]


@dataclass
class Tally:
    """One array per quantity, with the blocks as its first axis if the quantity is kept by block; the most attended
    tokens, the sums of labelled relations, the dominant tokens, and texts as examples."""

    shape: Shape
    arrays: dict[str, Array]
    most_attended: dict[int, Ints] = field(default_factory=dict)
    """token id → number of texts in which it is the most attended token, (block, layer)"""
    relations: dict[str, dict[str, Array]] = field(default_factory=dict)
    """name of a relation → its sums by quantity, with the blocks as the first axis"""
    dominant_tokens: TokenCounts = field(init=False)
    """in how many texts each token is the dominant token of each head"""
    examples: ExampleStore = field(init=False)
    """empty if the shape has no examples"""

    def __post_init__(self) -> None:
        self.dominant_tokens = TokenCounts(self.shape.layers, self.shape.heads)
        self.examples = ExampleStore(self.shape.layers, self.shape.heads)

    @classmethod
    def zeros(cls, shape: Shape) -> Tally:
        quantities = list_quantities(shape)
        return cls(
            shape,
            {quantity.name: np.zeros(get_array_shape(quantity, shape), get_dtype(quantity)) for quantity in quantities},
        )

    def __add__(self, other: Tally) -> Tally:
        """Return the sum as a new tally, so that an interrupt leaves this one unchanged."""
        if other.shape != self.shape:
            raise ValueError(f"cannot add tallies of different shape: {self.shape} and {other.shape}")
        arrays = {name: array + other.arrays[name] for name, array in self.arrays.items()}
        total = Tally(self.shape, arrays, dict(self.most_attended))
        total.dominant_tokens, total.examples = self.dominant_tokens.copy(), self.examples.copy()
        total._add_relations(self)
        total._add_tokens(other)
        return total

    def add(self, other: Tally) -> None:
        """Add another tally to this one, in place. The caller must defer interrupts."""
        if other.shape != self.shape:
            raise ValueError(f"cannot add tallies of different shape: {self.shape} and {other.shape}")
        for name, array in other.arrays.items():
            self.arrays[name] += array
        self._add_tokens(other)

    def move_from(self, other: Tally) -> None:
        """Add another tally to this one, in place, and set the other one to zero."""
        self.add(other)
        for array in other.arrays.values():
            array[...] = 0
        other.most_attended.clear()
        other.relations.clear()
        other.dominant_tokens.clear()
        other.examples.clear()

    def replace_arrays(self, arrays: dict[str, Array]) -> Tally:
        """Return a tally with other arrays and the tokens and examples of this one, which is not to be changed then."""
        tally = Tally(self.shape, arrays, self.most_attended, self.relations)
        tally.dominant_tokens, tally.examples = self.dominant_tokens, self.examples
        return tally

    def _add_tokens(self, other: Tally) -> None:
        for token, counts in other.most_attended.items():
            self.attend(token, counts)
        self._add_relations(other)
        self.dominant_tokens.add(other.dominant_tokens)
        self.examples.add(other.examples)

    def attend(self, token: int, counts: Ints) -> None:
        previous = self.most_attended.get(token)
        self.most_attended[token] = counts.copy() if previous is None else previous + counts

    def relate(self, label: str) -> dict[str, Array]:
        """Return the sums of a relation, to which the caller adds."""
        if label not in self.relations:
            if len(self.relations) >= MAX_RELATIONS:
                raise StudyError(
                    f"there are more than {MAX_RELATIONS} different labelled relations ({label!r} is another one): "
                    "choose some with --relations"
                )
            self.relations[label] = {
                quantity.name: np.zeros(get_relation_shape(quantity, self.shape), get_dtype(quantity))
                for quantity in RELATION_QUANTITIES
            }
        return self.relations[label]

    def _add_relations(self, other: Tally) -> None:
        for label, sums in other.relations.items():
            targets = self.relate(label)
            for name, array in sums.items():
                targets[name] += array

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name]

    def __getstate__(self) -> tuple[Any, ...]:
        """Return the state to pickle, with the counts of all tokens as one array: thousands of small arrays would take
        longer than all the rest."""
        counts = list(self.most_attended.values())
        stacked = np.stack(counts) if counts else np.zeros(0)
        return (
            self.shape, self.arrays, list(self.most_attended), stacked, self.relations, self.dominant_tokens,
            self.examples,
        )  # fmt: skip

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        """Restore a pickled tally."""
        self.shape, self.arrays, tokens, counts, self.relations, self.dominant_tokens, self.examples = state
        self.most_attended = dict(zip(tokens, counts, strict=True))


class Tallier(Protocol):
    """A backend that adds up batches. `ReferenceTallier` is the definition; all others must give the same sums.

    Optional members of a backend:

        attend       compute plain attention in the model's place (`model.Attend`); `shown` then counts the layers whose
                     maps the model computed
        settle       add batches whose results are still on a device; `pending_batches` says how many there are
        make_peer    return a tallier for another thread, see `NumbaTallier`
    """

    def begin(self, batch: Batch) -> None:
        """Start a batch. What was added for a batch that never ended is dropped."""

    def observe_layer(self, layer: int, output: torch.Tensor, attention: torch.Tensor) -> None:
        """Add one layer: outputs (batch, position, head, width) and attention maps (batch, head, query, key)."""

    def end(self) -> None:
        """Add the batch, of which all layers were seen, to the totals."""

    def get_sums(self) -> Tally:
        """Return the sums over all batches that ended. The caller must not change them."""


@dataclass(frozen=True)
class TallySettings:
    """The settings that the sums depend on, besides the model and the texts."""

    shape: Shape
    theta: float
    tau: float
    fraction: float
    """fraction of the texts that is in the sample"""
    causal: bool = False
    """Tokens attend only to themselves and earlier ones, so that evenly spread attention reaches no later token."""
    numbers: tuple[int, ...] = ()
    """layer numbers to use in error messages, if they are not 0, 1, 2, …"""
    output_map: OutputMap | None = None
    """applied to the outputs of every layer before anything is counted; None: they stay as they are"""

    def make_nonfinite_error(self, layer: int, head: int) -> NonFiniteError:
        """Return the error for outputs of a head that are NaN or infinite; `layer` counts from 0."""
        return make_nonfinite_error(self.numbers[layer] if self.numbers else layer, head)


def get_array_shape(quantity: Quantity, shape: Shape) -> tuple[int, ...]:
    """Return the shape of a quantity's array, with the blocks as its first axis if the quantity is kept by block."""
    sizes = shape.get_sizes()
    return ((BLOCKS,) if quantity.in_blocks else ()) + tuple(sizes[dim] for dim in quantity.dims)


def get_relation_shape(quantity: Quantity, shape: Shape) -> tuple[int, ...]:
    """Return the shape of the array of one relation, with the blocks as its first axis."""
    sizes = shape.get_sizes()
    return (BLOCKS, *(sizes[dim] for dim in quantity.dims if dim != "relation"))


def get_dtype(quantity: Quantity) -> type[np.float64] | type[np.int64]:
    """Return the dtype of a quantity: counts are exact integers, reals are summed in double precision."""
    return np.float64 if quantity.real else np.int64


def check_sums(tally: Tally, layers: Sequence[int]) -> None:
    """Raise `NonFiniteError` if a sum is NaN or infinite, as where attention maps are, or where energies overflow.

    Args:
        layers: Numbers of the layers.
    """
    for quantity in QUANTITIES:
        array = tally.arrays.get(quantity.name)
        if array is None or "layer" not in quantity.dims or not quantity.real:
            continue
        if np.isfinite(array.sum()) or np.isfinite(array).all():
            continue
        place = np.argwhere(~np.isfinite(array))[0][1 if quantity.in_blocks else 0 :]
        numbers = dict(zip(quantity.dims, place.tolist(), strict=True))
        head = f"H{numbers['head']}" if "head" in numbers else ""
        raise NonFiniteError(
            f"in L{layers[numbers['layer']]}{head} the sum {quantity.name!r} is not a finite number (NaN or infinity): "
            "broken weights, or a dtype too narrow for this model (try --dtype float32)"
        )
