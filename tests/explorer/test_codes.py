"""Codes of similarities and column sums: every threshold falls as in Python, and a layer's bytes can be read back."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headscope import Reading
from headscope.errors import ReadingError
from headscope.page import codes as made
from headscope.page.codes import COARSE, FINE, Precision, choose, codes, layer_bytes, scale
from headscope.readings.reading import Head
from tests.explorer.explored import on_thresholds, random_reading

BOTH = pytest.mark.parametrize("precision", [FINE, COARSE], ids=lambda each: each.name)
TOKENS = ["[CLS]", "the", "cat", "un", "##like", ".", "the", "cat", "[SEP]"]


def above(held: Any, precision: Precision) -> Any:
    """Which thresholds k/D each code is above, as the page decides it."""
    return np.asarray(held)[:, None] > np.arange(precision.thresholds) * (precision.steps // precision.thresholds)


def python_above(values: Any, largest: float, precision: Precision) -> Any:
    """The same by the comparison that Python makes: C_ij > θ · max(C)."""
    shares = [k / precision.thresholds for k in range(precision.thresholds)]
    return np.stack([values > share * largest for share in shares], axis=1)


@st.composite
def planted(draw: st.DrawFn) -> tuple[Any, float]:
    """Values up to their largest: anywhere, and around thresholds of both precisions within a few roundings."""
    largest = draw(st.floats(1e-30, 1e30))
    anywhere = draw(st.lists(st.floats(-5, 1), max_size=20))
    values = [share * largest for share in anywhere]
    for k, parts, ulps in draw(
        st.lists(st.tuples(st.integers(0, 1000), st.sampled_from([100, 1000, 8_000]), st.integers(-2, 2)), max_size=30)
    ):
        value = k / parts * largest if draw(st.booleans()) else k * largest / parts
        for _ in range(abs(ulps)):
            value = float(np.nextafter(value, np.inf * ulps))
        values.append(value)
    return np.minimum(np.array([*values, largest]), largest), largest


@BOTH
@settings(max_examples=150, deadline=None)
@given(case=planted())
@example(case=(np.array([0.29, 0.57, 0.58, 1.0]), 1.0))
@example(case=(np.array([0.0, -0.0, 5e-324, -5e-324, 0.7]), 0.7))
def test_every_threshold_falls_as_in_python(case: tuple[Any, float], precision: Precision) -> None:
    values, largest = case
    held = codes(values, largest, precision)
    assert (above(held, precision) == python_above(values, largest, precision)).all()
    assert held.max() <= precision.steps


@BOTH
def test_every_threshold_itself_and_its_neighbours(precision: Precision) -> None:
    for largest in (1.0, 0.1, 3.7, 12345.678, 1 / 3):
        on = np.array([k / precision.thresholds * largest for k in range(precision.thresholds)])
        for values in (on, np.nextafter(on, np.inf), np.nextafter(on, -np.inf)):
            held = codes(np.minimum(values, largest), largest, precision)
            expected = python_above(np.minimum(values, largest), largest, precision)
            assert (above(held, precision) == expected).all()
        assert above(codes(on, largest, precision), precision).sum(axis=1).tolist() == list(range(precision.thresholds))


@BOTH
@settings(max_examples=60, deadline=None)
@given(shares=st.lists(st.floats(-1, 1), min_size=1), largest=st.floats(1e-6, 1e6))
def test_a_code_stands_for_a_value_within_a_step(shares: list[float], largest: float, precision: Precision) -> None:
    values = np.array(shares) * largest
    step = largest / precision.steps
    held = codes(values, largest, precision)
    # Near a threshold a code may be moved by one, to fall on the side where Python's comparison does.
    np.testing.assert_array_less(values, held * step + 1e-9 * largest)
    np.testing.assert_array_less((held - 1) * step, values + 1e-9 * largest)
    assert (np.diff(held[np.argsort(values)]) >= 0).all()


@BOTH
def test_very_negative_values_are_clipped_and_above_nothing(precision: Precision) -> None:
    lowest = {"fine": -(2**15), "coarse": -(2**7)}[precision.name]
    held = codes(np.array([-1e9, -5.0, -1.03, -1.0, 1.0]), 1.0, precision)
    assert held[:2].tolist() == [lowest, lowest]
    assert held[3:].tolist() == [-precision.steps, precision.steps]
    assert not above(held[:4], precision).any()
    kept = held.astype({"fine": np.int16, "coarse": np.int8}[precision.name])
    assert kept.tolist() == held.tolist()


def test_what_similarities_are_divided_by() -> None:
    assert scale(np.array([[0.0, 4.0], [4.0, 0.0]])) == 4
    assert scale(np.array([[0.0, -3.0], [-3.0, 0.0]])) == 3
    assert scale(np.zeros((2, 2))) == 1


@BOTH
def test_all_negative_and_all_zero_matrices_have_no_pairs(precision: Precision) -> None:
    # Three vectors at 120° have negative products only; vectors of nothing have none.
    turned = np.array([[np.cos(turn), np.sin(turn)] for turn in np.arange(3) * 2 * np.pi / 3])
    outputs = np.stack([turned, np.zeros((3, 2))], axis=1)[None]
    reading = Reading.from_arrays(["a", "b", "c"], outputs)
    assert reading.pairs(theta=0).empty
    decoded = decode(reading, 0, precision)
    assert decoded["scales"] == pytest.approx([0.5, 1.0, 0.5])
    assert (decoded["similarity"][0] <= -precision.steps + 1).all()
    assert not decoded["similarity"][1].any()
    assert not above(decoded["similarity"].ravel(), precision).any()


# A layer's bytes, read back here in plain words


def decode(reading: Reading, layer: int, precision: Precision) -> dict[str, Any]:
    packed, scales = layer_bytes(reading, layer, precision)
    raw = zlib.decompress(packed)
    n, heads = len(reading), len(reading.heads)
    at = 0

    def take(size: int) -> bytes:
        nonlocal at
        at += size
        return raw[at - size : at]

    def numbers(count: int) -> Any:
        if precision.bytes == 1:
            return np.array([byte - 256 if byte > 127 else byte for byte in take(count)])
        high, low = take(count), take(count)
        whole = [256 * a + b for a, b in zip(high, low, strict=True)]
        return np.array([number - 65536 if number > 32767 else number for number in whole])

    upper = n * (n - 1) // 2
    found: dict[str, Any] = {"scales": scales, "similarity": numbers((heads + 1) * upper).reshape(heads + 1, upper)}
    if reading.has_attention:
        found["attention"] = np.array(list(take(heads * n * n))).reshape(heads, n, n)
    found["diagonal"] = np.frombuffer(take((heads + 1) * n * 4), "<f4").reshape(heads + 1, n)
    if reading.has_attention:
        found["columns"] = numbers((heads + 1) * n).reshape(heads + 1, n)
    assert at == len(raw)
    return found


@pytest.mark.parametrize("maps", [True, False], ids=["maps", "no maps"])
@BOTH
def test_a_layer_is_read_back(precision: Precision, maps: bool) -> None:
    reading = random_reading(TOKENS, layers=2, heads=3, maps=maps)
    n = len(reading)
    order = [(i, j) for i in range(n) for j in range(i + 1, n)]
    heads: list[Head] = [*reading.heads, "sum"]
    for layer in reading.layers:
        found = decode(reading, layer, precision)
        assert ("columns" in found) == ("attention" in found) == maps
        for k, head in enumerate(heads):
            matrix = reading.matrix(layer, head).values
            values = np.array([matrix[i, j] for i, j in order])
            largest = values.max()
            assert found["scales"][k] == largest
            assert found["similarity"][k].tolist() == codes(values, largest, precision).tolist()
            assert (above(found["similarity"][k], precision) == python_above(values, largest, precision)).all()
            written = reading.outputs.sel(layer=layer).values
            used = written if head == "sum" else written[:, [head]]
            np.testing.assert_allclose(found["diagonal"][k], (used**2).sum(axis=(1, 2)) / largest, rtol=1e-6)
            if not maps:
                continue
            attention = reading.attention_map(layer, head).values
            sums = attention.sum(axis=0)
            assert found["columns"][k].tolist() == codes(sums, sums.max(), precision).tolist()
            for tau in (0, 0.25, 0.3, 0.99):
                step = precision.steps // precision.thresholds
                lines = np.flatnonzero(found["columns"][k] > round(tau * precision.thresholds) * step)
                assert lines.tolist() == reading.lines(layer, head, tau)["index"].tolist()
            if head != "sum":
                roots = found["attention"][k] / precision.levels
                np.testing.assert_allclose(roots, np.sqrt(attention), atol=0.5 / precision.levels + 1e-9)


@BOTH
def test_values_on_thresholds_in_a_layer(precision: Precision) -> None:
    reading = on_thresholds()
    found = decode(reading, 0, precision)
    whole = precision.steps
    assert found["similarity"][0].tolist() == [
        whole // 2, 0, whole // 2, 0, 0, whole, 0, whole // 4, -whole // 4, -whole // 4,
    ]  # fmt: skip
    assert found["similarity"][0].tolist() == found["similarity"][1].tolist()  # of one head the sum is the head
    assert found["columns"][0][[0, 2]].tolist() == [whole, whole // 4]
    assert found["diagonal"][0].tolist() == [0.25, 1.0, 0.25, 1.25, 0.25]


def test_which_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = random_reading(TOKENS, layers=2, heads=3)
    elements = 2 * (3 + 1) * len(TOKENS) ** 2
    assert choose(reading, "auto") is FINE
    assert choose(reading, "fine") is FINE
    assert choose(reading, "coarse") is COARSE
    monkeypatch.setattr(made, "FINE_ELEMENTS", elements)
    assert choose(reading, "auto") is FINE
    monkeypatch.setattr(made, "FINE_ELEMENTS", elements - 1)
    assert choose(reading, "auto") is COARSE
    assert choose(reading, "fine") is FINE
    with pytest.raises(ReadingError, match=r"'exact'.*auto, fine, coarse"):
        choose(reading, "exact")
    with pytest.raises(ReadingError, match="auto, fine, coarse"):
        reading.page(precision="")


def test_steps_are_a_multiple_of_thresholds_and_fit_their_bytes() -> None:
    for precision in (FINE, COARSE):
        assert precision.steps % precision.thresholds == 0
        assert precision.steps < 2 ** (8 * precision.bytes - 1)
        assert precision.levels < 256
