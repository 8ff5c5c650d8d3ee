"""What many tests share."""

from __future__ import annotations

import os
import shutil
import signal

# Where there is no GPU, its kernels run in Triton's interpreter, which Triton wants to know before it is imported.
if shutil.which("nvidia-smi") is None:
    os.environ.setdefault("TRITON_INTERPRET", "1")
# Tests run side by side, each in one thread; and how many batches are told of at once depends on it.
os.environ["OMP_NUM_THREADS"] = "1"
# A script's shell has what it starts with `&` ignore Ctrl-C, and every process below inherits that. Tests of what
# Ctrl-C does, here and in the processes they start, need it to arrive.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

import headscope
from headscope.model import loading
from headscope.model.model import Model
from tests.helpers.browser import chromium, page_opener
from tests.helpers.command_line import corpus, headscope_command, one_figure
from tests.helpers.interrupting import small_chunks
from tests.helpers.netcdf_cache import opened_once

__all__ = [
    "chromium",
    "corpus",
    "headscope_command",
    "minilm",
    "one_figure",
    "opened_once",
    "page_opener",
    "small_chunks",
]


# How long an example takes, or making one up, depends on what else the machine does.
# The same examples in every run: `make soak` looks for new ones.
settings.register_profile(
    "untimed",
    deadline=None,
    derandomize="HEADSCOPE_SOAK" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def minilm() -> Model:
    """The default model, loaded once: that takes seconds."""
    return headscope.load()


@pytest.fixture
def loaded_once(minilm: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading the bundled model takes seconds; other names go the usual way."""
    real = loading.load

    def load(name: object = "minilm", *args: object, **options: object) -> Model:
        return minilm if name == "minilm" else real(name, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(loading, "load", load)


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One cache folder for all tests of a run: the bundled model's background takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests are for `make soak`, which says so."""
    if "HEADSCOPE_SOAK" in os.environ:
        return
    for item in items:
        if item.get_closest_marker("soak"):
            item.add_marker(pytest.mark.skip(reason="slow: make soak runs it"))
