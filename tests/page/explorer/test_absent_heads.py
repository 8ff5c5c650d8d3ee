"""In a browser: a reading whose layers have different heads."""

from __future__ import annotations

import numpy as np
import pytest

from headscope import Reading
from tests.helpers.explorer import TOKENS, ExplorerOpener

pytestmark = pytest.mark.browser


@pytest.fixture
def uneven() -> Reading:
    """Four heads in the first and last layer, two in the middle, with heads of another width."""
    random, n = np.random.default_rng(0), len(TOKENS)
    outputs = [random.normal(0.4, 1, (n, heads, width)) for heads, width in ((4, 4), (2, 6), (4, 4))]
    maps = [random.dirichlet(np.full(n, 0.3), (heads, n)) for heads in (4, 2, 4)]
    return Reading.from_arrays(TOKENS, outputs, maps)


def test_absent_heads_cannot_be_chosen(uneven: Reading, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(uneven)
    names = [f"L{layer}{head}" for layer, heads in ((0, 4), (1, 2), (2, 4)) for head in [*_name(heads), "sum"]]
    assert list(explorer.read_thumbnails()) == names
    explorer.choose(0, 3)
    explorer.press("ArrowDown")
    assert explorer.get_name() == "L1H1"  # the nearest that the layer has
    explorer.press("ArrowRight")
    assert explorer.get_name() == "L1sum"
    explorer.press("ArrowLeft")
    assert explorer.get_name() == "L1H1"
    explorer.press("ArrowDown", "ArrowRight")
    assert explorer.get_name() == "L2H2"
    assert (
        explorer.page.evaluate("[...document.getElementById('head').options].map((each) => each.disabled)")
        == [False] * 5
    )
    explorer.pick_token(3)
    strips = explorer.get_texts("#strips .strip .partners")
    assert strips[1] == "no such head"
    assert "no such head" not in (strips[0], strips[2])


def test_sums_and_pairs_are_those_of_python(uneven: Reading, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(uneven)
    for layer, head in ((1, "sum"), (1, 1), (0, 3)):
        explorer.choose(layer, head)  # type: ignore[arg-type]
        expected = uneven.pairs(layer, head)[["index_i", "index_j"]].values.tolist()  # type: ignore[arg-type]
        assert [[pair["index_i"], pair["index_j"]] for pair in explorer.query("pairs")] == expected
        assert len(explorer.query("lines")) == len(uneven.lines(layer, head)) > 0  # type: ignore[arg-type]


def test_an_address_of_an_absent_head_shows_another(uneven: Reading, open_explorer: ExplorerOpener) -> None:
    explorer = open_explorer(uneven)
    explorer.page.evaluate("location.hash = '#L1H3'")
    explorer.wait_until("headscope.state().name === 'L1H1'")


def _name(heads: int) -> list[str]:
    return [f"H{head}" for head in range(heads)]
