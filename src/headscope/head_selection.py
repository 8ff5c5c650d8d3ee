"""Select heads and layers by name: the one parser of `L3H7`, `L0H1,L3H4-7`, `L3` and the like.

A name is `L3H7` (a head), `L3H4-7` (some heads of a layer), `L3` or `L3-5` (all heads of layers), or `H2` (head 2 of
every layer); commas join them. Layers have the numbers that they have in the model. Whether heads exist is checked
against the layers and heads of a model, a study or a reading, which the caller passes.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headscope.errors import SelectionError

Head = tuple[int, int]
"""number of the layer in the model, number of the head in the layer"""
Numbers = int | Iterable[int] | None
"""numbers of layers or heads: one, several, or None for all"""

HEAD_FORMS = "write heads like L3H7, L0H1,L3H4-7, a layer L3, or H2 for head 2 of every layer"
LAYER_FORMS = "write layers like 0,5,10-11"
_HEAD_NAME = re.compile(r"(?:L(\d{1,6})(?:-L?(\d{1,6}))?)?(?:H(\d{1,6})(?:-H?(\d{1,6}))?)?", re.ASCII | re.IGNORECASE)
_LAYER_NAME = re.compile(r"L?(\d{1,6})(?:-L?(\d{1,6}))?", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True)
class HeadRange:
    """Heads that one name stands for."""

    name: str
    layers: range | None
    """None: every layer"""
    heads: range | None
    """None: every head of these layers"""


Heads = str | Head | Iterable[Head | str | HeadRange]
"""some heads: names such as `L0H1,L3H4-7`, a pair of numbers (layer, head), or several of these"""


def format_head(head: Head) -> str:
    """Return a head's name, such as `L11H8`."""
    return f"L{head[0]}H{head[1]}"


def parse_heads(heads: Heads) -> list[HeadRange]:
    """Return what a selection names; raise a SelectionError if it is not one. Nothing needs to be known of a model.

    >>> parse_heads("L3H4-7")
    [HeadRange(name='L3H4-7', layers=range(3, 4), heads=range(4, 8))]
    """
    if isinstance(heads, str):
        return [_parse_head_name(name.strip()) for name in heads.split(",")]
    is_pair = isinstance(heads, tuple) and len(heads) == 2 and all(isinstance(number, int) for number in heads)
    try:
        items = [heads] if is_pair else list(heads)
    except TypeError:
        raise _make_error("heads", str(heads), "not a selection of heads", HEAD_FORMS) from None
    ranges: list[HeadRange] = []
    for item in items:
        if isinstance(item, str):
            ranges += parse_heads(item)
        else:
            ranges.append(item if isinstance(item, HeadRange) else _convert_pair(item))
    return ranges


def select_heads(
    heads: Heads, layers: Sequence[int], layer_heads: Sequence[int] | Mapping[int, Sequence[int]], owner: str
) -> list[Head]:
    """Return the heads that a selection names as pairs (layer, head), in the order written.

    Args:
        heads: The selection.
        layers: Numbers of the layers that exist.
        layer_heads: Numbers of the heads that each of them has; by layer, where layers differ.
        owner: What has them, for error messages, such as `the model's encoder`.

    Raises:
        SelectionError: A name is not one of heads, names a head that does not exist, or names one again.

    >>> select_heads("L0H1,L3", range(6), range(2), "the model")
    [(0, 1), (3, 0), (3, 1)]
    """
    heads_by_layer = layer_heads if isinstance(layer_heads, Mapping) else dict.fromkeys(layers, layer_heads)
    all_heads = sorted(set().union(*heads_by_layer.values()))
    selected: dict[Head, None] = {}
    for named in parse_heads(heads):
        label = f"heads {named.name!r}"
        if named.layers is not None:
            _check_numbers(label, "layer", named.layers, layers, owner, HEAD_FORMS)
        if named.heads is not None:
            _check_numbers(label, "head", named.heads, all_heads, owner, HEAD_FORMS)
        for layer in layers if named.layers is None else named.layers:
            available = heads_by_layer[layer]
            for head in available if named.heads is None else named.heads:
                if head not in available:
                    if named.layers is None:  # H2: of the layers that have it
                        continue
                    raise SelectionError(
                        f"{label}: head {head}: layer {layer} has {len(available)} heads; {HEAD_FORMS}"
                    )
                if (layer, head) in selected:
                    raise SelectionError(f"{label}: {format_head((layer, head))} is named twice")
                selected[layer, head] = None
    return list(selected)


def parse_layers(text: str) -> list[range]:
    """Return the ranges of layers that a text names; raise a SelectionError if it names none.

    >>> parse_layers("0,5,10-11"), parse_layers("L3")
    ([range(0, 1), range(5, 6), range(10, 12)], [range(3, 4)])
    """
    ranges = []
    for name in (part.strip() for part in text.split(",")):
        match = _LAYER_NAME.fullmatch(name)
        if match is None:
            raise _make_error("layers", name, "not a layer", LAYER_FORMS)
        ranges.append(_make_range("layers", name, match[1], match[2], LAYER_FORMS))
    return ranges


