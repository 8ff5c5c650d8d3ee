"""Wording of user-visible texts: in a study of images, 'texts' are images and 'tokens' are patches."""

from __future__ import annotations

import re

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
