"""What may be said of a study: whether it has enough texts for verdicts, and what its texts are called.

Whether a study has enough texts for verdicts and standard errors, in words (METHOD §11).

Wording of user-visible texts: in a study of images, 'texts' are images and 'tokens' are patches.
"""

from __future__ import annotations

import re

import numpy as np

from headscope.array_types import Ints
from headscope.corpus.windows import BLOCKS
from headscope.studies.rates import MIN_BLOCKS
from headscope.studies.result import Study

OF_IMAGES = {
    "model's tokenizer puts": "model puts",
    "a text": "an image",
    "texts": "images",
    "text": "image",
    "tokens": "patches",
}
"""replacements in a study of images. 'token' in the singular stays, because special tokens are no patches."""
RASTER_NOTE = (
    "Distances and neighbours are counted along the patches row by row: a patch and the one below are a row apart."
)


def adapt_wording(study: Study, words: str) -> str:
    """Return a text about a study in the units of what was studied. Only for our own texts, never for user content.

    >>> import headscope
    >>> study = headscope.study(headscope.load(), headscope.documents(limit=1))
    >>> image_study = headscope.Study(study.data.assign_attrs(modality="image"))
    >>> adapt_wording(study, "2 texts"), adapt_wording(image_study, "2 texts")
    ('2 texts', '2 images')
    """
    if not study.has_images:
        return words
    return re.sub(r"(?<!\w)(" + "|".join(OF_IMAGES) + r")(?!\w)", lambda match: OF_IMAGES[match[1]], words)


def count_texts(study: Study) -> str:
    """Return the number of texts of a study, with its unit.

    >>> import headscope
    >>> count_texts(headscope.study(headscope.load(), headscope.documents(limit=1)))
    '1 text'
    """
    return f"{study.texts:,} {adapt_wording(study, 'text' if study.texts == 1 else 'texts')}"


MIN_TEXTS = 50
"""Least number of texts for a verdict."""
TOO_FEW_TEXTS = "too few texts"
"""The verdict of a claim, and the type of a head, if there are fewer."""


def get_filled_blocks(study: Study) -> Ints:
    """Return the numbers of the blocks that hold texts."""
    return np.flatnonzero(study.data["texts_blocks"].values).astype(np.int64)


def describe_missing_texts(study: Study) -> str:
    """Return how many texts or blocks there are and how many are needed for a verdict; empty if they are enough.

    >>> import headscope
    >>> describe_missing_texts(headscope.study(headscope.load(), headscope.documents(limit=12)))
    'too few texts: 12, and 50 are needed; they fill 9 of 20 blocks, and 10 are needed'
    """
    filled, missing = len(get_filled_blocks(study)), []
    if study.texts < MIN_TEXTS:
        missing.append(f"{study.texts:,}, and {MIN_TEXTS} are needed")
    if filled < MIN_BLOCKS:
        missing.append(f"they fill {filled} of {BLOCKS} blocks, and {MIN_BLOCKS} are needed")
    return adapt_wording(study, f"{TOO_FEW_TEXTS}: {'; '.join(missing)}") if missing else ""


def describe_errors(study: Study) -> str:
    """Return what a reader must know of the study's standard errors: why there are none, or that they are too small.

    Empty if there is nothing to say.
    """
    filled = len(get_filled_blocks(study))
    if filled < MIN_BLOCKS:
        return adapt_wording(
            study,
            f"No standard errors, for want of documents: the texts fill {filled} of {BLOCKS} blocks of documents, and "
            f"{MIN_BLOCKS} are needed."
            if not has_window_blocks(study)
            else f"No standard errors, for want of texts: they fill {filled} of {BLOCKS} blocks, and {MIN_BLOCKS} are "
            "needed.",
        )
    if has_window_blocks(study):
        return (
            "All standard errors are too small: blocks are of windows (--blocks windows), and windows of one document "
            "are alike."
        )
    return ""


def has_window_blocks(study: Study) -> bool:
    """Return whether the windows of a document are in different blocks, so that errors are too small.

    Studies of versions without `blocks` have blocks of windows, of which the first of each document are the document.
    """
    attributes = study.data.attrs
    default = "windows" if attributes.get("windows") == "all" else "documents"
    return bool(attributes.get("blocks", default) == "windows")
