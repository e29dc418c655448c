"""Numbers of 8 bits, e4m3 and e5m2: all conversions against ml_dtypes, products on tensor cores."""

import math

import formats
import numpy as np
import pytest
from ptx_text import elementwise, lanes

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton", reason="Triton has no wheels for this platform")
tl = pytest.importorskip("triton.language")

import ptx_machine  # noqa: E402

KINDS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
MOST = {"e4m3": 448.0, "e5m2": 57344.0}
RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("relu", ["", ".relu"])
@pytest.mark.parametrize("wide", ["f16", "bf16"])
def test_from_8_bits(kind, relu, wide):
    raw = np.arange(1 << 16, dtype="u2")
    mine = elementwise(f"cvt.rn{relu}.{wide}x2.{kind}x2 {{out}}, {{0}};", raw, out="u4")
    dtype = formats.DTYPE[wide]
    with np.errstate(all="ignore"):
        exact = raw.view("u1").view(formats.DTYPE[kind]).astype(dtype)
        exact = np.where(exact <= 0, dtype(0), exact) if relu else exact
        both_nan = np.isnan(mine.view(dtype)) & np.isnan(exact)
    assert ((mine.view("u2") == exact.view("u2")) | both_nan).all()


def nearest(values: np.ndarray, kind: str, relu: bool) -> np.ndarray:
    """By definition: the nearest number, the even one of two; NaN stays, and the range has ends."""

    def one(value: float) -> int:
        if math.isnan(value):
            return 0x7F
        if relu and value <= 0:
            return 0
        size = min(abs(value), MOST[kind])
        return formats.bits_of(formats.rounded(size, kind, "rn"), kind) | (
            0x80 if math.copysign(1, value) < 0 else 0
        )

    return np.array([one(float(value)) for value in values], "u1")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("relu", ["", ".relu"])
def test_to_8_bits(kind, relu):
    halves = np.arange(1 << 16, dtype="u2")[:: 1 if not relu else 7]
    halves = halves[: len(halves) // 2 * 2].copy()
    text = f"cvt.rn.satfinite{relu}.{kind}x2"
    for wide in ("f16", "bf16"):
        mine = elementwise(f"{text}.{wide}x2 {{out}}, {{0}};", halves.view("u4"), out="u2").view("u1")
        assert (mine == nearest(halves.view(formats.DTYPE[wide]), kind, bool(relu))).all()
    floats = formats.edges("f32")
    other = floats[::-1].copy()
    mine = elementwise(f"{text}.f32 {{out}}, {{0}}, {{1}};", floats, other, out="u2").view("u1")
    assert (mine[1::2] == nearest(floats, kind, bool(relu))).all()  # the first one is the upper half
    assert (mine[::2] == nearest(other, kind, bool(relu))).all()


@pytest.mark.parametrize("depth", [16, 32])
@pytest.mark.parametrize("kinds", [("e4m3", "e4m3"), ("e5m2", "e4m3"), ("e4m3", "e5m2")])
@pytest.mark.parametrize("sums", ["f32", "f16"])
def test_products_of_a_warp(kinds, depth, sums):
    a, b = (
        RANDOM.normal(size=size).astype(formats.DTYPE[kind])
        for kind, size in zip(kinds, ((16, depth), (depth, 8)))
    )
    c = RANDOM.normal(size=(16, 8)).astype("f4" if sums == "f32" else "f2")
    lane = np.arange(32)
    row, four, two = lane // 4, lane % 4 * 4, lane % 4 * 2

    def packed(columns) -> np.ndarray:
        return sum(column.view("u1").astype("u4") << 8 * h for h, column in enumerate(columns)).astype("u4")

    factors = [
        packed([a[row + 8 * (r & 1), four + h + 16 * (r >> 1)] for h in range(4)]) for r in range(depth // 8)
    ]
    factors += [packed([b[four + h + 16 * r, row] for h in range(4)]) for r in range(depth // 16)]
    if sums == "f32":
        added = [c[row + 8 * (r >> 1), two + (r & 1)] for r in range(4)]
    else:
        added = [
            np.stack([c[row + 8 * r, two], c[row + 8 * r, two + 1]], 1).copy().view("u4")[:, 0]
            for r in range(2)
        ]
    exact = a.astype("f8") @ b.astype("f8") + c
    count, na = len(added), depth // 8
    groups = [range(na), range(na, len(factors)), range(len(factors), len(factors) + count)]
    sources = ", ".join("{" + ", ".join(f"{{{k}}}" for k in group) + "}" for group in groups)
    name = f"mma.sync.aligned.m16n8k{depth}.row.col.{sums}.{kinds[0]}.{kinds[1]}.{sums}"
    for r in range(count):
        target = "{" + ", ".join("{out}" if k == r else f"%r{30 + k}" for k in range(count)) + "}"
        mine = lanes(f"{name} {target}, {sources};", *factors, *added, out="u4")
        if sums == "f32":
            wanted = exact[row + 8 * (r >> 1), two + (r & 1)].astype("f4")
            np.testing.assert_allclose(mine.view("f4"), wanted, rtol=2e-7, atol=2e-7)
        else:
            wanted = np.stack([exact[row + 8 * r, two], exact[row + 8 * r, two + 1]], 1).astype("f2")
            assert (mine.view("f2").reshape(32, 2) == wanted).all()


@triton.jit
def product_kernel(
    a_ptr, b_ptr, c_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    B_TURNED: tl.constexpr, OUT: tl.constexpr,
):  # fmt: skip
    rows, cols, inner = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a = tl.load(a_ptr + rows[:, None] * K + inner[None, :])
    if B_TURNED:
        b = tl.trans(tl.load(b_ptr + cols[:, None] * K + inner[None, :]))
    else:
        b = tl.load(b_ptr + inner[:, None] * N + cols[None, :])
    tl.store(c_ptr + rows[:, None] * N + cols[None, :], tl.dot(a, b, out_dtype=OUT))


OPCODES = {"sm_90": "wgmma.mma_async", "sm_100": "tcgen05.mma", "sm_120": "mma.sync"}


@pytest.mark.parametrize("arch", OPCODES)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("kind", ["e4m3", "e5m2", "s8", "f16"])
def test_products_in_the_layouts_of_triton(arch, turned, kind):
    """Sums are f32 for 8 bits, s32 for integers, and f16 for f16."""
    torch.manual_seed(0)
    dtype = {**KINDS, "s8": torch.int8, "f16": torch.float16}[kind]
    small = torch.randn(2, 64, 64) if kind != "s8" else torch.randint(-128, 128, (2, 64, 64))
    a, b = small[0].to(dtype), small[1].to(dtype)
    out, sums = {"s8": (torch.int32, tl.int32), "f16": (torch.float16, tl.float16)}.get(
        kind, (torch.float32, tl.float32)
    )
    c = torch.zeros(64, 64, dtype=out)
    with ptx_machine.on_machine(arch) as reports:
        product_kernel[1,](a, b.T.contiguous() if turned else b, c, 64, 64, 64, turned, sums)
    reports[0].check()
    error = 2e-2 if kind == "f16" else 1e-6
    torch.testing.assert_close(c.double(), a.double() @ b.double(), rtol=error, atol=20 * error)
    assert any(name.startswith(OPCODES[arch]) for name in reports[0].counts())


@triton.jit
def scaled_kernel(
    a_ptr, a_scale_ptr, b_ptr, b_scale_ptr, c_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    KIND: tl.constexpr, PER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    rows, cols, inner, blocks = (
        tl.arange(0, M),
        tl.arange(0, N),
        tl.arange(0, K // PER),
        tl.arange(0, K // BLOCK),
    )
    a = tl.load(a_ptr + rows[:, None] * (K // PER) + inner[None, :])
    b = tl.load(b_ptr + cols[None, :] * (K // PER) + inner[:, None])
    a_scale = tl.load(a_scale_ptr + rows[:, None] * (K // BLOCK) + blocks[None, :])
    b_scale = tl.load(b_scale_ptr + cols[:, None] * (K // BLOCK) + blocks[None, :])
    c = tl.dot_scaled(a, a_scale, KIND, b, b_scale, KIND)
    tl.store(c_ptr + rows[:, None] * N + cols[None, :], c)


@pytest.mark.parametrize("arch", ["sm_90", "sm_100", "sm_120"])
@pytest.mark.parametrize("kind", ["e4m3", "e5m2", "e2m1", "e2m1 in blocks of 16"])
def test_products_with_a_scale_for_each_block(arch, kind):
    torch.manual_seed(0)
    kind, _, small = kind.partition(" in ")
    m, n, k, block = 128, 32, 128, 16 if small else 32
    if small and arch == "sm_90":
        pytest.skip("Triton emulates blocks of 32 only")
    if kind == "e2m1":
        a, b = (torch.randint(0, 256, (rows, k // 2), dtype=torch.uint8) for rows in (m, n))
        sizes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
        values = torch.cat([sizes, -sizes])
        wide = [values[torch.stack([x & 15, x >> 4], -1).flatten(1).long()] for x in (a, b)]
    else:
        a, b = (torch.randn(rows, k).to(KINDS[kind]) for rows in (m, n))
        wide = [a.float(), b.float()]
    if small:
        scales = [torch.rand(rows, k // block).add(0.1).to(torch.float8_e4m3fn) for rows in (m, n)]
        exact_scales = [x.double() for x in scales]
    else:
        scales = [torch.randint(120, 134, (rows, k // block), dtype=torch.uint8) for rows in (m, n)]
        exact_scales = [torch.exp2(x.double() - 127) for x in scales]
    c = torch.zeros(m, n)
    given = [x if x.dtype == torch.uint8 else x.view(torch.uint8) for x in (a, b)]
    with ptx_machine.on_machine(arch) as reports:
        scaled_kernel[1,](
            given[0], scales[0], given[1], scales[1], c, m, n, k, kind, 2 if kind == "e2m1" else 1, block
        )
    reports[0].check()
    x, y = (value.double() * scale.repeat_interleave(block, 1) for value, scale in zip(wide, exact_scales))
    torch.testing.assert_close(c.double(), x @ y.T, rtol=1e-5, atol=2e-2)
    assert arch == "sm_90" or any("block_scale" in name for name in reports[0].counts())
