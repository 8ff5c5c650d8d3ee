"""Vision transformers: patches as tokens, images as texts; and what needs words is marked, never counted."""

from __future__ import annotations

import hashlib
import io
import json
import struct
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import BertConfig, VisionEncoderDecoderConfig, VisionEncoderDecoderModel, ViTConfig

import headscope
from headscope import figures, output
from headscope.corpus import images
from headscope.corpus.documents import as_corpus, documents
from headscope.corpus.windows import Batch
from headscope.errors import CorpusError, ModelError, ReadingError, StudyError
from headscope.model.loading import load
from headscope.model.model import Model
from headscope.model.patches import Patches
from headscope.studies.labels import OF_WORDS, RATES
from headscope.studies.result import Study
from headscope.studies.settings import Settings
from headscope.tally.quantities import QUANTITIES
from tests import tiny
from tests.architectures import built, watched

if TYPE_CHECKING:
    from tests.browser import PageOpener

COUNT = 24
INTEGERS = [quantity.name for quantity in QUANTITIES if not quantity.real]


@pytest.fixture(scope="module")
def model() -> Model:
    return tiny.vision_model()


@pytest.fixture(scope="module")
def study(model: Model) -> Study:
    return headscope.study(model, tiny.pictures(COUNT))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A vision model as `save_pretrained` writes it."""
    tiny.network("vit").save_pretrained(tmp_path / "vit")
    tiny.image_processor().save_pretrained(tmp_path / "vit")
    return tmp_path / "vit"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Six images, one of them broken, and a file that is none."""
    made = tmp_path / "photos"
    made.mkdir()
    for k, held in enumerate(tiny.pictures(5)):
        Image.fromarray(held).save(made / f"{k}.{('png', 'bmp', 'webp')[k % 3]}", lossless=True)
    (made / "broken.png").write_bytes((made / "0.png").read_bytes()[:60])
    return made


def tokens(model: Model) -> Patches:
    assert isinstance(model.tokens, Patches)
    return model.tokens


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    held = io.BytesIO()
    image.save(held, kind, **options)
    return held.getvalue()


def rgb(made: images.Picture | str | None) -> Any:
    assert isinstance(made, images.Picture)
    return made.rgb


# An image becomes a window


def test_the_digest_of_an_image_by_hand(model: Model) -> None:
    """Height 1, width 2, a red and a dark pixel."""
    array = np.array([[[255, 0, 0], [1, 2, 3]]], dtype=np.uint8)
    content = struct.pack("<ii", 1, 2) + bytes([255, 0, 0, 1, 2, 3])
    u = int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")
    (document,) = as_corpus([array])
    (window,) = model.windows(document, Settings().cut)
    assert document.content == content
    assert (window.digest, window.block) == (u, u % 20)
    assert window.ids.tolist() == list(range(10))
    assert window.special.tolist() == [True] + [False] * 9
    assert not window.end.any()
    assert not window.comma.any()
    turned = images.as_picture(array.transpose(1, 0, 2))
    assert isinstance(turned, images.Picture)
    assert turned.digest != u  # the same bytes in another form are another image


