"""Code generation for GPUs that are not there: a subset of the compile gate (all of it: `make gate`), and the gate itself."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton has no wheels for this platform")

from eagc_ops.kernels import aot
from eagc_ops.kernels.tiles import FAMILY, TABLE, Tile, chunks, pick


@pytest.fixture(scope="module")
def compiled():
    return aot.compile_all(list(aot.cases(subset=True)))


def test_one_case_per_architecture_passes_the_gate(compiled):
    assert [case.arch for case, _ in compiled] == ["sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "gfx942"]
    for case, found in compiled:
        assert not found.problems, f"{case}: {found.problems}"
        assert found.registers > 16 and found.shared > 0 and found.blocks_per_sm >= 1


def test_the_report_shows_every_case(compiled):
    lines = aot.table(compiled).splitlines()
    assert len(lines) == 2 + len(compiled)
    assert all(line.endswith("| ok |") for line in lines[2:])
    assert aot.as_record(*compiled[0])["arch"] == "sm_80"


def test_the_gate_covers_every_entry_dtype_and_architecture():
    covered = {(case.kernel, case.arch, case.dtype, case.tile[:2]) for case in aot.cases()}
    for arch in aot.LIMITS:
        for entry in TABLE:
            if entry.family == FAMILY[arch]:
                for kernel in aot.KERNELS:
                    for dtype in aot.DTYPES:
                        assert (kernel, arch, dtype, (entry.block_m, entry.block_n)) in covered


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


def test_a_spilling_tile_is_seen_as_such():
    """128 x 128 does not fit the register file in bf16: the gate must say so, or it would pass anything."""
    case = aot.Case("coordinate", "sm_80", "bf16", "auto", 65536, 4096, Tile(128, 128, 64, 4, 3))
    assert any("spills" in problem for problem in aot.compile_case(case).problems)


def test_on_amd_every_wave_waits_for_its_stores_before_it_is_counted():
    """A release there covers one wave only; without the wait the last program could read shares that have not arrived."""
    case = next(case for case in aot.cases() if case.arch == "gfx942")
    lines = aot.compiled_kernel(case).asm["amdgcn"].splitlines()
    code = [line.strip() for line in lines if line.strip() and not line.strip().startswith((".", ";"))]
    atomic = next(i for i, line in enumerate(code) if line.startswith("global_atomic_add"))
    barrier = max(i for i, line in enumerate(code[:atomic]) if line.startswith("s_barrier"))
    store = max(i for i, line in enumerate(code[:barrier]) if line.startswith("global_store"))
    assert any(line.startswith("s_waitcnt vmcnt(0)") for line in code[store:barrier])


def test_on_nvidia_the_arrival_releases_and_acquires():
    case = next(case for case in aot.cases() if case.arch == "sm_80")
    lines = aot.compiled_kernel(case).asm["ptx"].splitlines()
    atomic = next(i for i, line in enumerate(lines) if "atom.global.gpu.acq_rel.add" in line)
    stores = [i for i, line in enumerate(lines[:atomic]) if "st.global" in line]
    assert any("bar.sync" in line for line in lines[max(stores) : atomic])
    assert any("ld.global.cg" in line for line in lines[atomic:])


@pytest.mark.parametrize("arch", [*FAMILY, "sm_130", "gfx1100", "interpreter"])
def test_every_shape_has_a_tile(arch):
    for rows in (1, 256, 512, 513, 2048, 2049, 65536):
        for dim in (1, 100, 384, 768, 1024, 4096):
            for dtype in (torch.float32, torch.bfloat16):
                tile = pick(arch, rows, dim, dtype)
                assert min(tile[:3]) >= 16  # tl.dot takes no less


def test_an_unknown_architecture_gets_the_tiles_of_its_maker():
    assert pick("gfx1100", 256, 768, torch.float32) == pick("gfx942", 256, 768, torch.float32)
    assert pick("sm_130", 256, 768, torch.float32) == pick("sm_120", 256, 768, torch.float32)


@pytest.mark.parametrize("rows", [1, 63, 64, 65, 1000, 4096])
def test_chunks_cover_the_rows(rows):
    count = chunks(rows)
    assert count * 64 >= rows and count & (count - 1) == 0
