"""The explorer: a reading as one self-contained HTML page.

Render a reading as one self-contained HTML page: every head's maps, the text with its pairs, layer by layer.

The template, the style sheet and the parts of the script are beside this file; `base.css` and `base.js` are shared with
the report. All that the page computes from a reading is in `data.js`, with the same results as in Python.

Split the text of a reading into its tokens as they are written there, and the gaps between them.

Quantize a reading's matrices into few bytes, from which a page finds exactly the pairs and lines that Python finds.

A similarity v = C_ij / max(C) becomes the code ⌈v · M⌉. With M a multiple of D, v > k/D ⇔ code > k · M/D: every
threshold that is a multiple of 1/D is decided by the codes alone, without rounding. The floating-point comparison in
Python, C_ij > θ · max(C), may differ for a value within rounding error of a threshold; such codes are moved to agree
with it. Column sums of attention, which decide lines, are quantized the same way. Attention itself is only displayed:
it is stored as levels of its square root, which are fine where attention is small, as nearly all of it is.
"""

from __future__ import annotations

import base64
import re
import unicodedata
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from headscope.array_types import Floats, Ints
from headscope.errors import ReadingError
from headscope.page.formatting import IMAGE_WORDS, LABELS, TEXT_ENTRIES, YES_OR_NO, format_scalar, make_visible
from headscope.page.templates import (
    build_policy,
    embed_json,
    make_environment,
    make_slug,
    read_assets,
    replace_surrogates,
)
from headscope.readings.reading import SUM, Head, Reading
from headscope.segmentation.fine import number_token_segments
from headscope.studies.labels import format_shape, has_images

LINE_CONTROLS = "\n\t"


def split_into_pieces(reading: Reading) -> list[tuple[str, str]]:
    """Return for each token the text between it and the one before, and its own text."""
    data, text = reading.data, reading.text
    shown_pieces: list[tuple[str, str]] = []
    end = 0
    for k, (label, start, stop) in enumerate(
        zip(data["token"].values, data["start"].values, data["end"].values, strict=True)
    ):
        if start < 0:  # a special token, or a reading without a text
            gap = _get_gap(reading, k)
            shown = str(label) if gap or k == 0 else str(label).removeprefix("##")
            shown_pieces.append((gap, make_visible(replace_controls(shown))))
            continue
        gap = _shorten_gap(text[end:start]) or (" " if k and data["special"].values[k - 1] else "")
        shown = replace_controls(text[start:stop]) if start >= end else ""
        # Tokens that are parts of one character have the same position: the first shows it, the others a dot.
        shown_pieces.append((gap, _mark_blanks(shown) if shown else "·"))
        end = max(end, int(stop))
    return shown_pieces


def replace_controls(text: str) -> str:
    """Replace control characters by U+FFFD, except line ends and tabs.

    >>> replace_controls("a\\x1b[2J\\nb")
    'a�[2J\\nb'
    """
    return "".join(
        c if c in LINE_CONTROLS or unicodedata.category(c) != "Cc" else "\N{REPLACEMENT CHARACTER}" for c in text
    )


def _mark_blanks(shown: str) -> str:
    """Return a token of blanks as visible signs, since it can be clicked like any other token.

    >>> _mark_blanks(" "), _mark_blanks("\\n"), _mark_blanks("a b")
    ('␣', '⏎', 'a b')
    """
    if shown.strip(" \n\t"):
        return make_visible(shown)
    return shown.replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥")


def _get_gap(reading: Reading, k: int) -> str:
    if k == 0:
        return ""
    if has_images(reading.data.attrs) and re.fullmatch(r"r\d+c0", str(reading.data["token"].values[k])):
        return "\n"  # the rows of an image are lines
    word = reading.data["word"].values
    return "" if word[k] == word[k - 1] else " "


def _shorten_gap(gap: str) -> str:
    """Return the gap as the text has it, but with at most one empty line and 200 characters."""
    return re.sub(r"\n\s*\n\s*", "\n\n", replace_controls(gap))[:200]


@dataclass(frozen=True)
class Precision:
    """How precisely a page stores numbers."""

    name: str
    steps: int
    """M: similarities are stored in steps of max(C) / M"""
    thresholds: int
    """D: for θ and τ that are multiples of 1 / D, the page finds exactly what Python finds"""
    levels: int
    """levels of the square root of attention above 0"""
    bytes: int
    """bytes of a code"""