@pytest.mark.parametrize(
    ("name", "first", "length", "names"),
    [
        ("vit", 1, 10, {0: "[CLS]", 1: "r0c0", 6: "r1c2", 9: "r2c2"}),
        ("deit", 2, 11, {0: "[CLS]", 1: "[DIST]", 2: "r0c0", 10: "r2c2"}),
        ("dinov2_with_registers", 5, 14, {1: "[REG1]", 4: "[REG4]", 5: "r0c0"}),
        ("dinov3_vit", 5, 14, {1: "[REG1]", 13: "r2c2"}),
        ("vit_mae", 1, 10, {1: "r0c0", 9: "r2c2"}),
        ("ijepa", 0, 9, {0: "r0c0", 8: "r2c2"}),
        ("siglip_vision_model", 0, 9, {0: "r0c0"}),
        ("yolos", 1, 13, {0: "[CLS]", 9: "r2c2", 10: "[DET1]", 12: "[DET3]"}),
    ],
)
def test_where_the_patches_are(name: str, first: int, length: int, names: dict[int, str]) -> None:
    found = tokens(watched(name))
    assert (found.layout.rows, found.layout.columns, found.layout.first, found.length) == (3, 3, first, length)
    assert {k: found.names([k])[0] for k in names} == names
    assert found.first_special() == ("[CLS]" if first else None)
    assert bool(found.first_role()) is bool(first)
    assert len(set(found.names(list(range(length))))) == length
    (window,) = found.windows(next(iter(as_corpus(tiny.pictures(1)))))  # type: ignore[misc]
    assert np.flatnonzero(~window.special).tolist() == list(range(first, first + 9))  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["vit", "deit", "dinov2_with_registers", "yolos"])
def test_every_patch_is_the_token_that_is_named_so(name: str) -> None:
    found, network = tokens(watched(name)), built(name)
    place = {label: k for k, label in enumerate(found.names(list(range(found.length))))}
    black = torch.zeros(1, *found.shape)
    with torch.inference_mode():
        before = network.embeddings(black)
        for row in range(3):
            for column in range(3):
                lit = black.clone()
                lit[..., 4 * row + 1, 4 * column + 2] = 1
                moved = (network.embeddings(lit) != before).any(-1)[0].nonzero().flatten().tolist()
                assert moved == [place[f"r{row}c{column}"]]


def test_an_image_need_not_be_square() -> None:
    processor = tiny.image_processor()
    processor.size = {"height": 8, "width": 12}
    found = tokens(load(tiny.network("vit", image_size=[8, 12]), processor))
    assert (found.layout.rows, found.layout.columns, found.length) == (2, 3, 7)
    assert found.names([1, 3, 4, 6]) == ["r0c0", "r0c2", "r1c0", "r1c2"]


def test_mae_sees_the_whole_image_and_is_left_as_it_was() -> None:
    model = watched("vit_mae")
    ratio, pictures = model.network.config.mask_ratio, tiny.pictures(2)
    seen = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        seen.append(headscope.read(model, pictures[0]))
    assert np.array_equal(seen[0].outputs, seen[1].outputs)
    assert not np.array_equal(seen[0].outputs, headscope.read(model, pictures[1]).outputs)
    assert model.network.config.mask_ratio == ratio > 0

    def stop(*seen: object) -> None:
        raise KeyError

    window = model.windows(next(iter(as_corpus(pictures))), None)  # type: ignore[arg-type]
    with pytest.raises(KeyError):
        model.observe(Batch.of(window), stop)
    assert model.network.config.mask_ratio == ratio


# Files, PIL images, arrays


def test_the_same_image_is_the_same_whatever_it_is_stored_in(tmp_path: Path) -> None:
    (array,) = tiny.pictures(1)
    image = Image.fromarray(array)
    for ending in ("png", "bmp", "tiff"):
        image.save(tmp_path / f"a.{ending}")
    kinds = [array, image, np.asarray(image), *documents(tmp_path)]
    assert len({document.content for document in as_corpus(kinds)}) == 1
    assert [document.name for document in as_corpus(kinds[:2])] == ["image 1", "image 2"]
    assert as_corpus(kinds).name == "images given in Python"
    assert as_corpus(["a"]).name == "texts given in Python"
    assert documents(tmp_path).size == 3


