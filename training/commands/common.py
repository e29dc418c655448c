"""Constants and helpers that several commands share."""

from __future__ import annotations

import os
from pathlib import Path

MOST_SEEDS = 1000  # of a demo or a table: every one is planned as a set of runs
MOST_JOBS = 256  # processes
RUNS = Path("runs")  # the default folder of runs and of encoders that are made here
# Settings that may have changed since a run was trained: its files were moved, or this is a different
# machine.
MOVED = (
    *("root", "split_file", "skip_unreadable", "weights", "init", "pixel_cache", "trunk_cache"),
    *("device", "workers"),
)


def is_main_process() -> bool:
    """Whether this process prints; a launcher starts several."""
    return os.environ.get("RANK", "0") == "0"
