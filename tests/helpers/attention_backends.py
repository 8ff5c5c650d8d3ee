"""The talliers that compute attention themselves, and how far their sums may be from those of the plain loops."""

from __future__ import annotations

import pytest
import torch

from headscope.model.capture.plain_attention import AttentionInputs
from headscope.tally.numba_backend.tallier import NumbaTallier
from headscope.tally.tally import Tallier, Tally, TallySettings
from tests.helpers.attention_inputs import assert_similar_examples, differences


def make_gpu_tallier(counting: TallySettings) -> Tallier:
    pytest.importorskip("triton")
    from headscope.tally.triton_backend.tallier import TritonTallier

    return TritonTallier(counting, "cuda" if torch.cuda.is_available() else "cpu")


BACKENDS = {"numba": NumbaTallier, "triton": make_gpu_tallier}
# Sums over texts are in double precision; within one text a GPU's are in single.
TOLERANCES = {"numba": {"rtol": 2e-6, "atol": 2e-6}, "triton": {"rtol": 2e-5, "atol": 2e-5}}


def move_question(question: AttentionInputs, device: torch.device) -> AttentionInputs:
    moved = [
        None if tensor is None else tensor.to(device)
        for tensor in (question.query, question.key, question.value, question.mask)
    ]
    return AttentionInputs(*moved, question.scaling, question.causal)  # type: ignore[arg-type]


def assert_equal_but_near(actual: Tally, expected: Tally, backend: str) -> None:
    """Assert that counts are equal, except for elements so close to a bound that the order of a sum decides."""
    differing = differences(actual, expected, **TOLERANCES[backend])
    near = int(expected["near_threshold"].sum()), int(expected["near_bin_edge"].sum())
    for name, count in differing.items():
        allowed = near[1] if name in ("value_histogram", "near_bin_edge") else near[0]
        assert count <= 2 * allowed, f"{name}: {count} differ, {near} are near a bound"
    if not near[0]:
        assert_similar_examples(actual, expected)
