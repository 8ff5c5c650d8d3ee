"""Loading a model: the default one, a local folder, a hub name, or objects already in memory.

Weights come from safetensors. Pickles and code that comes with a model are refused unless asked for by name.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
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

from headscope.errors import ModelError
from headscope.model.default_model import DEFAULT_MODEL, find_default_model
from headscope.model.model import Model
from headscope.model.patches import Patches, reads_images
from headscope.model.shrinking import RECORD, PrunedHeads
from headscope.model.source import check_source, find_weight_files, hash_weight_files
from headscope.model.tokens import ModelTokens

PREDICTING = (AutoModelForSeq2SeqLM, AutoModelForMaskedLM, AutoModelForCausalLM)
"""what opens models with the part that predicts words"""

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
    """Load the default model (`minilm`), a folder, a hub name, or wrap a transformers model and its tokenizer; of a
    model that reads images, its image processor stands in the tokenizer's place.

    `stack` chooses what is watched of a model with encoder and decoder: `encoder` (the default), `decoder`, or `cross`,
    the decoder's attention to the encoder. `device` and `dtype` are for models that are loaded here; one that is given
    stays where and as it is. `objective` opens it with the part that predicts words, where it has one: heads can be
    judged by that.

    >>> model = load()
    >>> model.anatomy.layers, model.anatomy.heads
    (6, 12)
    """
    if dtype not in DTYPES:
        raise ModelError(f"unknown numeric type {dtype!r}; there are: {', '.join(DTYPES)}")
    if not isinstance(name, (str, Path)):
        return _on(_wrapped(name, tokenizer), stack)
    place, given = _device(device), tokenizer
    # The default model keeps its name whatever lies in the working folder; a folder of that name is ./minilm.
    is_default = name == DEFAULT_MODEL
    source = find_default_model() if is_default else os.path.expanduser(name)
    label = DEFAULT_MODEL if is_default else source
    check_source(source, is_path=isinstance(name, Path), allow_pickle=allow_pickle)
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    config = _from_hub(label, lambda: AutoConfig.from_pretrained(source, **options))
    asked = {
        **options,
        "config": config,
        "dtype": DTYPES[dtype],
        "attn_implementation": "eager",
        "use_safetensors": None if allow_pickle else True,
        "ignore_mismatched_sizes": True,  # refused below, with the weight's name
        "output_loading_info": True,
    }
    network = _predicting(label, source, config, asked) if objective else None
    if network is None:
        network, info = _from_hub(label, lambda: _opener(AutoModel, config, trust_remote_code)(source, **asked))
        _check_complete(label, info)
    _check_finite(label, network)
    network = _part(network, tokenizer)
    if tokenizer is None and reads_images(network):
        # PIL's: it needs no torchvision, and gives the same pixels on every machine.
        tokenizer = _from_hub(label, lambda: AutoImageProcessor.from_pretrained(source, backend="pil", **options))
    elif tokenizer is None:
        tokenizer = _from_hub(label, lambda: AutoTokenizer.from_pretrained(source, **options))
        _check_tokenizer(label, tokenizer)
    network.to(place).eval()
    origin = None
    if given is None:
        origin = {
            "name": name, "stack": stack, "dtype": dtype, "device": device, **options, "allow_pickle": allow_pickle
        }  # fmt: skip
    made = Model(label, network, _tokens(label, network, tokenizer), _weight_hash(source, network), origin=origin)
    return _on(made, stack)


def _predicting(label: str, source: str, config: Any, asked: dict[str, Any]) -> Any:
    """The network with its part that predicts words; None if its files name no such class, or lack weights of it."""
    named = set(getattr(config, "architectures", None) or ())
    for opener in PREDICTING:
        held = opener._model_mapping.get(type(config), ())
        if named & {kind.__name__ for kind in (held if isinstance(held, (list, tuple)) else (held,))}:
            network, info = _from_hub(
                label, lambda opener=opener: _opener(opener, config, asked["trust_remote_code"])(source, **asked)
            )
            return None if info.get("mismatched_keys") or info.get("missing_keys") else network
    return None


def _opener(auto: Any, config: Any, trusted: bool) -> Any:
    """What opens a folder. One of a pruned model brings code along, which is not run: ours does the same."""
    if trusted or getattr(config, RECORD, None) is None:
        return auto.from_pretrained
    held = auto._model_mapping[type(config)]
    return without_heads(held[0] if isinstance(held, (list, tuple)) else held).from_pretrained


def without_heads(stock: Any) -> Any:
    """A class of transformers that opens pruned folders."""
    return type(stock.__name__, (PrunedHeads, stock), {"__module__": __name__})


def _part(network: Any, given: Any) -> Any:
    """Of a model of texts and images (CLIP), the part that reads texts, or with an image processor that of images."""
    halves = [getattr(network, f"{kind}_model", None) for kind in ("text", "vision")]
    if not all(isinstance(half, transformers.PreTrainedModel) for half in halves):
        return network
    return halves[1] if hasattr(getattr(given, "image_processor", given), "preprocess") else halves[0]


def _tokens(label: str, network: Any, given: Any) -> ModelTokens | Patches:
    """A tokenizer, or of a model that reads images its image processor, alone or within a processor of both."""
    if not reads_images(network):
        if not hasattr(given, "convert_ids_to_tokens"):
            raise ModelError(f"{label} reads texts and needs a tokenizer, not a {type(given).__name__}")
        return ModelTokens(given)
    processor = getattr(given, "image_processor", given)
    if not hasattr(processor, "preprocess"):
        raise ModelError(f"{label} reads images and needs an image processor, not a {type(given).__name__}")
    return Patches(processor, network, label)


def _on(model: Model, stack: str | None) -> Model:
    return model if stack is None else model.on(stack)


def _wrapped(network: Any, tokenizer: Any) -> Model:
    if not isinstance(network, transformers.PreTrainedModel):
        raise ModelError(
            f"cannot load {type(network).__name__}: give a name, a folder, or a transformers model with its tokenizer"
        )
    if tokenizer is None:
        needed = "image processor" if reads_images(network) else "tokenizer"
        raise ModelError(f"a model object needs its {needed} too: headscope.load(model, {needed.replace(' ', '_')})")
    label = getattr(network.config, "_name_or_path", "") or type(network).__name__
    _check_finite(label, network)
    network = _part(network, tokenizer)
    return Model(label, network, _tokens(label, network, tokenizer), _state_hash(network))


def _from_hub(label: str, call: Any) -> Any:
    """Run one transformers call and turn what it raises into a sentence."""
    try:
        with quiet():
            return call()
    except ModelError:
        raise
    except Exception as error:  # transformers, huggingface_hub, safetensors and tokenizers each raise their own kinds
        first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        if "trust_remote_code" in str(error):
            first = "it comes with code of its own. If you trust its source, say --trust-remote-code"
        raise ModelError(
            f"{label}: cannot be loaded: {first}\n`headscope models` lists what can be used right now"
        ) from error


@contextmanager
def quiet() -> Iterator[None]:
    """transformers reports every load at length; what matters of it is checked below and raised."""
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
    """transformers fills weights it does not find with random numbers; a study of those would be a wrong answer."""
    misshapen = sorted(info.get("mismatched_keys", ()))
    if misshapen:
        name, found, expected = misshapen[0]
        raise ModelError(
            f"{label}: the weight {name} has the shape {tuple(found)} in its file, where config.json "
            f"asks for {tuple(expected)} (weights with wrong shapes: {len(misshapen)})"
        )
    missing = sorted(key for key in info.get("missing_keys", ()) if "pooler" not in key)
    if missing:
        raise ModelError(
            f"{label}: its files lack {len(missing)} of the model's weights (first: {missing[0]}): "
            "the model would run with random numbers in their place"
        )


def _check_tokenizer(label: str, tokenizer: Any) -> None:
    """Where its files are missing, transformers makes a tokenizer to which every word is unknown."""
    if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
        raise ModelError(
            f"{label}: its tokenizer knows no words: the tokenizer's files (tokenizer.json) are missing. "
            "Save them there with tokenizer.save_pretrained"
        )


def _check_finite(label: str, network: torch.nn.Module) -> None:
    for name, weight in network.named_parameters():
        if weight.is_floating_point() and not bool(torch.isfinite(weight).all()):
            raise ModelError(
                f"{label}: the weight {name} holds NaN or infinite numbers: nothing made of it would mean anything"
            )


def _device(wanted: str) -> torch.device:
    if wanted == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(wanted)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, ImportError) as error:  # ImportError: of devices that need another package
        absent = isinstance(error, NotImplementedError)  # which goes on about operators and backends
        reason = "this PyTorch was built without it" if absent else str(error).splitlines()[0]
        raise ModelError(f"device {wanted!r} cannot be used here: {reason}. --device auto chooses one") from None
    return device


def _weight_hash(source: str, network: Any) -> str:
    """SHA-256 of the weight file, as its publisher states it; of several, over their hashes; else of the weights."""
    folder = Path(source)
    if not folder.is_dir():  # a hub name, loaded just now: its files lie in the cache
        folder = Path(str(try_to_load_from_cache(source, "config.json"))).parent
    files = find_weight_files(folder, getattr(network.config, "transformers_weights", None))
    return hash_weight_files(files) or _state_hash(network)


def _state_hash(network: torch.nn.Module) -> str:
    digest = hashlib.sha256()
    for name, weight in sorted(network.state_dict().items()):
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
        digest.update(weight.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
