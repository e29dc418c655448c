"""How far runs are, by their folders, and the time of what is left. Needs no torch."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from pathlib import Path

from eagc_ops.training.engine.run_folder import RunFolder

__all__ = ["duration", "epochs_done", "seconds_per_step"]


def epochs_done(folder: Path) -> int | None:
    """The number of epochs that a run has finished; None if the run is complete."""
    if (folder / "result.json").exists():
        return None
    if not (folder / "run.json").exists():
        return 0
    epochs = [line["epoch"] + 1 for line in RunFolder.open(folder).metrics() if line["kind"] == "epoch"]
    return max(epochs, default=0)  # not every epoch is evaluated


def seconds_per_step(folders: Iterable[Path]) -> float | None:
    """Median over the epochs of these runs; None if they have none."""
    metrics = (line for folder in folders for line in RunFolder.open(folder).metrics())
    seconds = [line["seconds"] / line["steps"] for line in metrics if line["kind"] == "epoch"]
    return statistics.median(seconds) if seconds else None


def duration(seconds: Iterable[float]) -> str:
    """The sum of some seconds, for people."""
    total = sum(seconds)
    if total < 120:
        return f"{total:.0f} s"
    return f"{total / 60:.0f} min" if total < 7200 else f"{total / 3600:.1f} h"
