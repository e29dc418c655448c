"""Clusters that differ in size: k-means prefers equal ones.

It cuts a large category in two before a small one has a cluster of its own.

>>> points = F.normalize(torch.tensor([[1.0, 0], [1, 0.1], [1, -0.1], [0, 1], [0.1, 1]]), dim=1)
>>> label = torch.tensor([0, -1, -1, -1, -1])  # the first row is labelled, the others are free
>>> softened(points, label, merged(points, label, 2, known=1), weighed=True).labels.tolist()
[0, 0, 0, 1, 1]
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from eagc_ops.training.analysis.constrained_kmeans import constrained_kmeans

__all__ = ["Soft", "merged", "softened"]

ROWS_AT_ONCE = 8192  # bounds the table of rows x clusters
ITERATIONS = 20
TEMPERATURE = 0.07  # twice as much merges categories where there are many of them
TIMES_AS_MANY = 2  # small clusters as there are categories
# Of the sizes in the cost of a merger: with 1, Ward's, small clusters go first, and what is left is equal in
# size; with 0 sizes count for nothing, and single rows far from all others stay alone.
POWER = 0.5


class Soft(NamedTuple):
    """N rows, each of which belongs to K clusters by its probabilities."""

    labels: Tensor  # (N,) int64, the most probable cluster
    centres: Tensor  # (K, d), unit norm
    likelihood: float  # mean logarithm, of free rows; comparable between clusterings of the same rows


@torch.no_grad()
def softened(points: Tensor, label: Tensor, centres: Tensor, *, weighed: bool) -> Soft:
    """Soft k-means of `points` (N, d), of unit norm, from the first `centres` (K, d).

    The probability of a cluster is a softmax of cosine / 0.07, times its share of the free rows if `weighed`:
    between a large and a small cluster the border moves towards the small one. Rows with a `label` (N,) >= 0
    count for their class alone.
    """
    free, bias = label < 0, points.new_zeros(len(centres))
    for _ in range(ITERATIONS):
        total, mass = torch.zeros_like(centres), torch.zeros_like(bias)
        for part in _parts(len(points)):
            shares = ((points[part] @ centres.T) / TEMPERATURE + bias).softmax(1)
            mass += shares[free[part]].sum(0)
            shares = torch.where(free[part, None], shares, F.one_hot(label[part].clamp_min(0), len(centres)))
            total += shares.T @ points[part]
        centres = F.normalize(total, dim=1)
        if weighed:
            bias = ((mass + 1) / (mass + 1).sum()).log()  # none is impossible
    labels, likelihood = label.clone(), 0.0
    for part in _parts(len(points)):
        scores = (points[part] @ centres.T) / TEMPERATURE + bias
        labels[part] = torch.where(free[part], scores.argmax(1), label[part])
        likelihood += scores[free[part]].logsumexp(1).double().sum().item()
    return Soft(labels, centres, likelihood / max(1, int(free.sum())))


@torch.no_grad()
def merged(points: Tensor, label: Tensor, k: int, known: int, *, seed: int = 0) -> Tensor:
    """First centres (k, d) from twice as many clusters of `points` (N, d), of which the nearest are merged.

    A large category may be several small clusters first. The cost of a merger of clusters a and b is the
    squared distance of their means times the square root of n_a n_b / (n_a + n_b). The `known` classes, the
    first ones, with rows of their own in `label` (N,), are never merged with one another.
    """
    many = max(k, min(TIMES_AS_MANY * k, known + int((label < 0).sum()) // 3))
    clusters = constrained_kmeans(points, label, many, known, restarts=1, seed=seed)
    size = clusters.labels.bincount(minlength=many).to(points.dtype) + 1e-3
    total = 1e-3 * clusters.centres  # an empty cluster goes first, with next to no weight
    for part in _parts(len(points)):
        total += F.one_hot(clusters.labels[part], many).to(points.dtype).T @ points[part]
    cost = torch.stack([_cost(total, size, a) for a in range(many)])
    cost.fill_diagonal_(torch.inf)
    cost[:known, :known] = torch.inf
    left = torch.ones(many, dtype=torch.bool, device=points.device)
    for _ in range(many - k):
        a, b = sorted(divmod(int(cost.argmin()), many))
        total[a] += total[b]
        size[a] += size[b]
        left[b] = False
        row = _cost(total, size, a).where(left, torch.inf)
        row[a] = torch.inf
        if a < known:
            row[:known] = torch.inf
        cost[a], cost[:, a], cost[b], cost[:, b] = row, row, torch.inf, torch.inf
    return F.normalize(total[left], dim=1)


def _cost(total: Tensor, size: Tensor, a: int) -> Tensor:
    """Of merging each cluster with cluster a, (K,)."""
    apart = (total / size[:, None] - total[a] / size[a]).square().sum(1)
    return apart * (size * size[a] / (size + size[a])) ** POWER


def _parts(rows: int) -> list[slice]:
    return [slice(start, start + ROWS_AT_ONCE) for start in range(0, rows, ROWS_AT_ONCE)]