def test_colours_of_every_kind_become_rgb() -> None:
    grey = np.array([[0, 128], [200, 255]], dtype=np.uint8)
    threefold = np.repeat(grey[..., None], 3, axis=2)
    assert np.array_equal(rgb(images.as_picture(grey)), threefold)
    assert np.array_equal(rgb(images.decoded(encoded(Image.fromarray(grey), "PNG"))), threefold)
    deep = Image.fromarray(grey.astype(np.uint16) * 257)  # 16 bits: 0x8080 for 0x80
    assert np.array_equal(rgb(images.decoded(encoded(deep, "PNG"))), threefold)
    see_through = np.dstack([threefold, np.array([[0, 10], [20, 255]], dtype=np.uint8)])
    assert np.array_equal(rgb(images.decoded(encoded(Image.fromarray(see_through), "PNG"))), threefold)
    palette = Image.fromarray(threefold).quantize(4)
    assert np.array_equal(rgb(images.decoded(encoded(palette, "PNG", transparency=b"\0\1\2\3"))), threefold)
    black_ink = Image.fromarray(np.zeros((2, 2, 4), dtype=np.uint8), "CMYK")
    assert np.array_equal(rgb(images.decoded(encoded(black_ink, "TIFF"))), np.full((2, 2, 3), 255))


def test_the_first_frame_of_an_animation_and_upright_photographs() -> None:
    first, second = (Image.new("RGB", (3, 2), colour) for colour in ("red", "blue"))
    moving = encoded(first, "GIF", save_all=True, append_images=[second])
    assert np.array_equal(rgb(images.decoded(moving)), np.full((2, 3, 3), [255, 0, 0]))
    (array,) = tiny.pictures(1)
    turned = Image.fromarray(array)
    exif = turned.getexif()
    exif[0x0112] = 6  # the camera was held on its side: turn clockwise
    assert np.array_equal(rgb(images.decoded(encoded(turned, "PNG", exif=exif))), np.rot90(array, -1))


@pytest.mark.parametrize("most", [100, 60])
def test_an_image_that_cannot_be_read_says_why(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    (array,) = tiny.pictures(1)  # 12 × 15
    whole = encoded(Image.fromarray(array), "PNG")
    assert images.decoded(whole[:60]) == images.DAMAGED
    assert images.decoded(b"") == images.decoded(b"no image at all") == images.UNKNOWN
    numbers = Image.fromarray(np.zeros((2, 2), dtype=np.float32))
    assert images.decoded(encoded(numbers, "TIFF")) == images.as_picture(numbers) == images.NUMBERS
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", most)  # of 180 pixels PIL warns at 100, and refuses at 60
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as elsewhere: these tests turn warnings to errors
        assert images.decoded(whole) == images.TOO_LARGE


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (np.zeros((2, 2, 3)), "float64 and shape"),
        (np.zeros((2, 2, 4), dtype=np.uint8), "no image"),
        (np.zeros((0, 2, 3), dtype=np.uint8), "no image"),
        (7, "images of PIL"),
    ],
)
def test_what_is_no_image_is_refused_by_its_number(model: Model, wrong: Any, words: str) -> None:
    with pytest.raises(headscope.Stopped, match=f"document 3.*{words}") as stopped:
        headscope.study(model, [*tiny.pictures(2), wrong], batch_size=1)
    assert stopped.value.study is not None
    assert stopped.value.study.texts == 2
    with pytest.raises((CorpusError, ReadingError), match=f"{words}|give it as a string"):
        headscope.read(model, wrong)


def test_one_image_is_no_list(model: Model) -> None:
    (array,) = tiny.pictures(1)
    for one in (array, array[..., 0], Image.fromarray(array)):
        with pytest.raises(CorpusError, match="give a list of them"):
            headscope.study(model, one)  # type: ignore[arg-type]
    assert headscope.study(model, np.stack([array, array])).texts == 2


def test_texts_and_images_are_not_mistaken_for_each_other(model: Model, photos: Path, tmp_path: Path) -> None:
    reader = tiny.model("bert")
    with pytest.raises(CorpusError, match="text 1: a text, and ViTModel reads images: give images"):
        headscope.study(model, ["a b c"])
    with pytest.raises(CorpusError, match="a text, and ViTModel reads images"):
        headscope.study(model, headscope.documents(limit=1))
    with pytest.raises(CorpusError, match="the text: a text, and ViTModel reads images"):
        headscope.read(model, "a b c")
    for given in (photos / "0.png", photos / "broken.png", tiny.pictures(1)):
        with pytest.raises(CorpusError, match="an image, and this model reads texts: choose a vision model"):
            headscope.study(reader, given, length=16)
    with pytest.raises(CorpusError, match="the image: an image, and this model reads texts"):
        headscope.read(reader, tiny.pictures(1)[0], length=16)


