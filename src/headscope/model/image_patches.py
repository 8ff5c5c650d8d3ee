"""Images as tokens: the counterpart of a tokenizer for models that read pixels.

One image is one window. Its tokens are the patches that the model cuts it into, row by row, and the special tokens that
the model adds. Token ids are positions, so no two tokens of a window are equal.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from headscope.array_types import Floats, Ints
from headscope.corpus.document import Document, Picture, make_modality_error
from headscope.corpus.windows import Window
from headscope.errors import CorpusError, ModelError
from headscope.model import architecture
from headscope.model.architecture import ImageShape, Layout


class Patches:
    """Tokens of images, for a transformers image processor and its network; `label` names the model in errors."""

    pad_id = 0

    def __init__(self, processor: Any, network: Any, label: str) -> None:
        self.processor, self.network, self.label = processor, network, label

    @property
    def name(self) -> str:
        return type(self.processor).__name__

    @property
    def length(self) -> int:
        """Number of tokens, the same for all images."""
        return self.layout.length

    @cached_property
    def layout(self) -> Layout:
        return architecture.find_layout(self.label, self.network, self.shape)

    @cached_property
    def shape(self) -> ImageShape:
        """Channels, height and width of the images that the network reads."""
        return self._compute_pixels(Picture(np.zeros((64, 64, 3), dtype=np.uint8))).shape

    def find_first_special(self) -> str | None:
        """Return the name of the special token at the start, or None."""
        return self.layout.format_name(0) if self.layout.first else None

    def describe_first_special(self) -> str:
        """Return the role of the special token at the start, in words; empty if there is none."""
        return "the classification token" if self.layout.first else ""

    def names(self, ids: list[int]) -> list[str]:
        """Return the names of tokens by their ids, which are positions."""
        return [self.layout.format_name(k) for k in ids]

    def labels(self, ids: Ints) -> list[str]:
        """Return labels for people, which are the names."""
        return self.names([int(k) for k in ids])

    def pieces(self, ids: Ints) -> list[str]:
        """Return the names with a blank before each."""
        return [f" {name}" for name in self.labels(ids)]

    def windows(self, document: Document) -> list[Window] | str:
        """Return the one window of an image, or the reason why it has none."""
        if not document.is_image:
            raise make_modality_error(document, self.label)
        if document.image is None:
            return document.broken
        try:
            pixels = self._compute_pixels(document.image)
        except ModelError as error:
            raise CorpusError(f"{document.name}: {error}") from None
        if pixels.shape != self.shape:
            raise CorpusError(
                f"{document.name}: {self.name} makes {_format_size(pixels.shape)} of it, and "
                f"{_format_size(self.shape)} of another: the image processor must resize all images to one size"
            )
        positions, first = np.arange(self.length), self.layout.first
        no_tokens = np.zeros(self.length, dtype=bool)
        window = Window(
            ids=positions,
            special=(positions < first) | (positions >= first + self.layout.patches),
            sentence=np.zeros(self.length, dtype=np.int64),
            end=no_tokens,
            comma=no_tokens,
            pixels=pixels,
            u=document.image.digest,
        )
        return [window]

    def inputs(self, pixels: Floats) -> dict[str, Any]:
        """Return the network's inputs for images (image, channel, height, width)."""
        return architecture.make_image_inputs(self.network, pixels, self.layout.patches)

    def noise(self) -> Floats:
        """Return an image of noise (1, channel, height, width), the same every time."""
        return np.asarray(np.random.default_rng(0).standard_normal((1, *self.shape)), dtype=np.float32)

    def _compute_pixels(self, image: Picture) -> Floats:
        try:
            processed = self.processor(images=image.rgb, input_data_format="channels_last", return_tensors="np")
            pixels = np.asarray(processed["pixel_values"], dtype=np.float32)
        except Exception as error:  # image processors raise errors of many kinds
            raise ModelError(f"{self.name} cannot take an image: {type(error).__name__}: {error}") from None
        if pixels.ndim != 4 or len(pixels) != 1:
            raise ModelError(
                f"{self.name} makes {' × '.join(map(str, pixels.shape))} numbers of one image: these are not pixels"
            )
        return np.asarray(pixels[0])


def is_image_network(network: Any) -> bool:
    """Return whether a network's main input is pixels, according to itself."""
    return getattr(network, "main_input_name", "") == "pixel_values"


def _format_size(shape: ImageShape) -> str:
    return f"{shape[-1]} × {shape[-2]} pixels"
