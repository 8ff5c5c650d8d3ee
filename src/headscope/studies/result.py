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
from headscope.atomic_io import load_dataset, save_dataset
from headscope.errors import StudyError
from headscope.head_selection import Numbers, select_grid
from headscope.netcdf_validation import get_scalar_attribute
from headscope.settings import list_of_kind
from headscope.studies import signal_shares
from headscope.studies.jackknife import MIN_BLOCKS, compute_jackknife_error
from headscope.studies.labels import compute_derived, divide_sums, format_shape, has_images
from headscope.studies.rates import RATES, sum_distances
from headscope.studies.validation import check_study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
            `repeat_rate`, `repeat_rate_in_sentence`, `same_sentence_rate`, `mean_distance` or `dominant_share`.

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
        _check_rate_name(name)
        return self.data[name]

    def chance(self, name: str) -> xr.DataArray:
        """Return a rate as expected by chance: over all pairs of the texts, or over pairs drawn at random.

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
        _check_rate_name(name)
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

        The attribute `note` says why there are none, or that they are too small.

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
            - `head_type`, one of those in docs/head-types.md, `also`, the other types that fit, `description`, one
              sentence with the numbers, and `strength`: how large the effect is, where 1 is just enough for the type;
            - `pairs`, `pairs_per_text`, and `pair_share`, their share of all pairs of the texts;
            - for each of the rates `repeat_rate`, `repeat_rate_in_sentence`, `same_sentence_rate`, `mean_distance`,
              `dominant_share` and `near_share` its value, its standard error (`<rate>_error`) and what chance gives
              (`<rate>_chance`);
            - `signal_share`, `position_share` and `snr_db`, in decibels, each with its `_error`;
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
        data = self.data.sel(chosen)
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
            `2`, `3`, `6a`, `6b`, `7`, `8`, `10`, `11a`, `11b`, `13`, `values`, `noise` or `head-types`.
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


def _check_rate_name(name: str) -> None:
    if name not in RATES:
        raise StudyError(f"unknown rate {name!r}; there are: {', '.join(RATES)}")


def _select_numbers(name: str, requested: int | Iterable[int], present: list[int]) -> list[int]:
    chosen = [requested] if isinstance(requested, (int, np.integer)) else [int(k) for k in requested]
    absent = [k for k in chosen if k not in present]
    if absent:
        raise StudyError(
            f"no {name} {', '.join(map(str, absent))}: this study has {name}s {present[0]} to {present[-1]}"
        )
    return [int(k) for k in chosen]
