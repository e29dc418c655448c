"""What is read from machine code: lines as the disassemblers write them."""

import pytest

pytest.importorskip("triton", reason="Triton has no wheels for this platform")

from eagc_ops.kernels.assembly import _amd_shared, _sass_shared


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
    assert _sass_shared([line]) == moved
    assert _sass_shared([line, "EXIT", line]) == 2 * moved


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
    assert _amd_shared([line]) == moved
