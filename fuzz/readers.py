"""Coverage-guided fuzzing of every reader and opener with atheris, by hand (it is no dependency).

    python fuzz/readers.py TARGET SEEDS/ [libFuzzer's options, for instance -max_total_time=60]

A target is a file name that says the format (a.jsonl, a.csv.gz, a.png, …), or `study`, `reading`, `ablation`, or
`checkpoint`, which always gets the right hash: a wrong one is all that would be seen.
SEEDS/ gets valid files to start from, if it is empty. Anything raised but a HeadscopeError ends the run.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["headscope", "h5netcdf"]):
    from headscope.corpus.documents import documents
    from headscope.errors import HeadscopeError, StudyError
    from headscope.pruning.ablation_result import open_ablation
    from headscope.readings.files import open_reading
    from headscope.run.checkpoint import DIGEST_SIZE, SIGNATURE, DamagedError, parse_checkpoint
    from headscope.studies.result import open_study
    from headscope.tally.quantities import Shape

sys.path.insert(0, str(Path(__file__).parent.parent))

SHAPE = Shape(2, 4, 16)


def open_checkpoint(path: Path) -> object:
    """Open a checkpoint that has these bytes behind the hash that fits them."""
    payload = path.read_bytes()
    digest = hashlib.blake2b(payload, digest_size=DIGEST_SIZE).digest()
    try:
        return parse_checkpoint(SIGNATURE + digest + payload).load_state(SHAPE).texts
    except DamagedError as reason:
        raise StudyError(str(reason)) from None


OPENERS: dict[str, Callable[[Path], object]] = {
    "study": lambda path: [repr(open_study(path)), open_study(path).heads()],
    "reading": lambda path: repr(open_reading(path)),
    "ablation": lambda path: open_ablation(path).table(),
    "checkpoint": open_checkpoint,
}


def seeds(target: str) -> list[bytes]:
    """Valid files of a target."""
    if target not in OPENERS:
        from tests.corpus.test_fuzz_documents import VALID

        return [VALID[target]()]
    if target == "checkpoint":
        from tests.helpers.interrupting import make_checkpoint_payload

        return [make_checkpoint_payload(SHAPE)]
    from tests import test_fuzz_files

    return [test_fuzz_files.valid(target)]


def once(target: str, path: Path, raw: bytes) -> None:
    """Read a file of these bytes, with and without skipping what is broken."""
    path.write_bytes(raw)
    try:
        if target in OPENERS:
            OPENERS[target](path)
            return
        for document in documents(path):
            document.text.encode()
    except HeadscopeError:
        pass
    if target not in OPENERS:
        try:
            for document in documents(path, skip_broken=True):
                document.text.encode()
        except HeadscopeError:
            pass


def main() -> None:
    """Fuzz the target that the command line names."""
    target, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    if not any(folder.iterdir()):
        for number, raw in enumerate(seeds(target)):
            (folder / f"seed{number}").write_bytes(raw)
    place = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=place) as held:
        path = Path(held) / (f"{target}.nc" if target in OPENERS else target)
        atheris.Setup([sys.argv[0], *sys.argv[2:]], lambda raw: once(target, path, raw))
        atheris.Fuzz()


if __name__ == "__main__":
    main()
