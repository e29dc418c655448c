"""`on_machine` with kernels that are not ours, and around launches."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton has no wheels for this platform")

import triton
import triton.language as tl

from eagc_ops.kernels import ptx
from eagc_ops.kernels.tiles import architecture

pytestmark = pytest.mark.skipif(
    ptx.compiler() is None, reason="THE PTX MACHINE IS NOT TESTED: no C++ compiler (install g++)"
)


@pytest.fixture(autouse=True)
def _fusion(monkeypatch):
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # Triton warns if it must choose itself


@triton.jit
def softmax_kernel(x_ptr, out_ptr, columns, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride + cols, mask=cols < columns, other=-float("inf"))
    e = tl.exp(x - tl.max(x, 0))
    tl.store(out_ptr + row * columns + cols, e / tl.sum(e, 0), mask=cols < columns)


@triton.jit
def matmul_kernel(
    a_ptr, b_ptr, c_ptr, K: tl.constexpr, M: tl.constexpr, N: tl.constexpr, BLOCK_K: tl.constexpr
):
    rows, cols = tl.arange(0, M), tl.arange(0, N)
    total = tl.zeros((M, N), tl.float32)
    for k in range(0, K, BLOCK_K):
        inner = k + tl.arange(0, BLOCK_K)
        a = tl.load(a_ptr + rows[:, None] * K + inner[None, :])
        b = tl.load(b_ptr + inner[:, None] * N + cols[None, :])
        total = tl.dot(a, b, total)
    tl.store(c_ptr + rows[:, None] * N + cols[None, :], total)


@triton.jit
def histogram_kernel(x_ptr, count_ptr, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x_ptr + place, mask=place < n, other=0)
    tl.atomic_add(count_ptr + value, 1, mask=place < n)


@triton.jit
def racing_kernel(x_ptr):
    tl.store(x_ptr, tl.program_id(0))


def test_softmax():
    x = torch.randn(5, 70)
    out = torch.full_like(x, torch.nan)
    with ptx.on_machine("sm_80") as reports:
        softmax_kernel[(5,)](x, out, 70, x.stride(0), BLOCK=128)
    (report,) = reports
    report.check()
    torch.testing.assert_close(out, x.softmax(1))
    assert report.kernel == "softmax_kernel" and report.counts()["ex2.approx.f32"] > 0


@pytest.mark.parametrize(
    ("arch", "dtype"), [("sm_80", torch.bfloat16), ("sm_86", torch.float16), ("sm_120", torch.bfloat16)]
)
def test_products_of_matrices(arch, dtype):
    """Triton's own layouts of fragments and shared memory, not those of a test's author."""
    a, b, c = torch.randn(32, 64).to(dtype), torch.randn(64, 32).to(dtype), torch.full((32, 32), torch.nan)
    with ptx.on_machine(arch) as reports:
        matmul_kernel[(1,)](a, b, c, K=64, M=32, N=32, BLOCK_K=32)
    reports[0].check()
    torch.testing.assert_close(c, a.float() @ b.float(), rtol=1e-5, atol=1e-5)
    assert any(name.startswith("mma.sync") for name in reports[0].counts())


def test_a_histogram_under_many_schedules():
    x = torch.randint(0, 7, (1000,))
    for seed in range(3):
        counts = torch.zeros(7, dtype=torch.int32)
        with ptx.on_machine("sm_80", seed=seed) as reports:
            histogram_kernel[lambda meta: (triton.cdiv(1000, meta["BLOCK"]),)](x, counts, 1000, BLOCK=256)
        reports[0].check()
        assert torch.equal(counts.long(), x.bincount(minlength=7))


def test_a_race_names_the_argument_and_the_source():
    with ptx.on_machine("sm_80") as reports:
        racing_kernel[(4,)](torch.zeros(1, dtype=torch.int32))
    (race,) = reports[0].races
    assert "(x_ptr)" in race.place and race.statement.source.startswith("test_hook.py:")


def test_what_the_machine_cannot_execute_is_said():
    """64 rows on sm_90 take the warp-group products."""
    a, b, c = torch.randn(64, 64).half(), torch.randn(64, 64).half(), torch.zeros(64, 64)
    with ptx.on_machine("sm_90"), pytest.raises(ptx.UnknownInstruction, match=r"wgmma.*out of its reach"):
        matmul_kernel[(1,)](a, b, c, K=64, M=64, N=64, BLOCK_K=64)


def test_outside_nothing_has_changed():
    before = triton.runtime.JITFunction.run
    with ptx.on_machine("sm_80"):
        assert architecture(torch.device("cpu")) == "sm_80"
    assert triton.runtime.JITFunction.run is before
    assert architecture(torch.device("cpu")) == "interpreter"


def test_it_refuses_the_interpreter(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(RuntimeError, match="unset TRITON_INTERPRET"), ptx.on_machine("sm_80"):
        pass
