"""The number of categories: given, or estimated with a range."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from eagc_ops.training.config import ConfigError

if TYPE_CHECKING:
    from eagc_ops.discovery.frozen import Features

__all__ = ["Asked", "Number", "asked_for", "collapsed"]

EMPTY_SHARE = 0.05  # of the categories; with fewer empty ones K was a little too high, no more


class Number(NamedTuple):
    """K, and where it comes from."""

    k: int
    estimated: bool
    range: tuple[int, int] | None  # of the estimate; None if K was given, or if there is no estimate
    text: str


class Asked(NamedTuple):
    """The user's bounds on K: K itself if both are equal; None: no bound."""

    low: int | None = None
    high: int | None = None

    def check(self, known: int, images: int) -> None:
        """Refuse numbers below the `known` classes or above the images."""
        for value in self:
            if value is not None and value < known:
                raise ConfigError(f"k must be >= {known}, the number of known classes, got {value}", "k")
            if value is not None and value > images:
                raise ConfigError(f"k must be <= {images:,}, the number of images, got {value:,}", "k")

    def of(self, features: Features, known: int, seed: int) -> Number:
        """The number for these features."""
        if self.low is not None and self.low == self.high:
            return Number(self.low, False, None, f"K = {self.low:,} was given.")
        from eagc_ops.discovery.category_count import estimate_categories  # torch takes seconds

        estimate = estimate_categories(
            features.rows, features.label, known, low=self.low, high=self.high, seed=seed
        )
        bounds = "" if self.low is None else f", within your bounds {self.low:,} and {self.high:,}"
        if not estimate.given:
            return Number(
                estimate.k,
                True,
                None,
                f"K = {estimate.k:,} is only a guess{bounds}: the features do not show how many "
                "categories there are.",
            )
        return Number(
            estimate.k, True, (estimate.low, estimate.high), f"K is estimated as {estimate.text}{bounds}."
        )


def collapsed(empty: int, k: int) -> bool:
    """Whether so many of `k` categories without an image are a collapse.

    >>> collapsed(1, 10), collapsed(1, 50), collapsed(3, 50)
    (True, False, True)
    """
    return empty > EMPTY_SHARE * k


def asked_for(k: int | str | tuple[int, int] | None) -> Asked:
    """Read a number, a range or nothing.

    >>> asked_for(14), asked_for("8-15"), asked_for(None)
    (Asked(low=14, high=14), Asked(low=8, high=15), Asked(low=None, high=None))
    """
    if k in (None, "estimate"):
        return Asked()
    ends = [k, k] if isinstance(k, int) else list(k) if isinstance(k, tuple) else []
    if isinstance(k, str) and (found := re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", k.strip())):
        ends = [int(found[1]), int(found[2] or found[1])]
    if len(ends) == 2 and ends[0] < 1:
        raise ConfigError(f"k must be >= 1, got {ends[0]}", "k")
    if len(ends) != 2 or isinstance(k, bool) or not 1 <= ends[0] <= ends[1]:
        raise ConfigError(f"k must be a number, a range such as 8-15, or estimate, got {k!r}", "k")
    return Asked(*ends)
