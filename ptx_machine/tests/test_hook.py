"""`on_machine` with kernels that are not ours, and around launches."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton has no wheels for this platform")

import triton
import triton.language as tl

import ptx_machine


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
def same_kind_kernel(a_ptr, b_ptr, c_ptr, N: tl.constexpr):
    place = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    kind: tl.constexpr = c_ptr.dtype.element_ty
    tl.store(c_ptr + place, tl.dot(tl.load(a_ptr + place), tl.load(b_ptr + place), out_dtype=kind))


@triton.jit
def racing_kernel(x_ptr):
    tl.store(x_ptr, tl.program_id(0))


def test_softmax():
    x = torch.randn(5, 70)
    out = torch.full_like(x, torch.nan)
    with ptx_machine.on_machine("sm_80") as reports:
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
    with ptx_machine.on_machine(arch) as reports:
        matmul_kernel[(1,)](a, b, c, K=64, M=32, N=32, BLOCK_K=32)
    reports[0].check()
    torch.testing.assert_close(c, a.float() @ b.float(), rtol=1e-5, atol=1e-5)
    assert any(name.startswith("mma.sync") for name in reports[0].counts())


def test_a_histogram_under_many_schedules():
    x = torch.randint(0, 7, (1000,))
    for seed in range(3):
        counts = torch.zeros(7, dtype=torch.int32)
        with ptx_machine.on_machine("sm_80", seed=seed) as reports:
            histogram_kernel[lambda meta: (triton.cdiv(1000, meta["BLOCK"]),)](x, counts, 1000, BLOCK=256)
        reports[0].check()
        assert torch.equal(counts.long(), x.bincount(minlength=7))


def test_a_race_names_the_argument_and_the_source():
    with ptx_machine.on_machine("sm_80") as reports:
        racing_kernel[(4,)](torch.zeros(1, dtype=torch.int32))
    (race,) = reports[0].races
    assert "(x_ptr)" in race.place and race.statement.source.startswith("test_hook.py:")


def test_what_the_machine_cannot_execute_is_said():
    with (
        ptx_machine.on_machine("sm_90", edit=lambda text: text.replace("ret;", "brkpt; ret;")) as reports,
        pytest.raises(ptx_machine.UnknownInstruction, match="does not execute 'brkpt'"),
    ):
        racing_kernel[(1,)](torch.zeros(1, dtype=torch.int32))
    assert reports == []


@pytest.mark.parametrize("dtype", [torch.float64, torch.int8, torch.float16])
def test_products_of_other_kinds(dtype):
    """Doubles, bytes, and f16 with accumulators of f16, in Triton's own layouts."""
    small = torch.randint(-9, 9, (2, 32, 32))
    a, b = (
        (small[0].to(dtype), small[1].to(dtype))
        if dtype != torch.float64
        else torch.randn(2, 32, 32).double()
    )
    c = torch.zeros(32, 32, dtype=torch.int32 if dtype == torch.int8 else dtype)
    with ptx_machine.on_machine("sm_80") as reports:
        same_kind_kernel[(1,)](a, b, c, N=32)
    reports[0].check()
    torch.testing.assert_close(c.double(), a.double() @ b.double(), rtol=1e-12, atol=1e-12)
    assert any(name.startswith("mma.sync") for name in reports[0].counts())


def test_outside_nothing_has_changed():
    before = triton.runtime.JITFunction.run
    with ptx_machine.on_machine("sm_80"):
        assert triton.runtime.JITFunction.run is not before
    assert triton.runtime.JITFunction.run is before


