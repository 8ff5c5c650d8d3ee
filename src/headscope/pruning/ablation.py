"""`headscope.ablate`: measure what each head is worth to its model by silencing it alone."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xarray as xr

from headscope import provenance, registry
from headscope.array_types import Floats
from headscope.corpus.windows import Batch, Window, WindowMode
from headscope.errors import StudyError
from headscope.head_selection import Head, Heads, parse_heads
from headscope.model.interventions import (
    AblationType,
    LayerReplay,
    check_ablation_type,
    compute_head_means,
    list_heads,
    resolve_heads,
    silenced,
)
from headscope.model.loading import ModelSource, resolve_model
from headscope.model.model import Model
from headscope.pruning.ablation_result import FORMAT, KIND, Ablation, AblationInterrupted, compute_standard_error
from headscope.pruning.objective import (
    DEFAULT_LIMIT,
    CorpusWindows,
    Documents,
    NumberedBatch,
    Objective,
    batch_windows,
    check_limit,
    choose_objective,
    describe_limit,
    read_windows,
    show_warning,
)
from headscope.run.executor import is_out_of_memory
from headscope.settings import AUTO, Settings, check_run_options

ProgressCallback = Callable[[str, int, int], None]
"""called with the name of the step, the number of units done, and the number in all"""


def ablate(
    model: ModelSource,
    documents: Documents = None,
    *,
    heads: Heads | None = None,
    ablation_type: AblationType = "zero",
    field: str = "text",
    length: int = 128,
    windows: WindowMode = "first",
    limit: int | None = DEFAULT_LIMIT,
    batch_size: int | None = None,
    progress: bool | ProgressCallback | None = None,
    on_message: Callable[[str], None] = show_warning,
    command: str = "",
    allow_unverified: bool = False,
) -> Ablation:
    """Silence each head alone and measure how the model's own objective changes on each text.

    The objective is the loss of a model that predicts words, else how far its embedding moves; see
    `headscope.pruning.objective`.

    Parameters
    ----------
    model
        From `headscope.load`, or a hub name, a folder, `minilm`, or a pair (transformers model, tokenizer). A model
        given by name is loaded with the part that predicts words, if it has one, as `load(name, objective=True)` does.
    documents
        Texts, as `headscope.study` takes them; the bundled texts by default.
    field
        The column, or field, of `documents` that holds the text.
    heads
        Heads to silence, such as `"L0H1,L3H4-7"`, a layer `"L3"`, or pairs (layer, head); all by default.
    ablation_type
        What a silenced head writes: `zero`, or `mean`, its mean over these texts.
    length, windows
        How documents are cut, as in `headscope.study`.
    limit
        Read at most this many documents, the first ones, because every head takes a run over all of them; None reads
        all. If the default leaves documents out, `on_message` says so; `Ablation.leaves_out` says it for any limit.
    batch_size
        Texts per batch. By default as many as the device has room for.
    progress
        True shows it on stderr; a function is called with the current step, how much of it is done, and of how much
        in all.
    on_message
        Called with messages for the user; by default they are warnings.
    command
        The command line, recorded in the manifest.
    allow_unverified
        Measure a model whose captured heads cannot be verified, which is refused otherwise, and mark all results.

    Returns
    -------
    Ablation

    Raises
    ------
    Stopped
        Interrupted; its `ablation` has the texts finished until then.

    Examples
    --------
    >>> import headscope
    >>> ablation = headscope.ablate("minilm", ["Two ravens met. The ravens left."], heads="L0H0-1")
    >>> ablation.table()["head"].tolist()
    ['L0H0', 'L0H1']
    """
    # What fits no model is refused before one is loaded.
    check_limit(limit)
    check_run_options(batch_size, AUTO, 0)
    Settings(length=length, windows=windows)
    check_ablation_type(ablation_type)
    named = None if heads is None else parse_heads(heads)
    if named == []:
        raise StudyError("no heads are named: name at least one, or leave them out to silence each in turn")
    loaded = resolve_model(model, objective=True, allow_unverified=allow_unverified)
    architecture = loaded.architecture
    selected = list_heads(architecture) if named is None else resolve_heads(architecture, named, some_left=False)
    corpus = read_windows(loaded, documents, field=field, length=length, windows=windows, limit=limit)
    if corpus.leaves_out and limit == DEFAULT_LIMIT:  # any other was chosen by the user
        on_message(f"{corpus.corpus.name}: {describe_limit(limit)}")
    started = time.monotonic()
    runner = AblationRunner.create(loaded, corpus.windows, ablation_type, batch_size)
    sums = _TextResults(selected)

    def build_result(stopped_by: str = "") -> Ablation:
        attributes = {
            "objective": runner.objective.name,
            "ablation_type": ablation_type,
            "complete": int(not stopped_by),
            "stopped_by": stopped_by,
            "duration_seconds": time.monotonic() - started,
            "command": command,
        }
        return Ablation(_build_dataset(loaded, sums).assign_attrs({**_build_manifest(loaded, corpus), **attributes}))

    try:
        with registry.open_progress(progress) as on_progress:
            for numbered, base, changes in runner.measure_changes(selected, progress=on_progress):
                sums.add(numbered.places, base, changes)
    except KeyboardInterrupt:
        raise AblationInterrupted(build_result("interrupted") if sums.places else None) from None
    return build_result()


@dataclass
class _TextResults:
    """Results of the finished texts."""

    heads: Sequence[Head]
    places: list[int] = field(default_factory=list)
    """positions of the finished texts in the corpus"""
    bases: list[Floats] = field(default_factory=list)
    """objectives of the untouched model, (texts,) for each batch"""
    changes: list[Floats] = field(default_factory=list)
    """(texts, heads) for each batch"""

    def add(self, places: Sequence[int], base: Floats, changes: Floats) -> None:
        self.bases.append(base)
        self.changes.append(changes)
        self.places += places

    def sort_by_place(self) -> tuple[Floats, Floats]:
        order = np.argsort(self.places)
        return np.concatenate(self.bases)[order], np.concatenate(self.changes)[order]


def _build_dataset(model: Model, sums: _TextResults) -> xr.Dataset:
    architecture = model.architecture
    base, changes = sums.sort_by_place()
    texts = len(base)
    all_changes = np.full((texts, architecture.layers, architecture.heads), np.nan)
    for k, (layer, head) in enumerate(sums.heads):
        all_changes[:, architecture.numbers.index(layer), head] = changes[:, k]
    return xr.Dataset(
        {
            "change": (("layer", "head"), all_changes.mean(axis=0)),
            "error": (("layer", "head"), compute_standard_error(all_changes)),
            "change_texts": (("text", "layer", "head"), all_changes.astype(np.float32)),
            "objective": ((), base.mean()),
            "objective_error": ((), compute_standard_error(base)),
            "objective_texts": (("text",), base),
        },
        coords={
            "layer": np.array(architecture.numbers, dtype=np.int64),
            "head": np.arange(architecture.heads),
            "text": np.sort(np.array(sums.places, dtype=np.int64)),
        },
    )


def _build_manifest(model: Model, corpus: CorpusWindows) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "kind": KIND,
        **provenance.describe_model(model),
        "length": corpus.settings.length,
        "windows": corpus.settings.windows,
        "corpus": corpus.corpus.name,
        "corpus_hash": f"{corpus.stats.content:032x}",
        "limit": corpus.corpus.limit or "none",
        "documents_left_out": int(corpus.leaves_out),
        "texts": len(corpus.windows),
        "documents_read": corpus.stats.documents,
        "documents_skipped": json.dumps(dict(sorted(corpus.stats.skipped.items()))),
        **provenance.describe_run(),
    }


# -- measuring --------------------------------------------------------------------------------------------------------


@dataclass
class AblationRunner:
    """A model and texts on which its objective is measured while heads are silenced."""

    model: Model
    objective: Objective
    batches: list[NumberedBatch]
    ablation_type: AblationType = "zero"
    means: Floats | None = None

    @classmethod
    def create(
        cls,
        model: Model,
        windows: Sequence[Window],
        ablation_type: AblationType = "zero",
        batch_size: int | None = None,
        means: Floats | None = None,
    ) -> AblationRunner:
        """Batch the texts, and measure the heads' mean outputs over them if they are needed and not given."""
        check_ablation_type(ablation_type)
        batches = batch_windows(model, windows, batch_size)
        if ablation_type == "mean" and means is None:
            means = compute_head_means(model, (numbered.batch for numbered in batches))
        return cls(model, choose_objective(model), batches, ablation_type, means)

    @property
    def texts(self) -> int:
        return sum(len(numbered.places) for numbered in self.batches)

    def measure_losses(self, heads: Sequence[Head]) -> Floats:
        """Measure the objective of every text, in their order, with these heads silent together: (texts,)."""
        losses = np.zeros(self.texts)
        for numbered in self.batches:
            self.objective.record_baseline(numbered.batch)
            with self._silence(heads):
                losses[numbered.places] = self._measure(numbered.batch)
        return losses

    def measure_changes(
        self, heads: Sequence[Head], *, silent: Sequence[Head] = (), progress: ProgressCallback | None = None
    ) -> Iterator[tuple[NumberedBatch, Floats, Floats]]:
        """Yield for each batch the objective and how it changes when each head alone is silenced.

        Args:
            silent: Heads that are silent throughout.

        Yields:
            The batch, the objective (texts,), and the changes (texts, heads).
        """
        replay, runs = LayerReplay(self.model), 0
        for numbered in self.batches:
            self.objective.record_baseline(numbered.batch)
            with self._silence(silent), replay.record():
                base = self._measure(numbered.batch)
            changes = np.zeros((len(base), len(heads)))
            for k, head in enumerate(heads):
                layer = self.model.architecture.numbers.index(head[0])
                with self._silence([*silent, head]):
                    changes[:, k] = self._measure_from_layer(replay, layer, numbered.batch) - base
                runs += 1
                if progress is not None:
                    progress("silencing heads", runs, len(self.batches) * len(heads))
            yield numbered, base, changes

    def _measure_from_layer(self, replay: LayerReplay, layer: int, batch: Batch) -> Floats:
        if layer in replay.verified:
            with replay.skip_below(layer):
                return self._measure(batch)
        losses = self._measure(batch)
        replay.verify(layer, losses, lambda: self._measure(batch))
        return losses

    def compute_mean_changes(self, heads: Sequence[Head], *, silent: Sequence[Head] = ()) -> Floats:
        """Return the mean over texts of each head's change: (heads,)."""
        total = sum(changes.sum(axis=0) for _, _, changes in self.measure_changes(heads, silent=silent))
        return np.asarray(total / self.texts)

    def _silence(self, heads: Sequence[Head]) -> Any:
        return (
            silenced(self.model, heads, ablation_type=self.ablation_type, means=self.means) if heads else nullcontext()
        )

    def _measure(self, batch: Batch) -> Floats:
        try:
            return self.objective.measure_texts(batch)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise StudyError(
                f"out of memory with {len(batch)} texts of {batch.ids.shape[1]} tokens at once: choose a smaller "
                "--batch-size or --length"
            ) from None
