"""A pytest plugin: every Triton launch of a test suite runs on the machine.

    pytest --ptx sm_90,sm_100 --ptx-seeds 3

Each test runs once for each target and seed, and fails if one of its launches has a finding.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

FIXTURE = "_ptx_machine"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ptx-machine", "Triton kernels, executed on a CPU")
    targets = "execute Triton launches on a CPU, as compiled for these GPUs, e.g. sm_90,sm_100"
    group.addoption("--ptx", metavar="ARCH[,ARCH]", help=targets)
    seeds = "schedules for each test (default: 1)"
    group.addoption("--ptx-seeds", type=int, default=1, metavar="N", help=seeds)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--ptx"):
        config.pluginmanager.register(_Machine(config), "ptx-machine-run")


class _Machine:
    """Active if --ptx is given."""

    def __init__(self, config: pytest.Config) -> None:
        from .hook import on_machine

        self.targets = [arch.strip() for arch in config.getoption("--ptx").split(",")]
        self.seeds = config.getoption("--ptx-seeds")
        if self.seeds < 1:
            raise pytest.UsageError(f"--ptx-seeds must be at least 1, got {self.seeds}")
        self.reports: list[Any] = []
        # Modules may ask Triton's driver for its GPU while they are imported.
        self.open = contextlib.ExitStack()
        self.open.enter_context(on_machine(self.targets[0]))
        config.add_cleanup(self.open.close)

    @pytest.fixture(autouse=True, name=FIXTURE)
    def machine(self, request: pytest.FixtureRequest) -> Iterator[None]:
        from .cpu import cuda_on_cpu
        from .hook import on_machine

        arch, seed = request.param
        with on_machine(arch, seed=seed) as reports, cuda_on_cpu(arch):
            yield
        self.reports += reports
        findings = [str(found) for report in reports for found in (*report.races, *report.violations)]
        if findings:
            first = f"{len(findings)} findings on {arch}, seed {seed}"
            pytest.fail("\n".join([first, *findings]), pytrace=False)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        runs = [(arch, seed) for arch in self.targets for seed in range(self.seeds)]
        names = [f"{arch}-seed{seed}" if self.seeds > 1 else arch for arch, seed in runs]
        metafunc.parametrize(FIXTURE, runs, indirect=True, ids=names)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        from .reading import summary

        terminalreporter.section("PTX machine")
        terminalreporter.write_line(summary(self.reports))
