"""The parts of the numba backend, each against its plain definition."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headscope.corpus.windows import Batch
from headscope.errors import ModelError
from headscope.model.capture.plain_attention import AttentionInputs
from headscope.tally.numba_backend import attention, pairs
from headscope.tally.numba_backend.pairs import WORD, pack_lowest_bits
from headscope.tally.numba_backend.tallier import NumbaTallier
from headscope.tally.quantities import Shape
from headscope.tally.reference import ReferenceTallier
from headscope.tally.tally import TallySettings
from tests.helpers.attention_inputs import differences, question, windows_of

SEEDS = st.integers(0, 2**32 - 1)
EXAMPLES = settings(max_examples=40, deadline=None, derandomize=True)


CACHED = """
import numpy as np
from headscope.tally.numba_backend.attention import compute_softmax
scores = np.random.default_rng(0).standard_normal((2, 65, 65)).astype(np.float32)
entropies = np.zeros(2)
compute_softmax(scores, scores.view(np.int32), 0.4, 65, False, entropies)
print(scores.tobytes().hex(), entropies.tobytes().hex())
"""


def test_functions_from_the_cache_round_as_in_the_process_that_compiled_them(tmp_path: Path):
    command, environment = [sys.executable, "-c", CACHED], {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    compiled, cached = (
        subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout for _ in range(2)
    )
    assert list(tmp_path.rglob("*.nbc"))
    assert compiled == cached


def apply_softmax(scores: torch.Tensor, scaling: float, n: int, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the maps, and the sum of the entropies of each."""
    maps, entropies = scores.clone(), torch.zeros(len(scores), dtype=torch.float64)
    integers = maps.view(torch.int32).numpy()
    attention.compute_softmax(maps.numpy(), integers, scaling, n, causal, entropies.numpy())
    return maps, entropies


@EXAMPLES
@given(
    seed=SEEDS, size=st.integers(1, 70), left=st.integers(0, 5), large=st.sampled_from([0.0, 1e-3, 1.0, 30.0, 1e4]),
    scaling=st.sampled_from([0.05, 1.0, 3.0]), causal=st.booleans(),
)  # fmt: skip
def test_softmax_is_that_of_double_precision(
    seed: int, size: int, left: int, large: float, scaling: float, causal: bool
):
    n = max(1, size - left)
    scores = torch.randn(2, size, size, generator=torch.Generator().manual_seed(seed)) * large
    maps, entropies = apply_softmax(scores, scaling, n, causal)
    allowed = torch.zeros(size, size, dtype=torch.bool)
    allowed[:, :n] = True
    if causal:
        allowed &= torch.ones(size, size, dtype=torch.bool).tril()
    expected = torch.where(allowed, scores.double() * scaling, -torch.inf).softmax(-1)
    # Scores are rounded to single precision: the error grows with them.
    tolerance = 1e-6 * (1 + large * scaling)
    torch.testing.assert_close(maps.double(), expected, rtol=tolerance, atol=1e-36)
    assert not maps[:, ~allowed].any()
    counts = allowed[:n].sum(1).double()
    relative = torch.special.entr(expected[:, :n]).sum(-1)[:, counts > 1] / counts[counts > 1].log()
    torch.testing.assert_close(entropies, relative.sum(-1), rtol=tolerance, atol=10 * n * tolerance)


@pytest.mark.parametrize("value", [float("nan"), -float("nan"), float("inf"), float("inf") - float("inf")])
def test_a_row_with_what_is_no_number_is_none(value: float):
    scores = torch.randn(1, 20, 20)
    scores[0, 7, 11] = value
    maps, _ = apply_softmax(scores, 0.3, 20, causal=False)
    assert maps[0, 7].isnan().all()
    assert maps[0, [*range(7), *range(8, 20)]].isfinite().all()


@pytest.mark.parametrize("broken", ["query", "key", "value"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_head_that_writes_no_numbers_is_named(broken: str, value: float):
    random = np.random.default_rng(0)
    batch = Batch.of(windows_of(random, [9, 12]))
    layer_question = question(random, batch, 3)
    getattr(layer_question, broken)[1, 2, 4, 1] = value
    tallier = NumbaTallier(TallySettings(Shape(1, 3, 12), 0.3, 0.3, 0.0))
    tallier.begin(batch)
    with pytest.raises(ModelError, match="L0H2 are not finite"):
        tallier.attend(0, layer_question)


def test_what_stands_on_padding_does_not_matter():
    random = np.random.default_rng(0)
    batch = Batch.of(windows_of(random, [5, 12]))
    layer_question = question(random, batch, 2)
    sums = []
    for value in (0.0, 1e30):
        for tensor in (layer_question.query, layer_question.key, layer_question.value):
            tensor[0, :, 5:] = value
        tallier = NumbaTallier(TallySettings(Shape(1, 2, 12), 0.3, 0.3, 1.0))
        tallier.begin(batch)
        written = tallier.attend(
            0,
            AttentionInputs(
                layer_question.query, layer_question.key, layer_question.value, layer_question.mask, 0.4, False
            ),
        )
        assert written is not None
        assert written[0, :5].isfinite().all()
        tallier.end()
        sums.append(tallier.get_sums())
    assert not differences(*sums, rtol=0, atol=0)


@EXAMPLES
@given(seed=SEEDS, n=st.integers(2, 150), density=st.sampled_from([0.0, 0.05, 0.5, 1.0]))
def test_bits_are_added_by_their_distance(seed: int, n: int, density: float):
    random = np.random.default_rng(seed)
    marks = np.triu(random.random((n, n)) < density, 1)
    words = -(-n // WORD)
    planes = np.zeros((n.bit_length(), words), np.uint64)
    for i in range(n - 1):
        row = np.zeros((words + 1) * WORD, np.uint8)
        row[:n] = marks[i]
        bits = np.packbits(row, bitorder="little").view(np.uint64)
        pairs._add_shifted(bits, i + 1, words, planes)
    numbers = np.empty(words * WORD, np.uint64)
    pairs.pop_numbers(planes, numbers)
    assert numbers[: n - 1].tolist() == [int(np.trace(marks, d)) for d in range(1, n)]
    assert not numbers[n - 1 :].any()
    assert not planes.any()


@EXAMPLES
@given(marks=st.lists(st.integers(0, 3), min_size=WORD, max_size=WORD))
def test_the_lowest_bits_of_bytes_become_a_word(marks: list[int]):
    eights = np.array(marks, np.uint8).view(np.uint64)
    assert int(pack_lowest_bits(eights)) == sum((mark & 1) << k for k, mark in enumerate(marks))


@pytest.mark.parametrize("step", [1, 7, 400])
def test_more_texts_than_a_byte_counts_have_all_their_places(step: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headscope.tally.numba_backend.tallier.CACHED_ELEMENTS", step * 2 * 25)
    random = np.random.default_rng(0)
    batch = Batch.of(windows_of(random, [5, 4, 5] * 200))
    counting = TallySettings(Shape(1, 2, 5), 0.3, 0.3, 0.0)
    output = torch.from_numpy(random.normal(0.5, 0.3, (600, 5, 2, 3))).float()  # most pairs are high
    maps = torch.full((600, 2, 5, 5), 0.2)
    sums = []
    for tallier in (NumbaTallier(counting), ReferenceTallier(counting)):
        tallier.begin(batch)
        tallier.observe_layer(0, output, maps)
        tallier.end()
        sums.append(tallier.get_sums())
    assert sums[0]["location"].max() > pairs.MAX_BYTE
    assert not differences(*sums, rtol=1e-7, atol=1e-7)  # entropies are of single precision
