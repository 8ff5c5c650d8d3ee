"""Dominant tokens and examples as variables of a study, and back: `tally.token_counts`, `tally.examples`.

Texts of tokens are stored for every token id that a study needs, so that it can be shown without a tokenizer. They are
UTF-8 in one array of bytes each, separated by zeros, which compresses: netCDF stores strings uncompressed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import xarray as xr

from headscope.array_types import Ints
from headscope.tally.example_store import COUNTS, RATES, ExampleStore, decode_pairs, encode_pairs
from headscope.tally.token_counts import TokenCounts

ENTRY = "dominant_entry"
LH = ("layer", "head")
TOKEN_SHAPES = {
    **{f"{ENTRY}_{name}": ((ENTRY,), "i") for name in ("token", "layer", "head", "count")},
    "shown_token": (("shown_token",), "i"),
    "shown_token_names": (("name_byte",), "iu"),
    "shown_token_pieces": (("piece_byte",), "iu"),
}
"""variables of dominant tokens, and the texts of all tokens: dimensions, and allowed kinds of dtype"""
EXAMPLE_SHAPES = {
    "example_digest": (("example_window",), "u"),
    "example_length": (("example_window",), "i"),
    "example_token": (("example_place",), "i"),
    "sketch_window": (("sketch",), "i"),
    "sketch_counts": (("sketch", *LH, "example_count"), "i"),
    **{f"sketch_{name}": (("sketch", *LH, "example_pair"), "iu") for name in ("i", "j", "value")},
    "strongest_window": ((*LH, "example_rate", "strongest"), "i"),
    "strongest_counts": ((*LH, "example_rate", "strongest", "example_count"), "i"),
    **{f"strongest_{name}": ((*LH, "example_rate", "strongest", "example_pair"), "iu") for name in ("i", "j", "value")},
    "example_count": (("example_count",), "OU"),
    "example_rate": (("example_rate",), "OU"),
}
"""variables of examples"""
DESCRIPTIONS = {
    f"{ENTRY}_count": "texts in which this token is the dominant token of this head",
    f"{ENTRY}_token": "token id of this entry",
    "shown_token": "token ids whose texts are known",
    "shown_token_names": "their names in the vocabulary, UTF-8, separated by zeros",
    "shown_token_pieces": "their texts with blanks, UTF-8, separated by zeros",
    "example_digest": "digests of the windows kept as examples",
    "example_length": "number of tokens kept of each",
    "example_token": "token ids of all these windows in a row",
    "sketch_window": "windows with the smallest digests",
    "sketch_counts": "counts of each head in them",
    "strongest_window": "windows in which a head's rates are highest; -1: none",
    "strongest_counts": "counts of the head in them",
    "sketch_i": "first positions of the strongest pairs",
    "sketch_j": "second positions of the strongest pairs",
    "sketch_value": "their similarities, in 1/255 of the largest; 0: no pair",
    "strongest_i": "first positions of the strongest pairs",
    "strongest_j": "second positions of the strongest pairs",
    "strongest_value": "their similarities, in 1/255 of the largest; 0: no pair",
}


class TokenWriter(Protocol):
    """How token ids are written: what `ModelTokens` has."""

    def names(self, ids: list[int]) -> list[str]: ...

    def pieces(self, ids: Ints) -> list[str]: ...


class PlainTokens:
    """Tokens that are written by their names, with blanks between them."""

    def __init__(self, get_names: Callable[[list[int]], list[str]]) -> None:
        self.names = get_names

    def pieces(self, ids: Ints) -> list[str]:
        """Return the names after a blank each."""
        return [f" {name}" for name in self.names([int(k) for k in ids])]


def label_tokens(
    dominants: TokenCounts, examples: ExampleStore, layers: Sequence[int], has_examples: bool
) -> dict[str, xr.Variable]:
    """Return dominant tokens and examples as variables of a study.

    Args:
        dominants: Counts of dominant tokens.
        examples: Windows that are examples.
        layers: Numbers of the layers.
        has_examples: Whether examples are asked for.
    """
    entries = dominants.list_entries()
    arrays: dict[str, Any] = {
        f"{ENTRY}_token": entries[:, 0].astype(np.int32),
        f"{ENTRY}_layer": np.asarray(layers, np.int16)[entries[:, 1]],
        f"{ENTRY}_head": entries[:, 2].astype(np.int16),
        f"{ENTRY}_count": entries[:, 3],
    }
    if has_examples:
        arrays |= _label_examples(examples)
    shapes = TOKEN_SHAPES | EXAMPLE_SHAPES
    return {
        name: xr.Variable(shapes[name][0], array, {"long_name": DESCRIPTIONS[name]} if name in DESCRIPTIONS else None)
        for name, array in arrays.items()
    }


def _label_examples(examples: ExampleStore) -> dict[str, Any]:
    stored = examples.to_arrays()
    digests = stored["window_digests"]
    arrays = {
        "example_digest": digests,
        "example_length": stored["window_lengths"].astype(np.int32),
        "example_token": stored["window_ids"].astype(np.int32),
        "sketch_window": np.searchsorted(digests, stored["sketch_digests"]).astype(np.int32),
        "sketch_counts": stored["sketch_counts"],
        "strongest_window": np.where(
            stored["top_counts"][..., 0] > 0, np.searchsorted(digests, stored["top_digests"]), -1
        ).astype(np.int32),
        "strongest_counts": stored["top_counts"],
        "example_count": np.array(COUNTS, dtype=object),
        "example_rate": np.array(RATES, dtype=object),
    }
    for name, keys in (("sketch", stored["sketch_keys"]), ("strongest", stored["top_keys"])):
        for part, values in zip(("i", "j", "value"), decode_pairs(keys), strict=True):
            arrays[f"{name}_{part}"] = values.astype(np.uint8)
    return arrays


def assign_token_texts(data: xr.Dataset, writer: TokenWriter) -> xr.Dataset:
    """Return the Dataset with the texts of all tokens that its dominant tokens and examples need."""
    ids = list_token_ids(data)
    return data.assign(_pack_texts(ids, writer.names(ids.tolist()), writer.pieces(ids)))


def list_token_ids(data: xr.Dataset) -> Ints:
    """Return the ids of the tokens that dominant tokens and examples need, in ascending order."""
    used = [data.variables[name].values for name in (f"{ENTRY}_token", "example_token") if name in data.variables]
    return np.unique(np.concatenate([np.zeros(0, np.int64), *used]).astype(np.int64))


def _pack_texts(ids: Ints, names: Sequence[str], pieces: Sequence[str]) -> dict[str, xr.Variable]:
    arrays = {"shown_token": ids.astype(np.int32)}
    for name, texts in (("shown_token_names", names), ("shown_token_pieces", pieces)):
        joined = "\0".join(text.replace("\0", "\N{REPLACEMENT CHARACTER}") for text in texts)
        arrays[name] = np.frombuffer(joined.encode("utf-8", "replace"), np.uint8)
    return {
        name: xr.Variable(TOKEN_SHAPES[name][0], array, {"long_name": DESCRIPTIONS[name]})
        for name, array in arrays.items()
    }


def read_token_texts(data: xr.Dataset) -> dict[int, tuple[str, str]]:
    """Return the name and the text of each token id."""
    ids = data.variables["shown_token"].values.tolist()
    if not ids:
        return {}
    names, pieces = (
        data.variables[name].values.astype(np.uint8).tobytes().decode("utf-8", "replace").split("\0")
        for name in ("shown_token_names", "shown_token_pieces")
    )
    return {token: texts for token, *texts in zip(ids, names, pieces, strict=True)}  # type: ignore[misc]


def has_dominant_tokens(data: xr.Dataset) -> bool:
    """Return whether a study counted dominant tokens: older versions did not."""
    return f"{ENTRY}_token" in data.variables


def has_examples(data: xr.Dataset) -> bool:
    """Return whether a study has examples."""
    return "example_token" in data.variables


def merge_tokens(first: xr.Dataset, second: xr.Dataset) -> dict[str, xr.Variable]:
    """Return the variables of dominant tokens and examples of two studies of the same layers and heads together."""
    if not (has_dominant_tokens(first) and has_dominant_tokens(second)):
        return {}
    dominants, other_dominants = (_read_token_counts(data) for data in (first, second))
    dominants.add(other_dominants)
    keeps_examples = has_examples(first) and has_examples(second)
    layers, heads = first.sizes["layer"], first.sizes["head"]
    examples = ExampleStore(layers, heads)
    if keeps_examples:
        for data in (first, second):
            examples.add(_read_example_store(data))
    variables = label_tokens(dominants, examples, first["layer"].values.tolist(), keeps_examples)
    texts = {**read_token_texts(second), **read_token_texts(first)}
    ids = list_token_ids(xr.Dataset(variables))
    names, pieces = zip(*(texts[token] for token in ids.tolist()), strict=True) if len(ids) else ((), ())
    return variables | _pack_texts(ids, names, pieces)


def _read_token_counts(data: xr.Dataset) -> TokenCounts:
    layers, heads = data["layer"].values, data.sizes["head"]
    token, layer, head, count = (
        data.variables[f"{ENTRY}_{name}"].values.astype(np.int64) for name in ("token", "layer", "head", "count")
    )
    order = np.argsort(layers)
    keys = (token * len(layers) + order[np.searchsorted(layers[order], layer)]) * heads + head
    counts = TokenCounts(len(layers), heads)
    counts.add_keys(keys, count)
    return counts


def _read_example_store(data: xr.Dataset) -> ExampleStore:
    values = {name: data.variables[name].values for name in EXAMPLE_SHAPES}
    digests, windows = values["example_digest"], values["strongest_window"]
    keys = {
        name: encode_pairs(*(values[f"{name}_{part}"] for part in ("i", "j", "value")))
        for name in ("sketch", "strongest")
    }
    arrays = {
        "sketch_digests": digests[values["sketch_window"]],
        "sketch_counts": values["sketch_counts"].astype(np.int64),
        "sketch_keys": keys["sketch"],
        "top_digests": np.where(windows < 0, np.uint64(0), digests[windows]) if len(digests) else np.zeros(
            windows.shape, np.uint64
        ),
        "top_counts": values["strongest_counts"].astype(np.int64),
        "top_keys": keys["strongest"],
        "window_digests": digests,
        "window_lengths": values["example_length"].astype(np.int64),
        "window_ids": values["example_token"].astype(np.int64),
    }  # fmt: skip
    return ExampleStore.from_arrays(data.sizes["layer"], data.sizes["head"], arrays)


def check_tokens(data: xr.Dataset) -> str:
    """Return what is wrong with the dominant tokens and examples of a file; empty if nothing is."""
    present = [name for name in TOKEN_SHAPES if name in data.variables]
    if not present:
        return ""
    absent = [name for name in TOKEN_SHAPES if name not in data.variables]
    examples = [name for name in EXAMPLE_SHAPES if name in data.variables]
    if examples:
        absent += [name for name in EXAMPLE_SHAPES if name not in examples]
    if absent:
        return f"no {', '.join(absent)}"
    try:
        texts = read_token_texts(data)
    except ValueError:
        return "the texts of its tokens do not fit their ids"
    if not set(list_token_ids(data).tolist()) <= texts.keys():
        return "tokens without a text"
    heads, entries = data.variables[f"{ENTRY}_head"].values, data.variables[f"{ENTRY}_count"].values
    head_count = int(data.attrs["heads"])
    if len(entries) and (entries.min() < 1 or heads.min() < 0 or heads.max() >= head_count):
        return "counts of dominant tokens that no study has"
    return _check_examples(data) if examples else ""


def _check_examples(data: xr.Dataset) -> str:
    values = {name: data.variables[name].values for name in EXAMPLE_SHAPES}
    lengths = values["example_length"]
    if (values["example_count"].tolist(), values["example_rate"].tolist()) != (list(COUNTS), list(RATES)):
        return "examples of other rates"
    if (len(lengths) and lengths.min() < 1) or int(lengths.sum()) != len(values["example_token"]):
        return "examples whose lengths do not fit their tokens"
    for name in ("sketch", "strongest"):
        windows = values[f"{name}_window"]
        if windows.size and not -1 <= windows.min() <= windows.max() < len(lengths):
            return "examples of windows that are not there"
        window_lengths = np.append(lengths, 0)[windows][(..., None) if name == "strongest" else (..., None, None, None)]
        i, j, strength = (values[f"{name}_{part}"] for part in ("i", "j", "value"))
        if ((strength > 0) & ((i >= j) | (j >= window_lengths))).any() or (values[f"{name}_counts"] < 0).any():
            return "examples with pairs that their texts do not have"
    if values["sketch_window"].size and values["sketch_window"].min() < 0:
        return "examples of windows that are not there"
    return ""
