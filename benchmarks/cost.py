"""What a text costs, what a checkpoint costs, and what it costs to add up the sums of a thousand workers.

    python benchmarks/cost.py [--texts 20000] [--shape 12x12x768 | --model FOLDER] [--device cuda] [--json FILE]
    python benchmarks/cost.py --reduce [--workers 1000] [--shape 12x12x768] [--json FILE]
    python benchmarks/cost.py --docs benchmarks/results/*.json

The first studies texts from disk twice, without and with checkpoints, and compares the sums. The second makes the sums
of that many workers, one after the other, has the driver's own code add them up, flat and as a tree, and checks the
whole against what must come out. `--docs` writes the tables of docs/cluster.md from the results.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

SEED = 0
GROUP = 32
"""workers whose sums are added to each other before they go to the driver, in a tree"""


def measured(options: argparse.Namespace) -> dict[str, Any]:
    import numpy as np

    import headscope
    import job
    from headscope.run.checkpoint import LAST
    from measuring.tables import machine

    with tempfile.TemporaryDirectory() as held:
        folder = Path(held)
        sentences = job.sentences_of(None)
        job.write_texts(folder / "texts.jsonl", sentences, options.texts, options.length)
        if not options.model:
            job.write_model(folder / "model", options.shape, job.common_words(sentences), options.length)
        model = headscope.load(options.model or folder / "model", device=options.device, dtype=options.dtype)
        source = folder / "texts.jsonl"
        headscope.study(model, headscope.documents(source, limit=2048), length=options.length, sample=0.05)  # warm
        seconds, made = [], []
        for checkpoints in (None, folder / "first", None, folder / "second"):
            started = time.perf_counter()
            made.append(
                headscope.study(
                    model, source, length=options.length, sample=0.05,
                    checkpoint_dir=checkpoints, checkpoint_interval=options.every,
                )
            )  # fmt: skip
            seconds.append(time.perf_counter() - started)
        same = all(
            np.array_equal(made[0].data[name].values, study.data[name].values)
            for study in made[1:]
            for name in study.data
            if made[0].data[name].dtype.kind in "iu"
        )
        apart = max(
            float(np.max(np.abs(one - other) / np.maximum(np.abs(one), 1.0), initial=0.0, where=np.isfinite(one)))
            for study in made[1:]
            for name in study.data
            if made[0].data[name].dtype.kind == "f"
            for one, other in [(made[0].data[name].values, study.data[name].values)]
        )
        size = (folder / "first" / LAST).stat().st_size
        timing = made[1].manifest["timing"]
        device = model.device.type
        return {
            "kind": "cost",
            "about": {
                "model": Path(options.model).name if options.model else f"random weights, {options.shape}",
                "length": options.length, "device": device, "dtype": options.dtype, **machine(device),
            },
            "texts": made[0].texts,
            "text_bytes": source.stat().st_size / options.texts,
            "seconds": min(seconds[0], seconds[2]),
            "seconds_with_checkpoints": min(seconds[1], seconds[3]),
            "every": options.every,
            "checkpoint_bytes": size,
            "timing": made[2].manifest["timing"],
            "checkpoint_seconds": timing.get("checkpoints", 0.0),
            "same_integers": same,
            "largest_relative_difference_of_reals": apart,
            "batch_size": int(made[0].manifest["batch_size"]),
        }  # fmt: skip


def reduced(options: argparse.Namespace) -> dict[str, Any]:
    """Sums of many workers, added up by the code of the driver."""
    import numpy as np

    from headscope.run.state import CorpusStats, RunState
    from headscope.tally.quantities import Shape
    from headscope.tally.tally import Tally
    from measuring.memory import resident
    from measuring.tables import machine

    layers, heads, hidden = map(int, options.shape.split("x"))
    shape = Shape(layers, heads, options.length, width=hidden // heads)
    random = np.random.default_rng(SEED)
    sums = Tally.zeros(shape)
    for array in sums.arrays.values():
        array[...] = random.integers(0, 2**40, array.shape)
    sums.most_attended = {int(k): random.integers(0, 9, (20, layers)) for k in range(2000)}
    size = sum(array.nbytes for array in sums.arrays.values()) + 2000 * 20 * layers * 8

    def partial(worker: int) -> RunState:
        """Return the partial sums of worker number k: the same sums every time, of chunk k."""
        return RunState(sums, CorpusStats(documents=4096, content=worker), {worker})

    flat = RunState.empty(shape)
    order = [int(worker) for worker in random.permutation(options.workers)]
    started = time.perf_counter()
    for worker in order:
        flat.add(partial(worker))
    seconds = time.perf_counter() - started
    right = all(np.array_equal(flat.sums[name], sums[name] * options.workers) for name in sums.arrays)
    right &= flat.completed == set(range(options.workers))
    right &= flat.stats.documents == 4096 * options.workers
    right &= all(
        np.array_equal(flat.sums.most_attended[k], counts * options.workers) for k, counts in sums.most_attended.items()
    )
    root, driving = RunState.empty(shape), 0.0
    for first in range(0, options.workers, GROUP):
        part = RunState.empty(shape)
        for worker in order[first : first + GROUP]:
            part.add(partial(worker))
        started = time.perf_counter()
        root.add(part)
        driving += time.perf_counter() - started
    right &= all(np.array_equal(root.sums[name], flat.sums[name]) for name in sums.arrays)
    right &= root.completed == flat.completed
    right &= root.stats.content == flat.stats.content
    twice = False
    try:
        flat.add(partial(order[0]))
    except ValueError:
        twice = True
    return {
        "kind": "reduce",
        "about": {"shape": options.shape, "length": options.length, **machine("cpu")},
        "workers": options.workers,
        "bytes": size,
        "seconds": seconds,
        "tree_seconds": driving,
        "group": GROUP,
        "right": bool(right),
        "twice_refused": twice,
        "peak_megabytes": resident("VmHWM"),
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=20_000)
    parser.add_argument("--shape", default="12x12x768", metavar="LAYERSxHEADSxWIDTH")
    parser.add_argument("--model", metavar="FOLDER", help="this model instead of random weights")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--every", type=float, default=60.0, help="seconds between checkpoints")
    parser.add_argument("--reduce", action="store_true", help="add up the sums of many workers")
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument(
        "--docs", type=Path, nargs="+", metavar="FILE", help="write docs/cluster.md's tables from these"
    )
    options = parser.parse_args(arguments)
    if options.docs:
        from measuring.cost_tables import write_docs

        write_docs(options.docs)
        return
    result = reduced(options) if options.reduce else measured(options)
    print(result)
    if options.json:
        from measuring.tables import save

        save(result, options.json)


if __name__ == "__main__":
    main()
