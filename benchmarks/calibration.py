"""Are standard errors and p-values right? Jackknife errors against resampled documents, and false alarms of `compare`.

    python benchmarks/calibration.py [--model NAME …] [--texts FILE] [--documents 300] [--draws 400] [--json FILE]
    python benchmarks/calibration.py --docs benchmarks/results/calibration.json

The model reads every document once; all else is resampling of its sums. The documents read are taken for all there are:

errors      documents are drawn with replacement and assigned to 20 blocks at random, as digests do; the jackknife error
            of every rate of every head is held against the spread of that rate over all draws, and its 95 % interval
            (Student's t, degrees of freedom as in `headscope compare`) against the rate of all documents
compare     documents are split into two random halves, which `headscope compare` holds against each other head by head;
            and, paired, two heads of a layer, which of them is the baseline being drawn anew for every document. No
            head differs, so that 5 % of all tests should have p ≤ 0.05, and 5 % of all families any p ≤ 0.05 after
            Holm's correction

outliers    why intervals of some rates hold the truth less often: their coverage in draws with and without the most
            influential document, and where that document, or the two most influential ones, do not exist at all; and
            on a logarithmic scale with degrees of freedom from the blocks' kurtosis

for blocks of documents, and for blocks of windows (`--blocks windows`), which are too small where `--windows all` takes
many windows of a document. `--docs` writes the tables of docs/errors.md.
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import headscope
from headscope.array_types import Floats, Ints
from headscope.comparison.differences import compute_degrees_of_freedom, compute_differences
from headscope.comparison.measures import MEASURES, RateSums, divide
from headscope.corpus.windows import BLOCKS, Batch, Window, WindowSpec
from headscope.studies.labels import label_sums
from headscope.studies.rates import compute_jackknife_error
from headscope.studies.result import Study
from headscope.studies.significance import compute_p_value
from headscope.tally.backends import choose_kernel
from headscope.tally.quantities import Shape
from headscope.tally.tally import TallySettings
from measuring.calibration_tables import SECTIONS, tabulate_alarms, tabulate_errors, tabulate_outliers
from measuring.tables import DOCS, machine, read_all, save, write_page

ENGLISH = Path(__file__).parent.parent.parent / "shared" / "data" / "english.jsonl.gz"
MODES, UNITS = ("first", "all"), ("documents", "windows")
SIZES = (60, None)
"""Numbers of documents that are drawn; None: as many as there are."""
ALPHA = 0.05


@dataclass(frozen=True)
class WindowSums:
    """Sums of one rate, window by window: numerators and denominators (window, layer, head)."""

    numerators: Floats
    denominators: Floats
    documents: Ints
    """(window,): number of the document of each window"""

    def sum_documents(self) -> WindowSums:
        """Return the sums of documents, as if each were one window."""
        count = self.documents.max() + 1
        sums = [np.zeros((count, *self.numerators.shape[1:])) for _ in range(2)]
        for total, values in zip(sums, (self.numerators, self.denominators), strict=True):
            np.add.at(total, self.documents, values)
        return WindowSums(*sums, np.arange(count))

    def sum_blocks(self, units: Ints, blocks: Ints) -> RateSums:
        """Return the sums of blocks that hold any of these windows, or documents; these may repeat."""
        weights = np.zeros((BLOCKS, len(self.documents)))
        np.add.at(weights, (blocks, units), 1.0)
        weights = weights[weights.any(axis=1)]
        numerators, denominators = (
            np.tensordot(weights, values, axes=1) for values in (self.numerators, self.denominators)
        )
        nothing = np.zeros((len(weights), 1, 1))
        return RateSums(numerators, denominators, nothing, nothing)


def count_windows(name: str, texts: Sequence[headscope.Document], mode: str) -> dict[str, WindowSums]:
    """Return the sums of every rate window by window. Each window of a batch gets a block of its own."""
    model, cut = headscope.load(name), WindowSpec(windows=mode)  # type: ignore[arg-type]
    windows, documents = list[Window](), list[int]()
    for number, document in enumerate(texts):
        cut_windows = model.windows(document, cut)
        if not isinstance(cut_windows, str):
            windows += cut_windows
            documents += [number] * len(cut_windows)
    parts: dict[str, list[RateSums]] = {rate: [] for rate in MEASURES}
    for first in range(0, len(windows), BLOCKS):
        batch = [replace(window, document=block) for block, window in enumerate(windows[first : first + BLOCKS])]
        study = count_batch(model, batch, cut.length)
        for rate, measure in MEASURES.items():
            parts[rate].append(measure.compute_sums(study))
    numbers = np.unique(documents, return_inverse=True)[1]
    return {
        rate: WindowSums(
            np.concatenate([part.numerators for part in sums]), np.concatenate([part.denominators for part in sums]),
            numbers,
        )
        for rate, sums in parts.items()
    }  # fmt: skip


def count_batch(model: Any, windows: list[Window], length: int) -> Study:
    """Return the study of a batch."""
    architecture = model.architecture
    shape = Shape(architecture.layers, architecture.heads, length, maps=False)
    counting = TallySettings(shape, 0.3, 0.3, 0.0, architecture.causal, architecture.numbers)
    tallier = choose_kernel("auto", counting, model.device).make()
    batch = Batch.of(windows, model.tokens.pad_id)
    tallier.begin(batch)
    with torch.inference_mode():
        model.observe(batch, tallier.observe_layer, getattr(tallier, "attend", None))
    tallier.end()
    data = label_sums(tallier.get_sums(), lambda ids: [str(k) for k in ids], architecture.numbers, model.modality)
    return Study(data.assign_attrs(causal=int(architecture.causal), stack=architecture.stack))


# -- standard errors --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Population:
    """The sums of one rate, and which windows are of which document."""

    windows: WindowSums
    documents: WindowSums
    windows_by_document: list[Ints]

    @classmethod
    def create(cls, windows: WindowSums) -> Population:
        by_document = [np.flatnonzero(windows.documents == k) for k in range(windows.documents.max() + 1)]
        return cls(windows, windows.sum_documents(), by_document)

    def compute_rates(self) -> Floats:
        """Return the rates over all documents."""
        return divide(self.documents.numerators.sum(axis=0), self.documents.denominators.sum(axis=0))

    def compute_influence(self) -> Floats:
        """Return the share of the rate's variance that comes from each document: (document, layer, head)."""
        squares = (self.documents.numerators - self.compute_rates() * self.documents.denominators) ** 2
        return divide(squares, np.broadcast_to(squares.sum(axis=0), squares.shape))

    def measure_largest_document(self) -> float:
        """Return the share of the rate's variance that comes from one document, in the median head."""
        return float(np.nanmedian(self.compute_influence().max(axis=0)))

    def find_largest_document(self) -> int:
        """Return the document with the largest influence in the median head."""
        return int(np.nanmedian(self.compute_influence(), axis=(1, 2)).argmax())

    def drop_largest_document(self) -> Population:
        """Return the population without that document."""
        is_kept = self.windows.documents != self.find_largest_document()
        numbers = np.unique(self.windows.documents[is_kept], return_inverse=True)[1]
        return self.create(WindowSums(self.windows.numerators[is_kept], self.windows.denominators[is_kept], numbers))

    def sum_blocks(self, drawn: Ints, unit: str, random: np.random.Generator) -> RateSums:
        """Return the sums of these documents, in blocks of documents or of windows that are drawn at random."""
        if unit == "documents":
            return self.documents.sum_blocks(drawn, random.integers(0, BLOCKS, len(drawn)))
        windows = np.concatenate([self.windows_by_document[k] for k in drawn])
        return self.windows.sum_blocks(windows, random.integers(0, BLOCKS, len(windows)))


