"""Matrices derived from the subspace matrix (narrower, re-arranged), made once and kept while the original lives unchanged.

A change is seen by the tensor's version and address; on a CPU also by its trace, because writes through `.data` and DDP's buffer
broadcast change neither. On a GPU comparing values would make the host wait: there such writes are not followed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

T = TypeVar("T")
_derived: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # matrix -> (state, {key: derived})


def derived(matrix: Tensor, key: Hashable, make: Callable[[Tensor], T]) -> T:
    """`make(matrix)`, remembered under `key` until the matrix is written to or gone."""
    on_gpu = matrix.device.type == "cuda"
    # An inference tensor has no version counter; what is made inside a graph capture has no values until the graph runs.
    if matrix.is_inference() or (on_gpu and torch.cuda.is_current_stream_capturing()):
        return make(matrix)
    state = (matrix._version, matrix.data_ptr(), matrix.trace().item() if matrix.device.type == "cpu" else None)
    known, found = _derived.get(matrix, (None, {}))
    if known != state:
        found = {}
        _derived[matrix] = (state, found)
    if key not in found:
        found[key] = make(matrix.detach())
    return found[key]


def copies_of(matrix: Tensor) -> list[Tensor]:
    """All that is kept of a matrix now, for whoever counts memory."""
    _, found = _derived.get(matrix, (None, {}))
    return [copy for kept in found.values() for copy in (kept if isinstance(kept, list) else [kept])]


def as_dtype(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """The matrix in another dtype; itself where it has it already."""
    return matrix if matrix.dtype == dtype else derived(matrix, dtype, lambda matrix: matrix.to(dtype).contiguous())
