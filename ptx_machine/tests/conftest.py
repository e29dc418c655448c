"""The machine executes compiled kernels: under Triton's interpreter there is nothing to test."""

import os

import pytest

try:
    from ptx_machine import compiler
except ImportError:
    MISSING = "the package ptx_machine is not installed (pip install ./ptx_machine)"
else:
    MISSING = "" if compiler() else "no C++ compiler (install g++)"

if MISSING or os.environ.get("TRITON_INTERPRET") == "1":
    collect_ignore_glob = ["test_*.py"]


def pytest_terminal_summary(terminalreporter):
    if MISSING:
        terminalreporter.write_line(f"NOT EXECUTED: the tests of the PTX machine, {MISSING}")


@pytest.fixture(autouse=True)
def _fusion(monkeypatch):
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # Triton warns if it must choose itself
