"""The search behind `eagc tune`: the fastest tile of the fused kernel for one shape, and its keeping."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from ..app.console import bar
from ..app.files import atomic_write
from ..kernels import DTYPES, Precision, formulas
from . import selftest

if TYPE_CHECKING:
    from ..kernels.tiles import Tile

Timer = Callable[[Callable[[], Any]], float]


@dataclass(frozen=True)
class Shape:
    """The calls to tune for: features (rows, dim) of a dtype (a key of DTYPES)."""

    rows: int
    dim: int
    dtype: str
    precision: Precision = "auto"


@dataclass(frozen=True)
class Found:
    """The seconds of each tile, and the tile that the table has for the shape."""

    seconds: dict[Tile, float]
    table: Tile

    @property
    def best(self) -> Tile:
        return min(self.seconds, key=self.seconds.__getitem__)


def search(
    shape: Shape,
    device: torch.device,
    timer: Timer,
    accepted: Callable[[Shape, str, list[Tile]], list[Tile]] | None = None,
) -> Found:
    """Time every tile that fits; `timer(run)` returns the seconds of `run()`.

    `accepted(shape, architecture, tiles)` keeps the tiles that may be launched; None: the compile gate.
    """
    from ..kernels import launch
    from ..kernels.tiles import architecture, pick

    dtype, arch = DTYPES[shape.dtype], architecture(device)
    shape = replace(shape, precision=launch.effective(shape.precision, dtype))
    table = pick(arch, shape.rows, shape.dim, dtype, shape.precision, dtype)
    tiles = list(dict.fromkeys([table, *candidates(shape)]))
    case = selftest.Case("triton", shape.precision, "default", dtype, shape.rows, shape.dim, 0.5)
    g, inputs, settings = selftest.make_inputs(case)
    wide = inputs.rounded(case.matrix_dtype).widened(torch.float64)
    exact = formulas.coordinated(g.double(), wide, settings).gradient
    correction = (exact - g.double()).abs().max()
    g, inputs = g.to(device), inputs.on(device)
    inputs = inputs._replace(half=inputs.matrix.to(case.matrix_dtype))
    seconds: dict[Tile, float] = {}
    for tile in bar((accepted or pass_the_gate)(shape, arch, tiles), "timing"):

        def run(tile: Tile = tile) -> torch.Tensor:
            return launch.run(g, inputs, settings, shape.precision, tile).gradient

        try:
            error = (run().cpu().double() - exact).abs().max() / correction
            if error <= case.allowed:
                seconds[tile] = timer(run)
        except Exception:  # the gate compiled for a relative of this GPU, on which the tile may not fit
            if tile == table:
                raise
    if not seconds:
        raise ValueError(f"no tile gives the right result for {shape}: please report `eagc selftest --json`")
    return Found(seconds, table)


def candidates(shape: Shape) -> Iterable[Tile]:
    """All tiles of sizes that make sense for the shape: up to twice its rows and columns."""
    from ..kernels.tiles import Tile

    narrow = DTYPES[shape.dtype] != torch.float32 and shape.precision != "high"
    sizes = itertools.product(
        (16, 32, 64, 128),
        (32, 64, 128),
        (64, 128) if narrow else (32, 64),
        (4, 8),
        (2, 3, 4),
        (False, True),
    )
    for block_m, block_n, block_k, warps, stages, triangle in sizes:
        if block_m < 2 * shape.rows and max(block_n, block_k) < 2 * shape.dim:
            yield Tile(block_m, block_n, block_k, warps, stages, triangle)


def pass_the_gate(shape: Shape, arch: str, tiles: list[Tile]) -> list[Tile]:
    """The tiles with which both kernels pass the compile gate, compiled by all cores.

    A GPU that the gate does not know is judged as its nearest older relative.
    """
    from ..kernels import aot

    known = relative(arch, aot.LIMITS)
    cases = [
        aot.Case(kernel, known, shape.dtype, shape.precision, shape.rows, shape.dim, tile)
        for tile in tiles
        for kernel in aot.KERNELS
    ]
    # New processes, not forked ones: CUDA is in use in this one.
    compiled = aot.in_processes(cases, os.cpu_count() or 1, "spawn")
    found = list(bar(compiled, "compiling", len(cases)))
    refused = {case.tile for case, resources in zip(cases, found) if resources.problems}
    return [tile for tile in tiles if tile not in refused]


def relative(arch: str, known: Iterable[str]) -> str:
    """`arch`, or the newest of the known architectures of its family that is older.

    >>> [relative(arch, ("sm_80", "sm_86", "sm_100", "sm_120")) for arch in ("sm_86", "sm_89", "sm_103")]
    ['sm_86', 'sm_86', 'sm_100']
    """
    from ..kernels.tiles import family

    if arch in known:
        return arch
    kin = [other for other in known if family(other) == family(arch)]
    if not arch.startswith("sm_"):
        return kin[-1]
    older = [other for other in kin if int(other[3:]) < int(arch[3:])]
    return max(older or kin, key=lambda other: int(other[3:]))


def keep(shape: Shape, device: torch.device, found: Found) -> str:
    """Write the best tile to the file that launches read, and return its path.

    A file that cannot be read is replaced.
    """
    from ..kernels import launch, tuned

    try:
        tuned.read()
        content = json.loads(tuned.path().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        content = {}
    dtype = DTYPES[shape.dtype]
    effective = launch.effective(shape.precision, dtype)
    key = tuned.key(device, shape.rows, shape.dim, dtype, effective)
    timed = {"seconds": found.seconds[found.best], "table_seconds": found.seconds.get(found.table)}
    content[key] = {**found.best._asdict(), **timed, "rows": shape.rows}
    tuned.path().parent.mkdir(parents=True, exist_ok=True)
    atomic_write(tuned.path(), json.dumps(content, indent=1))
    launch.forget()
    return str(tuned.path())


def gpu_seconds(run: Callable[[], Any]) -> float:
    """The median seconds of a call on the GPU, with a cold L2 cache."""
    import triton

    return triton.testing.do_bench(run, return_mode="median") / 1000
