"""Spherical k-means in which labelled rows stay with their class: the clustering of the first answer.

>>> points = F.normalize(torch.tensor([[1.0, 0], [1, 0.1], [0, 1], [0.1, 1], [-1, 0], [-1, 0.1]]), dim=1)
>>> label = torch.tensor([0, -1, -1, -1, -1, -1])  # the first row is labelled, the others are free
>>> clusters = constrained_kmeans(points, label, 3, known=1)
>>> clusters.labels.tolist() in ([0, 0, 1, 1, 2, 2], [0, 0, 2, 2, 1, 1])
True
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn import functional as F

__all__ = ["Clusters", "Starts", "constrained_kmeans", "lloyd", "mean_directions"]

ROWS_AT_ONCE = 8192  # bounds the table of rows x clusters
# Rows that Ward's method joins: its table of distances is quadratic. More rows are represented by a sample.
WARD_ROWS = 4000
TRIALS = 3  # of greedy k-means++


class Clusters(NamedTuple):
    """N rows in K clusters; clusters 0 .. known - 1 are those of the known classes."""

    labels: Tensor  # (N,) int64
    centres: Tensor  # (K, d), unit norm
    objective: float  # mean cosine of a row to the centre of its cluster


@torch.no_grad()
def constrained_kmeans(
    points: Tensor,
    label: Tensor,
    k: int,
    known: int,
    *,
    restarts: int = 5,
    iterations: int = 50,
    seed: int = 0,
) -> Clusters:
    """Cluster `points` (N, d), of unit norm, into `k` clusters by their cosines.

    The first centres of known classes are the means of their labelled rows. The other first centres come from
    Ward's hierarchy of the free rows, and, in each of the `restarts`, from k-means++ among the free rows. The
    best objective of all is returned.

    Args:
        label: (N,) int64, the class of a labelled row in 0 .. known - 1, -1 of a free one.
        known: number of known classes, each with a labelled row; k >= known.
        restarts: k-means++ starts beside Ward's.
        iterations: the most of one k-means; it ends when no row changes its cluster.
        seed: of k-means++ and of Ward's sample.
    """
    starts = Starts(points, label, known, restarts=restarts, seed=seed)
    return starts.clusters(k, iterations)


class Starts:
    """First centres for any number of clusters, drawn once: smaller numbers use the first of larger ones."""

    def __init__(
        self, points: Tensor, label: Tensor, known: int, *, restarts: int = 5, seed: int = 0
    ) -> None:
        _check(points, label, known, restarts)
        self.points, self.label, self.known = points, label, known
        self.free = points[label < 0]
        self._means, _ = mean_directions(points, label, known)
        self._orders = [_Order(self.free, self._means, seed * 1000 + i) for i in range(restarts)]
        self._ward = _Ward(self.free, seed)

    def clusters(self, k: int, iterations: int = 50) -> Clusters:
        """The best clustering into `k` clusters over all starts."""
        if not self.known <= k <= max(len(self.points), self.known) or k < 1:
            raise ValueError(
                f"k must be between the {self.known} known classes and the {len(self.points)} rows, got {k}"
            )
        starts = [self._from_ward(k), *(order.first(k - self.known) for order in self._orders)]
        found = (
            lloyd(self.points, self.label, torch.cat([self._means, start]), iterations) for start in starts
        )
        return max(found, key=lambda clusters: clusters.objective)

    def _from_ward(self, k: int) -> Tensor:
        """Centres of the clusters of Ward's hierarchy that no known class is matched to: (k - known, d)."""
        centres = self._ward.centres(k)
        _, taken = linear_sum_assignment(-(self._means @ centres.T).double().cpu().numpy())
        rest = centres[[j for j in range(len(centres)) if j not in set(taken.tolist())]][: k - self.known]
        missing = k - self.known - len(rest)  # fewer free rows than clusters, or some alike
        return (
            torch.cat([rest, self._orders[0].first(missing)])
            if missing and self._orders
            else _padded(rest, self.points, missing)
        )


def _padded(rows: Tensor, points: Tensor, missing: int) -> Tensor:
    return torch.cat([rows, points[torch.arange(missing) % len(points)]])


