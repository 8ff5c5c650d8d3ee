"""A reading: what every head of a model does with one text (METHOD §2 and §4).

Arrays carry labels: layers and heads by number, positions by number with the token beside it. Similarities are computed
from the outputs in float64 wherever they are asked for, so there is one truth and it takes no room.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import compress, pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
import xarray as xr

from headscope import similarity as equations
from headscope.corpus.windows import Window
from headscope.errors import ReadingError
from headscope.studies.labels import of_images, shape_in_words
from headscope.tally.relations import explains, relations
from headscope.types import Bools, Floats, Ints
from headscope.writing import write_whole

if TYPE_CHECKING:
    from headscope.segmentation.result import Segmentation

SUM: Literal["sum"] = "sum"
Head = int | Literal["sum"]
"""a head's number, or all heads of the layer added up"""
RELATIONS = ("equal", "sentence", "neighbours")
"""how the text itself may relate two tokens: they are the same, lie in one sentence, stand side by side"""


class Reading:
    """Made by `headscope.read`, or from arrays of your own by `Reading.from_arrays`.

    >>> import headscope
    >>> reading = headscope.read(headscope.load(), "Two ravens met. The ravens left.")
    >>> reading
    <Reading of minilm: 6 layers × 12 heads, 10 tokens: Two ravens met. The ravens left.>
    >>> list(reading.pairs(layer=1, head=6).columns)
    ['token_i', 'token_j', 'index_i', 'index_j', 'value', 'relative']
    """

    def __init__(self, data: xr.Dataset) -> None:
        self.data = data

    # -- what it is ---------------------------------------------------------------------------------------------------

    @property
    def manifest(self) -> dict[str, Any]:
        """How the reading was made, as plain values."""
        plain = {str(name): getattr(value, "item", lambda v=value: v)() for name, value in self.data.attrs.items()}
        return plain | ({"versions": json.loads(plain["versions"])} if "versions" in plain else {})

    @property
    def text(self) -> str:
        """The part of the text that was read."""
        return str(self.data["text"].item())

    @property
    def theta(self) -> float:
        return float(self.data.attrs["theta"])

    @property
    def tau(self) -> float:
        return float(self.data.attrs["tau"])

    @property
    def layers(self) -> list[int]:
        return [int(layer) for layer in self.data["layer"].values]

    @property
    def heads(self) -> list[int]:
        return [int(head) for head in self.data["head"].values]

    @property
    def size(self) -> str:
        """Layers, heads and tokens in words."""
        return f"{shape_in_words(self.data.attrs, len(self.layers), len(self.heads))}, {len(self)} tokens"

    def __len__(self) -> int:
        """The number of tokens."""
        return int(self.data.sizes["position"])

    @property
    def relations(self) -> tuple[str, ...]:
        """Those of the text that can explain a pair: of an image none; `sentence` only where sentences are known.

        Of arrays they are not, where no token begins a second one: what such a reading is made of need be no text.
        """
        if of_images(self.data.attrs):
            return ()
        unknown = "weight_hash" not in self.data.attrs and not self.data["sentence"].values.any()
        return tuple(name for name in RELATIONS if not (unknown and name == "sentence"))

    # -- arrays -------------------------------------------------------------------------------------------------------

    @property
    def tokens(self) -> xr.DataArray:
        """The tokens by position, with their id, sentence, word and place in the text as coordinates."""
        return self.data["token"]

    @property
    def outputs(self) -> xr.DataArray:
        """What the heads write: layer, position, head, width."""
        return self.data["outputs"]

    @property
    def has_attention(self) -> bool:
        return "attention" in self.data

    @property
    def attention(self) -> xr.DataArray:
        """The attention maps: layer, head, query, key."""
        self._need_attention()
        return self._labelled(self.data["attention"], "query", "key")

    @property
    def similarity(self) -> xr.DataArray:
        """The context similarity matrices of all heads: layer, head, position_i, position_j."""
        shape = (len(self.layers), len(self.heads), len(self), len(self))
        made = np.empty(shape)
        for a, layer in enumerate(self.layers):
            for b, head in enumerate(self.heads):
                made[a, b] = self._matrix(layer, head)
        array = xr.DataArray(
            made,
            dims=("layer", "head", "position_i", "position_j"),
            coords={"layer": self.layers, "head": self.heads},
            name="similarity",
        )
        return self._labelled(array, "position_i", "position_j")

    def matrix(self, layer: int, head: Head) -> xr.DataArray:
        """The context similarity matrix of one head, or the sum over the layer's heads (`head="sum"`)."""
        array = xr.DataArray(
            self._matrix(layer, head),
            dims=("position_i", "position_j"),
            coords=self._named(layer, head),
            name="similarity",
        )
        return self._labelled(array, "position_i", "position_j")

    def attention_map(self, layer: int, head: Head) -> xr.DataArray:
        """The attention map of one head, or the sum over the layer's heads (`head="sum"`)."""
        array = xr.DataArray(
            self._map(layer, head), dims=("query", "key"), coords=self._named(layer, head), name="attention"
        )
        return self._labelled(array, "query", "key")

    # -- tables -------------------------------------------------------------------------------------------------------

    def pairs(
        self,
        layer: int | Iterable[int] | None = None,
        head: Head | Iterable[int] | None = None,
        theta: float | None = None,
        *,
        special: bool = True,
        words: bool = False,
        explain: bool = False,
    ) -> pd.DataFrame:
        """High pairs in the paper's form, ordered by i, then j; `relative` is C_ij / max(C).

        Of several heads (or all, where none is named) each row says which it belongs to. `special=False` leaves out the
        pairs with special tokens, and does not change which others are high. `words=True` joins tokens to words: two
        words are a pair where any of their tokens are; they stand under the index of their first tokens.

        `explain=True` adds what of the text explains each pair, `relation`: "equal" tokens, of one "sentence",
        "neighbours" (of words, any of their tokens), joined by " + " where several hold, "" where none does: noise.
        Only what is known is asked for, see `relations`.
        """
        share = self._share("theta", theta)
        single = layer is not None and head is not None and _is_one(layer) and _is_one(head)
        tables = [
            self._pairs(a, b, share, special=special, words=words).assign(layer=a, head=b)
            for a, b in self._chosen(layer, head)
        ]
        made = pd.concat(tables, ignore_index=True).astype({"token_i": "str", "token_j": "str"})
        columns = ["token_i", "token_j", "index_i", "index_j", "value", "relative"]
        if explain:
            named = self._relation(made["index_i"].to_numpy(), made["index_j"].to_numpy(), words=words)
            made["relation"] = pd.Series(named, dtype="str")
            columns.append("relation")
        return made[columns if single else ["layer", "head", *columns]]

    def explained(self, layer: int, head: Head, theta: float | None = None) -> float:
        """The share of a head's high pairs that the text explains; NaN without pairs, and where nothing could."""
        self._named(layer, head)
        table = self.pairs(layer, head, theta)
        if not len(table) or not self.relations:
            return float(np.nan)
        return float(explains(self._related())[table["index_i"], table["index_j"]].mean())

    def lines(self, layer: int, head: Head = SUM, tau: float | None = None) -> pd.DataFrame:
        """The tokens whose columns draw attention above τ of the strongest; `received` is s_j of METHOD §4."""
        attention = self._map(layer, head)
        sums = attention.sum(axis=0)
        index = np.flatnonzero(equations.lines(attention, self._share("tau", tau)))
        return pd.DataFrame(
            {"token": self._labels()[index], "index": index, "received": sums[index] / sums.max()},
        )

    def blocks(self, layer: int, head: Head = SUM, tau: float | None = None) -> pd.DataFrame:
        """The blocks that the lines cut the text into: tokens `start` up to, not including, `stop`."""
        cut = self._cut(layer, head, tau)
        labels = self._labels()
        return pd.DataFrame(
            {
                "start": [block.start for block in cut],
                "stop": [block.stop for block in cut],
                "tokens": [" ".join(labels[block.start : block.stop]) for block in cut],
            }
        )

    def regions(
        self, layer: int, head: Head, tau: float | None = None, *, lines_of: Head | None = None
    ) -> xr.DataArray:
        """Mean similarity between blocks, NaN inside a block of one token.

        The lines are those of the same head's attention map, or of another (`lines_of="sum"`: the layer's).
        """
        cut = self._cut(layer, head if lines_of is None else lines_of, tau)
        starts = [block.start for block in cut]
        return xr.DataArray(
            equations.regions(self._matrix(layer, head), cut),
            dims=("block_i", "block_j"),
            coords=self._named(layer, head) | {"start_i": ("block_i", starts), "start_j": ("block_j", starts)},
            name="regions",
        )

    def dominant(
        self,
        layer: int | Iterable[int] | None = None,
        head: Head | Iterable[int] | None = None,
        theta: float | None = None,
    ) -> pd.DataFrame:
        """One row a head: the token value that the most high pairs include, and which share of them does."""
        share, ids, rows = self._share("theta", theta), self._ids(), []
        names = dict(zip(ids[::-1].tolist(), self._labels()[::-1].tolist(), strict=True))  # as first met
        for a, b in self._chosen(layer, head):
            pairs = equations.pairs_of(equations.high(self._matrix(a, b), share))
            found = equations.dominant(pairs, ids)
            value, count = (None, 0) if found is None else found
            part = count / len(pairs) if pairs else np.nan
            rows.append((a, b, "" if value is None else names[value], -1 if value is None else value, len(pairs), part))
        return pd.DataFrame(rows, columns=["layer", "head", "token", "token_id", "pairs", "share"])

    def segments(self, count: int | None = None, granularity: float = 1.0, tau: float | None = None) -> Segmentation:
        """Its fine segments: blocks between the attention lines of the last layers, joined by their region averages."""
        from headscope.segmentation.fine import segmentation_of  # it knows the reading; here it only lends its result

        return segmentation_of(self, count=count, granularity=granularity, tau=self._share("tau", tau))

    # -- parts and files ----------------------------------------------------------------------------------------------

    def select(self, layers: int | Iterable[int] | None = None, heads: int | Iterable[int] | None = None) -> Reading:
        """Only some layers and heads. The sum over heads is then over these heads."""
        chosen = {
            name: self._numbers(name, wanted)
            for name, wanted in (("layer", layers), ("head", heads))
            if wanted is not None
        }
        return Reading(self.data.sel(chosen))

    def at(self, theta: float | None = None, tau: float | None = None) -> Reading:
        """The same reading with other thresholds for all that follows."""
        return Reading(self.data.assign_attrs(theta=self._share("theta", theta), tau=self._share("tau", tau)))

    def save(self, path: str | Path) -> Path:
        """Write the reading as one netCDF file."""
        from headscope.readings.files import save_reading

        return save_reading(self, Path(path))

    def page(
        self, path: str | Path | None = None, *, precision: str = "auto", start: tuple[int, Head] | None = None
    ) -> str:
        """The explorer: one HTML page that needs nothing else, opened at the head `start`; written to `path`, if given.

        `precision` is `fine` (exact for thresholds of three decimals), `coarse` (of two; a third the size) or `auto`.
        """
        from headscope.page.explorer import explorer  # the page knows the reading; here it only lends its looks

        html = explorer(self, precision=precision, start=start)
        if path is not None:
            write_whole(Path(path), html.encode("utf-8"), ReadingError)
        return html

    def __repr__(self) -> str:
        shown = " ".join("".join(c if c.isprintable() else " " for c in self.text).split())
        return f"<Reading of {self.data.attrs['model']}: {self.size}: {shown[:60]}{'…' if len(shown) > 60 else ''}>"

    def _repr_html_(self) -> str:
        from headscope.page.frame import reading_frame

        return reading_frame(self)

    # -- within -------------------------------------------------------------------------------------------------------

    def _matrix(self, layer: int, head: Head) -> Floats:
        outputs = self.data["outputs"].sel(layer=self._number("layer", layer))
        if not _is_sum(head):
            return equations.similarity(outputs.sel(head=self._number("head", head)).values.astype(np.float64))
        total = np.zeros((len(self), len(self)))
        for each in self.heads:
            total += equations.similarity(outputs.sel(head=each).values.astype(np.float64))
        return total

    def _map(self, layer: int, head: Head) -> Floats:
        self._need_attention()
        maps = self.data["attention"].sel(layer=self._number("layer", layer))
        if _is_sum(head):
            return np.asarray(maps.values.sum(axis=0, dtype=np.float64))
        return np.asarray(maps.sel(head=self._number("head", head)).values, dtype=np.float64)

    def _pairs(self, layer: int, head: Head, theta: float, *, special: bool, words: bool) -> pd.DataFrame:
        matrix, labels = self._matrix(layer, head), self._labels()
        largest, first = matrix.max(), np.arange(len(self))
        hidden = self.data["special"].values.astype(bool)
        if words:
            matrix = equations.joined(matrix, self._words())
            first = np.searchsorted(self._words(), np.arange(len(matrix)))
            labels, hidden = self.word_labels(), hidden[first]
        elements = matrix > theta * largest
        if not special:
            elements &= ~(hidden[:, None] | hidden[None, :])
        found = np.array(equations.pairs_of(elements), dtype=np.int64).reshape(-1, 2)
        i, j = found[:, 0], found[:, 1]
        values = matrix[i, j]
        return pd.DataFrame(
            {
                "token_i": labels[i],
                "token_j": labels[j],
                "index_i": first[i],
                "index_j": first[j],
                "value": values,
                "relative": values / largest if len(values) else values,
            }
        )

    def _related(self) -> Bools:
        """By `RELATIONS` which tokens are related, N×N each; none where that is not known."""
        window = replace(Window.plain(self._ids()), sentence=self.data["sentence"].values)
        return relations(window) & np.isin(RELATIONS, self.relations)[:, None, None]

    def _relation(self, i: Ints, j: Ints, *, words: bool) -> np.ndarray[Any, Any]:
        related = self._related()
        if words:
            starts = np.flatnonzero(np.diff(self._words(), prepend=-1))
            related = np.logical_or.reduceat(np.logical_or.reduceat(related, starts, axis=1), starts, axis=2)
            i, j = self._words()[i], self._words()[j]
        kinds = list(product((False, True), repeat=len(RELATIONS)))
        named = np.array([" + ".join(compress(RELATIONS, held)) for held in kinds], dtype=object)
        return np.asarray(named[np.ravel_multi_index(tuple(related[:, i, j].astype(np.int64)), (2,) * len(RELATIONS))])

    def word_labels(self) -> np.ndarray[Any, Any]:
        """The words of the text in order, their tokens joined; a special token is a word of its own.

        Tokens that are pieces of one character cannot be read: a word with such is written as it stands in the text.
        """
        words, labels, text = self._words(), self._labels().tolist(), self.text
        starts, ends = self.data["start"].values, self.data["end"].values
        edges = [*np.flatnonzero(np.diff(words, prepend=-1)).tolist(), len(words)]
        joined = np.empty(len(edges) - 1, dtype=object)
        for word, (first, stop) in enumerate(pairwise(edges)):
            apart = labels[first] + "".join(label.removeprefix("##") for label in labels[first + 1 : stop])
            in_pieces = (starts[first + 1 : stop] < ends[first : stop - 1]).any()
            joined[word] = (in_pieces and text[starts[first] : ends[stop - 1]].strip()) or apart
        return joined

    def _cut(self, layer: int, head: Head, tau: float | None) -> list[range]:
        return equations.blocks(equations.lines(self._map(layer, head), self._share("tau", tau)))

    def _chosen(
        self, layer: int | Iterable[int] | None, head: Head | Iterable[int] | None
    ) -> Iterator[tuple[int, Head]]:
        heads: list[Head] = (
            list(self.heads) if head is None else [SUM] if _is_sum(head) else [*self._numbers("head", head)]
        )
        for each in self.layers if layer is None else self._numbers("layer", layer):
            for other in heads:
                yield each, other

    def _numbers(self, name: str, wanted: Any) -> list[int]:
        there = self.layers if name == "layer" else self.heads
        chosen = [wanted] if _is_one(wanted) else list(wanted)
        absent = [str(k) for k in chosen if k not in there]
        if absent or not chosen:
            in_order = len(there) > 4 and there == list(range(there[0], there[-1] + 1))
            held = f"{there[0]} to {there[-1]}" if in_order else ", ".join(map(str, there))
            named = ", ".join(absent) or "chosen: the list given is empty"
            raise ReadingError(f"no {name} {named}: this reading has {name}s {held}")
        return list(dict.fromkeys(int(k) for k in chosen))

    def _number(self, name: str, wanted: Any) -> int:
        chosen = self._numbers(name, wanted)
        if len(chosen) > 1:
            raise ReadingError(f"{name}s {', '.join(map(str, chosen))}: this is asked of one {name} at a time")
        return chosen[0]

    def _named(self, layer: int, head: Head) -> dict[str, Any]:
        return {"layer": self._number("layer", layer), "head": SUM if _is_sum(head) else self._number("head", head)}

    def _share(self, name: str, given: float | None) -> float:
        value = self.data.attrs[name] if given is None else given
        try:
            share = float(value)
        except (TypeError, ValueError):
            share = np.nan
        if not 0 <= share < 1:
            raise ReadingError(f"{name} is {value}: it is a share of the maximum, from 0 to below 1")
        return share

    def _need_attention(self) -> None:
        if not self.has_attention:
            raise ReadingError("this reading was made from outputs alone: it has no attention maps, and so no lines")

    def _labelled(self, array: xr.DataArray, rows: str, columns: str) -> xr.DataArray:
        labels = self._labels()
        suffix = {"position_i": "token_i", "position_j": "token_j", "query": "query_token", "key": "key_token"}
        positions = np.arange(len(self))
        return array.assign_coords(
            dict.fromkeys((rows, columns), positions) | {suffix[dim]: (dim, labels) for dim in (rows, columns)}
        )

    def _labels(self) -> np.ndarray[Any, Any]:
        return np.asarray(self.data["token"].values, dtype=object)

    def _ids(self) -> Ints:
        return np.asarray(self.data["token_id"].values, dtype=np.int64)

    def _words(self) -> Ints:
        return np.asarray(self.data["word"].values, dtype=np.int64)

    @classmethod
    def from_arrays(
        cls,
        tokens: Iterable[str],
        outputs: Any,
        attention: Any = None,
        *,
        ids: Any = None,
        special: Any = None,
        theta: float = equations.THETA,
        tau: float = equations.TAU,
        name: str = "arrays given in Python",
    ) -> Reading:
        """A reading without a model: tokens, outputs (layer, position, head, width), maps (layer, head, query, key).

        Arrays may be of numpy or torch, or one for each layer; a batch axis of one text is taken off. Equal tokens are
        those of equal `ids`, else of equal text.

        >>> reading = Reading.from_arrays(["a", "b", "a"], np.eye(3)[None, :, None, :] + 0.5)
        >>> len(reading.pairs(layer=0, head=0))
        3
        """
        from headscope.readings.arrays import reading_of

        return reading_of(tokens, outputs, attention, ids=ids, special=special, theta=theta, tau=tau, name=name)


def _is_one(wanted: Any) -> bool:
    return isinstance(wanted, str) or not np.iterable(wanted)


def _is_sum(head: Any) -> bool:
    return isinstance(head, str) and head == SUM
