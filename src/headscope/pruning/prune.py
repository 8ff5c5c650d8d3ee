"""`headscope.prune`: a smaller model, without the heads that matter least."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headscope import manifest
from headscope.corpus.documents import as_corpus
from headscope.corpus.windows import Window
from headscope.errors import StudyError
from headscope.model.loading import load
from headscope.model.model import Model
from headscope.pruning.choice import Keep, how_many, least, least_of_each_layer
from headscope.pruning.division import find_division
from headscope.pruning.folder import write_folder
from headscope.pruning.naming import Head, Heads, chosen, name_of
from headscope.pruning.rankings import MEASURED, RULES, STUDIED, scores
from headscope.pruning.removal import How, Removal, remove
from headscope.pruning.texts import LIMIT, Documents, read_windows
from headscope.pruning.units import trial_inputs, units
from headscope.studies.result import Study, open_study
from headscope.studies.study import study as make_study


@dataclass(frozen=True, eq=False)
class Pruned:
    """A model without some of its heads. `network` is the smaller one, the model it came from is as it was."""

    model: Model
    removal: Removal
    manifest: dict[str, Any]

    @property
    def network(self) -> Any:
        return self.removal.network

    def save(self, folder: str | Path, *, overwrite: bool = False) -> dict[str, Any]:
        """Write a folder that `from_pretrained` opens; returns its manifest, which says in which form."""
        return write_folder(self.model, self.removal, self.manifest, Path(folder), overwrite=overwrite)

    def __repr__(self) -> str:
        gone, whole = len(self.manifest["heads_removed"]), self.manifest["heads_before"]
        return f"Pruned({self.model.name}: {whole - gone} of {whole} heads)"


@dataclass(frozen=True)
class _Texts:
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
    limit: int | None = LIMIT,
    length: int = 128,
    seed: int = 0,
    per_layer: bool = False,
    how: How = "auto",
    command: str = "",
) -> Pruned:
    """Remove heads: these (`L0H1,L3H4-7`), or all but `keep` of them (`70%`, 0.7, or a number), the least `by` first.

    `by` is one of `headscope.pruning.rankings.RULES`. It is measured on at most `limit` of the `documents`, the bundled
    texts where none are given, in windows of `length` tokens; the rules that need a study make one of them, unless
    there is a `study`.
    `per_layer` removes as many in each layer: then config.json can often say what the model is, and it opens anywhere.

    >>> import headscope
    >>> headscope.prune("minilm", "L0H1,L5H0-3")
    Pruned(minilm: 67 of 72 heads)
    """
    watched = model if isinstance(model, Model) else load(model, objective=by in MEASURED)
    if (heads is None) == (keep is None):
        raise StudyError("say which heads to remove, or how many to keep: one of the two")
    ranking: dict[str, Any] = {"by": "named"}
    if heads is not None:
        gone = chosen(watched.anatomy, heads)
    else:
        assert keep is not None
        gone, ranking = _ranked(watched, keep, by, _Texts(documents, limit, length), study, seed, per_layer)
    if not gone:
        raise StudyError("no head is to be removed: keep fewer")
    removal = remove(watched, gone, how=how)
    return Pruned(watched, removal, _about(watched, removal, sorted(gone), ranking, command))


def _ranked(
    model: Model,
    keep: Keep,
    by: str,
    texts: _Texts,
    study: Study | str | Path | None,
    seed: int,
    per_layer: bool,
) -> tuple[list[Head], dict[str, Any]]:
    if by not in RULES:
        raise StudyError(f"unknown ranking {by!r}; there are: {', '.join(RULES)}")
    how_many(keep, model.anatomy.layers * model.anatomy.heads)  # refuses before anything is measured
    if study is not None and by not in STUDIED:
        raise StudyError(f"the ranking {by!r} reads no study: leave it out, or rank by {', '.join(STUDIED)}")
    about: dict[str, Any] = {"by": by, "keep": str(keep), "per_layer": per_layer, "seed": seed}
    held, windows = None, list[Window]()
    if by in STUDIED:
        held = _study(model, texts, study)
        about |= {"corpus": str(held.manifest["corpus"]), "texts": int(held.texts)}
    elif by in MEASURED:
        read = read_windows(model, texts.documents, limit=texts.limit, length=texts.length)
        windows = read.windows
        about |= {"corpus": read.corpus.name, "texts": len(windows)}
    found = scores(model, by, windows, study=held, seed=seed)
    parts, numbers = units(model), model.anatomy.numbers
    if per_layer:
        groups = find_division(model.network, parts[0], trial_inputs(model)).groups
        return least_of_each_layer(found, numbers, keep, groups), about
    return least(found, numbers, keep, [unit.layers for unit in parts]), about


def _study(model: Model, texts: _Texts, study: Study | str | Path | None) -> Study:
    if isinstance(study, (str, Path)):
        return open_study(Path(study))
    if study is not None:
        return study
    corpus = as_corpus(texts.documents)
    limits = [most for most in (corpus.limit, texts.limit) if most is not None]
    return make_study(model, replace(corpus, limit=min(limits, default=None)), length=texts.length)


def _about(model: Model, removal: Removal, gone: list[Head], ranking: dict[str, Any], command: str) -> dict[str, Any]:
    run = manifest.of_run()
    return {
        "source": model.name,
        "weight_hash": model.weight_hash,
        "model_type": model.type,
        "stack": model.anatomy.stack,
        "heads_before": model.anatomy.layers * model.anatomy.heads,
        "heads_removed": [name_of(head) for head in gone],
        "layers": [
            {
                "layer": each.layer,
                "how": each.how,
                "removed": list(each.out),
                "silent": list(each.silent),
                "heads": each.sizes.heads,
                **({"why": each.why} if each.why else {}),
            }
            for each in removal.layers
        ],
        "ranking": ranking,
        "difference": removal.difference,
        "parameters_before": sum(weight.numel() for weight in model.network.parameters()),
        "parameters_after": sum(weight.numel() for weight in removal.network.parameters()),
        "command": command,
        **run,
        "versions": json.loads(run["versions"]),
    }
