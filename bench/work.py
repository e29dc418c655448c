"""The work of one call: FLOPs and bytes of the formulas, and the operations that an implementation issues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from eagc_ops.library import BODIES


class Work(NamedTuple):
    """Nominal work: that of the formulas, the same for every implementation, so rates compare times.

    An implementation may do less (the CPU path reads one triangle of S and skips rows with tau = 0), and its
    rate may then exceed the roof.
    """

    flops: int
    bytes: int

    @property
    def intensity(self) -> float:
        """FLOP per byte."""
        return self.flops / self.bytes


def nominal_work(unlabelled: int, labelled: int, dim: int, itemsize: int, *, running: bool) -> Work:
    """FLOPs of the formulas on their rows; every operand is read once, the result is written once.

    An unlabelled row costs z S and g S (2 D^2 each), z . (z S) and |z|^2 (2 D each), and g - w (g S) (2 D). A
    labelled row costs g + c (z - z_ref) (3 D) and, with a running energy reference, its energy: z S, z . (z
    S) and |z|^2. S, g and z of all rows, z_ref of labelled rows and one byte of mask per row are read; all
    rows are written. `itemsize` is that of z; S has the same.

    >>> nominal_work(unlabelled=1, labelled=1, dim=2, itemsize=4, running=False)
    Work(flops=34, bytes=74)
    """
    rows = unlabelled + labelled
    energy = 2 * dim * dim + 4 * dim
    flops = unlabelled * (energy + 2 * dim * dim + 2 * dim) + labelled * (3 * dim + energy * running)
    return Work(flops, itemsize * (dim * dim + 3 * rows * dim + labelled * dim) + rows)


class Issued(NamedTuple):
    """aten operations that compute or copy (views are free), and how often the host would wait for a GPU."""

    ops: int
    syncs: int


def count(run: Callable[[], object]) -> Issued:
    """Run once and count. Triton launches are not aten operations: `gpu.launches` counts them on a GPU."""
    with _Counter() as counter:
        run()
    return Issued(counter.ops, counter.syncs)


class Watch(TorchDispatchMode):
    """Calls `see(func, args)` before every aten operation, inside the operator's opaque ops too."""

    def see(self, func: torch._ops.OpOverload, args: tuple[Any, ...]) -> None:
        raise NotImplementedError

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "eagc":
            # torch switches a mode off inside an opaque op, so its body runs under the mode instead.
            with self:
                return BODIES[func.overloadpacket.__name__](*args, **(kwargs or {}))
        self.see(func, args)
        return func(*args, **(kwargs or {}))


# Operations that hand a value to the host, or whose output has a size that depends on values.
_WAITING = {
    "item",  # seen on meta tensors only; on others its first step is _local_scalar_dense
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "equal",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
}
_INDEXED = {"index", "index_put", "index_put_"}


def why_it_waits(func: torch._ops.OpOverload, args: tuple[Any, ...]) -> str:
    """The reason why the host would wait for a GPU in this operation, or "".

    >>> why_it_waits(torch.ops.aten.nonzero.default, ())
    'nonzero waits for the device'
    """
    name = func.overloadpacket.__name__
    if name in _WAITING:
        return f"{name} waits for the device"
    # A boolean index becomes `nonzero` below the level that a dispatch mode can see.
    if name in _INDEXED and any(isinstance(i, Tensor) and i.dtype == torch.bool for i in args[1]):
        return "a boolean index waits for the device"
    return ""


class _Counter(Watch):
    def __init__(self) -> None:
        super().__init__()
        self.ops = self.syncs = 0

    def see(self, func: torch._ops.OpOverload, args: tuple[Any, ...]) -> None:
        self.ops += not func.is_view
        self.syncs += bool(why_it_waits(func, args))
