"""The opaque ops `coordinate`, `observe` and `energies`: schemas, fakes and bodies.

torch.library schemas are flat lists, so only this file packs and unpacks records. An opaque op is launched
eagerly, even from a compiled graph. A call that is neither traced nor intercepted runs the body directly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from . import kernels
from .kernels import Coordination, Execution, Inputs, formulas


class Observation(NamedTuple):
    """What forward measures in a batch."""

    energy_ref: Tensor  # (), the value to use for this batch, a fresh tensor
    # (), number of labelled rows, averaged over the ranks; None without a process group
    labelled: Tensor | None


def call(
    g: Tensor, inputs: Inputs, settings: Coordination, execution: Execution, dispatched: bool = False
) -> Tensor:
    """The coordinated gradient of g (rows, D), contiguous, in g's dtype; `dispatched`: always use the op."""
    if dispatched or _is_intercepted(g):
        out: Tensor = coordinate_op(g, *inputs, *settings, *execution)
        return out
    return kernels.coordinate(g, inputs, settings, execution)


def observe(
    inputs: Inputs, execution: Execution, momentum: float | None, process_group: dist.ProcessGroup | None
) -> Observation:
    """Update the running Ebar and count labelled rows over the ranks, in forward.

    `momentum` None leaves `inputs.energy_ref` unchanged; a number updates it in place from the labelled rows.
    """
    group = "" if process_group is None else process_group.group_name
    run = observe_op if _is_intercepted(inputs.z) else _observe
    used, labelled = run(*_packed(inputs), momentum, group, *execution)
    return Observation(used, labelled if group else None)


def energies(inputs: Inputs, settings: Coordination, execution: Execution) -> tuple[Tensor, Tensor]:
    """Energy ratio and tau of every row, (rows,) fp32 each, NaN on labelled rows."""
    run = energies_op if _is_intercepted(inputs.z) else _energies
    out: tuple[Tensor, Tensor] = run(*_packed(inputs), settings.tau, *execution)
    return out


# The inputs of an energy, in the order of the schemas of `observe` and `energies`
_OF_ENERGY = ("z", "mask", "matrix", "energy_ref", "half", "basis", "weights", "half_basis")


def _packed(inputs: Inputs) -> tuple[Any, ...]:
    return tuple(getattr(inputs, name) for name in _OF_ENERGY)


def _unpacked(flat: Sequence[Any]) -> tuple[Inputs, Sequence[Any]]:
    """The inputs without an anchor, and the remaining arguments."""
    count = len(_OF_ENERGY)
    return Inputs(z_ref=None, **dict(zip(_OF_ENERGY, flat[:count]))), flat[count:]


# A namespace can be defined once in a process. Copies of the package under other names, such as two versions
# from the Kernel Hub, have one each.
NAMESPACE = "eagc" if __package__ == "eagc_ops" else __package__.replace(".", "_")
# Library.define and Library.impl instead of @custom_op: the same opaque op with five Python frames fewer at
# every call.
_library = torch.library.Library(NAMESPACE, "DEF")
_library.define(
    "coordinate(Tensor g, Tensor z, Tensor? z_ref, Tensor mask, Tensor matrix, Tensor energy_ref, Tensor? "
    "scale, Tensor? labelled, Tensor? half, Tensor? basis, Tensor? weights, Tensor? half_basis, float "
    "lambda_a, float lambda_p, str anchor, str tau, str impl, str precision, bool autocast) -> Tensor"
)
_library.define(
    "observe(Tensor z, Tensor mask, Tensor matrix, Tensor(a!) energy_ref, Tensor? half, Tensor? basis, "
    "Tensor? weights, Tensor? half_basis, float? momentum, str group, str impl, str precision, bool "
    "autocast) -> (Tensor, Tensor)"
)
_library.define(
    "energies(Tensor z, Tensor mask, Tensor matrix, Tensor energy_ref, Tensor? half, Tensor? basis, Tensor? "
    "weights, Tensor? half_basis, str tau, str impl, str precision, bool autocast) -> (Tensor, Tensor)"
)


def _coordinate(g: Tensor, *flat: Any) -> Tensor:
    tensors, others = flat[: len(Inputs._fields)], flat[len(Inputs._fields) :]
    inputs, settings, execution = Inputs(*tensors), Coordination(*others[:4]), Execution(*others[4:])
    return kernels.coordinate(g, inputs, settings, execution)


def _observe(*flat: Any) -> tuple[Tensor, Tensor]:
    """(Ebar to use, a fresh tensor; labelled rows averaged over the ranks, empty without a group)."""
    inputs, (momentum, group, *execution) = _unpacked(flat)
    z, mask, energy_ref = inputs.z, inputs.mask, inputs.energy_ref
    # Activation checkpointing runs the forward a second time during backward, where the batch must not be
    # counted again. The check is inside the opaque op because a compiled module can be run again too.
    momentum = momentum if torch._C._current_graph_task_id() == -1 else None
    if not group:
        if momentum is None:
            return energy_ref.clone(), z.new_empty(0)
        return kernels.labelled_energy(inputs, momentum, Execution(*execution))[1], z.new_empty(0)
    if momentum is None:
        sums = torch.stack([energy_ref.new_zeros(()), mask.sum().to(energy_ref.dtype)])
    else:
        sums, _ = kernels.labelled_energy(inputs, 1.0, Execution(*execution), update=False)
    ranks = dist.distributed_c10d._resolve_process_group(group)  # type: ignore[attr-defined]
    sums = sums.to(torch.float32)  # one dtype on every rank, even if a rank's batch is empty
    dist.all_reduce(sums, group=ranks)
    if momentum is not None:
        energy_ref.copy_(formulas.updated_energy_ref(energy_ref.to(sums.dtype), sums, momentum))
    return energy_ref.clone(), (sums[1].clamp_min(1) / ranks.size()).to(torch.float32)


def _energies(*flat: Any) -> tuple[Tensor, Tensor]:
    inputs, (tau, *execution) = _unpacked(flat)
    energy, weight = kernels.energies(inputs, Coordination(tau=tau), Execution(*execution))
    return energy.float(), weight.float()


BODIES: dict[str, Callable[..., Any]] = {
    "coordinate": _coordinate,
    "observe": _observe,
    "energies": _energies,
}
for _name, _body in BODIES.items():
    _library.impl(_name, _body, "CompositeExplicitAutograd")


@torch.library.register_fake(f"{NAMESPACE}::coordinate", lib=_library)
def _(g: Tensor, *rest: Any) -> Tensor:
    return g.new_empty(g.shape)


@torch.library.register_fake(f"{NAMESPACE}::observe", lib=_library)
def _(*flat: Any) -> Any:
    inputs, (_, group, *_) = _unpacked(flat)
    labelled = inputs.energy_ref.new_empty(()) if group else inputs.z.new_empty(0)
    return torch.empty_like(inputs.energy_ref), labelled


@torch.library.register_fake(f"{NAMESPACE}::energies", lib=_library)
def _(z: Tensor, *rest: Any) -> Any:
    return z.new_empty(z.shape[0], dtype=torch.float32), z.new_empty(z.shape[0], dtype=torch.float32)


_ops = getattr(torch.ops, NAMESPACE)
coordinate_op = _ops.coordinate.default
observe_op = _ops.observe.default
energies_op = _ops.energies.default


def _is_intercepted(x: Tensor) -> bool:
    """Whether torch.compile, a tensor subclass, a dispatch mode or a torch.func transform must see the op."""
    return (
        torch.compiler.is_compiling()
        or type(x) is not Tensor
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._are_functorch_transforms_active()
    )
