"""The folder of a pruned model, which `from_pretrained` opens. Of three forms the first that works is taken:

plain       every layer lost as many heads, and config.json can say so: opens as any model does
with code   config.json has a record of the shapes, and `pruned_heads.py` lies beside it: opens with
            trust_remote_code=True, or with `headscope.load`, which does not run that file
masked      heads that cannot be removed have 0 in the output projection: of the same size, opens as any model does
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
from headscope.model.loading import quiet
from headscope.model.model import Model
from headscope.model.patches import Patches
from headscope.model.shrinking import RECORD
from headscope.pruning.changes import Change, record_of
from headscope.pruning.numbers import of_config
from headscope.pruning.removal import Removal
from headscope.pruning.source import CODE, code_of, opened, stock_class, whole_network
from headscope.pruning.units import AGREES, difference, results

MANIFEST = "pruning.json"
Form = Literal["plain", "with code", "masked"]


def write_folder(
    model: Model, removal: Removal, about: dict[str, Any], folder: Path, *, overwrite: bool
) -> dict[str, Any]:
    """Write a pruned model; returns its manifest. It was opened again and held against the masked model."""
    check_place(model.name, folder, overwrite=overwrite)
    with _whole_folder(folder) as waiting:
        network = whole_network(model)
        before = _sizes(network)
        for change in removal.changes:
            change.make(network)
        form, network, found = _write_best(model, removal, network, waiting)
        manifest = {**about, "form": form, "difference": found, "before": before, "after": _sizes(network)}
        (waiting / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8", newline="\n")
    return manifest


def opens_with(form: Form, folder: str | Path) -> list[str]:
    """The lines of Python that open a folder."""
    trusting = ", trust_remote_code=True" * (form == "with code")
    return [f'transformers.AutoModel.from_pretrained("{folder}"{trusting})', f'headscope.load("{folder}")']


def check_place(source: str, folder: Path, *, overwrite: bool) -> None:
    """Refuse, before anything is computed, a folder that holds something else."""
    if folder.exists() and not folder.is_dir():
        raise StudyError(f"{folder} is a file: choose a folder with --out")
    try:
        held = [path.name for path in folder.iterdir()] if folder.exists() else []
        same = folder.exists() and Path(source).exists() and os.path.samefile(source, folder)
    except OSError as error:
        raise StudyError(f"{folder}: cannot be read: {error.strerror or error}. Choose another with --out") from None
    if same:
        raise StudyError(f"{folder} is the model that is pruned: choose another folder with --out")
    if held and not overwrite:
        raise StudyError(f"{folder} is not empty: choose another folder with --out, or replace it with --overwrite")
    if held and MANIFEST not in held:
        raise StudyError(f"{folder} holds no pruned model ({MANIFEST}), and is not replaced: choose another with --out")


@contextmanager
def _whole_folder(folder: Path) -> Iterator[Path]:
    """A folder beside the one asked for, which takes its place when all is written; else nothing is left of it."""
    folder = folder.resolve()
    waiting, old = (folder.with_name(f".{folder.name}.{os.getpid()}{ending}") for ending in ("", ".old"))
    try:
        waiting.mkdir(parents=True)
        yield waiting
        if folder.exists():
            folder.rename(old)
        try:
            waiting.rename(folder)
        except OSError:
            if old.exists():
                old.rename(folder)
            raise
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StudyError(f"{folder}: cannot be written: {reason}. Choose another folder with --out") from None
    finally:
        for left in (waiting, old):
            with suppress(OSError):
                shutil.rmtree(left)


def _write_best(model: Model, removal: Removal, network: Any, folder: Path) -> tuple[Form, Any, float]:
    removed = any(each.how == "removed" for each in removal.layers)
    forms: tuple[Form, ...] = ("plain", "with code", "masked") if removed else ("masked", "with code")
    for form in forms:
        if form == "masked" and removed:
            network = whole_network(model)
            for change in removal.changes:
                Change(zeroed=change.zeroed).make(network)
        config = _config(form, removal, network)
        if config is None:
            continue
        _write(model, network, config, form, folder)
        found = _difference(model, removal, folder)
        if found <= AGREES:
            return form, network, found
        for path in folder.iterdir():
            path.unlink()
    raise ModelError(
        f"{model.name}: a pruned model of the type {model.type!r} does not open as it was saved: it can be pruned in "
        "memory, but not saved"
    )


def _config(form: Form, removal: Removal, network: Any) -> Any:
    """The configuration of a form; None where it cannot say what the network is."""
    config = copy.deepcopy(network.config)
    for name in (RECORD, "auto_map"):  # of a model that was pruned before
        config.__dict__.pop(name, None)
    if form == "plain":
        return _plain_config(removal, network, config)
    record = record_of(network)
    if form == "masked":
        return None if record["shapes"] else config
    setattr(config, RECORD, record)
    config.auto_map = code_of(config)[1]
    return config if config.auto_map else None


def _plain_config(removal: Removal, network: Any, config: Any) -> Any:
    shapes = {(each.before, each.sizes, each.how) for each in removal.layers}
    if len(shapes) > 1:
        return None
    ((before, after, _),) = shapes
    held = config.get_text_config()
    try:
        for name, value in of_config(held, before, after).items():
            setattr(held, name, value)
        if getattr(held, "head_dim", None) is None:
            held.head_dim = after.width
        with torch.device("meta"):
            plain = type(network)(config)
    except Exception:  # a configuration that contradicts itself, each class in its own way
        return None
    wanted = {name: weight.shape for name, weight in network.named_parameters()}
    return config if {name: weight.shape for name, weight in plain.named_parameters()} == wanted else None


def _write(model: Model, network: Any, config: Any, form: Form, folder: Path) -> None:
    network.config = config
    with quiet():
        network.save_pretrained(folder)
    tokens = model.tokens.processor if isinstance(model.tokens, Patches) else model.tokens.tokenizer
    tokens.save_pretrained(folder)
    if form == "with code":
        (folder / f"{CODE}.py").write_text(code_of(config)[0], encoding="utf-8", newline="\n")


def _difference(model: Model, removal: Removal, folder: Path) -> float:
    """How far the folder, opened anew, is from the masked model."""
    try:
        network, info = opened(
            str(folder),
            stock_class(model),
            dtype=removal.expected.dtype,
            attn_implementation=model.network.config._attn_implementation,
        )
        if info["mismatched_keys"]:
            return float("inf")
        return difference(removal.expected, results(network.to(removal.expected.device), removal.inputs)[0])
    except (OSError, SafetensorError):
        raise
    except Exception:  # whatever a class raises whose folder does not fit it
        return float("inf")


def _sizes(network: Any) -> dict[str, int]:
    weights = list(network.parameters())
    return {
        "parameters": sum(weight.numel() for weight in weights),
        "bytes": sum(weight.numel() * weight.element_size() for weight in weights),
    }