def test_a_folder_is_one_of_images_where_it_holds_no_texts(photos: Path) -> None:
    assert len(list(documents(photos))) == 6
    assert len(list(documents(str(photos / "*.bmp")))) == 2
    (photos / "captions.txt").write_text("a b c")
    assert [document.text for document in documents(photos)] == ["a b c"]
    assert [Path(document.name).name for document in documents(photos, format="image")] == [
        "0.png", "1.bmp", "2.webp", "3.png", "4.bmp", "broken.png",
    ]  # fmt: skip
    (photos / "captions.txt").unlink()
    with pytest.raises(CorpusError, match="no file in this folder"):
        documents(photos, format="text")


def test_broken_images_are_skipped_and_counted(model: Model, photos: Path) -> None:
    made = headscope.study(model, photos)
    assert made.texts == 5
    assert made.manifest["documents_read"] == 6
    assert made.manifest["documents_skipped"] == {images.DAMAGED: 1}
    assert made.manifest["excerpts"][0] == {"name": str(photos / "0.png"), "text": "15 × 12 pixels"}
    with pytest.raises(StudyError, match="no image to study: 1 documents read, 1 damaged image"):
        headscope.study(model, photos / "broken.png")


# What a study holds


def test_what_needs_words_is_nan_and_the_rest_is_measured(study: Study) -> None:
    assert study.manifest["modality"] == "image"
    assert study.of_images
    for name in RATES:
        values = [study.rate(name), study.chance(name), study.standard_error(name)]
        assert all(bool(held.isnull().all()) is (name in OF_WORDS) for held in values), name
    assert float(study.chance("mean_distance")) == pytest.approx(11 / 3)  # (N + 1) / 3
    assert int(study.data["all_pairs"]) == COUNT * 45
    assert int(study.data["all_equal"]) == int(study.data["equal"].sum()) == 0
    assert set(study.data["token"].values) <= {"[CLS]", *(f"r{k // 3}c{k % 3}" for k in range(9))}
    received = study.data["attention_received"].sel(receiver=["sentence end", "comma", "last special token"])
    assert not received.any()
    assert repr(study).endswith(f"{COUNT} images of images given in Python>")


def test_the_study_is_the_sum_of_its_readings(model: Model, study: Study) -> None:
    readings = [headscope.read(model, held) for held in tiny.pictures(COUNT)]
    for layer in study.layers:
        for head in study.heads:
            pairs = [reading.pairs(layer, head) for reading in readings]
            apart = sum(int((held.index_j - held.index_i).sum()) for held in pairs)
            here = study.data.sel(layer=layer, head=head)
            assert int(here["pairs"]) == sum(map(len, pairs))
            assert int(here["distance_sum"]) == apart
    maps = sum(reading.attention.values for reading in readings)
    np.testing.assert_allclose(study.data["attention"].values, maps, rtol=1e-5)


def test_order_batches_and_kernel_change_no_integer(model: Model, study: Study) -> None:
    pictures = tiny.pictures(COUNT)
    shuffled = [pictures[k] for k in np.random.default_rng(5).permutation(COUNT)]
    assert int(study.data["near_threshold"].sum()) == 0
    for other in (
        headscope.study(model, shuffled, batch_size=1),
        headscope.study(model, shuffled, batch_size=7),
        headscope.study(model, shuffled, kernel="reference"),
    ):
        assert other.manifest["corpus_hash"] == study.manifest["corpus_hash"]
        for name in INTEGERS:
            for held in (name, f"{name}_blocks"):
                if held in study.data and name not in ("value_histogram", "near_bin_edge"):
                    assert np.array_equal(other.data[held], study.data[held]), held
    assert np.count_nonzero(study.data["texts_blocks"]) > 5  # images are spread over the blocks by their content


