"""Matrices derived from the subspace matrix (narrower, re-arranged), made once and kept while the original lives unchanged.

What is followed: a write that torch counts (the tensor's version) and a move to another address, on every device. A write through `.data`
and DDP's broadcast of buffers change neither. On a CPU such a write is followed if it changes the diagonal or the first row in any bit,
as another conceptor or projection does; comparing every element would cost more than the small batches do. On a GPU comparing values
would make the host wait: there it is not followed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

T = TypeVar("T")


class _Kept(NamedTuple):
    """What was made of a matrix, by key; and what the matrix was then: version and address, on a CPU also two lines of its values."""

    version: int
    address: int
    lines: tuple[Tensor, ...]
    made: dict[Hashable, Any]

    def made_of(self, matrix: Tensor) -> bool:
        if self.version != matrix._version or self.address != matrix.data_ptr():
            return False
        return all(map(torch.equal, self.lines, _lines(matrix)))


_derived: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # matrix -> _Kept


def derived(matrix: Tensor, key: Hashable, make: Callable[[Tensor], T]) -> T:
    """`make(matrix)`, remembered under `key` until the matrix is written to or gone."""
    # An inference tensor has no version counter. A graph capture makes its own, anew at every replay: what is kept here could be freed
    # while the graph still reads it, and would be stale once the matrix is written to, which a replay follows.
    if matrix.is_inference() or (matrix.device.type == "cuda" and torch.cuda.is_current_stream_capturing()):
        return make(matrix)
    kept = _derived.get(matrix)
    if kept is None or not kept.made_of(matrix):
        kept = _derived[matrix] = _Kept(
            matrix._version, matrix.data_ptr(), tuple(x.clone() for x in _lines(matrix)), {}
        )
    if key not in kept.made:
        kept.made[key] = make(matrix.detach())
    return kept.made[key]


def _lines(matrix: Tensor) -> tuple[Tensor, ...]:
    return (matrix.diagonal(), matrix.select(0, 0)) if matrix.device.type == "cpu" else ()


def copies_of(matrix: Tensor) -> list[Tensor]:
    """All that is kept of a matrix now, for whoever counts memory."""
    made = _derived[matrix].made if matrix in _derived else {}
    return [copy for kept in made.values() for copy in (kept if isinstance(kept, list) else [kept])]


def as_dtype(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """The matrix in another dtype; itself where it has it already."""
    return (
        matrix
        if matrix.dtype == dtype
        else derived(matrix, dtype, lambda matrix: matrix.to(dtype).contiguous())
    )
