"""Home and cache folders that do not exist or cannot be written."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from headscope import file_io
from headscope.segmentation import topic as backgrounds
from tests.helpers.portability import run_python

NO_HOME = """
import sys
sys.modules["pwd"] = None  # as for a user number that no list of users has
from headscope.cli import main
sys.argv = ["headscope", *sys.argv[1:]]
main()
"""


def test_models_without_a_home(tmp_path: Path) -> None:
    ran = run_python(NO_HOME, "models", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "minilm" in ran.stdout


def test_segments_without_a_home(model_folder: Path, tmp_path: Path) -> None:
    text = "a b c. the d e f. " * 5
    ran = run_python(NO_HOME, "segment", text, "--model", model_folder, "--quiet", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "a b c" in ran.stdout
    assert ran.stderr.count("there is no home folder") == 1
    assert "XDG_CACHE_HOME" in ran.stderr
    assert not list(tmp_path.iterdir())


def test_nothing_compiled_is_kept_without_a_home(tmp_path: Path) -> None:
    code = """
        import os, sys
        sys.modules["pwd"] = None
        from numba.core import caching

        def refuse(*_):
            raise OSError("read-only")

        os.access = lambda *_: False
        caching.InTreeCacheLocator.ensure_cache_path = caching.InTreeCacheLocatorFsAgnostic.ensure_cache_path = refuse
        from headscope.tally.numba_backend import attention
    """
    for variables in ({}, {"XDG_CACHE_HOME": str(tmp_path / "cache")}):
        ran = run_python(code, environment=variables, cwd=tmp_path)
        assert ran.returncode == 0, ran.stderr
        assert [path.name for path in tmp_path.iterdir()] == (["cache"] if variables else [])


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))  # root may write to any folder, but not into a file
    monkeypatch.setattr(backgrounds, "measure_background", lambda model, done: measured)
    contrast = SimpleNamespace(gain=np.ones(2), noise=np.ones((2, 2)))
    measured: Any = SimpleNamespace(maps=np.ones((2, 1, 1)), mean=np.ones((2, 1)), contrast=contrast)
    model: Any = SimpleNamespace(weight_hash="0", architecture=SimpleNamespace(stack="encoder"), dtype="float32")
    backgrounds._warn.cache_clear()
    for _ in range(2):
        assert backgrounds.load_background(model) is measured
    assert len(caplog.messages) == 1
    assert "not kept" in caplog.messages[0]


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {"XDG_CACHE_HOME": "/x"}, "/x/headscope"),
        ("darwin", {"XDG_CACHE_HOME": "/x"}, "/x/headscope"),
        ("win32", {"XDG_CACHE_HOME": "/x", "LOCALAPPDATA": "/local"}, "/x/headscope"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/headscope"),
        ("win32", {}, "/home/me/.cache/headscope"),
        ("darwin", {"LOCALAPPDATA": "/local"}, "/home/me/Library/Caches/headscope"),
        ("linux", {"XDG_CACHE_HOME": "", "LOCALAPPDATA": "/local"}, "/home/me/.cache/headscope"),
    ],
)
def test_cache_folders(
    monkeypatch: pytest.MonkeyPatch, platform: str, variables: dict[str, str], expected: str
) -> None:
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/me", **variables}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(file_io, "sys", SimpleNamespace(platform=platform))
    assert file_io.find_cache_folder() == Path(expected)
