"""Warnings about calls that are allowed but rarely intended: each kind once, the first time it occurs.

No hint makes the host wait for a device, and none changes a value. A compiled call warns about its
arguments when it is compiled; nobody looks at its gradients.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import warnings
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from .kernels import Coordination, is_under_autocast

said: set[str] = set()  # the kinds that this process has warned of

# A gradient 1,000 times larger or smaller than that of the call before has another scale, not another batch.
JUMP = 1000.0
# Whose gradients to check: the first calls, in which a GradScaler overflows and steps down, then two in a row
# of every EVERY calls. The others cost nothing.
FIRST, EVERY = 32, 256
# z and z_ref of one layer have about the same norm, at the first call above all.
OTHER_SCALE = 10.0
# After so many calls with gradients on, a gradient must have come back, and labelled and unlabelled rows must
# have occurred.
ENOUGH = 16


@contextlib.contextmanager
def muted() -> Iterator[None]:
    """Switch hints off, for code that tries useless subspaces on purpose."""
    global _muted
    before, _muted = _muted, True
    try:
        yield
    finally:
        _muted = before


_muted = False


def once(kind: str, text: str) -> None:
    """Warn at the line of the user's call, once per process."""
    if torch.compiler.is_compiling():
        _once_while_compiling(kind, text)
    elif kind not in said:
        said.add(kind)
        warn(text)


@torch.compiler.assume_constant_result
def _once_while_compiling(kind: str, text: str) -> bool:
    """Dynamo runs this itself and puts the result, a constant, into the graph."""
    if kind not in said:
        said.add(kind)
        warn(text)
    return True


def warn(text: str) -> None:
    """Warn at the innermost line outside this package and torch."""
    inside, level, frame = (__name__.partition(".")[0], "torch"), 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in inside:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level + 1)


def about_settings(settings: Coordination) -> None:
    if settings.lambda_p > 1:
        once(
            "lambda_p",
            f"lambda_p={settings.lambda_p} is above 1: where lambda_p * tau > 1, the part of a gradient "
            "inside the subspace is not removed but turned round. The paper uses 0.5; the released scripts "
            "use 3.0 for SimGCD on Cars and Aircraft.",
        )


def about_call(
    z: Tensor,
    settings: Coordination,
    *,
    anchored: bool,
    scaled: bool,
    group: object | None = None,
    running: bool = False,
) -> None:
    """Hints about the anchor's scale and its mean.

    `anchored`: the call has an anchor. `scaled`: it has a token or a `loss_scale`. `running`: Ebar runs.
    """
    if not (z.requires_grad and torch.is_grad_enabled()):
        return
    if anchored and not scaled:
        if is_under_autocast(z.device) and torch.get_autocast_dtype(z.device.type) == torch.float16:
            once("fp16", _UNSCALED.format("autocast computes in fp16, which needs a GradScaler"))
        if _has_scaler():
            once(
                "scaler",
                _UNSCALED.format("this process has a torch.amp.GradScaler, which multiplies the loss"),
            )
        steps = _accumulation()
        if steps > 1:
            once("accumulation", _UNSCALED.format(f"Accelerate divides the loss by {steps} to accumulate"))
    if group is None and (running or (anchored and settings.anchor == "mean")) and _ranks() > 1:
        once(
            "ranks",
            "a process group is initialised, but the operator was given none: each rank divides the anchor "
            "by its own number of labelled rows, so ranks with few of them weigh more. Use "
            "EAGC(subspace, process_group=torch.distributed.group.WORLD).",
        )


def about_fit(matrix: Tensor, energy_ref: Tensor, mean_square: Tensor, aperture: float) -> None:
    """Hints about a conceptor (D, D) that is useless because of the features' scale.

    `mean_square`: the mean of |z|^2 over the features.
    """
    if _muted:
        return
    dim, square, energy = len(matrix), mean_square.item(), energy_ref.item()
    if about_empty(mean_square):
        return
    rank = matrix.trace().item()
    if energy < 0.5:
        what = f"captures only {energy:.1%} of the features' own energy: their scale is too small"
    elif rank > 0.95 * dim and _least_is_above(matrix, 0.95 * energy):
        what = "captures every direction, so that tau is near 0 on all rows: their scale is too large"
    else:
        return
    fitting = 2 / (square / dim) ** 0.5
    warn(
        f"the conceptor (effective rank {rank:.1f} of {dim}) {what} for aperture={aperture:g}. Pass features "
        f"as the encoder gives them, not normalised, or aperture={fitting:.2g}, which acts on these "
        "features as 2.0 on features with a mean square of 1."
    )


def about_empty(mean_square: Tensor) -> bool:
    """Warn if all features are zero; returns whether they are."""
    if empty := mean_square.item() == 0:
        warn(
            "all features are zero, so the subspace has nothing of them and EAGC protects nothing: check the "
            "reference model that they come from"
        )
    return empty


