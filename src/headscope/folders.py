"""Where files are kept between runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def find_cache_folder() -> Path | None:
    """Return the folder for what can be made again, which may not exist yet; None without a home folder.

    It is below `XDG_CACHE_HOME` where that is set, else where the platform keeps such files.
    """
    chosen = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("LOCALAPPDATA") if sys.platform == "win32" else None)
    if chosen:
        return Path(chosen) / "headscope"
    try:
        home = Path.home()
    except RuntimeError:  # containers run under user numbers that no list of users has
        return None
    return home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "headscope"
