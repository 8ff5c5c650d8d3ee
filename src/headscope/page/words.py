"""Numbers and names as people read them: the same wording in the report, its script and the notebook card."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headscope.studies.labels import of_images

NOTHING = "nothing counted"


@dataclass(frozen=True)
class RateWords:
    """How a rate is written."""

    label: str
    unit: str
    factor: float
    """from the stored number to the one shown"""
    about: str
    """what it says of a head, in one sentence"""


RATE_WORDS = {
    "repeat_rate": RateWords("repeat rate", "%", 100, "How many of the head's high pairs join two equal tokens."),
    "repeat_rate_in_sentence": RateWords(
        "repeat rate in a sentence", "%", 100, "The same, of the high pairs whose two tokens lie in one sentence only."
    ),
    "same_sentence_rate": RateWords(
        "same-sentence rate", "%", 100, "How many of the head's high pairs lie within one sentence."
    ),
    "mean_distance": RateWords(
        "mean distance", "tokens", 1, "How far apart the two tokens of a high pair are, on average."
    ),
    "dominant_share": RateWords(
        "dominant share",
        "%",
        100,
        "How many of a text's high pairs include the one token that most of them include, on average over texts.",
    ),
    "signal_to_noise": RateWords(
        "signal-to-noise",
        "dB",
        1,
        "How much of what the head writes follows the text's tokens, sentences and neighbourhoods, against the same "
        "text shuffled (ours): 3 dB is as much signal as noise.",
    ),
}

MANIFEST = {
    "Model": {
        "model": "Model",
        "model_type": "Architecture",
        "stack": "Stack",
        "stacks": "Stacks that can be watched",
        "layers": "Layers with attention",
        "depth": "Layers in all",
        "heads": "Heads in a layer",
        "causal": "Tokens see only what came before",
        "modality": "It reads",
        "tokenizer": "Tokenizer",
        "first_special_token": "First special token",
        "first_token_role": "What it is for",
        "route": "Heads seen through",
        "verified": "Held against the output projections",
        "weight_hash": "Hash of the weights",
        "trusted": "Trusted on request",
    },
    "Texts": {
        "corpus": "Corpus",
        "documents_read": "Documents read",
        "limit": "Limit of documents",
        "corpus_hash": "Hash of the documents",
        "windows": "Windows of a document",
        "length": "Window length, tokens",
        "min_tokens": "Shortest text, tokens",
        "sentences": "Sentences found by",
        "skip_broken": "Broken documents are skipped",
    },
    "Measurement": {
        "theta": "Threshold θ of a high pair",
        "tau": "Threshold τ of a line",
        "sample": "Fraction of texts in the sample",
        "maps": "N×N maps kept",
        "dtype": "Numeric type",
        "tf32": "Products in TF32",
        "kernel": "Kernel",
        "kernel_note": "Why this kernel",
        "batch_size": "Batch size",
        "batch_size_note": "Why this size",
    },
    "Run": {
        "complete": "Complete",
        "stopped_by": "Stopped by",
        "date": "Date",
        "duration_seconds": "Duration",
        "runs": "Runs it took",
        "device": "Device",
        "platform": "Platform",
        "command": "Command",
        "headscope": "headscope",
        "versions": "Versions",
        "format": "File format",
    },
}
"""What each entry of the manifest is called; one without a name here is still shown, under its own."""
APART = ("documents_skipped", "excerpts", "timing")
"""entries of the manifest that are shown as lists of their own, or not at all"""
OF_TEXTS = ("windows", "min_tokens", "sentences")
"""settings that say nothing of images"""
IMAGE_WORDS = {
    "Texts": "Images",
    "Tokenizer": "Image processor",
    "Window length, tokens": "Window length, patches",
    "Fraction of texts in the sample": "Fraction of images in the sample",
}
YES_OR_NO = ("causal", "verified", "maps", "complete", "tf32", "skip_broken")


def fixed(number: float | None, decimals: int) -> str:
    """A number with so many decimals, thousands apart.

    >>> fixed(-1234.567, 1)
    '−1,234.6'
    """
    if number is None or not math.isfinite(number):
        return "–"
    return f"{number:,.{decimals}f}".replace("-", "−")


def brief(number: float) -> str:
    """At most three characters for the inside of a cell, where a number is not larger than 999.

    >>> brief(0.43), brief(7.0), brief(35.4)
    ('0.4', '7.0', '35')
    """
    return fixed(number, 1 if abs(number) < 9.95 else 0)


def plain(value: Any) -> str:
    """Any scalar as text; reals with four significant digits.

    >>> plain(0.30000000000000004), plain(12345), plain(None), plain(True)
    ('0.3', '12,345', '–', 'yes')
    """
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return fixed(value, 0)
    if isinstance(value, float):
        if not math.isfinite(value) or abs(value) >= 1000:
            return fixed(value, 0)
        return f"{value:.4g}".replace("-", "−")
    return str(value)


def readable(name: str) -> str:
    """A name of the code as words; anything else as it is.

    >>> readable("by_layer"), readable("_"), readable("L0H1")
    ('by layer', '_', 'L0H1')
    """
    return name.replace("_", " ") if re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)+", name) else name


def duration(seconds: float) -> str:
    """Seconds as people say them.

    >>> duration(9.2), duration(75), duration(7260)
    ('9.2 s', '1 min 15 s', '2 h 1 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60} min"


def visible(token: str) -> str:
    """A token so that it can be seen: one of blanks and controls only is named by its code points.

    >>> visible("the"), visible(" "), visible("")
    ('the', 'U+0020', 'empty token')
    """
    if not token:
        return "empty token"
    if all(character.isspace() or unicodedata.category(character).startswith("C") for character in token):
        return " ".join(f"U+{ord(character):04X}" for character in token)
    return token


def manifest_groups(manifest: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """All of a manifest in groups of (label, text), in the order people ask."""
    known = {name for names in MANIFEST.values() for name in names}
    if of_images(manifest):
        manifest = {name: value for name, value in manifest.items() if name not in OF_TEXTS}
    others = {name: readable(name) for name in manifest if name not in known and name not in APART}
    groups = [*MANIFEST.items(), ("Other", others)]
    entries = [
        (title, [(label, _entry(name, manifest[name])) for name, label in names.items() if _told(name, manifest)])
        for title, names in groups
    ]
    said = IMAGE_WORDS if of_images(manifest) else {}
    return [
        (said.get(title, title), [(said.get(label, label), text) for label, text in rows])
        for title, rows in entries
        if rows
    ]


def _told(name: str, manifest: Mapping[str, Any]) -> bool:
    """A note that says nothing need not be told."""
    return name in manifest and (bool(manifest[name]) or not name.endswith("_note"))


def _entry(name: str, value: Any) -> str:
    if name in YES_OR_NO:
        return plain(bool(value))
    if name == "duration_seconds":
        return duration(float(value))
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {plain(inner)}" for key, inner in value.items()) or "–"
    return plain(value)
