"""Constants and helpers that several commands share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from eagc_ops.places import readable_file
from eagc_ops.training.config import ConfigError
from eagc_ops.training.engine.preconditions import changed
from eagc_ops.training.engine.run_folder import RunFolder

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


def check_trained(run: Path, changes: dict[str, Any]) -> None:
    """Check that `run` is a complete run whose weights are there, and that `changes` may be made to it."""
    folder = RunFolder.open(run, what="RUN")
    changed(folder.config, changes)
    if folder.result() is None:
        raise ConfigError(f"{run} is not a complete run: go on with it first")
    readable_file("RUN: the checkpoint", folder.last, "restore a copy")
