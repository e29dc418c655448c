"""wgmma, tcgen05 and mbarriers: the products of Triton's own layouts, and what must be waited for."""

import re

import numpy as np
import pytest
from ptx_text import kernel

import ptx_machine
from ptx_machine.execute import RACES, WORDS

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton", reason="Triton has no wheels for this platform")
tl = pytest.importorskip("triton.language")

STEPS = 2


@triton.jit
def product_kernel(
    a_ptr, b_ptr, c_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, STEPS: tl.constexpr,
    A_TURNED: tl.constexpr, B_TURNED: tl.constexpr,
):  # fmt: skip
    """c = a b. A turned factor is stored by columns, and lies so in shared memory."""
    rows, cols = tl.arange(0, M), tl.arange(0, N)
    total = tl.zeros((M, N), tl.float32)
    for step in tl.range(STEPS, num_stages=2):
        inner = step * K + tl.arange(0, K)
        if A_TURNED:
            a = tl.trans(tl.load(a_ptr + inner[:, None] * M + rows[None, :]))
        else:
            a = tl.load(a_ptr + rows[:, None] * (K * STEPS) + inner[None, :])
        if B_TURNED:
            b = tl.trans(tl.load(b_ptr + cols[:, None] * (K * STEPS) + inner[None, :]))
        else:
            b = tl.load(b_ptr + inner[:, None] * N + cols[None, :])
        total = tl.dot(a, b, total)
    tl.store(c_ptr + rows[:, None] * N + cols[None, :], total)


@triton.jit
def chain_kernel(a_ptr, b_ptr, v_ptr, c_ptr, M: tl.constexpr, N: tl.constexpr):
    """c = (a b) v: the first product is a factor in registers or in tensor memory."""
    rows, cols = tl.arange(0, M), tl.arange(0, N)
    a = tl.load(a_ptr + rows[:, None] * N + cols[None, :])
    b = tl.load(b_ptr + cols[:, None] * N + cols[None, :])
    v = tl.load(v_ptr + cols[:, None] * N + cols[None, :])
    c = tl.dot(tl.dot(a, b).to(a.dtype), v)
    tl.store(c_ptr + rows[:, None] * N + cols[None, :], c)


# Rows of 128, 64 and 32 bytes: three swizzles. Both factors along K and across it.
SHAPES = [
    (64, 64, 64, torch.bfloat16, False, False),
    (64, 32, 32, torch.float16, True, True),
    (128, 16, 16, torch.float16, False, False),
    (64, 16, 16, torch.bfloat16, True, True),
    (128, 64, 32, torch.bfloat16, True, False),
    (64, 32, 16, torch.float32, False, True),
    (128, 64, 32, torch.float32, True, False),
]


def multiplied(arch, m, n, k, dtype, a_turned, b_turned, **options):
    torch.manual_seed(m + n)
    a, b = torch.randn(m, STEPS * k).to(dtype), torch.randn(STEPS * k, n).to(dtype)
    if dtype == torch.float32:  # what tf32 keeps
        a, b = ((x.view(torch.int32) & ~0x1FFF).view(torch.float32) for x in (a, b))
    c = torch.full((m, n), torch.nan)
    stored = [x.T.contiguous() if turned else x for x, turned in ((a, a_turned), (b, b_turned))]
    with ptx_machine.on_machine(arch, **options) as (reports):
        product_kernel[(1,)](*stored, c, m, n, k, STEPS, a_turned, b_turned)
    return c, a.double() @ b.double(), reports[0]


