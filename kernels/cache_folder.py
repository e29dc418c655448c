"""The user's cache folder: what was found or made once, and can be made again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """The folder of this package; XDG_CACHE_HOME moves it. It need not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "eagc-ops")
