"""Timing on a noisy machine: variants are interleaved in one process, and ratios are paired by round.

Every figure has its spread. On a CPU the clock is the CPU time of one thread, on a GPU its own clock, read by
events.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Spread:
    """Median and quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """The spread of one or more values.

        >>> Spread.of([1.0, 2.0, 3.0])
        Spread(median=2.0, low=1.5, high=2.5)
        """
        if len(values) == 1:
            return cls(*values * 3)
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}-{self.high:.2f})"


@dataclass(frozen=True)
class Timing:
    """Seconds and page faults of every timed call."""

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


def clock(device: torch.device) -> Callable[[], float]:
    """A function that returns seconds.

    For a CPU it is CPU time, so that other processes do not count. For a GPU it is the time on its own clock
    at which it has done all that was asked for; the host waits for it.
    """
    if device.type != "cuda":
        return time.process_time
    passed, last = 0.0, _event(device)

    def device_time() -> float:
        # Added up from call to call: one event gives fp32 milliseconds, too coarse after some minutes.
        nonlocal passed, last
        now = _event(device)
        now.synchronize()
        passed += last.elapsed_time(now) / 1e3
        last = now
        return passed

    return device_time


def _event(device: torch.device) -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def interleave(
    variants: Mapping[str, Callable[[], object]],
    rounds: int,
    now: Callable[[], float] = time.process_time,
    warm_up: int = 1,
) -> dict[str, Timing]:
    """Time every variant once per round, in rotating order, after `warm_up` rounds that are not timed."""
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
    budget: float, variants: Mapping[str, Callable[[], object]], least: int = 5, most: int = 61
) -> int:
    """The number of rounds that fit into `budget` seconds, between `least` and `most`.

    It is estimated from the second call of each variant, because the first may compile or allocate.
    """
    for run in variants.values():
        run()
    begin = time.perf_counter()
    for run in variants.values():
        run()
    return int(min(max(budget / (time.perf_counter() - begin), least), most))


def ratio(numerator: Timing, denominator: Timing) -> Spread:
    """numerator / denominator, paired by round, because a disturbance affects both timings of a round."""
    return Spread.of([a / b for a, b in zip(numerator.seconds, denominator.seconds)])
