"""Which heads are asked: pairs, weights that make the most of the contrast, and a background that is kept safely."""

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

from headscope.segmentation import background as backgrounds
from headscope.segmentation import topic, weights
from headscope.segmentation.background import Background, background
from headscope.segmentation.weights import Contrast
from headscope.types import Floats

# Pairs


def listed(chosen: tuple[Any, Any]) -> list[tuple[int, int]]:
    return sorted(zip(chosen[0].tolist(), chosen[1].tolist(), strict=True))


def test_pairs_by_hand():
    near, far = weights.pairs(4)
    assert listed(near) == [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3)]
    assert listed(far) == [(0, 2), (0, 3), (1, 3)]
    near, far = weights.pairs(8)  # a third of eight is three, and no less
    assert listed(near) == sorted([(k, k + 1) for k in range(7)] + [(k, k + 2) for k in range(6)])
    assert listed(far) == [(i, j) for i in range(8) for j in range(8) if j - i >= 3]
    near, far = weights.pairs(2)
    assert (listed(near), listed(far)) == ([(0, 1)], [])


@pytest.mark.parametrize("n", [299, 302, 2000, 50_000])
def test_pairs_of_long_texts_are_bounded(n: int):
    near, (i, j) = weights.pairs(n)
    assert len(near[0]) == (n - 1) + (n - 2)
    assert weights.PAIRS / 2 < len(i) == len(j) <= weights.PAIRS
    assert (j - i >= n / 3).all()
    assert i.min() >= 0
    assert j.max() < n
    _, again = weights.pairs(n)
    assert (again[0] == i).all()
    assert (again[1] == j).all()
    assert i.min() < n / 100  # from everywhere in the text
    assert j.max() > n * 0.99


def test_products_and_contrast_by_hand():
    vectors = np.array([[[1, 0], [2, 0]], [[0, 1], [2, 0]], [[1, 1], [0, 3]]], dtype=np.float32)
    found = weights.products(vectors, (np.array([0, 0]), np.array([1, 2])))
    assert found.tolist() == [[0, 1], [4, 0]]
    assert found.dtype == np.float64
    measured = weights.contrast(np.array([[1.0, 3], [2, 2]]), np.array([[0.0, 1, 2], [2, 0, 4]]))
    assert measured.gain.tolist() == [1, 0]
    np.testing.assert_allclose(measured.noise, [[1, 1], [1, 4]])
    np.testing.assert_allclose(measured.relative, [1, 0])
    mixed = measured.mixed(Contrast(np.array([3.0, 4]), np.eye(2)), 0.25)
    np.testing.assert_allclose(mixed.gain, [1.5, 1])
    np.testing.assert_allclose(mixed.noise, [[1, 0.75], [0.75, 3.25]])


# Weights


