"""Classes of transformers that a network is of, or that open its configuration."""

from __future__ import annotations

from typing import Any

import transformers
from transformers.models.auto import modeling_auto

from headscope.errors import ModelError
from headscope.model import pruned_shapes
from headscope.model.model import Model


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
