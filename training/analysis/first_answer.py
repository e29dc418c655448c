"""The first answer: categories from frozen features and some labels, in seconds.

Several views of the same rows are clustered, and the clusterings vote. A view is a metric that the labels
teach (`LabelMetric`), with half, once or twice the usual number of directions, and its points either as they
are or drawn towards their neighbours; in each, labelled rows stay with their class. Drawn points vote twice:
by k-means, and by clusters that may differ in size (`unequal_kmeans`). Which view suits a data set, and
whether its categories differ in size, is not known beforehand, and k-means is a matter of luck: the vote is
near the best of them on each data set it was tried on (docs/discover-benchmark.md). A row then has half its
own votes and half those of its neighbours.

>>> directions = torch.eye(8)[torch.arange(120) % 4]  # four categories, the first two of them known
>>> features = directions + 0.1 * torch.randn(120, 8, generator=torch.Generator().manual_seed(0))
>>> label = torch.where((torch.arange(120) < 40) & (torch.arange(120) % 4 < 2), torch.arange(120) % 4, -1)
>>> answer = first_answer(features, label, k=4, known=2)
>>> answer.assignment[:8].tolist() in ([0, 1, 2, 3, 0, 1, 2, 3], [0, 1, 3, 2, 0, 1, 3, 2])
True
>>> answer
FirstAnswer(120 rows in 4 categories, 2 of them known; empty: none)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn import functional as F

from eagc_ops.metric import LabelMetric, usual_directions
from eagc_ops.training.analysis.constrained_kmeans import constrained_kmeans, mean_directions
from eagc_ops.training.analysis.processes import ALONE, Processes
from eagc_ops.training.analysis.unequal_kmeans import merged, softened

__all__ = [
    "FirstAnswer",
    "Quality",
    "first_answer",
    "probabilities_of",
    "sample_of_rows",
    "smoothed",
    "spread",
    "spread_at_once",
    "vote",
]

SHARES_OF_DIRECTIONS = (1.0, 0.5, 2.0)
NEIGHBOURS, OWN_SHARE = 10, 0.5
# The views are clustered on a sample of larger sets, whose votes then go to all rows: the cost of neighbours
# and of Ward's method is quadratic.
SAMPLE = 20_000
TEMPERATURE = 0.1  # of the cosines in probabilities: SimGCD's
ROWS_AT_ONCE = 2048  # bounds the tables of rows x rows and of rows x clusters


@dataclass(frozen=True, repr=False)
class FirstAnswer:
    """Categories of N rows; 0 .. known - 1 are those of the known classes."""

    assignment: Tensor  # (N,) int64; a labelled row has its class
    probabilities: Tensor  # (N, K) fp32
    centres: Tensor  # (K, d) fp32, unit norm, of the points of the metric
    points: Tensor  # (N, d) fp32, unit norm: the rows under the metric
    metric: LabelMetric  # for other rows: `spread(metric(features), sampled, shares)`
    sampled: Tensor  # (n, d): the points that were clustered
    shares: Tensor  # (n, K) fp32: their shares of the votes
    known: int
    quality: Quality

    def __repr__(self) -> str:
        n, k = self.probabilities.shape
        empty = ", ".join(map(str, self.quality.empty)) or "none"
        return f"FirstAnswer({n:,} rows in {k:,} categories, {self.known} of them known; empty: {empty})"


@dataclass(frozen=True)
class Quality:
    """What is seen of an answer without the truth."""

    cosine: float  # mean cosine of an unlabelled row to the centre of its category; NaN without such rows
    certainty: float  # mean largest probability of unlabelled rows; NaN without them
    agreement: float  # mean share of the views' votes that a row's most voted category has
    recognized: float  # share of labelled rows nearest to their own class's centre; NaN without them
    empty: tuple[int, ...]  # categories without any row


@torch.no_grad()
def first_answer(
    features: Tensor,
    label: Tensor,
    k: int,
    known: int,
    *,
    seed: int = 0,
    processes: Processes = ALONE,
) -> FirstAnswer:
    """`k` categories of `features` (N, D), of which the first `known` have labelled rows.

    Args:
        label: (N,) int64, the class of a labelled row in 0 .. known - 1, -1 of an unlabelled one.
        seed: of the first centres, and of the sample that stands for more than 20,000 rows.
        processes: each has features and labels of its own; they share the views, and get the answer for
            their rows.
    """
    all_labels = processes.joined(label)
    chosen = sample_of_rows(all_labels, seed)
    rows, own = processes.picked(features, chosen), all_labels[chosen]
    views = [(share, neighbours) for share in SHARES_OF_DIRECTIONS for neighbours in (NEIGHBOURS, 0)]
    votes = torch.zeros(len(views), 2, len(rows), dtype=torch.int64, device=rows.device)
    metrics: dict[float, LabelMetric] = {}
    for i, (share, neighbours) in enumerate(views):
        if share not in metrics:
            directions = max(1, round(share * usual_directions(len(rows))))
            metrics[share] = LabelMetric.fit(rows, own, directions=directions)
        if i % processes.count == processes.rank:
            view = smoothed(metrics[share](rows), neighbours)
            equal = constrained_kmeans(view, own, k, known, restarts=1, seed=seed + i)
            if neighbours:
                starts = equal.centres, merged(view, own, k, known, seed=seed + i)
                tried = (softened(view, own, start, weighed=True) for start in starts)
                votes[i, 0] = equal.labels
                votes[i, 1] = max(tried, key=lambda soft: soft.likelihood).labels
            else:
                votes[i] = softened(view, own, equal.centres, weighed=False).labels
    # The same in all processes, whatever their processors round
    metric = LabelMetric(*map(processes.of_first, (metrics[1.0].mean, metrics[1.0].matrix)))
    points, sampled = metric(features), metric(rows)
    shares = processes.of_first(vote(list(processes.sum(votes).flatten(0, 1)), sampled, k, known))
    probabilities = spread(points, sampled, shares)
    fixed = label >= 0
    probabilities[fixed] = F.one_hot(label[fixed], k).to(probabilities.dtype)
    assignment = probabilities.argmax(1)
    centres = F.normalize(processes.sum(probabilities.T @ points), dim=1)
    return FirstAnswer(
        assignment,
        probabilities,
        centres,
        points,
        metric,
        sampled,
        shares,
        known,
        _quality(points, label, assignment, centres, probabilities, shares, processes),
    )


def vote(labelings: Sequence[Tensor], points: Tensor, k: int, known: int) -> Tensor:
    """The share of the votes (N, k), fp32, that each category has of each row.

    The clusters of known classes have their numbers in all `labelings`, (N,) int64 each; the others are
    matched to those of the labeling with the largest mean cosine to its centres among `points` (N, d).
    """
    reference = max(labelings, key=lambda labels: _compactness(points, labels, k))
    shares = points.new_zeros(len(points), k)
    for labels in labelings:
        # Counts of new clusters of the labeling by new clusters of the reference
        both = (labels >= known) & (reference >= known)
        pairs = (labels[both] - known) * (k - known) + reference[both] - known
        counts = pairs.bincount(minlength=(k - known) ** 2).view(k - known, k - known)
        _, matched = linear_sum_assignment(-counts.cpu().numpy())
        number = torch.arange(k, device=points.device)
        number[known:] = known + torch.from_numpy(matched).to(points.device)
        shares += F.one_hot(number[labels], k)
    return shares / len(labelings)


def smoothed(points: Tensor, neighbours: int = NEIGHBOURS, own: float = OWN_SHARE) -> Tensor:
    """`points` (N, d), of unit norm, each drawn towards the mean of its `neighbours` by cosine; unit norm.

    A point keeps the share `own` of itself. The cost is N^2 d.

    >>> smoothed(torch.tensor([[1.0, 0], [0, 1]]), neighbours=1)
    tensor([[0.7071, 0.7071],
            [0.7071, 0.7071]])
    """
    neighbours = min(neighbours, len(points) - 1)
    if neighbours < 1:
        return points
    parts = []
    for start in range(0, len(points), ROWS_AT_ONCE):
        rows = points[start : start + ROWS_AT_ONCE]
        cosine = rows @ points.T
        cosine.diagonal(start).fill_(-torch.inf)  # a row is no neighbour of itself
        nearest = cosine.topk(neighbours, 1).indices
        parts.append(F.normalize(own * rows + (1 - own) * points[nearest].mean(1), dim=1))
    return torch.cat(parts)


def spread(points: Tensor, sampled: Tensor, shares: Tensor) -> Tensor:
    """The share of the votes (N, k) of each of `points` (N, d), from `shares` (n, k) of the points `sampled`.

    Half of it is that of the nearest sampled point, which may be the point itself, half the mean of the next
    ten.

    >>> spread(torch.eye(2), torch.eye(2), torch.eye(2))
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000]])
    """
    table = points.new_empty(len(points), shares.shape[1])
    for start in range(0, len(points), ROWS_AT_ONCE):
        part = slice(start, start + ROWS_AT_ONCE)
        table[part] = spread_at_once(points[part], sampled, shares)
    return table


def spread_at_once(points: Tensor, sampled: Tensor, shares: Tensor) -> Tensor:
    """`spread` of a few points, in a form that can be exported."""
    nearest = (points @ sampled.T).topk(min(1 + NEIGHBOURS, len(sampled)), 1).indices
    own = shares[nearest[:, 0]]
    if len(sampled) == 1:
        return own
    return OWN_SHARE * own + (1 - OWN_SHARE) * shares[nearest[:, 1:]].mean(1)


def probabilities_of(points: Tensor, centres: Tensor) -> Tensor:
    """Softmax of cosine / temperature, (N, K), of `points` (N, d) and `centres` (K, d).

    The most probable category is the one of the nearest centre.
    """
    table = points.new_empty(len(points), len(centres))
    for start in range(0, len(points), ROWS_AT_ONCE):
        part = slice(start, start + ROWS_AT_ONCE)
        table[part] = (points[part] @ centres.T / TEMPERATURE).softmax(1)
    return table


def sample_of_rows(label: Tensor, seed: int, most: int = SAMPLE) -> Tensor:
    """At most about `most` rows in their order: half of them labelled, where there are as many.

    Every class keeps its share, and at least one row.
    """
    if len(label) <= most:
        return torch.arange(len(label), device=label.device)
    order = torch.randperm(len(label), generator=torch.Generator().manual_seed(seed)).to(label.device)
    label = label[order]
    fixed, free = (label >= 0).nonzero().flatten(), (label < 0).nonzero().flatten()
    first = torch.zeros_like(fixed, dtype=torch.bool)  # the first row of each class
    if len(fixed):
        classes, index = label[fixed].unique(return_inverse=True)
        places = torch.full_like(classes, len(fixed)).scatter_reduce(
            0, index, torch.arange(len(fixed), device=label.device), "amin"
        )
        first[places] = True
    fixed = torch.cat([fixed[first], fixed[~first]])[: max(most - len(free), most // 2, int(first.sum()))]
    return order[torch.cat([fixed, free[: max(0, most - len(fixed))]])].sort().values


def _compactness(points: Tensor, labels: Tensor, k: int) -> float:
    centres, _ = mean_directions(points, labels, k)
    return (points * centres[labels]).sum().item()


def _quality(
    points: Tensor,
    label: Tensor,
    assignment: Tensor,
    centres: Tensor,
    probabilities: Tensor,
    shares: Tensor,
    processes: Processes,
) -> Quality:
    free, fixed = label < 0, label >= 0
    nearest = (points[fixed] @ centres.T).argmax(1)
    count = processes.sum(assignment.bincount(minlength=len(centres)))
    return Quality(
        cosine=_mean((points[free] * centres[assignment[free]]).sum(1), processes),
        certainty=_mean(probabilities[free].amax(1), processes),
        agreement=_mean(shares.amax(1), ALONE),
        recognized=_mean(nearest == label[fixed], processes),
        empty=tuple((count == 0).nonzero().flatten().tolist()),
    )


def _mean(values: Tensor, processes: Processes) -> float:
    """NaN without values."""
    values = values.double()
    total, count = processes.sum(torch.stack([values.sum(), values.new_tensor(len(values))])).unbind()
    return (total / count).item()
