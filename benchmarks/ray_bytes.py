"""Count the bytes that the workers of a real Ray cluster on this machine read of one JSONL file.

    python benchmarks/ray_bytes.py [--size 2] [--workers 1 2 8] [--kill 2] [--json FILE]

Every worker counts what it gets from the system (Linux) while it counts the chunks of a task. The model is tiny, so
that a large file is studied in minutes. In the last row workers are killed while they count; what they had read of
their tasks is read again, and is given apart. Tasks take 2 instead of 30 seconds in that row: this model counts in them
what a real one counts in half a minute. All rows must hold the same number of documents.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "soak"))

from chunks import read_bytes, write_lines
from headscope.run.ray_worker import ChunkWorker, TaskResult
from measuring.chunk_tables import ray_bytes_table
from measuring.tables import machine, save

LENGTH = 16
KILLED_TASK_SECONDS = 2.0
RECORDS = "HEADSCOPE_BYTES"
"""environment variable with the folder for the counts of workers"""
BEGUN, READ = "begun", "read"


class CountingWorker(ChunkWorker):
    """A worker that writes to files how many bytes it read in its tasks, and how many before the present one."""

    def count(self, task: Any, sources: Any) -> TaskResult:
        """Count the chunks of a task."""
        self.get_engine()  # what reading the model takes is not counted
        folder, before = Path(os.environ[RECORDS]), read_bytes()
        (folder / f"{os.getpid()}.{BEGUN}").write_text(str(before))
        result = super().count(task, sources)
        with (folder / f"{os.getpid()}.{READ}").open("a") as file:
            file.write(f"{read_bytes() - before}\n")
        (folder / f"{os.getpid()}.{BEGUN}").unlink()
        return result


def kill_counting_worker(folder: Path) -> int:
    """Kill a worker that counts; return how many bytes it had read of its task, or -1 if none counts."""
    for path in folder.glob(f"*.{BEGUN}"):
        with suppress(OSError, ValueError, IndexError):
            process, before = int(path.stem), int(path.read_text())
            os.kill(process, signal.SIGSTOP)
            size = int(Path(f"/proc/{process}/io").read_text().split()[1]) - before
            os.kill(process, signal.SIGKILL)
            path.unlink()
            return size
    return -1


def study_file(model: Path, path: Path, workers: int, kills: int, pause: float) -> dict[str, Any]:
    """Study a file with some workers, of which some are killed; return what was read."""
    import ray

    import headscope

    lost, done = list[int](), threading.Event()

    def kill_workers() -> None:
        while len(lost) < kills and not done.wait(pause):
            if (size := kill_counting_worker(records)) >= 0:
                lost.append(size)

    with tempfile.TemporaryDirectory() as folder:
        records = Path(folder)
        os.environ[RECORDS] = folder
        ray.init("local", num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level="error")
        killer = threading.Thread(target=kill_workers)
        killer.start()
        started = time.perf_counter()
        study = headscope.study(
            headscope.load(model, device="cpu"), path, length=LENGTH, sample=0.0, maps=False, engine="ray",
            workers=workers, on_message=lambda message: print(message, flush=True),
        )  # fmt: skip
        seconds = time.perf_counter() - started
        done.set()
        killer.join()
        ray.shutdown()
        read = sum(int(line) for file in records.glob(f"*.{READ}") for line in file.read_text().split())
    return {
        "workers": workers, "killed": len(lost), "bytes": read + sum(lost), "read_again": sum(lost), "seconds": seconds,
        "documents": study.manifest["documents_read"],
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    """Study a file with several numbers of workers, and print a table."""
    import small_model

    from headscope.run import engines, ray_engine

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=float, default=2.0, help="of the file, in GB (default 2)")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 8])
    parser.add_argument("--kill", type=int, default=2, help="workers of the most that are killed, in a run of its own")
    parser.add_argument("--pause", type=float, default=20.0, help="seconds between two of them")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the result there")
    options = parser.parse_args(arguments)
    ray_engine.ChunkWorker = CountingWorker  # type: ignore[misc]
    with tempfile.TemporaryDirectory() as folder:
        model, path = small_model.saved(Path(folder) / "model"), Path(folder) / "texts.jsonl"
        count = write_lines(path, int(options.size * 1e9))
        rows = [study_file(model, path, workers, 0, options.pause) for workers in options.workers]
        engines.TASK_SECONDS = engines.MIN_TASK_SECONDS = KILLED_TASK_SECONDS
        rows.append(study_file(model, path, max(options.workers), options.kill, options.pause))
        size = path.stat().st_size
    if any(row["documents"] != count for row in rows):
        raise SystemExit(f"there are {count} documents, and these were counted: {[row['documents'] for row in rows]}")
    result = {
        "kind": "ray-bytes", "about": machine("cpu"), "file_bytes": size, "documents": count,
        "rows": [row | {"ratio": row["bytes"] / size} for row in rows],
    }  # fmt: skip
    print(ray_bytes_table(result))
    if options.json:
        save(result, options.json)


if __name__ == "__main__":
    main()
