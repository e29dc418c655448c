"""`eagc bench operator`: the CPU path against the released hook formulation, and the conceptor solve against the released inverse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from eagc_ops import EAGC
from eagc_ops.bench.hooks import HookCoordinator
from eagc_ops.bench.inputs import APERTURE, MOMENTUM, Inputs, error, make_features, make_inputs
from eagc_ops.bench.measure import interleave, ratio
from eagc_ops.subspace import solve_conceptor

ROWS = (256, 1024, 4096)
ROUNDS = {256: 151, 1024: 41, 4096: 15}
DIMS = (768, 1024)


def variants(inputs: Inputs) -> dict[str, Callable[[], Tensor]]:
    """What a step adds around the head: forward call and backward, from the gradient at the output to the gradient at z.

    `limit` is one product of the unlabelled rows of z and g.
    """
    fixed = EAGC(inputs.subspace)
    running = EAGC(inputs.subspace, energy_momentum=MOMENTUM)
    start = inputs.subspace.energy_ref.item()

    def backward(out: Tensor) -> Tensor:
        return torch.autograd.grad(out, inputs.z, inputs.g)[0]

    def hooks() -> Tensor:
        return backward(
            HookCoordinator(inputs.subspace.matrix, start).attach(inputs.z, inputs.z_ref, inputs.mask)
        )

    def given() -> Tensor:
        return backward(fixed(inputs.z, inputs.z_ref, inputs.mask))

    def ema() -> Tensor:
        running.energy_ref.fill_(start)  # every call sees the same energy reference, as the hooks do
        return backward(running(inputs.z, inputs.z_ref, inputs.mask))

    unlabelled = inputs.z.detach()[~inputs.mask]
    matrix = inputs.subspace.matrix
    products = torch.cat([unlabelled, inputs.g[~inputs.mask]])
    return {"hooks": hooks, "given": given, "ema": ema, "limit": lambda: products @ matrix}


def check(inputs: Inputs, runs: dict[str, Callable[[], Tensor]]) -> dict[str, float]:
    """Relative error against fp64; a variant that is wrong is not worth timing."""
    errors = {}
    for name in ("hooks", "given", "ema"):
        found = error(inputs, runs[name](), running=name != "given")
        if found.too_large(inputs.z.dtype):
            raise RuntimeError(
                f"{name} is off by {found.result:.1e} against fp64, its correction by {found.correction:.1e}: not timed"
            )
        errors[name] = found.result
    return errors


def operator_rows(rounds: Callable[[int], int] = ROUNDS.get) -> list[dict[str, Any]]:
    table = []
    for rows in ROWS:
        inputs = make_inputs(rows)
        runs = variants(inputs)
        errors = check(inputs, runs)
        timings = interleave(runs, rounds(rows))
        for name, label in (("given", "energy reference given"), ("ema", "running energy reference")):
            table.append(
                {
                    "kind": "measured",
                    "rows": rows,
                    "D": inputs.z.shape[1],
                    "form": label,
                    "rounds": rounds(rows),
                    "hooks_seconds": timings["hooks"].spread,
                    "seconds": timings[name].spread,
                    "limit_seconds": timings["limit"].spread,
                    "speed_up": ratio(timings["hooks"], timings[name]),
                    "error": errors[name],
                    "active": inputs.active,
                    "hooks_page_faults": timings["hooks"].median_faults,
                    "page_faults": timings[name].median_faults,
                }
            )
    return table


def conceptor_rows(rounds: int = 21) -> list[dict[str, Any]]:
    """The solve alone, R given. The released way: R @ inv(R + a^-2 I) in fp32."""
    table = []
    for dim in DIMS:
        features = make_features(1500, dim, torch.Generator().manual_seed(0)).double()
        wide = features.T @ features / len(features)
        narrow = wide.float()
        values, vectors = torch.linalg.eigh(
            wide
        )  # an oracle of its own: the soft threshold on the eigenvalues
        exact = (vectors * (values / (values + APERTURE**-2))) @ vectors.T
        identity = torch.eye(dim)
        runs = {
            "released": lambda narrow=narrow, identity=identity: (
                narrow @ torch.linalg.inv(narrow + APERTURE**-2 * identity)
            ),
            "fp32": lambda narrow=narrow: solve_conceptor(narrow, APERTURE),
            "fp64": lambda wide=wide: solve_conceptor(wide, APERTURE),
        }
        timings = interleave(runs, rounds)
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


# Tables for reading ------------------------------------------------------------------------------------------------------------------


def operator_table(rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    return [
        {
            "rows": str(r["rows"]),
            "Ebar": r["form"].replace("energy reference", "").strip(),
            "released hooks, ms": f"{r['hooks_seconds'].median * 1e3:.2f}",
            "here, ms": f"{r['seconds'].median * 1e3:.2f}",
            "speed-up": str(r["speed_up"]),
            "products of the unlabelled rows alone, ms": f"{r['limit_seconds'].median * 1e3:.2f}",
            "page faults a call, hooks / here": f"{r['hooks_page_faults']:.0f} / {r['page_faults']:.0f}",
            "error against fp64": f"{r['error']:.1e}",
        }
        for r in rows
    ]


SOLVES = {"released": "R @ inv(...), fp32, as released", "fp32": "here, fp32", "fp64": "here, fp64 (default)"}


def solve_table(rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    return [
        {
            "D": str(r["D"]),
            "conceptor solve": SOLVES[r["solve"]],
            "ms": f"{r['seconds'].median * 1e3:.1f}",
            "speed-up": str(r["speed_up"]),
            "largest error": f"{r['largest_error']:.1e}",
            "asymmetry": f"{r['asymmetry']:.1e}",
        }
        for r in rows
    ]
