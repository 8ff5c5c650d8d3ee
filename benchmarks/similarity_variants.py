"""Which similarity tells best what heads do: planted heads, the types of real heads, and how stable these are.

python benchmarks/similarity_variants.py --texts english.jsonl.gz minilm ./bert … [--documents 300]

Planted heads write signal that follows equal tokens, sentences or neighbours, and noise, over the tokens of real
windows; beside it one common vector, and values that are stretched by up to `SKEW` in some directions, which the output
projection takes back. Counted is how many get the type that they were planted for. Of real models, all similarities are
counted of the same run; types are compared between halves of the documents.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, get_args

import numpy as np
import pandas as pd
import torch

import headscope
from headscope.corpus.windows import Batch, Window, WindowSpec
from headscope.model.model import Model
from headscope.model.output_projections import factorize
from headscope.similarity import Similarity
from headscope.studies.labels import label_sums
from headscope.studies.output_types import PREFERENCES
from headscope.studies.result import Study
from headscope.tally.numba_backend.tallier import NumbaTallier
from headscope.tally.output_maps import OutputMap
from headscope.tally.quantities import Shape
from headscope.tally.tally import Tally, TallySettings
from measuring.planting import plant_head
from measuring.tables import table

VARIANTS: tuple[Similarity, ...] = get_args(Similarity)
PLANTED = {"equal": "repeat-token", "same": "within-sentence", "near": "local", "": ""}
"""head types by the relation that a head follows; the last heads are noise"""
SIGNAL = 0.7
"""share of a head's variance"""
COPIES = 4
"""planted heads of each kind"""
COMMON = (0.0, 0.5, 1.0, 2.0, 4.0)
"""length of the common vector, relative to that of all else"""
SKEW = 10.0
WIDTH, LENGTH, BATCH = 32, 128, 10
NAMED = tuple(preference.name for preference in PREFERENCES)


