"""The autograd function behind `eagc_op` and `EAGC`.

Forward returns a view of z. Backward coordinates the gradient in one opaque op of `library`, so that
torch.compile keeps the call in one graph.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from eagc_ops import library
from eagc_ops.kernels import Coordination, Execution, Inputs


def coordinate(
    inputs: Inputs,
    settings: Coordination,
    execution: Execution,
    loss_scale: Tensor | float | None = None,
    return_token: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """z, or (z, token), for inputs that have passed `validation`; z may have several leading dimensions."""
    if isinstance(loss_scale, Tensor):
        inputs = inputs._replace(scale=loss_scale.detach())
    elif loss_scale is not None:
        settings = settings._replace(lambda_a=settings.lambda_a * loss_scale)
    function = _TransformedCoordinate if torch._C._are_functorch_transforms_active() else _Coordinate
    out: Tensor | tuple[Tensor, Tensor] = function.apply(inputs.z, inputs, settings, execution, return_token)
    return out


class _Coordinate(torch.autograd.Function):
    """z -> z (and a zero token); in backward g -> `library.coordinate(g)`."""

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, inputs: Inputs, settings: Any, execution: Any, return_token: bool
    ) -> Any:
        _remember(ctx, z, inputs, settings, execution, return_token)
        return _identity(z, return_token)

    @staticmethod
    def backward(ctx: Any, grad_z: Tensor | None, grad_token: Tensor | None = None) -> Any:
        if ctx.return_token and grad_token is None:
            raise RuntimeError(
                "the scale token reached no loss, so the anchor's scale is unknown: add it (loss = loss + "
                "token), or pass loss_scale instead"
            )
        z, z_ref, mask = ctx.saved_tensors
        if grad_z is None:
            if not ctx.return_token:
                return None, None, None, None, None
            grad_z = torch.zeros_like(z)
        scale = ctx.others.scale if grad_token is None else _scale_of_token(ctx, grad_z, grad_token)
        with torch.no_grad():
            inputs = ctx.others._replace(z=z, z_ref=z_ref, mask=mask, scale=scale)
            if z.ndim == 2:
                out = library.coordinate(grad_z, inputs, ctx.settings, ctx.execution)
            else:
                rows = grad_z.reshape(-1, z.shape[-1])
                out = library.coordinate(rows, as_rows(inputs), ctx.settings, ctx.execution).view(z.shape)
        if torch.is_grad_enabled():  # create_graph=True: a second derivative must not be silently wrong
            out = _NoSecondDerivative.apply(out, grad_z, z)
        return out, None, None, None, None


class _TransformedCoordinate(_Coordinate):
    """The same for torch.func transforms, which need a separate `setup_context`.

    It is not used for every call because torch then inspects signatures each time, which takes 0.1 ms.
    """

    @staticmethod
    def forward(z: Tensor, inputs: Any, settings: Any, execution: Any, return_token: bool) -> Any:  # type: ignore[override]
        return _identity(z, return_token)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _remember(ctx, *inputs)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        raise NotImplementedError(
            "eagc_op has no vmap rule, because its mean runs over all rows: fold the mapped dimension into "
            "the rows of z"
        )


class _NoSecondDerivative(torch.autograd.Function):
    """Return `out`; a backward through it raises an error that says why."""

    @staticmethod
    def forward(out: Tensor, grad_z: Tensor, z: Tensor) -> Tensor:
        return out.view_as(out)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        raise NotImplementedError(
            "eagc_op has no second derivative: the gradient that it edits is not the derivative of a function"
        )


def _identity(z: Tensor, return_token: bool) -> Tensor | tuple[Tensor, Tensor]:
    if not return_token:
        return z.view_as(z)
    # At least fp32: the gradient of the token is the loss scale, and 65536 is infinite in fp16.
    dtype = torch.promote_types(z.dtype, torch.float32)
    return z.view_as(z), torch.zeros((), dtype=dtype, device=z.device)


def _remember(
    ctx: Any, z: Tensor, inputs: Inputs, settings: Coordination, execution: Execution, return_token: bool
) -> None:
    # Matrices and scalars are attributes, not saved tensors. DDP's broadcast writes module buffers in place
    # before every forward, with equal values, and torch would refuse a backward after that. They also keep
    # the value of this forward when activation checkpointing runs it again.
    ctx.save_for_backward(z, inputs.z_ref, inputs.mask)
    ctx.others = inputs._replace(z=None, z_ref=None, mask=None)  # type: ignore[arg-type]
    ctx.settings, ctx.execution, ctx.return_token = settings, execution, return_token
    ctx.set_materialize_grads(False)
    # When traced, or run again inside a backward (reentrant checkpointing), torch passes a zero instead of
    # None as the gradient of a token that reached no loss.
    ctx.forgotten_is_zero = return_token and (
        torch.compiler.is_compiling() or torch._C._current_graph_task_id() != -1
    )


def _scale_of_token(ctx: Any, grad_z: Tensor, grad_token: Tensor) -> Tensor:
    """The loss scale: the gradient that reached the token; NaN if the token seems to have reached no loss."""
    if not (ctx.forgotten_is_zero or torch.compiler.is_compiling()):
        return grad_token  # a zero is intended here: the loss term has weight 0
    # A zero scale beside a non-zero gradient means a forgotten token. No error can be raised here, so NaN
    # shows it.
    return torch.where((grad_token == 0) & (grad_z != 0).any(), torch.nan, grad_token)


def as_rows(inputs: Inputs) -> Inputs:
    """The inputs as (rows, D) and (rows,)."""
    dim = inputs.z.shape[-1]
    z_ref = None if inputs.z_ref is None else inputs.z_ref.reshape(-1, dim)
    return inputs._replace(z=inputs.z.reshape(-1, dim), z_ref=z_ref, mask=inputs.mask.reshape(-1))
