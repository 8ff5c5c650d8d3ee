"""Arrays of one's own as a reading: checked, so that a wrong axis is an error and never a wrong number."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from headscope.corpus import sentences
from headscope.errors import ReadingError
from headscope.manifest import of_run
from headscope.model import words
from headscope.readings.dataset import dataset
from headscope.readings.reading import Reading
from headscope.types import Floats, Ints

ROWS_SUM = 1e-2
"""rows of an attention map sum to 1 within this, in any numeric type"""


def reading_of(
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
    """See `Reading.from_arrays`."""
    labels = _strings(tokens)
    n = len(labels)
    if n < 2:
        raise ReadingError(f"tokens: there {'is one' if n else 'are none'}, and it takes two to relate")
    written = _array("outputs", outputs, "layer, position, head, width")
    if written.shape[1] != n:
        raise ReadingError(
            f"outputs have the shape {written.shape}, and there are {n} tokens: "
            "their axes are (layer, position, head, width)"
        )
    maps = None if attention is None else _maps(attention, (written.shape[0], written.shape[2], n, n))
    marked = np.zeros(n, dtype=bool) if special is None else _per_token("special", special, n, "biu").astype(bool)
    values = _by_text(labels) if ids is None else _per_token("ids", ids, n, "iu").astype(np.int64)
    ends = np.array([words.unmarked(label) in sentences.SENTENCE_ENDS for label in labels], dtype=bool)
    made = Reading(
        dataset(
            labels=labels,
            ids=values,
            special=marked,
            sentence=sentences.by_tokens(ends),
            word=words.by_marks(labels, marked),
            spans=None,
            text=" ".join(labels),
            outputs=written,
            attention=maps,
            attributes={
                "model": name,
                "layers": written.shape[0],
                "heads": written.shape[2],
                "theta": theta,
                "tau": tau,
                "length": n,
                "tokens_in_text": n,
                "sentences": "tokens",
                **of_run(),
            },
        )
    )
    for threshold in ("theta", "tau"):
        made._share(threshold, None)
    return made


def _maps(attention: Any, shape: tuple[int, ...]) -> Floats:
    maps = _array("attention maps", attention, "layer, head, query, key")
    if maps.shape != shape:
        raise ReadingError(
            f"attention maps have the shape {maps.shape} where the outputs ask for {shape}: "
            "their axes are (layer, head, query, key)"
        )
    sums = maps.sum(axis=-1)
    wrong = np.argwhere((np.abs(sums - 1) > ROWS_SUM) | (maps < 0).any(axis=-1))
    if len(wrong):
        layer, head, row = wrong[0]
        raise ReadingError(
            f"attention maps: row {row} of L{layer}H{head} holds values from {maps[layer, head, row].min():.3g} and "
            f"sums to {sums[layer, head, row]:.3g}: give what the softmax gives, of real tokens alone; rows are "
            "queries (who looks), columns keys, and each row sums to 1"
        )
    return maps


def _array(name: str, given: Any, axes: str) -> Floats:
    try:
        made = np.stack([_plain(part) for part in given]) if isinstance(given, (list, tuple)) else _plain(given)
    except (TypeError, ValueError, RuntimeError) as error:  # numpy and torch each have words of their own
        raise ReadingError(
            f"{name} cannot be taken together to one array of ({axes}): {error}. Give arrays of numpy or torch"
        ) from None
    if made.dtype.kind not in "fiu":
        raise ReadingError(f"{name} are of the type {made.dtype}: real numbers are needed, in arrays of numpy or torch")
    if made.ndim == 5 and made.shape[1] == 1:
        made = made[:, 0]
    if made.ndim != 4 or not made.size:
        raise ReadingError(f"{name} have the shape {made.shape}, where these axes are needed, of one text: ({axes})")
    if not np.isfinite(made).all():
        layer, *place = np.argwhere(~np.isfinite(made))[0].tolist()
        raise ReadingError(
            f"{name} hold a value that is not finite (NaN or infinity) in layer {layer}, at {place}: "
            "leave padding out, and use a numeric type wide enough"
        )
    narrow = made.dtype in (np.float16, np.float32)
    return np.array(made, dtype=np.float32 if narrow else np.float64, order="C")  # a copy: theirs may be used again


def _strings(tokens: Iterable[str]) -> list[str]:
    if isinstance(tokens, str) or not np.iterable(tokens):
        raise ReadingError(f"tokens are a {type(tokens).__name__}: give a list of strings, one for each position")
    labels = list(tokens)
    for k, label in enumerate(labels):
        if not isinstance(label, str):
            raise ReadingError(f"token {k} is a {type(label).__name__}: tokens are strings; numbers are given as ids=")
    return [str(label) for label in labels]


def _plain(given: Any) -> np.ndarray[Any, Any]:
    if hasattr(given, "detach"):  # a torch tensor; numpy knows no bfloat16
        tensor = given.detach().cpu()
        return np.asarray((tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy())
    return np.asarray(given)


def _per_token(name: str, given: Any, n: int, kinds: str) -> np.ndarray[Any, Any]:
    try:
        made = _plain(given).ravel()
    except ValueError as error:
        raise ReadingError(f"{name} cannot be taken as one array: {error}") from None
    if len(made) != n:
        raise ReadingError(f"{name} has {len(made)} entries for {n} tokens: one for each is needed")
    if made.dtype.kind not in kinds:
        wanted = "whole numbers" if kinds == "iu" else "true or false, or 1 or 0"
        raise ReadingError(f"{name} is of the type {made.dtype}: {wanted} for each token are needed")
    return made


def _by_text(labels: list[str]) -> Ints:
    numbers = {label: k for k, label in enumerate(dict.fromkeys(labels))}
    return np.array([numbers[label] for label in labels], dtype=np.int64)