@dataclass(frozen=True)
class Draws:
    """Rates of corpora that were drawn, and whether intervals hold the truth; each (draw, layer, head)."""

    deviations: Floats
    errors: Floats
    is_covered: Any
    is_covered_by_logarithm: Any
    documents: Ints
    """(draw, document): how often each was drawn"""
    is_known: Any
    """(layer, head): whether every draw has an error"""

    def measure_coverage(self, draws: Any = slice(None)) -> float:
        """Return how often the intervals of some draws hold the truth."""
        return float(self.is_covered[draws][:, self.is_known].mean())


def draw_corpora(population: Population, unit: str, size: int | None, draws: int, random: np.random.Generator) -> Draws:
    """Draw documents with replacement, and compute rates, errors and intervals of each corpus."""
    truth, documents = population.compute_rates(), len(population.windows_by_document)
    columns: dict[str, list[Any]] = {name: [] for name in ("deviations", "errors", "covered", "by_logarithm", "counts")}
    for _ in range(draws):
        drawn = random.integers(0, documents, size or documents)
        sums = population.sum_blocks(drawn, unit, random)
        others, rates = sums.jackknife_rates(), sums.compute_rates()
        error, deviation = compute_jackknife_error(others), np.abs(rates - truth)
        degrees = compute_degrees_of_freedom(sums, sums, paired=True)
        with np.errstate(divide="ignore", invalid="ignore"):
            few_degrees = np.fmax(np.fmin(degrees, compute_degrees_from_kurtosis(others)), 1)
            log_error, log_deviation = compute_jackknife_error(np.log(others)), np.abs(np.log(rates) - np.log(truth))
            by_logarithm = log_deviation <= compute_critical_t(few_degrees) * log_error
        columns["deviations"].append(deviation)
        columns["errors"].append(error)
        columns["covered"].append(deviation <= compute_critical_t(degrees) * error)
        columns["by_logarithm"].append(by_logarithm)
        columns["counts"].append(np.bincount(drawn, minlength=documents))
    deviations, errors, covered, by_logarithm, counts = (np.array(column) for column in columns.values())
    is_known = np.isfinite(errors).all(axis=0) & (deviations**2).any(axis=0)
    return Draws(deviations, errors, covered, by_logarithm, counts, is_known)


