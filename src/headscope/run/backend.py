"""Choose the kernel that computes the sums, and try it before it is trusted."""

from __future__ import annotations

from dataclasses import replace

import torch

from headscope.errors import StudyError
from headscope.model.model import Model
from headscope.run import kernel_trial
from headscope.run.plan import RunPlan
from headscope.tally.backends import AUTO, FASTEST, Choice, choose_kernel


def choose_backend(plan: RunPlan, model: Model) -> Choice:
    """Return the kernel for a model on this machine.

    A fast kernel counts a few made-up texts first. One that differs from plain torch is replaced by `torch` and
    the reason is noted; one that was asked for by name is an error.
    """
    tf32 = plan.tf32 and can_use_tf32(model)
    counting = plan.get_counting(model)
    choice = choose_kernel(plan.kernel, counting, model.device, tf32=tf32)
    if choice.name not in FASTEST.values():
        return choice
    trial_counting = kernel_trial.select_one_layer(counting)
    # Of the map, its kind: its numbers do not decide whether a kernel works, and are too large to be kept.
    key = choice.name, replace(trial_counting, output_map=None), plan.settings.similarity, tf32
    if key not in model.kernel_errors:
        tallier = choose_kernel(choice.name, trial_counting, model.device, tf32=tf32).make()
        model.kernel_errors[key] = kernel_trial.find_disagreement(tallier, trial_counting, model, rounded=tf32)
    difference = model.kernel_errors[key]
    if not difference:
        return choice
    if plan.kernel != AUTO:
        raise StudyError(f"the kernel {choice.name} cannot do this: {difference}: choose --kernel torch")
    plain = choose_kernel("torch", counting, model.device, tf32=tf32)
    return replace(plain, note=f"not {choice.name}: {difference}")


def can_use_tf32(model: Model) -> bool:
    """Return whether a model's products of single-precision numbers can be in TF32 on its device.

    TF32 rounds to eleven bits before each product, which is several times faster on NVIDIA GPUs from 2020 on.
    """
    if model.device.type != "cuda" or model.dtype != "float32":
        return False
    return torch.cuda.get_device_capability(model.device) >= (8, 0)
