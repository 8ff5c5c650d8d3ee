"""The Triton tallier.

Kernels fill the arrays of one batch, layer by layer; when the batch ends, its sums are added up on the device. The host
reads a batch's results only after the next batch was queued, so that the device never waits for the host.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from headscope.corpus.windows import Batch
from headscope.model.capture.plain_attention import AttentionInputs
from headscope.similarity import NEAR
from headscope.tally.quantities import FIRST_DISTANT, RECENT, SINK
from headscope.tally.tally import Tally, TallySettings
from headscope.tally.triton_backend import launches
from headscope.tally.triton_backend.arrays import SHORT, BatchArrays, TextTensors
from headscope.tally.triton_backend.attention import (
    add_diagonals,
    add_maps,
    add_near_attention,
    add_received,
    attend,
    attend_short,
    fold,
)
from headscope.tally.triton_backend.launches import Launch, compute_divisor, get_step, round_up_to_power
from headscope.tally.triton_backend.pairs import (
    add_positions,
    count_pairs,
    find_all,
    find_dominants,
    find_high,
    find_largest,
    transpose_bits,
)
from headscope.tally.triton_backend.scores import add_scores
from headscope.tally.triton_backend.sums import DeviceSums

T = TypeVar("T")

MAX_LENGTH = 1024
"""tokens of a window; longer windows were not tested"""
HEADS_PER_PROGRAM = 4
"""heads of a text that one program processes one after the other: the outputs of the next head are loaded meanwhile"""
WORDS_PER_STEP = 4
"""words of bits that are counted at once"""
MAX_WIDTH = 256
"""largest width of a head"""


def _use_own_device(method: Callable[..., T]) -> Callable[..., T]:
    """Make the tallier's device the current one, on which kernels are launched."""

    @functools.wraps(method)
    def on_device(self: TritonTallier, *args: Any) -> T:
        with torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext():
            return method(self, *args)

    return on_device


