"""The kernel of attention scores (METHOD §7): the attention of each map that goes to what a score is about."""

from __future__ import annotations

import triton
import triton.language as tl

from headscope.tally.triton_backend.attention import load_rows

SUMS = (
    "attends_first_sum",
    "attends_special_sum",
    "attends_punctuation_sum",
    "attends_duplicate_sum",
    "attends_induction_sum",
    "attends_sink_sum",
    "far_sink_sum",
    "attention_entropy_sum",
)
"""the sums of a map, in the order in which the kernel stores them"""


@triton.jit
def add_scores(
    query, key, normals, maps, lengths, ids, marks, scores, scaling,
    qb, qh, qn, kb, kh, kn, heads,
    N, GROUP: tl.constexpr, WIDTH: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr, PRECOMPUTED: tl.constexpr,
    UNMASKED: tl.constexpr, CROSSES: tl.constexpr,
    FIRST_DISTANT: tl.constexpr, SINK: tl.constexpr, RECENT: tl.constexpr,
):  # fmt: skip
    """Add the sums of some rows of one map to those of its text and head: (text, head, sum).

    Maps are computed again from queries, keys and normals; or, `PRECOMPUTED`, loaded: (text, head, query, key).
    `ids` (text, position) are −1 for special tokens; `marks` have bit 0 set for special keys, bit 1 for punctuation.
    """
    tile, head, text = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    n = tl.load(lengths + text)
    text_head = text * heads + head
    rows = tile * ROWS + tl.arange(0, ROWS)
    dims = tl.arange(0, D)
    is_row = rows < n
    row_ids = tl.load(ids + text * N + rows, is_row, -1)
    first = tl.zeros((ROWS,), tl.float32)
    special = tl.zeros((ROWS,), tl.float32)
    punctuation = tl.zeros((ROWS,), tl.float32)
    duplicate = tl.zeros((ROWS,), tl.float32)
    induction = tl.zeros((ROWS,), tl.float32)
    sink = tl.zeros((ROWS,), tl.float32)
    far_sink = tl.zeros((ROWS,), tl.float32)
    entropy = tl.zeros((ROWS,), tl.float32)
    if not PRECOMPUTED:
        q = load_rows(query + text * qb + head * qh, rows, qn, dims, n, WIDTH, UNMASKED)
        normal = tl.load(normals + text_head * N + rows, is_row, 0.0)
    last = n
    if CAUSAL:
        last = tl.minimum(n, (tile + 1) * ROWS)
    for start in range(0, last, KEYS):
        keys = start + tl.arange(0, KEYS)
        is_key = keys < n
        distance = rows[:, None] - keys[None, :]
        valid = is_row[:, None] & is_key[None, :]
        if CAUSAL:
            valid = valid & (distance >= 0)
        if PRECOMPUTED:
            share = tl.load(maps + (text_head * N + rows[:, None]) * N + keys[None, :], valid, 0.0).to(tl.float32)
            power = tl.log2(tl.maximum(share, 1e-30))
        else:
            k = load_rows(key + text * kb + head // GROUP * kh, keys, kn, dims, n, WIDTH, UNMASKED)
            power = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scaling - normal[:, None]
            power = tl.where(valid, power, 0.0)
            share = tl.where(valid, tl.exp2(power), 0.0)
        entropy -= tl.sum(share * power, 1)
        key_marks = tl.load(marks + text * N + keys, is_key, 0).to(tl.int32)
        special += tl.sum(tl.where((key_marks & 1)[None, :] != 0, share, 0.0), 1)
        is_mark = (key_marks & 2)[None, :] != 0
        if not CROSSES:
            is_mark = is_mark & (distance != 0)
            key_ids = tl.load(ids + text * N + keys, is_key, -1)
            before = tl.load(ids + text * N + keys - 1, is_key & (keys > 0), -1)
            duplicate += tl.sum(tl.where((row_ids[:, None] == key_ids[None, :]) & (distance != 0), share, 0.0), 1)
            induction += tl.sum(tl.where((row_ids[:, None] == before[None, :]) & (distance > 0), share, 0.0), 1)
        punctuation += tl.sum(tl.where(is_mark, share, 0.0), 1)
        if start == 0:
            first += tl.sum(tl.where(keys[None, :] == 0, share, 0.0), 1)
            if CAUSAL:
                is_sink = keys[None, :] < SINK
                sink += tl.sum(tl.where(is_sink, share, 0.0), 1)
                far_sink += tl.sum(tl.where(is_sink & (distance >= RECENT), share, 0.0), 1)
    # The largest entropy of a row, in bits, is log₂ of the number of keys; the entropy of one key does not count.
    reached = rows * 0 + n
    if CAUSAL:
        reached = rows + 1
    largest = tl.log2(tl.maximum(reached, 2).to(tl.float32))
    counted = row_ids >= 0
    pointers = scores + text_head * 8
    tl.atomic_add(pointers, tl.sum(tl.where(rows > 0, first, 0.0)).to(tl.float64))
    tl.atomic_add(pointers + 1, tl.sum(tl.where(counted, special, 0.0)).to(tl.float64))
    tl.atomic_add(pointers + 2, tl.sum(punctuation).to(tl.float64))
    tl.atomic_add(pointers + 3, tl.sum(tl.where(counted, duplicate, 0.0)).to(tl.float64))
    tl.atomic_add(pointers + 4, tl.sum(tl.where(counted, induction, 0.0)).to(tl.float64))
    tl.atomic_add(pointers + 5, tl.sum(tl.where(rows >= FIRST_DISTANT, sink, 0.0)).to(tl.float64))
    tl.atomic_add(pointers + 6, tl.sum(far_sink).to(tl.float64))
    tl.atomic_add(pointers + 7, tl.sum(tl.where(is_row & (reached > 1), entropy / largest, 0.0)).to(tl.float64))
