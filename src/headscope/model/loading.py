"""Loading of models: the default one, a local folder, a hub name, or objects already in memory.

Weights come from safetensors. Pickles and code that comes with a model are refused unless explicitly allowed.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import try_to_load_from_cache
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
)
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

from headscope.errors import ModelError
from headscope.model.image_patches import Patches, is_image_network
from headscope.model.model import Model
from headscope.model.model_files import (
    DEFAULT_MODEL,
    check_source,
    find_default_model,
    find_weight_files,
    hash_weight_files,
)
from headscope.model.pruned_shapes import RECORD, PrunedHeads
from headscope.model.tokenizer import ModelTokens

PREDICTING = (AutoModelForSeq2SeqLM, AutoModelForMaskedLM, AutoModelForCausalLM)
"""classes that open models with the part that predicts words"""

ModelSource = Model | str | Path | tuple[Any, ...]
"""what `resolve_model` takes: a loaded model, a name, a folder, or a pair of a transformers model and its tokenizer"""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load(
    name: str | Path | Any = DEFAULT_MODEL,
    tokenizer: Any = None,
    *,
    stack: str | None = None,
    device: str = "auto",
    dtype: str = "float32",
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    objective: bool = False,
) -> Model:
    """Load the default model (`minilm`), a folder or a hub name, or wrap a transformers model and its tokenizer.

    Parameters
    ----------
    name
        Name, folder or transformers model.
    tokenizer
        Its tokenizer; for a model that reads images, its image processor. Required for a transformers model.
    stack
        What is observed of a model with encoder and decoder: `encoder` (the default), `decoder`, or `cross`, the
        decoder's attention to the encoder.
    device, dtype
        Used for models that are loaded here; a transformers model stays on its device, in its type.
    trust_remote_code
        Whether to run code that comes with a model.
    allow_pickle
        Whether to open weights that are not safetensors.
    objective
        Whether to load the part that predicts words, where there is one; heads can be judged by its loss.

    Returns
    -------
    Model

    Raises
    ------
    ModelError
        If there is no such model, its files are incomplete, or it is refused.

    Examples
    --------
    >>> model = load()
    >>> model.architecture.layers, model.architecture.heads
    (6, 12)
    """
    if dtype not in DTYPES:
        raise ModelError(f"unknown dtype {dtype!r}; there are: {', '.join(DTYPES)}")
    if not isinstance(name, (str, Path)):
        return _select_stack(_wrap(name, tokenizer), stack)
    torch_device, given_processor = select_device(device), tokenizer
    # The name means the default model even if the working folder has a folder of that name, which is ./minilm.
    is_default = name == DEFAULT_MODEL
    source = find_default_model() if is_default else os.path.expanduser(name)
    label = DEFAULT_MODEL if is_default else source
    check_source(source, is_path=isinstance(name, Path), allow_pickle=allow_pickle)
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    config = _call_transformers(label, lambda: AutoConfig.from_pretrained(source, **options))
    arguments = {
        **options,
        "config": config,
        "dtype": DTYPES[dtype],
        "attn_implementation": "eager",
        "use_safetensors": None if allow_pickle else True,
        "ignore_mismatched_sizes": True,  # refused below, naming the weight
        "output_loading_info": True,
    }
    network = _load_predicting(label, source, config, arguments) if objective else None
    if network is None:
        network, info = _call_transformers(
            label, lambda: _get_opener(AutoModel, config, trust_remote_code)(source, **arguments)
        )
        _check_complete(label, info)
        _check_surplus(label, network, info)
    _check_finite(label, network)
    network = _select_half(network, tokenizer)
    if tokenizer is None and is_image_network(network):
        # The backend of PIL needs no torchvision, and gives the same pixels on every machine.
        tokenizer = _call_transformers(
            label, lambda: AutoImageProcessor.from_pretrained(source, backend="pil", **options)
        )
    elif tokenizer is None:
        tokenizer = _call_transformers(label, lambda: _load_tokenizer(label, source, config, options))
        _check_tokenizer(label, tokenizer)
    network.to(torch_device).eval()
    origin = None
    if given_processor is None:
        origin = {
            "name": name, "stack": stack, "dtype": dtype, "device": device, **options, "allow_pickle": allow_pickle
        }  # fmt: skip
    loaded = Model(
        label, network, _wrap_processor(label, network, tokenizer), _hash_weights(source, network), origin=origin
    )
    return _select_stack(loaded, stack)


def resolve_model(source: ModelSource, *, objective: bool = False, allow_unverified: bool = False) -> Model:
    """Return the model that a function was called with, loaded if it is not.

    Parameters
    ----------
    source
        A loaded `Model`, which is returned as it is; a name or folder; or a pair of a transformers model (a torch
        module) and its tokenizer, or its image processor if it reads images.
    objective
        Whether to load the part that predicts words, where there is one, of a model given by name.
    allow_unverified
        Whether to accept a model whose captured heads cannot be verified; results of it are marked.

    Raises
    ------
    ModelError
        If it is none of these, cannot be loaded, or its captured heads cannot be verified.

    Examples
    --------
    >>> resolve_model("minilm").architecture.layers
    6
    """
    if isinstance(source, tuple) and len(source) != 2:
        raise ModelError(f"the model is a tuple of {len(source)} objects: give a pair (model, tokenizer)")
    model = (
        source
        if isinstance(source, Model)
        else load(*source if isinstance(source, tuple) else (source,), objective=objective)
    )
    model.check_verified(allow_unverified=allow_unverified)
    return model


def _load_predicting(label: str, source: str, config: Any, arguments: dict[str, Any]) -> Any:
    """Return the network with its part that predicts words.

    Return None if its files name no such class, or lack weights of it.
    """
    names = set(getattr(config, "architectures", None) or ())
    for opener in PREDICTING:
        classes = opener._model_mapping.get(type(config), ())
        if names & {cls.__name__ for cls in (classes if isinstance(classes, (list, tuple)) else (classes,))}:
            network, info = _call_transformers(
                label,
                lambda opener=opener: _get_opener(opener, config, arguments["trust_remote_code"])(source, **arguments),
            )
            if info.get("mismatched_keys") or info.get("missing_keys"):
                return None
            _check_surplus(label, network, info)
            return network
    return None


def _get_opener(auto: Any, config: Any, trusted: bool) -> Any:
    """Return the function that opens a folder.

    The folder of a pruned model contains code, which is not run: our class does the same.
    """
    if trusted or getattr(config, RECORD, None) is None:
        return auto.from_pretrained
    stock = auto._model_mapping[type(config)]
    return make_pruned_class(stock[0] if isinstance(stock, (list, tuple)) else stock).from_pretrained


def make_pruned_class(stock: Any) -> Any:
    """Return a subclass of a transformers class that opens folders of pruned models."""
    return type(stock.__name__, (PrunedHeads, stock), {"__module__": __name__})


def _select_half(network: Any, processor: Any) -> Any:
    """Return the half of a model of texts and images (CLIP) that is studied.

    With an image processor that is the half that reads images, otherwise the one that reads texts.
    """
    halves = [getattr(network, f"{kind}_model", None) for kind in ("text", "vision")]
    if not all(isinstance(half, transformers.PreTrainedModel) for half in halves):
        return network
    return halves[1] if hasattr(getattr(processor, "image_processor", processor), "preprocess") else halves[0]


def _wrap_processor(label: str, network: Any, processor: Any) -> ModelTokens | Patches:
    """Wrap a tokenizer or image processor; a processor of both contains the latter."""
    if not is_image_network(network):
        if not hasattr(processor, "convert_ids_to_tokens"):
            raise ModelError(f"{label} reads texts and needs a tokenizer, not a {type(processor).__name__}")
        return ModelTokens(processor)
    image_processor = getattr(processor, "image_processor", processor)
    if not hasattr(image_processor, "preprocess"):
        raise ModelError(f"{label} reads images and needs an image processor, not a {type(processor).__name__}")
    return Patches(image_processor, network, label)


def _load_tokenizer(label: str, source: str, config: Any, options: dict[str, Any]) -> Any:
    try:
        return AutoTokenizer.from_pretrained(source, **options)
    except (ImportError, ValueError) as error:
        # Without the package, transformers has no tokenizer for some types (Marian), and calls them unrecognized.
        is_needed = "SentencePiece" in str(error) or TOKENIZER_MAPPING_NAMES.get(config.model_type, "") is None
        if is_needed and find_spec("sentencepiece") is None:
            raise ModelError(
                f"{label}: its tokenizer needs the package sentencepiece, which is not installed: "
                "pip install sentencepiece"
            ) from None
        raise


def _select_stack(model: Model, stack: str | None) -> Model:
    return model if stack is None else model.on(stack)


def _wrap(network: Any, tokenizer: Any) -> Model:
    if not isinstance(network, transformers.PreTrainedModel):
        raise ModelError(
            f"cannot load {type(network).__name__}: give a name, a folder, or a transformers model with its tokenizer"
        )
    if tokenizer is None:
        needed = "image processor" if is_image_network(network) else "tokenizer"
        raise ModelError(f"a model object needs its {needed} too: headscope.load(model, {needed.replace(' ', '_')})")
    label = getattr(network.config, "_name_or_path", "") or type(network).__name__
    _check_finite(label, network)
    network = _select_half(network, tokenizer)
    return Model(label, network, _wrap_processor(label, network, tokenizer), _hash_state(network))


def _call_transformers(label: str, call: Any) -> Any:
    """Call a function of transformers and raise its errors as a short `ModelError`."""
    try:
        with silence_transformers():
            return call()
    except ModelError:
        raise
    except Exception as error:  # transformers, huggingface_hub, safetensors and tokenizers raise errors of many kinds
        first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        if "trust_remote_code" in str(error):
            first = "it comes with code of its own. If you trust its source, use --trust-remote-code"
        raise ModelError(
            f"{label}: cannot be loaded: {first}\n`headscope models` lists what can be used right now"
        ) from error


@contextmanager
def silence_transformers() -> Iterator[None]:
    """Silence transformers, within this context: it reports every load at length, and we check what matters."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _check_complete(label: str, info: dict[str, Any]) -> None:
    """Raise if weights are missing: transformers fills them with random numbers, which would be studied."""
    mismatched = sorted(info.get("mismatched_keys", ()))
    if mismatched:
        name, shape, expected = mismatched[0]
        raise ModelError(
            f"{label}: the weight {name} has the shape {tuple(shape)} in its file, where config.json "
            f"asks for {tuple(expected)} (weights with wrong shapes: {len(mismatched)})"
        )
    missing = sorted(key for key in info.get("missing_keys", ()) if "pooler" not in key)
    if missing:
        raise ModelError(
            f"{label}: its files lack {len(missing)} of the model's weights (first: {missing[0]}): "
            "the model would run with random numbers in their place"
        )


