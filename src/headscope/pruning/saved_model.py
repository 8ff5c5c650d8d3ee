"""Write a pruned model as a folder that `from_pretrained` opens, in the first of three forms that works:

plain       every layer lost as many heads, and config.json can describe the result: opens as any model does
with code   config.json has a record of the shapes, and `pruned_heads.py` is in the folder: opens with
            trust_remote_code=True, or with `headscope.load`, which does not run that file
masked      heads that cannot be removed have 0 in the output projection: same size as before, opens as any model does
"""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError

from headscope.errors import ModelError, StudyError
from headscope.file_io import create_folder
from headscope.model.head_surgery import (
    TOLERANCE,
    Change,
    build_record,
    capture_results,
    collect_config_numbers,
    measure_difference,
)
from headscope.model.model import Model
from headscope.model.pruned_network import CODE_MODULE, generate_code, load_original, open_saved, save_network
from headscope.model.pruned_shapes import RECORD
from headscope.pruning.removal import Removal

MANIFEST = "pruning.json"
Form = Literal["plain", "with code", "masked"]


def write_folder(
    model: Model, removal: Removal, about: dict[str, Any], folder: Path, *, overwrite: bool
) -> dict[str, Any]:
    """Write a pruned model, open it again, and check that it gives what the masked model gives.

    Args:
        about: The manifest without what is only known once the model is saved.

    Returns:
        The manifest.

    Raises:
        StudyError: The folder cannot be written, or contains something else.
        ModelError: No form works for this model. Nothing is written.
    """
    check_output_folder(model.name, folder, overwrite=overwrite)
    with create_folder(folder.resolve().parent, StudyError), _replace_folder(folder) as temporary:
        network = load_original(model)
        before = _count_parameters(network)
        for change in removal.changes:
            change.apply(network)
        form, network, error = _write_first_working_form(model, removal, network, temporary)
        manifest = {
            **about,
            "form": form,
            "difference": error,
            "before": before,
            "after": _count_parameters(network),
        }
        (temporary / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8", newline="\n")
    return manifest


def format_load_code(form: Form, folder: str | Path) -> list[str]:
    """Return the Python expressions that open a folder of this form."""
    trust = ", trust_remote_code=True" * (form == "with code")
    return [f'transformers.AutoModel.from_pretrained("{folder}"{trust})', f'headscope.load("{folder}")']


def check_output_folder(source: str, folder: Path, *, overwrite: bool) -> None:
    """Refuse, before anything is computed, a folder that contains something else or the source model."""
    if folder.exists() and not folder.is_dir():
        raise StudyError(f"{folder} is a file: choose a folder with --output")
    try:
        names = [path.name for path in folder.iterdir()] if folder.exists() else []
        is_source = folder.exists() and Path(source).exists() and os.path.samefile(source, folder)
    except OSError as error:
        raise StudyError(f"{folder}: cannot be read: {error.strerror or error}. Choose another with --output") from None
    if is_source:
        raise StudyError(f"{folder} is the model that is pruned: choose another folder with --output")
    if names and not overwrite:
        raise StudyError(f"{folder} is not empty: choose another folder with --output, or replace it with --overwrite")
    if names and MANIFEST not in names:
        raise StudyError(
            f"{folder} holds no pruned model ({MANIFEST}), and is not replaced: choose another with --output"
        )


@contextmanager
def _replace_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that replaces this one at the end; on errors the old one stays and no trace is left."""
    folder = folder.resolve()
    temporary, old = (folder.with_name(f".{folder.name}.{os.getpid()}{ending}") for ending in ("", ".old"))
    try:
        temporary.mkdir()
        yield temporary
        if folder.exists():
            folder.rename(old)
        try:
            temporary.rename(folder)
        except OSError:
            if old.exists():
                old.rename(folder)
            raise
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StudyError(f"{folder}: cannot be written: {reason}. Choose another folder with --output") from None
    finally:
        for leftover in (temporary, old):
            with suppress(OSError):
                shutil.rmtree(leftover)


def _write_first_working_form(model: Model, removal: Removal, network: Any, folder: Path) -> tuple[Form, Any, float]:
    """Return the form, the network as saved, and its difference from the masked model."""
    has_removed = any(layer.how == "removed" for layer in removal.layers)
    forms: tuple[Form, ...] = ("plain", "with code", "masked") if has_removed else ("masked", "with code")
    for form in forms:
        if form == "masked" and has_removed:
            network = load_original(model)
            for change in removal.changes:
                Change(zeroed=change.zeroed).apply(network)
        config = _make_config(form, removal, network)
        if config is None:
            continue
        _write_form(model, network, config, form, folder)
        error = _measure_saved_difference(model, removal, folder)
        if error <= TOLERANCE:
            return form, network, error
        for path in folder.iterdir():
            path.unlink()
    raise ModelError(
        f"{model.name}: a pruned model of the type {model.type!r} does not open as it was saved: it can be pruned in "
        "memory, but not saved"
    )


def _make_config(form: Form, removal: Removal, network: Any) -> Any:
    """Return the configuration of a form; None where it cannot describe the network."""
    config = copy.deepcopy(network.config)
    for name in (RECORD, "auto_map"):  # set in models that were pruned before
        config.__dict__.pop(name, None)
    if form == "plain":
        return _make_plain_config(removal, network, config)
    record = build_record(network)
    if form == "masked":
        return None if record["shapes"] else config
    setattr(config, RECORD, record)
    config.auto_map = generate_code(config)[1]
    return config if config.auto_map else None


def _make_plain_config(removal: Removal, network: Any, config: Any) -> Any:
    shapes = {(layer.before, layer.sizes, layer.how) for layer in removal.layers}
    if len(shapes) > 1:
        return None
    ((before, after, _),) = shapes
    text_config = config.get_text_config()
    try:
        for name, value in collect_config_numbers(text_config, before, after).items():
            setattr(text_config, name, value)
        if getattr(text_config, "head_dim", None) is None:
            text_config.head_dim = after.width
        with torch.device("meta"):
            plain = type(network)(config)
    except Exception:  # for a configuration that contradicts itself every class raises something else
        return None
    expected = {name: weight.shape for name, weight in network.named_parameters()}
    return config if {name: weight.shape for name, weight in plain.named_parameters()} == expected else None


def _write_form(model: Model, network: Any, config: Any, form: Form, folder: Path) -> None:
    network.config = config
    save_network(model, network, folder)
    if form == "with code":
        (folder / f"{CODE_MODULE}.py").write_text(generate_code(config)[0], encoding="utf-8", newline="\n")


def _measure_saved_difference(model: Model, removal: Removal, folder: Path) -> float:
    """Open the folder and return how far its results are from the masked model's; infinite if it does not run."""
    try:
        network, info = open_saved(model, folder, removal.expected.dtype)
        if info["mismatched_keys"]:
            return float("inf")
        result = capture_results(network.to(removal.expected.device), removal.inputs)[0]
        return measure_difference(removal.expected, result)
    except (OSError, SafetensorError):
        raise
    except Exception:  # a class may raise anything if its folder does not fit
        return float("inf")


def _count_parameters(network: Any) -> dict[str, int]:
    weights = list(network.parameters())
    return {
        "parameters": sum(weight.numel() for weight in weights),
        "bytes": sum(weight.numel() * weight.element_size() for weight in weights),
    }
