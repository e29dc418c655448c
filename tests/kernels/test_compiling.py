"""Compiling ahead and side by side, for a GPU that is not there: Triton is told of one."""

import pytest
import torch
from operator_cases import SETTINGS, make_case

pytest.importorskip("triton", reason="Triton has no wheels for this platform")

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from eagc_ops import selftest
from eagc_ops.kernels import launch


class Absent:
    """A driver for a GPU that can be compiled for, but not used."""

    def get_current_target(self):
        return GPUTarget("cuda", 80, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


@pytest.fixture(autouse=True)
def absent_gpu(monkeypatch, tmp_path):
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path))
    for kernel in (launch.coordinate_kernel, launch.labelled_energy_kernel):
        monkeypatch.setattr(kernel, "device_caches", type(kernel.device_caches)(kernel.create_binder))
    monkeypatch.setattr(driver, "_active", Absent())


@pytest.mark.parametrize("mistakes", [0, 1])
def test_every_kernel_is_compiled_once_and_none_is_launched(monkeypatch, mistakes):
    """Even if Python mistakes the syntax trees of two threads for one."""
    compile_kernel = triton.compiler.compile

    def mistaken(*args, **options):
        if calls.append(args) or len(calls) <= mistakes:
            raise SystemError("AST constructor recursion depth mismatch (before=33, after=162)")
        return compile_kernel(*args, **options)

    calls = []
    monkeypatch.setattr(triton.compiler, "compile", mistaken)
    case = make_case(20, 32)
    with launch.compiling(2) as compilations:
        for rows in (20, 24):  # one kernel serves both
            part = make_case(rows, 32)
            launch.coordinate(part.g, part.inputs, SETTINGS)
        launch.labelled_energy(case.inputs._replace(energy_ref=case.energy_ref.clone()), 0.9, update=True)
        assert len(compilations) == 2
    assert [type(x.result()).__name__ for x in compilations] == ["CompiledKernel"] * 2
    assert len(calls) == 2 + mistakes
    for kernel in (launch.coordinate_kernel, launch.labelled_energy_kernel):
        (compiled,) = kernel.device_caches[0][0].values()
        assert "ptx" in compiled.asm
    assert not launch._only_compile


def test_a_kernel_that_does_not_compile_spoils_nothing(monkeypatch):
    """The case that needs it fails when it is launched; the others are compiled."""
    case = make_case(20, 32)
    with launch.compiling(2) as compilations:
        launch.coordinate(case.g, case.inputs, SETTINGS, "tf32x4")  # type: ignore[arg-type]
        launch.labelled_energy(case.inputs, 0.9, update=False)
    assert [compilation.exception() is None for compilation in compilations] == [False, True]


def test_the_self_test_compiles_the_kernels_of_its_cases_and_says_how_long(monkeypatch, capsys):
    monkeypatch.setattr(launch, "architecture", lambda device: "sm_80")
    forms = ("default", "scaled")
    chosen = [
        selftest.Case("triton", "auto", form, torch.float32, 7, 33, labelled)
        for form in forms
        for labelled in (0.0, 0.5)
    ]
    monkeypatch.setattr(selftest.os, "cpu_count", lambda: 2)
    selftest.compile_kernels(chosen, torch.device("cpu"), shown=True)
    # two forms of one kernel, one of the other; 3.5 s each
    assert capsys.readouterr().out.startswith("compiling 3 kernels, 2 at a time, in about 5 s;")
    assert len(launch.coordinate_kernel.device_caches[0][0]) == 2
