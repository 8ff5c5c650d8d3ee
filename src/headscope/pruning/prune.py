"""`headscope.prune`: make a smaller model without the heads that matter least."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headscope import provenance
from headscope.corpus.documents import as_corpus
from headscope.corpus.windows import Window
from headscope.errors import StudyError
from headscope.model.loading import load
from headscope.model.model import Model
from headscope.pruning.head_names import Head, Heads, format_head, resolve_heads
from headscope.pruning.rankings import RULES, STUDY_RULES, TEXT_RULES, score_heads
from headscope.pruning.removal import How, Removal, remove
from headscope.pruning.removal_units import find_units, make_trial_inputs
from headscope.pruning.saved_model import write_folder
from headscope.pruning.selection import Keep, parse_keep, select_lowest, select_lowest_per_layer
from headscope.pruning.text_batches import DEFAULT_LIMIT, Documents, read_windows
from headscope.pruning.weight_division import find_division
from headscope.studies.result import Study, open_study
from headscope.studies.study import study as make_study


@dataclass(frozen=True, eq=False)
class Pruned:
    """A model without some of its heads. `network` is the smaller one; `model`, where it came from, is unchanged."""

    model: Model
    removal: Removal
    manifest: dict[str, Any]

    @property
    def network(self) -> Any:
        return self.removal.network

    def save(self, folder: str | Path, *, overwrite: bool = False) -> dict[str, Any]:
        """Write a folder that `from_pretrained` opens; return its manifest, in which `form` says how it opens."""
        return write_folder(self.model, self.removal, self.manifest, Path(folder), overwrite=overwrite)

    def __repr__(self) -> str:
        removed, before = len(self.manifest["heads_removed"]), self.manifest["heads_before"]
        return f"Pruned({self.model.name}: {before - removed} of {before} heads)"


@dataclass(frozen=True)
class _TextOptions:
    documents: Documents
    limit: int | None
    length: int


def prune(
    model: Model | str | Path,
    heads: Heads | None = None,
    *,
    keep: Keep | None = None,
    by: str = "snr",
    documents: Documents = None,
    study: Study | str | Path | None = None,
    limit: int | None = DEFAULT_LIMIT,
    length: int = 128,
    seed: int = 0,
    per_layer: bool = False,
    how: How = "auto",
    command: str = "",
) -> Pruned:
    """Remove the given heads, or all but `keep` of them, those with the lowest scores first.

    Args:
        heads: Heads to remove, such as `L0H1,L3H4-7`. Either these or `keep` are given.
        keep: How many heads to keep: `70%`, 0.7, or a number.
        by: The score, one of `headscope.pruning.rankings.RULES`.
        documents: Texts on which it is measured, at most `limit` of them, in windows of `length` tokens; the bundled
            texts by default. Rules that need a study make one of these texts.
        study: A study of the model, used instead.
        per_layer: Remove the same number in each layer. Then config.json can often describe the result, and the model
            opens anywhere.

    >>> import headscope
    >>> headscope.prune("minilm", "L0H1,L5H0-3")
    Pruned(minilm: 67 of 72 heads)
    """
    loaded = model if isinstance(model, Model) else load(model, objective=by in TEXT_RULES)
    if (heads is None) == (keep is None):
        raise StudyError("say which heads to remove, or how many to keep: one of the two")
    ranking: dict[str, Any] = {"by": "named"}
    if heads is not None:
        removed = resolve_heads(loaded.architecture, heads)
    else:
        assert keep is not None
        texts = _TextOptions(documents, limit, length)
        removed, ranking = _select_heads(loaded, keep, by, texts, study, seed, per_layer)
    if not removed:
        raise StudyError("no head is to be removed: keep fewer")
    removal = remove(loaded, removed, how=how)
    return Pruned(loaded, removal, _build_manifest(loaded, removal, sorted(removed), ranking, command))


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
    if by not in RULES:
        raise StudyError(f"unknown ranking {by!r}; there are: {', '.join(RULES)}")
    parse_keep(keep, model.architecture.layers * model.architecture.heads)  # raises before anything is measured
    if study is not None and by not in STUDY_RULES:
        raise StudyError(f"the ranking {by!r} reads no study: leave it out, or rank by {', '.join(STUDY_RULES)}")
    ranking: dict[str, Any] = {"by": by, "keep": str(keep), "per_layer": per_layer, "seed": seed}
    loaded_study, windows = None, list[Window]()
    if by in STUDY_RULES:
        loaded_study = _load_study(model, texts, study)
        ranking |= {"corpus": str(loaded_study.manifest["corpus"]), "texts": int(loaded_study.texts)}
    elif by in TEXT_RULES:
        corpus = read_windows(model, texts.documents, limit=texts.limit, length=texts.length)
        windows = corpus.windows
        ranking |= {"corpus": corpus.corpus.name, "texts": len(windows)}
    head_scores = score_heads(model, by, windows, study=loaded_study, seed=seed)
    units, numbers = find_units(model), model.architecture.numbers
    if per_layer:
        groups = find_division(model.network, units[0], make_trial_inputs(model)).groups
        return select_lowest_per_layer(head_scores, numbers, keep, groups), ranking
    return select_lowest(head_scores, numbers, keep, [unit.layers for unit in units]), ranking


def _load_study(model: Model, texts: _TextOptions, study: Study | str | Path | None) -> Study:
    if isinstance(study, (str, Path)):
        return open_study(Path(study))
    if study is not None:
        return study
    corpus = as_corpus(texts.documents)
    limits = [limit for limit in (corpus.limit, texts.limit) if limit is not None]
    return make_study(model, replace(corpus, limit=min(limits, default=None)), length=texts.length)


def _build_manifest(
    model: Model, removal: Removal, removed: list[Head], ranking: dict[str, Any], command: str
) -> dict[str, Any]:
    run = provenance.describe_run()
    return {
        "source": model.name,
        "weight_hash": model.weight_hash,
        "model_type": model.type,
        "stack": model.architecture.stack,
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