@pytest.mark.parametrize(("arch", "opcode"), [("sm_90", "wgmma.mma_async"), ("sm_100", "tcgen05.mma")])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products(arch, opcode, shape):
    mine, exact, report = multiplied(arch, *shape)
    report.check()
    torch.testing.assert_close(mine.double(), exact, rtol=1e-6, atol=1e-5)
    assert any(name.startswith(opcode) for name in report.counts())


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
def test_a_narrow_factor_that_is_contiguous_across_k(arch):
    """Rows of 16 bytes: no swizzle, and the distances of the descriptor change their places."""
    mine, exact, report = multiplied(arch, 64, 8, 64, torch.float16, False, False)
    report.check()
    torch.testing.assert_close(mine.double(), exact, rtol=1e-6, atol=1e-5)


@triton.jit
def narrow_sum_kernel(a_ptr, b_ptr, c_ptr, N: tl.constexpr, STEPS: tl.constexpr):
    total = tl.zeros((N, N), tl.float16)
    at = tl.arange(0, N)
    for step in tl.range(STEPS, num_stages=3):
        inner = step * N + tl.arange(0, N)
        a = tl.load(a_ptr + at[:, None] * (STEPS * N) + inner[None, :])
        total = tl.dot(a, tl.load(b_ptr + inner[:, None] * N + at[None, :]), total, out_dtype=tl.float16)
    tl.store(c_ptr + at[:, None] * N + at[None, :], total)


def test_sums_of_f16_are_copied_before_the_wait():
    """Triton 3.9 unpacks them before it waits; ptxas waits before the copy, and so does the machine."""
    a, b, c = torch.randn(64, 192).half(), torch.randn(192, 64).half(), torch.zeros(64, 64).half()
    with ptx_machine.on_machine("sm_90") as (reports):
        narrow_sum_kernel[(1,)](a, b, c, 64, 3)
    reports[0].check()
    assert re.search(
        r"wgmma\.commit_group\S*;\s*mov\.b32",
        "\n".join(f"{done.statement.text};" for done in reports[0].instructions),
    )
    torch.testing.assert_close(c.double(), a.double() @ b.double(), rtol=1e-2, atol=0.1)


def test_a_factor_in_registers():
    a, b, v = (torch.randn(64, 64).half() for _ in range(3))
    c = torch.full((64, 64), torch.nan)
    with ptx_machine.on_machine("sm_90") as (reports):
        chain_kernel[(1,)](a, b, v, c, 64, 64)
    reports[0].check()
    between = (a.double() @ b.double()).half()
    torch.testing.assert_close(c.double(), between.double() @ v.double(), rtol=1e-3, atol=0.2)
    assert any(
        done.warps and re.search(r"mma_async.*\}, \{", done.statement.text)
        for done in reports[0].instructions
    )


# Mutants of the compiled code. Those of pipelined loops are in the tests of EAGC's own kernels.
def without(pattern: str, by: str = ""):
    def edit(text):
        assert re.search(pattern, text), pattern
        return re.sub(pattern, by, text)

    return edit


MUTANTS = {
    "sm_90": {
        "no wait": (without(r"wgmma\.wait_group\S* \d+;"), "NOT_WAITED"),
        "no group": (without(r"wgmma\.commit_group\S*;"), "NOT_WAITED"),
        "no fence of registers": (without(r"wgmma\.fence\S*;"), "NO_REGISTER_FENCE"),
        "no fence of memory": (without(r"fence\.proxy\.async\S*;"), "NO_PROXY_FENCE"),
    },
    "sm_100": {
        "no wait": (
            without(r"mbarrier\.try_wait\S* complete, [^;]*;", "setp.eq.u32 complete, 0, 0;"), "NOT_WAITED"
        ),
        "no fence of memory": (without(r"fence\.proxy\.async\S*;"), "NO_PROXY_FENCE"),
        "no wait for a store": (without(r"tcgen05\.wait::st\S*;"), "NOT_WAITED"),
        "no wait for a load": (without(r"tcgen05\.wait::ld\S*;"), "PENDING_READ"),
        "memory not freed": (without(r"@%p\d+ tcgen05\.dealloc[^;]*;"), "LEFT_BEHIND"),
    },
}  # fmt: skip


