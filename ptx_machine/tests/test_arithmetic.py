"""Arithmetic on all pairs of edge values, against exact numbers: each result is rounded once."""

import itertools
import math
import operator
from fractions import Fraction

import formats
import ml_dtypes
import numpy as np
import pytest
from ptx_text import elementwise

WHOLE = ("u16", "s16", "u32", "s32", "u64", "s64")
FLOATS = ("f16", "bf16", "f32", "f64")


def whole_edges(kind: str) -> list[int]:
    info = np.iinfo(formats.DTYPE[kind])
    bits = 8 * formats.size(kind)
    near = [
        0,
        1,
        2,
        3,
        5,
        7,
        10,
        1 << bits // 2,
        1 << bits - 1,
        1 << bits - 2,
        0x5555555555555555,
        info.max,
        info.min,
    ]
    values = {s * v + d for v in near for d in (-1, 0, 1) for s in (1, -1)}
    return sorted(v for v in values if info.min <= v <= info.max)


def grid(kind: str, values: list, operands: int) -> tuple[list[tuple], list[np.ndarray]]:
    """All combinations; of three operands the third takes every third value."""
    rows = list(itertools.product(values, values, *[values[::3]] * (operands - 2)))
    return rows, [np.array(column, formats.DTYPE[kind]) for column in zip(*rows)]


def run(instruction: str, inputs: list[np.ndarray], kind: str) -> np.ndarray:
    operands = ", ".join(f"{{{k}}}" for k in range(len(inputs)))
    mine = elementwise(f"{instruction}.{kind} {{out}}, {operands};", *inputs, out=f"u{formats.size(kind)}")
    return mine.view(formats.DTYPE[kind])


