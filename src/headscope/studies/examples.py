"""Texts that show what a head does, and the tokens it centers on, from a study (docs/head-types.md, docs/method.md)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pandas as pd
import xarray as xr

from headscope import registry
from headscope.errors import StudyError
from headscope.studies.example_arrays import ENTRY, has_dominant_tokens, has_examples, read_token_texts
from headscope.studies.labels import format_head
from headscope.studies.rates import HEAD_RATES, NEAR_SHARE, NEIGHBORS
from headscope.tally.example_store import COUNTS, LEVELS, MIN_PAIRS, RATES, compute_rates

Kind = Literal["typical", "strongest"]
KINDS: tuple[Kind, ...] = ("typical", "strongest")


@dataclass(frozen=True)
class ExamplePair:
    """Two tokens of a text whose outputs are similar.

    Examples
    --------
    >>> ExamplePair(1, 4, 1.0)
    ExamplePair(i=1, j=4, similarity=1.0)
    """

    i: int
    j: int
    similarity: float
    """as a share of the largest in the text"""


@dataclass(frozen=True)
class Example:
    """A text of the corpus in which a head can be seen: its tokens, and the head's strongest pairs.

    Examples
    --------
    >>> import headscope
    >>> study = headscope.study("minilm", headscope.documents(limit=12))
    >>> example = study.examples(1, 6, "strongest", by="repeat_rate")[0]
    >>> example.head, example.rate, len(example.pairs)
    ('L1H6', 'repeat_rate', 12)
    """

    head: str
    kind: Kind
    rate: str
    """name of the rate by which the text was chosen"""
    value: float
    """this rate in this text"""
    mean: float
    """this rate over the corpus"""
    pair_count: int
    """number of the head's high pairs in the text"""
    token_ids: tuple[int, ...]
    tokens: tuple[str, ...]
    """the tokens as the vocabulary writes them"""
    pieces: tuple[str, ...]
    """the tokens as they are written in the text, with blanks"""
    pairs: tuple[ExamplePair, ...]
    """the strongest, at most 12, the strongest first"""

    @property
    def text(self) -> str:
        """The text, put together from its tokens."""
        return " ".join("".join(self.pieces).split(" ")).strip()

    @cached_property
    def paired(self) -> frozenset[int]:
        """Positions of the tokens that are in one of the pairs."""
        return frozenset(position for pair in self.pairs for position in (pair.i, pair.j))

    @property
    def title(self) -> str:
        """What the example shows, in one line."""
        words = HEAD_RATES[self.rate]
        value, mean = (f"{number * words.factor:.3g}" for number in (self.value, self.mean))
        unit = " %" if words.unit == "%" else f" {words.unit}"
        return f"{self.head}, {self.kind}: {words.label} {value}{unit} (corpus {mean}{unit}), {self.pair_count:,} pairs"

    def format_text(self) -> str:
        """Return the text with the tokens of its pairs in brackets.

        Returns
        -------
        str

        Examples
        --------
        >>> pieces = (" Two", " ravens", ".", " Ravens")
        >>> example = Example(
        ...     "L0H0", "typical", "near_share", 0.1, 0.1, 10, (1, 2, 3, 4), pieces, pieces, (ExamplePair(1, 3, 1.0),)
        ... )
        >>> example.format_text()
        'Two [ravens]. [Ravens]'
        """
        return "".join(f"[{text}]" if k in self.paired else text for k, text in self.split_blanks()).strip()

    def list_pair_names(self) -> list[str]:
        """Return the pairs in words, with positions and similarity.

        Returns
        -------
        list of str

        Examples
        --------
        >>> pairs = (ExamplePair(0, 1, 1.0),)
        >>> example = Example("L0H0", "typical", "near_share", 0.1, 0.1, 10, (1, 2), ("a", "b"), (" a", " b"), pairs)
        >>> example.list_pair_names()
        ['a (0) – b (1) 1.00']
        """
        written = [piece.strip(" ") for piece in self.pieces]
        return [
            f"{written[pair.i]} ({pair.i}) – {written[pair.j]} ({pair.j}) {pair.similarity:.2f}" for pair in self.pairs
        ]

    def split_blanks(self) -> Iterator[tuple[int, str]]:
        """Yield the pieces with their positions, and the blanks before and after them with −1.

        Yields
        ------
        int, str

        Examples
        --------
        >>> example = Example("L0H0", "typical", "near_share", 0.1, 0.1, 10, (1,), ("a",), (" a",), ())
        >>> list(example.split_blanks())
        [(-1, ' '), (0, 'a'), (-1, '')]
        """
        for k, piece in enumerate(self.pieces):
            stem = piece.strip(" ")
            start = piece.index(stem)
            yield -1, piece[:start]
            yield k, stem
            yield -1, piece[start + len(stem) :]

    def __str__(self) -> str:
        return f"{self.title}\n{self.format_text()}\n" + "; ".join(self.list_pair_names())

    def _repr_html_(self) -> str:
        return str(registry.call("render_example", self))

    def to_json(self) -> dict[str, Any]:
        """Return the example as JSON can hold it.

        Returns
        -------
        dict

        Examples
        --------
        >>> Example("L0H0", "typical", "near_share", 0.1, 0.1, 10, (1,), ("a",), (" a",), ()).to_json()["text"]
        'a'
        """
        values = {name: getattr(self, name) for name in ("head", "kind", "rate", "value", "mean", "pair_count", "text")}
        pairs = [{"i": pair.i, "j": pair.j, "similarity": round(pair.similarity, 4)} for pair in self.pairs]
        return {**values, "token_ids": list(self.token_ids), "tokens": list(self.tokens), "pairs": pairs}