class _Order:
    """The order in which greedy k-means++ takes free rows as first centres."""

    def __init__(self, free: Tensor, means: Tensor, seed: int) -> None:
        self._free, self._generator = free, torch.Generator().manual_seed(seed)
        self._taken = free[:0]
        self._nearest = (
            torch.cat([_distance(rows, means).amin(1) for rows in free.split(ROWS_AT_ONCE)])
            if len(means) and len(free)
            else torch.ones(len(free), device=free.device)
        )

    def first(self, count: int) -> Tensor:
        drawn = []
        for _ in range(count - len(self._taken) if len(self._free) else 0):
            # On the CPU in fp64: a running sum on a GPU has no fixed order of additions.
            running = self._nearest.double().cpu().cumsum(0)
            r = torch.rand(TRIALS, generator=self._generator, dtype=torch.float64) * running[-1]
            tried = self._free[torch.searchsorted(running, r).clamp_max(len(self._free) - 1)]
            nearest = torch.minimum(self._nearest[:, None], _distance(self._free, tried))
            best = nearest.sum(0).argmin()
            self._nearest = nearest[:, best]
            drawn.append(tried[best])
        if drawn:
            self._taken = torch.cat([self._taken, torch.stack(drawn)])
        missing = max(0, count - len(self._taken))
        return _padded(self._taken[:count], self._free if len(self._free) else self._taken, missing)


class _Ward:
    """Ward's hierarchy of free rows, or of a sample of them."""

    def __init__(self, free: Tensor, seed: int) -> None:
        chosen = torch.randperm(len(free), generator=torch.Generator().manual_seed(seed))[:WARD_ROWS].sort()
        self._rows = free[chosen.values.to(free.device)].cpu()
        upper = np.triu_indices(len(self._rows), 1)
        distances = (2 * _distance(self._rows, self._rows)).sqrt().numpy()
        self._tree = linkage(distances[upper], "ward") if len(self._rows) > 1 else None
        self._device = free.device

    def centres(self, k: int) -> Tensor:
        """The mean directions (at most k, d) of k clusters."""
        if self._tree is None:
            return self._rows.to(self._device)
        cluster = torch.from_numpy(fcluster(self._tree, k, "maxclust").astype(np.int64)) - 1
        return mean_directions(self._rows, cluster, int(cluster.max()) + 1)[0].to(self._device)


@torch.no_grad()
def lloyd(points: Tensor, label: Tensor, centres: Tensor, iterations: int = 50) -> Clusters:
    """k-means of `points` (N, d) from the first `centres` (K, d); rows with a `label` (N,) >= 0 keep it.

    An empty cluster keeps its centre.
    """
    labels = torch.full_like(label, -1)
    for _ in range(iterations):
        before, labels = labels, _nearest(points, label, centres)
        if torch.equal(before, labels):
            break
        means, empty = mean_directions(points, labels, len(centres))
        centres = torch.where(empty[:, None], centres, means)
    cosine = torch.cat([(rows * centres[own]).sum(1) for rows, own in _parts(points, labels)]).double()
    return Clusters(labels, centres, cosine.mean().item())


def _nearest(points: Tensor, label: Tensor, centres: Tensor) -> Tensor:
    nearest = torch.cat([(rows @ centres.T).argmax(1) for rows in points.split(ROWS_AT_ONCE)])
    return torch.where(label < 0, nearest, label)


def mean_directions(points: Tensor, labels: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Directions (k, d) of the mean row of each label, and which labels have no row (k,).

    Rows with a label of -1 count nowhere.
    """
    total = points.new_zeros(k, points.shape[1])
    for rows, own in _parts(points, labels):
        if rows.device.type == "cpu":
            with_rest = points.new_zeros(k + 1, points.shape[1])
            total += with_rest.index_add_(0, torch.where(own < 0, k, own), rows)[:k]
        else:  # a matrix product, many times the work: scattered additions have no fixed order on a GPU
            total += (own == torch.arange(k, device=own.device)[:, None]).to(points.dtype) @ rows
    length = total.norm(dim=1, keepdim=True)
    return F.normalize(total, dim=1), length[:, 0] == 0


def _parts(points: Tensor, labels: Tensor) -> zip:
    return zip(points.split(ROWS_AT_ONCE), labels.split(ROWS_AT_ONCE))


def _distance(points: Tensor, centres: Tensor) -> Tensor:
    """1 - cosine, (N, K): half of the squared distance of unit rows."""
    return (1 - points @ centres.T).clamp_(min=0)


def _check(points: Tensor, label: Tensor, known: int, restarts: int) -> None:
    if points.ndim != 2 or not points.is_floating_point() or len(points) == 0:
        raise ValueError(
            f"points must be (N, d) floating with N >= 1, got {tuple(points.shape)} {points.dtype}"
        )
    if not points.isfinite().all():
        raise ValueError("points must be finite: a NaN is nearest to no centre")
    if label.shape != points.shape[:1] or label.dtype != torch.int64 or label.device != points.device:
        raise ValueError(
            f"label must be int64 ({len(points)},) on {points.device}, got {label.dtype} "
            f"{tuple(label.shape)} on {label.device}"
        )
    if restarts < 0:
        raise ValueError(f"restarts must be >= 0, got {restarts}")
    present = label[label >= 0].unique().tolist()
    if present != list(range(known)):
        raise ValueError(
            f"label must hold every class in 0 .. known - 1 = {known - 1}, and -1, got {present[:9]}"
        )
