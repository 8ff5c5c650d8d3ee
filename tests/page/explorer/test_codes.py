"""Codes of similarities and column sums: thresholds on them agree with Python, and layers can be unpacked."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headscope import Reading
from headscope.errors import ReadingError
from headscope.page import explorer as codes_module
from headscope.page.explorer import COARSE, FINE, Precision, choose_precision, compute_scale, pack_layer, quantize
from headscope.readings.reading import Head
from tests.helpers.explorer import make_random_reading, make_threshold_reading

BOTH = pytest.mark.parametrize("precision", [FINE, COARSE], ids=lambda precision: precision.name)
TOKENS = ["[CLS]", "the", "cat", "un", "##like", ".", "the", "cat", "[SEP]"]


def compare_codes(codes: Any, precision: Precision) -> Any:
    """Return whether each code is above each threshold k/D, as the page decides: values × thresholds."""
    return np.asarray(codes)[:, None] > np.arange(precision.thresholds) * (precision.steps // precision.thresholds)


def compare_values(values: Any, largest: float, precision: Precision) -> Any:
    """Return the same for values, as Python decides: C_ij > θ · max(C)."""
    shares = [k / precision.thresholds for k in range(precision.thresholds)]
    return np.stack([values > share * largest for share in shares], axis=1)


@st.composite
def threshold_values(draw: st.DrawFn) -> tuple[Any, float]:
    """Draw values and their maximum: arbitrary values, and values within two roundings of a threshold."""
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
@given(case=threshold_values())
@example(case=(np.array([0.29, 0.57, 0.58, 1.0]), 1.0))
@example(case=(np.array([0.0, -0.0, 5e-324, -5e-324, 0.7]), 0.7))
def test_every_threshold_falls_as_in_python(case: tuple[Any, float], precision: Precision) -> None:
    values, largest = case
    codes = quantize(values, largest, precision)
    assert (compare_codes(codes, precision) == compare_values(values, largest, precision)).all()
    assert codes.max() <= precision.steps


@BOTH
def test_every_threshold_itself_and_its_neighbours(precision: Precision) -> None:
    for largest in (1.0, 0.1, 3.7, 12345.678, 1 / 3):
        exact = np.array([k / precision.thresholds * largest for k in range(precision.thresholds)])
        for values in (exact, np.nextafter(exact, np.inf), np.nextafter(exact, -np.inf)):
            codes = quantize(np.minimum(values, largest), largest, precision)
            expected = compare_values(np.minimum(values, largest), largest, precision)
            assert (compare_codes(codes, precision) == expected).all()
        assert compare_codes(quantize(exact, largest, precision), precision).sum(axis=1).tolist() == list(
            range(precision.thresholds)
        )


@BOTH
@settings(max_examples=60, deadline=None)
@given(shares=st.lists(st.floats(-1, 1), min_size=1), largest=st.floats(1e-6, 1e6))
def test_a_code_stands_for_a_value_within_a_step(shares: list[float], largest: float, precision: Precision) -> None:
    values = np.array(shares) * largest
    step = largest / precision.steps
    codes = quantize(values, largest, precision)
    # Near a threshold a code may be moved by one, to agree with the comparison in Python.
    np.testing.assert_array_less(values, codes * step + 1e-9 * largest)
    np.testing.assert_array_less((codes - 1) * step, values + 1e-9 * largest)
    assert (np.diff(codes[np.argsort(values)]) >= 0).all()


@BOTH
def test_very_negative_values_are_clipped_and_above_nothing(precision: Precision) -> None:
    lowest = {"fine": -(2**15), "coarse": -(2**7)}[precision.name]
    codes = quantize(np.array([-1e9, -5.0, -1.03, -1.0, 1.0]), 1.0, precision)
    assert codes[:2].tolist() == [lowest, lowest]
    assert codes[3:].tolist() == [-precision.steps, precision.steps]
    assert not compare_codes(codes[:4], precision).any()
    stored = codes.astype({"fine": np.int16, "coarse": np.int8}[precision.name])
    assert stored.tolist() == codes.tolist()


def test_what_similarities_are_divided_by() -> None:
    assert compute_scale(np.array([[0.0, 4.0], [4.0, 0.0]])) == 4
    assert compute_scale(np.array([[0.0, -3.0], [-3.0, 0.0]])) == 3
    assert compute_scale(np.zeros((2, 2))) == 1


@BOTH
def test_all_negative_and_all_zero_matrices_have_no_pairs(precision: Precision) -> None:
    # Three vectors at 120° have only negative products; zero vectors have only zero products.
    vectors = np.array([[np.cos(angle), np.sin(angle)] for angle in np.arange(3) * 2 * np.pi / 3])
    outputs = np.stack([vectors, np.zeros((3, 2))], axis=1)[None]
    reading = Reading.from_arrays(["a", "b", "c"], outputs)
    assert reading.pairs(theta=0).empty
    decoded = decode(reading, 0, precision)
    assert decoded["scales"] == pytest.approx([0.5, 1.0, 0.5])
    assert (decoded["similarity"][0] <= -precision.steps + 1).all()
    assert not decoded["similarity"][1].any()
    assert not compare_codes(decoded["similarity"].ravel(), precision).any()


# A layer is unpacked by an independent, simple implementation


def decode(reading: Reading, layer: int, precision: Precision) -> dict[str, Any]:
    packed, scales = pack_layer(reading, layer, precision)
    raw = zlib.decompress(packed)
    n, heads = len(reading), len(reading.head_numbers)
    offset = 0

    def take(size: int) -> bytes:
        nonlocal offset
        offset += size
        return raw[offset - size : offset]

    def decode_numbers(count: int) -> Any:
        if precision.bytes == 1:
            return np.array([byte - 256 if byte > 127 else byte for byte in take(count)])
        high, low = take(count), take(count)
        codes = [256 * a + b for a, b in zip(high, low, strict=True)]
        return np.array([number - 65536 if number > 32767 else number for number in codes])

    upper = n * (n - 1) // 2
    decoded: dict[str, Any] = {
        "scales": scales,
        "similarity": decode_numbers((heads + 1) * upper).reshape(heads + 1, upper),
    }
    if reading.has_attention:
        decoded["attention"] = np.array(list(take(heads * n * n))).reshape(heads, n, n)
    decoded["diagonal"] = np.frombuffer(take((heads + 1) * n * 4), "<f4").reshape(heads + 1, n)
    if reading.has_attention:
        decoded["columns"] = decode_numbers((heads + 1) * n).reshape(heads + 1, n)
    assert offset == len(raw)
    return decoded


@pytest.mark.parametrize("maps", [True, False], ids=["maps", "no maps"])
@BOTH
def test_a_layer_is_read_back(precision: Precision, maps: bool) -> None:
    reading = make_random_reading(TOKENS, layers=2, heads=3, maps=maps)
    n = len(reading)
    order = [(i, j) for i in range(n) for j in range(i + 1, n)]
    heads: list[Head] = [*reading.head_numbers, "sum"]
    for layer in reading.layers:
        decoded = decode(reading, layer, precision)
        assert ("columns" in decoded) == ("attention" in decoded) == maps
        for k, head in enumerate(heads):
            matrix = reading.matrix(layer, head).values
            values = np.array([matrix[i, j] for i, j in order])
            largest = values.max()
            assert decoded["scales"][k] == largest
            assert decoded["similarity"][k].tolist() == quantize(values, largest, precision).tolist()
            assert (
                compare_codes(decoded["similarity"][k], precision) == compare_values(values, largest, precision)
            ).all()
            outputs = reading.outputs.sel(layer=layer).values
            head_outputs = outputs if head == "sum" else outputs[:, [head]]
            np.testing.assert_allclose(decoded["diagonal"][k], (head_outputs**2).sum(axis=(1, 2)) / largest, rtol=1e-6)
            if not maps:
                continue
            attention = reading.attention_map(layer, head).values
            sums = attention.sum(axis=0)
            assert decoded["columns"][k].tolist() == quantize(sums, sums.max(), precision).tolist()
            for tau in (0, 0.25, 0.3, 0.99):
                step = precision.steps // precision.thresholds
                lines = np.flatnonzero(decoded["columns"][k] > round(tau * precision.thresholds) * step)
                assert lines.tolist() == reading.lines(layer, head, tau)["index"].tolist()
            if head != "sum":
                roots = decoded["attention"][k] / precision.levels
                np.testing.assert_allclose(roots, np.sqrt(attention), atol=0.5 / precision.levels + 1e-9)


@BOTH
def test_values_on_thresholds_in_a_layer(precision: Precision) -> None:
    reading = make_threshold_reading()
    decoded = decode(reading, 0, precision)
    steps = precision.steps
    assert decoded["similarity"][0].tolist() == [
        steps // 2, 0, steps // 2, 0, 0, steps, 0, steps // 4, -steps // 4, -steps // 4,
    ]  # fmt: skip
    assert decoded["similarity"][0].tolist() == decoded["similarity"][1].tolist()  # the sum over one head is that head
    assert decoded["columns"][0][[0, 2]].tolist() == [steps, steps // 4]
    assert decoded["diagonal"][0].tolist() == [0.25, 1.0, 0.25, 1.25, 0.25]


def test_which_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = make_random_reading(TOKENS, layers=2, heads=3)
    elements = 2 * (3 + 1) * len(TOKENS) ** 2
    assert choose_precision(reading, "auto") is FINE
    assert choose_precision(reading, "fine") is FINE
    assert choose_precision(reading, "coarse") is COARSE
    monkeypatch.setattr(codes_module, "FINE_ELEMENTS", elements)
    assert choose_precision(reading, "auto") is FINE
    monkeypatch.setattr(codes_module, "FINE_ELEMENTS", elements - 1)
    assert choose_precision(reading, "auto") is COARSE
    assert choose_precision(reading, "fine") is FINE
    with pytest.raises(ReadingError, match=r"'exact'.*auto, fine, coarse"):
        choose_precision(reading, "exact")
    with pytest.raises(ReadingError, match="auto, fine, coarse"):
        reading.to_html(precision="")


def test_steps_are_a_multiple_of_thresholds_and_fit_their_bytes() -> None:
    for precision in (FINE, COARSE):
        assert precision.steps % precision.thresholds == 0
        assert precision.steps < 2 ** (8 * precision.bytes - 1)
        assert precision.levels < 256
