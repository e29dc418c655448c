"""Fixtures of the suites, which need a pinned allocator and report page faults with every time.

bench/measure.py gives the reason. `eagc bench` restarts itself with the environment variables set; pytest
cannot, so they are part of the command line.
"""

from __future__ import annotations

import os
import resource
import shlex
import statistics
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from eagc_ops.bench.pinning import PINNED


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    measured = any("measured" in getattr(item, "fixturenames", ()) for item in items)
    if measured and any(os.environ.get(name) != value for name, value in PINNED.items()):
        command = shlex.join([*(f"{name}={value}" for name, value in PINNED.items()), *sys.orig_argv])
        raise pytest.UsageError(
            "the allocator and the threads are not pinned, so times would depend on what ran before. Run:"
            f"\n\n{command}\n"
        )


@pytest.fixture
def threads() -> int:
    """The number of threads of a suite; a suite may define its own."""
    return 1


@pytest.fixture
def measured(benchmark, threads: int, record_property) -> Callable[..., Any]:
    """`measured(call)` is `benchmark(call)`; with settings it is `benchmark.pedantic(call, **settings)`.

    Page faults go into `extra_info`.
    """

    def measure(call: Callable[[], Any], **settings: Any) -> Any:
        faults = []

        def counted() -> Any:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            result = call()
            faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
            return result

        torch.set_num_threads(threads)
        result = benchmark.pedantic(counted, **settings) if settings else benchmark(counted)
        benchmark.extra_info.update(threads=threads, page_faults=statistics.median(faults))
        record_property("page faults", benchmark.extra_info["page_faults"])
        return result

    return measure


def pytest_terminal_summary(terminalreporter) -> None:
    """pytest-benchmark's own table has no column for page faults."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            terminalreporter.write_line(f"{value:8.0f} {name} per call: {report.nodeid}")