def select_layers(text: str, layers: Sequence[int], owner: str) -> list[int]:
    """Return the layers that a text names, in the order written; arguments and errors are those of `select_heads`.

    >>> select_layers("0,4-5", range(6), "the model")
    [0, 4, 5]
    """
    selected: list[int] = []
    for numbers in parse_layers(text):
        _check_numbers(f"layers {text!r}", "layer", numbers, layers, owner, LAYER_FORMS)
        selected += numbers
    if len(set(selected)) < len(selected):
        raise SelectionError(f"layers {text!r}: a layer is named twice; {LAYER_FORMS}")
    return selected


def combine_selections(
    layers: str | None, heads: str | None, available_layers: Sequence[int], layer_heads: Sequence[int], owner: str
) -> list[Head]:
    """Return the heads that are in the selected layers and among the selected heads, layer by layer; None selects all.

    >>> combine_selections("3,5", "H1", range(6), range(2), "the model")
    [(3, 1), (5, 1)]
    """
    selected_layers = available_layers if layers is None else select_layers(layers, available_layers, owner)
    if heads is None:
        return [(layer, head) for layer in selected_layers for head in layer_heads]
    selected = select_heads(heads, available_layers, layer_heads, owner)
    in_layers = [(layer, head) for layer in selected_layers for k, head in selected if k == layer]
    if not in_layers:
        raise SelectionError(f"heads {heads!r}: none of them is in the layers {layers}")
    return in_layers


def select_grid(
    layers: str | Numbers, heads: str | Numbers, available_layers: Sequence[int], layer_heads: Sequence[int], owner: str
) -> tuple[Numbers, Numbers]:
    """Return the numbers of the layers and of their heads that two selections name; None where neither says.

    What shows layers by heads, such as figures, shows the same heads of each layer: other selections are refused.
    Numbers are returned as they are.

    >>> select_grid("0,5", "H2,H8", range(6), range(12), "the model")
    ([0, 5], [2, 8])
    >>> select_grid(None, "L3H4-5", range(6), range(12), "the model")
    ([3], [4, 5])
    """
    if not isinstance(heads, str):
        return (select_layers(layers, available_layers, owner) if isinstance(layers, str) else layers), heads
    if not (layers is None or isinstance(layers, str)):
        layers = ",".join(map(str, layers if isinstance(layers, Iterable) else [layers]))
    by_layer: dict[int, list[int]] = {}
    for layer, head in combine_selections(layers, heads, available_layers, layer_heads, owner):
        by_layer.setdefault(layer, []).append(head)
    first, *others = by_layer.values()
    if any(sorted(numbers) != sorted(first) for numbers in others):
        raise SelectionError(
            f"heads {heads!r}: layers are shown side by side with the same heads: name the same ones in every layer, "
            "like L0H2,L5H2, or H2 for head 2 of every layer"
        )
    names_layers = layers is not None or any(named.layers is not None for named in parse_heads(heads))
    return (list(by_layer) if names_layers else None), first


def _parse_head_name(name: str) -> HeadRange:
    match = _HEAD_NAME.fullmatch(name)
    if not name or match is None:
        raise _make_error("heads", name, "not a head", HEAD_FORMS)
    layers = None if match[1] is None else _make_range("heads", name, match[1], match[2], HEAD_FORMS)
    heads = None if match[3] is None else _make_range("heads", name, match[3], match[4], HEAD_FORMS)
    return HeadRange(name, layers, heads)


def _convert_pair(pair: Any) -> HeadRange:
    try:
        layer, head = map(operator.index, pair)
    except (TypeError, ValueError):
        raise _make_error("heads", str(pair), "not a pair of numbers (layer, head)", HEAD_FORMS) from None
    return HeadRange(format_head((layer, head)), range(layer, layer + 1), range(head, head + 1))


def _make_range(what: str, name: str, first: str, last: str | None, forms: str) -> range:
    if last is not None and int(last) < int(first):
        raise _make_error(what, name, "the last number comes before the first", forms)
    return range(int(first), int(last or first) + 1)


def _check_numbers(label: str, noun: str, numbers: range, available: Sequence[int], owner: str, forms: str) -> None:
    # The last number first: a huge range is not searched.
    absent = next((k for k in (numbers[-1], *numbers[: len(available) + 1]) if k not in available), None)
    if absent is None:
        return
    is_range = list(available) == list(range(available[0], available[-1] + 1))
    existing = f"{available[0]} to {available[-1]}" if is_range else ", ".join(map(str, available))
    if noun == "head":
        has = f"a layer has heads {existing}"
    else:  # a hybrid model has other layers, without attention
        has = f"{owner} has {'' if is_range else 'attention in '}layers {existing}"
    raise SelectionError(f"{label}: {noun} {absent}: {has}; {forms}")


def _make_error(what: str, name: str, problem: str, forms: str) -> SelectionError:
    return SelectionError(f"{what} {name!r}: {problem}; {forms}")
