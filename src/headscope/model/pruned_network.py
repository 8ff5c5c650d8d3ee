"""Classes and networks of transformers that a pruned model is saved from.

Open the network of which a pruned one is saved, and the folder that is written.

The network that is saved is the one in the model's files, with its head for language or classes, in the dtype of its
files.

Classes of transformers that a network is of, or that open its configuration.
"""

from __future__ import annotations

import copy
import inspect
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.auto import modeling_auto

from headscope.errors import ModelError
from headscope.model import pruned_shapes
from headscope.model.image_patches import Patches
from headscope.model.loading import make_pruned_class, silence_transformers
from headscope.model.model import Model
from headscope.model.model_files import DEFAULT_MODEL, find_default_model


def is_model_for(task: str, network: Any) -> bool:
    """Return whether the class of a network is one for a task, such as `CAUSAL_LM` or `MASKED_LM`."""
    mapping: dict[str, str | tuple[str, ...]] = getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES")
    return any(type(network).__name__ in ([names] if isinstance(names, str) else names) for names in mapping.values())


def get_stock_class(model: Model) -> Any:
    """Return the class of transformers that a model has; a model that was pruned before has a subclass of it."""
    network_class: Any = type(model.network)
    if getattr(model.network.config, pruned_shapes.RECORD, None) is not None:
        bases = network_class.__mro__
        network_class = next((base for base in bases if base.__module__.startswith("transformers.")), network_class)
    if not network_class.__module__.startswith("transformers."):
        raise ModelError(
            f"{model.name}: the model comes with code of its own, and a folder without it would not open: it can be "
            "pruned in memory, but not saved"
        )
    return network_class


def list_auto_classes(config: Any) -> dict[str, Any]:
    """Return the classes with which transformers opens models of a configuration, by the name of the auto class."""
    stock_classes = {}
    for name, auto in vars(modeling_auto).items():
        mapping = getattr(auto, "_model_mapping", None)
        if name.startswith("AutoModel") and mapping is not None and type(config) in mapping:
            mapped = mapping[type(config)]
            stock_class = mapped[0] if isinstance(mapped, (list, tuple)) else mapped
            if getattr(transformers, stock_class.__name__, None) is stock_class:
                stock_classes[name] = stock_class
    return stock_classes


CODE_MODULE = "pruned_heads"
"""the Python module in a saved folder with which transformers opens a pruned model"""


def load_original(model: Model) -> Any:
    """Return an unpruned network to change and save: from the model's files, or a copy if these differ from it."""
    stock_class = get_stock_class(model)
    network = _load_from_files(model)
    if network is not None and _has_same_weights(network, model.network):
        return network
    network = copy.deepcopy(model.network)
    network.__class__ = stock_class
    return network


def _load_from_files(model: Model) -> Any:
    """Load the network as the configuration names it, with all its parts; None if that is not possible."""
    config = model.network.config
    source = find_default_model() if model.name == DEFAULT_MODEL else model.name
    class_name: str = next(iter(getattr(config, "architectures", None) or ()), type(model.network).__name__)
    stock_class: Any = getattr(transformers, class_name, None)
    # A model object that was not loaded from files has no name that could be opened.
    if stock_class is None or not (model.name == DEFAULT_MODEL or bool(getattr(config, "_name_or_path", ""))):
        return None
    try:
        network, info = open_network(source, stock_class, dtype="auto", local_files_only=True)
    except Exception:  # the files are not those that the model was loaded from: the model itself is saved
        return None
    missing = [key for key in info["missing_keys"] if "pooler" not in key]
    return None if missing or info["mismatched_keys"] else network


def _has_same_weights(network: Any, other: Any) -> bool:
    weights, other_weights = (dict(base.named_parameters()) for base in (network.base_model, other.base_model))
    common = [name for name in weights if name in other_weights]
    missing = [name for name in other_weights if name not in weights and "pooler" not in name]
    return not missing and all(
        weights[name].shape == other_weights[name].shape
        and torch.equal(weights[name].to(other_weights[name]), other_weights[name])
        for name in common
    )


def open_network(source: str, stock_class: Any, **options: Any) -> tuple[Any, dict[str, Any]]:
    """Open a network from a folder or the hub's cache; return it and the loading info. No code of the folder is run."""
    with silence_transformers():
        network, info = make_pruned_class(stock_class).from_pretrained(
            source, output_loading_info=True, use_safetensors=True, ignore_mismatched_sizes=True, **options
        )
    network.__class__ = stock_class  # under this name it is saved; its shapes stay those of the pruned model
    return network.eval(), info


def open_saved(model: Model, folder: Path, dtype: torch.dtype) -> tuple[Any, dict[str, Any]]:
    """Open the folder in which a pruned network of this model was saved; return it and the loading info."""
    attention = model.network.config._attn_implementation
    return open_network(str(folder), get_stock_class(model), dtype=dtype, attn_implementation=attention)


def save_network(model: Model, network: Any, folder: Path) -> None:
    """Write a network into a folder, with the model's tokenizer or image processor."""
    with silence_transformers():
        network.save_pretrained(folder)
    preprocessor = model.tokens.processor if isinstance(model.tokens, Patches) else model.tokens.tokenizer
    preprocessor.save_pretrained(folder)


def generate_code(config: Any) -> tuple[str, dict[str, str]]:
    """Return the text of the module that opens a pruned model, and the `auto_map` of config.json that refers to it.

    Both are empty if transformers has no class for the configuration.
    """
    classes = list_auto_classes(config)
    if "AutoModel" not in classes:
        return "", {}
    text = inspect.getsource(pruned_shapes).replace("import torch\n", "import torch\nimport transformers\n", 1)
    for name in sorted({stock_class.__name__ for stock_class in classes.values()}):
        text += f'\n\nclass {name}(PrunedHeads, transformers.{name}):\n    """Without some of its heads."""\n'
    return text, {auto: f"{CODE_MODULE}.{stock_class.__name__}" for auto, stock_class in classes.items()}
