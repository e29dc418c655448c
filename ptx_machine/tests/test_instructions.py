"""Each instruction of the machine against numpy, torch or exact fractions; extreme values included."""

import fractions
import math
import operator

import numpy as np
import pytest
import torch
from ptx_text import kernel, lanes

import ptx_machine

RANDOM = np.random.default_rng(0)


def some(dtype: str) -> np.ndarray:
    """32 values: the extremes of a type, then random bits."""
    kind = np.dtype(dtype)
    values = np.frombuffer(RANDOM.bytes(32 * kind.itemsize), kind).copy()
    if kind.kind == "f":
        values[16:] = RANDOM.normal(size=16)
        special = [
            0.0,
            -0.0,
            1.0,
            -1.0,
            math.inf,
            -math.inf,
            math.nan,
            np.finfo(kind).tiny / 4,
            np.finfo(kind).max,
        ]
    else:
        special = [0, 1, np.iinfo(kind).max, np.iinfo(kind).min, np.iinfo(kind).max - 1, 3]
    values[: len(special)] = np.array(special, kind)
    return values[RANDOM.permutation(32)]


def exact(function, dtype, *arrays):
    """A function on Python's integers, wrapped into the type."""
    bits = 8 * np.dtype(dtype).itemsize
    wrapped = [function(*(int(x) for x in values)) % (1 << bits) for values in zip(*arrays)]
    return np.array(wrapped, f"u{bits // 8}").view(dtype)


def same(mine: np.ndarray, expected: np.ndarray) -> None:
    """Equal bits; any NaN equals any NaN."""
    expected = np.asarray(expected, mine.dtype)
    equal = mine.view(f"u{mine.itemsize}") == expected.view(f"u{mine.itemsize}")
    if mine.dtype.kind == "f":
        equal |= np.isnan(mine) & np.isnan(expected)
    assert equal.all(), (mine[~equal], expected[~equal])


def quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


INTEGERS = {"u16": "u2", "s16": "i2", "u32": "u4", "s32": "i4", "u64": "u8", "s64": "i8"}


@pytest.mark.parametrize("kind", INTEGERS)
def test_integer_arithmetic(kind):
    dtype = INTEGERS[kind]
    bits = 8 * np.dtype(dtype).itemsize
    a, b, c = some(dtype), some(dtype), some(dtype)
    nonzero = np.where(b == 0, 5, b).astype(dtype)
    for name, function, arrays in (
        ("add", operator.add, (a, b)),
        ("sub", operator.sub, (a, b)),
        ("mul.lo", operator.mul, (a, b)),
        ("mul.hi", lambda x, y: x * y >> bits, (a, b)),
        ("mad.lo", lambda x, y, z: x * y + z, (a, b, c)),
        ("mad.hi", lambda x, y, z: (x * y >> bits) + z, (a, b, c)),
        ("div", quotient, (a, nonzero)),
        ("rem", lambda x, y: x - y * quotient(x, y), (a, nonzero)),
        ("min", min, (a, b)),
        ("max", max, (a, b)),
    ):
        places = ", ".join(f"{{{k}}}" for k in range(len(arrays)))
        mine = lanes(f"{name}.{kind} {{out}}, {places};", *arrays, out=dtype)
        same(mine, exact(function, dtype, *arrays))
    if kind.startswith("s"):
        same(lanes(f"abs.{kind} {{out}}, {{0}};", a, out=dtype), exact(abs, dtype, a))
        same(lanes(f"neg.{kind} {{out}}, {{0}};", a, out=dtype), exact(operator.neg, dtype, a))


@pytest.mark.parametrize(
    ("kind", "narrow", "wide"),
    [("u16", "u2", "u4"), ("s16", "i2", "i4"), ("u32", "u4", "u8"), ("s32", "i4", "i8")],
)
def test_widening_products(kind, narrow, wide):
    a, b, c = some(narrow), some(narrow), some(wide)
    same(lanes(f"mul.wide.{kind} {{out}}, {{0}}, {{1}};", a, b, out=wide), exact(operator.mul, wide, a, b))
    mine = lanes(f"mad.wide.{kind} {{out}}, {{0}}, {{1}}, {{2}};", a, b, c, out=wide)
    same(mine, exact(lambda x, y, z: x * y + z, wide, a, b, c))


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_bits(bits):
    dtype = f"u{bits // 8}"
    a, b = some(dtype), some(dtype)
    for name, function in (("and", operator.and_), ("or", operator.or_), ("xor", operator.xor)):
        same(lanes(f"{name}.b{bits} {{out}}, {{0}}, {{1}};", a, b, out=dtype), function(a, b))
    same(lanes(f"not.b{bits} {{out}}, {{0}};", a, out=dtype), ~a)
    amounts = np.arange(32, dtype="u4") * 3  # beyond the width too
    mine = lanes(f"shl.b{bits} {{out}}, {{0}}, {{1}};", a, amounts, out=dtype)
    same(mine, exact(lambda x, n: x << n, dtype, a, amounts))
    for kind in ("b", "u", "s"):
        signed = a.view(f"i{bits // 8}") if kind == "s" else a
        mine = lanes(f"shr.{kind}{bits} {{out}}, {{0}}, {{1}};", signed, amounts, out=signed.dtype.str)
        same(mine, exact(lambda x, n: x >> n, signed.dtype, signed, amounts))


def field(x: int, start: int, length: int, bits: int, *, signed: bool) -> int:
    """bfe, as the PTX manual defines it bit by bit."""
    last = min(start + length - 1, bits - 1)
    sign = 0 if not signed or length == 0 else x >> last & 1
    places = [x >> start + k & 1 if k < length and start + k <= last else sign for k in range(bits)]
    return sum(bit << k for k, bit in enumerate(places))


