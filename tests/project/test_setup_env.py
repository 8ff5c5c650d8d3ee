"""scripts/setup_env.py: which torch an environment gets. The environments themselves are made by make and .ci/run."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import venv
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def setup_env(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import the script, with a pip that only records what it is asked for."""
    spec = importlib.util.spec_from_file_location("setup_env", ROOT / "scripts" / "setup_env.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.calls = []
    monkeypatch.setattr(module, "install", lambda python, *arguments: module.calls.append(arguments))
    return module


@pytest.fixture
def python(tmp_path: Path) -> Path:
    venv.create(tmp_path / "venv", with_pip=False, symlinks=os.name != "nt")
    return tmp_path / "venv" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def provide_torch(monkeypatch: pytest.MonkeyPatch, folder: Path, version: str) -> None:
    """Let the running Python have a torch of some version, with a module that says where it comes from."""
    metadata = folder / f"torch-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n", encoding="utf-8")
    (folder / "torch.py").write_text("ORIGIN = 'reused'\n", encoding="utf-8")
    distribution = importlib.metadata.PathDistribution(metadata.parent)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: distribution)


def test_an_existing_torch_is_reused(
    setup_env: Any, python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provide_torch(monkeypatch, tmp_path / "elsewhere", "2.11.0+cu130")
    constraints = setup_env.choose_torch(python, "auto")
    assert setup_env.calls == []
    names = {line.partition("==")[0] for line in constraints.read_text(encoding="utf-8").splitlines()}
    assert "transformers" in names
    assert not any(name.startswith(("torch", "triton", "nvidia", "cuda")) for name in names)
    shown = subprocess.run(
        [python, "-c", "import torch; print(torch.ORIGIN)"], capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == "reused"


@pytest.mark.parametrize(("version", "choice"), [("2.5.1", "auto"), ("2.11.0", "default")])
def test_one_that_is_too_old_or_not_wanted_is_not(
    setup_env: Any, python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, choice: str
) -> None:
    provide_torch(monkeypatch, tmp_path / "elsewhere", version)
    assert setup_env.choose_torch(python, choice) == ROOT / "constraints.txt"
    assert setup_env.calls == []


@pytest.mark.parametrize(("platform", "asked"), [("linux", True), ("darwin", False), ("win32", False)])
def test_the_cpu_build(
    setup_env: Any, python: Path, monkeypatch: pytest.MonkeyPatch, platform: str, asked: bool
) -> None:
    monkeypatch.setattr(setup_env.sys, "platform", platform)
    assert setup_env.choose_torch(python, "cpu") == ROOT / "constraints.txt"
    locked = setup_env.read_locked_version("torch")
    assert [call[-1] for call in setup_env.calls] == ([f"torch=={locked}"] if asked else [])


def test_the_lock_has_one_version_of_each_package(setup_env: Any) -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    names = [line.partition("==")[0] for line in lines if "==" in line]
    assert len(names) == len(set(names)) > 80
