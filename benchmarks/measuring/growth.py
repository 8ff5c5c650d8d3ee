"""How time and memory grow: with the number of texts, the length of windows, the number of heads.

Random weights, so that every length and number of heads can be had. Texts go through `headscope.study` itself, from a
file to a result; lengths and heads are the model and the sums alone, beside the bare forward pass of the same shape.
"""

from __future__ import annotations

import argparse
import copy
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from measuring.memory import Peak, in_own_process, peak_above
from measuring.rounds import Runner, seconds, take_turns
from measuring.setup import model_of, sizes, texts_of
from measuring.ways import Job, bare, headscope_way, job_of

TEXTS = (64, 256, 1024)
LENGTHS = (64, 128, 256, 512)
HEADS = (4, 8, 12, 16)
SHAPE = "6x12x384"
SAMPLE = 0.05
BATCHES_GPU = 4


def default_kernel() -> str:
    return "auto"


def batches(device: str) -> int:
    """A study gives each core a batch of its own: with fewer, the others would have nothing to do."""
    return BATCHES_GPU if device == "cuda" else torch.get_num_threads()


def study_way(options: argparse.Namespace, kernel: str) -> dict[str, float]:
    """In this process: a study of a file of so many texts, beside the bare model on a batch before and after."""
    import headscope

    model = model_of(options)
    few = copy.copy(options)
    few.texts = options.batch
    job = job_of(few, model)
    alone, device = bare(job), model.device
    made = {
        "batch_size": options.batch,
        "length": options.length,
        "sample": SAMPLE,
        "kernel": kernel,
        "tf32": options.tf32,
    }
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts_of(options, options.texts))
        file.flush()
        peak = Peak(device)
        headscope.study(model, list(texts_of(few, options.batch)), **made)  # warms up
        alone()
        before = seconds(alone, device) / job.texts
        taken = seconds(lambda: headscope.study(model, file.name, **made), device)
        after = seconds(alone, device) / job.texts
    each = taken / options.texts
    return {"ms": 1000 * each, "ratio": each / ((before + after) / 2), "peak_mb": peak.megabytes()}


def way_beside_bare(options: argparse.Namespace, kernel: str) -> dict[str, float]:
    """In this process: the model with its heads watched, beside the bare model of the same shape."""
    model = model_of(options)
    job: Job = job_of(options, model)
    watched = headscope_way(kernel, SAMPLE)(job)
    peak = peak_above(watched, model.device)
    runner = {"headscope": Runner(watched, job.texts, options.rounds)}
    turns, _ = take_turns(Runner(bare(job), job.texts, options.rounds), runner, model.device)
    return {**turns["headscope"].summary(), "peak_mb": peak}


def grown(options: argparse.Namespace, script: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """All of it, each case in a process of its own."""
    shape = options.shape or SHAPE
    layers, _, width = sizes(shape)
    kernel = default_kernel()
    common = ["--device", options.device, "--dtype", options.dtype, "--tf32" if options.tf32 else "--no-tf32"]
    common += ["--rounds", str(options.rounds), "--kernel", kernel]

    def case(kind: str, shape: str, length: int, texts: int, batch: int) -> dict[str, float] | None:
        say(f"{kind}: {shape}, windows of {length}, {texts} texts")
        sized = ["--shape", shape, "--length", str(length), "--texts", str(texts), "--batch", str(batch)]
        return in_own_process(script, ["--case", kind, *sized, *common])

    def beside_bare(shape: str, length: int) -> dict[str, float]:
        batch = max(1, options.batch * 128 // length)
        return case("way", shape, length, batch * batches(options.device), batch) or {}

    texts = options.growth_texts or TEXTS
    return {
        "shape": shape,
        "kernel": kernel,
        "sample": SAMPLE,
        "texts": [{"of": n, **(case("study", shape, 128, n, options.batch) or {})} for n in texts],
        "length": [{"of": n, **beside_bare(shape, n)} for n in LENGTHS],
        "heads": [{"of": n, **beside_bare(f"{layers}x{n}x{width}", 128)} for n in HEADS],
    }
