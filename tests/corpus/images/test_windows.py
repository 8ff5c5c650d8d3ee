"""An image becomes a window: which token is which patch, and images from files, PIL and arrays."""

from __future__ import annotations

import hashlib
import io
import struct
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import headscope
from headscope.corpus import document as images
from headscope.corpus.documents import as_corpus, documents
from headscope.corpus.windows import Batch
from headscope.errors import CorpusError, ReadingError, StudyError
from headscope.model.image_patches import Patches
from headscope.model.loading import load
from headscope.model.model import Model
from headscope.settings import Settings
from tests.helpers import tiny
from tests.helpers.architectures import build_network, watched


def get_patches(model: Model) -> Patches:
    assert isinstance(model.tokens, Patches)
    return model.tokens


def encode_image(image: Image.Image, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def get_rgb(picture: images.Picture | str | None) -> Any:
    assert isinstance(picture, images.Picture)
    return picture.rgb


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
    patches = get_patches(watched(name))
    assert (patches.layout.rows, patches.layout.columns, patches.layout.first, patches.length) == (3, 3, first, length)
    assert {k: patches.names([k])[0] for k in names} == names
    assert patches.find_first_special() == ("[CLS]" if first else None)
    assert bool(patches.describe_first_special()) is bool(first)
    assert len(set(patches.names(list(range(length))))) == length
    (window,) = patches.windows(next(iter(as_corpus(tiny.pictures(1)))))  # type: ignore[misc]
    assert np.flatnonzero(~window.special).tolist() == list(range(first, first + 9))  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["vit", "deit", "dinov2_with_registers", "yolos"])
def test_every_patch_is_the_token_that_is_named_so(name: str) -> None:
    patches, network = get_patches(watched(name)), build_network(name)
    place = {label: k for k, label in enumerate(patches.names(list(range(patches.length))))}
    black = torch.zeros(1, *patches.shape)
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
    patches = get_patches(load(tiny.network("vit", image_size=[8, 12]), processor))
    assert (patches.layout.rows, patches.layout.columns, patches.length) == (2, 3, 7)
    assert patches.names([1, 3, 4, 6]) == ["r0c0", "r0c2", "r1c0", "r1c2"]


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
    assert np.array_equal(get_rgb(images.as_picture(grey)), threefold)
    assert np.array_equal(get_rgb(images.decode_image(encode_image(Image.fromarray(grey), "PNG"))), threefold)
    deep = Image.fromarray(grey.astype(np.uint16) * 257)  # 16 bits: 0x8080 for 0x80
    assert np.array_equal(get_rgb(images.decode_image(encode_image(deep, "PNG"))), threefold)
    see_through = np.dstack([threefold, np.array([[0, 10], [20, 255]], dtype=np.uint8)])
    assert np.array_equal(get_rgb(images.decode_image(encode_image(Image.fromarray(see_through), "PNG"))), threefold)
    palette = Image.fromarray(threefold).quantize(4)
    assert np.array_equal(
        get_rgb(images.decode_image(encode_image(palette, "PNG", transparency=b"\0\1\2\3"))), threefold
    )
    black_ink = Image.fromarray(np.zeros((2, 2, 4), dtype=np.uint8), "CMYK")
    assert np.array_equal(get_rgb(images.decode_image(encode_image(black_ink, "TIFF"))), np.full((2, 2, 3), 255))


def test_the_first_frame_of_an_animation_and_upright_photographs() -> None:
    first, second = (Image.new("RGB", (3, 2), colour) for colour in ("red", "blue"))
    moving = encode_image(first, "GIF", save_all=True, append_images=[second])
    assert np.array_equal(get_rgb(images.decode_image(moving)), np.full((2, 3, 3), [255, 0, 0]))
    (array,) = tiny.pictures(1)
    turned = Image.fromarray(array)
    exif = turned.getexif()
    exif[0x0112] = 6  # the camera was held on its side: turn clockwise
    assert np.array_equal(get_rgb(images.decode_image(encode_image(turned, "PNG", exif=exif))), np.rot90(array, -1))


@pytest.mark.parametrize("max_pixels", [100, 60])
def test_an_image_that_cannot_be_read_says_why(max_pixels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    (array,) = tiny.pictures(1)  # 12 × 15
    content = encode_image(Image.fromarray(array), "PNG")
    assert images.decode_image(content[:60]) == images.IMAGE_DAMAGED
    assert images.decode_image(b"") == images.decode_image(b"no image at all") == images.IMAGE_UNKNOWN
    numbers = Image.fromarray(np.zeros((2, 2), dtype=np.float32))
    assert images.decode_image(encode_image(numbers, "TIFF")) == images.as_picture(numbers) == images.IMAGE_NUMBERS
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", max_pixels)  # of 180 pixels PIL warns at 100, and refuses at 60
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # these tests turn warnings into errors
        assert images.decode_image(content) == images.IMAGE_TOO_LARGE


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
    with pytest.raises(CorpusError, match=f"document 3.*{words}"):
        headscope.study(model, [*tiny.pictures(2), wrong], batch_size=1)
    with pytest.raises((CorpusError, ReadingError), match=f"{words}|give it as a string"):
        headscope.read(model, wrong)


def test_one_image_is_no_list(model: Model) -> None:
    (array,) = tiny.pictures(1)
    for image in (array, array[..., 0], Image.fromarray(array)):
        with pytest.raises(CorpusError, match="give a list of them"):
            headscope.study(model, image)  # type: ignore[arg-type]
    assert headscope.study(model, np.stack([array, array])).texts == 2


def test_texts_and_images_are_not_mistaken_for_each_other(model: Model, photos: Path, tmp_path: Path) -> None:
    reader = tiny.model("bert")
    with pytest.raises(CorpusError, match="text 1: a text, and ViTModel reads images: give images"):
        headscope.study(model, ["a b c"])
    with pytest.raises(CorpusError, match="a text, and ViTModel reads images"):
        headscope.study(model, headscope.documents(limit=1))
    with pytest.raises(CorpusError, match="the text: a text, and ViTModel reads images"):
        headscope.read(model, "a b c")
    for source in (photos / "0.png", photos / "broken.png", tiny.pictures(1)):
        with pytest.raises(CorpusError, match="an image, and this model reads texts: choose a vision model"):
            headscope.study(reader, source, length=16)
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
    study = headscope.study(model, photos)
    assert study.texts == 5
    assert study.manifest["documents_read"] == 6
    assert study.manifest["documents_skipped"] == {images.IMAGE_DAMAGED: 1}
    assert study.manifest["excerpts"][0] == {"name": str(photos / "0.png"), "text": "15 × 12 pixels"}
    with pytest.raises(StudyError, match="no image to study: 1 documents read, 1 damaged image"):
        headscope.study(model, photos / "broken.png")
