"""Which signal-to-noise ratio says what it should? Planted signals of known strength, and real models.

    python benchmarks/noise.py [--model NAME …] [--texts FILE] [--windows 400] [--json FILE]
    python benchmarks/noise.py --docs benchmarks/results/noise.json

Planted: heads that write a signal shared by a sentence's tokens, by equal tokens, by both or by neighbours, and noise
around it, over the windows of real texts; the ratio of their powers is known. Real: the ratios of every head of each
model, their errors with fewer and fewer texts, and how the definitions agree over heads (rank correlations).

`--docs` writes the tables of docs/noise.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import headscope
from headscope.corpus.windows import BLOCKS, Batch, Window, WindowSpec
from headscope.studies import signal_to_noise
from headscope.studies.labels import label_sums
from headscope.studies.result import Study
from headscope.tally.quantities import Shape
from headscope.tally.tally import TallySettings
from headscope.tally.torch_backend import TorchTallier
from measuring.noise_tables import SECTIONS, planted_table
from measuring.planting import SIGNALS, lines_at_ends, planted, stacked
from measuring.tables import DOCS, machine, read_all, save, write_page
from pruning import correlation

RATIOS = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0)
PLANTED = {"plain": {}, "common part": {"offset": 1.0}, "lengths vary": {"tail": 0.7}}
"""what is done to outputs: nothing; the same added to all, as long as the noise; lengths spread by 0.7 in logarithm"""


def windows_of(count: int) -> list[Window]:
    cut, model = WindowSpec(windows="all", min_tokens=60), headscope.load()
    made = (model.windows(document, cut) for document in headscope.documents())
    return [window for each in made if not isinstance(each, str) for window in each][:count]


def planted_study(windows: Sequence[Window], signal: str, how: dict[str, float], seed: int = 0) -> Study:
    """A head for each ratio."""
    random = np.random.default_rng(seed)
    outputs = stacked([[planted(each, signal, ratio, random, **how) for ratio in RATIOS] for each in windows])
    counting = TallySettings(Shape(1, len(RATIOS), outputs.shape[1], maps=False), 0.3, 0.3, 1.0)
    tallier = TorchTallier(counting)
    tallier.begin(Batch.of(windows))
    tallier.observe_layer(0, outputs, lines_at_ends(windows, len(RATIOS)))
    tallier.end()
    return Study(label_sums(tallier.get_sums(), lambda ids: [str(k) for k in ids]))


def recovered(windows: Sequence[Window]) -> list[dict[str, Any]]:
    """Every definition on every planted signal: decibels found, with errors."""
    found = []
    for signal in SIGNALS:
        for name, how in PLANTED.items():
            study = planted_study(windows, signal, how)
            ratios = {}
            for definition in signal_to_noise.DEFINITIONS:
                value, error = study.jackknife(lambda each, d=definition: each.signal_to_noise(d).values)
                ratios[definition] = {"dB": value[0].tolist(), "error": error[0].tolist()}
            found.append({"signal": signal, "how": name, "ratios": ratios})
    return found


def of_model(name: str, texts: str | None, count: int) -> dict[str, Any]:
    model, names = headscope.load(name), list(signal_to_noise.DEFINITIONS)
    held = list(headscope.documents(texts) if texts else headscope.documents())
    step = max(1, len(held) // count)  # all kinds of texts, which lie in the file one after the other
    chosen = held[::step][:count]
    errors = {}
    for number in (count // 4, count):
        study = headscope.study(model, chosen[:: count // number], sample=1.0)
        found = {each: study.jackknife(lambda held, d=each: held.signal_to_noise(d).values) for each in names}
        errors[study.texts] = {each: float(np.nanmedian(error)) for each, (_, error) in found.items()}
    ratios = {each: value for each, (value, _) in found.items()}
    alike = [[correlation(ratios[a], ratios[b]) for b in names] for a in names]
    shares = signal_to_noise.compute_reductions(study.data)
    return {
        "texts": study.texts,
        "by_layer": np.median(ratios[signal_to_noise.DEFAULT], axis=1).tolist(),
        "errors": errors,
        "spread": {each: float(np.nanstd(ratios[each])) for each in names},
        "alike": alike,
        "halves": {each: _halves(study, each) for each in names},
        "shares": {str(s): np.median(shares.sel(source=s).values, axis=1).tolist() for s in shares["source"].values},
    }


def _halves(study: Study, definition: str) -> float:
    """The correlation over heads between the two halves of the texts, by block."""
    held = []
    for chosen in (range(0, BLOCKS, 2), range(1, BLOCKS, 2)):
        names = [str(name).removesuffix("_blocks") for name in study.data if str(name).endswith("_blocks")]
        sums = {name: study.data[f"{name}_blocks"].isel(block=list(chosen)).sum("block").variable for name in names}
        rest = study.data[[name for name in study.data.coords if name != "distance"]]
        held.append(
            signal_to_noise.signal_to_noise(rest.assign(sums).assign_attrs(study.data.attrs), definition).values
        )
    return correlation(*held)


def main(arguments: Sequence[str] | None = None) -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--model", nargs="+", default=["minilm"])
    made.add_argument("--texts")
    made.add_argument("--windows", type=int, default=128, help="of the bundled texts, for planted signals")
    made.add_argument("--documents", type=int, default=200, help="for the models")
    made.add_argument("--json", type=Path)
    made.add_argument("--docs", type=Path, nargs="+", help="results to write docs/noise.md from")
    options = made.parse_args(arguments)
    if options.docs:
        write_page(DOCS / "noise.md", SECTIONS, read_all(options.docs))
        return
    windows = windows_of(options.windows)
    result = {
        "kind": "noise",
        "ratios": list(RATIOS),
        "definitions": list(signal_to_noise.DEFINITIONS),
        "windows": len(windows),
        "planted": recovered(windows),
        "models": {Path(name).name: of_model(name, options.texts, options.documents) for name in options.model},
        "machine": machine("cpu"),
    }
    print(planted_table(result))
    if options.json:
        save(result, options.json)


if __name__ == "__main__":
    main()
