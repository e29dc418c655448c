"""Matrices derived from the subspace matrix (narrower, re-arranged), made once and kept while the original lives unchanged."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

T = TypeVar("T")
_derived: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # matrix -> (version, {key: derived})


def derived(matrix: Tensor, key: Hashable, make: Callable[[Tensor], T]) -> T:
    """`make(matrix)`, remembered under `key` until the matrix is written to or gone."""
    if matrix.is_inference():  # has no version counter, so a later change could not be seen
        return make(matrix)
    version, found = _derived.get(matrix, (None, {}))
    if version != matrix._version:
        found = {}
        _derived[matrix] = (matrix._version, found)
    if key not in found:
        found[key] = make(matrix.detach())
    return found[key]


def as_dtype(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """The matrix in another dtype; itself where it has it already."""
    return matrix if matrix.dtype == dtype else derived(matrix, dtype, lambda matrix: matrix.to(dtype).contiguous())
