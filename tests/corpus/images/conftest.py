"""A vision model, a study of it, and folders of images and of the model."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

import headscope
from headscope.model.model import Model
from headscope.studies.result import Study
from tests.helpers import tiny

COUNT = 24


@pytest.fixture(scope="module")
def model() -> Model:
    return tiny.vision_model()


@pytest.fixture(scope="module")
def study(model: Model) -> Study:
    return headscope.study(model, tiny.pictures(COUNT))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A vision model as `save_pretrained` writes it."""
    tiny.network("vit").save_pretrained(tmp_path / "vit")
    tiny.image_processor().save_pretrained(tmp_path / "vit")
    return tmp_path / "vit"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of six images, one of them broken."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for k, picture in enumerate(tiny.pictures(5)):
        Image.fromarray(picture).save(folder / f"{k}.{('png', 'bmp', 'webp')[k % 3]}", lossless=True)
    (folder / "broken.png").write_bytes((folder / "0.png").read_bytes()[:60])
    return folder
