"""Two chemical models with published answers: does headscope see what their authors report?

    python benchmarks/reactions.py rxnmapper --models FOLDER --reactions FILE [--limit N] [--json FILE]
    python benchmarks/reactions.py rxnfp     --models FOLDER --reactions FILE [--limit N] [--json FILE]
    python benchmarks/reactions.py docs benchmarks/results/rxnmapper.json benchmarks/results/rxnfp.json

FOLDER holds `rxnmapper`, `rxnfp-pretrained` and `rxnfp-finetuned`, each as `save_pretrained` writes it; FILE holds
reaction SMILES, one in each line's `text`. `docs` writes the tables of docs/rxnmapper.md and docs/rxnfp.md.

rxnmapper: how much attention product atoms pay to reactant atoms, how often the strongest is the atom that it was, and
the atom maps that the package publishes, computed again. rxnfp: one model before and after fine-tuning, head by head.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import headscope
from headscope.corpus.document import Document
from headscope.corpus.windows import BLOCKS, WindowSpec
from headscope.model.model import Model
from headscope.readings.reading import Reading
from headscope.studies.rates import compute_jackknife_error, leave_out_blocks
from measuring.reaction_tables import (
    RXNFP_SECTIONS,
    RXNMAPPER_SECTIONS,
    STATISTICS,
    tabulate_layers,
    tabulate_statistics,
)
from measuring.tables import DOCS, machine, read_all, save, write_page

LENGTH = 384
"""tokens of a window; the longest reaction has 356"""
SAMPLE = 0.05
"""of the texts, for costly quantities, which are not looked at here"""
SPLIT = re.compile(
    r"\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|/|:|~|@|\?|>>?|\*|\$|%[0-9]{2}|[0-9]"
)
"""the tokens of a reaction, as both packages publish them"""
LAYER, HEAD, NEIGHBOR_FACTOR = 10, 5, 90.0
"""the head that the package rxnmapper reads, and what it multiplies the neighbors of mapped atoms with"""
PUBLISHED = (
    (
        "CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F",
        (0, 1, 2, 3, 15, 14, 13, 12, 11, 10, 9),
        0.9565619900376546,
    ),
    (
        "C1COCCO1.CC(C)(C)OC(=O)CONC(=O)NCc1cccc2ccccc12.Cl>>O=C(O)CONC(=O)NCc1cccc2ccccc12",
        (12, 11, 10, *range(13, 30)),
        0.9704424331552834,
    ),
    (
        "C=CCN=C=S.CNCc1ccc(C#N)cc1.NNC(=O)c1cn2c(n1)CCCC2>>C=CCn1c(-c2cn3c(n2)CCCC3)nnc1N(C)Cc1ccc(C#N)cc1",
        (0, 1, 2, 3, 19, *range(21, 30), 18, 17, 4, 7, 6, *range(8, 17)),
        0.919023506871605,
    ),
    ("CCBr.CC[O-]~[Na+].[H-]~[Na+]>>CCOCC", (0, 1, 5, 4, 3), 0.9606074439250337),
    ("C(C)O.BrC(C)>>CCOCC", (1, 0, 2, 4, 5), 0.9754605679009868),
    ("CCOCC>>CCBr.CC[O-]~[Na+]", (0, 1, -1, 4, 3, 2, -1), 0.8353619858859898),
)
"""reaction as the model reads it, reactant atom of each product atom (-1: none) and confidence: tests of the package"""
FINGERPRINT = (
    "Nc1cccc2cnccc12.O=C(O)c1cc([N+](=O)[O-])c(Sc2c(Cl)cncc2Cl)s1>>O=C(Nc1cccc2cnccc12)c1cc([N+](=O)[O-])c(Sc2c(Cl)cncc2Cl)s1",
    (-2.0174953937530518, 1.7602033615112305, -1.3323537111282349, -1.1095019578933716, 1.2254549264907837),
)
"""reaction and the first numbers of its fingerprint, the last state of [CLS], in the README of the package rxnfp"""
CONTEXT = 4
"""tokens on each side that make the surroundings of an atom"""


class BlockSums:
    """Numerators, denominators and chance of the statistics of all heads, in blocks of documents."""

    def __init__(self) -> None:
        self.sums: dict[str, Any] = {}

    def add(self, block: int, name: str, numerators: Any, denominators: Any, chance: Any) -> None:
        """Add one text; `chance` is what the numerator would be with even attention or random pairs."""
        numerators = np.asarray(numerators, dtype=np.float64)
        shape = (BLOCKS, 3, *numerators.shape)
        sums = self.sums.setdefault(name, np.zeros(shape))
        sums[block] += np.stack(
            [numerators, *(np.broadcast_to(counts, shape[2:]) for counts in (denominators, chance))]
        )

    def summarize(self, name: str) -> dict[str, Any]:
        """Return values, jackknife errors and chance of a statistic, by layer and head."""
        sums = self.sums[name][self.sums[name][:, 1].reshape(BLOCKS, -1).any(axis=1)]
        total, remaining = sums.sum(axis=0), leave_out_blocks(sums)
        with np.errstate(invalid="ignore", divide="ignore"):
            error = compute_jackknife_error(remaining[:, 0] / remaining[:, 1])
            return {
                "value": np.round(total[0] / total[1], 6).tolist(),
                "error": np.round(error, 6).tolist(),
                "chance": np.round(total[2] / total[1], 6).tolist(),
            }


def find_element(token: str) -> str:
    """Return the element of an atom's token, aromatic or not; empty for bonds, brackets and special tokens.

    >>> [find_element(token) for token in ("c", "[nH]", "[C@@H]", "Cl", "=", "[CLS]")]
    ['C', 'N', 'C', 'Cl', '', '']
    """
    if token in ("[CLS]", "[SEP]", "[UNK]", "[PAD]", "[MASK]"):
        return ""
    match = re.match(r"\[?[0-9]*([A-Z][a-z]?|[a-z][a-z]?)", token)
    return match[1].capitalize() if match else ""


def split_atoms(tokens: Sequence[str]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the positions of the atoms of reactants and of products."""
    arrow = tokens.index(">>")
    atoms = np.array([place for place, token in enumerate(tokens) if find_element(token)])
    return atoms[atoms < arrow], atoms[atoms > arrow]


