"""Validate head types: are they stable between halves of the texts, and are induction heads those of the standard test?

python benchmarks/head_types.py halves STUDY … [--halvings 20] [--markdown]
    For each part of the types: how many heads have a name, and how many keep it on the other half of the documents.

python benchmarks/head_types.py induction STUDY --model FOLDER
    Heads that the study calls induction, against the attention to the token after the earlier occurrence on sequences
    of random tokens that are repeated once.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

import headscope
from headscope import Study, open_study
from headscope.array_types import Floats, Ints
from headscope.corpus.windows import Batch, Window
from headscope.studies.head_types import PARTS, TypePart, count_heads
from headscope.studies.labels import add_derived_variables

NAMELESS = {
    "attends": ("broad", "mixed", "not measured", "too few texts"),
    "writes": ("diffuse", "silent", "undecided", "too few texts"),
}
"""types that say of a head that it has no preference, or none that is certain"""
HALF = 50
"""tokens of a random sequence, which is then repeated"""
SEQUENCES = 10
MIN_INDUCTION = 0.4
"""least attention on repeated random tokens of a head that the standard test calls induction"""


def take_blocks(study: Study, blocks: Ints) -> Study:
    """Return the study of the texts of these blocks alone."""
    names = [str(name) for name in study.data if str(name).endswith("_blocks")]
    blocked = {
        name: study.data[name].where(study.data["block"].isin(blocks), 0).astype(study.data[name].dtype)
        for name in names
    }
    sums = {name.removesuffix("_blocks"): array.sum("block").variable for name, array in blocked.items()}
    rest = study.data[[name for name in study.data.coords if name != "distance"]]
    variables = {name: array.variable for name, array in blocked.items()}
    return Study(add_derived_variables(rest.assign(sums | variables).assign_attrs(study.data.attrs)))


# -- halves ------------------------------------------------------------------------------------------------------------


@dataclass
class Agreement:
    """How often the two halves of a study agree on one part of the types, halving by halving."""

    same: list[float] = field(default_factory=list)
    """share of heads whose type is the same"""
    kept: list[float] = field(default_factory=list)
    """share of the heads with a name in one half that have the same in the other"""
    fits: list[float] = field(default_factory=list)
    """the same, where it is enough that the name fits there, be it first or among others"""
    changes: Counter[tuple[str, ...]] = field(default_factory=Counter)

    def add(self, one: pd.DataFrame, other: pd.DataFrame, part: TypePart) -> None:
        names, others = one[part.column], other[part.column]
        same = names == others
        self.same.append(same.mean())
        kept, fits, named = 0, 0, 0
        for first, second in ((one, other), (other, one)):
            is_named = ~first[part.column].isin(NAMELESS[part.name])
            named += int(is_named.sum())
            kept += int((is_named & same).sum())
            fits += sum(
                name == there or name in also
                for name, there, also in zip(
                    first[part.column][is_named],
                    second[part.column][is_named],
                    second[part.also_column][is_named],
                    strict=True,
                )
            )
        self.kept.append(kept / max(named, 1))
        self.fits.append(fits / max(named, 1))
        self.changes.update(tuple(sorted(pair)) for pair in zip(names[~same], others[~same], strict=True))


def compare_halves(study: Study, halvings: int) -> dict[str, Agreement]:
    """Return for each part of the types how the halves of random halvings of the documents agree."""
    random = np.random.default_rng(0)  # the same halves every time
    filled = np.flatnonzero(study.data["texts_blocks"].values)
    agreements = {name: Agreement() for name in PARTS}
    for _ in range(halvings):
        shuffled = random.permutation(filled)
        middle = len(shuffled) // 2
        one, other = (take_blocks(study, blocks).heads() for blocks in (shuffled[:middle], shuffled[middle:]))
        for name, part in PARTS.items():
            agreements[name].add(one, other, part)
    return agreements


def report_halves(paths: list[str], halvings: int, *, markdown: bool) -> None:
    if markdown:
        print("| model | texts | heads | attends: named | keep it | writes: named | keep it | named in either |")
        print("|---|---|---|---|---|---|---|---|")
    for path in paths:
        study = open_study(path)
        table, agreements = study.heads(), compare_halves(study, halvings)
        is_named = {name: ~table[part.column].isin(NAMELESS[name]) for name, part in PARTS.items()}
        if markdown:
            cells = [str(study.manifest["model"]), f"{study.texts:,}", str(len(table))]
            for name in PARTS:
                cells += [str(is_named[name].sum()), _format_shares(agreements[name].kept)]
            print(f"| {' | '.join([*cells, str((is_named['attends'] | is_named['writes']).sum())])} |")
            continue
        print(f"{study}")
        for name, part in PARTS.items():
            agreement = agreements[name]
            counts = ", ".join(f"{kind} {heads}" for kind, heads in count_heads(table, name).items() if heads)
            changes = ", ".join(
                f"{' / '.join(pair)} {count / halvings:.1f}" for pair, count in agreement.changes.most_common(5)
            )
            print(f"  {part.label}: {counts}")
            print(
                f"    {is_named[name].sum()} of {len(table)} named; {_format_shares(agreement.kept)} keep the name on"
            )
            print(f"    the other half, which fits there for {_format_shares(agreement.fits)};")
            print(f"    {_format_shares(agreement.same)} of all heads agree; most often exchanged: {changes}")


def _format_shares(shares: list[float]) -> str:
    return f"{np.mean(shares) * 100:.1f} ± {np.std(shares) * 100:.1f} %"


# -- induction ---------------------------------------------------------------------------------------------------------


class InductionScores:
    """Sum the attention to the token after the earlier occurrence, in the repeated half of random sequences."""

    def __init__(self, first: int) -> None:
        self.first = first
        """number of tokens before the random ones"""
        self.layers: dict[int, list[Floats]] = {}

    def __call__(self, layer: int, output: Any, attention: Any) -> None:
        queries = np.arange(self.first + HALF, self.first + 2 * HALF)
        maps = attention[:, :, queries, queries - HALF + 1].float().cpu().numpy()
        self.layers.setdefault(layer, []).append(maps.mean(axis=(0, 2)))

    def average(self) -> Floats:
        return np.array([np.mean(self.layers[layer], axis=0) for layer in sorted(self.layers)])


def measure_induction(folder: str) -> Floats:
    """Return for each head the mean attention to the token after the earlier occurrence (layer, head)."""
    model = headscope.load(folder)
    special = model.tokens.encode("", 8, all_windows=False, offsets=False)
    first = [int(k) for k in special[0].ids[:1]] if special and len(special[0].ids) else []
    vocabulary = int(model.network.config.vocab_size)
    random = np.random.default_rng(0)
    scores = InductionScores(len(first))
    for _ in range(SEQUENCES):
        half = random.integers(vocabulary // 100, vocabulary, HALF)
        window = Window.plain(np.array([*first, *half, *half], dtype=np.int64))
        model.observe(Batch.of([window]), scores)
    return scores.average()


def report_induction(path: str, folder: str) -> None:
    study = open_study(path)
    table = study.heads()
    scores = measure_induction(folder)[table["layer"], table["head_number"]]
    is_standard = scores >= MIN_INDUCTION
    is_first = (table["attends_type"] == "induction").to_numpy()
    is_named = is_first | table["attends_also"].map(lambda names: "induction" in names).to_numpy()
    print(f"{study}")
    print(f"  repeated random tokens: {is_standard.sum()} of {len(table)} heads with at least {MIN_INDUCTION:.0%}")
    print(f"  real text: {is_named.sum()} heads attend to what followed, {is_first.sum()} of them first of all")
    print(f"  in both: {(is_standard & is_named).sum()}, in neither: {(~is_standard & ~is_named).sum()}")
    rank = spearmanr(scores, table["attends_induction"]).statistic
    print(f"  correlation of the two scores over heads: {np.corrcoef(scores, table['attends_induction'])[0, 1]:.2f}")
    print(f"  rank correlation: {rank:.2f}")
    chosen = table.assign(random_tokens=scores)[is_standard | is_named].sort_values("random_tokens", ascending=False)
    for row in chosen.itertuples():
        also = f"; also {', '.join(row.attends_also)}" if row.attends_also else ""
        print(
            f"  {row.head:8} random tokens {row.random_tokens:5.1%}, text {row.attends_induction:5.1%} "
            f"(uniform {row.attends_induction_chance:.1%}): {row.attends_type}{also}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    halves = commands.add_parser("halves")
    halves.add_argument("studies", nargs="+")
    halves.add_argument("--halvings", type=int, default=20)
    halves.add_argument("--markdown", action="store_true")
    induction = commands.add_parser("induction")
    induction.add_argument("study")
    induction.add_argument("--model", required=True)
    options = parser.parse_args()
    if options.command == "halves":
        report_halves(options.studies, options.halvings, markdown=options.markdown)
    else:
        report_induction(options.study, options.model)


if __name__ == "__main__":
    main()