class Examples(list[Example]):
    """Examples of one head, which show themselves in a notebook.

    Examples
    --------
    >>> Examples()
    []
    """

    def __str__(self) -> str:
        return "\n\n".join(map(str, self))

    def _repr_html_(self) -> str:
        return "".join(example._repr_html_() for example in self)


def find_examples(
    study: Any, layer: int, head: int, kind: str = "typical", by: str | None = None, count: int = 2
) -> Examples:
    """Return examples of a head; see `Study.examples`."""
    if kind not in KINDS:
        raise StudyError(f"unknown kind of example {kind!r}; there are: {', '.join(KINDS)}")
    if by is not None and by not in RATES:
        raise StudyError(f"no examples by {by!r}; there are examples by: {', '.join(RATES)}")
    if count < 1:
        raise StudyError(f"{count} examples: at least 1")
    _check_head(study, layer, head)
    if not has_examples(study.data):
        raise StudyError(f"no examples in this study: {_explain_missing(study)}")
    rate = by or choose_rate(study, layer, head)
    mean = _get_mean(study, layer, head, rate)
    finder = _Finder(study.data.sel(layer=layer, head=head), format_head(layer, head), rate, mean)
    return Examples(finder.find_typical(count) if kind == "typical" else finder.find_strongest(count))


def count_dominant_tokens(study: Any, layer: int, head: int, top: int = 10) -> pd.DataFrame:
    """Return the most frequent dominant tokens of a head; see `Study.dominant_tokens`."""
    _check_head(study, layer, head)
    if top < 1:
        raise StudyError(f"the {top} most frequent tokens: at least 1")
    if not has_dominant_tokens(study.data):
        raise StudyError("this study was made by a version that did not count dominant tokens: count it again")
    values = {name: study.data.variables[f"{ENTRY}_{name}"].values for name in ("token", "layer", "head", "count")}
    rows = np.flatnonzero((values["layer"] == layer) & (values["head"] == head))
    order = rows[np.lexsort((values["token"][rows], -values["count"][rows]))][:top]
    names, texts = read_token_texts(study.data), int(study.data["texts_with_pairs"].sel(layer=layer, head=head))
    ids, counts = values["token"][order].tolist(), values["count"][order].astype(np.int64)
    return pd.DataFrame(
        {"token": [names[k][0] for k in ids], "token_id": ids, "texts": counts, "share": counts / max(texts, 1)}
    )


def list_dominant_tokens(study: Any) -> dict[str, Any]:
    """Return the most frequent dominant token of every head, in the order of the table of heads, and the share of the
    texts with pairs in which it is: columns of that table, empty and NaN where nothing was counted."""
    token, layer, head, count = (
        study.data.variables[f"{ENTRY}_{name}"].values for name in ("token", "layer", "head", "count")
    )
    layers, heads, texts = study.layers, study.head_numbers, study.data["texts_with_pairs"].values
    is_selected = np.isin(layer, layers) & np.isin(head, heads)
    # The most frequent one comes last, and stays; of equally frequent ones, that with the lowest id.
    order = np.lexsort((-token, count))
    order = order[is_selected[order]]
    places = ([layers.index(k) for k in layer[order].tolist()], [heads.index(k) for k in head[order].tolist()])
    ids, counts = np.full(texts.shape, -1), np.zeros(texts.shape)
    ids[places], counts[places] = token[order], count[order]
    names = read_token_texts(study.data)
    return {
        "dominant_token": [names[k][0] if k >= 0 else "" for k in ids.ravel().tolist()],
        "dominant_token_share": np.where(ids >= 0, counts / np.maximum(texts, 1), np.nan).ravel(),
    }


