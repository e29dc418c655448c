"""Constants and helpers that several commands share."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from eagc_ops.app.console import path
from eagc_ops.app.places import readable_file
from eagc_ops.training.config import LISTED_NOW, Config, ConfigError, config_from_arguments
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
# What features of a pretrained encoder depend on, and the machine that computes them
OF_FEATURES = (
    *("dataset", "root", "split_file", "skip_unreadable", "glyphs", "image_size", "channels", "backbone"),
    *("weights", "seed", "device", "workers"),
)


def add_output(parser: argparse.ArgumentParser, default: str, text: str) -> None:
    """Add the option --output, a folder."""
    parser.add_argument(
        "-o", "--output", type=path, default=Path(default), metavar="FOLDER", help=f"{text} [{default}]"
    )


def config_without_training(settings: Mapping[str, Any]) -> Config:
    """The configuration of a command that trains nothing."""
    # The batch size is not used, but it must fit a small data set.
    return config_from_arguments(argparse.Namespace(**settings, batch_size=2))


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
        return "run its `eagc discover` command again first"
    return f"go on with it first, by eagc train --resume {shlex.quote(str(folder.path))}"


def check_trained(run: Path, changes: dict[str, Any]) -> None:
    """Check that `run` is a complete run whose weights are there, and that `changes` may be made to it."""
    folder = RunFolder.open(run, what="RUN")
    changed(folder.config, changes)
    if folder.result() is None:
        raise ConfigError(f"{run} is not a complete run: {how_to_finish(folder)}")
    readable_file("RUN: the checkpoint", folder.last, "restore a copy")
