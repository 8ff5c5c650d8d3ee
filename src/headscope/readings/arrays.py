"""Readings from arrays of the user's own. Shapes and values are checked, so that a wrong axis raises an error."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest
from typing import Any

import numpy as np

from headscope.array_types import Floats, Ints
from headscope.corpus import sentences
from headscope.errors import ReadingError
from headscope.model import token_text
from headscope.provenance import describe_run
from headscope.readings.dataset import make_dataset
from headscope.readings.reading import Reading

ROW_SUM_TOLERANCE = 1e-2
"""Rows of an attention map sum to 1 within this tolerance, in any dtype."""


def make_reading(
    tokens: Iterable[str],
    outputs: Any,
    attention: Any,
    *,
    ids: Any,
    special: Any,
    theta: float,
    tau: float,
    name: str,
) -> Reading:
    """Return a reading of arrays; see `Reading.from_arrays`."""
    labels = _validate_tokens(tokens)
    n = len(labels)
    if n < 2:
        raise ReadingError(f"tokens: there {'is one' if n else 'are none'}, and it takes two to relate")
    layer_outputs = _validate_layers("outputs", outputs, "layer, position, head, width")
    if wrong := next((output.shape for output in layer_outputs if len(output) != n), None):
        raise ReadingError(
            f"outputs have the shape {(len(layer_outputs), *wrong)}, and there are {n} tokens: "
            "their axes are (layer, position, head, width)"
        )
    head_counts = [output.shape[1] for output in layer_outputs]
    maps = None if attention is None else _validate_maps(attention, head_counts, n)
    is_special = np.zeros(n, dtype=bool) if special is None else _validate_per_token("special", special, n, "biu")
    is_special = is_special.astype(bool)
    token_ids = _number_by_text(labels) if ids is None else _validate_per_token("ids", ids, n, "iu").astype(np.int64)
    sentence_ends = np.array([token_text.strip_marks(label) in sentences.SENTENCE_ENDS for label in labels], dtype=bool)
    reading = Reading(
        make_dataset(
            labels=labels,
            ids=token_ids,
            special=is_special,
            sentence=sentences.number_by_tokens(sentence_ends),
            word=token_text.number_words_by_marks(labels, is_special),
            spans=None,
            text=" ".join(labels),
            outputs=layer_outputs,
            attention=maps,
            attributes={
                "model": name,
                "layers": len(layer_outputs),
                "heads": max(head_counts),
                "theta": theta,
                "tau": tau,
                "length": n,
                "tokens_in_text": n,
                "sentences": "tokens",
                **describe_run(),
            },
        )
    )
    for threshold in ("theta", "tau"):
        reading._resolve_threshold(threshold, None)
    return reading


def _validate_maps(attention: Any, head_counts: list[int], n: int) -> list[Floats]:
    """Return the attention maps (head, query, key) of each layer, whose rows are probabilities."""
    maps = _validate_layers("attention maps", attention, "layer, head, query, key")
    for k, (layer_maps, heads) in enumerate(zip_longest(maps, head_counts)):
        if layer_maps is None or layer_maps.shape != (heads, n, n):
            shape = (len(maps), *maps[min(k, len(maps) - 1)].shape)
            raise ReadingError(
                f"attention maps have the shape {shape} where the outputs ask for "
                f"{(len(head_counts), heads or head_counts[-1], n, n)}: their axes are (layer, head, query, key)"
            )
    for layer, layer_maps in enumerate(maps):
        sums = layer_maps.sum(axis=-1)
        wrong = np.argwhere((np.abs(sums - 1) > ROW_SUM_TOLERANCE) | (layer_maps < 0).any(axis=-1))
        if len(wrong):
            head, row = wrong[0]
            raise ReadingError(
                f"attention maps: row {row} of L{layer}H{head} holds values from {layer_maps[head, row].min():.3g} and "
                f"sums to {sums[head, row]:.3g}: pass the output of the softmax, without padding; rows are "
                "queries, columns are keys, and each row sums to 1"
            )
    return maps


def _validate_layers(name: str, values: Any, axes: str) -> list[Floats]:
    """Return the arrays of the layers; of a sequence, they may differ in the number and width of their heads."""
    if isinstance(values, (list, tuple)) and len({getattr(layer, "shape", None) for layer in values}) > 1:
        return [_validate_array(f"{name} of layer {k}", [layer], axes)[0] for k, layer in enumerate(values)]
    return list(_validate_array(name, values, axes))


def _validate_array(name: str, values: Any, axes: str) -> Floats:
    """Return an array, or a sequence of arrays of the layers, as one array with four axes."""
    try:
        is_sequence = isinstance(values, (list, tuple))
        array = np.stack([_to_numpy(layer) for layer in values]) if is_sequence else _to_numpy(values)
    except (TypeError, ValueError, RuntimeError) as error:  # numpy and torch raise different ones
        raise ReadingError(
            f"{name} cannot be combined into one array of ({axes}): {error}. Give arrays of numpy or torch"
        ) from None
    if array.dtype.kind not in "fiu":
        raise ReadingError(
            f"{name} are of the type {array.dtype}: real numbers are needed, in arrays of numpy or torch"
        )
    if array.ndim == 5 and array.shape[1] == 1:  # a batch of one text
        array = array[:, 0]
    if array.ndim != 4 or not array.size:
        raise ReadingError(f"{name} have the shape {array.shape}, where these axes are needed, of one text: ({axes})")
    if not np.isfinite(array).all():
        layer, *position = np.argwhere(~np.isfinite(array))[0].tolist()
        raise ReadingError(
            f"{name} hold a value that is not finite (NaN or infinity) in layer {layer}, at {position}: "
            "leave padding out, and use a wide enough dtype"
        )
    is_narrow = array.dtype in (np.float16, np.float32)
    # A copy: the caller may change the array later.
    return np.array(array, dtype=np.float32 if is_narrow else np.float64, order="C")


def _validate_tokens(tokens: Iterable[str]) -> list[str]:
    if isinstance(tokens, str) or not np.iterable(tokens):
        raise ReadingError(f"tokens are a {type(tokens).__name__}: give a list of strings, one for each position")
    labels = list(tokens)
    for k, label in enumerate(labels):
        if not isinstance(label, str):
            raise ReadingError(f"token {k} is a {type(label).__name__}: tokens are strings; numbers are given as ids=")
    return [str(label) for label in labels]


def _to_numpy(values: Any) -> np.ndarray[Any, Any]:
    if hasattr(values, "detach"):  # a torch tensor; numpy has no bfloat16
        tensor = values.detach().cpu()
        return np.asarray((tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy())
    return np.asarray(values)


def _validate_per_token(name: str, values: Any, n: int, kinds: str) -> np.ndarray[Any, Any]:
    """Return values as an array (n) whose dtype is of one of these numpy kinds."""
    try:
        array = _to_numpy(values).ravel()
    except ValueError as error:
        raise ReadingError(f"{name} cannot be converted to one array: {error}") from None
    if len(array) != n:
        raise ReadingError(f"{name} has {len(array)} entries for {n} tokens: one for each is needed")
    if array.dtype.kind not in kinds:
        expected = "whole numbers" if kinds == "iu" else "true or false, or 1 or 0"
        raise ReadingError(f"{name} is of the type {array.dtype}: {expected} for each token are needed")
    return array


def _number_by_text(labels: list[str]) -> Ints:
    """Return an id for each token; tokens of equal text have equal ids."""
    numbers = {label: k for k, label in enumerate(dict.fromkeys(labels))}
    return np.array([numbers[label] for label in labels], dtype=np.int64)
