"""Test the kernel trial: correct kernels pass on every kind of model, wrong ones are detected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import headscope
from headscope.errors import ModelError, StudyError
from headscope.model.model import Model
from headscope.run import kernel_trial as trial
from headscope.tally.numba_backend.tallier import NumbaTallier
from headscope.tally.quantities import QUANTITIES, Shape
from headscope.tally.tally import Tally, TallySettings
from tests.helpers import tiny

TEXT = "the cat sat on a mat. the cat left, and the mat stayed."


def make_counting(model: Model, length: int = 24, maps: bool = True, fraction: float = 1.0) -> TallySettings:
    architecture = model.architecture
    shape = Shape(architecture.layers, architecture.heads, length, maps, architecture.width)
    return trial.select_one_layer(TallySettings(shape, 0.3, 0.3, fraction, architecture.causal, architecture.numbers))


def try_kernel(model: Model, kind: type = NumbaTallier, **options: Any) -> str:
    counting = make_counting(model, **options)
    return trial.find_disagreement(kind(counting, model.device), counting, model)


class TestRightOnes:
    @pytest.mark.parametrize(
        "kind", ["bert", "llama", "gpt2", "gemma2", "bloom", "t5", "mpnet", "gpt_oss", "convbert", "deberta-v2"]
    )
    def test_pass_on_any_kind_of_attention(self, kind: str):
        model = tiny.model(kind)
        for stack in model.stacks:
            assert try_kernel(model.on(stack)) == ""

    @pytest.mark.parametrize("length", [3, 4, 17, 48])
    @pytest.mark.parametrize("maps", [True, False])
    def test_pass_at_any_length(self, length: int, maps: bool):
        assert try_kernel(tiny.model("bert"), length=length, maps=maps, fraction=float(maps)) == ""

    def test_pass_on_images(self):
        model = tiny.vision_model()
        assert try_kernel(model, length=model.tokens.length) == ""

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
    def test_pass_in_other_dtypes(self, dtype: torch.dtype):
        assert try_kernel(headscope.load(tiny.network("bert").to(dtype), tiny.tokenizer())) == ""

    @pytest.mark.parametrize(("kind", "dtype"), [("llama", torch.float32), ("bert", torch.float16), ("bloom", None)])
    def test_pass_in_triton(self, kind: str, dtype: torch.dtype | None):
        pytest.importorskip("triton")
        from headscope.tally.triton_backend.tallier import TritonTallier

        device = "cuda" if torch.cuda.is_available() else "cpu"
        model = headscope.load(tiny.network(kind).to(device, dtype), tiny.tokenizer())
        assert try_kernel(model, TritonTallier, length=17) == ""

    def test_texts_share_a_block_and_some_are_padded(self):
        windows = trial._make_windows(tiny.model("bert"), 24)
        assert len({window.block for window in windows[:3]}) == 1
        assert len({window.digest for window in windows}) == len(windows) == trial.TEXTS
        assert [len(window) for window in windows] == [24, 24, 24, 23, 8]
        sampled = {window.is_sampled(trial.SAMPLE) for window in windows}
        assert sampled == {True, False}


class Wrong(NumbaTallier):
    """A tallier with one wrong sum."""

    name = ""

    def get_sums(self) -> Tally:
        total = super().get_sums()
        array = total.arrays[self.name]
        changed = array.copy()
        index = np.unravel_index(np.argmax(np.abs(array)), array.shape)
        changed[index] += max(4, array[index] // 4) if array.dtype.kind == "i" else 0.1 + abs(array[index]) / 4
        total.arrays[self.name] = changed
        return total


class TestWrongOnes:
    @pytest.mark.parametrize("name", [quantity.name for quantity in QUANTITIES])
    def test_any_wrong_sum_is_found(self, name: str, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(Wrong, "name", name)
        assert f"{name} of 8 made-up texts" in try_kernel(tiny.model("bert"), Wrong)

    def test_most_attended_tokens_must_be_as_many_as_texts(self):
        class Forgets(NumbaTallier):
            def get_sums(self) -> Tally:
                total = super().get_sums()
                total.most_attended = {}
                return total

        assert "most_attended of" in try_kernel(tiny.model("bert"), Forgets)

    @pytest.mark.parametrize("change", [lambda output: output * 1.01, lambda output: output * float("nan")])
    def test_wrong_outputs_are_found(self, change: Any):
        class Writes(NumbaTallier):
            def attend(self, layer: int, question: Any) -> Any:
                output = super().attend(layer, question)
                return None if output is None else change(output)

        assert try_kernel(tiny.model("bert"), Writes).startswith("what heads write of 8 made-up texts")

    def test_one_that_breaks_says_how(self):
        class Breaks(NumbaTallier):
            def attend(self, layer: int, question: Any) -> Any:
                raise RuntimeError("Failed to find C compiler.\nand more")

        assert (
            try_kernel(tiny.model("bert"), Breaks) == "it does not run here (RuntimeError: Failed to find C compiler.)"
        )


class TestStudies:
    def test_one_that_counts_wrong_is_left_for_another_and_that_is_said(self, monkeypatch: pytest.MonkeyPatch):
        right = headscope.study(tiny.model("bert"), [TEXT], length=24)
        assert (right.manifest["kernel"], right.manifest["kernel_note"]) == ("numba", "")
        monkeypatch.setattr("headscope.tally.numba_backend.tallier.NumbaTallier", Wrong)
        monkeypatch.setattr(Wrong, "name", "equal")
        model = tiny.model("bert")
        study = headscope.study(model, [TEXT], length=24)
        assert study.manifest["kernel"] == "torch"
        assert study.manifest["kernel_note"].startswith("not numba: equal of 8 made-up texts differs from plain torch")
        assert int(study.data["equal"].sum()) == int(right.data["equal"].sum())
        with pytest.raises(StudyError, match=r"numba cannot do this: equal of .*: choose --kernel torch"):
            headscope.study(model, [TEXT], length=24, kernel="numba")

    def test_weights_that_are_no_numbers_are_the_models_fault(self):
        model = tiny.model("bert")
        with torch.no_grad():  # after loading, which would refuse them
            model.network.encoder.layer[0].attention.self.value.weight[0, 0] = float("nan")
        with pytest.raises(ModelError, match="L0H0 are not finite"):
            headscope.study(model, [TEXT], length=24)

    def test_a_kernel_is_tried_once_for_a_model(self, monkeypatch: pytest.MonkeyPatch):
        model, calls = tiny.model("bert"), []
        find_disagreement = trial.find_disagreement
        monkeypatch.setattr(
            trial,
            "find_disagreement",
            lambda *arguments, **options: calls.append(1) or find_disagreement(*arguments, **options),
        )
        for length in (24, 24, 16, 24):
            headscope.study(model, [TEXT], length=length)
        assert len(calls) == 2
