"""Create .venv and install headscope into it with the versions of constraints.txt. Needs nothing but Python.

    python scripts/setup_env.py [--dev] [--torch auto|cpu|default] [--venv .venv]

`--torch auto` reuses the torch of the Python that runs this script if it is recent enough. Otherwise, and with
`--torch default`, torch comes from the package index, which on Linux means the CUDA build (about 5 GB on disk).
`--torch cpu` takes PyTorch's CPU build instead (about 1 GB).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import re
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "constraints.txt"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
OLDEST_TORCH = (2, 6)
TORCH_FAMILY = re.compile(r"(torch|triton|cuda-|nvidia-)")


def find_torch() -> tuple[str, Path] | None:
    """Return version and folder of the torch of this Python, or None if there is none that headscope can use."""
    try:
        torch = importlib.metadata.distribution("torch")
    except importlib.metadata.PackageNotFoundError:
        return None
    major, minor = re.findall(r"\d+", torch.version)[:2]
    folder = Path(str(torch.locate_file("")))
    return (torch.version, folder) if (int(major), int(minor)) >= OLDEST_TORCH else None


def read_locked_version(package: str) -> str:
    """Return the version of a package in the lock."""
    return re.search(rf"^{package}==([^\s;]+)", LOCK.read_text(encoding="utf-8"), re.MULTILINE)[1]


def install(python: Path, *arguments: str) -> None:
    """Run pip in the environment; exit with its status if it fails."""
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *arguments]
    if status := subprocess.run(command, cwd=ROOT, check=False).returncode:
        sys.exit(status)


def choose_torch(python: Path, choice: str) -> Path:
    """Provide torch as asked for and return the constraints for everything else."""
    existing = find_torch() if choice == "auto" else None
    if existing:
        version, folder = existing
        print(f"reusing torch {version} of {folder} (--torch default installs the locked version)", flush=True)
        command = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        packages = Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())
        # Folders named in a .pth file come after the environment's own packages.
        (packages / "reused_torch.pth").write_text(f"{folder}\n", encoding="utf-8")
        constraints = python.parent.parent / "constraints.txt"
        lines = LOCK.read_text(encoding="utf-8").splitlines(keepends=True)
        constraints.write_text("".join(line for line in lines if not TORCH_FAMILY.match(line)), encoding="utf-8")
        return constraints
    if choice == "cpu" and sys.platform == "linux":  # elsewhere the package index has no other build
        install(python, "--no-deps", "--index-url", CPU_INDEX, f"torch=={read_locked_version('torch')}")
    return LOCK


def main() -> None:
    """Set up the environment that the options describe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dev", action="store_true", help="with what tests, lint and benchmarks need")
    parser.add_argument("--torch", choices=("auto", "cpu", "default"), default="auto")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    options = parser.parse_args()
    if sys.version_info < (3, 11):  # noqa: UP036 (older ones are told)
        sys.exit(f"headscope needs Python 3.11 or newer, this is {sys.version.split()[0]}")
    python = options.venv.absolute() / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists():
        venv.create(options.venv, with_pip=True)
    install(python, "-c", str(LOCK), "pip")  # one that knows dependency groups
    constraints = choose_torch(python, options.torch)
    if options.dev:
        install(python, "-c", str(constraints), "-e", ".[demo,datasets,ray]", "--group", "dev")
    else:
        install(python, "-c", str(constraints), "-e", ".[demo]")


if __name__ == "__main__":
    main()
