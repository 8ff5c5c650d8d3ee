"""Trace one document through `headscope.study`: which files and functions of headscope take part.

    python scripts/trace_document.py [--model minilm] [--functions] [--no-checkpoints]

Two numbers are given, for all threads of the process:

- *the call*: functions that are entered from the call of `headscope.study` until it returns;
- *the document* (marked `*`): those among them that are entered, or are waiting for what they called, from when the
  chunk of the document is opened until its sums are in the state of the run. What comes before (settings, plan, lock,
  checkpoint, choice of the kernel) and after (labels, manifest, checkpoint) is not among them.

The model is loaded and the corpus, a JSONL file of one document, is opened before the call. The study runs with the
default settings on the local engine, with or without checkpoints. It runs once before it is traced, so that modules are
imported, loops compiled and the kernel is tried: these happen once for a process, not for a document.

Functions are those whose code lies in a file of the package; each is counted once, however often it runs. Lambdas,
comprehensions and generator expressions belong to the function around them; the bodies of modules and of classes,
methods that dataclasses generate, and what numba compiled are not counted. A file is counted if one of its functions
is. The runner is the packages `corpus`, `model`, `tally`, `run` and `studies` (in older versions also `engines`).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import CO_NEWLOCALS, CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

RUNNER = ("corpus", "model", "tally", "run", "studies", "engines")
OPENED = (
    ("corpus/chunks.py", "read_chunk"),
    ("corpus/shards.py", "Shard.read"),
    ("corpus/shards.py", "Shard._documents"),
)
"""functions, by file and name, that open the chunk of the document; the latter in older versions"""
ADDED = ("run/state.py", "RunState.add"), ("studies/standing.py", "Standing.add"), ("studies/account.py", "Account.add")
"""those that add its sums"""
Function = tuple[str, str]
"""file relative to the package, qualified name"""
TEXT = "Two ravens met. The ravens left. Bread is made of flour, and dough needs yeast. The bread rises."


class Trace:
    """The functions that were entered, and those among them that ran while the document was handled."""

    def __init__(self, package: Path) -> None:
        self.package = package
        self.call: set[Function] = set()
        self.document: set[Function] = set()
        self.handles_document = False
        self._names: dict[CodeType, Function | None] = {}

    def record(self, frame: FrameType, event: str, argument: Any) -> None:
        """Take note of an event; called by Python for every call and return."""
        if event not in ("call", "return"):
            return
        function = self._get_function(frame.f_code)
        if function is None:
            return
        if event == "return":
            if function in ADDED:
                self.handles_document = False
            return
        self.call.add(function)
        if function in OPENED and not self.handles_document:
            self.handles_document = True
            for waiting in sys._current_frames().values():
                self._record_callers(waiting)
        if self.handles_document:
            self.document.add(function)

    def _record_callers(self, frame: FrameType | None) -> None:
        while frame is not None:
            function = self._get_function(frame.f_code)
            if function in self.call:
                self.document.add(function)
            frame = frame.f_back

    def _get_function(self, code: CodeType) -> Function | None:
        if code not in self._names:
            path = Path(code.co_filename)
            is_ours = path.is_relative_to(self.package) and is_function(code)
            self._names[code] = (path.relative_to(self.package).as_posix(), code.co_qualname) if is_ours else None
        return self._names[code]


def is_function(code: CodeType) -> bool:
    """Return whether code is that of a function with a name: not of a module, a class, a lambda or a comprehension."""
    is_body_of_function = bool(code.co_flags & CO_OPTIMIZED) and bool(code.co_flags & CO_NEWLOCALS)
    return is_body_of_function and not code.co_name.startswith("<")


@contextmanager
def trace_functions(package: Path) -> Iterator[Trace]:
    """Trace all functions of a package that are entered within this context, also in threads that start there."""
    trace = Trace(package)
    threading.setprofile(trace.record)
    sys.setprofile(trace.record)
    try:
        yield trace
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def format_trace(trace: Trace, *, with_functions: bool) -> str:
    """Return the files with their numbers of functions, and the sums."""
    lines = ["the call  the document  file"]
    for path in sorted({path for path, _ in trace.call}):
        names = sorted(name for file, name in trace.call if file == path)
        handling = [name for name in names if (path, name) in trace.document]
        lines.append(f"{len(names):8}  {len(handling) or '':12}  {path}")
        if with_functions:
            lines += [f"{'':24}  {'*' if name in handling else ' '} {name}" for name in names]
    for title, functions in (("the call", trace.call), ("the document", trace.document)):
        runner = {(path, name) for path, name in functions if path.partition("/")[0] in RUNNER}
        lines.append(f"{title}: {format_counts(functions)}; of the runner: {format_counts(runner)}")
    return "\n".join(lines)


def format_counts(functions: set[Function]) -> str:
    """Return the numbers of files and functions, in words."""
    return f"{len({path for path, _ in functions})} files, {len(functions)} functions"


def main(arguments: list[str] | None = None) -> None:
    """Trace one document and print what took part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--functions", action="store_true", help="list the functions too")
    parser.add_argument("--no-checkpoints", dest="checkpoints", action="store_false")
    options = parser.parse_args(arguments)

    import headscope

    model = headscope.load(options.model, device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "text.jsonl"
        path.write_text(json.dumps({"text": TEXT}) + "\n", encoding="utf-8")
        corpus = headscope.documents(path)
        stored = [
            {"checkpoint_dir": Path(folder) / name} if options.checkpoints else {} for name in ("first", "second")
        ]
        headscope.study(model, corpus, **stored[0])
        with trace_functions(Path(headscope.__file__).parent) as trace:
            headscope.study(model, corpus, **stored[1])
    print(format_trace(trace, with_functions=options.functions))


if __name__ == "__main__":
    main()
