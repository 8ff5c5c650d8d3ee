"""Words for what is counted: of a study of images, texts are images and tokens are patches."""

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
"""a single token stays one: there are special ones among them"""
RASTER = (
    "Distances and neighbours run through the patches row by row: the patch below one is as many apart as a row has."
)


def spoken(study: Study, words: str) -> str:
    """Our own words of a study, in the units of what it studied; never words of other people.

    >>> import headscope
    >>> study = headscope.study(headscope.load(), headscope.documents(limit=1))
    >>> spoken(study, "2 texts"), spoken(headscope.Study(study.data.assign_attrs(modality="image")), "2 texts")
    ('2 texts', '2 images')
    """
    if not study.of_images:
        return words
    return re.sub(r"(?<!\w)(" + "|".join(OF_IMAGES) + r")(?!\w)", lambda found: OF_IMAGES[found[1]], words)
