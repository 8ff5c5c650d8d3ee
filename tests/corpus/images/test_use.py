"""Images on the command line and on pages, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import BertConfig, VisionEncoderDecoderConfig, VisionEncoderDecoderModel, ViTConfig

import headscope
from headscope import output_folder
from headscope.errors import CorpusError, ModelError, ReadingError, StudyError
from headscope.model.loading import load
from headscope.model.model import Model
from headscope.studies.result import Study
from tests.corpus.images.conftest import COUNT
from tests.helpers import tiny
from tests.helpers.explorer import Explorer

if TYPE_CHECKING:
    from tests.helpers.browser import PageOpener


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
        _ = load(tiny.network("vit"), processor).architecture
    free = load(tiny.network("dinov2"), processor)  # it takes any size, and then each image has its own
    with pytest.raises(CorpusError, match=r"image 1: .* makes 15 × 12 pixels of it, and 64 × 64 pixels of another"):
        headscope.study(free, tiny.pictures(1))


def test_maps_that_shrink_in_later_layers_are_refused() -> None:
    """Its first layer relates all patches: only the maps of the second layer differ."""
    network = tiny.network("vit")
    last_layer = [module for module in network.modules() if isinstance(module, torch.nn.ModuleList)][-1][-1]
    forward = last_layer.forward
    last_layer.forward = lambda hidden, *args, **options: forward(hidden[:, ::2], *args, **options)
    with pytest.raises(ModelError, match="relate the 10 tokens of an image to each other, but 5 to 5 in 1 windows"):
        _ = load(network, tiny.image_processor()).architecture


def test_a_processor_that_breaks_is_named() -> None:
    class Breaking:
        def preprocess(self) -> None: ...

        def __call__(self, **options: Any) -> Any:
            raise ZeroDivisionError("nothing there")

    with pytest.raises(ModelError, match="Breaking cannot take an image: ZeroDivisionError: nothing there"):
        _ = load(tiny.network("vit"), Breaking()).architecture


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
        _ = load(network, tiny.image_processor()).architecture
    assert load(network.get_encoder(), tiny.image_processor()).architecture.layers == 1


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
    from headscope.page.explorer import split_into_pieces

    gaps = [gap for gap, _ in split_into_pieces(headscope.read(model, tiny.pictures(1)[0]))]
    assert gaps == ["", *["\n", " ", " "] * 3]


# The command line, and pages


@pytest.mark.usefixtures("one_figure")
def test_study_and_read_on_the_command_line(headscope_command: Any, folder: Path, photos: Path) -> None:
    command = ("study", str(photos), "--model", str(folder), "--out", "out")
    ran = headscope_command(*command)
    assert ran.code == 0, ran.err
    words = " ".join(ran.out.split())
    assert "5 images, 2 layers × 4 heads" in words
    assert "row by row" in words
    assert "skipped: 1 damaged image" in ran.err
    assert headscope_command(*command, "--quiet").code == 0  # the same study again, in the same folder
    study = headscope.open_study("out")
    assert study.has_images
    assert study.texts == 5
    page = (Path("out") / "findings.md").read_text(encoding="utf-8")
    assert "5 images of 10 patches" in page
    assert "patches are no words" in page

    ran = headscope_command("read", str(photos / "0.png"), "--model", str(folder), "--head", "L1H2", "--out", "a.html")
    assert ran.code == 0, ran.err
    assert "r0c0" in ran.out
    assert Path("a.html").is_file()

    ran = headscope_command("inspect", str(folder), "--json")
    assert (json.loads(ran.out)["reads"], json.loads(ran.out)["longest_window"]) == ("image", 10)
    assert "An image has 10 tokens, 3 × 3 patches among them." in headscope_command("inspect", str(folder)).out


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
    opened = page_opener(output_folder.make_report(study))
    page = opened.page
    assert opened.is_quiet()
    assert page.locator(".lead").inner_text() == f"What 8 attention heads write, measured over {COUNT} images of " + (
        "images given in Python"
    )
    tabs = page.locator("[role=tab]").all_inner_texts()
    assert tabs == ["attends to", "outputs similar for", "mean distance", "dominant share"]
    assert [header.split("\n")[0] for header in page.locator("#table thead th").all_inner_texts()][4:] == [
        "mean distance, patches", "dominant share, %",
    ]  # fmt: skip
    assert page.locator("figure[id^=figure-]").count() == 10
    kinds = " ".join(page.locator(".kinds-key li").all_inner_texts())
    assert "local" in kinds
    assert "repeat-token" not in kinds
    receivers = page.locator("ul.key li").all_inner_texts()
    assert receivers == ["first token", "last special token", "itself", "neighbour", "rest"]
    text = page.locator("main").inner_text()
    assert "Image processor" in text
    assert "How sentences are found" not in text
    assert "row by row" in text


@pytest.mark.browser
def test_the_explorer_of_an_image_opens(model: Model, page_opener: PageOpener) -> None:
    opened = page_opener(headscope.read(model, tiny.pictures(1)[0]).to_html())
    Explorer(opened, opened.page).wait()
    assert opened.is_quiet()
    assert "r2c2" in opened.page.locator("main").inner_text()
