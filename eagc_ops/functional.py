"""`eagc_op`: the operator as a function."""

from __future__ import annotations

import torch
from torch import Tensor

from . import hints, validation
from .autograd import attach
from .kernels import Anchor, Coordination, Implementation, Inputs, Precision, Tau, is_under_autocast
from .subspace import APERTURE, Subspace, estimate_from_batch


def eagc_op(
    z: Tensor,
    z_ref: Tensor | None,
    mask: Tensor,
    subspace: Subspace | None = None,
    *,
    lambda_a: float = 0.7,
    lambda_p: float = 0.5,
    energy_ref: Tensor | float | None = None,
    anchor: Anchor = "mean",
    tau: Tau = "energy",
    loss_scale: Tensor | float | None = None,
    return_token: bool = False,
    impl: Implementation = "auto",
    precision: Precision = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """Return z unchanged, and coordinate its gradient in backward.

    Labelled rows are anchored to z_ref; unlabelled rows are projected out of the subspace.

    Args:
        z: (..., D) floating; all leading dimensions count as rows.
        z_ref: the frozen reference model's features, of z's shape, any floating dtype, without gradient.
            Unlabelled rows are never read. None: no anchor.
        mask: (...) bool, True = labelled. Two views of an image need two values.
        subspace: the known-class subspace. None: estimate it from the labelled rows of z_ref in this batch,
            with a warning the first time.
        lambda_a: the strength of the anchor.
        lambda_p: the strength of the projection.
        energy_ref: the mean energy ratio of labelled features, a number or a 0-d tensor. None: take the
            subspace's.
        anchor: "mean" divides the anchor by (labelled rows x D), as the released code does; "sum" is the
            paper's formula as printed.
        tau: "energy", or "uniform" for tau = 1 on unlabelled rows (the paper's ablation).
        loss_scale: what you multiply the loss by before backward (GradScaler, 1 / accumulation steps), a
            number or a 0-d tensor on z's device. The anchor does not grow with the gradient, so it must be
            scaled like the loss.
        return_token: return (z, token) instead. The token is 0; add it to the loss (once), and the anchor
            gets the loss's scale.
        impl: "auto", "triton", "torch" or "fp64". One that cannot run here raises an error; "auto" warns once
            and uses torch if the Triton kernel cannot be launched.
        precision: how the Triton kernel multiplies. "auto": half inputs with half products and fp32 sums;
            fp32 inputs in IEEE fp32, or in TF32 on NVIDIA GPUs if this call is under autocast (wherever
            backward runs) or torch's own products use it (torch.set_float32_matmul_precision).
            "high": IEEE fp32 products for all inputs. "tf32x3" and "tf32": fp32 inputs on NVIDIA's tensor
            cores.

    The output is a view of z: an in-place operation on it raises torch's view error.

    Example:
        >>> z = torch.randn(4, 8, requires_grad=True)
        >>> z_ref, mask = torch.randn(4, 8), torch.tensor([True, True, False, False])
        >>> subspace = Subspace.conceptor(torch.randn(100, 8))
        >>> out = eagc_op(z, z_ref, mask, subspace, lambda_p=0.0)
        >>> out.sum().backward()
        >>> torch.allclose(z.grad[:2], 1 + 0.7 / (2 * 8) * (z - z_ref)[:2])  # the mean of 2 x 8 entries
        True
        >>> torch.equal(z.grad[2:], torch.ones(2, 8))
        True
    """
    settings = Coordination(lambda_a, lambda_p, anchor, tau)
    execution = validation.checked_execution(impl, precision)
    validation.check_settings(settings)
    validation.check_tensors(z, z_ref, mask)
    execution = execution._replace(autocast=is_under_autocast(z.device))
    if subspace is not None:
        validation.check_subspace(subspace)
        matrix, own_energy_ref = subspace.matrix, subspace.energy_ref
        basis, weights = subspace.basis, subspace.weights
    elif z_ref is not None:
        reference, labelled = z_ref.reshape(-1, z_ref.shape[-1]), mask.reshape(-1)
        matrix, own_energy_ref = estimate_from_batch(reference, labelled)
        hints.about_batch(matrix, own_energy_ref, reference, labelled, APERTURE)
        basis = weights = None
    else:
        raise ValueError(
            "subspace and z_ref are both None: pass subspace=Subspace.conceptor(labelled_features), or z_ref "
            "to estimate one from"
        )
    validation.check_call(z, matrix, execution, loss_scale, return_token)
    if energy_ref is None:
        energy_ref = own_energy_ref
    else:
        validation.check_energy_ref(energy_ref, z)
        # A copy: backward uses the value of this forward, even if the tensor changes in between.
        if isinstance(energy_ref, Tensor):
            energy_ref = energy_ref.detach().clone()
        else:
            energy_ref = torch.full((), energy_ref, dtype=torch.float32, device=z.device)
    inputs = Inputs(z, z_ref, mask, matrix, energy_ref, basis=basis, weights=weights)
    hints.about_settings(settings)
    anchored, scaled = z_ref is not None and lambda_a != 0, return_token or loss_scale is not None
    hints.about_call(z, settings, anchored=anchored, scaled=scaled)
    out = attach(inputs, settings, execution, loss_scale, return_token)
    _watch.look(out, z_ref, mask, anchored=anchored, unscaled=anchored and not scaled)
    return out


_watch = hints.ScaleWatch()
