"""`Document`: one text, pair of texts or image, its origin, and the reason if it cannot be read.

Convert image files, PIL images and arrays to RGB bytes, the input of the processors of vision models.
"""

from __future__ import annotations

import hashlib
import io
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headscope.errors import CorpusError

if TYPE_CHECKING:
    from PIL import Image


ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")
KINDS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
"""formats that PIL may detect; for some others it would start external programs"""
LARGEST_IMAGE = 64 * 2**20
"""largest size of an image file in bytes"""
MOST_PIXELS = 64 * 10**6
"""largest number of pixels of an image; each takes about 12 bytes during decoding"""
IMAGE_DAMAGED, IMAGE_UNKNOWN, IMAGE_TOO_LARGE, IMAGE_TOO_MANY_BYTES, IMAGE_NUMBERS = (
    "damaged image",
    "no image of a known kind",
    "image of too many pixels",
    "image file too large",
    "image of 32-bit numbers",
)
IMAGE_REASONS = (IMAGE_DAMAGED, IMAGE_UNKNOWN, IMAGE_TOO_LARGE, IMAGE_TOO_MANY_BYTES, IMAGE_NUMBERS)
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

    if len(raw) > LARGEST_IMAGE:
        return IMAGE_TOO_MANY_BYTES
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
            return IMAGE_TOO_LARGE
        return IMAGE_NUMBERS if image.mode in ("I", "F") else Picture(_convert_to_rgb(image))
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        return IMAGE_TOO_LARGE
    except UnidentifiedImageError:
        return IMAGE_UNKNOWN
    except Exception:  # PIL's decoders raise errors of many types on damaged files
        return IMAGE_DAMAGED


def _convert_to_rgb(image: Image.Image) -> NDArray[np.uint8]:
    from PIL import Image, ImageOps

    upright = ImageOps.exif_transpose(image)  # apply the orientation from EXIF
    if upright.mode.startswith("I;16"):  # 16-bit grey: PIL would clip values above 255 to white
        upright = Image.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
    if upright.mode == "P":  # palettes may contain transparency, which PIL removes only in two steps
        upright = upright.convert("RGBA")
    return np.array(upright.convert("RGB"))


LARGEST = LARGEST_IMAGE
"""Largest number of characters of a document, or bytes of an image file. Anything larger is a file in another format or
a decompression bomb, and would fill the memory."""
NO_JSON, NO_TEXT, NO_TARGET, BAD_ENCODING, NULS, TOO_LARGE, NO_ROW, NO_CONLLU, BAD_RELATIONS = (
    "not JSON",
    "no text in its field",
    "no target",
    "badly encoded",
    "holds NUL bytes",
    "too large",
    "not a CSV row",
    "not CoNLL-U",
    "broken relations",
)
"""reasons why a text is skipped"""
RELATIONS = "relations"
"""field of a document's labelled relations"""
MAX_LABEL = 100
"""characters of the name of a relation"""


