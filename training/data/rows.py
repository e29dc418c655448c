"""The rows of a batch on the student's device: one record for student, losses and diagnosis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from eagc_ops.training.data.loaders import Batch

__all__ = ["Rows", "rows_of"]


class Rows(NamedTuple):
    """n = views * images rows on one device, view-major: all first views, then all second views.

    A loss gets the rows of all processes, which have neither views nor `labelled_rows`.
    """

    label: Tensor  # (n,) int64; -1 on unlabelled rows, whose true class no loss may see
    mask: Tensor  # (n,) bool, True = labelled
    uq_idx: Tensor  # (n,) int64, the image in the merged data set
    epoch: int
    position: int  # of the batch in its epoch
    views: Sequence[Tensor] = ()  # each (n / views, C, H, W), or (n / views, N, D) tokens of a trunk cache
    labelled_rows: Tensor | None = None  # (N_l,) int64, mask.nonzero() computed on the CPU; None: not known


def rows_of(batch: Batch, device: torch.device | str, *, epoch: int = 0, position: int = 0) -> Rows:
    """The rows of a loader's batch on `device`, without the labels of unlabelled images.

    >>> label, uq_idx, mask = torch.tensor([3, 4]), torch.tensor([7, 9]), torch.tensor([True, False])
    >>> batch = Batch([torch.zeros(2, 1, 8, 8), torch.ones(2, 1, 8, 8)], label, uq_idx, mask)
    >>> rows = rows_of(batch, "cpu")
    >>> rows.label.tolist(), rows.uq_idx.tolist(), rows.labelled_rows.tolist()
    ([3, -1, 3, -1], [7, 9, 7, 9], [0, 2])
    """
    count = len(batch.stored)
    mask = batch.mask.repeat(count)
    # Labelled rows are indexed here, on the CPU: a boolean index on a GPU would wait for the device.
    columns = (
        batch.label.repeat(count).where(mask, -1),
        mask,
        batch.uq_idx.repeat(count),
        mask.nonzero().flatten(),
    )
    label, mask, uq_idx, labelled_rows = (column.to(device, non_blocking=True) for column in columns)
    return Rows(label, mask, uq_idx, epoch, position, batch.views_on(device), labelled_rows)
