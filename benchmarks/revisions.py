"""Compare the speed and the size of two revisions of headscope.

    python benchmarks/revisions.py ef746c7 HEAD [--model minilm | --shape 12x12x768] [--texts 512] [--json FILE]

Each revision is checked out into a temporary folder. A fresh process for each round and revision loads the model,
studies a few texts to warm up, and is timed while it studies a JSONL file, with checkpoints as they are by default. The
revisions take turns, and every other round goes backwards. Reported are medians over rounds: of the seconds, and of the
ratio to the first revision. All must count the same texts, and the same pairs but for those near the threshold: texts
may be in other batches, which round differently.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

WARM_UP_TEXTS = 32
CHILD = """
import inspect, json, sys, tempfile, time
import headscope
from measuring import setup
import argparse

options = argparse.Namespace(**json.loads(sys.argv[1]))
model = setup.model_of(options)
name = "checkpoint_dir" if "checkpoint_dir" in inspect.signature(headscope.study).parameters else "checkpoints"
with tempfile.TemporaryDirectory() as folder:
    headscope.study(model, headscope.documents(options.warm_up), **{name: folder + "/first"}, length=options.length)
    started = time.perf_counter(), time.process_time()
    study = headscope.study(model, headscope.documents(options.file), **{name: folder + "/second"},
                            length=options.length, sample=options.sample)
    seconds, processors = time.perf_counter() - started[0], time.process_time() - started[1]
data = study.data
print("RESULT", json.dumps({"seconds": seconds, "processors": processors, "texts": int(data["texts"]),
                            "pairs": int(data["pairs"].sum()), "near": int(data["near_threshold"].sum())}))
"""


def check_out(revision: str, resources: ExitStack) -> Path:
    """Check out a revision into a temporary folder, for as long as `resources` is open."""
    folder = Path(resources.enter_context(tempfile.TemporaryDirectory())) / "headscope"
    subprocess.run(["git", "worktree", "add", "--detach", "-q", str(folder), revision], check=True)
    resources.callback(subprocess.run, ["git", "worktree", "remove", "--force", str(folder)], check=False)
    return folder


def count_lines(folder: Path) -> dict[str, int]:
    """Return the numbers of files and lines of the package."""
    files = list((folder / "src" / "headscope").rglob("*.py"))
    return {"files": len(files), "lines": sum(len(file.read_text("utf-8").splitlines()) for file in files)}


def time_study(folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Return the time that a study takes in a fresh process, and what it counted."""
    path = os.pathsep.join([str(folder / "src"), str(folder / "benchmarks")])
    child = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps(options)],
        env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    line = next(line for line in child.stdout.splitlines() if line.startswith("RESULT "))
    return dict(json.loads(line.removeprefix("RESULT ")))


def write_texts(options: argparse.Namespace, count: int, path: Path) -> str:
    """Write texts to a JSONL file; return its name."""
    from measuring import setup

    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in setup.texts_of(options, count))
    return str(path)


def compare_revisions(options: argparse.Namespace) -> dict[str, Any]:
    """Time the same study in all revisions, in turns."""
    from measuring.tables import machine

    with ExitStack() as resources:
        texts = Path(resources.enter_context(tempfile.TemporaryDirectory()))
        asked = vars(options) | {
            "json": None,
            "file": write_texts(options, options.texts, texts / "texts.jsonl"),
            "warm_up": write_texts(options, WARM_UP_TEXTS, texts / "warm-up.jsonl"),
        }
        folders = {revision: check_out(revision, resources) for revision in options.revisions}
        sizes = {revision: count_lines(folder) for revision, folder in folders.items()}
        runs: dict[str, list[dict[str, Any]]] = {revision: [] for revision in folders}
        for number in range(options.rounds):
            for revision in list(folders)[:: -1 if number % 2 else 1]:
                runs[revision].append(time_study(folders[revision], asked))
                print(f"round {number + 1}: {revision}: {runs[revision][-1]['seconds']:.2f} s", flush=True)
    every = [run for timed in runs.values() for run in timed]
    texts, pairs = {run["texts"] for run in every}, [run["pairs"] for run in every]
    if len(texts) > 1 or max(pairs) - min(pairs) > max(run["near"] for run in every):
        raise SystemExit(f"the revisions counted different texts or pairs: {texts}, {min(pairs)} to {max(pairs)}")
    first = runs[options.revisions[0]]
    return {
        "about": {"model": options.shape or options.model, "length": options.length, **machine(options.device)},
        "kind": "revisions",
        "texts": texts.pop(),
        "rounds": options.rounds,
        "rows": [
            {"revision": revision, **sizes[revision], **summarize_runs(timed, first)}
            for revision, timed in runs.items()
        ],
    }


def summarize_runs(timed: list[dict[str, Any]], first: list[dict[str, Any]]) -> dict[str, float]:
    """Return the medians over rounds of the seconds, and of the ratios to the first revision."""
    pairs = list(zip(timed, first, strict=True))
    return {
        "seconds": statistics.median(run["seconds"] for run in timed),
        "ratio": statistics.median(run["seconds"] / other["seconds"] for run, other in pairs),
        "processor_ratio": statistics.median(run["processors"] / other["processors"] for run, other in pairs),
    }


def main(arguments: list[str] | None = None) -> None:
    """Compare the revisions that are given."""
    from measuring import setup
    from measuring.tables import save, table

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revisions", nargs="+", help="anything git can check out; ratios are to the first")
    setup.add_options(parser)
    parser.add_argument("--texts", type=int, default=512)
    parser.add_argument("--sample", type=float, default=0.05, help="fraction of texts in the sample")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the result there")
    options = parser.parse_args(arguments)
    result = compare_revisions(options)
    header = ("revision", "files", "lines", "seconds", "ratio", "processor time")
    rows = [
        [
            row["revision"], f"{row['files']}", f"{row['lines']:,}", f"{row['seconds']:.2f}", f"{row['ratio']:.3f}",
            f"{row['processor_ratio']:.3f}",
        ]
        for row in result["rows"]
    ]  # fmt: skip
    print(f"\n{result['texts']} texts, {options.rounds} rounds\n{table(header, rows)}")
    if options.json:
        save(result, options.json)


if __name__ == "__main__":
    main()
