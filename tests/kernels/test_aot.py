"""Code generation for GPUs that are not there: a subset of the compile gate (all of it: `make gate`), and the
gate itself.
"""

import multiprocessing
import signal

import pytest
import torch
from compiled import MISSING
from operator_cases import SETTINGS

pytest.importorskip("triton", reason="Triton has no wheels for this platform")

from triton import knobs
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import create_function_from_signature

from eagc_ops.kernels import DTYPES, Inputs, aot, fused, launch
from eagc_ops.kernels.assembly import Code, Loop
from eagc_ops.kernels.tiles import ANY, FAMILY, SCAN_LIMIT, TABLE, Tile, family, pick

try:
    from ptx_machine import unknown_instructions
except ImportError:
    unknown_instructions = None

NONE = Code(999, [])  # no loop of products


@pytest.fixture(scope="module")
def compiled():
    return aot.compile_all(list(aot.cases(subset=True)), beyond=unknown_instructions)


def test_one_case_per_architecture_passes_the_gate(compiled):
    assert [case.arch for case, _ in compiled] == ["sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "gfx942"]
    for case, found in compiled:
        assert not found.problems, f"{case}: {found.problems}"
        assert found.registers > 16 and found.shared > 0 and found.blocks_per_sm >= 1


@pytest.mark.skipif(unknown_instructions is None, reason=f"NOT EXECUTED: the count of the gate, {MISSING}")
def test_the_gate_says_what_the_ptx_machine_can_execute(compiled):
    assert {case.arch for case, found in compiled if not found.beyond_machine} >= {"sm_80", "sm_86", "sm_120"}
    assert aot.executable(compiled) == "5 of 6 can be executed by the PTX machine; not: 1 AMD code"
    large = aot.Case("coordinate", "sm_90", "bf16", "auto", 4096, 768, Tile(64, 64, 64, 8, 3))
    found = [(large, aot.judge(large, 64, 0, 0, 1024, 0, NONE, ["cp.async.bulk", "tensormap"]))]
    assert aot.executable(found) == "0 of 1 can be executed by the PTX machine; not: 1 cp.async.bulk"


def test_without_the_ptx_machine_the_gate_says_that_it_did_not_count():
    case = next(aot.cases())
    assert "NOT COUNTED" in aot.executable([(case, aot.judge(case, 64, 0, 0, 1024, 0, NONE))])


def test_a_record_names_its_architecture(compiled):
    assert aot.as_record(*compiled[0])["arch"] == "sm_80"


@pytest.fixture(scope="module", params=aot.LIMITS)
def arch(request):
    return request.param


def identity(kernel, source, options, *, exact_dim=False):
    """All that makes two compilations of a kernel the same; of D only whether the tile divides it, unless
    `exact_dim`.
    """
    names = source.fn.arg_names
    constants = {names[position]: value for (position,), value in source.constants.items()}
    if not exact_dim and "D" in constants:
        constants["D"] = (
            constants["D"] % constants["BLOCK_N"] == 0 and constants["D"] % constants["BLOCK_K"] == 0
        )
    attributes = {names[position]: value for (position,), value in source.attrs.items() if value}
    parts = (source.signature, constants, attributes, options)
    return kernel, *(str(sorted(part.items(), key=str)) for part in parts)


@pytest.fixture(scope="module")
def gated(arch):
    """Is this what the gate compiles?"""
    cases = [case for case in aot.cases() if case.arch == arch]
    known = {identity(c.kernel, *aot.source(c), exact_dim=exact) for c in cases for exact in (False, True)}
    return lambda launched, exact_dim=False: identity(*launched, exact_dim=exact_dim) in known


@pytest.fixture
def launched(arch, monkeypatch):
    """What Triton would compile for a launch on that GPU: `launch` with tensors in memory (never touched),
    and Triton's own specialisation of their addresses.
    """
    calls = []

    class Kernel:
        def __init__(self, function):
            self.function = function

        def __getitem__(self, grid):
            return lambda **arguments: calls.append((self.function, arguments))

    monkeypatch.setattr(launch, "architecture", lambda device: arch)
    for kernel in ("compaction", *aot.KERNELS):
        monkeypatch.setattr(launch, f"{kernel}_kernel", Kernel(getattr(fused, f"{kernel}_kernel")))

    def run(
        kernel,
        rows,
        dim,
        dtype,
        precision="auto",
        *,
        z_ref_dtype=None,
        stride=0,
        count=False,
        mask_from=0,
        scalars_from=0,
        device="cpu",
        basis=False,
        **settings,
    ):
        def empty(*shape, of=torch.float32):
            return torch.empty(shape, dtype=of, device=device)

        z, z_ref = (empty(rows, max(dim, stride), of=of)[:, :dim] for of in (dtype, z_ref_dtype or dtype))
        mask = empty(mask_from + rows, of=torch.bool)[mask_from:]
        matrix, one = empty(dim, dim), empty(scalars_from + 1)[scalars_from]
        inputs = Inputs(z, z_ref, mask, matrix, one, scale=one, labelled=one if count else None)
        if basis:
            inputs = inputs._replace(basis=empty(dim, dim), weights=empty(dim))
        if kernel == "labelled_energy":
            launch.run_labelled_energy(inputs, 0.9, precision, update=True)
        else:
            launch.run(z, inputs, SETTINGS._replace(**settings), precision)
        function, arguments = calls[0 if kernel == "compaction" else -1]
        calls.clear()
        backend = make_backend(aot.target(arch))
        bind = create_function_from_signature(function.signature, function.params, backend)
        options, *parts = function._pack_args(backend, arguments, *bind(**arguments))
        return kernel, ASTSource(function, *parts), vars(options)

    return run


@pytest.mark.parametrize("kernel", aot.KERNELS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_the_gate_compiles_what_every_entry_launches(arch, gated, launched, kernel, dtype):
    """At the D of the paper and at others; at, below and above the rows where the tile or the search for
    rows changes.
    """
    largest = [entry.max_rows for entry in TABLE if entry.family == family(arch)]
    edges = {rows + more for rows in (SCAN_LIMIT, *largest) if rows < ANY for more in (0, 1)}
    for rows in sorted(edges | {256, 4096}):
        for dim in (192, 384, 768, 1000, 1024):
            assert gated(launched(kernel, rows, dim, dtype)), (rows, dim)
            assert gated(launched(kernel, rows, dim, dtype, basis=True)), (rows, dim)
    if kernel == "coordinate":
        for rows in (256, 2048, 65536):
            assert gated(launched(kernel, rows, 768, dtype), exact_dim=True), rows


def test_one_kernel_for_every_number_of_rows(arch, gated, launched):
    """The last batch of an epoch is ragged: its addresses and sizes must not ask for another kernel."""
    for kernel in aot.KERNELS:
        for dtype in (torch.float32, torch.bfloat16):
            kernels = {
                identity(*launched(kernel, rows, 384, dtype), exact_dim=True)
                for rows in (1, 2, 3, 5, 8, 63, 64, 65, 250, 255, 256, 257, 511, 512)
            }
            assert len(kernels) == 1
            many = {
                identity(*launched(kernel, rows, 384, dtype), exact_dim=True) for rows in range(2049, 2066)
            }
            assert len(many) == 1
    assert len({identity(*launched("compaction", rows, 384, torch.float32)) for rows in (513, 4097)}) == 1


def test_where_mask_and_scalars_lie_does_not_ask_for_another_kernel(arch, gated, launched):
    """The mask of the second view is a slice, and Ebar may be an element of a larger buffer."""
    for kernel in (*aot.KERNELS, "compaction"):
        for mask_from, scalars_from in ((1, 0), (7, 1), (0, 3)):
            where = {"mask_from": mask_from, "scalars_from": scalars_from}
            assert gated(launched(kernel, 700, 768, torch.float32, **where)), (kernel, where)
    assert gated(launched("coordinate", 256, 768, torch.float32, count=True, mask_from=3, scalars_from=1))


def test_rows_may_lie_in_wider_rows(arch, gated, launched):
    for kernel in aot.KERNELS:
        assert gated(launched(kernel, 256, 768, torch.bfloat16, stride=5 * 768))


def test_the_gate_compiles_what_the_other_options_and_precisions_launch(arch, gated, launched):
    fp32, halves = torch.float32, (torch.bfloat16, torch.float16)
    assert gated(launched("coordinate", 256, 768, fp32, tau="uniform"))
    assert gated(launched("coordinate", 256, 768, fp32, count=True))
    assert gated(launched("compaction", 4000, 768, fp32))
    for rows in (256, SCAN_LIMIT, SCAN_LIMIT + 1, 5000):
        for dtype in halves:
            assert gated(launched("coordinate", rows, 768, dtype, z_ref_dtype=fp32))
            assert gated(launched("coordinate", rows, 768, dtype, "high"))
    assert gated(launched("labelled_energy", 600, 768, torch.bfloat16, "high"))
    assert gated(launched("coordinate", 256, 768, torch.bfloat16, "high", basis=True))
    assert gated(launched("coordinate", 256, 768, torch.bfloat16, z_ref_dtype=fp32, basis=True))
    plain, with_basis = (
        launched("coordinate", 256, 768, fp32, tau="uniform", basis=b) for b in (False, True)
    )
    assert identity(*plain) == identity(*with_basis)  # which needs no energy
    if arch.startswith("gfx"):
        for kernel in aot.KERNELS:
            for dtype in (fp32, *halves):
                far = launched(kernel, SCAN_LIMIT, 768, dtype, stride=1 << 22, device="meta")
                assert gated(far) and identity(*far) != identity(*launched(kernel, SCAN_LIMIT, 768, dtype))
                far = launched(kernel, SCAN_LIMIT, 768, dtype, stride=1 << 22, device="meta", basis=True)
                assert gated(far)
        return
    for precision in ("tf32x3", "tf32"):
        for rows in (256, SCAN_LIMIT, 2048, 5000):
            assert gated(launched("coordinate", rows, 768, fp32, precision)), (precision, rows)
        for rows in (256, 2048, 5000):
            assert gated(launched("coordinate", rows, 768, fp32, precision, basis=True)), (precision, rows)
        for rows in (256, 5000):
            assert gated(launched("labelled_energy", rows, 768, fp32, precision)), (precision, rows)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"stores": 8}, "spills 8 bytes stored"),
        ({"loads": 4}, "4 loaded"),
        ({"fp64": 2}, "2 fp64 instructions"),
        ({"shared": 200 << 10}, "shared memory 204800 bytes"),
        ({"code": Code(999, [Loop(100, 4 * 16 * 64 * 32, None, {})])}, "2 times the products"),
        ({"code": NONE}, "0 loops of products instead of 1"),
    ],
)
def test_the_gate_refuses(found, words):
    case = aot.Case("coordinate", "sm_80", "fp32", "auto", 256, 768, Tile(16, 64, 32, 4, 4))
    once = Loop(100, 2 * 16 * 64 * 32, None, {})
    clean = {
        "registers": 64,
        "stores": 0,
        "loads": 0,
        "shared": 36 << 10,
        "fp64": 0,
        "code": Code(999, [once]),
    }
    assert aot.judge(case, **clean).problems == ()
    assert words in "; ".join(aot.judge(case, **{**clean, **found}).problems)


