"""Code generation for GPUs that are not there: a subset of the compile gate (all of it: `make gate`), and the
gate itself.
"""

import pytest
import torch
from operator_cases import SETTINGS

pytest.importorskip("triton", reason="Triton has no wheels for this platform")

from triton.compiler import make_backend
from triton.runtime.jit import create_function_from_signature

from eagc_ops.kernels import Inputs, aot, fused, launch
from eagc_ops.kernels.tiles import FAMILY, SCAN_LIMIT, TABLE, Tile, chunks, pick


@pytest.fixture(scope="module")
def compiled():
    return aot.compile_all(list(aot.cases(subset=True)))


def test_one_case_per_architecture_passes_the_gate(compiled):
    assert [case.arch for case, _ in compiled] == ["sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "gfx942"]
    for case, found in compiled:
        assert not found.problems, f"{case}: {found.problems}"
        assert found.registers > 16 and found.shared > 0 and found.blocks_per_sm >= 1


def test_a_record_names_its_architecture(compiled):
    assert aot.as_record(*compiled[0])["arch"] == "sm_80"


def identity(kernel, signature, constants, attributes, options, *, exact_dim=False):
    """All that makes two compilations of a kernel the same; of D only whether the tile divides it, unless
    `exact_dim`.
    """
    names = getattr(fused, f"{kernel}_kernel").arg_names
    constants = {names[position]: value for (position,), value in constants.items()}
    if not exact_dim:
        constants["D"] = (
            constants["D"] % constants["BLOCK_N"] == 0 and constants["D"] % constants["BLOCK_K"] == 0
        )
    attributes = {names[position]: value for (position,), value in attributes.items() if value}
    options = {name: options[name] for name in aot.compile_options(Tile(16, 16, 16, 4, 1))}
    return kernel, *(str(sorted(part.items())) for part in (signature, constants, attributes, options))


@pytest.fixture(scope="module", params=aot.LIMITS)
def arch(request):
    return request.param


@pytest.fixture(scope="module")
def gated(arch):
    """Is this what the gate compiles?"""
    sources = [(case, aot.source(case)) for case in aot.cases() if case.arch == arch]
    parts = [
        (case.kernel, source.signature, source.constants, source.attrs, aot.compile_options(case.tile))
        for case, source in sources
    ]
    known = {identity(*of, exact_dim=exact) for of in parts for exact in (False, True)}
    return lambda parts, exact_dim=False: identity(*parts, exact_dim=exact_dim) in known


@pytest.fixture
def launched(arch, monkeypatch):
    """What Triton would compile for a launch on that GPU: `launch` with tensors that have shapes only, and
    Triton's own specialisation.
    """
    calls = []

    class Kernel:
        def __getitem__(self, grid):
            return lambda **arguments: calls.append(arguments)

    monkeypatch.setattr(torch.version, "hip", "7.0" if arch.startswith("gfx") else None)
    monkeypatch.setattr(launch, "architecture", lambda device: arch)
    for kernel in aot.KERNELS:
        monkeypatch.setattr(launch, f"{kernel}_kernel", Kernel())

    def run(
        kernel, rows, dim, dtype, precision="auto", *, z_ref_dtype=None, stride=0, count=False, **options
    ):
        def empty(*shape, of=torch.float32):
            return torch.empty(shape, dtype=of, device="meta")

        z, z_ref = (empty(rows, max(dim, stride), of=of)[:, :dim] for of in (dtype, z_ref_dtype or dtype))
        mask, matrix, one = empty(rows, of=torch.bool), empty(dim, dim), empty()
        if kernel == "coordinate":
            inputs = Inputs(z, z_ref, mask, matrix, one, scale=one, labelled=one if count else None)
            launch.coordinate(z, inputs, SETTINGS._replace(**options), precision)
        else:
            launch.labelled_energy(Inputs(z, None, mask, matrix, one), 0.9, precision, update=True)
        arguments = calls.pop()
        function, backend = getattr(fused, f"{kernel}_kernel"), make_backend(aot.target(arch))
        bind = create_function_from_signature(function.signature, function.params, backend)
        options, *parts = function._pack_args(backend, arguments, *bind(**arguments))
        return kernel, *parts, vars(options)

    return run


@pytest.mark.parametrize("kernel", aot.KERNELS)
@pytest.mark.parametrize("dtype", aot.DTYPES.values(), ids=str)
def test_the_gate_compiles_what_every_entry_launches(arch, gated, launched, kernel, dtype):
    """At the most rows and the largest D of an entry; and below, at and above the rows the kernel looks
    through itself.
    """
    entries = [entry for entry in TABLE if entry.family == FAMILY[arch]]
    shapes = {
        (min(entry.max_rows, 65536), min(entry.max_dim, largest))
        for entry in entries
        for largest in (768, 4096)
    }
    for rows, dim in sorted(shapes | {(256, 768), (SCAN_LIMIT, 768), (SCAN_LIMIT, 4096)}):
        assert gated(launched(kernel, rows, dim, dtype), exact_dim=True), (rows, dim)
    for rows in (SCAN_LIMIT - 64, SCAN_LIMIT, SCAN_LIMIT + 64):
        for dim in (384, 1000, 1024):
            assert gated(launched(kernel, rows, dim, dtype)), (rows, dim)
    if kernel == "coordinate" and dtype != torch.float16:
        for rows in (SCAN_LIMIT, 65536):
            assert gated(launched(kernel, rows, 512, dtype), exact_dim=True)


def test_the_gate_compiles_what_the_other_options_and_precisions_launch(arch, gated, launched):
    fp32, halves = torch.float32, (torch.bfloat16, torch.float16)
    assert gated(launched("coordinate", SCAN_LIMIT, 768, fp32, tau="uniform"))
    assert gated(launched("coordinate", SCAN_LIMIT, 768, fp32, count=True))
    for rows in (256, SCAN_LIMIT - 64, SCAN_LIMIT, SCAN_LIMIT + 64):
        for dtype in halves:
            assert gated(launched("coordinate", rows, 768, dtype, z_ref_dtype=fp32))
            assert gated(launched("coordinate", rows, 768, dtype, "high"))
    assert gated(launched("labelled_energy", SCAN_LIMIT, 768, torch.bfloat16, "high"))
    if arch.startswith("gfx"):
        for kernel in aot.KERNELS:
            for dtype in (fp32, *halves):
                far = launched(kernel, SCAN_LIMIT, 768, dtype, stride=1 << 20)
                assert gated(far) and far != launched(kernel, SCAN_LIMIT, 768, dtype)
        return
    for precision in ("tf32x3", "tf32"):
        for rows in (256, SCAN_LIMIT - 64, SCAN_LIMIT, SCAN_LIMIT + 64):
            assert gated(launched("coordinate", rows, 768, fp32, precision)), (precision, rows)
        assert gated(launched("labelled_energy", SCAN_LIMIT, 768, fp32, precision))
    assert gated(launched("coordinate", 2048, 768, fp32, "tf32"))


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"stores": 8}, "spills 8 bytes stored"),
        ({"loads": 4}, "4 loaded"),
        ({"fp64": 2}, "2 fp64 instructions"),
        ({"shared": 200 << 10}, "shared memory 204800 bytes"),
    ],
)
def test_the_gate_refuses(found, words):
    case = aot.Case("coordinate", "sm_80", "fp32", "auto", 256, 768, Tile(16, 64, 32, 4, 4))
    clean = {"registers": 64, "stores": 0, "loads": 0, "shared": 36 << 10, "fp64": 0}
    assert aot.judge(case, **clean).problems == ()
    assert words in "; ".join(aot.judge(case, **{**clean, **found}).problems)


