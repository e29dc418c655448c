"""The autograd function behind `eagc_op` and `EAGC`.

Forward returns a view of z. Backward coordinates the gradient in one opaque op of `library`, so that
torch.compile keeps the call in one graph.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from . import hints, library
from .kernels import Coordination, Execution, Inputs


def attach(
    inputs: Inputs,
    settings: Coordination,
    execution: Execution,
    loss_scale: Tensor | float | None = None,
    return_token: bool = False,
    writes: list[int] | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Return z, or (z, token), with a backward that coordinates the gradient.

    The inputs have passed `validation`; z may have several leading dimensions. `writes` counts how often the
    module's subspace was replaced: backward raises if it has changed. None: no module counts.
    """
    if isinstance(loss_scale, Tensor):
        inputs = inputs._replace(scale=loss_scale.detach())
    elif loss_scale is not None:
        settings = settings._replace(lambda_a=settings.lambda_a * loss_scale)
    function = _TransformedCoordinate if torch._C._are_functorch_transforms_active() else _Coordinate
    out: Tensor | tuple[Tensor, Tensor] = function.apply(
        inputs.z, inputs, settings, execution, return_token, writes
    )
    return out


class _Coordinate(torch.autograd.Function):
    """z -> z (and a zero token); in backward g -> `library.call(g)`."""

    @staticmethod
    def forward(
        ctx: Any,
        z: Tensor,
        inputs: Inputs,
        settings: Any,
        execution: Any,
        return_token: bool,
        writes: list[int] | None,
    ) -> Any:
        _remember(ctx, z, inputs, settings, execution, return_token, writes)
        return _identity(z, return_token)

    @staticmethod
    def backward(ctx: Any, grad_z: Tensor | None, grad_token: Tensor | None = None) -> Any:
        if ctx.return_token and grad_token is None:
            raise RuntimeError(
                "the scale token reached no loss, so the anchor's scale is unknown: add it (loss = loss + "
                "token), or pass loss_scale instead"
            )
        if ctx.others is None:  # traced
            inputs = Inputs(*ctx.saved_tensors)
        else:
            inputs = ctx.others._replace(**dict(zip(("z", "z_ref", "mask"), ctx.saved_tensors)))
            if _writes(inputs.matrix, ctx.writes) != ctx.written:
                raise RuntimeError(
                    "the subspace was replaced between forward and backward (set_subspace, load_state_dict "
                    "or a write to its matrix), so this backward would use one that its forward did not see: "
                    "replace it between two steps"
                )
        z = inputs.z
        if grad_z is None:
            if not ctx.return_token:
                return None, None, None, None, None, None
            if grad_token is not None and not torch.compiler.is_compiling():
                hints.once("unused output", hints.UNUSED_OUTPUT)
            grad_z = torch.zeros_like(z)
        if grad_token is not None:
            inputs = inputs._replace(scale=_scale_of_token(ctx, grad_z, grad_token))
        with torch.no_grad():
            if z.ndim == 2:
                out = library.call(grad_z, inputs, ctx.settings, ctx.execution, ctx.dispatched)
            else:
                rows = grad_z.reshape(-1, z.shape[-1])
                out = library.call(rows, as_rows(inputs), ctx.settings, ctx.execution, ctx.dispatched).view(
                    z.shape
                )
        if torch.is_grad_enabled():  # create_graph=True: a second derivative must not be silently wrong
            out = _NoSecondDerivative.apply(out, grad_z, z)
        return out, None, None, None, None, None


class _TransformedCoordinate(_Coordinate):
    """The same for torch.func transforms, which need a separate `setup_context`.

    It is not used for every call because torch then inspects signatures each time, which takes 0.1 ms.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        z: Tensor, inputs: Any, settings: Any, execution: Any, return_token: bool, writes: Any
    ) -> Any:
        return _identity(z, return_token)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _remember(ctx, *inputs)
        # torch.func.vjp calls backward when its level has ended: only the dispatcher unwraps what was saved.
        ctx.dispatched = True

    @staticmethod
    def backward(ctx: Any, grad_z: Tensor | None, grad_token: Tensor | None = None) -> Any:
        if any(x is not None and torch._C._functorch.is_batchedtensor(x) for x in (grad_z, grad_token)):
            raise NotImplementedError(
                "eagc_op has no Jacobian (jacrev, vmap over vjp): its backward is not linear, and every row "
                "of one would hold the anchor again. Take it of the model without the operator"
            )
        return _Coordinate.backward(ctx, grad_z, grad_token)

    # Not in the parent: Dynamo refuses to trace a function with a jvp.
    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise NotImplementedError(
            "eagc_op has no forward-mode derivative (jvp, jacfwd, hessian), because it edits what backward "
            "computes: take such derivatives of the model without the operator"
        )

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
    ctx: Any,
    z: Tensor,
    inputs: Inputs,
    settings: Coordination,
    execution: Execution,
    return_token: bool,
    writes: list[int] | None,
) -> None:
    # Matrices and scalars are attributes, not saved tensors. DDP's broadcast writes module buffers in place
    # before every forward, with equal values, and torch would refuse a backward after that. They also keep
    # the value of this forward when activation checkpointing runs it again. A compiled graph, though, never
    # comes back to `backward`: torch itself must notice a write there, which it does for saved tensors alone.
    if torch.compiler.is_compiling():
        ctx.save_for_backward(*inputs)
        ctx.others = None
    else:
        ctx.save_for_backward(z, inputs.z_ref, inputs.mask)
        ctx.others = inputs._replace(z=None, z_ref=None, mask=None)  # type: ignore[arg-type]
        ctx.writes, ctx.written = writes, _writes(inputs.matrix, writes)
    ctx.settings, ctx.execution, ctx.return_token = settings, execution, return_token
    ctx.dispatched = False
    ctx.set_materialize_grads(False)
    # When traced, or run again inside a backward (reentrant checkpointing), torch passes a zero instead of
    # None as the gradient of a token that reached no loss.
    ctx.forgotten_is_zero = return_token and (
        torch.compiler.is_compiling() or torch._C._current_graph_task_id() != -1
    )


def _writes(matrix: Tensor, own: list[int] | None) -> int:
    """How often a subspace was written to, by torch's count and its module's (`own`).

    DDP writes equal values to buffers before every forward, so with several ranks only the module counts.
    """
    if own is not None and dist.is_available() and dist.is_initialized():
        return own[0]
    version = 0 if matrix.is_inference() else matrix._version
    return version if own is None else version + own[0]


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