def map_elements(tokens: Sequence[str]) -> dict[int, int]:
    """Return product atoms whose element occurs once on each side, with the only reactant atom they can have been."""
    sides = [{position: find_element(tokens[position]) for position in atoms.tolist()} for atoms in split_atoms(tokens)]
    counts = [Counter(elements.values()) for elements in sides]
    places = {element: position for position, element in sides[0].items()}
    return {
        position: places[element]
        for position, element in sides[1].items()
        if counts[0][element] == counts[1][element] == 1
    }


def map_contexts(tokens: Sequence[str]) -> dict[int, int]:
    """Return product atoms whose token with its neighbors occurs once on each side, with that reactant atom."""
    arrow = tokens.index(">>")
    sides: list[dict[tuple[str, ...], list[int]]] = []
    for atoms, start, end in zip(split_atoms(tokens), (1, arrow + 1), (arrow, len(tokens) - 1), strict=True):
        contexts: dict[tuple[str, ...], list[int]] = {}
        for position in atoms.tolist():
            if start <= position - CONTEXT and position + CONTEXT < end:
                contexts.setdefault(tuple(tokens[position - CONTEXT : position + CONTEXT + 1]), []).append(position)
        sides.append(contexts)
    reactants, products = sides
    return {
        places[0]: reactants[context][0]
        for context, places in products.items()
        if len(places) == len(reactants.get(context, ())) == 1
    }


