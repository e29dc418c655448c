"""`eagc bench host`: what a call of the fused path costs the host, without a GPU.

Under a driver that launches nothing (`stub`) everything before the launch still happens: checks, allocations,
the counters' fill, the search for the compiled kernel. The dense torch form and the released hooks run as
always, on features of 8 x 8, where torch's own kernels cost next to nothing: the number of operations does
not depend on the size. No form is charged for the launches of a GPU's driver, so forms with many operations
look better here than they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from eagc_ops import EAGC
from eagc_ops.bench.hooks import HookCoordinator
from eagc_ops.bench.inputs import MOMENTUM, SETTINGS, Workload, coordinated, make_workload
from eagc_ops.bench.measure import Spread, Timing, interleave, ratio
from eagc_ops.bench.stub import stub
from eagc_ops.bench.throughput import Plain
from eagc_ops.kernels import DTYPES, torch_path

ROWS = (256, 1024)
CALLS = 200  # timed together: one is shorter than the clock's steps
SMALL = 8  # rows and D of the forms whose operations run


def host_rows(rounds: int, arch: str = "sm_80", calls: int = CALLS) -> list[dict[str, Any]]:
    """One row per number of rows, dtype and part of the step; seconds are those of one call."""
    table = []
    with stub(arch):
        for rows in ROWS:
            for dtype in ("fp32", "bf16"):
                workload = make_workload(rows, dtype=DTYPES[dtype])
                small = make_workload(SMALL, SMALL, dtype=DTYPES[dtype])
                for part, runs in (
                    ("backward", _backward(workload, small)),
                    ("step", _step(workload, small)),
                ):
                    timings = interleave({name: _repeated(run, calls) for name, run in runs.items()}, rounds)
                    table.append(_row(rows, dtype, part, timings, calls))
    return table


def _backward(workload: Workload, small: Workload) -> dict[str, Callable[[], object]]:
    """The coordination alone: gradient in, gradient out."""
    from eagc_ops.kernels import launch

    inputs = workload.inputs._replace(half=workload.subspace.matrix.to(workload.z.dtype))
    few = small.inputs
    return {
        "fused": lambda: launch.run(workload.g, inputs, SETTINGS).gradient,
        "dense": lambda: torch_path.dense(small.g, few, SETTINGS),
    }


def _step(workload: Workload, small: Workload) -> dict[str, Callable[[], object]]:
    """Forward and backward, through autograd; the hooks with their running energy reference."""
    eagc = EAGC(workload.subspace, impl="triton")
    matrix, start = small.subspace.matrix.to(small.z.dtype), small.subspace.energy_ref.item()
    inputs = small.inputs.widened(small.z.dtype)
    hooks = HookCoordinator(matrix, start, momentum=MOMENTUM)

    def backward(out: torch.Tensor, of: Workload) -> torch.Tensor:
        return torch.autograd.grad(out, of.z, of.g)[0]

    return {
        "fused": lambda: backward(eagc(workload.z, workload.z_ref, workload.mask), workload),
        "dense": lambda: backward(Plain.apply(small.z, inputs, coordinated), small),
        "hooks": lambda: backward(hooks.attach(small.z, small.z_ref, small.mask), small),
    }


def _repeated(run: Callable[[], object], calls: int) -> Callable[[], None]:
    def repeat() -> None:
        for _ in range(calls):
            run()

    return repeat


def _row(rows: int, dtype: str, part: str, timings: dict[str, Timing], calls: int) -> dict[str, Any]:
    def one(name: str) -> Spread | None:
        return Spread.of([s / calls for s in timings[name].seconds]) if name in timings else None

    return {
        "kind": "measured",
        "rows": rows,
        "dtype": dtype,
        "part": part,
        "rounds": len(timings["fused"].seconds),
        "seconds": one("fused"),
        "dense_seconds": one("dense"),
        "hooks_seconds": one("hooks"),
        "of_dense": ratio(timings["fused"], timings["dense"]),
    }
