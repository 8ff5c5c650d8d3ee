"""The ways to do the job, each a function that runs once over the same windows.

`bare` is the yardstick: the model alone, with sdpa attention. A way that cannot be had here says why.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch

from headscope.corpus.windows import Batch
from headscope.errors import HeadscopeError
from headscope.model.model import Model
from headscope.run.executor import BatchExecutor
from headscope.run.kernel_trial import can_use_tf32
from headscope.settings import MAX_LENGTH_WITH_MAPS, Settings
from headscope.tally.backends import KERNELS, choose_kernel
from headscope.tally.quantities import Shape
from headscope.tally.tally import TallySettings
from measuring import lens, notebook
from measuring.setup import batches_of, windows_of

BARE = "bare"
SAMPLES = (0.0, 0.05, 1.0)
NOTEBOOK_TEXTS, REFERENCE_TEXTS = 8, 1
"""Slow ways need few texts to tell their time per text."""
SLOW_ROUNDS = 3
ELSEWHERE = {"cpu": ("triton",), "cuda": ("numba",)}
"""kernels that are not for this device"""
Run = Callable[[], None]


class NotHere(Exception):
    """A way that cannot be had here; the message says why."""


@dataclass(frozen=True)
class Job:
    """What every way is given: a model and windows in batches."""

    model: Model
    batches: list[Batch]
    length: int

    @property
    def texts(self) -> int:
        return sum(len(batch) for batch in self.batches)

    def few(self, texts: int) -> Job:
        """The same with the first few texts, in one batch."""
        windows = [window for batch in self.batches for window in batch.windows][:texts]
        return Job(self.model, [Batch.of(windows, self.model.tokens.pad_id)], self.length)

    def counting(self, sample: float) -> TallySettings:
        architecture, plain = self.model.architecture, Settings()
        shape = Shape(
            architecture.layers,
            architecture.heads,
            self.length,
            self.length <= MAX_LENGTH_WITH_MAPS,
            architecture.width,
        )
        return TallySettings(shape, plain.theta, plain.tau, sample, architecture.causal, architecture.numbers)


@dataclass(frozen=True)
class Way:
    """One way: what it is called, how it is made for a job, and whether few texts and rounds are enough."""

    key: str
    name: str
    make: Callable[[Job], Run]
    texts: int | None = None
    rounds: int | None = None

    def job(self, job: Job) -> Job:
        return job if self.texts is None else job.few(min(self.texts, job.texts))


def job_of(options: argparse.Namespace, model: Model) -> Job:
    windows = windows_of(model, options, options.texts)
    return Job(model, batches_of(model, windows, options.batch), options.length)


# -- the model alone ---------------------------------------------------------------------------------------------------


def bare(job: Job, implementation: str = "sdpa") -> Run:
    """The model's own arithmetic and nothing else; a copy, so that choosing its attention takes no time of the run."""
    model = job.model
    network = copy.deepcopy(model.network)
    network.set_attn_implementation(implementation)
    held = [
        (torch.from_numpy(batch.ids).to(model.device), torch.from_numpy(batch.real).long().to(model.device))
        for batch in job.batches
    ]

    def run() -> None:
        with torch.inference_mode():
            for ids, mask in held:
                network(input_ids=ids, attention_mask=mask)

    return run


# -- headscope ---------------------------------------------------------------------------------------------------------


def kernel_names(device: str) -> list[str]:
    """Those for this device, the plain loops last."""
    return [name for name in KERNELS if name not in ELSEWHERE[device]]


def make_executor(job: Job, kernel: str, sample: float) -> BatchExecutor:
    """Return what a study runs its batches with."""
    tf32 = torch.get_float32_matmul_precision() == "high" and can_use_tf32(job.model)
    counting = job.counting(sample)
    try:
        choice = choose_kernel(kernel, counting, job.model.device, tf32=tf32)
    except (HeadscopeError, ImportError) as error:
        raise NotHere(f"{type(error).__name__}: {error}") from error
    executor = BatchExecutor(job.model, choice, max(map(len, job.batches)), counting.shape)
    executor.start_sums()
    return executor


def run_batches(executor: BatchExecutor, batches: list[Batch]) -> None:
    """Run batches, as many side by side as a study does, and have them count."""
    for first in range(0, len(batches), executor.threads):
        together = batches[first : first + executor.threads]
        executor.run(together)
        for tallier in executor.talliers[: len(together)]:
            tallier.end()


def headscope_way(kernel: str, sample: float) -> Callable[[Job], Run]:
    def make(job: Job) -> Run:
        executor = make_executor(job, kernel, sample)
        return lambda: run_batches(executor, job.batches)

    return make


# -- others ------------------------------------------------------------------------------------------------------------


def notebook_way(job: Job) -> Run:
    def run() -> None:
        notebook.add_up(job.model, job.batches, job.length)

    return run


def lens_way(everything: bool) -> Callable[[Job], Run]:
    def make(job: Job) -> Run:
        if not lens.is_installed():
            raise NotHere(lens.ABSENT)
        try:
            return lens.runner(
                job.model, job.batches, make_executor(job, "torch", 0.0).talliers[0], everything=everything
            )
        except ImportError as error:
            raise NotHere(f"installed without what it needs: {error}") from error

    return make


def ways(device: str) -> dict[str, Way]:
    """All ways for a device but the bare one, in the order of the table."""
    made = [Way("eager", "bare forward, eager", lambda job: bare(job, "eager"))]
    for kernel in kernel_names(device):
        plain = kernel == "reference"
        for sample in (1.0,) if plain else SAMPLES:
            name = f"headscope, {kernel}, {_sample(sample)}"
            few = (REFERENCE_TEXTS, SLOW_ROUNDS) if plain else ()
            made.append(Way(f"{kernel}-{sample:g}", name, headscope_way(kernel, sample), *few))
    made += [
        Way("lens", "TransformerLens, whole cache", lens_way(True)),
        Way("lens-heads", "TransformerLens, hook_z and hook_pattern", lens_way(False)),
        Way("notebook", "notebook: keep all, loop in numpy", notebook_way, NOTEBOOK_TEXTS, SLOW_ROUNDS),
    ]
    return {way.key: way for way in made}


def _sample(sample: float) -> str:
    return "no sample" if sample == 0 else "all in the sample" if sample == 1 else f"{sample:.0%} in the sample"
