"""The network that is saved: with its head for language or classes, in the numeric type of its file."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch
import transformers
from transformers.models.auto import modeling_auto

from headscope.errors import ModelError
from headscope.model import shrinking
from headscope.model.default_model import DEFAULT_MODEL, find_default_model
from headscope.model.loading import quiet, without_heads
from headscope.model.model import Model

CODE = "pruned_heads"
"""the file, without its ending, that opens a pruned model in transformers"""


def whole_network(model: Model) -> Any:
    """A network of its own to change and save: as its files have it, or where they have something else, a copy."""
    stock = stock_class(model)
    held = _from_files(model)
    if held is not None and _same_weights(held, model.network):
        return held
    made = copy.deepcopy(model.network)
    made.__class__ = stock
    return made


def stock_class(model: Model) -> Any:
    """The class of transformers that a model is of; one that was pruned before is of a class made from it."""
    kind: Any = type(model.network)
    if getattr(model.network.config, shrinking.RECORD, None) is not None:
        kind = next((each for each in kind.__mro__ if each.__module__.startswith("transformers.")), kind)
    if not kind.__module__.startswith("transformers."):
        raise ModelError(
            f"{model.name}: the model comes with code of its own, and a folder without it would not open: it can be "
            "pruned in memory, but not saved"
        )
    return kind


def _from_files(model: Model) -> Any:
    config = model.network.config
    source = find_default_model() if model.name == DEFAULT_MODEL else model.name
    named: str = next(iter(getattr(config, "architectures", None) or ()), type(model.network).__name__)
    stock: Any = getattr(transformers, named, None)
    # A model object that never was in a file has no name that could be opened.
    if stock is None or not (model.name == DEFAULT_MODEL or bool(getattr(config, "_name_or_path", ""))):
        return None
    try:
        network, info = opened(source, stock, dtype="auto", local_files_only=True)
    except Exception:  # what lies there is not what the model was made of: the model itself is
        return None
    missing = [key for key in info["missing_keys"] if "pooler" not in key]
    return None if missing or info["mismatched_keys"] else network


def _same_weights(one: Any, other: Any) -> bool:
    first, second = (dict(network.base_model.named_parameters()) for network in (one, other))
    common = [name for name in first if name in second]
    lacking = [name for name in second if name not in first and "pooler" not in name]
    return not lacking and all(
        first[name].shape == second[name].shape and torch.equal(first[name].to(second[name]), second[name])
        for name in common
    )


def opened(source: str, stock: Any, **options: Any) -> tuple[Any, dict[str, Any]]:
    """A network from a folder, or from a hub's cache, by its class; none of a folder's code is run."""
    with quiet():
        network, info = without_heads(stock).from_pretrained(
            source, output_loading_info=True, use_safetensors=True, ignore_mismatched_sizes=True, **options
        )
    network.__class__ = stock  # what it is saved as; heads that went stay away
    return network.eval(), info


def classes_of(config: Any) -> dict[str, Any]:
    """The classes with which transformers opens models of a configuration, by the names of those that choose them."""
    found = {}
    for name, auto in vars(modeling_auto).items():
        mapping = getattr(auto, "_model_mapping", None)
        if name.startswith("AutoModel") and mapping is not None and type(config) in mapping:
            held = mapping[type(config)]
            stock = held[0] if isinstance(held, (list, tuple)) else held
            if getattr(transformers, stock.__name__, None) is stock:
                found[name] = stock
    return found


def code_of(config: Any) -> tuple[str, dict[str, str]]:
    """The file that opens a pruned model in transformers, and the entries of config.json that lead to it."""
    classes = classes_of(config)
    if "AutoModel" not in classes:
        return "", {}
    text = inspect.getsource(shrinking).replace("import torch\n", "import torch\nimport transformers\n", 1)
    for name in sorted({stock.__name__ for stock in classes.values()}):
        text += f'\n\nclass {name}(PrunedHeads, transformers.{name}):\n    """Without some of its heads."""\n'
    return text, {auto: f"{CODE}.{stock.__name__}" for auto, stock in classes.items()}
