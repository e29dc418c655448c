"""`eagc bench throughput`: contenders over rows x D x dtype. A contender that is wrong is not timed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from eagc_ops import EAGC, kernels
from eagc_ops.bench import gpu
from eagc_ops.bench.hooks import HookCoordinator
from eagc_ops.bench.inputs import MOMENTUM, SETTINGS, Error, Workload, coordinated, error, make_workload
from eagc_ops.bench.measure import Timing, clock, interleave, ratio, rounds_within
from eagc_ops.bench.work import count, nominal_work
from eagc_ops.kernels import DTYPES, Execution, Implementation, Inputs

HOOKS = "released hooks"
COMPILED = "torch.compile of plain torch"


class Shape(NamedTuple):
    rows: int
    dim: int
    dtype: str


@dataclass(frozen=True)
class Contender:
    """`run()` makes the forward call and goes from the gradient at its output to the gradient at z.

    With `running`, the energy reference is updated from the batch first (the released code); otherwise it is
    fixed (the paper). `on_a_gpu` replaces `run` when host syncs are counted, if a GPU would run different
    code.
    """

    name: str
    running: bool
    run: Callable[[], Tensor]
    on_a_gpu: Callable[[], object] | None = None


def shapes(
    device: torch.device,
    quick: bool,
    rows: list[int] | None = None,
    dims: list[int] | None = None,
    dtypes: list[str] | None = None,
) -> list[Shape]:
    """The shapes to measure. `rows`, `dims` and `dtypes` replace that side of the default sweep.

    By default a CPU gets one 16-bit shape, because torch is far slower there than in fp32 if the CPU has no
    16-bit products.
    """
    chosen = _gpu_sweep(quick) if device.type == "cuda" else _cpu_sweep(quick)
    for column, values in enumerate((rows, dims, dtypes)):
        if values:
            rest = dict.fromkeys(shape[:column] + shape[column + 1 :] for shape in chosen)
            chosen = [
                Shape._make((*other[:column], value, *other[column:])) for other in rest for value in values
            ]
    return chosen


def _gpu_sweep(quick: bool) -> list[Shape]:
    sizes = [(rows, dim) for rows in (256, 1024, 4096, 16384) for dim in (384, 768, 1024, 4096)]
    if quick:
        sizes = [(256, 768), (4096, 768)]
    return [Shape(*size, dtype) for size in sizes for dtype in DTYPES]


def _cpu_sweep(quick: bool) -> list[Shape]:
    sizes = [(rows, dim) for rows in (256, 1024, 4096) for dim in ((768,) if quick else (384, 768, 1024))]
    return [*(Shape(*size, "fp32") for size in sizes), Shape(64, 768, "bf16")]


def throughput_rows(chosen: list[Shape], device: torch.device, budget: float) -> list[dict[str, Any]]:
    """The rows of results of all shapes; `budget` is the seconds of timing per shape."""
    return [row for shape in chosen for row in measure(shape, contenders, device, budget)]


def trace(path: Path, shape: Shape, device: torch.device) -> None:
    """Write a profiler's trace of the contenders for one shape."""
    workload = make_workload(shape.rows, shape.dim, dtype=DTYPES[shape.dtype], device=device)
    gpu.write_trace(path, {contender.name: contender.run for contender in contenders(workload)})