def test_findings_say_what_images_have_none_of(study: Study) -> None:
    found = {finding.number: finding for finding in headscope.findings(study)}
    unmeasured = {n for n, finding in found.items() if "patches are no words" in finding.measured}
    assert unmeasured == {3, 6, 7, 8}
    assert all(found[n].verdict == "cannot be measured" for n in unmeasured)
    assert "[CLS], the classification token, is the most attended token" in found[2].measured
    assert "of images" in found[2].measured
    assert list(found[12].details) == ["mean_distance"]
    # two layers have no middle: that, too, is said
    assert {n for n in found if found[n].verdict == "cannot be measured"} == unmeasured | {4, 11}
    assert not any(" texts" in finding.measured or " tokens" in finding.measured for finding in found.values())


def test_without_a_special_token_finding_2_says_so() -> None:
    made = headscope.study(tiny.vision_model("ijepa"), tiny.pictures(3))
    finding = headscope.findings(made)[1]
    assert finding.verdict == "cannot be measured"
    assert "this model puts no special token first. What stands first in an image" in finding.measured


def test_figures_of_words_are_not_drawn(study: Study) -> None:
    assert {n for n, held in figures.DRAWINGS.items() if not held.can_draw(study)} == {"6a", "6b", "8"}
    for number in ("6a", "6b", "8"):
        with pytest.raises(StudyError, match=f"figure {number} shows what only words"):
            figures.draw(study, number)
    drawn = figures.draw(study, "11b")
    words = [held.get_text() for held in drawn.findobj(lambda held: hasattr(held, "get_text"))]  # type: ignore[attr-defined]
    assert "share of images (%)" in words
    assert not any("text" in held or "tokens" in held for held in words)


def test_nan_stays_where_studies_are_saved_selected_and_merged(model: Model, study: Study, tmp_path: Path) -> None:
    other = headscope.study(model, tiny.pictures(3, seed=1))
    for held in (headscope.open_study(study.save(tmp_path / "a.nc")), study.select(layers=[1]), study.merge(other)):
        assert held.of_images
        assert held.rate("same_sentence_rate").isnull().all()
        assert held.chance("same_sentence_rate").isnull()
    assert study.merge(other).texts == COUNT + 3


def test_a_study_that_says_nothing_is_one_of_texts() -> None:
    made = headscope.study(tiny.model("bert"), ["a b . a b .", "c d e f ."], length=16)
    assert made.manifest["modality"] == "text"
    del made.data.attrs["modality"]
    assert not made.of_images
    assert made.chance("repeat_rate") > 0
    assert figures.DRAWINGS["6a"].can_draw(made)


def test_texts_are_not_compared_with_images(study: Study) -> None:
    texts = headscope.study(tiny.model("bert"), ["a b . a b .", "c d e f ."], length=10)
    with pytest.raises(StudyError, match="texts and of images cannot be compared"):
        headscope.compare([study, texts])


def test_characters_of_heads_that_saw_no_words(study: Study) -> None:
    table = headscope.characters(study)
    assert not set(table["character"]) & {"repeat-token", "within-sentence"}
    assert table["same_sentence_rate_chance"].isna().all()
    assert not table["description"].str.contains("text").any()


# Settings and models that do not fit


@pytest.mark.parametrize("options", [{"length": 64}, {"windows": "all"}, {"sentences": "text"}])
def test_settings_of_texts_are_refused(model: Model, options: Any) -> None:
    with pytest.raises(StudyError, match="leave --"):
        headscope.study(model, tiny.pictures(1), **options)