class TritonTallier:
    """Backend that counts all texts and heads of a batch together, on a GPU."""

    def __init__(self, counting: TallySettings, device: torch.device | str = "cuda", *, tf32: bool = False) -> None:
        self.counting, self.device = counting, torch.device(device)
        self.precision = "tf32" if tf32 else "ieee"
        self.sums = DeviceSums(counting, self.device)
        self.stream = _make_stream(self.device)
        self.layer_done: torch.cuda.Event | None = None
        self.pending: BatchArrays | None = None
        self.layers_shown = 0

    @_use_own_device
    def begin(self, batch: Batch) -> None:
        if self.stream is not None:  # kernels of a batch that did not end must not write into this one
            torch.cuda.current_stream().wait_stream(self.stream)
        texts = TextTensors.from_batch(batch, self.counting, self.device)
        self.arrays = BatchArrays(texts, self.counting)

    @_use_own_device
    def observe_layer(self, layer: int, output: Tensor, attention: Tensor) -> None:
        self.layers_shown += 1
        vectors = output.float() if output.dtype == torch.float64 else output
        with self._run_beside_model(vectors, attention):
            self._add_pairs(layer, vectors.contiguous())
            self._add_maps(layer, None, attention.contiguous(), attention.shape[1])
            if len(self.arrays.texts.sampled):
                self.arrays.keep_maps(layer, attention[self.arrays.texts.sampled].float())

    @_use_own_device
    def attend(self, layer: int, question: AttentionInputs) -> Tensor | None:
        """Compute the outputs of attention; maps are computed only while they are summed."""
        query, key, value = (_make_contiguous(tensor) for tensor in (question.query, question.key, question.value))
        if query.dtype == torch.float64 or max(query.shape[3], value.shape[3]) > MAX_WIDTH or question.scaling <= 0:
            return None
        arrays, texts, (count, heads, n, width) = self.arrays, self.arrays.texts, query.shape
        output = query.new_empty((count, n, heads, value.shape[3]))
        contiguous = AttentionInputs(query, key, value, question.mask, question.scaling, question.causal)
        strides = (*query.stride()[:3], *key.stride()[:3], *value.stride()[:3])
        sizes = (
            question.group,
            width,
            value.shape[3],
            round_up_to_power(width, 16),
            round_up_to_power(value.shape[3], 16),
        )
        scaling = question.scaling * math.log2(math.e)
        options: dict[str, Any] = {"CAUSAL": question.causal, "PRECISION": self.precision}
        divisor = compute_divisor(max(width, value.shape[3]), query.dtype, self.device)
        short = n <= SHORT and divisor == 1
        self._wait_for_previous_layer()
        if short:
            launch = launches.attend_short(n, query.dtype)
            tiles = -(-n // launch.rows)
            attend_short[(tiles, len(texts.part_blocks), heads)](
                query, key, value, output, arrays.normals, texts.lengths, texts.order, texts.parts, scaling, *strides,
                heads, arrays.maps, arrays.get_received_parts(tiles), n, *sizes,
                **self._get_tile_options(launch, *sizes[1:3]), **options,
            )  # fmt: skip
        else:
            launch = launches.attend(query.dtype, divisor)
            attend[(-(-n // launch.rows), heads, count)](
                query, key, value, output, arrays.normals, texts.lengths, scaling, *strides, heads, n, *sizes,
                **self._get_tile_options(launch, *sizes[1:3]), **options,
            )  # fmt: skip
        with self._run_beside_model(query, key, value, output):
            if short:
                self._add_received(layer, heads, tiles)
                self._fold_maps(layer)
            else:
                self._add_maps(layer, contiguous, arrays.normals, heads)
            self._add_near_attention(layer, contiguous, arrays.normals, heads)
            self._add_scores(layer, contiguous, arrays.normals, heads)
            self._add_pairs(layer, output)
            if len(texts.sampled):
                arrays.keep_maps(layer, _compute_maps(contiguous, texts.sampled))
        return output

    @_use_own_device
    def end(self) -> None:
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
        self.arrays.send_results()
        self.flush_pending()
        self.pending = self.arrays

    @property
    def pending_batches(self) -> int:
        """How many batches have ended and are not in the sums yet."""
        return int(self.pending is not None)

    @_use_own_device
    def flush_pending(self) -> None:
        """Add the pending batch to the sums, unless a head's outputs are NaN or infinite."""
        arrays, self.pending = self.pending, None
        if arrays is None:
            return
        tokens, nonfinite, blocks = arrays.receive_results()
        if nonfinite.any():
            raise self.counting.make_nonfinite_error(*np.argwhere(nonfinite)[0].tolist())
        self.sums.add(arrays, tokens, blocks)

    def get_sums(self) -> Tally:
        self.flush_pending()
        return self.sums.to_tally()

    @contextmanager
    def _run_beside_model(self, *tensors: Tensor) -> Iterator[None]:
        """Within this context, kernels run in their own stream, while the model computes the next layer."""
        if self.stream is None:
            yield
            return
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            yield
        for tensor in tensors:
            tensor.record_stream(self.stream)
        self.layer_done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self.layer_done.record(self.stream)

    def _wait_for_previous_layer(self) -> None:
        """Wait until the maps and normals of the previous layer are added, before they are overwritten."""
        if self.layer_done is not None:
            torch.cuda.current_stream().wait_event(self.layer_done)

    def _add_pairs(self, layer: int, output: Tensor) -> None:
        arrays, texts = self.arrays, self.arrays.texts
        if self.counting.output_map is not None:
            real = torch.arange(texts.length, device=self.device) < texts.lengths[:, None]
            output = self.counting.output_map.apply(layer, output, real).contiguous()
        count, n, heads, _ = output.shape
        arrays.keep_sampled(layer, output)
        self._find_high(output, arrays.largest[layer], arrays.near[layer])
        rows, words = texts.tile, round_up_to_power(texts.words, 1)
        count_pairs[(-(-n // rows), heads, count)](
            arrays.bits, texts.equal_bits, texts.same_bits, arrays.pair_ends, arrays.counts[layer], heads, n,
            texts.words, ROWS=rows, STEP=min(WORDS_PER_STEP, words), ALL_WORDS=words, num_warps=4,
        )  # fmt: skip
        find_dominants[(heads, count)](
            arrays.pair_ends, texts.token_order, texts.first_positions, texts.lengths, arrays.dominants[layer], heads,
            n, POSITIONS=round_up_to_power(n, 16), num_warps=1 if n <= SHORT else 2,
        )  # fmt: skip
        maps, distances = arrays.location is not None, arrays.position_diagonals[:, layer]
        rows, warps, steps = (16, 2, 1) if maps else (16, 8, 4)
        add_positions[(len(texts.part_blocks), heads, -(-n // (rows * steps)))](
            arrays.bits, texts.order, texts.parts, texts.part_blocks, arrays.position_counts, distances, heads,
            distances.stride(0), n, texts.words, ROWS=rows, ROW_WORDS=words, STEPS=steps, MAPS=maps,
            num_warps=warps,
        )  # fmt: skip
        if maps:
            self._fold(arrays.position_counts, distances, arrays.location, layer)

    def _find_high(self, output: Tensor, largest: Tensor, near: Tensor) -> None:
        """Find the bits of the high elements and each head's largest element, and count the elements near the
        threshold."""
        arrays, texts = self.arrays, self.arrays.texts
        count, n, heads, width = output.shape
        sizes = {"WIDTH": width, "D": round_up_to_power(width, 16)}
        # Products of half-precision numbers are exact; one of single precision takes three of TF32.
        options: dict[str, Any] = {"PRECISION": "tf32x3" if output.dtype == torch.float32 else "ieee"}
        threshold = {"THETA": self.counting.theta, "NEAR": NEAR}
        divisor = compute_divisor(width, output.dtype, self.device)
        if texts.tiles == divisor == 1:
            launch = launches.find_all(texts.tile)
            find_all[(-(-heads // HEADS_PER_PROGRAM), count)](
                output, texts.lengths, largest, arrays.bits, near, heads, n, texts.words,
                TILE=launch.rows, HEADS=HEADS_PER_PROGRAM, **sizes, **threshold, **options, **launch.options,
            )  # fmt: skip
            return
        launch = launches.find_high(output.dtype, divisor)
        grid, tiles = (-(-n // launch.rows), heads, count), texts.words * 32 // launch.columns
        options |= {**self._get_tile_options(launch, width, columns="COLUMNS"), "STEP": get_step(width, output.dtype)}
        find_largest[grid](output, texts.lengths, largest, heads, n, tiles, **sizes, **options)
        find_high[grid](
            output,
            texts.lengths,
            largest,
            arrays.bits,
            near,
            heads,
            n,
            texts.words,
            tiles,
            **sizes,
            **threshold,
            **options,
        )
        transpose_bits[(grid[0] ** 2, heads, count)](
            arrays.bits, heads, n, texts.words, grid[0], ACROSS=launch.rows // 32, num_warps=1
        )

    def _add_maps(self, layer: int, question: AttentionInputs | None, source: Tensor, heads: int) -> None:
        """Sum maps over texts: maps that are computed again, with `source` their normals; or, without a question, the
        maps `source`."""
        arrays, texts, n = self.arrays, self.arrays.texts, self.arrays.texts.length
        query, key, strides, group, width, scaling, causal = _get_map_arguments(question, source)
        divisor = compute_divisor(width, query.dtype, self.device)
        launch = launches.add_maps(n, query.dtype, divisor, precomputed=question is None)
        tiles, diagonals = -(-n // launch.rows), arrays.map_diagonals[:, layer]
        add_maps[(tiles * -(-n // launch.columns), len(texts.part_blocks), heads)](
            query, key, source, source, texts.lengths, texts.order, texts.parts, texts.part_blocks, scaling, *strides,
            heads, arrays.maps, diagonals, diagonals.stride(0), arrays.get_received_parts(tiles), n, tiles, group,
            width, round_up_to_power(width, 16), CAUSAL=causal, PRECISION=self.precision, PRECOMPUTED=question is None,
            MAPS=arrays.attention is not None, **self._get_tile_options(launch, width),
        )  # fmt: skip
        self._add_received(layer, heads, tiles)
        if arrays.attention is not None:
            self._fold_maps(layer)
        if question is None:
            self._add_near_attention(layer, None, source, heads)
            self._add_scores(layer, None, source, heads)

    def _add_received(self, layer: int, heads: int, tiles: int) -> None:
        """Sum what keys received over heads and tiles of rows."""
        arrays, n = self.arrays, self.arrays.texts.length
        keys = min(128, round_up_to_power(n, 16))
        add_received[(-(-n // keys), arrays.texts.count)](
            arrays.get_received_parts(tiles), arrays.received[layer], heads * tiles, n, KEYS=keys, num_warps=1
        )

    def _add_near_attention(self, layer: int, question: AttentionInputs | None, source: Tensor, heads: int) -> None:
        arrays, texts, n = self.arrays, self.arrays.texts, self.arrays.texts.length
        query, key, strides, group, width, scaling, causal = _get_map_arguments(question, source)
        add_near_attention[(heads, texts.count)](
            query, key, source, source, texts.lengths, texts.receiver_keys, arrays.near_attention[layer], scaling,
            *strides, heads, n, group, width, round_up_to_power(width, 16), KEYS=16, CAUSAL=causal,
            PRECOMPUTED=question is None, num_warps=2,
        )  # fmt: skip

    def _add_scores(self, layer: int, question: AttentionInputs | None, source: Tensor, heads: int) -> None:
        arrays, texts, n = self.arrays, self.arrays.texts, self.arrays.texts.length
        query, key, strides, group, width, scaling, _ = _get_map_arguments(question, source)
        divisor = compute_divisor(width, query.dtype, self.device)
        launch = launches.add_scores(n, divisor, precomputed=question is None)
        add_scores[(-(-n // launch.rows), heads, texts.count)](
            query, key, source, source, texts.lengths, texts.score_ids, texts.score_marks, arrays.scores[layer],
            scaling, *strides, heads, n, group, width, round_up_to_power(width, 16), CAUSAL=self.counting.causal,
            PRECISION=self.precision, PRECOMPUTED=question is None, CROSSES=texts.score_texts.crosses,
            FIRST_DISTANT=FIRST_DISTANT, SINK=SINK, RECENT=RECENT, **self._get_tile_options(launch, width),
        )  # fmt: skip

    def _get_tile_options(self, launch: Launch, *widths: int, columns: str = "KEYS") -> dict[str, Any]:
        """Return the options of a kernel that describe its tiles. `UNMASKED`: tiles hold only tokens, so that nothing
        has to be masked."""
        texts = self.arrays.texts
        fitting = texts.length % launch.rows == texts.length % launch.columns == 0
        unmasked = texts.unpadded and fitting and all(width == round_up_to_power(width, 16) for width in widths)
        return {"ROWS": launch.rows, columns: launch.columns, "UNMASKED": unmasked, **launch.options}

    def _fold_maps(self, layer: int) -> None:
        self._fold(self.arrays.maps, self.arrays.map_diagonals[:, layer], self.arrays.attention, layer)

    def _fold(self, maps: Tensor, diagonals: Tensor, target: Tensor | None, layer: int) -> None:
        """Add maps (part, head, i, j) by diagonal to their blocks, and over parts to `target`."""
        parts, heads, n, _ = maps.shape
        width = 64
        add_diagonals[(parts, heads, -(-(2 * n - 1) // width))](
            maps, self.arrays.texts.part_blocks, diagonals, heads, diagonals.stride(0), n, ROWS=32, OFFSETS=width
        )
        if target is not None:
            count, size = heads * n * n, 1024
            fold[(-(-count // size),)](maps, target[layer], parts, count, SIZE=size)


def _compute_maps(question: AttentionInputs, texts: Tensor) -> Tensor:
    """Return the maps of some texts."""
    key = question.key[texts].repeat_interleave(question.group, 1)
    scores = question.query[texts] @ key.transpose(2, 3) * question.scaling
    if question.mask is not None:
        scores = scores + question.mask[texts]
    return scores.softmax(-1, dtype=torch.float32)


def _make_stream(device: torch.device) -> Any:
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]


def _get_map_arguments(
    question: AttentionInputs | None, maps: Tensor
) -> tuple[Tensor, Tensor, tuple[int, ...], int, int, float, bool]:
    """Return the arguments of kernels that compute the maps of a question; placeholders if the maps are given."""
    if question is None:
        return maps, maps, (0,) * 6, 1, 16, 1.0, False
    strides = (*question.query.stride()[:3], *question.key.stride()[:3])
    scaling = question.scaling * math.log2(math.e)
    return question.query, question.key, strides, question.group, question.query.shape[3], scaling, question.causal


def _make_contiguous(tensor: Tensor) -> Tensor:
    """Return a tensor whose last dimension is contiguous, as the kernels read it."""
    return tensor if tensor.stride(3) == 1 else tensor.contiguous()
