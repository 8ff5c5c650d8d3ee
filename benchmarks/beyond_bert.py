"""The paper's claims on several real models: the studies, their comparison, and the numbers of docs/beyond-bert.md.

    python benchmarks/beyond_bert.py --models FOLDER --texts FILE --out FOLDER [--docs]

FOLDER holds one folder per model (bert, minilm, mpnet, smollm2; see `--names`). Studies that are there already are not
made again. `--docs` writes the tables and figures of the page anew, between its marks; its words are people's.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import headscope
from headscope.comparison.claims import VERDICT_SIGNS
from headscope.comparison.result import Comparison
from headscope.figures.comparison import draw_heads_by_type, draw_rates_over_depth
from headscope.studies.head_types import PARTS

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "beyond-bert.md"
SAMPLE = 0.2
"""of the texts, for the costly quantities"""


def studied(name: str, models: Path, texts: Path, out: Path) -> headscope.Study:
    folder = out / name
    if (folder / "study.nc").is_file():
        return headscope.open_study(folder)
    folder.mkdir(parents=True, exist_ok=True)
    model = headscope.load(models / name)
    print(f"{name}: studying {texts.name} …", flush=True)
    study = headscope.study(model, headscope.documents(str(texts)), sample=SAMPLE)
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
        cells = [f"{VERDICT_SIGNS[each.verdict]} {each.number_text}".removesuffix(" –") for each in row]
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


def head_types_table(made: Comparison) -> str:
    """How many heads of each model have outputs of each type."""
    counts = made.head_types[made.head_types["part"] == "writes"]
    table = counts.pivot(index="model", columns="type", values="heads").loc[made.names]
    kinds = PARTS["writes"].names
    lines = ["| model | " + " | ".join(kinds) + " |", "|---|" + "---|" * len(kinds)]
    lines += [f"| {name} | " + " | ".join(str(table.loc[name, kind]) for kind in kinds) + " |" for name in made.names]
    return "\n".join(lines)


SECTIONS = {
    "models": models_table,
    "findings": findings_table,
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
    parser.add_argument("--docs", action="store_true")
    options = parser.parse_args()
    names = options.names.split(",")
    made = headscope.compare([studied(name, options.models, options.texts, options.out) for name in names], names)
    made.save(options.out / "compare")
    if options.docs:
        write_page(made)
    print(findings_table(made), head_types_table(made), f"\n{options.out / 'compare'}", sep="\n\n")


if __name__ == "__main__":
    main()
