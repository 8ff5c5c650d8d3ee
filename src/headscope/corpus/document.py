"""`Document`: one text, pair of texts or image, its origin, and the reason if it cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from headscope.corpus import images
from headscope.corpus.images import compute_digest
from headscope.errors import CorpusError

LARGEST = images.LARGEST
"""Largest number of characters of a document, or bytes of an image file. Anything larger is a file in another format or
a decompression bomb, and would fill the memory."""
NO_JSON, NO_TEXT, NO_TARGET, BAD_ENCODING, NULS, TOO_LARGE, NO_ROW = (
    "not JSON",
    "no text in its field",
    "no target",
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

    With a `target` it is a pair of texts: what the encoder of a model reads, and what its decoder is to write.

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
    target: str | None = None
    """what the decoder of an encoder–decoder model is to write for the text; None: there is no target"""

    def __post_init__(self) -> None:
        # Lone surrogates, which truncated emojis leave in JSON, cannot be tokenized or encoded. They are replaced by
        # U+FFFD wherever the document comes from.
        if not (self.text.isascii() and self.name.isascii()):  # a constant-time check
            object.__setattr__(self, "text", replace_lone_surrogates(self.text))
            object.__setattr__(self, "name", replace_lone_surrogates(self.name))
        if self.target is not None:
            object.__setattr__(self, "target", replace_lone_surrogates(self.target))

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
        """The bytes from which the content hash is computed; of a pair, both texts with a byte between them that
        UTF-8 does not have."""
        if self.image is not None:
            return self.image.content
        texts = [self.text] if self.target is None else [self.text, self.target]
        return b"\xff".join(text.encode("utf-8", "surrogatepass") for text in texts)

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
    target: str = ""
    """field of the text that a decoder is to write; empty: there are no targets. If it is the field of the text, every
    text is its own target."""

    @property
    def fields(self) -> list[str]:
        """Fields that are read, each once."""
        return list(dict.fromkeys(filter(None, (self.field, self.target))))


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


def build_document(name: str, options: ReadOptions, get_text: Callable[[], str | tuple[str, str]]) -> Document:
    """Return the document of a text, or of a text and its target; if it is broken and `skip_broken` is set, one that
    contains the reason."""
    try:
        texts = get_text()
        if isinstance(texts, str):
            return add_own_target(Document(texts, name), options)
        return Document(texts[0], name, target=texts[1])
    except BrokenDocumentError as error:
        if not options.skip_broken:
            raise
        return Document("", name, broken=error.reason)


def add_own_target(document: Document, options: ReadOptions) -> Document:
    """Return a document without fields, as its own target if that is wanted.

    Raises:
        BrokenDocumentError: Its target should be in another field.
    """
    if not options.target:
        return document
    if options.target != options.field:
        raise BrokenDocumentError(
            NO_TARGET,
            f"{document.name}: has no fields, and its target should be in the field {options.target!r}: give JSONL, "
            f"CSV or Parquet. --target {options.field} takes every text as its own target",
        )
    return replace(document, target=document.text)


def extract_texts(values: Mapping[str, object], where: str, options: ReadOptions) -> str | tuple[str, str]:
    """Return the text of a row, or the text and its target.

    Args:
        values: Values of the row by field, at least of `options.fields`.
        where: What errors call the row.
        options: Which fields to read.
    """
    text = extract_text(values[options.field], where, options.field)
    if not options.target:
        return text
    return text, extract_text(values[options.target], where, options.target, "--target")


def extract_text(value: object, where: str, field: str, option: str = "--field") -> str:
    """Return the text of a field; a missing value is an empty text, which is skipped and counted later."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BrokenDocumentError(
            NO_TEXT if option == "--field" else NO_TARGET,
            f"{where}: field {field!r} holds {type(value).__name__}, not text: choose another with {option}",
        )
    if len(value) > LARGEST:
        raise make_size_error(where, "it")
    return value


def find_missing_field(where: str, options: ReadOptions, present: list[str]) -> BrokenDocumentError | None:
    """Return the error for a row, or a table, without a requested field; None if it has all of them."""
    missing = next((field for field in options.fields if field not in present), None)
    if missing is None:
        return None
    names = ", ".join(name[:100] for name in present[:20]) or "none"
    reason, option = (NO_TEXT, "--field") if missing == options.field else (NO_TARGET, "--target")
    return BrokenDocumentError(
        reason, f"{where}: no field {missing!r}; the fields there are: {names}. Choose one with {option}"
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
