"""The work of one call: floating-point operations and bytes of the formulas, and what an implementation issues to do it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from eagc_ops.op import EAGERLY


class Work(NamedTuple):
    """Nominal: what the formulas ask for, whoever computes them. A higher rate is then a shorter time and nothing else.

    An implementation may do less (the CPU path reads one triangle of S and skips rows with tau = 0): its rate may exceed the roof.
    """

    flops: int
    bytes: int

    @property
    def intensity(self) -> float:
        """FLOP per byte."""
        return self.flops / self.bytes


def nominal_work(unlabelled: int, labelled: int, dim: int, itemsize: int, *, running: bool) -> Work:
    """FLOPs of the formulas on the rows they apply to; every operand read once, the result written once.

    Per unlabelled row: z S and g S (2 D^2 each), z . (z S) and |z|^2 (2 D each), g - w (g S) (2 D). Per labelled row: g + c (z - z_ref)
    (3 D), and with a running energy reference its energy: z S, z . (z S) and |z|^2. Read: S, g and z of all rows, z_ref of labelled rows,
    a byte of mask per row. Written: all rows. `itemsize` is that of z; S has the same.

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
    """Run once and count. Triton launches are no aten operations: on a GPU the profiler counts them (`gpu.launches`)."""
    with _Counter() as counter:
        run()
    return Issued(counter.ops, counter.syncs)


class _Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.ops = self.syncs = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in EAGERLY:  # an opaque op hides what it does from a dispatch mode: look inside
            with self:
                return EAGERLY[func](*args, **(kwargs or {}))
        self.ops += not func.is_view
        self.syncs += _waits(func, args)
        return func(*args, **(kwargs or {}))


_READS = {
    torch.ops.aten._local_scalar_dense,
    torch.ops.aten.nonzero,
    torch.ops.aten.masked_select,
    torch.ops.aten.equal,
}
_INDEXED = {torch.ops.aten.index, torch.ops.aten.index_put, torch.ops.aten.index_put_}


def _waits(func, args: tuple) -> bool:
    """The host needs a value: it is read, or decides a shape. A boolean index becomes `nonzero` below the level a mode can see."""
    by_mask = func.overloadpacket in _INDEXED and any(
        isinstance(i, Tensor) and i.dtype == torch.bool for i in args[1]
    )
    return by_mask or func.overloadpacket in _READS
