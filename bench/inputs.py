"""Inputs on which the operator is measured, and the error of a result on them against fp64."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from eagc_ops import Subspace
from eagc_ops.kernels import formulas

APERTURE = 2.0
MOMENTUM = 0.95  # of the running energy reference, as released
OPTIONS = {"lambda_a": 0.7, "lambda_p": 0.5, "anchor": "mean", "tau": "energy"}
# Largest error a provider may have: of the result, and of the correction alone (result minus g). The second is the sharper one: what the
# operator adds is small beside g, so a result can look right without it.
TOLERANCE = {torch.float32: (1e-6, 1e-5), torch.bfloat16: (2e-2, 0.2), torch.float16: (3e-3, 0.03)}


@dataclass(frozen=True)
class Inputs:
    """Half the rows labelled, `active` of the unlabelled ones with tau > 0. Features as a LayerNorm gives them: |z|^2 = D."""

    g: Tensor
    z: Tensor
    z_ref: Tensor
    mask: Tensor
    subspace: Subspace
    active: float


@dataclass(frozen=True)
class Error:
    """Relative to the exact result, and to the exact correction of the labelled or of the unlabelled rows, whichever is worse."""

    result: float
    correction: float

    def too_large(self, dtype: torch.dtype) -> bool:
        """Not finite counts as too large."""
        return not (self.result <= TOLERANCE[dtype][0] and self.correction <= TOLERANCE[dtype][1])


def make_features(rows: int, dim: int, generator: torch.Generator, spread: bool = False) -> Tensor:
    """(rows, D) with a decaying spectrum; `spread` makes it flatter in some rows than in others, so that their energies differ."""
    power = 1 - torch.rand(rows, 1, generator=generator) if spread else torch.ones(rows, 1)
    spectrum = torch.arange(1, dim + 1).rsqrt() ** power
    return torch.nn.functional.layer_norm(torch.randn(rows, dim, generator=generator) * spectrum, (dim,))


def make_inputs(
    rows: int,
    dim: int = 768,
    active: float = 0.7,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Inputs:
    generator = torch.Generator().manual_seed(0)
    fitted = Subspace.conceptor(make_features(1500, dim, generator), APERTURE)
    z = make_features(rows, dim, generator, spread=True).to(dtype)
    mask = torch.arange(rows) % 2 == 0
    energy_ref = fitted.energy(z[~mask]).quantile(active)
    # As large as the gradient, the anchor cannot be wrong without being seen.
    g = torch.randn(rows, dim, generator=generator) * 1e-4
    drift = torch.randn(rows, dim, generator=generator) * 1e-4 * mask.sum() * dim / OPTIONS["lambda_a"]
    z_ref, g = (z.float() + drift).to(dtype), g.to(dtype)
    g, z, z_ref, mask = (x.to(device) for x in (g, z, z_ref, mask))
    return Inputs(g, z.requires_grad_(), z_ref, mask, Subspace(fitted.matrix, energy_ref).to(device), active)


def error(inputs: Inputs, out: Tensor, *, running: bool) -> Error:
    """Of the gradient `out`; `running`: the energy reference was updated from the labelled rows first, as released."""
    g, z, z_ref = (x.detach().cpu().double() for x in (inputs.g, inputs.z, inputs.z_ref))
    mask, subspace = inputs.mask.cpu(), inputs.subspace.to("cpu")
    matrix, energy_ref = subspace.matrix.double(), subspace.energy_ref.double()
    if running:
        energy_ref = formulas.updated_energy_ref(
            energy_ref, formulas.labelled_energy(z, mask, matrix), MOMENTUM
        )
    exact = formulas.coordinate(g, z, z_ref, mask, matrix, energy_ref, **OPTIONS)[0]
    wrong, correction = out.detach().cpu().double() - exact, exact - g
    parts = [(wrong[rows].norm() / correction[rows].norm()).item() for rows in (mask, ~mask)]
    return Error((wrong.norm() / exact.norm()).item(), max(parts))
