"""Images as tokens: what stands where a tokenizer stands in a model that reads pixels.

One image is one window. Its tokens are the patches that the model cuts it into, row by row, and the special tokens that
the model puts beside them; token ids are places, so that no two tokens of a window are equal.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from headscope.corpus.formats import Document
from headscope.corpus.images import Picture
from headscope.corpus.windows import Window
from headscope.errors import CorpusError, ModelError
from headscope.model import anatomy
from headscope.model.anatomy import Layout, Shape
from headscope.types import Floats, Ints


class Patches:
    """Made of a transformers image processor and the network it belongs to; `label` names the model in errors."""

    pad_id = 0

    def __init__(self, processor: Any, network: Any, label: str) -> None:
        self.processor, self.network, self.label = processor, network, label

    @property
    def name(self) -> str:
        return type(self.processor).__name__

    @property
    def length(self) -> int:
        """The number of tokens, the same for all images."""
        return self.layout.length

    @cached_property
    def layout(self) -> Layout:
        return anatomy.lay_out(self.label, self.network, self.shape)

    @cached_property
    def shape(self) -> Shape:
        """Channels, height and width of what the network reads."""
        return self._pixels(Picture(np.zeros((64, 64, 3), dtype=np.uint8))).shape

    def first_special(self) -> str | None:
        """The special token that stands first, if there is one."""
        return self.layout.name(0) if self.layout.first else None

    def first_role(self) -> str:
        """What it is for, in words."""
        return "the classification token" if self.layout.first else ""

    def names(self, ids: list[int]) -> list[str]:
        """Token ids are places."""
        return [self.layout.name(k) for k in ids]

    def labels(self, ids: Ints) -> list[str]:
        """Names are what people read, too."""
        return self.names([int(k) for k in ids])

    def windows(self, document: Document) -> list[Window] | str:
        """The one window of an image, or the reason why it has none."""
        if not document.is_image:
            raise CorpusError(
                f"{document.name}: a text, and {self.label} reads images: give images (of a folder that holds texts "
                "too: --format image), or choose another model with --model"
            )
        if document.image is None:
            return document.broken
        try:
            pixels = self._pixels(document.image)
        except ModelError as error:
            raise CorpusError(f"{document.name}: {error}") from None
        if pixels.shape != self.shape:
            raise CorpusError(
                f"{document.name}: {self.name} makes {_size(pixels.shape)} of it, and {_size(self.shape)} of another: "
                "all images must come to one size, which is set in the image processor"
            )
        place, first = np.arange(self.length), self.layout.first
        none = np.zeros(self.length, dtype=bool)
        window = Window(
            ids=place,
            special=(place < first) | (place >= first + self.layout.patches),
            sentence=np.zeros(self.length, dtype=np.int64),
            end=none,
            comma=none,
            pixels=pixels,
            u=document.image.digest,
        )
        return [window]

    def inputs(self, pixels: Floats) -> dict[str, Any]:
        """What the network is given for (image, channel, height, width)."""
        return anatomy.image_inputs(self.network, pixels, self.layout.patches)

    def noise(self) -> Floats:
        """An image of noise, the same every time, as the network reads it."""
        return np.asarray(np.random.default_rng(0).standard_normal((1, *self.shape)), dtype=np.float32)

    def _pixels(self, image: Picture) -> Floats:
        try:
            made = self.processor(images=image.rgb, input_data_format="channels_last", return_tensors="np")
            pixels = np.asarray(made["pixel_values"], dtype=np.float32)
        except Exception as error:  # image processors check little, and what they run into is of many kinds
            raise ModelError(f"{self.name} cannot take an image: {type(error).__name__}: {error}") from None
        if pixels.ndim != 4 or len(pixels) != 1:
            raise ModelError(f"{self.name} makes {' × '.join(map(str, pixels.shape))} numbers of one image, no pixels")
        return np.asarray(pixels[0])


def reads_images(network: Any) -> bool:
    """Whether a network's main input is pixels, as it says itself."""
    return getattr(network, "main_input_name", "") == "pixel_values"


def _size(shape: Shape) -> str:
    return f"{shape[-1]} × {shape[-2]} pixels"
