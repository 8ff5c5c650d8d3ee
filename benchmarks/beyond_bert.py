"""The paper's claims on several real models: the studies, their comparison, and the numbers of docs/beyond-bert.md.

    python benchmarks/beyond_bert.py --models FOLDER --texts FILE --out FOLDER [--documents N] [--docs]

FOLDER holds one folder per model (bert, minilm, mpnet, smollm2; see `--names`). Studies that are there already are not
made again. `--documents` takes so many, evenly over the file, and `--sample` that share of them for the costly
quantities. `--docs` writes the tables and figures of the page anew, between its marks; its words are people's.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import headscope
from headscope.comparison.claims import VERDICT_SIGNS
from headscope.comparison.result import Comparison
from headscope.figures.comparison import draw_heads_by_type, draw_rates_over_depth
from headscope.studies.head_types import PARTS
from headscope.studies.sample_size import TOO_FEW_TEXTS

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "beyond-bert.md"
DEPTH_ROWS = (
    ("same_sentence_rate", "same-sentence rate, largest", (" pp", 1), 100),
    ("repeat_rate", "repeat rate, largest", (" pp", 1), 100),
    ("dominant_share", "dominant share, largest", (" pp", 1), 100),
    ("mean_distance", "mean distance, smallest", ("×", 2), 1),
)
"""rate, what the table calls it, unit and digits, and factor"""


def select_evenly(documents: list[headscope.Document], count: int) -> list[headscope.Document]:
    """Return so many documents: the kinds of texts lie in the file one after the other."""
    return [documents[k * len(documents) // count] for k in range(min(count, len(documents)))]


def studied(name: str, options: argparse.Namespace) -> headscope.Study:
    folder = options.out / name
    if (folder / "study.nc").is_file():
        return headscope.open_study(folder)
    folder.mkdir(parents=True, exist_ok=True)
    model, documents = headscope.load(options.models / name), headscope.documents(str(options.texts))
    chosen = select_evenly(list(documents), options.documents) if options.documents else documents
    print(f"{name}: studying {options.texts.name} …", flush=True)
    study = headscope.study(model, chosen, sample=options.sample)
    study.save(folder)
    return study


def models_table(made: Comparison) -> str:
    lines = ["| model | layers × heads | kind | captured by | windows | first token |", "|---|---|---|---|---|---|"]
    for name, study in zip(made.names, made.studies, strict=True):
        about = study.manifest
        kind = "decoder" if about["causal"] else "encoder"
        first = f"`{about['first_special_token']}`" if about["first_special_token"] else "no special one"
        shape = f"{len(study.layers)} × {len(study.head_numbers)}"
        lines.append(f"| {name} | {shape} | {kind} | {about['route']} | {study.texts:,} | {first} |")
    return "\n".join(lines)


def findings_table(made: Comparison) -> str:
    lines = ["| | the paper's claim of BERT-12 | " + " | ".join(made.names) + " |"]
    lines.append("|---|---|" + "---|" * len(made.names))
    for number in range(len(next(iter(made.findings_by_model.values())))):
        row = [made.findings_by_model[name][number] for name in made.names]
        cells = [
            f"{VERDICT_SIGNS[each.verdict]} {each.number_text}".removesuffix(" –").replace("|", "ǀ") for each in row
        ]
        lines.append(f"| {row[0].number} | {row[0].title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def measured_list(made: Comparison) -> str:
    """What each verdict rests on, in full."""
    parts = []
    for number in range(len(next(iter(made.findings_by_model.values())))):
        row = {name: made.findings_by_model[name][number] for name in made.names}
        first = next(iter(row.values()))
        parts.append(f"**{first.number}. {first.title}** (consistent if: {first.criterion})\n")
        parts += [f"- {name}: {each.explanation}" for name, each in row.items()]
        parts.append("")
    return "\n".join(parts).rstrip()


def count_verdicts(made: Comparison) -> str:
    """How many claims have which verdict."""
    lines = ["| model | " + " | ".join(f"{sign} {verdict}" for verdict, sign in VERDICT_SIGNS.items()) + " |"]
    lines.append("|---|" + "---|" * len(VERDICT_SIGNS))
    for name in made.names:
        verdicts = [finding.verdict for finding in made.findings_by_model[name]]
        lines.append(f"| {name} | " + " | ".join(str(verdicts.count(verdict)) for verdict in VERDICT_SIGNS) + " |")
    return "\n".join(lines)


def depth_table(made: Comparison) -> str:
    """Where each rate is most unlike chance, and what is left of it in the last layer."""
    lines = ["| rate, against chance | " + " | ".join(made.names) + " |", "|---|" + "---|" * len(made.names)]
    for rate, words, unit, factor in DEPTH_ROWS:
        cells = []
        for name in made.names:
            rows = made.depth[(made.depth["model"] == name) & (made.depth["rate"] == rate)].sort_values("depth")
            against = rows["against_chance"].to_numpy() * factor
            peak = int(against.argmin() if rate == "mean_distance" else against.argmax())
            signed = "" if rate == "mean_distance" else "+"
            depth, last = rows["depth"].iloc[peak], against[-1]
            cells.append(
                f"{against[peak]:{signed}.{unit[1]}f}{unit[0]} at {depth:.2f}; last {last:{signed}.{unit[1]}f}{unit[0]}"
            )
        lines.append(f"| {words} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def head_types_table(made: Comparison) -> str:
    """How many heads of each model have outputs of each type."""
    counts = made.head_types[made.head_types["part"] == "writes"]
    table = counts.pivot(index="model", columns="type", values="heads").loc[made.names]
    kinds = [name for name in PARTS["writes"].names if name != TOO_FEW_TEXTS or table[name].any()]
    lines = ["| model | " + " | ".join(kinds) + " |", "|---|" + "---|" * len(kinds)]
    lines += [f"| {name} | " + " | ".join(str(table.loc[name, kind]) for kind in kinds) + " |" for name in made.names]
    return "\n".join(lines)


SECTIONS = {
    "models": models_table,
    "findings": findings_table,
    "verdicts": count_verdicts,
    "depth": depth_table,
    "head types": head_types_table,
    "measured": measured_list,
}


def write_page(made: Comparison) -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name, section in SECTIONS.items():
        begin, end = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
        before, rest = page.split(begin)
        page = before + begin + section(made) + end + rest.split(end, 1)[1]
    PAGE.write_text(page, encoding="utf-8")
    for stem, draw in (("beyond-depth", draw_rates_over_depth), ("beyond-head-types", draw_heads_by_type)):
        draw(made).savefig(DOCS / "images" / f"{stem}.png", dpi=220)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--names", default="bert,minilm,mpnet,smollm2")
    parser.add_argument("--documents", type=int, metavar="N", help="default: all")
    parser.add_argument("--sample", type=float, default=0.2, help="share of the texts for the costly quantities")
    parser.add_argument("--docs", action="store_true")
    options = parser.parse_args()
    names = options.names.split(",")
    made = headscope.compare([studied(name, options) for name in names], names)
    made.save(options.out / "compare")
    if options.docs:
        write_page(made)
    print(findings_table(made), head_types_table(made), f"\n{options.out / 'compare'}", sep="\n\n")


if __name__ == "__main__":
    main()