def compute_degrees_from_kurtosis(others: Floats) -> Floats:
    """Return the degrees of freedom of a variance whose blocks have heavy tails: 2 σ⁴ / Var(s²), by their kurtosis."""
    blocks = len(others)
    squares = (others - others.mean(axis=0)) ** 2
    kurtosis = blocks * (squares**2).sum(axis=0) / squares.sum(axis=0) ** 2 - 3
    return np.asarray(2 / (2 / (blocks - 1) + np.fmax(kurtosis, 0) / blocks))


def measure_errors(
    populations: dict[str, Population], unit: str, size: int | None, draws: int
) -> dict[str, dict[str, float]]:
    """Return for every rate the jackknife errors over the true ones, and how often intervals hold the truth."""
    results = {}
    for rate, population in populations.items():
        random = np.random.default_rng(zlib.crc32(f"{rate} {unit} {size}".encode()))
        corpora = draw_corpora(population, unit, size, draws, random)
        true_errors = np.sqrt((corpora.deviations**2).mean(axis=0))
        covered = corpora.is_covered.mean(axis=0)[corpora.is_known]
        ratios = (corpora.errors.mean(axis=0) / np.where(corpora.is_known, true_errors, np.nan))[corpora.is_known]
        results[rate] = {
            "heads": int(corpora.is_known.sum()),
            "ratio": float(np.median(ratios)),
            "coverage": float(covered.mean()),
            "lowest_coverage": float(np.quantile(covered, 0.1)),
            "largest_document": population.measure_largest_document(),
        }
    return results


def measure_outliers(populations: dict[str, Population], unit: str, draws: int) -> dict[str, dict[str, float]]:
    """Return for every rate how coverage depends on the documents that influence it most."""
    results = {}
    for rate, population in populations.items():
        random = np.random.default_rng(zlib.crc32(f"{rate} {unit} outliers".encode()))
        corpora = draw_corpora(population, unit, None, draws, random)
        is_drawn = corpora.documents[:, population.find_largest_document()] > 0
        without_one = population.drop_largest_document()
        results[rate] = {
            "coverage": corpora.measure_coverage(),
            "drawn": corpora.measure_coverage(is_drawn),
            "not_drawn": corpora.measure_coverage(~is_drawn),
            "logarithm": float(corpora.is_covered_by_logarithm[:, corpora.is_known].mean()),
            "without_one": draw_corpora(without_one, unit, None, draws, random).measure_coverage(),
            "without_two": draw_corpora(
                without_one.drop_largest_document(), unit, None, draws, random
            ).measure_coverage(),
        }
    return results


_DEGREES = np.linspace(1, BLOCKS - 1, 91)


def _find_critical_t(degrees: float) -> float:
    low, high = 0.0, 20.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if compute_p_value(middle, degrees) > ALPHA else (low, middle)
    return low


_CRITICAL = np.array([_find_critical_t(degrees) for degrees in _DEGREES])


def compute_critical_t(degrees: Floats) -> Floats:
    """Return the half width of a 95 % interval in standard errors."""
    return np.interp(degrees, _DEGREES, _CRITICAL)


# -- comparisons ------------------------------------------------------------------------------------------------------


def measure_false_alarms(populations: dict[str, Population], unit: str, splits: int) -> dict[str, dict[str, float]]:
    """Return how often two random halves of the documents are called different: of all tests, and of all families."""
    results = {}
    for rate, population in populations.items():
        random = np.random.default_rng(zlib.crc32(f"{rate} {unit} halves".encode()))
        tests, families = [], []
        for _ in range(splits):
            halves = np.array_split(random.permutation(len(population.windows_by_document)), 2)
            sums = [population.sum_blocks(np.sort(half), unit, random) for half in halves]
            _add_alarms(compute_differences(*sums, paired=False), tests, families)
        results[rate] = {"tests": float(np.mean(tests)), "families": float(np.mean(families))}
    return results


