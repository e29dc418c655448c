"""Clustering accuracy on the unlabelled set: one optimal matching of clusters to classes; All, Old, New."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import linear_sum_assignment

__all__ = ["Accuracy", "accuracy"]


class Accuracy(NamedTuple):
    """Shares in [0, 1]: `old` of images of known classes, `new` of the others; NaN if there are none."""

    all: float
    old: float
    new: float


def accuracy(predictions: ArrayLike, labels: ArrayLike, known: int) -> Accuracy:
    """Accuracy "v2", the one that papers report.

    `predictions` and re-indexed `labels`: (N,) integers (arrays, CPU tensors).

    There is one matching over all images: a cluster matched to a new class earns nothing for old images. With
    U split into old and new by true class, |U| all = |U_old| old + |U_new| new.

    >>> accuracy([0] * 10, [0] * 6 + [1] * 4, known=1)
    Accuracy(all=0.6, old=1.0, new=0.0)
    """
    matched, total = _matched(predictions, labels, known)
    parts = (slice(None), slice(known), slice(known, None))
    return Accuracy(*(_ratio(matched[part].sum(), total[part].sum()) for part in parts))


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole else float("nan")


def _matched(predictions: ArrayLike, labels: ArrayLike, known: int) -> tuple[np.ndarray, np.ndarray]:
    """Per true class: its images in the cluster matched to it, and all its images."""
    c, y = _vector("predictions", predictions), _vector("labels", labels)
    if len(c) != len(y) or len(y) == 0:
        raise ValueError(f"predictions and labels must have the same length >= 1, got {len(c)} and {len(y)}")
    if known < 0:
        raise ValueError(f"known, the number of known classes, must be >= 0, got {known}")
    # The matrix is square, because there may be more or fewer clusters than classes.
    size = int(max(c.max(), y.max())) + 1
    counts = np.bincount(c * size + y, minlength=size * size).reshape(size, size)
    clusters, classes = linear_sum_assignment(counts.max() - counts)
    matched = np.empty(size, np.int64)
    matched[classes] = counts[clusters, classes]
    return matched, counts.sum(0)


def _vector(name: str, values: ArrayLike) -> np.ndarray:
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iu" or (array.size and array.min() < 0):
        raise ValueError(
            f"{name} must be a vector of integers >= 0, got shape {array.shape}, dtype {array.dtype}"
        )
    return array.astype(np.int64)