def test_the_length_is_the_models_own(model: Model, study: Study) -> None:
    assert study.manifest["length"] == model.max_length == 10
    assert headscope.study(model, tiny.pictures(1), length=10).manifest["length"] == 10
    assert study.has_maps


def test_images_of_many_sizes_are_refused() -> None:
    processor = tiny.image_processor()
    processor.do_resize = False
    with pytest.raises(ModelError, match="64 × 64 pixels"):
        _ = load(tiny.network("vit"), processor).anatomy
    free = load(tiny.network("dinov2"), processor)  # it takes any size, and then each image has its own
    with pytest.raises(CorpusError, match=r"image 1: .* makes 15 × 12 pixels of it, and 64 × 64 pixels of another"):
        headscope.study(free, tiny.pictures(1))


def test_maps_that_shrink_in_later_layers_are_refused() -> None:
    """Its first layer relates all patches, so that only the maps of the second tell."""
    network = tiny.network("vit")
    last = [module for module in network.modules() if isinstance(module, torch.nn.ModuleList)][-1][-1]
    own = last.forward
    last.forward = lambda hidden, *given, **more: own(hidden[:, ::2], *given, **more)
    with pytest.raises(ModelError, match="relate the 10 tokens of an image to each other, but 5 to 5 in 1 windows"):
        _ = load(network, tiny.image_processor()).anatomy


def test_a_processor_that_breaks_is_named() -> None:
    class Breaking:
        def preprocess(self) -> None: ...

        def __call__(self, **given: Any) -> Any:
            raise ZeroDivisionError("nothing there")

    with pytest.raises(ModelError, match="Breaking cannot take an image: ZeroDivisionError: nothing there"):
        _ = load(tiny.network("vit"), Breaking()).anatomy


def test_what_belongs_to_a_model_is_asked_for(folder: Path) -> None:
    vision, reader = tiny.network("vit"), tiny.network("bert")
    with pytest.raises(ModelError, match=r"needs its image processor too: headscope.load\(model, image_processor\)"):
        load(vision)
    with pytest.raises(ModelError, match="reads images and needs an image processor, not a"):
        load(vision, tiny.tokenizer())
    with pytest.raises(ModelError, match="reads texts and needs a tokenizer, not a ViTImageProcessorPil"):
        load(reader, tiny.image_processor())
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(ModelError, match="cannot be loaded"):
        load(folder)


def test_a_model_that_writes_of_images_is_sent_to_its_encoder() -> None:
    common = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 40}
    config = VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        ViTConfig(image_size=12, patch_size=4, **common), BertConfig(vocab_size=62, **common)
    )
    network = VisionEncoderDecoderModel(config)
    with pytest.raises(ModelError, match=r"watch its encoder alone, headscope.load\(network.get_encoder"):
        _ = load(network, tiny.image_processor()).anatomy
    assert load(network.get_encoder(), tiny.image_processor()).anatomy.layers == 1


# One image


def test_a_reading_of_an_image(model: Model, tmp_path: Path) -> None:
    (array,) = tiny.pictures(1)
    reading = headscope.read(model, array)
    assert reading.tokens.values.tolist() == ["[CLS]", *(f"r{k // 3}c{k % 3}" for k in range(9))]
    assert reading.text == "the image, 15 × 12 pixels"
    assert reading.outputs.shape == (2, 10, 4, 8)
    np.testing.assert_allclose(reading.attention.sum("key"), 1, rtol=1e-5)
    assert (reading.manifest["length"], reading.manifest["tokens_in_text"]) == (10, 10)
    assert np.array_equal(headscope.open_reading(reading.save(tmp_path / "a.nc")).outputs, reading.outputs)
    same = headscope.read(model, Image.fromarray(array))
    assert np.array_equal(same.outputs, reading.outputs)
    with pytest.raises(ReadingError, match="the image: image of 32-bit numbers"):
        headscope.read(model, Image.fromarray(array[..., 0].astype(np.float32)))


