"""The fast ways to add up against the plain one: attention of their own, every window length, padding, and the choice.

The kernels for GPUs run here in Triton's interpreter, on the CPU; on a GPU, tests/test_gpu.py runs them compiled.
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
from headscope.model.capture.plain import Question, attend
from headscope.tally import kernels
from headscope.tally.compiled.tallier import CompiledTallier
from headscope.tally.kernels import choose
from headscope.tally.quantities import Shape
from headscope.tally.reference import ReferenceTallier
from headscope.tally.tally import Counting, Tallier, Tally
from tests import tiny
from tests.asking import differences, question, windows_of
from tests.comparing import assert_same_sums

LENGTHS = range(3, 131)


def gpu_tallier(counting: Counting) -> Tallier:
    pytest.importorskip("triton")
    from headscope.tally.gpu.tallier import GpuTallier

    return GpuTallier(counting, "cuda" if torch.cuda.is_available() else "cpu")


WAYS = {"compiled": CompiledTallier, "triton": gpu_tallier}
# Sums over texts are in double precision; within one text a GPU's are in single.
TOLERANCES = {"compiled": {"rtol": 2e-6, "atol": 2e-6}, "triton": {"rtol": 2e-5, "atol": 2e-5}}


def there(asked: Question, device: torch.device) -> Question:
    moved = [None if t is None else t.to(device) for t in (asked.query, asked.key, asked.value, asked.mask)]
    return Question(*moved, asked.scaling, asked.causal)  # type: ignore[arg-type]


def both(
    way: str, lengths: list[int], heads: int, layers: int = 1, seed: int = 0, maps: bool = True, **how: Any
) -> tuple[Tally, Tally]:
    """The tally of a kernel that computes attention itself, and the plain one of what it is to compute."""
    random = np.random.default_rng(seed)
    batch = Batch.of(windows_of(random, lengths))
    counting = Counting(Shape(layers, heads, max(lengths) + 1, maps), 0.3, 0.3, 0.5, how.get("causal", False))
    one, other = WAYS[way](counting), ReferenceTallier(counting)
    device = getattr(one, "device", torch.device("cpu"))
    one.begin(batch)
    other.begin(batch)
    real = torch.from_numpy(batch.real)
    for layer in range(layers):
        asked = question(random, batch, heads, **how)
        output, maps = attend(asked)
        made = one.attend(layer, there(asked, device)).cpu()
        np.testing.assert_allclose(made[real].float(), output[real].float(), atol=1e-5 if _single(made) else 2e-2)
        # What the kernel wrote is what its pairs are counted of.
        other.see(layer, made, maps)
    one.end()
    other.end()
    return one.total(), other.total()


def _single(made: torch.Tensor) -> bool:
    return made.dtype == torch.float32


def assert_equal_but_near(one: Tally, other: Tally, way: str) -> None:
    """Counts are the same, but for elements so near to a bound that the order of a sum decides."""
    apart = differences(one, other, **TOLERANCES[way])
    unsure = int(other["near_threshold"].sum()), int(other["near_bin_edge"].sum())
    for name, count in apart.items():
        allowed = unsure[1] if name in ("value_histogram", "near_bin_edge") else unsure[0]
        assert count <= 2 * allowed, f"{name}: {count} differ, {unsure} are near a bound"


@pytest.mark.parametrize("first", LENGTHS[::16])
def test_compiled_counts_what_plain_loops_count_at_every_length(first: int):
    for n in range(first, min(first + 16, LENGTHS.stop)):
        assert_equal_but_near(*both("compiled", [max(2, n // 3), n, max(2, n // 2)], heads=1, seed=n), "compiled")


@pytest.mark.parametrize("n", [3, 15, 16, 17, 32, 33, 63, 64, 65, 127, 128, 129])
def test_triton_counts_what_plain_loops_count(n: int):
    assert_equal_but_near(*both("triton", [n, max(2, n // 2)], heads=1, seed=n), "triton")


@pytest.mark.parametrize(("way", "n"), [("compiled", 200), ("compiled", 257), ("compiled", 512), ("triton", 200)])
def test_long_windows_are_counted(way: str, n: int):
    assert_equal_but_near(*both(way, [n, n // 3], heads=1, seed=n), way)


@pytest.mark.parametrize("lengths", [[9, 31], [64, 65], [130, 70]])
def test_triton_counts_distances_where_no_maps_are_kept(lengths: list[int]):
    one, other = both("triton", lengths, heads=1, maps=False)
    assert one["distance"].sum() == one["pairs"].sum() > 0
    assert_equal_but_near(one, other, "triton")


@pytest.mark.parametrize(("n", "causal"), [(16, False), (32, True), (128, False), (256, False)])
def test_triton_leaves_masks_out_where_no_text_has_padding(n: int, causal: bool):
    assert_equal_but_near(*both("triton", [n], heads=1, width=16, causal=causal), "triton")


def assert_alike(one: Tally, other: Tally, exact: float) -> None:
    """Counts are the same but for elements near the threshold; reals to a part of the largest."""
    near = int(other["near_threshold"].sum())
    for name in ("pairs", "equal", "same", "equal_same", "distance", "location", "dominant_share_texts", "all_equal"):
        if name in one.arrays:
            assert np.abs(one[name] - other[name]).sum() <= 2 * near, name
    for name in ("attention", "attention_received", "attention_offset"):
        if name in one.arrays:
            np.testing.assert_allclose(one[name], other[name], atol=exact * np.abs(other[name]).max(), err_msg=name)
    assert one["pairs"].sum() > 0


@pytest.mark.parametrize("maps", [True, False])
@pytest.mark.parametrize(("lengths", "width"), [([40, 33, 9], 5), ([64, 64], 16), ([130, 70], 7)])
def test_triton_in_half_precision(lengths: list[int], width: int, maps: bool):
    one, other = both("triton", lengths, heads=1, maps=maps, width=width, dtype=torch.float16)
    assert_alike(one, other, 4e-3)  # a score of 8 is rounded by as much in the plain way
    assert one.most_attended.keys() == other.most_attended.keys()


@pytest.mark.parametrize(("lengths", "width"), [([140], 128), ([70, 40], 256)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_triton_of_wide_heads(lengths: list[int], width: int, dtype: torch.dtype):
    """Their tiles are smaller, so that they fit."""
    one, other = both("triton", lengths, heads=1, width=width, dtype=dtype)
    assert_alike(one, other, 1e-5 if dtype == torch.float32 else 2e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_triton_of_wide_heads_on_a_small_gpu(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch):
    """Tiles are as small as a product takes them."""
    pytest.importorskip("triton")
    from headscope.tally.gpu import tiles

    monkeypatch.setattr(tiles, "SHARED", tiles.LEAST_SHARED)
    assert tiles.narrowing(256, dtype, torch.device("cpu")) == (16 if dtype == torch.float32 else 8)
    one, other = both("triton", [40, 21], heads=1, width=256, dtype=dtype)
    assert_alike(one, other, 2e-5 if dtype == torch.float32 else 4e-3)


@pytest.mark.parametrize("place", [3, 100, 255])
def test_triton_sees_what_is_no_number_anywhere_in_a_wide_vector(place: int):
    random = np.random.default_rng(5)
    batch = Batch.of(windows_of(random, [9, 5]))
    tallier = gpu_tallier(Counting(Shape(1, 2, 9), 0.3, 0.3, 0.0))
    output = torch.from_numpy(random.normal(0, 1, (2, 9, 2, 256))).float()
    output[1, 2, 1, place] = torch.nan
    maps = torch.full((2, 2, 9, 9), 1 / 9)
    tallier.begin(batch)
    tallier.see(0, output.to(tallier.device), maps.to(tallier.device))  # type: ignore[attr-defined]
    tallier.end()
    with pytest.raises(ModelError, match="L0H1"):
        tallier.total()


def test_many_texts_of_one_block_are_cut_into_like_parts():
    pytest.importorskip("triton")
    from headscope.tally.gpu.texts import PART, _parts

    order, edges, blocks = _parts(np.full(130, 7))
    assert (np.diff(edges).tolist(), blocks.tolist(), len(order)) == ([43, 43, 44], [7, 7, 7], 130)
    assert PART < 64  # as many as six binary digits count


@pytest.mark.parametrize(("n", "words"), [(130, 8), (300, 12), (512, 16)])
def test_bits_below_the_diagonal_mirror_those_above(n: int, words: int):
    pytest.importorskip("triton")
    from headscope.tally.gpu.high import mirror

    device = "cuda" if torch.cuda.is_available() else "cpu"
    size, heads, texts, tile = 32 * words, 2, 2, 128
    high = np.random.default_rng(n).random((texts, heads, size, size)) < 0.3
    high |= high.swapaxes(2, 3)
    high[..., n:, :] = high[..., :, n:] = False
    above = high & (np.arange(size)[None, :] >= np.arange(size)[:, None] // tile * tile)
    bits, expected = (
        torch.from_numpy(np.packbits(each[:, :, :n], axis=3, bitorder="little").view(np.int32)).to(device)
        for each in (above, high)
    )
    tiles = -(-n // tile)
    mirror[(tiles**2, heads, texts)](bits, heads, n, words, tiles, ACROSS=tile // 32)
    assert not torch.equal(expected, torch.zeros_like(expected))
    assert torch.equal(bits, expected)


@pytest.mark.parametrize("maps", [True, False])
def test_places_of_as_many_texts_as_a_part_may_have(maps: bool):
    pytest.importorskip("triton")
    from headscope.tally.gpu.pairs import add_places

    device = "cuda" if torch.cuda.is_available() else "cpu"
    texts, n, words = 63, 12, 1
    high = np.random.default_rng(0).random((texts, n, 32 * words)) < 0.9
    high[:, :8, :] = True
    high[:, :, n:] = False
    packed = np.packbits(high, axis=2, bitorder="little").view(np.int32).reshape(texts, 1, n, words)
    bits, order, parts, blocks = (
        torch.from_numpy(np.asarray(each)).to(device)
        for each in (packed, np.arange(texts, dtype=np.int32), np.array([0, texts], np.int32), np.array([0]))
    )
    places = torch.zeros((1, 1, n, n), dtype=torch.int32, device=device)
    distances = torch.zeros((1, 1, 2 * n - 1), dtype=torch.int64, device=device)
    rows, steps = (8, 1) if maps else (2, 4)
    add_places[(1, 1, -(-n // 8))](
        bits, order, parts, blocks, places, distances, 1, distances.stride(0), n, words,
        ROWS=rows, W=words, STEPS=steps, MAPS=maps,
    )  # fmt: skip
    sums = high.sum(0)[:, :n]
    if maps:
        np.testing.assert_array_equal(places[0, 0].cpu(), sums)
        assert sums.max() == texts
    else:
        expected = [np.trace(sums, offset) for offset in range(1, n)]
        np.testing.assert_array_equal(distances[0, 0, n:].cpu(), expected)


@pytest.mark.parametrize("way", WAYS)
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
def test_any_attention_is_counted(way: str, keys: int, group: int, **how: Any):
    one, other = both(way, how.pop("lengths"), keys * group, layers=2, group=group, **how)
    assert_equal_but_near(one, other, way)
    assert one.most_attended.keys() == other.most_attended.keys()


def shown(lengths: list[int], crosses: bool = False) -> tuple[Any, Tally]:
    """The Triton tallier and the plain tally, both shown the same outputs and maps, every text in the sample."""
    random = np.random.default_rng(3)
    windows = windows_of(random, lengths)
    batch = Batch.of([window.shifted(8, crosses=True) for window in windows] if crosses else windows)
    counting = Counting(Shape(1, 2, max(lengths) + 1), 0.3, 0.3, 1.0)
    one, other = gpu_tallier(counting), ReferenceTallier(counting)
    output, maps = attend(question(random, batch, 2))
    for tallier in (one, other):
        device = getattr(tallier, "device", torch.device("cpu"))
        tallier.begin(batch)
        tallier.see(0, output.to(device), maps.to(device))
        tallier.end()
    return one, other.total()


@pytest.mark.parametrize("crosses", [False, True])
def test_triton_sees_maps_that_are_given(crosses: bool):
    one, plain = shown([40, 33, 9], crosses)
    assert one.shown == 1
    assert_equal_but_near(one.total(), plain, "triton")
    found = {token: counts.tolist() for token, counts in one.total().most_attended.items()}
    assert found == {token: counts.tolist() for token, counts in plain.most_attended.items()}


def test_random_pairs_are_drawn_some_texts_at_a_time(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("triton")
    from headscope.tally.gpu import texts

    monkeypatch.setattr(texts, "AT_ONCE", 1)
    one, plain = shown([12, 9, 5])
    np.testing.assert_allclose(one.total()["shuffled_share_sum"], plain["shuffled_share_sum"])
    assert plain["shuffled_share_sum"].sum() > 0


def test_triton_counts_no_batch_in_which_a_head_writes_no_numbers():
    random = np.random.default_rng(3)
    batch = Batch.of(windows_of(random, [9, 5]))
    tallier = gpu_tallier(Counting(Shape(2, 2, 9), 0.3, 0.3, 0.0))

    def run(broken: bool) -> None:
        tallier.begin(batch)
        for layer in range(2):
            asked = there(question(random, batch, 2), tallier.device)
            if broken and layer == 1:
                asked.value[1, 1, 2] = float("nan")
            tallier.attend(layer, asked)
        tallier.end()

    run(False)
    run(True)
    assert tallier.lag == 1  # nobody has looked at it yet
    with pytest.raises(ModelError, match="L1H1"):
        run(False)
    assert tallier.total()["texts"].sum() == 2


class TestChoice:
    counting = Counting(Shape(2, 2, 128), 0.3, 0.3, 0.0)
    cpu = torch.device("cpu")

    def test_the_fastest_that_can_do_it(self):
        assert choose("auto", self.counting, self.cpu).name == "compiled"
        assert choose("auto", self.counting, torch.device("meta")).name == "vectorized"

    def test_without_numba_the_next_way_is_taken_and_said(self, monkeypatch: pytest.MonkeyPatch):
        found = kernels.importlib.util.find_spec
        monkeypatch.setattr(kernels.importlib.util, "find_spec", lambda name: None if name == "numba" else found(name))
        chosen = choose("auto", self.counting, self.cpu)
        assert (chosen.name, chosen.note) == ("vectorized", "not compiled: numba is not installed")
        with pytest.raises(StudyError, match="numba is not installed"):
            choose("compiled", self.counting, self.cpu)

    def test_one_that_cannot_do_it_says_why(self):
        with pytest.raises(StudyError, match="works on NVIDIA GPUs, and the model is on cpu"):
            choose("triton", self.counting, self.cpu)
        with pytest.raises(StudyError, match="there are: auto, triton, compiled, vectorized, reference"):
            choose("quick", self.counting, self.cpu)


class TestPlain:
    """Which attention a kernel may compute in the model's place."""

    @pytest.mark.parametrize("kind", ["bert", "llama", "gpt2", "gemma2", "bloom", "t5", "mpnet", "gpt_oss"])
    def test_a_study_is_the_same_whoever_computes_attention(self, kind: str):
        model = headscope.load(tiny.network(kind), tiny.tokenizer())
        texts = ["the cat sat on a mat. the cat left, and the mat stayed.", "a mat is on the cat.", "the cat, a mat."]
        made = {k: headscope.study(model, texts, length=24, kernel=k) for k in ("compiled", "vectorized")}
        assert_same_sums(made["compiled"], made["vectorized"])
        plain = kind in ("bert", "llama", "gpt2")
        assert made["compiled"].manifest["kernel_note"] == ("" if plain else "attention computed by the model itself")

    def test_a_mask_of_another_kind_is_left_to_the_model(self):
        model = headscope.load(tiny.network("bert"), tiny.tokenizer())
        batch = tiny.batch(7, 4)
        asked: list[Question] = []

        def ask(mask: Any) -> int:
            asked.clear()
            hooks = [
                module.register_forward_pre_hook(mask, with_kwargs=True)
                for name, module in model.network.named_modules()
                if name.endswith("attention.self")
            ]
            seen: list[int] = []
            model.observe(batch, lambda layer, *_: seen.append(layer), lambda layer, q: asked.append(q))
            for hook in hooks:
                hook.remove()
            assert seen == list(range(model.anatomy.layers))
            return len(asked)

        def changed(change: Any) -> Any:
            def hook(module: Any, args: Any, kwargs: Any) -> Any:
                found = [k for k in kwargs if "mask" in k and kwargs[k] is not None]
                if found:
                    return args, {**kwargs, **{k: change(kwargs[k].clone()) for k in found}}
                return tuple(change(a.clone()) if torch.is_tensor(a) and a.ndim == 4 else a for a in args), kwargs

            return hook

        def tilted(mask: torch.Tensor) -> torch.Tensor:
            mask[..., 1, 0] -= 0.5
            return mask

        def banded(mask: torch.Tensor) -> torch.Tensor:
            mask[..., 0, 3] = torch.finfo(mask.dtype).min
            return mask

        layers = model.anatomy.layers
        assert ask(changed(lambda mask: mask)) == layers
        assert ask(changed(tilted)) == 0
        assert ask(changed(banded)) == 0

    def test_a_model_that_does_something_of_its_own_is_found_out(self, monkeypatch: pytest.MonkeyPatch):
        from transformers.models.bert import modeling_bert

        own = modeling_bert.eager_attention_forward

        def scaled(module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float, **how: Any) -> Any:
            return own(module, query, key, value, mask, scaling * 1.5, **how)

        monkeypatch.setattr(modeling_bert, "eager_attention_forward", scaled)
        model = headscope.load(tiny.network("bert"), tiny.tokenizer())
        asked: list[int] = []
        model.observe(tiny.batch(7, 4), lambda *_: None, lambda layer, q: asked.append(layer))
        assert asked == []
