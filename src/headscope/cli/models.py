"""`headscope models`, `inspect` and `paper`: list models, describe one, and check one against the paper."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from headscope.cli import options


def list_models(as_json: options.AsJson = False) -> None:
    """List the models that can be used now, and how to get more."""
    from dataclasses import asdict

    from headscope.cli.display import console
    from headscope.model.model_list import list_available_models

    models = list_available_models()
    if as_json:
        options.show(json.dumps([asdict(model) for model in models], indent=2))
    else:
        console.show_models(models)


def inspect_model(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Hub name, folder, or `minilm`.")] = "minilm",
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    trust_remote_code: options.TrustRemoteCode = False,
    allow_pickle: options.AllowPickle = False,
    as_json: options.AsJson = False,
) -> None:
    """Show what can be observed of a model: stacks, layers, heads, and whether that is verified to be what it computes.

    Examples:

        headscope inspect google-t5/t5-small

        headscope inspect ./my-model --json | jq '.stacks[].heads'
    """
    from headscope.cli.display.architecture import show_architecture, to_plain_values
    from headscope.model.loading import load

    loaded = load(model, device=device, dtype=dtype, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle)
    if as_json:
        options.show(json.dumps(to_plain_values(loaded), indent=2))
    else:
        show_architecture(loaded)


def check_paper(
    model: Annotated[str, typer.Option(help="Hub name, or the folder of a model.")] = "google-bert/bert-base-uncased",
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
    from headscope.cli.display.paper_check import show_check
    from headscope.errors import ModelError
    from headscope.model.loading import load
    from headscope.readings import paper_check as figure

    try:
        loaded = load(model, device=device, dtype=dtype, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle)
    except ModelError as error:
        raise figure.add_download_hint(error, model) from error
    check = figure.check(loaded, command=options.get_command_line())
    if as_json:
        options.show_json(figure.as_json(check))
    else:
        show_check(check)
    if not check.agrees:
        raise typer.Exit(options.DIFFERS)
