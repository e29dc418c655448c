"""Inputs of the operator's tests, and the fp64 oracle that results are compared with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from eagc_ops import Subspace, kernels
from eagc_ops.kernels import Coordinated, Coordination, Execution, Inputs, formulas

SETTINGS = Coordination(lambda_a=0.7, lambda_p=0.5, anchor="mean", tau="energy")


@dataclass(frozen=True)
class Case:
    """A gradient g (rows, D) and the other inputs of a call."""

    g: Tensor
    inputs: Inputs

    @property
    def z(self) -> Tensor:
        return self.inputs.z

    @property
    def z_ref(self) -> Tensor | None:
        return self.inputs.z_ref

    @property
    def mask(self) -> Tensor:
        return self.inputs.mask

    @property
    def matrix(self) -> Tensor:
        return self.inputs.matrix

    @property
    def energy_ref(self) -> Tensor:
        return self.inputs.energy_ref

    @property
    def subspace(self) -> Subspace:
        own = {"basis": self.inputs.basis, "weights": self.inputs.weights}
        return Subspace(self.matrix, self.energy_ref, **own)

    def tensors(self) -> list[Tensor]:
        return [self.g, *(x for x in self.inputs if x is not None)]

    def replace(self, g: Tensor | None = None, **inputs: Any) -> Case:
        """The case with a different g or different inputs."""
        return replace(self, g=self.g if g is None else g, inputs=self.inputs._replace(**inputs))

    def oracle(
        self, matrix_dtype: torch.dtype = torch.float32, settings: Coordination = SETTINGS
    ) -> Coordinated:
        """The formulas in fp64 on the very values an implementation gets: rounded inputs, rounded matrix."""
        inputs = self.inputs.rounded(matrix_dtype).widened(torch.float64)
        return formulas.coordinated(self.g.double(), inputs, settings)


def make_case(
    rows: int = 40,
    dim: int = 24,
    dtype: torch.dtype = torch.float32,
    labelled: float = 0.5,
    seed: int = 0,
    basis: bool = False,
) -> Case:
    """Rows whose energy ratios spread around Ebar, so that most unlabelled ones have 0 < tau < 1.

    S is fitted to different features than the rows under test: on its own rows every tau would be 0, and the
    test would exercise nothing. The unlabelled rows of z_ref are NaN, as they may be. `basis`: with an energy
    in a basis that is neither symmetric nor orthogonal.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    spectrum = torch.arange(1, dim + 1, dtype=torch.float64).rsqrt()
    features = normal(2 * dim + 1, dim) * spectrum
    correlation = features.T @ features / len(features)
    matrix = correlation @ torch.linalg.inv(correlation + 0.25 * torch.eye(dim, dtype=torch.float64))
    matrix = ((matrix + matrix.T) / 2).float()
    z = normal(rows, dim)
    power = torch.rand(rows, 1, generator=generator, dtype=torch.float64).mul(2)
    z = (z * spectrum**power).to(dtype)
    mask = torch.rand(rows, generator=generator) < labelled
    z_ref = normal(rows, dim).to(dtype)
    z_ref[~mask] = torch.nan
    g = normal(rows, dim).to(dtype)
    inputs = Inputs(z, z_ref, mask, matrix, torch.tensor(0.5))
    if basis:
        turned = (torch.eye(dim, dtype=torch.float64) + 0.5 * normal(dim, dim) / dim**0.5).float()
        weights = (0.1 + 0.8 * spectrum**2).float()
        turned = spectrum.rsqrt().float()[:, None] * turned
        turned *= dim**0.5 / torch.linalg.matrix_norm(turned)  # a subspace leaves this scale as it is
        inputs = inputs._replace(basis=turned, weights=weights)
    if rows:
        energy = formulas.energy_of(inputs.widened(torch.float64))
        inputs = inputs._replace(energy_ref=energy.quantile(0.8).float().clamp_min(1e-3))
    return Case(g, inputs)


def coordinate(case: Case, impl: str, settings: Coordination = SETTINGS) -> Coordinated:
    """The gradient by an implementation, with the energy ratios and taus it used."""
    execution = Execution(impl)
    gradient = kernels.coordinate(case.g, case.inputs, settings, execution)
    if impl != "triton" or not len(case.g):
        return Coordinated(gradient, *kernels.energies(case.inputs, settings, execution))
    from eagc_ops.kernels import launch  # the fused kernel writes its own out

    return Coordinated(gradient, *launch.run(case.g, case.inputs, settings)[1:])


def assert_exercised(case: Case) -> None:
    """A good share of unlabelled rows has 0 < tau < 1; without it a test of the projection tests nothing."""
    tau = case.oracle().tau[~case.mask]
    share = ((tau > 0) & (tau < 1)).double().mean()
    assert 0.5 < share < 1, f"only {share:.0%} of the unlabelled rows have 0 < tau < 1"
    assert (tau == 0).any(), "no row has tau = 0: the gate is not exercised"


# How much larger than plain torch's own error (in the same dtype) an implementation's may be, and the floor:
# a few roundings of a result of size 4 (in fp64 plain torch is the oracle itself, so the floor is all there
# is).
SLACK = 2.0
FLOOR = {torch.float64: 4e-15, torch.float32: 5e-7, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}


def assert_close_to_oracle(
    out: Tensor, case: Case, matrix_dtype: torch.dtype = torch.float32, settings: Coordination = SETTINGS
) -> None:
    """err(implementation, fp64) <= SLACK * err(plain torch in that dtype, fp64) + FLOOR."""
    exact = case.oracle(matrix_dtype, settings).gradient
    dtype = case.z.dtype
    plain = formulas.coordinated(case.g, case.inputs.widened(dtype), settings).gradient
    assert out.dtype == case.g.dtype and out.shape == case.g.shape
    assert torch.isfinite(out).all()
    allowed = SLACK * (plain.double() - exact).abs().max().nan_to_num() + FLOOR[dtype] if len(out) else 0
    error = (out.double() - exact).abs().max() if len(out) else 0
    assert error <= allowed, f"error {error:.2e} > allowed {allowed:.2e}"
