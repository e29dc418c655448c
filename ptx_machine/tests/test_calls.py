"""Functions, memory of a lane, lists of labels, barriers of some warps, sums with a carry."""

import numpy as np
import pytest
from ptx_text import elementwise, kernel, lanes

import ptx_machine

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton", reason="Triton has no wheels for this platform")
tl = pytest.importorskip("triton.language")

RANDOM = np.random.default_rng(0)


@triton.jit(noinline=True)
def steps(value):
    """Of Collatz's sequence, until it is 1."""
    count = 0
    while value != 1:
        value = value // 2 if value % 2 == 0 else 3 * value + 1
        count += 1
    return count, value + 6


@triton.jit
def calling_kernel(x_ptr, y_ptr):
    place = tl.program_id(0)
    one, seven = steps(tl.load(x_ptr + place))
    two, _ = steps(tl.load(x_ptr + place) + 1)
    tl.store(y_ptr + place, (one * 1000 + two) * 10 + seven)


def test_functions_have_registers_of_their_own():
    def count(value):
        return 0 if value == 1 else 1 + count(value // 2 if value % 2 == 0 else 3 * value + 1)

    x, y = torch.arange(1, 12, dtype=torch.int32), torch.zeros(11, dtype=torch.int32)
    with ptx_machine.on_machine("sm_80") as reports:
        calling_kernel[11,](x, y)
    reports[0].check()
    assert y.tolist() == [(count(v) * 1000 + count(v + 1)) * 10 + 7 for v in range(1, 12)]


@triton.jit
def printing_kernel(x_ptr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    tl.device_print("x", x)
    tl.store(x_ptr + tl.arange(0, N), 2 * x)


@pytest.mark.parametrize(
    ("dtype", "shown"), [(torch.float32, "-2.500000"), (torch.int64, "-2"), (torch.int32, "-2")]
)
def test_a_kernel_prints(capfd, dtype, shown):
    x = torch.full((32,), -2.5).to(dtype)
    with ptx_machine.on_machine("sm_80") as reports:
        printing_kernel[1,](x, 32, num_warps=1)
    reports[0].check()
    printed = capfd.readouterr().out.splitlines()
    assert sorted(printed) == sorted(f"pid (0, 0, 0) idx ({lane:2d}) x: {shown}" for lane in range(32))


@triton.jit
def asserting_kernel(x_ptr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    tl.device_assert(x >= 0, "x is negative")
    tl.store(x_ptr + tl.arange(0, N), 2 * x)


def test_an_assertion_that_fails_ends_the_kernel():
    with ptx_machine.on_machine("sm_80") as reports:
        asserting_kernel[1,](torch.arange(32.0), 32, debug=True)
        with pytest.raises(ptx_machine.MachineError, match="assertion failed: x is negative"):
            asserting_kernel[1,](-torch.ones(32), 32, debug=True)
    reports[0].check()


@triton.jit
def trigonometry_kernel(x_ptr, y_ptr, N: tl.constexpr):
    place = tl.arange(0, N)
    tl.store(y_ptr + place, tl.cos(tl.load(x_ptr + place)))


def test_a_table_of_the_module_and_memory_of_a_lane():
    """Large angles are reduced by the digits of 2 / pi, in an array that each lane has."""
    x, y = torch.randn(128) * 1e7, torch.zeros(128)
    with ptx_machine.on_machine("sm_80", edit=lambda text: used.append(text) or text) as reports:
        used = []
        trigonometry_kernel[1,](x, y, 128)
    reports[0].check()
    torch.testing.assert_close(y, x.double().cos().float(), rtol=1e-5, atol=1e-6)
    assert "ld.local" in used[0] and "__cudart_i2opi_f" in used[0] and "mad.lo.cc" in used[0]


def local(body: str) -> str:
    return kernel(".local .align 8 .b8 mine[16]; cvt.u64.u32 %d2, %r0; " + body, 1)


def test_memory_of_a_lane_is_its_own_and_has_bounds():
    out = np.zeros(32, "u4")
    body = """
    mov.b64 %d3, mine; cvta.local.u64 %d4, %d3;
    st.local.v2.b32 [mine+8], {%r0, %r0};
    ld.b32 %r1, [%d4+12];
    mad.wide.u32 %d5, %r0, 4, %d0; st.global.b32 [%d5], %r1;
    """
    ptx_machine.run(local(body), (1,), [out]).check()
    assert (out == np.arange(32)).all()
    report = ptx_machine.run(local("st.local.b32 [mine+16], %r0;"), (1,), [out])
    assert [(f.kind, f.place) for f in report.violations] == [
        ("OUT_OF_BOUNDS", "byte 16 of the memory of a lane")
    ]


def test_a_list_of_labels():
    body = """
    JUMPS: .branchtargets $L_a, $L_b, $L_c;
    rem.u32 %r1, %r0, 3; mov.b32 %r2, 0;
    brx.idx %r1, JUMPS;
    $L_a: add.s32 %r2, %r2, 1;
    $L_b: add.s32 %r2, %r2, 10;
    $L_c: add.s32 %r2, %r2, 100;
    mad.wide.u32 %d1, %r0, 4, %d0; st.global.b32 [%d1], %r2;
    """
    out = np.zeros(32, "u4")
    ptx_machine.run(kernel(body, 1), (1,), [out]).check()
    assert (out == np.array([111, 110, 100] * 11)[:32]).all()
    with pytest.raises(ptx_machine.MachineError, match="its index is not in the list"):
        ptx_machine.run(kernel(body.replace("rem.u32 %r1, %r0, 3", "mov.b32 %r1, 3"), 1), (1,), [out])


# Warps 0 and 1 exchange their words, and so do 2 and 3; each pair has a barrier of its own.
PAIRS = """
    mov.b32 %r1, buffer; shl.b32 %r2, %r0, 2; add.s32 %r3, %r1, %r2;
    xor.b32 %r4, %r2, 128; add.s32 %r4, %r1, %r4;
    st.shared.b32 [%r3], %r0;
    setp.lt.u32 %p1, %r0, 64;
    @%p1 bar.sync 1, 64;
    @!%p1 bar.sync 2, 64;
    ld.shared.b32 %r5, [%r4];
    mad.wide.u32 %d1, %r0, 4, %d0; st.global.b32 [%d1], %r5;
    bar.sync 0;
"""


@pytest.mark.parametrize("seed", range(4))
def test_barriers_of_some_warps(seed):
    out = np.zeros(128, "u4")
    ptx_machine.run(kernel(PAIRS, 1, threads=128, shared=512), (1,), [out], seed=seed).check()
    assert (out == np.arange(128) ^ 32).all()


def test_a_barrier_of_others_orders_nothing():
    found = set()
    for seed in range(6):
        text = kernel(PAIRS.replace("%r2, 128", "%r2, 256"), 1, threads=128, shared=512)
        report = ptx_machine.run(text, (1,), [np.zeros(128, "u4")], seed=seed)
        found |= {finding.kind for finding in (*report.races, *report.violations)}
    assert found & {"READ_AFTER_WRITE", "UNINITIALISED"}


@pytest.mark.parametrize("bits", [32, 64])
def test_sums_with_a_carry(bits):
    few = np.array([0, 1, 2, (1 << bits) - 1, (1 << bits) - 2, 1 << bits - 1, 0x12345678], f"u{bits // 8}")
    a, b = (x.ravel() for x in np.meshgrid(few, few))
    kind, out = f"u{bits}", f"u{bits // 8}"
    register = "%r" if bits == 32 else "%d"
    spare = f"{register}30"

    def both(low: str, high: str, *inputs) -> np.ndarray:
        return elementwise(
            f"{low}.cc.{kind} {spare}, {{0}}, {{1}}; {high}.{kind} {{out}}, {{0}}, {{1}};", *inputs, out=out
        )

    top = [int(x) + int(y) + (int(x) + int(y) >> bits) for x, y in zip(a, b)]
    assert (both("add", "addc", a, b) == np.array([v % (1 << bits) for v in top], out)).all()
    top = [int(x) - int(y) - (int(x) < int(y)) for x, y in zip(a, b)]
    assert (both("sub", "subc", a, b) == np.array([v % (1 << bits) for v in top], out)).all()
    text = f"mad.lo.cc.{kind} {spare}, {{0}}, {{1}}, {{0}}; madc.hi.{kind} {{out}}, {{0}}, {{1}}, 0;"
    mine = elementwise(text, a, b, out=out)
    assert (mine == np.array([(int(x) * int(y) + int(x)) >> bits for x, y in zip(a, b)], out)).all()


@pytest.mark.parametrize("kind", ["u16x2", "s16x2"])
@pytest.mark.parametrize("name", ["min", "max"])
def test_two_integers_in_a_register(kind, name):
    a, b = (np.frombuffer(RANDOM.bytes(128), f"{kind[0].replace('s', 'i')}2") for _ in range(2))
    mine = lanes(f"{name}.{kind} {{out}}, {{0}}, {{1}};", a.view("u4"), b.view("u4"), out="u4")
    assert (mine.view(a.dtype) == getattr(np, f"{name}imum")(a, b)).all()


@pytest.mark.parametrize(("kind", "width"), [("f32", 4), ("f32", 2), ("f16x2", 4)])
def test_atomics_of_vectors_add_every_element(kind, width):
    """All lanes add to one place; each element sees sums that grow by one."""
    names = [f"%r{k}" for k in range(20, 20 + width)]
    one = "0f3F800000" if kind == "f32" else "0x3C003C00"
    ones = ", ".join(["%r1"] * width)
    noftz = ".noftz" if kind == "f16x2" else ""
    body = f"""
    mov.b32 %r1, {one};
    atom.global.gpu.relaxed.add{noftz}.v{width}.{kind} {{{", ".join(names)}}}, [%d0], {{{ones}}};
    mad.wide.u32 %d2, %r0, 4, %d1; st.global.b32 [%d2], {names[-1]};
    """
    dtype = "f4" if kind == "f32" else "f2"
    sums, seen = np.zeros(width * (1 if kind == "f32" else 2), dtype), np.zeros(32, "u4")
    ptx_machine.run(kernel(body, 2), (1,), [sums, seen]).check()
    assert (sums == 32).all()
    assert sorted(seen.view(dtype).reshape(32, -1)[:, 0]) == list(range(32))


@triton.jit
def pointing_kernel(pointers_ptr, N: tl.constexpr):
    x = tl.load(pointers_ptr + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    tl.store(x + tl.arange(0, N), tl.load(x + tl.arange(0, N)) + 1)


def test_tensors_whose_addresses_are_in_memory():
    x = [torch.arange(64.0), -torch.arange(64.0)]
    before = [one.clone() for one in x]
    with ptx_machine.on_machine("sm_80") as reports:
        pointers = torch.tensor([one.data_ptr() for one in x])
        pointing_kernel[2,](pointers, 64)
        pointing_kernel[2,](pointers, 128)
    reports[0].check()
    assert {finding.kind for finding in reports[1].violations} == {"OUT_OF_BOUNDS"}
    assert all(torch.equal(mine[:64], one + 2) for mine, one in zip(x, before))


def test_addresses_of_one_tensor_may_meet():
    x = torch.zeros(64)
    with ptx_machine.on_machine("sm_80") as reports:
        pointing_kernel[2,](torch.tensor([x.data_ptr()] * 2), 64)
    assert {finding.kind for finding in reports[0].races} & {
        "READ_AFTER_WRITE",
        "WRITE_AFTER_READ",
        "WRITE_AFTER_WRITE",
    }


@triton.jit
def squares_kernel(x_ptr, out_ptr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.program_id(0) * N + tl.arange(0, N))
    tl.store(out_ptr + tl.program_id(0), tl.sum(x * x * 0.1))


def test_a_sum_that_every_lane_formed_in_its_own_order_is_no_race():
    """The product is fused into the first step, so that the lanes which store one number differ a little."""
    x, out = torch.randn(16, 128), torch.zeros(16)
    with ptx_machine.on_machine("sm_80", edit=lambda text: used.append(text) or text) as reports:
        used = []
        squares_kernel[16,](x, out, 128)
    reports[0].check()
    strict = ptx_machine.run(used[0], (16,), [x, out, None, None], shared=1024)
    assert {race.kind for race in strict.races} == {"WRITE_AFTER_WRITE"}  # of PTX text nothing is known
