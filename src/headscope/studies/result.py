"""`Study`: labelled sums over a corpus, the rates computed from them, and the manifest of how they were measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

from headscope import registry
from headscope.array_types import Floats
from headscope.errors import StudyError
from headscope.file_io import get_scalar_attribute, load_dataset, save_dataset
from headscope.head_selection import Numbers, select_grid, select_heads
from headscope.settings import list_of_kind
from headscope.studies import head_similarity as similarities
from headscope.studies import signal_shares
from headscope.studies.labels import check_study, compute_derived, divide_sums, format_shape, has_images
from headscope.studies.rates import (
    ALL_RATES,
    ATTENTION_SCORES,
    MIN_BLOCKS,
    RATES,
    compute_jackknife_error,
    has_attention_scores,
    sum_distances,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from headscope.studies.examples import Examples
    from headscope.studies.findings import Findings

FORMAT = 1
FILE = "study.nc"
OTHERS = {"reading": "a reading of one text", "ablation": "an ablation"}
"""kinds of headscope files that are not studies"""
JSON_ATTRIBUTES = list_of_kind("JSON")


class Study:
    """Measurements of every head of a model over a corpus.

    `headscope.study` makes one, `headscope.open_study` opens one. `data` is an xarray Dataset of all sums, under the
    names of docs/method.md, and of the rates computed from them.

    Parameters
    ----------
    data
        The Dataset.

    Examples
    --------
    >>> import headscope
    >>> study = headscope.study("minilm", headscope.documents(limit=4))
    >>> study
    <Study of minilm: 6 layers × 12 heads, 4 texts of bundled openings>
    >>> study.data["pairs"].dims
    ('layer', 'head')
    """

    def __init__(self, data: xr.Dataset) -> None:
        self.data = data

    # -- description --------------------------------------------------------------------------------------------------

    @property
    def manifest(self) -> dict[str, Any]:
        """How the study was measured: model, corpus, settings and run, as plain values."""
        attributes = {str(name): _convert_scalar(value) for name, value in self.data.attrs.items()}
        return {name: json.loads(value) if name in JSON_ATTRIBUTES else value for name, value in attributes.items()}

    @property
    def has_images(self) -> bool:
        """Whether the texts are images and the tokens their patches. Rates about words are then not measured."""
        return has_images(self.data.attrs)

    @property
    def texts(self) -> int:
        """Number of texts that were counted."""
        return int(self.data["texts"])

    @property
    def layers(self) -> list[int]:
        """Numbers of the layers, in the order of the data."""
        return [int(layer) for layer in self.data["layer"].values]

    @property
    def head_numbers(self) -> list[int]:
        """Numbers of the heads of a layer, in the order of the data."""
        return [int(head) for head in self.data["head"].values]

    @property
    def size(self) -> str:
        """Number of layers and heads, formatted."""
        return format_shape(self.data.attrs, len(self.layers), len(self.head_numbers))

    @property
    def whole(self) -> bool:
        """Whether all layers and heads are present, not only selected ones."""
        attributes = self.data.attrs
        return (len(self.layers), len(self.head_numbers)) == (int(attributes["layers"]), int(attributes["heads"]))

    @property
    def has_maps(self) -> bool:
        """Whether the study kept the N×N maps, from which some figures are drawn."""
        return "attention" in self.data

    def require_maps(self, purpose: str) -> None:
        """Raise an error if the study did not keep the N×N maps.

        Parameters
        ----------
        purpose
            What needs them, for the message.

        Raises
        ------
        StudyError
            There are no maps.

        Examples
        --------
        >>> import headscope
        >>> study = headscope.study("minilm", headscope.documents(limit=4))
        >>> study.require_maps("my figure")  # windows of up to 256 tokens have them
        """
        if not self.has_maps:
            raise StudyError(
                f"{purpose} needs the N×N maps, which this study of {self.data.attrs['length']}-token windows did not "
                "keep: run it with --maps"
            )

    # -- rates and their uncertainty ----------------------------------------------------------------------------------

    def rate(self, name: str) -> xr.DataArray:
        """Return a rate of every head.

        Parameters
        ----------
        name
            `repeat_rate`, `repeat_rate_in_sentence`, `same_sentence_rate`, `mean_distance` or `dominant_share`; or an
            attention score, what the head looks at: `attends_previous`, `attends_next`, `attends_self`,
            `attends_first`, `attends_special`, `attends_punctuation`, `attends_duplicate`, `attends_induction`,
            `attention_entropy`, `attention_distance`, `attends_sink`, `attends_recent` or `attends_distant`.

        Returns
        -------
        DataArray
            Of shape (layer, head); NaN where nothing was counted.

        Raises
        ------
        StudyError
            There is no such rate.

        Examples
        --------
        >>> import headscope
        >>> study = headscope.study("minilm", headscope.documents(limit=4))
        >>> round(float(study.rate("repeat_rate").sel(layer=1, head=6)), 2)
        0.11
        """
        self._check_rate_name(name)
        return self.data[name]

    def chance(self, name: str) -> xr.DataArray:
        """Return a rate as expected by chance: over all pairs of the texts, or over pairs drawn at random.

        For an attention score, it is that of attention spread evenly over the keys that a query may look at.

        Parameters
        ----------
        name
            A rate, as for `rate`.

        Returns
        -------
        DataArray
            A single number, or (layer, head) for the dominant share, which depends on a head's number of pairs.

        Raises
        ------
        StudyError
            There is no such rate.

        Examples
        --------
        >>> import headscope
        >>> study = headscope.study("minilm", headscope.documents(limit=4))
        >>> round(float(study.chance("repeat_rate")), 3)
        0.018
        """
        self._check_rate_name(name)
        if name in ATTENTION_SCORES:
            return self.data[f"{name}_chance"]
        data, rate = self.data, RATES[name]
        numerator = (
            data[rate.chance_numerator]
            if rate.chance_numerator
            else xr.DataArray(sum_distances(data["window_tokens"].values, data["tokens"].values))
        )
        chance = divide_sums(numerator, data[rate.chance_denominator])
        return xr.full_like(chance, np.nan) if rate.of_words and self.has_images else chance

    def standard_error(self, name: str) -> xr.DataArray:
        """Return the jackknife standard errors of a rate, over the blocks of documents.

        The attribute `note` says why there are none, or that they are too small. Errors of repeat rates with
        `windows="all"` do not include rare documents that the corpus lacks (docs/errors.md).

        Parameters
        ----------
        name
            A rate, as for `rate`.

        Returns
        -------
        DataArray
            Of shape (layer, head).

        Raises
        ------
        StudyError
            There is no such rate.

        Examples
        --------
        >>> import headscope
        >>> study = headscope.study("minilm", headscope.documents(limit=4))
        >>> study.standard_error("repeat_rate").dims
        ('layer', 'head')
        """
        from headscope.studies.sample_size import describe_errors

        _, error = self.jackknife(lambda study: study.rate(name).values)
        note = describe_errors(self)
        return self.rate(name).copy(data=error).assign_attrs({"note": note} if note else {})

    def _check_rate_name(self, name: str) -> None:
        if name not in ALL_RATES:
            raise StudyError(f"unknown rate {name!r}; there are: {', '.join(ALL_RATES)}")
        if name in ATTENTION_SCORES and not has_attention_scores(self.data):
            raise StudyError("this study was made by a version that did not measure attention scores: run it again")

    def signal_shares(self) -> xr.Dataset:
        """Return how much of what every head writes is signal and position, each with its standard error.

        Returns
        -------
        Dataset
            `signal_share`, `position_share`, `snr_db` (layer, head) and `relation_share` (layer, head, source), defined
            in docs/noise.md (ours), each also with `_error`.

        Raises
        ------
        StudyError
            If the study was made by a version that did not measure them.

        Examples
        --------
        >>> import headscope
        >>> study = headscope.study("minilm", headscope.documents(limit=4))
        >>> study.signal_shares()["signal_share"].dims
        ('layer', 'head')
        """
        return signal_shares.compute_signal_shares(self.data)

    def signal_to_noise(self) -> xr.DataArray:
        """Return the signal-to-noise ratio of every head in decibels, signal over noise.

        Returns
        -------
        DataArray
            Of shape (layer, head); NaN where the signal is not above zero within two standard errors.

        Raises
        ------
        StudyError
            The study was made by a version that did not measure it.

        Examples
        --------
        >>> import headscope
        >>> study = headscope.study("minilm", headscope.documents(limit=4))
        >>> study.signal_to_noise().dims
        ('layer', 'head')
        """
        return self.signal_shares()["snr_db"]

    def head_similarity(self) -> xr.DataArray:
        """Return how alike heads are: the mean correlation of their similarity matrices, over the texts of the sample.

        Returns
        -------
        DataArray
            Of shape (layer, head, other_layer, other_head); NaN for heads whose C varies in no text. The attribute
            `reliability` is the correlation between halves of the texts over pairs of heads, corrected to all texts.

        Raises
        ------
        StudyError
            If the study was made by a version that did not measure it, or the model has more than 1,024 heads.

        Examples
        --------
        >>> import headscope
        >>> study = headscope.study("minilm", headscope.documents(limit=4))
        >>> similarity = study.head_similarity()
        >>> similarity.dims
        ('layer', 'head', 'other_layer', 'other_head')
        >>> round(float(similarity.sel(layer=1, head=6, other_layer=1, other_head=6)), 6)
        1.0
        """
        return similarities.compute_head_similarity(self.data)

    def head_clusters(self, correlation: float = similarities.CLUSTER_CORRELATION) -> pd.DataFrame:
        """Return clusters of heads with similar similarity matrices, by average linkage of `head_similarity`.

        Parameters
        ----------
        correlation
            Clusters whose heads have at least this mean correlation are one.

        Returns
        -------
        DataFrame
            One row per head, with the columns head, layer, head_number, `cluster` (0 is the largest), `size` and
            `similarity`, the mean correlation with the other heads of its cluster.

        Raises
        ------
        StudyError
            If the heads are not correlated with each other in this study.

        Examples
        --------
        >>> import headscope
        >>> study = headscope.study("minilm", headscope.documents(limit=4))
        >>> clusters = study.head_clusters()
        >>> len(clusters), int(clusters["cluster"].min())
        (72, 0)
        """
        return similarities.tabulate_clusters(self.data, self.present.values, correlation)

    def similar_heads(self, head: str | tuple[int, int], count: int = 5) -> pd.DataFrame:
        """Return the heads whose similarity matrices correlate most with those of a head.

        Parameters
        ----------
        head
            A head, such as `"L3H7"`, or (3, 7).
        count
            How many others.

        Returns
        -------
        DataFrame
            The most similar first, with the columns head, layer, head_number, correlation and texts: in how many texts
            both heads vary.

        Raises
        ------
        StudyError
            There is no such head, or the heads are not correlated with each other in this study.

        Examples
        --------
        >>> import headscope
        >>> study = headscope.study("minilm", headscope.documents(limit=4))
        >>> table = study.similar_heads("L1H6", count=3)
        >>> len(table), bool(table["correlation"].is_monotonic_decreasing)
        (3, True)
        """
        present = self.present
        numbers = {layer: np.flatnonzero(row).tolist() for layer, row in zip(self.layers, present.values, strict=True)}
        heads_by_layer = {layer: [self.head_numbers[k] for k in row] for layer, row in numbers.items()}
        selected = select_heads(head, self.layers, heads_by_layer, "the study")
        if len(selected) != 1:
            raise StudyError(f"{head!r} is {len(selected)} heads: name one, such as L3H7")
        return similarities.tabulate_similar_heads(self.data, present.values, selected[0], count)

    def retrieval_scores(self, key_value_heads: int | None = None) -> xr.DataArray:
        """Return how much each head of a decoder needs the whole context: its attention to distant tokens, 0 to 1.

        That is what a head loses if a cache keeps the first 4 and the last 64 tokens only (`attends_distant`). Heads
        with a low score are streaming heads, those with a high one retrieval heads.

        Parameters
        ----------
        key_value_heads
            If heads share keys and values: the number of heads of these. Each gets the largest score of the heads that
            share it, which are neighbours.

        Returns
        -------
        DataArray
            Of shape (layer, head).

        Raises
        ------
        StudyError
            The model is not causal, or no text has more than 68 tokens.

        Examples
        --------
        >>> import headscope
        >>> study = headscope.study("minilm", headscope.documents(limit=4))
        >>> study.retrieval_scores()
        Traceback (most recent call last):
        headscope.errors.StudyError: a cache is kept by decoders only: minilm looks at all tokens
        """
        from headscope.studies.cache_policy import compute_retrieval_scores

        return compute_retrieval_scores(self, key_value_heads)

    def write_cache_policy(self, folder: str | Path, key_value_heads: int | None = None) -> Path:
        """Write which heads need the whole context, for tools that keep a shorter cache for the others.

        The files are those of DuoAttention: `full_attention_heads.tsv`, the scores of `retrieval_scores`, a line for
        each layer and a column for each head, and `config.json` with `sink_size` and `recent_size`.

        Parameters
        ----------
        folder
            Where the files go.
        key_value_heads
            As for `retrieval_scores`; those tools expect one column for each head of keys and values.

        Returns
        -------
        Path
            The folder.

        Raises
        ------
        StudyError
            As for `retrieval_scores`; or only selected heads are in the study, or the files cannot be written.

        Examples
        --------
        >>> import headscope
        >>> study = headscope.study("minilm", headscope.documents(limit=4))
        >>> study.select(layers=0).write_cache_policy("policy")
        Traceback (most recent call last):
        headscope.errors.StudyError: a cache policy is of all heads of a model: write it from the whole study
        """
        from headscope.studies.cache_policy import write_cache_policy

        return write_cache_policy(self, Path(folder), key_value_heads)

    def jackknife(self, statistic: Callable[[Study], Any]) -> tuple[Floats, Floats]:
        """Return a number or array of yours computed from the sums, and its delete-one-block standard error.

        Parameters
        ----------
        statistic
            A function of a study. It is called with this study, and with this study without each block of texts;
            these have no N×N maps.

        Returns
        -------
        value : array
            The statistic of this study.
        error : array
            Its standard error, of the same shape; NaN if fewer than 10 blocks contain texts: there are
            too few documents then.

        Examples
        --------
        >>> import headscope
        >>> study = headscope.study("minilm", headscope.documents(limit=4))
        >>> largest, error = study.jackknife(lambda part: part.rate("repeat_rate").max())
        >>> round(float(largest), 2)
        0.2
        """
        value = np.asarray(statistic(self), dtype=np.float64)
        if np.count_nonzero(self.data["texts_blocks"].values) < MIN_BLOCKS:
            return value, np.full_like(value, np.nan)
        values = [np.asarray(statistic(study), dtype=np.float64) for study in self._leave_one_out_studies]
        return value, compute_jackknife_error(np.stack(values))

    @cached_property
    def _leave_one_out_studies(self) -> list[Study]:
        """This study without one block, for each block that contains texts. Maps are left out: they have no blocks.

        Datasets are created at once from plain variables: aligning labels, which are equal anyway, would take longer
        than the computations.
        """
        variables = self.data.variables
        blocked = [str(name).removesuffix("_blocks") for name in self.data if str(name).endswith("_blocks")]
        dims = {name: variables[name].dims for name in blocked}
        block_sums = {name: variables[f"{name}_blocks"].transpose("block", *dims[name]).values for name in blocked}
        coordinates = self.data[[name for name in self.data.coords if name != "distance"]].drop_vars("distance").coords
        studies = []
        for block in np.flatnonzero(block_sums["texts"]):
            sums = {name: xr.Variable(dims[name], variables[name].values - block_sums[name][block]) for name in blocked}
            studies.append(
                Study(xr.Dataset(sums | compute_derived(sums, self.data.attrs), coordinates, self.data.attrs))
            )
        return studies

    @property
    def present(self) -> xr.DataArray:
        """Whether a layer has each head (layer, head): where heads were removed, layers may differ in them.

        The rows of an attention map sum to 1, so only of a head that does not exist all attention is 0.
        """
        sums = next((self.data[name] for name in ("attention_offset", "attention") if name in self.data), None)
        if sums is None:
            return xr.ones_like(self.data["pairs"], dtype=bool)
        attends = sums.sum(sums.dims[2:]) > 0
        return attends | (self.data["pairs"] > 0) | ~attends.any("head")

    def heads(self) -> pd.DataFrame:
        """Return the table of heads: one row per head, layer by layer, in the study's order.

        `headscope heads` prints this table, and `heads.csv` holds it. Every table of headscope with a row per head
        begins with the same three columns.

        Returns
        -------
        DataFrame
            With the columns

            - `head`, the name, such as L3H7, and the numbers in it, `layer` and `head_number`;
            - `attends_type`, what the head attends to, and `writes_type`, what its outputs are similar for, of those in
              docs/head-types.md; each with the other types that fit (`attends_also`, `writes_also`) and how large the
              effect is (`attends_strength`, `writes_strength`), where 1 is just enough for the type;
            - `description`, both in one sentence, with the numbers;
            - `pairs`, `pairs_per_text`, and `pair_share`, their share of all pairs of the texts;
            - for each of the rates `repeat_rate`, `repeat_rate_in_sentence`, `same_sentence_rate`, `mean_distance`,
              `dominant_share` and `near_share` its value, its standard error (`<rate>_error`) and what chance gives
              (`<rate>_chance`);
            - `signal_share`, `position_share` and `snr_db`, in decibels, each with its `_error`;
            - for each of the attention scores, what the head looks at (`attends_previous` and the others that `rate`
              knows), its value, its `_error` and its `_chance`;
            - `effective_rank` and `common_share` of what the head writes;
            - `error_note`, if the standard errors are missing or too small: why;
            - `capture`, if the capture of the heads' outputs is not verified.

            What was not measured is NaN.

        Examples
        --------
        >>> import headscope
        >>> study = headscope.study("minilm", headscope.documents(limit=4))
        >>> table = study.heads().set_index("head")
        >>> len(table), int(table.loc["L1H6", "pairs"])
        (72, 202)
        """
        from headscope.studies.head_table import tabulate_heads

        return tabulate_heads(self)

    def findings(self) -> Findings:
        """Return the eighteen claims of the paper, measured on this study, with standard errors, nulls and verdicts.

        Returns
        -------
        Findings
            A list of `headscope.Finding`, shown as a table.

        Raises
        ------
        StudyError
            If only selected layers or heads are in the study.

        Examples
        --------
        >>> import headscope
        >>> study = headscope.study("minilm", headscope.documents(limit=4))
        >>> [finding.number for finding in study.findings()][:3]
        [1, 2, 3]
        """
        from headscope.studies.findings import findings

        return findings(self)

    def relations(self) -> pd.DataFrame:
        """Return the table of labelled relations: one row per relation and head.

        A pair of words that a treebank (CoNLL-U) or the user relates is compared with all pairs of words of its text
        that are as far apart. docs/method.md defines the numbers.

        Returns
        -------
        DataFrame
            With the columns `head`, `layer` and `head_number` as in `heads`, and

            - `relation`, and `pairs` and `texts`, its labelled pairs and the texts that have any;
            - `rate`, how many of these pairs are high, `rate_error`, its standard error, `chance`, how many pairs as
              far apart are, and `ratio` and `odds_ratio` of the two;
            - `p`, the probability that chance gives such a rate or a higher one (one-sided), and `p_corrected`, by
              Holm's method over all rows; NaN with fewer than 50 pairs, or pairs in fewer than 10 of the blocks of
              documents;
            - `attention_ab` and `attention_ba`, the mean attention from a to b (in a treebank, from a word to its
              head) and from b to a, each with `_error` and with `_chance`, what pairs at the same offset get;
            - `note`, if there are too few pairs or documents: what is missing.

            What was not measured is NaN.

        Raises
        ------
        StudyError
            No text has labelled relations.

        Examples
        --------
        >>> import headscope
        >>> def relate_neighbours(text):
        ...     return [(0, 3, 4, 10, "first words")] if text.startswith("Two ravens") else []
        >>> texts = ["Two ravens met. The ravens left.", "Two ravens sat on a roof."]
        >>> study = headscope.study("minilm", texts, relations=relate_neighbours)
        >>> table = study.relations()
        >>> len(table), int(table["pairs"][0]), table["note"][0]
        (72, 2, 'too few pairs: 2, and 50 are needed')
        """
        from headscope.studies.relations import tabulate_relations

        return tabulate_relations(self)

    # -- tokens and examples ------------------------------------------------------------------------------------------

    def dominant_tokens(self, layer: int, head: int, top: int = 10) -> pd.DataFrame:
        """Return the tokens that a head centers on: those that are its dominant token in the most texts.

        The dominant token of a text is the token value that the most high pairs include.

        Parameters
        ----------
        layer, head
            The head.
        top
            How many tokens.

        Returns
        -------
        DataFrame
            `token`, as the vocabulary writes it, `token_id`, `texts`, the number of texts whose dominant token it is,
            and `share`, of the texts in which the head has high pairs.

        Raises
        ------
        StudyError
            The head is not in the study, or the study was made by a version that did not count these tokens.

        Examples
        --------
        >>> import headscope
        >>> study = headscope.study("minilm", headscope.documents(limit=12))
        >>> study.dominant_tokens(2, 7, top=1)["token"].tolist()
        [',']
        """
        from headscope.studies.examples import count_dominant_tokens

        return count_dominant_tokens(self, layer, head, top)

    def examples(self, layer: int, head: int, kind: str = "typical", by: str | None = None, count: int = 2) -> Examples:
        """Return texts in which it can be seen what a head does.

        Parameters
        ----------
        layer, head
            The head.
        kind
            `typical`: texts in which the rate is nearest to the head's own over the corpus, among 64 that were chosen
            at random. `strongest`: those with the highest rate of all texts of the sample; at most 2 are kept. Both
            have at least 10 high pairs.
        by
            The rate: `repeat_rate`, `same_sentence_rate`, `near_share`, `dominant_share` or `mean_distance`; by default
            the one that names the head.
        count
            Number of texts.

        Returns
        -------
        Examples
            A list of `Example`, shown as text or in a notebook with the pairs marked. It may be shorter, or empty.

        Raises
        ------
        StudyError
            The head is not in the study, or the study has no examples.

        Examples
        --------
        >>> import headscope
        >>> study = headscope.study("minilm", headscope.documents(limit=12))
        >>> study.examples(1, 6, by="repeat_rate")[0].title.split(":")[0]
        'L1H6, typical'
        """
        from headscope.studies.examples import find_examples

        return find_examples(self, layer, head, kind, by, count)

    # -- parts and sums -----------------------------------------------------------------------------------------------

    def select(self, layers: str | Numbers = None, heads: str | Numbers = None) -> Study:
        """Return the study of selected layers and heads.

        Parameters
        ----------
        layers, heads
            What to select: numbers, one or several, or names such as `"10-11"`, and `"L3H4-7"` or `"H2"`; by default
            all. Their order becomes the order of the data.

        Returns
        -------
        Study
            Without what is counted over all heads of a layer, if heads are selected.

        Raises
        ------
        StudyError
            A layer or head is not in the study.

        Examples
        --------
        >>> import headscope
        >>> study = headscope.study("minilm", headscope.documents(limit=4))
        >>> study.select(layers=[4, 5], heads=0).heads()["head"].tolist()
        ['L4H0', 'L5H0']
        """
        layers, heads = select_grid(layers, heads, self.layers, self.head_numbers, "the study")
        chosen = {
            name: _select_numbers(name, requested, present)
            for name, requested, present in (("layer", layers, self.layers), ("head", heads, self.head_numbers))
            if requested is not None
        }
        others = {f"other_{name}": numbers for name, numbers in chosen.items() if f"other_{name}" in self.data.dims}
        data = self.data.sel(chosen | others)
        if heads is not None:  # sums over all heads of a layer are not those of the selected heads
            over_heads = (
                "distinct_dominants",
                "attention_received",
                "attention_without_lines",
                "most_attended",
                "similarity",
            )
            data = data.drop_vars([name for name in data if str(name).startswith(over_heads)])
        return Study(data)

    def merge(self, other: Study, *, allow_changed_files: bool = False) -> Study:
        """Return the study of both corpora together.

        Parameters
        ----------
        other
            A study of other texts, or another share of the same corpus, by the same model with the same settings.
        allow_changed_files
            Merge shares although sizes or times of the files differ: they were copied, or repaired in between.

        Returns
        -------
        Study
            With the sums of both.

        Raises
        ------
        StudyError
            Model or settings differ, or texts may be in both.

        Examples
        --------
        >>> import headscope
        >>> ravens = headscope.study("minilm", ["Two ravens met. The ravens left."])
        >>> bread = headscope.study("minilm", ["Bread is made of flour. Dough needs yeast."])
        >>> ravens.merge(bread).texts
        2
        """
        from headscope.studies.merge import merge_studies

        return merge_studies(self, other, allow_changed_files=allow_changed_files)

    # -- files --------------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> Path:
        """Write the study as one netCDF file. An existing file is replaced atomically.

        Parameters
        ----------
        path
            The file; in a folder it is named `study.nc`.

        Returns
        -------
        Path
            The file.

        Raises
        ------
        StudyError
            If the file cannot be written.

        Examples
        --------
        >>> import headscope, tempfile
        >>> study = headscope.study("minilm", headscope.documents(limit=4))
        >>> folder = tempfile.mkdtemp()
        >>> study.save(folder).name
        'study.nc'
        >>> headscope.open_study(folder).texts
        4
        """
        target = Path(path)
        target = target / FILE if target.is_dir() else target
        variables = self.data.variables.items()
        packed = [name for name, variable in variables if variable.ndim and variable.dtype.kind in "iuf"]
        return save_dataset(self.data, target, packed, StudyError)

    def report(self, path: str | Path) -> Path:
        """Write the report, one self-contained HTML page: findings, heads, figures, manifest.

        Parameters
        ----------
        path
            The file; in a folder it is named `report.html`. A page of headscope is replaced.

        Returns
        -------
        Path
            The file.

        Raises
        ------
        StudyError
            If the file cannot be written, or is there already and is no page of headscope.

        Examples
        --------
        >>> import headscope, tempfile
        >>> study = headscope.study("minilm", headscope.documents(limit=4))
        >>> study.report(tempfile.mkdtemp()).name
        'report.html'
        """
        target: Path = registry.call("write_report", self, Path(path))
        return target

    def plot(
        self, name: str, layers: int | Iterable[int] | None = None, heads: int | Iterable[int] | None = None
    ) -> Figure:
        """Draw one figure: one of the paper's, by its number, or one of ours, by its name.

        Parameters
        ----------
        name
            `2`, `3`, `6a`, `6b`, `7`, `8`, `10`, `11a`, `11b`, `13`, `values`, `noise`, `head-types` or
            `head-similarity`.
        layers, heads
            What to show, one or several numbers; by default as in the paper.

        Returns
        -------
        Figure
            A figure of matplotlib, which shows itself in a notebook; `savefig` writes it.

        Raises
        ------
        StudyError
            There is no such figure, or the study lacks its data.

        Examples
        --------
        >>> import headscope
        >>> study = headscope.study("minilm", headscope.documents(limit=4))
        >>> figure = study.plot("7", layers=5, heads=[0, 1])
        >>> [axes.get_title(loc="left") for axes in figure.axes]
        ['L5H0', 'L5H1']
        """
        figure: Figure = registry.call("draw", self, name, layers, heads)
        return figure

    # -- representations -----------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        attributes = self.data.attrs
        state = "" if attributes.get("complete", 1) else ", incomplete"
        state += "" if attributes.get("verified", 1) else ", unverified capture"
        texts = ("image" if self.has_images else "text") + "s" * (self.texts != 1)
        return f"<Study of {attributes['model']}: {self.size}, {self.texts:,} {texts} of {attributes['corpus']}{state}>"

    def _repr_html_(self) -> str:
        return str(registry.call("render_study_card", self))


def open_study(path: str | Path) -> Study:
    """Open a study that was saved.

    Parameters
    ----------
    path
        Its folder, or its file `study.nc`.

    Returns
    -------
    Study

    Raises
    ------
    StudyError
        There is no study, or the file is damaged or something else.

    Examples
    --------
    >>> open_study("nowhere")
    Traceback (most recent call last):
    headscope.errors.StudyError: nowhere: no study there
    """
    source = Path(path)
    source = source / FILE if source.is_dir() else source
    if not source.is_file():
        raise StudyError(f"{source}: no study there")
    data = load_dataset(source, StudyError)
    kind = str(data.attrs.get("kind", "study"))
    if kind != "study":
        description = f"{OTHERS[kind]}, not a study: open it with open_{kind}" if kind in OTHERS else "not a study"
        raise StudyError(f"{source}: {description}")
    if get_scalar_attribute(data, "format") != FORMAT:
        raise StudyError(
            f"{source}: not a headscope study of format {FORMAT} (its format is {data.attrs.get('format', 'unknown')})"
        )
    check_study(data, source)
    return Study(data)


def _convert_scalar(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _select_numbers(name: str, requested: int | Iterable[int], present: list[int]) -> list[int]:
    chosen = [requested] if isinstance(requested, (int, np.integer)) else [int(k) for k in requested]
    absent = [k for k in chosen if k not in present]
    if absent:
        raise StudyError(
            f"no {name} {', '.join(map(str, absent))}: this study has {name}s {present[0]} to {present[-1]}"
        )
    return [int(k) for k in chosen]
