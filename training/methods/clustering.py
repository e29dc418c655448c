"""SelEx's semi-supervised k-means, with balanced clusters or without.

Fixed points keep their cluster, the others go to the nearest center. All work is done by matrix products on
the device of the points; random numbers come from a CPU generator, so they are the same on every device.

>>> points = torch.tensor([[0.0], [0.1], [5.0], [5.2], [9.0], [9.1]])
>>> fixed = torch.tensor([0, -1, -1, -1, -1, -1])  # the first point belongs to cluster 0, the others are free
>>> semi_supervised_kmeans(points, fixed, 3, generator=torch.Generator().manual_seed(0)).labels.tolist()
[0, 0, 2, 2, 1, 1]
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from eagc_ops.app.console import progress_bar

__all__ = ["Clusters", "kmeans_plus_plus", "semi_supervised_kmeans"]


class Clusters(NamedTuple):
    """N points in K clusters."""

    labels: Tensor  # (N,) int64
    centers: Tensor  # (K, D)
    inertia: float  # squared distances to own (fixed) or nearest (free) centers, before the last update
    # (K, D), the centers before the last update: free points have the nearest, unless stage A balanced them
    assigned_to: Tensor


@torch.no_grad()
def semi_supervised_kmeans(
    points: Tensor,
    fixed: Tensor,
    k: int,
    *,
    generator: torch.Generator,
    cluster_size: int | None = None,
    published_balancing: bool = True,
    restarts: int = 1,
    iterations: int = 10,
    tolerance: float = 1e-4,
    progress: str | None = None,
) -> Clusters:
    """Cluster `points` (N, D) into `k` clusters.

    The first center of a cluster with fixed points is their mean; the other first centers are chosen among
    the free points by k-means++. Stage A updates only the centers of clusters without fixed points; with
    `cluster_size`, its iteration t = 0, 1, ... moves points out of overfull clusters in t rounds. Stage B is
    ordinary: all centers are the means of their points.

    Args:
        fixed: (N,) int64, the cluster of a fixed point, -1 for a free one.
        generator: CPU generator of the k-means++ draws.
        cluster_size: size that stage A allows a cluster, fixed points included; None: it moves no points.
        published_balancing: move points as the published code does. A cluster whose fixed points alone
            exceed its size, by n, releases its n farthest free points (corrected: all of them), and a cluster
            with one free point keeps it and takes in others (corrected: only if it has room).
        restarts: the iteration with the lowest inertia of all restarts is returned.
        iterations: maximum of each stage. A stage ends sooner when (sum of the centers' shifts)^2 <
            `tolerance`.
        progress: text before a progress bar over the iterations; None: no bar.
    """
    _check(points, fixed, k, cluster_size, restarts, iterations)
    total = restarts * 2 * iterations
    # Under autocast the products would be rounded to 16 bits.
    with (
        torch.autocast(points.device.type, enabled=False),
        progress_bar(total=total, desc=progress, leave=False, shown=progress is not None) as bar,
    ):
        task = _Task(points, fixed, k)
        # Room that fixed points leave for free ones; negative where they alone exceed the size
        room = None if cluster_size is None else cluster_size - task.fixed_count
        best: Clusters | None = None
        for _ in range(restarts):
            centers = task.first_centers(generator)
            for stage in ("A", "B"):
                for t in range(iterations):
                    distance, free_labels, inertia = task.assign(centers)
                    for _ in range(t if stage == "A" else 0):
                        if room is None:
                            break
                        free_labels = _balance(distance, free_labels, room, published_balancing)
                    moved = task.update(centers, free_labels, task.without_fixed if stage == "A" else None)
                    if best is None or inertia < best.inertia:
                        best = Clusters(task.labels(free_labels), moved, inertia, centers)
                    shift = (moved - centers).norm(dim=1).sum().item()
                    centers = moved
                    bar.update()
                    if shift**2 < tolerance:
                        bar.update(iterations - 1 - t)
                        break
    assert best is not None  # there is at least one restart
    return best


@torch.no_grad()
def kmeans_plus_plus(
    points: Tensor, centers: Tensor, count: int, generator: torch.Generator, trials: int = 1
) -> Tensor:
    """`count` of the `points` (N, D), drawn one after the other: (count, D).

    The probability is proportional to the squared distance to the nearest of `centers` (c, D) and of the
    points drawn before; without any of them (c = 0) the first is drawn uniformly. With several `trials`
    (greedy k-means++), the one of them that leaves the smallest sum of squared distances is taken.
    """
    lengths = points.square().sum(1)
    nearest = (
        squared_distances(points, centers, lengths).amin(1)
        if len(centers)
        else torch.full_like(lengths, torch.inf)
    )
    chosen = points.new_empty(count, points.shape[1])
    for i, r in enumerate(torch.rand(count, trials, generator=generator, dtype=torch.float64)):
        # On the CPU in fp64: a running sum on a GPU has no fixed order of additions.
        cumulative = nearest.nan_to_num(posinf=1.0).double().cpu().cumsum(0)
        drawn = points[torch.searchsorted(cumulative, r * cumulative[-1])]
        shorter = torch.minimum(nearest[:, None], squared_distances(points, drawn, lengths))
        best = shorter.sum(0).argmin()
        chosen[i], nearest = drawn[best], shorter[:, best]
    return chosen


def squared_distances(points: Tensor, centers: Tensor, lengths: Tensor) -> Tensor:
    """|x - c|^2 (N, K) of points (N, D), whose squared `lengths` (N,) are known, and centers (K, D)."""
    return torch.addmm(lengths[:, None] + centers.square().sum(1), points, centers.T, alpha=-2).clamp_(min=0)


class _Task:
    """Points, constraints, and the numbers that stay the same in all iterations."""

    def __init__(self, points: Tensor, fixed: Tensor, k: int) -> None:
        is_fixed = fixed >= 0
        self.k, self.fixed, self.points = k, fixed, points
        self.where_free, self.free = (~is_fixed).nonzero().flatten(), points[~is_fixed]
        self.fixed_points, self.fixed_labels = points[is_fixed], fixed[is_fixed]
        self.fixed_sum, self.fixed_count = _sums(self.fixed_points, self.fixed_labels, k)
        self.without_fixed = self.fixed_count == 0
        self.free_lengths = self.free.square().sum(1)

    def first_centers(self, generator: torch.Generator) -> Tensor:
        centers = self.fixed_sum / self.fixed_count.clamp(min=1)[:, None]
        # Without free points, clusters that have no fixed points stay empty.
        pool = self.free if len(self.free) else self.points
        centers[self.without_fixed] = kmeans_plus_plus(
            pool, centers[~self.without_fixed], int(self.without_fixed.sum()), generator
        )
        return centers

    def assign(self, centers: Tensor) -> tuple[Tensor, Tensor, float]:
        """Distances of the free points, their nearest clusters, and the inertia."""
        distance = squared_distances(self.free, centers, self.free_lengths)
        nearest, labels = distance.min(1)
        inertia = nearest.sum() + (self.fixed_points - centers[self.fixed_labels]).square().sum()
        return distance, labels, inertia.item()

    def update(self, centers: Tensor, free_labels: Tensor, movable: Tensor | None) -> Tensor:
        """Means of the clusters.

        An empty cluster keeps its center: its mean would be NaN, which attracts all points.
        """
        total, count = _sums(self.free, free_labels, self.k)
        count = count + self.fixed_count
        means = (self.fixed_sum + total) / count.clamp(min=1)[:, None]
        changes = count > 0 if movable is None else (count > 0) & movable
        return torch.where(changes[:, None], means, centers)

    def labels(self, free_labels: Tensor) -> Tensor:
        return self.fixed.index_copy(0, self.where_free, free_labels)


def _balance(distance: Tensor, labels: Tensor, room: Tensor, published: bool) -> Tensor:
    """One round: a cluster with more than `room` (K,) points sends the farthest to the nearest with room.

    All clusters are judged by the same `labels` (N,); `distance` is (N, K).
    """
    count = labels.bincount(minlength=len(room))
    kept, has_room = room, count < room
    if published:
        # The released points are a slice [room:] of the points sorted by distance, and a negative start of a
        # slice counts from its end. A list of one point is taken for one with room before that.
        kept = torch.where(room < 0, count + room, room)
        kept = torch.where(count == 1, 1, kept)
        has_room = has_room | (count == 1)
    own = distance.gather(1, labels[:, None])[:, 0]
    order = own.argsort(stable=True)
    order = order[labels[order].argsort(stable=True)]  # by cluster, then by distance
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device) - (count.cumsum(0) - count)[labels[order]]
    released = (rank >= kept[labels]).nonzero().flatten()
    elsewhere = distance[released].masked_fill_(~has_room, torch.inf).argmin(1)
    return labels.index_copy(0, released, elsewhere)


def _sums(points: Tensor, labels: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Sum (k, D) and number (k,) of the points of every cluster.

    The sum is a matrix product, because scattered additions have no fixed order on a GPU.
    """
    member = labels == torch.arange(k, device=labels.device)[:, None]  # (k, N)
    return member.to(points.dtype) @ points, member.sum(1)


def _check(
    points: Tensor, fixed: Tensor, k: int, cluster_size: int | None, restarts: int, iterations: int
) -> None:
    if points.ndim != 2 or not points.is_floating_point() or len(points) == 0:
        raise ValueError(
            f"points must be (N, D) floating with N >= 1, got {tuple(points.shape)} {points.dtype}"
        )
    if not points.isfinite().all():
        raise ValueError("points must be finite: a NaN would draw every point to one center")
    if fixed.shape != points.shape[:1] or fixed.dtype != torch.int64 or fixed.device != points.device:
        raise ValueError(
            f"fixed must be int64 ({len(points)},) on {points.device}, "
            f"got {fixed.dtype} {tuple(fixed.shape)} on {fixed.device}"
        )
    if k < 1 or not (fixed.min() >= -1 and fixed.max() < k):
        raise ValueError(
            f"fixed must hold -1 (free) or a cluster below k={k}, "
            f"got values from {fixed.min()} to {fixed.max()}"
        )
    if cluster_size is not None and cluster_size * k < len(points):
        raise ValueError(
            f"cluster_size must be >= {-(-len(points) // k)} for {k} clusters to hold {len(points)} points, "
            f"got {cluster_size}"
        )
    if restarts < 1 or iterations < 1:
        raise ValueError(
            f"restarts and iterations must be >= 1, got restarts={restarts}, iterations={iterations}"
        )