def about_batch(matrix: Tensor, energy_ref: Tensor, z_ref: Tensor, mask: Tensor, aperture: float) -> None:
    """The hint about a subspace estimated from one batch, and, the first time on a CPU, about its scale."""
    first = not torch.compiler.is_compiling() and "batch subspace" not in said
    once("batch subspace", _BATCH_SUBSPACE)
    if first and z_ref.device.type == "cpu" and not _is_foreign(z_ref) and not _is_watched():
        labelled = z_ref[mask].double()
        if len(labelled):
            about_fit(matrix, energy_ref, labelled.square().sum(1).mean(), aperture)


class ScaleWatch:
    """Notices on the device that the gradient of unscaled calls changes its scale, and warns at a later call.

    `look` gets the output of a call and hooks its gradient in backward. The answer is copied to the
    host while the host does other things.
    """

    def __init__(self) -> None:
        global _searched
        _searched = False  # a new module may belong to a new loop, as in a notebook
        self._calls = 0
        self._before: Tensor | None = None  # the largest entry of the gradient seen last
        self._with_gradients = 0  # calls
        self._came_back = False  # a gradient, from any of them
        self._rows: Tensor | None = None  # whether there were labelled rows, and unlabelled ones
        self._answers: list[tuple[str, Tensor, torch.cuda.Event | None]] = []

    def look(
        self,
        out: Tensor | tuple[Tensor, Tensor],
        z_ref: Tensor | None,
        mask: Tensor,
        *,
        anchored: bool,
        unscaled: bool,
    ) -> None:
        """Watch the gradient of z if the call is `unscaled` (an anchor, no scale); else watch the token.

        The first calls also show whether the operator is used at all.
        """
        if torch.compiler.is_compiling() or _is_watched():
            return
        self._report()
        self._calls += 1
        if self._calls > FIRST and self._calls % EVERY > 1:
            return
        z, token = (out, None) if isinstance(out, Tensor) else out
        device = z.device.type
        if device not in ("cpu", "cuda") or not torch.is_grad_enabled() or _is_foreign(z):
            return
        if device == "cuda" and torch.cuda.is_current_stream_capturing():
            return
        if self._with_gradients < ENOUGH:
            self._look_at_use(z, z_ref if anchored else None, mask)
        if token is not None and token.requires_grad:
            token.register_hook(self._see_token)
        elif z.requires_grad and unscaled:
            z.register_hook(self._see)

    def __reduce__(self) -> tuple[type[ScaleWatch], tuple[()]]:
        return ScaleWatch, ()  # a copy of a module begins anew

    def _look_at_use(self, z: Tensor, z_ref: Tensor | None, mask: Tensor) -> None:
        if z.numel() == 0:
            return
        if z_ref is not None and z_ref.data_ptr() == z.data_ptr():
            once("own reference", _OWN_REFERENCE)
        if z.grad_fn is not None and isinstance(z.grad_fn.next_functions[0][0], type(z.grad_fn)):
            once("nested", _NESTED)
        if z_ref is not None and not self._with_gradients:
            self._send("other scale", _is_of_another_scale(z, z_ref, mask))
        rows = torch.stack((mask.any(), mask.logical_not().any()))
        self._rows = rows if self._rows is None or self._rows.device != rows.device else self._rows | rows
        if z.requires_grad and not self._came_back:
            z.register_hook(self._note_gradient)
        self._with_gradients += 1
        if self._with_gradients == ENOUGH:
            if not self._came_back:
                once("unused", _UNUSED)
            self._send("all labelled", ~self._rows[1])
            if z_ref is not None:
                self._send("none labelled", ~self._rows[0])

    def _note_gradient(self, _: Tensor) -> None:
        self._came_back = True

    def _see(self, g: Tensor) -> None:
        if g.numel() == 0 or _is_foreign(g):
            return
        with torch.no_grad():
            now, before = g.abs().amax().float(), self._before
            self._before = now
            if before is not None and before.device == now.device:
                ratio = now / before
                # 0 and infinity are no sizes; their ratios are none either
                jumped = ((ratio > JUMP) | (ratio < 1 / JUMP)) & (now > 0) & torch.isfinite(ratio)
                # A loop without a scaler does not survive an overflow.
                survived = ~torch.isfinite(before) & torch.isfinite(now)
                self._send("jump", jumped | survived)

    def _see_token(self, scale: Tensor | None) -> None:
        if scale is not None and not _is_foreign(scale):
            self._send("twice", scale.detach() == 2)

    def _send(self, kind: str, answer: Tensor) -> None:
        if answer.device.type != "cuda":
            self._answers.append((kind, answer, None))
            return
        copy = answer.to("cpu", non_blocking=True)  # into pinned memory
        arrived = torch.cuda.Event()
        arrived.record()
        self._answers.append((kind, copy, arrived))

    def _report(self) -> None:
        while self._answers:
            kind, answer, arrived = self._answers[0]
            if arrived is not None and not arrived.query():
                return
            del self._answers[0]
            if answer.item():
                once(kind, _SEEN[kind])


