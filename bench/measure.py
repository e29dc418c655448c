"""Measuring on a noisy machine: CPU time, one thread, variants interleaved in one process, ratios paired within a round."""

from __future__ import annotations

import datetime
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from eagc_ops.environment import describe

# glibc gives freed memory back to the system and faults it in again on the next call; how much depends on what ran before. With these
# thresholds it keeps it, and a variant is charged for its work only.
PINNED = {"MALLOC_TRIM_THRESHOLD_": str(1 << 32), "MALLOC_MMAP_THRESHOLD_": str(1 << 32), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Timing:
    """Seconds of CPU time per call, and page faults per call."""

    seconds: list[float]
    faults: list[int]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def median_faults(self) -> float:
        return statistics.median(self.faults)


@dataclass(frozen=True)
class Ratio:
    """Median and quartiles of paired ratios."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}-{self.high:.2f})"


def pin_process() -> None:
    """Restart this command with the allocator pinned and one thread: both must be set before the process starts."""
    torch.set_num_threads(1)
    if any(os.environ.get(name) != value for name, value in PINNED.items()):
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, "-m", "eagc_ops.cli", *sys.argv[1:]], {**os.environ, **PINNED})


def interleave(variants: dict[str, Callable[[], object]], rounds: int) -> dict[str, Timing]:
    """Call every variant once per round, in an order that rotates, and time each call. One warm-up round is dropped."""
    names = list(variants)
    timings = {name: Timing([], []) for name in names}
    for number in range(rounds + 1):
        start = number % len(names)
        for name in names[start:] + names[:start]:
            faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            begin = time.process_time()
            variants[name]()
            seconds = time.process_time() - begin
            if number:
                timings[name].seconds.append(seconds)
                timings[name].faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults)
    return timings


def ratio(numerator: Timing, denominator: Timing) -> Ratio:
    """numerator / denominator, paired by round: what disturbs the machine in a round disturbs both."""
    quotients = [a / b for a, b in zip(numerator.seconds, denominator.seconds)]
    low, median, high = statistics.quantiles(quotients, n=4)
    return Ratio(median, low, high)


def markdown(rows: list[dict]) -> str:
    """A table of dictionaries with the same keys."""
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    return "\n".join(lines + ["| " + " | ".join(str(value) for value in row.values()) + " |" for row in rows])


def save(path: Path, name: str, content: dict) -> None:
    """Results with machine, versions, commit and date, written whole or not at all."""
    record = {"benchmark": name, "date": datetime.date.today().isoformat(), **describe(), **content}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(record, indent=1) + "\n")
    partial.replace(path)