@pytest.mark.parametrize("bits", [32, 64])
def test_bit_fields_and_counts(bits):
    dtype = f"u{bits // 8}"
    a, b = some(dtype), some(dtype)
    start = RANDOM.integers(0, bits + 4, 32).astype("u4")
    length = RANDOM.integers(0, bits + 4, 32).astype("u4")
    for kind in "us":
        mine = lanes(f"bfe.{kind}{bits} {{out}}, {{0}}, {{1}}, {{2}};", a, start, length, out=dtype)
        rows = zip(a, start, length)
        same(
            mine,
            np.array([field(int(x), int(s), int(n), bits, signed=kind == "s") for x, s, n in rows], dtype),
        )
    mine = lanes(f"bfi.b{bits} {{out}}, {{0}}, {{1}}, {{2}}, {{3}};", a, b, start, length, out=dtype)

    def inserted(x, y, s, n):
        mask = (((1 << n) - 1) << s) & ((1 << bits) - 1)
        return y & ~mask | x << s & mask

    same(mine, exact(inserted, dtype, a, b, start, length))
    reversed_ = [int(f"{int(x):0{bits}b}"[::-1], 2) for x in a]
    same(lanes(f"brev.b{bits} {{out}}, {{0}};", a, out=dtype), np.array(reversed_, dtype))
    same(lanes(f"popc.b{bits} {{out}}, {{0}};", a, out="u4"), [int(x).bit_count() for x in a])
    same(lanes(f"clz.b{bits} {{out}}, {{0}};", a, out="u4"), [bits - int(x).bit_length() for x in a])
    for kind, values in (("u", a), ("s", a.view(f"i{bits // 8}"))):
        highest = [(int(x) if x >= 0 else ~int(x)).bit_length() - 1 for x in values]
        mine = lanes(f"bfind.{kind}{bits} {{out}}, {{0}};", values, out="u4")
        same(mine, [high % (1 << 32) for high in highest])
        mine = lanes(f"bfind.shiftamt.{kind}{bits} {{out}}, {{0}};", values, out="u4")
        same(mine, [bits - 1 - high if high >= 0 else 0xFFFFFFFF for high in highest])


def test_byte_permutation_logic_table_and_funnel_shift():
    a, b, c = some("u4"), some("u4"), some("u4")
    mine = lanes("prmt.b32 {out}, {0}, {1}, {2};", a, b, c, out="u4")
    for x, y, selector, out in zip(a, b, c, mine):
        source = int(x).to_bytes(4, "little") + int(y).to_bytes(4, "little")
        for k, byte in enumerate(int(out).to_bytes(4, "little")):
            select = int(selector) >> 4 * k & 15
            value = source[select & 7]
            assert byte == ((255 if value & 128 else 0) if select & 8 else value)
    same(lanes("lop3.b32 {out}, {0}, {1}, {2}, 0x96;", a, b, c, out="u4"), a ^ b ^ c)
    same(lanes("lop3.b32 {out}, {0}, {1}, {2}, 0xE8;", a, b, c, out="u4"), a & b | a & c | b & c)
    n = np.arange(32, dtype="u4") * 2
    both = [int(x) | int(y) << 32 for x, y in zip(a, b)]
    for how, amount in (("clamp", np.minimum(n, 32)), ("wrap", n % 32)):
        left = [(value << int(k) >> 32) % (1 << 32) for value, k in zip(both, amount)]
        right = [(value >> int(k)) % (1 << 32) for value, k in zip(both, amount)]
        same(lanes(f"shf.l.{how}.b32 {{out}}, {{0}}, {{1}}, {{2}};", a, b, n, out="u4"), left)
        same(lanes(f"shf.r.{how}.b32 {{out}}, {{0}}, {{1}}, {{2}};", a, b, n, out="u4"), right)


def rounded(value: fractions.Fraction | float, dtype: str) -> float:
    return np.dtype(dtype).type(float(value))


@pytest.mark.parametrize(("kind", "dtype"), [("f32", "f4"), ("f64", "f8")])
def test_floating_point(kind, dtype):
    a, b, c = some(dtype), some(dtype), some(dtype)
    with np.errstate(all="ignore"):
        for name, expected in (("add", a + b), ("sub", a - b), ("mul", a * b), ("div.rn", a / b)):
            same(lanes(f"{name}.{kind} {{out}}, {{0}}, {{1}};", a, b, out=dtype), expected)
        same(lanes(f"sqrt.rn.{kind} {{out}}, {{0}};", a, out=dtype), np.sqrt(a))
        same(lanes(f"rcp.rn.{kind} {{out}}, {{0}};", a, out=dtype), 1 / a)
        mine = lanes(f"fma.rn.{kind} {{out}}, {{0}}, {{1}}, {{2}};", a, b, c, out=dtype)
        product = (a.astype("f8") * b.astype("f8") + c.astype("f8")).astype(dtype)
    for x, y, z, out, special in zip(a, b, c, mine, product):
        if not np.isfinite([x, y, z]).all():
            same(np.array([out]), np.array([special]))
            continue
        value = fractions.Fraction(float(x)) * fractions.Fraction(float(y)) + fractions.Fraction(float(z))
        if abs(value) <= np.finfo(dtype).max:
            assert out == rounded(value, dtype)
    same(lanes(f"neg.{kind} {{out}}, {{0}};", a, out=dtype), -a)
    same(lanes(f"abs.{kind} {{out}}, {{0}};", a, out=dtype), np.abs(a))
    same(lanes(f"copysign.{kind} {{out}}, {{0}}, {{1}};", a, b, out=dtype), np.copysign(b, a))
    same(
        lanes(f"min.{kind} {{out}}, {{0}}, {{1}};", a, b, out=dtype),
        np.where(
            np.isnan(a),
            b,
            np.where(np.isnan(b), a, np.where(a == b, np.where(np.signbit(a), a, b), np.minimum(a, b))),
        ),
    )


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
def test_arithmetic_gives_one_nan(kind):
    """Not that of the processor here, which has a sign: bits of it may be looked at."""
    size = 4 if kind == "f32" else 2
    infinite = {"f32": 0x7F800000, "f16": 0x7C00, "bf16": 0x7F80}[kind]
    x = np.full(32, infinite, f"u{size}")
    for instruction in ("sub.rn.{k} {{out}}, {{0}}, {{0}}", "fma.rn.{k} {{out}}, {{0}}, 0, {{0}}"):
        mine = lanes(f"{instruction.format(k=kind)};", x, out=x.dtype.str)
        assert (mine == (1 << 8 * size - 1) - 1).all()


