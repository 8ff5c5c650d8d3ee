"""Draw the paper's figures: those of a corpus from a study, those of one text from a reading.

All data is in the study or the reading; only means and shares are computed from its sums here.

>>> import headscope
>>> from headscope import figures
>>> study = headscope.study(headscope.load(), headscope.documents(limit=2))
>>> figure = figures.draw(study, "7", heads=[0, 1])  # what study.plot("7", heads=[0, 1]) returns
>>> figures.DRAWINGS["7"].stem
'fig-07-distances'
>>> reading = headscope.read("minilm", "Two ravens met. The ravens left.")
>>> figure = figures.draw(reading, "9", heads=[6, 7])
>>> list(figures.READING_DRAWINGS)
['4', '5', '9', '12']
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from matplotlib.text import Text

from headscope.errors import ReadingError, StudyError
from headscope.figures.distributions import (
    draw_distances,
    draw_distances_by_layer,
    draw_distinct_dominants,
    draw_dominant_shares,
    draw_repeat_rates,
    draw_repeat_rates_in_sentence,
    draw_same_sentence_rates,
    draw_values,
)
from headscope.figures.head_similarity import draw_head_similarity
from headscope.figures.heads import draw_head_types, draw_signal_and_noise
from headscope.figures.maps import draw_attention_maps, draw_attention_without_lines, draw_locations
from headscope.figures.readings import (
    draw_attention_of_text,
    draw_lines_and_regions,
    draw_pairs_in_text,
    draw_summed_similarities,
)
from headscope.figures.style import (
    FONT_SIZE,
    FORMATS,
    Figure,
    Selection,
    render_svg,
    resolve_selections,
    save,
    select_heads,
    select_layers,
)
from headscope.readings.reading import Reading
from headscope.settings import UNVERIFIED
from headscope.studies.labels import has_images
from headscope.studies.result import Study
from headscope.studies.sample_size import adapt_wording, has_window_blocks


@dataclass(frozen=True)
class Drawing:
    """One figure of the paper: its number, names, caption, drawing function and requirements."""

    number: str
    name: str
    title: str
    caption: str
    draw: Callable[..., Figure]
    needs_maps: bool = False
    """whether it shows attention maps or other N×N maps, which are optional in studies and readings"""
    needs: tuple[str, ...] = ()
    """variables that it needs and that a study of selected heads does not contain"""
    draws_cross_attention: bool = False
    """whether maps of a text to its source will do"""
    needs_words: bool = False
    """whether it shows a property of words or sentences, which studies of images do not have"""

    @property
    def stem(self) -> str:
        """File name without extension; files sort in the order of the paper."""
        digits = self.number.rstrip("ab")
        number = f"{int(digits):02}{self.number.removeprefix(digits)}-" if digits.isdigit() else ""
        return f"fig-{number}{self.name.replace('_', '-')}"

    def can_draw(self, source: Study | Reading) -> bool:
        """Return whether the study or reading contains the data of this figure."""
        if self.needs_words and has_images(source.data.attrs):
            return False
        maps = "source_attention" if self.draws_cross_attention and "source_attention" in source.data else "attention"
        needed = (maps, *self.needs) if self.needs_maps else self.needs
        return all(name in source.data for name in needed)


_RATE_BARS = (
    "Bars: share of texts by their own rate, in bins of 2 %. Solid: the head's rate over all texts, "
    "written above with its jackknife standard error."
)
_ROOT_SCALE = "Heights are on a square-root scale."

DRAWINGS: dict[str, Drawing] = {
    drawing.number: drawing
    for drawing in (
        Drawing(
            "2",
            "attention_maps",
            "Mean attention maps",
            "Mean attention over the texts, of single heads and (sum) of all heads of the layer together, layer by "
            "layer. Rows of a map: the token that looks; columns: the token looked at. Grey: no text is that long.",
            draw_attention_maps,
            needs_maps=True,
        ),
        Drawing(
            "3",
            "attention_without_lines",
            "Attention without lines and diagonal",
            "Mean attention map, summed over the layer's heads (left); with each text's line columns set to zero "
            "(middle); with lines and diagonal set to zero (right).",
            draw_attention_without_lines,
            needs_maps=True,
            needs=("attention_without_lines", "attention_without_lines_and_diagonal"),
        ),
        Drawing(
            "6a",
            "repeat_rates",
            "Repeat rate",
            f"How often high pairs are of equal tokens. {_RATE_BARS} Dashed: the rate over all pairs. {_ROOT_SCALE}",
            draw_repeat_rates,
            needs_words=True,
        ),
        Drawing(
            "6b",
            "repeat_rates_in_sentence",
            "Repeat rate in a sentence",
            f"How often high pairs within one sentence are of equal tokens. {_RATE_BARS} "
            f"Dashed: the rate over all pairs within one sentence. {_ROOT_SCALE}",
            draw_repeat_rates_in_sentence,
            needs_words=True,
        ),
        Drawing(
            "7",
            "distances",
            "Distance of high pairs",
            "Share of a head's high pairs by distance j − i. Solid: their mean, written above with its jackknife "
            f"standard error. Dashed: all pairs. {_ROOT_SCALE}",
            draw_distances,
        ),
        Drawing(
            "8",
            "same_sentence_rates",
            "Same-sentence rate",
            f"How often high pairs lie in one sentence. {_RATE_BARS} Dashed: the rate over all pairs. {_ROOT_SCALE}",
            draw_same_sentence_rates,
            needs_words=True,
        ),
        Drawing(
            "10",
            "locations",
            "Location of high pairs",
            "Share of texts in which the tokens at i and j are a high pair, among the texts that reach both "
            "positions. Grey: no text is that long.",
            draw_locations,
            needs_maps=True,
        ),
        Drawing(
            "11a",
            "dominant_shares",
            "Dominant share",
            "Share of a text's high pairs that include the head's dominant token. Bars: share of texts, in bins of "
            "2 %. Solid: mean over texts, written above with its jackknife standard error. Dashed: the mean for as "
            f"many pairs drawn at random. {_ROOT_SCALE}",
            draw_dominant_shares,
        ),
        Drawing(
            "11b",
            "distinct_dominants",
            "Distinct dominant tokens",
            "Share of texts by the number of different dominant tokens among the heads of a layer. Solid: the mean.",
            draw_distinct_dominants,
            needs=("distinct_dominants",),
        ),
        Drawing(
            "13",
            "distances_by_layer",
            "Distance of high pairs by layer",
            "Share of high pairs by distance j − i, the heads of a layer pooled. Solid: their mean. "
            f"Dashed: all pairs. {_ROOT_SCALE}",
            draw_distances_by_layer,
        ),
        Drawing(
            "values",
            "values",
            "Normalized similarities",
            "Share of all pairs by normalized similarity C/max(C), in bins of 0.01 (lower values in the first), the "
            "heads of a layer pooled, over the sample of texts. Shaded: the range the paper finds nearly empty. "
            "Dashed: the threshold θ. Heights are on a logarithmic scale.",
            draw_values,
        ),
        Drawing(
            "noise",
            "signal_and_noise",
            "Signal and noise of heads",
            "The signal share of a head: how much of what it writes, position aside, equal tokens, tokens of one "
            "sentence or neighbours have in common; 50 % (dashed) is as much signal as noise. From the left: every "
            "head; how heads are spread; the heads of each layer and their median, and (grey) the median of the "
            "position share; and the part of each relation in the median head.",
            draw_signal_and_noise,
            needs=("contrast_sums_blocks", "position_sums"),
            needs_words=True,
        ),
        Drawing(
            "head-types",
            "head_types",
            "Types of heads",
            "The type of each head: what it attends to, from its attention against even attention, and what its "
            "outputs are similar for, from its high pairs against chance. In brackets: the number of heads.",
            draw_head_types,
        ),
        Drawing(
            "head-similarity",
            "head_similarity",
            "Similarity between heads",
            "Mean correlation of the context similarity matrices of two heads, over the sample of texts. Heads are in "
            "the order in which they join (average linkage); squares are clusters of heads with a mean correlation of "
            "at least 0.5. Grey: one of the heads varies in no text.",
            draw_head_similarity,
            needs=("head_similarity_sum",),
        ),
    )
}
"""All figures of a study, by their number in the paper; those with a name are not in the paper"""

READING_DRAWINGS: dict[str, Drawing] = {
    drawing.number: drawing
    for drawing in (
        Drawing(
            "4",
            "attention_of_text",
            "Attention maps of a text",
            "Attention maps of one head (left) and of all heads of the layer together (right), layer by layer. Rows of "
            "a map: the token that looks; columns: the token looked at. Below: the tokens of the text; marked are "
            "those whose columns draw high attention in the last layer shown, its heads together.",
            draw_attention_of_text,
            needs_maps=True,
            draws_cross_attention=True,
        ),
        Drawing(
            "5",
            "lines_and_regions",
            "Lines and regions of a head",
            "A head's attention map; its context similarity matrix; the same, the rows and columns of tokens of high "
            "attention masked; and its averages over the regions between them. Blank: a region of one token.",
            draw_lines_and_regions,
            needs_maps=True,
        ),
        Drawing(
            "9",
            "pairs_in_text",
            "High pairs of a text",
            "High pairs of exemplary heads, the strongest where there are many, and the text. Each colour is a token "
            "value that stands in one of the tables, borders and rules telling apart what must share a colour; small "
            "numbers: the indices in the tables.",
            draw_pairs_in_text,
        ),
        Drawing(
            "12",
            "summed_similarities",
            "Similarities of a text by layer",
            "Context similarity matrices, summed over the heads of a layer, each as a share of its largest element.",
            draw_summed_similarities,
        ),
    )
}
"""All figures of a reading, by their number in the paper"""


def list_drawings(source: Study | Reading) -> dict[str, Drawing]:
    """Return the figures of a study or of a reading, by number."""
    return READING_DRAWINGS if isinstance(source, Reading) else DRAWINGS


def draw(source: Study | Reading, number: str, layers: str | Selection = None, heads: str | Selection = None) -> Figure:
    """Draw one figure, by its number in the paper.

    Args:
        source: A study, or a reading of one text.
        number: The figure's number, one of `list_drawings(source)`.
        layers: Numbers, or names such as `"0,5,10-11"`; by default those of the paper, or all.
        heads: Numbers, or names such as `"L3H4-7"`, or `"H2"` for head 2 of every layer.

    Raises:
        StudyError: There is no such figure of a study, or the study lacks its data.
        ReadingError: There is no such figure of a reading, or the reading lacks its data.
    """
    available = list_drawings(source)
    if number not in available:
        raise _make_unknown_figure_error(source, number)
    if available[number].needs_words and has_images(source.data.attrs):
        raise StudyError(f"figure {number} shows what only words and sentences have, and this study is of images")
    shown_layers, shown_heads = resolve_selections(source, layers, heads)
    return _finish_figure(source, available[number].draw(source, shown_layers, shown_heads))


def draw_all(
    source: Study | Reading, layers: str | Selection = None, heads: str | Selection = None
) -> dict[str, Figure]:
    """Draw all figures whose data this study or reading contains, by number."""
    numbers = resolve_selections(source, layers, heads)
    shown_layers = None if numbers[0] is None else select_layers(source, numbers[0], [])
    shown_heads = None if numbers[1] is None else select_heads(source, numbers[1], [])
    return {
        number: _finish_figure(source, drawing.draw(source, shown_layers, shown_heads))
        for number, drawing in list_drawings(source).items()
        if drawing.can_draw(source)
    }


def _finish_figure(source: Study | Reading, figure: Figure) -> Figure:
    """Mark a figure of an unverified capture, and errors that are too small with `>`; replace words such as text and
    token in a study of images."""
    if not source.data.attrs.get("verified", 1):
        figure.suptitle(UNVERIFIED.capitalize(), fontsize=FONT_SIZE, color="#A33C00", ha="left", x=0.01)
    if isinstance(source, Study) and (source.has_images or has_window_blocks(source)):
        for text in figure.findobj(Text):
            if isinstance(text, Text):
                words = text.get_text().replace("± ", "± >") if has_window_blocks(source) else text.get_text()
                text.set_text(adapt_wording(source, words))
    return figure


def _make_unknown_figure_error(source: Study | Reading, number: str) -> ReadingError | StudyError:
    numbers = ", ".join(list_drawings(source))
    if isinstance(source, Reading):
        if number in DRAWINGS:
            return ReadingError(
                f"figure {number} is drawn from a study of many texts (headscope study), not from a reading; "
                f"a reading has: {numbers}"
            )
        return ReadingError(f"no figure {number!r}; there are: {numbers}")
    if number in READING_DRAWINGS:
        return StudyError(
            f"figure {number} is drawn from a reading of one text (headscope read), not from a study; "
            f"a study has: {numbers}"
        )
    return StudyError(f"no figure {number!r}; there are: {numbers}")


__all__ = [
    "DRAWINGS",
    "FORMATS",
    "READING_DRAWINGS",
    "Drawing",
    "draw",
    "draw_all",
    "draw_attention_maps",
    "draw_attention_of_text",
    "draw_attention_without_lines",
    "draw_distances",
    "draw_distances_by_layer",
    "draw_distinct_dominants",
    "draw_dominant_shares",
    "draw_head_similarity",
    "draw_head_types",
    "draw_lines_and_regions",
    "draw_locations",
    "draw_pairs_in_text",
    "draw_repeat_rates",
    "draw_repeat_rates_in_sentence",
    "draw_same_sentence_rates",
    "draw_signal_and_noise",
    "draw_summed_similarities",
    "draw_values",
    "list_drawings",
    "render_svg",
    "save",
]
