"""The records that travel from the public API down to a kernel, so that no parameter list is written twice.

`Inputs` holds the tensors of one call, `Coordination` the settings of the method, `Execution` the choices
that change roundings and speed only, and `Coordinated` the result with the quantities it was computed from.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

Anchor = Literal["mean", "sum"]
Tau = Literal["energy", "uniform"]
Implementation = Literal["auto", "triton", "torch", "fp64"]
Precision = Literal["auto", "high", "tf32x3", "tf32"]
# The dtypes of the Triton kernel, as options and tables name them.
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Inputs(NamedTuple):
    """The tensors of one call besides the gradient; rows are samples."""

    z: Tensor  # (rows, D), floating
    z_ref: Tensor | None  # (rows, D), floating, read on labelled rows only; None: no anchor
    mask: Tensor  # (rows,) bool, True = labelled
    matrix: Tensor  # (D, D), the subspace S, symmetric
    energy_ref: Tensor  # (), the mean energy ratio Ebar of labelled features
    scale: Tensor | None = None  # (), the factor of the loss; None: 1
    labelled: Tensor | None = None  # (), number of labelled rows, averaged over ranks; None: counted here
    half: Tensor | None = None  # (D, D), S in the 16-bit dtype of z; None: cast by the kernel that needs it
    basis: Tensor | None = None  # (D, D), M, in which E is formed; None: E is that of S itself
    weights: Tensor | None = None  # (D,), the weights of M's columns; None exactly if basis is
    half_basis: Tensor | None = None  # (D, D), M in the 16-bit dtype of z, as half is S

    def on(self, device: torch.device) -> Inputs:
        """The same inputs on a device."""
        return Inputs(*(x if x is None else x.to(device) for x in self))  # type: ignore[arg-type]

    def widened(self, dtype: torch.dtype) -> Inputs:
        """The same inputs with all that enter products in `dtype`."""
        names = ("z", "z_ref", "matrix", "energy_ref", "basis", "weights")
        return self._replace(**{name: _in(dtype, getattr(self, name)) for name in names})  # type: ignore[arg-type]

    def rounded(self, dtype: torch.dtype) -> Inputs:
        """The same inputs with S and M in `dtype`: what an implementation with such products multiplies."""
        return self._replace(matrix=self.matrix.to(dtype), basis=_in(dtype, self.basis))


class Coordination(NamedTuple):
    """The settings of the method: both strengths, the form of the anchor, and the form of tau."""

    lambda_a: float = 0.7
    lambda_p: float = 0.5
    anchor: Anchor = "mean"
    tau: Tau = "energy"


class Execution(NamedTuple):
    """The implementation, the precision of its products, and whether the forward ran under autocast."""

    impl: Implementation = "auto"
    precision: Precision = "auto"
    autocast: bool = False  # backward usually runs outside the block, so the answer travels with the call


class Coordinated(NamedTuple):
    """The coordinated gradient, and the energy ratio and tau of every row."""

    gradient: Tensor  # (rows, D), dtype of the incoming gradient
    energy: Tensor  # (rows,)
    tau: Tensor  # (rows,)


def _in(dtype: torch.dtype, x: Tensor | None) -> Tensor | None:
    return None if x is None else x.to(dtype)
