"""Estimate the number of classes K as GCD does: by the k-means that agrees best with the known labels.

Features are those of the pretrained backbone; the labelled images are those of the data set's own split (SSB
where it has one).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from scipy.optimize import minimize_scalar
from sklearn.cluster import KMeans
from torch import Tensor
from torch.nn import functional as F

from eagc_ops.encoder import AnchoredEncoder
from eagc_ops.training.analysis.accuracy import accuracy
from eagc_ops.training.data.batches import Batches
from eagc_ops.training.progress import bar as progress_bar

__all__ = ["LARGEST", "RESTARTS", "SEARCHES", "Estimate", "all_features", "estimate_k"]

# The published search. scikit-learn's default number of restarts has changed from 10 to 1.
LARGEST, RESTARTS = 1000, 10


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
    largest: int = LARGEST,
    restarts: int = RESTARTS,
    progress: bool = False,
) -> Estimate:
    """The number of classes in `features` (N, D), known and novel together.

    A candidate K is judged by k-means on all rows (scikit-learn, `restarts` times, random_state 0): the
    accuracy of the labelled rows under the best matching of clusters to classes. Rows are normalised here.

    Args:
        label: (N,) int64, class of the labelled rows in 0 .. known - 1, -1 on the others.
        known: number of known classes.
        search: "brent", scipy's bounded search on int(x), or "bisection". Neither tries every K, and the
            accuracy is not a smooth function of K: both find a good K, which need not be the best.
        largest: end of the search range, which starts at known; at most the number of rows.
        restarts: number of restarts of every k-means.
        progress: show a bar.
    """
    labelled, largest = (label >= 0).cpu(), min(largest, len(features))
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
    if largest <= known:
        raise ValueError(
            f"largest, capped at the number of rows, must be > {known}, the number of known classes, "
            f"got {largest}"
        )
    points, truth, tried = F.normalize(features.float(), dim=1).cpu().numpy(), label.cpu()[labelled], {}
    with progress_bar(desc=f"K in {known} .. {largest}", unit="k-means", shown=progress) as bar:

        @functools.cache
        def score(k: int) -> float:
            clusters = KMeans(k, n_init=restarts, random_state=0).fit_predict(points)
            tried[k] = accuracy(clusters[labelled.numpy()], truth, known).all
            bar.set_postfix_str(f"K={k}: {tried[k]:.1%}")
            bar.update()
            return tried[k]

        k = SEARCHES[search](score, known, largest)
    return Estimate(k, tried[k], tried)


def _brent(score: Callable[[int], float], smallest: int, largest: int) -> int:
    return int(minimize_scalar(lambda x: -score(int(x)), bounds=(smallest, largest), method="bounded").x)


def _bisection(score: Callable[[int], float], small: int, big: int) -> int:
    """Drop the half with the worse end; the result is the best of the last three."""
    for _ in range(int(math.log2(big - small))):
        middle = int(small + (big - small) / 2)
        small, big = (middle, big) if score(big) > score(small) else (small, middle)
    return max((small, int(small + (big - small) / 2), big), key=score)


SEARCHES = {"brent": _brent, "bisection": _bisection}


@torch.no_grad()
def all_features(encoder: AnchoredEncoder, batches: Batches) -> tuple[Tensor, Tensor]:
    """z (N, D) of labelled, then unlabelled images (test transform), and label (N,), -1 if unlabelled."""
    device, z, label = next(encoder.parameters()).device, [], []
    for part in (batches.labelled(), batches.unlabelled()):
        for batch in part:
            z.append(encoder.student(encoder.trunk(batch.views[0].to(device, non_blocking=True))).float())
            label.append(batch.label.where(batch.mask, -1))
    return torch.cat(z), torch.cat(label)
