"""Timing on a GPU: the device's time by CUDA graph replays, and the host's time to issue the work.

The calls are short (some ten microseconds at 256 rows and D = 768), so eager wall time is mostly Python. A
graph replay leaves the host out. Between replays inputs stay in L2 if they fit, as S does in training (warm),
or L2 is overwritten before each replay (cold).
"""

from __future__ import annotations

import contextlib
import csv
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from eagc_ops.bench.measure import Timing

# The least seconds between two events: replays are repeated to fill them, because events resolve about a
# microsecond.
SHORTEST = 2e-3
FLUSH = 1 << 28  # bytes that are written to empty L2: more than a GPU has of it
# What nvidia-smi is asked for: what a time depends on besides the model of the GPU.
STATE = (
    "driver_version",
    "clocks.sm",
    "clocks.mem",
    "clocks.max.sm",
    "clocks.max.mem",
    "power.limit",
    "pstate",
)


def capture(run: Callable[[], object]) -> torch.cuda.CUDAGraph | None:
    """A graph of one call, or None if the call cannot be captured.

    Three calls on a side stream come first: they compile and allocate.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            run()
    except RuntimeError:
        # The call waits for the device, or a library refuses to be captured; eager calls are still timed.
        return None
    return graph


def device_seconds(graphs: dict[str, torch.cuda.CUDAGraph], rounds: int) -> dict[str, Timing]:
    """Seconds per replay with a warm L2, graphs interleaved in an order that rotates."""
    repeats = {
        name: max(1, round(SHORTEST / max(_replays(graph, 10), 1e-7))) for name, graph in graphs.items()
    }
    names = list(graphs)
    timings = {name: Timing([], []) for name in names}
    for number in range(rounds + 1):
        start = number % len(names)
        for name in names[start:] + names[:start]:
            seconds = _replays(graphs[name], repeats[name])
            if number:
                timings[name].seconds.append(seconds)
                timings[name].faults.append(0)
    return timings


def cold_device_seconds(graphs: dict[str, torch.cuda.CUDAGraph], rounds: int) -> dict[str, Timing]:
    """Seconds of one replay after L2 was overwritten, graphs interleaved in an order that rotates."""
    flush = torch.empty(FLUSH, dtype=torch.int8, device="cuda")
    names = list(graphs)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds + 1):
        start = number % len(names)
        for name in names[start:] + names[:start]:
            flush.zero_()
            replay = _replays(graphs[name], 1)
            if number:
                seconds[name].append(replay)
    return {name: Timing(values, [0] * len(values)) for name, values in seconds.items()}


def host_seconds(run: Callable[[], object], rounds: int) -> Timing:
    """Seconds until the call returns, with the device idle before it.

    A call that waits for the device is charged for the device's time as well.
    """
    seconds = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begin)
    torch.cuda.synchronize()
    return Timing(seconds, [0] * rounds)


def launches(run: Callable[[], object]) -> int:
    """The number of kernels, copies and fills that one call puts on the device, counted by the profiler."""
    run()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        run()
        torch.cuda.synchronize()
    return sum(event.device_type == DeviceType.CUDA for event in profiler.events())


def state() -> list[dict[str, str]]:
    """Clocks, power limit and driver of every NVIDIA GPU, as nvidia-smi prints them; [] without it."""
    query = ["nvidia-smi", f"--query-gpu={','.join(STATE)}", "--format=csv,noheader"]
    try:
        printed = subprocess.run(query, capture_output=True, text=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    lines = csv.reader(printed.splitlines(), skipinitialspace=True)
    return [dict(zip(STATE, line)) for line in lines if line]


@contextlib.contextmanager
def named(name: str) -> Iterator[None]:
    """A range with this name in torch's profiler and, on a GPU, in Nsight (NVTX)."""
    nvtx = torch.cuda.nvtx if torch.cuda.is_available() else None
    if nvtx is not None:
        nvtx.range_push(name)
    try:
        with record_function(name):
            yield
    finally:
        if nvtx is not None:
            nvtx.range_pop()


def write_trace(path: Path, runs: dict[str, Callable[[], object]], calls: int = 5) -> None:
    """A trace of some calls of each, by name, for Perfetto or chrome://tracing; a first call is left out."""
    for run in runs.values():
        run()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    with profile(activities=activities) as profiler:
        for name, run in runs.items():
            for _ in range(calls):
                with named(name):
                    run()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    profiler.export_chrome_trace(str(path))


def _replays(graph: torch.cuda.CUDAGraph, repeats: int) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(repeats):
        graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / repeats
