"""`headscope.prune`: make a smaller model without the heads that matter least."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headscope import provenance
from headscope.corpus.documents import as_corpus
from headscope.corpus.windows import Window
from headscope.errors import StudyError
from headscope.head_selection import Head, Heads, format_head, parse_heads
from headscope.model.head_surgery import find_units, make_trial_inputs
from headscope.model.interventions import resolve_heads
from headscope.model.loading import ModelSource, resolve_model
from headscope.model.model import Model
from headscope.pruning.objective import (
    DEFAULT_LIMIT,
    Documents,
    check_limit,
    describe_limit,
    has_more_documents,
    limit_corpus,
    read_windows,
    show_warning,
)
from headscope.pruning.rankings import (
    DEFAULT_RULE,
    RULES,
    STUDY_RULES,
    TEXT_RULES,
    Keep,
    check_keep,
    parse_keep,
    score_heads,
    select_lowest,
    select_lowest_per_layer,
)
from headscope.pruning.removal import How, Removal, check_how, find_division, remove
from headscope.pruning.saved_model import write_folder
from headscope.settings import Settings
from headscope.studies.result import Study, open_study
from headscope.studies.study import study as make_study


@dataclass(frozen=True, eq=False)
class Pruned:
    """A model without some of its heads.

    `headscope.prune` makes one. `network` is the smaller one; `model`, where it came from, is unchanged.

    Examples
    --------
    >>> import headscope
    >>> pruned = headscope.prune("minilm", "L0H1,L5H0-3")
    >>> pruned.manifest["heads_removed"]
    ['L0H1', 'L5H0', 'L5H1', 'L5H2', 'L5H3']
    """

    model: Model
    removal: Removal
    manifest: dict[str, Any]

    @property
    def network(self) -> Any:
        """The smaller transformers model."""
        return self.removal.network

    @property
    def leaves_out(self) -> bool:
        """Whether the heads were ranked without documents beyond the limit, as far as a stream lets this be known."""
        return bool(self.manifest["ranking"].get("documents_left_out"))

    def save(self, folder: str | Path, *, overwrite: bool = False) -> dict[str, Any]:
        """Write a folder that `from_pretrained` opens.

        Parameters
        ----------
        folder
            The folder; it is created if there is none.
        overwrite
            Replace a model that is there.

        Returns
        -------
        dict
            The manifest, in which `form` says how the folder opens.

        Raises
        ------
        StudyError
            The folder cannot be written, or holds other files.

        Examples
        --------
        >>> import headscope, tempfile
        >>> headscope.prune("minilm", "L0H1,L5H0-3").save(tempfile.mkdtemp())["heads_before"]
        72
        """
        return write_folder(self.model, self.removal, self.manifest, Path(folder), overwrite=overwrite)

    def __repr__(self) -> str:
        removed, before = len(self.manifest["heads_removed"]), self.manifest["heads_before"]
        return f"Pruned({self.model.name}: {before - removed} of {before} heads)"


@dataclass(frozen=True)
class _TextOptions:
    documents: Documents
    field: str
    limit: int | None
    length: int


def prune(
    model: ModelSource,
    heads: Heads | None = None,
    *,
    keep: Keep | None = None,
    by: str = DEFAULT_RULE,
    documents: Documents = None,
    field: str = "text",
    study: Study | str | Path | None = None,
    limit: int | None = DEFAULT_LIMIT,
    length: int = 128,
    seed: int = 0,
    per_layer: bool = False,
    how: How = "auto",
    on_message: Callable[[str], None] = show_warning,
    command: str = "",
    allow_unverified: bool = False,
) -> Pruned:
    """Remove the given heads, or all but `keep` of them, those with the lowest scores first.

    Parameters
    ----------
    model
        From `headscope.load`, or a hub name, a folder, `minilm`, or a pair (transformers model, tokenizer).
    heads
        Heads to remove, such as `L0H1,L3H4-7`, a layer `L3`, or pairs (layer, head). Either these or `keep` are given.
    keep
        How many heads to keep: `70%`, 0.7, or a number.
    by
        The score, one of `headscope.pruning.rankings.RULES`; the default is the best that is not slow.
    documents
        Texts on which it is measured, as `headscope.study` takes them; the bundled texts by default. Rules that need a
        study make one of these texts.
    field
        The column, or field, of `documents` that holds the text.
    study
        A study of the model, or where it was saved, used instead of texts by rules that need one: `signal-share` …
    limit
        Read at most this many documents, the first ones; None reads all. If the default leaves documents out,
        `on_message` says so; `Pruned.leaves_out` says it for any limit.
    length
        Tokens of a window.
    seed
        Random seed of the rule `random`.
    per_layer
        Remove the same number in each layer. Then config.json can often describe the result, and the model opens
        anywhere.
    how
        `auto` removes heads where possible and silences the others, `remove` fails where it is not possible, `mask`
        only silences.
    on_message
        Called with messages for the user; by default they are warnings.
    command
        The command line, recorded in the manifest.
    allow_unverified
        Prune a model whose captured heads cannot be verified, which is refused otherwise, and say so in the manifest.

    Returns
    -------
    Pruned

    Raises
    ------
    StudyError
        The request cannot be met, or an option makes no sense.
    ModelError
        The model cannot be loaded or watched.

    Examples
    --------
    >>> import headscope
    >>> headscope.prune("minilm", "L0H1,L5H0-3")
    Pruned(minilm: 67 of 72 heads)
    """
    check_limit(limit)
    Settings(length=length)
    check_request(heads, keep, by, study, how)
    named = None if heads is None else parse_heads(heads)
    loaded = resolve_model(model, objective=needs_objective(keep, by), allow_unverified=allow_unverified)
    ranking: dict[str, Any] = {"by": "named"}
    if named is not None:
        removed = resolve_heads(loaded.architecture, named)
    else:
        assert keep is not None
        texts = _TextOptions(documents, field, limit, length)
        removed, ranking = _select_heads(loaded, keep, by, texts, study, seed, per_layer)
        if ranking.get("documents_left_out") and limit == DEFAULT_LIMIT:  # any other was chosen by the user
            on_message(f"{ranking['corpus']}: {describe_limit(limit)}")
    if not removed:
        raise StudyError("no head is to be removed: keep fewer")
    removal = remove(loaded, removed, how=how)
    return Pruned(loaded, removal, _build_manifest(loaded, removal, sorted(removed), ranking, command))


def check_request(heads: Heads | None, keep: Keep | None, by: str, study: Study | str | Path | None, how: str) -> None:
    """Raise a StudyError for arguments of `prune` that fit no model: before a model is loaded."""
    check_how(how)
    if (heads is None) == (keep is None):
        raise StudyError("say which heads to remove, or how many to keep: one of the two")
    if keep is None:
        return
    if by not in RULES:
        raise StudyError(f"unknown ranking {by!r}; there are: {', '.join(RULES)}")
    check_keep(keep)
    if study is not None and by not in STUDY_RULES:
        raise StudyError(
            f"the ranking {by!r} reads no study: leave the study out, or rank by one of {', '.join(STUDY_RULES)}"
        )


def needs_objective(keep: Keep | None, by: str) -> bool:
    """Return whether `prune` needs the part of a model that predicts words."""
    return keep is not None and by in TEXT_RULES


def _select_heads(
    model: Model,
    keep: Keep,
    by: str,
    texts: _TextOptions,
    study: Study | str | Path | None,
    seed: int,
    per_layer: bool,
) -> tuple[list[Head], dict[str, Any]]:
    """Return the heads to remove, and what the manifest says about the ranking."""
    parse_keep(keep, model.architecture.layers * model.architecture.heads)  # raises before anything is measured
    ranking: dict[str, Any] = {"by": by, "keep": str(keep), "per_layer": per_layer, "seed": seed}
    loaded_study, windows = None, list[Window]()
    if by in STUDY_RULES:
        if study is None:
            own_target = texts.field if model.needs_targets else ""  # as the other rankings read them
            corpus = as_corpus(texts.documents, texts.field, target=own_target)
            loaded_study = make_study(
                model, limit_corpus(corpus, texts.limit), length=texts.length, allow_unverified=True
            )
            count = int(loaded_study.manifest["documents_read"])
            ranking["documents_left_out"] = has_more_documents(corpus, texts.limit, count)
        else:
            loaded_study = open_study(study) if isinstance(study, (str, Path)) else study
        ranking |= {"corpus": str(loaded_study.manifest["corpus"]), "texts": int(loaded_study.texts)}
    elif by in TEXT_RULES:
        read = read_windows(model, texts.documents, field=texts.field, limit=texts.limit, length=texts.length)
        windows = read.windows
        ranking |= {"corpus": read.corpus.name, "texts": len(windows), "documents_left_out": read.leaves_out}
    head_scores = score_heads(model, by, windows, study=loaded_study, seed=seed)
    if np.isneginf(head_scores).all():
        raise StudyError(
            f"the ranking {by!r} is undefined for every head on these texts ({ranking.get('texts', 0)} in all): "
            "give more texts, or longer ones, or choose another ranking"
        )
    units, numbers = find_units(model), model.architecture.numbers
    if per_layer:
        groups = find_division(model.network, units[0], make_trial_inputs(model)).groups
        return select_lowest_per_layer(head_scores, numbers, keep, groups), ranking
    return select_lowest(head_scores, numbers, keep, [unit.layers for unit in units]), ranking


def _build_manifest(
    model: Model, removal: Removal, removed: list[Head], ranking: dict[str, Any], command: str
) -> dict[str, Any]:
    run = provenance.describe_run()
    return {
        "source": model.name,
        "weight_hash": model.weight_hash,
        "model_type": model.type,
        "stack": model.architecture.stack,
        "verified": int(model.architecture.verified),
        "verified_note": model.architecture.problem,
        "heads_before": model.architecture.layers * model.architecture.heads,
        "heads_removed": [format_head(head) for head in removed],
        "layers": [
            {
                "layer": layer.layer,
                "how": layer.how,
                "removed": list(layer.out),
                "silent": list(layer.silent),
                "heads": layer.sizes.heads,
                **({"why": layer.why} if layer.why else {}),
            }
            for layer in removal.layers
        ],
        "ranking": ranking,
        "difference": removal.difference,
        "parameters_before": sum(weight.numel() for weight in model.network.parameters()),
        "parameters_after": sum(weight.numel() for weight in removal.network.parameters()),
        "command": command,
        **run,
        "versions": json.loads(run["versions"]),
    }
