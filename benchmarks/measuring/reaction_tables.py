"""The tables of the benchmarks of chemical reactions."""

from __future__ import annotations

from typing import Any

import numpy as np

from measuring.tables import Section, made_with, number, of_kind, table

PUBLISHED_HEAD = (10, 5)
STATISTICS = {
    "same_element": "attention of product atoms on reactant atoms of their element",
    "element_attention": "strongest reactant atom is the right one, by element",
    "context_attention": "strongest reactant atom is the right one, by surroundings",
    "element_similarity": "most similar reactant atom is the right one, by element",
    "context_similarity": "most similar reactant atom is the right one, by surroundings",
    "high_same_element": "high pairs of product and reactant atoms that are of one element",
    "high_mapped": "right pairs, by surroundings, that are high pairs (chance: all pairs of their element)",
}


def _percent(value: float, error: float | None = None) -> str:
    return f"{100 * value:.1f}" + (f" ± {100 * error:.1f}" if error is not None else "") + " %"


def _rank(values: Any, layer: int, head: int) -> int:
    return int((np.asarray(values) > values[layer][head]).sum()) + 1


def tabulate_statistics(result: dict[str, Any], *, markdown: bool = False) -> str:
    """Return every statistic of the published head, its rank, and the best head of all."""
    layer, head = PUBLISHED_HEAD
    rows = []
    for name, title in STATISTICS.items():
        measured = result["statistics"][name]
        values, errors = (np.asarray(measured[part], dtype=float) for part in ("value", "error"))
        best = np.unravel_index(np.nanargmax(values), values.shape)
        rows.append(
            [
                title,
                _percent(values[layer, head], errors[layer, head]),
                _percent(measured["chance"][layer][head]),
                f"{_rank(values, layer, head)} of {values.size}",
                f"L{best[0]}H{best[1]}: {_percent(values[best], errors[best])}",
            ]
        )
    return table(["", "L10H5", "chance", "rank", "best head"], rows, markdown=markdown)


def tabulate_published(result: dict[str, Any], *, markdown: bool = False) -> str:
    """Return the published confidences beside ours."""
    rows = [
        [
            f"`{case['reaction']}`" if markdown else case["reaction"],
            number(case["published"], 6),
            number(case["ours"], 6),
            "same" if case["same_mapping"] else "differs",
        ]
        for case in result["published"]
    ]
    return table(["reaction", "published", "ours", "atom map"], rows, markdown=markdown)


def tabulate_head_five(result: dict[str, Any], *, markdown: bool = False) -> str:
    """Return head 5 in every layer beside the best other head of that layer."""
    measured = {
        name: result["statistics"][name] for name in ("same_element", "context_attention", "context_similarity")
    }
    rows = []
    for layer in range(len(measured["same_element"]["value"])):
        cells = []
        for part in measured.values():
            values, errors = (np.asarray(part[key], dtype=float)[layer] for key in ("value", "error"))
            others = np.where(np.arange(len(values)) == PUBLISHED_HEAD[1], -np.inf, values)
            best = int(np.argmax(others))
            cells.append(_percent(values[PUBLISHED_HEAD[1]], errors[PUBLISHED_HEAD[1]]))
            cells.append(f"H{best}: {_percent(values[best])}")
        rows.append([str(layer), *cells])
    header = ["layer", "on its element, H5", "next", "right atom, H5", "next", "most similar, H5", "next"]
    return table(header, rows, markdown=markdown)


def tabulate_fingerprint(result: dict[str, Any], *, markdown: bool = False) -> str:
    """Return the first numbers of the published fingerprint beside ours."""
    rows = [[name, *(number(value, 5) for value in result["fingerprint"][name])] for name in ("published", "ours")]
    return table(["", *map(str, range(5))], rows, markdown=markdown)


