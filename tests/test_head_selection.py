"""Names of heads and layers are parsed alike everywhere, and what is wrong with them is said."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headscope.errors import SelectionError
from headscope.head_selection import (
    combine_selections,
    format_head,
    parse_heads,
    parse_layers,
    select_grid,
    select_heads,
    select_layers,
)

LAYERS, HEADS = range(6), range(4)
OWNER = "the model"
HEAD_FORMS = "; write heads like L3H7, L0H1,L3H4-7, a layer L3, or H2 for head 2 of every layer"
LAYER_FORMS = "; write layers like 0,5,10-11"


def select(heads: Any) -> list[tuple[int, int]]:
    return select_heads(heads, LAYERS, HEADS, OWNER)


@pytest.mark.parametrize(
    ("heads", "expected"),
    [
        ("L3H2", [(3, 2)]),
        ("L0H1,L3H2-3", [(0, 1), (3, 2), (3, 3)]),
        (" l5h3 , L2H0-H1 ", [(5, 3), (2, 0), (2, 1)]),
        ("L3", [(3, 0), (3, 1), (3, 2), (3, 3)]),
        ("L4-5", [(layer, head) for layer in (4, 5) for head in range(4)]),
        ("L4-L5H2", [(4, 2), (5, 2)]),
        ("H2", [(layer, 2) for layer in range(6)]),
        ("H0-1", [(layer, head) for layer in range(6) for head in (0, 1)]),
        ((3, 2), [(3, 2)]),
        ([(3, 2), (0, 1)], [(3, 2), (0, 1)]),
        ([(3, 2), "L0H1"], [(3, 2), (0, 1)]),
        (np.array([[3, 2], [0, 1]]), [(3, 2), (0, 1)]),
        (pd.Series(["L3H2", "L0H1"]), [(3, 2), (0, 1)]),
        (iter([(3, 2)]), [(3, 2)]),
        ([], []),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_heads_are_selected_as_they_are_written(heads: Any, expected: list[tuple[int, int]]) -> None:
    assert select(heads) == expected
    assert all(type(number) is int for pair in select_heads(expected, LAYERS, HEADS, OWNER) for number in pair)


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ("L9H0", f"heads 'L9H0': layer 9: the model has layers 0 to 5{HEAD_FORMS}"),
        ("L0H1,L9", f"heads 'L9': layer 9: the model has layers 0 to 5{HEAD_FORMS}"),
        ("L3-9", f"heads 'L3-9': layer 9: the model has layers 0 to 5{HEAD_FORMS}"),
        ("L0H1,L0H3-999999", f"heads 'L0H3-999999': head 999999: a layer has heads 0 to 3{HEAD_FORMS}"),
        ("H4", f"heads 'H4': head 4: a layer has heads 0 to 3{HEAD_FORMS}"),
        ("L0H1,first", f"heads 'first': not a head{HEAD_FORMS}"),
        ("", f"heads '': not a head{HEAD_FORMS}"),
        ("L0H1,", f"heads '': not a head{HEAD_FORMS}"),
        ("3", f"heads '3': not a head{HEAD_FORMS}"),
        ("L0H\u0663", "not a head"),
        ("L0H1234567", "not a head"),
        ("L0H3-2", f"heads 'L0H3-2': the last number comes before the first{HEAD_FORMS}"),
        ("L5-4", "the last number comes before the first"),
        ("L1H2,L1H1-3", "heads 'L1H1-3': L1H2 is named twice"),
        ("L1,L1H1", "heads 'L1H1': L1H1 is named twice"),
        ([(0, -1)], f"heads 'L0H-1': head -1: a layer has heads 0 to 3{HEAD_FORMS}"),
        ([(0, 1), (0, 1)], "L0H1 is named twice"),
        ([0, 1], f"heads '0': not a pair of numbers (layer, head){HEAD_FORMS}"),
        ([(0, 1, 2)], "heads '(0, 1, 2)': not a pair of numbers"),
        ([(0, 1.5)], "not a pair of numbers"),
        (np.ones((6, 2), dtype=bool), "not a pair of numbers"),
        (3, "heads '3': not a selection of heads"),
    ],
    ids=str,
)
def test_what_is_no_head_is_refused(heads: Any, message: str) -> None:
    with pytest.raises(SelectionError) as refused:
        select(heads)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_hybrid_model_has_attention_in_some_layers() -> None:
    assert select_heads("H1", (1, 3), HEADS, OWNER) == [(1, 1), (3, 1)]
    with pytest.raises(SelectionError, match="layer 2: the model has attention in layers 1, 3; "):
        select_heads("L1-3", (1, 3), HEADS, OWNER)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), unique=True, min_size=1))
def test_names_are_read_back(heads: list[tuple[int, int]]) -> None:
    assert select(",".join(map(format_head, heads))) == heads


@given(st.text(alphabet="LlHh0129-, ", max_size=12))
def test_any_text_is_a_selection_or_refused_in_one_line(text: str) -> None:
    try:
        heads = select(text)
    except SelectionError as error:
        message = str(error)
    else:
        assert len(set(heads)) == len(heads) > 0
        return
    assert message.startswith("heads '")
    assert "\n" not in message


def test_a_selection_is_parsed_before_a_model_is_known() -> None:
    parsed = parse_heads("L9H0,H70")
    assert parse_heads(parsed) == parsed
    with pytest.raises(SelectionError, match="not a head"):
        parse_heads("L9,x")
    with pytest.raises(SelectionError, match="layers 'x': not a layer"):
        parse_layers("9,x")


def test_layers() -> None:
    assert select_layers("0,4-5", LAYERS, OWNER) == [0, 4, 5]
    assert select_layers("L0, L4-L5", LAYERS, OWNER) == [0, 4, 5]
    for text, message in (
        ("0,9", f"layers '0,9': layer 9: the model has layers 0 to 5{LAYER_FORMS}"),
        ("a-b", f"layers 'a-b': not a layer{LAYER_FORMS}"),
        ("", "layers '': not a layer"),
        ("0,0", "layers '0,0': a layer is named twice"),
        ("5-4", "layers '5-4': the last number comes before the first"),
    ):
        with pytest.raises(SelectionError) as refused:
            select_layers(text, LAYERS, OWNER)
        assert message in str(refused.value)


def test_layers_and_heads_are_combined() -> None:
    assert combine_selections(None, None, range(2), range(2), OWNER) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert combine_selections("5,1", None, LAYERS, range(1), OWNER) == [(5, 0), (1, 0)]
    assert combine_selections("1-2", "L2-3,L1H3", LAYERS, range(1, 4), OWNER) == [(1, 3), (2, 1), (2, 2), (2, 3)]
    with pytest.raises(SelectionError, match="heads 'L3H2': none of them is in the layers 1-2"):
        combine_selections("1-2", "L3H2", LAYERS, HEADS, OWNER)


@pytest.mark.parametrize(
    ("layers", "heads", "expected"),
    [
        (None, None, (None, None)),
        ("5,1", None, ([5, 1], None)),
        (None, "H2,H0", (None, [2, 0])),
        ("5,1", "H2", ([5, 1], [2])),
        ([5], "H2-3", ([5], [2, 3])),
        (5, "H2-3", ([5], [2, 3])),
        (np.int64(5), "H2-3", ([5], [2, 3])),
        (None, "L5H1,L2H1", ([2, 5], [1])),
        (None, "L3", ([3], [0, 1, 2, 3])),
        ([5, 5], [2], ([5, 5], [2])),
        (7, None, (7, None)),
    ],
    ids=str,
)
def test_grids(layers: Any, heads: Any, expected: Any) -> None:
    assert select_grid(layers, heads, LAYERS, HEADS, OWNER) == expected


def test_other_selections_are_no_grid() -> None:
    with pytest.raises(SelectionError, match="name the same ones in every layer, like L0H2,L5H2, or H2"):
        select_grid(None, "L0H1,L3H2-3", LAYERS, HEADS, OWNER)
