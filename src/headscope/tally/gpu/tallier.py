"""The tallier of the Triton kernels.

Kernels fill arrays of one batch, layer by layer; when it ends, its sums are added up on the device. The host looks at a
batch's results only when the next one has been queued, so that the device never waits for it.
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
from headscope.model.capture.plain import Question
from headscope.similarity import NEAR
from headscope.tally.gpu import launches
from headscope.tally.gpu.attention import (
    add_diagonals,
    add_maps,
    add_received,
    attend,
    attend_short,
    fold,
    look_beside,
)
from headscope.tally.gpu.held import SHORT, Held
from headscope.tally.gpu.high import find_all, find_high, find_largest, mirror
from headscope.tally.gpu.launches import Launch
from headscope.tally.gpu.pairs import add_places, count_pairs, find_dominants
from headscope.tally.gpu.sums import Sums
from headscope.tally.gpu.texts import Texts
from headscope.tally.gpu.tiles import at_once, narrowing, power_of_two
from headscope.tally.tally import Counting, Tally

T = TypeVar("T")

LARGEST = 1024
"""tokens: longer windows were not tried"""
HEADS = 4
"""of a text, one after the other: what the next one wrote is read meanwhile"""
WORDS = 4
"""of bits, that are counted at once"""
WIDEST = 256
"""a head's width"""


def _there(method: Callable[..., T]) -> Callable[..., T]:
    """Kernels start on the device that is current, which need not be the tallier's."""

    @functools.wraps(method)
    def on_device(self: GpuTallier, *args: Any) -> T:
        with torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext():
            return method(self, *args)

    return on_device


