"""The launch table: the tile of the fused kernels for an architecture, a number of rows, D and a dtype.

The entries were chosen from the resources of compiled kernels and a traffic model; none was tuned on
hardware. `pick` reads them; `launch.run(..., tile=Tile(...))` takes any tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch

# "sm_80", ...: the architecture that launches on CPU tensors are for, where something executes compiled
# kernels on a CPU (the tests do). None: CPU tensors are for Triton's interpreter.
target: str | None = None


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

    @property
    def tail(self) -> int:
        """Columns of g S that the last program of a row block reads at a time: 32 elements of a thread.

        >>> Tile(16, 64, 32, warps=4, stages=4).tail
        256
        """
        return 32 * 32 * self.warps // self.block_m


# How products are formed: of fp32 operands on the plain cores, in tf32 or three times in tf32 on the tensor
# cores, or of 16-bit operands on the tensor cores.
Products = Literal["fp32", "tf32", "tf32x3", "half"]
ALL: tuple[Products, ...] = get_args(Products)


def products(dtype: torch.dtype, precision: str) -> Products:
    """The products of features in `dtype`; `precision` is as in `eagc_op`."""
    if dtype != torch.float32:
        return "fp32" if precision == "high" else "half"
    return "tf32x3" if precision == "tf32x3" else "tf32" if precision == "tf32" else "fp32"


@dataclass(frozen=True)
class Entry:
    """`tile(products)` serves up to `max_rows` rows and D up to `max_dim` on one family of architectures.

    The tile has `triangle` for the products named there. `only` restricts the entry to some products.
    """

    family: str
    max_rows: int
    max_dim: int
    block_m: int
    block_n: int
    warps: int
    stages: int
    triangle: tuple[Products, ...] = ("fp32", "tf32x3")
    only: tuple[Products, ...] = ALL
    block_k: int = 32  # of fp32 operands, and twice as many of 16-bit ones: 128 bytes, one full cache line

    def tile(self, products: Products) -> Tile:
        block_k = self.block_k * (2 if products == "half" else 1)
        return Tile(
            self.block_m, self.block_n, block_k, self.warps, self.stages, triangle=products in self.triangle
        )


# Architectures of a family get the same tiles. Shared memory per SM: 164-228 KB (wide, async), 100 KB
# (narrow), 64 KB of LDS (cdna). The tensor cores of "async" work beside the warps and keep their sums. These
# are compiled by the gate; `family` places the others.
FAMILY = {
    "sm_80": "wide",
    "sm_90": "async",
    "sm_100": "async",
    "sm_86": "narrow",
    "sm_89": "narrow",
    "sm_120": "narrow",
    "gfx942": "cdna",
}


def family(arch: str) -> str:
    """The family of an architecture: that of the known ones of its major version.

    sm_87 has the shared memory of sm_80. An unknown major version gets the smaller tiles, which fit anywhere.

    >>> [family(arch) for arch in ("sm_87", "sm_103", "sm_121", "gfx950", "sm_200")]
    ['wide', 'async', 'narrow', 'cdna', 'narrow']
    """
    if arch in FAMILY:
        return FAMILY[arch]
    if arch.startswith("gfx"):
        return "cdna"
    if arch[:-1] in ("sm_9", "sm_10", "sm_11"):
        return "async"
    return "wide" if arch == "sm_87" else "narrow"


ANY = 1 << 31
SCAN_LIMIT = 512  # up to here every program finds its rows itself; for more, a kernel lists them first
# Few rows: small blocks, because the number of programs, not their efficiency, limits the speed (256 rows of
# which half are unlabelled give 8 row blocks of 16). Many rows: larger blocks, because every row block reads
# all of S once. Blocks of 64 x 64 with 8 warps would do every tensor product twice (a warp's instruction has
# 16 rows, and the compiler puts 8 warps above each other); those of 64 x 128 do each once. tf32x3 spills with
# them on all but sm_80.
#
# The triangle saves a fifth of the products and costs a second loop, whose pipeline has to fill again.
# Counted in machine code (`eagc bench aot --triangle`) it pays where products are most of a step: with fp32
# and tf32x3 everywhere (16 x 64 on sm_80 at D = 768: 13,402 instead of 16,128 instructions of a warp), with
# the others in blocks of 64 x 128 (832 instead of 1,024 tensor instructions at D = 1,024), but not in smaller
# ones (1,164 instead of 1,044 instructions, and those limit the speed there). On "async" the doubling of the
# sums would have to wait for the tensor cores in every step.
#
# fp32 products are bound by shared memory where an SM has 128 of them per clock ("async", "narrow"). There a
# thread gets twice as many sums (2 warps for 16 x 64, 4 for 32 x 128), so that it reads fewer bytes for each.
TABLE = (
    Entry("wide", 512, 384, 16, 32, 4, 4),
    Entry("wide", 512, 768, 16, 64, 4, 4),
    Entry("wide", 2048, ANY, 32, 64, 4, 4),
    Entry("wide", ANY, ANY, 64, 128, 8, 3, ALL),
    Entry("async", 512, 384, 16, 32, 4, 4),
    Entry("async", 2048, 1024, 16, 64, 2, 4, only=("fp32",)),
    Entry("async", 512, 768, 16, 64, 4, 3, only=("tf32",)),  # labelled_energy spills with 4 stages
    Entry("async", 512, 768, 16, 64, 4, 4),
    Entry("async", 2048, ANY, 32, 64, 4, 4),
    Entry("async", ANY, ANY, 32, 64, 4, 4, only=("tf32x3",)),
    Entry("async", ANY, ANY, 32, 128, 4, 3, only=("fp32",)),
    Entry("async", ANY, ANY, 64, 128, 8, 3),
    Entry("narrow", 512, 384, 16, 32, 4, 4),
    Entry("narrow", 2048, 1024, 16, 64, 2, 4, only=("fp32",), block_k=16),
    Entry("narrow", 2048, ANY, 32, 64, 4, 4),
    Entry("narrow", ANY, ANY, 32, 64, 4, 4, only=("tf32x3",)),
    # With block_k = 32 the energy kernel spills on sm_120; larger D is not compiled with it
    Entry("narrow", ANY, 1024, 32, 128, 4, 3, only=("fp32",), block_k=16),
    Entry("narrow", ANY, ANY, 64, 128, 8, 3, ALL),
    Entry("cdna", 512, 768, 16, 64, 4, 2),
    Entry("cdna", 2048, ANY, 32, 64, 4, 2),
    Entry("cdna", ANY, ANY, 64, 64, 4, 2),
)


# Some calls need more registers and get a small tile: those with a D that the table's tiles do not divide
# (bounds checks), with z_ref in a different dtype than z (both widths in flight), and with half inputs
# widened to fp32 products. On AMD each of the four waves has a matrix instruction of 16 columns.
SMALL = Entry("any", ANY, ANY, 16, 32, 4, 3, ALL)
SMALL_CDNA = Entry("cdna", ANY, ANY, 16, 64, 4, 2, ALL)


def pick(
    arch: str,
    rows: int,
    dim: int,
    dtype: torch.dtype,
    precision: str = "auto",
    z_ref_dtype: torch.dtype | None = None,
    basis: bool = False,
) -> Tile:
    """The tile of the first entry of the architecture's family that covers the shape.

    If it does not divide D, the largest tile before it that does.

    `dtype` is the dtype of z, `z_ref_dtype` that of z_ref (None: no anchor), `precision` as in `eagc_op`;
    `basis`: whether the energy has one.

    >>> pick("sm_80", 256, 768, torch.float32)
    Tile(block_m=16, block_n=64, block_k=32, warps=4, stages=4, triangle=True)
    """
    if basis:
        tile = pick(arch, rows, dim, dtype, precision, z_ref_dtype)
        return _with_basis(tile, arch, products(dtype, precision))
    kind = products(dtype, precision)
    small = SMALL_CDNA if family(arch) == "cdna" else SMALL
    if kind == "fp32" and dtype != torch.float32:
        return small.tile(kind)
    tiles = [entry.tile(kind) for entry in _entries(arch, rows, dim, kind)]
    divides = [tile for tile in tiles if dim % tile.block_n == 0 and dim % tile.block_k == 0]
    return divides[-1] if divides and z_ref_dtype in (None, dtype) else small.tile(kind)


def _with_basis(tile: Tile, arch: str, kind: Products) -> Tile:
    """The tile for a kernel that also reads a block of the basis in every step; a basis has no triangle.

    Of four stages it gives up one: its blocks then take about the shared memory that they take without a
    basis, and as many of them fit on an SM.
    """
    tile = tile._replace(stages=min(tile.stages, 3), triangle=False)
    if kind == "tf32x3" and tile.block_n == 128:  # spills
        return tile._replace(block_m=32, block_n=64, warps=4)
    if kind == "fp32" and tile.warps == 2 and family(arch) == "async":
        return tile._replace(warps=4)  # labelled_energy spills 4 bytes on sm_100
    if kind == "half" and tile.block_n <= (64 if family(arch) == "narrow" else 32):
        return tile._replace(block_k=32)  # 64 spill 4 to 8 bytes: more addresses of more loads in flight
    return tile


def _entries(arch: str, rows: int, dim: int, kind: Products) -> list[Entry]:
    """The entries of the family up to the first that covers the shape."""
    entries = [entry for entry in TABLE if entry.family == family(arch) and kind in entry.only]
    covers = next(i for i, e in enumerate(entries) if rows <= e.max_rows and dim <= e.max_dim)
    return entries[: covers + 1]


def architecture(device: torch.device) -> str:
    """ "sm_80", "gfx942", ... of a CUDA or ROCm device; of a CPU: `target`, or "interpreter"."""
    if device.type != "cuda":
        return target or "interpreter"
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip:
        return properties.gcnArchName.split(":")[0]
    return f"sm_{properties.major}{properties.minor}"