def find_bonds(tokens: Sequence[str]) -> np.ndarray[Any, Any]:
    """Return which tokens are atoms bonded to each other, as a boolean matrix over tokens."""
    bonds = np.zeros((len(tokens), len(tokens)), dtype=bool)
    previous, branches, rings = -1, [], {}
    for position, token in enumerate(tokens):
        partner = -1
        if find_element(token):
            partner, previous = previous, position
            if partner >= 0:
                bonds[partner, position] = bonds[position, partner] = True
        elif token == "(":
            branches.append(previous)
        elif token == ")":
            previous = branches.pop()
        elif token in (".", "~", ">>"):
            previous = -1
        elif token.lstrip("%").isdigit():
            if token in rings:
                partner = rings.pop(token)
                bonds[partner, previous] = bonds[previous, partner] = True
            else:
                rings[token] = previous
    return bonds


def map_reaction(attention: np.ndarray[Any, Any], tokens: Sequence[str]) -> tuple[list[int], float]:
    """Return the reactant atom (numbered from 0) of each product atom, or -1, and the confidence, as rxnmapper does.

    Attention in both directions is added, elements must agree, and the surest pair is mapped first; its neighbors then
    count `NEIGHBOR_FACTOR` times as much for each other.
    """
    reactants, products = split_atoms(tokens)
    weights = attention[np.ix_(products, reactants)] + attention[np.ix_(reactants, products)].T
    elements = np.array([find_element(token) for token in tokens])
    weights = np.where(elements[products][:, None] == elements[reactants][None], weights, 0).astype(np.float64)
    bonds = find_bonds(tokens)
    mapping, confidence = [-1] * len(products), 1.0
    for _ in products:
        sums = weights.sum(axis=1, keepdims=True)
        shares = np.divide(weights, sums, out=np.zeros_like(weights), where=sums > 0)
        if np.isclose(shares.max(), 0):
            break
        product, reactant = np.unravel_index(shares.argmax(), shares.shape)
        mapping[product], confidence = int(reactant), confidence * shares.max()
        near = np.ix_(bonds[products[product], products], bonds[reactants[reactant], reactants])
        weights[near] *= NEIGHBOR_FACTOR
        weights[product], weights[:, reactant] = 0, 0
    return mapping, float(confidence)


def list_tokens(reading: Reading) -> list[str]:
    return [str(token) for token in reading.data["token"].values]


def add_reaction(sums: BlockSums, block: int, reading: Reading) -> None:
    """Add what the heads of one reading relate: atoms of the product with those of the reactants."""
    tokens = list_tokens(reading)
    reactants, products = split_atoms(tokens)
    elements = np.array([find_element(token) for token in tokens])
    same = elements[products][:, None] == elements[reactants][None]
    outputs = reading.outputs.transpose("layer", "head", "position", "width").values
    similarity = outputs @ outputs.swapaxes(2, 3)
    similarity[:, :, np.arange(len(tokens)), np.arange(len(tokens))] = 0
    limits = np.maximum(similarity.max(axis=(2, 3), keepdims=True), 0) * reading.theta
    attention, similarity, high = (
        matrix[:, :, products][..., reactants] for matrix in (reading.attention.values, similarity, similarity > limits)
    )
    counts = same.any(axis=1).sum()
    sums.add(block, "same_element", (attention * same).sum(axis=(2, 3)), counts, same.sum() / len(tokens))
    high_same = (high & same).sum(axis=(2, 3))
    # Chance of a share of pairs whose number differs between heads: the share of all pairs, from its own sums.
    sums.add(block, "high_same_element", high_same, high.sum(axis=(2, 3)), 0)
    sums.add(block, "all_same_element", np.full_like(high_same, same.sum()), same.size, 0)
    for name, mapping in (("element", map_elements(tokens)), ("context", map_contexts(tokens))):
        rows = np.searchsorted(products, list(mapping))
        columns = np.searchsorted(reactants, list(mapping.values()))
        for kind, matrix in (("attention", attention), ("similarity", similarity)):
            hits = (matrix[:, :, rows].argmax(axis=-1) == columns).sum(axis=-1)
            sums.add(block, f"{name}_{kind}", hits, len(mapping), len(mapping) / len(reactants))
    mapped_high = high[:, :, rows, columns].sum(axis=-1)
    sums.add(block, "high_mapped", mapped_high, len(mapping), len(mapping) * high_same / max(same.sum(), 1))


