"""The pytest-benchmark suites: they need a pinned allocator, and they report page faults with every time."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from eagc_ops.bench import measure
from eagc_ops.bench.pinning import PINNED

BENCH = Path(measure.__file__).parent


def suites(*arguments, pinned):
    # In a worker of xdist, which this process may be, pytest-benchmark writes no file: hide it from the
    # suites.
    environment = {
        name: value for name, value in os.environ.items() if name not in PINNED and "XDIST" not in name
    }
    environment |= PINNED if pinned else {}
    options = ["-p", "no:cacheprovider", "-o", "python_files=suite_*.py"]
    command = [sys.executable, "-m", "pytest", *options, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=BENCH.parent)


def test_suites_are_refused_with_the_command_to_run():
    done = suites(BENCH / "suite_operator.py", "--collect-only", pinned=False)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert (
        " ".join(f"{name}={value}" for name, value in PINNED.items()) + f" {sys.executable} -m pytest"
        in done.stderr
    )


def test_every_suite_counts_page_faults():
    done = suites(BENCH, "--setup-plan", pinned=True)
    lines = [line for line in done.stdout.splitlines() if "::" in line and "(fixtures used:" in line]
    assert {re.search(r"suite_\w+", line)[0] for line in lines} == {
        path.stem for path in BENCH.glob("suite_*.py")
    }
    assert all(" measured," in line for line in lines)


def test_page_faults_and_threads_are_those_of_the_call(tmp_path):
    shutil.copy(BENCH / "conftest.py", tmp_path)
    (tmp_path / "suite_x.py").write_text(
        "import mmap, pytest, torch\n"
        "def touch(pages):\n"  # of fresh memory: every one is a fault
        "    with mmap.mmap(-1, pages * mmap.PAGESIZE) as memory:\n"
        "        for page in range(pages): memory[page * mmap.PAGESIZE] = 1\n"
        "    return torch.get_num_threads()\n"
        "def test_default(measured): assert measured(lambda: touch(40)) == 1\n"
        "class TestOwn:\n"
        "    @pytest.fixture\n"
        "    def threads(self): return 2\n"
        "    def test_own(self, measured): assert measured(lambda: touch(7), rounds=5) == 2\n"
    )
    done = suites(tmp_path, "--benchmark-json", tmp_path / "b.json", "--benchmark-max-time=0.01", pinned=True)
    assert done.returncode == 0, done.stdout
    extra_info = {
        one["name"]: one["extra_info"] for one in json.loads((tmp_path / "b.json").read_text())["benchmarks"]
    }
    assert extra_info == {
        "test_default": {"threads": 1, "page_faults": 40},
        "test_own": {"threads": 2, "page_faults": 7},
    }
    assert "40 page faults per call: " in done.stdout
