"""The checks of a call; nothing is cast or broadcast."""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor

from . import kernels
from .kernels import Anchor, Coordination, Execution, Tau
from .subspace import Subspace


def check_settings(settings: Coordination) -> None:
    for name in ("lambda_a", "lambda_p"):
        value = getattr(settings, name)
        if not _is_finite_and_not_negative(value):
            raise ValueError(f"{name} must be a finite number >= 0, got {value!r}; 0 switches this part off")
    if settings.anchor not in get_args(Anchor):
        raise ValueError(f"anchor must be one of {get_args(Anchor)}, got {settings.anchor!r}")
    if settings.tau not in get_args(Tau):
        raise ValueError(f"tau must be one of {get_args(Tau)}, got {settings.tau!r}")


def checked_execution(impl: str, precision: str) -> Execution:
    """The record of implementation and precision; `check_call` checks that the device supports them."""
    execution = Execution(impl, precision)  # type: ignore[arg-type]
    kernels.check_execution(execution)
    return execution


def check_subspace(subspace: Subspace) -> None:
    if not isinstance(subspace, Subspace):
        raise TypeError(
            f"subspace must be a Subspace, got {type(subspace).__name__}; Subspace.conceptor(features) fits "
            "one, Subspace(matrix, energy_ref) wraps your own matrix"
        )


def check_tensors(z: Tensor, z_ref: Tensor | None, mask: Tensor) -> None:
    for name, x in (("z", z), ("z_ref", z_ref), ("mask", mask)):
        if x is None and name == "z_ref":
            continue
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(x).__name__}; torch.as_tensor makes one")
        if type(x).__name__ == "DTensor":
            raise TypeError(
                f"{name} must be a plain tensor, got a DTensor: pass the local rows ({name}.to_local()), and "
                "let EAGC(process_group=...) share the mean among the ranks"
            )
        if x.device != z.device:
            raise ValueError(
                f"{name} is on {x.device} but z is on {z.device}: move it with {name}.to(z.device)"
            )
        if x.layout != torch.strided:
            raise TypeError(
                f"{name} must be a dense tensor, got one of layout {x.layout}: pass {name}.to_dense(), or "
                "the rows of a nested tensor in one (rows, D)"
            )
        compiling = torch.compiler.is_compiling()
        if name != "z" and not compiling and x.is_inference() and not z.is_inference():
            raise ValueError(
                f"{name} was made under torch.inference_mode() and cannot be kept for backward: use "
                "torch.no_grad()"
            )
    _check_features(z)
    _check_mask(mask, z)
    if z_ref is not None:
        _check_reference_features(z_ref, z)


def check_call(
    z: Tensor, matrix: Tensor, execution: Execution, loss_scale: Tensor | float | None, return_token: bool
) -> None:
    """The remaining checks, before anything runs (even the update of a running Ebar)."""
    dim, subspace_dim = z.shape[-1], matrix.shape[0]
    if subspace_dim != dim:
        raise ValueError(
            f"z has D={dim} but the subspace has D={subspace_dim}: fit it to features of the same layer"
        )
    if matrix.device != z.device:
        raise ValueError(
            f"z is on {z.device} but the subspace is on {matrix.device}: move it with subspace.to(...) or "
            "module.to(...)"
        )
    if return_token and loss_scale is not None:
        raise ValueError("loss_scale and return_token=True both set the scale of the anchor: use one of them")
    if loss_scale is not None:
        check_scalar("loss_scale", loss_scale, z)
    if not torch.compiler.is_compiling():
        kernels.implementation(execution, z.device, z.dtype)


def check_scalar(name: str, value: Tensor | float, z: Tensor) -> None:
    if not isinstance(value, Tensor):
        if not _is_finite_and_not_negative(value):
            raise ValueError(
                f"{name} must be a finite number >= 0 or a 0-d floating tensor on {z.device}, got {value!r}"
            )
    elif value.ndim != 0 or not value.is_floating_point() or value.device != z.device:
        actual = f"{tuple(value.shape)} {value.dtype} on {value.device}"
        raise ValueError(f"{name} must be a number or a 0-d floating tensor on {z.device}, got {actual}")


def check_energy_ref(value: Tensor | float, z: Tensor) -> None:
    check_scalar("energy_ref", value, z)
    if not isinstance(value, Tensor) and value > 1 + 1e-6:  # tau would be high on every row
        raise ValueError(
            f"energy_ref, the mean energy ratio of labelled features, must be at most 1, got {value!r}; "
            "None takes the subspace's own"
        )


def check_momentum(momentum: float | None) -> None:
    if momentum is not None and not (isinstance(momentum, (int, float)) and 0 <= momentum < 1):
        raise ValueError(f"energy_momentum must be None or a number in [0, 1), got {momentum!r}")


def _is_finite_and_not_negative(value: object) -> bool:
    return isinstance(value, (int, float)) and 0 <= value < float("inf")


def _check_features(z: Tensor) -> None:
    if z.ndim < 1 or not z.is_floating_point() or z.element_size() < 2:
        raise ValueError(
            f"z must be a floating tensor (..., D) of 16 bits or more, got {tuple(z.shape)} {z.dtype}: pass "
            "features as fp32, bf16, fp16 or fp64"
        )
    if z.shape[-1] == 0:
        raise ValueError(f"z has shape {tuple(z.shape)}, so D=0: pass features (..., D) with D >= 1")


def _check_mask(mask: Tensor, z: Tensor) -> None:
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must be torch.bool (True = labelled), got {mask.dtype}: {_as_a_mask(mask)}")
    rows = z.shape[:-1]
    if mask.shape != rows:
        hint = ""
        if len(rows) > mask.ndim and rows[: mask.ndim] == mask.shape:
            index = ", ".join([":"] * mask.ndim + ["None"] * (len(rows) - mask.ndim))
            shape = ", ".join(map(str, rows))
            hint = f"; for views in further dimensions pass mask[{index}].expand({shape})"
        elif mask.numel() * 2 == rows.numel():
            hint = "; it has half the rows: for two views per image, one after the other, pass mask.repeat(2)"
        raise ValueError(
            f"mask has shape {tuple(mask.shape)} but z has rows {tuple(rows)}: pass one value for each row "
            f"of z{hint}"
        )


def _as_a_mask(mask: Tensor) -> str:
    """How to make a mask from what was passed: -1 for "no label" must not become True."""
    if mask.dtype.is_floating_point or mask.dtype.is_complex:
        return "pass True for labelled rows and False for the others"
    known = not torch.compiler.is_compiling() and mask.device.type != "meta"
    if known and ((mask == 0) | (mask == 1)).all():
        return "pass mask.bool()"
    return "these look like labels, so pass labels >= 0 if unlabelled rows have -1 (.bool() would be wrong)"


def _check_reference_features(z_ref: Tensor, z: Tensor) -> None:
    if z_ref.shape != z.shape:
        raise ValueError(
            f"z_ref has shape {tuple(z_ref.shape)} but z has {tuple(z.shape)}: the shapes must be equal "
            "(unlabelled rows may hold anything)"
        )
    if not z_ref.is_floating_point():
        raise TypeError(f"z_ref must be floating, got {z_ref.dtype}: pass the reference model's features")
    if z_ref.requires_grad:
        raise ValueError(
            "z_ref requires grad, but it is a constant of the operator: compute it under torch.no_grad(), or "
            "pass z_ref.detach()"
        )