def test_it_refuses_the_interpreter(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(RuntimeError, match="unset TRITON_INTERPRET"), ptx_machine.on_machine("sm_80"):
        pass


@triton.jit
def doubling_kernel(x_ptr, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + place)
    tl.store(x_ptr + place, x * 2)


@triton.jit
def shifting_kernel(x_ptr, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + place + 1)
    tl.store(x_ptr + place, x)


@pytest.mark.parametrize("seed", range(4))
def test_threads_that_load_an_element_and_do_not_store_it_do_not_race(seed):
    """64 elements on 128 threads: two threads load each, and one of them stores it."""
    x = torch.arange(64.0)
    with ptx_machine.on_machine("sm_80", seed=seed) as reports:
        doubling_kernel[(1,)](x, BLOCK=64)
    reports[0].check()
    assert torch.equal(x, 2 * torch.arange(64.0))


@triton.jit
def logarithm_kernel(x_ptr, SIZE: tl.constexpr):
    place = tl.arange(0, SIZE)
    x = tl.load(x_ptr + place)
    tl.store(x_ptr + place, tl.where(x > 2, tl.log(x), x))


@pytest.mark.parametrize("seed", range(3))
def test_a_value_may_choose_how_its_lane_computes(seed):
    """The logarithm branches for infinity. A thread that loads an element and stores none does not race."""
    x = torch.rand(64) * 4
    y = x.clone()
    with ptx_machine.on_machine("sm_80", seed=seed) as reports:
        logarithm_kernel[(1,)](y, SIZE=64)
    reports[0].check()
    torch.testing.assert_close(y, torch.where(x > 2, x.log(), x))


@pytest.mark.parametrize("size", [64, 128, 512])
def test_threads_that_store_what_they_loaded_of_others_race(size):
    with ptx_machine.on_machine("sm_80") as reports:
        shifting_kernel[(1,)](torch.arange(size + 1.0), BLOCK=size)
    assert reports[0].races


@triton.jit
def adding_kernel(x_ptr, value_ptr, n, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    value = tl.load(value_ptr + place, mask=place < n)
    tl.atomic_add(x_ptr + place, value, mask=place < n)


@pytest.mark.parametrize("start", [0, 1])
def test_an_atomic_of_16_bits_made_of_32_may_reach_over_an_end(start):
    """sm_80 adds bf16 by a compare-and-swap of the word around it: of an odd length it has a half outside."""
    whole = torch.zeros(34, dtype=torch.bfloat16)
    x, value = whole[start : start + 33], torch.arange(33.0).bfloat16()
    with ptx_machine.on_machine("sm_80") as reports:
        adding_kernel[(1,)](x, value, 33, BLOCK=64)
        adding_kernel[(1,)](x, value, 33, BLOCK=64)
    for report in reports:
        report.check()
        assert any(".cas.b32" in name for name in report.counts())
    assert torch.equal(x, 2 * value) and not whole[33 - 33 * start]


def test_an_atomic_of_16_bits_far_outside_is_out_of_bounds():
    with ptx_machine.on_machine("sm_80") as reports:
        adding_kernel[(1,)](torch.zeros(30).bfloat16(), torch.zeros(33).bfloat16(), 33, BLOCK=64)
    assert {finding.kind for finding in reports[0].violations} == {"OUT_OF_BOUNDS"}


@triton.autotune(configs=[triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 64})], key=["n"])
@triton.jit
def tuned_kernel(x_ptr, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + place, BLOCK, mask=place < n)


def test_autotune_takes_the_first_configuration_and_forgets_it():
    x = torch.zeros(70, dtype=torch.int32)
    with ptx_machine.on_machine("sm_80") as reports:
        tuned_kernel[lambda meta: (triton.cdiv(70, meta["BLOCK"]),)](x, 70)
    reports[0].check()
    assert (x == 32).all() and not tuned_kernel.cache


@triton.jit
def meeting_kernel(x_ptr, arrived_ptr, out_ptr, BLOCKS: tl.constexpr):
    block = tl.program_id(0)
    tl.store(x_ptr + block, block)
    tl.atomic_add(arrived_ptr, 1, sem="release")
    while tl.atomic_add(arrived_ptr, 0, sem="acquire") < BLOCKS:
        pass
    tl.store(out_ptr + block, tl.load(x_ptr + (block + 1) % BLOCKS, volatile=True))


def test_all_blocks_of_a_cooperative_launch_may_meet():
    """More of them than are on the machine at a time otherwise."""
    x, arrived, out = (torch.zeros(n, dtype=torch.int32) for n in (12, 1, 12))
    with ptx_machine.on_machine("sm_80", limit=1_000_000) as reports:
        meeting_kernel[(12,)](x, arrived, out, 12, launch_cooperative_grid=True)
    reports[0].check()
    assert torch.equal(out, torch.arange(12, dtype=torch.int32).roll(-1))


