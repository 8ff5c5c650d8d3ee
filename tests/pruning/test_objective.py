"""The objective of a model, computed by hand, on every architecture that predicts words."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest
import torch

from headscope.corpus.windows import Batch, Window
from headscope.errors import ModelError, StudyError
from headscope.model.interventions import silenced
from headscope.model.loading import load
from headscope.model.model import Model
from headscope.pruning.objective import batch_windows, choose_objective, select_masked_tokens
from tests.helpers import language_models, tiny
from tests.helpers.families import FAMILIES
from tests.helpers.language_models import PREDICTING


def log_softmax(row: np.ndarray) -> np.ndarray:
    return row - np.log(np.exp(row - row.max()).sum()) - row.max()


def compute_logits(model: Model, **ids: list[int]) -> np.ndarray:
    with torch.inference_mode():
        return model.network(**{name: torch.tensor([row]) for name, row in ids.items()}).logits[0].double().numpy()


def test_next_tokens_by_hand() -> None:
    model = language_models.load_model("llama")
    batch = language_models.make_batch(model, "llama", 9, 4)
    objective = choose_objective(model)
    assert objective.name == "next-token loss"
    for window, loss in zip(batch.windows, objective.measure_texts(batch), strict=True):
        logits = compute_logits(model, input_ids=window.ids.tolist())
        losses = [-log_softmax(logits[k - 1])[window.ids[k]] for k in range(1, len(window))]
        assert loss == pytest.approx(np.mean(losses), rel=1e-5)


@pytest.mark.parametrize("stack", ["encoder", "decoder", "cross"])
def test_what_a_decoder_writes_by_hand(stack: str) -> None:
    model = language_models.load_model("bart").on(stack)
    batch = language_models.make_batch(model, "bart", 9, 4)
    windows = tiny.batch(9, 4, seed=3).windows
    assert choose_objective(model).name == "next-token loss"
    for window, loss in zip(windows, choose_objective(model).measure_texts(batch), strict=True):
        ids = window.ids.tolist()
        logits = compute_logits(model, input_ids=ids, decoder_input_ids=[3, *ids[:-1]])
        assert loss == pytest.approx(np.mean([-log_softmax(logits[k])[ids[k]] for k in range(len(ids))]), rel=1e-5)


def test_masked_tokens_by_hand() -> None:
    model = language_models.load_model("bert")
    plain = tiny.batch(20, 7, seed=3).windows
    windows = [replace(window, special=np.arange(len(window)) % (len(window) - 1) == 0) for window in plain]
    objective = choose_objective(model)
    assert objective.name == "masked-token loss"
    for window, loss in zip(windows, objective.measure_texts(Batch.of(windows)), strict=True):
        raw = window.ids.astype("<i4").tobytes()
        seed = hashlib.blake2b(raw, digest_size=8).digest()
        order = sorted(
            range(1, len(window) - 1), key=lambda k: hashlib.blake2b(seed + k.to_bytes(4, "little")).digest()
        )
        masked = order[: {20: 3, 7: 1}[len(window)]]
        assert select_masked_tokens(window).tolist() == sorted(masked)
        masked_ids = [4 if k in masked else int(token) for k, token in enumerate(window.ids)]
        logits = compute_logits(model, input_ids=masked_ids)
        assert loss == pytest.approx(np.mean([-log_softmax(logits[k])[window.ids[k]] for k in masked]), rel=1e-5)


def test_which_tokens_are_masked_is_up_to_the_text_alone() -> None:
    window = tiny.batch(40, seed=1).windows[0]
    assert len(select_masked_tokens(window)) == 6
    assert select_masked_tokens(window).tolist() == select_masked_tokens(Window.plain(window.ids.copy())).tolist()
    assert select_masked_tokens(window).tolist() != select_masked_tokens(tiny.batch(40, seed=2).windows[0]).tolist()
    assert len(select_masked_tokens(tiny.batch(1).windows[0])) == 1
    all_special = replace(window, special=np.ones(40, dtype=bool))
    assert len(select_masked_tokens(all_special)) == 6


@pytest.mark.parametrize("name", ["bert", "vit", "t5", "convbert"])
def test_embedding_distance_by_hand(name: str) -> None:
    from tests.helpers.architectures import batch, result, watched

    model = watched(name)
    inputs = batch(model, FAMILIES[name], "right")
    objective = choose_objective(model)
    assert objective.name == "embedding distance"
    before = result(model, inputs).double().numpy()
    objective.record_baseline(inputs)
    np.testing.assert_allclose(objective.measure_texts(inputs), 0, atol=1e-12)
    with silenced(model, "L1H1"):
        after, distances = result(model, inputs).double().numpy(), objective.measure_texts(inputs)
    for row, distance in enumerate(distances):
        a, b = (state[row][inputs.real[row]].mean(axis=0) for state in (before, after))
        assert distance == pytest.approx(1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b), rel=1e-4)
        assert distance > 1e-5


def test_a_text_that_was_not_learned_has_no_distance() -> None:
    objective = choose_objective(tiny.model("bert"))
    objective.record_baseline(tiny.batch(5, seed=1))
    with pytest.raises(StudyError, match=r"call record_baseline\(batch\).*1 of 1 texts"):
        objective.measure_texts(tiny.batch(5, seed=2))


def test_what_a_model_is_for() -> None:
    assert choose_objective(tiny.model("gpt2")).name == "embedding distance"
    assert choose_objective(tiny.model("t5").on("cross")).name == "embedding distance"
    headless = language_models.load_model("bert")
    tokenizer = tiny.tokenizer()
    tokenizer.mask_token = None
    assert choose_objective(load(headless.network, tokenizer)).name == "embedding distance"


def test_one_token_has_no_next() -> None:
    with pytest.raises(StudyError, match="a text of one token has no next token"):
        choose_objective(language_models.load_model("llama")).measure_texts(tiny.batch(4, 1))


def test_a_loss_that_is_no_number_is_refused() -> None:
    model = load(tiny.network("gpt2", seed=7), tiny.tokenizer())
    objective = choose_objective(model)
    objective.record_baseline(tiny.batch(5))
    with torch.no_grad():
        model.network.wte.weight.fill_(torch.nan)
    with pytest.raises(ModelError, match="embedding distance is no finite number on a text of 5 tokens"):
        objective.measure_texts(tiny.batch(5))


# Every architecture


@pytest.mark.parametrize("name", PREDICTING)
def test_padding_changes_no_objective(name: str) -> None:
    for stack in FAMILIES[name].stacks:
        model = language_models.load_model(name, stack)
        objective = choose_objective(model)
        kinds = {"encoder": "masked-token loss", "decoder": "next-token loss"}
        assert objective.name == ("next-token loss" if model.is_encoder_decoder else kinds[stack])
        windows = language_models.make_windows(model, 11, 7, 3)
        losses = np.zeros(3)
        for numbered in batch_windows(model, windows):
            losses[numbered.places] = objective.measure_texts(numbered.batch)
        alone = [objective.measure_texts(Batch.of([window], FAMILIES[name].pad_id))[0] for window in windows]
        np.testing.assert_allclose(losses, alone, rtol=2e-5)
