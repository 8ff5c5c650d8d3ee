"""Folder for files that are cached between runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def find_cache_folder() -> Path | None:
    """Return the cache folder, which may not exist yet; None without a home folder.

    It is below `XDG_CACHE_HOME` if that is set, otherwise in the platform's standard location.
    """
    chosen = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("LOCALAPPDATA") if sys.platform == "win32" else None)
    if chosen:
        return Path(chosen) / "headscope"
    try:
        home = Path.home()
    except RuntimeError:  # the user id is not in the user database, as in containers
        return None
    return home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "headscope"
