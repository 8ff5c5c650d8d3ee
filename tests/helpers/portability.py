"""A tiny model, its texts, and Python processes of a chosen environment, for tests of other platforms."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from headscope.model.loading import load
from headscope.model.model import Model
from tests.helpers import tiny

TEXTS = ["a b c. the d e f a b!", "the c d a. b c d e f the a", "a the b c d. e f g"]
LENGTH = 32


def make_model() -> Model:
    return load(tiny.network("bert"), tiny.tokenizer())


def run_python(
    code: str, *arguments: object, environment: dict[str, str] | None = None, cwd: Path | None = None
) -> Any:
    inherited = {name: os.environ[name] for name in ("PATH", "OMP_NUM_THREADS") if name in os.environ}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        env={**inherited, "PYTHONPATH": os.pathsep.join(sys.path), **(environment or {})},
        cwd=cwd,
        check=False,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
    )