@pytest.mark.parametrize(("arch", "name"), [(arch, name) for arch in MUTANTS for name in MUTANTS[arch]])
def test_a_mistake_is_caught(arch, name):
    edit, kind = MUTANTS[arch][name]
    *_, report = multiplied(arch, *SHAPES[0], edit=edit)
    assert kind in {finding.kind for finding in [*report.races, *report.violations]}


def test_a_missing_commit_is_a_wait_without_end():
    with pytest.raises(ptx_machine.MachineError, match=r"try_wait.*waits for ever"):
        multiplied("sm_100", *SHAPES[0], edit=without(r"@%p\d+ tcgen05\.commit[^;]*;"))


def found_by(run) -> set[str]:
    """The kinds of findings. A wait without end stands for all of them."""
    try:
        report = run()
    except ptx_machine.MachineError as error:
        return {*WORDS} if "waits for ever" in str(error) else set()
    return {finding.kind for finding in [*report.races, *report.violations]}


def test_the_other_parity_goes_on_too_early_or_never():
    loop = r"(?s)(\.reg \.pred complete;)(.*?)(waitLoop:.*?complete, \[%r\d+\]), (%r\d+);"
    edit = without(loop, r"\1 .reg .b32 other; xor.b32 other, \4, 1;\2\3, other;")
    assert "NOT_WAITED" in found_by(lambda: multiplied("sm_100", *SHAPES[0], edit=edit)[-1])


def test_tensor_memory_may_lie_anywhere():
    """No kernel may rely on the address that tcgen05.alloc gave it once."""
    found = set()

    def edit(text):  # d is where the block was allocated: seen by an access 512 columns further
        return re.sub(r"(tcgen05\.ld\S* .*\[%r\d+ \+ )(\d+)\]", r"\g<1>512]", text)

    for seed in range(8):
        *_, report = multiplied("sm_100", *SHAPES[0], edit=edit, seed=seed)
        (finding, *_) = report.violations
        assert finding.kind == "OUT_OF_BOUNDS"
        found.add(finding.place)
    assert len(found) > 1, found


# mbarriers --------------------------------------------------------------------------------------------------

MESSAGE = """
    mov.b32 %r1, buffer;
    setp.eq.u32 %p1, %r0, 0;
    @%p1 mbarrier.init.shared::cta.b64 [%r1], 32;
    bar.sync 0;
    setp.lt.u32 %p2, %r0, 32;
    shl.b32 %r2, %r0, 2; add.s32 %r3, %r1, %r2;
    @%p2 st.shared.b32 [%r3+16], %r0;
    @%p2 mbarrier.arrive.shared::cta.b64 _, [%r1];
    @%p2 bra $L_end;
    $L_wait: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r1], 0;
    @!%p3 bra $L_wait;
    ld.shared.b32 %r4, [%r3+-112];
    mad.wide.u32 %d1, %r0, 4, %d0;
    st.global.b32 [%d1+-128], %r4;
    $L_end:
"""


@pytest.mark.parametrize("seed", range(3))
def test_an_mbarrier_orders_what_was_done_before_it(seed):
    out = np.zeros(32, "u4")
    ptx_machine.run(kernel(MESSAGE, 1, threads=64, shared=256), (1,), [out], seed=seed).check()
    assert (out == np.arange(32)).all()


def test_a_message_that_nobody_waits_for_is_a_race():
    """Unless the only look at the mbarrier finds it open, in a lucky schedule."""
    text = kernel(MESSAGE.replace("@!%p3 bra $L_wait;", ""), 1, threads=64, shared=256)
    reports = [ptx_machine.run(text, (1,), [np.zeros(32, "u4")], seed=seed) for seed in range(6)]
    assert sum(bool(report.races) for report in reports) > 2


