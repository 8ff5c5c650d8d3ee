"""A synthetic study, findings and figures whose texts try to become markup."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from headscope.page.report import ReportFigure
from headscope.studies.findings import Finding
from headscope.studies.labels import label_sums
from headscope.studies.result import Study
from headscope.tally.quantities import Shape
from headscope.tally.tally import Tally
from tests.helpers.synthetic import manifest

LAYERS, HEADS, BLOCKS = 11, 4, 20
USED_BLOCKS = 10
TEXTS = np.where(np.arange(20) < 5, 2, 1)
"""in each block: 15 in those that are used"""
"""blocks with texts; few of them, because the jackknife leaves out each one in turn"""
SCRIPT = "<script>alert(1)</script>"
IMAGE = '"><img src=x onerror=alert(1)>'
CLOSE = "</script></style></title></textarea>--><b>bold</b>"
TEMPLATE = "{{7*7}} {% raw %}"
DIRECTION = "\u202eright to left\u2066 \u2028 \u2029 नमस्ते"
HOSTILE = (SCRIPT, IMAGE, CLOSE, TEMPLATE, DIRECTION)
ALL = " ".join(HOSTILE)
EMPTY_HEAD = (2, 1)
"""layer and head without pairs"""
ENTRIES = {
    "headscope": "0.1.0",
    "model": ALL,
    "model_type": IMAGE,
    "weight_hash": "ab" * 32,
    "tokenizer": CLOSE,
    "first_special_token": "[CLS]",
    "corpus": ALL,
    "corpus_hash": "cd" * 16,
    "documents_read": 64,
    "documents_skipped": json.dumps({ALL: 4}),
    "excerpts": json.dumps([{"name": ALL, "text": ALL}]),
    "complete": 0,
    "stopped_by": ALL,
    "versions": json.dumps({"torch": CLOSE}),
    "date": "2026-01-02T03:04:05+00:00",
    "command": ALL,
    "duration_seconds": 75.0,
    "something_new": ALL,
}
"""entries of its manifest that differ from those of other synthetic studies"""
SVG = (
    '<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg" width="{0}pt" height="100pt" viewBox="0 0 {0} 100">'
    '<rect width="50" height="50" fill="teal"/></svg>'
)
PLATES = [ReportFigure("6a", "Repeats", "A caption.", SVG.format(200)), ReportFigure(ALL, ALL, ALL, SVG.format(900))]


def make_tally() -> Tally:
    random = np.random.default_rng(7)
    tally = Tally.zeros(Shape(LAYERS, HEADS, 16, maps=False))
    shape = (BLOCKS, LAYERS, HEADS)
    pairs = random.integers(40, 2000, shape)
    pairs[:, EMPTY_HEAD[0], EMPTY_HEAD[1]] = 0
    # Heads differ, so that no two of them have equal rows in a table.
    strength = random.random((LAYERS, HEADS))
    sums = {
        "texts": TEXTS,
        "sample_texts": TEXTS,
        "all_pairs": np.full(BLOCKS, 360),
        "all_equal": np.full(BLOCKS, 9),
        "all_same": np.full(BLOCKS, 120),
        "all_equal_same": np.full(BLOCKS, 4),
        "pairs": pairs,
        "equal": (pairs * strength * 0.4).astype(np.int64),
        "same": (pairs * (1 - strength)).astype(np.int64),
        "equal_same": (pairs * (1 - strength) * strength * 0.3).astype(np.int64),
        "distance_sum": (pairs * (1 + 12 * strength)).astype(np.int64) + random.integers(0, 9, shape) * (pairs > 0),
        "texts_with_pairs": np.where(pairs > 0, 3, 0),
        "dominant_share_sum": np.where(pairs > 0, 3 * (0.2 + 0.7 * random.random(shape)), 0.0),
        "shuffled_share_sum": np.where(pairs > 0, 0.2 + strength, 0.0),
        "shuffled_share_texts": np.where(pairs > 0, 3, 0),
        "attention_received": random.random((BLOCKS, LAYERS, 7)),
        "attention_spread": np.tile(np.arange(1.0, 8.0), (BLOCKS, 1)),
    }
    for name, array in sums.items():
        tally[name][...] = array
    tally["window_tokens"][:, 16] = TEXTS
    for array in tally.arrays.values():
        array[USED_BLOCKS:] = 0
    for token, texts in enumerate((8, 1, 1, 1, 1, 1, 1, 1)):  # 15 texts, and more tokens than are listed
        counts = np.zeros((BLOCKS, LAYERS), dtype=np.int64)
        counts[token % USED_BLOCKS] = texts
        tally.attend(token, counts)
    return tally


def make_study(**changes: Any) -> Study:
    """Return a study without a model, with hostile texts everywhere."""
    tally = make_tally()

    def name_tokens(tokens: list[int]) -> list[str]:
        return [ALL, " ", "", *HOSTILE][: len(tokens)]

    return Study(label_sums(tally, name_tokens).assign_attrs(manifest(tally.shape, **ENTRIES | changes)))


def make_findings() -> list[Finding]:
    verdicts = ("consistent", "not consistent", "not measurable")
    findings = [
        Finding(
            number,
            f"Claim {number}: heads of one layer do something that takes a sentence to say.",
            "What the paper reports.",
            "What was measured here.",
            verdicts[number % 3],  # type: ignore[arg-type]
            f"criterion of {number}",
            value=None if number % 3 == 2 else 0.123456 * number,
            error=None if number == 3 else 0.0123,
            unit="%" if number == 3 else "tokens",
            null=0.05,
            paper_number="33 %" if number == 8 else "",
            details={"by_layer": [0.25, float("nan"), None, 1], "heads": {"L0H1": 0.5}, "rows": [[1, 2], [3, 4]]},
        )
        for number in range(1, 12)
    ]
    return [
        *findings,
        Finding(12, ALL, ALL, ALL, "consistent", ALL, 1.0, 0.1, ALL, {ALL: ALL, "list": [ALL, {ALL: [ALL]}]}, 0.5, ALL),
    ]
