"""The similarities of METHOD §8: worked by hand, and every backend against the plain loops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headscope.corpus.windows import Batch
from headscope.errors import ModelError
from headscope.model.capture.plain_attention import attend
from headscope.tally.output_maps import OutputMap
from headscope.tally.quantities import Shape
from headscope.tally.reference import ReferenceTallier
from headscope.tally.tally import Tally, TallySettings
from tests.helpers.attention_backends import BACKENDS, assert_equal_but_near, move_question
from tests.helpers.attention_inputs import differences, question, windows_of
from tests.helpers.synthetic import TALLIERS, tally, window
from tests.helpers.tally_cases import Case

VARIANTS = ("centered", "projected", "projected-centered")
variants = pytest.mark.parametrize("variant", VARIANTS)
kernels = pytest.mark.parametrize("kernel", TALLIERS)


def make_map(variant: str, random: np.random.Generator, layers: int, heads: int, width: int) -> OutputMap:
    """Return a map with random factors, some of which lose a direction."""
    factors = random.normal(0, 1, (layers, heads, width, width))
    factors[:, 0, :, -1] = 0
    projects = variant.startswith("projected")
    return OutputMap("centered" in variant, [torch.from_numpy(factor) for factor in factors] if projects else None)


# -- worked by hand ---------------------------------------------------------------------------------------------------

# Four tokens, the last of the second text is padding: (5, 1), (5, −1), (5, 2), and (4, 0), (6, 0), garbage.
WINDOWS = [window([7, 8, 7]), window([7, 7])]
OUTPUT = torch.tensor([[[5.0, 1], [5, -1], [5, 2]], [[4, 0], [6, 0], [torch.nan, torch.inf]]]).double()[:, :, None]
MAPS = torch.full((2, 1, 3, 3), 1 / 3).double()
FLIP = torch.tensor([[[0.0, 1.0], [2.0, 0.0]]]).double()


def count_by_hand(kernel: str, output_map: OutputMap | None) -> Tally:
    counting = TallySettings(Shape(1, 1, 3, width=2), 0.3, 0.3, 1.0, output_map=output_map)
    return tally(kernel, counting, WINDOWS, [OUTPUT], [MAPS])


@kernels
class TestByHand:
    """Which pairs are high, and the sums of outputs, of one head with a large common vector."""

    def test_dot_finds_everything_alike(self, kernel: str) -> None:
        sums = count_by_hand(kernel, None)
        # C of the first text is 24, 27 and 23, of the second 24: every pair is high.
        assert (sums["pairs"].sum(), sums["equal"].sum()) == (4, 2)
        assert sums["output_tokens"].sum() == 5
        assert sums["output_sums"][0, 0].tolist() == [25, 2]
        assert sums["output_products"][0, 0].tolist() == [[127, 10], [10, 6]]

    def test_centered_removes_what_all_tokens_have_in_common(self, kernel: str) -> None:
        sums = count_by_hand(kernel, OutputMap(centers=True))
        # Less their means (5, ⅔) and (5, 0): (0, ⅓), (0, −5/3), (0, 4/3), and (−1, 0), (1, 0).
        # C is −5/9, 4/9 and −20/9: one pair of equal tokens is high. In the second text C = −1: none is.
        assert (sums["pairs"].sum(), sums["equal"].sum()) == (1, 1)
        assert sums["distance"].sum((0, 1, 2)).tolist() == [0, 1]
        np.testing.assert_allclose(sums["output_sums"][0, 0], [0, 0], atol=1e-14)
        np.testing.assert_allclose(sums["output_products"][0, 0], [[2, 0], [0, 42 / 9]], atol=1e-14)

    def test_projected_weighs_directions(self, kernel: str) -> None:
        sums = count_by_hand(kernel, OutputMap(centers=False, factors=[torch.diag(torch.tensor([0.1, 1.0]))[None]]))
        # (0.5, 1), (0.5, −1), (0.5, 2), and (0.4, 0), (0.6, 0): C is −0.75, 2.25 and −1.75, and 0.24.
        assert (sums["pairs"].sum(), sums["equal"].sum()) == (2, 2)
        np.testing.assert_allclose(sums["output_sums"][0, 0], [2.5, 2], rtol=1e-6)

    def test_rows_are_multiplied_from_the_left(self, kernel: str) -> None:
        sums = count_by_hand(kernel, OutputMap(centers=False, factors=[FLIP]))
        # (x, y) becomes (2y, x): (2, 5), (−2, 5), (4, 5), (0, 4), (0, 6).
        assert sums["output_sums"][0, 0].tolist() == [4, 25]
        assert sums["output_products"][0, 0].tolist() == [[24, 20], [20, 127]]

    def test_projected_centered_is_both(self, kernel: str) -> None:
        sums = count_by_hand(kernel, OutputMap(centers=True, factors=[FLIP]))
        np.testing.assert_allclose(sums["output_sums"][0, 0], [0, 0], atol=1e-14)
        np.testing.assert_allclose(sums["output_products"][0, 0], [[4 * 42 / 9, 0], [0, 2]], atol=1e-14)
        assert (sums["pairs"].sum(), sums["equal"].sum()) == (1, 1)

    def test_one_head_has_its_own_factor_and_a_missing_one_stays_zero(self, kernel: str) -> None:
        output = torch.cat([OUTPUT, torch.zeros_like(OUTPUT)], 2)
        counting = TallySettings(
            Shape(1, 2, 3, width=2), 0.3, 0.3, 1.0, output_map=OutputMap(centers=False, factors=[FLIP])
        )
        sums = tally(kernel, counting, WINDOWS, [output], [MAPS.expand(-1, 2, -1, -1).contiguous()])
        assert sums["output_sums"][0].tolist() == [[4, 25], [0, 0]]
        assert sums["pairs"].sum((0, 1)).tolist() == [count_by_hand(kernel, None)["pairs"].sum(), 0]

    def test_a_common_vector_a_million_times_larger_is_removed_exactly(self, kernel: str) -> None:
        output = torch.tensor([[1.0, 1], [1, -1], [1, 2]]).double()[None, :, None]
        output[..., 0] *= 2.0**20
        counting = TallySettings(Shape(1, 1, 3, width=2), 0.3, 0.3, 1.0, output_map=OutputMap(centers=True))
        sums = tally(kernel, counting, WINDOWS[:1], [output.float()], [MAPS[:1].float()])
        assert sums["pairs"].sum() == 1
        np.testing.assert_allclose(sums["output_products"][0, 0], [[0, 0], [0, 42 / 9]], atol=1e-6)

    @variants
    @pytest.mark.parametrize("broken", [float("nan"), float("inf")])
    def test_outputs_that_are_no_numbers_name_their_head(self, kernel: str, variant: str, broken: float) -> None:
        case = Case(1, [6, 5], 3, 2, 1.0, causal=False)
        case.counting = replace(case.counting, output_map=make_map(variant, np.random.default_rng(0), 2, 3, 3))
        case.outputs[1][1, 2, 2] = broken
        with pytest.raises(ModelError, match="L1H2"):
            case.tally(kernel)


# -- every backend against the plain loops ----------------------------------------------------------------------------


@variants
@pytest.mark.parametrize("kernel", ["torch", "numba"])
@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    lengths=st.lists(st.integers(2, 11), min_size=1, max_size=4),
    heads=st.integers(1, 3),
    fraction=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_backends_count_mapped_outputs_as_plain_loops_do(
    kernel: str, variant: str, seed: int, lengths: list[int], heads: int, fraction: float
):
    case = Case(seed, lengths, heads, 2, fraction, causal=False)
    case.counting = replace(case.counting, output_map=make_map(variant, np.random.default_rng(seed), 2, heads, 3))
    actual, expected = case.tally(kernel), case.tally("reference")
    near = int(expected["near_threshold"].sum()), int(expected["near_bin_edge"].sum())
    if near[0]:  # what depends on pairs may differ by them, and sums of reals with them
        assert abs(int(actual["pairs"].sum()) - int(expected["pairs"].sum())) <= near[0]
        return
    for name, count in differences(actual, expected, rtol=1e-10, atol=1e-10).items():
        assert count <= 2 * near[1], name


@variants
@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), lengths=st.lists(st.integers(2, 20), min_size=1, max_size=3))
def test_backends_that_compute_attention_give_the_model_its_own_outputs(
    backend: str, variant: str, seed: int, lengths: list[int]
):
    heads, width = 2, 5
    random = np.random.default_rng(seed)
    output_map = make_map(variant, random, 1, heads, width)
    batch = Batch.of(windows_of(random, lengths))
    counting = TallySettings(Shape(1, heads, max(lengths) + 2, width=width), 0.3, 0.3, 0.5, output_map=output_map)
    tallier, reference = BACKENDS[backend](counting), ReferenceTallier(counting)
    device = getattr(tallier, "device", torch.device("cpu"))
    layer_question = question(random, batch, heads, width=width)
    expected, maps = attend(layer_question)
    tallier.begin(batch)
    written = tallier.attend(0, move_question(layer_question, device)).cpu()
    tallier.end()
    real = torch.from_numpy(batch.real)
    np.testing.assert_allclose(written[real], expected[real], atol=1e-5)
    reference.begin(batch)
    reference.observe_layer(0, written, maps)
    reference.end()
    sums = reference.get_sums()
    if sums["near_threshold"].sum():
        assert abs(int(tallier.get_sums()["pairs"].sum() - sums["pairs"].sum())) <= sums["near_threshold"].sum()
        return
    assert_equal_but_near(tallier.get_sums(), sums, backend)


@kernels
def test_a_map_that_changes_nothing_gives_the_same_sums_as_none(kernel: str) -> None:
    case = Case(3, [9, 4], 3, 2, 1.0, causal=False)
    plain = case.tally(kernel)
    identity = OutputMap(centers=False, factors=[torch.eye(3).double().expand(3, 3, 3)] * 2)
    case.counting = replace(case.counting, output_map=identity)
    mapped = case.tally(kernel)
    assert plain["pairs"].sum() > 0
    assert not differences(mapped, plain, rtol=1e-12, atol=1e-12)
