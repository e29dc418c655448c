"""Measuring on a noisy machine: variants interleaved in one process, ratios paired within a round, every figure with its spread.

On a CPU the clock is CPU time of one thread; on a GPU it is wall time up to the point where the device has finished.
"""

from __future__ import annotations

import datetime
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch

from eagc_ops.environment import describe

HEADER = ("benchmark", "date", "machine", "versions", "commit")  # of every results file

# glibc gives freed memory back to the system and faults it in again on the next call; how much depends on what ran before. With these
# thresholds it keeps it, and a variant is charged for its work only.
PINNED = {
    "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 32),
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class Spread:
    """Median and quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """
        >>> Spread.of([1.0, 2.0, 3.0])
        Spread(median=2.0, low=1.5, high=2.5)
        """
        low, median, high = (
            statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
        )
        return cls(median, low, high)

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}-{self.high:.2f})"


SPREAD = {field.name for field in fields(Spread)}


@dataclass(frozen=True)
class Timing:
    """Seconds per call, and page faults per call."""

    seconds: list[float]
    faults: list[int]

    @property
    def spread(self) -> Spread:
        return Spread.of(self.seconds)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def median_faults(self) -> float:
        return statistics.median(self.faults)


def pin_process() -> None:
    """Restart this command with the allocator pinned and one thread: both must be set before the process starts."""
    torch.set_num_threads(1)
    if any(os.environ.get(name) != value for name, value in PINNED.items()):
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **PINNED})


def clock(device: torch.device) -> Callable[[], float]:
    """CPU time for a CPU: what other processes do to this one is then not counted. Wall time at rest for a GPU."""
    if device.type != "cuda":
        return time.process_time

    def when_finished() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return when_finished


def interleave(
    variants: dict[str, Callable[[], object]],
    rounds: int,
    now: Callable[[], float] = time.process_time,
    warm_up: int = 1,
) -> dict[str, Timing]:
    """Call every variant once per round, in an order that rotates, and time each call. `warm_up` more rounds come first, untimed."""
    names = list(variants)
    timings = {name: Timing([], []) for name in names}
    for number in range(-warm_up, rounds):
        start = number % len(names)
        for name in names[start:] + names[:start]:
            faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            begin = now()
            variants[name]()
            seconds = now() - begin
            if number >= 0:
                timings[name].seconds.append(seconds)
                timings[name].faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults)
    return timings


def rounds_within(
    budget: float, variants: dict[str, Callable[[], object]], least: int = 5, most: int = 61
) -> int:
    """How many rounds fit into `budget` seconds, by the second call of each variant (the first may compile or allocate)."""
    for run in variants.values():
        run()
    begin = time.perf_counter()
    for run in variants.values():
        run()
    return int(min(max(budget / (time.perf_counter() - begin), least), most))


def ratio(numerator: Timing, denominator: Timing) -> Spread:
    """numerator / denominator, paired by round: what disturbs the machine in a round disturbs both."""
    return Spread.of([a / b for a, b in zip(numerator.seconds, denominator.seconds)])


def markdown(rows: list[dict]) -> str:
    """A table of dictionaries with the same keys."""
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    return "\n".join(lines + ["| " + " | ".join(str(value) for value in row.values()) + " |" for row in rows])


def save(path: Path, name: str, content: dict) -> None:
    """Results with machine, versions, commit and date, written whole or not at all."""
    record = {"benchmark": name, "date": datetime.date.today().isoformat(), **describe(), **content}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(record, indent=1, default=asdict) + "\n")
    partial.replace(path)


def load(path: Path) -> dict:
    """A file that `save` wrote, its spreads as `Spread`."""
    try:
        record = json.loads(
            path.read_text(), object_hook=lambda found: Spread(**found) if found.keys() == SPREAD else found
        )
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is no results file: {error}") from error
    missing = [key for key in HEADER if key not in record] if isinstance(record, dict) else HEADER
    if missing:
        raise ValueError(f"{path} is no results file of `eagc bench`: it lacks {', '.join(missing)}")
    return record
