"""On a GPU: the same sums as on the CPU. Skipped where there is none."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import headscope
from headscope.corpus.bundled import openings
from headscope.corpus.windows import Batch
from headscope.tally.vectorized import VectorizedTallier
from tests import tiny
from tests.comparing import assert_same_sums
from tests.test_tally import Case, assert_equal

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


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_a_study_on_a_gpu_equals_one_on_the_cpu(kind: str):
    texts = [document.text.lower()[: 60 + 9 * k] for k, document in zip(range(40), openings(), strict=False)]
    size = {"hidden_size": 384, "num_attention_heads": 12, "num_hidden_layers": 4, "max_position_embeddings": 128}
    grouped = {"num_key_value_heads": 4, "head_dim": 32} if kind == "llama" else {}
    network = tiny.network(kind, **size, **grouped)
    with torch.no_grad():
        # Weights as large as the tiny models' would, at this width, blow rounding up from layer to layer.
        for weight in network.parameters():
            weight.mul_(0.2 if weight.ndim > 1 else 1)
    on_cpu = headscope.study(headscope.load(network, tiny.tokenizer()), texts, batch_size=7)
    on_gpu = headscope.study(headscope.load(network.cuda(), tiny.tokenizer()), texts, batch_size=16)
    assert on_gpu.manifest["device"].startswith("cuda")
    explained = assert_same_sums(on_cpu, on_gpu)
    print(f"{kind}: {int(on_gpu.data['pairs'].sum()):,} pairs, {explained} counts differ, all near a threshold")


def test_a_reading_is_the_same_on_the_gpu():
    network = tiny.network("bert")
    text = "the cat sat on a mat. the cat left, and the mat stayed."
    here = headscope.read(headscope.load(network, tiny.tokenizer()), text, length=40)
    there = headscope.read(headscope.load(network.cuda(), tiny.tokenizer()), text, length=40)
    assert there.manifest["device"].startswith("cuda")
    np.testing.assert_allclose(there.outputs, here.outputs, atol=1e-5)
    np.testing.assert_allclose(there.attention, here.attention, atol=1e-5)
    assert there.page().count("layer-") == here.page().count("layer-")
