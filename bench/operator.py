"""`eagc bench operator`: the CPU path against the released hook formulation, and the conceptor solve against the released inverse."""

from __future__ import annotations

from collections.abc import Callable

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
    """What a step adds around the head: forward call and backward, from the gradient at the output to the gradient at z."""
    fixed = EAGC(inputs.subspace)
    running = EAGC(inputs.subspace, energy_momentum=MOMENTUM)
    start = inputs.subspace.energy_ref.item()

    def backward(out: Tensor) -> Tensor:
        return torch.autograd.grad(out, inputs.z, inputs.g)[0]

    def hooks() -> Tensor:
        return backward(HookCoordinator(inputs.subspace.matrix, start).attach(inputs.z, inputs.z_ref, inputs.mask))

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
            raise RuntimeError(f"{name} is off by {found.result:.1e} against fp64, its correction by {found.correction:.1e}: not timed")
        errors[name] = found.result
    return errors


def operator_rows(rounds: Callable[[int], int] = ROUNDS.get) -> list[dict]:
    table = []
    for rows in ROWS:
        inputs = make_inputs(rows)
        runs = variants(inputs)
        errors = check(inputs, runs)
        timings = interleave(runs, rounds(rows))
        for name, label in (("given", "energy reference given"), ("ema", "running energy reference")):
            speed_up = ratio(timings["hooks"], timings[name])
            table.append(
                {
                    "rows": rows,
                    "form": label,
                    "hooks ms": round(timings["hooks"].median * 1e3, 2),
                    "ours ms": round(timings[name].median * 1e3, 2),
                    "speed-up": round(speed_up.median, 2),
                    "quartiles": f"{speed_up.low:.2f}-{speed_up.high:.2f}",
                    "products of the unlabelled rows alone ms": round(timings["limit"].median * 1e3, 2),
                    "error": f"{errors[name]:.1e}",
                    "tau > 0": f"{inputs.active:.0%}",
                    "page faults a call, hooks / ours": f"{timings['hooks'].median_faults:.0f} / {timings[name].median_faults:.0f}",
                }
            )
    return table


def conceptor_rows(rounds: int = 21) -> list[dict]:
    """The solve alone, R given. The released way: R @ inv(R + a^-2 I) in fp32."""
    table = []
    for dim in DIMS:
        features = make_features(1500, dim, torch.Generator().manual_seed(0)).double()
        wide = features.T @ features / len(features)
        narrow = wide.float()
        values, vectors = torch.linalg.eigh(wide)  # an oracle of its own: the soft threshold on the eigenvalues
        exact = (vectors * (values / (values + APERTURE**-2))) @ vectors.T
        identity = torch.eye(dim)
        runs = {
            "released": lambda narrow=narrow, identity=identity: narrow @ torch.linalg.inv(narrow + APERTURE**-2 * identity),
            "fp32": lambda narrow=narrow: solve_conceptor(narrow, APERTURE),
            "fp64": lambda wide=wide: solve_conceptor(wide, APERTURE),
        }
        timings = interleave(runs, rounds)
        for name, run in runs.items():
            matrix = run()
            speed_up = ratio(timings["released"], timings[name])
            table.append(
                {
                    "D": dim,
                    "solve": name,
                    "ms": round(timings[name].median * 1e3, 1),
                    "speed-up": round(speed_up.median, 2),
                    "quartiles": f"{speed_up.low:.2f}-{speed_up.high:.2f}",
                    "largest error": f"{(matrix.double() - exact).abs().max().item():.1e}",
                    "asymmetry": f"{(matrix - matrix.T).abs().max().item():.1e}",
                }
            )
    return table
