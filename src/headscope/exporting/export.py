"""`headscope.export`: what heads write, or where they look, token by token, in one Parquet file.

A row is a token, a column a head. Texts are read, run and written a few at a time, in their order, so that memory does
not grow with the corpus.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch

from headscope import provenance, registry
from headscope.corpus.documents import Corpus, as_corpus
from headscope.corpus.windows import Batch, Window, WindowMode
from headscope.errors import StudyError, make_nonfinite_error
from headscope.exporting.attention_scores import SCORES, compute_scores, mark_punctuation, mark_targets
from headscope.file_io import check_output_file
from headscope.head_selection import Head, Heads, format_head, parse_heads, select_layers
from headscope.interrupts import defer_interrupts
from headscope.model.head_surgery import get_head_weights
from headscope.model.interventions import resolve_heads
from headscope.model.loading import ModelSource, resolve_model
from headscope.model.model import Model
from headscope.pruning.objective import Documents, check_limit, limit_corpus
from headscope.run.executor import choose_batch_size
from headscope.run.state import CorpusStats
from headscope.settings import AUTO, Settings, check_run_options
from headscope.studies.study import describe_short_texts, fit_settings

What = Literal["outputs", "projected", "attention"]
Precision = Literal["float32", "float16"]
KIND, FORMAT = "export", 1
METADATA = "headscope"
"""key of the manifest among the metadata of the file"""
MAX_BATCH_BYTES = 1 << 26
"""Size of what is written at once, if a batch has more than one text."""
LARGEST_HALF = float(np.finfo(np.float16).max)


def export(
    model: ModelSource,
    documents: Documents,
    path: str | Path,
    *,
    what: What = "outputs",
    heads: Heads | None = None,
    layers: str | None = None,
    field: str = "text",
    length: int = 128,
    windows: WindowMode = "first",
    limit: int | None = None,
    dtype: Precision = "float32",
    batch_size: int | None = None,
    overwrite: bool = False,
    progress: bool | Callable[..., None] | None = None,
    command: str = "",
    allow_unverified: bool = False,
) -> Path:
    """Write what heads write, or where they look, token by token to a Parquet file.

    A row is a token, with document, document_number, window, position, token_id, token and special; and a column of
    vectors for each head, such as `L3H7`. docs/export.md says how to open it.

    Parameters
    ----------
    model
        From `headscope.load`, or a hub name, a folder, `minilm`, or a pair (transformers model, tokenizer).
    documents
        Texts, as `headscope.study` takes them; None for the bundled texts.
    path
        The file. It is there only when it is complete.
    what
        `outputs`: what each head writes before the output projection. `projected`: what it adds to the residual
        stream, its output times its rows of the output projection, without the bias. `attention`: nine scores of where
        each token looks: attends_previous, attends_next, attends_self, attends_first, attends_special,
        attends_punctuation, attends_duplicate, attends_induction and attention_entropy.
    heads
        Which heads, such as `"L3H7,L4"`, or pairs (layer, head); all by default.
    layers
        Which layers, such as `"0,4-5"`; all by default.
    field
        The column, or field, of `documents` that holds the text.
    length, windows
        How documents are cut, as in `headscope.study`.
    limit
        Read at most this many documents.
    dtype
        Numbers in the file: `float32`, or `float16` in half the space.
    batch_size
        Texts per batch. By default as many as there is room for.
    overwrite
        Replace an existing file.
    progress
        True shows it on stderr; a function is called with the current step, how many texts are done, and 0.
    command
        The command line, recorded in the manifest.
    allow_unverified
        Export from a model whose captured heads cannot be verified, which is refused otherwise.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    StudyError
        The file exists or cannot be written, an option makes no sense, or there are no texts.
    ModelError
        The heads cannot be captured, or their output projection is no plain linear map.

    Examples
    --------
    >>> import headscope, pandas, tempfile
    >>> path = tempfile.mkdtemp() + "/heads.parquet"
    >>> file = headscope.export("minilm", ["Two ravens met."], path, heads="L1H6,L2H0")
    >>> table = pandas.read_parquet(file)
    >>> table["token"].tolist()
    ['[CLS]', 'two', 'ravens', 'met', '.', '[SEP]']
    >>> table["L1H6"][0].shape
    (32,)
    """
    # What fits no model is refused before one is loaded.
    target = check_export(path, what=what, dtype=dtype, limit=limit, overwrite=overwrite)
    check_run_options(batch_size, AUTO, 0)
    settings = Settings(length=length, windows=windows)
    named = None if heads is None else parse_heads(heads)
    if named == []:
        raise StudyError("no heads are selected: name at least one, or leave them out to export all")
    loaded = resolve_model(model, allow_unverified=allow_unverified)
    settings = fit_settings(loaded, settings)
    selected = _select(loaded, named, layers)
    corpus = limit_corpus(as_corpus(documents, field), limit)
    exporter = _Exporter.create(loaded, selected, what, dtype)
    stats, texts, tokens = CorpusStats(), 0, 0
    with registry.open_progress(progress) as on_progress, _write_parquet(target) as writer:
        for batch in _read_batches(loaded, corpus, settings, exporter.limit_batch(batch_size, settings.length), stats):
            writer.write(exporter.build_columns(batch), exporter.types)
            texts, tokens = texts + len(batch), tokens + sum(len(row.window) for row in batch)
            if on_progress is not None:
                on_progress("exporting texts", texts, 0)
        if not texts:
            raise StudyError(
                f"{corpus.name}: no {loaded.modality} to run: {stats.documents} documents read"
                f"{stats.describe_skipped()}{describe_short_texts(loaded, corpus, stats, settings)}"
            )
        writer.set_manifest(
            {
                "format": FORMAT,
                "kind": KIND,
                "what": what,
                **({"scores": list(SCORES)} if what == "attention" else {}),
                "numbers": dtype,
                **provenance.describe_model(loaded),
                "length": settings.length,
                "windows": settings.windows,
                "corpus": corpus.name,
                "corpus_hash": f"{stats.content:032x}",
                "limit": corpus.limit or "none",
                "documents_read": stats.documents,
                "documents_skipped": dict(sorted(stats.skipped.items())),
                "texts": texts,
                "tokens": tokens,
                "command": command,
                **provenance.describe_run(),
            }
        )
    return target


def check_export(path: str | Path, *, what: str, dtype: str, limit: int | None, overwrite: bool) -> Path:
    """Return the path; raise a StudyError for options that make no sense, and a file that cannot be written."""
    for name, value, choices in (("what", what, get_args(What)), ("dtype", dtype, get_args(Precision))):
        if value not in choices:
            raise StudyError(f"{name} is {value!r}: choose one of {', '.join(choices)}")
    check_limit(limit)
    target = Path(path)
    check_output_file(target, StudyError)
    if target.exists() and not overwrite:
        raise StudyError(f"{target} is there already: choose another name, or replace it with --overwrite")
    return target


def _select(model: Model, heads: Heads | None, layers: str | None) -> list[Head]:
    """Return the heads to export, layer by layer."""
    architecture = model.architecture
    chosen = architecture.list_heads() if heads is None else resolve_heads(architecture, heads, some_left=False)
    if layers is not None:
        numbers = select_layers(layers, architecture.numbers, f"the model's {architecture.stack}")
        chosen = [head for head in chosen if head[0] in numbers]
    if not chosen:
        raise StudyError("no heads are selected: none of those named is in the layers named")
    return sorted(chosen, key=lambda head: (architecture.numbers.index(head[0]), head[1]))


# -- reading ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Row:
    """A window and where it is from."""

    document: str
    document_number: int
    number: int
    """number of the window in the document"""
    window: Window


def _read_batches(
    model: Model, corpus: Corpus, settings: Settings, size: int, stats: CorpusStats
) -> Iterator[list[_Row]]:
    """Yield the windows of a corpus in their order, at most `size` at a time."""
    waiting: list[_Row] = []
    for number, document in enumerate(corpus):
        stats.add_document(document, 0)
        windows = model.windows(document, settings.cut)
        if isinstance(windows, str):
            stats.add_skipped(windows)
            continue
        waiting += [_Row(document.name, number, k, window) for k, window in enumerate(windows)]
        while len(waiting) >= size:
            yield waiting[:size]
            waiting = waiting[size:]
    if waiting:
        yield waiting


# -- computing --------------------------------------------------------------------------------------------------------


@dataclass
class _Exporter:
    """Runs the model over some texts and returns the columns of their tokens."""

    model: Model
    heads: list[Head]
    what: What
    dtype: Precision
    by_layer: dict[int, list[int]]
    """heads of each layer that is exported; the layer counted from 0"""
    weights: dict[int, torch.Tensor]
    """of what is projected, by layer: (head, width, model's width)"""

    @classmethod
    def create(cls, model: Model, heads: list[Head], what: What, dtype: Precision) -> _Exporter:
        by_layer: dict[int, list[int]] = {}
        for number, head in heads:
            by_layer.setdefault(model.architecture.numbers.index(number), []).append(head)
        projected = by_layer if what == "projected" else {}
        weights = {layer: _get_projections(model, layer, own) for layer, own in projected.items()}
        return cls(model, heads, what, dtype, by_layer, weights)

    @property
    def types(self) -> dict[str, str]:
        """Type of the numbers of each column of vectors, by its name."""
        return dict.fromkeys(map(format_head, self.heads), self.dtype)

    def limit_batch(self, batch_size: int | None, length: int) -> int:
        """Return the number of texts per batch."""
        if batch_size is not None:
            return self.model.limit_batch_size(batch_size)
        width = {"attention": len(SCORES), "outputs": self.model.architecture.width}.get(self.what, 0)
        width = width or max(weights.shape[2] for weights in self.weights.values())
        text_bytes = length * len(self.heads) * width * 4
        size = min(choose_batch_size(self.model, length), max(1, MAX_BATCH_BYTES // text_bytes))
        return self.model.limit_batch_size(size)

    def build_columns(self, rows: Sequence[_Row]) -> dict[str, Any]:
        """Return the columns of the tokens of some texts."""
        vectors: dict[str, list[np.ndarray]] = {format_head(head): [] for head in self.heads}
        for group in _group_alike(rows, mixed=self.model.ignores_padding):
            for name, arrays in self._run([row.window for row in group]).items():
                vectors[name] += arrays
        ids = np.concatenate([row.window.ids for row in rows])
        tokens = self.model.tokens if self._reads_source else self.model.target_tokens
        lengths = [len(row.window) for row in rows]
        return {
            "document": [row.document for row, count in zip(rows, lengths, strict=True) for _ in range(count)],
            "document_number": np.repeat(np.array([row.document_number for row in rows]), lengths),
            "window": np.repeat(np.array([row.number for row in rows]), lengths),
            "position": np.concatenate([np.arange(count) for count in lengths]),
            "token_id": ids,
            "token": tokens.names(ids.tolist()),
            "special": np.concatenate([row.window.special for row in rows]),
            **{name: np.concatenate(arrays) for name, arrays in vectors.items()},
        }

    @property
    def _reads_source(self) -> bool:
        """Whether the tokens of the windows are those of the model's own tokenizer, not of what its decoder writes."""
        return not self.model.needs_targets

    def _run(self, windows: list[Window]) -> dict[str, list[np.ndarray]]:
        """Return the vectors of each head, by its name: (token, width) for each text."""
        vectors: dict[str, list[np.ndarray]] = {}
        causal = self.model.architecture.causal
        marks = [mark_targets(window, mark_punctuation(self.model, window.keys), causal=causal) for window in windows]

        def keep(layer: int, output: torch.Tensor, attention: torch.Tensor) -> None:
            own = self.by_layer.get(layer)
            if own is None:
                return
            number = self.model.architecture.numbers[layer]
            if self.what == "attention":
                _check_maps(attention[:, own], windows, number, own)
                texts = compute_scores(attention[:, own], windows, marks, causal=causal)
            else:
                values = output[:, :, own].float()
                if self.what == "projected":
                    values = torch.einsum("bnhd,hdm->bnhm", values, self.weights[layer])
                arrays = values.cpu().numpy()
                texts = [array[: len(window)] for array, window in zip(arrays, windows, strict=True)]
            for place, head in enumerate(own):
                columns = [self._convert(number, head, array[:, place]) for array in texts]
                vectors[format_head((number, head))] = columns

        self.model.observe(Batch.of(windows, self.model.tokens.pad_id), keep)
        return vectors

    def _convert(self, layer: int, head: int, values: np.ndarray) -> np.ndarray:
        """Return numbers as they are written; raise an error for those that cannot be."""
        if self.what != "attention" and not np.isfinite(values).all():
            raise make_nonfinite_error(layer, head)
        largest = float(np.abs(values).max(initial=0.0))
        if self.dtype == "float16" and largest > LARGEST_HALF:
            raise StudyError(
                f"{format_head((layer, head))} writes numbers up to {largest:,.0f}, and float16 holds no more than "
                f"{LARGEST_HALF:,.0f}: export float32"
            )
        return np.ascontiguousarray(values, dtype=self.dtype)


def _check_maps(maps: torch.Tensor, windows: Sequence[Window], layer: int, heads: Sequence[int]) -> None:
    """Raise an error if attention weights of a text are NaN or infinite."""
    for text, window in enumerate(windows):
        finite = maps[text, :, : len(window), : len(window.keys)].isfinite().flatten(1).all(1)
        if not bool(finite.all()):
            raise make_nonfinite_error(layer, heads[int((~finite).nonzero()[0, 0])], "attention weights")


def _get_projections(model: Model, layer: int, heads: list[int]) -> torch.Tensor:
    """Return these heads' parts of a layer's output projection, (head, width, model's width)."""
    weights = get_head_weights(model, layer, "export outputs instead of projected")
    return weights[heads].float().to(model.device)


def _group_alike(rows: Sequence[_Row], *, mixed: bool) -> Iterator[list[_Row]]:
    """Yield texts that can share a batch, in their order: all of them, or runs of equal length."""
    group: list[_Row] = []
    for row in rows:
        if group and not mixed and row.window.lengths != group[-1].window.lengths:
            yield group
            group = []
        group.append(row)
    yield group


# -- writing ----------------------------------------------------------------------------------------------------------


class _Writer:
    """Writes columns of tokens as row groups of a Parquet file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.writer: Any = None

    def write(self, columns: dict[str, Any], types: dict[str, str]) -> None:
        """Write the columns of some tokens. `types`: of the numbers in columns of vectors."""
        import pyarrow
        import pyarrow.parquet

        integers = {"document_number": "int64", "window": "int32", "position": "int32", "token_id": "int32"}
        arrays = {}
        for name, values in columns.items():
            if name in types:
                flat = pyarrow.array(values.ravel())
                arrays[name] = pyarrow.FixedSizeListArray.from_arrays(flat, values.shape[1])
            elif name in integers:
                arrays[name] = pyarrow.array(values.astype(integers[name]))
            else:
                arrays[name] = pyarrow.array(
                    [value.encode("utf-8", "replace").decode() if isinstance(value, str) else value for value in values]
                )
        table = pyarrow.table(arrays)
        if self.writer is None:
            plain = [name for name in columns if name not in types]
            # Dictionaries help names and ids; vectors do not repeat.
            self.writer = pyarrow.parquet.ParquetWriter(self.path, table.schema, use_dictionary=plain)
        self.writer.write_table(table)

    def set_manifest(self, manifest: dict[str, Any]) -> None:
        """Store the manifest among the metadata of the file."""
        self.writer.add_key_value_metadata({METADATA: json.dumps(manifest, ensure_ascii=False)})

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


@contextmanager
def _write_parquet(target: Path) -> Iterator[_Writer]:
    """Yield a writer of a file beside the target, which replaces it at the end; after an exception it is deleted."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    writer = _Writer(temporary)
    try:
        try:
            yield writer
        finally:
            writer.close()
        with defer_interrupts():
            with open(temporary, "r+b") as file:
                os.fsync(file.fileno())
            os.replace(temporary, target)
    except OSError as reason:
        raise StudyError(f"{target}: cannot be written: {reason.strerror or reason}") from None
    finally:
        with suppress(OSError):  # nothing was written, or it was renamed
            temporary.unlink()


def read_manifest(path: str | Path) -> dict[str, Any]:
    """Return the manifest of an exported file."""
    import pyarrow.parquet

    metadata = pyarrow.parquet.read_metadata(path).metadata or {}
    if METADATA.encode() not in metadata:
        raise StudyError(f"{path}: not a file that headscope exported")
    manifest: dict[str, Any] = json.loads(metadata[METADATA.encode()])
    return manifest