def measure(
    shape: Shape, make: Callable[[Workload], list[Contender]], device: torch.device, budget: float
) -> list[dict[str, Any]]:
    """Check all contenders against fp64, then time those that agree, interleaved."""
    workload = make_workload(shape.rows, shape.dim, dtype=DTYPES[shape.dtype], device=device)
    passed: dict[Contender, Error] = {}
    failed: dict[Contender, str] = {}
    for contender in make(workload):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # inductor's own deprecations
                its_error = error(workload, contender.run(), running=contender.running)
        except Exception as failure:  # no compiler, too little memory, ...: the others are still measured
            first_line = str(failure).splitlines()[0] if str(failure) else ""
            failed[contender] = f"{type(failure).__name__}: {first_line}"
            continue
        if its_error.too_large(workload.z.dtype):
            failed[contender] = (
                f"wrong by {its_error.result:.1e}, its correction by {its_error.correction:.1e}"
            )
        else:
            passed[contender] = its_error
    runs = {contender.name: contender.run for contender in passed}
    runs |= products(workload, running=False) | products(workload, running=True)
    syncs = {contender.name: count(contender.on_a_gpu or contender.run).syncs for contender in passed}
    timings = _time_together(runs, syncs, device, budget)
    rows = [
        _row(shape, workload, contender, its_error, timings, device)
        for contender, its_error in passed.items()
    ]
    return rows + [
        {**_identity(shape, contender), "kind": "not timed", "reason": reason}
        for contender, reason in failed.items()
    ]


class _Timings(NamedTuple):
    """Timings and host syncs by contender; a CPU has eager calls only."""

    eager: dict[str, Timing]
    graph: dict[str, Timing]  # replays with a warm L2, of calls that do not wait for the device
    cold: dict[str, Timing]  # the same with a cold one
    host: dict[str, Timing]
    syncs: dict[str, int]


def _time_together(
    runs: Mapping[str, Callable[[], object]], syncs: dict[str, int], device: torch.device, budget: float
) -> _Timings:
    rounds = rounds_within(budget, runs)
    eager = interleave(runs, rounds, clock(device))
    if device.type != "cuda":
        return _Timings(eager, {}, {}, {}, syncs)
    capturable = {name: run for name, run in runs.items() if not syncs.get(name)}
    graphs = {name: graph for name, run in capturable.items() if (graph := gpu.capture(run))}
    host = {name: gpu.host_seconds(run, rounds) for name, run in runs.items()}
    cold = gpu.cold_device_seconds(graphs, rounds)
    return _Timings(eager, gpu.device_seconds(graphs, rounds), cold, host, syncs)


def _row(
    shape: Shape,
    workload: Workload,
    contender: Contender,
    its_error: Error,
    timings: _Timings,
    device: torch.device,
) -> dict[str, Any]:
    """A measured row. Rates are nominal work per second of a graph replay, or else of an eager call."""
    name, running = contender.name, contender.running
    labelled = int(workload.mask.sum())
    unlabelled = shape.rows - labelled
    work = nominal_work(unlabelled, labelled, shape.dim, workload.z.element_size(), running=running)
    by = timings.graph if name in timings.graph else timings.eager
    seconds = by[name].median
    limits = [timing for other, timing in by.items() if other.startswith(_limit_name(running))]
    return {
        **_identity(shape, contender),
        "kind": "measured",
        "seconds": timings.eager[name].spread,
        "speed_up": ratio(timings.eager[HOOKS], timings.eager[name]) if HOOKS in timings.eager else None,
        "device_seconds": timings.graph[name].spread if name in timings.graph else None,
        "cold_device_seconds": timings.cold[name].spread if name in timings.cold else None,
        "host_seconds": timings.host[name].spread if name in timings.host else None,
        "rounds": len(timings.eager[name].seconds),
        "rates_of": "graph replay" if name in timings.graph else "call",
        "gflop_per_s": work.flops / seconds / 1e9,
        "gb_per_s": work.bytes / seconds / 1e9,
        "flop_per_byte": work.intensity,
        "share_of_limit": ratio(min(limits, key=lambda timing: timing.median), by[name]) if limits else None,
        "host_syncs_on_gpu": timings.syncs[name],
        "aten_ops": None if name == COMPILED else count(contender.run).ops,
        "launches": gpu.launches(contender.run) if device.type == "cuda" else None,
        "error": its_error.result,
        "page_faults": timings.eager[name].median_faults,
    }


def _identity(shape: Shape, contender: Contender) -> dict[str, Any]:
    return {
        **dict(zip(("rows", "D", "dtype"), shape)),
        "contender": contender.name,
        "Ebar": "running" if contender.running else "given",
    }


