"""Several paired comparisons: a bootstrap interval for each, and p-values corrected for their number."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

from eagc_ops.training.analysis.paired import CONFIDENCE

__all__ = ["bootstrap_interval", "holm"]

_RESAMPLES = 9999
_ALL = 6  # differences up to which all n^n resamples are counted


def bootstrap_interval(differences: Sequence[float]) -> tuple[float, float]:
    """The 95 % percentile bootstrap interval of the mean; NaN for fewer than two differences.

    Up to six differences all resamples are counted; of more, 9,999 are drawn with a fixed seed. With few
    differences it is too narrow: of normally distributed ones, it covers the mean in 84 % of cases for 5 and
    in 90 % for 10.

    >>> low, high = bootstrap_interval([1.0, 2.0, 3.0, 4.0])
    >>> 1.0 < low < 2.0 < 3.0 < high < 4.0
    True
    """
    values = np.asarray(differences, np.float64)
    if len(values) < 2:
        return math.nan, math.nan
    n = len(values)
    if n <= _ALL:
        means = values[np.indices((n,) * n).reshape(n, -1)].mean(0).round(9)  # equal on paper: the last bits
        ends = (1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2
        low, high = np.quantile(means, ends, method="inverted_cdf")
        return float(low), float(high)
    found = stats.bootstrap(
        (values,),
        np.mean,
        n_resamples=_RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        random_state=np.random.default_rng(0),
    )
    low, high = found.confidence_interval
    return float(low), float(high)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected by Holm's method: the smallest times n, the next times n - 1, and so on; at most 1.

    A NaN stands for a comparison that is planned and not done. It counts in n, and stays NaN.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    adjusted, largest = [math.nan] * len(p_values), 0.0
    done = [i for i, p in enumerate(p_values) if not math.isnan(p)]
    for rank, i in enumerate(sorted(done, key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted
