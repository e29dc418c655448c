"""Freed memory stays with the process, so a step does not fault its tensors in again."""

import subprocess
import sys

import pytest
import torch

from eagc_ops.training.engine.memory import keep_freed_memory

STEPS, MEGABYTES = 30, 40
PROGRAM = f"""
import platform, resource, sys
import torch
from eagc_ops.training.engine.memory import keep_freed_memory

kept = sys.argv[1] == "kept" and keep_freed_memory(torch.device("cpu"))
for _ in range({STEPS}):
    torch.ones({MEGABYTES} << 18)  # float32
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({STEPS}):
    torch.ones({MEGABYTES} << 18)
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before, platform.libc_ver()[0])
"""


def faults(how):
    ran = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True)
    kept, count, library = ran.stdout.split()
    return kept == "True", int(count), library


def test_pages_are_faulted_in_once():
    kept, few, library = faults("kept")
    if library != "glibc":
        assert not kept  # other libraries have no such switch, and the function says so
        return
    _, many, _ = faults("given back")
    assert kept and few < many / STEPS  # less than one of the tensors


@pytest.mark.parametrize("device", ["cuda", "mps", "meta"])
def test_other_devices_have_an_allocator_of_their_own(device):
    assert keep_freed_memory(torch.device(device)) is False
