"""Timing on a GPU: the device's time by CUDA graph replays, and the host's time to issue the work.

The calls are short (some ten microseconds at 256 rows and D = 768), so eager wall time is mostly Python. A
graph replay leaves the host out.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from eagc_ops.bench.measure import Timing

# The least seconds between two events: replays are repeated to fill them, because events resolve about a
# microsecond.
SHORTEST = 2e-3


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
    """Seconds per replay, graphs interleaved in an order that rotates.

    Inputs stay in L2 if they fit, as S does in training.
    """
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


def _replays(graph: torch.cuda.CUDAGraph, repeats: int) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(repeats):
        graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / repeats
