"""A cache of matrices derived from the subspace matrix (narrower, rearranged).

A copy is kept until the original changes. Two kinds of change are noticed on every device: a write that torch
counts (the tensor's version), and a move to a different address. A write through `.data` and DDP's broadcast
of buffers change neither. On a CPU such a write is noticed if it changes any bit of the diagonal or of the
first row, as a different conceptor or projection does; comparing every element would cost more than a small
batch. On a GPU it is not noticed, because a comparison of values would make the host wait.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

T = TypeVar("T")


def derived(matrix: Tensor, key: Hashable, make: Callable[[Tensor], T]) -> T:
    """`make(matrix)`, remembered under `key` until the matrix is written to or freed."""
    # An inference tensor has no version counter. A captured graph makes its own copy at every replay, and so
    # follows writes to the matrix: a cached copy would be stale, and could be freed while the graph reads it.
    if matrix.is_inference() or (matrix.device.type == "cuda" and torch.cuda.is_current_stream_capturing()):
        return make(matrix)
    kept = _derived.get(matrix)
    if kept is None or not kept.is_of(matrix):
        probes = tuple(x.clone() for x in _probes(matrix))
        kept = _derived[matrix] = _Kept(matrix._version, matrix.data_ptr(), probes, {})
    if key not in kept.made:
        kept.made[key] = make(matrix.detach())
    made: T = kept.made[key]
    return made


def as_dtype(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """The matrix in `dtype`; the matrix itself if it has that dtype."""
    if matrix.dtype == dtype:
        return matrix
    return derived(matrix, dtype, lambda matrix: matrix.to(dtype).contiguous())


def copies_of(matrix: Tensor) -> list[Tensor]:
    """All tensors that are kept for a matrix, for measurements of memory."""
    made = _derived[matrix].made if matrix in _derived else {}
    return [copy for kept in made.values() for copy in (kept if isinstance(kept, list) else [kept])]


class _Kept(NamedTuple):
    """The values derived from a matrix, and the marks by which a change of the matrix is noticed."""

    version: int
    address: int
    probes: tuple[Tensor, ...]  # copies of some of its values
    made: dict[Hashable, Any]  # derived values by key

    def is_of(self, matrix: Tensor) -> bool:
        if self.version != matrix._version or self.address != matrix.data_ptr():
            return False
        return all(map(torch.equal, self.probes, _probes(matrix)))


_derived: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # matrix -> _Kept


def _probes(matrix: Tensor) -> tuple[Tensor, ...]:
    return (matrix.diagonal(), matrix.select(0, 0)) if matrix.device.type == "cpu" else ()