FINE = Precision("fine", steps=8_000, thresholds=1_000, levels=255, bytes=2)
COARSE = Precision("coarse", steps=100, thresholds=100, levels=15, bytes=1)
PRECISIONS = {precision.name: precision for precision in (FINE, COARSE)}
COMPRESSION_LEVEL = 6
"""of zlib; the highest takes three times as long and saves a third of a percent"""
FINE_ELEMENTS = 12_000_000
"""matrix elements up to which `auto` chooses fine precision; the page then has about 18 MB"""


def choose_precision(reading: Reading, name: str) -> Precision:
    """Return the precision of this name; `auto` is fine precision where the page stays small.

    Raises:
        ReadingError: There is no precision of this name.
    """
    if name == "auto":
        elements = len(reading.layers) * (len(reading.head_numbers) + 1) * len(reading) ** 2
        return FINE if elements <= FINE_ELEMENTS else COARSE
    if name not in PRECISIONS:
        raise ReadingError(f"precision is {name!r}: choose one of auto, {', '.join(PRECISIONS)}")
    return PRECISIONS[name]


def quantize(values: Floats, largest: float, precision: Precision) -> Ints:
    """Return ⌈v · M⌉ for v = values / largest, moved such that every threshold k/D gives `values > k/D * largest`.

    >>> quantize(np.array([10.0, 3.0, 2.9999, 0.0, -5.0]), 10.0, COARSE).tolist()
    [100, 30, 30, 0, -50]
    """
    step = precision.steps // precision.thresholds
    lowest = -(2 ** (8 * precision.bytes - 1))
    codes = np.clip(np.ceil(values / largest * precision.steps), lowest, precision.steps).astype(np.int64)
    below = np.maximum((codes - 1) // step, -1)  # the highest k that the code is above; −1: above none
    exceeds_it = (below < 0) | (values > below / precision.thresholds * largest)
    exceeds_next = values > (below + 1) / precision.thresholds * largest
    codes = np.where(exceeds_it, codes, below * step)
    return np.asarray(np.where(exceeds_it & exceeds_next, (below + 1) * step + 1, codes), dtype=np.int64)


def compute_scale(matrix: Floats) -> float:
    """Return the divisor of similarities: their maximum if it is positive, else the largest magnitude, or 1."""
    largest = float(matrix.max())
    return largest if largest > 0 else float(np.abs(matrix).max()) or 1.0


def pack_layer(reading: Reading, layer: int, precision: Precision) -> tuple[bytes, list[float]]:
    """Return one layer, compressed, and the scale of each of its matrices: the heads in order, then their sum.

    The bytes are the similarities above the diagonal, row by row, matrix after matrix; then attention maps (where there
    are any, without the sum); then the diagonals of C over their scale as float32; then the codes of the attention's
    column sums. Codes of two bytes are stored as all high bytes, then all low ones, which compresses better.
    """
    n = len(reading)
    upper = np.triu_indices(n, k=1)
    present = reading.heads_of(layer)
    matrix_sum, square_sum = np.zeros((n, n)), np.zeros(n)
    similarities, scales, diagonals, column_sums, maps = [], [], [], [], []
    heads: list[Head] = [*reading.head_numbers, SUM]
    for head in heads:
        is_absent = head != SUM and head not in present  # zeros in its place, which the page does not show
        if head == SUM:  # summed in the same order as in Reading, to agree to the last bit
            matrix, squares = matrix_sum, square_sum
        elif is_absent:
            matrix, squares = np.zeros((n, n)), np.zeros(n)
        else:
            matrix = reading.matrix(layer, head).values
            squares = (reading.output(layer, int(head)) ** 2).sum(axis=-1)
            matrix_sum += matrix
            square_sum += squares
        scales.append(compute_scale(matrix))
        similarities.append(quantize(matrix[upper], scales[-1], precision))
        diagonals.append(squares / scales[-1])
        if reading.has_attention:
            attention = np.zeros((n, n)) if is_absent else reading.attention_map(layer, head).values
            sums = attention.sum(axis=0)
            column_sums.append(quantize(sums, float(sums.max()) or 1.0, precision))
            if head != SUM:
                maps.append(np.rint(np.sqrt(np.clip(attention, 0, 1)) * precision.levels).astype(np.uint8))
    parts = [
        _pack_codes(np.stack(similarities), precision),
        *(levels.tobytes() for levels in maps),
        np.stack(diagonals).astype("<f4").tobytes(),
        *([_pack_codes(np.stack(column_sums), precision)] if column_sums else []),
    ]
    return zlib.compress(b"".join(parts), COMPRESSION_LEVEL), scales


def _pack_codes(numbers: Ints, precision: Precision) -> bytes:
    if precision.bytes == 1:
        return numbers.astype(np.int8).tobytes()
    pairs = numbers.astype(">i2").ravel().view(np.uint8).reshape(-1, 2)
    return np.ascontiguousarray(pairs.T).tobytes()


SCRIPTS = ("data", "relations", "draw", "state", "maps", "overview", "text", "layers", "save", "main")
SHORTCUTS = (
    (("←", "→"), "head before, head after"),
    (("↑", "↓"), "layer before, layer after"),
    (("S",), "the sum over the layer’s heads, and back"),
    (("V",), "values, high pairs, lines, regions"),
    (("N",), "all pairs, explained, noise"),
    (("A",), "small maps of similarity or attention"),
    (("D", "R", "W", "X"), "diagonal, raw, words, hide special"),
    (("[", "]"), "θ lower, higher"),
    ((",", "."), "τ lower, higher"),
    (("G",), "fine segments of the text"),
    (("P",), "play through the layers"),
    (("⇧ arrows",), "in a map: move the crosshair"),
    (("T",), "light or dark"),
    (("Esc",), "no token chosen, whole map"),
)
MANIFEST_ENTRIES = (
    "model", "model_type", "verified", "verified_note", "weight_hash", "tokenizer", "causal", "sentences", "similarity",
    "theta", "tau", "dtype", "device", "date", "headscope", "versions", "command",
)  # fmt: skip
"""entries of the manifest that the page shows"""


def render_explorer(reading: Reading, *, precision: str = "auto", start: tuple[int, Head] | None = None) -> str:
    """Return the page of a reading.

    Args:
        precision: How precisely the page stores numbers: 'fine', 'coarse' or 'auto'.
        start: Layer and head shown first, by default the first head of the last layer.

    Raises:
        ReadingError: There is no such precision, or no such head.
    """
    chosen_precision = choose_precision(reading, precision)
    packed, scales = zip(*(pack_layer(reading, layer, chosen_precision) for layer in reading.layers), strict=True)
    script = read_assets("base.js", *(f"explorer/{name}.js" for name in SCRIPTS))
    manifest = reading.manifest
    segments = [] if has_images(manifest) else number_token_segments(reading)
    shape = format_shape(reading.data.attrs, len(reading.layers), len(reading.head_numbers))
    size = sum(len(layer) for layer in packed)
    template = make_environment().from_string(read_assets("explorer/page.html"))
    page = template.render(
        about=manifest,
        facts=f"{shape} · {_describe_length(reading)}",
        layers=reading.layers,
        heads=reading.head_numbers,
        attention=reading.has_attention,
        thresholds=chosen_precision.thresholds,
        shortcuts=[(keys, action) for keys, action in SHORTCUTS if reading.relations or keys != ("N",)],
        held=[*_describe_contents(reading, chosen_precision, size), *_list_manifest(manifest)],
        policy=build_policy(script),
        script=Markup(script),
        style=Markup(read_assets("base.css", "explorer/style.css")),
        data=embed_json(_collect_data(reading, chosen_precision, list(scales), start, segments)),
        relations=reading.relations,
        segments=max(segments, default=-1) > 0,
        packed_layers=[Markup(base64.b64encode(layer).decode("ascii")) for layer in packed],
    )
    return replace_surrogates(page.lstrip())


def _collect_data(
    reading: Reading,
    precision: Precision,
    scales: list[list[float]],
    start: tuple[int, Head] | None,
    segments: list[int],
) -> dict[str, Any]:
    data = reading.data
    kind_numbers = {int(token_id): k for k, token_id in enumerate(dict.fromkeys(data["token_id"].values.tolist()))}
    token_labels = [make_visible(replace_surrogates(str(label))) for label in data["token"].values]
    return {
        "model": str(reading.manifest["model"]),
        "verified": bool(reading.manifest.get("verified", 1)),
        "file": make_slug(str(reading.manifest["model"])),
        "layers": reading.layers,
        "heads": reading.head_numbers,
        "present": [
            [head in reading.heads_of(layer) for head in reading.head_numbers] + [True] for layer in reading.layers
        ],
        "tokens": token_labels,
        "word_labels": [make_visible(replace_surrogates(str(label))) for label in reading.word_labels()],
        "pieces": [[gap, replace_surrogates(shown)] for gap, shown in split_into_pieces(reading)],
        "kind": [kind_numbers[int(token_id)] for token_id in data["token_id"].values],
        "kinds": len(kind_numbers),
        "special": data["special"].values.astype(bool).tolist(),
        "sentence": data["sentence"].values.tolist(),
        "relations": list(reading.relations),
        "word": data["word"].values.tolist(),
        "attention": reading.has_attention,
        "segment": segments,
        "theta": _snap_threshold(reading.theta, precision),
        "tau": _snap_threshold(reading.tau, precision),
        "steps": precision.steps,
        "thresholds": precision.thresholds,
        "levels": precision.levels,
        "bytes": precision.bytes,
        "digits": 3 if precision.thresholds >= 1000 else 2,
        "scales": scales,
        "start": None if start is None else _find_start(reading, start),
    }


def _find_start(reading: Reading, start: tuple[int, Head]) -> list[int]:
    layer, head = start
    if layer not in reading.layers or (head != SUM and head not in reading.heads_of(layer)):
        raise ReadingError(f"no head L{layer}{'sum' if head == SUM else f'H{head}'} in this reading to start with")
    return [
        reading.layers.index(layer),
        len(reading.head_numbers) if head == SUM else reading.head_numbers.index(int(head)),
    ]


def _snap_threshold(threshold: float, precision: Precision) -> float:
    return min(round(threshold * precision.thresholds), precision.thresholds - 1) / precision.thresholds


def _describe_length(reading: Reading) -> str:
    count, total = len(reading), int(reading.manifest.get("tokens_in_text", len(reading)))
    length = f"{count:,} tokens" if count >= total else f"the first {count:,} of {total:,} tokens"
    if "tokens_in_source" not in reading.manifest:
        return length
    count, total = len(reading.source_tokens), int(reading.manifest["tokens_in_source"])
    first = "" if count >= total else f", the first of {total:,}"
    return f"{length}, for {count:,} of the source{first}"


def _describe_contents(reading: Reading, precision: Precision, size: int) -> list[tuple[str, str]]:
    """Return what the page contains and how exact it is, as (label, text)."""
    decimals = len(str(precision.thresholds)) - 1
    rows = [
        (
            "Similarity",
            f"every element of {sum(len(reading.heads_of(layer)) for layer in reading.layers):,} heads and "
            f"{len(reading.layers):,} sums, in "
            f"steps of 1/{precision.steps:,} of each matrix's largest ({precision.name})",
        ),
        ("Pairs and lines", f"exactly those of Python, for θ and τ of {decimals} decimals"),
    ]
    if "source_text" in reading.data:
        rows.append(("Source, which the encoder read", make_visible(str(reading.data["source_text"].item()))))
    if reading.is_cross:
        rows.append(
            (
                "Attention",
                "to the tokens of the source (cross-attention): not on this page. Fig. 4 (--figures) draws it, "
                "Reading.attention has it",
            )
        )
    if reading.has_attention:
        rows.append(
            (
                "Attention",
                f"every element, in {precision.levels} levels of its square root: within {1 / precision.levels:.1g}",
            )
        )
    else:
        rows.append(("Attention", "none: this reading was made from outputs alone"))
    return [*rows, ("Size of the data", f"{size * 4 / 3 / 1e6:.1f} MB"), ("Text", _describe_length(reading))]


def _list_manifest(manifest: dict[str, Any]) -> list[tuple[str, str]]:
    image_labels = IMAGE_WORDS if has_images(manifest) else {}
    rows = []
    for name in MANIFEST_ENTRIES:
        value = manifest.get(name)
        if value is None or value == "" or (image_labels and name in TEXT_ENTRIES):
            continue
        if name in YES_OR_NO:
            value = bool(value)
        if isinstance(value, dict):
            value = ", ".join(f"{key} {inner}" for key, inner in value.items())
        label = LABELS.get(name, name)
        rows.append((image_labels.get(label, label), format_scalar(value)))
    return rows
