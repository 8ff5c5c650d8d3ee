"""Location and hash of a model's files. Nothing here needs torch."""

from __future__ import annotations

import hashlib
import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from headscope.corpus.document import Document, make_modality_error
from headscope.errors import ModelError, StudyError
from headscope.model.default_model import DEFAULT_MODEL, WEIGHT_FILES, find_default_model, find_local_files, hash_file

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
