"""The tensors on which the operator is measured, and the error of a result on them against fp64."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from eagc_ops import Subspace
from eagc_ops.kernels import Coordination, Inputs, formulas

APERTURE = 2.0
MOMENTUM = 0.95  # of the running energy reference, as released
SETTINGS = Coordination()  # the paper's
# The largest error a contender may have: of the result, and of the correction alone (result minus g). The
# second is the sharper test: the correction is small beside g, so a result can look right without it.
TOLERANCE = {torch.float32: (1e-6, 1e-5), torch.bfloat16: (2e-2, 0.2), torch.float16: (3e-3, 0.03)}


@dataclass(frozen=True)
class Workload:
    """Half the rows are labelled, and a share `active` of the unlabelled ones has tau > 0.

    g, z and z_ref are (rows, D), mask is (rows,). The features are as a LayerNorm makes them: |z|^2 = D.
    """

    g: Tensor
    z: Tensor
    z_ref: Tensor
    mask: Tensor
    subspace: Subspace
    active: float

    @property
    def inputs(self) -> Inputs:
        """The inputs of a kernel besides g, without a graph."""
        return Inputs(self.z.detach(), self.z_ref, self.mask, self.subspace.matrix, self.subspace.energy_ref)


@dataclass(frozen=True)
class Error:
    """The error relative to the exact result, and to the exact correction.

    Labelled and unlabelled rows have corrections of their own; the worse error of the two counts.
    """

    result: float
    correction: float

    def too_large(self, dtype: torch.dtype) -> bool:
        """An error that is not finite is too large."""
        return not (self.result <= TOLERANCE[dtype][0] and self.correction <= TOLERANCE[dtype][1])


def make_features(rows: int, dim: int, generator: torch.Generator, spread: bool = False) -> Tensor:
    """(rows, D) fp32 with a decaying spectrum; `spread` flattens it in some rows, so that energies differ."""
    power = 1 - torch.rand(rows, 1, generator=generator) if spread else torch.ones(rows, 1)
    spectrum = torch.arange(1, dim + 1).rsqrt() ** power
    return torch.nn.functional.layer_norm(torch.randn(rows, dim, generator=generator) * spectrum, (dim,))


def make_workload(
    rows: int,
    dim: int = 768,
    active: float = 0.7,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Workload:
    generator = torch.Generator().manual_seed(0)
    fitted = Subspace.conceptor(make_features(1500, dim, generator), APERTURE)
    z = make_features(rows, dim, generator, spread=True).to(dtype)
    mask = torch.arange(rows) % 2 == 0
    energy_ref = fitted.energy(z[~mask]).quantile(active)
    # The anchor is as large as the gradient, so that an error in it shows.
    g = torch.randn(rows, dim, generator=generator) * 1e-4
    drift = torch.randn(rows, dim, generator=generator) * 1e-4 * mask.sum() * dim / SETTINGS.lambda_a
    z_ref, g = (z.float() + drift).to(dtype), g.to(dtype)
    g, z, z_ref, mask = (x.to(device) for x in (g, z, z_ref, mask))
    subspace = Subspace(fitted.matrix, energy_ref).to(device)
    return Workload(g, z.requires_grad_(), z_ref, mask, subspace, active)


def coordinated(g: Tensor, inputs: Inputs) -> Tensor:
    """The formulas over all rows, with SETTINGS, in the tensors' dtype."""
    return formulas.coordinated(g, inputs, SETTINGS).gradient


def error(workload: Workload, gradient: Tensor, *, running: bool) -> Error:
    """The error of `gradient` (rows, D) against fp64.

    With `running`, the energy reference is first updated from the labelled rows, as in the released code.
    """
    g, inputs = workload.g.cpu().double(), workload.inputs.on(torch.device("cpu")).widened(torch.float64)
    mask = inputs.mask
    if running:
        labelled = formulas.labelled_energy(inputs)
        inputs = inputs._replace(
            energy_ref=formulas.updated_energy_ref(inputs.energy_ref, labelled, MOMENTUM)
        )
    exact = coordinated(g, inputs)
    wrong, correction = gradient.detach().cpu().double() - exact, exact - g
    parts = [(wrong[rows].norm() / correction[rows].norm()).item() for rows in (mask, ~mask)]
    return Error((wrong.norm() / exact.norm()).item(), max(parts))