def test_blocks_per_sm_follow_from_the_scarcest_resource():
    case = aot.Case("coordinate", "sm_80", "fp32", "auto", 256, 768, Tile(16, 64, 32, 4, 4))
    assert aot.judge(case, 80, 0, 0, 1024, 0, NONE).blocks_per_sm == 65536 // (80 * 128)
    assert aot.judge(case, 32, 0, 0, 80 << 10, 0, NONE).blocks_per_sm == 164 // 81
    assert aot.judge(case, 16, 0, 0, 1024, 0, NONE).blocks_per_sm == 64 // 4


def test_blocks_per_cu_follow_from_the_scarcest_resource():
    """gfx942: a block of 4 waves has one on each SIMD; a SIMD has 512 VGPRs and room for 8 waves, the CU 64
    KB.
    """
    case = aot.Case("coordinate", "gfx942", "fp32", "auto", 256, 768, Tile(16, 64, 32, 4, 2))
    assert (
        aot.judge(case, 100, 0, 0, 1024, 0, NONE).blocks_per_sm == 4
    )  # 100 become 104, and 4 x 104 = 416, 5 x 104 = 520
    assert (
        aot.judge(case, 32, 0, 0, 16 << 10, 0, NONE).blocks_per_sm == 4
    )  # 4 x 16 KB fit exactly: nothing is reserved
    assert aot.judge(case, 32, 0, 0, 1024, 0, NONE).blocks_per_sm == 8
    one_wave = aot.Case("coordinate", "gfx942", "fp32", "auto", 256, 768, Tile(16, 64, 32, 1, 2))
    assert (
        aot.judge(one_wave, 104, 0, 0, 1024, 0, NONE).blocks_per_sm == 16
    )  # 4 on each SIMD: the 96 VGPRs left on each make no wave together


