"""The same job by headscope, by the notebook way and by TransformerLens, beside the bare model; and how it grows.

    python benchmarks/speed.py [--model NAME | --shape 12x12x768] [--device cpu|cuda] [--dtype bfloat16] [--json FILE]
    python benchmarks/speed.py --growth [--shape 6x12x384] [--json FILE]
    python benchmarks/speed.py --docs benchmarks/results/*.json

The job is all quantities of METHOD §3, or as much of it as a way can do, over windows that are cut already. Every way
is timed between two bare forward passes, in every round; peak memory is that of a process of its own. TransformerLens
is measured where it can be imported: pip install transformer-lens, or as measuring/lens.py says. `--docs` writes the
tables of docs/speed.md from results that were saved before.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from measuring import growth, setup, ways
from measuring.memory import in_own_process, peak_above
from measuring.rounds import Runner, take_turns
from measuring.speed_tables import SECTIONS, growth_tables, speed_table
from measuring.tables import DOCS, machine, read_all, save, write_page

TEXTS, BATCH = {"cpu": 128, "cuda": 16384}, {"cpu": 32, "cuda": 1024}


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    setup.add_options(made)
    made.add_argument("--texts", type=int, help="windows; 128 on a CPU, 16384 on CUDA")
    made.add_argument("--batch", type=int, help="windows at a time; 32 on a CPU, 1024 on CUDA")
    made.add_argument("--rounds", type=int, default=7)
    made.add_argument("--ways", help="only these, by their keys: auto-0,notebook,…; an unknown one lists them all")
    made.add_argument("--memory", action=argparse.BooleanOptionalAction, default=True, help="peak memory too")
    made.add_argument("--json", type=Path, metavar="FILE", help="save the result there")
    made.add_argument("--growth", action="store_true", help="growth with texts, window length and heads instead")
    made.add_argument("--growth-texts", type=int, nargs="+", metavar="N", help="numbers of texts to grow over")
    made.add_argument("--docs", type=Path, nargs="+", metavar="FILE", help="write docs/speed.md from these results")
    made.add_argument("--case", choices=("memory", "study", "way"), help=argparse.SUPPRESS)  # in a process of its own
    made.add_argument("--kernel", help=argparse.SUPPRESS)
    return made


def say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def chosen(options: argparse.Namespace) -> dict[str, ways.Way]:
    there = ways.ways(options.device)
    if not options.ways:
        return there
    keys = options.ways.split(",")
    if unknown := [key for key in keys if key not in there]:
        sys.exit(f"no way {', '.join(unknown)}; there are: {', '.join(there)}")
    return {key: there[key] for key in keys}


def passed_on(options: argparse.Namespace) -> list[str]:
    """The options that a process of its own needs to measure on the same."""
    names = ("model", "shape", "source", "length", "device", "dtype", "texts", "batch")
    given = [(name, getattr(options, name)) for name in names if getattr(options, name) is not None]
    flags = ["--ragged"] * options.ragged + ["--tf32" if options.tf32 else "--no-tf32"]
    return [part for name, value in given for part in (f"--{name}", str(value))] + flags


def peak_of(options: argparse.Namespace, key: str) -> float | None:
    if not options.memory:
        return None
    said = in_own_process(Path(__file__), ["--case", "memory", "--ways", key, *passed_on(options)])
    return said["peak_mb"] if said else None


def own_peak(options: argparse.Namespace) -> dict[str, float]:
    """In this process: the peak of the one way that was asked for."""
    model = setup.model_of(options)
    job = ways.job_of(options, model)
    if options.ways == ways.BARE:
        return {"peak_mb": peak_above(ways.bare(job), model.device)}
    (way,) = chosen(options).values()
    return {"peak_mb": peak_above(way.make(way.job(job)), model.device)}


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """All ways in turns, then each one's memory."""
    model = setup.model_of(options)
    job = ways.job_of(options, model)
    runners: dict[str, Runner] = {}
    absent: dict[str, str] = {}
    for key, way in chosen(options).items():
        own = way.job(job)
        try:
            runners[key] = Runner(way.make(own), own.texts, min(options.rounds, way.rounds or options.rounds))
        except ways.NotHere as why:
            absent[key] = str(why)
    about = about_run(options, model)
    turns, bares = take_turns(Runner(ways.bare(job), job.texts, options.rounds), runners, model.device, say)
    middle = sorted(bares)[len(bares) // 2]
    alone = {"ms": 1000 * middle, "texts_per_second": 1 / middle, "ratio": 1.0, "texts": job.texts}
    rows = [{"key": ways.BARE, "name": "bare forward, sdpa", **alone, "peak_mb": peak_of(options, ways.BARE)}]
    for key, way in chosen(options).items():
        row: dict[str, Any] = {"key": key, "name": way.name, "texts": way.job(job).texts}
        if key in absent:
            rows.append({**row, "absent": absent[key]})
        else:
            rows.append({**row, **turns[key].summary(), "peak_mb": peak_of(options, key)})
    return {"kind": "speed", "about": about, "ways": rows}


def kind_of(options: argparse.Namespace) -> str:
    tf32 = options.device == "cuda" and options.dtype == "float32" and options.tf32
    return f"{options.dtype} (TF32)" if tf32 else str(options.dtype)


def about_run(options: argparse.Namespace, model: Any) -> dict[str, Any]:
    return {
        "model": f"random weights, {options.shape}" if options.shape else Path(options.model).name,
        "layers": model.architecture.layers,
        "heads": model.architecture.heads,
        "length": options.length,
        "ragged": options.ragged,
        "texts": options.texts,
        "batch": options.batch,
        "rounds": options.rounds,
        "device": options.device,
        "dtype": kind_of(options),
        **machine(options.device),
    }


def grown(options: argparse.Namespace) -> dict[str, Any]:
    about = {"device": options.device, "dtype": kind_of(options), "batch": options.batch, "rounds": options.rounds}
    about |= machine(options.device)
    return {"kind": "growth", "about": about, **growth.grown(options, Path(__file__), say)}


def main(arguments: list[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    options.texts = options.texts or TEXTS[options.device]
    options.batch = options.batch or BATCH[options.device]
    if options.docs:
        write_page(DOCS / "speed.md", SECTIONS, read_all(options.docs))
        return
    if options.case:
        cases = {"study": growth.study_way, "way": growth.way_beside_bare}
        made = own_peak(options) if options.case == "memory" else cases[options.case](options, options.kernel)
        print(json.dumps(made))
        return
    result = grown(options) if options.growth else measured(options)
    print(growth_tables(result) if options.growth else speed_table(result))
    if options.json:
        save(result, options.json)


if __name__ == "__main__":
    main()
