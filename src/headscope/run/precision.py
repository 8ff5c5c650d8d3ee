"""How exactly a GPU multiplies single-precision numbers.

TF32 rounds them to eleven bits before each product, which is several times faster on NVIDIA GPUs from 2020 on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from headscope.model.model import Model


def uses_tf32(model: Model) -> bool:
    """Whether it makes a difference for this model."""
    if model.device.type != "cuda" or model.dtype != "float32":
        return False
    return torch.cuda.get_device_capability(model.device) >= (8, 0)


@contextmanager
def use_tf32(tf32: bool) -> Iterator[None]:
    """Within this context products of single-precision matrices are in TF32, or exact; as before on leaving."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
