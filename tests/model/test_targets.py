"""The decoder of an encoder–decoder model on its task: it reads the real target of each text."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

import headscope
from headscope.corpus.document import Document
from headscope.corpus.windows import Batch, Window, WindowSpec
from headscope.errors import CorpusError, HeadscopeError, ModelError, ReadingError, Stopped, StudyError
from headscope.model.loading import load
from headscope.model.model import Model
from headscope.tally.quantities import RECEIVERS, Shape
from headscope.tally.reference import ReferenceTallier
from headscope.tally.tally import TallySettings
from headscope.tally.torch_backend import TorchTallier
from tests.helpers import tiny
from tests.helpers.interrupting import stop_after

PAIRS = [
    ("the cat sat. the dog, a cat, ran!", "a b c. d e f, g h."),
    ("owl the owl.", "the end of the day. the end, of a week."),
    ("x y z x y z. x!", "the cat. the cat, the owl."),
    ("a day of days", "x."),
    ("the b. the c.", "the b, the c. the d, the e!"),
]
LENGTH = 24
KINDS = ["t5", "bart", "marian", "m2m_100", "mbart", "plbart", "pegasus"]
DECODERS = ["decoder", "cross"]


@pytest.fixture(scope="module")
def model() -> Model:
    return tiny.model("bart")


def make_translator(kind: str) -> Model:
    """Return a random model with a head that predicts words."""
    network = AutoModelForSeq2SeqLM.from_config(tiny.network(kind).config, attn_implementation="eager")
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        for weight in network.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    return load(network.eval(), tiny.tokenizer())


def write_pairs(path: Path, pairs: list[tuple[str, str]] = PAIRS) -> Path:
    path.write_text("".join(json.dumps({"en": source, "de": target}) + "\n" for source, target in pairs), "utf-8")
    return path


class TestCapture:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("stack", DECODERS)
    def test_heads_are_those_of_the_models_own_run_with_labels(self, kind: str, stack: str) -> None:
        translator = make_translator(kind)
        tokens = translator.tokens.tokenizer
        decoder = translator.network.get_decoder()
        attention = {
            "decoder": ("SelfAttention", "self_attn"),
            "cross": ("EncDecAttention", "encoder_attn"),
        }[stack]
        heads: list[torch.Tensor] = []
        hooks = [
            module.register_forward_pre_hook(lambda _, inputs: heads.append(inputs[0]))
            for name, module in decoder.named_modules()
            if any(name.endswith((f"{part}.o", f"{part}.out_proj")) for part in attention)
        ]
        source, target = PAIRS[0]
        with torch.inference_mode():
            expected = translator.network(
                **tokens(source, return_tensors="pt"),
                labels=tokens(target, return_tensors="pt").input_ids,
                output_attentions=True,
            )
        for hook in hooks:
            hook.remove()
        reading = headscope.read(translator.on(stack), source, target=target, length=32)
        maps = expected.decoder_attentions if stack == "decoder" else expected.cross_attentions
        np.testing.assert_allclose(reading.attention.values, torch.stack(maps)[:, 0].numpy(), atol=1e-5)
        np.testing.assert_allclose(
            reading.outputs.values.reshape(len(heads), len(reading), -1), torch.stack(heads)[:, 0].numpy(), atol=1e-4
        )

    @pytest.mark.parametrize("kind", ["t5", "bart", "fsmt", "mvp"])
    @pytest.mark.parametrize("stack", DECODERS)
    def test_padding_of_both_texts_changes_nothing(self, kind: str, stack: str) -> None:
        tiny_model = tiny.model(kind).on(stack)
        alone, together = (headscope.study(tiny_model, PAIRS, length=LENGTH, batch_size=size).data for size in (1, 5))
        for name in ("pairs", "equal", "same", "distance", "location", "texts_blocks", "window_tokens"):
            np.testing.assert_array_equal(alone[name], together[name], err_msg=name)
        np.testing.assert_allclose(alone["attention"], together["attention"], atol=1e-5)

    def test_models_that_see_padding_get_pairs_of_equal_lengths(self) -> None:
        from headscope.run.pipeline import make_batches

        def pair(source: int, target: int) -> Window:
            windows = (Window.plain(np.arange(5, 5 + length)) for length in (target, source))
            return next(windows).pair_with(next(windows), 2, crosses=True, document=None)

        windows = [pair(4, 3), pair(5, 3), pair(4, 3), pair(4, 6)]
        batches = make_batches(windows, 8, 0, can_pad=False)
        assert sorted([window.lengths for window in batch.windows] for batch in batches) == [
            [(3, 4), (3, 4)], [(3, 5)], [(6, 4)],
        ]  # fmt: skip

    def test_a_batch_of_cross_attention_is_as_long_as_the_longest_of_both(self) -> None:
        target, source = Window.plain(np.array([7, 8])), Window.plain(np.array([9, 10, 11]))
        for crosses, length in ((False, 2), (True, 3)):
            batch = Batch.of([target.pair_with(source, 2, crosses=crosses, document=None)])
            assert batch.ids.tolist() == [[2, 7, 0][:length]]
            assert batch.source is not None
            assert batch.source[0].tolist() == [[9, 10, 11]]
            assert batch.real_keys.tolist() == [[True] * length]

    def test_tokenizers_treat_targets_in_their_own_way(self) -> None:
        tokenizer = tiny.tokenizer()

        class Translating(type(tokenizer)):  # type: ignore[misc]
            tgt_lang: str | None = "de"

            def _switch_to_input_mode(self) -> None:
                self._tokenizer.post_processor = type(self)._make_post_processor("a")

            def _switch_to_target_mode(self) -> None:
                self._tokenizer.post_processor = type(self)._make_post_processor("b")

            @staticmethod
            def _make_post_processor(language: str) -> Any:
                from tokenizers.processors import TemplateProcessing

                number = tiny.VOCABULARY.index(language)
                return TemplateProcessing(single=f"{language} $A", special_tokens=[(language, number)])

        translating = Translating(tokenizer_object=tokenizer.backend_tokenizer, pad_token="[PAD]", unk_token="[UNK]")
        reading = headscope.read(
            load(tiny.network("bart"), translating, stack="cross"), "x y", target="z x z x z", length=8
        )
        assert reading.source_tokens.values.tolist() == ["a", "x", "y"]
        assert reading.tokens.values.tolist()[1:] == ["b", "z", "x", "z", "x"]
        translating.tgt_lang = None
        with pytest.raises(ModelError, match="does not know the language of the targets: set its tgt_lang"):
            headscope.study(load(tiny.network("bart"), translating, stack="cross"), PAIRS, length=LENGTH)


class TestTally:
    def test_both_ways_of_counting_rectangular_maps_agree(self) -> None:
        random = np.random.default_rng(0)
        windows = []
        for target, source in ((9, 4), (3, 10), (6, 6), (2, 2)):
            special = np.zeros(source, dtype=bool)
            special[0] = True
            read = Window(
                random.integers(5, 12, source), special, np.zeros(source, dtype=np.int64),
                random.random(source) < 0.2, np.zeros(source, dtype=bool),
            )  # fmt: skip
            written = Window.plain(random.integers(5, 12, target))
            windows.append(written.pair_with(read, 2, crosses=True, document=None))
        batch = Batch.of(windows)
        counting = TallySettings(Shape(1, 3, 10, crosses=True), 0.3, 0.3, 1.0)
        outputs = torch.from_numpy(random.normal(size=(4, 10, 3, 4)))
        maps = torch.from_numpy(random.random((4, 3, 10, 10)))  # padding is arbitrary
        sums = []
        for tallier in (ReferenceTallier(counting), TorchTallier(counting)):
            tallier.begin(batch)
            tallier.observe_layer(0, outputs, maps)
            tallier.end()
            sums.append(tallier.get_sums())
        expected, actual = sums
        assert set(expected.arrays) == set(actual.arrays)
        for name, array in expected.arrays.items():
            np.testing.assert_allclose(actual[name], array, rtol=1e-9, atol=1e-9, err_msg=name)
        assert {k: v.tolist() for k, v in expected.most_attended.items()} == {
            k: v.tolist() for k, v in actual.most_attended.items()
        }

    @pytest.mark.parametrize("way", [ReferenceTallier, TorchTallier])
    def test_two_queries_and_three_keys_by_hand(self, way: Any) -> None:
        source = Window.plain(np.array([7, 8, 9]))
        comma = np.array([False, True, False])
        source = Window(source.ids, source.special, source.sentence, source.end, comma)
        pair = Window.plain(np.array([5, 6])).pair_with(source, 2, crosses=True, document=None)
        tallier = way(TallySettings(Shape(1, 1, 4, crosses=True), 0.3, 0.3, 1.0))
        tallier.begin(Batch.of([pair]))
        maps = torch.full((1, 1, 3, 3), 9.0)
        maps[0, 0, :2] = torch.tensor([[0.1, 0.2, 0.7], [0.2, 0.2, 0.6]])
        tallier.observe_layer(0, torch.ones(1, 3, 1, 2), maps)
        tallier.end()
        tally = tallier.get_sums()
        assert tally["attention_texts"].tolist() == [[1, 1, 1, 0], [1, 1, 1, 0], [0] * 4, [0] * 4]
        np.testing.assert_allclose(tally["attention"][0, 0, :2, :3], [[0.1, 0.2, 0.7], [0.2, 0.2, 0.6]])
        assert tally["attention"][0, 0, 2:].sum() == tally["attention"][..., 3].sum() == 0
        received = dict(zip(RECEIVERS, tally["attention_received"].sum(axis=(0, 1)), strict=True))
        assert received == pytest.approx({**dict.fromkeys(RECEIVERS, 0), "first token": 0.3, "comma": 0.4, "rest": 1.3})
        spread = dict(zip(RECEIVERS, tally["attention_spread"].sum(axis=0), strict=True))
        assert spread == pytest.approx(
            {**dict.fromkeys(RECEIVERS, 0), "first token": 2 / 3, "comma": 2 / 3, "rest": 2 / 3}
        )
        assert list(tally.most_attended) == [9]
        assert "attention_offset" not in tally.arrays


class TestStudy:
    @pytest.mark.parametrize("stack", DECODERS)
    def test_a_study_of_one_pair_is_the_sum_over_its_reading(self, model: Model, stack: str) -> None:
        pair = ("The cat sat.", "The day ends. The week begins.")
        study = headscope.study(model.on(stack), [pair], length=32, sentences="text")
        reading = headscope.read(model.on(stack), pair, length=32, sentences="text")
        counts = reading.pairs().groupby(["layer", "head_number"]).size()
        np.testing.assert_array_equal(study.data["pairs"].values.ravel(), counts.values)
        rows, columns = reading.attention.shape[2:]
        maps = study.data["attention"].values
        np.testing.assert_allclose(maps[..., :rows, :columns], reading.attention.values, atol=1e-6)
        assert maps.sum() == pytest.approx(rows * maps.shape[0] * maps.shape[1], rel=1e-5)
        assert reading.data["sentence"].values.tolist()[-1] == 1

    def test_an_iterator_of_pairs_needs_the_name_of_a_target(self, model: Model) -> None:
        study = headscope.study(model.on("cross"), iter(PAIRS), target="de", length=LENGTH)
        assert study.texts == len(PAIRS)
        with pytest.raises(CorpusError, match="give a list of pairs, or say target='target'"):
            headscope.study(model, iter(PAIRS), length=LENGTH)

    def test_pairs_and_fields_are_the_same(self, model: Model, tmp_path: Path) -> None:
        from tests.helpers.study_equality import assert_same_sums

        frame = pd.DataFrame(PAIRS, columns=["en", "de"])
        frame.to_csv(tmp_path / "pairs.csv", index=False)
        frame.to_parquet(tmp_path / "pairs.parquet")
        fields: dict[str, Any] = {"field": "en", "target": "de", "length": LENGTH}
        expected = headscope.study(model.on("cross"), PAIRS, length=LENGTH)
        others = [frame, frame.to_dict("records"), str(write_pairs(tmp_path / "pairs.jsonl"))]
        others += [str(tmp_path / "pairs.csv"), str(tmp_path / "pairs.parquet")]
        for documents in others:
            study = headscope.study(model.on("cross"), documents, **fields)
            assert study.manifest["target"] == "de"
            assert study.manifest["corpus_hash"] == expected.manifest["corpus_hash"]
            assert_same_sums(study, expected)

    def test_digests_are_those_of_both_texts(self, model: Model) -> None:
        (source, target), (other, _) = PAIRS[:2]
        document, swapped = Document(source, "a", target=target), Document(other, "a", target=target)
        assert document.content == source.encode() + b"\xff" + target.encode()
        assert len({document.digest, swapped.digest, Document(source, "a").digest}) == 3
        windows = [model.on(stack).windows(document, WindowSpec(LENGTH))[0] for stack in DECODERS]
        encoder, written = (model.tokens.encode(text, LENGTH, all_windows=False, offsets=False)[0].ids
                            for text in (source, target))  # fmt: skip
        ids = np.concatenate([encoder, [-1], written]).astype("<i4").tobytes()
        for window in windows:
            assert isinstance(window, Window)
            assert window.digest == int.from_bytes(hashlib.blake2b(ids, digest_size=8).digest(), "little")
            assert window.document == document.digest

    def test_both_texts_are_cut_to_the_length(self, model: Model) -> None:
        (window,) = model.on("cross").windows(Document("a b c d e f g h", "long", target="x y z x y z"), WindowSpec(5))
        assert isinstance(window, Window)
        assert window.lengths == (5, 5)

    def test_empty_texts_are_skipped_by_reason(self, model: Model) -> None:
        pairs = [*PAIRS, ("", "a b"), ("a b", " "), ("a b", "c")]
        study = headscope.study(model.on("decoder"), pairs, length=LENGTH)
        assert study.manifest["documents_skipped"] == {"empty": 1, "target empty": 1, "too short": 1}

    def test_the_claims_about_a_diagonal_are_not_measurable(self, model: Model, tmp_path: Path) -> None:
        study = headscope.study(model.on("cross"), PAIRS * 4, length=LENGTH)
        assert "attention_offset" not in study.data
        assert study.findings()[0].verdict == "not measurable"
        assert not study.plot("2").axes[0].images[0].get_array().mask.all()
        opened = headscope.open_study(study.save(tmp_path / "cross.nc"))
        other = headscope.study(model.on("decoder"), PAIRS * 4, length=LENGTH)
        assert len(headscope.compare([opened, other]).to_html()) > 0
        assert "L1H3" in study.report()

    @pytest.mark.usefixtures("small_chunks")
    def test_resume_and_merge_refuse_other_targets(self, model: Model, tmp_path: Path) -> None:
        path = tmp_path / "pairs.jsonl"
        rows = [{"en": source, "de": target, "fr": source} for source, target in PAIRS * 4]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
        options: dict[str, Any] = {"length": LENGTH, "sample": 0.5}
        german, french = (headscope.documents(path, field="en", target=name) for name in ("de", "fr"))
        with pytest.raises(Stopped):
            headscope.study(
                model.on("cross"), german, checkpoint_dir=tmp_path / "kept", checkpoint_interval=0,
                progress=stop_after(4), **options,
            )  # fmt: skip
        with pytest.raises(StudyError, match="target"):
            headscope.study(model.on("cross"), french, checkpoint_dir=tmp_path / "kept", **options)
        resumed = headscope.study(model.on("cross"), german, checkpoint_dir=tmp_path / "kept", **options)
        whole = headscope.study(model.on("cross"), german, **options)
        np.testing.assert_array_equal(resumed.data["pairs"], whole.data["pairs"])
        with pytest.raises(StudyError, match="differ in target: de here, fr there"):
            whole.merge(headscope.study(model.on("cross"), french, **options))


class TestRefused:
    @pytest.mark.parametrize("stack", DECODERS)
    def test_a_decoder_without_a_target(self, model: Model, stack: str) -> None:
        for call in (headscope.study, headscope.read):
            documents: Any = ["the cat sat."] if call is headscope.study else "the cat sat."
            with pytest.raises(ModelError, match=r"--target FIELD \(in Python: give a list of pairs"):
                call(model.on(stack), documents, length=LENGTH)

    def test_a_target_that_nothing_reads(self, model: Model) -> None:
        with pytest.raises(ModelError, match="its encoder does not read the target: choose --stack decoder"):
            headscope.study(model, PAIRS, length=LENGTH)
        with pytest.raises(ModelError, match="has no decoder behind an encoder"):
            headscope.read(tiny.model("gpt2"), PAIRS[0], length=LENGTH)

    @pytest.mark.parametrize(
        ("documents", "options", "message"),
        [
            ([PAIRS[0], "the cat"], {}, "document 2 has no target"),
            ([{"text": "a", "de": "b"}, {"text": "a"}], {"target": "de"}, "document 2 has no target"),
            ([PAIRS[0], ("a", 1)], {}, r"document 2 is a tuple of \(str, int\)"),
            ([PAIRS[0], ("a", "b", "c")], {}, "document 2 is a tuple"),
            (iter(PAIRS), {}, "give a list of pairs"),
            (["the cat", PAIRS[0]], {}, "give a list of pairs"),
            (pd.DataFrame({"text": ["a", "b"], "de": ["b", None]}), {"target": "de"}, "row 1 of column 'de'"),
            (pd.DataFrame({"text": ["a"]}), {"target": "de"}, "no column 'de'"),
            (None, {"target": "de"}, "the bundled texts have no fields"),
            (PAIRS, {"windows": "all"}, "with --target a document has one window"),
        ],
    )
    def test_wrong_documents(self, model: Model, documents: Any, options: dict[str, Any], message: str) -> None:
        with pytest.raises(HeadscopeError, match=message):
            headscope.study(model.on("decoder"), documents, length=LENGTH, **options)

    def test_documents_without_a_target_are_skipped_on_request(self, model: Model, tmp_path: Path) -> None:
        path = write_pairs(tmp_path / "pairs.jsonl")
        path.write_text(path.read_text("utf-8") + '{"en": "no more"}\n{"en": "a", "de": 1}\n', "utf-8")
        with pytest.raises(CorpusError, match=r"pairs\.jsonl:6: no field 'de'; .* Choose one with --target"):
            list(headscope.documents(path, field="en", target="de"))
        corpus = headscope.documents(path, field="en", target="de", skip_broken=True)
        assert headscope.study(model.on("cross"), corpus, length=LENGTH).manifest["documents_skipped"] == {
            "no target": 2
        }
        given = headscope.study(model.on("cross"), [*PAIRS, "none"], length=LENGTH, skip_broken=True)
        assert given.manifest["documents_skipped"] == {"no target": 1}

    def test_a_text_and_two_targets(self, model: Model) -> None:
        with pytest.raises(ReadingError, match="target is given as well"):
            headscope.read(model.on("cross"), PAIRS[0], target="a", length=LENGTH)
        with pytest.raises(ReadingError, match="target is a int"):
            headscope.read(model.on("cross"), "a b", target=1, length=LENGTH)  # type: ignore[arg-type]


class TestReading:
    def test_cross_attention_shows_both_texts(self, model: Model, tmp_path: Path) -> None:
        reading = headscope.read(model.on("cross"), PAIRS[0], length=LENGTH)
        labels = model.tokens.labels(model.tokens.encode(PAIRS[0][0], LENGTH, all_windows=False, offsets=False)[0].ids)
        assert reading.source_tokens.values.tolist() == labels
        assert reading.tokens.values.tolist() == ["[SEP]", "[CLS]", *"abc.def,gh."]
        assert reading.attention.sizes["query"], reading.attention.sizes["key"] == (len(reading), len(labels))
        assert reading.attention["key_token"].values.tolist() == labels
        assert set(reading.lines(1)["token"]) <= set(labels)
        assert f"{len(reading)} tokens for {len(labels)} of the source" in repr(reading)
        page = reading.to_html()
        assert PAIRS[0][0][:20] in page
        assert "cross-attention): not on this page" in page
        opened = headscope.open_reading(reading.save(tmp_path / "cross.nc"))
        assert opened.data.identical(reading.data)

    def test_figures_of_cross_attention(self, model: Model) -> None:
        from headscope.figures import draw_all

        reading = headscope.read(model.on("cross"), PAIRS[0], length=LENGTH)
        assert list(draw_all(reading)) == ["4", "9", "12"]
        texts = [text.get_text() for text in reading.plot("4").findobj(lambda part: hasattr(part, "get_text"))]
        assert {"[keys]", "[queries]"} <= set(texts)
        for call in (lambda: reading.plot("5"), lambda: reading.blocks(0), lambda: reading.regions(0, 0),
                     lambda: reading.segments()):  # fmt: skip
            with pytest.raises(ReadingError, match="goes to the source"):
                call()

    def test_what_is_left_out_of_both_texts_is_said(self, model: Model) -> None:
        short = headscope.read(model.on("decoder"), "a b c d e f", target="a.", length=6)
        assert short.leaves_out
        assert "4 tokens for 6 of the source (the first of 8)" in repr(short)
        assert not headscope.read(model.on("decoder"), "a b", target="a.", length=6).leaves_out

    def test_the_source_of_other_readings(self) -> None:
        with pytest.raises(ReadingError, match="has no source"):
            _ = headscope.read(tiny.model("bert"), "the cat sat.", length=16).source_tokens


class TestCommands:
    @pytest.mark.usefixtures("one_figure")
    def test_study_and_repeat(self, headscope_command: Any, tmp_path: Path) -> None:
        folder = str(tmp_path / "bart")
        tiny.network("bart").save_pretrained(folder)
        tiny.tokenizer().save_pretrained(folder)
        write_pairs(tmp_path / "pairs.jsonl")
        options = ("pairs.jsonl", "--field", "en", "--model", folder, "--length", "24", "--quiet", "--stack", "cross")
        refused = headscope_command("study", *options, "-o", "study")
        assert refused.code == 1
        assert "--target FIELD" in " ".join(refused.err.split())
        assert headscope_command("study", *options, "-o", "study", "--target", "de").code == 0
        assert headscope.open_study(tmp_path / "study").manifest["target"] == "de"
        again = headscope_command("study", *options, "-o", "study", "--target", "de")
        assert (again.code, "holds this study already" in " ".join(again.err.split())) == (0, True)
        other = headscope_command("study", *options, "-o", "study", "--target", "en")
        assert other.code == 1
        assert "target (de there, en now)" in " ".join(other.err.split())
        missing = headscope_command("study", *options, "-o", "other", "--target", "fr")
        assert missing.code == 1
        assert "pairs.jsonl:1: no field 'fr'" in " ".join(missing.err.split())
        read = headscope_command("read", *options, "--target", "de", "--json", "--save", "cross.nc")
        assert read.code == 0, read.err
        assert json.loads(read.out)["source_tokens"][:2] == ["[CLS]", "the"]
        assert headscope.open_reading(tmp_path / "cross.nc").is_cross
        literal = headscope_command("read", "the cat", *options[3:], "--target", "de")
        assert literal.code == 1
        assert "only files of many documents" in " ".join(literal.err.split())
