"""The formulas of EAGC in plain torch, in the dtype of the inputs.

In fp64 they are the oracle of every test. Rows are samples, S is the known-class subspace (a conceptor,
S = R (R + aperture^-2 I)^-1), and g = dL/dz.

    E_i   = clamp(z_i S z_i^T / max(|z_i|^2, 1e-12), 0, 1)                energy ratio
    tau_i = clamp(1 - E_i / (Ebar + 1e-6), 0, 1)                          projection weight
    unlabelled rows:  g_i' = g_i - lambda_p * tau_i * (g_i S)             energy-aware elastic projection
    labelled rows:    g_i' = g_i + s * c * lambda_a * (z_i - z_ref_i)     anchor-based gradient alignment

E may instead be any ratio of two quadratic forms with values in [0, 1], z A z^T / z B z^T with B positive
definite. Both are diagonal in one basis, the columns of an invertible M (D, D), with weights w_j in [0, 1]:

    E_i   = clamp(sum_j w_j (z_i M)_j^2 / max(sum_j (z_i M)_j^2, 1e-12), 0, 1)

with A = M diag(w) M^T and B = M M^T. `Subspace.whitened` fits such an energy.
"""

from __future__ import annotations

import math
from typing import TypeVar

import torch
from torch import Tensor

from .records import Coordinated, Coordination, Inputs

Number = TypeVar("Number", float, Tensor)

NORM_FLOOR = 1e-12  # floor of |z|^2: a zero row has energy ratio 0
ENERGY_FLOOR = 1e-6  # added to Ebar before the division


def coordinated(g: Tensor, inputs: Inputs, settings: Coordination) -> Coordinated:
    """The coordinated gradient of g (rows, D), with the energy ratio and tau of all rows, labelled or not."""
    z, z_ref, mask, scale, labelled = inputs.z, inputs.z_ref, inputs.mask, inputs.scale, inputs.labelled
    energy, tau = energy_and_tau(inputs, settings)
    projected = g  # exactly: 0 times the tau of a non-finite row is NaN
    if settings.lambda_p != 0:
        projected = g - settings.lambda_p * tau[:, None] * (g @ inputs.matrix)
    if z_ref is None:
        anchored = g
    else:
        number = mask.sum().clamp_min(1) if labelled is None else labelled
        step = anchor_step(number.to(g.dtype), g.shape[1], settings)
        anchored = g + (step if scale is None else step * scale.to(g.dtype)) * (z - z_ref)
    # A selection, not a product with the mask: unlabelled rows of z_ref may hold anything, NaN included.
    return Coordinated(torch.where(mask[:, None], anchored, projected), energy, tau)


def energy_and_tau(inputs: Inputs, settings: Coordination) -> tuple[Tensor, Tensor]:
    """E and tau of every row, (rows,) each; the ablation tau="uniform" needs no energy, which is then NaN."""
    if settings.tau == "uniform":
        energy = torch.full_like(inputs.z[:, 0], torch.nan)
        return energy, torch.ones_like(energy)
    energy = energy_of(inputs)
    return energy, projection_weight(energy, inputs.energy_ref)


def energy_of(inputs: Inputs) -> Tensor:
    """E of every row of z, (rows,): in the basis if the inputs have one, else that of S itself."""
    if inputs.basis is None or inputs.weights is None:
        return energy_ratio(inputs.z, inputs.matrix)
    return energy_in_basis(inputs.z, inputs.basis, inputs.weights)


def energy_ratio(z: Tensor, matrix: Tensor) -> Tensor:
    """The share of each row's energy inside the subspace: z (..., D), matrix (D, D) -> (...), in [0, 1].

    >>> energy_ratio(torch.tensor([[3.0, 4.0]]), torch.diag(torch.tensor([1.0, 0.0])))
    tensor([0.3600])
    """
    return clamped_ratio(((z @ matrix) * z).sum(-1), z.square().sum(-1))


def energy_in_basis(z: Tensor, basis: Tensor, weights: Tensor) -> Tensor:
    """The ratio of two quadratic forms: z (..., D), basis (D, D), weights (D,) -> (...), in [0, 1].

    >>> energy_in_basis(torch.tensor([[3.0, 4.0]]), torch.eye(2), torch.tensor([1.0, 0.0]))
    tensor([0.3600])
    """
    squares = (z @ basis).square()
    return clamped_ratio(squares @ weights, squares.sum(-1))


def clamped_ratio(inside: Tensor, total: Tensor) -> Tensor:
    """E from both quadratic forms, such as z S z^T and |z|^2.

    `clamp` keeps NaN, so a non-finite row stays visible.
    """
    return (inside / total.clamp_min(NORM_FLOOR)).clamp(0, 1)


def projection_weight(energy: Tensor, energy_ref: Tensor | float) -> Tensor:
    """tau: 0 for a row with at least the mean energy ratio of labelled rows, 1 for a row with none."""
    return (1 - energy / (energy_ref + ENERGY_FLOOR)).clamp(0, 1)


def anchor_step(number: Number, dim: int, settings: Coordination) -> Number | float:
    """c * lambda_a, with c = 1 / (N_l * D) for anchor="mean" and 1 for "sum". `number` is max(N_l, 1)."""
    return settings.lambda_a / (number * dim) if settings.anchor == "mean" else settings.lambda_a


def labelled_energy(inputs: Inputs) -> Tensor:
    """(sum of E over the labelled rows, number of labelled rows), for the running mean of E."""
    energy, mask = energy_of(inputs), inputs.mask
    return torch.stack([torch.where(mask, energy, 0).sum(), mask.sum().to(energy.dtype)])


def updated_energy_ref(energy_ref: Tensor, labelled: Tensor, momentum: float) -> Tensor:
    """Ebar <- momentum * Ebar + (1 - momentum) * batch mean.

    It is unchanged if no row is labelled or the mean is not finite; `torch.where` decides, so the host does
    not wait for a GPU. `labelled` is the pair that `labelled_energy` returns.
    """
    total, count = labelled.unbind()
    mean = total / count
    return torch.where(torch.isfinite(mean), torch.lerp(mean, energy_ref, momentum), energy_ref)


def updated_number(energy_ref: float, total: float, count: float, momentum: float) -> float:
    """`updated_energy_ref` on Python numbers: on a CPU, operations on 0-d tensors are mostly overhead."""
    mean = total / count if count else math.nan
    return momentum * energy_ref + (1 - momentum) * mean if math.isfinite(mean) else energy_ref
