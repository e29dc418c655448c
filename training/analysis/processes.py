"""Processes that share the rows of a table: each holds a part, and all learn the sums.

What is exchanged are sums of small tables: what is computed from them depends on the number of processes by
rounding alone.
"""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["ALONE", "Processes"]


class Processes:
    """The processes of a group; without one, this process alone.

    The rows of process r follow those of process r - 1. Every method is called by all of them.

    >>> ALONE.sum(torch.ones(2)), ALONE.joined(torch.arange(3))
    (tensor([1., 1.]), tensor([0, 1, 2]))
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        self.rank = 0 if group is None else dist.get_rank(group)
        self.count = 1 if group is None else dist.get_world_size(group)

    def sum(self, value: Tensor) -> Tensor:
        """The sum of a tensor over the processes, in each of them."""
        if self.count > 1:
            value = value.clone()
            dist.all_reduce(value, group=self.group)
        return value

    def of_first(self, value: Tensor) -> Tensor:
        """The value of process 0, in each of them."""
        return self.sum(value if self.rank == 0 else torch.zeros_like(value))

    def told(self, value: Any) -> Any:
        """What process 0 has, of any kind, in each of them; they wait for one another."""
        if self.count == 1:
            return value
        ready = dist.barrier(self.group, async_op=True)
        while not ready.is_completed():  # process 0 may work for hours, and a wait in gloo hears no signal
            time.sleep(0.01)
        ready.wait()
        told = [value]
        dist.broadcast_object_list(told, 0, self.group)
        return told[0]

    def joined(self, rows: Tensor) -> Tensor:
        """The rows (n, ...) of all processes, (N, ...), in each of them."""
        start, total = self._place(rows)
        return self._filled(rows, torch.arange(start, start + len(rows), device=rows.device), total)

    def picked(self, rows: Tensor, chosen: Tensor) -> Tensor:
        """Rows `chosen` (m,) of all rows, (m, ...), in each process."""
        if self.count == 1:
            return rows[chosen]
        start, _ = self._place(rows)
        mine = ((chosen >= start) & (chosen < start + len(rows))).nonzero().flatten()
        return self._filled(rows[chosen[mine] - start], mine, len(chosen))

    def _filled(self, rows: Tensor, places: Tensor, total: int) -> Tensor:
        if self.count == 1:
            return rows
        table = rows.new_zeros(total, *rows.shape[1:])
        table[places] = rows
        dist.all_reduce(table, group=self.group)  # every row is one process's and zero elsewhere: exact
        return table

    def _place(self, rows: Tensor) -> tuple[int, int]:
        """(the number of this process's first row, the number of rows)."""
        counts = torch.zeros(self.count, dtype=torch.int64, device=rows.device)
        counts[self.rank] = len(rows)
        counts = self.sum(counts)
        return int(counts[: self.rank].sum()), int(counts.sum())


ALONE = Processes()
