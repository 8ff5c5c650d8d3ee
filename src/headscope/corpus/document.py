"""`Document`: one text or image, its origin, and the reason if it cannot be read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headscope.corpus import images
from headscope.corpus.images import compute_digest
from headscope.errors import CorpusError

LARGEST = images.LARGEST
"""Largest number of characters of a document, or bytes of an image file. Anything larger is a file in another format or
a decompression bomb, and would fill the memory."""
NO_JSON, NO_TEXT, BAD_ENCODING, NULS, TOO_LARGE, NO_ROW = (
    "not JSON",
    "no text in its field",
    "badly encoded",
    "holds NUL bytes",
    "too large",
    "not a CSV row",
)
"""reasons why a text is skipped"""


class BrokenDocumentError(CorpusError):
    """A single document cannot be read; those after it can. `reason` is one of the constants above."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        """Support pickling: workers send it to the driver."""
        return type(self), (self.reason, str(self))


@dataclass(frozen=True, slots=True)
class Document:
    """One text, or one image with an empty text. `name` is its origin: `file`, or `file:line`.

    Examples
    --------
    >>> document = Document("Two ravens met.", "tales.txt:3")
    >>> document.text, document.is_image
    ('Two ravens met.', False)
    """

    text: str
    name: str
    image: images.Picture | None = None
    broken: str = ""
    """reason why the text or image cannot be read; empty if it can"""

    def __post_init__(self) -> None:
        # Lone surrogates, which truncated emojis leave in JSON, cannot be tokenized or encoded. They are replaced by
        # U+FFFD wherever the document comes from.
        if not (self.text.isascii() and self.name.isascii()):  # a constant-time check
            object.__setattr__(self, "text", replace_lone_surrogates(self.text))
            object.__setattr__(self, "name", replace_lone_surrogates(self.name))

    @classmethod
    def from_image(cls, image: images.Picture | str, name: str) -> Document:
        """Return the document of an image, or of the reason why the image cannot be read.

        Parameters
        ----------
        image
            The image, or the reason.
        name
            Its origin.

        Returns
        -------
        Document

        Examples
        --------
        >>> import numpy as np
        >>> from headscope.corpus.images import as_picture
        >>> Document.from_image(as_picture(np.zeros((4, 6, 3), dtype=np.uint8)), "black.png").is_image
        True
        """
        return cls("", name, broken=image) if isinstance(image, str) else cls("", name, image=image)

    @property
    def is_image(self) -> bool:
        """Whether it is an image, or a file of one that cannot be read."""
        return self.image is not None or self.broken in images.REASONS

    @property
    def is_blank(self) -> bool:
        """Whether there is neither an image nor anything but white space, and the document could be read."""
        return not (self.is_image or self.broken or self.text.strip())

    @property
    def content(self) -> bytes:
        """The bytes from which the content hash is computed."""
        return self.text.encode("utf-8", "surrogatepass") if self.image is None else self.image.content

    @property
    def digest(self) -> int:
        """The 64-bit BLAKE2b digest of the content, which decides the block of all windows of the document."""
        return compute_digest(self.content)

    @property
    def excerpt(self) -> str:
        """The text in one line; for an image, its size."""
        return " ".join(self.text.split()) if self.image is None else self.image.size


@dataclass(frozen=True)
class ReadOptions:
    """How texts are extracted from files.

    `skip_broken`: documents that cannot be read are marked as broken instead of raising an error.
    """

    field: str = "text"
    format: str = "auto"
    encoding: str = "utf-8"
    skip_broken: bool = False


def replace_lone_surrogates(text: str) -> str:
    """Replace lone surrogates by U+FFFD.

    >>> replace_lone_surrogates("cut \\ud83d off")
    'cut \ufffd off'
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def build_document(name: str, options: ReadOptions, get_text: Callable[[], str]) -> Document:
    """Return the document of a text; if it is broken and `skip_broken` is set, one that contains the reason."""
    try:
        return Document(get_text(), name)
    except BrokenDocumentError as error:
        if not options.skip_broken:
            raise
        return Document("", name, broken=error.reason)


def extract_text(value: object, where: str, options: ReadOptions) -> str:
    """Return the text of a field; a missing value is an empty text, which is skipped and counted later."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BrokenDocumentError(
            NO_TEXT,
            f"{where}: field {options.field!r} holds {type(value).__name__}, not text: choose another with --field",
        )
    if len(value) > LARGEST:
        raise make_size_error(where, "it")
    return value


def make_field_error(where: str, field: str, present: list[str]) -> BrokenDocumentError:
    """Return the error for a row, or a table, without the requested field."""
    names = ", ".join(name[:100] for name in present[:20]) or "none"
    return BrokenDocumentError(
        NO_TEXT, f"{where}: no field {field!r}; the fields there are: {names}. Choose one with --field"
    )


def make_modality_error(document: Document, model: str) -> CorpusError:
    """Return the error for an image that is given to a model of texts, or a text to a model of images."""
    if document.is_image:
        return CorpusError(
            f"{document.name}: an image, and this model reads texts: choose a vision model with --model, or give texts"
        )
    return CorpusError(
        f"{document.name}: a text, and {model} reads images: give images (of a folder that holds texts too: "
        "--format image), or choose another model with --model"
    )


def make_size_error(where: str, subject: str, advice: str = "cut it into documents") -> BrokenDocumentError:
    """Return the error for something that is too large for one document."""
    return BrokenDocumentError(
        TOO_LARGE, f"{where}: {subject} has more than {LARGEST:,} characters, too many for one text: {advice}"
    )
