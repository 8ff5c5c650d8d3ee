"""The colours of heat maps and bars, and which ink is legible on them."""

from __future__ import annotations

VIRIDIS = ("#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725")
"""nine equally spaced stops; between them colours are mixed in sRGB, as a CSS gradient does"""
RECEIVERS = ("#482173", "#8b6bb5", "#c2562d", "#edb25c", "#1f7f86", "#86c5b8", "#c3c6cb")
"""special tokens violet, separators orange, the token and its neighbours green, the rest grey"""
BLACK, WHITE = "#000000", "#ffffff"


def colour(position: float) -> str:
    """The colour at a position on the scale, 0 to 1.

    >>> colour(0.0), colour(0.5), colour(1.0)
    ('#440154', '#21918c', '#fde725')
    """
    place = min(max(position, 0.0), 1.0) * (len(VIRIDIS) - 1)
    below = min(int(place), len(VIRIDIS) - 2)
    low, high = _channels(VIRIDIS[below]), _channels(VIRIDIS[below + 1])
    mixed = (round(a + (b - a) * (place - below)) for a, b in zip(low, high, strict=True))
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def ink(background: str) -> str:
    """Black or white, whichever stands out more: never below a contrast of 4.5 to 1.

    >>> ink("#440154"), ink("#fde725")
    ('#ffffff', '#000000')
    """
    return max((BLACK, WHITE), key=lambda candidate: contrast(candidate, background))


def contrast(one: str, other: str) -> float:
    """The WCAG contrast ratio of two colours, 1 to 21."""
    dark, light = sorted((_luminance(one), _luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def gradient() -> str:
    """The scale as a CSS background."""
    return f"linear-gradient(to right, {', '.join(VIRIDIS)})"


def _channels(code: str) -> tuple[int, int, int]:
    return int(code[1:3], 16), int(code[3:5], 16), int(code[5:7], 16)


def _luminance(code: str) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (k / 255 for k in _channels(code))]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
