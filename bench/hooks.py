"""EAGC as the released code formulates it: a tensor hook on z, with energies and products of all rows.

It is the baseline of the benchmarks, written from a description of that code. It keeps every cost: both
products over all rows, the mask as a float factor, and the values that are read back to the host in every
step.
"""

from __future__ import annotations

import torch
from torch import Tensor


class HookCoordinator:
    """`attach(z, z_ref, mask)` returns z with a hook that edits its gradient."""

    def __init__(
        self,
        matrix: Tensor,
        energy_ref: float,
        lambda_a: float = 0.7,
        lambda_p: float = 0.5,
        momentum: float = 0.95,
    ):
        self.matrix, self.energy_ref = matrix, energy_ref
        self.lambda_a, self.lambda_p, self.momentum = lambda_a, lambda_p, momentum

    def attach(self, z: Tensor, z_ref: Tensor, mask: Tensor) -> Tensor:
        z = z.view_as(z)
        labelled = mask.to(z.dtype)
        with torch.no_grad():
            energy = ((z @ self.matrix) * z).sum(1) / z.square().sum(1).clamp_min(1e-12)
            energy = energy.clamp(0, 1)
            if mask.any():
                mean = energy[mask].mean().item()
                self.energy_ref = self.momentum * self.energy_ref + (1 - self.momentum) * mean
            tau = (1 - energy / (self.energy_ref + 1e-6)).clamp(0, 1)
            weight = self.lambda_p * tau * (1 - labelled)
            drift = z.detach() - z_ref

        def edit(gradient: Tensor) -> Tensor:
            gradient = gradient - weight[:, None] * (gradient @ self.matrix)
            count = labelled.sum().item()
            if count:
                gradient = gradient + self.lambda_a / (count * z.shape[1]) * labelled[:, None] * drift
            return gradient

        z.register_hook(edit)
        return z
