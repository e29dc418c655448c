"""The estimated number of categories, on planted features."""

import pytest
import torch

from eagc_ops.discovery import category_count as module
from eagc_ops.discovery.category_count import estimate_categories
from tests.support.planted import planted_categories


def test_the_range_holds_the_truth_where_categories_are_apart():
    features, label, _ = planted_categories(categories=12, known=6)
    estimate = estimate_categories(features, label, 6)
    assert estimate.given and estimate.low <= 12 <= estimate.high <= 2 * estimate.low
    assert abs(estimate.k - 12) <= 2


def test_features_without_structure_give_no_estimate():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(400, 32, generator=generator)
    label = torch.where(torch.arange(400) < 150, torch.arange(400) % 5, -1)
    estimate = estimate_categories(features, label, 5)
    assert not estimate.given and "no estimate" in estimate.text


def test_the_range_is_as_wide_as_promised_and_the_truth_is_near_the_estimate_in_most_draws():
    found = []
    for seed in range(4):
        features, label, _ = planted_categories(categories=9, known=5, spread=0.7, seed=seed)
        found.append(estimate_categories(features, label, 5, seed=seed))
    assert all(estimate.low < estimate.k < estimate.high <= 2 * estimate.low for estimate in found)
    assert sum(estimate.low <= 9 <= estimate.high for estimate in found) >= 3


def test_criteria_that_disagree_give_no_estimate(monkeypatch):
    monkeypatch.setattr(module, "_guesses", lambda curve, *_: [curve.at(6) and 6.0, 14.0])
    features, label, _ = planted_categories(categories=12, known=6)
    assert not estimate_categories(features, label, 6).given
    monkeypatch.setattr(module, "_guesses", lambda curve, *_: [curve.at(6) and 9.0, 14.0])
    assert estimate_categories(features, label, 6).given


def test_of_a_long_plateau_of_the_silhouette_the_first_number_counts():
    class Curve:
        def at(self, k):
            return module._Point(min(0.5, k / 20) + k / 5000, 10 / k)

    first, crossing = module._guesses(Curve(), 1.0, list(range(2, 41)))
    assert first == 10 and crossing == pytest.approx(10 * module.TOO_FEW)


def test_bounds_are_kept():
    features, label, _ = planted_categories(categories=12, known=6)
    estimate = estimate_categories(features, label, 6, low=7, high=9)
    assert 7 <= estimate.low <= estimate.k <= estimate.high <= 9
    assert set(estimate.tried) <= set(range(7, 10))


def test_same_seed_same_estimate_and_another_order_of_rows_nearly_so():
    features, label, _ = planted_categories(categories=12, known=6)
    once, again = (estimate_categories(features, label, 6, seed=3) for _ in range(2))
    assert once == again and once.tried == again.tried
    order = torch.randperm(len(label), generator=torch.Generator().manual_seed(1))
    assert abs(estimate_categories(features[order], label[order], 6, seed=3).k - once.k) <= 2


@pytest.mark.parametrize(("low", "high"), [(5, 9), (9, 8), (None, 5)])
def test_impossible_bounds_are_refused(low, high):
    features, label, _ = planted_categories(categories=12, known=6)
    with pytest.raises(ValueError, match="low and high"):
        estimate_categories(features, label, 6, low=low, high=high)


def test_one_known_class_gives_a_guess():
    features, label, _ = planted_categories(categories=6, known=1)
    estimate = estimate_categories(features, label, 1)
    assert not estimate.given and estimate.k >= 2
