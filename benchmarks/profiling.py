"""Where a study's time goes, kernel by kernel, beside the bare model: torch's profiler, for who makes it faster.

    python benchmarks/profiling.py --shape 12x12x768 --device cuda --dtype bfloat16 [--length 512] [--texts 2048]

On a GPU everything runs in one stream, so that times add up to the whole; on a CPU operators of torch are shown, and
what numba compiled is in none of them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

from measuring import setup, ways
from measuring.tables import number, table

SHOWN = 48
"""characters of a kernel's name"""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    setup.add_options(made)
    made.add_argument("--texts", type=int, default=512, help="windows")
    made.add_argument("--batch", type=int, default=256, help="windows at a time")
    made.add_argument("--sample", type=float, default=0.0, help="fraction of texts in the sample")
    made.add_argument("--most", type=int, default=20, help="so many kernels, the longest")
    return made


def profiled(run: Callable[[], None], device: str) -> tuple[float, dict[str, float]]:
    """Milliseconds of one run, and of each kernel in another."""
    activity = ProfilerActivity.CUDA if device == "cuda" else ProfilerActivity.CPU
    run()
    _wait(device)
    began = time.perf_counter()
    run()
    _wait(device)
    whole = 1000 * (time.perf_counter() - began)
    with profile(activities=[activity]) as seen:
        run()
        _wait(device)
    spent: dict[str, float] = {}
    for event in seen.key_averages():
        took = event.self_device_time_total if device == "cuda" else event.self_cpu_time_total
        name = event.key[:SHOWN]
        spent[name] = spent.get(name, 0.0) + took / 1000
    return whole, spent


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def in_one_stream() -> None:
    """Have the tally's kernels run in the model's own stream."""
    from headscope.tally.triton_backend import tallier

    tallier._make_stream = lambda _: None


def main(arguments: list[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    if options.device == "cuda":
        in_one_stream()
    job = ways.job_of(options, setup.model_of(options))
    runs = {"bare": ways.bare(job), "study": ways.headscope_way("auto", options.sample)(job)}
    found = {name: profiled(run, options.device) for name, run in runs.items()}
    names = sorted(
        {name for _, spent in found.values() for name in spent}, key=lambda name: -found["study"][1].get(name, 0)
    )
    rows = [[name, *(number(spent.get(name)) for _, spent in found.values())] for name in names[: options.most]]
    rows += [["all kernels", *(number(sum(spent.values())) for _, spent in found.values())]]
    rows += [["a run that is not watched", *(number(whole) for whole, _ in found.values())]]
    print(table([f"ms for {job.texts} texts", *found], rows))
    print(f"{found['study'][0] / found['bare'][0]:.2f} × the bare forward")


if __name__ == "__main__":
    main()
