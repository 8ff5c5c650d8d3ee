"""The objective, worked out by hand, and what silencing a head does to it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

import headscope
from headscope.corpus.windows import Batch, Window
from headscope.errors import CorpusError, ModelError, StudyError
from headscope.model.loading import load
from headscope.model.model import Model
from headscope.pruning import measuring
from headscope.pruning.ablation import Unfinished, ablate, open_ablation
from headscope.pruning.measuring import Bench
from headscope.pruning.naming import all_heads
from headscope.pruning.objective import masked_places, objective_of
from headscope.pruning.reuse import Reuse
from headscope.pruning.silencing import head_means, silenced
from headscope.pruning.texts import batches_of, read_windows
from tests import predicting, tiny
from tests.families import FAMILIES
from tests.predicting import PREDICTING
from tests.synthetic import random_study
from tests.test_silencing import weights_zeroed

OWN_WAYS = {"albert", "squeezebert"}
"""one module for all layers; layers that are not called but their `forward` is: all is computed again"""
TEXTS = ["the cat sat. the dog ran!", "a b c d e f g", "who, me? the one.", "x y"]


def log_softmax(row: np.ndarray) -> np.ndarray:
    return row - np.log(np.exp(row - row.max()).sum()) - row.max()


def logits_of(model: Model, **ids: list[int]) -> np.ndarray:
    with torch.inference_mode():
        return model.network(**{name: torch.tensor([row]) for name, row in ids.items()}).logits[0].double().numpy()


# The objective


def test_next_tokens_by_hand() -> None:
    model = predicting.model("llama")
    made = predicting.batch(model, "llama", 9, 4)
    objective = objective_of(model)
    assert objective.name == "next-token loss"
    for window, found in zip(made.windows, objective.per_text(made), strict=True):
        logits = logits_of(model, input_ids=window.ids.tolist())
        losses = [-log_softmax(logits[k - 1])[window.ids[k]] for k in range(1, len(window))]
        assert found == pytest.approx(np.mean(losses), rel=1e-5)


@pytest.mark.parametrize("stack", ["encoder", "decoder", "cross"])
def test_what_a_decoder_writes_by_hand(stack: str) -> None:
    model = predicting.model("bart").on(stack)
    made = predicting.batch(model, "bart", 9, 4)
    plain = tiny.batch(9, 4, seed=3).windows
    assert objective_of(model).name == "next-token loss"
    for window, found in zip(plain, objective_of(model).per_text(made), strict=True):
        ids = window.ids.tolist()
        logits = logits_of(model, input_ids=ids, decoder_input_ids=[3, *ids[:-1]])
        assert found == pytest.approx(np.mean([-log_softmax(logits[k])[ids[k]] for k in range(len(ids))]), rel=1e-5)


def test_masked_tokens_by_hand() -> None:
    model = predicting.model("bert")
    plain = tiny.batch(20, 7, seed=3).windows
    windows = [replace(each, special=np.arange(len(each)) % (len(each) - 1) == 0) for each in plain]
    objective = objective_of(model)
    assert objective.name == "masked-token loss"
    for window, found in zip(windows, objective.per_text(Batch.of(windows)), strict=True):
        raw = window.ids.astype("<i4").tobytes()
        seed = hashlib.blake2b(raw, digest_size=8).digest()
        order = sorted(
            range(1, len(window) - 1), key=lambda k: hashlib.blake2b(seed + k.to_bytes(4, "little")).digest()
        )
        places = order[: {20: 3, 7: 1}[len(window)]]
        assert masked_places(window).tolist() == sorted(places)
        hidden = [4 if k in places else int(token) for k, token in enumerate(window.ids)]
        logits = logits_of(model, input_ids=hidden)
        assert found == pytest.approx(np.mean([-log_softmax(logits[k])[window.ids[k]] for k in places]), rel=1e-5)


def test_which_tokens_are_masked_is_up_to_the_text_alone() -> None:
    window = tiny.batch(40, seed=1).windows[0]
    assert len(masked_places(window)) == 6
    assert masked_places(window).tolist() == masked_places(Window.plain(window.ids.copy())).tolist()
    assert masked_places(window).tolist() != masked_places(tiny.batch(40, seed=2).windows[0]).tolist()
    assert len(masked_places(tiny.batch(1).windows[0])) == 1
    whole = replace(window, special=np.ones(40, dtype=bool))
    assert len(masked_places(whole)) == 6


@pytest.mark.parametrize("name", ["bert", "vit", "t5", "convbert"])
def test_embedding_distance_by_hand(name: str) -> None:
    from tests.architectures import batch, result, watched

    model = watched(name)
    made = batch(model, FAMILIES[name], "right")
    objective = objective_of(model)
    assert objective.name == "embedding distance"
    before = result(model, made).double().numpy()
    objective.learn(made)
    np.testing.assert_allclose(objective.per_text(made), 0, atol=1e-12)
    with silenced(model, "L1H1"):
        after, found = result(model, made).double().numpy(), objective.per_text(made)
    for row, distance in enumerate(found):
        a, b = (state[row][made.real[row]].mean(axis=0) for state in (before, after))
        assert distance == pytest.approx(1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b), rel=1e-4)
        assert distance > 1e-5


def test_a_text_that_was_not_learned_has_no_distance() -> None:
    objective = objective_of(tiny.model("bert"))
    objective.learn(tiny.batch(5, seed=1))
    with pytest.raises(StudyError, match=r"call learn\(batch\).*1 of 1 texts"):
        objective.per_text(tiny.batch(5, seed=2))


def test_what_a_model_is_for() -> None:
    assert objective_of(tiny.model("gpt2")).name == "embedding distance"
    assert objective_of(tiny.model("t5").on("cross")).name == "embedding distance"
    headless = predicting.model("bert")
    tokenizer = tiny.tokenizer()
    tokenizer.mask_token = None
    assert objective_of(load(headless.network, tokenizer)).name == "embedding distance"


def test_one_token_has_no_next() -> None:
    with pytest.raises(StudyError, match="a text of one token has no next token"):
        objective_of(predicting.model("llama")).per_text(tiny.batch(4, 1))


def test_a_loss_that_is_no_number_is_refused() -> None:
    model = load(tiny.network("gpt2", seed=7), tiny.tokenizer())
    objective = objective_of(model)
    objective.learn(tiny.batch(5))
    with torch.no_grad():
        model.network.wte.weight.fill_(torch.nan)
    with pytest.raises(ModelError, match="embedding distance is no finite number on a text of 5 tokens"):
        objective.per_text(tiny.batch(5))


# Every architecture


@pytest.mark.parametrize("name", PREDICTING)
def test_padding_changes_no_objective(name: str) -> None:
    for stack in FAMILIES[name].stacks:
        model = predicting.model(name, stack)
        objective = objective_of(model)
        kinds = {"encoder": "masked-token loss", "decoder": "next-token loss"}
        assert objective.name == ("next-token loss" if model.two_stacks else kinds[stack])
        windows = predicting.windows(model, 11, 7, 3)
        found = np.zeros(3)
        for each in batches_of(model, windows):
            found[each.places] = objective.per_text(each.batch)
        alone = [objective.per_text(Batch.of([window], FAMILIES[name].pad_id))[0] for window in windows]
        np.testing.assert_allclose(found, alone, rtol=2e-5)


@pytest.mark.parametrize("name", PREDICTING)
def test_layers_that_are_not_computed_again_give_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = predicting.model(name, list(FAMILIES[name].stacks)[-1])
    windows = predicting.windows(model, 7, 7, 7, 7)
    heads = [(layer, 1) for layer in model.anatomy.numbers]
    used: list[list[bool]] = []
    below = Reuse.below
    monkeypatch.setattr(
        Reuse, "below", lambda self, layer: (used.append([*self.proven.values()]), below(self, layer))[1]
    )
    fast = measured(Bench.of(model, windows, batch_size=2), heads)
    assert np.array_equal(used[0], [name not in OWN_WAYS and layer > 0 for layer in model.anatomy.numbers])
    monkeypatch.setattr(Reuse, "prove", lambda self, layer, whole, run: self.proven.update({layer: False}))
    assert np.array_equal(measured(Bench.of(model, windows, batch_size=2), heads), fast)
    assert np.abs(fast).min(axis=0).max() > 0


def measured(bench: Bench, heads: Any) -> np.ndarray:
    found = np.zeros((bench.texts, len(heads)))
    for each, _, made in bench.changes(heads):
        found[each.places] = made
    return found


def test_changes_beside_heads_that_are_silent_already() -> None:
    model = predicting.model("llama")
    bench, silent = Bench.of(model, predicting.windows(model, 7, 5, 9)), [(0, 1), (1, 3)]
    (each, base, made), *more = bench.changes([(0, 0), (1, 2)], silent=silent)
    assert not more
    np.testing.assert_allclose(base, bench.losses(silent)[each.places], rtol=1e-6)
    for k, head in enumerate([(0, 0), (1, 2)]):
        np.testing.assert_allclose(made[:, k], bench.losses([*silent, head])[each.places] - base, atol=1e-6)


def test_layers_below_run_once_and_are_as_before() -> None:
    model = predicting.model("llama")
    windows, calls = predicting.windows(model, 7, 7), []
    first = model.network.model.layers[0].self_attn.q_proj
    handle = first.register_forward_hook(lambda *given: calls.append(1))
    bench = Bench.of(model, windows)
    calls.clear()
    measured(bench, [(1, head) for head in range(4)])
    handle.remove()
    assert len(calls) == 2  # once for the untouched model, once to prove that it need not run again
    assert "forward" not in vars(model.network.model.layers[0])


def test_reuse_that_is_wrong_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    model = predicting.model("llama")
    windows = predicting.windows(model, 7, 5)
    right = measured(Bench.of(model, windows), [(0, 0), (1, 0), (1, 1)])
    recording = Reuse.recording

    @contextmanager
    def spoiled(self: Reuse) -> Iterator[None]:
        with recording(self):
            yield
        self._returned = [returned * 1.001 for returned in self._returned]

    monkeypatch.setattr(Reuse, "recording", spoiled)
    assert np.array_equal(measured(Bench.of(model, windows), [(0, 0), (1, 0), (1, 1)]), right)


# Ablation


@pytest.mark.parametrize(("name", "stack"), [("bert", "encoder"), ("llama", "decoder"), ("bart", "cross")])
def test_the_change_is_that_of_a_network_with_zeroed_weights(name: str, stack: str) -> None:
    model = predicting.model(name, stack)
    found = ablate(model, TEXTS, length=16)
    windows = read_windows(model, TEXTS, length=16).windows
    objective = objective_of(model)

    def losses() -> np.ndarray:
        return np.array([objective.per_text(Batch.of([w], FAMILIES[name].pad_id))[0] for w in windows])

    base = losses()
    assert float(found.data["objective"]) == pytest.approx(base.mean(), rel=1e-6)
    assert float(found.data["objective_error"]) == pytest.approx(base.std(ddof=1) / 2, rel=1e-5)
    for layer, head in all_heads(model.anatomy):
        with weights_zeroed(model, [(layer, head)], 8):
            changes = losses() - base
        at = {"layer": layer, "head": head}
        np.testing.assert_allclose(found.data["change_texts"].sel(at), changes, atol=1e-5)
        assert float(found.data["change"].sel(at)) == pytest.approx(changes.mean(), abs=1e-5)
        assert float(found.data["error"].sel(at)) == pytest.approx(changes.std(ddof=1) / 2, abs=1e-5)


def test_by_mean_takes_the_means_of_these_texts() -> None:
    model = predicting.model("llama")
    found = ablate(model, TEXTS, heads="L0H2", by="mean", length=16)
    windows = read_windows(model, TEXTS, length=16).windows
    made, objective = Batch.of(windows), objective_of(model)
    with silenced(model, "L0H2", by="mean", means=head_means(model, [made])):
        silent = objective.per_text(made)
    assert found.table()["change"].tolist() == pytest.approx([(silent - objective.per_text(made)).mean()], abs=1e-6)
    assert found.manifest["by"] == "mean"
    assert abs(found.table()["change"][0] - ablate(model, TEXTS, heads="L0H2", length=16).table()["change"][0]) > 1e-4


def test_batches_and_order_change_nothing() -> None:
    model = tiny.model("bert")
    texts = [*TEXTS, "the a b c d e f g h", "z", "one two", "p q r s t"]
    whole = ablate(model, texts, length=16, batch_size=1)
    for back, size in ((False, 2), (True, 2), (True, 3)):
        other = ablate(model, texts[::-1] if back else texts, length=16, batch_size=size)
        for name in ("change", "error"):
            np.testing.assert_allclose(other.data[name], whole.data[name], atol=1e-6)
        expected = whole.data["change_texts"][::-1] if back else whole.data["change_texts"]
        np.testing.assert_allclose(other.data["change_texts"], expected, atol=1e-6)
        assert other.manifest["corpus_hash"] == whole.manifest["corpus_hash"]


def test_true_numbers_of_a_hybrids_layers_and_heads_left_out() -> None:
    found = ablate(predicting.model("jamba"), TEXTS[:2], heads="L3H0-1", length=16)
    assert found.data["layer"].values.tolist() == [1, 3]
    assert found.table()["name"].tolist() == ["L3H0", "L3H1"]
    assert np.isnan(found.data["change"].sel(layer=1)).all()


def test_images() -> None:
    found = ablate(tiny.vision_model("vit"), tiny.pictures(3))
    assert (found.manifest["objective"], found.manifest["modality"]) == ("embedding distance", "image")
    assert (found.data["change"] > 0).all()
    assert "3 images" in repr(found)


def test_it_is_kept_and_opened(tmp_path: Path) -> None:
    found = ablate(predicting.model("bert"), [*TEXTS, ""], length=16, command="headscope ablate")
    assert found.save(tmp_path) == tmp_path / "ablation.nc"
    again = open_ablation(tmp_path)
    assert again.data.identical(found.data)
    assert again.manifest == found.manifest
    about = again.manifest
    assert about["documents_skipped"] == {"empty": 1}
    assert (about["texts"], about["documents_read"], about["complete"]) == (4, 5, 1)
    assert (about["objective"], about["command"], about["length"]) == ("masked-token loss", "headscope ablate", 16)
    assert about["weight_hash"] == predicting.model("bert").weight_hash
    assert repr(again) == (
        "<Ablation of BertForMaskedLM: 2 layers × 4 heads, masked-token loss on 4 texts of texts given in Python>"
    )
    assert "L1H3" in again._repr_html_()
    assert found.data["change_texts"].dtype == np.float32


def test_what_is_no_ablation_is_not_opened(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="no ablation there"):
        open_ablation(tmp_path)
    (tmp_path / "ablation.nc").write_text("nothing")
    with pytest.raises(StudyError, match="not readable as netCDF"):
        open_ablation(tmp_path)
    random_study(0).save(tmp_path / "ablation.nc")
    with pytest.raises(StudyError, match="not an ablation of headscope"):
        open_ablation(tmp_path / "ablation.nc")
    with pytest.raises(StudyError, match="cannot be written"):
        ablate(tiny.model("bert"), TEXTS, heads="L0H0", length=16).save(tmp_path / "nowhere" / "a.nc")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"heads": "L7H0"}, "there is no layer 7"),
        ({"heads": []}, "no heads are named"),
        ({"by": "max"}, "by is 'max'"),
        ({"length": 1000}, "length is 1000"),
        ({"limit": 0}, "limit is 0"),
        ({"batch_size": 0}, "batch size is 0"),
        ({"windows": "some"}, "windows is 'some'"),
        ({"documents": ["", " "]}, "no text to run: 2 documents read, 2 empty"),
    ],
)
def test_what_cannot_be_done_is_said(options: dict[str, Any], said: str) -> None:
    asked: dict[str, Any] = {"documents": TEXTS, "length": 16, **options}
    with pytest.raises(StudyError) as refused:
        ablate(tiny.model("bert"), **asked)
    assert said in str(refused.value)


def test_texts_for_a_model_of_images_are_refused() -> None:
    with pytest.raises(CorpusError, match="reads images"):
        ablate(tiny.vision_model("vit"), TEXTS)


def test_what_was_finished_is_not_lost() -> None:
    model = predicting.model("llama")
    whole = ablate(model, TEXTS, length=16, batch_size=2)

    def interrupt(at: int) -> Any:
        def told(what: str, done: int, of: int) -> None:
            assert (what, of) == ("silencing heads", 16)
            if done == at:
                raise KeyboardInterrupt

        return told

    with pytest.raises(Unfinished) as stopped:
        ablate(model, TEXTS, length=16, batch_size=2, progress=interrupt(11))
    part = stopped.value.ablation
    assert part is not None
    assert (part.texts, part.manifest["complete"], part.manifest["stopped_by"]) == (2, 0, "interrupted")
    assert part.data["change_texts"].identical(whole.data["change_texts"].sel(text=part.data["text"]))
    assert "incomplete" in repr(part)
    with pytest.raises(Unfinished) as early:
        ablate(model, TEXTS, length=16, batch_size=2, progress=interrupt(3))
    assert early.value.ablation is None


def test_running_out_of_memory_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench.of(predicting.model("llama"), tiny.batch(5, 5).windows)

    def full(batch: Batch) -> Any:
        raise MemoryError

    monkeypatch.setattr(bench.objective, "per_text", full)
    with pytest.raises(StudyError, match="out of memory with 2 texts of 5 tokens at once"):
        bench.losses([])
    assert measuring.is_out_of_memory(MemoryError())


# Loading with the part that predicts words


@pytest.mark.parametrize(
    ("name", "objective"), [("bert", "masked-token loss"), ("llama", "next-token loss"), ("t5", "next-token loss")]
)
def test_a_folder_is_opened_with_what_its_configuration_names(name: str, objective: str, tmp_path: Path) -> None:
    network = predicting.network(name)
    network.save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    model = load(tmp_path, objective=True)
    assert type(model.network) is type(network)
    assert objective_of(model).name == objective
    made = tiny.batch(7, 5)
    np.testing.assert_array_equal(
        objective_of(model).per_text(made),
        objective_of(load(network, AutoTokenizer.from_pretrained(tmp_path))).per_text(made),
    )
    assert type(load(tmp_path).network) is not type(network)
    assert load(tmp_path).weight_hash == model.weight_hash


def test_a_head_without_weights_is_not_taken(tmp_path: Path) -> None:
    tiny.network("bert").save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for architectures in (["BertForMaskedLM"], ["BertForTokenClassification"], ["Nonsense"], None):
        (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": architectures}))
        assert type(load(tmp_path, objective=True).network).__name__ == "BertModel"


def test_ablate_opens_a_model_by_name(minilm: Model) -> None:
    found = headscope.ablate("minilm", ["Two ravens met. The ravens left."], heads="L0H0,L5H3")
    assert found.manifest["weight_hash"] == minilm.weight_hash
    assert np.isnan(found.table()["error"]).all()
    assert (found.table()["change"] > 0).all()


def test_an_ablation_is_no_study(tmp_path: Path):
    path = ablate("minilm", TEXTS[:1], heads="L0H0", length=16).save(tmp_path)
    with pytest.raises(StudyError, match="an ablation, not a study: open it with open_ablation"):
        headscope.open_study(path)
