"""Encoders, decoders and cross-attention as separate stacks, and layers with their true numbers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModel

import headscope
from headscope.corpus.windows import Batch, Window, group_by_length
from headscope.errors import ModelError
from headscope.model.capture import attention_interface
from headscope.model.capture.records import CapturedAttention
from headscope.tally.quantities import RECEIVERS, Shape
from headscope.tally.reference import ReferenceTallier
from headscope.tally.tally import Tally, TallySettings
from headscope.tally.text_structure import find_receivers
from headscope.tally.torch_backend import TorchTallier
from tests.helpers import tiny
from tests.helpers.families import BART

STACKS = ("encoder", "decoder", "cross")
TEXTS = [
    "the cat sat. the dog, a cat, ran! the owl met the cat?",
    "a b c. d e f, g h.",
    "owl the owl. owl, the owl.",
    "the end of the day. the end, of a week.",
    "x y z x y z. x!",
]


def window() -> Window:
    """Return a window of `the a . the ,`: the first token is special, and there are two sentences."""
    return Window(
        ids=np.array([2, 9, 5, 9, 6]),
        special=np.array([True, False, False, False, False]),
        sentence=np.array([0, 0, 0, 1, 1]),
        end=np.array([False, False, True, False, False]),
        comma=np.array([False, False, False, False, True]),
    )


class TestWindow:
    def test_a_decoder_reads_a_start_token_and_all_but_the_last(self) -> None:
        read = window().shift_right(7, crosses=False)
        assert read.ids.tolist() == [7, 2, 9, 5, 9]
        assert read.special.tolist() == [True, True, False, False, False]
        assert read.sentence.tolist() == [0, 0, 0, 0, 1]
        assert read.end.tolist() == [False, False, False, True, False]
        assert read.comma.tolist() == [False] * 5
        assert read.keys is read

    def test_every_stack_puts_a_text_into_the_same_block(self) -> None:
        text = window()
        for crosses in (False, True):
            read = text.shift_right(7, crosses=crosses)
            assert (read.digest, read.block, read.is_sampled(0.3)) == (text.digest, text.block, text.is_sampled(0.3))

    def test_every_stack_keeps_the_block_of_the_document(self) -> None:
        text = replace(window(), document=47)
        assert text.block == 7 != window().block
        for crosses in (False, True):
            assert text.shift_right(7, crosses=crosses).block == 7

    def test_in_cross_attention_the_receivers_are_the_encoders_tokens(self) -> None:
        text = window()
        read = text.shift_right(7, crosses=True)
        assert read.keys is text
        kinds = [[RECEIVERS[k] for k in row] for row in find_receivers(read)]
        assert kinds[0] == ["first token", "neighbour", "sentence end", "rest", "comma"]
        assert kinds[3] == ["first token", "rest", "sentence end", "itself", "comma"]

    def test_a_batch_knows_what_the_encoder_reads(self) -> None:
        short = Window.plain(np.array([9, 9]))
        batch = Batch.of([text.shift_right(7, crosses=True) for text in (window(), short)], pad_id=1)
        assert batch.source is not None
        ids, real = batch.source
        assert ids.tolist() == [[2, 9, 5, 9, 6], [9, 9, 1, 1, 1]]
        assert real.tolist() == batch.real.tolist() == [[True] * 5, [True, True, False, False, False]]
        assert Batch.of([window()]).source is None

    def test_batches_of_one_length_each(self) -> None:
        windows = [Window.plain(np.arange(length)) for length in (3, 3, 3, 2, 2, 3)]
        assert [len(batch) for batch in group_by_length(windows, 2, alike=True)] == [2, 2, 2]
        assert all(Batch.of(group).real.all() for group in group_by_length(windows, 2, alike=True))
        assert [len(batch) for batch in group_by_length(windows, 2)] == [2, 2, 2]


class TestTally:
    @pytest.mark.parametrize("crosses", [False, True], ids=["decoder", "cross"])
    def test_both_ways_of_counting_agree(self, crosses: bool) -> None:
        random = np.random.default_rng(0)
        windows = [Window.plain(random.integers(5, 12, length)).shift_right(2, crosses=crosses) for length in (9, 6, 3)]
        batch = Batch.of(windows)
        counting = TallySettings(Shape(1, 3, 9), 0.3, 0.3, 1.0, causal=not crosses)
        outputs = torch.from_numpy(random.normal(size=(3, 9, 3, 4)))
        maps = torch.from_numpy(random.random((3, 3, 9, 9)))
        sums: list[Tally] = []
        for tallier in (ReferenceTallier(counting), TorchTallier(counting)):
            tallier.begin(batch)
            tallier.observe_layer(0, outputs, maps)
            tallier.end()
            sums.append(tallier.get_sums())
        expected, actual = sums
        for name, array in expected.arrays.items():
            np.testing.assert_allclose(actual[name], array, rtol=1e-9, atol=1e-9, err_msg=name)
        assert {k: v.tolist() for k, v in expected.most_attended.items()} == {
            k: v.tolist() for k, v in actual.most_attended.items()
        }

    @pytest.mark.parametrize("way", [ReferenceTallier, TorchTallier])
    def test_the_most_attended_token_of_cross_attention_is_one_of_the_encoders(self, way: Any) -> None:
        read = window().shift_right(7, crosses=True)
        tallier = way(TallySettings(Shape(1, 1, 5), 0.3, 0.3, 1.0))
        tallier.begin(Batch.of([read]))
        maps = torch.zeros(1, 1, 5, 5)
        maps[..., 4] = 1  # all attend to the comma, which the decoder has not read
        tallier.observe_layer(0, torch.ones(1, 5, 1, 2), maps)
        tallier.end()
        tally = tallier.get_sums()
        assert list(tally.most_attended) == [6]
        received = tally["attention_received"].sum(axis=(0, 1))
        assert received[RECEIVERS.index("comma")] == 5


def study_stack(model: Any, stack: str, order: int = 1, **options: Any) -> Any:
    """Study a stack on the texts in their order, or backwards; the target of each is another of them."""
    pairs = list(zip(TEXTS, [*TEXTS[1:], TEXTS[0]], strict=True))
    return headscope.study(model.on(stack), (TEXTS if stack == "encoder" else pairs)[::order], length=16, **options)


def save_model(kind: str, path: Path, **options: Any) -> Path:
    tiny.network(kind, **options).save_pretrained(path)
    tiny.tokenizer().save_pretrained(path)
    return path


class TestStudies:
    @pytest.mark.parametrize("kind", ["t5", "bart", "mvp"])
    def test_each_stack_is_a_study(self, kind: str) -> None:
        model = tiny.model(kind)
        assert model.stacks == ("encoder", "decoder", "cross")
        studies = {stack: study_stack(model, stack) for stack in model.stacks}
        for stack, study in studies.items():
            manifest = study.manifest
            assert (manifest["stack"], manifest["causal"]) == (stack, int(stack == "decoder"))
            assert study.layers == [0, 1]
            assert f": {stack}, 2 layers × 4 heads" in repr(study)
            assert study.texts == len(TEXTS)
            assert int(study.data["pairs"].sum()) > 0
            if stack != "encoder":  # which reads no target
                np.testing.assert_array_equal(study.data["texts_blocks"], studies["decoder"].data["texts_blocks"])
        pairs = {stack: study.data["pairs"].values.tolist() for stack, study in studies.items()}
        assert len({json.dumps(counts) for counts in pairs.values()}) == 3
        # a decoder does not look ahead, and in cross-attention it may
        ahead = {stack: float(study.data["attention"].values[..., 0, 1:].sum()) for stack, study in studies.items()}
        assert ahead["decoder"] == 0 < min(ahead["encoder"], ahead["cross"])

    @pytest.mark.parametrize("stack", ["encoder", "decoder", "cross"])
    def test_plain_loops_and_batches_give_the_same(self, stack: str) -> None:
        model = tiny.model("bart")
        expected = study_stack(model, stack, batch_size=1, kernel="reference").data
        for order, size in ((1, 2), (-1, 5)):
            actual = study_stack(model, stack, order, batch_size=size).data
            for name in ("pairs", "equal", "same", "distance", "location", "distinct_dominants"):
                np.testing.assert_array_equal(expected[name], actual[name])
            np.testing.assert_allclose(expected["attention_received"], actual["attention_received"], atol=1e-4)

    def test_the_decoder_reads_what_the_model_is_trained_to_read(self) -> None:
        """Compare with the model's own conversion of labels to what its decoder reads."""
        from transformers.models.bart.modeling_bart import shift_tokens_right

        model = tiny.model("bart").on("decoder")
        text = window()
        batch = Batch.of([model.adapt_window(text)])
        expected = shift_tokens_right(torch.from_numpy(text.ids)[None], 0, BART["decoder_start_token_id"])
        assert batch.ids.tolist() == expected.tolist()

    def test_the_first_token_is_the_one_that_attention_finds(self) -> None:
        manifests = {stack: study_stack(tiny.model("bart"), stack).manifest for stack in STACKS}
        first = {
            stack: (manifest["first_special_token"], manifest["first_token_role"])
            for stack, manifest in manifests.items()
        }
        assert first["encoder"] == first["cross"] == ("[CLS]", "the classification token")
        assert first["decoder"] == ("[SEP]", "the token its decoder starts with")

    def test_an_encoder_is_studied_without_running_the_decoder(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = tiny.model("t5")
        _ = model.architecture
        monkeypatch.setattr(model.network.decoder, "forward", None)
        assert headscope.study(model, TEXTS, length=16).manifest["stack"] == "encoder"

    def test_a_hybrid_keeps_the_numbers_of_its_layers(self, tmp_path: Path) -> None:
        study = headscope.study(tiny.model("jamba"), TEXTS, length=16)
        assert study.layers == [1, 3]
        assert ": 2 layers × 4 heads" in repr(study)
        assert (study.manifest["layers"], study.manifest["depth"]) == (2, 4)
        assert sorted(set(study.heads()["layer"])) == [1, 3]
        assert headscope.open_study(study.save(tmp_path / "hybrid.nc")).layers == [1, 3]

    @pytest.mark.parametrize("way", ["reference", "torch", "reading"])
    def test_an_error_names_the_true_layer(self, way: str) -> None:
        model = tiny.model("jamba")
        with torch.no_grad():
            model.network.layers[3].self_attn.v_proj.weight.fill_(float("inf"))
        run = {
            "reading": lambda: headscope.read(model, TEXTS[0], length=16),
            "reference": lambda: headscope.study(model, TEXTS, length=16, kernel="reference"),
            "torch": lambda: headscope.study(model, TEXTS, length=16, kernel="torch"),
        }[way]
        with pytest.raises(ModelError, match="head L3H0 are not finite"):
            run()

    @pytest.mark.usefixtures("one_figure")
    def test_everything_made_of_a_hybrids_study_names_its_layers(self, tmp_path: Path) -> None:
        from headscope import output_folder

        study = headscope.study(tiny.model("lfm2"), TEXTS, length=16)
        (tmp_path / "made").mkdir()
        output_folder.write_study(study, tmp_path / "made")
        page = (tmp_path / "made" / "report.html").read_text(encoding="utf-8")
        assert "L3H0" in page
        assert "L0H0" not in page
        assert "L2H" not in page
        assert "L0" not in (tmp_path / "made" / "findings.md").read_text(encoding="utf-8")

    def test_a_model_that_sees_its_padding_never_gets_any(self) -> None:
        model = tiny.model("convbert")
        assert not model.ignores_padding
        studies = [headscope.study(model, TEXTS, length=24, batch_size=size).data for size in (1, 5)]
        np.testing.assert_array_equal(studies[0]["distance"], studies[1]["distance"])
        np.testing.assert_array_equal(studies[0]["location"], studies[1]["location"])

    @pytest.mark.parametrize("kind", ["t5", "jamba", "mpnet", "gpt2"])
    def test_others_are_padded(self, kind: str) -> None:
        assert tiny.model(kind).ignores_padding


class TestReadings:
    def test_a_decoders_tokens_begin_with_its_own(self) -> None:
        text = "the cat sat."
        model = tiny.model("bart")
        encoder = headscope.read(model.on("encoder"), text, length=20)
        decoder = headscope.read(model.on("decoder"), "a cat.", target=text, length=20)
        assert decoder.tokens.values.tolist() == ["[SEP]", *encoder.tokens.values.tolist()[:-1]]
        assert decoder.data["start"].values.tolist() == [-1, *encoder.data["start"].values.tolist()[:-1]]
        assert decoder.data["word"].values.tolist() == [0, *(encoder.data["word"].values[:-1] + 1).tolist()]
        assert not np.triu(decoder.attention.values, 1).any()
        assert "the" in decoder.to_html()


class TestRefused:
    def test_a_stack_that_is_not_there(self) -> None:
        with pytest.raises(ModelError, match="has no stack 'cross'; there are: decoder"):
            tiny.model("gpt2").on("cross")

    def test_an_encoder_that_attends_in_blocks_names_the_stacks_that_can_be_watched(self) -> None:
        config = AutoConfig.for_model(
            "led", **{**BART, "max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 64},
            attention_window=4,
        )  # fmt: skip
        model = headscope.load(AutoModel.from_config(config), tiny.tokenizer())
        assert model.stacks == ("decoder", "cross")
        with pytest.raises(ModelError, match=r"encoder of the model type 'led'.*--stack decoder or cross"):
            headscope.study(model, TEXTS, length=16)
        assert headscope.study(model.on("decoder"), TEXTS, target="text", length=16).texts == len(TEXTS)

    def test_attention_that_changes_with_the_length(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Some models attend fully in short windows, and to fewer positions in long ones."""
        model, original = tiny.model("bert"), attention_interface.CapturedAttention
        assert model.architecture.layers == 2

        def drop_keys(module: Any, output: torch.Tensor, attention: torch.Tensor, *rest: Any) -> CapturedAttention:
            return original(module, output, attention[..., :8], *rest)

        monkeypatch.setattr(attention_interface, "CapturedAttention", drop_keys)
        model.observe(tiny.batch(8), tiny.LayerRecorder())
        with pytest.raises(ModelError, match="attention in windows of 20 tokens differs from that in short ones"):
            model.observe(tiny.batch(20), tiny.LayerRecorder())

    def test_a_model_that_cannot_run_on_a_few_tokens_says_what_it_said(self) -> None:
        model = tiny.model("nystromformer", num_landmarks=5, segment_means_seq_len=20)
        with pytest.raises(ModelError, match=r"'nystromformer' does not run on a text of 5 tokens alone: shape"):
            _ = model.architecture

    def test_attention_of_which_nothing_was_seen_in_one_layer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = tiny.model("bert", num_hidden_layers=3)
        layer = model.network.encoder.layer[1]
        monkeypatch.setattr(layer, "forward", lambda hidden, *args, **options: hidden)
        with pytest.raises(
            ModelError, match=r"layer 1 has attention \(Bert\w*Attention\) of which nothing was captured"
        ):
            _ = model.architecture

    def test_a_model_that_wants_images(self) -> None:
        vit = AutoModel.from_config(AutoConfig.for_model("vit", hidden_size=32, num_attention_heads=4,
                                                         num_hidden_layers=1, image_size=8, patch_size=4))  # fmt: skip
        with pytest.raises(ModelError, match="reads images and needs an image processor"):
            headscope.load(vit, tiny.tokenizer())


class TestCommands:
    @pytest.mark.usefixtures("one_figure")
    def test_a_study_of_each_stack(self, headscope_command: Any, tmp_path: Path) -> None:
        folder = save_model("t5", tmp_path / "t5")
        (tmp_path / "texts.txt").write_text("\n\n".join(TEXTS), encoding="utf-8")
        options = ("--model", str(folder), "--length", "16", "--quiet", "--target", "text")
        ran = headscope_command("study", "texts.txt", *options, "--stack", "cross", "--out", "cross")
        assert ran.code == 0, ran.err
        assert headscope.open_study(tmp_path / "cross").manifest["stack"] == "cross"
        other = headscope_command("study", "texts.txt", *options, "--stack", "decoder", "--out", "cross")
        assert other.code == 1
        assert "stack" in other.err

    def test_the_architecture(self, headscope_command: Any, tmp_path: Path) -> None:
        folder = save_model("jamba", tmp_path / "hybrid")
        ran = headscope_command("inspect", str(folder))
        assert ran.code == 0, ran.err
        assert "2 of 4: 1, 3" in ran.out
        described = json.loads(headscope_command("inspect", str(save_model("t5", tmp_path / "t5")), "--json").out)
        assert [stack["stack"] for stack in described["stacks"]] == ["encoder", "decoder", "cross"]
        assert all(stack["verified"] for stack in described["stacks"])

    def test_the_architecture_of_what_cannot_be_watched(self, headscope_command: Any, tmp_path: Path) -> None:
        ran = headscope_command("inspect", str(save_model("mamba", tmp_path / "mamba")))
        assert ran.code == 1
        assert "no attention layers" in ran.err
        assert "Traceback" not in ran.err

    def test_notes_of_models_with_peculiarities(self, headscope_command: Any, tmp_path: Path) -> None:
        assert "sees its padding" in headscope_command("inspect", str(save_model("convbert", tmp_path / "a"))).out
        assert "gated or normed" in headscope_command("inspect", str(save_model("bitnet", tmp_path / "b"))).out