def test_a_nan_wins_or_loses():
    a, b = some("f4"), some("f4")
    for name, loses, wins in (("max", np.fmax, np.maximum), ("min", np.fmin, np.minimum)):
        for suffix, function in (("", loses), (".NaN", wins)):
            mine = lanes(f"{name}{suffix}.f32 {{out}}, {{0}}, {{1}};", a, b, out="f4")
            with np.errstate(invalid="ignore"):
                expected = function(a, b)
            assert ((mine == expected) | (np.isnan(mine) & np.isnan(expected))).all()


def test_subnormals_are_flushed_only_if_asked():
    tiny = np.full(32, 1e-39, "f4")
    one = np.ones(32, "f4")
    same(lanes("mul.f32 {out}, {0}, {1};", tiny, one, out="f4"), tiny)
    same(lanes("mul.ftz.f32 {out}, {0}, {1};", tiny, one, out="f4"), np.zeros(32, "f4"))
    same(lanes("add.ftz.f32 {out}, {0}, {1};", -tiny, -tiny, out="f4"), np.full(32, -0.0, "f4"))


@pytest.mark.parametrize(("name", "function", "allowed"), [
    ("ex2.approx", np.exp2, 2e-7), ("lg2.approx", np.log2, 2e-7), ("sin.approx", np.sin, 1e-6),
    ("cos.approx", np.cos, 1e-6), ("tanh.approx", np.tanh, 1e-6), ("rcp.approx", lambda x: 1 / x, 2e-7),
    ("rsqrt.approx", lambda x: 1 / np.sqrt(x), 2e-7), ("sqrt.approx", np.sqrt, 2e-7),
])  # fmt: skip
def test_approximations(name, function, allowed):
    x = np.abs(RANDOM.normal(size=32)).astype("f4") + 0.1
    np.testing.assert_allclose(
        lanes(f"{name}.f32 {{out}}, {{0}};", x, out="f4"),
        function(x.astype("f8")),
        rtol=allowed,
        atol=allowed,
    )


HALF = {"f16": torch.float16, "bf16": torch.bfloat16}


def half(kind: str) -> tuple[np.ndarray, torch.Tensor]:
    values = torch.from_numpy(RANDOM.normal(size=32).astype("f4")).to(HALF[kind])
    values[:4] = torch.tensor([math.inf, math.nan, 0.0, -0.0])
    return values.view(torch.int16).numpy().view("u2"), values


def same_halves(mine: np.ndarray, expected: torch.Tensor) -> None:
    out = torch.from_numpy(mine.view("i2")).view(expected.dtype)
    assert torch.equal(out.isnan(), expected.isnan())
    assert torch.equal(out.nan_to_num(), expected.nan_to_num())


@pytest.mark.parametrize("kind", HALF)
def test_half_arithmetic(kind):
    (a, x), (b, y), (c, z) = half(kind), half(kind), half(kind)
    packed = [(v[0::2].astype("u4") | v[1::2].astype("u4") << 16).repeat(2) for v in (a, b, c)]
    fused = (x.double() * y.double() + z.double()).to(x.dtype)  # exact in fp64, one rounding
    suffix = "rn." if kind == "bf16" else ""
    for name, expected in (
        (f"add.{suffix}", x + y),
        (f"sub.{suffix}", x - y),
        (f"mul.{suffix}", x * y),
        ("fma.rn.", fused),
        ("min.NaN.", torch.minimum(x, y)),
        ("max.NaN.", torch.maximum(x, y)),
    ):
        three = name.startswith("fma")
        places = "{0}, {1}, {2}" if three else "{0}, {1}"
        same_halves(lanes(f"{name}{kind} {{out}}, {places};", a, b, *[c] * three, out="u2"), expected)
        pairs = lanes(f"{name}{kind}x2 {{out}}, {places};", *packed[: 2 + three], out="u4")[::2]
        same_halves(np.stack([pairs & 0xFFFF, pairs >> 16], 1).astype("u2").ravel(), expected)
    same_halves(lanes(f"neg.{kind} {{out}}, {{0}};", a, out="u2"), -x)
    same_halves(lanes(f"abs.{kind} {{out}}, {{0}};", a, out="u2"), x.abs())
    wide = RANDOM.normal(size=32).astype("f4")
    mixed = lanes(f"fma.rn.f32.{kind} {{out}}, {{0}}, {{1}}, {{2}};", a, b, wide, out="f4")
    expected = (x.double() * y.double() + torch.from_numpy(wide).double()).float().numpy()
    same(mixed, expected)
    same(lanes(f"sub.rn.f32.{kind} {{out}}, {{0}}, {{1}};", a, wide, out="f4"), x.float().numpy() - wide)


def test_pairs_of_f32():
    a, b, c = (RANDOM.normal(size=64).astype("f4") for _ in range(3))
    both = [v.view("u8") for v in (a, b, c)]
    for name, expected in (("add", a + b), ("sub", a - b), ("mul", a * b)):
        same(lanes(f"{name}.f32x2 {{out}}, {{0}}, {{1}};", *both[:2], out="u8").view("f4"), expected)
    fused = (a.astype("f8") * b + c).astype("f4")
    same(lanes("fma.rn.f32x2 {out}, {0}, {1}, {2};", *both, out="u8").view("f4"), fused)


