"""From the second call on a kernel is launched without Triton's search: it must be the one Triton would find.

A stub of Triton's driver takes the launches. Nothing is compiled: what stands for a compiled kernel notes its
arguments.
"""

import itertools
import random

import pytest
import torch
from operator_cases import SETTINGS, make_case

pytest.importorskip("triton", reason="Triton has no wheels for this platform")

from triton import knobs
from triton.compiler import CompiledKernel
from triton.runtime import JITFunction

from eagc_ops import EAGC, Subspace
from eagc_ops.bench.stub import stub
from eagc_ops.kernels import launch, tuned
from eagc_ops.kernels.tiles import Tile

TILE = Tile(block_m=16, block_n=16, block_k=16, warps=4, stages=1)


@pytest.fixture
def started(monkeypatch):
    """The launches: (compiled kernel, grid, arguments)."""
    found, numbers = [], itertools.count(1)

    def compile_nothing(self, key, signature, device, *rest):
        kernel = object.__new__(CompiledKernel)
        kernel.module, kernel._module_pid, kernel.packed_metadata = 1, -1, ()
        kernel.function, kernel.src, kernel.name = next(numbers), None, "stands for a kernel"
        kernel._run = lambda *given: found.append((kernel.function, given[:3], given[9:]))
        self.device_caches[device][0][key] = kernel
        return kernel

    monkeypatch.setattr(JITFunction, "_do_compile", compile_nothing)
    kernels = (launch.coordinate_kernel, launch.labelled_energy_kernel, launch.compaction_kernel)
    for kernel in kernels:
        monkeypatch.setattr(kernel, "device_caches", type(kernel.device_caches)(kernel.create_binder))
    launch.forget()
    with stub("sm_80"):
        yield found
    launch.forget()


def elsewhere(x, words=1):
    """The same values at another address: with one word, one that is no multiple of 16."""
    return torch.cat([x.new_zeros(words), x.flatten()])[words:].view(x.shape)


def strided(x, width):
    return torch.nn.functional.pad(x, (0, width - x.shape[1]))[:, : x.shape[1]]


def forms():
    """Calls of which each needs a kernel of its own."""
    case, one = make_case(40, 32), torch.ones(())
    half = make_case(40, 32, dtype=torch.bfloat16)
    based = make_case(40, 32, basis=True)
    return {
        "plain": (case, {}),
        "z anywhere": (case.replace(z=elsewhere(case.z)), {}),
        "g anywhere": (case.replace(g=elsewhere(case.g)), {}),
        "z_ref anywhere": (case.replace(z_ref=elsewhere(case.z_ref)), {}),
        "S anywhere": (case.replace(matrix=elsewhere(case.matrix)), {}),
        "stride 48": (case.replace(z=strided(case.z, 48)), {"shares": "plain"}),
        "stride 33": (case.replace(z=strided(case.z, 33)), {}),
        "no anchor": (case.replace(z_ref=None), {}),
        "anchor in bf16": (case.replace(z_ref=case.z_ref.bfloat16()), {}),
        "scaled": (case.replace(scale=one), {}),
        "counted": (case.replace(labelled=one), {}),
        "sum": (case, {"settings": SETTINGS._replace(anchor="sum")}),
        "uniform": (case, {"settings": SETTINGS._replace(tau="uniform")}),
        "other lambdas": (
            case,
            {"settings": SETTINGS._replace(lambda_a=1.0, lambda_p=0.1), "shares": "plain"},
        ),
        "no projection": (case, {"settings": SETTINGS._replace(lambda_p=0.0)}),
        "tf32": (case, {"precision": "tf32"}),
        "bf16": (half, {}),
        "bf16, high": (half, {"precision": "high"}),
        "basis": (based, {}),
        "basis anywhere": (based.replace(basis=elsewhere(based.inputs.basis)), {}),
        "weights anywhere": (based.replace(weights=elsewhere(based.inputs.weights)), {}),
        "other rows": (make_case(41, 32), {"shares": "plain"}),
        "another D": (make_case(40, 48), {}),
        "another tile": (case, {"tile": TILE._replace(block_m=32)}),
    }


