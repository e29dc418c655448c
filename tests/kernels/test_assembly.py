"""Counting in assembly: pieces of text as compilers write them. `test_aot.py` counts in compiled kernels."""

import pytest

from eagc_ops.kernels import assembly

AMD = """
kernel:
	s_load_dwordx2 s[0:1], s[4:5], 0x0
	s_cbranch_scc1 .LBB0_4
.LBB0_2:                                ; %.lr.ph
                                        ; =>This Inner Loop Header: Depth=1
	buffer_load_dwordx4 v[0:3], v8, s[0:3], 0 offen
	global_load_ushort v4, v[9:10], off
	v_mfma_f32_32x32x8_bf16 v[16:31], v[0:1], v[2:3], v[16:31]
	v_mfma_f32_32x32x8_bf16 v[32:47], v[4:5], v[2:3], v[32:47]
	s_cbranch_scc1 .LBB0_2
	v_mfma_f32_32x32x8_bf16 v[16:31], v[0:1], v[2:3], v[16:31]
.LBB0_3:
	v_fma_f32 v0, v1, v2, v3
	s_branch .LBB0_3
.LBB0_4:
	s_endpgm
"""


def test_a_loop_of_products_on_amd():
    """The peeled product behind the loop and the branch that LLVM does not call a loop do not count."""
    code = assembly.read({"amdgcn": AMD}, warps=4)
    (loop,) = code.loops
    assert code.instructions == 11 and loop.instructions == 5
    assert loop.multiply_adds == 4 * 2 * 32 * 32 * 8
    assert loop.loaded == 4 * 64 * (16 + 2)
    assert loop.kinds["v_mfma"] == 2


@pytest.mark.parametrize(
    ("instruction", "multiply_adds"),
    [
        ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 { %r1 }, { %r2 }, { %r3 }, { %r4 };", 8 * 2048),
        ("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 { %r1 }, { %r2 }, { %r3 }, { %r4 };", 8 * 1024),
        # One instruction of four warps, and one of the whole block (N = 128, M = 64, K = 16).
        ("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 { %f1 }, %rd1, %rd2, %p1, 1, 1;", 2 * 65536),
        ("tcgen05.mma.cta_group::1.kind::f16 [ %r9 + 0 ], %rd1, %rd2, %r608, %p1;", 64 * 128 * 16),
        ("tcgen05.mma.cta_group::1.kind::tf32 [ %r9 + 0 ], [ %r5 ], %rd2, %r608, %p1;", 64 * 128 * 8),
        ("fma.rn.f32 %r1, %r2, %r3, %r1;", 256),
        ("fma.rn.f32x2 %rd1, %rd2, %rd3, %rd1;", 512),
        ("add.s32 %r1, %r2, %r3;", 0),
    ],
    ids=lambda value: value.split()[0] if isinstance(value, str) else "",
)
def test_the_multiply_adds_of_a_ptx_instruction(instruction, multiply_adds):
    descriptor = {"%r608": (64 // 16 << 24) + (128 // 8 << 17)}
    assert assembly._ptx_multiply_adds([instruction], descriptor, warps=8) == multiply_adds


def test_scalar_products_count_where_they_are_most_of_a_loop():
    """One multiply-add among ten instructions is not a loop of products."""
    body = ["fma.rn.f32 %r1, %r2, %r3, %r1;", *["ld.shared.b32 %r2, [ %r9 ];"] * 9]
    assert assembly._ptx_multiply_adds(body, {}, warps=4) == 0
    assert assembly._ptx_multiply_adds(body[:2], {}, warps=4) == 128


def test_blocks_that_ptxas_moved_are_not_loops():
    """A wait that failed continues at the end of the kernel and jumps back into the middle of the loop."""
    text = """
.L_x_1:
        /*0000*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P4, [UR5], R93 ;
        /*0010*/              @!P4 BRA `(.L_x_3) ;
.L_x_2:
        /*0020*/                   HMMA.16816.F32.BF16 R72, R40.reuse, R108, R72 ;
        /*0030*/               @P0 BRA `(.L_x_1) ;
        /*0040*/                   EXIT ;
.L_x_3:
        /*0050*/                   HMMA.16816.F32.BF16 R72, R40.reuse, R108, R72 ;
        /*0060*/                   BRA `(.L_x_2) ;
"""
    length, (body,) = assembly._loops(text.splitlines(), *assembly._SASS, assembly._sass_products)
    assert length == 7 and len(body) == 4


@pytest.mark.parametrize(
    ("line", "moved"),
    [
        ("LDS R4, [R2]", 32 * 4),
        ("LDS.U.128 R4, [R2+0x10]", 32 * 16),
        ("@!P0 LDS.64 R4, [R2.X4+UR4]", 32 * 8),
        ("LDS.U8 R4, [R2]", 32),
        ("STS.128 [R2], R4", 32 * 16),
        ("LDSM.16.M88.4 R4, [R2]", 4 * 8 * 8 * 2),
        ("LDSM.16.MT88.2 R4, [R2]", 2 * 8 * 8 * 2),
        ("LDSM.16.M88 R4, [R2]", 8 * 8 * 2),
        ("LDGSTS.E.BYPASS.128 [R2], [R4.64]", 32 * 16),
        ("LDGSTS.E.BYPASS.LTC128B.128 [R2], desc[UR4][R4.64]", 32 * 16),
        ("LDG.E.128 R4, [R2.64]", 0),
        ("FFMA R4, R5, R6, R4", 0),
        # Four warps read both operands (64 x 16 and 64 x 16 of 16 bits), or B alone.
        ("HGMMA.64x64x16.F32.BF16 R56, gdesc[UR24].tnspB, R56", 2 * 16 * (64 + 64) // 4),
        ("HGMMA.64x128x8.F32.TF32 R56, R24, gdesc[UR24], R56", 4 * 8 * 128 // 4),
    ],
)
def test_bytes_through_shared_memory(line, moved):
    assert assembly._sass_shared([line]) == moved
    assert assembly._sass_shared([line, "EXIT", line]) == 2 * moved


@pytest.mark.parametrize(
    ("line", "moved"),
    [
        ("ds_read_b128 v[0:3], v4", 64 * 16),
        ("ds_read2st64_b64 v[0:3], v4 offset1:1", 64 * 16),
        ("ds_read2_b32 v[0:1], v4 offset1:1", 64 * 8),
        ("ds_read_u16 v0, v4", 64 * 2),
        ("ds_write_b8 v0, v4", 64),
        ("buffer_load_dwordx4 v[0:3], v4, s[0:3], 0 offen", 0),
        ("s_barrier", 0),
    ],
)
def test_bytes_through_lds(line, moved):
    assert assembly._amd_shared([line]) == moved
