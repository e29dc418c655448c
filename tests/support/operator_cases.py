"""Inputs of the operator's tests, and the fp64 oracle they are held against."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eagc_ops.kernels import formulas

OPTIONS = {"lambda_a": 0.7, "lambda_p": 0.5, "anchor": "mean", "tau": "energy"}


@dataclass(frozen=True)
class Case:
    g: Tensor
    z: Tensor
    z_ref: Tensor
    mask: Tensor
    matrix: Tensor
    energy_ref: Tensor

    def inputs(self) -> tuple[Tensor, ...]:
        return self.g, self.z, self.z_ref, self.mask, self.matrix, self.energy_ref

    def oracle(self, matrix_dtype: torch.dtype = torch.float32, **options) -> tuple[Tensor, Tensor, Tensor]:
        """The formulas in fp64, fed the very values the implementation is given (rounded inputs, rounded matrix)."""
        matrix = self.matrix.to(matrix_dtype).double()
        wide = [x.double() for x in (self.g, self.z, self.z_ref)]
        return formulas.coordinate(
            *wide, self.mask, matrix, self.energy_ref.double(), **{**OPTIONS, **options}
        )

    def with_mask(self, mask: Tensor) -> Case:
        return replace(self, mask=mask)


def make_case(
    rows: int = 40, dim: int = 24, dtype: torch.dtype = torch.float32, labelled: float = 0.5, seed: int = 0
) -> Case:
    """Rows whose energy ratios spread around the energy reference, so that most unlabelled ones have 0 < tau < 1.

    S is fitted to other features than the rows under test: on its own rows every tau would be 0 and nothing would be tested.
    The unlabelled rows of z_ref are NaN, as they may be.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    spectrum = torch.arange(1, dim + 1, dtype=torch.float64).rsqrt()
    features = normal(2 * dim + 1, dim) * spectrum
    correlation = features.T @ features / len(features)
    matrix = correlation @ torch.linalg.inv(correlation + 0.25 * torch.eye(dim, dtype=torch.float64))
    matrix = ((matrix + matrix.T) / 2).float()
    z = (
        normal(rows, dim) * spectrum ** torch.rand(rows, 1, generator=generator, dtype=torch.float64).mul(2)
    ).to(dtype)
    mask = torch.rand(rows, generator=generator) < labelled
    energy = formulas.energy_ratio(z.double(), matrix.double())
    energy_ref = energy.quantile(0.8).float().clamp_min(1e-3) if rows else torch.tensor(0.5)
    z_ref = normal(rows, dim).to(dtype)
    z_ref[~mask] = torch.nan
    return Case(normal(rows, dim).to(dtype), z, z_ref, mask, matrix, energy_ref)


def assert_exercised(case: Case) -> None:
    """A good share of unlabelled rows has 0 < tau < 1; without it a test of the projection tests nothing."""
    weight = case.oracle()[2][~case.mask]
    share = ((weight > 0) & (weight < 1)).double().mean()
    assert 0.5 < share < 1, f"only {share:.0%} of the unlabelled rows have 0 < tau < 1"
    assert (weight == 0).any(), "no row has tau = 0: the gate is not exercised"


# How much larger than plain torch's own error (in the same dtype) an implementation's may be, and the floor, a few roundings of a
# result of size 4 (in fp64 plain torch is the oracle itself, so the floor is all there is).
SLACK = 2.0
FLOOR = {torch.float64: 4e-15, torch.float32: 5e-7, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}


def assert_close_to_oracle(
    out: Tensor, case: Case, matrix_dtype: torch.dtype = torch.float32, **options
) -> None:
    """err(implementation, fp64) <= SLACK * err(plain torch in that dtype, fp64) + FLOOR."""
    exact = case.oracle(matrix_dtype, **options)[0]
    dtype = case.z.dtype
    plain = formulas.coordinate(
        case.g,
        case.z,
        case.z_ref,
        case.mask,
        case.matrix.to(dtype),
        case.energy_ref.to(dtype),
        **{**OPTIONS, **options},
    )[0]
    assert out.dtype == case.g.dtype and out.shape == case.g.shape
    assert torch.isfinite(out).all()
    allowed = SLACK * (plain.double() - exact).abs().max().nan_to_num() + FLOOR[dtype] if len(out) else 0
    error = (out.double() - exact).abs().max() if len(out) else 0
    assert error <= allowed, f"error {error:.2e} > allowed {allowed:.2e}"