def _check_surplus(label: str, network: Any, info: dict[str, Any]) -> None:
    """Raise if the files have weights of layers, or biases, for which the configuration has no place.

    transformers ignores them, as it does those of a classifier; but without some of its layers a model is another one.
    """
    expected, prefix = set(network.state_dict()), f"{network.base_model_prefix}."
    patterns, modules = {_replace_numbers(key) for key in expected}, dict(network.named_modules())
    config = network.config.get_text_config()
    # Layers that predict further words (DeepSeek-V3) come after the others and are no part of the model.
    is_followed = bool(getattr(config, "num_nextn_predict_layers", 0))
    surplus: dict[str, list[int]] = {}
    for key in sorted(info.get("unexpected_keys", ())):
        for name in {key, key.removeprefix(prefix), prefix + key}:
            path, _, kind = name.rpartition(".")
            if kind == "bias" and isinstance(modules.get(path), torch.nn.Linear):
                raise ModelError(
                    f"{label}: its files have a weight {key}, for which its config.json has no place: the model would "
                    "run without its biases. Correct config.json"
                )
            container, number = _find_absent_layer(name, expected) if _replace_numbers(name) in patterns else ("", 0)
            if container and not (is_followed and number >= config.num_hidden_layers):
                surplus.setdefault(container, []).append(number)
    for container, numbers in surplus.items():
        present = len({key.removeprefix(container).split(".")[0] for key in expected if key.startswith(container)})
        first, last = min(numbers), max(numbers)
        raise ModelError(
            f"{label}: its files have weights of {container}{first}{f' to {last}' * (last > first)}, where its "
            f"config.json asks for {present} layers: the model would run without the others. Correct config.json"
        )


