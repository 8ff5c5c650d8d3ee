"""What functions take as a model: a loaded one, a folder, or a transformers model with its tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headscope
from headscope.errors import ModelError
from headscope.model.loading import resolve_model
from tests.helpers import tiny

TEXTS = ["the cat sat. the dog ran! who, me?", "a b c d e f g h. a b c d"]
USES: dict[str, Callable[[Any], Any]] = {
    "study": lambda model: headscope.study(model, TEXTS, length=16, kernel="torch").manifest["weight_hash"],
    "read": lambda model: headscope.read(model, TEXTS[0], length=16).manifest["weight_hash"],
    "segment": lambda model: headscope.segment(model, TEXTS[0], level="fine", length=16).manifest["weight_hash"],
    "splitter": lambda model: headscope.Splitter(model).model.weight_hash,
    "ablate": lambda model: headscope.ablate(model, TEXTS, heads="L0H0", length=16).manifest["weight_hash"],
    "prune": lambda model: headscope.prune(model, "L0H0").manifest["weight_hash"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    tiny.network("bert").save_pretrained(path)
    tiny.tokenizer().save_pretrained(path)
    return path


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_every_kind_of_model(use: Callable[[Any], str], folder: Path):
    pair = tiny.network("bert"), tiny.tokenizer()
    assert use(pair) == headscope.load(*pair).weight_hash
    assert use(headscope.load(*pair)) == use(pair)
    assert use(str(folder)) == use(folder) == headscope.load(folder).weight_hash


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_model_without_its_tokenizer(use: Callable[[Any], str]):
    with pytest.raises(ModelError, match=r"needs its tokenizer too"):
        use(tiny.network("bert"))


def test_a_loaded_model_stays_the_same():
    model = tiny.model("bert")
    assert resolve_model(model) is model


@pytest.mark.parametrize(("source", "message"), [((1, 2, 3), r"3 objects: give a pair"), (7, "cannot load int")])
def test_what_is_no_model(source: Any, message: str):
    with pytest.raises(ModelError, match=message):
        resolve_model(source)


def test_wrong_settings_are_reported_before_a_model_is_loaded():
    with pytest.raises(headscope.StudyError, match="theta"):
        headscope.study("./no such model", TEXTS, theta=2)
