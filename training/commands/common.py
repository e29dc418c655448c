"""Constants and helpers that several commands share."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eagc_ops.app.places import readable_file
from eagc_ops.training.config import LISTED_NOW, ConfigError
from eagc_ops.training.config.places import check_root
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


def list_unreadable(
    settings: dict[str, Any], file: Path, check: Callable[[dict[str, Any]], object] = dict
) -> None:
    """Replace --skip-unreadable without a file by the list `file`, which is made if it does not exist.

    `check` refuses the other settings before any image is looked at.
    """
    if settings.get("skip_unreadable") != LISTED_NOW:
        return
    check({name: value for name, value in settings.items() if name != "skip_unreadable"})
    dataset, root = settings.get("dataset", "digits"), settings.get("root")
    check_root(dataset, root)
    if not file.exists():
        from eagc_ops.training.data import verify  # torchvision takes seconds to import
        from eagc_ops.training.data.image_files import write_list

        found = verify(dataset, root, settings.get("split_file"), deep=True, progress=is_main_process())
        if found.home is None:  # the images come with a package
            del settings["skip_unreadable"]
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        write_list(file, found.home, dict(found.unreadable))
    settings["skip_unreadable"] = str(file)


def how_to_finish(folder: RunFolder) -> str:
    """The remedy where a run, or a file that it writes, is not complete."""
    if folder.result() is not None:
        return "restore a copy"
    if folder.config.dataset == "discover":
        return "type its `eagc discover` command again first"
    return f"go on with it first, by eagc train --resume {shlex.quote(str(folder.path))}"


def check_trained(run: Path, changes: dict[str, Any]) -> None:
    """Check that `run` is a complete run whose weights are there, and that `changes` may be made to it."""
    folder = RunFolder.open(run, what="RUN")
    changed(folder.config, changes)
    if folder.result() is None:
        raise ConfigError(f"{run} is not a complete run: {how_to_finish(folder)}")
    readable_file("RUN: the checkpoint", folder.last, "restore a copy")
