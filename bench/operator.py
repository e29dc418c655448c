"""The CPU path against the released hook formulation, and the conceptor's solve against the released inverse.

`eagc bench operator` prints both.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from eagc_ops import EAGC
from eagc_ops.bench.hooks import HookCoordinator
from eagc_ops.bench.inputs import APERTURE, MOMENTUM, Workload, error, make_features, make_workload
from eagc_ops.bench.measure import clock, interleave, ratio
from eagc_ops.subspace import solve_conceptor

ROWS = (256, 1024, 4096)
ROUNDS = {256: 151, 1024: 41, 4096: 15}
DIMS = (768, 1024)
_FORMS = {  # variant -> its name in results files
    "fixed": "energy reference given",
    "running": "running energy reference",
}


def variants(workload: Workload) -> dict[str, Callable[[], Tensor]]:
    """Calls to time: the forward call, then backward from the gradient at its output to the gradient at z.

    `fixed` and `running` are the two forms of the energy reference. `limit` is only the product of the
    unlabelled rows of z and g with S.
    """
    fixed_eagc = EAGC(workload.subspace)
    running_eagc = EAGC(workload.subspace, energy_momentum=MOMENTUM)
    start = workload.subspace.energy_ref.item()

    def backward(out: Tensor) -> Tensor:
        return torch.autograd.grad(out, workload.z, workload.g)[0]

    def hooks() -> Tensor:
        coordinator = HookCoordinator(workload.subspace.matrix, start)
        return backward(coordinator.attach(workload.z, workload.z_ref, workload.mask))

    def fixed() -> Tensor:
        return backward(fixed_eagc(workload.z, workload.z_ref, workload.mask))

    def running() -> Tensor:
        running_eagc.energy_ref.fill_(start)  # every call sees the same energy reference, as the hooks do
        return backward(running_eagc(workload.z, workload.z_ref, workload.mask))

    unlabelled = workload.z.detach()[~workload.mask]
    matrix = workload.subspace.matrix
    products = torch.cat([unlabelled, workload.g[~workload.mask]])
    return {"hooks": hooks, "fixed": fixed, "running": running, "limit": lambda: products @ matrix}


def check(workload: Workload, runs: dict[str, Callable[[], Tensor]]) -> dict[str, float]:
    """Relative errors against fp64; raises a RuntimeError if a variant is wrong, and so not worth timing."""
    errors = {}
    for name in ("hooks", "fixed", "running"):
        error_of_run = error(workload, runs[name](), running=name != "fixed")
        if error_of_run.too_large(workload.z.dtype):
            raise RuntimeError(
                f"{name} is off by {error_of_run.result:.1e} against fp64, its correction by "
                f"{error_of_run.correction:.1e}: not timed"
            )
        errors[name] = error_of_run.result
    return errors


def operator_rows(rounds: Callable[[int], int] = ROUNDS.__getitem__) -> list[dict[str, Any]]:
    """One measured row per number of rows and form of the energy reference, over `rounds(rows)` rounds."""
    table = []
    for rows in ROWS:
        workload = make_workload(rows)
        runs = variants(workload)
        errors = check(workload, runs)
        timings = interleave(runs, rounds(rows))
        for name, form in _FORMS.items():
            table.append(
                {
                    "kind": "measured",
                    "rows": rows,
                    "D": workload.z.shape[1],
                    "form": form,
                    "rounds": rounds(rows),
                    "hooks_seconds": timings["hooks"].spread,
                    "seconds": timings[name].spread,
                    "limit_seconds": timings["limit"].spread,
                    "speed_up": ratio(timings["hooks"], timings[name]),
                    "error": errors[name],
                    "active": workload.active,
                    "hooks_page_faults": timings["hooks"].median_faults,
                    "page_faults": timings[name].median_faults,
                }
            )
    return table


def _released_solve(correlation: Tensor, identity: Tensor) -> Tensor:
    return correlation @ torch.linalg.inv(correlation + APERTURE**-2 * identity)


def solve_rows(rounds: int = 21, device: torch.device | str = "cpu") -> list[dict[str, Any]]:
    """The solve alone, for a known R. The released way is R @ inv(R + a^-2 I) in fp32."""
    table = []
    for dim in DIMS:
        features = make_features(1500, dim, torch.Generator().manual_seed(0)).to(device).double()
        wide = features.T @ features / len(features)
        narrow = wide.float()
        # An independent oracle: the soft threshold on the eigenvalues.
        values, vectors = torch.linalg.eigh(wide)
        exact = (vectors * (values / (values + APERTURE**-2))) @ vectors.T
        runs = {
            "released": partial(_released_solve, narrow, torch.eye(dim, device=device)),
            "fp32": partial(solve_conceptor, narrow, APERTURE),
            "fp64": partial(solve_conceptor, wide, APERTURE),
        }
        timings = interleave(runs, rounds, clock(torch.device(device)))
        for name, run in runs.items():
            matrix = run()
            table.append(
                {
                    "kind": "measured",
                    "D": dim,
                    "solve": name,
                    "rounds": rounds,
                    "seconds": timings[name].spread,
                    "speed_up": ratio(timings["released"], timings[name]),
                    "largest_error": (matrix.double() - exact).abs().max().item(),
                    "asymmetry": (matrix - matrix.T).abs().max().item(),
                }
            )
    return table
