"""A reading as one HTML page that needs nothing else: every head's maps, the text with its pairs, layer by layer.

The template, the style and the parts of the script lie beside this file; `base.css` and `base.js` are shared with the
report. All a page computes from a reading is in `data.js`, and gives what Python gives.
"""

from __future__ import annotations

import base64
from typing import Any

from markupsafe import Markup

from headscope.errors import ReadingError
from headscope.page.codes import Precision, choose, layer_bytes
from headscope.page.explorer.pieces import pieces
from headscope.page.html import asset, embedded, environment, policy, slug, whole
from headscope.page.words import IMAGE_WORDS, MANIFEST, OF_TEXTS, plain, visible
from headscope.readings.reading import SUM, Head, Reading
from headscope.segmentation.fine import token_segments
from headscope.studies.labels import of_images, shape_in_words

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
ENTRIES = (
    "model", "model_type", "weight_hash", "tokenizer", "causal", "sentences", "theta", "tau", "dtype", "device", "date",
    "headscope", "versions", "command",
)  # fmt: skip
"""of the manifest, what the page tells"""


def explorer(reading: Reading, *, precision: str = "auto", start: tuple[int, Head] | None = None) -> str:
    """The page of a reading, opened at the head `start` (by default the first of the last layer)."""
    kept = choose(reading, precision)
    packed, scales = zip(*(layer_bytes(reading, layer, kept) for layer in reading.layers), strict=True)
    script = asset("base.js", *(f"explorer/{name}.js" for name in SCRIPTS))
    about = reading.manifest
    segments = [] if of_images(about) else token_segments(reading)
    size = sum(len(each) for each in packed)
    template = environment().from_string(asset("explorer/page.html"))
    page = template.render(
        about=about,
        facts=f"{shape_in_words(reading.data.attrs, len(reading.layers), len(reading.heads))} · {_tokens(reading)}",
        layers=reading.layers,
        heads=reading.heads,
        attention=reading.has_attention,
        thresholds=kept.thresholds,
        shortcuts=[each for each in SHORTCUTS if reading.relations or each[0] != ("N",)],
        held=[*_held(reading, kept, size), *_manifest(about)],
        policy=policy(script),
        script=Markup(script),
        style=Markup(asset("base.css", "explorer/style.css")),
        data=embedded(_data(reading, kept, list(scales), start, segments)),
        relations=reading.relations,
        segments=max(segments, default=-1) > 0,
        packed_layers=[Markup(base64.b64encode(each).decode("ascii")) for each in packed],
    )
    return whole(page.lstrip())


def _data(
    reading: Reading,
    kept: Precision,
    scales: list[list[float]],
    start: tuple[int, Head] | None,
    segments: list[int],
) -> dict[str, Any]:
    data = reading.data
    kinds = {int(value): k for k, value in enumerate(dict.fromkeys(data["token_id"].values.tolist()))}
    labels = [visible(whole(str(label))) for label in data["token"].values]
    return {
        "model": str(reading.manifest["model"]),
        "file": slug(str(reading.manifest["model"])),
        "layers": reading.layers,
        "heads": reading.heads,
        "tokens": labels,
        "word_labels": [visible(whole(str(label))) for label in reading.word_labels()],
        "pieces": [[gap, whole(shown)] for gap, shown in pieces(reading)],
        "kind": [kinds[int(value)] for value in data["token_id"].values],
        "kinds": len(kinds),
        "special": data["special"].values.astype(bool).tolist(),
        "sentence": data["sentence"].values.tolist(),
        "relations": list(reading.relations),
        "word": data["word"].values.tolist(),
        "attention": reading.has_attention,
        "segment": segments,
        "theta": _snapped(reading.theta, kept),
        "tau": _snapped(reading.tau, kept),
        "steps": kept.steps,
        "thresholds": kept.thresholds,
        "levels": kept.levels,
        "bytes": kept.bytes,
        "digits": 3 if kept.thresholds >= 1000 else 2,
        "scales": scales,
        "start": None if start is None else _start(reading, start),
    }


def _start(reading: Reading, start: tuple[int, Head]) -> list[int]:
    layer, head = start
    if layer not in reading.layers or (head != SUM and head not in reading.heads):
        raise ReadingError(f"no head L{layer}{'sum' if head == SUM else f'H{head}'} in this reading to start with")
    return [reading.layers.index(layer), len(reading.heads) if head == SUM else reading.heads.index(int(head))]


def _snapped(share: float, kept: Precision) -> float:
    return min(round(share * kept.thresholds), kept.thresholds - 1) / kept.thresholds


def _tokens(reading: Reading) -> str:
    there, whole_text = len(reading), int(reading.manifest.get("tokens_in_text", len(reading)))
    return f"{there:,} tokens" if there >= whole_text else f"the first {there:,} of {whole_text:,} tokens"


def _held(reading: Reading, kept: Precision, size: int) -> list[tuple[str, str]]:
    """What the page carries, and how exactly."""
    exact = len(str(kept.thresholds)) - 1
    rows = [
        (
            "Similarity",
            f"every element of {len(reading.layers) * len(reading.heads):,} heads and {len(reading.layers):,} sums, in "
            f"steps of 1/{kept.steps:,} of each matrix's largest ({kept.name})",
        ),
        ("Pairs and lines", f"exactly those of Python, for θ and τ of {exact} decimals"),
    ]
    if reading.has_attention:
        rows.append(
            ("Attention", f"every element, in {kept.levels} levels of its square root: within {1 / kept.levels:.1g}")
        )
    else:
        rows.append(("Attention", "none: this reading was made from outputs alone"))
    return [*rows, ("Size of the data", f"{size * 4 / 3 / 1e6:.1f} MB"), ("Text", _tokens(reading))]


def _manifest(about: dict[str, Any]) -> list[tuple[str, str]]:
    names = {name: label for group in MANIFEST.values() for name, label in group.items()}
    said = IMAGE_WORDS if of_images(about) else {}
    rows = []
    for name in ENTRIES:
        value = about.get(name)
        if value is None or value == "" or (said and name in OF_TEXTS):
            continue
        if name == "causal":
            value = bool(value)
        if isinstance(value, dict):
            value = ", ".join(f"{key} {inner}" for key, inner in value.items())
        label = names.get(name, name)
        rows.append((said.get(label, label), plain(value)))
    return rows
