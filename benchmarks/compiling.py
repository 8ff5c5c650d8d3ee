"""What Triton's compiler makes of the kernels for a GPU that need not be here: registers, spills, shared memory.

    python benchmarks/compiling.py [--architecture 90] [--dtype bfloat16] [--length 512] [--width 64] [--ragged]
    python benchmarks/compiling.py --architecture 80 89 90 --dtype bfloat16 float32 --width 64 128 256 --length 128 512

The interpreter, in which the tests run without a GPU, takes what no compiler would take. So here a tallier counts a
small batch, and each kernel that it starts is compiled for the GPU asked for, and not run. A program that needs more
shared memory than the GPU has could not be started there; one whose registers spill is slow; how many warps a
multiprocessor holds at a time says how well it can hide its waits. Of several cases there is one line each. What cannot
be compiled or started ends with exit status 1.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)  # before Triton is imported

import numpy as np
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler.errors import CompilationError
from triton.runtime import driver, jit

from headscope.corpus.windows import Batch, Window
from headscope.model.capture.plain_attention import AttentionInputs
from headscope.settings import MAX_LENGTH_WITH_MAPS
from headscope.tally.quantities import Shape
from headscope.tally.tally import TallySettings
from headscope.tally.triton_backend import launches
from headscope.tally.triton_backend.pairs import LAST
from headscope.tally.triton_backend.tallier import TritonTallier
from measuring.tables import table

SHARED = {80: 166_912, 86: 101_376, 89: 101_376, 90: 232_448, 100: 232_448, 120: 101_376}
"""bytes that one program may have at most, by architecture (compute capability)"""
REGISTERS, WARPS, RESERVED = 65_536, 64, 1_024
"""of a multiprocessor: registers, warps; and bytes of shared memory that each program costs besides"""
TEXTS, HEADS = 6, 4
LIST = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


@dataclass(frozen=True)
class Made:
    """One kernel, as it was compiled."""

    name: str
    warps: int
    shared: int
    registers: int
    spilled: int
    """bytes of a thread that are not in registers"""

    def held(self, shared: int) -> int:
        """Warps of it that a multiprocessor with so much shared memory holds at a time."""
        by_registers = REGISTERS // (-(-self.registers // 8) * 8 * 32 * self.warps)
        by_memory = (shared + RESERVED) // (self.shared + RESERVED)
        return self.warps * min(by_registers, by_memory, WARPS // self.warps)


class Absent:
    """The driver of a GPU that is not here."""

    def __init__(self, architecture: int) -> None:
        self.target = GPUTarget("cuda", architecture, 32)

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return self.target.arch

    def get_current_stream(self, device: int) -> int:
        return 0


@contextmanager
def compiled_only(architecture: int) -> Iterator[dict[str, Made]]:
    """Within this context kernels are compiled and not run; what they became, each once."""
    made: dict[str, Made] = {}
    start = jit.KernelInterface.__getitem__

    def compile_instead(kernel: Any, grid: Any) -> Any:
        def keep(*given: Any, **how: Any) -> None:
            became = kernel.run(*given, grid=grid, warmup=True, **how)
            made.setdefault(became.hash, _looked_at(became))

        return keep

    jit.KernelInterface.__getitem__ = compile_instead
    driver.set_active(Absent(architecture))
    held = launches.SHARED
    launches.SHARED = SHARED[architecture]  # what tiles are chosen by, where no GPU tells
    try:
        yield made
    finally:
        launches.SHARED = held
        jit.KernelInterface.__getitem__ = start
        driver._active = None


def _looked_at(became: Any) -> Made:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(became.asm["cubin"])
        file.flush()
        said = subprocess.run([LIST, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = {name: int(value) for name, value in re.findall(r"\b([A-Z]+):(\d+)", said)}
    return Made(
        became.metadata.name, became.metadata.num_warps, became.metadata.shared, found["REG"],
        found["STACK"] + found["LOCAL"],
    )  # fmt: skip


def _windows(length: int, ragged: bool) -> list[Window]:
    random = np.random.default_rng(0)
    lengths = [length - 3 * k if ragged else length for k in range(TEXTS)]
    return [Window.plain(random.integers(0, 9, max(2, n))) for n in lengths]


def start_all(dtype: torch.dtype, length: int, width: int, *, maps: bool, ragged: bool, causal: bool) -> None:
    """Have a tallier start every kernel it has, on numbers that mean nothing, for none of them is run."""
    batch = Batch.of(_windows(length, ragged))
    counting = TallySettings(Shape(1, HEADS, length, maps), 0.3, 0.3, 1.0, causal)
    shape = (TEXTS, HEADS, length, width)
    question = AttentionInputs(*(torch.zeros(shape, dtype=dtype) for _ in "qkv"), None, width**-0.5, causal)
    output, attention = torch.zeros((TEXTS, length, HEADS, width), dtype=dtype), torch.zeros((*shape[:3], length))
    for given in (False, True):
        tallier = TritonTallier(counting, "cpu", tf32=dtype == torch.float32)
        tallier.begin(batch)
        if given:
            tallier.observe_layer(0, output, attention.to(dtype))
        else:
            tallier.attend(0, question)
        _nothing_found(tallier.arrays)
        tallier.end()
        tallier.get_sums()


def _nothing_found(held: Any) -> None:
    """What no kernel has written."""
    for value in vars(held).values():
        if isinstance(value, torch.Tensor):
            value.zero_()
    held.dominants.fill_(LAST.value)  # the first place


def compiled(architecture: int, dtype: torch.dtype, length: int, width: int, **how: bool) -> list[Made]:
    """All kernels of a study, in the order in which it starts them."""
    with compiled_only(architecture) as made:
        start_all(dtype, length, width, **how)
    return list(made.values())


@dataclass(frozen=True)
class Case:
    """What is compiled for."""

    architecture: int
    dtype: str
    length: int
    width: int

    def made(self, options: argparse.Namespace) -> list[Made]:
        maps = self.length <= MAX_LENGTH_WITH_MAPS if options.maps is None else options.maps
        how = {"maps": maps, "ragged": options.ragged, "causal": options.causal}
        return compiled(self.architecture, getattr(torch, self.dtype), self.length, self.width, **how)

    @property
    def room(self) -> int:
        return SHARED[self.architecture]

    def __str__(self) -> str:
        return f"sm_{self.architecture}, {self.dtype}, {self.length} tokens, heads of {self.width}"


def kernels_table(case: Case, made: list[Made]) -> str:
    columns = ("kernel", "warps", "registers", "spilled, bytes", "shared, bytes", "warps held")
    rows = [
        [each.name, *map(str, (each.warps, each.registers, each.spilled, each.shared, each.held(case.room)))]
        for each in made
    ]
    return table(columns, rows)


def cases_table(found: dict[Case, list[Made]]) -> str:
    columns = ("case", "kernels", "most shared, bytes", "most spilled, bytes", "by")
    rows = []
    for case, made in found.items():
        worst = max(made, key=lambda each: each.spilled)
        largest = max(each.shared for each in made)
        rows.append([str(case), str(len(made)), str(largest), str(worst.spilled), worst.name if worst.spilled else ""])
    return table(columns, rows)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--architecture", type=int, nargs="+", choices=SHARED, default=[90], help="90 is Hopper")
    parser.add_argument("--dtype", nargs="+", choices=("float32", "bfloat16", "float16"), default=["bfloat16"])
    parser.add_argument("--length", type=int, nargs="+", default=[512])
    parser.add_argument("--width", type=int, nargs="+", default=[64], help="of a head")
    parser.add_argument(
        "--maps", action=argparse.BooleanOptionalAction, help="N×N maps are kept; as a study, if not said"
    )
    parser.add_argument("--ragged", action="store_true", help="with padding")
    parser.add_argument("--causal", action="store_true")
    options = parser.parse_args(arguments)
    found: dict[Case, list[Made]] = {}
    wrong = []
    for asked in product(options.architecture, options.dtype, options.length, options.width):
        case = Case(*asked)
        try:
            found[case] = case.made(options)
        except CompilationError as error:
            wrong.append(f"{case}: cannot be compiled: {str(error).strip().splitlines()[-1]}")
            continue
        large = [each.name for each in found[case] if each.shared > case.room]
        wrong += [f"{case}: {name} needs more than {case.room:,} bytes of shared memory" for name in large]
    if len(found) == 1:
        print(kernels_table(*next(iter(found.items()))))
    elif found:
        print(cases_table(found))
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
