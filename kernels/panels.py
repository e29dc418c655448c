"""The upper triangle of S in column panels, for the CPU path, which multiplies with them in every call.

The panels are kept until the matrix changes or is freed. A write that torch counts (the tensor's version) and
a move to a different address are always noticed. A write through `.data` and DDP's broadcast of buffers
change neither; they are noticed if they change any bit of the diagonal or of the first row, as a different
conceptor or projection does. Comparing every element would cost more than a small batch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

# Columns of the triangle at a time: wider panels waste products, narrower ones are too small to be fast.
PANEL = 128


def upper_panels(matrix: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """Column panels of S (D, D) on the CPU down to the diagonal block, in `dtype`.

    Entries above that block are doubled, to stand for their mirror images too. Doubling the columns of z
    instead, panel by panel, would save this copy but measured slower.
    """
    if matrix.is_inference():  # no version counter, so a write would go unnoticed
        return _made(matrix, dtype)
    kept = _kept.get(matrix)
    if kept is None or not kept.is_of(matrix):
        probes = tuple(x.clone() for x in _probes(matrix))
        kept = _kept[matrix] = _Kept(matrix._version, matrix.data_ptr(), probes, {})
    if dtype not in kept.panels:
        kept.panels[dtype] = _made(matrix.detach(), dtype)
    return kept.panels[dtype]


def kept_for(matrix: Tensor) -> list[Tensor]:
    """All tensors that are kept for a matrix, for measurements of memory."""
    kept = _kept.get(matrix)
    return [panel for panels in kept.panels.values() for panel in panels] if kept else []


class _Kept(NamedTuple):
    """The panels of a matrix, and the marks by which a change of the matrix is noticed."""

    version: int
    address: int
    probes: tuple[Tensor, ...]  # copies of some of its values
    panels: dict[torch.dtype, list[Tensor]]

    def is_of(self, matrix: Tensor) -> bool:
        if self.version != matrix._version or self.address != matrix.data_ptr():
            return False
        return all(map(torch.equal, self.probes, _probes(matrix)))


_kept: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # matrix -> _Kept


def _made(matrix: Tensor, dtype: torch.dtype) -> list[Tensor]:
    panels = []
    for start in range(0, matrix.shape[0], PANEL):
        panel = matrix[: start + PANEL, start : start + PANEL].to(dtype, copy=True)
        panel[:start] *= 2
        panels.append(panel)
    return panels


def _probes(matrix: Tensor) -> tuple[Tensor, ...]:
    return matrix.diagonal(), matrix.select(0, 0)