def test_each_form_of_call_launches_the_kernel_that_triton_finds(started):
    calls = forms()
    kernels = {}
    for seed in range(3):
        names = list(calls)
        random.Random(seed).shuffle(names)
        for name in names:
            case, options = calls[name]
            _, (prepared,) = launch.prepare(
                case.g,
                case.inputs,
                options.get("settings", SETTINGS),
                options.get("precision", "auto"),
                options.get("tile", TILE),
            )
            launch._start([prepared], case.g.device)
            launch._start_by_triton(prepared)
            (kernel, grid, values), by_triton = started[-2:]
            assert (kernel, grid) == by_triton[:2], name
            assert len(values) == len(by_triton[2]) and all(map(same, values, by_triton[2])), name
            assert kernels.setdefault(name, kernel) == kernel
    distinct = {name: kernels[options.get("shares", name)] for name, (_, options) in calls.items()}
    assert distinct == kernels
    assert len(set(kernels.values())) == len([1 for _, options in calls.values() if "shares" not in options])


def same(x, y):
    return x is y or (not isinstance(x, torch.Tensor) and x == y)


def test_triton_searches_once(started, monkeypatch):
    searched = []
    by_triton = launch._start_by_triton
    monkeypatch.setattr(
        launch, "_start_by_triton", lambda prepared: (searched.append(prepared), by_triton(prepared))
    )
    for rows, kernels in ((40, 2), (600, 4)):
        case = make_case(rows, 32)
        searched.clear()
        started.clear()
        for _ in range(3):
            launch.run(case.g, case.inputs, SETTINGS)
            launch.run_labelled_energy(case.inputs, 0.9, update=False)
        assert len(searched) == kernels and len(started) == 3 * kernels


def test_the_module_runs_under_the_stub(started):
    """The public way to the fused path, without a GPU."""
    case = make_case(40, 32)
    z = case.z.clone().requires_grad_()
    eagc = EAGC(Subspace(case.matrix, case.energy_ref), energy_momentum=0.9, impl="triton")
    for _ in range(2):
        eagc(z, case.z_ref, case.mask).backward(case.g)
    assert len(started) == 4


@pytest.mark.parametrize(
    "switch",
    [
        lambda patch: patch.setattr(knobs.runtime, "debug", True),
        lambda patch: patch.setattr(knobs.compilation, "instrumentation_mode", "fpsan"),
        lambda patch: patch.setattr(JITFunction, "run", lambda *args, **options: None),
        lambda patch: patch.setattr(launch.coordinate_kernel, "pre_run_hooks", [lambda *a, **o: None]),
        lambda patch: patch.setattr(
            knobs.runtime.launch_enter_hook, "calls", [lambda metadata: None], raising=False
        ),
    ],
    ids=["debug", "instrumentation", "another run", "pre-run hook", "launch hook"],
)
def test_who_watches_or_debugs_launches_sees_every_one(started, monkeypatch, switch):
    """A tool that replaces Triton's launch, hooks into it, or switches its checks on after the first call."""
    case = make_case(40, 32)
    searched = []
    by_triton = launch._start_by_triton
    monkeypatch.setattr(
        launch, "_start_by_triton", lambda prepared: (searched.append(prepared), by_triton(prepared))
    )
    launch.run(case.g, case.inputs, SETTINGS)
    launch.run(case.g, case.inputs, SETTINGS)
    assert len(searched) == 1
    with monkeypatch.context() as patch:
        switch(patch)
        launch.run(case.g, case.inputs, SETTINGS)
        assert len(searched) == 2
    launch.run(case.g, case.inputs, SETTINGS)
    assert len(searched) == 2


def test_tiles_that_were_just_tuned_are_used(started, monkeypatch):
    case = make_case(40, 32)
    launch.run(case.g, case.inputs, SETTINGS)
    monkeypatch.setattr(tuned, "tile", lambda *call: TILE._replace(warps=8))
    launch.forget()
    launch.run(case.g, case.inputs, SETTINGS)
    assert started[0][0] != started[1][0]


def test_many_sizes_do_not_pile_up(started, monkeypatch):
    for rows in range(1, 1100):
        z = torch.zeros(rows, 8)
        mask = torch.zeros(rows, dtype=torch.bool)
        inputs = make_case(4, 8).inputs._replace(z=z, z_ref=None, mask=mask)
        launch.prepare(z, inputs, SETTINGS, "auto", TILE)
    assert len(launch._plans) <= 1000
