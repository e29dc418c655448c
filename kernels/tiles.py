"""The launch table: the tile of the fused kernels for an architecture, a number of rows, D and a dtype.

The entries were chosen from the resources of compiled kernels and a traffic model; none was tuned on
hardware. `pick` reads them; `launch.coordinate(..., tile=Tile(...))` takes any tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch


class Tile(NamedTuple):
    """block_m rows x block_n columns of S per program, block_k of the inner dimension at a time.

    With `triangle` the energy comes from a triangle of S.
    """

    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int
    triangle: bool = False


@dataclass(frozen=True)
class Entry:
    """`tile(dtype)` serves up to `max_rows` rows and D up to `max_dim` on one family of architectures.

    `dtype` restricts the entry to features of that dtype.
    """

    family: str
    max_rows: int
    max_dim: int
    block_m: int
    block_n: int
    warps: int
    stages: int
    dtype: torch.dtype | None = None

    def tile(self, dtype: torch.dtype) -> Tile:
        # A step of the inner loop reads 128 bytes of a row in either width: one full cache line.
        return Tile(self.block_m, self.block_n, 32 if dtype == torch.float32 else 64, self.warps, self.stages)


# Architectures of a family have similar shared memory per SM, and so the same tiles: 164-228 KB (wide),
# 100 KB (narrow), 64 KB of LDS (cdna). These are compiled by the gate; `family` places the others.
FAMILY = {
    "sm_80": "wide",
    "sm_90": "wide",
    "sm_100": "wide",
    "sm_86": "narrow",
    "sm_89": "narrow",
    "sm_120": "narrow",
    "gfx942": "cdna",
}


def family(arch: str) -> str:
    """The family of an architecture: that of the known ones of its major version.

    sm_87 has the shared memory of sm_80. An unknown major version gets the smaller tiles, which fit anywhere.

    >>> [family(arch) for arch in ("sm_87", "sm_103", "sm_121", "gfx950", "sm_200")]
    ['wide', 'wide', 'narrow', 'cdna', 'narrow']
    """
    if arch in FAMILY:
        return FAMILY[arch]
    if arch.startswith("gfx"):
        return "cdna"
    wide = arch == "sm_87" or arch[:-1] in ("sm_9", "sm_10", "sm_11")
    return "wide" if wide else "narrow"


ANY = 1 << 31
SCAN_LIMIT = 512  # up to here every program finds its rows itself; for more, a kernel lists them first
# Few rows: small blocks, because the number of programs, not their efficiency, limits the speed (256 rows of
# which half are unlabelled give 8 row blocks of 16). Many rows: larger blocks, because every row block reads
# all of S once. The warps are those with which ptxas does not spill at the gate's D. 4 warps spill in blocks
# of 64 x 64 up to SCAN_LIMIT rows (fp32 on sm_90, bf16 on sm_86 and sm_120), and in bf16 also beyond (sm_80)
# and in blocks of 32 x 64 (sm_86). 8 warps spill in fp32 beyond SCAN_LIMIT (sm_100, sm_120) and in blocks of
# 32 x 64 (sm_120).
TABLE = (
    Entry("wide", 512, 384, 16, 32, 4, 4),
    Entry("wide", 512, 768, 16, 64, 4, 4),
    Entry("wide", 2048, ANY, 32, 64, 4, 4),
    Entry("wide", SCAN_LIMIT, ANY, 64, 64, 8, 3),
    Entry("wide", ANY, ANY, 64, 64, 4, 3, torch.float32),
    Entry("wide", ANY, ANY, 64, 64, 8, 3),
    Entry("narrow", 512, 384, 16, 32, 4, 4),
    Entry("narrow", 2048, ANY, 32, 64, 4, 4, torch.float32),
    Entry("narrow", 2048, ANY, 32, 64, 8, 4),
    Entry("narrow", SCAN_LIMIT, ANY, 64, 64, 8, 3),
    Entry("narrow", ANY, ANY, 64, 64, 4, 3),
    Entry("cdna", 512, 768, 16, 64, 4, 2),
    Entry("cdna", 2048, ANY, 32, 64, 4, 2),
    Entry("cdna", ANY, ANY, 64, 64, 4, 2),
)


# Some calls need more registers and get a small tile: those with a D that the table's tiles do not divide
# (bounds checks), with z_ref in a different dtype than z (both widths in flight), in tf32x3 (three products
# for one), and with half inputs widened to fp32 products.
SMALL = Entry("any", ANY, ANY, 16, 32, 4, 3)
WIDENED = Entry("any", ANY, ANY, 16, 32, 4, 4)


def pick(
    arch: str,
    rows: int,
    dim: int,
    dtype: torch.dtype,
    precision: str = "auto",
    z_ref_dtype: torch.dtype | None = None,
) -> Tile:
    """The tile of the first entry of the architecture's family that covers the shape.

    `dtype` is the dtype of z, `z_ref_dtype` that of z_ref (None: no anchor), `precision` as in `eagc_op`.

    >>> pick("sm_80", 256, 768, torch.float32)
    Tile(block_m=16, block_n=64, block_k=32, warps=4, stages=4)
    """
    if precision == "high" and dtype != torch.float32:
        return WIDENED.tile(torch.float32)
    if precision == "tf32x3":
        return SMALL.tile(dtype)
    entries = (e for e in TABLE if e.family == family(arch) and e.dtype in (None, dtype))
    tile = next(e for e in entries if rows <= e.max_rows and dim <= e.max_dim).tile(dtype)
    even = dim % tile.block_n == 0 and dim % tile.block_k == 0 and z_ref_dtype in (None, dtype)
    return tile if even else SMALL.tile(dtype)


def architecture(device: torch.device) -> str:
    """ "sm_80", "gfx942", ... of a CUDA or ROCm device; "interpreter" for a CPU."""
    if device.type != "cuda":
        return "interpreter"
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip:
        return properties.gcnArchName.split(":")[0]
    return f"sm_{properties.major}{properties.minor}"
