"""Weights of heads: pairs, optimal weights for a contrast, and background statistics with a safe cache."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headscope.array_types import Floats
from headscope.segmentation import boundaries, topic
from headscope.segmentation import topic as backgrounds
from headscope.segmentation.boundaries import Contrast
from headscope.segmentation.topic import Background, load_background

# Pairs


def list_pairs(chosen: tuple[Any, Any]) -> list[tuple[int, int]]:
    return sorted(zip(chosen[0].tolist(), chosen[1].tolist(), strict=True))


def test_pairs_by_hand():
    near, far = boundaries.choose_pairs(4)
    assert list_pairs(near) == [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3)]
    assert list_pairs(far) == [(0, 2), (0, 3), (1, 3)]
    near, far = boundaries.choose_pairs(8)  # a third of eight is three, and no less
    assert list_pairs(near) == sorted([(k, k + 1) for k in range(7)] + [(k, k + 2) for k in range(6)])
    assert list_pairs(far) == [(i, j) for i in range(8) for j in range(8) if j - i >= 3]
    near, far = boundaries.choose_pairs(2)
    assert (list_pairs(near), list_pairs(far)) == ([(0, 1)], [])


@pytest.mark.parametrize("n", [299, 302, 2000, 50_000])
def test_pairs_of_long_texts_are_bounded(n: int):
    near, (i, j) = boundaries.choose_pairs(n)
    assert len(near[0]) == (n - 1) + (n - 2)
    assert boundaries.PAIRS / 2 < len(i) == len(j) <= boundaries.PAIRS
    assert (j - i >= n / 3).all()
    assert i.min() >= 0
    assert j.max() < n
    _, again = boundaries.choose_pairs(n)
    assert (again[0] == i).all()
    assert (again[1] == j).all()
    assert i.min() < n / 100  # from everywhere in the text
    assert j.max() > n * 0.99


def test_products_and_contrast_by_hand():
    vectors = np.array([[[1, 0], [2, 0]], [[0, 1], [2, 0]], [[1, 1], [0, 3]]], dtype=np.float32)
    products = boundaries.compute_products(vectors, (np.array([0, 0]), np.array([1, 2])))
    assert products.tolist() == [[0, 1], [4, 0]]
    assert products.dtype == np.float64
    contrast = boundaries.compute_contrast(np.array([[1.0, 3], [2, 2]]), np.array([[0.0, 1, 2], [2, 0, 4]]))
    assert contrast.gain.tolist() == [1, 0]
    np.testing.assert_allclose(contrast.noise, [[1, 1], [1, 4]])
    np.testing.assert_allclose(contrast.relative, [1, 0])
    mixed = contrast.mix(Contrast(np.array([3.0, 4]), np.eye(2)), 0.25)
    np.testing.assert_allclose(mixed.gain, [1.5, 1])
    np.testing.assert_allclose(mixed.noise, [[1, 0.75], [0.75, 3.25]])


# Weights


def make_contrast(heads: int, seed: int) -> Contrast:
    random = np.random.default_rng(seed)
    spread = random.normal(size=(heads, heads // 2 + 1)) * random.uniform(0.1, 3, size=(heads, 1))
    return Contrast(random.normal(size=heads), spread @ spread.T)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(0, 10**6))
def test_weights_are_optimal(heads: int, seed: int):
    """By the Karush–Kuhn–Tucker conditions: the slope is 0 where weights are positive, and not positive elsewhere."""
    contrast = make_contrast(heads, seed)
    found_weights = boundaries.compute_weights(contrast)
    assert (found_weights >= 0).all()
    assert found_weights.sum() == pytest.approx(1)
    if (contrast.gain <= 0).all():
        return
    system = contrast.noise + boundaries.RIDGE * np.trace(contrast.noise) / heads * np.eye(heads)
    # Weights are in proportion to the optimum: its size is where the slope along them is 0.
    optimum = found_weights * (found_weights @ contrast.gain) / (found_weights @ system @ found_weights)
    slope = contrast.gain - system @ optimum
    tolerance = 1e-5 * np.abs(contrast.gain).max()
    assert np.abs(slope[found_weights > 0]).max() <= tolerance
    assert slope.max() <= tolerance
    assert found_weights @ contrast.gain > 0


def test_copies_of_a_head_share_what_one_would_get(monkeypatch: pytest.MonkeyPatch):
    contrast = Contrast(np.array([1.0, 2, 0.7]), np.array([[2.0, 0.3, 0], [0.3, 3, 0.2], [0, 0.2, 1]]))
    sources = [0, 1, 1, 1, 2]
    copied_contrast = Contrast(contrast.gain[sources], contrast.noise[np.ix_(sources, sources)])
    copied_weights = boundaries.compute_weights(copied_contrast)
    np.testing.assert_allclose(copied_weights[1:4], copied_weights[1], rtol=1e-6)
    weights_alone = boundaries.compute_weights(contrast)
    ratio, ratio_alone = copied_weights[1:4].sum() / copied_weights[0], weights_alone[1] / weights_alone[0]
    assert ratio < 2 * ratio_alone  # the ridge treats copies as slightly independent: at most twice the weight
    monkeypatch.setattr(boundaries, "RIDGE", 1e-9)
    copied_weights, weights_alone = (
        boundaries.compute_weights(copied_contrast),
        boundaries.compute_weights(contrast),
    )
    summed_weights = [copied_weights[0], copied_weights[1:4].sum(), copied_weights[4]]
    np.testing.assert_allclose(summed_weights, weights_alone, atol=1e-4)


def plant_subjects(heads: int = 12, n: int = 60, knowing: tuple[int, ...] = (4,), seed: int = 0) -> Floats:
    """Return noise, except for some heads, whose outputs show the subject of a piece: four subjects of equal length."""
    random = np.random.default_rng(seed)
    vectors = random.normal(size=(n, heads, 6))
    for head in knowing:
        vectors[:, head] += 3 * random.normal(size=(4, 6))[np.arange(n) * 4 // n]
    return vectors.astype(np.float32)


@pytest.mark.parametrize("knowing", [(4,), (0, 11)])
def test_heads_that_know_the_subject_are_heard(knowing: tuple[int, ...]):
    scaled = boundaries.scale_outputs(plant_subjects(knowing=knowing), plant_subjects(knowing=knowing).mean(axis=0))
    near, far = boundaries.choose_pairs(len(scaled))
    contrast = boundaries.compute_contrast(
        boundaries.compute_products(scaled, near), boundaries.compute_products(scaled, far)
    )
    found_weights = boundaries.compute_weights(contrast)
    assert found_weights[list(knowing)].sum() > 0.6
    assert set(np.argsort(-found_weights)[: len(knowing)]) == set(knowing)
    assert set(np.argsort(-contrast.relative)[: len(knowing)]) == set(knowing)


@pytest.mark.parametrize("gain", [np.zeros(4), np.array([-1.0, -2, 0, -0.1])])
@pytest.mark.parametrize("noise", [np.eye(4), np.zeros((4, 4))])
def test_without_contrast_all_heads_weigh_the_same(gain: Floats, noise: Floats):
    np.testing.assert_allclose(boundaries.compute_weights(Contrast(gain, noise)), 0.25)


def test_without_noise_weights_follow_the_gain():
    found_weights = boundaries.compute_weights(Contrast(np.array([1.0, -1, 3]), np.zeros((3, 3))))
    np.testing.assert_allclose(found_weights, [0.25, 0, 0.75])


def test_scaled_outputs_have_mean_square_1():
    vectors = plant_subjects() * np.arange(1, 13)[None, :, None].astype(np.float32)
    vectors[:, 3] = 7.0  # constant
    mean = vectors.mean(axis=0)
    scaled = boundaries.scale_outputs(vectors, mean)
    squares = (scaled.astype(np.float64) ** 2).sum(axis=2).mean(axis=0)
    np.testing.assert_allclose(np.delete(squares, 3), 1, rtol=1e-5)
    assert (scaled[:, 3] == 0).all()
    assert scaled.dtype == np.float32
    np.testing.assert_allclose(np.delete(scaled.mean(axis=0), 3, axis=0), 0, atol=1e-5)
    # The given mean is subtracted, and only the scale of each head changes.
    other = boundaries.scale_outputs(vectors, mean + 1)
    centered = (vectors - mean - 1)[:, 5]
    np.testing.assert_allclose(other[:, 5] / centered, (other[:, 5] / centered)[0, 0], rtol=1e-4)


# Documents and the background are mixed


def test_measured_vectors_have_length_1_and_weights_lean_on_the_background_in_short_texts():
    known = Background(
        maps=np.stack([np.eye(6, dtype=np.float32)] * 12),
        mean=np.zeros((12, 6), dtype=np.float32),
        contrast=Contrast(np.eye(12)[7], np.eye(12)),
    )
    shares = []
    for n in (1, 2, 5, 6, 60, 600):
        units = topic.weight_units(plant_subjects(n=n), known)
        np.testing.assert_allclose(np.linalg.norm(units.vectors, axis=1), 1, rtol=1e-5)
        assert units.weights.sum() == pytest.approx(1)
        shares.append(units.weights[7])
    assert shares[:3] == [1, 1, 1]  # too short for a contrast of its own
    assert shares[3:] == sorted(shares[3:], reverse=True)
    assert shares[-1] < 0.3
    assert units.weights[4] > 0.5


# Background


def test_whitening_makes_noise_alike_in_all_directions(monkeypatch: pytest.MonkeyPatch):
    random = np.random.default_rng(3)
    mixing = random.normal(size=(5, 5)) @ np.diag([10.0, 3, 1, 0.5, 0.1])
    source = np.repeat(np.arange(20), 200)
    vectors = random.normal(size=(4000, 5)) @ mixing + 50 * random.normal(size=(20, 5))[source]

    def compute_covariance(outputs: Floats) -> Floats:
        parts = [outputs[source == k] - outputs[source == k].mean(axis=0) for k in range(20)]
        return np.cov(np.concatenate(parts).T, bias=True)

    noise = compute_covariance(vectors)
    whitening = backgrounds._compute_whitening(vectors, source)
    np.testing.assert_allclose(whitening, whitening.T, atol=1e-12)
    spectrum, directions = np.linalg.eigh(noise)
    shrunk = spectrum / (spectrum + backgrounds.SHRINKAGE * np.trace(noise) / 5)
    np.testing.assert_allclose(compute_covariance(vectors @ whitening), (directions * shrunk) @ directions.T, atol=1e-9)
    monkeypatch.setattr(backgrounds, "SHRINKAGE", 1e-9)
    unshrunk = backgrounds._compute_whitening(vectors, source)
    np.testing.assert_allclose(compute_covariance(vectors @ unshrunk), np.eye(5), atol=1e-4)
    assert (backgrounds._compute_whitening(np.ones((10, 3)), np.arange(10) // 5) == np.eye(3)).all()


def test_the_background_knows_which_head_tells_texts_apart():
    random = np.random.default_rng(5)
    source = np.repeat(np.arange(12), 10)
    vectors = random.normal(size=(120, 3, 4)).astype(np.float32)
    vectors[:, 1] += 2 * random.normal(size=(12, 4))[source]
    statistics = backgrounds._estimate_background(vectors, source)
    assert statistics.maps.shape == (3, 4, 4)
    np.testing.assert_allclose(statistics.mean, statistics.whiten(vectors).mean(axis=0), atol=1e-6)
    assert statistics.contrast.gain[1] > 5 * np.abs(statistics.contrast.gain[[0, 2]]).max()
    assert boundaries.compute_weights(statistics.contrast).argmax() == 1


def test_bundled_sentences_have_a_subject_and_a_source():
    texts, sources = backgrounds.load_bundled_sentences()
    assert len(texts) == len(sources) > 500
    assert sources == sorted(sources)
    assert set(sources) == set(range(64))
    assert all(len(text.split()) > 1 for text in texts)


STATISTICS = Background(
    maps=np.arange(12, dtype=np.float32).reshape(3, 2, 2),
    mean=np.ones((3, 2), dtype=np.float32),
    contrast=Contrast(np.array([1.0, 2, 3]), np.eye(3)),
)
MODEL: Any = SimpleNamespace(weight_hash="sha256:0123", architecture=SimpleNamespace(stack="encoder"), dtype="float32")


@pytest.fixture
def measured_models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """Models whose background was measured, in an empty cache."""
    calls: list[Any] = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(backgrounds, "measure_background", lambda model, done=None: calls.append(model) or STATISTICS)
    return calls


def is_expected(known: Background) -> bool:
    """Return whether all arrays equal those of STATISTICS."""
    arrays = ((item.maps, item.mean, item.contrast.gain, item.contrast.noise) for item in (known, STATISTICS))
    return all((a == b).all() for a, b in zip(*arrays, strict=True))


def test_a_background_is_measured_once(measured_models: list[Any], tmp_path: Path):
    assert is_expected(load_background(MODEL))
    assert is_expected(load_background(MODEL))
    assert len(measured_models) == 1
    (path,) = (tmp_path / "cache" / "headscope").iterdir()  # and nothing half-written beside it
    assert "0123" in path.name
    for other in (
        {"weight_hash": "sha256:4567"},
        {"dtype": "bfloat16"},
        {"architecture": SimpleNamespace(stack="decoder")},
    ):
        load_background(SimpleNamespace(**{**vars(MODEL), **other}))
    assert len(measured_models) == 4


def test_without_the_variable_the_cache_is_in_the_home(
    measured_models: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path
):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for unset in (lambda: monkeypatch.delenv("XDG_CACHE_HOME"), lambda: monkeypatch.setenv("XDG_CACHE_HOME", "")):
        unset()
        assert backgrounds._get_path(MODEL).parent == tmp_path / "home" / ".cache" / "headscope"


def make_writer(**arrays: Any) -> Callable[[Path], None]:
    valid = {
        "maps": STATISTICS.maps,
        "mean": STATISTICS.mean,
        "gain": STATISTICS.contrast.gain,
        "noise": STATISTICS.contrast.noise,
    }
    content = {name: value for name, value in {**valid, **arrays}.items() if value is not None}
    return lambda path: np.savez(path, **content)


def write_one_array(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, STATISTICS.maps)


BAD: dict[str, Callable[[Path], Any]] = {
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("nothing of the kind"),
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-200]),
    "cut to its head": lambda path: path.write_bytes(path.read_bytes()[:60]),
    "one array": write_one_array,
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "an array less": make_writer(noise=None),
    "flat maps": make_writer(maps=STATISTICS.maps[0]),
    "a number for maps": make_writer(maps=np.float32(1)),
    "maps that are not square": make_writer(maps=np.ones((3, 2, 4))),
    "another width": make_writer(mean=np.ones((3, 5))),
    "another number of heads": make_writer(gain=np.ones(4)),
    "another noise": make_writer(noise=np.eye(4)),
    "words": make_writer(maps=np.full((3, 2, 2), "x")),
    **{f"{name} not finite": make_writer(**{name: np.full(shape, np.nan)})
       for name, shape in {"maps": (3, 2, 2), "mean": (3, 2), "gain": (3,), "noise": (3, 3)}.items()},
}  # fmt: skip


@pytest.mark.parametrize("damage", BAD.values(), ids=BAD.keys())
def test_a_damaged_file_is_measured_anew(measured_models: list[Any], damage: Callable[[Path], Any]):
    load_background(MODEL)
    path = backgrounds._get_path(MODEL)
    damage(path)
    assert backgrounds._read_cache(path) is None
    assert is_expected(load_background(MODEL))
    assert len(measured_models) == 2
    if path.is_file():
        load_background(MODEL)
        assert len(measured_models) == 2  # and the file is valid again


def test_no_single_damaged_byte_is_a_crash(measured_models: list[Any]):
    load_background(MODEL)
    path = backgrounds._get_path(MODEL)
    content = path.read_bytes()
    refused = 0
    for position in range(0, len(content), 3):
        for bits in (0x01, 0x80, 0xFF):
            path.write_bytes(content[:position] + bytes([content[position] ^ bits]) + content[position + 1 :])
            cached = backgrounds._read_cache(path)
            refused += cached is None
            assert cached is None or cached.maps.shape[0] == 3
    assert refused > len(content) / 3


class Explosive:
    opened = False

    @staticmethod
    def explode() -> Floats:
        Explosive.opened = True
        return np.ones((3, 2, 2))

    def __reduce__(self) -> Any:
        return Explosive.explode, ()


def test_no_pickle_is_ever_opened(measured_models: list[Any]):
    path = backgrounds._get_path(MODEL)
    path.parent.mkdir(parents=True)
    loaded = np.empty(1, dtype=object)
    loaded[0] = Explosive()
    for write in (make_writer(maps=loaded), lambda to: to.write_bytes(pickle.dumps(Explosive()))):
        write(path)
        assert backgrounds._read_cache(path) is None
    assert not Explosive.opened
    pickle.loads(pickle.dumps(Explosive()))
    assert Explosive.opened  # it would have been


def test_a_cache_that_cannot_be_written_is_no_failure(measured_models: list[Any], tmp_path: Path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert is_expected(load_background(MODEL))
    assert is_expected(load_background(MODEL))
    assert len(measured_models) == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_no_failure(measured_models: list[Any], tmp_path: Path):
    (tmp_path / "cache" / "headscope").mkdir(parents=True)
    (tmp_path / "cache" / "headscope").chmod(0o500)
    assert is_expected(load_background(MODEL))
    assert len(measured_models) == 1


def test_a_full_disk_is_no_failure(measured_models: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def fail_to_save(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(backgrounds.np, "savez", fail_to_save)
    assert is_expected(load_background(MODEL))
    assert list((tmp_path / "cache" / "headscope").iterdir()) == []