@pytest.mark.parametrize("kind", HALF)
def test_rounding_to_halves(kind):
    """Nearest even, ties included: half a unit above and below every other value."""
    exact_ = torch.linspace(1, 2, 17, dtype=torch.float32).to(HALF[kind]).float()
    unit = 2.0**-7 if kind == "bf16" else 2.0**-10
    x = torch.cat([exact_[:16] + unit / 2, (exact_[:16] + unit) * 1.0000001]).numpy()
    x[:3] = [math.nan, math.inf, 3e38]
    expected = torch.from_numpy(x).to(HALF[kind])
    same_halves(lanes(f"cvt.rn.{kind}.f32 {{out}}, {{0}};", x, out="u2"), expected)
    other = RANDOM.normal(size=32).astype("f4")
    pairs = lanes(f"cvt.rn.{kind}x2.f32 {{out}}, {{0}}, {{1}};", x, other, out="u4")
    same_halves((pairs >> 16).astype("u2"), expected)
    same_halves((pairs & 0xFFFF).astype("u2"), torch.from_numpy(other).to(HALF[kind]))
    back = torch.from_numpy(lanes(f"cvt.f32.{kind} {{out}}, {{0}};", half(kind)[0], out="f4"))
    assert back.isnan().sum() == 1
    toward_zero = lanes(f"cvt.rz.{kind}.f32 {{out}}, {{0}};", other, out="u2")
    value = torch.from_numpy(toward_zero.view("i2")).view(HALF[kind]).float().numpy()
    assert (np.abs(value) <= np.abs(other)).all() and (np.abs(value) > np.abs(other) * (1 - unit)).all()


@pytest.mark.parametrize("kind", HALF)
def test_rounding_of_two_to_zero_and_without_a_sign(kind):
    x, y = some("f4"), some("f4")
    for how in ("rz", "rn.relu", "rz.relu"):
        pairs = lanes(f"cvt.{how}.{kind}x2.f32 {{out}}, {{0}}, {{1}};", x, y, out="u4")
        for mine, values in ((pairs >> 16, x), (pairs & 0xFFFF, y)):
            one = lanes(f"cvt.{how[:2]}.{kind}.f32 {{out}}, {{0}};", values, out="u2")
            positive = np.isnan(values) | (values > 0) | ("relu" not in how)
            same(mine.astype("u2"), np.where(positive, one, 0))


def test_rounding_to_tf32_is_half_away_from_zero():
    unit = np.float32(2.0**-10)
    x = np.float32(1) + unit * np.arange(32, dtype="f4") / 4
    away = np.float32(1) + unit * np.floor(np.arange(32) / 4 + 0.5).astype("f4")
    even = np.float32(1) + unit * np.round(np.arange(32) / 4).astype("f4")
    for sign in (1, -1):
        same(lanes("cvt.rna.tf32.f32 {out}, {0};", sign * x, out="f4"), sign * away)
        same(lanes("cvt.rn.tf32.f32 {out}, {0};", sign * x, out="f4"), sign * even)
    special = np.array([math.inf, -math.inf, math.nan, 0.0] * 8, "f4")
    same(lanes("cvt.rna.tf32.f32 {out}, {0};", special, out="f4"), special)


@pytest.mark.parametrize("kind", INTEGERS)
def test_between_integers_and_floating_point(kind):
    dtype = INTEGERS[kind]
    a = some(dtype)
    same(
        lanes(f"cvt.rn.f32.{kind} {{out}}, {{0}};", a, out="f4"),
        np.array([np.float32(fraction_to_f32(int(v))) for v in a]),
    )
    same(lanes(f"cvt.rn.f64.{kind} {{out}}, {{0}};", a, out="f8"), np.array([float(int(v)) for v in a]))
    x = np.concatenate([some("f4")[:8], (RANDOM.normal(size=24) * 1e4).astype("f4")])
    x[8:12] = [0.5, 1.5, 2.5, -0.5]
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    for name, function in (("rni", round), ("rzi", math.trunc), ("rmi", math.floor), ("rpi", math.ceil)):
        expected = [
            0
            if math.isnan(v)
            else low
            if v == -math.inf
            else high
            if v == math.inf
            else min(max(function(float(v)), low), high)
            for v in x
        ]
        same(lanes(f"cvt.{name}.{kind}.f32 {{out}}, {{0}};", x, out=dtype), np.array(expected, dtype))


def fraction_to_f32(value: int) -> float:
    """One rounding, to nearest even: by hand, because int -> f64 -> f32 are two."""
    sign, size = (-1 if value < 0 else 1), abs(value)
    extra = max(0, size.bit_length() - 24)
    low, size = size & ((1 << extra) - 1), size >> extra
    half_ = 1 << extra >> 1
    size += extra > 0 and (low > half_ or (low == half_ and size & 1))
    return sign * float(size << extra)


def test_between_integers():
    a = some("i4")
    same(lanes("cvt.s64.s32 {out}, {0};", a, out="i8"), a.astype("i8"))
    same(lanes("cvt.u64.u32 {out}, {0};", a.view("u4"), out="u8"), a.view("u4").astype("u8"))
    same(lanes("cvt.u32.u64 {out}, {0};", a.astype("i8").view("u8"), out="u4"), a.view("u4"))
    same(lanes("cvt.u16.u32 {out}, {0};", a.view("u4"), out="u2"), a.astype("u2"))
    same(lanes("cvt.s32.s8 {out}, {0};", a.view("u4"), out="i4"), a.astype("i1").astype("i4"))
    same(lanes("cvt.u32.u8 {out}, {0};", a.view("u4"), out="u4"), a.astype("u1").astype("u4"))
    f = some("f8")
    with np.errstate(all="ignore"):
        same(lanes("cvt.rn.f32.f64 {out}, {0};", f, out="f4"), f.astype("f4"))
    same(lanes("cvt.f64.f32 {out}, {0};", x := some("f4"), out="f8"), x.astype("f8"))
    x = np.linspace(-2, 2, 32).astype("f4")
    same(lanes("cvt.sat.f32.f32 {out}, {0};", x, out="f4"), np.clip(x, 0, 1))
    same(lanes("cvt.rni.f32.f32 {out}, {0};", x * 8, out="f4"), np.round(x * 8))


COMPARISONS = {
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
}