def contenders(workload: Workload) -> list[Contender]:
    """All contenders that can run on the workload's device."""
    torch.compiler.reset()  # or dynamo would refuse the ninth shape and run it eagerly
    z, z_ref, mask, subspace = workload.z, workload.z_ref, workload.mask, workload.subspace
    matrix = subspace.matrix.to(z.dtype)
    start = subspace.energy_ref.item()

    def backward(out: Tensor) -> Tensor:
        return torch.autograd.grad(out, z, workload.g)[0]

    def hooks() -> Tensor:
        return backward(HookCoordinator(matrix, start, momentum=MOMENTUM).attach(z, z_ref, mask))

    def plain(formula: Callable[..., Tensor]) -> Callable[[], Tensor]:
        inputs = workload.inputs.widened(z.dtype)
        return lambda: backward(Plain.apply(z, inputs, formula))

    def ours(impl: Implementation, running: bool) -> Callable[[], Tensor]:
        eagc = EAGC(subspace, energy_momentum=MOMENTUM if running else None, impl=impl).train()

        def run() -> Tensor:
            if running:  # every call sees the same energy reference, as the hooks do
                eagc.energy_ref.copy_(subspace.energy_ref)
            return backward(eagc(z, z_ref, mask))

        return run

    listed = [
        Contender(HOOKS, True, hooks),
        Contender("plain torch", False, plain(coordinated)),
        Contender(COMPILED, False, plain(torch.compile(coordinated, dynamic=False)), plain(coordinated)),
    ]
    triton = z.is_cuda and not kernels.why_not_triton(z.device, z.dtype)
    for impl in ("torch", "triton") if triton else ("torch",):
        for running in (False, True):
            name = f"ours, {impl}, running Ebar" if running else f"ours, {impl}"
            # The CPU path reads values, which costs nothing there; on a GPU impl="torch" runs different code.
            on_a_gpu = None if z.is_cuda else lambda running=running: torch_path_on_a_gpu(workload, running)
            listed.append(Contender(name, running, ours(impl, running), on_a_gpu))
    return listed


class Plain(torch.autograd.Function):
    """Identity forward; `formula` in backward."""

    @staticmethod
    def forward(ctx, z, inputs, formula):
        ctx.inputs, ctx.formula = inputs, formula
        return z.view_as(z)

    @staticmethod
    def backward(ctx, g):
        return ctx.formula(g, ctx.inputs), None, None


def products(workload: Workload, *, running: bool) -> dict[str, Callable[[], Tensor]]:
    """The device's limit: one product of all rows that must be multiplied, laid out in memory beforehand.

    These are z and g of unlabelled rows and, with a running energy reference, z of labelled rows. 16-bit rows
    are also tried in fp32: a CPU without 16-bit products is faster that way, and the limit is the faster of
    the two.
    """
    z = workload.z.detach()
    rows = torch.cat([z if running else z[~workload.mask], workload.g[~workload.mask]])

    def product(dtype: torch.dtype) -> Callable[[], Tensor]:
        a, b = rows.to(dtype), workload.subspace.matrix.to(dtype)
        return lambda: a @ b

    dtypes = dict.fromkeys((rows.dtype, torch.float32))
    return {f"{_limit_name(running)}, {dtype}": product(dtype) for dtype in dtypes}


def _limit_name(running: bool) -> str:
    return f"products of the rows that must be multiplied, {'running' if running else 'fixed'} Ebar"


def torch_path_on_a_gpu(workload: Workload, running: bool) -> None:
    """Issue the operations of impl="torch" on a GPU, on fake tensors: reading a value would raise."""
    execution = Execution("torch")
    real = (workload.g, *(x for x in workload.inputs if x is not None))
    with FakeTensorMode():
        g, *rest = (torch.empty(x.shape, dtype=x.dtype, device="cuda") for x in real)
        inputs = Inputs(*rest)
        if running:
            _, energy_ref = kernels.labelled_energy(inputs, MOMENTUM, execution)
            inputs = inputs._replace(energy_ref=energy_ref)
        kernels.coordinate(g, inputs, SETTINGS, execution)
