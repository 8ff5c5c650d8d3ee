"""The ways to add up, by name, and which of them to take."""

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
from headscope.tally.tally import Counting, Tallier, Tally
from headscope.tally.vectorized import VectorizedTallier

__all__ = ["AUTO", "FASTEST", "KERNELS", "Choice", "OnCpu", "choose"]

FASTEST = {"cuda": "triton", "cpu": "compiled"}
"""by the type of device; these work nowhere else"""


@dataclass(frozen=True)
class Choice:
    """A kernel that was chosen, and why not another, where that has to be said."""

    name: str
    note: str
    make: Callable[[], Tallier]
    threads: int = 1
    """how many talliers may work side by side, each in a thread of its own"""
    shares: bool = False
    """a batch is computed in one thread, whatever torch would do by itself"""


class OnCpu:
    """Has a tallier that works on the CPU see the layers of a model that runs elsewhere."""

    def __init__(self, tallier: Tallier) -> None:
        self.tallier = tallier

    def begin(self, batch: Batch) -> None:
        self.tallier.begin(batch)

    def see(self, layer: int, output: torch.Tensor, attention: torch.Tensor) -> None:
        self.tallier.see(layer, output.cpu(), attention.cpu())

    def end(self) -> None:
        self.tallier.end()

    def total(self) -> Tally:
        return self.tallier.total()


def choose(name: str, counting: Counting, device: torch.device, *, tf32: bool = False) -> Choice:
    """The kernel of that name; `auto`: the fastest that can do this, and what kept a faster one from it.

    Whether a fast one counts right on this machine is another question: `run.kernel_trial` asks it.
    """
    if not supports_float64(device) and name != "triton":  # which is refused below, as elsewhere
        chosen = choose(name, counting, CPU)
        note = chosen.note or f"summed on the CPU: {device.type} has no double precision"
        # One thread runs the model: a GPU gains nothing from more.
        return replace(chosen, note=note, make=lambda: OnCpu(chosen.make()), threads=1, shares=False)
    if name == AUTO:
        fastest = FASTEST.get(device.type, "vectorized")
        reason = _reason_against(fastest, counting, device)
        if not reason:
            return choose(fastest, counting, device, tf32=tf32)
        return Choice("vectorized", f"not {fastest}: {reason}", lambda: VectorizedTallier(counting, device))
    if name not in KERNELS:
        raise StudyError(f"unknown kernel {name!r}; there are: {', '.join((AUTO, *KERNELS))}")
    reason = _reason_against(name, counting, device)
    if reason:
        raise StudyError(f"the kernel {name} cannot do this: {reason}")
    if name == "triton":
        from headscope.tally.gpu.tallier import GpuTallier

        return Choice(name, "", lambda: GpuTallier(counting, device, tf32=tf32))
    if name == "compiled":
        from headscope.tally.compiled.tallier import CompiledTallier

        return Choice(name, "", lambda: CompiledTallier(counting, device), torch.get_num_threads(), shares=True)
    if name == "vectorized":
        return Choice(name, "", lambda: VectorizedTallier(counting, device))
    return Choice(name, "", lambda: ReferenceTallier(counting))


def _reason_against(name: str, counting: Counting, device: torch.device) -> str:
    """Why a kernel cannot do this here; empty if it can."""
    if name not in FASTEST.values():
        return ""
    if FASTEST.get(device.type) != name:
        return f"it works {KERNELS[name]}, and the model is on {device.type}"
    package = "triton" if name == "triton" else "numba"
    if importlib.util.find_spec(package) is None:
        return f"{package} is not installed"
    if name == "compiled":
        return _reason_against_numba()
    from headscope.tally.gpu.tallier import LARGEST

    if counting.shape.length > LARGEST:
        return f"windows of {counting.shape.length} tokens are longer than the {LARGEST} it can do"
    return ""


def _reason_against_numba() -> str:
    """Why numba cannot compile here; empty if it can."""
    try:
        import numba
    except ImportError as error:  # it does not take every version of NumPy
        return f"numba cannot be imported: {error}"
    return "numba's compiler is turned off (NUMBA_DISABLE_JIT)" if numba.config.DISABLE_JIT else ""