def _replace_numbers(key: str) -> str:
    return re.sub(r"\.\d+(?=\.)", ".*", key)


def _find_absent_layer(name: str, expected: set[str]) -> tuple[str, int]:
    """Return the list of layers which lacks a weight's layer, such as `encoder.layer.`, and the layer's number."""
    for match in re.finditer(r"\.(\d+)\.", name):
        if not any(key.startswith(match.string[: match.end()]) for key in expected):
            return name[: match.start() + 1], int(match[1])
    return "", 0


def _check_tokenizer(label: str, tokenizer: Any) -> None:
    """Raise if a tokenizer knows no words: transformers makes such a one where its files are missing."""
    if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
        raise ModelError(
            f"{label}: its tokenizer knows no words: the tokenizer's files (tokenizer.json) are missing. "
            "Save them there with tokenizer.save_pretrained"
        )


def _check_finite(label: str, network: torch.nn.Module) -> None:
    for name, weight in network.named_parameters():
        if weight.is_floating_point() and not bool(torch.isfinite(weight).all()):
            raise ModelError(f"{label}: the weight {name} holds NaN or infinite numbers: results would be meaningless")


def select_device(requested: str) -> torch.device:
    """Return the device of a name; `auto` is a GPU where there is one."""
    if requested == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    kind, _, number = requested.partition(":")
    names = _list_devices()
    if kind == "gpu" or (kind in ("cuda", "mps") and not any(name.startswith(kind) for name in names)):
        unknown = "it is no name of a device" if kind == "gpu" else "there is none"
        raise ModelError(f"device {requested!r} cannot be used here: {unknown}. Available: {', '.join(names)}, or auto")
    if kind == "cuda" and number.isdecimal() and int(number) >= torch.cuda.device_count():
        raise ModelError(
            f"device {requested!r} cannot be used here: GPUs are counted from 0. Available: {', '.join(names)}, or auto"
        )
    try:
        device = torch.device(requested)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, ImportError) as error:  # ImportError: devices that need another package
        is_absent = isinstance(error, NotImplementedError)  # its message is a long list of operators and backends
        reason = "this PyTorch was built without it" if is_absent else str(error).splitlines()[0]
        raise ModelError(
            f"device {requested!r} cannot be used here: {reason}. Available: {', '.join(names)}, or auto"
        ) from None
    return device


def _list_devices() -> list[str]:
    names = ["cpu"]
    if torch.cuda.is_available():
        names += [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        names.append("mps")
    return names


def _hash_weights(source: str, network: Any) -> str:
    """Return the SHA-256 of the weight file, as its publisher states it.

    Of several files, return the hash of their hashes; without files, that of the weights in memory.
    """
    folder = Path(source)
    if not folder.is_dir():  # a hub name, loaded just now: its files are in the cache
        folder = Path(str(try_to_load_from_cache(source, "config.json"))).parent
    files = find_weight_files(folder, getattr(network.config, "transformers_weights", None))
    return hash_weight_files(files) or _hash_state(network)


def _hash_state(network: torch.nn.Module) -> str:
    digest = hashlib.sha256()
    for name, weight in sorted(network.state_dict().items()):
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
        digest.update(weight.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
