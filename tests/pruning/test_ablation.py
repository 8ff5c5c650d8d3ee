"""How silencing a head changes the objective."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from transformers import AutoTokenizer

import headscope
from headscope.corpus.windows import Batch
from headscope.errors import CorpusError, StudyError
from headscope.model.interventions import LayerReplay, compute_head_means, list_heads, silenced
from headscope.model.loading import load
from headscope.model.model import Model
from headscope.pruning import ablation as ablation_module
from headscope.pruning.ablation import AblationRunner, ablate
from headscope.pruning.ablation_result import AblationInterrupted, open_ablation
from headscope.pruning.objective import choose_objective, read_windows
from tests.helpers import language_models, tiny
from tests.helpers.families import FAMILIES
from tests.helpers.language_models import PREDICTING
from tests.helpers.synthetic import make_random_study
from tests.helpers.zeroed_weights import zero_weights

OWN_WAYS = {"albert", "squeezebert"}
"""one module for all layers; a model that calls `forward` of its layers directly: nothing is replayed"""
TEXTS = ["the cat sat. the dog ran!", "a b c d e f g", "who, me? the one.", "x y"]


# Every architecture


@pytest.mark.parametrize("name", PREDICTING)
def test_layers_that_are_not_computed_again_give_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = language_models.load_model(name, list(FAMILIES[name].stacks)[-1])
    windows = language_models.make_windows(model, 7, 7, 7, 7)
    heads = [(layer, 1) for layer in model.architecture.numbers]
    used: list[list[bool]] = []
    skip_below = LayerReplay.skip_below
    monkeypatch.setattr(
        LayerReplay,
        "skip_below",
        lambda self, layer: (used.append([*self.verified.values()]), skip_below(self, layer))[1],
    )
    fast = measure_changes(AblationRunner.create(model, windows, batch_size=2), heads)
    assert np.array_equal(used[0], [name not in OWN_WAYS and layer > 0 for layer in model.architecture.numbers])
    monkeypatch.setattr(LayerReplay, "verify", lambda self, layer, expected, run: self.verified.update({layer: False}))
    assert np.array_equal(measure_changes(AblationRunner.create(model, windows, batch_size=2), heads), fast)
    assert np.abs(fast).min(axis=0).max() > 0


def measure_changes(bench: AblationRunner, heads: Any) -> np.ndarray:
    changes = np.zeros((bench.texts, len(heads)))
    for numbered, _, batch_changes in bench.measure_changes(heads):
        changes[numbered.places] = batch_changes
    return changes


def test_changes_beside_heads_that_are_silent_already() -> None:
    model = language_models.load_model("llama")
    bench, silent = AblationRunner.create(model, language_models.make_windows(model, 7, 5, 9)), [(0, 1), (1, 3)]
    (numbered, base, changes), *more = bench.measure_changes([(0, 0), (1, 2)], silent=silent)
    assert not more
    np.testing.assert_allclose(base, bench.measure_losses(silent)[numbered.places], rtol=1e-6)
    for k, head in enumerate([(0, 0), (1, 2)]):
        np.testing.assert_allclose(
            changes[:, k], bench.measure_losses([*silent, head])[numbered.places] - base, atol=1e-6
        )


def test_layers_below_run_once_and_are_as_before() -> None:
    model = language_models.load_model("llama")
    windows, calls = language_models.make_windows(model, 7, 7), []
    first = model.network.model.layers[0].self_attn.q_proj
    handle = first.register_forward_hook(lambda *args: calls.append(1))
    bench = AblationRunner.create(model, windows)
    calls.clear()
    measure_changes(bench, [(1, head) for head in range(4)])
    handle.remove()
    assert len(calls) == 2  # once for the untouched model, once to prove that it need not run again
    assert "forward" not in vars(model.network.model.layers[0])


def test_reuse_that_is_wrong_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    model = language_models.load_model("llama")
    windows = language_models.make_windows(model, 7, 5)
    right = measure_changes(AblationRunner.create(model, windows), [(0, 0), (1, 0), (1, 1)])
    record = LayerReplay.record

    @contextmanager
    def record_spoiled(self: LayerReplay) -> Iterator[None]:
        with record(self):
            yield
        self._outputs = [output * 1.001 for output in self._outputs]

    monkeypatch.setattr(LayerReplay, "record", record_spoiled)
    assert np.array_equal(measure_changes(AblationRunner.create(model, windows), [(0, 0), (1, 0), (1, 1)]), right)


# Ablation


@pytest.mark.parametrize(("name", "stack"), [("bert", "encoder"), ("llama", "decoder"), ("bart", "cross")])
def test_the_change_is_that_of_a_network_with_zeroed_weights(name: str, stack: str) -> None:
    model = language_models.load_model(name, stack)
    ablation = ablate(model, TEXTS, length=16)
    windows = read_windows(model, TEXTS, length=16).windows
    objective = choose_objective(model)

    def measure_losses() -> np.ndarray:
        return np.array([objective.measure_texts(Batch.of([w], FAMILIES[name].pad_id))[0] for w in windows])

    base = measure_losses()
    assert float(ablation.data["objective"]) == pytest.approx(base.mean(), rel=1e-6)
    assert float(ablation.data["objective_error"]) == pytest.approx(base.std(ddof=1) / 2, rel=1e-5)
    for layer, head in list_heads(model.architecture):
        with zero_weights(model, [(layer, head)], 8):
            changes = measure_losses() - base
        position = {"layer": layer, "head": head}
        np.testing.assert_allclose(ablation.data["change_texts"].sel(position), changes, atol=1e-5)
        assert float(ablation.data["change"].sel(position)) == pytest.approx(changes.mean(), abs=1e-5)
        assert float(ablation.data["error"].sel(position)) == pytest.approx(changes.std(ddof=1) / 2, abs=1e-5)


def test_by_mean_takes_the_means_of_these_texts() -> None:
    model = language_models.load_model("llama")
    ablation = ablate(model, TEXTS, heads="L0H2", ablation_type="mean", length=16)
    windows = read_windows(model, TEXTS, length=16).windows
    batch, objective = Batch.of(windows), choose_objective(model)
    with silenced(model, "L0H2", ablation_type="mean", means=compute_head_means(model, [batch])):
        silent = objective.measure_texts(batch)
    assert ablation.table()["change"].tolist() == pytest.approx(
        [(silent - objective.measure_texts(batch)).mean()], abs=1e-6
    )
    assert ablation.manifest["ablation_type"] == "mean"
    by_zero = ablate(model, TEXTS, heads="L0H2", length=16)
    assert abs(ablation.table()["change"][0] - by_zero.table()["change"][0]) > 1e-4


def test_batches_and_order_change_nothing() -> None:
    model = tiny.model("bert")
    texts = [*TEXTS, "the a b c d e f g h", "z", "one two", "p q r s t"]
    reference = ablate(model, texts, length=16, batch_size=1)
    for is_reversed, size in ((False, 2), (True, 2), (True, 3)):
        other = ablate(model, texts[::-1] if is_reversed else texts, length=16, batch_size=size)
        for name in ("change", "error"):
            np.testing.assert_allclose(other.data[name], reference.data[name], atol=1e-6)
        expected = reference.data["change_texts"][::-1] if is_reversed else reference.data["change_texts"]
        np.testing.assert_allclose(other.data["change_texts"], expected, atol=1e-6)
        assert other.manifest["corpus_hash"] == reference.manifest["corpus_hash"]


def test_a_step_is_shown_on_stderr(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")  # stderr is a terminal
    ablate(tiny.model("bert"), TEXTS[:2], length=16, heads="L0H0", progress=True)
    output = capsys.readouterr()
    assert "silencing heads: 1 of 1" in output.err  # the last step stays until the end
    assert output.out == ""
    ablate(tiny.model("bert"), TEXTS[:2], length=16, heads="L0H0", progress=False)
    assert capsys.readouterr() == ("", "")


def test_true_numbers_of_a_hybrids_layers_and_heads_left_out() -> None:
    ablation = ablate(language_models.load_model("jamba"), TEXTS[:2], heads="L3H0-1", length=16)
    assert ablation.data["layer"].values.tolist() == [1, 3]
    assert ablation.table()["head"].tolist() == ["L3H0", "L3H1"]
    assert np.isnan(ablation.data["change"].sel(layer=1)).all()


def test_images() -> None:
    ablation = ablate(tiny.vision_model("vit"), tiny.pictures(3))
    assert (ablation.manifest["objective"], ablation.manifest["modality"]) == ("embedding distance", "image")
    assert (ablation.data["change"] > 0).all()
    assert "3 images" in repr(ablation)


def test_it_is_kept_and_opened(tmp_path: Path) -> None:
    ablation = ablate(language_models.load_model("bert"), [*TEXTS, ""], length=16, command="headscope ablate")
    assert ablation.save(tmp_path) == tmp_path / "ablation.nc"
    opened = open_ablation(tmp_path)
    assert opened.data.identical(ablation.data)
    assert opened.manifest == ablation.manifest
    manifest = opened.manifest
    assert manifest["documents_skipped"] == {"empty": 1}
    assert (manifest["texts"], manifest["documents_read"], manifest["complete"]) == (4, 5, 1)
    assert (manifest["objective"], manifest["command"], manifest["length"]) == (
        "masked-token loss",
        "headscope ablate",
        16,
    )
    assert manifest["weight_hash"] == language_models.load_model("bert").weight_hash
    assert repr(opened) == (
        "<Ablation of BertForMaskedLM: 2 layers × 4 heads, masked-token loss on 4 texts of texts given in Python>"
    )
    assert "L1H3" in opened._repr_html_()
    assert ablation.data["change_texts"].dtype == np.float32


def test_what_is_no_ablation_is_not_opened(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="no ablation there"):
        open_ablation(tmp_path)
    (tmp_path / "ablation.nc").write_text("nothing")
    with pytest.raises(StudyError, match="not readable as netCDF"):
        open_ablation(tmp_path)
    make_random_study(0).save(tmp_path / "ablation.nc")
    with pytest.raises(StudyError, match="not an ablation of headscope"):
        open_ablation(tmp_path / "ablation.nc")
    with pytest.raises(StudyError, match="cannot be written"):
        ablate(tiny.model("bert"), TEXTS, heads="L0H0", length=16).save(tmp_path / "nowhere" / "a.nc")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": "L7H0"}, "layer 7: the model's encoder has layers 0 to 1"),
        ({"heads": []}, "no heads are named"),
        ({"ablation_type": "max"}, "ablation type 'max'"),
        ({"length": 1000}, "length is 1000"),
        ({"limit": 0}, "limit is 0"),
        ({"batch_size": 0}, "batch size is 0"),
        ({"windows": "some"}, "windows is 'some'"),
        ({"documents": ["", " "]}, "no text to run: 2 documents read, 2 empty"),
    ],
)
def test_what_cannot_be_done_is_said(options: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"documents": TEXTS, "length": 16, **options}
    with pytest.raises(StudyError) as refused:
        ablate(tiny.model("bert"), **arguments)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "options",
    [{"ablation_type": "median"}, {"heads": "L0H1,first"}, {"heads": []}, {"length": 0}, {"batch_size": 0}],
    ids=str,
)
def test_what_fits_no_model_is_refused_before_one_is_loaded(options: dict[str, Any]) -> None:
    with pytest.raises(StudyError):
        ablate("no/such/model", TEXTS, **options)


def test_heads_are_refused_before_texts_are_read() -> None:
    def read_texts() -> Iterator[str]:
        pytest.fail("texts were read")
        yield ""

    with pytest.raises(StudyError, match="layer 7: the model's encoder has layers 0 to 1"):
        ablate(tiny.model("bert"), read_texts(), heads="L0H1,L7")


def test_a_whole_layer_is_ablated() -> None:
    ablation = ablate(tiny.model("bert"), TEXTS, heads="L1", length=16)
    assert ablation.table()["head"].tolist() == ["L1H0", "L1H1", "L1H2", "L1H3"]
    pairs = ablate(tiny.model("bert"), TEXTS, heads=((1, head) for head in range(4)), length=16)
    xr.testing.assert_equal(pairs.data, ablation.data)


def test_texts_for_a_model_of_images_are_refused() -> None:
    with pytest.raises(CorpusError, match="reads images"):
        ablate(tiny.vision_model("vit"), TEXTS)


def test_what_was_finished_is_not_lost() -> None:
    model = language_models.load_model("llama")
    complete = ablate(model, TEXTS, length=16, batch_size=2)

    def make_interrupt(at: int) -> Any:
        def interrupt_at(step: str, done: int, total: int) -> None:
            assert (step, total) == ("silencing heads", 16)
            if done == at:
                raise KeyboardInterrupt

        return interrupt_at

    with pytest.raises(AblationInterrupted) as stopped:
        ablate(model, TEXTS, length=16, batch_size=2, progress=make_interrupt(11))
    part = stopped.value.ablation
    assert part is not None
    assert (part.texts, part.manifest["complete"], part.manifest["stopped_by"]) == (2, 0, "interrupted")
    assert part.data["change_texts"].identical(complete.data["change_texts"].sel(text=part.data["text"]))
    assert "incomplete" in repr(part)
    with pytest.raises(AblationInterrupted) as early:
        ablate(model, TEXTS, length=16, batch_size=2, progress=make_interrupt(3))
    assert early.value.ablation is None


def test_running_out_of_memory_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = AblationRunner.create(language_models.load_model("llama"), tiny.batch(5, 5).windows)

    def raise_memory_error(batch: Batch) -> Any:
        raise MemoryError

    monkeypatch.setattr(bench.objective, "measure_texts", raise_memory_error)
    with pytest.raises(StudyError, match="out of memory with 2 texts of 5 tokens at once"):
        bench.measure_losses([])
    assert ablation_module.is_out_of_memory(MemoryError())


# Loading with the part that predicts words


@pytest.mark.parametrize(
    ("name", "objective"), [("bert", "masked-token loss"), ("llama", "next-token loss"), ("t5", "next-token loss")]
)
def test_a_folder_is_opened_with_what_its_configuration_names(name: str, objective: str, tmp_path: Path) -> None:
    network = language_models.make_network(name)
    network.save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    model = load(tmp_path, objective=True)
    assert type(model.network) is type(network)
    assert choose_objective(model).name == objective
    batch = tiny.batch(7, 5)
    np.testing.assert_array_equal(
        choose_objective(model).measure_texts(batch),
        choose_objective(load(network, AutoTokenizer.from_pretrained(tmp_path))).measure_texts(batch),
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
    ablation = headscope.ablate("minilm", ["Two ravens met. The ravens left."], heads="L0H0,L5H3")
    assert ablation.manifest["weight_hash"] == minilm.weight_hash
    assert np.isnan(ablation.table()["error"]).all()
    assert (ablation.table()["change"] > 0).all()


def test_an_ablation_is_no_study(tmp_path: Path):
    path = ablate("minilm", TEXTS[:1], heads="L0H0", length=16).save(tmp_path)
    with pytest.raises(StudyError, match="an ablation, not a study: open it with open_ablation"):
        headscope.open_study(path)
