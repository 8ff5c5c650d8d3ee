"""The paper's claims for null models, a planted model and real texts: the tables of docs/findings.md.

    python benchmarks/claims.py TEXTS --out FOLDER [--limit 300] [--model minilm] [--theta]

Without `--theta`: one table of all claims × models (number, error, null, verdict) for

    real      the model on the texts
    shuffled  the model on the texts with their words in random order
    weights   a model of the same configuration with random weights
    outputs   even attention and random outputs
    planted   a synthetic model built as the paper says (tests/helpers/planted_claims.py)

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
from headscope.corpus.document import Document
from headscope.corpus.windows import Batch, WindowSpec
from headscope.studies.findings import Finding, findings
from headscope.studies.labels import label_sums
from headscope.studies.result import Study
from headscope.tally.quantities import Shape
from headscope.tally.tally import TallySettings
from headscope.tally.torch_backend import TorchTallier

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.helpers.planted_claims import make_claim_study

THETAS = (0.2, 0.3, 0.4, 0.5)
NULLS = ("shuffled", "weights", "outputs")
SIGNS = {"consistent": "✓", "not consistent": "✗", "undecided": "?", "too few texts": "·", "not measurable": "–"}


def shuffle_words(text: str) -> str:
    """Return the text with its words in an order that depends on the text alone."""
    seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
    words = text.split()
    return " ".join(words[k] for k in np.random.default_rng(seed).permutation(len(words)))


def study_random_outputs(model: headscope.Model, texts: list[str], real: Study) -> Study:
    """Return the study of even attention and independent normal outputs, over the windows of the real one."""
    layers, heads, length = len(real.layers), len(real.heads), int(real.data.attrs["length"])
    shape = Shape(layers, heads, length, maps=False)
    tallier, random = TorchTallier(TallySettings(shape, 0.3, 0.3, 1.0)), np.random.default_rng(0)
    for batch in make_batches(model, texts, length):
        n = batch.ids.shape[1]
        tallier.begin(batch)
        spread = torch.from_numpy(batch.real[:, None, None, :] / batch.real.sum(1)[:, None, None, None])
        for layer in range(layers):
            output = torch.from_numpy(random.standard_normal((len(batch), n, heads, 32), dtype=np.float32))
            tallier.observe_layer(layer, output, spread.expand(-1, heads, n, -1))
        tallier.end()
    data = label_sums(tallier.get_sums(), model.tokens.names)
    return Study(data.assign_attrs(real.data.attrs))


def make_batches(model: headscope.Model, texts: list[str], length: int) -> list[Batch]:
    spec = WindowSpec(length=length)
    windows = [window for text in texts for window in spec(Document(text, "text"), model.tokens)]
    return [Batch.of(windows[k : k + 16]) for k in range(0, len(windows), 16)]


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
    return f"{SIGNS[finding.verdict]}{number}"


def print_table(columns: dict[str, list[Finding]], format_finding: Callable[[Finding], str]) -> None:
    print("| | claim | " + " | ".join(columns) + " |\n|---|---|" + "---|" * len(columns))
    for row in zip(*columns.values(), strict=True):
        print(f"| {row[0].number} | {row[0].title} | " + " | ".join(map(format_finding, row)) + " |")
    print("\n" + ", ".join(f"{sign} {verdict}" for verdict, sign in SIGNS.items()))


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
        "outputs": lambda: study_random_outputs(model, texts, study()),
    }
    studies = {"real": study()} | {name: open_or_make(options.out / f"{name}.nc", makers[name]) for name in NULLS}
    print_table(
        {name: findings(made) for name, made in (studies | {"planted": make_claim_study()}).items()}, format_cell
    )


if __name__ == "__main__":
    main()
