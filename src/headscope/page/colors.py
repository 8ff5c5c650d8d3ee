"""Colours of heat maps and bars, and text colours that are legible on them."""

from __future__ import annotations

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