def choose_rate(study: Any, layer: int, head: int) -> str:
    """Return the rate that names a head, or the one that is farthest above chance if none does."""
    from headscope.studies.output_types import DECIDING_RATES, PREFERENCES

    table = study.select([layer], [head]).heads()
    writes_type = str(table["writes_type"].iloc[0])
    if writes_type in DECIDING_RATES:
        return DECIDING_RATES[writes_type]
    strengths = {preference.rate: float(preference.compute_strength(table)[0]) for preference in PREFERENCES}
    known = {rate: strength for rate, strength in strengths.items() if not np.isnan(strength)}
    return max(known, key=lambda rate: known[rate], default=RATES[0])


def _check_head(study: Any, layer: int, head: int) -> None:
    if layer not in study.layers or head not in study.head_numbers:
        raise StudyError(f"no head {format_head(layer, head)} in the study: it has {study.size}")


def _explain_missing(study: Any) -> str:
    if study.has_images:
        return "its texts are images"
    if not study.data.attrs.get("examples", 0):
        return "it was made without them (--no-examples), or by an older version"
    return "cross-attention has none"


def _get_mean(study: Any, layer: int, head: int, rate: str) -> float:
    if rate != NEAR_SHARE:
        return float(study.rate(rate).sel(layer=layer, head=head))
    distances = study.data["distance"].sel(layer=layer, head=head).values
    total = distances.sum()
    return float(distances[:NEIGHBORS].sum() / total) if total else float("nan")


class _Finder:
    """The examples of one head, which `data` is selected for, by one rate."""

    def __init__(self, data: xr.Dataset, head: str, rate: str, mean: float) -> None:
        self.data, self.head, self.rate, self.mean = data, head, rate, mean
        self.number = RATES.index(rate)
        self.texts = read_token_texts(data)
        self.edges = np.concatenate([[0], np.cumsum(data["example_length"].values)])

    def find_typical(self, count: int) -> list[Example]:
        """Return the windows of the sketch whose rate is nearest to the mean; ties by digest."""
        counts = self.data["sketch_counts"].transpose("sketch", "example_count").values
        if np.isnan(self.mean):
            return []
        windows = self.data["sketch_window"].values
        distance = np.abs(compute_rates(counts)[:, self.number] - self.mean)
        order = np.lexsort((self.data["example_digest"].values[windows], distance))
        enough = [k for k in order.tolist() if counts[k, COUNTS.index("pairs")] >= MIN_PAIRS]
        pairs = {name: self.data[f"sketch_{name}"].transpose("sketch", "example_pair").values for name in "ij"}
        values = self.data["sketch_value"].transpose("sketch", "example_pair").values
        return [
            self._make_example("typical", int(windows[k]), counts[k], pairs["i"][k], pairs["j"][k], values[k])
            for k in enough[:count]
        ]

    def find_strongest(self, count: int) -> list[Example]:
        """Return the windows with the highest rate."""
        dims = ("strongest", "example_pair")
        data = self.data.isel(example_rate=self.number)
        windows = data["strongest_window"].values
        counts = data["strongest_counts"].transpose("strongest", "example_count").values
        i, j, values = (data[f"strongest_{name}"].transpose(*dims).values for name in ("i", "j", "value"))
        return [
            self._make_example("strongest", int(windows[k]), counts[k], i[k], j[k], values[k])
            for k in range(len(windows))
            if windows[k] >= 0
        ][:count]

    def _make_example(self, kind: Kind, window: int, counts: Any, i: Any, j: Any, values: Any) -> Example:
        ids = self.data["example_token"].values[self.edges[window] : self.edges[window + 1]].tolist()
        pairs = (
            ExamplePair(int(first), int(second), int(value) / LEVELS)
            for first, second, value in zip(i, j, values, strict=True)
            if value
        )
        return Example(
            head=self.head,
            kind=kind,
            rate=self.rate,
            value=float(compute_rates(counts)[self.number]),
            mean=self.mean,
            pair_count=int(counts[COUNTS.index("pairs")]),
            token_ids=tuple(ids),
            tokens=tuple(self.texts[k][0] for k in ids),
            pieces=tuple(self.texts[k][1] for k in ids),
            pairs=tuple(pairs),
        )
