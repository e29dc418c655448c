"""Compiling ahead and side by side, for a GPU that is not there: Triton is told of one."""

import ast
import threading
import time
import types

import pytest
import torch
from operator_cases import SETTINGS, make_case

pytest.importorskip("triton", reason="Triton has no wheels for this platform")

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from eagc_ops.kernels import launch
from eagc_ops.selftest import selftest


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


def test_every_kernel_is_compiled_once_and_none_is_launched(monkeypatch):
    """Two at a time, though Python 3.11 may fail when two threads parse at once: here it always does."""
    compile_kernel = triton.compiler.compile
    parsing, parsers, calls = threading.Lock(), set(), []

    def parse(source):
        if not parsing.acquire(blocking=False):
            raise SystemError("AST constructor recursion depth mismatch (before=33, after=162)")
        try:
            parsers.add(threading.get_ident())
            time.sleep(0.05)  # the other thread comes meanwhile
            return ast.parse(source)
        finally:
            parsing.release()

    def counted(*args, **options):
        calls.append(args)
        return compile_kernel(*args, **options)

    monkeypatch.setattr(triton.runtime.jit, "ast", types.SimpleNamespace(**{**vars(ast), "parse": parse}))
    monkeypatch.setattr(triton.compiler, "compile", counted)
    parse_of_triton = triton.runtime.jit.JITCallable.parse
    case = make_case(20, 32)
    with launch.compiling(2) as compilations:
        for rows in (20, 24):  # one kernel serves both
            part = make_case(rows, 32)
            launch.run(part.g, part.inputs, SETTINGS)
        launch.run_labelled_energy(case.inputs._replace(energy_ref=case.energy_ref.clone()), 0.9, update=True)
        assert len(compilations) == 2
    assert [type(x.result()).__name__ for x in compilations] == ["CompiledKernel"] * 2
    assert len(calls) == 2
    assert len(parsers - {threading.get_ident()}) == 2
    assert triton.runtime.jit.JITCallable.parse is parse_of_triton
    for kernel in (launch.coordinate_kernel, launch.labelled_energy_kernel):
        (compiled,) = kernel.device_caches[0][0].values()
        assert "ptx" in compiled.asm
    assert not launch._only_compile


def test_a_kernel_that_does_not_compile_spoils_nothing(monkeypatch):
    """The case that needs it fails when it is launched; the others are compiled."""
    case = make_case(20, 32)
    with launch.compiling(2) as compilations:
        launch.run(case.g, case.inputs, SETTINGS, "tf32x4")  # type: ignore[arg-type]
        launch.run_labelled_energy(case.inputs, 0.9, update=False)
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