def random_contrast(heads: int, seed: int) -> Contrast:
    random = np.random.default_rng(seed)
    spread = random.normal(size=(heads, heads // 2 + 1)) * random.uniform(0.1, 3, size=(heads, 1))
    return Contrast(random.normal(size=heads), spread @ spread.T)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(0, 10**6))
def test_weights_are_optimal(heads: int, seed: int):
    """By the conditions of Karush, Kuhn and Tucker: no slope where there is weight, none upwards where there is not."""
    measured = random_contrast(heads, seed)
    found = weights.weights(measured)
    assert (found >= 0).all()
    assert found.sum() == pytest.approx(1)
    if (measured.gain <= 0).all():
        return
    system = measured.noise + weights.RIDGE * np.trace(measured.noise) / heads * np.eye(heads)
    # Weights are in proportion to the optimum: its size is where the slope along them is 0.
    optimum = found * (found @ measured.gain) / (found @ system @ found)
    slope = measured.gain - system @ optimum
    allowed = 1e-5 * np.abs(measured.gain).max()
    assert np.abs(slope[found > 0]).max() <= allowed
    assert slope.max() <= allowed
    assert found @ measured.gain > 0


def test_copies_of_a_head_share_what_one_would_get(monkeypatch: pytest.MonkeyPatch):
    once = Contrast(np.array([1.0, 2, 0.7]), np.array([[2.0, 0.3, 0], [0.3, 3, 0.2], [0, 0.2, 1]]))
    which = [0, 1, 1, 1, 2]
    copied = Contrast(once.gain[which], once.noise[np.ix_(which, which)])
    found = weights.weights(copied)
    np.testing.assert_allclose(found[1:4], found[1], rtol=1e-6)
    alone = weights.weights(once)
    odds, alone_odds = found[1:4].sum() / found[0], alone[1] / alone[0]
    assert odds < 2 * alone_odds  # the ridge, which holds copies for a little apart, leaves them at most twice as much
    monkeypatch.setattr(weights, "RIDGE", 1e-9)
    found, alone = weights.weights(copied), weights.weights(once)
    np.testing.assert_allclose([found[0], found[1:4].sum(), found[4]], alone, atol=1e-4)


def planted(heads: int = 12, n: int = 60, knowing: tuple[int, ...] = (4,), seed: int = 0) -> Floats:
    """Noise, but for some heads, which write what the subject of a piece is: four subjects of equal length."""
    random = np.random.default_rng(seed)
    vectors = random.normal(size=(n, heads, 6))
    for head in knowing:
        vectors[:, head] += 3 * random.normal(size=(4, 6))[np.arange(n) * 4 // n]
    return vectors.astype(np.float32)


@pytest.mark.parametrize("knowing", [(4,), (0, 11)])
def test_heads_that_know_the_subject_are_heard(knowing: tuple[int, ...]):
    moved = weights.scaled(planted(knowing=knowing), planted(knowing=knowing).mean(axis=0))
    near, far = weights.pairs(len(moved))
    measured = weights.contrast(weights.products(moved, near), weights.products(moved, far))
    found = weights.weights(measured)
    assert found[list(knowing)].sum() > 0.6
    assert set(np.argsort(-found)[: len(knowing)]) == set(knowing)
    assert set(np.argsort(-measured.relative)[: len(knowing)]) == set(knowing)


@pytest.mark.parametrize("gain", [np.zeros(4), np.array([-1.0, -2, 0, -0.1])])
@pytest.mark.parametrize("noise", [np.eye(4), np.zeros((4, 4))])
def test_without_contrast_all_heads_weigh_the_same(gain: Floats, noise: Floats):
    np.testing.assert_allclose(weights.weights(Contrast(gain, noise)), 0.25)


def test_without_noise_weights_follow_the_gain():
    found = weights.weights(Contrast(np.array([1.0, -1, 3]), np.zeros((3, 3))))
    np.testing.assert_allclose(found, [0.25, 0, 0.75])


def test_scaled_outputs_have_mean_square_1():
    vectors = planted() * np.arange(1, 13)[None, :, None].astype(np.float32)
    vectors[:, 3] = 7.0  # says the same of everything
    mean = vectors.mean(axis=0)
    found = weights.scaled(vectors, mean)
    squares = (found.astype(np.float64) ** 2).sum(axis=2).mean(axis=0)
    np.testing.assert_allclose(np.delete(squares, 3), 1, rtol=1e-5)
    assert (found[:, 3] == 0).all()
    assert found.dtype == np.float32
    np.testing.assert_allclose(np.delete(found.mean(axis=0), 3, axis=0), 0, atol=1e-5)
    # It is the mean given that is taken off, and only the size of each head is changed.
    other = weights.scaled(vectors, mean + 1)
    moved = (vectors - mean - 1)[:, 5]
    np.testing.assert_allclose(other[:, 5] / moved, (other[:, 5] / moved)[0, 0], rtol=1e-4)


# What a document says is mixed with the background


def test_measured_vectors_have_length_1_and_weights_lean_on_the_background_in_short_texts():
    known = Background(
        maps=np.stack([np.eye(6, dtype=np.float32)] * 12),
        mean=np.zeros((12, 6), dtype=np.float32),
        contrast=Contrast(np.eye(12)[7], np.eye(12)),
    )
    shares = []
    for n in (1, 2, 5, 6, 60, 600):
        found = topic.measure(planted(n=n), known)
        np.testing.assert_allclose(np.linalg.norm(found.vectors, axis=1), 1, rtol=1e-5)
        assert found.weights.sum() == pytest.approx(1)
        shares.append(found.weights[7])
    assert shares[:3] == [1, 1, 1]  # too short to say anything of its own
    assert shares[3:] == sorted(shares[3:], reverse=True)
    assert shares[-1] < 0.3
    assert found.weights[4] > 0.5


# Background


def test_whitening_makes_noise_alike_in_all_directions(monkeypatch: pytest.MonkeyPatch):
    random = np.random.default_rng(3)
    mixing = random.normal(size=(5, 5)) @ np.diag([10.0, 3, 1, 0.5, 0.1])
    source = np.repeat(np.arange(20), 200)
    vectors = random.normal(size=(4000, 5)) @ mixing + 50 * random.normal(size=(20, 5))[source]

    def within(held: Floats) -> Floats:
        parts = [held[source == k] - held[source == k].mean(axis=0) for k in range(20)]
        return np.cov(np.concatenate(parts).T, bias=True)

    noise = within(vectors)
    whitening = backgrounds._whitening(vectors, source)
    np.testing.assert_allclose(whitening, whitening.T, atol=1e-12)
    spectrum, directions = np.linalg.eigh(noise)
    shrunk = spectrum / (spectrum + backgrounds.SHRINKAGE * np.trace(noise) / 5)
    np.testing.assert_allclose(within(vectors @ whitening), (directions * shrunk) @ directions.T, atol=1e-9)
    monkeypatch.setattr(backgrounds, "SHRINKAGE", 1e-9)
    np.testing.assert_allclose(within(vectors @ backgrounds._whitening(vectors, source)), np.eye(5), atol=1e-4)
    assert (backgrounds._whitening(np.ones((10, 3)), np.arange(10) // 5) == np.eye(3)).all()


def test_the_background_knows_which_head_tells_texts_apart():
    random = np.random.default_rng(5)
    source = np.repeat(np.arange(12), 10)
    vectors = random.normal(size=(120, 3, 4)).astype(np.float32)
    vectors[:, 1] += 2 * random.normal(size=(12, 4))[source]
    found = backgrounds._of(vectors, source)
    assert found.maps.shape == (3, 4, 4)
    np.testing.assert_allclose(found.mean, found.whitened(vectors).mean(axis=0), atol=1e-6)
    assert found.contrast.gain[1] > 5 * np.abs(found.contrast.gain[[0, 2]]).max()
    assert weights.weights(found.contrast).argmax() == 1


def test_bundled_sentences_have_a_subject_and_a_source():
    texts, sources = backgrounds.sentences_of_bundled()
    assert len(texts) == len(sources) > 500
    assert sources == sorted(sources)
    assert set(sources) == set(range(64))
    assert all(len(text.split()) > 1 for text in texts)


MADE = Background(
    maps=np.arange(12, dtype=np.float32).reshape(3, 2, 2),
    mean=np.ones((3, 2), dtype=np.float32),
    contrast=Contrast(np.array([1.0, 2, 3]), np.eye(3)),
)
MODEL: Any = SimpleNamespace(weight_hash="sha256:0123", anatomy=SimpleNamespace(stack="encoder"), dtype="float32")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """How often a background was measured, in an empty cache."""
    calls: list[Any] = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(backgrounds, "measured", lambda model, done=None: calls.append(model) or MADE)
    return calls


def same(found: Background) -> bool:
    held = ((each.maps, each.mean, each.contrast.gain, each.contrast.noise) for each in (found, MADE))
    return all((a == b).all() for a, b in zip(*held, strict=True))


def test_a_background_is_measured_once(measured: list[Any], tmp_path: Path):
    assert same(background(MODEL))
    assert same(background(MODEL))
    assert len(measured) == 1
    (kept,) = (tmp_path / "cache" / "headscope").iterdir()  # and nothing half-written beside it
    assert "0123" in kept.name
    for other in ({"weight_hash": "sha256:4567"}, {"dtype": "bfloat16"}, {"anatomy": SimpleNamespace(stack="decoder")}):
        background(SimpleNamespace(**{**vars(MODEL), **other}))
    assert len(measured) == 4


def test_without_the_variable_the_cache_is_in_the_home(measured: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for unset in (lambda: monkeypatch.delenv("XDG_CACHE_HOME"), lambda: monkeypatch.setenv("XDG_CACHE_HOME", "")):
        unset()
        assert backgrounds._path(MODEL).parent == tmp_path / "home" / ".cache" / "headscope"


def saved(**arrays: Any) -> Callable[[Path], None]:
    held = {"maps": MADE.maps, "mean": MADE.mean, "gain": MADE.contrast.gain, "noise": MADE.contrast.noise}
    wanted = {name: value for name, value in {**held, **arrays}.items() if value is not None}
    return lambda path: np.savez(path, **wanted)


def one_array(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, MADE.maps)


BAD: dict[str, Callable[[Path], Any]] = {
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("nothing of the kind"),
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-200]),
    "cut to its head": lambda path: path.write_bytes(path.read_bytes()[:60]),
    "one array": one_array,
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "an array less": saved(noise=None),
    "flat maps": saved(maps=MADE.maps[0]),
    "a number for maps": saved(maps=np.float32(1)),
    "maps that are not square": saved(maps=np.ones((3, 2, 4))),
    "another width": saved(mean=np.ones((3, 5))),
    "another number of heads": saved(gain=np.ones(4)),
    "another noise": saved(noise=np.eye(4)),
    "words": saved(maps=np.full((3, 2, 2), "x")),
    **{f"{name} not finite": saved(**{name: np.full(shape, np.nan)})
       for name, shape in {"maps": (3, 2, 2), "mean": (3, 2), "gain": (3,), "noise": (3, 3)}.items()},
}  # fmt: skip


@pytest.mark.parametrize("damage", BAD.values(), ids=BAD.keys())
def test_a_damaged_file_is_measured_anew(measured: list[Any], damage: Callable[[Path], Any]):
    background(MODEL)
    path = backgrounds._path(MODEL)
    damage(path)
    assert backgrounds._opened(path) is None
    assert same(background(MODEL))
    assert len(measured) == 2
    if path.is_file():
        background(MODEL)
        assert len(measured) == 2  # and the file is whole again


def test_no_single_damaged_byte_is_a_crash(measured: list[Any]):
    background(MODEL)
    path = backgrounds._path(MODEL)
    whole = path.read_bytes()
    refused = 0
    for place in range(0, len(whole), 3):
        for bits in (0x01, 0x80, 0xFF):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ bits]) + whole[place + 1 :])
            found = backgrounds._opened(path)
            refused += found is None
            assert found is None or found.maps.shape[0] == 3
    assert refused > len(whole) / 3