@pytest.mark.parametrize("seed", range(3))
def test_a_wait_for_the_other_parity_goes_on_too_early_or_never(seed):
    text = kernel(MESSAGE.replace("%p3, [%r1], 0;", "%p3, [%r1], 1;"), 1, threads=64, shared=256)
    assert found_by(lambda: ptx_machine.run(text, (1,), [np.zeros(32, "u4")], seed=seed)) & {*RACES}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[%r1], 32;", "[%r1], 33;", "waits for ever"),
        ("@%p1 mbarrier.init", "@%p3 mbarrier.init", "there is no mbarrier"),
        ("bar.sync 0;", "bar.sync 0; @%p1 mbarrier.init.shared::cta.b64 [%r1], 32;", "in use is initialised"),
    ],
)
def test_what_ends_a_kernel_with_mbarriers(old, new, words):
    text = kernel(MESSAGE.replace(old, new), 1, threads=64, shared=256)
    with pytest.raises(ptx_machine.MachineError, match=words):
        ptx_machine.run(text, (1,), [np.zeros(32, "u4")])


def test_an_mbarrier_serves_again_after_its_phase():
    """The threads of two warps meet there twice; the parity tells the phases apart."""
    body = """
    mov.b32 %r1, buffer; setp.eq.u32 %p1, %r0, 0;
    @%p1 mbarrier.init.shared::cta.b64 [%r1], 64;
    bar.sync 0;
    shl.b32 %r2, %r0, 2; add.s32 %r3, %r1, %r2; xor.b32 %r4, %r2, 128; add.s32 %r4, %r1, %r4;
    st.shared.b32 [%r3+16], %r0;
    mbarrier.arrive.shared::cta.b64 _, [%r1];
    $L_one: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r1], 0; @!%p3 bra $L_one;
    ld.shared.b32 %r5, [%r4+16];
    mbarrier.arrive.shared::cta.b64 _, [%r1];
    $L_two: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r1], 1; @!%p3 bra $L_two;
    st.shared.b32 [%r3+16], %r5;
    mad.wide.u32 %d1, %r0, 4, %d0; st.global.b32 [%d1], %r5;
    """
    for seed in range(3):
        out = np.zeros(64, "u4")
        ptx_machine.run(kernel(body, 1, threads=64, shared=512), (1,), [out], seed=seed).check()
        assert (out == np.arange(64) ^ 32).all()


# Two warps read what the third one wrote, and tell it by an mbarrier that it may write again.
READERS = """
    mov.b32 %r1, buffer; setp.eq.u32 %p1, %r0, 0; setp.ge.u32 %p2, %r0, 64;
    @%p1 mbarrier.init.shared::cta.b64 [%r1], 64;
    and.b32 %r2, %r0, 31; shl.b32 %r2, %r2, 2; add.s32 %r2, %r1, %r2;
    @%p2 st.shared.b32 [%r2+16], %r0;
    bar.sync 0;
    @%p2 bra $L_write;
    ld.shared.b32 %r3, [%r2+16];
    mad.wide.u32 %d1, %r0, 4, %d0; st.global.b32 [%d1], %r3;
    mbarrier.arrive.shared::cta.b64 _, [%r1];
    bra $L_end;
    $L_write: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r1], 0;
    @!%p3 bra $L_write;
    st.shared.b32 [%r2+16], %r1;
    $L_end:
"""


def test_an_mbarrier_orders_a_write_behind_the_readers_of_several_warps():
    for seed in range(4):
        out = np.zeros(64, "u4")
        ptx_machine.run(kernel(READERS, 1, threads=96, shared=256), (1,), [out], seed=seed).check()
        assert (out == np.arange(64) % 32 + 64).all()
    early = kernel(READERS.replace("@!%p3 bra", "@%p1 bra"), 1, threads=96, shared=256)
    reports = [ptx_machine.run(early, (1,), [np.zeros(64, "u4")], seed=seed) for seed in range(6)]
    assert {race.kind for report in reports for race in report.races} == {
        "READ_AFTER_WRITE",
        "WRITE_AFTER_READ",
    }
