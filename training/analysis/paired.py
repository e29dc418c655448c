"""Paired differences: two configurations over the same seeds, with an interval and an exact test.

numpy and scipy are imported by what needs them: command lines that ask for too few seeds are refused at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np

__all__ = ["CONFIDENCE", "Paired", "paired_difference", "smallest_p"]

CONFIDENCE = 0.95
_EXACT = 16  # pairs up to which all sign flips are counted; more are sampled
_SAMPLES = 2**_EXACT


class Paired(NamedTuple):
    """The mean of the differences, its confidence interval, and the p-value of "there is no difference".

    `low` and `high` are NaN for fewer than two pairs, `mean` and `p` for none.
    """

    mean: float
    low: float
    high: float
    n: int  # pairs that have both values
    p: float  # two-sided, by sign flips; at least `smallest_p(n)`
    differences: tuple[float, ...]  # ours - base, pair by pair

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low > 0 or self.high < 0


def paired_difference(ours: Sequence[float], base: Sequence[float]) -> Paired:
    """The mean of `ours[i] - base[i]`, where pair i shares seed, data and draws.

    Pairs in which a value is NaN are left out. The interval is Student's t-interval of the mean, at 95 %: it
    takes the differences as normally distributed. The p-value does not: it is the share of the 2^n ways to
    flip signs of the differences that give a mean at least as far from 0 (2^16 random ways for more than 16
    pairs, drawn with a fixed seed). With 5 pairs it cannot be below 0.0625, however large the difference.

    >>> result = paired_difference([0.62, 0.65, 0.70, 0.66], [0.60, 0.61, 0.65, 0.65])
    >>> print(f"{result.mean:+.3f} [{result.low:+.3f}, {result.high:+.3f}], p = {result.p}")
    +0.030 [+0.001, +0.059], p = 0.125
    """
    import numpy as np
    from scipy import stats

    if len(ours) != len(base):
        raise ValueError(
            f"ours and base must have the same length, a pair for each seed, got {len(ours)} and {len(base)}"
        )
    pairs = np.asarray(ours, np.float64) - np.asarray(base, np.float64)
    differences = pairs[~np.isnan(pairs)]
    n = len(differences)
    if n == 0:
        return Paired(math.nan, math.nan, math.nan, 0, math.nan, ())
    mean = float(differences.mean())
    half = math.nan
    if n > 1:
        half = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1) * differences.std(ddof=1) / math.sqrt(n))
    return Paired(mean, mean - half, mean + half, n, _sign_flip_p(differences), tuple(differences.tolist()))


def smallest_p(n: int) -> float:
    """The smallest p-value that n pairs can give, before any correction: of 2^n ways, the signs and their
    opposite.

    >>> smallest_p(5)
    0.0625
    """
    return min(1.0, 2 / 2**n)


def _sign_flip_p(differences: np.ndarray) -> float:
    import numpy as np

    n = len(differences)
    if n <= _EXACT:
        flips = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
    else:
        flips = np.random.default_rng(0).integers(0, 2, (_SAMPLES, n))
        flips[0] = 0  # the signs as they are count as one of the ways, so p is never 0
    sums = np.abs((1 - 2 * flips) @ differences)
    # Accuracies are counts of images, so many sums are equal on paper, and 0 among them. They differ in the
    # last bits, or by what a table of numbers has rounded. A millionth of the largest difference is nothing.
    return float(np.mean(sums >= sums[0] - 1e-6 * np.abs(differences).max()))
