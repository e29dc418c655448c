"""Constants and helpers that several commands share."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RUNS = Path("runs")  # the default folder of runs and of encoders that are made here
# Settings that may have changed since a run was trained: its files were moved, or this is a different
# machine.
MOVED = ("root", "split_file", "skip_unreadable", "weights", "init", "trunk_cache", "device", "workers")


def scores_text(scores: Mapping[str, Any], digits: int = 2) -> str:
    """All, Old and New in percent; a dash for a score that does not exist, as New without new images.

    >>> scores_text({"all": 0.5, "old": 0.5, "new": None})
    'All 50.00%  Old 50.00%  New -'
    """

    def percent(value: float | None) -> str:
        return "-" if value is None or math.isnan(value) else f"{value:.{digits}%}"

    return "  ".join(f"{name.capitalize()} {percent(scores[name])}" for name in ("all", "old", "new"))


def is_main_process() -> bool:
    """Whether this process prints; a launcher starts several."""
    return os.environ.get("RANK", "0") == "0"
