"""Cells that several tables share."""

from __future__ import annotations

from typing import Any

from eagc_ops.bench.measure import Spread

Rows = list[dict[str, Any]]  # of a results file

_MIB = 2**20


def mebibytes(count: int) -> str:
    return f"{count / _MIB:.1f}"


def ebar(form: str) -> str:
    """The form of the energy reference; results files call a fixed one "given"."""
    return "running" if "running" in form else "fixed"


def milliseconds(spread: Spread, digits: int = 2) -> str:
    return f"{spread.median * 1e3:.{digits}f}"


def microseconds(spread: Spread) -> str:
    low, median, high = (seconds * 1e6 for seconds in (spread.low, spread.median, spread.high))
    return f"{median:.1f} ({low:.1f}-{high:.1f})"


def seconds(spread: Spread) -> str:
    return f"{spread.median:.3f} ({spread.low:.3f}-{spread.high:.3f})"


def percent(share: Spread, digits: int = 2) -> str:
    return f"{share.median:.{digits}%} ({share.low:.{digits}%}-{share.high:.{digits}%})"