def test_a_spilling_tile_is_seen_as_such():
    """128 x 128 does not fit the register file in bf16: the gate must say so, or it would pass anything."""
    case = aot.Case("coordinate", "sm_80", "bf16", "auto", 65536, 4096, Tile(128, 128, 64, 4, 3))
    assert any("spills" in problem for problem in aot.compile_case(case).problems)


def test_who_compiles_afterwards_has_the_settings_of_before():
    """Triton would print ptxas's log of every later kernel of the process, and never use its cache."""
    before = knobs.nvidia.dump_ptxas_log, knobs.compilation.always_compile
    aot.compile_case(next(case for case in aot.cases() if case.arch == "sm_80"))
    after = knobs.nvidia.dump_ptxas_log, knobs.compilation.always_compile
    assert after == before == (False, False)


def test_whoever_stops_early_does_not_wait_for_compilations_under_way():
    """As Ctrl-C does."""
    cases = [case for case in aot.cases() if (case.kernel, case.arch) == ("labelled_energy", "sm_80")]
    compiled = aot.in_processes(cases, 2)
    assert not next(compiled).problems
    processes = multiprocessing.active_children()
    compiled.close()
    assert [process.exitcode for process in processes] == [-signal.SIGKILL] * 2


@pytest.mark.parametrize("arch", ["sm_80", "gfx942"])
def test_a_tile_that_repeats_products_is_seen_as_such(arch):
    """A tensor instruction has 16 rows, so 8 warps above each other need 128: in 64 rows each does the work
    of two. (MFMA has 32 rows.)
    """
    tile = Tile(64, 64, 64, 8, 3) if arch == "sm_80" else Tile(32, 32, 64, 8, 2)
    case = aot.Case("coordinate", arch, "bf16", "auto", 4096, 768, tile)
    assert any("times the products" in problem for problem in aot.compile_case(case).problems)


