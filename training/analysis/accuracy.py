"""Accuracy on the unlabelled set: All, Old and New by one optimal matching of clusters to classes, and what
becomes of known and novel images without it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import linear_sum_assignment

__all__ = ["Accuracy", "Naming", "accuracy", "class_accuracy", "naming", "wilson"]


class Accuracy(NamedTuple):
    """Shares in [0, 1]: `old` of images of known classes, `new` of the others; NaN if there are none."""

    all: float
    old: float
    new: float


class Naming(NamedTuple):
    """What clusters say by their numbers: the first are those of the known classes, and have their names."""

    own: float  # share of the images of known classes that are in their own class's cluster
    known: float  # share of the images of novel classes that are in some known class's cluster
    taken: int  # known classes whose cluster the matching of `accuracy` gives to a novel class


def accuracy(predictions: ArrayLike, labels: ArrayLike, known: int) -> Accuracy:
    """Accuracy "v2", the one that papers report.

    `predictions` and re-indexed `labels`: (N,) integers (arrays, CPU tensors).

    There is one matching over all images: a cluster matched to a new class earns nothing for old images. With
    U split into old and new by true class, |U| all = |U_old| old + |U_new| new.

    >>> accuracy([0] * 10, [0] * 6 + [1] * 4, known=1)
    Accuracy(all=0.6, old=1.0, new=0.0)
    """
    counts, _, matched = _matching(predictions, labels, known)
    return _accuracy(matched, counts.sum(0), known)


def class_accuracy(predictions: ArrayLike, labels: ArrayLike, known: int) -> Accuracy:
    """Accuracy "v2b": the matching of `accuracy`, and unweighted means over the accuracies of the classes.

    Small classes count as much as large ones. Only classes with an image count.

    >>> class_accuracy([0] * 10, [0] * 6 + [1] * 4, known=1)
    Accuracy(all=0.5, old=1.0, new=0.0)
    """
    counts, _, matched = _matching(predictions, labels, known)
    total = counts.sum(0)
    of_class = np.divide(matched, total, out=np.zeros(len(total)), where=total > 0)
    return _accuracy(of_class, total > 0, known)


def naming(predictions: ArrayLike, labels: ArrayLike, known: int) -> Naming:
    """Whether images have the names that they should: shares in [0, 1], NaN if there are no such images.

    `predictions` and re-indexed `labels`: (N,) integers. A novel class that joins the cluster of a smaller
    known one takes it: images of the known class in it do not count in Old, though their name is right.

    >>> naming([0] * 10, [0] * 4 + [1] * 6, known=1)
    Naming(own=1.0, known=1.0, taken=1)
    >>> accuracy([0] * 10, [0] * 4 + [1] * 6, known=1)
    Accuracy(all=0.6, old=0.0, new=1.0)
    """
    counts, cluster, matched = _matching(predictions, labels, known)
    old, new = counts[:, :known], counts[:, known:]
    # The matching also gives clusters to novel classes of which there is no image in them.
    taken = (cluster[known:] < known) & (matched[known:] > 0)
    return Naming(_ratio(np.trace(old), old.sum()), _ratio(new[:known].sum(), new.sum()), int(taken.sum()))


def _accuracy(right: np.ndarray, total: np.ndarray, known: int) -> Accuracy:
    """The shares of `right` in `total`, both (classes,), of all classes, of the known and of the others."""
    parts = (slice(None), slice(known), slice(known, None))
    return Accuracy(*(_ratio(right[part].sum(), total[part].sum()) for part in parts))


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole else float("nan")


def _matching(
    predictions: ArrayLike, labels: ArrayLike, known: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images by cluster and class (size, size), the cluster matched to every class, and its images in it."""
    c, y = _vector("predictions", predictions), _vector("labels", labels)
    if len(c) != len(y) or len(y) == 0:
        raise ValueError(f"predictions and labels must have the same length >= 1, got {len(c)} and {len(y)}")
    if known < 0:
        raise ValueError(f"known, the number of known classes, must be >= 0, got {known}")
    # The matrix is square, because there may be more or fewer clusters than classes.
    size = int(max(c.max(), y.max())) + 1
    counts = np.bincount(c * size + y, minlength=size * size).reshape(size, size)
    _, classes = linear_sum_assignment(counts.max() - counts)  # the class of every cluster
    cluster = np.argsort(classes)
    return counts, cluster, counts[cluster, np.arange(size)]


def _vector(name: str, values: ArrayLike) -> np.ndarray:
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iu" or (array.size and array.min() < 0):
        raise ValueError(
            f"{name} must be a vector of integers >= 0, got shape {array.shape}, dtype {array.dtype}"
        )
    return array.astype(np.int64)


def wilson(right: int, count: int) -> tuple[float, float]:
    """The Wilson interval, at 95 %, of a share of which `right` of `count` independent cases are counted.

    It stays inside [0, 1], and is honest for few cases and for shares near 0 and 1.

    >>> [round(end, 3) for end in wilson(12, 12)]
    [0.758, 1.0]
    """
    from scipy.stats import binomtest  # takes a moment to import

    low, high = binomtest(right, count).proportion_ci(0.95, "wilson")
    return float(low), float(high)