def read_windows(model: Model, texts: str, count: int) -> list[Window]:
    """Return the first window of documents that are spread over a file."""
    documents = list(headscope.documents(texts))
    windows = list[Window]()
    for document in documents[:: max(1, len(documents) // count)]:
        cut = model.windows(document, WindowSpec(length=LENGTH))
        windows += cut if isinstance(cut, list) else []
    return windows[:count]


def make_batches(windows: Iterable[Window], pad_id: int = 0) -> Iterable[Batch]:
    remaining = iter(windows)
    while part := list(islice(remaining, BATCH)):
        yield Batch.of(part, pad_id)


def make_study(sums: Tally, **attributes: Any) -> Study:
    """Return a study with these sums."""
    data = label_sums(sums, lambda ids: [str(k) for k in ids])
    return Study(data.assign_attrs({"causal": 0, "stack": "encoder", **attributes}))


# -- planted heads ----------------------------------------------------------------------------------------------------


def plant(windows: Sequence[Window], common: float, skewed: bool, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the outputs (window, position, head, width) of planted heads, and the output projection of each."""
    random = np.random.default_rng(seed)
    count, longest = len(PLANTED) * COPIES, max(len(window) for window in windows)
    outputs = torch.zeros((len(windows), longest, count, WIDTH))
    projections = torch.zeros((count, WIDTH, WIDTH), dtype=torch.float64)
    for head in range(count):
        relation = list(PLANTED)[head // COPIES]
        shares = {relation: SIGNAL} if relation else {}
        written = plant_head(windows, shares, seed + head, offset=common)
        rotations = [np.linalg.qr(random.normal(size=(WIDTH, WIDTH)))[0] for _ in range(2)]
        stretches = np.geomspace(1, SKEW, WIDTH) if skewed else np.ones(WIDTH)
        projection = rotations[0] * stretches @ rotations[1]
        projections[head] = torch.from_numpy(projection)
        for row, added in enumerate(written):
            outputs[row, : len(added), head] = torch.from_numpy(added @ np.linalg.inv(projection))
    return outputs, projections


def evaluate_planted(windows: Sequence[Window]) -> list[dict[str, Any]]:
    """Return how many planted heads get their type, and how many of noise get any, by common vector and skew."""
    settings = [(common, skewed) for skewed in (False, True) for common in COMMON]
    planted = [plant(windows, *setting, seed=100 * k) for k, setting in enumerate(settings)]
    heads = len(PLANTED) * COPIES
    tables = {}
    for variant in VARIANTS:
        factors = [factorize(projection).float() for _, projection in planted]
        output_map = OutputMap("centered" in variant, factors if variant.startswith("projected") else None)
        shape = Shape(len(settings), heads, LENGTH, maps=False)
        tallier = NumbaTallier(TallySettings(shape, 0.3, 0.3, 1.0, output_map=None if variant == "dot" else output_map))
        for number, batch in enumerate(make_batches(windows)):
            tallier.begin(batch)
            rows, longest = slice(number * BATCH, number * BATCH + len(batch)), batch.ids.shape[1]
            maps = torch.from_numpy(batch.real / batch.real.sum(1, keepdims=True)).float()
            maps = maps[:, None, None].expand(-1, heads, longest, -1).contiguous()
            for layer, (outputs, _) in enumerate(planted):
                tallier.observe_layer(layer, outputs[rows, :longest].contiguous(), maps)
            tallier.end()
        tables[variant] = make_study(tallier.get_sums()).heads()
    results = []
    for layer, (common, skewed) in enumerate(settings):
        row: dict[str, Any] = {"common": common, "skewed": skewed}
        for variant, heads_table in tables.items():
            found = heads_table[heads_table["layer"] == layer]["writes_type"].to_numpy().reshape(-1, COPIES)
            expected = list(PLANTED.values())
            right = sum(int((found[k] == name).sum()) for k, name in enumerate(expected) if name)
            row[variant] = right, int(np.isin(found[-1], NAMED).sum())
        results.append(row)
    return results


# -- real heads -------------------------------------------------------------------------------------------------------


def count_halves(model: Model, windows: Sequence[Window]) -> dict[Similarity, list[Tally]]:
    """Return the sums of two halves of the windows by each similarity, all of the same run."""
    architecture = model.architecture
    shape = Shape(architecture.layers, architecture.heads, LENGTH, maps=False, width=architecture.width)
    talliers = {}
    for variant in VARIANTS:
        counting = TallySettings(
            shape, 0.3, 0.3, 1.0, architecture.causal, architecture.numbers, OutputMap.create(model, variant)
        )
        talliers[variant] = [NumbaTallier(counting) for _ in range(2)]
    for half in range(2):
        for batch in make_batches(windows[half::2], model.tokens.pad_id):
            own = [pair[half] for pair in talliers.values()]
            for tallier in own:
                tallier.begin(batch)

            def count(layer: int, output: Any, attention: Any, own: Sequence[NumbaTallier] = own) -> None:
                for tallier in own:
                    tallier.observe_layer(layer, output, attention)

            model.observe(batch, count)
            for tallier in own:
                tallier.end()
    return {variant: [tallier.get_sums() for tallier in pair] for variant, pair in talliers.items()}


def evaluate_model(model: Model, windows: Sequence[Window]) -> list[dict[str, Any]]:
    """Return for each similarity how many heads have a type, and how many the same in both halves."""
    results = []
    attributes = {"causal": int(model.architecture.causal), "stack": model.architecture.stack}
    for variant, halves in count_halves(model, windows).items():
        whole = make_study(halves[0] + halves[1], **attributes)
        types = [make_study(sums, **attributes).heads()["writes_type"] for sums in halves]
        heads = whole.heads()
        named = [part.isin(NAMED) for part in types]
        both = named[0] & named[1]
        results.append(
            {
                "similarity": variant,
                "heads": len(heads),
                **{
                    name: int((heads["writes_type"] == name).sum())
                    for name in (*NAMED, "diffuse", "silent", "undecided")
                },
                "pairs": float(heads["pairs_per_text"].median()),
                "same": float((types[0] == types[1]).mean()),
                "kept": _divide((both & (types[0] == types[1])).sum(), (named[0] | named[1]).sum()),
                "common_share": float(heads["common_share"].median()),
                "effective_rank": float(heads["effective_rank"].median()),
            }
        )
    return results


def _divide(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")


# -- tables -----------------------------------------------------------------------------------------------------------


def tabulate_planted(results: Sequence[dict[str, Any]]) -> str:
    rows = [
        [f"{row['common']:g}", "yes" if row["skewed"] else "no", *(f"{row[v][0]} ({row[v][1]})" for v in VARIANTS)]
        for row in results
    ]
    return table(["common vector", "values stretched", *VARIANTS], rows, markdown=True)


def tabulate_model(results: Sequence[dict[str, Any]]) -> str:
    frame = pd.DataFrame(results)
    frame["typed"] = frame[list(NAMED)].sum(axis=1)
    columns = [*NAMED, "typed", "diffuse", "silent", "undecided"]
    rows = [
        [
            str(row["similarity"]),
            *(str(row[name]) for name in columns),
            f"{row['pairs']:.0f}",
            f"{row['same']:.0%}",
            f"{row['kept']:.0%}",
            f"{row['common_share']:.2f}",
            f"{row['effective_rank']:.1f}",
        ]
        for _, row in frame.iterrows()
    ]
    head = ["similarity", *columns, "pairs per text", "same type in both halves", "types kept", "common share", "rank"]
    return table(head, rows, markdown=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--texts", required=True, help="a file of documents")
    parser.add_argument("--documents", type=int, default=300)
    parser.add_argument("--planted", action="store_true", help="planted heads, over the tokens of the first model")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for number, name in enumerate(options.models):
        start, model = time.monotonic(), headscope.load(name, device="cpu")
        windows = read_windows(model, options.texts, options.documents)
        if options.planted and not number:
            print(
                f"\nplanted heads, {len(windows)} windows\n\n{tabulate_planted(evaluate_planted(windows))}", flush=True
            )
        results = evaluate_model(model, windows)
        print(f"\n{model.name}: {results[0]['heads']} heads, {len(windows)} windows\n\n{tabulate_model(results)}")
        print(f"({time.monotonic() - start:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
