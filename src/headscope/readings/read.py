"""Make readings: of a text with a model, or from arrays of the user's own.

Read one text with a model, and keep the outputs and attention maps of all heads.

Readings from arrays of the user's own. Shapes and values are checked, so that a wrong axis raises an error.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import numpy as np
import torch

from headscope import provenance
from headscope.array_types import Floats, Ints
from headscope.corpus import sentences
from headscope.corpus.document import as_picture
from headscope.corpus.formats import Document, is_file_name
from headscope.corpus.windows import Batch, SentenceMode, Window
from headscope.errors import ReadingError, make_nonfinite_error
from headscope.model import token_text
from headscope.model.image_patches import Patches
from headscope.model.loading import ModelSource, resolve_model
from headscope.model.model import Model
from headscope.model.tokenizer import ModelTokens
from headscope.provenance import describe_run
from headscope.readings.files import Source, make_dataset
from headscope.readings.reading import Reading
from headscope.settings import Settings
from headscope.similarity import TAU, THETA, Similarity
from headscope.studies.study import fit_settings
from headscope.tally.output_maps import OutputMap, describe_map


def read(
    model: ModelSource,
    text: Any,
    *,
    target: str | None = None,
    length: int = 128,
    sentences: SentenceMode = "tokens",
    theta: float = THETA,
    tau: float = TAU,
    similarity: Similarity = "dot",
    command: str = "",
    allow_unverified: bool = False,
) -> Reading:
    """Read the beginning of a text, or an image, with a model.

    Parameters
    ----------
    model
        From `headscope.load`, or a hub name, a folder, `minilm`, or a pair (transformers model, tokenizer).
    text
        A string, a pair (source, target) of strings or a `Document`; for a vision model an image, of PIL or an array of
        bytes (height, width, 3).
    target
        What the decoder of an encoder–decoder model is to write for the text, such as its translation. The stacks
        `decoder` and `cross` need it: the reading is of the target's tokens, as the decoder reads them.
    length
        Tokens to read; they are read as one window of a study. The rest of a longer text is left out:
        `Reading.leaves_out` and the repr say so, and `manifest["tokens_in_text"]` is the number of all its tokens.
    sentences
        How sentences are found: from the `tokens` or from the `text`.
    theta, tau
        Thresholds of the reading for high pairs and attention lines; methods can override them.
    similarity
        Of what outputs C is computed, as in `headscope.study`. The reading holds the outputs that it maps.
    command
        The command line, for the manifest.
    allow_unverified
        Measure a model whose captured heads cannot be verified, which is refused otherwise, and mark all results.

    Returns
    -------
    Reading

    Raises
    ------
    ReadingError
        There is nothing to relate in the text, or a threshold is no share.
    ModelError
        The model cannot be loaded or watched.

    Examples
    --------
    >>> import headscope
    >>> reading = headscope.read("minilm", "Two ravens met. The ravens left.")
    >>> reading.similarity.sel(layer=1, head=6, position_i=2, position_j=6).token_i.item()
    'ravens'
    """
    document = _make_document(text, target)
    settings = Settings(length=length, sentences=sentences, min_tokens=1, theta=theta, tau=tau, similarity=similarity)
    loaded = resolve_model(model, allow_unverified=allow_unverified)
    settings = fit_settings(loaded, settings)
    loaded.check_target(has_targets=document.target is not None)
    windows = loaded.windows(document, settings.cut)
    if isinstance(windows, str):  # why there are none
        subject = f"{document.name}:" if document.is_image else "the text is"
        subject = "the" if windows.startswith("target ") else subject
        raise ReadingError(f"{subject} {windows}: there is nothing to relate in it")
    (window,) = windows
    if len(window) < 2:
        raise ReadingError("the text is 1 token, and it takes two (2) to relate: give a longer one")
    batch, output_map = Batch.of([window], loaded.tokens.pad_id), OutputMap.create(loaded, similarity)
    outputs, maps = _capture_heads(loaded, batch, output_map)
    if isinstance(loaded.tokens, Patches):
        spans, words, token_count = None, window.ids, len(window)
        text_read = f"{document.name}, {document.excerpt}"
        labels = loaded.tokens.labels(window.ids)
    else:
        tokens = loaded.tokens if document.target is None else loaded.target_tokens
        full_text = document.target or (text if isinstance(text, str) else document.text)
        spans, words = _locate_tokens(tokens, full_text, length, window)
        token_count = tokens.count(full_text)
        text_read = full_text if spans is None else full_text[: spans.max()]
        labels = tokens.labels(window.ids)
    source = _describe_source(loaded, document, window, length, maps)
    return Reading(
        make_dataset(
            labels=labels,
            ids=window.ids,
            special=window.special,
            sentence=window.sentence,
            word=words,
            spans=spans,
            text=text_read,
            outputs=outputs,
            attention=None if window.crosses else maps,
            source=source,
            layers=loaded.architecture.numbers,
            attributes={
                **provenance.describe_model(loaded),
                "length": settings.length,
                "sentences": sentences,
                "theta": theta,
                "tau": tau,
                "similarity": similarity,
                "similarity_note": describe_map(loaded, similarity),
                "tokens_in_text": token_count,
                **({} if source is None else {"tokens_in_source": source.token_count}),
                "command": command,
                **provenance.describe_run(),
            },
        )
    )


def _describe_source(
    model: Model, document: Document, window: Window, length: int, maps: list[Floats]
) -> Source | None:
    """Return what the encoder read of a document with a target, and cross-attention to it; None without a target."""
    if document.target is None or window.source is None or isinstance(model.tokens, Patches):
        return None
    (encoding,) = model.tokens.encode(document.text, length, all_windows=False, offsets=True)
    text = document.text if encoding.ends is None else document.text[: encoding.ends.max()]
    source = window.source
    return Source(
        text=text,
        labels=model.tokens.labels(source.ids),
        ids=source.ids,
        special=source.special,
        token_count=model.tokens.count(document.text),
        attention=maps if window.crosses else None,
    )


def _make_document(text: Any, target: str | None = None) -> Document:
    if isinstance(text, tuple) and len(text) == 2 and all(isinstance(part, str) for part in text):
        if target is not None:
            raise ReadingError("the text is a pair (source, target), and target is given as well: give one of both")
        text, target = text
    if target is not None:
        if not isinstance(target, str):
            raise ReadingError(f"target is a {type(target).__name__}: give what the decoder is to write as a string")
        return replace(_make_document(text), target=target)
    if isinstance(text, Document):
        return text
    if isinstance(text, str) and is_file_name(text):
        raise ReadingError(
            f"the text is the name of a file, {text!r}: give what is in it. "
            "A text that is such a word is given as headscope.Document(word, name)"
        )
    if isinstance(text, str):
        return Document(text, "the text")
    image = as_picture(text)
    if image is None:
        raise ReadingError(
            f"the text is a {type(text).__name__}: give it as a string; an image as one of PIL, or as an array"
        )
    return Document.from_image(image, "the image")


def _locate_tokens(tokens: ModelTokens, text: str, length: int, window: Window) -> tuple[Ints | None, Ints]:
    """Return start and end of each token in the text (position, 2), if known, and the number of its word (position)."""
    (encoding,) = tokens.encode(text, length, all_windows=False, offsets=True)
    spans = None
    if encoding.starts is not None and encoding.ends is not None:
        spans = np.where(encoding.special[:, None], -1, np.stack([encoding.starts, encoding.ends], axis=1))
    words = tokens.number_words(encoding.ids, encoding.special) if encoding.words is None else encoding.words
    if window.source is not None:  # a decoder first reads a start token, which is not in the text
        spans = None if spans is None else np.concatenate([[[-1, -1]], spans[:-1]])
        words = np.concatenate([[0], words[:-1] + 1])
    return spans, words


def _capture_heads(model: Model, batch: Batch, output_map: OutputMap | None) -> tuple[list[Floats], list[Floats]]:
    """Return, for each layer, outputs (position, head, width) and attention maps (head, query, key) of one text."""
    outputs: list[Floats] = []
    maps: list[Floats] = []
    (window,) = batch.windows

    def record(layer: int, output: torch.Tensor, attention: torch.Tensor) -> None:
        heads = model.architecture.head_counts[layer]
        if output_map is not None:
            output = output_map.apply(layer, output, torch.from_numpy(batch.real).to(output.device))
        layer_output = _to_numpy(output[0, : len(window), :heads])
        is_finite = np.isfinite(layer_output)
        if not is_finite.all():
            raise make_nonfinite_error(
                model.architecture.numbers[layer], int(np.flatnonzero(~is_finite.all(axis=(0, 2)))[0])
            )
        outputs.append(layer_output)
        maps.append(_to_numpy(attention[0, :heads, : len(window), : len(window.keys)]))
        if not np.isfinite(maps[-1].sum()):
            head = int(np.flatnonzero(~np.isfinite(maps[-1].sum(axis=(1, 2))))[0])
            raise make_nonfinite_error(model.architecture.numbers[layer], head, "attention weights")

    model.observe(batch, record)
    return outputs, maps


def _to_numpy(tensor: torch.Tensor) -> Floats:
    # numpy has no bfloat16, and float32 holds every float16 and bfloat16 exactly
    return np.asarray((tensor if tensor.dtype == torch.float64 else tensor.float()).cpu().numpy()).copy()


ROW_SUM_TOLERANCE = 1e-2
"""Rows of an attention map sum to 1 within this tolerance, in any dtype."""


def make_reading(
    tokens: Iterable[str],
    outputs: Any,
    attention: Any,
    *,
    ids: Any,
    special: Any,
    theta: float,
    tau: float,
    name: str,
) -> Reading:
    """Return a reading of arrays; see `Reading.from_arrays`."""
    labels = _validate_tokens(tokens)
    n = len(labels)
    if n < 2:
        raise ReadingError(f"tokens: there {'is one' if n else 'are none'}, and it takes two to relate")
    layer_outputs = _validate_layers("outputs", outputs, "layer, position, head, width")
    if wrong := next((output.shape for output in layer_outputs if len(output) != n), None):
        raise ReadingError(
            f"outputs have the shape {(len(layer_outputs), *wrong)}, and there are {n} tokens: "
            "their axes are (layer, position, head, width)"
        )
    head_counts = [output.shape[1] for output in layer_outputs]
    maps = None if attention is None else _validate_maps(attention, head_counts, n)
    is_special = np.zeros(n, dtype=bool) if special is None else _validate_per_token("special", special, n, "biu")
    is_special = is_special.astype(bool)
    token_ids = _number_by_text(labels) if ids is None else _validate_per_token("ids", ids, n, "iu").astype(np.int64)
    sentence_ends = np.array([token_text.strip_marks(label) in sentences.SENTENCE_ENDS for label in labels], dtype=bool)
    reading = Reading(
        make_dataset(
            labels=labels,
            ids=token_ids,
            special=is_special,
            sentence=sentences.number_by_tokens(sentence_ends),
            word=token_text.number_words_by_marks(labels, is_special),
            spans=None,
            text=" ".join(labels),
            outputs=layer_outputs,
            attention=maps,
            attributes={
                "model": name,
                "layers": len(layer_outputs),
                "heads": max(head_counts),
                "theta": theta,
                "tau": tau,
                "length": n,
                "tokens_in_text": n,
                "sentences": "tokens",
                **describe_run(),
            },
        )
    )
    for threshold in ("theta", "tau"):
        reading._resolve_threshold(threshold, None)
    return reading


def _validate_maps(attention: Any, head_counts: list[int], n: int) -> list[Floats]:
    """Return the attention maps (head, query, key) of each layer, whose rows are probabilities."""
    maps = _validate_layers("attention maps", attention, "layer, head, query, key")
    for k, (layer_maps, heads) in enumerate(zip_longest(maps, head_counts)):
        if layer_maps is None or layer_maps.shape != (heads, n, n):
            shape = (len(maps), *maps[min(k, len(maps) - 1)].shape)
            raise ReadingError(
                f"attention maps have the shape {shape} where the outputs ask for "
                f"{(len(head_counts), heads or head_counts[-1], n, n)}: their axes are (layer, head, query, key)"
            )
    for layer, layer_maps in enumerate(maps):
        sums = layer_maps.sum(axis=-1)
        wrong = np.argwhere((np.abs(sums - 1) > ROW_SUM_TOLERANCE) | (layer_maps < 0).any(axis=-1))
        if len(wrong):
            head, row = wrong[0]
            raise ReadingError(
                f"attention maps: row {row} of L{layer}H{head} holds values from {layer_maps[head, row].min():.3g} and "
                f"sums to {sums[head, row]:.3g}: pass the output of the softmax, without padding; rows are "
                "queries, columns are keys, and each row sums to 1"
            )
    return maps


def _validate_layers(name: str, values: Any, axes: str) -> list[Floats]:
    """Return the arrays of the layers; of a sequence, they may differ in the number and width of their heads."""
    if isinstance(values, (list, tuple)) and len({getattr(layer, "shape", None) for layer in values}) > 1:
        return [_validate_array(f"{name} of layer {k}", [layer], axes)[0] for k, layer in enumerate(values)]
    return list(_validate_array(name, values, axes))


def _validate_array(name: str, values: Any, axes: str) -> Floats:
    """Return an array, or a sequence of arrays of the layers, as one array with four axes."""
    try:
        is_sequence = isinstance(values, (list, tuple))
        array = np.stack([_convert_values(layer) for layer in values]) if is_sequence else _convert_values(values)
    except (TypeError, ValueError, RuntimeError) as error:  # numpy and torch raise different ones
        raise ReadingError(
            f"{name} cannot be combined into one array of ({axes}): {error}. Give arrays of numpy or torch"
        ) from None
    if array.dtype.kind not in "fiu":
        raise ReadingError(
            f"{name} are of the type {array.dtype}: real numbers are needed, in arrays of numpy or torch"
        )
    if array.ndim == 5 and array.shape[1] == 1:  # a batch of one text
        array = array[:, 0]
    if array.ndim != 4 or not array.size:
        raise ReadingError(f"{name} have the shape {array.shape}, where these axes are needed, of one text: ({axes})")
    if not np.isfinite(array).all():
        layer, *position = np.argwhere(~np.isfinite(array))[0].tolist()
        raise ReadingError(
            f"{name} hold a value that is not finite (NaN or infinity) in layer {layer}, at {position}: "
            "leave padding out, and use a wide enough dtype"
        )
    is_narrow = array.dtype in (np.float16, np.float32)
    # A copy: the caller may change the array later.
    return np.array(array, dtype=np.float32 if is_narrow else np.float64, order="C")


def _validate_tokens(tokens: Iterable[str]) -> list[str]:
    if isinstance(tokens, str) or not np.iterable(tokens):
        raise ReadingError(f"tokens are a {type(tokens).__name__}: give a list of strings, one for each position")
    labels = list(tokens)
    for k, label in enumerate(labels):
        if not isinstance(label, str):
            raise ReadingError(f"token {k} is a {type(label).__name__}: tokens are strings; numbers are given as ids=")
    return [str(label) for label in labels]


def _convert_values(values: Any) -> np.ndarray[Any, Any]:
    if hasattr(values, "detach"):  # a torch tensor; numpy has no bfloat16
        tensor = values.detach().cpu()
        return np.asarray((tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy())
    return np.asarray(values)


def _validate_per_token(name: str, values: Any, n: int, kinds: str) -> np.ndarray[Any, Any]:
    """Return values as an array (n) whose dtype is of one of these numpy kinds."""
    try:
        array = _convert_values(values).ravel()
    except ValueError as error:
        raise ReadingError(f"{name} cannot be converted to one array: {error}") from None
    if len(array) != n:
        raise ReadingError(f"{name} has {len(array)} entries for {n} tokens: one for each is needed")
    if array.dtype.kind not in kinds:
        expected = "whole numbers" if kinds == "iu" else "true or false, or 1 or 0"
        raise ReadingError(f"{name} is of the type {array.dtype}: {expected} for each token are needed")
    return array


def _number_by_text(labels: list[str]) -> Ints:
    """Return an id for each token; tokens of equal text have equal ids."""
    numbers = {label: k for k, label in enumerate(dict.fromkeys(labels))}
    return np.array([numbers[label] for label in labels], dtype=np.int64)
