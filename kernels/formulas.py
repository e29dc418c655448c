"""The formulas of EAGC, literally, in whatever dtype the inputs have. Given fp64 inputs this is the oracle of every test.

Rows are samples. S is the known-class subspace (a conceptor, eq. "S = R (R + aperture^-2 I)^-1"), g = dL/dz.

    E_i   = clamp(z_i S z_i^T / max(|z_i|^2, 1e-12), 0, 1)                     energy ratio
    tau_i = clamp(1 - E_i / (Ebar + 1e-6), 0, 1)                               projection weight
    unlabelled rows:  g_i' = g_i - lambda_p * tau_i * (g_i S)                  energy-aware elastic projection (EEP)
    labelled rows:    g_i' = g_i + s * c * lambda_a * (z_i - z_ref_i)          anchor-based gradient alignment (AGA)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

NORM_FLOOR = 1e-12  # floor of |z|^2: a zero row has energy ratio 0
ENERGY_FLOOR = 1e-6  # added to Ebar before dividing


def energy_ratio(z: Tensor, matrix: Tensor) -> Tensor:
    """Share of each row's energy inside the subspace: z (..., D), matrix (D, D) -> (...), in [0, 1].

    >>> energy_ratio(torch.tensor([[3.0, 4.0]]), torch.diag(torch.tensor([1.0, 0.0])))
    tensor([0.3600])
    """
    return clamped_ratio(((z @ matrix) * z).sum(-1), z.square().sum(-1))


def clamped_ratio(inside: Tensor, total: Tensor) -> Tensor:
    """E from z S z^T and |z|^2. `clamp` keeps NaN, so a non-finite row stays visible."""
    return (inside / total.clamp_min(NORM_FLOOR)).clamp(0, 1)


def projection_weight(energy: Tensor, energy_ref: Tensor | float) -> Tensor:
    """tau: 0 for a row as deep in the known-class subspace as the labelled rows are on average, 1 for a row outside it."""
    return (1 - energy / (energy_ref + ENERGY_FLOOR)).clamp(0, 1)


def anchor_scale(
    labelled: Tensor | float, dim: int, *, lambda_a: float, anchor: str, scale: Tensor | float | None
) -> Tensor | float:
    """s * c * lambda_a, with c = 1 / (N_l * D) for anchor="mean" and 1 for "sum". `labelled` is max(N_l, 1), a number or a 0-d tensor."""
    step = lambda_a / (labelled * dim) if anchor == "mean" else lambda_a
    return step if scale is None else step * scale


def coordinate(
    g: Tensor,
    z: Tensor,
    z_ref: Tensor | None,
    mask: Tensor,
    matrix: Tensor,
    energy_ref: Tensor,
    *,
    lambda_a: float,
    lambda_p: float,
    anchor: str,
    tau: str,
    scale: Tensor | None = None,
    count: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The coordinated gradient, and the energy ratio and tau of every row: g, z, z_ref (B, D); mask (B,) bool, True = labelled.

    `scale` is the loss scale s. `count` replaces N_l when several processes share one mean: the sum of N_l over ranks, divided by the
    number of ranks.
    """
    if tau == "uniform":  # the ablation without energy adaptation: E is not asked for
        energy = torch.full_like(z[:, 0], torch.nan)
        weight = torch.ones_like(energy)
    else:
        energy = energy_ratio(z, matrix)
        weight = projection_weight(energy, energy_ref)
    projected = g - lambda_p * weight[:, None] * (g @ matrix)
    if z_ref is None:
        anchored = g
    else:
        labelled = (mask.sum().clamp_min(1) if count is None else count).to(g.dtype)
        step = anchor_scale(
            labelled,
            g.shape[1],
            lambda_a=lambda_a,
            anchor=anchor,
            scale=None if scale is None else scale.to(g.dtype),
        )
        anchored = g + step * (z - z_ref)
    # A selection, not a multiplication by the mask: rows of z_ref that are not labelled may hold anything, NaN included.
    return torch.where(mask[:, None], anchored, projected), energy, weight


def labelled_energy(z: Tensor, mask: Tensor, matrix: Tensor) -> Tensor:
    """(sum of E over labelled rows, number of labelled rows), the two numbers a running mean energy needs."""
    energy = energy_ratio(z, matrix)
    return torch.stack([torch.where(mask, energy, 0).sum(), mask.sum().to(energy.dtype)])


def updated_energy_ref(energy_ref: Tensor, labelled: Tensor, momentum: float) -> Tensor:
    """Ebar <- momentum * Ebar + (1 - momentum) * batch mean; unchanged when no row is labelled or the mean is not finite.

    `labelled` is the pair of `labelled_energy`. Decided by selection, so that a GPU is not asked for the answer.
    """
    total, count = labelled.unbind()
    mean = total / count
    return torch.where(torch.isfinite(mean), torch.lerp(mean, energy_ref, momentum), energy_ref)


def updated_number(energy_ref: float, total: float, count: float, momentum: float) -> float:
    """`updated_energy_ref` on plain numbers: on a CPU the five small tensor operations cost more than they compute."""
    mean = total / count if count else math.nan
    return momentum * energy_ref + (1 - momentum) * mean if math.isfinite(mean) else energy_ref
