"""On a GPU: the same sums as on the CPU. Skipped where there is none."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest
import torch

import headscope
from headscope.corpus.bundled import openings
from headscope.corpus.windows import Batch
from headscope.model.capture.plain import Question
from headscope.segmentation.vectors import head_means
from headscope.tally.quantities import Shape
from headscope.tally.reference import ReferenceTallier
from headscope.tally.tally import Counting
from headscope.tally.vectorized import VectorizedTallier
from tests import tiny
from tests.asking import question, windows_of
from tests.comparing import assert_same_sums
from tests.cutting import assert_equal as assert_same_study
from tests.cutting import files, run_interrupted
from tests.test_tally import Case, assert_equal

if torch.cuda.is_available():
    from headscope.tally.gpu.tallier import GpuTallier

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


@pytest.mark.parametrize("seed", range(6))
def test_the_tally_on_a_gpu_equals_plain_loops(seed: int):
    case = Case(seed, [11, 3, 7, 2, 9], heads=3, layers=2, fraction=0.5, causal=bool(seed % 2))
    tallier = VectorizedTallier(case.counting, "cuda")
    tallier.begin(Batch.of(case.windows))
    for layer, (output, attention) in enumerate(zip(case.outputs, case.maps, strict=True)):
        tallier.see(layer, output.cuda(), attention.cuda())
    tallier.end()
    assert_equal(tallier.total(), case.tally("reference"))


@pytest.mark.parametrize("kind", ["mpnet", "bloom", "deberta-v2", "t5", "bart", "jamba", "qwen3_next", "convbert"])
def test_every_route_and_stack_sees_the_same_on_a_gpu(kind: str):
    network = tiny.network(kind)
    here, batch = headscope.load(network, tiny.tokenizer()), tiny.batch(11, 7, 2)
    seen: dict[tuple[str, str], list[np.ndarray]] = {}
    for device in ("cpu", "cuda"):
        network.to(device)
        for stack in here.stacks:
            model = here.on(stack)
            held = seen.setdefault((device, stack), [])
            made = Batch.of([model.reads(window) for window in batch.windows], tiny.FAMILIES[kind].pad_id)
            model.observe(made, lambda layer, output, attention, held=held: held.append(output[0].cpu().numpy()))
    for stack in here.stacks:
        for one, other in zip(seen["cpu", stack], seen["cuda", stack], strict=True):
            np.testing.assert_allclose(other, one, atol=2e-4 * np.abs(one).max())


@pytest.mark.parametrize("kernel", ["triton", "vectorized"])
@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_a_study_on_a_gpu_equals_one_on_the_cpu(kind: str, kernel: str):
    texts = [document.text.lower()[: 60 + 9 * k] for k, document in zip(range(40), openings(), strict=False)]
    size = {"hidden_size": 384, "num_attention_heads": 12, "num_hidden_layers": 4, "max_position_embeddings": 128}
    grouped = {"num_key_value_heads": 4, "head_dim": 32} if kind == "llama" else {}
    network = tiny.network(kind, **size, **grouped)
    with torch.no_grad():
        # Weights as large as the tiny models' would, at this width, blow rounding up from layer to layer.
        for weight in network.parameters():
            weight.mul_(0.2 if weight.ndim > 1 else 1)
    on_cpu = headscope.study(headscope.load(network, tiny.tokenizer()), texts, batch_size=7)
    there = headscope.load(network.cuda(), tiny.tokenizer())
    on_gpu = headscope.study(there, texts, batch_size=16, kernel=kernel, tf32=False)
    assert on_gpu.manifest["device"].startswith("cuda")
    assert (on_gpu.manifest["kernel"], on_gpu.manifest["kernel_note"], on_gpu.manifest["tf32"]) == (kernel, "", 0)
    explained = assert_same_sums(on_cpu, on_gpu)
    print(f"{kind}: {int(on_gpu.data['pairs'].sum()):,} pairs, {explained} counts differ, all near a threshold")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("first", [3, 35, 67, 99])
def test_every_window_length_is_counted_as_in_plain_loops(first: int, dtype: torch.dtype):
    """What the compiled kernels write is what they count: their outputs go to the plain loops."""
    for n in range(first, first + 32):
        random = np.random.default_rng(n)
        batch = Batch.of(windows_of(random, [n, max(2, n // 2), n]))
        counting = Counting(Shape(1, 2, n), 0.3, 0.3, 0.0)
        one, other = GpuTallier(counting), ReferenceTallier(counting)
        asked = question(random, batch, 2, width=16, dtype=dtype, causal=bool(n % 2))
        moved = [None if t is None else t.cuda() for t in (asked.query, asked.key, asked.value, asked.mask)]
        for tallier in (one, other):
            tallier.begin(batch)
        written = one.attend(0, Question(*moved, asked.scaling, asked.causal))
        other.see(0, written.cpu(), torch.zeros(3, 2, n, n))
        for tallier in (one, other):
            tallier.end()
        near = int(other.total()["near_threshold"].sum())
        for name in ("pairs", "equal", "same", "equal_same", "distance", "location", "dominant_share_texts"):
            apart = np.abs(one.total()[name] - other.total()[name]).sum()
            assert apart <= 2 * near, f"{name} at {n} tokens: {apart} differ, {near} are near the threshold"


def test_tf32_is_said_and_as_before_afterwards():
    model = headscope.load(tiny.network("bert").cuda(), tiny.tokenizer())
    before = torch.get_float32_matmul_precision()
    assert headscope.study(model, ["the cat sat on a mat."], length=16).manifest["tf32"] == 1
    assert torch.get_float32_matmul_precision() == before


def test_a_reading_is_the_same_on_the_gpu():
    network = tiny.network("bert")
    text = "the cat sat on a mat. the cat left, and the mat stayed."
    here = headscope.read(headscope.load(network, tiny.tokenizer()), text, length=40)
    there = headscope.read(headscope.load(network.cuda(), tiny.tokenizer()), text, length=40)
    assert there.manifest["device"].startswith("cuda")
    np.testing.assert_allclose(there.outputs, here.outputs, atol=1e-5)
    np.testing.assert_allclose(there.attention, here.attention, atol=1e-5)
    assert there.page().count("layer-") == here.page().count("layer-")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_heads_write_for_sentences_is_the_same_on_the_gpu(dtype: torch.dtype):
    texts = [document.text.lower()[: 12 + 9 * k] for k, document in zip(range(40), openings(), strict=False)] + [""]
    network = tiny.network("bert")
    here = head_means(headscope.load(network, tiny.tokenizer()), texts)
    there = head_means(headscope.load(network.to("cuda", dtype), tiny.tokenizer()), texts)
    assert here.shape == there.shape
    assert not there[-1].any()
    tolerance = 2e-4 if dtype == torch.float32 else 5e-2
    np.testing.assert_allclose(there, here, atol=tolerance * np.abs(here).max())


# Interrupted and resumed


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_resumed_study_equals_an_uninterrupted_one(tmp_path: Path, small_chunks: None, dtype: str):
    model = headscope.load(tiny.network("bert").to("cuda", getattr(torch, dtype)), tiny.tokenizer())
    (made,) = files(tmp_path / "in", [150])
    options = {"length": 24, "sample": 0.5, "batch_size": 4}
    whole = headscope.study(model, headscope.documents(made), **options)
    assert whole.manifest["kernel"] == "triton"
    assert_same_study(whole, headscope.study(model, headscope.documents(made), **options))
    assert_same_study(
        whole,
        run_interrupted(model, headscope.documents(made), tmp_path, [3, 1, 7, 2], checkpoint_interval=0.0, **options),
    )


LETTERS = "abcdefghijklmnopqrstuvw"


def test_a_gpu_without_room_halves_its_batches_and_loses_nothing(tmp_path: Path):
    network = tiny.network(
        "bert", hidden_size=512, num_attention_heads=16, intermediate_size=2048, max_position_embeddings=128
    )
    model = headscope.load(network.to("cuda"), tiny.tokenizer())
    given = [f"the {one} sat on a {other}, " * 9 for one in LETTERS for other in LETTERS]
    # First, with room: this also allocates the workspaces of cuBLAS, which do not shrink with the batch. Without TF32,
    # which cuBLAS uses or not depending on the batch and its workspace.
    roomy = headscope.study(model, given, length=128, batch_size=8, sample=0.1, tf32=False)
    gc.collect()  # what other tests left
    torch.cuda.empty_cache()
    _, whole_memory = torch.cuda.mem_get_info()
    try:
        torch.cuda.set_per_process_memory_fraction(400 * 2**20 / whole_memory)
        crowded = headscope.study(model, given, length=128, batch_size=512, sample=0.1, tf32=False)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert "halved from 512" in crowded.manifest["batch_size_note"]
    assert crowded.texts == len(given)
    assert_same_sums(crowded, roomy)
