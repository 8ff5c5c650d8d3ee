"""Models: `headscope models` lists them, `headscope paper` holds one against the paper."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from headscope.cli import options


def models(as_json: options.AsJson = False) -> None:
    """List the models that can be used right now, and how to get more."""
    from dataclasses import asdict

    from headscope import terminal
    from headscope.model.available import available

    there = available()
    if as_json:
        options.show(json.dumps([asdict(model) for model in there], indent=2))
    else:
        terminal.show_models(there)


def anatomy(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Hub name, folder, or `minilm`.")] = "minilm",
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    trust_remote_code: options.TrustRemoteCode = False,
    allow_pickle: options.AllowPickle = False,
    as_json: options.AsJson = False,
) -> None:
    """What can be watched of a model: stacks, layers, heads, and the proof that what is seen is what it computes.

    Examples:

        headscope anatomy google-t5/t5-small

        headscope anatomy ./my-model --json | jq '.stacks[].heads'
    """
    from headscope.model.loading import load
    from headscope.terminal_anatomy import described, show_anatomy

    loaded = load(model, device=device, dtype=dtype, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle)
    if as_json:
        options.show(json.dumps(described(loaded), indent=2))
    else:
        show_anatomy(loaded)


def paper(
    model: Annotated[str, typer.Option(help="Hub name, or the folder of a model.")] = "google-bert/bert-base-uncased",
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    trust_remote_code: options.TrustRemoteCode = False,
    allow_pickle: options.AllowPickle = False,
    as_json: options.AsJson = False,
) -> None:
    """The paper's own check: the pairs printed in Fig. 9, recomputed.

    Prints which published pairs of heads 5, 7 and 8 of layer 11 are matched and missing, which others are high, and
    which other choices (θ, special tokens, numbering, …) would match better.

    Exit codes: 0 exactly the published pairs; 3 the check was made and differs; 1 an error that the message explains;
    2 a command not understood.

    Examples:

        headscope paper

        headscope paper --model ./bert-base-uncased

        headscope paper --json | jq '.heads[] | {head, counts}'
    """
    from headscope.errors import ModelError
    from headscope.model.loading import load
    from headscope.readings import paper as figure
    from headscope.terminal_paper import show_check

    try:
        loaded = load(model, device=device, dtype=dtype, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle)
    except ModelError as error:
        raise figure.how_to_get(error, model) from error
    made = figure.check(loaded, command=options.command())
    if as_json:
        options.show_json(figure.as_json(made))
    else:
        show_check(made)
    if not made.agrees:
        raise typer.Exit(options.DIFFERS)
