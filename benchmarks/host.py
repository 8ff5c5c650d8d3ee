"""What a text costs the host beside a GPU: reading, cutting, batches, what is sent to the device.

    python benchmarks/host.py [--texts 20000] [--length 128] [--batch 1024] [--rounds 5] [--json FILE]

One Python interpreter makes the texts in one thread and drives the GPU in another, and only one of them runs at a time:
what both do for a text, in microseconds, bounds how many texts per second any GPU can get. The tokenizer's own work is
apart, for it is not done in the interpreter and is shared among all cores. The texts are those of benchmarks/job.py. No
GPU is needed. `benchmarks/speed.py --docs` writes the table.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SHAPE = "1x12x768"
SAMPLE = 0.05


class Watched:
    """A tokenizer inside another one, and the seconds it works."""

    def __init__(self, inside: Any) -> None:
        self.__dict__.update(inside=inside, wall=0.0, cpu=0.0)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inside, name)
        if name not in ("encode_batch", "encode_batch_fast"):
            return found

        def timed(*given: Any, **how: Any) -> Any:
            wall, cpu = time.perf_counter(), time.process_time()
            made = found(*given, **how)
            self.__dict__["wall"] += time.perf_counter() - wall
            self.__dict__["cpu"] += time.process_time() - cpu
            return made

        return timed

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.inside, name, value)


def least(run: Callable[[], float], rounds: int) -> float:
    """The least of several rounds: what disturbs a machine only ever adds."""
    return min(run() for _ in range(rounds))


def seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def read_batches(model: Any, corpus: Any, options: argparse.Namespace) -> list[Any]:
    """Read, cut and batch all texts, in chunks as large as for a GPU."""
    from headscope.run.pipeline import SectionReader
    from headscope.run.plan import RunPlan
    from headscope.settings import Settings

    settings = Settings(length=options.length)
    plan = RunPlan.create(model, corpus, settings, batch_size=options.batch, device="cuda")
    reader = SectionReader(corpus, model, settings.cut, options.batch, plan.section_texts)
    sections = reader.read(corpus.plan_chunks(plan.chunk_size), {})
    return [batch for section in sections for batch in section.batches]


def making(model: Any, corpus: Any, options: argparse.Namespace, *, uses_backend: bool) -> dict[str, float]:
    """Seconds in the interpreter and in the tokenizer, of the round in which the former are least."""
    many = model.tokens._batch_tokenizer
    many.uses_backend = None if uses_backend else False
    watched = many.tokenizer.backend_tokenizer
    best: dict[str, float] = {}
    for _ in range(options.rounds):
        watched.__dict__.update(wall=0.0, cpu=0.0)
        whole = seconds(lambda: read_batches(model, corpus, options))
        own = whole - watched.wall
        if not best or own < best["own"]:
            best = {"own": own, "tokenizer": watched.cpu}
    if many.uses_backend is not uses_backend:
        raise SystemExit("the tokenizer could not be asked directly here: nothing to compare")
    return best


def sending(batches: list[Any], rounds: int) -> float | None:
    """Seconds to make the arrays that a GPU is sent; None without Triton, whose kernels come with them."""
    try:
        from headscope.tally.triton_backend.arrays import make_text_arrays
    except ImportError:
        return None
    return least(lambda: seconds(lambda: [make_text_arrays(batch, SAMPLE, causal=False) for batch in batches]), rounds)


def measured(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    import headscope
    import job
    from measuring.tables import machine

    sentences = job.sentences_of(None)
    job.write_texts(folder / "texts.jsonl", sentences, options.texts, options.length)
    job.write_model(folder / "model", SHAPE, job.common_words(sentences), options.length)
    model, corpus = headscope.load(folder / "model"), headscope.documents(folder / "texts.jsonl")
    tokenizer = model.tokens.tokenizer
    tokenizer._tokenizer = Watched(tokenizer._tokenizer)
    about = {"length": options.length, "batch": options.batch, **machine("cpu")}
    reading = least(lambda: seconds(lambda: sum(1 for _ in corpus)), options.rounds)
    wrapped = making(model, corpus, options, uses_backend=False)
    direct = making(model, corpus, options, uses_backend=True)
    each = 1e6 / options.texts
    sent = sending(read_batches(model, corpus, options), options.rounds)
    rows = {
        "documents read": reading * each,
        "windows cut, and put into batches": (direct["own"] - reading) * each,
        "made ready for the GPU": None if sent is None else sent * each,
    }
    return {
        "kind": "host",
        "about": about,
        "texts": options.texts,
        "microseconds": rows,
        "tokenizer": {"directly": direct["tokenizer"] * each, "wrapped": wrapped["tokenizer"] * each},
        "making": {"directly": direct["own"] * each, "wrapped": wrapped["own"] * each},
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=20_000)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the result there")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as held:
        result = measured(options, Path(held))
    from measuring.speed_tables import host_table
    from measuring.tables import save

    print(host_table(result))
    if options.json:
        save(result, options.json)


if __name__ == "__main__":
    main()
