"""The tally backends ("kernels") by name, and the choice among them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from headscope.corpus.windows import Batch
from headscope.devices import CPU, supports_float64
from headscope.errors import StudyError
from headscope.settings import AUTO, KERNELS
from headscope.tally.reference import ReferenceTallier
from headscope.tally.tally import Tallier, Tally, TallySettings
from headscope.tally.torch_backend import TorchTallier

__all__ = ["AUTO", "FASTEST", "KERNELS", "Choice", "OnCpu", "choose_kernel"]

FASTEST = {"cuda": "triton", "cpu": "numba"}
"""fastest backend by device type; it works on no other device type"""


@dataclass(frozen=True)
class Choice:
    """The chosen backend, and why no faster one was chosen, if that has to be reported."""

    name: str
    note: str
    make: Callable[[], Tallier]
    threads: int = 1
    """how many talliers may run side by side, each in its own thread"""
    single_threaded: bool = False
    """A batch is computed in one thread, whatever torch would do by default."""


class OnCpu:
    """Tallier on the CPU for a model that runs elsewhere: copies outputs and maps of every layer to the CPU."""

    def __init__(self, tallier: Tallier) -> None:
        self.tallier = tallier

    def begin(self, batch: Batch) -> None:
        self.tallier.begin(batch)

    def observe_layer(self, layer: int, output: torch.Tensor, attention: torch.Tensor) -> None:
        self.tallier.observe_layer(layer, output.cpu(), attention.cpu())

    def end(self) -> None:
        self.tallier.end()

    def get_sums(self) -> Tally:
        return self.tallier.get_sums()


def choose_kernel(name: str, counting: TallySettings, device: torch.device, *, tf32: bool = False) -> Choice:
    """Return the backend of this name; for `auto`, the fastest that can do this, with a note on what ruled out a faster
    one.

    Whether a fast backend counts correctly on this machine is tested elsewhere, by `run.kernel_trial`.
    """
    if not supports_float64(device) and name != "triton":  # triton is refused below, with the usual message
        chosen = choose_kernel(name, counting, CPU)
        note = chosen.note or f"summed on the CPU: {device.type} has no double precision"
        # Only one thread runs the model: a GPU gains nothing from more.
        return replace(chosen, note=note, make=lambda: OnCpu(chosen.make()), threads=1, single_threaded=False)
    if name == AUTO:
        fastest = FASTEST.get(device.type, "torch")
        reason = _explain_unavailable(fastest, counting, device)
        if not reason:
            return choose_kernel(fastest, counting, device, tf32=tf32)
        return Choice("torch", f"not {fastest}: {reason}", lambda: TorchTallier(counting, device))
    if name not in KERNELS:
        raise StudyError(f"unknown kernel {name!r}; there are: {', '.join((AUTO, *KERNELS))}")
    reason = _explain_unavailable(name, counting, device)
    if reason:
        raise StudyError(f"the kernel {name} cannot do this: {reason}")
    if name == "triton":
        from headscope.tally.triton_backend.tallier import TritonTallier

        return Choice(name, "", lambda: TritonTallier(counting, device, tf32=tf32))
    if name == "numba":
        from headscope.tally.numba_backend.tallier import NumbaTallier

        return Choice(name, "", lambda: NumbaTallier(counting, device), torch.get_num_threads(), single_threaded=True)
    if name == "torch":
        return Choice(name, "", lambda: TorchTallier(counting, device))
    return Choice(name, "", lambda: ReferenceTallier(counting))


def _explain_unavailable(name: str, counting: TallySettings, device: torch.device) -> str:
    """Return why a backend cannot do this here; empty if it can."""
    if name not in FASTEST.values():
        return ""
    if FASTEST.get(device.type) != name:
        return f"it works {KERNELS[name]}, and the model is on {device.type}"
    if importlib.util.find_spec(name) is None:
        return "it is not installed"
    if counting.shape.crosses:
        return "maps of cross-attention are not square"
    if name == "numba":
        return _explain_numba_unavailable()
    from headscope.tally.triton_backend.tallier import MAX_LENGTH

    if counting.shape.length > MAX_LENGTH:
        return f"windows of {counting.shape.length} tokens are longer than the {MAX_LENGTH} it can do"
    return ""


def _explain_numba_unavailable() -> str:
    """Return why numba cannot compile here; empty if it can."""
    try:
        import numba
    except ImportError as error:  # numba does not support every version of NumPy
        return f"it cannot be imported: {error}"
    return "its compiler is turned off (NUMBA_DISABLE_JIT)" if numba.config.DISABLE_JIT else ""
