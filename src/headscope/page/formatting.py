"""Formatting for all pages: numbers, names and colours.

Format numbers and names for people: one wording for the report, its script and the notebook card.

Colours of heat maps and bars, and text colours that are legible on them.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping
from typing import Any

from headscope.settings import MANIFEST, list_of_kind
from headscope.studies.labels import has_images
from headscope.studies.rates import RATES, RateWords

NOTHING = "nothing counted"


RATE_WORDS: dict[str, RateWords] = {
    **RATES,
    "signal_share": RateWords(
        "signal share",
        "%",
        100,
        "How much of what the head writes, position aside, equal tokens, tokens of one sentence or neighbours have in "
        "common (ours): at 50 % there is as much signal as noise.",
    ),
    "position_share": RateWords(
        "position share",
        "%",
        100,
        "How much of what the head writes depends on the position in the window alone (ours).",
    ),
}

LABELS = {entry.name: entry.label for entry in MANIFEST}
GROUPS = {
    "Model": (
        "model", "model_type", "stack", "stacks", "layers", "depth", "heads", "causal", "modality",
        "tokenizer", "first_special_token", "first_token_role", "route", "verified", "verified_note", "weight_hash",
        "trusted",
    ),
    "Texts": (
        "corpus", "documents_read", "limit", "share", "corpus_hash", "field", "text_format", "encoding", "windows",
        "length", "min_tokens", "sentences", "skip_broken",
    ),
    "Measurement": (
        "theta", "tau", "similarity", "similarity_note", "sample", "blocks", "maps", "examples", "dtype", "tf32",
        "kernel", "kernel_note", "batch_size", "batch_size_note", "batching",
    ),
    "Run": (
        "complete", "stopped_by", "date", "duration_seconds", "runs", "device", "platform", "command",
        "headscope", "versions", "format",
    ),
}  # fmt: skip
"""The manifest's entries in groups. Others are shown after them."""
SEPARATE_ENTRIES = ("documents_skipped", "excerpts", "timing")
"""entries of the manifest that are shown in lists of their own, or not at all"""
TEXT_ENTRIES = ("windows", "min_tokens", "sentences")
"""settings that do not apply to images"""
IMAGE_WORDS = {
    "Texts": "Images",
    "Tokenizer": "Image processor",
    "Tokens in a window": "Patches in a window",
    "Fraction of texts in the sample": "Fraction of images in the sample",
}
YES_OR_NO = list_of_kind("yes or no")


def format_fixed(number: float | None, decimals: int) -> str:
    """Return a number with this many decimals and separated thousands.

    >>> format_fixed(-1234.567, 1)
    '−1,234.6'
    """
    if number is None or not math.isfinite(number):
        return "–"
    return f"{number:,.{decimals}f}".replace("-", "−")


def format_brief(number: float) -> str:
    """Return a number of at most 999 in at most three characters, for the inside of a cell.

    >>> format_brief(0.43), format_brief(7.0), format_brief(35.4)
    ('0.4', '7.0', '35')
    """
    return format_fixed(number, 1 if abs(number) < 9.95 else 0)


def format_scalar(value: Any) -> str:
    """Return any scalar as text; floats with four significant digits.

    >>> format_scalar(0.30000000000000004), format_scalar(12345), format_scalar(None), format_scalar(True)
    ('0.3', '12,345', '–', 'yes')
    """
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return format_fixed(value, 0)
    if isinstance(value, float):
        if not math.isfinite(value) or abs(value) >= 1000:
            return format_fixed(value, 0)
        return f"{value:.4g}".replace("-", "−")
    return str(value)


def format_name(name: str) -> str:
    """Return an identifier as words; anything else unchanged.

    >>> format_name("by_layer"), format_name("_"), format_name("L0H1")
    ('by layer', '_', 'L0H1')
    """
    return name.replace("_", " ") if re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)+", name) else name