_BATCH_SUBSPACE = (
    "eagc_op estimates the subspace from the labelled rows of this batch because subspace is None. One "
    "fitted to the whole labelled set, Subspace.conceptor(labelled_features), spares unlabelled rows of "
    "known classes far better."
)
_UNSCALED = (
    "{}, but this call of the operator has neither a token nor a loss_scale: the anchor keeps the scale 1 "
    "and does not fit the scaled gradient. Use `z, token = eagc(z, z_ref, mask, return_token=True)` and add "
    "the token to the loss."
)
_UNUSED = (
    f"{ENOUGH} calls of the operator were made with gradients on, and none has come back to it: go on with "
    "what it returns, z = eagc(z, z_ref, mask), and see that z requires a gradient. Where nothing is "
    "trained, call it under torch.no_grad()."
)
_OWN_REFERENCE = (
    "z_ref is z itself, so the anchor is zero: pass the features of the frozen reference model, or None for "
    "no anchor"
)
_NESTED = (
    "z comes straight from another call of the operator, so that its gradient is coordinated twice: call it "
    "once, between encoder and head"
)
UNUSED_OUTPUT = (
    "the loss contains the token, but not the z that the operator returned with it, so nothing is projected: "
    "give the heads that z, as in `z, token = eagc(z, z_ref, mask, return_token=True)`"
)
_SEEN = {
    "other scale": (
        f"in the first call, the labelled rows of z and z_ref differed in size by more than a factor of "
        f"{OTHER_SCALE:.0f}, so that the anchor pulls z to another scale: take both from the same layer, and "
        "normalise both or neither"
    ),
    "all labelled": (
        f"every row of the first {ENOUGH} calls was labelled, so nothing is projected: mask must be True "
        "only where the label may be used, and False on unlabelled rows whose label is merely known"
    ),
    "none labelled": (
        f"no row of the first {ENOUGH} calls was labelled, so nothing is anchored: mask must be True on "
        "labelled rows; pass z_ref=None for no anchor"
    ),
    "jump": _UNSCALED.format(
        "the gradient that reached the operator changed its scale, as under a GradScaler or another factor "
        "of the loss"
    ),
    "twice": (
        "the scale that reached the token is exactly 2: unless the loss is multiplied by 2, the token was "
        "added to it twice, and the anchor is twice as strong. Add it once: loss = loss + token."
    ),
}


def _is_of_another_scale(z: Tensor, z_ref: Tensor, mask: Tensor) -> Tensor:
    labelled = mask.unsqueeze(-1)
    z_square, reference_square = (
        torch.where(labelled, x.detach(), 0).float().square().sum() for x in (z, z_ref)
    )
    ratio = z_square / reference_square
    # zeros and infinities have no scale
    return torch.isfinite(ratio) & (
        (ratio > OTHER_SCALE**2) | ((ratio < 1 / OTHER_SCALE**2) & (z_square > 0))
    )


def _is_watched() -> bool:
    """Whether a dispatch mode sees every operation; fake tensors have no values."""
    return bool(torch._C._len_torch_dispatch_stack() > 0)


def _is_foreign(x: Tensor) -> bool:
    """Whether a tensor belongs to a transform (torch.func, batched gradients) or is not a plain one."""
    keys = str(torch._C._dispatch_keys(x))
    return type(x) is not Tensor or "Batched" in keys or "FuncTorch" in keys


@torch.compiler.assume_constant_result
def _has_scaler() -> bool:
    """Whether an enabled GradScaler exists; found out at the first call of a new module or of the function.

    The search takes 0.1 s.
    """
    global _searched
    if _searched:
        return False
    _searched = True
    grad_scaler = torch.amp.GradScaler
    return any(issubclass(type(x), grad_scaler) and getattr(x, "_enabled", False) for x in gc.get_objects())


_searched = False


@torch.compiler.assume_constant_result
def _accumulation() -> int:
    """The number by which Accelerate divides a loss, in a process that has an Accelerator."""
    state = getattr(sys.modules.get("accelerate.state"), "GradientState", None)
    return state().num_steps if state is not None and state._shared_state else 1


@torch.compiler.assume_constant_result
def _ranks() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _least_is_above(matrix: Tensor, bound: float) -> bool:
    """Whether every eigenvalue is above a bound; then no direction has a smaller energy ratio."""
    shifted = matrix.double().clone()
    shifted.diagonal().sub_(bound)
    return bool(torch.linalg.cholesky_ex(shifted).info == 0)
