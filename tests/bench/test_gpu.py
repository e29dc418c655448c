"""Timing on a GPU, on a stand-in for torch.cuda: a clock that every kernel, replay and flush moves on.

It shows that every line runs and what is charged to whom, and nothing about a GPU.
"""

import contextlib
import json
import os
import subprocess
import sys
import types

import pytest
import torch

from eagc_ops.bench import gpu, pinning, results_file
from eagc_ops.bench.measure import clock

CUDA = torch.device("cuda", 0)
MS = 1e-3


class Gpu:
    """The time of the device, in seconds, and what it was asked for."""

    def __init__(self):
        self.now, self.capturing, self.waits, self.ranges = 0.0, None, 0, []

    def work(self, name, seconds):
        if self.capturing is None:
            self.now += seconds
        else:
            self.capturing.append((name, seconds))


@pytest.fixture
def device(monkeypatch):
    gpu_ = Gpu()

    class Event:
        def __init__(self, enable_timing=False):
            assert enable_timing

        def record(self, stream=None):
            self.at = gpu_.now

        def synchronize(self):
            gpu_.waits += 1

        def elapsed_time(self, other):
            return 1e3 * (other.at - self.at)

    class Graph:
        def __init__(self):
            self.kernels = []

        def replay(self):
            for name, seconds in self.kernels:
                gpu_.work(name, seconds)

    @contextlib.contextmanager
    def capture(graph):
        gpu_.capturing = graph.kernels
        try:
            yield
        finally:
            gpu_.capturing = None

    stream = types.SimpleNamespace(wait_stream=lambda other: None)
    for name, value in {
        "Event": Event,
        "CUDAGraph": Graph,
        "graph": capture,
        "Stream": lambda: stream,
        "current_stream": lambda device=None: stream,
        "stream": lambda stream: contextlib.nullcontext(),
        "synchronize": lambda device=None: None,
        "is_available": lambda: True,
        "nvtx": types.SimpleNamespace(
            range_push=gpu_.ranges.append, range_pop=lambda: gpu_.ranges.append("end")
        ),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, **options: Flush(gpu_, size[0], empty))
    return gpu_


class Flush:
    def __init__(self, gpu_, size, empty):
        self.gpu, self.size = gpu_, size

    def zero_(self):
        self.gpu.work("flush", 5 * MS)
        self.gpu.flushed = self.size


def test_the_clock_is_that_of_the_device(device):
    now = clock(CUDA)
    begin = now()
    device.work("kernel", 3 * MS)
    assert now() - begin == pytest.approx(3 * MS)
    assert device.waits == 2


def test_replays_are_charged_with_a_warm_and_with_a_cold_cache(device):
    def run(name, seconds):
        return lambda: device.work(name, seconds)

    graphs = {name: gpu.capture(run(name, ms * MS)) for name, ms in (("a", 0.1), ("b", 3))}
    assert [graph.kernels for graph in graphs.values()] == [[("a", 0.1 * MS)], [("b", 3 * MS)]]
    warm, cold = gpu.device_seconds(graphs, 3), gpu.cold_device_seconds(graphs, 3)
    for timings in (warm, cold):
        assert {name: len(timing.seconds) for name, timing in timings.items()} == {"a": 3, "b": 3}
        assert [timings[name].median for name in "ab"] == pytest.approx([0.1 * MS, 3 * MS])
    assert device.flushed >= 1 << 28


def test_a_call_that_cannot_be_captured_has_no_graph(device):
    def refuses():
        if device.capturing is not None:
            raise RuntimeError("operation not permitted when stream is capturing")

    assert gpu.capture(refuses) is None


def test_the_host_is_timed_apart(device):
    assert (
        gpu.host_seconds(lambda: device.work("kernel", 1.0), 4).median < 0.5
    )  # the device is not waited for


def test_a_range_has_its_name_for_nsight(device):
    with pytest.raises(ValueError, match="inside"), gpu.named("the call"):
        raise ValueError("inside")
    assert device.ranges == ["the call", "end"]


def test_a_trace_names_the_calls(tmp_path):
    x = torch.ones(4)
    gpu.write_trace(tmp_path / "t.json", {"ours": lambda: x.exp(), "theirs": lambda: x.log()}, calls=2)
    names = [event["name"] for event in json.loads((tmp_path / "t.json").read_text())["traceEvents"]]
    assert [names.count(name) for name in ("ours", "theirs", "aten::exp")] == [2, 2, 2]


def test_clocks_power_and_driver_are_in_the_results(monkeypatch):
    asked = []

    def smi(command, **options):
        asked.append(command)
        out = "580.65.06, 1410 MHz, 1593 MHz, 1980 MHz, 2619 MHz, 700.00 W, P0\n\n"
        return subprocess.CompletedProcess(command, 0, stdout=out)

    monkeypatch.setattr(gpu.subprocess, "run", smi)
    (state,) = gpu.state()
    assert asked[0][0] == "nvidia-smi"
    assert (state["driver_version"], state["clocks.sm"], state["power.limit"]) == (
        "580.65.06",
        "1410 MHz",
        "700.00 W",
    )
    for gpus, there in (([], False), (["a GPU"], True)):
        monkeypatch.setattr(results_file, "describe", lambda gpus=gpus: {"machine": {"gpus": gpus}})
        assert ("gpu_state" in results_file._described.__wrapped__()["machine"]) == there
    monkeypatch.setattr(gpu.subprocess, "run", lambda *args, **options: (_ for _ in ()).throw(OSError()))
    assert gpu.state() == []


@pytest.mark.parametrize("there", [False, True])
def test_the_hosts_threads_are_pinned_without_a_gpu_alone(monkeypatch, tmp_path, there):
    started = []
    monkeypatch.setattr(os, "execve", lambda *command: started.append(command))
    monkeypatch.setattr(pinning, "GPU_DRIVERS", (str(tmp_path if there else tmp_path / "nothing"),))
    for name in pinning.PINNED:
        monkeypatch.delenv(name, raising=False)
    pinning.pin_process()
    ((executable, _, environment),) = started
    assert executable == sys.executable
    assert ("OMP_NUM_THREADS" in environment) != there and "MALLOC_TRIM_THRESHOLD_" in environment