def read_reactions(model: Model, documents: Iterable[Document]) -> Iterator[tuple[int, Reading]]:
    """Yield each reaction's block and reading."""
    for document in documents:
        (window,) = model.windows(document, WindowSpec(length=LENGTH))
        yield window.block, headscope.read(model, document, length=LENGTH)


def measure_rxnmapper(models: Path, documents: Sequence[Document]) -> dict[str, Any]:
    """Return the statistics of every head, the published atom maps beside ours, and what outputs are alike for."""
    model = headscope.load(models / "rxnmapper")
    sums, tokenized, unknown = BlockSums(), 0, 0
    agreement = Counter[str]()
    for (block, reading), document in zip(read_reactions(model, documents), documents, strict=True):
        tokens = list_tokens(reading)
        tokenized += tokens == ["[CLS]", *SPLIT.findall(document.text), "[SEP]"]
        unknown += tokens.count("[UNK]")
        by_element, by_context = map_elements(tokens), map_contexts(tokens)
        shared = by_element.keys() & by_context.keys()
        agreement["both"] += len(shared)
        agreement["agree"] += sum(by_element[position] == by_context[position] for position in shared)
        agreement["element"] += len(by_element)
        agreement["context"] += len(by_context)
        agreement["atoms"] += len(split_atoms(tokens)[1])
        add_reaction(sums, block, reading)
    study = headscope.study(model, list(documents), length=LENGTH, sample=SAMPLE)
    heads = study.heads().set_index("head")
    statistics = {name: sums.summarize(name) for name in STATISTICS}
    statistics["high_same_element"]["chance"] = sums.summarize("all_same_element")["value"]
    return {
        "kind": "rxnmapper",
        "reactions": len(documents),
        "tokenized": tokenized,
        "unknown": unknown,
        "atoms": dict(agreement),
        "published": [check_published(model, *case) for case in PUBLISHED],
        "statistics": statistics,
        "repeat_rate": {
            "value": np.round(study.rate("repeat_rate").values, 6).tolist(),
            "error": np.round(study.standard_error("repeat_rate").values, 6).tolist(),
            "chance": float(study.chance("repeat_rate")),
        },
        "writes_types": heads["writes_type"].tolist(),
        "attends_types": heads["attends_type"].tolist(),
        "descriptions": heads["description"].tolist(),
        "machine": machine("cpu"),
    }


def check_published(model: Model, text: str, mapping: Sequence[int], confidence: float) -> dict[str, Any]:
    """Return a published confidence and ours, and whether the atom maps agree."""
    reading = headscope.read(model, text, length=LENGTH)
    ours = map_reaction(reading.attention.sel(layer=LAYER, head=HEAD).values, list_tokens(reading))
    return {"reaction": text, "published": confidence, "ours": ours[1], "same_mapping": list(mapping) == ours[0]}


