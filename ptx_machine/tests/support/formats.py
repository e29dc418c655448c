"""Number formats and exact rounding, as an oracle: tables of numpy and ml_dtypes, comparisons in Python.

Python compares an integer, a float and a fraction exactly, so nothing here rounds but the search itself.
"""

from __future__ import annotations

import bisect
import functools
import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np

DTYPE: dict[str, Any] = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64,
    "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2,
    **{f"{sign}{bits}": np.dtype(f"{name}{bits}").type
       for sign, name in (("u", "uint"), ("s", "int")) for bits in (8, 16, 32, 64)},
}  # fmt: skip
FLOATS = ("f16", "bf16", "f32", "f64")
WHOLE = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
INTEGRAL = {"rn": round, "rz": math.trunc, "rm": math.floor, "rp": math.ceil}


def size(kind: str) -> int:
    return np.dtype(DTYPE[kind]).itemsize


@functools.cache
def table(kind: str) -> tuple[list[float], np.ndarray]:
    """All finite values of a narrow format, sorted (one zero), and their bits."""
    bits = np.arange(1 << 8 * size(kind), dtype=f"u{size(kind)}")
    with np.errstate(all="ignore"):
        values = bits.view(DTYPE[kind]).astype(np.float64)
    kept = np.isfinite(values) & (bits != 1 << (8 * size(kind) - 1))
    order = np.argsort(values[kept], kind="stable")
    return values[kept][order].tolist(), bits[kept][order]


def neighbours(value: Any, kind: str) -> tuple[float, float]:
    """The largest number of the format up to `value`, the smallest from it on; beyond the last: infinite."""
    if size(kind) <= 2:
        values, _ = table(kind)
        at = bisect.bisect_left(values, value)
        if at < len(values) and values[at] == value:
            return values[at], values[at]
        return (values[at - 1] if at else -math.inf), (values[at] if at < len(values) else math.inf)
    most = DTYPE[kind](np.finfo(DTYPE[kind]).max)
    if value > float(most):
        return float(most), math.inf
    if value < -float(most):
        return -math.inf, -float(most)
    with np.errstate(all="ignore"):
        near = DTYPE[kind](float(value))
    if abs(value) < 2**53 and float(near) == value:
        return float(near), float(near)
    below = near
    with np.errstate(all="ignore"):
        while float(below) > value:
            below = np.nextafter(below, DTYPE[kind](-math.inf))
        while float(above := np.nextafter(below, DTYPE[kind](math.inf))) <= value:
            below = above
    return float(below), float(below) if float(below) == value else float(above)


def rounded(value: Any, kind: str, how: str = "rn") -> float:
    """A finite number in a floating-point format. A zero has no sign here."""
    below, above = neighbours(value, kind)
    if below == above or how in ("rm",):
        return below
    if how == "rp":
        return above
    if how == "rz":
        return below if value > 0 else above
    # Beyond the last number stands the one that the format would have there, if exponents went on.
    beyond = Fraction(2) ** ml_dtypes.finfo(DTYPE[kind]).maxexp
    low = -beyond if below == -math.inf else Fraction(below)
    high = beyond if above == math.inf else Fraction(above)
    doubled = 2 * Fraction(value)
    if doubled != low + high:
        return below if doubled < low + high else above
    if math.isinf(below) or math.isinf(above):
        return below if math.isinf(below) else above
    return below if bits_of(below, kind) % 2 == 0 else above


def bits_of(value: float, kind: str) -> int:
    with np.errstate(all="ignore"):
        return int(np.array([value], DTYPE[kind]).view(f"u{size(kind)}")[0])


def edges(kind: str) -> np.ndarray:
    """Values at which conversions go wrong, of a type of 32 or 64 bits; all of a narrower one."""
    if size(kind) <= 2:
        return np.arange(1 << 8 * size(kind), dtype=f"u{size(kind)}").view(DTYPE[kind])
    if kind in WHOLE:
        info = np.iinfo(DTYPE[kind])
        powers = [1 << k for k in range(8 * size(kind) + 1)]
        # Halves of units in the last place of bf16, f16, f32 and f64, and a little more or less.
        ties = [
            (1 << k) + (1 << k - bits) * odd + more
            for bits in (8, 11, 24, 53) for k in range(bits, 65) for odd in (1, 3) for more in (-1, 0, 1)
        ]  # fmt: skip
        near = {sign * (v + d) for v in [0, *powers, *ties] for d in (-1, 0, 1) for sign in (1, -1)}
        return np.array(sorted(v for v in near if info.min <= v <= info.max), DTYPE[kind])
    unsigned = f"u{size(kind)}"
    exact = [(sign << k) * 1.0 for k in range(65) for sign in (1, -1)]
    halves = [k + 0.5 * s for k in range(-5, 6) for s in (-1, 1)]
    of_narrow = []
    for narrow in ("bf16", "f16", *(["f32"] if kind == "f64" else [])):
        if narrow == "f32":
            bits = np.array([0, 1, 2, 0x7FFFFF, 0x800000, 0x7F7FFFFF, 0x3F800000, 0x3F800001], "u4")
        else:
            bits = np.array(
                [0, 1, 2, 3, 0x7F, 0x80, 0x3FF, 0x400, 0x7BFF, 0x7F7F, 0x3C00, 0x3F80, 0x3F81], "u2"
            )
        values = bits.view(DTYPE[narrow]).astype(np.float64)
        with np.errstate(all="ignore"):
            following = (bits + 1).view(DTYPE[narrow]).astype(np.float64)
            of_narrow += [*values, *((values + following) / 2)]
    info = np.finfo(DTYPE[kind])
    special = [
        0.0,
        -0.0,
        math.inf,
        -math.inf,
        math.nan,
        info.max,
        info.tiny,
        info.smallest_subnormal,
        65504,
        65519.99,
    ]
    with np.errstate(all="ignore"):
        values = np.array([*special, *exact, *halves, *of_narrow], DTYPE[kind])
    values = np.concatenate([values, -values])
    raw = values.view(unsigned)
    return np.unique(np.concatenate([raw, raw + np.array(1, unsigned), raw - np.array(1, unsigned)])).view(
        DTYPE[kind]
    )
