"""Copies of boxes of a tensor (TMA): values up to and beyond the edges, and what must be waited for."""

import re

import numpy as np
import pytest
from ptx_text import kernel

import ptx_machine

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton", reason="Triton has no wheels for this platform")
tl = pytest.importorskip("triton.language")
TensorDescriptor = pytest.importorskip("triton.tools.tensor_descriptor").TensorDescriptor

ARCHS = ["sm_90", "sm_100", "sm_120"]


def described(tensor, box, **options):
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), box, **options)


def without(pattern: str, by: str = ""):
    def edit(text):
        assert re.search(pattern, text), pattern
        return re.sub(pattern, by, text)

    return edit


@triton.jit
def moving_kernel(source, target, M: tl.constexpr, N: tl.constexpr, DOWN, RIGHT):
    row, column = M * tl.program_id(0), N * tl.program_id(1)
    target.store([row, column], source.load([row + DOWN, column + RIGHT]))


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(
    ("dtype", "columns"),
    [
        (torch.float32, 8),
        (torch.float32, 32),
        (torch.float16, 32),
        (torch.bfloat16, 64),
        (torch.int8, 16),
        (torch.int64, 16),
    ],
)
def test_boxes_end_where_the_tensor_ends(arch, dtype, columns):
    """Rows of 32, 64 and 128 bytes have three swizzles; outside of the source there are zeros."""
    x = torch.randint(-9, 9, (45, 80)).to(dtype)
    for down, right in ((0, 0), (-3, 5), (7, -6)):
        y = torch.full((45, 80), 77).to(dtype)
        with ptx_machine.on_machine(arch) as reports:
            grid = 3, -(-80 // columns)
            moving_kernel[grid](
                described(x, [16, columns]), described(y, [16, columns]), 16, columns, down, right
            )
        reports[0].check()
        wide = torch.nn.functional.pad(x, (8, 8, 8, 8))
        assert torch.equal(y, wide[8 + down : 53 + down, 8 + right : 88 + right])
        assert any(name.startswith("cp.async.bulk.tensor") for name in reports[0].counts())


def test_outside_there_may_be_nan():
    x, y = torch.randn(20, 32), torch.zeros(20, 32)
    with ptx_machine.on_machine("sm_90"):
        moving_kernel[2, 1](described(x, [16, 32], padding="nan"), described(y, [16, 32]), 16, 32, 3, 0)
    assert torch.equal(y[:17], x[3:]) and y[17:].isnan().all()


@triton.jit
def product_kernel(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, STEPS):
    total = tl.zeros((M, N), tl.float32)
    for step in range(STEPS):
        total = tl.dot(a.load([0, step * K]), b.load([0, step * K]).T, total)
    c.store([0, 0], total.to(tl.float16))


def multiplied(arch, **options):
    torch.manual_seed(0)
    a, b, c = torch.randn(64, 128).half(), torch.randn(32, 128).half(), torch.zeros(64, 32).half()
    with ptx_machine.on_machine(arch, **options) as reports:
        product_kernel[1,](
            described(a, [64, 32]),
            described(b, [32, 32]),
            described(c, [64, 32]),
            64,
            32,
            32,
            4,
            num_stages=3,
        )
    return c, (a.double() @ b.double().T).half(), reports[0]


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("seed", range(3))
def test_a_pipeline_of_copies(arch, seed):
    mine, exact, report = multiplied(arch, seed=seed)
    report.check()
    torch.testing.assert_close(mine, exact, rtol=2e-3, atol=1e-2)


WAIT = r"mbarrier\.try_wait\S* complete, [^;]*;"
MUTANTS = {
    "no wait for a load": (without(WAIT, "setp.eq.u32 complete, 0, 0;"), {"PENDING_COPY", "NOT_WAITED"}),
    "no fence before the store": (without(r"fence\.proxy\.async\S*;"), {"NO_PROXY_FENCE"}),
    "no wait for the store": (without(r"cp\.async\.bulk\.wait_group\s+0;"), {"NOT_WAITED"}),
    "no group": (without(r"cp\.async\.bulk\.commit_group;"), {"NOT_WAITED"}),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mistake_is_caught(name):
    edit, kinds = MUTANTS[name]
    found = set()
    for seed in range(3):
        report = multiplied("sm_90", edit=edit, seed=seed)[-1]
        found |= {finding.kind for finding in (*report.races, *report.violations)}
    assert found & kinds


@pytest.mark.parametrize("bytes_", [4, 1 << 20])
def test_the_wrong_number_of_bytes_is_a_wait_without_end(bytes_):
    edit = without(r"(expect_tx\S* _, \[%r\d+\]), \d+;", rf"\1, {bytes_};")
    with pytest.raises(ptx_machine.MachineError, match="waits for ever"):
        multiplied("sm_90", edit=edit)


@triton.jit
def adding_kernel(source, target, M: tl.constexpr):
    target.atomic_add([0, 0], source.load([M * tl.program_id(0), 0]))


def test_boxes_may_be_added():
    x, y = torch.randint(-9, 9, (64, 32)).float(), torch.ones(16, 32)
    with ptx_machine.on_machine("sm_90") as reports:
        adding_kernel[4,](described(x, [16, 32]), described(y, [16, 32]), 16)
    reports[0].check()
    assert torch.equal(y, 1 + x.reshape(4, 16, 32).sum(0))


@triton.jit
def gathering_kernel(source, rows_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    rows = tl.load(rows_ptr + tl.arange(0, M))
    tl.store(out_ptr + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :], source.gather(rows, 8))


def test_four_rows_at_a_time():
    x, rows, out = torch.randn(50, 48), torch.randint(0, 50, (16,), dtype=torch.int32), torch.zeros(16, 32)
    with ptx_machine.on_machine("sm_100") as reports:
        gathering_kernel[1,](described(x, [1, 32]), rows, out, 16, 32)
    reports[0].check()
    assert torch.equal(out, x[rows.long(), 8:40])
    assert any("gather4" in name for name in reports[0].counts())


@triton.jit
def making_kernel(x_ptr, y_ptr, M, N, BLOCK: tl.constexpr):
    x = tl.make_tensor_descriptor(x_ptr, [M, N], [N, 1], [BLOCK, BLOCK])
    y = tl.make_tensor_descriptor(y_ptr, [N, M], [M, 1], [BLOCK, BLOCK])
    row, column = BLOCK * tl.program_id(0), BLOCK * tl.program_id(1)
    y.store([column, row], x.load([row, column]).T)


@pytest.mark.parametrize("arch", ARCHS)
def test_a_kernel_may_make_its_tensor_maps(arch):
    x, y = torch.randn(40, 72), torch.zeros(72, 40)
    with ptx_machine.on_machine(arch) as reports:
        making_kernel[3, 5](x, y, 40, 72, 16)
    reports[0].check()
    assert torch.equal(y, x.T)
    assert any(name.startswith("tensormap.replace") for name in reports[0].counts())


BOX = """
    mov.b32 %r1, buffer; mov.b32 %r2, map; cvt.u64.u32 %d1, %r2; cvta.param.u64 %d2, %d1;
    setp.eq.u32 %p1, %r0, 0;
    @%p1 mbarrier.init.shared::cta.b64 [%r1+512], 1;
    bar.sync 0;
    @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1+512], 128;
    mov.b32 %r3, 2; mov.b32 %r4, 1;
    @%p1 cp.async.bulk.tensor.3d.shared::cta.global.mbarrier::complete_tx::bytes
        [%r1], [%d2, {%r3, %r4, %r4}], [%r1+512];
    $L_wait: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1+512], 0; @!%p2 bra $L_wait;
    shl.b32 %r5, %r0, 2; add.s32 %r5, %r1, %r5; ld.shared.b32 %r6, [%r5];
    mad.wide.u32 %d3, %r0, 4, %d0; st.global.b32 [%d3], %r6;
"""


@pytest.mark.parametrize(("first", "columns"), [(0, 34), (1, 32)])
def test_a_tensor_that_tma_cannot_reach_is_refused(first, columns):
    """A GPU would end the launch: rows, and where they begin, lie at multiples of 16 bytes."""
    x, y = torch.zeros(first + 32 * columns), torch.zeros(32 * columns)
    with ptx_machine.on_machine("sm_90"), pytest.raises(ptx_machine.MachineError, match="multiple of 16"):
        making_kernel[1, 1](x[first:], y, 32, columns, 16)


def test_three_dimensions_of_a_map_that_is_an_argument():
    text = kernel(BOX, 1, threads=32, shared=1024).replace(
        "k(.param", "k(.param .align 64 .b8 map[128], .param"
    )
    x, out = np.arange(4 * 5 * 8, dtype="f4").reshape(4, 5, 8), np.zeros(32, "f4")
    tensor_map = ptx_machine.TensorMap(x, (4, 5, 8), (40, 8, 1), (4, 2, 4), elemtype=7)
    ptx_machine.run(text, (1,), [tensor_map, out]).check()
    wide = np.pad(x, ((0, 4), (0, 2), (0, 4)))
    assert (out == wide[1:5, 1:3, 2:6].ravel()).all()
