"""The paper's corpus figures, from a study. Everything drawn is in the study; sums become means and shares here.

>>> import headscope
>>> from headscope import figures
>>> study = headscope.study(headscope.load(), headscope.documents(limit=2))
>>> figure = figures.draw(study, "7", heads=[0, 1])
>>> figures.DRAWINGS["7"].stem
'fig-07-distances'
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from matplotlib.figure import Figure

from headscope.errors import StudyError
from headscope.figures.distributions import (
    distinct_dominants,
    dominant_shares,
    repeat_rates,
    repeat_rates_in_sentence,
    same_sentence_rates,
)
from headscope.figures.files import FORMATS, save, svg
from headscope.figures.histograms import distances, distances_by_layer, values
from headscope.figures.maps import attention_maps, attention_without_lines, locations
from headscope.figures.selection import Numbers, heads_of, layers_of
from headscope.studies.result import Study


@dataclass(frozen=True)
class Drawing:
    """One figure of the paper: what it is called, what it shows, and how it is drawn."""

    number: str
    name: str
    title: str
    caption: str
    draw: Callable[..., Figure]
    needs_maps: bool = False
    needs: tuple[str, ...] = ()
    """variables that a study of selected heads no longer holds"""

    @property
    def stem(self) -> str:
        """Its file name without ending, so that the files of a folder sort as in the paper."""
        digits = self.number.rstrip("ab")
        number = f"{int(digits):02}{self.number.removeprefix(digits)}-" if digits.isdigit() else ""
        return f"fig-{number}{self.name.replace('_', '-')}"

    def can_draw(self, study: Study) -> bool:
        """Whether the study holds what this figure shows."""
        return (study.has_maps or not self.needs_maps) and all(name in study.data for name in self.needs)


_BARS = (
    "Bars: share of texts by their own rate, in bins of 2 %. Solid: the head's rate over all texts, "
    "written above with its jackknife standard error."
)
_ROOT = "Heights are on a square-root scale."

DRAWINGS: dict[str, Drawing] = {
    drawing.number: drawing
    for drawing in (
        Drawing(
            "2",
            "attention_maps",
            "Mean attention maps",
            "Mean attention over the texts, of single heads and (sum) of all heads of the layer together, layer by "
            "layer. Rows of a map: the token that looks; columns: the token looked at. Grey: no text is that long.",
            attention_maps,
            needs_maps=True,
        ),
        Drawing(
            "3",
            "attention_without_lines",
            "Attention without lines and diagonal",
            "Mean attention map, summed over the layer's heads (left); with each text's line columns set to zero "
            "(middle); with lines and diagonal set to zero (right).",
            attention_without_lines,
            needs_maps=True,
            needs=("attention_without_lines", "attention_without_lines_and_diagonal"),
        ),
        Drawing(
            "6a",
            "repeat_rates",
            "Repeat rate",
            f"How often high pairs are of equal tokens. {_BARS} Dashed: the rate over all pairs. {_ROOT}",
            repeat_rates,
        ),
        Drawing(
            "6b",
            "repeat_rates_in_sentence",
            "Repeat rate in a sentence",
            f"How often high pairs within one sentence are of equal tokens. {_BARS} "
            f"Dashed: the rate over all pairs within one sentence. {_ROOT}",
            repeat_rates_in_sentence,
        ),
        Drawing(
            "7",
            "distances",
            "Distance of high pairs",
            "Share of a head's high pairs by distance j − i. Solid: their mean, written above with its jackknife "
            f"standard error. Dashed: all pairs. {_ROOT}",
            distances,
        ),
        Drawing(
            "8",
            "same_sentence_rates",
            "Same-sentence rate",
            f"How often high pairs lie in one sentence. {_BARS} Dashed: the rate over all pairs. {_ROOT}",
            same_sentence_rates,
        ),
        Drawing(
            "10",
            "locations",
            "Location of high pairs",
            "Share of texts in which the tokens at i and j are a high pair, among the texts that reach both "
            "positions. Grey: no text is that long.",
            locations,
            needs_maps=True,
        ),
        Drawing(
            "11a",
            "dominant_shares",
            "Dominant share",
            "Share of a text's high pairs that include the head's dominant token. Bars: share of texts, in bins of "
            "2 %. Solid: mean over texts, written above with its jackknife standard error. Dashed: the mean for as "
            f"many pairs drawn at random. {_ROOT}",
            dominant_shares,
        ),
        Drawing(
            "11b",
            "distinct_dominants",
            "Distinct dominant tokens",
            "Share of texts by the number of different dominant tokens among the heads of a layer. Solid: the mean.",
            distinct_dominants,
            needs=("distinct_dominants",),
        ),
        Drawing(
            "13",
            "distances_by_layer",
            "Distance of high pairs by layer",
            "Share of high pairs by distance j − i, the heads of a layer pooled. Solid: their mean. "
            f"Dashed: all pairs. {_ROOT}",
            distances_by_layer,
        ),
        Drawing(
            "values",
            "values",
            "Normalized similarities",
            "Share of all pairs by normalized similarity C/max(C), in bins of 0.01 (lower values in the first), the "
            "heads of a layer pooled, over the sample of texts. Shaded: the range the paper finds nearly empty. "
            "Dashed: the threshold θ. Heights are on a logarithmic scale.",
            values,
        ),
    )
}
"""Every figure, by its number in the paper."""


def draw(study: Study, number: str, layers: Numbers = None, heads: Numbers = None) -> Figure:
    """Draw one figure, by its number in the paper."""
    if number not in DRAWINGS:
        raise StudyError(f"no figure {number!r}; there are: {', '.join(DRAWINGS)}")
    return DRAWINGS[number].draw(study, layers, heads)


def draw_all(study: Study, layers: Numbers = None, heads: Numbers = None) -> dict[str, Figure]:
    """Draw every figure that this study holds enough for, by number."""
    rows = None if layers is None else layers_of(study, layers, [])
    columns = None if heads is None else heads_of(study, heads, [])
    return {
        number: drawing.draw(study, rows, columns) for number, drawing in DRAWINGS.items() if drawing.can_draw(study)
    }


__all__ = [
    "DRAWINGS",
    "FORMATS",
    "Drawing",
    "attention_maps",
    "attention_without_lines",
    "distances",
    "distances_by_layer",
    "distinct_dominants",
    "dominant_shares",
    "draw",
    "draw_all",
    "locations",
    "repeat_rates",
    "repeat_rates_in_sentence",
    "same_sentence_rates",
    "save",
    "svg",
    "values",
]