def format_duration(seconds: float) -> str:
    """Return seconds in hours, minutes and seconds.

    >>> format_duration(9.2), format_duration(75), format_duration(7260)
    ('9.2 s', '1 min 15 s', '2 h 1 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    rounded = round(seconds)
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60} s"
    return f"{rounded // 3600:,} h {rounded % 3600 // 60} min"


def make_visible(token: str) -> str:
    """Return a token as visible text: one of blanks and control characters only is named by its code points.

    >>> make_visible("the"), make_visible(" "), make_visible("")
    ('the', 'U+0020', 'empty token')
    """
    if not token:
        return "empty token"
    if all(character.isspace() or unicodedata.category(character).startswith("C") for character in token):
        return " ".join(f"U+{ord(character):04X}" for character in token)
    return token


def group_manifest(manifest: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return all entries of a manifest in groups of (label, text), the most important first."""
    grouped = {name for names in GROUPS.values() for name in names}
    if has_images(manifest):
        manifest = {name: value for name, value in manifest.items() if name not in TEXT_ENTRIES}
    others = tuple(name for name in manifest if name not in grouped and name not in SEPARATE_ENTRIES)
    groups = [*GROUPS.items(), ("Other", others)]
    entries = [
        (
            title,
            [
                (LABELS.get(name) or format_name(name), _format_entry(name, manifest[name]))
                for name in names
                if _is_shown(name, manifest)
            ],
        )
        for title, names in groups
    ]
    image_labels = IMAGE_WORDS if has_images(manifest) else {}
    return [
        (image_labels.get(title, title), [(image_labels.get(label, label), text) for label, text in rows])
        for title, rows in entries
        if rows
    ]


def _is_shown(name: str, manifest: Mapping[str, Any]) -> bool:
    """Return whether the manifest has this entry; an empty note is not shown."""
    return name in manifest and (bool(manifest[name]) or not name.endswith("_note"))


def _format_entry(name: str, value: Any) -> str:
    if name in YES_OR_NO:
        return format_scalar(bool(value))
    if name == "duration_seconds":
        return format_duration(float(value))
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {format_scalar(inner)}" for key, inner in value.items()) or "–"
    return format_scalar(value)


VIRIDIS = ("#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725")
"""nine equally spaced stops; between them colours are mixed in sRGB, as a CSS gradient does"""
RECEIVERS = ("#482173", "#8b6bb5", "#c2562d", "#edb25c", "#1f7f86", "#86c5b8", "#c3c6cb")
"""special tokens violet, separators orange, the token and its neighbours green, the rest grey"""
BLACK, WHITE = "#000000", "#ffffff"


def pick_color(position: float) -> str:
    """Return the colour at a position on the scale, 0 to 1.

    >>> pick_color(0.0), pick_color(0.5), pick_color(1.0)
    ('#440154', '#21918c', '#fde725')
    """
    stop = min(max(position, 0.0), 1.0) * (len(VIRIDIS) - 1)
    lower = min(int(stop), len(VIRIDIS) - 2)
    low, high = _parse_channels(VIRIDIS[lower]), _parse_channels(VIRIDIS[lower + 1])
    channels = (round(a + (b - a) * (stop - lower)) for a, b in zip(low, high, strict=True))
    return "#" + "".join(f"{channel:02x}" for channel in channels)


def pick_text_color(background: str) -> str:
    """Return black or white, whichever has the higher contrast: never below 4.5 to 1.

    >>> pick_text_color("#440154"), pick_text_color("#fde725")
    ('#ffffff', '#000000')
    """
    return max((BLACK, WHITE), key=lambda candidate: compute_contrast(candidate, background))


def compute_contrast(color: str, other: str) -> float:
    """Return the WCAG contrast ratio of two colours, 1 to 21."""
    darker, lighter = sorted((_compute_luminance(color), _compute_luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def format_gradient() -> str:
    """Return the scale as a CSS background."""
    return f"linear-gradient(to right, {', '.join(VIRIDIS)})"


def _parse_channels(color: str) -> tuple[int, int, int]:
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)


def _compute_luminance(color: str) -> float:
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (k / 255 for k in _parse_channels(color))
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