class GpuTallier:
    """All texts and heads of a batch together, on a GPU."""

    def __init__(self, counting: Counting, device: torch.device | str = "cuda", *, tf32: bool = False) -> None:
        self.counting, self.device = counting, torch.device(device)
        self.precision = "tf32" if tf32 else "ieee"
        self.sums = Sums(counting, self.device)
        self.stream = _stream(self.device)
        self.free: torch.cuda.Event | None = None
        self.waiting: Held | None = None
        self.shown = 0

    @_there
    def begin(self, batch: Batch) -> None:
        if self.stream is not None:  # what is left of a batch that did not end must not write into this one
            torch.cuda.current_stream().wait_stream(self.stream)
        texts = Texts.of(batch, self.counting.fraction, self.device, causal=self.counting.causal)
        self.held = Held(texts, self.counting)

    @_there
    def see(self, layer: int, output: Tensor, attention: Tensor) -> None:
        self.shown += 1
        written = output.float() if output.dtype == torch.float64 else output
        with self._beside_the_model(written, attention):
            self._add_pairs(layer, written.contiguous())
            self._add_maps(layer, None, attention.contiguous(), attention.shape[1])
            if len(self.held.texts.chosen):
                self.held.summed_maps[layer] = attention[self.held.texts.chosen].float().sum(1)

    @_there
    def attend(self, layer: int, question: Question) -> Tensor | None:
        """Compute the outputs, and the maps only as they are added up."""
        query, key, value = (_rows(each) for each in (question.query, question.key, question.value))
        if query.dtype == torch.float64 or max(query.shape[3], value.shape[3]) > WIDEST or question.scaling <= 0:
            return None
        held, texts, (count, heads, n, width) = self.held, self.held.texts, query.shape
        output = query.new_empty((count, n, heads, value.shape[3]))
        asked = Question(query, key, value, question.mask, question.scaling, question.causal)
        strides = (*query.stride()[:3], *key.stride()[:3], *value.stride()[:3])
        sizes = (question.group, width, value.shape[3], power_of_two(width, 16), power_of_two(value.shape[3], 16))
        scaling = question.scaling * math.log2(math.e)
        how: dict[str, Any] = {"CAUSAL": question.causal, "PRECISION": self.precision}
        narrow = narrowing(max(width, value.shape[3]), query.dtype, self.device)
        short = n <= SHORT and narrow == 1
        self._wait_for_layer_before()
        if short:
            launch = launches.attend_short(n, query.dtype)
            tiles = -(-n // launch.rows)
            attend_short[(tiles, len(texts.part_blocks), heads)](
                query, key, value, output, held.normals, texts.lengths, texts.order, texts.parts, scaling, *strides,
                heads, held.maps, held.received_from(tiles), n, *sizes, **self._tile(launch, *sizes[1:3]), **how,
            )  # fmt: skip
        else:
            launch = launches.attend(query.dtype, narrow)
            attend[(-(-n // launch.rows), heads, count)](
                query, key, value, output, held.normals, texts.lengths, scaling, *strides, heads, n, *sizes,
                **self._tile(launch, *sizes[1:3]), **how,
            )  # fmt: skip
        with self._beside_the_model(query, key, value, output):
            if short:
                self._add_received(layer, heads, tiles)
                self._fold_maps(layer)
            else:
                self._add_maps(layer, asked, held.normals, heads)
            self._look_beside(layer, asked, held.normals, heads)
            self._add_pairs(layer, output)
            if len(texts.chosen):
                held.summed_maps[layer] = _summed_maps(asked, texts.chosen)
        return output

    @_there
    def end(self) -> None:
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
        self.held.finish()
        self.settle()
        self.waiting = self.held

    @property
    def lag(self) -> int:
        """How many batches have ended and do not count yet."""
        return int(self.waiting is not None)

    @_there
    def settle(self) -> None:
        """Count the batch that is waiting, unless some head of it wrote what is no number."""
        held, self.waiting = self.waiting, None
        if held is None:
            return
        tokens, broken, blocks = held.arrived()
        if broken.any():
            raise self.counting.not_finite(*np.argwhere(broken)[0].tolist())
        self.sums.add(held, tokens, blocks)

    def total(self) -> Tally:
        self.settle()
        return self.sums.tally()

    @contextmanager
    def _beside_the_model(self, *given: Tensor) -> Iterator[None]:
        """Within this context kernels run in a stream of their own, while the model goes on with the next layer."""
        if self.stream is None:
            yield
            return
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            yield
        for tensor in given:
            tensor.record_stream(self.stream)
        self.free = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self.free.record(self.stream)

    def _wait_for_layer_before(self) -> None:
        """Its maps and normals must have been added before they are written again."""
        if self.free is not None:
            torch.cuda.current_stream().wait_event(self.free)

    def _add_pairs(self, layer: int, output: Tensor) -> None:
        held, texts = self.held, self.held.texts
        count, n, heads, _ = output.shape
        held.keep(layer, output)
        self._find_high(output, held.largest[layer], held.near[layer])
        rows, words = texts.tile, power_of_two(texts.words, 1)
        count_pairs[(-(-n // rows), heads, count)](
            held.bits, texts.equal, texts.same, held.ends, held.counts[layer], heads, n, texts.words,
            ROWS=rows, SOME=min(WORDS, words), ALL=words, num_warps=4,
        )  # fmt: skip
        find_dominants[(heads, count)](
            held.ends, texts.by_token, texts.firsts, texts.lengths, held.dominants[layer], heads, n,
            PLACES=power_of_two(n, 16), num_warps=1 if n <= SHORT else 2,
        )  # fmt: skip
        maps, distances = held.location is not None, held.place_diagonals[:, layer]
        rows, warps, steps = (16, 2, 1) if maps else (16, 8, 4)
        add_places[(len(texts.part_blocks), heads, -(-n // (rows * steps)))](
            held.bits, texts.order, texts.parts, texts.part_blocks, held.places, distances, heads,
            distances.stride(0), n, texts.words, ROWS=rows, W=words, STEPS=steps, MAPS=maps,
            num_warps=warps,
        )  # fmt: skip
        if maps:
            self._fold(held.places, distances, held.location, layer)

    def _find_high(self, output: Tensor, largest: Tensor, near: Tensor) -> None:
        """Bits of the high elements, each head's largest element, and how many are near the threshold."""
        held, texts = self.held, self.held.texts
        count, n, heads, width = output.shape
        sizes = {"WIDTH": width, "D": power_of_two(width, 16)}
        # Products of half-precision numbers are exact; those of single precision need three of TF32.
        how: dict[str, Any] = {"PRECISION": "tf32x3" if output.dtype == torch.float32 else "ieee"}
        threshold = {"THETA": self.counting.theta, "NEAR": NEAR}
        narrow = narrowing(width, output.dtype, self.device)
        if texts.tiles == narrow == 1:
            launch = launches.find_all(texts.tile)
            find_all[(-(-heads // HEADS), count)](
                output, texts.lengths, largest, held.bits, near, heads, n, texts.words,
                TILE=launch.rows, HEADS=HEADS, **sizes, **threshold, **how, **launch.options,
            )  # fmt: skip
            return
        launch = launches.find_high(output.dtype, narrow)
        grid, tiles = (-(-n // launch.rows), heads, count), texts.words * 32 // launch.columns
        how |= {**self._tile(launch, width, columns="COLUMNS"), "WIDE": at_once(width, output.dtype)}
        find_largest[grid](output, texts.lengths, largest, heads, n, tiles, **sizes, **how)
        find_high[grid](
            output, texts.lengths, largest, held.bits, near, heads, n, texts.words, tiles, **sizes, **threshold, **how
        )
        mirror[(grid[0] ** 2, heads, count)](
            held.bits, heads, n, texts.words, grid[0], ACROSS=launch.rows // 32, num_warps=1
        )

    def _add_maps(self, layer: int, question: Question | None, given: Tensor, heads: int) -> None:
        """Add maps that are computed again, `given` their normals; or maps that are given."""
        held, texts, n = self.held, self.held.texts, self.held.texts.length
        query, key, strides, group, width, scaling, causal = _asked(question, given)
        narrow = narrowing(width, query.dtype, self.device)
        launch = launches.add_maps(n, query.dtype, narrow, given=question is None)
        tiles, diagonals = -(-n // launch.rows), held.map_diagonals[:, layer]
        add_maps[(tiles * -(-n // launch.columns), len(texts.part_blocks), heads)](
            query, key, given, given, texts.lengths, texts.order, texts.parts, texts.part_blocks, scaling, *strides,
            heads, held.maps, diagonals, diagonals.stride(0), held.received_from(tiles), n, tiles, group, width,
            power_of_two(width, 16), CAUSAL=causal, PRECISION=self.precision, GIVEN=question is None,
            MAPS=held.attention is not None, **self._tile(launch, width),
        )  # fmt: skip
        self._add_received(layer, heads, tiles)
        if held.attention is not None:
            self._fold_maps(layer)
        if question is None:
            self._look_beside(layer, None, given, heads)

    def _add_received(self, layer: int, heads: int, tiles: int) -> None:
        """Add up what keys received from all heads, each in so many tiles of rows."""
        held, n = self.held, self.held.texts.length
        keys = min(128, power_of_two(n, 16))
        add_received[(-(-n // keys), held.texts.count)](
            held.received_from(tiles), held.received[layer], heads * tiles, n, KEYS=keys, num_warps=1
        )

    def _look_beside(self, layer: int, question: Question | None, given: Tensor, heads: int) -> None:
        held, texts, n = self.held, self.held.texts, self.held.texts.length
        query, key, strides, group, width, scaling, causal = _asked(question, given)
        look_beside[(heads, texts.count)](
            query, key, given, given, texts.lengths, texts.marked, held.beside[layer], scaling, *strides, heads,
            n, group, width, power_of_two(width, 16), KEYS=16, CAUSAL=causal, GIVEN=question is None, num_warps=2,
        )  # fmt: skip

    def _tile(self, launch: Launch, *widths: int, columns: str = "KEYS") -> dict[str, Any]:
        """What a kernel is told of its tiles. `WHOLE`: they hold tokens alone, so that nothing has to be left out."""
        texts = self.held.texts
        fitting = texts.length % launch.rows == texts.length % launch.columns == 0
        whole = texts.whole and fitting and all(width == power_of_two(width, 16) for width in widths)
        return {"ROWS": launch.rows, columns: launch.columns, "WHOLE": whole, **launch.options}

    def _fold_maps(self, layer: int) -> None:
        self._fold(self.held.maps, self.held.map_diagonals[:, layer], self.held.attention, layer)

    def _fold(self, maps: Tensor, diagonals: Tensor, kept: Tensor | None, layer: int) -> None:
        """Add maps (part, head, i, j) by diagonal to their blocks, and over parts."""
        parts, heads, n, _ = maps.shape
        wide = 64
        add_diagonals[(parts, heads, -(-(2 * n - 1) // wide))](
            maps, self.held.texts.part_blocks, diagonals, heads, diagonals.stride(0), n, ROWS=32, OFFSETS=wide
        )
        if kept is not None:
            count, size = heads * n * n, 1024
            fold[(-(-count // size),)](maps, kept[layer], parts, count, SIZE=size)


def _summed_maps(question: Question, chosen: Tensor) -> Tensor:
    """The maps of some texts, summed over heads."""
    key = question.key[chosen].repeat_interleave(question.group, 1)
    scores = question.query[chosen] @ key.transpose(2, 3) * question.scaling
    if question.mask is not None:
        scores = scores + question.mask[chosen]
    return scores.softmax(-1, dtype=torch.float32).sum(1)


def _stream(device: torch.device) -> Any:
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]


def _asked(question: Question | None, given: Tensor) -> tuple[Tensor, Tensor, tuple[int, ...], int, int, float, bool]:
    """What kernels want to know of a question; of maps that are given there is nothing to know."""
    if question is None:
        return given, given, (0,) * 6, 1, 16, 1.0, False
    strides = (*question.query.stride()[:3], *question.key.stride()[:3])
    scaling = question.scaling * math.log2(math.e)
    return question.query, question.key, strides, question.group, question.query.shape[3], scaling, question.causal


def _rows(tensor: Tensor) -> Tensor:
    """With the width contiguous, as the kernels read it."""
    return tensor if tensor.stride(3) == 1 else tensor.contiguous()
