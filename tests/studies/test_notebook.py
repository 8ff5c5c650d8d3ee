"""Compare a study with a computation without headscope, as in a notebook: hooks on the model and loops over heads."""

from __future__ import annotations

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer

import headscope
from headscope.corpus.formats import load_openings
from headscope.model.model import Model
from headscope.model.model_files import find_default_model


def test_a_notebook_finds_the_same_pairs_and_maps(minilm: Model):
    text = next(iter(load_openings())).text
    study = headscope.study(minilm, [text])

    tokenizer = AutoTokenizer.from_pretrained(find_default_model())
    network = AutoModel.from_pretrained(find_default_model(), attn_implementation="eager", dtype=torch.float32).eval()
    outputs: list[torch.Tensor] = []
    for layer in network.encoder.layer:
        # The input of the output projection is the concatenated outputs of the heads.
        layer.attention.output.dense.register_forward_pre_hook(lambda _, inputs: outputs.append(inputs[0][0]))
    inputs = tokenizer(text, return_tensors="pt", truncation=True, max_length=128)
    with torch.inference_mode():
        maps = network(**inputs, output_attentions=True).attentions

    ids = inputs["input_ids"][0].numpy()
    ends_sentence = [token in (".", "!", "?") for token in tokenizer.convert_ids_to_tokens(ids.tolist())]
    sentence = np.cumsum([False, *ends_sentence[:-1]])
    near_threshold = study.data["near_threshold"].values
    for layer in range(6):
        np.testing.assert_allclose(study.data["attention"][layer], maps[layer][0].numpy(), atol=1e-5)
        for head in range(12):
            output = outputs[layer][:, head * 32 : (head + 1) * 32].numpy()
            matrix = output @ output.T
            np.fill_diagonal(matrix, 0)
            pairs = [(i, j) for i, j in np.argwhere(matrix > 0.3 * matrix.max()) if i < j]
            expected = {
                "pairs": len(pairs),
                "equal": sum(ids[i] == ids[j] for i, j in pairs),
                "same": sum(sentence[i] == sentence[j] for i, j in pairs),
                "distance_sum": sum(j - i for i, j in pairs),
            }
            for name, count in expected.items():
                tolerance = near_threshold[layer, head] * (128 if name == "distance_sum" else 1)
                assert abs(int(study.data[name][layer, head]) - count) <= tolerance, (layer, head, name)
    assert int(study.data["pairs"].sum()) > 10_000
