"""`eagc_op`: identity forward, coordinated backward.

An `autograd.Function` whose forward is a view and whose backward is one opaque op, `eagc::coordinate`, so that torch.compile
keeps it in one graph and the kernel is launched eagerly. Work that must happen at forward time (running energy reference,
labelled rows counted over ranks) is a second opaque op, `eagc::observe`, called only when it is needed.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from eagc_ops import kernels
from eagc_ops.subspace import Subspace, estimate_from_batch

ANCHORS = ("mean", "sum")
TAUS = ("energy", "uniform")


def eagc_op(
    z: Tensor,
    z_ref: Tensor | None,
    mask: Tensor,
    subspace: Subspace | None = None,
    *,
    lambda_a: float = 0.7,
    lambda_p: float = 0.5,
    energy_ref: Tensor | float | None = None,
    anchor: str = "mean",
    tau: str = "energy",
    loss_scale: Tensor | float | None = None,
    return_token: bool = False,
    impl: str = "auto",
    precision: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """Returns z unchanged; on the way back, labelled rows are anchored to z_ref and unlabelled rows projected out of the subspace.

    Args:
        z: (..., D) floating; every leading dimension counts as rows.
        z_ref: same shape, any floating dtype, from the frozen reference model, without gradient; rows that are not labelled are
            never read. None: no anchor.
        mask: (...) bool, True = labelled. With two views per image it has a value for each view.
        subspace: the known-class subspace. None: estimated from the labelled rows of z_ref in this batch (a warning says so once).
        lambda_a, lambda_p: strength of anchor and projection.
        energy_ref: mean energy ratio of labelled features, a number or 0-d tensor; default: the subspace's own.
        anchor: "mean" divides the anchor by (labelled rows x D), as the released code does; "sum" is the paper's formula as printed.
        tau: "energy", or "uniform" for tau = 1 on unlabelled rows (the paper's ablation).
        loss_scale: factor the loss was multiplied with before backward (GradScaler, 1 / accumulation steps), a number or a 0-d
            tensor on z's device. The anchor is not linear in the gradient, so it has to be scaled like the loss.
        return_token: return (z, token) instead. The token is 0; add it to the loss and the anchor gets the loss's scale by itself.
        impl: "auto", "triton", "torch" or "reference" (fp64); raises when it cannot be honoured.
        precision: of the Triton kernel. "auto": fp32 inputs in ieee fp32, half inputs with half products and fp32 sums; "high": half
            inputs multiplied in fp32; "tf32x3", "tf32": fp32 inputs on NVIDIA's tensor cores.

    The output is a view of z: an in-place operation on it raises torch's view error.

    >>> z = torch.randn(4, 8, requires_grad=True)
    >>> z_ref, mask = torch.randn(4, 8), torch.tensor([True, True, False, False])
    >>> subspace = Subspace.conceptor(torch.randn(100, 8))
    >>> out = eagc_op(z, z_ref, mask, subspace, lambda_p=0.0)
    >>> out.sum().backward()
    >>> torch.allclose(z.grad[:2], 1 + 0.7 / (2 * 8) * (z - z_ref)[:2]), torch.equal(z.grad[2:], torch.ones(2, 8))
    (True, True)
    """
    check_options(lambda_a, lambda_p, anchor, tau)
    check_inputs(z, z_ref, mask)
    if subspace is None:
        if z_ref is None:
            raise ValueError(
                "subspace and z_ref are both None: give Subspace.conceptor(labelled_features), or z_ref to estimate one from"
            )
        _warn_batch_subspace()
        matrix, estimated = estimate_from_batch(z_ref.reshape(-1, z_ref.shape[-1]), mask.reshape(-1))
    else:
        if not isinstance(subspace, Subspace):
            raise TypeError(
                f"subspace must be a Subspace, got {type(subspace).__name__}; Subspace(matrix, energy_ref) wraps your own matrix"
            )
        matrix, estimated = subspace.matrix, subspace.energy_ref
    if energy_ref is None:
        energy_ref = estimated
    else:
        _check_scalar("energy_ref", energy_ref, z)
        given = isinstance(
            energy_ref, Tensor
        )  # a copy: the value of this forward, whatever becomes of the tensor before backward
        energy_ref = (
            energy_ref.detach().clone()
            if given
            else torch.full((), energy_ref, dtype=torch.float32, device=z.device)
        )
    check_call(z, matrix, loss_scale, return_token, impl, precision)
    return apply(
        z, z_ref, mask, matrix, energy_ref, None, loss_scale, return_token,
        lambda_a=lambda_a, lambda_p=lambda_p, anchor=anchor, tau=tau, impl=impl, precision=precision,
    )  # fmt: skip


def apply(
    z: Tensor,
    z_ref: Tensor | None,
    mask: Tensor,
    matrix: Tensor,
    energy_ref: Tensor,
    count: Tensor | None,
    loss_scale: Tensor | float | None,
    return_token: bool,
    *,
    lambda_a: float,
    lambda_p: float,
    anchor: str,
    tau: str,
    impl: str,
    precision: str,
    recorder: int = 0,
) -> Tensor | tuple[Tensor, Tensor]:
    """The differentiable call behind `eagc_op` and `EAGC`, on inputs that `check_inputs` and `check_call` have passed."""
    scale = None
    if isinstance(loss_scale, Tensor):
        scale = loss_scale.detach()
    elif loss_scale is not None:
        lambda_a = lambda_a * loss_scale
    function = TransformedCoordinate if torch._C._are_functorch_transforms_active() else Coordinate
    inputs = z, z_ref, mask, matrix, energy_ref, scale, count
    return function.apply(*inputs, lambda_a, lambda_p, anchor, tau, impl, precision, recorder, return_token)


def observe(
    z: Tensor,
    mask: Tensor,
    matrix: Tensor,
    energy_ref: Tensor,
    momentum: float | None,
    process_group: dist.ProcessGroup | None,
    impl: str,
    precision: str,
) -> tuple[Tensor, Tensor | None]:
    """Forward-time work: the energy reference to use for this batch (a fresh tensor) and, with a process group, N_l averaged over ranks.

    `momentum` None leaves the energy reference as it is; otherwise it is updated in place from the labelled rows.
    """
    group = "" if process_group is None else process_group.group_name
    rows, mask = as_rows(z.detach()), mask if mask.ndim == 1 else mask.reshape(-1)
    used, count = route(observe_op, rows)(rows, mask, matrix, energy_ref, momentum, group, impl, precision)
    return used, count if group else None


def as_rows(x: Tensor) -> Tensor:
    """(..., D) -> (rows, D). Asked first: torch spends microseconds on a reshape that changes nothing."""
    return x if x.ndim == 2 else x.reshape(-1, x.shape[-1])


def identity(z: Tensor, *rest) -> Tensor | tuple[Tensor, Tensor]:
    if not rest[-1]:
        return z.view_as(z)
    # At least fp32: the gradient of the token is the loss scale, and 65536 is infinite in fp16.
    return z.view_as(z), torch.zeros((), dtype=torch.promote_types(z.dtype, torch.float32), device=z.device)


def remember(ctx, inputs: tuple) -> None:
    z, z_ref, mask, ctx.matrix, ctx.energy_ref, ctx.scale, ctx.count, *ctx.options, ctx.return_token = inputs
    # Matrix and scalars are attributes, not saved tensors: DDP's broadcast writes module buffers in place before every forward,
    # with the same values, and torch would refuse a backward after that. They also keep the value of *this* forward when
    # activation checkpointing runs it again.
    ctx.save_for_backward(z, z_ref, mask)
    ctx.set_materialize_grads(False)
    # Traced, or run again inside a backward (reentrant checkpointing): there torch hands a zero, not None, to a token that reached no loss.
    ctx.none_is_zero = ctx.return_token and (
        torch.compiler.is_compiling() or torch._C._current_graph_task_id() != -1
    )


class Coordinate(torch.autograd.Function):
    """z -> z (and a zero token), with g -> g' of `kernels.coordinate` in backward."""

    @staticmethod
    def forward(ctx, *inputs):
        remember(ctx, inputs)
        return identity(*inputs)

    @staticmethod
    def backward(ctx, grad_z, grad_token=None):
        if ctx.return_token and grad_token is None:
            raise RuntimeError(
                "the scale token reached no loss, so the anchor's scale is unknown: add it (loss = loss + token), or use loss_scale"
            )
        z, z_ref, mask = ctx.saved_tensors
        if grad_z is None:
            if not ctx.return_token:
                return (None,) * 15
            grad_z = torch.zeros_like(z)
        scale = grad_token if ctx.return_token else ctx.scale
        if ctx.return_token and (ctx.none_is_zero or torch.compiler.is_compiling()):
            # A zero scale with a gradient that is not zero is a token that reached no loss: NaN says so, where None would have raised.
            # Elsewhere a zero is what the user asked for (a loss term of weight 0), and nothing is spent on looking.
            scale = torch.where((scale == 0) & (grad_z != 0).any(), torch.nan, scale)
        with torch.no_grad():
            rows = (
                as_rows(grad_z),
                as_rows(z),
                z_ref if z_ref is None else as_rows(z_ref),
                mask if mask.ndim == 1 else mask.reshape(-1),
            )
            out = route(coordinate_op, grad_z)(
                *rows, ctx.matrix, ctx.energy_ref, scale, ctx.count, *ctx.options
            )
            out = out if z.ndim == 2 else out.view(z.shape)
        if (
            torch.is_grad_enabled()
        ):  # create_graph=True: a later second derivative must not pass by in silence
            out = NoSecondDerivative.apply(out, grad_z, z)
        return out, *(None,) * 14


class TransformedCoordinate(Coordinate):
    """The same for torch.func transforms, which want forward and context apart; torch then inspects signatures at every call (0.1 ms)."""

    @staticmethod
    def forward(*inputs):
        return identity(*inputs)

    @staticmethod
    def setup_context(ctx, inputs, output):
        remember(ctx, inputs)

    @staticmethod
    def vmap(info, in_dims, *args):
        raise NotImplementedError(
            "eagc_op has no vmap rule (its mean runs over all rows): fold the mapped dimension into the rows of z"
        )


class NoSecondDerivative(torch.autograd.Function):
    """out, in a graph that says why it ends here."""

    @staticmethod
    def forward(out, grad_z, z):
        return out.view_as(out)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        raise NotImplementedError(
            "eagc_op edits the gradient, which is then no function's derivative: it has no second derivative"
        )


# Library.define and Library.impl instead of @custom_op: the same opaque op with five Python frames fewer at every call.
library = torch.library.Library("eagc", "DEF")
library.define(
    "coordinate(Tensor g, Tensor z, Tensor? z_ref, Tensor mask, Tensor matrix, Tensor energy_ref, Tensor? scale, Tensor? count, "
    "float lambda_a, float lambda_p, str anchor, str tau, str impl, str precision, int recorder) -> Tensor"
)
library.define(
    "observe(Tensor z, Tensor mask, Tensor matrix, Tensor(a!) energy_ref, float? momentum, str group, str impl, str precision) "
    "-> (Tensor, Tensor)"
)


@torch.library.impl(library, "coordinate", "CompositeExplicitAutograd")
def coordinate_eagerly(
    g,
    z,
    z_ref,
    mask,
    matrix,
    energy_ref,
    scale,
    count,
    lambda_a,
    lambda_p,
    anchor,
    tau,
    impl,
    precision,
    recorder,
):
    """The gradient in g's dtype, contiguous; rows (B, D). Writes energy ratio and tau into the recording module, if there is one."""
    options = {
        "lambda_a": lambda_a,
        "lambda_p": lambda_p,
        "anchor": anchor,
        "tau": tau,
        "scale": scale,
        "count": count,
    }
    module = recorders.get(recorder)
    options |= {"impl": impl, "precision": precision, "record": module is not None}
    out, energy, weight = kernels.coordinate(g, z, z_ref, mask, matrix, energy_ref, **options)
    if module is not None:
        module.last_energy, module.last_tau = energy.float(), weight.float()
    return out


@torch.library.register_fake("eagc::coordinate", lib=library)
def _(g, *args):
    return g.new_empty(g.shape)


@torch.library.impl(library, "observe", "CompositeExplicitAutograd")
def observe_eagerly(z, mask, matrix, energy_ref, momentum, group, impl, precision):
    """The energy reference to use, a fresh tensor; and N_l averaged over the group's ranks (empty without a group)."""
    # Activation checkpointing runs the forward a second time during backward: that batch has been counted already. Asked for here, inside
    # the opaque op, because a compiled module can be re-run in the same way.
    update = momentum is not None and torch._C._current_graph_task_id() == -1
    if not group:
        if not update:
            return energy_ref.clone(), z.new_empty(0)
        _, used = kernels.labelled_energy(
            z, mask, matrix, energy_ref, momentum=momentum, impl=impl, precision=precision
        )
        return used, z.new_empty(0)
    if update:
        sums, _ = kernels.labelled_energy(
            z, mask, matrix, energy_ref, momentum=1.0, impl=impl, precision=precision, update=False
        )
    else:
        sums = torch.stack([energy_ref.new_zeros(()), mask.sum().to(energy_ref.dtype)])
    ranks = dist.distributed_c10d._resolve_process_group(group)
    sums = sums.to(torch.float32)  # one type on every rank, also where a rank's batch is empty
    dist.all_reduce(sums, group=ranks)
    if update:
        energy_ref.copy_(kernels.formulas.updated_energy_ref(energy_ref.to(sums.dtype), sums, momentum))
    return energy_ref.clone(), (sums[1].clamp_min(1) / ranks.size()).to(torch.float32)


@torch.library.register_fake("eagc::observe", lib=library)
def _(z, mask, matrix, energy_ref, momentum, group, impl, precision):
    return torch.empty_like(energy_ref), energy_ref.new_empty(()) if group else z.new_empty(0)


coordinate_op = torch.ops.eagc.coordinate.default
observe_op = torch.ops.eagc.observe.default
EAGERLY = {coordinate_op: coordinate_eagerly, observe_op: observe_eagerly}


def route(op: torch._ops.OpOverload, x: Tensor) -> Callable:
    """The op for whoever traces or intercepts it (torch.compile, fake tensors, dispatch modes); else its body, without the detour."""
    traced = (
        torch.compiler.is_compiling() or type(x) is not Tensor or torch._C._len_torch_dispatch_stack() > 0
    )
    return op if traced or torch._C._are_functorch_transforms_active() else EAGERLY[op]


class Recorder(Protocol):
    last_energy: Tensor | None
    last_tau: Tensor | None


# Modules that record, by number: an opaque op takes numbers, not objects, and so recording works in compiled graphs too.
recorders: weakref.WeakValueDictionary[int, Recorder] = weakref.WeakValueDictionary()


def check_options(lambda_a: float, lambda_p: float, anchor: str, tau: str) -> None:
    for name, value in (("lambda_a", lambda_a), ("lambda_p", lambda_p)):
        if not (isinstance(value, (int, float)) and 0 <= value < float("inf")):
            raise ValueError(f"{name}={value!r} must be a finite number >= 0")
    if anchor not in ANCHORS:
        raise ValueError(f"anchor={anchor!r} is none of {ANCHORS}")
    if tau not in TAUS:
        raise ValueError(f"tau={tau!r} is none of {TAUS}")


def check_inputs(z: Tensor, z_ref: Tensor | None, mask: Tensor) -> None:
    """Every message names the argument and the remedy; nothing is broadcast or cast."""
    for name, x in (("z", z), ("z_ref", z_ref), ("mask", mask)):
        if x is None and name == "z_ref":
            continue
        if not isinstance(x, Tensor):
            raise TypeError(
                f"{name} must be a tensor, got {type(x).__name__}: make it one with torch.as_tensor"
            )
        if type(x).__name__ == "DTensor":
            raise TypeError(
                f"{name} is a DTensor: pass the local rows ({name}.to_local()), and EAGC(process_group=...) the ranks"
            )
        if x.device != z.device:
            raise ValueError(f"{name} is on {x.device} but z on {z.device}: move it with {name}.to(z.device)")
        if not torch.compiler.is_compiling() and name != "z" and x.is_inference() and not z.is_inference():
            raise ValueError(
                f"{name} was made under torch.inference_mode() and cannot be kept for backward: use torch.no_grad() instead"
            )
    if z.ndim < 1 or not z.is_floating_point() or z.element_size() < 2:
        found = f"{tuple(z.shape)} {z.dtype}"
        raise ValueError(
            f"z must be a floating tensor (..., D) of 16 bits or more, got {found}: pass features as fp32, bf16, fp16 or fp64"
        )
    if z.shape[-1] == 0:
        raise ValueError(f"z has shape {tuple(z.shape)}, D=0: pass features (..., D) with D >= 1")
    if mask.dtype != torch.bool:
        raise TypeError(f"mask is {mask.dtype}, it must be torch.bool (True = labelled): pass mask.bool()")
    rows = z.shape[:-1]
    if mask.shape != rows:
        hint = ""
        if mask.numel() * 2 == rows.numel():
            hint = "; it has half the rows: with two views per image stacked view after view, pass mask.repeat(2)"
        raise ValueError(
            f"mask has shape {tuple(mask.shape)}, z has rows {tuple(rows)}: pass one value for each row of z{hint}"
        )
    if z_ref is None:
        return
    if z_ref.shape != z.shape:
        raise ValueError(
            f"z_ref has shape {tuple(z_ref.shape)}, z has {tuple(z.shape)}: they must be equal (unlabelled rows may hold anything)"
        )
    if not z_ref.is_floating_point():
        raise TypeError(
            f"z_ref is {z_ref.dtype}, it must be floating: pass the reference model's features, or z_ref.float()"
        )
    if z_ref.requires_grad:
        raise ValueError(
            "z_ref requires grad, but is a constant of the operator: compute it under torch.no_grad(), or pass z_ref.detach()"
        )


def check_call(
    z: Tensor,
    matrix: Tensor,
    loss_scale: Tensor | float | None,
    return_token: bool,
    impl: str,
    precision: str,
) -> None:
    """What must hold before anything runs, the update of a running energy reference included."""
    if matrix.shape[0] != z.shape[-1]:
        raise ValueError(
            f"z has D={z.shape[-1]} but the subspace has D={matrix.shape[0]}: fit it to features of the same layer"
        )
    if matrix.device != z.device:
        raise ValueError(
            f"z is on {z.device} but the subspace on {matrix.device}: move it there (subspace.to(...), or module.to(...))"
        )
    if return_token and loss_scale is not None:
        raise ValueError("loss_scale and return_token=True both set the scale of the anchor: use one of them")
    if loss_scale is not None:
        _check_scalar("loss_scale", loss_scale, z)
    if not torch.compiler.is_compiling():
        kernels.provider(impl, z.device, z.dtype, precision)


def _check_scalar(name: str, value: Tensor | float, z: Tensor) -> None:
    if not isinstance(value, Tensor):
        if not (isinstance(value, (int, float)) and 0 <= value < float("inf")):
            raise ValueError(
                f"{name}={value!r} must be a finite number >= 0, or a 0-d floating tensor on {z.device}"
            )
        return
    if value.ndim != 0 or not value.is_floating_point() or value.device != z.device:
        found = f"{tuple(value.shape)} {value.dtype} on {value.device}"
        raise ValueError(f"{name} must be a number or a 0-d floating tensor on {z.device}, got {found}")


_warned = False


def _warn_batch_subspace() -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            "eagc_op without a subspace estimates one from the labelled rows of this batch. One fitted to the whole labelled set, "
            "EAGC(Subspace.conceptor(labelled_features)), spares unlabelled rows of known classes far better.",
            stacklevel=3,
        )