class BrokenDocumentError(CorpusError):
    """A single document cannot be read; those after it can. `reason` is one of the constants above."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        """Support pickling: workers send it to the driver."""
        return type(self), (self.reason, str(self))


class Relation(NamedTuple):
    """A labelled pair of spans of a text, as positions of characters: from `start` to before `end`.

    Examples
    --------
    >>> Relation(4, 10, 11, 14, "nsubj").label
    'nsubj'
    """

    start_a: int
    end_a: int
    start_b: int
    end_b: int
    label: str


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
    image: Picture | None = None
    broken: str = ""
    """reason why the text or image cannot be read; empty if it can"""
    target: str | None = None
    """what the decoder of an encoder–decoder model is to write for the text; None: there is no target"""
    relations: tuple[Relation, ...] | None = None
    """labelled pairs of spans of the text; None: it is not labelled"""
    words: tuple[tuple[int, int], ...] | None = None
    """spans of the words of a text from a treebank; None: words are those of the tokenizer"""

    def __post_init__(self) -> None:
        # Lone surrogates, which truncated emojis leave in JSON, cannot be tokenized or encoded. They are replaced by
        # U+FFFD wherever the document comes from.
        if not (self.text.isascii() and self.name.isascii()):  # a constant-time check
            object.__setattr__(self, "text", replace_lone_surrogates(self.text))
            object.__setattr__(self, "name", replace_lone_surrogates(self.name))
        if self.target is not None:
            object.__setattr__(self, "target", replace_lone_surrogates(self.target))
        if self.relations is not None:
            object.__setattr__(self, RELATIONS, check_relations(self.relations, self.text, self.name))

    @classmethod
    def from_image(cls, image: Picture | str, name: str) -> Document:
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
        >>> from headscope.corpus.document import as_picture
        >>> Document.from_image(as_picture(np.zeros((4, 6, 3), dtype=np.uint8)), "black.png").is_image
        True
        """
        return cls("", name, broken=image) if isinstance(image, str) else cls("", name, image=image)

    @property
    def is_image(self) -> bool:
        """Whether it is an image, or a file of one that cannot be read."""
        return self.image is not None or self.broken in IMAGE_REASONS

    @property
    def is_blank(self) -> bool:
        """Whether there is neither an image nor anything but white space, and the document could be read."""
        return not (self.is_image or self.broken or self.text.strip())

    @property
    def content(self) -> bytes:
        """The bytes from which the content hash is computed.

        Those of a text and its target have a byte between them that UTF-8 does not have.
        """
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
    relations: bool = True
    """read labelled relations where there are any"""

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


def check_relations(relations: Iterable[Any], text: str, where: str) -> tuple[Relation, ...]:
    """Return labelled pairs of spans of a text as `Relation`.

    Args:
        relations: Rows [start_a, end_a, start_b, end_b, label].
        text: The text.
        where: What errors call it.

    Raises:
        BrokenDocumentError: A row is something else, or a span is empty or not in the text.

    >>> check_relations([[4, 10, 11, 14, "nsubj"]], "Two ravens met.", "tales")
    (Relation(start_a=4, end_a=10, start_b=11, end_b=14, label='nsubj'),)
    """
    if isinstance(relations, (str, bytes, Mapping)) or not isinstance(relations, Iterable):
        raise _make_relation_error(where, f"hold {type(relations).__name__}, not a list of rows")
    checked = []
    for number, row in enumerate(relations, start=1):
        values = tuple(row) if isinstance(row, (list, tuple)) else ()
        if len(values) != 5:
            raise _make_relation_error(where, f"row {number} is not a list of five values: {repr(row)[:80]}")
        *positions, label = values
        if any(isinstance(k, bool) or not hasattr(k, "__index__") for k in positions):
            raise _make_relation_error(where, f"row {number} holds positions that are not integers: {repr(row)[:80]}")
        start_a, end_a, start_b, end_b = (int(k) for k in positions)
        for start, end in ((start_a, end_a), (start_b, end_b)):
            if not 0 <= start < end <= len(text):
                raise _make_relation_error(
                    where, f"row {number}: {start} to {end} is not a span of this text of {len(text):,} characters"
                )
        checked.append(Relation(start_a, end_a, start_b, end_b, check_label(label, where, f"row {number}: ")))
    return tuple(checked)


def check_label(label: object, where: str, place: str = "") -> str:
    """Return the name of a relation; raise a BrokenDocumentError if it is none."""
    if not isinstance(label, str) or not label.strip() or len(label) > MAX_LABEL or not label.isprintable():
        raise _make_relation_error(
            where, f"{place}the label {repr(label)[:80]} is not a text of 1 to {MAX_LABEL} printable characters"
        )
    return label


def _make_relation_error(where: str, reason: str) -> BrokenDocumentError:
    return BrokenDocumentError(
        BAD_RELATIONS,
        f"{where}: its relations {reason}. A relation is [start_a, end_a, start_b, end_b, label], with positions of "
        "characters in the text; --relations none reads none",
    )


def build_document(
    name: str, options: ReadOptions, get_text: Callable[[], str | tuple[str, str] | Document]
) -> Document:
    """Return the document of a text, or of a text and its target; if it is broken and `skip_broken` is set, one that
    contains the reason."""
    try:
        texts = get_text()
        if isinstance(texts, Document):
            return texts
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
