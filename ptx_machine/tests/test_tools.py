"""The pytest plugin and the command, on a suite and a script of strangers."""

import re
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton has no wheels for this platform")

KERNEL = """
import torch, triton, triton.language as tl

assert triton.runtime.driver.active.get_current_target().backend == "cuda"

@triton.jit
def double_kernel(x_ptr, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + place, 2 * tl.load(x_ptr + place, mask=place < n), mask=place < n)

@triton.jit
def last_kernel(x_ptr):
    tl.store(x_ptr, tl.program_id(0))
"""
SUITE = """
def test_right():
    x = torch.arange(100.0, device="cuda")
    double_kernel[(2,)](x, 100, BLOCK=64)
    assert torch.equal(x, 2 * torch.arange(100.0).cuda())

def test_race():
    last_kernel[(3,)](torch.zeros(1).to("cuda"))

def test_no_launch():
    pass
"""
SCRIPT = """
import sys
x = torch.zeros(64, device=sys.argv[1])
double_kernel[(1,)](x, 64, BLOCK=64)
if len(sys.argv) > 2:
    last_kernel[(3,)](x)
"""


def ran(*command: str, folder) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True, timeout=300
    )


def test_a_suite_of_tests(tmp_path):
    (tmp_path / "test_them.py").write_text(KERNEL + SUITE)
    options = ("-q", "-p", "no:cacheprovider", "-p", "ptx_machine.plugin", "--ptx", "sm_80,sm_90")
    done = ran("pytest", *options, "--ptx-seeds", "2", folder=tmp_path)
    # The race is found after its test, in each of four runs.
    assert re.search(r"12 passed, 4 errors", done.stdout), done.stdout + done.stderr
    assert done.returncode == 1
    assert "ERROR test_them.py::test_race[sm_90-seed1]" in done.stdout
    assert "last_kernel, test_them.py:13" in done.stdout
    assert "8 launches of 2 kernels" in done.stdout
    wrong = ran("pytest", "-p", "ptx_machine.plugin", "--ptx-seeds", "0", "--ptx", "sm_80", folder=tmp_path)
    assert "--ptx-seeds must be at least 1, got 0" in wrong.stdout + wrong.stderr


def test_a_script(tmp_path):
    (tmp_path / "script.py").write_text(KERNEL + SCRIPT)
    done = ran("ptx_machine.command", "run", "--arch", "sm_90", "script.py", "cuda", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "double_kernel: 1 launch, " in done.stdout and "coalescing 100%" in done.stdout
    assert "1 launch of 1 kernel, 0 findings" in done.stdout
    done = ran("ptx_machine.command", "run", "script.py", "cpu", "race", folder=tmp_path)
    assert done.returncode == 1 and "writes what another thread wrote, unordered" in done.stdout
    assert re.search(r"^last_kernel, \w+\.py:13$", done.stdout, re.MULTILINE)


def test_code_may_ask_torch_about_its_gpu():
    torch = pytest.importorskip("torch")
    from ptx_machine.cpu import cuda_on_cpu

    before = torch.cuda.get_device_capability, torch.cuda.device
    with cuda_on_cpu("sm_90"):
        assert torch.cuda.get_device_capability() == (9, 0)
        assert torch.cuda.get_device_properties(0).shared_memory_per_block_optin == 232448
        with torch.cuda.device(torch.cuda.current_device()):
            assert torch.zeros(1, device="cuda:0").cuda().device.type == "cpu"
        torch.cuda.synchronize()
    assert (torch.cuda.get_device_capability, torch.cuda.device) == before