def towards_zero(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


@pytest.mark.parametrize("kind", WHOLE)
def test_integers(kind):
    bits = 8 * formats.size(kind)
    values = whole_edges(kind)
    info = np.iinfo(formats.DTYPE[kind])

    def wrapped(v: int) -> int:
        v %= 1 << bits
        return v - (1 << bits) if v > info.max else v

    rows, inputs = grid(kind, values, 2)
    two = {
        "add": operator.add,
        "sub": operator.sub,
        "mul.lo": operator.mul,
        "mul.hi": lambda a, b: a * b >> bits,
        "min": min,
        "max": max,
    }
    for name, function in two.items():
        expected = np.array([wrapped(function(*row)) for row in rows], formats.DTYPE[kind])
        assert (run(name, inputs, kind) == expected).all(), name
    kept = [row for row in rows if row[1]]
    divided = [np.array(column, formats.DTYPE[kind]) for column in zip(*kept)]
    for name, function in (("div", towards_zero), ("rem", lambda a, b: a - b * towards_zero(a, b))):
        expected = np.array([wrapped(function(*row)) for row in kept], formats.DTYPE[kind])
        assert (run(name, divided, kind) == expected).all(), name
    rows, inputs = grid(kind, values, 3)
    for name, function in (
        ("mad.lo", lambda a, b, c: a * b + c),
        ("mad.hi", lambda a, b, c: (a * b >> bits) + c),
    ):
        expected = np.array([wrapped(function(*row)) for row in rows], formats.DTYPE[kind])
        assert (run(name, inputs, kind) == expected).all(), name
    if kind[0] == "s":
        ones = [np.array(values, formats.DTYPE[kind])]
        assert (run("neg", ones, kind) == np.array([wrapped(-v) for v in values], formats.DTYPE[kind])).all()
        assert (
            run("abs", ones, kind) == np.array([wrapped(abs(v)) for v in values], formats.DTYPE[kind])
        ).all()


def float_edges(kind: str) -> list[float]:
    """Zeros, subnormals, ends of the range, numbers whose products are ties, infinities, NaN."""
    info = ml_dtypes.finfo(formats.DTYPE[kind])
    unit = float(info.eps)
    tiny, small, most = float(info.smallest_subnormal), float(info.tiny), float(info.max)
    exact = [
        1.0,
        1 + unit,
        1 - unit / 2,
        1.5,
        1.5 + unit,
        2 - unit,
        3.0,
        unit,
        1 / 3,
        math.sqrt(most),
        math.sqrt(small),
    ]
    ends = [
        0.0,
        tiny,
        2 * tiny,
        3 * tiny,
        small - tiny,
        small,
        small + tiny,
        most,
        most / 2,
        most * (1 - unit),
        math.inf,
    ]
    with np.errstate(all="ignore"):
        values = np.array([*exact, *ends], formats.DTYPE[kind]).astype("f8").tolist()
    return [*values, *(-v for v in values), math.nan]


def nearest(exact, kind: str, how: str = "rn") -> float:
    """Of a number, or of a float that is infinite, NaN or a signed zero already."""
    if isinstance(exact, float) and (not math.isfinite(exact) or exact == 0):
        return exact
    if exact == 0:
        return -0.0 if how == "rm" else 0.0
    result = formats.rounded(exact, kind, how)
    return -0.0 if result == 0 and exact < 0 else result


def added(a: float, b: float):
    return a + b if not (math.isfinite(a) and math.isfinite(b)) or a == b == 0 else Fraction(a) + Fraction(b)


def multiplied(a: float, b: float):
    return a * b if not (math.isfinite(a) and math.isfinite(b)) or 0 in (a, b) else Fraction(a) * Fraction(b)


def fused(a: float, b: float, c: float):
    product = multiplied(a, b)
    if not math.isfinite(c) or isinstance(product, float):  # special, or a signed zero
        product = product if isinstance(product, float) else 1.0 if product > 0 else -1.0
        return added(product, c)
    return product + Fraction(c)


def divided(a: float, b: float):
    if math.isfinite(a) and math.isfinite(b) and a and b:
        return Fraction(a) / Fraction(b)
    with np.errstate(all="ignore"):
        return float(np.float64(a) / np.float64(b))


def check(mine: np.ndarray, rows: list[tuple], exact: list, kind: str, how: str = "rn") -> None:
    expected = np.array([nearest(value, kind, how) for value in exact], formats.DTYPE[kind])
    unsigned = f"u{formats.size(kind)}"
    with np.errstate(all="ignore"):
        nan = np.isnan(expected.astype("f8")) & np.isnan(mine.astype("f8"))
    wrong = np.flatnonzero((mine.view(unsigned) != expected.view(unsigned)) & ~nan)
    assert not len(wrong), [(rows[k], mine[k], expected[k]) for k in wrong[:4]]


@pytest.mark.parametrize("kind", FLOATS)
def test_floating_point(kind):
    values = float_edges(kind)
    rows, inputs = grid(kind, values, 2)
    with np.errstate(all="ignore"):
        check(run("add.rn", inputs, kind), rows, [added(a, b) for a, b in rows], kind)
        check(run("sub.rn", inputs, kind), rows, [added(a, -b) for a, b in rows], kind)
        check(run("mul.rn", inputs, kind), rows, [multiplied(a, b) for a, b in rows], kind)
        triples, three = grid(kind, values, 3)
        check(run("fma.rn", three, kind), triples, [fused(*row) for row in triples], kind)
        if kind in ("f32", "f64"):
            check(run("div.rn", inputs, kind), rows, [divided(a, b) for a, b in rows], kind)


def test_a_tie_of_bf16_is_decided_by_a_far_smaller_summand():
    """The product is half way between two numbers of bf16; fp64 would drop the third operand."""
    a, b = 1 + 2.0**-7, 1 + 2.0**-7  # 1 + 2^-6 + 2^-14; with c near the tie 1 + 2^-6 + 2^-8
    c = 2.0**-8 - 2.0**-14
    c = float(np.array([c], ml_dtypes.bfloat16)[0])
    rows = [
        (a, b, c),
        (1.5, 1 + 2.0**-7, 2.0**-100),
        (1.5, 1 + 2.0**-7, -(2.0**-100)),
        (-1.5, 1 + 2.0**-7, 2.0**-100),
    ]
    inputs = [np.array(column, ml_dtypes.bfloat16) for column in zip(*rows)]
    check(run("fma.rn", inputs, "bf16"), rows, [fused(*row) for row in rows], "bf16")


def extreme(a: float, b: float, larger: bool, nan_wins: bool) -> float:
    if math.isnan(a) or math.isnan(b):
        return math.nan if nan_wins or (math.isnan(a) and math.isnan(b)) else b if math.isnan(a) else a
    key = lambda v: (v, math.copysign(1, v))  # noqa: E731 - -0 is below +0
    return max(a, b, key=key) if larger else min(a, b, key=key)


@pytest.mark.parametrize("kind", FLOATS)
def test_minima_and_maxima(kind):
    rows, inputs = grid(kind, float_edges(kind), 2)
    for name, larger in (("min", False), ("max", True)):
        for suffix in ("", ".NaN") if kind != "f64" else ("",):
            check(
                run(f"{name}{suffix}", inputs, kind),
                rows,
                [extreme(a, b, larger, bool(suffix)) for a, b in rows],
                kind,
            )


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_roots_and_reciprocals(kind):
    values = float_edges(kind)
    ones = [np.array(values, formats.DTYPE[kind])]
    with np.errstate(all="ignore"):
        roots = [float(v) for v in np.sqrt(ones[0])]  # IEEE asks for one rounding of a root
        check(run("sqrt.rn", ones, kind), [(v,) for v in values], roots, kind)
        check(run("rcp.rn", ones, kind), [(v,) for v in values], [divided(1.0, v) for v in values], kind)


@pytest.mark.parametrize("kind", FLOATS)
def test_signs(kind):
    values = float_edges(kind)
    ones = [np.array(values, formats.DTYPE[kind])]
    for name, function in (("neg", operator.neg), ("abs", abs)):
        check(run(name, ones, kind), [(v,) for v in values], [function(v) for v in values], kind)


def test_ftz_of_f32():
    def flush(v: float) -> float:
        return math.copysign(0.0, v) if abs(v) < 2.0**-126 else v

    rows, inputs = grid("f32", float_edges("f32"), 2)
    for name, function in (("add", added), ("mul", multiplied)):
        exact = []
        for a, b in rows:
            value = nearest(function(flush(a), flush(b)), "f32")
            exact.append(flush(value))
        check(run(f"{name}.rn.ftz", inputs, "f32"), rows, exact, "f32")


def smaller(kind: str) -> list[float]:
    """Finite edge values, fewer of them."""
    return [v for v in float_edges(kind) if math.isfinite(v)][::2]


@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("how", ["rz", "rm", "rp"])
def test_directed_roundings(kind, how):
    rows, inputs = grid(kind, smaller(kind), 2)
    # The zero of x + -x is negative if rounded down.
    sums = [
        0 if a == -b and (a or math.copysign(1, a) != math.copysign(1, b)) else added(a, b) for a, b in rows
    ]
    check(run(f"add.{how}", inputs, kind), rows, sums, kind, how)
    check(run(f"mul.{how}", inputs, kind), rows, [multiplied(a, b) for a, b in rows], kind, how)
    triples, three = grid(kind, [v for v in smaller(kind) if v][::2], 3)
    check(
        run(f"fma.{how}", three, kind),
        triples,
        [Fraction(a) * Fraction(b) + Fraction(c) for a, b, c in triples],
        kind,
        how,
    )
    kept = [row for row in rows if row[1] and row[0]]
    halves = [np.array(column, formats.DTYPE[kind]) for column in zip(*kept)]
    check(run(f"div.{how}", halves, kind), kept, [divided(a, b) for a, b in kept], kind, how)


def test_saturation():
    rows, inputs = grid("f32", float_edges("f32"), 2)

    def clamped(value) -> float:
        value = nearest(value, "f32")
        return min(value, 1.0) if value > 0 else 0.0

    with np.errstate(all="ignore"):
        check(run("add.sat", inputs, "f32"), rows, [clamped(added(a, b)) for a, b in rows], "f32")
        check(run("mul.rn.ftz.sat", inputs, "f32")[:1], rows[:1], [clamped(multiplied(*rows[0]))], "f32")
    values = whole_edges("s32")
    rows, inputs = grid("s32", values, 2)
    for name, function in (("add", operator.add), ("sub", operator.sub)):
        expected = np.clip([function(*row) for row in rows], -(2**31), 2**31 - 1).astype("i4")
        assert (run(f"{name}.sat", inputs, "s32") == expected).all()


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32"])
def test_the_extreme_of_sizes_with_both_signs(kind):
    """What a clamp to a range around zero is compiled to."""
    rows, inputs = grid(kind, float_edges(kind), 2)
    for name, larger, suffix in itertools.product(("min", "max"), (False, True), ("", ".NaN")):
        if larger != (name == "max"):
            continue
        sizes = [extreme(abs(a), abs(b), larger, bool(suffix)) for a, b in rows]
        signs = [math.copysign(1, a) * math.copysign(1, b) for a, b in rows]
        exact = [size * sign for size, sign in zip(sizes, signs)]
        check(run(f"{name}{suffix}.xorsign.abs", inputs, kind), rows, exact, kind)


@pytest.mark.parametrize("suffix", ["", ".NaN"])
def test_the_extreme_of_three(suffix):
    rows, inputs = grid("f32", float_edges("f32")[::2], 3)
    for name, larger in (("min", False), ("max", True)):
        exact = [extreme(extreme(a, b, larger, bool(suffix)), c, larger, bool(suffix)) for a, b, c in rows]
        check(run(f"{name}{suffix}", inputs, "f32"), rows, exact, "f32")


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_kinds_of_numbers(kind):
    values = np.array(float_edges(kind), formats.DTYPE[kind])
    small = np.finfo(values.dtype).tiny
    size = np.abs(values)
    expected = {
        "finite": np.isfinite(values), "infinite": np.isinf(values), "number": ~np.isnan(values),
        "notanumber": np.isnan(values), "normal": np.isfinite(values) & (size >= small),
        "subnormal": (size > 0) & (size < small),
    }  # fmt: skip
    for name, wanted in expected.items():
        text = f"testp.{name}.{kind} %p2, {{0}}; selp.b16 {{out}}, 1, 0, %p2;"
        assert (elementwise(text, values, out="u2") == wanted).all(), name


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_set_of_two_halves(kind):
    rows, (a, b) = grid(kind, float_edges(kind), 2)
    one = formats.bits_of(1.0, kind)
    low, high = (v.view("u2").astype("u4") for v in (a, b))
    x, y = low | high << 16, high | low << 16  # (a, b) against (b, a)
    for name, function in (("nan", lambda p, q: p != p or q != q), ("lt", operator.lt), ("neu", operator.ne)):
        mine = elementwise(f"set.{name}.{kind}x2.{kind}x2 {{out}}, {{0}}, {{1}};", x, y, out="u4")
        expected = [one * function(p, q) | one * function(q, p) << 16 for p, q in rows]
        assert (mine == np.array(expected, "u4")).all(), name


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize(("name", "function"), [("ex2", np.exp2), ("tanh", np.tanh)])
def test_approximations_of_halves(kind, name, function):
    values = np.array([v for v in float_edges(kind) if abs(v) < 200 or math.isinf(v)], formats.DTYPE[kind])
    ftz = ".ftz" if (kind, name) == ("bf16", "ex2") else ""
    with np.errstate(all="ignore"):
        exact = function(values.astype("f8"))
        expected = exact.astype(formats.DTYPE[kind])
    expected[(np.abs(exact) < 2.0**-126) & bool(ftz)] = 0
    check(run(f"{name}.approx{ftz}", [values], kind), [*zip(values)], expected.astype("f8").tolist(), kind)
