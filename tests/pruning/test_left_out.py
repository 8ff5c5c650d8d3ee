"""Texts that are left out: `ablate`, `prune` and `read` say so."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headscope
from headscope.pruning import ablation as ablation_module
from headscope.pruning import prune as prune_module
from headscope.pruning.objective import DEFAULT_LIMIT
from tests.helpers import tiny

TEXTS = [f"the cat {letter} sat. the dog ran! who, me?" for letter in tiny.LETTERS]
LEFT_OUT = "texts given in Python: only the first 2 documents are used, the others are left out: choose a larger limit"
USES: dict[str, Callable[..., Any]] = {
    "ablate": lambda texts, **options: headscope.ablate(
        tiny.model("bert"), texts, heads="L0H0", length=16, **options
    ),
    "norm": lambda texts, **options: headscope.prune(
        tiny.model("bert"), keep=6, by="norm", documents=texts, length=16, **options
    ),
    "pairs": lambda texts, **options: headscope.prune(
        tiny.model("bert"), keep=6, by="pairs", documents=texts, length=16, **options
    ),
}  # fmt: skip


@pytest.fixture
def default_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, function in ((ablation_module, headscope.ablate), (prune_module, headscope.prune)):
        monkeypatch.setattr(module, "DEFAULT_LIMIT", 2)
        defaults = {**function.__kwdefaults__, "limit": 2}
        monkeypatch.setattr(function, "__kwdefaults__", defaults)


def test_the_limit_is_in_the_signatures():
    for function in (headscope.ablate, headscope.prune):
        assert inspect.signature(function).parameters["limit"].default == DEFAULT_LIMIT == 64


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.usefixtures("default_of_two")
def test_the_default_limit_warns(use: Callable[..., Any], tmp_path: Path):
    with pytest.warns(UserWarning, match=LEFT_OUT) as raised:
        result = use(TEXTS[:3])
    assert raised[0].filename == __file__
    assert result.leaves_out
    assert use(TEXTS[:2]).leaves_out is False  # a warning would be an error
    path = tmp_path / "two.txt"
    path.write_text("\n".join(TEXTS[:2]), "utf-8")
    assert use(headscope.documents(path, format="lines")).leaves_out is False
    path.write_text("\n".join(TEXTS[:3]), "utf-8")
    messages: list[str] = []
    assert use(headscope.documents(path, format="lines"), on_message=messages.append).leaves_out
    assert [message.split(": ")[0] for message in messages] == [str(path)]


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_limit_that_was_chosen_does_not_warn(use: Callable[..., Any]):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert use(TEXTS[:3], limit=2).leaves_out
        assert not use(TEXTS[:3], limit=None).leaves_out
        assert not use(headscope.documents(limit=1)).leaves_out


@pytest.mark.usefixtures("default_of_two")
def test_a_stream_that_reaches_the_limit():
    with pytest.warns(UserWarning, match="only the first 2 documents"):
        assert headscope.ablate(tiny.model("bert"), iter(TEXTS), heads="L0H0", length=16).leaves_out
    assert not headscope.ablate(tiny.model("bert"), iter(TEXTS[:1]), heads="L0H0", length=16).leaves_out


def test_an_ablation_keeps_it(tmp_path: Path):
    ablation = headscope.ablate(tiny.model("bert"), TEXTS[:3], heads="L0H0", length=16, limit=2)
    assert "on 2 texts of texts given in Python, further documents left out>" in repr(ablation)
    assert headscope.open_ablation(ablation.save(tmp_path)).leaves_out
    assert "left out" not in repr(headscope.ablate(tiny.model("bert"), TEXTS[:2], heads="L0H0", length=16))


def test_commands_say_it(headscope_command: Any, tmp_path: Path):
    (tmp_path / "texts.txt").write_text("a b c.\n" * 65)
    options = ("texts.txt", "--format", "lines", "--heads", "L0H0", "--length", "8")
    result = headscope_command("ablate", *options)
    assert result.code == 0
    assert "texts.txt: only the first 64 documents are used" in result.err
    assert "left out" not in headscope_command("ablate", *options, "--limit", "65").err


def test_a_reading_says_of_how_many_tokens():
    model = tiny.model("bert")
    assert ", 8 tokens, the first of 74: the cat" in repr(headscope.read(model, " ".join(TEXTS[:3]), length=8))
    assert "first" not in repr(headscope.read(model, "the cat.", length=8))