def test_blocks_per_sm_follow_from_the_scarcest_resource():
    case = aot.Case("coordinate", "sm_80", "fp32", "auto", 256, 768, Tile(16, 64, 32, 4, 4))
    assert aot.judge(case, 80, 0, 0, 1024, 0).blocks_per_sm == 65536 // (80 * 128)
    assert aot.judge(case, 32, 0, 0, 80 << 10, 0).blocks_per_sm == 164 // 81
    assert aot.judge(case, 16, 0, 0, 1024, 0).blocks_per_sm == 64 // 4


def test_blocks_per_cu_follow_from_the_scarcest_resource():
    """gfx942: a block of 4 waves has one on each SIMD; a SIMD has 512 VGPRs and room for 8 waves, the CU 64
    KB.
    """
    case = aot.Case("coordinate", "gfx942", "fp32", "auto", 256, 768, Tile(16, 64, 32, 4, 2))
    assert (
        aot.judge(case, 100, 0, 0, 1024, 0).blocks_per_sm == 4
    )  # 100 become 104, and 4 x 104 = 416, 5 x 104 = 520
    assert (
        aot.judge(case, 32, 0, 0, 16 << 10, 0).blocks_per_sm == 4
    )  # 4 x 16 KB fit exactly: nothing is reserved
    assert aot.judge(case, 32, 0, 0, 1024, 0).blocks_per_sm == 8
    one_wave = aot.Case("coordinate", "gfx942", "fp32", "auto", 256, 768, Tile(16, 64, 32, 1, 2))
    assert (
        aot.judge(one_wave, 104, 0, 0, 1024, 0).blocks_per_sm == 16
    )  # 4 on each SIMD: the 96 VGPRs left on each make no wave together


def test_a_spilling_tile_is_seen_as_such():
    """128 x 128 does not fit the register file in bf16: the gate must say so, or it would pass anything."""
    case = aot.Case("coordinate", "sm_80", "bf16", "auto", 65536, 4096, Tile(128, 128, 64, 4, 3))
    assert any("spills" in problem for problem in aot.compile_case(case).problems)


@pytest.mark.parametrize(
    "shape",
    [
        ("coordinate", "sm_90", "fp32", "auto", 4096, 768),  # spills with 4 warps
        ("coordinate", "sm_80", "bf16", "auto", 65536, 512),  # so does this
        ("labelled_energy", "sm_86", "bf16", "auto", 256, 768),  # and this, with 32 rows
        ("labelled_energy", "sm_120", "fp32", "auto", 65536, 4096),  # spills with 8
    ],
    ids=str,
)
def test_the_table_has_no_spills_where_registers_are_scarcest(shape):
    case = next(
        case
        for case in aot.cases()
        if (case.kernel, case.arch, case.dtype, case.precision, case.rows, case.dim) == shape
    )
    assert not aot.compile_case(case).problems


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
    case = next(case for case in aot.cases() if case.arch == "sm_80")
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


@pytest.mark.parametrize("rows", [1, 63, 64, 65, 1000, 4096])
def test_chunks_cover_the_rows(rows):
    count = chunks(rows)
    assert count * 64 >= rows and count & (count - 1) == 0
