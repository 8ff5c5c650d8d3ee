"""Folders of a tiny model and of a study of it."""

from __future__ import annotations

from pathlib import Path

import pytest

import headscope
from tests.helpers import tiny
from tests.helpers.portability import LENGTH, TEXTS, make_model


@pytest.fixture(scope="module")
def study_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    headscope.study(make_model(), TEXTS, length=LENGTH).save(folder / "study.nc")
    return folder


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny.network("bert").save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder
