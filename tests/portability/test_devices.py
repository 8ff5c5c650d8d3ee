"""Devices: which one is chosen, and Apple GPUs by simulation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import headscope
from headscope import devices
from headscope.errors import ModelError, StudyError
from headscope.model.loading import load, select_device
from headscope.model.model import Model
from headscope.pruning.rankings import TEXT_RULES, score_heads
from headscope.pruning.removal import remove
from headscope.run.executor import choose_batch_size
from headscope.segmentation import topic as backgrounds
from headscope.settings import Settings
from headscope.tally import backends
from tests.helpers import tiny
from tests.helpers.portability import LENGTH, TEXTS, make_model, run_python


@pytest.mark.parametrize(
    ("cuda", "mps", "expected"),
    [(True, True, "cuda"), (True, False, "cuda"), (False, True, "mps"), (False, False, "cpu")],
)
def test_the_device_that_is_chosen(monkeypatch: pytest.MonkeyPatch, cuda: bool, mps: bool, expected: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert select_device("auto").type == expected


@pytest.mark.parametrize(
    ("wanted", "gpus", "message"),
    [
        ("cuda", 0, "there is none. Available: cpu, or auto"),
        ("mps", 0, "there is none. Available: cpu, or auto"),
        ("gpu", 0, "it is no name of a device. Available: cpu, or auto"),
        ("gpu", 2, "it is no name of a device. Available: cpu, cuda:0, cuda:1, or auto"),
        ("cuda:7", 2, "GPUs are counted from 0. Available: cpu, cuda:0, cuda:1, or auto"),
        ("abacus", 0, "Available: cpu, or auto"),
    ],
)
def test_what_is_available_is_named(monkeypatch: pytest.MonkeyPatch, wanted: str, gpus: int, message: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ModelError, match=re.escape(message)) as raised:
        load("minilm", device=wanted)
    assert str(raised.value).startswith(f"device {wanted!r} cannot be used here: ")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("wanted", ["mps", "mps:0", "cuda:99", "hpu", "vulkan", "abacus", "meta", "", "cpu:x"])
def test_a_device_that_is_not_there(wanted: str) -> None:
    if wanted.startswith("mps") and torch.backends.mps.is_available():
        pytest.skip("there is one")
    with pytest.raises(ModelError, match=f"device '{wanted}' cannot be used here: ") as raised:
        select_device(wanted)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 400


def test_the_cpu_does_what_apple_gpus_cannot() -> None:
    code = """
        import os, sys
        from headscope import cli
        assert "torch" not in sys.modules
        sys.argv = ["headscope", "--version"]
        try:
            cli.main()
        except SystemExit:
            print(os.environ["PYTORCH_ENABLE_MPS_FALLBACK"])
    """
    assert run_python(code, environment={"HOME": "/"}).stdout.splitlines()[-1] == "1"
    code = "import os, headscope.model.loading; print(os.environ['PYTORCH_ENABLE_MPS_FALLBACK'])"
    for chosen in ("1", "0"):
        environment = {"HOME": "/"} | ({} if chosen == "1" else {"PYTORCH_ENABLE_MPS_FALLBACK": chosen})
        assert run_python(code, environment=environment).stdout.split() == [chosen]


MPS = torch.device("mps:0")
COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)


class OnMps(torch.Tensor):
    """A tensor on a simulated Apple GPU, with its data on the CPU.

    It refuses what such a device refuses: double precision, and operations with tensors of another device. For torch's
    own code its device is `meta`, which all builds of torch support.
    """

    on_cpu: torch.Tensor

    @staticmethod
    def __new__(cls, on_cpu: torch.Tensor) -> OnMps:
        if on_cpu.dtype in (torch.float64, torch.complex128):
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype: the MPS framework has none")
        layout: Any = {"strides": on_cpu.stride(), "storage_offset": on_cpu.storage_offset(), "dtype": on_cpu.dtype}
        tensor = torch.Tensor._make_wrapper_subclass(
            cls, on_cpu.shape, device="meta", requires_grad=on_cpu.requires_grad, **layout
        )
        tensor.on_cpu = on_cpu
        return tensor

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return MPS

    def __deepcopy__(self, memo: Any) -> torch.Tensor:
        copied = OnMps(self.on_cpu.detach().clone())
        return torch.nn.Parameter(copied, self.requires_grad) if isinstance(self, torch.nn.Parameter) else copied

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


def compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute on the CPU, and return the result on the device that it would have."""
    tensors = [tensor for tensor in pytree.tree_leaves((args, kwargs)) if isinstance(tensor, torch.Tensor)]
    on_mps = [tensor for tensor in tensors if isinstance(tensor, OnMps)]
    if on_mps and func not in COPIES and any(tensor.dim() for tensor in tensors if not isinstance(tensor, OnMps)):
        raise RuntimeError(f"Expected all tensors to be on the same device, in {func}")
    target = kwargs.get("device")
    stays = bool(on_mps) if target is None else torch.device(target).type == "mps"
    if func is torch.ops.aten.copy_.default:
        stays = isinstance(args[0], OnMps)
    if target is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    args, kwargs = pytree.tree_map_only(OnMps, lambda tensor: tensor.on_cpu, (args, kwargs))
    result = func(*args, **kwargs)
    in_place = {id(tensor.on_cpu): tensor for tensor in on_mps}  # what is changed in place stays the tensor that it was
    wrap = lambda tensor: in_place[id(tensor)] if id(tensor) in in_place else OnMps(tensor)  # noqa: E731
    return pytree.tree_map_only(torch.Tensor, wrap, result) if stays else result


class Dispatched(TorchDispatchMode):
    """Support creating tensors on the simulated device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


class Called(TorchFunctionMode):
    """Support `torch.tensor` on the simulated device, which queries the device itself."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = dict(kwargs or {})
        if func is torch.tensor and options.get("device") == MPS:
            del options["device"]
            return torch.tensor(*args, **options).to(MPS)
        return func(*args, **options)


@pytest.fixture
def mps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Model]:
    """A model on a simulated Apple GPU, usable within this fixture."""
    monkeypatch.setattr(torch, "inference_mode", torch.no_grad)  # tensors like these cannot be made in it
    network = tiny.network("bert")
    with Dispatched(), Called():
        network.to(MPS)
        yield load(network, tiny.tokenizer())


def test_the_simulated_device_is_strict(mps: Model) -> None:
    assert mps.device == MPS
    tensor = torch.zeros(3, device=MPS)
    with pytest.raises(TypeError, match="float64"):
        tensor.double()
    with pytest.raises(TypeError, match="float64"):
        torch.zeros(3, dtype=torch.float64, device=MPS)
    with pytest.raises(RuntimeError, match="same device"):
        tensor + torch.zeros(3)
    assert (tensor + 1).cpu().tolist() == [1, 1, 1]
    assert devices.to_float64(tensor).device.type == "cpu"


@pytest.mark.parametrize("kernel", ["auto", "numba", "torch", "reference"])
def test_a_study_without_double_precision(mps: Model, kernel: str) -> None:
    study = headscope.study(mps, TEXTS, length=LENGTH, kernel=kernel)
    expected = headscope.study(make_model(), TEXTS, length=LENGTH, kernel=kernel)
    assert study.manifest["device"] == "mps:0"
    assert study.manifest["kernel"] == expected.manifest["kernel"]
    assert "on the CPU: mps has no double precision" in study.manifest["kernel_note"]
    for name, values in expected.data.items():
        if values.dtype.kind == "i":
            np.testing.assert_array_equal(study.data[name], values, err_msg=str(name))
        elif values.dtype.kind == "f":
            # Correlations of heads are of products in single precision.
            atol = 1e-4 if str(name).startswith("head_similarity") else 1e-6
            np.testing.assert_allclose(study.data[name], values, rtol=1e-5, atol=atol, err_msg=str(name))


def test_a_study_asks_for_no_double_precision_by_itself(mps: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verify the test above: the same study fails on a device that wrongly claims double precision."""
    monkeypatch.setattr(backends, "supports_float64", lambda device: True)
    with pytest.raises(TypeError, match="float64"):
        headscope.study(mps, TEXTS, length=LENGTH, kernel="torch")


def test_kernels_of_other_devices_are_refused(mps: Model) -> None:
    with pytest.raises(StudyError, match=r"the kernel triton cannot do this: .* the model is on mps"):
        headscope.study(mps, TEXTS, length=LENGTH, kernel="triton")


def test_readings_and_segments_without_double_precision(mps: Model) -> None:
    for compute_values in (
        lambda model: headscope.read(model, TEXTS[0], length=LENGTH).outputs.values,
        lambda model: backgrounds.measure_background(model).contrast.gain,
    ):
        np.testing.assert_allclose(compute_values(mps), compute_values(make_model()), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("rule", TEXT_RULES)
def test_rankings_without_double_precision(mps: Model, rule: str) -> None:
    def rank_heads(model: Model) -> Any:
        cut = Settings(length=LENGTH).cut
        windows = [window for text in TEXTS for window in model.windows(headscope.Document(text, "text"), cut)]
        return score_heads(model, rule, windows)  # type: ignore[arg-type]

    np.testing.assert_allclose(rank_heads(mps), rank_heads(make_model()), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("ablation_type", ["zero", "mean"])
def test_ablations_without_double_precision(mps: Model, ablation_type: Any) -> None:
    actual, expected = (
        headscope.ablate(model, TEXTS, length=LENGTH, ablation_type=ablation_type).data for model in (mps, make_model())
    )
    np.testing.assert_allclose(actual["change"], expected["change"], rtol=1e-4, atol=1e-6)


def test_heads_are_taken_out_in_double_precision_elsewhere(mps: Model) -> None:
    actual, expected = remove(mps, "L0H1"), remove(make_model(), "L0H1")
    assert actual.expected.dtype == torch.float64
    assert actual.difference == pytest.approx(expected.difference, abs=1e-12)
    assert next(iter(actual.network.parameters())).device == MPS


def test_memory_of_apple_gpus_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    emptied: list[str] = []
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "empty_cache", lambda: emptied.append("mps"))

    model, observe, failed = make_model(), Model.observe, list[str]()
    assert model.ignores_padding  # which runs the model

    def observe_once_short_of_memory(self: Model, *arguments: Any) -> None:
        if not failed:
            failed.append("")
            raise RuntimeError("MPS backend out of memory (MPS allocated: 18.13 GB)")
        observe(self, *arguments)

    monkeypatch.setattr(Model, "observe", observe_once_short_of_memory)
    study = headscope.study(model, TEXTS, length=LENGTH, kernel="torch")
    assert study.texts == len(TEXTS)
    assert emptied == ["mps"]


def test_texts_at_once(mps: Model) -> None:
    assert choose_batch_size(mps, LENGTH) == choose_batch_size(make_model(), LENGTH)
