"""`eagc bench conceptor`: the time and the quality of S and Ebar fitted to features (N, D).

The released code computes R = Z^T Z / N, S = R inv(R + a^-2 I) and the mean energy ratio of Z, all in fp32.
This package computes `Subspace.conceptor`, by default in fp64, with Cholesky for N >= D and Woodbury for
N < D. A run does so once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from eagc_ops import Subspace
from eagc_ops.bench.inputs import APERTURE, make_features
from eagc_ops.bench.measure import clock, interleave, ratio, rounds_within
from eagc_ops.kernels import formulas

DIMS = (384, 768, 1024)  # of ViT-S, -B and -L
COUNTS = (400, 1500, 20000)
APERTURES = (0.5, 1.0, 2.0, 4.0, 10.0, 30.0, 100.0)


def released(features: Tensor, aperture: float) -> tuple[Tensor, Tensor]:
    """S and Ebar as the released code computes them."""
    correlation = features.T @ features / len(features)
    identity = torch.eye(features.shape[1], device=features.device)
    matrix = correlation @ torch.linalg.inv(correlation + aperture**-2 * identity)
    return matrix, formulas.energy_ratio(features, matrix).mean()


def ours(features: Tensor, aperture: float, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    subspace = Subspace.conceptor(features, aperture, dtype=dtype)
    return subspace.matrix, subspace.energy_ref


WAYS: dict[str, Callable[[Tensor, float], tuple[Tensor, Tensor]]] = {
    "released": released,
    "ours": ours,
    "ours, fp32": partial(ours, dtype=torch.float32),
}


def conceptor_tables(quick: bool, device: torch.device) -> dict[str, Any]:
    """Settings, times and quality; on one core they take about five minutes.

    `quick` leaves out N = 20000 and most apertures.
    """
    sizes = [(dim, count) for dim in DIMS for count in COUNTS if not quick or count < 20000]
    tables: dict[str, Any] = {"settings": {"aperture of the times": APERTURE}, "times": [], "quality": []}
    for dim, count in sizes:
        features = make_features(count, dim, torch.Generator().manual_seed(0)).to(device)
        tables["times"] += time_rows(features, 2.0 if quick else 8.0)
        tables["quality"] += quality_rows(
            features, (APERTURES[0], APERTURE, APERTURES[-1]) if quick else APERTURES
        )
    return tables


def time_rows(features: Tensor, budget: float) -> list[dict[str, Any]]:
    refused = {
        name: reason
        for name, way in WAYS.items()
        if isinstance(reason := attempt(way, features, APERTURE), str)
    }
    runs = {name: partial(way, features, APERTURE) for name, way in WAYS.items() if name not in refused}
    rounds = rounds_within(budget, runs, least=7, most=31)
    timings = interleave(runs, rounds, clock(features.device), warm_up=0)
    size = {"D": features.shape[1], "N": features.shape[0]}
    rows = [
        {
            "kind": "measured",
            **size,
            "way": name,
            "rounds": rounds,
            "seconds": timings[name].spread,
            "speed_up": ratio(timings["released"], timings[name]),
        }
        for name in runs
    ]
    return rows + [
        {"kind": "refused", **size, "way": name, "reason": reason} for name, reason in refused.items()
    ]


def quality_rows(features: Tensor, apertures: tuple[float, ...]) -> list[dict[str, Any]]:
    """The largest error of an element against fp64, the asymmetry, and the extreme eigenvalues."""
    rows = []
    for aperture, exact in exact_conceptors(features, apertures):
        for name, way in WAYS.items():
            identity = {"D": features.shape[1], "N": features.shape[0], "aperture": aperture, "way": name}
            fitted = attempt(way, features, aperture)
            if isinstance(fitted, str):
                rows.append({"kind": "refused", **identity, "reason": fitted})
                continue
            matrix = fitted.double()
            values = torch.linalg.eigvalsh((matrix + matrix.T) / 2)
            rows.append(
                {
                    "kind": "measured",
                    **identity,
                    "largest_error": (matrix - exact).abs().max().item(),
                    "asymmetry": (matrix - matrix.T).abs().max().item(),
                    "smallest_eigenvalue": values[0].item(),
                    "largest_eigenvalue": values[-1].item(),
                }
            )
    return rows


def attempt(
    way: Callable[[Tensor, float], tuple[Tensor, Tensor]], features: Tensor, aperture: float
) -> Tensor | str:
    """S, or the error message if a fit in fp32 is refused because its eigenvalues leave [0, 1]."""
    try:
        return way(features, aperture)[0]
    except ValueError as error:
        return str(error)


def exact_conceptors(features: Tensor, apertures: tuple[float, ...]) -> Iterator[tuple[float, Tensor]]:
    """An independent oracle in fp64: S = V diag(s^2 / (s^2 + N a^-2)) V^T with singular values s of Z."""
    wide = features.double()
    if len(wide) >= wide.shape[1]:
        squares, vectors = torch.linalg.eigh(wide.T @ wide)
        vectors = vectors.T
    else:
        _, singular, vectors = torch.linalg.svd(wide, full_matrices=False)
        squares = singular.square()
    for aperture in apertures:
        weight = squares / (squares + len(wide) * aperture**-2)
        yield aperture, (vectors.T * weight) @ vectors
