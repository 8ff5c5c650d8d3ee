"""How stable head types are: the share of heads whose type is the same in two random halves of the texts.

python benchmarks/head_types.py STUDY … [--halvings 20]
"""

from __future__ import annotations

import argparse
from collections import Counter

import numpy as np

from headscope import Study, open_study
from headscope.array_types import Ints
from headscope.studies.head_types import count_heads
from headscope.studies.labels import add_derived_variables


def part(study: Study, blocks: Ints) -> Study:
    """The study of the texts of these blocks alone."""
    blocked = [str(name) for name in study.data if str(name).endswith("_blocks")]
    kept = {
        name: held.where(held["block"].isin(blocks), 0).astype(held.dtype)
        for name, held in ((name, study.data[name]) for name in blocked)
    }
    sums = {name.removesuffix("_blocks"): held.sum("block").variable for name, held in kept.items()}
    rest = study.data[[name for name in study.data.coords if name != "distance"]]
    held = {name: array.variable for name, array in kept.items()}
    return Study(add_derived_variables(rest.assign(sums | held).assign_attrs(study.data.attrs)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="+")
    parser.add_argument("--halvings", type=int, default=20)
    asked = parser.parse_args()
    for path in asked.studies:
        study = open_study(path)
        random = np.random.default_rng(0)  # the same halves every time
        occupied = np.flatnonzero(study.data["texts_blocks"].values)
        whole = study.heads()
        agreeing, with_whole, kept, changes = [], [], [], Counter[tuple[str, ...]]()
        for _ in range(asked.halvings):
            shuffled = random.permutation(occupied)
            middle = len(shuffled) // 2
            one, other = (part(study, blocks).heads() for blocks in (shuffled[:middle], shuffled[middle:]))
            same = one["head_type"] == other["head_type"]
            agreeing.append(same.mean())
            with_whole.append((one["head_type"] == whole["head_type"]).mean())
            either = [
                a.head_type in (b.head_type, *b.also) and b.head_type in (a.head_type, *a.also)
                for a, b in zip(one.itertuples(), other.itertuples(), strict=True)
            ]
            kept.append(np.mean(either))
            changes.update(
                tuple(sorted(pair)) for pair in zip(one["head_type"][~same], other["head_type"][~same], strict=True)
            )
        print(f"{study}")
        print("  " + ", ".join(f"{name} {number}" for name, number in count_heads(whole).items()))
        print(f"  {np.mean(agreeing):.1%} ± {np.std(agreeing):.1%} of heads agree between halves", end="; ")
        print(f"{np.mean(kept):.1%} with what else fits; {np.mean(with_whole):.1%} of a half with the whole")
        print(
            "  most often exchanged: "
            + ", ".join(f"{' / '.join(pair)} {count / asked.halvings:.1f}" for pair, count in changes.most_common(5))
        )


if __name__ == "__main__":
    main()