def test_the_rows_of_an_image_are_lines_on_its_page(model: Model) -> None:
    from headscope.page.explorer.pieces import pieces

    gaps = [gap for gap, _ in pieces(headscope.read(model, tiny.pictures(1)[0]))]
    assert gaps == ["", *["\n", " ", " "] * 3]


# The command line, and pages


@pytest.mark.usefixtures("one_figure")
def test_study_and_read_on_the_command_line(headscope_command: Any, folder: Path, photos: Path) -> None:
    asked = ("study", str(photos), "--model", str(folder), "--out", "out")
    ran = headscope_command(*asked)
    assert ran.code == 0, ran.err
    words = " ".join(ran.out.split())
    assert "5 images, 2 layers × 4 heads" in words
    assert "row by row" in words
    assert "skipped: 1 damaged image" in ran.err
    assert headscope_command(*asked, "--quiet").code == 0  # the same study again, in the same folder
    made = headscope.open_study("out")
    assert made.of_images
    assert made.texts == 5
    page = (Path("out") / "findings.md").read_text(encoding="utf-8")
    assert "5 images of 10 patches" in page
    assert "patches are no words" in page

    ran = headscope_command("read", str(photos / "0.png"), "--model", str(folder), "--head", "L1H2", "--out", "a.html")
    assert ran.code == 0, ran.err
    assert "r0c0" in ran.out
    assert Path("a.html").is_file()

    ran = headscope_command("anatomy", str(folder), "--json")
    assert (json.loads(ran.out)["reads"], json.loads(ran.out)["longest_window"]) == ("image", 10)
    assert "An image has 10 tokens, 3 × 3 patches among them." in headscope_command("anatomy", str(folder)).out


def test_errors_on_the_command_line(headscope_command: Any, folder: Path, photos: Path) -> None:
    vision = ("--model", str(folder))
    for arguments, words in (
        (("study", *vision), "a text, and"),
        (("study", str(photos), *vision, "--length", "64"), "an image has 10 tokens"),
        (("read", "Two ravens met.", *vision), "a text, and"),
        (("read", str(photos / "broken.png"), *vision), "broken.png: damaged image"),
        (("read", str(photos / "0.png")), "an image, and this model reads texts"),
        (("paper", *vision), "reads images"),
    ):
        ran = headscope_command(*arguments)
        assert (ran.code, words in " ".join(ran.err.split())) == (1, True), (arguments, ran.err)


@pytest.mark.browser
def test_the_report_of_images_speaks_of_images(study: Study, page_opener: PageOpener) -> None:
    opened = page_opener(output.make_report(study))
    page = opened.page
    page.wait_for_timeout(300)
    assert (opened.errors, opened.requests) == ([], [])
    assert page.locator(".lead").inner_text() == f"What 8 attention heads write, measured over {COUNT} images of " + (
        "images given in Python"
    )
    assert page.locator("[role=tab]").all_inner_texts() == ["character", "mean distance", "dominant share"]
    assert [held.split("\n")[0] for held in page.locator("#table thead th").all_inner_texts()][3:] == [
        "mean distance, patches", "dominant share, %",
    ]  # fmt: skip
    assert page.locator("figure[id^=figure-]").count() == 8
    kinds = " ".join(page.locator(".kinds-key li").all_inner_texts())
    assert "local" in kinds
    assert "repeat-token" not in kinds
    receivers = page.locator("ul.key li").all_inner_texts()
    assert receivers == ["first token", "last special token", "itself", "neighbour", "rest"]
    text = page.locator("main").inner_text()
    assert "Image processor" in text
    assert "Sentences found by" not in text
    assert "row by row" in text


@pytest.mark.browser
def test_the_explorer_of_an_image_opens(model: Model, page_opener: PageOpener) -> None:
    opened = page_opener(headscope.read(model, tiny.pictures(1)[0]).page())
    opened.page.wait_for_timeout(800)
    assert (opened.errors, opened.requests) == ([], [])
    assert "r2c2" in opened.page.locator("main").inner_text()
