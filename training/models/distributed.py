"""Gathers the rows of all processes, so that every loss sees the global batch."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["gather_rows", "rank_and_world"]


def rank_and_world() -> tuple[int, int]:
    """(rank, number of processes); (0, 1) without a process group."""
    if not (dist.is_available() and dist.is_initialized()):
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


def gather_rows(rows: Tensor, views: int) -> Tensor:
    """Rows of every rank, (views * b, ...) -> (views * b * world, ...), view-major as in one process.

    It is differentiable. Every rank then computes the loss of the global batch, so the gradient here is
    `world` times the global one, and DDP's average over ranks makes it the global one again. Without a
    process group the rows are returned unchanged.
    """
    _, world = rank_and_world()
    if world == 1:
        return rows
    # (world, views * b, ...)
    ranks = _AllGather.apply(rows) if rows.is_floating_point() else _all_gather(rows)
    return ranks.unflatten(1, (views, -1)).transpose(0, 1).reshape(world * rows.shape[0], *rows.shape[1:])


def _all_gather(rows: Tensor) -> Tensor:
    world = dist.get_world_size()
    ranks = rows.new_empty((world * rows.shape[0], *rows.shape[1:]))
    dist.all_gather_into_tensor(ranks, rows.contiguous())
    return ranks.view(world, *rows.shape)


class _AllGather(torch.autograd.Function):
    """forward: (b, ...) -> (world, b, ...); backward: the sum over ranks of the gradient of this rank's rows.

    `torch.distributed.nn.functional.all_gather` would do the same, but it is deprecated, and on gloo its
    backward pass takes one scatter per rank instead of one all-reduce.
    """

    @staticmethod
    def forward(ctx, rows: Tensor) -> Tensor:
        return _all_gather(rows)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient)
        return gradient[dist.get_rank()]
