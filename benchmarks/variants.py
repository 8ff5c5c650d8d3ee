"""Other ways to start the heavy kernels, each timed beside the one that is taken, on this machine's GPU.

    python benchmarks/variants.py [--dtype bfloat16] [--length 512] [--texts 256] [--heads 12] [--only attend,add_maps]

Tiles, warps and stages that were fastest on one GPU need not be so on another, or with another Triton. A tallier runs
one layer of random heads again and again; every variant changes one kernel of `tally/triton_backend/launches.py` and
runs in turns with the present parameters. Variants that cannot be compiled, or that count differently, are reported.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headscope.corpus.windows import Batch, Window
from headscope.model.capture.plain_attention import AttentionInputs
from headscope.settings import MAX_LENGTH_WITH_MAPS
from headscope.tally.quantities import Shape
from headscope.tally.tally import TallySettings
from headscope.tally.triton_backend import launches, tallier
from headscope.tally.triton_backend.arrays import SHORT
from headscope.tally.triton_backend.launches import Launch
from measuring.rounds import seconds
from measuring.tables import machine, number, save, table

VARIANTS: dict[str, list[Launch]] = {
    "attend": [
        Launch(64, 64, 4, 2), Launch(64, 64, 4, 4), Launch(64, 128, 4, 2), Launch(128, 64, 4, 2), Launch(128, 64, 4, 3),
        Launch(128, 64, 8, 2), Launch(128, 64, 8, 3), Launch(128, 128, 8, 2),
    ],
    "add_maps": [
        Launch(64, 64, 4, 3), Launch(128, 64, 4, 2, 168), Launch(128, 64, 4, 4, 168), Launch(128, 64, 4, 3),
        Launch(128, 64, 8, 3), Launch(128, 128, 8, 2), Launch(128, 128, 8, 3), Launch(256, 64, 8, 2),
        Launch(256, 64, 8, 3),
    ],
    "find_high": [
        Launch(64, 64, 4, 2), Launch(128, 64, 4, 1), Launch(128, 64, 4, 3), Launch(128, 64, 8, 2),
        Launch(128, 32, 4, 2), Launch(128, 128, 4, 2), Launch(128, 128, 8, 2), Launch(256, 64, 8, 2),
    ],
    "attend_short": [
        Launch(64, 128, 4, 1), Launch(64, 128, 4, 3), Launch(64, 128, 8, 2), Launch(128, 128, 8, 1),
        Launch(128, 128, 8, 2), Launch(32, 128, 4, 2),
    ],
    "find_all": [
        Launch(128, 128, 4, 1), Launch(128, 128, 4, 2), Launch(128, 128, 8, 1), Launch(128, 128, 8, 2),
        Launch(128, 128, 8, 3),
    ],
}  # fmt: skip
"""by the function of `launches` that they stand for; the latter two for windows of 65 to 128 tokens"""
SHORT_ONES = ("attend_short", "find_all")


@contextmanager
def replaced(kernel: str, launch: Launch) -> Iterator[None]:
    """Within this context a kernel is started another way."""
    held = getattr(launches, kernel)
    setattr(launches, kernel, lambda *_, **__: launch)
    try:
        yield
    finally:
        setattr(launches, kernel, held)


def one_layer(options: argparse.Namespace) -> Callable[[], Any]:
    """A run of one layer, which gives what the heads wrote, the bits of their high elements, how many are near the
    threshold, and what keys received."""
    random = torch.Generator(options.device).manual_seed(0)
    shape = (options.texts, options.length, options.heads, options.width)

    def made() -> torch.Tensor:  # heads and places exchanged, as models make them
        numbers = torch.randn(shape, generator=random, device=options.device) + 0.2
        return numbers.to(getattr(torch, options.dtype)).transpose(1, 2)

    question = AttentionInputs(made(), made(), made(), None, options.width**-0.5, False)
    ids = np.random.default_rng(0).integers(0, 2000, (options.texts, options.length))
    batch = Batch.of([Window.plain(each) for each in ids])
    maps = options.length <= MAX_LENGTH_WITH_MAPS
    counting = TallySettings(Shape(1, options.heads, options.length, maps), 0.3, 0.3, 0.0)
    counted = tallier.TritonTallier(counting, options.device, tf32=options.dtype == "float32")
    counted.stream = None  # everything in one stream, so that times add up
    counted.begin(batch)

    def run() -> list[torch.Tensor | None]:
        held = counted.arrays
        for each in (held.near, held.largest):  # kernels add to these: what the run before found must not help
            each.zero_()
        return [counted.attend(0, question), held.bits, held.near, held.received]

    return run


def _difference(found: list[Any], wanted: list[Any], exact: float) -> str:
    """What two runs disagree about; rounding may decide a few elements of a hundred thousand."""
    for name, k in (("outputs", 0), ("what keys receive", 3)):
        if float((found[k].float() - wanted[k].float()).abs().max() / wanted[k].float().abs().max()) > exact:
            return f"{name} differ"
    words, near = ((found[k] != wanted[k]).float().mean() for k in (1, 2))
    return "bits or nearness differ" if words > 0.01 or near > 0.5 else ""


def tried(kernel: str, launch: Launch, run: Callable[[], Any], options: argparse.Namespace) -> dict[str, Any]:
    """The median times of one variant and of the present way in turns, or what is wrong with it."""
    row: dict[str, Any] = {"kernel": kernel, "launch": vars(launch)}
    wanted = [each.clone() for each in run()]
    try:
        with replaced(kernel, launch):
            found = run()
    except Exception as error:  # whatever it is, it is not a way
        said = next(iter(str(error).strip().splitlines()[-1:]), "")
        return {**row, "wrong": f"{type(error).__name__}: {said[:80]}"}
    if wrong := _difference(found, wanted, 1e-3 if options.dtype == "float32" else 2e-2):
        return {**row, "wrong": wrong}
    mine, present, device = [], [], torch.device(options.device)
    for _ in range(options.rounds):
        present.append(seconds(run, device))
        with replaced(kernel, launch):
            mine.append(seconds(run, device))
    return {**row, "ms": 1000 * statistics.median(mine), "present": 1000 * statistics.median(present)}


def variants_table(rows: list[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        launch = Launch(**row["launch"])
        shown = [row["kernel"], f"{launch.rows} × {launch.columns}", str(launch.warps), str(launch.stages)]
        shown.append(str(launch.registers or "–"))
        if "wrong" in row:
            lines.append([*shown, "", "", row["wrong"]])
        else:
            gained = row["ms"] - row["present"]
            lines.append([*shown, number(row["ms"], 3), f"{gained:+.3f}", "faster" if gained < 0 else ""])
    return table(("kernel", "tile", "warps", "stages", "registers", "ms per layer", "beside now", ""), lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="bfloat16")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--texts", type=int, default=256)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--width", type=int, default=64, help="of a head")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", help=f"these kernels: {','.join(VARIANTS)}")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the result there")
    options = parser.parse_args(arguments)
    short = options.length <= SHORT
    names = options.only.split(",") if options.only else [each for each in VARIANTS if (each in SHORT_ONES) == short]
    if unknown := [name for name in names if name not in VARIANTS]:
        raise SystemExit(f"no kernel {', '.join(unknown)}; there are: {', '.join(VARIANTS)}")
    about = {**machine(options.device), "length": options.length, "dtype": options.dtype, "texts": options.texts}
    run = one_layer(options)
    rows = [tried(name, launch, run, options) for name in names for launch in VARIANTS[name]]
    print(variants_table(rows))
    if options.json:
        save({"kind": "variants", "about": about, "rows": rows}, options.json)


if __name__ == "__main__":
    main()
