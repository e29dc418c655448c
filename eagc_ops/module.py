"""`EAGC`: the operator with its subspace and settings, as a module that is saved, moved and copied with the model."""

from __future__ import annotations

import copy
import itertools
import json

import torch
import torch.distributed as dist
from torch import Tensor, nn

from eagc_ops import kernels
from eagc_ops.op import apply, check_call, check_inputs, check_options, observe, recorders
from eagc_ops.subspace import Subspace

_numbers = itertools.count(1)


class EAGC(nn.Module):
    """Energy-Aware Gradient Coordinator: `z = eagc(z, z_ref, mask)` between encoder and head.

    Args:
        subspace: the known-class subspace, fitted to labelled features of the reference model.
        lambda_a, lambda_p, anchor, tau, impl, precision: as in `eagc_op`.
        energy_momentum: None keeps the subspace's energy reference (the paper). A number in [0, 1) makes it a running mean over the
            labelled rows of training batches, updated before it is used (the released code: 0.95).
        process_group: ranks that share one mean over labelled rows and one running energy reference. DDP averages gradients, so
            without it a rank with few labelled rows would weigh them more. The ranks meet (one all-reduce) in a call that updates
            the running energy reference (training mode, `energy_momentum` set) or that counts rows for the anchor (gradients are on, z
            requires them, z_ref is given, anchor="mean", lambda_a > 0): such calls all ranks must make, in the same order. Others,
            as in validation under `eval()` and `torch.no_grad()`, one rank may make alone.
        record: keep energy ratio and tau of the last backward in `last_energy`, `last_tau`: (rows,) on the device, NaN on labelled rows.

    `matrix` and `energy_ref` are buffers and stay fp32 under `.half()` and `.bfloat16()`. lambda_a, lambda_p, anchor, tau and
    energy_momentum travel in the state dict; loading a state of other settings raises. `impl` and `precision`, which change roundings
    only, and `process_group` belong to the machine and do not travel.

    >>> eagc = EAGC(Subspace.conceptor(torch.randn(100, 8)))
    >>> z = torch.randn(6, 8, requires_grad=True)
    >>> out = eagc(z, torch.randn(6, 8), torch.tensor([True, True, True, False, False, False]))
    >>> torch.equal(out, z)
    True
    """

    matrix: Tensor
    energy_ref: Tensor

    def __init__(
        self,
        subspace: Subspace,
        *,
        lambda_a: float = 0.7,
        lambda_p: float = 0.5,
        anchor: str = "mean",
        tau: str = "energy",
        energy_momentum: float | None = None,
        process_group: dist.ProcessGroup | None = None,
        record: bool = False,
        impl: str = "auto",
        precision: str = "auto",
    ):
        super().__init__()
        if not isinstance(subspace, Subspace):
            raise TypeError(
                f"subspace must be a Subspace, got {type(subspace).__name__}; Subspace.conceptor(features) fits one"
            )
        check_options(lambda_a, lambda_p, anchor, tau)
        if energy_momentum is not None and not (
            isinstance(energy_momentum, (int, float)) and 0 <= energy_momentum < 1
        ):
            raise ValueError(f"energy_momentum={energy_momentum} must be None or a number in [0, 1)")
        for name, value, known in (
            ("impl", impl, kernels.IMPLEMENTATIONS),
            ("precision", precision, kernels.PRECISIONS),
        ):
            if value not in known:
                raise ValueError(f"{name}={value!r} is none of {known}")
        self.lambda_a, self.lambda_p, self.anchor, self.tau = float(lambda_a), float(lambda_p), anchor, tau
        self.energy_momentum = energy_momentum
        self.process_group = process_group
        self.impl, self.precision = impl, precision
        self.last_energy: Tensor | None = None
        self.last_tau: Tensor | None = None
        self.register_buffer("matrix", subspace.matrix.clone())
        self.register_buffer("energy_ref", subspace.energy_ref.clone())
        self.recorder = 0
        if record:
            self._register_recorder()

    def forward(
        self,
        z: Tensor,
        z_ref: Tensor | None,
        mask: Tensor,
        loss_scale: Tensor | float | None = None,
        return_token: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """z unchanged; see `eagc_op`. Two backward passes through one call add the anchor twice, as two losses would."""
        check_inputs(z, z_ref, mask)
        check_call(z, self.matrix, loss_scale, return_token, self.impl, self.precision)
        energy_ref, count = self.energy_ref, None
        momentum = self.energy_momentum if self.training else None
        anchored = z_ref is not None and self.anchor == "mean" and self.lambda_a != 0
        # Nothing here depends on values, which differ between ranks: a rank alone in a collective would wait for ever.
        counted = self.process_group is not None and anchored and z.requires_grad and torch.is_grad_enabled()
        if momentum is not None or counted:
            energy_ref, count = observe(
                z, mask, self.matrix, energy_ref, momentum, self.process_group, self.impl, self.precision
            )
        elif self.energy_momentum is not None:
            energy_ref = (
                energy_ref.clone()
            )  # the value of this forward: a later one may move the buffer before this one's backward
        return apply(
            z, z_ref, mask, self.matrix, energy_ref, count, loss_scale, return_token,
            lambda_a=self.lambda_a, lambda_p=self.lambda_p, anchor=self.anchor, tau=self.tau,
            impl=self.impl, precision=self.precision, recorder=self.recorder,
        )  # fmt: skip

    @property
    def subspace(self) -> Subspace:
        """The subspace with the energy reference as it is now."""
        return Subspace._fitted(self.matrix, self.energy_ref.clone())

    def warmup(self, rows: int, dtype: torch.dtype) -> None:
        """Compile the Triton kernels for this many rows ahead of time, so that a CUDA graph capture or a timing meets no compilation."""
        if kernels.provider(self.impl, self.matrix.device, dtype, self.precision) == "triton":
            from eagc_ops.kernels import launch

            launch.warmup(
                rows, dtype, self.matrix, anchor=self.anchor, tau=self.tau, precision=self.precision
            )

    def extra_repr(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in self._settings().items())
        return f"dim={self.matrix.shape[0]}, {settings}, impl={self.impl!r}"

    def _settings(self) -> dict:
        names = ("lambda_a", "lambda_p", "anchor", "tau", "energy_momentum")
        return {name: getattr(self, name) for name in names}

    def get_extra_state(self) -> Tensor:
        # JSON in a byte tensor: a state dict of tensors only can be stored by safetensors and loaded with weights_only.
        return torch.tensor(list(json.dumps(self._settings()).encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        saved = json.loads(bytes(state.tolist()))
        mine = self._settings()
        differing = [
            f"{name}: saved {saved.get(name)!r}, here {mine[name]!r}"
            for name in mine
            if saved.get(name) != mine[name]
        ]
        if differing:
            raise ValueError(
                f"the state was saved by an EAGC of other settings ({'; '.join(differing)}): build it with the saved ones"
            )

    def _load_from_state_dict(self, state_dict, prefix, *args, **kwargs):
        if f"{prefix}_extra_state" in state_dict:  # refused before a buffer is touched
            self.set_extra_state(state_dict[f"{prefix}_extra_state"])
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        self.matrix, self.energy_ref = (
            self.matrix.float(),
            self.energy_ref.float(),
        )  # load_state_dict(assign=True) brings its own dtype

    def _apply(self, fn, recurse=True):
        # A half conceptor would change energies in the third digit: casts are not followed, moves are.
        before = dict(self.named_buffers(recurse=False))
        super()._apply(fn, recurse)
        for name, buffer in before.items():
            moved = getattr(self, name)
            if moved.dtype != buffer.dtype:
                setattr(self, name, buffer.to(moved.device))
        return self

    def _register_recorder(self) -> None:
        self.recorder = next(_numbers)
        recorders[self.recorder] = self

    def __deepcopy__(self, memo: dict) -> EAGC:
        memo[id(self.process_group)] = (
            self.process_group
        )  # a handle: copies of the module talk to the same ranks
        new = type(self).__new__(type(self))
        memo[id(self)] = new
        new.__setstate__(copy.deepcopy(self.__dict__, memo))
        return new

    def __getstate__(self) -> dict:
        if self.process_group is not None:
            raise TypeError(
                "an EAGC with a process group cannot be pickled, a group belongs to its process: save state_dict() instead"
            )
        return self.__dict__

    def __setstate__(self, state: dict) -> None:
        super().__setstate__(state)
        if self.recorder:  # a copy records for itself
            self._register_recorder()
