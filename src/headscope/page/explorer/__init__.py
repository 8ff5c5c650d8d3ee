"""Render a reading as one self-contained HTML page: every head's maps, the text with its pairs, layer by layer.

The template, the style sheet and the parts of the script are beside this file; `base.css` and `base.js` are shared with
the report. All that the page computes from a reading is in `data.js`, with the same results as in Python.
"""

from __future__ import annotations

import base64
from typing import Any

from markupsafe import Markup

from headscope.errors import ReadingError
from headscope.page.explorer.text_pieces import split_into_pieces
from headscope.page.formatting import IMAGE_WORDS, LABELS, TEXT_ENTRIES, YES_OR_NO, format_scalar, make_visible
from headscope.page.quantization import Precision, choose_precision, pack_layer
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