def compute_divergence(first: np.ndarray[Any, Any], second: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the Jensen–Shannon divergence of rows in bits: 0 for equal rows, 1 for rows without a common key.

    >>> compute_divergence(np.array([[1.0, 0.0], [0.5, 0.5]]), np.array([[0.0, 1.0], [0.5, 0.5]])).tolist()
    [1.0, 0.0]
    """
    middle = (first + second) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = [np.where(rows > 0, rows * np.log2(rows / middle), 0).sum(axis=-1) for rows in (first, second)]
    return np.asarray(np.maximum(sum(parts) / 2, 0))


def compute_fingerprint(model: Model, text: str) -> list[float]:
    """Return what the model's last layer has for the first token, from the tokens that headscope reads."""
    (window,) = model.windows(Document(text, "reaction"), WindowSpec(length=LENGTH))
    with torch.no_grad():
        states = model.network(torch.as_tensor(window.ids)[None].to(model.device)).last_hidden_state
    return [float(number) for number in states[0, 0]]


def measure_rxnfp(models: Path, documents: Sequence[Document]) -> dict[str, Any]:
    """Return what fine-tuning changes in every head: rates with tests, attention maps, attention to [CLS]."""
    before, after = (headscope.load(models / f"rxnfp-{name}") for name in ("pretrained", "finetuned"))
    sums = BlockSums()
    for (block, first), (_, second) in zip(
        read_reactions(before, documents), read_reactions(after, documents), strict=True
    ):
        maps = [reading.attention.values.astype(np.float64) for reading in (first, second)]
        tokens = len(first)
        divergence = compute_divergence(*maps)
        sums.add(block, "divergence", divergence.sum(axis=-1), tokens, 0.0)
        sums.add(block, "cls_divergence", divergence[..., 0], 1, 0.0)
        sums.add(block, "layer_divergence", divergence.mean(axis=1).sum(axis=-1), tokens, 0.0)
        sums.add(block, "layer_cls_divergence", divergence[..., 0].mean(axis=1), 1, 0.0)
        for name, attention in zip(("cls_before", "cls_after"), maps, strict=True):
            to_first = attention[..., 1:, 0].sum(axis=-1)
            sums.add(block, name, to_first, tokens - 1, (tokens - 1) / tokens)
            sums.add(block, f"layer_{name}", to_first.mean(axis=1), tokens - 1, (tokens - 1) / tokens)
    studies = [headscope.study(model, list(documents), length=LENGTH, sample=SAMPLE) for model in (before, after)]
    comparison = headscope.compare(studies, ["pretrained", "fine-tuned"], by_head=True)
    table = comparison.differences()
    changes = comparison.changes[comparison.changes["part"] == "writes"]
    return {
        "kind": "rxnfp",
        "reactions": len(documents),
        "fingerprint": {"published": FINGERPRINT[1], "ours": compute_fingerprint(after, FINGERPRINT[0])[:5]},
        "paired": bool(table["paired"].all()),
        "attention": {name: sums.summarize(name) for name in sums.sums},
        "rates": {
            str(rate): {
                "difference": np.round(rows["difference"].to_numpy(), 6).tolist(),
                "error": np.round(rows["error"].to_numpy(), 6).tolist(),
                "significant": rows["significant"].astype(bool).tolist(),
            }
            for rate, rows in table.groupby("rate", sort=False)
        },
        "correlations": {row.rate: round(row.correlation, 4) for row in comparison.correlations.itertuples()},
        "heads": changes["head"].tolist(),
        "layers": changes["layer"].tolist(),
        "before": changes["before"].tolist(),
        "after": changes["after"].tolist(),
        "machine": machine("cpu"),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("rxnmapper", "rxnfp"):
        command = commands.add_parser(name)
        command.add_argument("--models", type=Path, required=True)
        command.add_argument("--reactions", required=True)
        command.add_argument("--limit", type=int, help="reactions; by default all")
        command.add_argument("--json", type=Path)
    commands.add_parser("docs").add_argument("results", type=Path, nargs="+")
    options = parser.parse_args(arguments)
    if options.command == "docs":
        results = read_all(options.results)
        write_page(DOCS / "rxnmapper.md", RXNMAPPER_SECTIONS, results)
        write_page(DOCS / "rxnfp.md", RXNFP_SECTIONS, results)
        return
    documents = list(headscope.documents(options.reactions, limit=options.limit))
    if options.command == "rxnmapper":
        result = measure_rxnmapper(options.models, documents)
        print(tabulate_statistics(result))
    else:
        result = measure_rxnfp(options.models, documents)
        print(tabulate_layers(result))
    if options.json:
        save(result, options.json)


if __name__ == "__main__":
    main()
