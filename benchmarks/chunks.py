"""What the size of chunks costs, how many bytes are read in chunks, and how long many remote files take to plan.

    python benchmarks/chunks.py [--model minilm | --shape 24x16x1024] [--rounds 3] [--json FILE]
    python benchmarks/chunks.py --bytes [--size 2] [--json FILE]
    python benchmarks/chunks.py --plan 600000 [--latency 0.05] [--json FILE]

The first counts the same texts in chunks of a quarter of the default size up to four times it, in turns; the texts are
of a quarter of a window and more, so that what small chunks cost in padding and in batches that are not full is there.
How many batches there are, and tokens with padding, is the same on every machine; with `--no-time` that is all. Time of
processors is given beside time on the clock, because other programs disturb it less. A crash loses a chunk: the seconds
of one say how much. The second has processes read a JSONL file chunk by chunk, as workers do, and counts the bytes they
get from the system (Linux); it is repeated with two processes that end in the middle of a chunk. The third lists files
on storage where every request takes a while, and counts requests.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

FACTORS = (0.25, 0.5, 1, 2, 4)
"""chunk sizes, times the default"""
READERS = (1, 2, 8)
LOST, LOST_AFTER = 2, 30
"""processes that end in the middle of a chunk, of the most; and the documents of it after which they do"""
LINE_BYTES = 2000
"""of a document, as articles of the web are"""
REMOTE_FILE_BYTES, DOCUMENTS_PER_FILE = 33_000_000, 2100
FILES_PER_FOLDER = 10_000
FILES_PER_PAGE = 1000
"""as many as an object store lists with one request"""
IO = Path("/proc/self/io")


# -- what the size costs -----------------------------------------------------------------------------------------------


def measure_sizes(options: argparse.Namespace) -> dict[str, Any]:
    """Count the same texts in chunks of several sizes, in turns; return seconds for each size."""
    import headscope
    from headscope.corpus.documents import as_corpus
    from headscope.run.plan import RunPlan, count_parameters
    from headscope.settings import Settings
    from measuring import setup
    from measuring.tables import machine

    model = setup.model_of(options)
    settings = Settings(length=options.length, sample=options.sample)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "texts.jsonl"
        small = as_corpus(list(setup.random_texts(64, options.length, ragged=True)))
        documents = RunPlan.create(model, small, settings).chunk_size.documents
        texts = options.texts or round(max(FACTORS) * documents)
        with path.open("w", encoding="utf-8") as file:
            file.writelines(
                json.dumps({"text": text}) + "\n" for text in setup.random_texts(texts, options.length, ragged=True)
            )
        corpus = headscope.documents(path)
        default = RunPlan.create(model, corpus, settings)
        # Chunks are cut by bytes: the power of two above the mean would hide what single sizes cost.
        bytes_per_text = path.stat().st_size / texts
        plans = {}
        for factor in FACTORS:
            count = max(1, round(factor * documents))
            size = replace(default.chunk_size, documents=count, bytes=round(count * bytes_per_text))
            plans[factor] = replace(default, chunk_size=size)
        chunks = {factor: len(corpus.plan_chunks(plan.chunk_size)) for factor, plan in plans.items()}
        batches = {factor: count_batches(model, corpus, plan) for factor, plan in plans.items()}
        times = time_plans(model, corpus, plans, options.rounds) if options.time else None
    rows: list[dict[str, Any]] = [
        {
            "factor": factor,
            "documents": plans[factor].chunk_size.documents,
            "chunks": chunks[factor],
            "batches": batches[factor][0],
            "tokens": batches[factor][1],
        }
        for factor in FACTORS
    ]
    for row in rows if times is not None else ():
        seconds, processors = (taken[row["factor"]] for taken in times)
        row["seconds"] = statistics.median(seconds)
        row["seconds_per_chunk"] = row["seconds"] / row["chunks"]
        row["ratio"] = take_ratio(seconds, times[0][max(FACTORS)])
        row["processor_ratio"] = take_ratio(processors, times[1][max(FACTORS)])
    return {
        "kind": "chunk-sizes",
        "about": {
            "model": f"random weights, {options.shape}" if options.shape else options.model,
            "parameters": count_parameters(model),
            "length": options.length, "dtype": options.dtype, "device": options.device, **machine(options.device),
        },
        "texts": texts,
        "rounds": options.rounds if options.time else 0,
        "default_chunk_bytes": default.chunk_size.bytes,
        "rows": rows,
    }  # fmt: skip


def time_plans(
    model: Any, corpus: Any, plans: dict[float, Any], rounds: int
) -> tuple[dict[float, list[float]], dict[float, list[float]]]:
    """Return the seconds of each round by plan: on the clock, and of processors. Every other round goes backwards."""
    from headscope.run.local_engine import LocalEngine
    from headscope.run.run import run_chunks
    from headscope.run.state import RunState

    seconds: dict[float, list[float]] = {factor: [] for factor in plans}
    processors: dict[float, list[float]] = {factor: [] for factor in plans}
    counts = set()
    smallest = plans[min(plans)]
    list(LocalEngine(model, corpus, smallest).count(corpus.plan_chunks(smallest.chunk_size)[:1], {}))  # warm up
    for number in range(rounds):
        for factor in sorted(plans, reverse=bool(number % 2)):
            plan = plans[factor]
            state = RunState.empty(plan.get_shape(model))
            state.chunks = corpus.plan_chunks(plan.chunk_size)
            engine = LocalEngine(model, corpus, plan)
            started, worked = time.perf_counter(), time.process_time()
            run_chunks(engine, corpus, plan, state)
            seconds[factor].append(time.perf_counter() - started)
            processors[factor].append(time.process_time() - worked)
            counts.add((state.texts, state.stats.content))
            print(f"round {number + 1}: {factor:g} × the default: {seconds[factor][-1]:.2f} s", flush=True)
    if len(counts) > 1:
        raise SystemExit(f"chunks of different sizes counted different texts: {counts}")
    return seconds, processors


def count_batches(model: Any, corpus: Any, plan: Any) -> tuple[int, int]:
    """Return how many batches the texts are in, and how many tokens these have with padding: both are work."""
    from headscope.run.executor import choose_batch_size
    from headscope.run.pipeline import SectionReader

    size = choose_batch_size(model, plan.settings.length, plan.chunk_size.documents)
    reader = SectionReader(corpus, model, plan.settings.cut, size, plan.section_texts)
    shapes = [
        batch.ids.shape for section in reader.read(corpus.plan_chunks(plan.chunk_size), {}) for batch in section.batches
    ]
    return len(shapes), sum(texts * length for texts, length in shapes)


def take_ratio(mine: list[float], largest: list[float]) -> float:
    """Return the median over rounds of the time beside that of the largest chunks."""
    return statistics.median(one / other for one, other in zip(mine, largest, strict=True))


# -- bytes read --------------------------------------------------------------------------------------------------------


def read_bytes() -> int:
    """Return how many bytes this process has got from the system so far."""
    return int(IO.read_text().split()[1])


def write_lines(path: Path, size: int) -> int:
    """Write documents of random words, none like another, until there are so many bytes; return their number."""
    import numpy as np

    from measuring.setup import random_text

    random, count, written = np.random.default_rng(0), 0, 0
    pool = random_text(random, 200_000)
    with path.open("wb") as file:
        while written < size:
            start = int(random.integers(len(pool) - 2 * LINE_BYTES))
            length = int(random.integers(LINE_BYTES // 2, 3 * LINE_BYTES // 2))
            line = json.dumps({"text": f"{count} {pool[start : start + length]}"}).encode() + b"\n"
            written += file.write(line)
            count += 1
    return count


def read_chunks(corpus: Any, tasks: Any, results: Any, dies: bool) -> None:
    """Read chunks until there are no more: the work of one process.

    Puts `(chunk, documents, bytes)` into `results`; documents are -1 where the process ended in the middle.
    """
    while (chunk := tasks.get()) is not None:
        before, documents = read_bytes(), 0
        for _ in corpus.read_chunk(chunk):
            documents += 1
            if dies and documents >= LOST_AFTER:
                results.put((chunk, -1, read_bytes() - before))
                os._exit(1)
        results.put((chunk, documents, read_bytes() - before))


def read_with(corpus: Any, chunks: list[Any], readers: int, lost: int) -> dict[str, Any]:
    """Have processes read all chunks; a chunk whose process ended is read again by another one."""
    spawn = multiprocessing.get_context("spawn")
    tasks, results = spawn.SimpleQueue(), spawn.SimpleQueue()
    processes = [
        spawn.Process(target=read_chunks, args=(corpus, tasks, results, number < lost)) for number in range(readers)
    ]
    started = time.perf_counter()
    # Those that end midway are first, or on a busy machine the others might leave them nothing.
    for process in processes[: lost or readers]:
        process.start()
    waiting, under_way, done, documents, total, again, ended = list(reversed(chunks)), 0, 0, 0, 0, 0, 0
    while done < len(chunks):
        while waiting and under_way < 2 * readers:
            tasks.put(waiting.pop())
            under_way += 1
        chunk, counted, size = results.get()
        total, under_way = total + size, under_way - 1
        if counted < 0:
            waiting.append(chunk)
            again += size
            ended += 1
            for process in processes[lost:] if ended == lost else []:
                process.start()
        else:
            done, documents = done + 1, documents + counted
    for _ in processes:
        tasks.put(None)
    for process in processes:
        process.join()
    return {
        "readers": readers, "lost": ended, "documents": documents, "bytes": total, "read_again": again,
        "seconds": time.perf_counter() - started,
    }  # fmt: skip


def measure_bytes(options: argparse.Namespace) -> dict[str, Any]:
    """Count the bytes that several processes read of one file."""
    import headscope
    from headscope.run.plan import RunPlan
    from headscope.settings import Settings
    from measuring import setup
    from measuring.tables import machine

    if not IO.exists():
        raise SystemExit(f"{IO}: only Linux tells what a process reads")
    model = setup.model_of(options)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "texts.jsonl"
        count = write_lines(path, int(options.size * 1e9))
        size = path.stat().st_size
        before = read_bytes()
        corpus = headscope.documents(path)
        plan = RunPlan.create(model, corpus, Settings())
        chunks = corpus.plan_chunks(plan.chunk_size)
        planning = read_bytes() - before
        rows = []
        for readers, lost in [*((readers, 0) for readers in READERS), (READERS[-1], LOST)]:
            rows.append(read_with(corpus, chunks, readers, lost))
            if rows[-1]["documents"] != count:
                raise SystemExit(f"{rows[-1]['documents']} documents were read, and there are {count}")
    return {
        "kind": "chunk-bytes",
        "about": {
            "model": f"random weights, {options.shape}" if options.shape else options.model, **machine("cpu"),
        },
        "file_bytes": size,
        "documents": count,
        "chunks": len(chunks),
        "chunk_bytes": plan.chunk_size.bytes,
        "planning_bytes": planning,
        "rows": [row | {"ratio": (planning + row["bytes"]) / size} for row in rows],
    }  # fmt: skip


# -- planning ----------------------------------------------------------------------------------------------------------


def register_slow_storage(files: int, ending: str, latency: float) -> dict[str, int]:
    """Register the protocol `slow://`: a bucket of folders of files, every request to which takes `latency` seconds.

    Returns the numbers of requests by kind, which grow.
    """
    import io

    import fsspec

    requests = {"listing": 0, "metadata": 0, "opened": 0}
    content = (
        json.dumps({"text": "A document of a few words. " * (LINE_BYTES // 27)}).encode() + b"\n"
    ) * DOCUMENTS_PER_FILE

    class SlowStorage(fsspec.AbstractFileSystem):  # type: ignore[misc]
        protocol = "slow"
        cachable = False

        def _wait(self, kind: str, count: int = 1) -> None:
            requests[kind] += count
            time.sleep(count * latency)

        def _describe(self, number: int) -> dict[str, Any]:
            name = f"bucket/{number // FILES_PER_FOLDER:04}/{number:07}{ending}"
            return {"name": name, "size": REMOTE_FILE_BYTES, "type": "file", "ETag": f'"{number:032x}"'}

        def ls(self, path: str, detail: bool = True, **more: Any) -> list[Any]:
            place = self._strip_protocol(path).strip("/")
            if place == "bucket":
                folders = -(-files // FILES_PER_FOLDER)
                self._wait("listing", -(-folders // FILES_PER_PAGE))
                infos = [{"name": f"bucket/{number:04}", "size": 0, "type": "directory"} for number in range(folders)]
            else:
                first = int(place.split("/")[1]) * FILES_PER_FOLDER
                after = min(files, first + FILES_PER_FOLDER)
                self._wait("listing", -(-(after - first) // FILES_PER_PAGE))
                infos = [self._describe(number) for number in range(first, after)]
            return infos if detail else [info["name"] for info in infos]

        def info(self, path: str, **more: Any) -> dict[str, Any]:
            self._wait("metadata")
            place = self._strip_protocol(path).strip("/")
            if place.count("/") < 2:
                return {"name": place, "size": 0, "type": "directory"}
            return self._describe(int(place.rpartition("/")[2].partition(".")[0]))

        def _open(self, path: str, mode: str = "rb", **more: Any) -> io.BytesIO:
            self._wait("opened")
            return io.BytesIO(content)

    fsspec.register_implementation("slow", SlowStorage, clobber=True)
    return requests


def measure_planning(options: argparse.Namespace) -> dict[str, Any]:
    """List and plan many remote files; return seconds and requests."""
    import headscope
    from headscope.run.plan import RunPlan
    from headscope.settings import Settings
    from measuring import setup
    from measuring.tables import machine

    model = setup.model_of(options)
    rows = []
    for ending in (".jsonl", ".parquet"):
        requests = register_slow_storage(options.plan, ending, options.latency)
        started = time.perf_counter()
        corpus = headscope.documents("slow://bucket/")
        listed, listing = time.perf_counter() - started, dict(requests)
        settings = Settings()
        if ending == ".parquet":  # its content is not there to be read
            corpus = replace(corpus, size=options.plan)
        plan = RunPlan.create(model, corpus, settings)
        chunks = corpus.plan_chunks(plan.chunk_size)
        identity = plan.get_identity(model, corpus)
        rows.append(
            {
                "files": f"{options.plan:,} {ending}",
                "seconds": time.perf_counter() - started,
                "seconds_listing": listed,
                "listing_requests": listing["listing"],
                "metadata_requests": requests["metadata"],
                "files_opened": requests["opened"],
                "chunks": len(chunks),
                "identity_bytes": len(json.dumps(identity)),
            }
        )
    return {
        "kind": "planning",
        "about": machine("cpu"),
        "files": options.plan,
        "latency": options.latency,
        "rows": rows,
    }


def build_parser() -> argparse.ArgumentParser:
    from measuring import setup

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    setup.add_options(parser)
    parser.add_argument("--texts", type=int, help="without it four times the documents of a chunk")
    parser.add_argument("--sample", type=float, default=0.05, help="fraction of texts in the sample")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-time", dest="time", action="store_false", help="count batches and tokens only")
    parser.add_argument("--bytes", action="store_true", help="count bytes read instead")
    parser.add_argument("--size", type=float, default=2.0, help="of the file, in GB (default 2)")
    parser.add_argument("--plan", type=int, metavar="FILES", help="plan so many remote files instead")
    parser.add_argument("--latency", type=float, default=0.05, help="seconds a request to storage takes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the result there")
    return parser


def main(arguments: list[str] | None = None) -> None:
    from measuring.chunk_tables import bytes_table, planning_table, sizes_table
    from measuring.tables import save

    options = build_parser().parse_args(arguments)
    if options.plan:
        result, show = measure_planning(options), planning_table
    elif options.bytes:
        result, show = measure_bytes(options), bytes_table
    else:
        result, show = measure_sizes(options), sizes_table
    print(show(result))
    if options.json:
        save(result, options.json)


if __name__ == "__main__":
    main()
