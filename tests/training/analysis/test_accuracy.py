"""Clustering accuracy: published vectors, brute force over all matchings, identity of All, Old and New."""

import doctest
import itertools
import math

import numpy as np
import pytest
import torch

from eagc_ops.training.analysis import accuracy as evaluation
from eagc_ops.training.analysis.accuracy import Naming, accuracy, class_accuracy, naming

Y = [int(c) for c in "0000111223333344"]
C = [int(c) for c in "1112002224442243"]


@pytest.mark.parametrize(
    ("c", "y", "known", "expected"),
    [
        (C, Y, 3, (0.6875, 0.777778, 0.571429)),
        # separate matchings would call this collapse perfect
        ([0] * 10, [0] * 6 + [1] * 4, 1, (0.6, 1.0, 0.0)),
        ([min(c, 2) for c in C], Y, 3, (0.625, 0.555556, 0.714286)),  # fewer clusters than classes
        ([6 if i % 5 == 0 else c for i, c in enumerate(C)], Y, 3, (0.5, 0.555556, 0.428571)),  # more
    ],
)
def test_published_vectors(c, y, known, expected):
    assert accuracy(c, y, known) == pytest.approx(expected, abs=1e-6)
    assert (
        accuracy(torch.tensor(c), torch.tensor(y), known)
        == accuracy(np.array(c), np.array(y), known)
        == accuracy(c, y, known)
    )


def test_published_vector_of_the_mean_over_classes():
    assert class_accuracy(C, Y, 3) == pytest.approx((0.703333, 0.805556, 0.55), abs=1e-6)
    shifted = [y + (y >= 2) for y in Y]  # class 2 has no image, and does not count
    assert class_accuracy(C, shifted, 4) == pytest.approx((0.703333, 0.805556, 0.55), abs=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_against_all_matchings_and_the_sum_rule(seed):
    rng = np.random.RandomState(seed)
    classes, clusters, known = rng.randint(2, 6), rng.randint(1, 7), 2
    y, c = np.r_[np.arange(classes), rng.randint(classes, size=40)], rng.randint(clusters, size=40 + classes)
    size = max(classes, clusters)
    best = max(sum(p[a] == b for a, b in zip(c, y)) for p in itertools.permutations(range(size)))
    found = accuracy(c, y, known)
    assert found.all == pytest.approx(best / len(y))
    old = int((y < known).sum())
    new = len(y) - old
    assert len(y) * found.all == pytest.approx(old * found.old + (new * found.new if new else 0))
    optimal = []  # Old and New belong to one of the optimal matchings
    for p in itertools.permutations(range(size)):
        right = np.array(p)[c] == y
        if right.sum() == best:
            optimal.append(right[y < known].mean())
    assert any(share == pytest.approx(found.old) for share in optimal)


@pytest.mark.parametrize("seed", range(20))
def test_names_need_no_matching(seed):
    """Own names are Old if every known class keeps its cluster; renaming novel clusters changes nothing."""
    rng = np.random.RandomState(seed)
    known, classes = 3, 6
    y = np.repeat(np.arange(classes), 10)
    c = np.where(
        rng.rand(len(y)) < 0.8, y, rng.randint(classes, size=len(y))
    )  # more than 8 of 10 are right in the mean
    found = naming(c, y, known)
    assert found == Naming((c == y)[y < known].mean(), (c < known)[y >= known].mean(), 0)
    assert found.own == pytest.approx(accuracy(c, y, known).old)
    others = np.r_[:known, known + rng.permutation(classes - known)]
    assert naming(others[c], y, known) == found
    shifted = np.r_[1:known, 0, known:classes]
    assert naming(shifted[c], y, known).own < 0.5  # names matter, as in no accuracy by matching
    assert accuracy(shifted[c], y, known) == accuracy(c, y, known)


def test_a_novel_class_takes_the_cluster_of_a_smaller_known_one():
    y = np.repeat([0, 1, 2, 3], [4, 6, 6, 6])
    c = np.where(y == 3, 0, y)  # class 3 joins class 0
    assert naming(c, y, 2) == (1.0, 0.5, 1)
    assert accuracy(c, y, 2).old == 0.6
    assert naming(c[y != 0], y[y != 0], 2) == (1.0, 0.5, 1)  # also a cluster without images of its class
    assert naming(np.where(y == 3, 2, y), y, 2) == (1.0, 0.0, 0)
    assert math.isnan(naming([4, 5], [4, 5], 3).own)
    assert math.isnan(naming([0, 1], [0, 1], 3).known)
    assert naming([0, 2], [0, 3], 2).taken == 0
    assert naming([1, 1, 1], [0, 0, 1], 1).taken == 0  # class 1 is matched to the empty cluster 0


def test_classes_that_do_not_occur_are_not_counted():
    only_new = accuracy([0, 1], [4, 5], known=3)
    assert (only_new.all, only_new.new) == (1.0, 1.0)
    assert math.isnan(only_new.old)


@pytest.mark.parametrize(
    ("c", "y", "message"),
    [
        ([0, 1], [0], "got 2 and 1"),
        (np.zeros(0, int), np.zeros(0, int), "got 0 and 0"),
        ([0.5], [0], "predictions must be a vector of integers"),
        ([[0]], [0], r"shape \(1, 1\)"),
        ([0], [-1], "labels must be a vector of integers >= 0"),
    ],
)
def test_errors(c, y, message):
    with pytest.raises(ValueError, match=message):
        accuracy(c, y, 1)


def test_examples_of_the_documentation():
    result = doctest.testmod(evaluation)
    assert (result.attempted > 0, result.failed) == (True, 0)
