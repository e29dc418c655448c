"""Soft k-means with weights and clusters from smaller ones: formulas, and categories that differ in size."""

import pytest
import torch
from torch.nn import functional as F

from eagc_ops.training.analysis import unequal_kmeans as module
from eagc_ops.training.analysis.accuracy import accuracy
from eagc_ops.training.analysis.constrained_kmeans import constrained_kmeans, mean_directions
from eagc_ops.training.analysis.unequal_kmeans import merged, softened
from tests.support.planted import unequal_categories


@pytest.fixture(scope="module")
def unequal():
    features, label, category = unequal_categories()
    return F.normalize(features, dim=1), label, category


@pytest.mark.parametrize("weighed", [False, True])
def test_soft_centres_are_means_weighted_by_probabilities_and_labels_count_for_their_class_alone(
    weighed, monkeypatch
):
    monkeypatch.setattr(module, "ITERATIONS", 2)
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 7)
    generator = torch.Generator().manual_seed(0)
    points = F.normalize(torch.randn(30, 4, generator=generator), dim=1)
    label = torch.where(torch.arange(30) < 6, torch.arange(30) % 2, -1)
    centres, share = points[:3], torch.full((3,), 1 / 3)
    for _ in range(2):
        weights = share * (points @ centres.T / 0.07).exp()
        weights /= weights.sum(1, keepdim=True)
        if weighed:
            share = (weights[6:].sum(0) + 1) / (24 + 3)
        weights[:6] = torch.eye(3)[label[:6]]
        centres = F.normalize(weights.T @ points, dim=1)
    found = softened(points, label, points[:3], weighed=weighed)
    torch.testing.assert_close(found.centres, centres)
    scores = share * (points @ centres.T / 0.07).exp()
    assert torch.equal(found.labels[6:], scores.argmax(1)[6:])
    assert torch.equal(found.labels[:6], label[:6])
    constant = 1 if weighed else 1 / 3
    assert found.likelihood == pytest.approx((scores[6:] / constant).sum(1).log().mean().item(), abs=1e-4)


def test_large_categories_stay_whole_where_k_means_cuts_them(unequal):
    points, label, category = unequal
    free = label < 0
    equal = constrained_kmeans(points, label, 8, 4)
    found = softened(points, label, merged(points, label, 8, 4), weighed=True)
    assert accuracy(found.labels[free], category[free], 4).all > 0.95
    assert accuracy(equal.labels[free], category[free], 4).all < 0.85
    start = softened(points, label, equal.centres, weighed=True)
    assert found.likelihood > start.likelihood, "what tells them apart without the truth"


def test_known_classes_are_never_merged_with_one_another():
    """Two known classes lie together, three new ones far from them."""
    generator = torch.Generator().manual_seed(0)
    means = torch.eye(6)
    means[1] = means[0]
    category = torch.arange(5).repeat_interleave(20)
    points = F.normalize(means[category] + 0.05 * torch.randn(100, 6, generator=generator), dim=1)
    label = torch.where((torch.arange(100) % 20 < 10) & (category < 2), category, -1)
    centres = merged(points, label, 5, 2)
    own, _ = mean_directions(points, label, 2)
    assert centres.shape == (5, 6)
    assert (centres[:2] * own).sum(1).min() > 0.95, "the first ones are those of the known classes"
    assert (centres[2:] @ means[2:5].T).amax(0).min() > 0.95, "no new one had to make room"


def test_rows_that_are_alike_leave_no_centre_without_length():
    points = F.normalize(torch.ones(12, 3), dim=1)
    centres = merged(points, torch.full((12,), -1), 4, 0)
    torch.testing.assert_close(centres.norm(dim=1), torch.ones(4))
