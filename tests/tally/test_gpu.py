"""On a GPU: the same sums as on the CPU. Skipped if there is none."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest
import torch

import headscope
from headscope.corpus.formats import load_openings
from headscope.corpus.windows import Batch
from headscope.model.capture.plain_attention import AttentionInputs
from headscope.segmentation.pieces import compute_head_means
from headscope.tally.quantities import Shape
from headscope.tally.reference import ReferenceTallier
from headscope.tally.tally import TallySettings
from headscope.tally.torch_backend import TorchTallier
from tests.helpers import tiny
from tests.helpers.attention_inputs import question, windows_of
from tests.helpers.interrupting import assert_equal as assert_same_study
from tests.helpers.interrupting import files, run_interrupted
from tests.helpers.study_equality import assert_same_sums
from tests.helpers.tally_cases import Case, assert_equal

if torch.cuda.is_available():
    from headscope.tally.triton_backend.tallier import TritonTallier

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


@pytest.mark.parametrize("seed", range(6))
def test_the_tally_on_a_gpu_equals_plain_loops(seed: int):
    case = Case(seed, [11, 3, 7, 2, 9], heads=3, layers=2, fraction=0.5, causal=bool(seed % 2))
    tallier = TorchTallier(case.counting, "cuda")
    tallier.begin(Batch.of(case.windows))
    for layer, (output, attention) in enumerate(zip(case.outputs, case.maps, strict=True)):
        tallier.observe_layer(layer, output.cuda(), attention.cuda())
    tallier.end()
    assert_equal(tallier.get_sums(), case.tally("reference"))


@pytest.mark.parametrize("kind", ["mpnet", "bloom", "deberta-v2", "t5", "bart", "jamba", "qwen3_next", "convbert"])
def test_every_route_and_stack_sees_the_same_on_a_gpu(kind: str):
    network = tiny.network(kind)
    model, batch = headscope.load(network, tiny.tokenizer()), tiny.batch(11, 7, 2)
    outputs_by: dict[tuple[str, str], list[np.ndarray]] = {}
    for device in ("cpu", "cuda"):
        network.to(device)
        for stack in model.stacks:
            stack_model = model.on(stack)
            outputs = outputs_by.setdefault((device, stack), [])
            stack_batch = Batch.of(
                [stack_model.adapt_window(window) for window in batch.windows], tiny.FAMILIES[kind].pad_id
            )
            stack_model.observe(
                stack_batch, lambda layer, output, attention, outputs=outputs: outputs.append(output[0].cpu().numpy())
            )
    for stack in model.stacks:
        for expected, actual in zip(outputs_by["cpu", stack], outputs_by["cuda", stack], strict=True):
            np.testing.assert_allclose(actual, expected, atol=2e-4 * np.abs(expected).max())


@pytest.mark.parametrize("kernel", ["triton", "torch"])
@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_a_study_on_a_gpu_equals_one_on_the_cpu(kind: str, kernel: str):
    texts = [document.text.lower()[: 60 + 9 * k] for k, document in zip(range(40), load_openings(), strict=False)]
    size = {"hidden_size": 384, "num_attention_heads": 12, "num_hidden_layers": 4, "max_position_embeddings": 128}
    grouped = {"num_key_value_heads": 4, "head_dim": 32} if kind == "llama" else {}
    network = tiny.network(kind, **size, **grouped)
    with torch.no_grad():
        # At this width, weights as large as the tiny models' would amplify rounding errors from layer to layer.
        for weight in network.parameters():
            weight.mul_(0.2 if weight.ndim > 1 else 1)
    on_cpu = headscope.study(headscope.load(network, tiny.tokenizer()), texts, batch_size=7)
    gpu_model = headscope.load(network.cuda(), tiny.tokenizer())
    on_gpu = headscope.study(gpu_model, texts, batch_size=16, kernel=kernel, tf32=False)
    assert on_gpu.manifest["device"].startswith("cuda")
    assert (on_gpu.manifest["kernel"], on_gpu.manifest["kernel_note"], on_gpu.manifest["tf32"]) == (kernel, "", 0)
    explained = assert_same_sums(on_cpu, on_gpu)
    print(f"{kind}: {int(on_gpu.data['pairs'].sum()):,} pairs, {explained} counts differ, all near a threshold")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("first", [3, 35, 67, 99])
def test_every_window_length_is_counted_as_in_plain_loops(first: int, dtype: torch.dtype):
    """Pairs are counted from the kernels' own outputs: these are given to the plain loops."""
    for n in range(first, first + 32):
        random = np.random.default_rng(n)
        batch = Batch.of(windows_of(random, [n, max(2, n // 2), n]))
        counting = TallySettings(Shape(1, 2, n), 0.3, 0.3, 0.0)
        tallier, reference = TritonTallier(counting), ReferenceTallier(counting)
        layer_question = question(random, batch, 2, width=16, dtype=dtype, causal=bool(n % 2))
        moved = [
            None if tensor is None else tensor.cuda()
            for tensor in (layer_question.query, layer_question.key, layer_question.value, layer_question.mask)
        ]
        for either in (tallier, reference):
            either.begin(batch)
        written = tallier.attend(0, AttentionInputs(*moved, layer_question.scaling, layer_question.causal))
        reference.observe_layer(0, written.cpu(), torch.zeros(3, 2, n, n))
        for either in (tallier, reference):
            either.end()
        near = int(reference.get_sums()["near_threshold"].sum())
        for name in ("pairs", "equal", "same", "equal_same", "distance", "location", "dominant_share_texts"):
            differing = np.abs(tallier.get_sums()[name] - reference.get_sums()[name]).sum()
            assert differing <= 2 * near, f"{name} at {n} tokens: {differing} differ, {near} are near the threshold"


def test_tf32_is_said_and_as_before_afterwards():
    model = headscope.load(tiny.network("bert").cuda(), tiny.tokenizer())
    before = torch.get_float32_matmul_precision()
    assert headscope.study(model, ["the cat sat on a mat."], length=16).manifest["tf32"] == 1
    assert torch.get_float32_matmul_precision() == before


def test_a_reading_is_the_same_on_the_gpu():
    network = tiny.network("bert")
    text = "the cat sat on a mat. the cat left, and the mat stayed."
    cpu_reading = headscope.read(headscope.load(network, tiny.tokenizer()), text, length=40)
    gpu_reading = headscope.read(headscope.load(network.cuda(), tiny.tokenizer()), text, length=40)
    assert gpu_reading.manifest["device"].startswith("cuda")
    np.testing.assert_allclose(gpu_reading.outputs, cpu_reading.outputs, atol=1e-5)
    np.testing.assert_allclose(gpu_reading.attention, cpu_reading.attention, atol=1e-5)
    assert gpu_reading.to_html().count("layer-") == cpu_reading.to_html().count("layer-")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_heads_write_for_sentences_is_the_same_on_the_gpu(dtype: torch.dtype):
    texts = [document.text.lower()[: 12 + 9 * k] for k, document in zip(range(40), load_openings(), strict=False)] + [
        ""
    ]
    network = tiny.network("bert")
    cpu_means = compute_head_means(headscope.load(network, tiny.tokenizer()), texts)
    gpu_means = compute_head_means(headscope.load(network.to("cuda", dtype), tiny.tokenizer()), texts)
    assert cpu_means.shape == gpu_means.shape
    assert not gpu_means[-1].any()
    tolerance = 2e-4 if dtype == torch.float32 else 5e-2
    np.testing.assert_allclose(gpu_means, cpu_means, atol=tolerance * np.abs(cpu_means).max())


# Interrupted and resumed


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_resumed_study_equals_an_uninterrupted_one(tmp_path: Path, small_chunks: None, dtype: str):
    model = headscope.load(tiny.network("bert").to("cuda", getattr(torch, dtype)), tiny.tokenizer())
    (file,) = files(tmp_path / "in", [150])
    options = {"length": 24, "sample": 0.5, "batch_size": 4}
    uninterrupted = headscope.study(model, headscope.documents(file), **options)
    assert uninterrupted.manifest["kernel"] == "triton"
    assert_same_study(uninterrupted, headscope.study(model, headscope.documents(file), **options))
    assert_same_study(
        uninterrupted,
        run_interrupted(model, headscope.documents(file), tmp_path, [3, 1, 7, 2], checkpoint_interval=0.0, **options),
    )


LETTERS = "abcdefghijklmnopqrstuvw"


def test_a_gpu_without_room_halves_its_batches_and_loses_nothing(tmp_path: Path):
    network = tiny.network(
        "bert", hidden_size=512, num_attention_heads=16, intermediate_size=2048, max_position_embeddings=128
    )
    model = headscope.load(network.to("cuda"), tiny.tokenizer())
    texts = [f"the {first} sat on a {second}, " * 9 for first in LETTERS for second in LETTERS]
    # First with enough memory: this also allocates the workspaces of cuBLAS, which do not shrink with the batch.
    # Without TF32, which cuBLAS uses or not depending on the batch and its workspace.
    expected = headscope.study(model, texts, length=128, batch_size=8, sample=0.1, tf32=False)
    gc.collect()
    torch.cuda.empty_cache()
    _, total_memory = torch.cuda.mem_get_info()
    limit = torch.cuda.memory_allocated() + 400 * 2**20  # other tests of this process may still hold some
    try:
        torch.cuda.set_per_process_memory_fraction(limit / total_memory)
        halved = headscope.study(model, texts, length=128, batch_size=512, sample=0.1, tf32=False)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert "halved from 512" in halved.manifest["batch_size_note"]
    assert halved.texts == len(texts)
    assert_same_sums(halved, expected)