def tabulate_layers(result: dict[str, Any], *, markdown: bool = False) -> str:
    """Return what fine-tuning changes, by layer."""
    attention = result["attention"]
    layers = np.asarray(result["layers"])
    rows = []
    for layer in sorted(set(layers.tolist())):
        chosen = layers == layer
        significant = np.array([np.asarray(rate["significant"])[chosen] for rate in result["rates"].values()])
        moved = np.median(np.abs(np.asarray(result["rates"]["repeat_rate"]["difference"])[chosen]))
        changed = np.asarray(result["before"])[chosen] != np.asarray(result["after"])[chosen]
        divergences, shares = (
            [attention[f"layer_{name}"] for name in names]
            for names in (("divergence", "cls_divergence"), ("cls_before", "cls_after"))
        )
        rows.append(
            [
                str(layer),
                *(f"{part['value'][layer]:.3f} ± {part['error'][layer]:.4f}" for part in divergences),
                *(_percent(part["value"][layer], part["error"][layer]) for part in shares),
                f"{significant.sum()} of {significant.size}",
                _percent(float(moved)),
                str(int(changed.sum())),
            ]
        )
    header = [
        "layer",
        "JS divergence (bits)",
        "of [CLS]",
        "to [CLS] before",
        "after",
        "rates changed",
        "repeat rate moved by",
        "other type",
    ]
    return table(header, rows, markdown=markdown)


def tabulate_rates(result: dict[str, Any], *, markdown: bool = False) -> str:
    """Return for each rate how many heads differ, and the one that differs most."""
    rows = []
    for name, rate in result["rates"].items():
        difference = np.asarray(rate["difference"], dtype=float)
        most = int(np.nanargmax(np.abs(difference)))
        scale = 1 if name == "mean_distance" else 100
        unit = " tokens" if scale == 1 else " %"
        rows.append(
            [
                name.replace("_", " "),
                f"{sum(rate['significant'])} of {len(difference)}",
                number(result["correlations"].get(name)),
                f"{scale * np.nanmedian(np.abs(difference)):.1f}{unit}",
                f"{result['heads'][most]}: {scale * difference[most]:+.1f} ± {scale * rate['error'][most]:.1f}{unit}",
            ]
        )
    header = ["rate", "heads changed (Holm)", "correlation", "median change", "largest change"]
    return table(header, rows, markdown=markdown)


def _describe_run(result: dict[str, Any]) -> str:
    return f"{result['reactions']} reactions, {made_with(result['machine'])}."


def _describe_atoms(result: dict[str, Any]) -> str:
    layer, head = PUBLISHED_HEAD
    atoms, repeat = result["atoms"], result["repeat_rate"]
    rate, error = (repeat[part][layer][head] for part in ("value", "error"))
    sentences = [
        f"Of {atoms['atoms']:,} product atoms {atoms['element']:,} are mapped by element and {atoms['context']:,} by "
        f"surroundings, {atoms['both']:,} by both, which agree for {atoms['agree']:,}.",
        f"{result['tokenized']} of {result['reactions']} reactions are tokenized as the package does, with "
        f"{result['unknown']} unknown tokens.",
        f"Over all tokens, outputs of L10H5 are {result['writes_types'][layer * len(repeat['value'][layer]) + head]}, "
        f"with a repeat rate of {_percent(rate, error)} (chance {_percent(repeat['chance'])}, rank "
        f"{_rank(repeat['value'], layer, head)} of {np.size(repeat['value'])}).",
    ]
    return " ".join(sentences)


def _find(results: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (result,) = of_kind(results, kind)
    return result


RXNMAPPER_SECTIONS: dict[str, Section] = {
    "published": lambda results: tabulate_published(_find(results, "rxnmapper"), markdown=True),
    "statistics": lambda results: (
        f"{tabulate_statistics(_find(results, 'rxnmapper'), markdown=True)}\n\n"
        f"{_describe_atoms(_find(results, 'rxnmapper'))}\n\n{_describe_run(_find(results, 'rxnmapper'))}"
    ),
    "head five": lambda results: tabulate_head_five(_find(results, "rxnmapper"), markdown=True),
}
RXNFP_SECTIONS: dict[str, Section] = {
    "fingerprint": lambda results: tabulate_fingerprint(_find(results, "rxnfp"), markdown=True),
    "layers": lambda results: (
        f"{tabulate_layers(_find(results, 'rxnfp'), markdown=True)}\n\n{_describe_run(_find(results, 'rxnfp'))}"
    ),
    "rates": lambda results: tabulate_rates(_find(results, "rxnfp"), markdown=True),
}