class Explosive:
    opened = False

    @staticmethod
    def explode() -> Floats:
        Explosive.opened = True
        return np.ones((3, 2, 2))

    def __reduce__(self) -> Any:
        return Explosive.explode, ()


def test_no_pickle_is_ever_opened(measured: list[Any]):
    path = backgrounds._path(MODEL)
    path.parent.mkdir(parents=True)
    loaded = np.empty(1, dtype=object)
    loaded[0] = Explosive()
    for write in (saved(maps=loaded), lambda to: to.write_bytes(pickle.dumps(Explosive()))):
        write(path)
        assert backgrounds._opened(path) is None
    assert not Explosive.opened
    pickle.loads(pickle.dumps(Explosive()))
    assert Explosive.opened  # it would have been


def test_a_cache_that_cannot_be_written_is_no_failure(measured: list[Any], tmp_path: Path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert same(background(MODEL))
    assert same(background(MODEL))
    assert len(measured) == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_no_failure(measured: list[Any], tmp_path: Path):
    (tmp_path / "cache" / "headscope").mkdir(parents=True)
    (tmp_path / "cache" / "headscope").chmod(0o500)
    assert same(background(MODEL))
    assert len(measured) == 1


def test_a_full_disk_is_no_failure(measured: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(backgrounds.np, "savez", full)
    assert same(background(MODEL))
    assert list((tmp_path / "cache" / "headscope").iterdir()) == []
