"""What a saved result says of how it was made: the model, and the machine it ran on."""

from __future__ import annotations

import json
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from headscope.model.model import Model

TRUSTED = {"trust_remote_code": "code that comes with the model", "allow_pickle": "pickled weights"}
"""What is opened or run only where it is asked for by name."""


def of_model(model: Model) -> dict[str, Any]:
    """Which model, and in which numbers."""
    first, role = model.first_token()
    return {
        "model": model.name,
        "model_type": model.type,
        "weight_hash": model.weight_hash,
        "modality": model.modality,
        "tokenizer": model.tokens.name,
        "first_special_token": first,
        "first_token_role": role,
        "stack": model.anatomy.stack,
        "stacks": "+".join(model.stacks),
        "causal": int(model.anatomy.causal),
        "layers": model.anatomy.layers,
        "depth": model.anatomy.depth,
        "heads": model.anatomy.heads,
        "route": "+".join(model.anatomy.routes),
        "verified": int(model.anatomy.verified),
        "dtype": model.dtype,
        "device": device_name(model.device),
        "trusted": ", ".join(words for name, words in TRUSTED.items() if (model.origin or {}).get(name)) or "nothing",
    }


def of_run() -> dict[str, Any]:
    """When and with what."""
    return {
        "headscope": _version("headscope"),
        "versions": json.dumps(
            {name: _version(name) for name in ("torch", "transformers", "numpy", "xarray")}
            | {"python": platform.python_version()}
        ),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "platform": sys.platform,
    }


def device_name(device: torch.device) -> str:
    """Return a device as the manifest names it."""
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
