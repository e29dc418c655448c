"""What a sign-flip test can show at best. Without numpy, because command lines are refused by it at once."""

from __future__ import annotations

__all__ = ["smallest_p"]


def smallest_p(n: int) -> float:
    """The smallest p-value that n pairs can give, before any correction: of 2^n ways, the signs and their
    opposite.

    >>> smallest_p(5)
    0.0625
    """
    return min(1.0, 2 / 2**n)
