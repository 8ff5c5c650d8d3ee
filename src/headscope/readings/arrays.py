"""Arrays of one's own as a reading: checked, so that a wrong axis is an error and never a wrong number."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from headscope.corpus import sentences
from headscope.errors import ReadingError
from headscope.manifest import of_run
from headscope.model import words
from headscope.readings.reading import Reading, dataset
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
    labels = [str(token) for token in tokens]
    n = len(labels)
    if n < 2:
        raise ReadingError(f"{n} tokens: it takes two to relate")
    written = _array("outputs", outputs, "layer, position, head, width")
    if written.shape[1] != n:
        raise ReadingError(
            f"outputs have the shape {written.shape}, and there are {n} tokens: "
            "their axes are (layer, position, head, width)"
        )
    maps = None if attention is None else _maps(attention, (written.shape[0], written.shape[2], n, n))
    marked = np.zeros(n, dtype=bool) if special is None else _per_token("special", special, n).astype(bool)
    texts = [
        (label[1:] if label.startswith(words.WORD_STARTS) else label).removesuffix(words.WORD_END) for label in labels
    ]
    values = _by_text(labels) if ids is None else _per_token("ids", ids, n).astype(np.int64)
    ends = np.array([text in sentences.SENTENCE_ENDS for text in texts], dtype=bool)
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
    maps = _array("attention", attention, "layer, head, query, key")
    if maps.shape != shape:
        raise ReadingError(
            f"attention has the shape {maps.shape} where the outputs ask for {shape}: "
            "its axes are (layer, head, query, key)"
        )
    if (maps < 0).any() or np.abs(maps.sum(axis=-1) - 1).max() > ROWS_SUM:
        raise ReadingError("attention maps are not negative, and each of their rows (queries) sums to 1; these do not")
    return maps


def _array(name: str, given: Any, axes: str) -> Floats:
    parts = [_plain(part) for part in given] if isinstance(given, (list, tuple)) else [_plain(given)]
    try:
        made = np.stack(parts) if isinstance(given, (list, tuple)) else parts[0]
    except ValueError as error:
        raise ReadingError(f"{name} of the layers do not fit together: {error}") from None
    if made.ndim == 5 and made.shape[1] == 1:
        made = made[:, 0]
    if made.ndim != 4:
        raise ReadingError(f"{name} have {made.ndim} axes where four are needed: ({axes})")
    if made.dtype.kind not in "fiu":
        raise ReadingError(f"{name} are {made.dtype}: numbers are needed")
    if not np.isfinite(made).all():
        raise ReadingError(f"{name} hold values that are not finite")
    return np.ascontiguousarray(made, dtype=np.float64 if made.dtype == np.float64 else np.float32)


def _plain(given: Any) -> np.ndarray[Any, Any]:
    if hasattr(given, "detach"):  # a torch tensor; numpy knows no bfloat16
        tensor = given.detach().cpu()
        return np.asarray((tensor if str(tensor.dtype) == "torch.float64" else tensor.float()).numpy())
    return np.asarray(given)


def _per_token(name: str, given: Any, n: int) -> np.ndarray[Any, Any]:
    made = _plain(given).ravel()
    if len(made) != n:
        raise ReadingError(f"{name} has {len(made)} entries for {n} tokens")
    return made


def _by_text(labels: list[str]) -> Ints:
    numbers = {label: k for k, label in enumerate(dict.fromkeys(labels))}
    return np.array([numbers[label] for label in labels], dtype=np.int64)
