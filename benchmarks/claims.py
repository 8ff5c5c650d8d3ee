"""The paper's claims for null models, a planted model and real texts: the tables of docs/findings.md.

    python benchmarks/claims.py TEXTS --out FOLDER [--limit 300] [--model minilm] [--theta]

Without `--theta`: one table of all claims × models (number, error, null, verdict) for

    real      the model on the texts
    shuffled  the model on the texts with their words in random order
    weights   a model of the same configuration with random weights
    outputs   even attention and random outputs (tests/helpers/planted_claims.py)
    planted   a synthetic model built as the paper says, over the same synthetic texts

With `--theta`: the verdicts of the model on the texts for θ = 0.2, 0.3, 0.4 and 0.5. Studies that are in FOLDER already
are not made again.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModel

import headscope
from headscope.comparison.claims import SHORT_CLAIMS, VERDICT_SIGNS
from headscope.studies.findings import Finding, findings
from headscope.studies.result import Study

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.helpers.planted_claims import make_claim_study, make_null_study

THETAS = (0.2, 0.3, 0.4, 0.5)


def shuffle_words(text: str) -> str:
    """Return the text with its words in an order that depends on the text alone."""
    seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
    words = text.split()
    return " ".join(words[k] for k in np.random.default_rng(seed).permutation(len(words)))


def make_random_weights(model: headscope.Model) -> headscope.Model:
    """Return a model of the same configuration, with the weights that training would begin with."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        fresh = AutoModel.from_config(model.network.config).eval()
    return headscope.load(fresh, model.tokens.tokenizer)


def open_or_make(path: Path, make: Callable[[], Study]) -> Study:
    if not path.is_file():
        print(f"studying: {path.stem} …", file=sys.stderr, flush=True)
        make().save(path)
    return headscope.open_study(path)


def format_cell(finding: Finding) -> str:
    null = "" if finding.null is None else f" (null {finding.null_text})"
    number = "" if finding.value is None else f" {finding.number_text}{null}"
    return f"{VERDICT_SIGNS[finding.verdict]}{number}"


def print_table(columns: dict[str, list[Finding]], format_finding: Callable[[Finding], str]) -> None:
    print("| | " + " | ".join(columns) + " |\n|---|" + "---|" * len(columns))
    for row in zip(*columns.values(), strict=True):
        cells = [format_finding(finding).replace("|o|", "ǀoǀ") for finding in row]
        print(f"| {row[0].number}. {SHORT_CLAIMS[row[0].number]} | " + " | ".join(cells) + " |")
    print("\n" + ", ".join(f"{sign} {verdict}" for verdict, sign in VERDICT_SIGNS.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", help="texts, as `headscope study` takes them")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=300)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--theta", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    model = headscope.load(options.model)
    texts = [document.text for document in headscope.documents(options.texts, limit=options.limit)]

    def study(theta: float = 0.3) -> Study:
        path = options.out / f"real-{theta}.nc"
        return open_or_make(path, lambda: headscope.study(model, texts, theta=theta, maps=False, sample=1.0))

    if options.theta:
        print_table({f"θ = {theta}": findings(study(theta)) for theta in THETAS}, format_cell)
        return
    shuffled = [shuffle_words(text) for text in texts]
    settings = {"maps": False, "sample": 1.0}
    makers: dict[str, Callable[[], Study]] = {
        "shuffled": lambda: headscope.study(model, shuffled, **settings),
        "weights": lambda: headscope.study(make_random_weights(model), texts, **settings),
    }
    studies = {"real": study()} | {
        name: open_or_make(options.out / f"{name}.nc", make) for name, make in makers.items()
    }
    studies |= {"outputs": make_null_study(), "planted": make_claim_study()}
    print_table({name: findings(result) for name, result in studies.items()}, format_cell)


if __name__ == "__main__":
    main()
