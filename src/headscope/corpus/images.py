"""Convert image files, PIL images and arrays to RGB bytes, the input of the processors of vision models."""

from __future__ import annotations

import hashlib
import io
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headscope.errors import CorpusError

if TYPE_CHECKING:
    from PIL import Image

ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")
KINDS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
"""formats that PIL may detect; for some others it would start external programs"""
LARGEST = 64 * 2**20
"""largest size of an image file in bytes"""
MOST_PIXELS = 64 * 10**6
"""largest number of pixels of an image; each takes about 12 bytes during decoding"""
DAMAGED, UNKNOWN, TOO_LARGE, TOO_MANY_BYTES, NUMBERS = (
    "damaged image",
    "no image of a known kind",
    "image of too many pixels",
    "image file too large",
    "image of 32-bit numbers",
)
REASONS = (DAMAGED, UNKNOWN, TOO_LARGE, TOO_MANY_BYTES, NUMBERS)
"""Reasons why an image is skipped. Each image is a file of its own, so a broken one does not affect the next."""


@dataclass(frozen=True, eq=False)
class Picture:
    """One image."""

    rgb: NDArray[np.uint8]
    """(height, width, 3)"""

    @property
    def size(self) -> str:
        height, width, _ = self.rgb.shape
        return f"{width:,} × {height:,} pixels"

    @property
    def content(self) -> bytes:
        """Format-independent content: height and width as little-endian int32, then all RGB bytes."""
        return np.array(self.rgb.shape[:2], dtype="<i4").tobytes() + self.rgb.tobytes()

    @property
    def digest(self) -> int:
        """`u` of METHOD §3: the 64-bit BLAKE2b digest of the content."""
        return compute_digest(self.content)


def compute_digest(content: bytes | memoryview) -> int:
    """Return the 64-bit BLAKE2b digest, read as a little-endian number."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def decode_image(raw: bytes) -> Picture | str:
    """Decode an image file; return the reason if that fails. Of an animation, the first frame is used."""
    from PIL import Image

    if len(raw) > LARGEST:
        return TOO_MANY_BYTES
    with warnings.catch_warnings():
        # PIL warns of possible decompression bombs, and raises an error at twice as many pixels.
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        return _try_convert(lambda: Image.open(io.BytesIO(raw), formats=KINDS))


def as_picture(value: Any) -> Picture | str | None:
    """Convert a PIL image or an array of bytes, (height, width, 3) or grey (height, width).

    Returns the reason if it cannot be read, and None for other objects.
    """
    from PIL import Image

    if isinstance(value, Image.Image):
        return _try_convert(lambda: value)
    if not isinstance(value, np.ndarray):
        return None
    is_color = value.ndim == 3 and value.shape[2] == 3
    if value.dtype != np.uint8 or not (is_color or value.ndim == 2) or not value.size:
        raise CorpusError(
            f"an array of {value.dtype} and shape {value.shape} is no image: give bytes (uint8) of the shape "
            "(height, width, 3), or (height, width) in grey"
        )
    return Picture(
        np.array(value if is_color else np.repeat(value[..., None], 3, axis=2))
    )  # a copy: the caller may change the array


def _try_convert(open_image: Callable[[], Image.Image]) -> Picture | str:
    from PIL import Image, UnidentifiedImageError

    try:
        image = open_image()
        if image.width * image.height > MOST_PIXELS:
            return TOO_LARGE
        return NUMBERS if image.mode in ("I", "F") else Picture(_convert_to_rgb(image))
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        return TOO_LARGE
    except UnidentifiedImageError:
        return UNKNOWN
    except Exception:  # PIL's decoders raise errors of many types on damaged files
        return DAMAGED


def _convert_to_rgb(image: Image.Image) -> NDArray[np.uint8]:
    from PIL import Image, ImageOps

    upright = ImageOps.exif_transpose(image)  # apply the orientation from EXIF
    if upright.mode.startswith("I;16"):  # 16-bit grey: PIL would clip values above 255 to white
        upright = Image.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
    if upright.mode == "P":  # palettes may contain transparency, which PIL removes only in two steps
        upright = upright.convert("RGBA")
    return np.array(upright.convert("RGB"))