def test_a_grid_may_be_a_number_and_a_launch_returns_its_kernel():
    x = torch.zeros(4, dtype=torch.int32)
    with ptx_machine.on_machine("sm_80") as reports:
        compiled = shifting_kernel.warmup(x, BLOCK=64, grid=(1,))
        assert not reports and compiled.metadata.num_warps == 4 and ".entry" in compiled.asm["ptx"]
        assert racing_kernel[1](x).metadata.name == "racing_kernel"
    assert len(reports) == 1


def test_a_compiled_kernel_may_be_launched():
    """As Triton's own tutorial of a softmax does, which asks it for its registers first."""
    x = torch.arange(64, dtype=torch.int32)
    with ptx_machine.on_machine("sm_80") as reports:
        compiled = doubling_kernel.warmup(x, BLOCK=64, grid=(1,))
        compiled._init_handles()
        assert compiled.n_regs > 0
        compiled[(1, 1, 1)](x, 64)
    with ptx_machine.on_machine("sm_80") as others:
        compiled[(1, 1, 1)](x, 64)
    assert torch.equal(x, 4 * torch.arange(64, dtype=torch.int32))
    assert len(reports) == len(others) == 1
    with pytest.raises(RuntimeError, match="doubling_kernel was compiled for the machine"):
        compiled[(1, 1, 1)](x, 64, stream=0)


def test_an_expanded_view_has_the_bounds_of_its_storage():
    """A kernel that takes strides apart is given such views: of them only the pointer counts."""
    x = torch.arange(100, dtype=torch.int32)
    with ptx_machine.on_machine("sm_80") as reports:
        doubling_kernel[(1,)](x[8:9].expand(64), BLOCK=64)
        doubling_kernel[(1,)](x[40:41].expand(64), BLOCK=64)
    reports[0].check()
    assert torch.equal(x[8:40], 2 * torch.arange(8, 40, dtype=torch.int32))
    assert {finding.kind for finding in reports[1].violations} == {"OUT_OF_BOUNDS"}  # 4 of 64


@triton.jit
def tuple_kernel(pointers, sizes, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    x = tl.load(pointers[0] + place, mask=place < sizes[0])
    tl.store(pointers[1] + place, x + sizes[1], mask=place < sizes[0])


def test_tuples_of_arguments():
    x, out = torch.arange(70, dtype=torch.int32), torch.zeros(70, dtype=torch.int32)
    with ptx_machine.on_machine("sm_80") as reports:
        tuple_kernel[(1,)]((x, out), (70, 5), BLOCK=128)
    reports[0].check()
    assert torch.equal(out, x + 5)


@triton.jit
def descriptor_kernel(source, out_ptr, M: tl.constexpr, N: tl.constexpr):
    block = source.load([M, 0])
    rows, cols = tl.arange(0, M), tl.arange(0, N)
    tl.store(out_ptr + rows[:, None] * N + cols[None, :], block)


def test_a_tensor_descriptor_without_tma():
    from triton.tools.tensor_descriptor import TensorDescriptor

    x, out = torch.randn(32, 16), torch.zeros(16, 16)
    with ptx_machine.on_machine("sm_80") as reports:
        descriptor_kernel[(1,)](TensorDescriptor.from_tensor(x, [16, 16]), out, M=16, N=16)
    reports[0].check()
    assert torch.equal(out, x[16:])


@triton.jit
def narrowing_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    tl.store(out_ptr + place, tl.load(x_ptr + place).to(tl.int8).to(tl.float32))


def test_int8_of_wider_integers():
    x, out = torch.randint(-(2**15), 2**15, (512,), dtype=torch.int16), torch.zeros(512)
    with ptx_machine.on_machine("sm_80") as reports:
        narrowing_kernel[(1,)](x, out, BLOCK=512)
    reports[0].check()
    assert torch.equal(out, x.to(torch.int8).float())


def test_reinterpreted_tensors():
    x = torch.arange(64, dtype=torch.int32)
    with ptx_machine.on_machine("sm_80"):
        doubling_kernel[(1,)](triton.reinterpret(x, tl.uint32), BLOCK=64)
    assert torch.equal(x, 2 * torch.arange(64, dtype=torch.int32))


def test_code_around_a_kernel_may_ask_the_driver():
    with ptx_machine.on_machine("sm_90"):
        active = triton.runtime.driver.active
        assert active.get_current_target().arch == 90
        assert active.utils.get_device_properties(active.get_current_device())["max_shared_mem"] == 232448
