"""How many categories are there? An estimate with a range, from frozen features and some labels.

Rows are clustered as in the first answer (`first_answer`): in the metric learned from labels, drawn towards
their neighbours, labelled rows held to their class. Two criteria judge the clusterings into k categories:

- the silhouette, in squared distances of unit rows. It has a plateau, which is long with many rows per
  category or few labels, so its guess is the first k that is nearly as good as the best;
- the scatter: the mean squared distance of unlabelled rows from the mean of their cluster (n - 1), which
  falls as k grows. Its guess is the k where it equals the scatter of labelled rows, clustered without their
  labels into their true number of classes. For that, half of the known classes play novel: their labels are
  hidden, from the metric too. The guess is too low and is multiplied by a factor.

The estimate is the geometric mean of both, and the range extends it by a factor of 1.4 on both sides:
docs/discover-benchmark.md says how often the range holds the truth. There is no estimate if clusters are not
separate, as in noise, or if the two criteria disagree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from eagc_ops.metric import LabelMetric
from eagc_ops.training.analysis.constrained_kmeans import Starts
from eagc_ops.training.analysis.first_answer import sample_of_rows, smoothed

__all__ = ["KEstimate", "estimate_categories"]

STEP = 1.12  # of the grid: neighbouring candidates differ by 12 %, or by one
ITERATIONS = 30
CHOICES = 4  # how often other known classes play novel
KEPT = 0.4  # share of the others' labels that stay
SAMPLE = 6000  # rows to cluster; so many are drawn from a larger set
# Chosen over data sets (docs/discover-benchmark.md)
NEARLY = 0.98  # of the silhouette's peak counts as the peak
TOO_FEW = math.exp(0.3)  # the scatter's guess is multiplied by this
LEAST_SILHOUETTE = 0.05  # of the peak: noise has 0.02, sketches of 50 kinds 0.1
MOST_APART = 2.2  # the ratio of the two criteria
MOST_RATIO = 2.0  # of the upper end of the range to the lower
ENOUGH = 2.5  # times the larger guess: the search stops there


@dataclass(frozen=True)
class KEstimate:
    """A number of categories, known and novel together, and how sure it is."""

    k: int
    low: int
    high: int  # at most twice `low`
    given: bool  # False: features do not separate, and k, low and high are a guess
    tried: dict[int, dict[str, float]] = field(repr=False)  # by k: "silhouette" and "scatter"

    @property
    def text(self) -> str:
        """The estimate in words.

        >>> KEstimate(9, 7, 12, True, {}).text, KEstimate(9, 9, 9, True, {}).text
        ('9, between 7 and 12', '9')
        >>> KEstimate(9, 5, 12, False, {}).text
        'no estimate; 9 is a guess'
        """
        if not self.given:
            return f"no estimate; {self.k:,} is a guess"
        return (
            f"{self.k:,}, between {self.low:,} and {self.high:,}" if self.low < self.high else f"{self.k:,}"
        )


@torch.no_grad()
def estimate_categories(
    features: Tensor,
    label: Tensor,
    known: int,
    *,
    low: int | None = None,
    high: int | None = None,
    seed: int = 0,
    say: Callable[[str], None] | None = None,
) -> KEstimate:
    """The number of categories in `features` (N, D); the first `known` have labelled rows.

    Args:
        label: (N,) int64, the class of a labelled row in 0 .. known - 1, or -1 for an unlabelled row.
        low: smallest number to try. Default: known, or 2.
        high: largest number to try. Default: the number of categories if each had half as
            many rows as the labelled part of a known class, at most a third of the rows.
        seed: for the first centres, the classes that play novel and the sample from large sets.
        say: called with a line about each step; None: silent.
    """
    say = say or (lambda _: None)
    low, high = _bounds(label, known, low, high)
    chosen = sample_of_rows(label, seed, SAMPLE)
    features, label = features[chosen], label[chosen]
    ends = low, max(low, min(high, len(label)))
    aims = []
    choices = list(_choices(label, known, seed))
    # In the directions of all rows: a scatter depends on how many there are.
    metric, *metrics = LabelMetric.fit_several(features, [label, *(own for own, _ in choices)])
    fixed = label >= 0
    for i, ((own, visible), theirs) in enumerate(zip(choices, metrics)):
        say(f"known classes that play novel: {i + 1} of {CHOICES}")
        aims.append(_Curve(theirs(features[fixed]), own[fixed], visible, seed).at(known).scatter)
    say(f"between {ends[0]:,} and {ends[1]:,} categories")
    curve = _Curve(metric(features), label, known, seed)
    aim = sum(aims) / len(aims) if aims else None
    guesses = _guesses(curve, aim, _grid(*ends))
    middle = sum(map(math.log, guesses)) / len(guesses)
    silhouette = max(point.silhouette for point in curve.points.values())
    apart = max(guesses) / min(guesses)
    k = min(max(round(math.exp(middle)), ends[0]), ends[1])
    low = max(1, round(math.exp(middle) / math.sqrt(MOST_RATIO)))
    high = min(math.floor(MOST_RATIO * low), math.ceil(math.exp(middle) * math.sqrt(MOST_RATIO)))
    return KEstimate(
        k=k,
        low=max(ends[0], min(k, low)),
        high=min(ends[1], max(k, high)),
        given=aim is not None and silhouette >= LEAST_SILHOUETTE and apart <= MOST_APART,
        tried={k: point.record() for k, point in sorted(curve.points.items())},
    )


@dataclass(frozen=True)
class _Point:
    """A clustering, judged: the silhouette of all smoothed rows and the scatter of the unlabelled ones."""

    silhouette: float
    scatter: float

    def record(self) -> dict[str, float]:
        return {"silhouette": round(self.silhouette, 5), "scatter": round(self.scatter, 5)}


class _Curve:
    """The clusterings of one labelling of rows, each made on first use."""

    def __init__(self, rows: Tensor, label: Tensor, known: int, seed: int) -> None:
        self._rows, self._smooth, self._free = rows, smoothed(rows), label < 0
        self._starts = Starts(self._smooth, label, known, restarts=1, seed=seed)
        self.points: dict[int, _Point] = {}

    def at(self, k: int) -> _Point:
        if k not in self.points:
            labels = self._starts.clusters(k, ITERATIONS).labels
            self.points[k] = _Point(
                _silhouette(self._smooth, labels, k),
                _scatter(self._rows[self._free], labels[self._free], k),
            )
        return self.points[k]


def _choices(label: Tensor, known: int, seed: int) -> Iterator[tuple[Tensor, int]]:
    """The labels (N,) that remain when known classes play novel, renumbered, and their number of classes.

    Half of the classes lose all labels, the others keep two in five.
    """
    if known < 2:
        return
    generator = torch.Generator().manual_seed(seed)
    rows = (label >= 0).nonzero()[:, 0].cpu()
    own = label.cpu()[rows]
    count = own.bincount(minlength=known)
    visible = known // 2
    for _ in range(CHOICES):
        number = torch.full((known,), -1)
        number[torch.randperm(known, generator=generator)[:visible]] = torch.arange(visible)
        # The rows of each class in a random order, by their place in it
        order = torch.randperm(len(rows), generator=generator)
        order = order[own[order].argsort(stable=True)]
        place = torch.arange(len(rows)) - (count.cumsum(0) - count)[own[order]]
        kept = order[place < (KEPT * count[own[order]]).round().clamp_min(1)]
        left = torch.full((len(label),), -1)
        left[rows[kept]] = number[own[kept]]
        yield left.to(label.device), visible


def _bounds(label: Tensor, known: int, low: int | None, high: int | None) -> tuple[int, int]:
    count, fixed = len(label), int((label >= 0).sum())
    least = max(known, 2) if low is None else low
    most = min(count // 3, math.ceil(2 * known * count / fixed) if fixed else count) if high is None else high
    if high is None:
        most = max(most, least)
    if not known <= least <= most:
        raise ValueError(
            f"low and high must be known = {known} <= low <= high, got {least} and {most}: no answer has "
            "fewer categories than there are known classes"
        )
    return least, most


def _grid(low: int, high: int) -> list[int]:
    """Whole numbers from `low` to `high`, both included, each about 12 % above the one before.

    >>> _grid(5, 20)
    [5, 6, 7, 8, 9, 10, 11, 13, 14, 16, 18, 20]
    """
    numbers = [low]
    value = float(low)
    while (value := max(value * STEP, value + 1)) < high:
        numbers.append(round(value))
    return sorted({*numbers, high})


def _guesses(curve: _Curve, aim: float | None, grid: list[int]) -> list[float]:
    """The silhouette's guess and, if there is an `aim`, the scatter's, times TOO_FEW.

    The search stops once it is beyond the peak and the aim.
    """
    silhouettes: dict[int, float] = {}
    scatters: dict[int, float] = {}
    for k in grid:
        point = curve.at(k)
        silhouettes[k], scatters[k] = point.silhouette, point.scatter
        peak = max(silhouettes, key=silhouettes.__getitem__)
        reached = aim is None or point.scatter <= aim
        crossing = grid[-1] if aim is None or not reached else _crossing(scatters, aim)
        if reached and k > ENOUGH * max(peak, 0 if aim is None else crossing):
            break
    first = min(k for k, value in silhouettes.items() if value >= NEARLY * silhouettes[peak])
    return [float(first)] if aim is None else [float(first), crossing * TOO_FEW]


def _crossing(scatters: dict[int, float], aim: float) -> float:
    """The k at which the scatter falls to `aim`; between two k it follows a line in the logarithm.

    >>> round(_crossing({4: 0.8, 8: 0.6, 16: 0.2}, 0.4), 1)
    11.3
    """
    before = None
    for k, value in scatters.items():
        if value <= aim:
            if before is None:
                return float(k)
            last, above = before
            return last * (k / last) ** ((above - aim) / (above - value))
        before = k, value
    raise AssertionError("the caller has seen a scatter that is no larger")


def _silhouette(points: Tensor, labels: Tensor, k: int) -> float:
    """The mean silhouette of rows in squared distance: exact, and linear in their number.

    The mean squared distance of a unit row x to the n rows of a cluster with mean m is 2 (1 - x m); to
    the other rows of its own cluster it is n / (n - 1) times that.
    """
    member = F.one_hot(labels, k).to(points.dtype)
    size = member.sum(0)
    means = (member.T @ points) / size.clamp_min(1)[:, None]
    distance = 1 - points @ means.T
    distance[:, size == 0] = torch.inf
    own, count = labels[:, None], size[labels]
    within = distance.gather(1, own)[:, 0] * count / (count - 1).clamp_min(1)
    nearest = distance.scatter(1, own, torch.inf).amin(1)
    value = (nearest - within) / torch.maximum(nearest, within)
    return value.where((count > 1) & value.isfinite(), torch.zeros_like(value)).double().mean().item()


def _scatter(points: Tensor, labels: Tensor, k: int) -> float:
    """The summed squared distance of rows from their cluster's mean, over (rows - clusters)."""
    member = F.one_hot(labels, k).to(points.dtype)
    size = member.sum(0)
    means = (member.T @ points) / size.clamp_min(1)[:, None]
    freedom = (size - 1).clamp_min(0).sum().item()
    return (points - means[labels]).square().sum().item() / max(freedom, 1.0)
