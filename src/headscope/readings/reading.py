"""Readings: the head outputs and attention maps of one text, and what follows from them (METHOD §2 and §4).

Arrays are labelled: layers and heads by number, positions by number and token. Similarities are not stored but computed
from the outputs in float64 when needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from itertools import compress, pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
import xarray as xr

from headscope import registry
from headscope import similarity as equations
from headscope.array_types import Bools, Floats, Ints
from headscope.corpus.windows import Window
from headscope.errors import ReadingError
from headscope.file_io import write_atomically
from headscope.head_selection import Numbers, select_grid
from headscope.studies.labels import HEAD_COLUMNS, format_head, format_shape, has_images
from headscope.tally.text_structure import compute_relations, mark_explained

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from headscope.segmentation.result import Segmentation

SUM: Literal["sum"] = "sum"
Head = int | Literal["sum"]
"""the number of a head, or the sum over all heads of a layer"""
HeadSelection = Head | str | Iterable[int] | Iterable[str] | None
"""heads of some layers by number, or heads by the names of tables, such as L1H6 or L1sum; None: all"""
RELATIONS = ("equal", "sentence", "neighbours")
"""how the text may relate two tokens: they are equal, in one sentence, or adjacent"""


class Reading:
    """The outputs and attention maps of all heads for one text, and what follows from them.

    `headscope.read` makes one of a model and a text, `Reading.from_arrays` one of arrays, and `headscope.open_reading`
    opens one.

    Parameters
    ----------
    data
        The arrays, as an xarray Dataset.

    Examples
    --------
    >>> import headscope
    >>> reading = headscope.read("minilm", "Two ravens met. The ravens left.")
    >>> reading
    <Reading of minilm: 6 layers × 12 heads, 10 tokens: Two ravens met. The ravens left.>
    >>> list(reading.pairs(layer=1, head=6).columns)
    ['token_i', 'token_j', 'index_i', 'index_j', 'value', 'relative']
    """

    def __init__(self, data: xr.Dataset) -> None:
        self.data = data

    # -- description --------------------------------------------------------------------------------------------------

    @property
    def manifest(self) -> dict[str, Any]:
        """How the reading was created, as plain Python values."""
        values = {str(name): getattr(value, "item", lambda v=value: v)() for name, value in self.data.attrs.items()}
        return values | ({"versions": json.loads(values["versions"])} if "versions" in values else {})

    @property
    def text(self) -> str:
        """The part of the text that was read."""
        return str(self.data["text"].item())

    @property
    def theta(self) -> float:
        """Threshold θ of high pairs, as a share of the largest similarity."""
        return float(self.data.attrs["theta"])

    @property
    def tau(self) -> float:
        """Threshold τ of attention lines, as a share of the strongest column."""
        return float(self.data.attrs["tau"])

    @property
    def layers(self) -> list[int]:
        """Numbers of the layers, in the order of the data."""
        return [int(layer) for layer in self.data["layer"].values]

    @property
    def head_numbers(self) -> list[int]:
        """Numbers of the heads, in the order of the data. A layer may lack some: see `heads_of`."""
        return [int(head) for head in self.data["head"].values]

    def heads_of(self, layer: int) -> list[int]:
        """Return the numbers of the heads that a layer has; in models with removed heads, layers differ in them.

        Parameters
        ----------
        layer
            Number of the layer.

        Returns
        -------
        list of int

        Examples
        --------
        >>> import headscope
        >>> reading = headscope.read("minilm", "Two ravens met. The ravens left.")
        >>> len(reading.heads_of(0))
        12
        """
        return list(self._heads_by_layer[self._resolve_number("layer", layer)])

    @cached_property
    def _heads_by_layer(self) -> dict[int, list[int]]:
        first = self.data["outputs"].isel(position=0, width=0).transpose("layer", "head").values
        numbers = np.array(self.head_numbers)
        return {layer: numbers[~np.isnan(row)].tolist() for layer, row in zip(self.layers, first, strict=True)}

    @property
    def size(self) -> str:
        """The numbers of layers, heads and tokens, in words."""
        return f"{format_shape(self.data.attrs, len(self.layers), len(self.head_numbers))}, {len(self)} tokens"

    def __len__(self) -> int:
        """Return the number of tokens."""
        return int(self.data.sizes["position"])

    @property
    def leaves_out(self) -> bool:
        """Whether the text, or the source that an encoder reads, has more tokens than were read."""
        return self._has_more("text") or self._has_more("source")

    def _has_more(self, part: Literal["text", "source"]) -> bool:
        """Return whether the text or its source has more tokens than were read."""
        read = len(self) if part == "text" else self.data.sizes.get("source_position", 0)
        return int(self.data.attrs.get(f"tokens_in_{part}", read)) > read

    @property
    def relations(self) -> tuple[str, ...]:
        """The relations that can explain a pair: none for images; `sentence` only if sentences are known.

        For arrays they are unknown if no token begins a second sentence, because the arrays need not be of a text.
        """
        if has_images(self.data.attrs):
            return ()
        unknown = "weight_hash" not in self.data.attrs and not self.data["sentence"].values.any()
        return tuple(name for name in RELATIONS if not (unknown and name == "sentence"))

    # -- arrays -------------------------------------------------------------------------------------------------------

    @property
    def tokens(self) -> xr.DataArray:
        """The tokens (position), with their id, sentence, word, start and end in the text as coordinates."""
        return self.data["token"]

    @property
    def outputs(self) -> xr.DataArray:
        """The head outputs (layer, position, head, width); NaN where a layer has fewer or narrower heads."""
        return self.data["outputs"]

    def output(self, layer: int, head: Head) -> Floats:
        """Return the output of one head in float64, in its own width.

        Parameters
        ----------
        layer, head
            Their numbers.

        Returns
        -------
        array
            Of shape (position, width).

        Examples
        --------
        >>> import headscope
        >>> reading = headscope.read("minilm", "Two ravens met. The ravens left.")
        >>> reading.output(1, 6).shape
        (10, 32)
        """
        number = self._resolve_number("layer", layer)
        output = self.data["outputs"].sel(layer=number, head=self._resolve_head(number, head)).values
        return np.asarray(output[:, ~np.isnan(output[0])], dtype=np.float64)

    @property
    def has_attention(self) -> bool:
        """Whether there are attention maps of the text to itself: readings of arrays may be of outputs alone."""
        return "attention" in self.data

    @property
    def is_cross(self) -> bool:
        """Whether there are attention maps of the text to its source: keys are then the source's tokens."""
        return "source_attention" in self.data

    @property
    def source_tokens(self) -> xr.DataArray:
        """The tokens that the encoder read (source_position), if this is a reading of the decoder behind it."""
        if "source_token" not in self.data.coords:
            raise ReadingError("this reading has no source: only the decoder of an encoder–decoder model reads one")
        return self.data["source_token"]

    @property
    def attention(self) -> xr.DataArray:
        """The attention maps (layer, head, query, key); NaN for heads that a layer lacks.

        In cross-attention, queries are the tokens of the text and keys those of its source.
        """
        return self._add_token_labels(self._get_maps(), "query", "key")

    @property
    def similarity(self) -> xr.DataArray:
        """The context similarity matrices of all heads (layer, head, position_i, position_j); NaN for absent heads."""
        matrices = np.full((len(self.layers), len(self.head_numbers), len(self), len(self)), np.nan)
        for a, layer in enumerate(self.layers):
            for head in self.heads_of(layer):
                matrices[a, self.head_numbers.index(head)] = self._compute_similarity(layer, head)
        array = xr.DataArray(
            matrices,
            dims=("layer", "head", "position_i", "position_j"),
            coords={"layer": self.layers, "head": self.head_numbers},
            name="similarity",
        )
        return self._add_token_labels(array, "position_i", "position_j")

    def matrix(self, layer: int, head: Head) -> xr.DataArray:
        """Return the context similarity matrix of one head, or the sum over the layer's heads.

        Parameters
        ----------
        layer
            Number of the layer.
        head
            Number of the head, or `"sum"`.

        Returns
        -------
        DataArray
            Of shape (position_i, position_j); the diagonal is 0.

        Raises
        ------
        ReadingError
            There is no such layer or head.

        Examples
        --------
        >>> from headscope import Reading
        >>> reading = Reading.from_arrays(["the", "cat"], [[[[1, 0]], [[1, 1]]]])
        >>> reading.matrix(layer=0, head=0).values.tolist()
        [[0.0, 1.0], [1.0, 0.0]]
        """
        array = xr.DataArray(
            self._compute_similarity(layer, head),
            dims=("position_i", "position_j"),
            coords=self._make_coordinates(layer, head),
            name="similarity",
        )
        return self._add_token_labels(array, "position_i", "position_j")

    def attention_map(self, layer: int, head: Head) -> xr.DataArray:
        """Return the attention map of one head, or the sum over the layer's heads.

        Parameters
        ----------
        layer
            Number of the layer.
        head
            Number of the head, or `"sum"`.

        Returns
        -------
        DataArray
            Of shape (query, key).

        Raises
        ------
        ReadingError
            There is no such layer or head, or the reading has no attention maps.

        Examples
        --------
        >>> import headscope
        >>> reading = headscope.read("minilm", "Two ravens met. The ravens left.")
        >>> reading.attention_map(layer=5, head="sum").sum("key").round(3).values.tolist()[0]  # of 12 heads
        12.0
        """
        array = xr.DataArray(
            self._get_map(layer, head),
            dims=("query", "key"),
            coords=self._make_coordinates(layer, head),
            name="attention",
        )
        return self._add_token_labels(array, "query", "key")

    # -- tables -------------------------------------------------------------------------------------------------------

    def pairs(
        self,
        layer: int | Iterable[int] | None = None,
        head: HeadSelection = None,
        theta: float | None = None,
        *,
        special: bool = True,
        words: bool = False,
        explain: bool = False,
    ) -> pd.DataFrame:
        """Return the high pairs in the paper's form, ordered by i, then j.

        Parameters
        ----------
        layer, head
            A number or several; `head="sum"` is the sum over the layer's heads. Without them: all. Or only `head`, a
            name or several, such as `"L1H6"`.
        theta
            Threshold as a share of the maximum, by default that of the reading.
        special
            False leaves out the pairs with special tokens. It does not change which others are high.
        words
            True joins tokens to words: two words are a pair if any of their tokens are. Their index is that of their
            first tokens.
        explain
            True adds a column `relation`, what in the text explains the pair: "equal" tokens, of one "sentence",
            "neighbours" (of words, any of their tokens), joined by " + " if several hold, and "" if none does: noise.
            Only known relations are tested, see `relations`.

        Returns
        -------
        DataFrame
            With the columns token_i, token_j, index_i, index_j, value, and `relative`, C_ij / max(C). Unless layer and
            head are single, the columns `head` (such as L1H6, or L1sum), `layer` and `head_number` come first. A
            column `capture`, "unverified", is last if the capture is unverified.

        Raises
        ------
        ReadingError
            There is no such layer or head, or θ is no share.

        Examples
        --------
        >>> import headscope
        >>> reading = headscope.read("minilm", "Two ravens met. The ravens left.")
        >>> table = reading.pairs(layer=1, head=6, special=False)
        >>> strongest = table.loc[table["value"].idxmax()]
        >>> strongest["token_i"], strongest["token_j"], int(strongest["index_i"]), int(strongest["index_j"])
        ('ravens', 'ravens', 2, 6)
        """
        share = self._resolve_threshold("theta", theta)
        is_numbered = layer is not None and head is not None and _is_single(layer) and _is_single(head)
        is_single_head = is_numbered or _is_name(head)
        tables = [
            self._list_pairs(a, b, share, special=special, words=words).assign(**_name_head(a, b))
            for a, b in self._iterate_heads(layer, head)
        ]
        table = pd.concat(tables, ignore_index=True).astype({"head": "str", "token_i": "str", "token_j": "str"})
        columns = ["token_i", "token_j", "index_i", "index_j", "value", "relative"]
        if explain:
            names = self._name_relations(table["index_i"].to_numpy(), table["index_j"].to_numpy(), words=words)
            table["relation"] = pd.Series(names, dtype="str")
            columns.append("relation")
        if not self._is_verified:
            table["capture"] = "unverified"
            columns.append("capture")
        return table[columns if is_single_head else [*HEAD_COLUMNS, *columns]]

    def explained(self, layer: int, head: Head, theta: float | None = None) -> float:
        """Return the share of a head's high pairs that the text explains.

        Parameters
        ----------
        layer
            Number of the layer.
        head
            Number of the head, or `"sum"`.
        theta
            Threshold as a share of the maximum, by default that of the reading.

        Returns
        -------
        float
            Between 0 and 1; NaN without pairs or known relations.

        Raises
        ------
        ReadingError
            There is no such layer or head, or θ is no share.

        Examples
        --------
        >>> import headscope
        >>> reading = headscope.read("minilm", "Two ravens met. The ravens left.")
        >>> 0.7 < reading.explained(layer=1, head=6) < 0.9
        True
        """
        self._make_coordinates(layer, head)  # raises if several are given
        table = self.pairs(layer, head, theta)
        if not len(table) or not self.relations:
            return float(np.nan)
        return float(mark_explained(self._compute_relations())[table["index_i"], table["index_j"]].mean())

    def lines(self, layer: int, head: Head = SUM, tau: float | None = None) -> pd.DataFrame:
        """Return the tokens that receive more attention than τ of the strongest; in cross-attention, of the source.

        Parameters
        ----------
        layer
            Number of the layer.
        head
            Number of the head; by default the sum over the layer's heads.
        tau
            Threshold as a share of the strongest column, by default that of the reading.

        Returns
        -------
        DataFrame
            With the columns token, index, and `received`: the attention as a share of the strongest column.

        Raises
        ------
        ReadingError
            There is no such layer or head, τ is no share, or the reading has no attention maps.

        Examples
        --------
        >>> import headscope
        >>> reading = headscope.read("minilm", "Two ravens met. The ravens left.")
        >>> reading.lines(layer=5)["token"].tolist()
        ['[CLS]']
        """
        attention = self._get_map(layer, head)
        sums = attention.sum(axis=0)
        index = np.flatnonzero(equations.mark_lines(attention, self._resolve_threshold("tau", tau)))
        return pd.DataFrame(
            {"token": self._get_key_labels()[index], "index": index, "received": sums[index] / sums.max()},
        )

    def blocks(self, layer: int, head: Head = SUM, tau: float | None = None) -> pd.DataFrame:
        """Return the blocks between attention lines.

        Parameters
        ----------
        layer
            Number of the layer.
        head
            Number of the head; by default the sum over the layer's heads.
        tau
            Threshold as a share of the strongest column, by default that of the reading.

        Returns
        -------
        DataFrame
            With the columns `start` and `stop`, the first token and the one after the last, and `tokens`.

        Raises
        ------
        ReadingError
            There is no such layer or head, τ is no share, or the reading has no attention maps.

        Examples
        --------
        >>> import headscope
        >>> reading = headscope.read("minilm", "Two ravens met. The ravens left.")
        >>> reading.blocks(layer=5)[["start", "stop"]].values.tolist()
        [[0, 1], [1, 10]]
        """
        blocks = self._split_blocks(layer, head, tau)
        labels = self._get_labels()
        return pd.DataFrame(
            {
                "start": [block.start for block in blocks],
                "stop": [block.stop for block in blocks],
                "tokens": [" ".join(labels[block.start : block.stop]) for block in blocks],
            }
        )

    def regions(
        self, layer: int, head: Head, tau: float | None = None, *, lines_of: Head | None = None
    ) -> xr.DataArray:
        """Return the mean similarity between the blocks of a text.

        Parameters
        ----------
        layer
            Number of the layer.
        head
            Number of the head whose similarities are averaged, or `"sum"`.
        tau
            Threshold of the lines between blocks, by default that of the reading.
        lines_of
            The head whose attention lines cut the text into blocks, or `"sum"`; by default the same head.

        Returns
        -------
        DataArray
            Of shape (block_i, block_j); NaN within a block of one token.

        Raises
        ------
        ReadingError
            There is no such layer or head, τ is no share, or the reading has no attention maps.

        Examples
        --------
        >>> import headscope
        >>> reading = headscope.read("minilm", "Two ravens met. The ravens left.")
        >>> reading.regions(layer=5, head=0, lines_of="sum").shape
        (2, 2)
        """
        blocks = self._split_blocks(layer, head if lines_of is None else lines_of, tau)
        starts = [block.start for block in blocks]
        return xr.DataArray(
            equations.average_regions(self._compute_similarity(layer, head), blocks),
            dims=("block_i", "block_j"),
            coords=self._make_coordinates(layer, head)
            | {"start_i": ("block_i", starts), "start_j": ("block_j", starts)},
            name="regions",
        )

    def dominant(
        self,
        layer: int | Iterable[int] | None = None,
        head: HeadSelection = None,
        theta: float | None = None,
    ) -> pd.DataFrame:
        """Return for each head the token value that most high pairs include, and the share of pairs that do.

        Parameters
        ----------
        layer, head
            A number or several; `head="sum"` is the sum over the layer's heads. Without them: all. Or only `head`, a
            name or several, such as `"L1H6"`.
        theta
            Threshold as a share of the maximum, by default that of the reading.

        Returns
        -------
        DataFrame
            One row per head, with the columns head, layer, head_number, token, token_id, pairs and share; and
            `capture`, "unverified", if the capture is unverified.

        Raises
        ------
        ReadingError
            There is no such layer or head, or θ is no share.

        Examples
        --------
        >>> import headscope
        >>> reading = headscope.read("minilm", "Two ravens met. The ravens left.")
        >>> reading.dominant(head="L1H6")[["head", "token"]].values.tolist()
        [['L1H6', 'ravens']]
        """
        share, ids, rows = self._resolve_threshold("theta", theta), self._get_ids(), []
        names = dict(zip(ids[::-1].tolist(), self._get_labels()[::-1].tolist(), strict=True))  # the label of the first
        for a, b in self._iterate_heads(layer, head):
            pairs = equations.list_pairs(equations.mark_high(self._compute_similarity(a, b), share))
            token_id, count = equations.find_dominant(pairs, ids) or (-1, 0)
            pair_share = count / len(pairs) if pairs else np.nan
            rows.append(
                (*_name_head(a, b).values(), names[token_id] if count else "", token_id, len(pairs), pair_share)
            )
        table = pd.DataFrame(rows, columns=[*HEAD_COLUMNS, "token", "token_id", "pairs", "share"])
        return table if self._is_verified else table.assign(capture="unverified")

    def segments(self, count: int | None = None, granularity: float = 1.0, tau: float | None = None) -> Segmentation:
        """Return the fine segments: blocks between attention lines of the last layers, joined by region averages.

        Parameters
        ----------
        count
            Number of segments; without it the number is found.
        granularity
            Above 1 gives more segments, below 1 fewer.
        tau
            Threshold of the lines, by default that of the reading.

        Returns
        -------
        Segmentation

        Raises
        ------
        ReadingError
            τ is no share, or the reading has no attention maps.

        Examples
        --------
        >>> import headscope
        >>> reading = headscope.read("minilm", "Two ravens met. The ravens left.")
        >>> [segment.text for segment in reading.segments(count=1)]
        ['Two ravens met. The ravens left.']
        """
        tau = self._resolve_threshold("tau", tau)
        segmentation: Segmentation = registry.call(
            "segment_reading", self, count=count, granularity=granularity, tau=tau
        )
        return segmentation

    # -- parts and files ----------------------------------------------------------------------------------------------

    def select(self, layers: str | Numbers = None, heads: str | Numbers = None) -> Reading:
        """Return a reading of some layers and heads. Its sum over heads is then over these heads.

        Layers that have none of the heads, and heads that none of the layers has, are left out.

        Parameters
        ----------
        layers, heads
            What to select: numbers, one or several, or names such as `"10-11"`, and `"L3H4-7"` or `"H2"`; by default
            all.

        Returns
        -------
        Reading

        Raises
        ------
        ReadingError
            A layer or head is not in the reading.

        Examples
        --------
        >>> import headscope
        >>> reading = headscope.read("minilm", "Two ravens met. The ravens left.")
        >>> reading.select(layers=1, heads=[6, 7]).size
        '1 layer × 2 heads, 10 tokens'
        """
        layers, heads = select_grid(layers, heads, self.layers, self.head_numbers, "the reading")
        numbers = {
            name: self._resolve_numbers(name, selection)
            for name, selection in (("layer", layers), ("head", heads))
            if selection is not None
        }
        selected = Reading(self.data.sel(numbers))
        heads_by_layer = {layer: selected.heads_of(layer) for layer in selected.layers}
        present = {layer: numbers for layer, numbers in heads_by_layer.items() if numbers}
        if not present:
            self._resolve_head(selected.layers[0], selected.head_numbers[0])  # raises
        heads_left = [head for head in selected.head_numbers if any(head in numbers for numbers in present.values())]
        if (list(present), heads_left) == (selected.layers, selected.head_numbers):
            return selected
        return Reading(selected.data.sel(layer=list(present), head=heads_left))

    def with_thresholds(self, theta: float | None = None, tau: float | None = None) -> Reading:
        """Return the same reading with other default thresholds.

        Parameters
        ----------
        theta, tau
            Thresholds of high pairs and of attention lines, from 0 to below 1; None leaves one as it is.

        Returns
        -------
        Reading

        Raises
        ------
        ReadingError
            A threshold is no share.

        Examples
        --------
        >>> import headscope
        >>> reading = headscope.read("minilm", "Two ravens met. The ravens left.")
        >>> reading.with_thresholds(theta=0.9).pairs(layer=1, head=6)["token_j"].tolist()
        ['.', 'ravens']
        """
        thresholds = {
            "theta": self._resolve_threshold("theta", theta),
            "tau": self._resolve_threshold("tau", tau),
        }
        return Reading(self.data.assign_attrs(thresholds))

    def save(self, path: str | Path) -> Path:
        """Write the reading as one netCDF file. An existing file is replaced atomically.

        Parameters
        ----------
        path
            The file.

        Returns
        -------
        Path
            The file.

        Raises
        ------
        ReadingError
            The file cannot be written.

        Examples
        --------
        >>> import headscope, pathlib, tempfile
        >>> reading = headscope.read("minilm", "Two ravens met. The ravens left.")
        >>> file = reading.save(pathlib.Path(tempfile.mkdtemp()) / "ravens.nc")
        >>> len(headscope.open_reading(file))
        10
        """
        from headscope.readings.files import save_reading

        return save_reading(self, Path(path))

    def plot(
        self, name: str, layers: int | Iterable[int] | None = None, heads: int | Iterable[int] | None = None
    ) -> Figure:
        """Draw one of the paper's figures of a text, by its number.

        Parameters
        ----------
        name
            `4`, `5`, `9` or `12`.
        layers, heads
            What to show, one or several numbers; by default as in the paper.

        Returns
        -------
        Figure
            A figure of matplotlib, which shows itself in a notebook; `savefig` writes it.

        Raises
        ------
        ReadingError
            There is no such figure, or the reading lacks its data.

        Examples
        --------
        >>> import headscope
        >>> reading = headscope.read("minilm", "Two ravens met. The ravens left.")
        >>> figure = reading.plot("12", layers=5)
        >>> len(figure.axes)  # a map and its scale
        2
        >>> reading.plot("pairs")
        Traceback (most recent call last):
        headscope.errors.ReadingError: no figure 'pairs'; there are: 4, 5, 9, 12
        """
        figure: Figure = registry.call("draw", self, name, layers, heads)
        return figure

    def to_html(
        self, path: str | Path | None = None, *, precision: str = "auto", start: tuple[int, Head] | None = None
    ) -> str:
        """Return the explorer, a self-contained HTML page, and write it to `path` if given.

        Parameters
        ----------
        path
            A file to write.
        precision
            `fine` is exact for thresholds of three decimals, `coarse` for those of two and a third the size; or `auto`.
        start
            Layer and head that the page shows first.

        Returns
        -------
        str
            The page.

        Raises
        ------
        ReadingError
            The precision or the head is unknown, or the file cannot be written.

        Examples
        --------
        >>> import headscope
        >>> reading = headscope.read("minilm", "Two ravens met. The ravens left.")
        >>> reading.select(layers=1).to_html(start=(1, 6)).startswith("<!doctype html>")
        True
        """
        html: str = registry.call("render_explorer", self, precision=precision, start=start)
        if path is not None:
            write_atomically(Path(path), html.encode("utf-8"), ReadingError)
        return html

    def __repr__(self) -> str:
        text = " ".join("".join(c if c.isprintable() else " " for c in self.text).split())
        left_out = f", the first of {self.data.attrs['tokens_in_text']:,}" if self._has_more("text") else ""
        if "source_token" in self.data.coords:
            first = f" (the first of {self.data.attrs['tokens_in_source']:,})" if self._has_more("source") else ""
            left_out += f" for {len(self.source_tokens)} of the source{first}"
        excerpt = text[:60] + "…" * (len(text) > 60)
        state = "" if self._is_verified else ", unverified capture"
        return f"<Reading of {self.data.attrs['model']}: {self.size}{left_out}{state}: {excerpt}>"

    def _repr_html_(self) -> str:
        return str(registry.call("render_reading_frame", self))

    # -- implementation -----------------------------------------------------------------------------------------------

    @property
    def _is_verified(self) -> bool:
        return bool(self.data.attrs.get("verified", 1))

    def _compute_similarity(self, layer: int, head: Head) -> Floats:
        """Return C (position, position) of one head, or the sum over the heads."""
        if not _is_sum(head):
            return equations.compute_similarity(self.output(layer, head))
        total = np.zeros((len(self), len(self)))
        for number in self.heads_of(layer):
            total += equations.compute_similarity(self.output(layer, number))
        return total

    def _get_map(self, layer: int, head: Head) -> Floats:
        maps = self._get_maps()
        number = self._resolve_number("layer", layer)
        maps = maps.sel(layer=number)
        if _is_sum(head):
            return np.asarray(maps.sel(head=self.heads_of(number)).values.sum(axis=0, dtype=np.float64))
        return np.asarray(maps.sel(head=self._resolve_head(number, head)).values, dtype=np.float64)

    def _list_pairs(self, layer: int, head: Head, theta: float, *, special: bool, words: bool) -> pd.DataFrame:
        matrix, labels = self._compute_similarity(layer, head), self._get_labels()
        largest, first_tokens = matrix.max(), np.arange(len(self))
        is_special = self.data["special"].values.astype(bool)
        if words:
            matrix = equations.join_words(matrix, self._get_words())
            first_tokens = np.searchsorted(self._get_words(), np.arange(len(matrix)))
            labels, is_special = self.word_labels(), is_special[first_tokens]
        elements = matrix > theta * largest
        if not special:
            elements &= ~(is_special[:, None] | is_special[None, :])
        i, j = np.array(equations.list_pairs(elements), dtype=np.int64).reshape(-1, 2).T
        values = matrix[i, j]
        return pd.DataFrame(
            {
                "token_i": labels[i],
                "token_j": labels[j],
                "index_i": first_tokens[i],
                "index_j": first_tokens[j],
                "value": values,
                "relative": values / largest if len(values) else values,
            }
        )

    def _compute_relations(self) -> Bools:
        """Return which tokens are related (RELATIONS, position, position); none by relations that are not known."""
        window = replace(Window.plain(self._get_ids()), sentence=self.data["sentence"].values)
        return compute_relations(window) & np.isin(RELATIONS, self.relations)[:, None, None]

    def _name_relations(self, i: Ints, j: Ints, *, words: bool) -> np.ndarray[Any, Any]:
        """Return the names of the relations of pairs (pairs); i and j are tokens, or first tokens of words."""
        related = self._compute_relations()
        if words:
            starts = np.flatnonzero(np.diff(self._get_words(), prepend=-1))
            related = np.logical_or.reduceat(np.logical_or.reduceat(related, starts, axis=1), starts, axis=2)
            i, j = self._get_words()[i], self._get_words()[j]
        combinations = product((False, True), repeat=len(RELATIONS))
        names = np.array([" + ".join(compress(RELATIONS, flags)) for flags in combinations], dtype=object)
        return np.asarray(names[np.ravel_multi_index(tuple(related[:, i, j].astype(np.int64)), (2,) * len(RELATIONS))])

    def word_labels(self) -> np.ndarray[Any, Any]:
        """Return the words of the text in order, their tokens joined; a special token is a word of its own.

        A word whose tokens are parts of one character is copied from the text, because such tokens are not readable.

        Returns
        -------
        array
            The words (word).

        Examples
        --------
        >>> import headscope
        >>> reading = headscope.read("minilm", "Two ravens met. The ravens left.")
        >>> reading.word_labels().tolist()[:4]
        ['[CLS]', 'two', 'ravens', 'met']
        """
        words, labels, text = self._get_words(), self._get_labels().tolist(), self.text
        starts, ends = self.data["start"].values, self.data["end"].values
        edges = [*np.flatnonzero(np.diff(words, prepend=-1)).tolist(), len(words)]
        joined = np.empty(len(edges) - 1, dtype=object)
        for word, (first, stop) in enumerate(pairwise(edges)):
            from_tokens = labels[first] + "".join(label.removeprefix("##") for label in labels[first + 1 : stop])
            has_overlaps = (starts[first + 1 : stop] < ends[first : stop - 1]).any()
            joined[word] = (has_overlaps and text[starts[first] : ends[stop - 1]].strip()) or from_tokens
        return joined

    def _split_blocks(self, layer: int, head: Head, tau: float | None) -> list[range]:
        self._require_attention()
        return equations.cut_blocks(
            equations.mark_lines(self._get_map(layer, head), self._resolve_threshold("tau", tau))
        )

    def _iterate_heads(self, layer: int | Iterable[int] | None, head: HeadSelection) -> Iterator[tuple[int, Head]]:
        selected = None if head is None else [head] if _is_single(head) else list(head)  # type: ignore[arg-type]
        if selected and all(map(_is_name, selected)):
            yield from self._iterate_names(layer, selected)
            return
        layers = self.layers if layer is None else self._resolve_numbers("layer", layer)
        if _is_sum(head):
            yield from ((number, SUM) for number in layers)
            return
        heads = self.head_numbers if selected is None else self._resolve_numbers("head", selected)
        pairs = [(a, b) for a in layers for b in heads if b in self.heads_of(a)]
        if not pairs:
            self._resolve_head(layers[0], heads[0])  # raises
        yield from pairs

    def _iterate_names(self, layer: Any, names: Iterable[Any]) -> Iterator[tuple[int, Head]]:
        from headscope.readings.arguments import parse_head

        if layer is not None:
            raise ReadingError(f"{next(iter(names))} names its layer: leave `layer` out, or give the head's number")
        for name in dict.fromkeys(names):
            layer_number, head = parse_head(name)
            self._make_coordinates(layer_number, head)  # raises if it is not in the reading
            yield layer_number, head

    def _resolve_numbers(self, name: str, selection: Any) -> list[int]:
        """Return the numbers of the selected layers or heads, without duplicates; raise ReadingError if one is absent.

        Args:
            name: `layer` or `head`.
            selection: A number, or an iterable of numbers.
        """
        available = self.layers if name == "layer" else self.head_numbers
        selected = [selection] if _is_single(selection) else list(selection)
        absent = [str(number) for number in selected if number not in available]
        if absent or not selected:
            is_range = len(available) > 4 and available == list(range(available[0], available[-1] + 1))
            numbers = f"{available[0]} to {available[-1]}" if is_range else ", ".join(map(str, available))
            problem = ", ".join(absent) or "chosen: the list given is empty"
            raise ReadingError(f"no {name} {problem}: this reading has {name}s {numbers}")
        return list(dict.fromkeys(int(number) for number in selected))

    def _resolve_number(self, name: str, selection: Any) -> int:
        numbers = self._resolve_numbers(name, selection)
        if len(numbers) > 1:
            raise ReadingError(f"{name}s {', '.join(map(str, numbers))}: give one {name} at a time")
        return numbers[0]

    def _resolve_head(self, layer: int, selection: Any) -> int:
        """Return the number of one head of a layer; raise ReadingError if the layer lacks it."""
        head = self._resolve_number("head", selection)
        if head not in (present := self.heads_of(layer)):
            raise ReadingError(f"no head {head} in layer {layer}, which has heads {', '.join(map(str, present))}")
        return head

    def _make_coordinates(self, layer: int, head: Head) -> dict[str, Any]:
        number = self._resolve_number("layer", layer)
        return {"layer": number, "head": SUM if _is_sum(head) else self._resolve_head(number, head)}

    def _resolve_threshold(self, name: str, value: float | None) -> float:
        """Return a threshold, by default the reading's own; raise ReadingError unless it is in [0, 1)."""
        value = self.data.attrs[name] if value is None else value
        try:
            share = float(value)
        except (TypeError, ValueError):
            share = np.nan
        if not 0 <= share < 1:
            raise ReadingError(f"{name} is {value}: it is a share of the maximum, from 0 to below 1")
        return share

    def _get_maps(self) -> xr.DataArray:
        """Return the attention maps (layer, head, query, key)."""
        if self.is_cross:
            names = [name for name in self.data.coords if str(name).startswith("source_")]
            return self.data["source_attention"].drop_vars(names).rename(source_position="key")
        self._require_attention()
        return self.data["attention"]

    def _get_key_labels(self) -> np.ndarray[Any, Any]:
        return np.asarray(self.source_tokens.values, dtype=object) if self.is_cross else self._get_labels()

    def _require_attention(self) -> None:
        if self.is_cross:
            raise ReadingError(
                "attention of this reading goes to the source (cross-attention): its lines are tokens of the source, "
                "and do not cut the text into blocks"
            )
        if not self.has_attention:
            raise ReadingError("this reading was made from outputs alone: it has no attention maps, and so no lines")

    def _add_token_labels(self, array: xr.DataArray, rows: str, columns: str) -> xr.DataArray:
        """Add positions and tokens as coordinates of two dimensions."""
        names = {"position_i": "token_i", "position_j": "token_j", "query": "query_token", "key": "key_token"}
        labels = {rows: self._get_labels(), columns: self._get_labels()}
        if columns == "key":
            labels["key"] = self._get_key_labels()
        return array.assign_coords(
            {dim: np.arange(len(labels[dim])) for dim in labels} | {names[dim]: (dim, labels[dim]) for dim in labels}
        )

    def _get_labels(self) -> np.ndarray[Any, Any]:
        return np.asarray(self.data["token"].values, dtype=object)

    def _get_ids(self) -> Ints:
        return np.asarray(self.data["token_id"].values, dtype=np.int64)

    def _get_words(self) -> Ints:
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
        """Return a reading of arrays, without a model.

        Arrays are of numpy or torch, or sequences with one array for each layer; a batch axis of one text is removed.

        Parameters
        ----------
        tokens
            Labels of the tokens (position).
        outputs
            Head outputs (layer, position, head, width); or a list of those of each layer, which may differ in the
            number and width of their heads.
        attention
            Attention maps (layer, head, query, key); each row sums to 1.
        ids
            Token ids (position). Tokens with equal ids are equal; without ids, tokens with equal text.
        special
            Whether each token is special (position).
        theta, tau
            Thresholds of the reading for high pairs and attention lines; methods can override them.
        name
            Name of the model in the manifest.

        Returns
        -------
        Reading

        Raises
        ------
        ReadingError
            The arrays do not fit each other.

        Examples
        --------
        >>> reading = Reading.from_arrays(["a", "b", "a"], np.eye(3)[None, :, None, :] + 0.5)
        >>> len(reading.pairs(layer=0, head=0))
        3
        """
        from headscope.readings.read import make_reading

        return make_reading(tokens, outputs, attention, ids=ids, special=special, theta=theta, tau=tau, name=name)


def _name_head(layer: int, head: Head) -> dict[str, Any]:
    """Return the `HEAD_COLUMNS` of a head; the name of a layer's sum is such as L11sum, and its number `sum`."""
    name = f"L{layer}{SUM}" if head == SUM else format_head(layer, int(head))
    return dict(zip(HEAD_COLUMNS, (name, layer, head), strict=True))


def _is_single(selection: Any) -> bool:
    return isinstance(selection, str) or not np.iterable(selection)


def _is_name(head: Any) -> bool:
    return isinstance(head, str) and head[:1] in ("L", "l")


def _is_sum(head: Any) -> bool:
    return isinstance(head, str) and head == SUM
