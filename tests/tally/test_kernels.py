"""The fast backends against the plain loops: attention that they compute themselves, every window length, padding, and
the choice of a backend.

The GPU kernels run here in Triton's interpreter, on the CPU; on a GPU, tests/tally/test_gpu.py runs them compiled.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headscope
from headscope.corpus.windows import Batch
from headscope.errors import ModelError, StudyError
from headscope.model.capture.plain_attention import AttentionInputs, attend
from headscope.tally import backends
from headscope.tally.backends import choose_kernel
from headscope.tally.quantities import Shape
from headscope.tally.reference import ReferenceTallier
from headscope.tally.tally import Tally, TallySettings
from tests.helpers import tiny
from tests.helpers.attention_backends import (
    BACKENDS,
    assert_equal_but_near,
    make_gpu_tallier,
    move_question,
)
from tests.helpers.attention_inputs import question, windows_of
from tests.helpers.study_equality import assert_same_sums

LENGTHS = range(3, 131)
WIDEST = 256


def tally_both(
    backend: str, lengths: list[int], heads: int, layers: int = 1, seed: int = 0, maps: bool = True, **options: Any
) -> tuple[Tally, Tally]:
    """Return the tally of a backend that computes attention itself, and the plain tally of what it should compute."""
    random = np.random.default_rng(seed)
    batch = Batch.of(windows_of(random, lengths))
    shape = Shape(layers, heads, max(lengths) + 1, maps, WIDEST)
    counting = TallySettings(shape, 0.3, 0.3, 0.5, options.get("causal", False))
    tallier, reference = BACKENDS[backend](counting), ReferenceTallier(counting)
    device = getattr(tallier, "device", torch.device("cpu"))
    tallier.begin(batch)
    reference.begin(batch)
    real = torch.from_numpy(batch.real)
    for layer in range(layers):
        layer_question = question(random, batch, heads, **options)
        output, maps = attend(layer_question)
        written = tallier.attend(layer, move_question(layer_question, device)).cpu()
        np.testing.assert_allclose(
            written[real].float(), output[real].float(), atol=1e-5 if _is_single(written) else 2e-2
        )
        # Pairs are counted from the backend's own outputs.
        reference.observe_layer(layer, written, maps)
    tallier.end()
    reference.end()
    return tallier.get_sums(), reference.get_sums()


def _is_single(tensor: torch.Tensor) -> bool:
    return tensor.dtype == torch.float32


@pytest.mark.parametrize("first", LENGTHS[::16])
def test_compiled_counts_what_plain_loops_count_at_every_length(first: int):
    for n in range(first, min(first + 16, LENGTHS.stop)):
        assert_equal_but_near(*tally_both("numba", [max(2, n // 3), n, max(2, n // 2)], heads=1, seed=n), "numba")


@pytest.mark.parametrize("n", [3, 15, 16, 17, 32, 33, 63, 64, 65, 127, 128, 129])
def test_triton_counts_what_plain_loops_count(n: int):
    assert_equal_but_near(*tally_both("triton", [n, max(2, n // 2)], heads=1, seed=n), "triton")


@pytest.mark.parametrize(("backend", "n"), [("numba", 200), ("numba", 257), ("numba", 512), ("triton", 200)])
def test_long_windows_are_counted(backend: str, n: int):
    assert_equal_but_near(*tally_both(backend, [n, n // 3], heads=1, seed=n), backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_distant_in_long_contexts_is_counted(backend: str):
    actual, expected = tally_both(backend, [130, 75, 66, 20], heads=2, group=2, causal=True)
    assert (expected["attends_sink_sum"].sum(0) > 0).all()
    assert (expected["far_sink_sum"].sum(0) > 0).all()
    assert int(expected["attends_distant_queries"].sum()) == 130 - 68 + 75 - 68
    assert_equal_but_near(actual, expected, backend)


@pytest.mark.parametrize("lengths", [[9, 31], [64, 65], [130, 70]])
def test_triton_counts_distances_where_no_maps_are_kept(lengths: list[int]):
    actual, expected = tally_both("triton", lengths, heads=1, maps=False)
    assert actual["distance"].sum() == actual["pairs"].sum() > 0
    assert_equal_but_near(actual, expected, "triton")


@pytest.mark.parametrize(("n", "causal"), [(16, False), (32, True), (128, False), (256, False)])
def test_triton_leaves_masks_out_where_no_text_has_padding(n: int, causal: bool):
    assert_equal_but_near(*tally_both("triton", [n], heads=1, width=16, causal=causal), "triton")


def assert_alike(actual: Tally, expected: Tally, tolerance: float) -> None:
    """Assert that counts are equal, except for elements near the threshold, and that reals agree to a part of the
    largest."""
    near = int(expected["near_threshold"].sum())
    for name in ("pairs", "equal", "same", "equal_same", "distance", "location", "dominant_share_texts", "all_equal"):
        if name in actual.arrays:
            assert np.abs(actual[name] - expected[name]).sum() <= 2 * near, name
    for name in ("attention", "attention_received", "attention_offset"):
        if name in actual.arrays:
            np.testing.assert_allclose(
                actual[name], expected[name], atol=tolerance * np.abs(expected[name]).max(), err_msg=name
            )
    assert actual["pairs"].sum() > 0


@pytest.mark.parametrize("maps", [True, False])
@pytest.mark.parametrize(("lengths", "width"), [([40, 33, 9], 5), ([64, 64], 16), ([130, 70], 7)])
def test_triton_in_half_precision(lengths: list[int], width: int, maps: bool):
    actual, expected = tally_both("triton", lengths, heads=1, maps=maps, width=width, dtype=torch.float16)
    assert_alike(actual, expected, 4e-3)  # the plain loops round a score of 8 by as much
    assert actual.most_attended.keys() == expected.most_attended.keys()


@pytest.mark.parametrize(("lengths", "width"), [([140], 128), ([70, 40], 256)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_triton_of_wide_heads(lengths: list[int], width: int, dtype: torch.dtype):
    """Their tiles are smaller, so that they fit into shared memory."""
    actual, expected = tally_both("triton", lengths, heads=1, width=width, dtype=dtype)
    assert_alike(actual, expected, 1e-5 if dtype == torch.float32 else 2e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_triton_of_wide_heads_on_a_small_gpu(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch):
    """Tiles are as small as products allow."""
    pytest.importorskip("triton")
    from headscope.tally.triton_backend import launches

    monkeypatch.setattr(launches, "SHARED", launches.MIN_SHARED)
    assert launches.compute_divisor(256, dtype, torch.device("cpu")) == (16 if dtype == torch.float32 else 8)
    actual, expected = tally_both("triton", [40, 21], heads=1, width=256, dtype=dtype)
    assert_alike(actual, expected, 2e-5 if dtype == torch.float32 else 4e-3)


@pytest.mark.parametrize("place", [3, 100, 255])
def test_triton_sees_what_is_no_number_anywhere_in_a_wide_vector(place: int):
    random = np.random.default_rng(5)
    batch = Batch.of(windows_of(random, [9, 5]))
    tallier = make_gpu_tallier(TallySettings(Shape(1, 2, 9), 0.3, 0.3, 0.0))
    output = torch.from_numpy(random.normal(0, 1, (2, 9, 2, 256))).float()
    output[1, 2, 1, place] = torch.nan
    maps = torch.full((2, 2, 9, 9), 1 / 9)
    tallier.begin(batch)
    tallier.observe_layer(0, output.to(tallier.device), maps.to(tallier.device))  # type: ignore[attr-defined]
    tallier.end()
    with pytest.raises(ModelError, match="L0H1"):
        tallier.get_sums()


def test_many_texts_of_one_block_are_cut_into_like_parts():
    pytest.importorskip("triton")
    from headscope.tally.triton_backend.arrays import MAX_PART_TEXTS, _cut_into_parts

    order, edges, blocks = _cut_into_parts(np.full(130, 7))
    assert (np.diff(edges).tolist(), blocks.tolist(), len(order)) == ([43, 43, 44], [7, 7, 7], 130)
    assert MAX_PART_TEXTS < 64  # six binary digits count up to 63


@pytest.mark.parametrize(("n", "words"), [(130, 8), (300, 12), (512, 16)])
def test_bits_below_the_diagonal_mirror_those_above(n: int, words: int):
    pytest.importorskip("triton")
    from headscope.tally.triton_backend.pairs import transpose_bits

    device = "cuda" if torch.cuda.is_available() else "cpu"
    size, heads, texts, tile = 32 * words, 2, 2, 128
    high = np.random.default_rng(n).random((texts, heads, size, size)) < 0.3
    high |= high.swapaxes(2, 3)
    high[..., n:, :] = high[..., :, n:] = False
    above = high & (np.arange(size)[None, :] >= np.arange(size)[:, None] // tile * tile)
    bits, expected = (
        torch.from_numpy(np.packbits(array[:, :, :n], axis=3, bitorder="little").view(np.int32)).to(device)
        for array in (above, high)
    )
    tiles = -(-n // tile)
    transpose_bits[(tiles**2, heads, texts)](bits, heads, n, words, tiles, ACROSS=tile // 32)
    assert not torch.equal(expected, torch.zeros_like(expected))
    assert torch.equal(bits, expected)


@pytest.mark.parametrize("maps", [True, False])
def test_places_of_as_many_texts_as_a_part_may_have(maps: bool):
    pytest.importorskip("triton")
    from headscope.tally.triton_backend.pairs import add_positions

    device = "cuda" if torch.cuda.is_available() else "cpu"
    texts, n, words = 63, 12, 1
    high = np.random.default_rng(0).random((texts, n, 32 * words)) < 0.9
    high[:, :8, :] = True
    high[:, :, n:] = False
    packed = np.packbits(high, axis=2, bitorder="little").view(np.int32).reshape(texts, 1, n, words)
    bits, order, parts, blocks = (
        torch.from_numpy(np.asarray(array)).to(device)
        for array in (packed, np.arange(texts, dtype=np.int32), np.array([0, texts], np.int32), np.array([0]))
    )
    places = torch.zeros((1, 1, n, n), dtype=torch.int32, device=device)
    distances = torch.zeros((1, 1, 2 * n - 1), dtype=torch.int64, device=device)
    rows, steps = (8, 1) if maps else (2, 4)
    add_positions[(1, 1, -(-n // 8))](
        bits, order, parts, blocks, places, distances, 1, distances.stride(0), n, words,
        ROWS=rows, ROW_WORDS=words, STEPS=steps, MAPS=maps,
    )  # fmt: skip
    sums = high.sum(0)[:, :n]
    if maps:
        np.testing.assert_array_equal(places[0, 0].cpu(), sums)
        assert sums.max() == texts
    else:
        expected = [np.trace(sums, offset) for offset in range(1, n)]
        np.testing.assert_array_equal(distances[0, 0, n:].cpu(), expected)


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=3, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    lengths=st.lists(st.integers(2, 9), min_size=1, max_size=3),
    keys=st.integers(1, 2),
    group=st.integers(1, 2),
    width=st.integers(1, 7),
    value_width=st.integers(1, 7),
    causal=st.booleans(),
)
def test_any_attention_is_counted(backend: str, keys: int, group: int, **options: Any):
    actual, expected = tally_both(backend, options.pop("lengths"), keys * group, layers=2, group=group, **options)
    assert_equal_but_near(actual, expected, backend)
    assert actual.most_attended.keys() == expected.most_attended.keys()


def tally_given_maps(lengths: list[int], crosses: bool = False) -> tuple[Any, Tally]:
    """Return the Triton tallier and the plain tally, both given the same outputs and maps, with every text in the
    sample."""
    random = np.random.default_rng(3)
    windows = windows_of(random, lengths)
    batch = Batch.of([window.shift_right(8, crosses=True) for window in windows] if crosses else windows)
    counting = TallySettings(Shape(1, 2, max(lengths) + 1), 0.3, 0.3, 1.0)
    tallier, reference = make_gpu_tallier(counting), ReferenceTallier(counting)
    output, maps = attend(question(random, batch, 2))
    for either in (tallier, reference):
        device = getattr(either, "device", torch.device("cpu"))
        either.begin(batch)
        either.observe_layer(0, output.to(device), maps.to(device))
        either.end()
    return tallier, reference.get_sums()


@pytest.mark.parametrize("crosses", [False, True])
def test_triton_sees_maps_that_are_given(crosses: bool):
    tallier, expected = tally_given_maps([40, 33, 9], crosses)
    assert tallier.layers_shown == 1
    assert_equal_but_near(tallier.get_sums(), expected, "triton")
    most_attended = {token: counts.tolist() for token, counts in tallier.get_sums().most_attended.items()}
    assert most_attended == {token: counts.tolist() for token, counts in expected.most_attended.items()}


def test_random_pairs_are_drawn_some_texts_at_a_time(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("triton")
    from headscope.tally.triton_backend import arrays

    monkeypatch.setattr(arrays, "MAX_ELEMENTS", 1)
    tallier, expected = tally_given_maps([12, 9, 5])
    np.testing.assert_allclose(tallier.get_sums()["shuffled_share_sum"], expected["shuffled_share_sum"])
    assert expected["shuffled_share_sum"].sum() > 0


def test_triton_counts_no_batch_in_which_a_head_writes_no_numbers():
    random = np.random.default_rng(3)
    batch = Batch.of(windows_of(random, [9, 5]))
    tallier = make_gpu_tallier(TallySettings(Shape(2, 2, 9), 0.3, 0.3, 0.0))

    def run(broken: bool) -> None:
        tallier.begin(batch)
        for layer in range(2):
            layer_question = move_question(question(random, batch, 2), tallier.device)
            if broken and layer == 1:
                layer_question.value[1, 1, 2] = float("nan")
            tallier.attend(layer, layer_question)
        tallier.end()

    run(False)
    run(True)
    assert tallier.pending_batches == 1  # its results have not been read yet
    with pytest.raises(ModelError, match="L1H1"):
        run(False)
    assert tallier.get_sums()["texts"].sum() == 2


class TestChoice:
    counting = TallySettings(Shape(2, 2, 128), 0.3, 0.3, 0.0)
    cpu = torch.device("cpu")

    def test_the_fastest_that_can_do_it(self):
        assert choose_kernel("auto", self.counting, self.cpu).name == "numba"
        assert choose_kernel("auto", self.counting, torch.device("meta")).name == "torch"

    def test_without_numba_the_next_way_is_taken_and_said(self, monkeypatch: pytest.MonkeyPatch):
        find_spec = backends.importlib.util.find_spec
        monkeypatch.setattr(
            backends.importlib.util, "find_spec", lambda name: None if name == "numba" else find_spec(name)
        )
        chosen = choose_kernel("auto", self.counting, self.cpu)
        assert (chosen.name, chosen.note) == ("torch", "not numba: it is not installed")
        with pytest.raises(StudyError, match="numba cannot do this: it is not installed"):
            choose_kernel("numba", self.counting, self.cpu)

    def test_one_that_cannot_do_it_says_why(self):
        with pytest.raises(StudyError, match="works on NVIDIA GPUs, and the model is on cpu"):
            choose_kernel("triton", self.counting, self.cpu)
        with pytest.raises(StudyError, match="there are: auto, triton, numba, torch, reference"):
            choose_kernel("quick", self.counting, self.cpu)


class TestPlain:
    """Which attention a backend may compute in the model's place."""

    @pytest.mark.parametrize("kind", ["bert", "llama", "gpt2", "gemma2", "bloom", "t5", "mpnet", "gpt_oss"])
    def test_a_study_is_the_same_whoever_computes_attention(self, kind: str):
        model = headscope.load(tiny.network(kind), tiny.tokenizer())
        texts = ["the cat sat on a mat. the cat left, and the mat stayed.", "a mat is on the cat.", "the cat, a mat."]
        studies = {k: headscope.study(model, texts, length=24, kernel=k) for k in ("numba", "torch")}
        assert_same_sums(studies["numba"], studies["torch"])
        plain = kind in ("bert", "llama", "gpt2")
        assert studies["numba"].manifest["kernel_note"] == ("" if plain else "attention computed by the model itself")

    def test_a_mask_of_another_kind_is_left_to_the_model(self):
        model = headscope.load(tiny.network("bert"), tiny.tokenizer())
        batch = tiny.batch(7, 4)
        questions: list[AttentionInputs] = []

        def count_questions(mask: Any) -> int:
            questions.clear()
            hooks = [
                module.register_forward_pre_hook(mask, with_kwargs=True)
                for name, module in model.network.named_modules()
                if name.endswith("attention.self")
            ]
            seen: list[int] = []
            model.observe(
                batch, lambda layer, *_: seen.append(layer), lambda layer, question: questions.append(question)
            )
            for hook in hooks:
                hook.remove()
            assert seen == list(range(model.architecture.layers))
            return len(questions)

        def make_hook(change: Any) -> Any:
            def hook(module: Any, args: Any, kwargs: Any) -> Any:
                masks = [k for k in kwargs if "mask" in k and kwargs[k] is not None]
                if masks:
                    return args, {**kwargs, **{k: change(kwargs[k].clone()) for k in masks}}
                return tuple(change(a.clone()) if torch.is_tensor(a) and a.ndim == 4 else a for a in args), kwargs

            return hook

        def shift_mask(mask: torch.Tensor) -> torch.Tensor:
            mask[..., 1, 0] -= 0.5
            return mask

        def mask_one_key(mask: torch.Tensor) -> torch.Tensor:
            mask[..., 0, 3] = torch.finfo(mask.dtype).min
            return mask

        layers = model.architecture.layers
        assert count_questions(make_hook(lambda mask: mask)) == layers
        assert count_questions(make_hook(shift_mask)) == 0
        assert count_questions(make_hook(mask_one_key)) == 0

    def test_a_model_that_does_something_of_its_own_is_found_out(self, monkeypatch: pytest.MonkeyPatch):
        from transformers.models.bert import modeling_bert

        original = modeling_bert.eager_attention_forward

        def scale_attention(
            module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float, **options: Any
        ) -> Any:
            return original(module, query, key, value, mask, scaling * 1.5, **options)

        monkeypatch.setattr(modeling_bert, "eager_attention_forward", scale_attention)
        model = headscope.load(tiny.network("bert"), tiny.tokenizer())
        questions: list[int] = []
        model.observe(tiny.batch(7, 4), lambda *_: None, lambda layer, question: questions.append(layer))
        assert questions == []