def measure_paired_false_alarms(
    populations: dict[str, Population], unit: str, splits: int
) -> dict[str, dict[str, float]]:
    """Return the same for pairs of heads, of which the baseline is drawn anew for every document."""
    results = {}
    for rate, population in populations.items():
        random = np.random.default_rng(zlib.crc32(f"{rate} {unit} paired".encode()))
        windows, count = population.windows, len(population.windows_by_document)
        tests, families = [], []
        for _ in range(splits):
            swapped = random.integers(0, 2, count).astype(bool)[windows.documents]
            units = windows.documents if unit == "documents" else np.arange(len(windows.documents))
            blocks = random.integers(0, BLOCKS, units.max() + 1)[units]
            pair = [
                replace(
                    windows,
                    numerators=_swap_heads(windows.numerators, swapped == turned),
                    denominators=_swap_heads(windows.denominators, swapped == turned),
                ).sum_blocks(np.arange(len(units)), blocks)
                for turned in (False, True)
            ]
            _add_alarms(compute_differences(*pair, paired=True), tests, families)
        results[rate] = {"tests": float(np.mean(tests)), "families": float(np.mean(families))}
    return results


def _swap_heads(values: Floats, second: Any) -> Floats:
    """Return the sums of every first head of a pair; of the second one in some windows."""
    pairs = values[:, :, : values.shape[2] // 2 * 2]
    return np.where(second[:, None, None], pairs[:, :, 1::2], pairs[:, :, ::2])


def _add_alarms(tested: Any, tests: list[float], families: list[float]) -> None:
    known = np.isfinite(tested.p)
    if known.any():
        tests.append(float((tested.p[known] <= ALPHA).mean()))
        families.append(float((tested.p_corrected[known] <= ALPHA).any()))


# -- the whole --------------------------------------------------------------------------------------------------------


def calibrate(name: str, populations: dict[str, dict[str, Population]], draws: int) -> list[dict[str, Any]]:
    """Return a row for every way of taking windows and drawing blocks, and everything that is measured."""
    rows = []
    for mode, by_rate in populations.items():
        population = next(iter(by_rate.values()))
        for unit in UNITS if mode == "all" else UNITS[:1]:
            texts, documents = len(population.windows.documents), len(population.windows_by_document)
            common = {"model": name, "windows": mode, "blocks": unit, "texts": texts, "documents": documents}
            for size in SIZES:
                rates = measure_errors(by_rate, unit, size, draws)
                rows.append({**common, "measured": "errors", "drawn": size, "rates": rates})
            if unit == "documents":
                rows.append({**common, "measured": "outliers", "rates": measure_outliers(by_rate, unit, draws)})
            rows.append({**common, "measured": "halves", "rates": measure_false_alarms(by_rate, unit, draws)})
            rows.append({**common, "measured": "paired", "rates": measure_paired_false_alarms(by_rate, unit, draws)})
    return rows


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", metavar="NAME", help="may be given again; default: minilm")
    parser.add_argument("--texts", metavar="FILE", help="default: 2,161 English documents where present, else bundled")
    parser.add_argument("--documents", type=int, default=300, help="how many, evenly over all")
    parser.add_argument("--draws", type=int, default=400)
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the result there")
    parser.add_argument("--docs", nargs="+", type=Path, metavar="FILE", help="write the tables of docs/errors.md")
    options = parser.parse_args(arguments)
    if options.docs:
        write_page(DOCS / "errors.md", SECTIONS, read_all(options.docs))
        return
    source = options.texts or (str(ENGLISH) if ENGLISH.exists() else None)
    texts = list(headscope.documents(source) if source else headscope.documents())
    texts = texts[:: max(1, len(texts) // options.documents)][: options.documents]
    rows = []
    for name in options.model or ["minilm"]:
        populations = {
            mode: {rate: Population.create(sums) for rate, sums in count_windows(name, texts, mode).items()}
            for mode in MODES
        }
        rows += calibrate(name, populations, options.draws)
    result = {
        "kind": "calibration",
        "machine": machine("cpu"),
        "source": Path(source).name if source else "the bundled texts",
        "draws": options.draws,
        "rows": rows,
    }
    print(tabulate_errors(result), tabulate_outliers(result), tabulate_alarms(result), sep="\n\n")
    if options.json:
        save(result, options.json)


if __name__ == "__main__":
    main()
