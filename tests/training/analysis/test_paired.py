"""Paired differences against scipy's own interval and permutation test."""

import math

import numpy as np
import pytest
from scipy import stats

from eagc_ops.training.analysis.paired import paired_difference


@pytest.mark.parametrize("n", [2, 5, 12])
def test_interval_and_p_value_are_those_of_scipy(n):
    random = np.random.default_rng(n)
    base = random.normal(60, 5, n)
    ours = base + random.normal(1, 2, n)
    found = paired_difference(list(ours), list(base))
    t = stats.ttest_rel(ours, base).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((t.low, t.high))
    assert found.mean == pytest.approx((ours - base).mean())
    exact = stats.permutation_test((ours - base,), np.mean, permutation_type="samples", n_resamples=np.inf)
    assert found.p == pytest.approx(exact.pvalue)
    assert found.n == n
    np.testing.assert_allclose(found.differences, ours - base)


def test_many_pairs_are_sampled_near_the_exact_value():
    random = np.random.default_rng(3)
    differences = random.normal(0.4, 1, 40)
    found = paired_difference(differences, np.zeros(40))
    assert found.p == pytest.approx(stats.ttest_1samp(differences, 0).pvalue, rel=0.15)
    assert found == paired_difference(differences, np.zeros(40))  # a fixed seed
    assert 0 < paired_difference(np.ones(40), np.zeros(40)).p < 1e-4


def test_equal_differences_of_five_seeds_cannot_be_more_certain_than_one_in_sixteen():
    found = paired_difference([0.3, 0.5, 0.7, 0.2, 0.9], [0.2, 0.4, 0.6, 0.1, 0.8])  # 0.1, but for rounding
    assert found.p == 2 / 2**5
    assert found.clear
    assert (found.low, found.high) == pytest.approx((0.1, 0.1))
    assert not paired_difference([1.0, -1.0], [0.0, 0.0]).clear


def test_one_pair_none_and_missing_values():
    one = paired_difference([0.5, math.nan, 0.7], [0.4, 0.3, math.nan])
    assert (one.n, one.mean, one.p) == (1, pytest.approx(0.1), 1.0)
    assert math.isnan(one.low) and math.isnan(one.high) and not one.clear
    none = paired_difference([math.nan], [1.0])
    assert (none.n, none.differences) == (0, ())
    assert math.isnan(none.mean) and math.isnan(none.p)
    with pytest.raises(ValueError, match="the same length, a pair for each seed, got 2 and 1"):
        paired_difference([1.0, 2.0], [1.0])


def test_ties_on_paper_are_ties_whatever_the_last_bits_say():
    # 0.1 + 0.1 + 0.2 - 0.2 is one of 12 of the 16 sums that are at least 0.2 away from 0.
    assert paired_difference([0.1, 0.1, 0.2, -0.2], [0.0] * 4).p == 0.75
    # Images that one run has right and the other has not: they sum to 0, so every way is as far from it.
    images = [40, -18, 6, 14, -38, -12, 22, -16, -1, 3]
    right = [1250 + 3 * seed for seed in range(10)]
    ours = [100 * (count + more) / 1650 for count, more in zip(right, images)]
    base = [100 * count / 1650 for count in right]
    assert paired_difference(ours, base).p == 1
    # As a table has them that keeps ten digits.
    short = [[float(f"{value:.10g}") for value in values] for values in (ours, base)]
    assert paired_difference(*short).p == 1
