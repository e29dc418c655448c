"""`EAGC`: the operator as a module, with its subspace and settings."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from . import autograd, hints, kernels, library, validation
from .kernels import Anchor, Coordination, Execution, Implementation, Inputs, Precision, Tau
from .subspace import Subspace

# The Triton kernel multiplies half features by S and the basis M in 16 bits: buffers named "matrix_bf16",
# "basis_fp16" and so on.
HALVES = {torch.bfloat16: "bf16", torch.float16: "fp16"}


class EAGC(nn.Module):
    """Energy-Aware Gradient Coordinator: `z = eagc(z, z_ref, mask)` between encoder and head.

    Args:
        subspace: the known-class subspace, fitted to labelled features of the reference model.
        lambda_a, lambda_p, anchor, tau, impl, precision: as in `eagc_op`.
        energy_momentum: None keeps the subspace's mean energy ratio (the paper). A number in [0, 1) makes it
            a running mean over the labelled rows of training batches, updated before use (the released
            code: 0.95).
        process_group: the ranks that share one mean over labelled rows and one running Ebar. DDP averages
            gradients, so without the group a rank with few labelled rows would give them more weight. Two
            kinds of calls make one all-reduce: those that update the running Ebar (training mode,
            `energy_momentum` set), and those that count rows for the anchor (gradients are on, z requires
            them, z_ref is not None, anchor="mean", lambda_a > 0). All ranks must make these calls in the same
            order. A single rank may make any other call, such as validation under `eval()` and
            `torch.no_grad()`.
        record: keep the energy ratio and tau of the last call in `last_energy` and `last_tau`: (rows,) fp32
            on the device, NaN on labelled rows. It costs one more product with S per call.

    The buffers `matrix` and `energy_ref` stay fp32 under `.half()` and `.bfloat16()`. So do `basis` and
    `weights`, which only a subspace with an energy in a basis has (`Subspace.whitened`); else they are None.
    For the Triton kernel the module also holds S and the basis in bf16 and fp16, outside the state dict;
    `set_subspace` and `load_state_dict` update these copies. The state dict has lambda_a, lambda_p, anchor,
    tau and energy_momentum, and loading a state with different settings raises. It does not have `impl`,
    `precision` (they only change rounding) and `process_group`: these depend on the machine.

    Example:
        >>> eagc = EAGC(Subspace.conceptor(torch.randn(100, 8)))
        >>> z = torch.randn(6, 8, requires_grad=True)
        >>> out = eagc(z, torch.randn(6, 8), torch.tensor([True, True, True, False, False, False]))
        >>> torch.equal(out, z)
        True
    """

    matrix: Tensor
    energy_ref: Tensor
    basis: Tensor | None
    weights: Tensor | None

    def __init__(
        self,
        subspace: Subspace,
        *,
        lambda_a: float = 0.7,
        lambda_p: float = 0.5,
        anchor: Anchor = "mean",
        tau: Tau = "energy",
        energy_momentum: float | None = None,
        process_group: dist.ProcessGroup | None = None,
        record: bool = False,
        impl: Implementation = "auto",
        precision: Precision = "auto",
    ) -> None:
        super().__init__()
        validation.check_subspace(subspace)
        validation.check_settings(Coordination(lambda_a, lambda_p, anchor, tau))
        hints.about_settings(Coordination(lambda_a, lambda_p, anchor, tau))
        validation.check_momentum(energy_momentum)
        self.lambda_a, self.lambda_p = float(lambda_a), float(lambda_p)
        self.anchor: Anchor = anchor
        self.tau: Tau = tau
        self.energy_momentum = energy_momentum
        self.process_group = process_group
        self.impl, self.precision, _ = validation.checked_execution(impl, precision)
        self.record = record
        self.last_energy: Tensor | None = None
        self.last_tau: Tensor | None = None
        self._writes = [0]  # how often `matrix` got the values of a different subspace
        self._watch = hints.ScaleWatch()
        self.register_buffer("matrix", subspace.matrix.clone())
        self.register_buffer("energy_ref", subspace.energy_ref.clone())
        # A buffer that is None is not in the state dict.
        self.register_buffer("basis", None if subspace.basis is None else subspace.basis.clone())
        self.register_buffer("weights", None if subspace.weights is None else subspace.weights.clone())
        for name, wide in self._wide().items():
            for dtype, suffix in HALVES.items():
                self.register_buffer(f"{name}_{suffix}", wide.to(dtype), persistent=False)
        self._halve()

    def forward(
        self,
        z: Tensor,
        z_ref: Tensor | None,
        mask: Tensor,
        loss_scale: Tensor | float | None = None,
        return_token: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return z unchanged. The arguments are as in `eagc_op`.

        Two backward passes through one call add the anchor twice.
        """
        settings, execution = self.settings, self.execution
        validation.check_settings(settings)  # attributes may be set at any time, as by a schedule
        validation.check_momentum(self.energy_momentum)
        hints.about_settings(settings)
        validation.check_tensors(z, z_ref, mask)
        validation.check_call(z, self.matrix, execution, loss_scale, return_token)
        inputs = self._inputs(z, z_ref, mask)
        momentum = self.energy_momentum if self.training else None
        if momentum is not None or self._counts_labelled_rows(z, z_ref):
            observed = library.observe(_detached_rows(inputs), execution, momentum, self.process_group)
            inputs = inputs._replace(energy_ref=observed.energy_ref, labelled=observed.labelled)
        elif self.energy_momentum is not None:
            # The value of this forward: a later one may update the buffer before this one's backward.
            inputs = inputs._replace(energy_ref=self.energy_ref.clone())
        if self.record:
            self.last_energy, self.last_tau = library.energies(_detached_rows(inputs), settings, execution)
        anchored = z_ref is not None and self.lambda_a != 0
        scaled, group = return_token or loss_scale is not None, self.process_group
        running = momentum is not None
        hints.about_call(z, settings, anchored=anchored, scaled=scaled, group=group, running=running)
        # A traced call saves the matrix, and torch notices a write to it.
        writes = None if torch.compiler.is_compiling() else self._writes
        out = autograd.attach(inputs, settings, execution, loss_scale, return_token, writes)
        self._watch.look(out, z_ref, mask, anchored=anchored, unscaled=anchored and not scaled)
        return out

    @property
    def settings(self) -> Coordination:
        return Coordination(self.lambda_a, self.lambda_p, self.anchor, self.tau)

    @property
    def execution(self) -> Execution:
        """`impl`, `precision`, and whether autocast is on."""
        return Execution(self.impl, self.precision, kernels.is_under_autocast(self.matrix.device))

    @property
    def subspace(self) -> Subspace:
        """The subspace with the current mean energy ratio."""
        return Subspace._fitted(self.matrix, self.energy_ref.clone(), self.basis, self.weights)

    def set_subspace(self, subspace: Subspace) -> None:
        """Replace the subspace in place by one of the same D; a captured CUDA graph then uses it.

        Call it between two steps: if the subspace changes between forward and backward, backward raises.

        >>> eagc = EAGC(Subspace(torch.eye(8) * 0.5, energy_ref=0.5))
        >>> eagc.set_subspace(Subspace.conceptor(torch.randn(100, 8)))
        """
        validation.check_subspace(subspace)
        if subspace.dim != self.matrix.shape[0]:
            raise ValueError(
                f"subspace has D={subspace.dim} but the module has D={self.matrix.shape[0]}: fit it to "
                "features of the same layer, or build a new EAGC"
            )
        if (subspace.basis is None) != (self.basis is None):
            new, own = ("no", "one") if subspace.basis is None else ("an", "none")
            raise ValueError(
                f"subspace has {new} energy in a basis but the module has {own}: fit it in the same way "
                "(Subspace.whitened has one, Subspace.conceptor has none), or build a new EAGC"
            )
        self._writes[0] += 1
        self.matrix.copy_(subspace.matrix)
        self.energy_ref.copy_(subspace.energy_ref)
        if self.basis is not None and self.weights is not None:
            self.basis.copy_(subspace.basis)  # type: ignore[arg-type]
            self.weights.copy_(subspace.weights)  # type: ignore[arg-type]
        self._halve()

    def warmup(
        self,
        rows: int,
        dtype: torch.dtype,
        *,
        anchored: bool = True,
        z_ref_dtype: torch.dtype | None = None,
        scaled: bool = False,
    ) -> None:
        """Compile and load what a training step launches, before you capture a CUDA graph or time it.

        Args:
            rows: the number of rows.
            dtype: the dtype of z.
            anchored: whether z_ref is passed.
            z_ref_dtype: the dtype of z_ref; None: the dtype of z.
            scaled: whether you take a token or pass a tensor `loss_scale`.

        A step launches one kernel, and one more with a running Ebar. Other implementations need no warm-up.
        """
        if kernels.implementation(self.execution, self.matrix.device, dtype) != "triton":
            return
        z = torch.zeros((rows, self.matrix.shape[0]), dtype=dtype, device=self.matrix.device)
        one = torch.ones((), device=z.device)
        anchored = anchored and self.lambda_a != 0
        counted = self.energy_momentum is not None or (anchored and self.anchor == "mean")
        z_ref = z.to(z_ref_dtype or dtype) if anchored else None
        inputs = self._inputs(z, z_ref, torch.arange(rows, device=z.device) % 2 == 0)._replace(
            energy_ref=self.energy_ref.clone(),
            scale=one if scaled else None,
            labelled=one if self.process_group is not None and counted else None,
        )
        kernels.coordinate(z, inputs, self.settings, self.execution)
        if self.energy_momentum is not None:
            alone = self.process_group is None
            kernels.labelled_energy(inputs, self.energy_momentum, self.execution, update=alone)

    def extra_repr(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in self._state_settings().items())
        own = ", energy in a basis" if self.basis is not None else ""
        return f"dim={self.matrix.shape[0]}{own}, {settings}, impl={self.impl!r}"

    def get_extra_state(self) -> Tensor:
        # JSON in a byte tensor, which safetensors can store and torch.load(weights_only=True) can read.
        return torch.tensor(list(json.dumps(self._state_settings()).encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        saved, own = json.loads(bytes(state.tolist())), self._state_settings()
        different = [
            f"{name}: saved {saved.get(name)!r}, here {own[name]!r}"
            for name in own
            if saved.get(name) != own[name]
        ]
        if different:
            raise ValueError(
                f"the state was saved by an EAGC with different settings ({'; '.join(different)}): build "
                "this one with the saved settings"
            )

    def _counts_labelled_rows(self, z: Tensor, z_ref: Tensor | None) -> bool:
        """Whether the ranks must count their labelled rows together for the anchor's mean.

        The answer must not depend on values, which differ between ranks: a rank that enters a collective
        alone waits for ever.
        """
        anchored = z_ref is not None and self.anchor == "mean" and self.lambda_a != 0
        return self.process_group is not None and anchored and z.requires_grad and torch.is_grad_enabled()

    def _inputs(self, z: Tensor, z_ref: Tensor | None, mask: Tensor) -> Inputs:
        """The inputs of a call, with S and the basis also in the dtype of z if that has 16 bits."""
        return Inputs(
            z,
            z_ref,
            mask,
            self.matrix,
            self.energy_ref,
            half=self._half(z.dtype),
            basis=self.basis,
            weights=self.weights,
            half_basis=self._half(z.dtype, "basis"),
        )

    def _half(self, dtype: torch.dtype, name: str = "matrix") -> Tensor | None:
        """S or the basis in the features' 16-bit dtype; None for a wider dtype, or without a basis."""
        if dtype not in HALVES or getattr(self, name) is None:
            return None
        if not torch.compiler.is_compiling() and self._halved != self._versions():
            self._halve()  # someone wrote to `matrix` or `basis` itself
        half: Tensor = getattr(self, f"{name}_{HALVES[dtype]}")
        return half

    def _wide(self) -> dict[str, Tensor]:
        """The matrices that have copies in 16 bits, by the names of their buffers."""
        return {"matrix": self.matrix} | ({} if self.basis is None else {"basis": self.basis})

    def _halve(self) -> None:
        """Write the 16-bit copies: in place, because a captured CUDA graph reads them where they are."""
        for name, wide in self._wide().items():
            for dtype, suffix in HALVES.items():
                half = getattr(self, f"{name}_{suffix}")
                if half.device == wide.device:
                    half.copy_(wide)
                else:  # load_state_dict(assign=True) moves `matrix` and `basis` alone
                    setattr(self, f"{name}_{suffix}", wide.to(dtype))
        self._halved = self._versions()

    def _versions(self) -> list[int]:
        return [_version(wide) for wide in self._wide().values()]

    def _state_settings(self) -> dict[str, object]:
        return {**self.settings._asdict(), "energy_momentum": self.energy_momentum}

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        # First, so that a state with different settings is refused before a buffer is touched.
        if f"{prefix}_extra_state" in state_dict:
            self.set_extra_state(state_dict[f"{prefix}_extra_state"])
        if f"{prefix}matrix" in state_dict and (f"{prefix}basis" in state_dict) != (self.basis is not None):
            saved, own = ("no", "one") if self.basis is not None else ("an", "none")
            raise ValueError(
                f"the state has {saved} energy in a basis, but this EAGC has {own}: build it with the same "
                "kind of subspace (Subspace.whitened has one; Subspace.conceptor and Subspace.pca have none)"
            )
        self._writes[0] += 1
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        # load_state_dict(assign=True) brings its own dtype.
        self.matrix, self.energy_ref = self.matrix.float(), self.energy_ref.float()
        if self.basis is not None and self.weights is not None:
            self.basis, self.weights = self.basis.float(), self.weights.float()
        self._halve()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> EAGC:
        # A half conceptor would change energies in the third digit: the buffers follow moves, but not casts.
        before = dict(self.named_buffers(recurse=False))
        super()._apply(fn, recurse)
        for name, buffer in before.items():
            moved = getattr(self, name)
            if moved.dtype != buffer.dtype:
                setattr(self, name, buffer.to(moved.device))
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> EAGC:
        # The group is a handle: copies of the module share it.
        memo[id(self.process_group)] = self.process_group
        new = type(self).__new__(type(self))
        memo[id(self)] = new
        new.__setstate__(copy.deepcopy(self.__dict__, memo))
        return new

    def __getstate__(self) -> dict[str, Any]:
        if self.process_group is not None:
            raise TypeError(
                "an EAGC with a process group cannot be pickled, because a group belongs to its process: "
                "save state_dict() instead"
            )
        return self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for name in ("basis", "weights"):  # modules pickled before energies in a basis existed
            self._buffers.setdefault(name, None)
        self._halve()  # a copy counts its writes anew


def _version(x: Tensor) -> int:
    """The number of writes that torch has counted; it counts none to a tensor of inference mode."""
    return 0 if x.is_inference() else x._version


def _detached_rows(inputs: Inputs) -> Inputs:
    """The inputs as (rows, D) and (rows,), without a graph."""
    inputs = inputs._replace(z=inputs.z.detach())
    return inputs if inputs.z.ndim == 2 else autograd.as_rows(inputs)