TESTED = pytest.mark.skipif(
    aot._version() < aot.TESTED_TRITON,
    reason="the table is made for the Triton of constraints.txt; 3.6 spills 8 bytes with tf32x3",
)


@pytest.mark.parametrize(
    "shape",
    [
        ("coordinate", "sm_90", "fp32", "auto", 65536, 768, False),
        # of 255 registers none is left
        pytest.param(("coordinate", "sm_80", "fp32", "tf32x3", 65536, 4096, False), marks=TESTED),
        ("coordinate", "sm_120", "bf16", "auto", 65536, 4096, False),
        # tensor instructions of the whole block
        ("coordinate", "sm_100", "bf16", "auto", 65536, 768, False),
        # with a basis; a larger tile and a deeper step spill
        pytest.param(("coordinate", "sm_80", "fp32", "tf32x3", 65536, 768, True), marks=TESTED),
        pytest.param(("coordinate", "sm_86", "bf16", "auto", 2048, 768, True), marks=TESTED),
    ],
    ids=str,
)
def test_the_table_has_no_spills_where_registers_are_scarcest(shape):
    case = next(
        case
        for case in aot.cases()
        if (case.kernel, case.arch, case.dtype, case.precision, case.rows, case.dim, case.basis) == shape
    )
    found = aot.compile_case(case)
    assert not found.problems
    assert all(loop.instructions > 0 for loop in found.loops) and len(found.loops) == len(aot.steps(case))


@pytest.mark.parametrize("far_rows", [False, True])
def test_on_amd_every_wave_waits_for_its_stores_before_it_is_counted(far_rows):
    """A release there covers one wave only; without the wait the last program could read shares that have not
    arrived.
    """
    far = {
        case.far_rows: case
        for case in aot.cases()
        if (case.arch, case.kernel, case.rows) == ("gfx942", "coordinate", SCAN_LIMIT)
    }
    lines = aot.compiled_kernel(far[far_rows]).asm["amdgcn"].splitlines()
    code = [line.strip() for line in lines if line.strip() and not line.strip().startswith((".", ";"))]
    atomic = next(i for i, line in enumerate(code) if line.startswith("global_atomic_add"))
    barrier = max(i for i, line in enumerate(code[:atomic]) if line.startswith("s_barrier"))
    store = max(
        i for i, line in enumerate(code[:barrier]) if line.startswith(("global_store", "buffer_store"))
    )
    assert any(line.startswith("s_waitcnt vmcnt(0)") for line in code[store:barrier])


def test_on_nvidia_the_arrival_releases_and_acquires():
    case = next(case for case in aot.cases() if (case.arch, case.rows) == ("sm_80", 256))
    lines = aot.compiled_kernel(case).asm["ptx"].splitlines()
    atomic = next(i for i, line in enumerate(lines) if "atom.global.gpu.acq_rel.add" in line)
    stores = [i for i, line in enumerate(lines[:atomic]) if "st.global" in line]
    assert any("bar.sync" in line for line in lines[max(stores) : atomic])
    assert any("ld.global.cg" in line for line in lines[atomic:])


@pytest.mark.parametrize("arch", [*FAMILY, "sm_130", "gfx90a", "interpreter"])
def test_every_shape_has_a_tile(arch):
    for rows in (1, 256, 512, 513, 2048, 2049, 4096, 4097, 65536):
        for dim in (1, 100, 384, 768, 1024, 4096):
            for dtype in (torch.float32, torch.bfloat16):
                tile = pick(arch, rows, dim, dtype)
                assert min(tile[:3]) >= 16  # tl.dot takes no less


def test_an_unknown_architecture_gets_the_tiles_of_its_maker():
    for arch in ("gfx90a", "gfx950"):
        assert pick(arch, 256, 768, torch.float32) == pick("gfx942", 256, 768, torch.float32)
    assert pick("sm_130", 256, 768, torch.float32) == pick("sm_120", 256, 768, torch.float32)