@pytest.mark.parametrize("kind", [*INTEGERS, "f32", "f64"])
def test_comparisons_and_selection(kind):
    dtype = INTEGERS.get(kind) or {"f32": "f4", "f64": "f8"}[kind]
    a, b = some(dtype), some(dtype)
    b[:8] = a[:8]
    nan = np.isnan(a) | np.isnan(b) if kind[0] == "f" else np.zeros(32, bool)
    for name, function in COMPARISONS.items():
        ordered = function(a, b) & ~nan
        assert (lanes(f"setp.{name}.{kind} {{out}}, {{0}}, {{1}};", a, b, out="?") == ordered).all(), name
        if kind[0] == "f":
            mine = lanes(f"setp.{name}u.{kind} {{out}}, {{0}}, {{1}};", a, b, out="?")
            assert (mine == (ordered | nan)).all(), name
    if kind[0] == "f":
        assert (lanes(f"setp.num.{kind} {{out}}, {{0}}, {{1}};", a, b, out="?") == ~nan).all()
        assert (lanes(f"setp.nan.{kind} {{out}}, {{0}}, {{1}};", a, b, out="?") == nan).all()
    chosen = RANDOM.random(32) < 0.5
    bits = kind if kind[0] != "u" else f"b{kind[1:]}"
    same(lanes(f"selp.{bits} {{out}}, {{0}}, {{1}}, {{2}};", a, b, chosen, out=dtype), np.where(chosen, a, b))


@pytest.mark.parametrize("kind", HALF)
def test_comparisons_of_two_halves(kind):
    """The first predicate is of the lower halves; one of the two may be left out."""
    (x, a), (y, b) = (half(kind) for _ in range(2))
    x[:8], a[:8] = y[:8], b[:8]
    low, high = x | y.astype("u4") << 16, y | x.astype("u4") << 16  # (a, b) against (b, a)
    for name, first, second in (
        ("lt", a < b, b < a),
        ("neu", a != b, b != a),
        ("nan", *[a.isnan() | b.isnan()] * 2),
    ):
        for target, wanted in (("{out}|%p3", first), ("%p3|{out}", second), ("{out}|_", first)):
            mine = lanes(f"setp.{name}.{kind}x2 {target}, {{0}}, {{1}};", low, high, out="?")
            assert (mine == wanted.numpy()).all(), (name, target)


def test_predicates():
    p, q = RANDOM.random(32) < 0.5, RANDOM.random(32) < 0.5
    for name, expected in (("and", p & q), ("or", p | q), ("xor", p ^ q)):
        assert (lanes(f"{name}.pred {{out}}, {{0}}, {{1}};", p, q, out="?") == expected).all()
    assert (lanes("not.pred {out}, {0};", p, out="?") == ~p).all()
    assert lanes("mov.pred {out}, -1;", p, out="?").all()
    a, b = some("u4"), some("u4")
    guarded = lanes("mov.b32 {out}, {0}; @{2} mov.b32 {out}, {1};", a, b, p, out="u4")
    same(guarded, np.where(p, b, a))
    same(lanes("mov.b32 {out}, {0}; @!{2} mov.b32 {out}, {1};", a, b, p, out="u4"), np.where(p, a, b))


def test_packing():
    a, b = some("u4"), some("u4")
    both = a.astype("u8") | b.astype("u8") << np.uint64(32)
    same(
        lanes("mov.b64 {out}, {{0}, {1}};".replace("{{0}, {1}}", "{" + "{0}, {1}" + "}"), a, b, out="u8"),
        both,
    )
    same(lanes("mov.b64 {_, {out}}, {0};".replace("_", "%r30"), both, out="u4"), b)
    octets = "{.reg .b8 s<4>; mov.b32 {s0, s1, s2, s3}, {0}; mov.b32 {out}, {s3, s0, s1, s2};}"
    same(lanes(octets, a, out="u4"), a << np.uint32(8) | a >> np.uint32(24))
    third = "{.reg .b8 s<4>; mov.b32 {s0, s1, s2, s3}, {0}; cvt.rn.f32.s8 {out}, s2;}"
    same(lanes(third, a, out="f4"), (a >> np.uint32(16)).astype("i1").astype("f4"))


def test_special_registers():
    lane = np.arange(32, dtype="u4")
    one = np.uint32(1) << lane
    expected = {"eq": one, "lt": one - 1, "le": one - 1 | one, "ge": ~(one - 1), "gt": ~(one - 1 | one)}
    for name, mask in expected.items():
        same(lanes(f"mov.u32 {{out}}, %lanemask_{name};", lane, out="u4"), mask)
    for kind, name in (("u64", "%globaltimer"), ("u64", "%clock64"), ("u32", "%clock")):
        size = kind.replace("u", "b")
        later = f"mov.{kind} {{out}}, {name}; mov.{kind} %{'d' if kind == 'u64' else 'r'}30, {name}; "
        later += f"sub.{kind} {{out}}, %{'d' if kind == 'u64' else 'r'}30, {{out}};"
        assert (lanes(later, lane, out=f"u{int(size[1:]) // 8}") > 0).all()


def shuffled(mode: str, values: np.ndarray, n: np.ndarray, c: int) -> tuple[np.ndarray, np.ndarray]:
    """shfl.sync, from the PTX manual."""
    clamp, segment = c & 31, c >> 8 & 31
    out, valid = values.copy(), np.zeros(32, bool)
    for lane in range(32):
        b = int(n[lane]) & 31
        last, first = (lane & segment) | (clamp & ~segment), lane & segment
        j = {"up": lane - b, "down": lane + b, "bfly": lane ^ b, "idx": first | (b & ~segment)}[mode]
        valid[lane] = j >= last if mode == "up" else j <= last
        out[lane] = values[j if valid[lane] else lane]
    return out, valid


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
@pytest.mark.parametrize("width", [32, 8])
def test_shuffles(mode, width):
    values, n = some("u4"), RANDOM.integers(0, 32, 32).astype("u4")
    c = ((32 - width) << 8) | (0 if mode == "up" else 31)
    text = f"shfl.sync.{mode}.b32 {{out}}, {{0}}, {{1}}, {c}, -1;"
    out, valid = shuffled(mode, values, n, c)
    same(lanes(text, values, n, out="u4"), out)
    text = text.replace("{out}", "%r30|{out}")
    assert (lanes(text, values, n, out="?") == valid).all()


def test_reductions_and_votes_of_a_warp():
    a = some("i4")
    for name, expected in (("add", a.sum(dtype="i4")), ("min", a.min()), ("max", a.max())):
        assert (lanes(f"redux.sync.{name}.s32 {{out}}, {{0}}, -1;", a, out="i4") == expected).all()
    u = a.view("u4")
    assert (lanes("redux.sync.max.u32 {out}, {0}, -1;", u, out="u4") == u.max()).all()
    for name, function in (("and", np.bitwise_and), ("or", np.bitwise_or), ("xor", np.bitwise_xor)):
        assert (lanes(f"redux.sync.{name}.b32 {{out}}, {{0}}, -1;", u, out="u4") == function.reduce(u)).all()
    p = RANDOM.random(32) < 0.5
    ballot = sum(int(bit) << k for k, bit in enumerate(p))
    assert (lanes("vote.sync.ballot.b32 {out}, {0}, -1;", p, out="u4") == ballot).all()
    assert lanes("vote.sync.any.pred {out}, {0}, -1;", p, out="?").all()
    assert not lanes("vote.sync.all.pred {out}, {0}, -1;", p, out="?").any()
    assert (lanes("elect.sync %r30|{out}, -1;", p, out="?") == (np.arange(32) == 0)).all()


def test_reductions_of_floats_in_a_warp():
    a = some("f4")
    number = a[~np.isnan(a)]
    assert (lanes("redux.sync.max.f32 {out}, {0}, -1;", a, out="f4") == number.max()).all()
    assert (lanes("redux.sync.min.f32 {out}, {0}, -1;", a, out="f4") == number.min()).all()
    assert np.isnan(lanes("redux.sync.max.NaN.f32 {out}, {0}, -1;", a, out="f4")).all()
    finite = np.nan_to_num(a, posinf=7, neginf=7, nan=3)
    size = lanes("redux.sync.min.abs.NaN.f32 {out}, {0}, -1;", finite, out="f4")
    assert (size == np.abs(finite).min()).all()


def test_registers_of_inline_assembly_have_any_name():
    a = some("u4")
    text = "{ .reg .b32 t, word; mov.b32 t, {0}; add.u32 word, t, 1; mov.b32 {out}, word; }"
    same(
        lanes(
            text.replace("{ .", "{{ .").replace("; }", "; }}").replace("{{", "{").replace("}}", "}"),
            a,
            out="u4",
        ),
        a + 1,
    )


def test_a_part_of_a_parameter():
    out = np.zeros(32, "u2")
    body = "ld.param.b16 %h1, [p0]; mad.wide.u32 %d10, %r0, 2, %d0; st.global.b16 [%d10], %h1;"
    text = kernel(body, 1).replace(".param .u64 p0)", ".param .u64 p0)")
    ptx_machine.run(text, (1,), [out]).check()
    assert len(set(out)) == 1  # the low half of the address


def test_hints_change_nothing():
    a = some("u4")
    for hint in (
        "nanosleep.u32 20",
        "griddepcontrol.wait",
        "griddepcontrol.launch_dependents",
        "prefetch.global.L2 [%d0]",
    ):
        same(lanes(f"{hint}; mov.b32 {{out}}, {{0}};", a, out="u4"), a)


def test_compare_and_swap_of_16_bits():
    cell, out = np.array([5, 77], "u2"), np.zeros(32, "u2")
    body = """
    cvt.u16.u32 %h2, %r0; mad.wide.u32 %d10, %r0, 2, %d1;
    atom.global.acq_rel.gpu.cas.b16 %h1, [%d0], 5, %h2;
    st.global.b16 [%d10], %h1;
    """
    ptx_machine.run(kernel(body, 2), (1,), [cell, out]).check()
    assert cell[1] == 77 and (out == 5).sum() == 1 and cell[0] == np.flatnonzero(out == 5)[0]


@pytest.mark.parametrize(("kind", "dtype"), [("f16x2", torch.float16), ("bf16x2", torch.bfloat16)])
def test_an_atomic_of_two_halves(kind, dtype):
    cell = torch.tensor([1.0, 2.0]).to(dtype)
    one = int(torch.tensor([1.0, 0.5]).to(dtype).view(torch.int32))
    ptx_machine.run(kernel(f"red.relaxed.gpu.global.add.noftz.{kind} [%d0], {one};", 1), (1,), [cell]).check()
    assert cell.tolist() == [33.0, 18.0]


def fragments(matrix: np.ndarray, half_: bool, transposed: bool) -> list[np.ndarray]:
    """The registers of mma.sync's operand a (or b, transposed): groups of 8 rows and 8 (tf32: 4) columns.

    In each of them lane l holds row l / 4, and column l % 4, or with 16 bits columns 2 (l % 4) and the next.
    """
    step = 8 if half_ else 4
    source = matrix.T if transposed else matrix
    registers = []
    for first_column in range(0, source.shape[1], step):
        for first_row in range(0, source.shape[0], 8):
            lane = np.arange(32)
            row = first_row + lane // 4
            if half_:
                column = first_column + lane % 4 * 2
                registers.append(
                    source[row, column].astype("u4") | source[row, column + 1].astype("u4") << 16
                )
            else:
                registers.append(source[row, first_column + lane % 4])
    return registers


@pytest.mark.parametrize(
    ("kind", "depth"), [("f16", 16), ("f16", 8), ("bf16", 16), ("bf16", 8), ("tf32", 8), ("tf32", 4)]
)
def test_tensor_core_products(kind, depth):
    """mma.sync against a product of matrices in fp64."""
    c = RANDOM.normal(size=(16, 8)).astype("f4")
    if kind == "tf32":
        a, b = (RANDOM.normal(size=s).astype("f4") for s in ((16, depth), (depth, 8)))
        raw = [x.view("u4") for x in (a, b)]
        values = [(x & 0xFFFFE000).view("f4").astype("f8") for x in raw]  # the low bits are ignored
    else:
        tensors = [torch.from_numpy(RANDOM.normal(size=s)).to(HALF[kind]) for s in ((16, depth), (depth, 8))]
        raw = [x.view(torch.int16).numpy().view("u2") for x in tensors]
        values = [x.double().numpy() for x in tensors]
    operands = fragments(raw[0], kind != "tf32", False) + fragments(raw[1], kind != "tf32", True)
    lane = np.arange(32)
    accumulators = [c[lane // 4 + 8 * (r >> 1), lane % 4 * 2 + (r & 1)] for r in range(4)]
    na, nb = len(fragments(raw[0], kind != "tf32", False)), len(fragments(raw[1], kind != "tf32", True))

    def registers(first: int, count: int) -> str:
        return "{" + ", ".join(f"{{{k}}}" for k in range(first, first + count)) + "}"

    for r in range(4):
        target = "{" + ", ".join("{out}" if k == r else f"%r{30 + k}" for k in range(4)) + "}"
        sources = ", ".join([registers(0, na), registers(na, nb), registers(na + nb, 4)])
        text = f"mma.sync.aligned.m16n8k{depth}.row.col.f32.{kind}.{kind}.f32 {target}, {sources};"
        mine = lanes(text, *operands, *accumulators, out="f4")
        exact_ = (values[0] @ values[1] + c)[lane // 4 + 8 * (r >> 1), lane % 4 * 2 + (r & 1)]
        np.testing.assert_allclose(mine, exact_, rtol=2e-7, atol=2e-7)


@pytest.mark.parametrize("depth", [16, 32])
@pytest.mark.parametrize("kinds", [("s8", "s8"), ("u8", "u8"), ("s8", "u8"), ("u8", "s8")])
@pytest.mark.parametrize("stop", ["", ".satfinite"])
def test_tensor_core_products_of_bytes(kinds, depth, stop):
    info = {"s8": (-128, 128, "i1"), "u8": (0, 256, "u1")}
    a, b = (
        RANDOM.integers(*info[kind][:2], size).astype(info[kind][2])
        for kind, size in zip(kinds, ((16, depth), (depth, 8)))
    )
    c = RANDOM.integers(-(2**31), 2**31, (16, 8)).astype("i4")
    c[:4], c[4:8] = 2**31 - 5, -(2**31) + 5
    lane = np.arange(32)
    row, four = lane // 4, lane % 4 * 4

    def packed(columns) -> np.ndarray:
        return sum(columns[h].astype("u1").astype("u4") << 8 * h for h in range(4)).astype("u4")

    factors = [
        packed([a[row + 8 * (r & 1), four + h + 16 * (r >> 1)] for h in range(4)]) for r in range(depth // 8)
    ]
    factors += [packed([b[four + h + 16 * r, row] for h in range(4)]) for r in range(depth // 16)]
    sums = [c[row + 8 * (r >> 1), lane % 4 * 2 + (r & 1)].view("u4") for r in range(4)]
    exact_ = a.astype("i8") @ b.astype("i8") + c
    wanted = np.clip(exact_, -(2**31), 2**31 - 1) if stop else exact_
    na = depth // 8
    groups = [range(na), range(na, len(factors)), range(len(factors), len(factors) + 4)]
    sources = ", ".join("{" + ", ".join(f"{{{k}}}" for k in group) + "}" for group in groups)
    for r in range(4):
        target = "{" + ", ".join("{out}" if k == r else f"%r{30 + k}" for k in range(4)) + "}"
        name = f"mma.sync.aligned.m16n8k{depth}.row.col{stop}.s32.{kinds[0]}.{kinds[1]}.s32"
        mine = lanes(f"{name} {target}, {sources};", *factors, *sums, out="u4")
        same(mine, wanted[row + 8 * (r >> 1), lane % 4 * 2 + (r & 1)].astype("i8").astype("u4"))


@pytest.mark.parametrize("trans", ["", ".trans"])
def test_matrices_of_shared_memory(trans):
    """Four 8 x 8 matrices, stored row by row and loaded by ldmatrix; and stored by stmatrix."""
    matrices = RANDOM.integers(0, 1 << 16, (4, 8, 8)).astype("u2")
    out = np.zeros((4, 32), "u4")
    load = f"""
    mad.wide.u32 %d10, %r0, 16, %d0;
    mov.b32 %r1, buffer; shl.b32 %r2, %r0, 4; add.s32 %r1, %r1, %r2;
    ld.global.v4.b32 {{%r3, %r4, %r5, %r6}}, [%d10];
    st.shared.v4.b32 [%r1], {{%r3, %r4, %r5, %r6}};
    bar.sync 0;
    ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{%r10, %r11, %r12, %r13}}, [%r1];
    mad.wide.u32 %d11, %r0, 4, %d1;
    st.global.b32 [%d11], %r10; st.global.b32 [%d11+128], %r11;
    st.global.b32 [%d11+256], %r12; st.global.b32 [%d11+384], %r13;
    """
    ptx_machine.run(kernel(load, 2, shared=512), (1,), [matrices, out]).check()
    lane = np.arange(32)
    for k in range(4):
        m = matrices[k].T if trans else matrices[k]
        row, column = lane // 4, lane % 4 * 2
        same(out[k], m[row, column].astype("u4") | m[row, column + 1].astype("u4") << 16)
    back = np.zeros_like(matrices)
    store = f"""
    mad.wide.u32 %d11, %r0, 4, %d0;
    ld.global.b32 %r10, [%d11]; ld.global.b32 %r11, [%d11+128];
    ld.global.b32 %r12, [%d11+256]; ld.global.b32 %r13, [%d11+384];
    mov.b32 %r1, buffer; shl.b32 %r2, %r0, 4; add.s32 %r1, %r1, %r2;
    stmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 [%r1], {{%r10, %r11, %r12, %r13}};
    bar.warp.sync -1;
    ld.shared.v4.b32 {{%r3, %r4, %r5, %r6}}, [%r1];
    mad.wide.u32 %d10, %r0, 16, %d1;
    st.global.v4.b32 [%d10], {{%r3, %r4, %r5, %r6}};
    """
    ptx_machine.run(kernel(store, 2, shared=512), (1,), [out, back]).check()
    assert (back == matrices).all()


@pytest.mark.parametrize("space", ["global", "shared"])
def test_atomics(space):
    """Every lane changes the same cell; each sees the value before its own change."""
    values = RANDOM.integers(1, 100, 32).astype("u4")
    start = np.uint32(50)
    reduce_ = {
        "add": np.add,
        "min": np.minimum,
        "max": np.maximum,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
    }
    for name, function in reduce_.items():
        final, before = atomic(
            f"atom.{space}.{name}.{'b32' if name in ('and', 'or', 'xor') else 'u32'} %r10, [ADDRESS], %r9",
            values,
            start,
            space,
        )
        assert (
            final == function.reduce(values, initial=start)
            if name in ("add", "xor", "or")
            else final == function(start, function.reduce(values))
        )
        assert start in before
    final, before = atomic(f"atom.{space}.exch.b32 %r10, [ADDRESS], %r9", values, start, space)
    assert sorted([*before, final]) == sorted([start, *values])
    final, before = atomic(f"atom.{space}.cas.b32 %r10, [ADDRESS], 50, %r9", values, start, space)
    assert (before == start).sum() == 1 and final in values
    final, before = atomic(f"atom.{space}.inc.u32 %r10, [ADDRESS], 60", values, start, space)
    assert final == (50 + 32) % 61 and len(set(before)) == 32
    final, _ = atomic(
        f"atom.{space}.add.f32 %r10, [ADDRESS], 0f3F800000", values, np.float32(50).view("u4"), space
    )
    assert final.view("f4") == 82


@pytest.mark.parametrize(("space", "flushed"), [("global", True), ("shared", False)])
def test_an_atomic_sum_flushes_subnormals_in_global_memory_only(space, flushed):
    small = np.float32(2.0**-130)
    values = np.full(32, small).view("u4")
    for start, exact in (
        (small, 33 * small),
        (np.float32(-(2.0**-126)), np.float32(-(2.0**-126)) + 32 * small),
    ):
        final, _ = atomic(f"atom.{space}.add.f32 %r10, [ADDRESS], %r9", values, start.view("u4"), space)
        assert final.view("f4") == ((0 if start > 0 else start) if flushed else exact)


def atomic(instruction, values, start, space):
    out, cell = np.zeros(32, "u4"), np.array([start], "u4")
    address = "%d2" if space == "global" else "buffer"
    body = f"""
    mad.wide.u32 %d10, %r0, 4, %d0; ld.global.b32 %r9, [%d10];
    setp.eq.b32 %p1, %r0, 0;
    ld.global.b32 %r11, [%d2];
    @%p1 st.shared.b32 [buffer], %r11;
    bar.sync 0;
    {instruction.replace("ADDRESS", address)};
    bar.sync 0;
    mad.wide.u32 %d11, %r0, 4, %d1; st.global.b32 [%d11], %r10;
    {"@%p1 ld.shared.b32 %r12, [buffer]; @%p1 st.global.b32 [%d2], %r12;" if space == "shared" else ""}
    """
    ptx_machine.run(kernel(body, 3, shared=16), (1,), [values, out, cell]).check()
    return cell[0], out


def test_copies_arrive_in_groups_and_fill_with_zeros():
    """Each lane copies 16 bytes; odd lanes read 4 of them only, and the rest is zero."""
    source = RANDOM.integers(0, 256, (32, 16)).astype("u1")
    out = np.zeros_like(source)
    body = """
    mov.b32 %r1, buffer; shl.b32 %r2, %r0, 4; add.s32 %r1, %r1, %r2;
    mad.wide.u32 %d10, %r0, 16, %d0; mad.wide.u32 %d11, %r0, 16, %d1;
    and.b32 %r3, %r0, 1; setp.eq.b32 %p1, %r3, 1; selp.b32 %r4, 4, 16, %p1;
    cp.async.cg.shared.global [%r1], [%d10], 16, %r4;
    cp.async.commit_group;
    cp.async.wait_group 0;
    ld.shared.v4.b32 {%r10, %r11, %r12, %r13}, [%r1];
    st.global.v4.b32 [%d11], {%r10, %r11, %r12, %r13};
    """
    ptx_machine.run(kernel(body, 2, shared=512), (1,), [source, out]).check()
    expected = source.copy()
    expected[1::2, 4:] = 0
    assert (out == expected).all()
    for late in ("wait_group 1", "commit_group"):  # one group is allowed to be pending: this one
        report = ptx_machine.run(
            kernel(body.replace("wait_group 0", late), 2, shared=512), (1,), [source, out]
        )
        assert {finding.kind for finding in report.races} == {"PENDING_COPY"}


def test_vectors_and_narrow_loads():
    source = RANDOM.integers(0, 256, 32 * 8).astype("u1")
    same(
        lanes("ld.global.s8 {out}, [%d40];", source[:256].view("u8"), out="i4"),
        source.view("i1")[::8].astype("i4"),
    )
    same(
        lanes("ld.global.v2.b32 {{out}, %r31}, [%d40];", source.view("u8"), out="u4"), source.view("u4")[::2]
    )
    same(
        lanes("ld.global.v4.u16 {%h20, %h21, %h22, {out}}, [%d40];", source.view("u8"), out="u2"),
        source.view("u2")[3::4],
    )


def test_lanes_may_take_different_ways():
    """The number of Collatz steps of every lane: a loop that each lane leaves at another time."""
    start = np.arange(1, 33, dtype="u4")
    out = np.zeros(32, "u4")
    body = """
    mad.wide.u32 %d10, %r0, 4, %d0; mad.wide.u32 %d11, %r0, 4, %d1;
    ld.global.b32 %r1, [%d10]; mov.b32 %r2, 0;
    $L_loop:
    setp.eq.b32 %p1, %r1, 1;
    @%p1 bra $L_done;
    add.s32 %r2, %r2, 1;
    and.b32 %r3, %r1, 1; setp.eq.b32 %p2, %r3, 1;
    @%p2 bra $L_odd;
    shr.u32 %r1, %r1, 1;
    bra.uni $L_loop;
    $L_odd:
    mad.lo.s32 %r1, %r1, 3, 1;
    bra.uni $L_loop;
    $L_done:
    bar.warp.sync -1;
    st.global.b32 [%d11], %r2;
    """
    ptx_machine.run(kernel(body, 2), (1,), [start, out]).check()

    def steps(n):
        return 0 if n == 1 else 1 + steps(3 * n + 1 if n % 2 else n // 2)

    assert (out == [steps(int(n)) for n in start]).all()
