"""The tables of the speed benchmarks, for the terminal and for docs/speed.md."""

from __future__ import annotations

from typing import Any

from measuring.tables import NONE, Section, made_with, number, of_kind, table

Result = dict[str, Any]
SEVERAL = 2
NO_RUN = "*Not measured yet.*"


def heading(about: Result) -> str:
    """What was run, in one line."""
    padded = ", padded" if about["ragged"] else ""
    return (
        f"{about['model']} ({about['layers']} × {about['heads']}), windows of {about['length']}{padded}, "
        f"batch {about['batch']}, {about['device']}, {about['dtype']}"
    )


def ratio(way: Result) -> str:
    """The median, and between which ratios it lies."""
    if "ratio_low" not in way:
        return number(way.get("ratio"))
    spread = f" ({way['ratio_low']:.2f}–{way['ratio_high']:.2f})" if way["rounds"] >= SEVERAL else ""
    return f"{way['ratio']:.2f}{spread}"


def cells(way: Result) -> list[str]:
    if "absent" in way:
        return [way["name"], *[NONE] * 5]
    return [
        way["name"],
        number(way["ms"]),
        number(way["texts_per_second"], 1),
        ratio(way),
        number(way["peak_mb"], 0),
        str(way["texts"]),
    ]


HEADER = ("way", "ms per text", "texts per second", "× the bare forward", "peak MB", "texts")


def speed_table(result: Result, *, markdown: bool = False) -> str:
    made = table(HEADER, [cells(way) for way in result["ways"]], markdown=markdown)
    words = [f"{way['name']}: {way['absent']}." for way in result["ways"] if "absent" in way]
    unsteady = [
        f"{way['name']} ({way['unsteady_rounds']} of {way['rounds']} rounds)"
        for way in result["ways"]
        if way.get("unsteady_rounds")
    ]
    words += [f"The bare passes before and after differ by more than 10 % at: {'; '.join(unsteady)}."] * bool(unsteady)
    if not markdown:
        return "\n".join([heading(result["about"]), made_with(result["about"]), made, *words])
    listed = "\n".join(f"- {each}" for each in (f"{made_with(result['about'])}.", *words))
    return f"{made}\n\n{listed}"


GROWTH = {"texts": "texts", "length": "tokens in a window", "heads": "heads"}


def growth_tables(result: Result, *, markdown: bool = False) -> str:
    parts = []
    for name, title in GROWTH.items():
        rows = [
            [f"{row['of']:,}", number(row.get("ms")), ratio(row), number(row.get("peak_mb"), 0)] for row in result[name]
        ]
        parts.append(table((title, "ms per text", "× the bare forward", "peak MB"), rows, markdown=markdown))
    about = result["about"]
    words = (
        f"Random weights, {result['shape']}, {about['device']}, {about['dtype']}, kernel {result['kernel']}, "
        f"{result['sample']:.0%} of the texts in the sample; {made_with(about)}."
    )
    return "\n\n".join([words, *parts])


def job_table(result: Result, *, markdown: bool = False) -> str:
    about = result["about"]
    rows = [[name, number(seconds, 2)] for name, seconds in result["seconds"].items()]
    made = table(("where the time goes", "seconds"), rows, markdown=markdown)
    kind = f"{about['dtype']} (TF32)" if result["tf32"] and about["dtype"] == "float32" else about["dtype"]
    words = (
        f"{result['windows']:,} windows of {about['length']} tokens through {about['model']}, {about['device']}, "
        f"{kind}, kernel {result['kernel']}, batches of {result['batch_size']}, {result['sample']:.0%} of "
        f"the texts in the sample; {made_with(about)}."
    )
    return "\n\n".join([words, made, *result["words"]])


def host_table(result: Result, *, markdown: bool = False) -> str:
    """In microseconds per text, and what of a GPU they could keep busy."""
    held = {name: value for name, value in result["microseconds"].items() if value is not None}
    whole = sum(held.values())
    rows = [[name, number(value, 1)] for name, value in held.items()] + [["in the interpreter, all", number(whole, 1)]]
    made = table(("for one text", "µs"), rows, markdown=markdown)
    making, tokenizer = result["making"], result["tokenizer"]
    words = (
        f"{result['texts']:,} texts of {result['about']['length']} tokens, batches of {result['about']['batch']}; "
        f"{made_with(result['about'])}."
    )
    last = (
        f"So this host has {1e6 / whole:,.0f} texts per second ready for a GPU, less what starting its kernels takes. "
        f"The tokenizer's own work, shared among all cores, is {tokenizer['directly']:.0f} µs of one core. Where a "
        f"tokenizer has to be asked through transformers, reading and cutting take {making['wrapped']:.0f} µs in the "
        f"interpreter instead of {making['directly']:.0f}, and the tokenizer {tokenizer['wrapped']:.0f}."
    )
    return "\n\n".join([words, made, last])


# -- docs/speed.md -----------------------------------------------------------------------------------------------------


def summary_section(results: list[Result]) -> str:
    """Ways down, runs across: ratios to the bare forward pass of the same run."""
    runs = of_kind(results, "speed")
    if not runs:
        return NO_RUN
    names = list(dict.fromkeys(way["name"] for run in runs for way in run["ways"]))
    held = [{way["name"]: way for way in run["ways"]} for run in runs]
    rows = [[name, *(number(each.get(name, {}).get("ratio")) for each in held)] for name in names]
    rows.append(["*bare forward, ms per text*", *(number(each["bare forward, sdpa"]["ms"]) for each in held)])
    return table(("× the bare forward", *(run["name"].removeprefix("speed-") for run in runs)), rows, markdown=True)


def ways_section(results: list[Result]) -> str:
    runs = of_kind(results, "speed")
    parts = [f"### {run['name'].removeprefix('speed-')}\n\n{heading(run['about'])}.\n" for run in runs]
    both = zip(parts, runs, strict=True)
    return "\n\n".join(f"{part}\n{speed_table(run, markdown=True)}" for part, run in both) or NO_RUN


def growth_section(results: list[Result]) -> str:
    return "\n\n".join(growth_tables(run, markdown=True) for run in of_kind(results, "growth")) or NO_RUN


def job_section(results: list[Result]) -> str:
    return "\n\n".join(job_table(run, markdown=True) for run in of_kind(results, "job")) or NO_RUN


def host_section(results: list[Result]) -> str:
    return "\n\n".join(host_table(run, markdown=True) for run in of_kind(results, "host")) or NO_RUN


SECTIONS: dict[str, Section] = {
    "summary": summary_section,
    "ways": ways_section,
    "growth": growth_section,
    "job": job_section,
    "host": host_section,
}
