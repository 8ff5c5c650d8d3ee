"""A document: one text or one image, where it came from, and why it cannot be read, if so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headscope.corpus import images
from headscope.errors import CorpusError

LARGEST = images.LARGEST
"""characters of one document, or bytes of one image file; more are no document, but a file that was misunderstood or a
bomb, and reading it whole would fill the memory"""
NO_JSON, NO_TEXT, BAD_ENCODING, NULS, TOO_LARGE, NO_ROW = (
    "not JSON",
    "no text in its field",
    "badly encoded",
    "holds NUL bytes",
    "too large",
    "not a CSV row",
)
"""why a text is skipped"""


class Broken(CorpusError):
    """One document that cannot be read, where those after it can. `reason` is the same for all of its kind."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        """It travels from workers to who asked them."""
        return type(self), (self.reason, str(self))


@dataclass(frozen=True, slots=True)
class Document:
    """One text, and where it came from (`file`, or `file:line`); or one image, and then the text is empty."""

    text: str
    name: str
    image: images.Picture | None = None
    broken: str = ""
    """of a text or an image that cannot be read: why"""

    def __post_init__(self) -> None:
        # Half a surrogate pair, as cut-off emojis leave them in JSON, is no character: no tokenizer takes it, and no
        # file. It becomes U+FFFD, the sign for such characters, wherever the document comes from.
        if not (self.text.isascii() and self.name.isascii()):  # which a text knows of itself
            object.__setattr__(self, "text", replace_lone_surrogates(self.text))
            object.__setattr__(self, "name", replace_lone_surrogates(self.name))

    @classmethod
    def of_image(cls, image: images.Picture | str, name: str) -> Document:
        """Make the document of an image, or of the reason why it cannot be read."""
        return cls("", name, broken=image) if isinstance(image, str) else cls("", name, image=image)

    @property
    def is_image(self) -> bool:
        return self.image is not None or self.broken in images.REASONS

    @property
    def content(self) -> bytes:
        """What its hash is made of."""
        return self.text.encode("utf-8", "surrogatepass") if self.image is None else self.image.content

    @property
    def excerpt(self) -> str:
        """The text in one line; of an image, its size."""
        return " ".join(self.text.split()) if self.image is None else self.image.size


@dataclass(frozen=True)
class ReadOptions:
    """How texts are found in files. `skip_broken`: one that cannot be read is a broken document, and not an error."""

    field: str = "text"
    format: str = "auto"
    encoding: str = "utf-8"
    skip_broken: bool = False


def replace_lone_surrogates(text: str) -> str:
    """Put U+FFFD in the place of every surrogate that stands alone.

    >>> replace_lone_surrogates("cut \\ud83d off")
    'cut \ufffd off'
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def build_document(name: str, options: ReadOptions, get_text: Callable[[], str]) -> Document:
    """Build the document of a text; where that is `Broken`, and such are to be skipped, one that says why."""
    try:
        return Document(get_text(), name)
    except Broken as error:
        if not options.skip_broken:
            raise
        return Document("", name, broken=error.reason)


def extract_text(value: object, where: str, options: ReadOptions) -> str:
    """Return a cell's text; a missing value is an empty text, which is skipped and counted later."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise Broken(
            NO_TEXT,
            f"{where}: field {options.field!r} holds {type(value).__name__}, not text: choose another with --field",
        )
    if len(value) > LARGEST:
        raise make_size_error(where, "it")
    return value


def make_field_error(where: str, field: str, present: list[str]) -> Broken:
    """Make the error of a row, or a whole table, without the field that was asked for."""
    there = ", ".join(name[:100] for name in present[:20]) or "none"
    return Broken(NO_TEXT, f"{where}: no field {field!r}; the fields there are: {there}. Choose one with --field")


def make_size_error(where: str, what: str, advice: str = "cut it into documents") -> Broken:
    """Make the error of what is too large for one document."""
    return Broken(TOO_LARGE, f"{where}: {what} has more than {LARGEST:,} characters, too many for one text: {advice}")
