"""Estimate the number of classes K as GCD does: by the k-means that agrees best with the known labels.

Features are those of the pretrained backbone; the labelled images are those of the data set's own split (SSB
where it has one).

GCD starts every k-means afresh, ten times for each candidate K, and spends most of the time on k-means++. But
k-means++ draws one center after the other, so its first K centers are those of a smaller K. Here a few orders
of centers are drawn once, and every candidate starts from the first K of each.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from sklearn.cluster import KMeans
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from eagc_ops.app.console import progress_bar
from eagc_ops.training.analysis.accuracy import accuracy
from eagc_ops.training.methods.clustering import kmeans_plus_plus

__all__ = ["LARGEST", "SEARCHES", "Estimate", "estimate_k", "largest_k"]

# The published search. scikit-learn's default number of restarts has changed from 10 to 1.
LARGEST, RESTARTS = 1000, 10
# Restarts x N x D x largest K that a search may cost: chosen for a minute or two on two cores. Large data
# sets get fewer restarts, but no fewer than LEAST.
BUDGET, LEAST = 25e9, 3


class Estimate(NamedTuple):
    """The result of a search."""

    k: int
    accuracy: float  # of the labelled images at this K
    tried: dict[int, float]  # the accuracy of every K that was tried


def estimate_k(
    features: Tensor,
    label: Tensor,
    known: int,
    *,
    search: Literal["brent", "bisection"] = "brent",
    largest: int | None = None,
    restarts: int | None = None,
    published: bool = False,
    seed: int = 0,
    progress: bool = False,
) -> Estimate:
    """The number of classes in `features` (N, D), known and novel together.

    A candidate K is judged by k-means on all rows, the restart with the lowest inertia: the accuracy of the
    labelled rows under the best matching of clusters to classes. Rows are normalised here.

    Args:
        label: (N,) int64, class of the labelled rows in 0 .. known - 1, -1 on the others.
        known: number of known classes.
        search: "brent", scipy's bounded search on int(x), or "bisection". Neither tries every K, and the
            accuracy is not a smooth function of K: both find a good K, which need not be the best.
        largest: end of the search range, which starts at known; at most the number of rows. Default:
            `largest_k`, or 1,000 if `published`.
        restarts: k-means per candidate. Default: 10, or fewer (at least 3) if N x D is large.
        published: GCD's own search: every k-means starts afresh, 10 of up to 300 iterations (not 30) per
            candidate, K up to 1,000. It takes ten times as long and more.
        seed: of the first centers.
        progress: say how much there is to do, and show a bar with the time that remains.
    """
    labelled = (label >= 0).cpu()
    if features.ndim != 2 or label.shape != features.shape[:1]:
        raise ValueError(
            f"features must be (N, D) and label (N,), got {tuple(features.shape)} and {tuple(label.shape)}"
        )
    if not labelled.any() or label.max() >= known:
        raise ValueError(
            f"label must hold a class below known={known} on labelled rows, -1 on the others, "
            f"got {label.unique().tolist()[:9]}"
        )
    if search not in SEARCHES:
        raise ValueError(f"search must be one of {', '.join(SEARCHES)}, got {search!r}")
    if restarts is not None and restarts < 1:
        raise ValueError(f"restarts must be >= 1, got {restarts}")
    if largest is None:
        largest = LARGEST if published else largest_k(label, known)
    largest = min(largest, len(features))
    if largest <= known:
        raise ValueError(
            f"largest, capped at the number of rows, must be > {known}, the number of known classes, "
            f"got {largest}"
        )
    if restarts is None:
        affordable = int(BUDGET / (features.numel() * largest))
        restarts = RESTARTS if published else min(RESTARTS, max(LEAST, affordable))
    points, truth, tried = F.normalize(features.float(), dim=1).cpu(), label.cpu()[labelled], {}
    kmeans = _Published(points, restarts, seed) if published else _Shared(points, restarts, seed, largest)
    # A golden section leaves 0.618 of the range; the last steps are whole numbers that were tried before.
    candidates = math.ceil(math.log(largest - known + 1, (1 + math.sqrt(5)) / 2)) + 2
    total = candidates * restarts
    with progress_bar(total=total, desc=f"K in {known} .. {largest}", unit="k-means", shown=progress) as bar:
        if progress:
            bar.write(
                f"K in {known:,} .. {largest:,}: about {candidates} candidates, each judged by {restarts} "
                f"k-means of at most {kmeans.iterations} iterations on {len(points):,} x {points.shape[1]} "
                "features"
            )

        @functools.cache
        def score(k: int) -> float:
            clusters = kmeans.clusters(k, lambda count: _advance(bar, count))
            tried[k] = accuracy(clusters[labelled.numpy()], truth, known).all
            bar.set_postfix_str(f"K={k}: {tried[k]:.1%}")
            return tried[k]

        k = SEARCHES[search](score, known, largest)
        bar.total = bar.n
    if k >= largest - 1 and largest < len(points):
        warnings.warn(f"K = {k} is the end of the range: search again with a larger `largest`", stacklevel=2)
    return Estimate(k, tried[k], tried)


def largest_k(label: Tensor, known: int) -> int:
    """The largest K that is tried: 1,000 as published, but less if the images are few.

    With N images and n labelled ones of each known class, N / n classes would all be as large as the labelled
    part of a known one. Twice as many are allowed.

    >>> largest_k(torch.tensor([0, 0, 1, 1, -1, -1, -1, -1]), known=2)  # 8 images, 2 labelled ones per class
    8
    """
    count = int((label >= 0).sum())
    return min(len(label), max(LARGEST, 2 * known), math.ceil(2 * known * len(label) / count))


class _Shared:
    """k-means of all candidates from the same first centers."""

    iterations = 30

    def __init__(self, points: Tensor, restarts: int, seed: int, largest: int) -> None:
        self._points = points
        self._trials = 2 + int(math.log(largest))  # as scikit-learn does
        self._generators = [torch.Generator().manual_seed(seed * restarts + i) for i in range(restarts)]
        self._first = [points[:0]] * restarts

    def clusters(self, k: int, done: Callable[[int], None]) -> np.ndarray:
        """The cluster of every row (N,), from the restart with the lowest inertia; `done` counts restarts."""
        best: Any = None
        for i, generator in enumerate(self._generators):
            drawn = self._first[i]
            if k > len(drawn):
                more = kmeans_plus_plus(self._points, drawn, k - len(drawn), generator, self._trials)
                self._first[i] = drawn = torch.cat([drawn, more])
            model = KMeans(k, init=drawn[:k].numpy(), n_init=1, max_iter=self.iterations)
            model.fit(self._points.numpy())
            best = model if best is None or model.inertia_ < best.inertia_ else best
            done(1)
        return best.labels_


class _Published:
    """GCD's k-means."""

    iterations = 300

    def __init__(self, points: Tensor, restarts: int, seed: int) -> None:
        self._points, self._restarts, self._seed = points.numpy(), restarts, seed

    def clusters(self, k: int, done: Callable[[int], None]) -> np.ndarray:
        """As `_Shared.clusters`."""
        labels = KMeans(k, n_init=self._restarts, random_state=self._seed).fit_predict(self._points)
        done(self._restarts)
        return labels


def _advance(bar: tqdm, count: int) -> None:
    bar.total = max(bar.total, bar.n + count)
    bar.update(count)


def _brent(score: Callable[[int], float], smallest: int, largest: int) -> int:
    return int(minimize_scalar(lambda x: -score(int(x)), bounds=(smallest, largest), method="bounded").x)


def _bisection(score: Callable[[int], float], small: int, big: int) -> int:
    """Drop the half with the worse end; the result is the best of the last three."""
    for _ in range(int(math.log2(big - small))):
        middle = int(small + (big - small) / 2)
        small, big = (middle, big) if score(big) > score(small) else (small, middle)
    return max((small, int(small + (big - small) / 2), big), key=score)


SEARCHES = {"brent": _brent, "bisection": _bisection}
