"""`headscope models`, `inspect` and `paper`: list models, describe one, and check one against the paper."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from headscope.cli import options
from headscope.errors import ModelError

PAPER_MODEL = "google-bert/bert-base-uncased"
PAPER_MODEL_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt")
"""needed of the model's repository, which has the same weights in other formats too"""


def list_models(as_json: options.AsJson = False) -> None:
    """List the models that can be used now, and how to get more."""
    from dataclasses import asdict

    from headscope.cli.display import console
    from headscope.model.model_files import list_available_models

    models = list_available_models()
    if as_json:
        options.show(json.dumps([asdict(model) for model in models], indent=2))
    else:
        console.show_models(models)


def inspect_model(
    name: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="The model, unless --model names it. Default: minilm.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model: a hub name, a folder, or `minilm`.")] = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    trust_remote_code: options.TrustRemoteCode = False,
    allow_pickle: options.AllowPickle = False,
    as_json: options.AsJson = False,
) -> None:
    """Show which stacks, layers and heads of a model can be observed, and whether that was verified.

    Examples:

        headscope inspect --model google-t5/t5-small

        headscope inspect --model ./my-model --json | jq '.stacks[].heads'
    """
    if name is not None and model is not None:
        raise typer.BadParameter("--model names a model, and so does MODEL: name one of them")
    model = model or name or "minilm"
    options.check_inputs(model, None, length=None, allow_pickle=allow_pickle)

    from headscope.cli.display.models import show_architecture, to_plain_values
    from headscope.model.loading import load

    loaded = load(model, device=device, dtype=dtype, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle)
    if as_json:
        options.show(json.dumps(to_plain_values(loaded), indent=2))
    else:
        show_architecture(loaded)


def check_paper(
    model: Annotated[str, typer.Option(help="Model: a hub name or a folder.")] = PAPER_MODEL,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    trust_remote_code: options.TrustRemoteCode = False,
    allow_pickle: options.AllowPickle = False,
    as_json: options.AsJson = False,
) -> None:
    """Check a model against the paper: recompute the pairs printed in Fig. 9.

    Prints which published pairs of heads 5, 7 and 8 of layer 11 are matched and missing, which other pairs are high,
    and which other choices (θ, special tokens, numbering, …) would match better.

    Exit codes: 0 exactly the published pairs; 3 the check was made and differs; 1 an error that the message explains;
    2 the command was not understood.

    Examples:

        headscope paper

        headscope paper --model ./bert-base-uncased

        headscope paper --json | jq '.heads[] | {head, counts}'
    """
    try:
        options.check_inputs(model, None, length=None, allow_pickle=allow_pickle)

        from headscope.cli.display.models import show_check
        from headscope.model.loading import load
        from headscope.readings import paper_check as figure

        loaded = load(model, device=device, dtype=dtype, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle)
    except ModelError as error:
        raise _add_download_hint(error, model) from error
    check = figure.check(loaded, command=options.get_command_line())
    if as_json:
        options.show_json(figure.as_json(check))
    else:
        show_check(check)
    if not check.agrees:
        raise typer.Exit(options.DIFFERS)


def _add_download_hint(error: ModelError, name: str) -> ModelError:
    """Return the error of a missing model with instructions to download the paper's; other errors unchanged."""
    is_missing = any(phrase in str(error) for phrase in ("cannot be loaded", "no such folder"))
    if not is_missing or Path(name).expanduser().exists():
        return error
    folder = PAPER_MODEL.rpartition("/")[2]
    return ModelError(
        f"{error}\n\n"
        f"The paper's model is {PAPER_MODEL}. On a machine with access to the hub (440 MB):\n\n"
        f"    pip install huggingface_hub\n"
        f"    hf download {PAPER_MODEL} {' '.join(PAPER_MODEL_FILES)} --local-dir {folder}\n\n"
        f"Copy the folder to this machine, then:\n\n"
        f"    headscope paper --model ./{folder}"
    )
