"""Provenance attributes of saved results: the model, the software versions and the machine."""

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
"""Options that permit running or unpickling foreign code, and their descriptions."""


def describe_model(model: Model) -> dict[str, Any]:
    """Return the attributes of the model, its tokenizer, dtype and device."""
    special_token, token_role = model.first_token()
    return {
        "model": model.name,
        "model_type": model.type,
        "weight_hash": model.weight_hash,
        "modality": model.modality,
        "tokenizer": model.tokens.name,
        "first_special_token": special_token,
        "first_token_role": token_role,
        "stack": model.architecture.stack,
        "stacks": "+".join(model.stacks),
        "causal": int(model.architecture.causal),
        "layers": model.architecture.layers,
        "depth": model.architecture.depth,
        "heads": model.architecture.heads,
        "route": "+".join(model.architecture.routes),
        "verified": int(model.architecture.verified),
        "verified_note": model.architecture.problem,
        "dtype": model.dtype,
        "device": get_device_name(model.device),
        "trusted": ", ".join(description for name, description in TRUSTED.items() if (model.origin or {}).get(name))
        or "nothing",
    }


def describe_run() -> dict[str, Any]:
    """Return the attributes of the run: versions, date and platform."""
    return {
        "headscope": _get_version("headscope"),
        "versions": json.dumps(
            {name: _get_version(name) for name in ("torch", "transformers", "numpy", "xarray")}
            | {"python": platform.python_version()}
        ),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "platform": sys.platform,
    }


def get_device_name(device: torch.device) -> str:
    """Return the name of a device in manifests."""
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)


def _get_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
