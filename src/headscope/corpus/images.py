"""Images: from files, PIL images and arrays to the one form that vision models' processors take, RGB in bytes."""

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
"""what PIL may take a file for: it knows kinds that other programs are started for"""
LARGEST = 64 * 2**20
"""bytes of one image file, at most"""
MOST_PIXELS = 64 * 10**6
"""pixels of one image; each takes some 12 bytes while it is decoded"""
DAMAGED, UNKNOWN, TOO_LARGE, TOO_MANY_BYTES, NUMBERS = (
    "damaged image",
    "no image of a known kind",
    "image of too many pixels",
    "image file too large",
    "image of 32-bit numbers",
)
REASONS = (DAMAGED, UNKNOWN, TOO_LARGE, TOO_MANY_BYTES, NUMBERS)
"""why an image is skipped; each is a file by itself, so one that cannot be read says nothing of the next"""


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
        """What the image is, whatever it was stored in: height and width as little-endian int32, then all its bytes."""
        return np.array(self.rgb.shape[:2], dtype="<i4").tobytes() + self.rgb.tobytes()

    @property
    def digest(self) -> int:
        """`u` of METHOD §3: the 64-bit BLAKE2b digest of the content."""
        return int.from_bytes(hashlib.blake2b(self.content, digest_size=8).digest(), "little")


def decoded(raw: bytes) -> Picture | str:
    """An image file's content, or the reason why there is none. Of an animation, the first frame."""
    from PIL import Image

    if len(raw) > LARGEST:
        return TOO_MANY_BYTES
    with warnings.catch_warnings():
        # PIL warns of images that may be made to fill the memory, and refuses those of twice as many pixels.
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        return _attempted(lambda: Image.open(io.BytesIO(raw), formats=KINDS))


def as_picture(given: Any) -> Picture | str | None:
    """A PIL image or an array of bytes, (h, w, 3) or in grey (h, w); why it cannot be read; None if it is neither."""
    from PIL import Image

    if isinstance(given, Image.Image):
        return _attempted(lambda: given)
    if not isinstance(given, np.ndarray):
        return None
    coloured = given.ndim == 3 and given.shape[2] == 3
    if given.dtype != np.uint8 or not (coloured or given.ndim == 2) or not given.size:
        raise CorpusError(
            f"an array of {given.dtype} and shape {given.shape} is no image: give bytes (uint8) of the shape "
            "(height, width, 3), or (height, width) in grey"
        )
    return Picture(np.array(given if coloured else np.repeat(given[..., None], 3, axis=2)))  # a copy: theirs may change


def _attempted(opened: Callable[[], Image.Image]) -> Picture | str:
    from PIL import Image, UnidentifiedImageError

    try:
        image = opened()
        if image.width * image.height > MOST_PIXELS:
            return TOO_LARGE
        return NUMBERS if image.mode in ("I", "F") else Picture(_rgb(image))
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        return TOO_LARGE
    except UnidentifiedImageError:
        return UNKNOWN
    except Exception:  # a damaged file makes PIL's decoders raise what they like
        return DAMAGED


def _rgb(image: Image.Image) -> NDArray[np.uint8]:
    from PIL import Image, ImageOps

    upright = ImageOps.exif_transpose(image)  # cameras note how they were held
    if upright.mode.startswith("I;16"):  # 16 bits of grey, of which PIL would turn all but the darkest to white
        upright = Image.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
    if upright.mode == "P":  # a palette may hold transparency, which PIL only takes off in two steps
        upright = upright.convert("RGBA")
    return np.array(upright.convert("RGB"))
