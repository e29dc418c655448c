"""`eagc bench roofline`: whether arithmetic or memory bounds the operator.

There are two kinds of points, which are never mixed: measured points of this device, with roofs measured on
it; and modelled points of GPUs that are absent. The model is made of counts from compiled code (records of
`kernels/aot.py`) and of data sheets. Its other inputs are the constants below. Every modelled row says that
it is modelled, and has beside it what two forms made of library calls would take by the same model.

One SM (or CU) does `blocks` / SMs blocks. In each loop the work of all of them on a pipe adds up, and the
latency of a step counts once for every round of blocks that are resident together:

    seconds = launches + rounds * outside + sum over loops of steps * max(blocks of an SM * busiest pipe,
                                                                          rounds * latency of a step)

unless L2 or memory needs longer for its bytes than the loops.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from eagc_ops.bench.measure import clock, interleave
from eagc_ops.bench.work import Work, nominal_work
from eagc_ops.kernels import DTYPES
from eagc_ops.kernels.tiles import SCAN_LIMIT, Tile, pick

LAUNCH = (
    2e-6  # seconds from the end of one kernel to the start of the next, with launches waiting in the queue
)
L2_WIDTH = 64  # bytes per clock from L2 into one SM
SHARED_WIDTH = 128  # bytes per clock between shared memory and registers of one SM
STEP_LATENCY = 80  # clocks of a step beyond its instructions: barrier, first shared load, last product
DEPENDENT = 4  # clocks from an instruction to one that needs its result
# Trips to L2 and back that wait for each other. Before the loops: the mask, the list of rows, labelled rows.
# After them: z of the block, stores released, the counter, shares of the energy.
TRIPS_BEFORE, TRIPS_AFTER = 3, 4
# Of the busiest pipe, what a loop reaches: the compiled loops and those of the library, which are bound by
# products or L2 only.
REACHED = 0.85
# The library's tiles (rows x columns), of which it has the best one for each product.
LIBRARY_TILES = ((256, 128), (128, 128), (128, 64), (64, 64), (64, 32), (32, 32))
LIBRARY_SPLITS = (1, 2, 4, 8)  # of the inner dimension; the parts are added through L2
LIBRARY_STAGES = 4
UNCERTAINTY = 2.0  # factor either way

ASSUMPTIONS = (
    "Modelled, not measured: no kernel here has been timed on a GPU.",
    "Counted in compiled code: instructions of a step by pipe, products, bytes through shared memory, blocks "
    "per SM; lanes that read one address count each. Without bank conflicts: executed by the PTX machine, "
    "bf16 has none, and fp32 in blocks of up to 32 x 64 takes shared memory up to 1.25 times as long, in "
    "blocks of 16 x 64 with two warps on sm_86 and sm_120 up to 1.4 times",
    f"time = {LAUNCH * 1e6:.0f} us per launch (the host is not counted) + loops + the code around them; L2 "
    "and memory overlap with the loops",
    f"a loop: all blocks of the busiest SM on the busiest pipe, of which {REACHED:.0%} is reached; or, per "
    "round of resident blocks, the latency of its steps: a trip to L2 shared by stages - 1, or a warp's "
    f"instructions + {STEP_LATENCY} clocks",
    f"around the loops: {DEPENDENT} clocks per instruction, and trips to L2 that wait for each other (300 "
    f"clocks, MI300X 500): {TRIPS_BEFORE} before, one per loop, {TRIPS_AFTER} after, then the tail's",
    f"an SM per clock: products as in the data sheet, 4 issue slots (CU: 1 vector), {SHARED_WIDTH} B shared, "
    f"{L2_WIDTH} B from L2; L2 in all 4.7 (A100), 2.0 (3090), 5.5 (H100), 17.2 TB/s (MI300X)",
    f"gather + BLAS, dense BLAS: the best tile and split at {REACHED:.0%} of the product peak, whole waves "
    "of tiles; 5 and 4 launches; other kernels at full bandwidth; the number of rows known to the host",
    f"half the rows labelled; good for ranking, uncertain by a factor of {UNCERTAINTY:.0f} either way (bars)",
)


@dataclass(frozen=True)
class Device:
    """A data sheet. Units are SMs or CUs; rates are multiply-adds per clock of one of them.

    fp32 is without tensor cores, as the kernel's default is; AMD's is in MFMA.
    """

    arch: str
    units: int
    clock: float
    memory: float  # bytes per second
    cache: float  # bytes per second, L2 in all
    trip: int  # clocks to L2 and back; on MI300X to the cache that its eight dies share
    rate: dict[str, int]

    @property
    def peak(self) -> dict[str, float]:
        """FLOP/s of dense products by dtype."""
        return {dtype: 2 * rate * self.units * self.clock for dtype, rate in self.rate.items()}

    @property
    def amd(self) -> bool:
        return self.arch.startswith("gfx")


# The clock of the H100 is that of its tensor peak (989 TFLOP/s); its data sheet has 8 % more for fp32.
DEVICES = {
    "A100 SXM 80 GB": Device("sm_80", 108, 1.410e9, 2.04e12, 4.7e12, 300, {"fp32": 64, "bf16": 1024}),
    "RTX 3090": Device("sm_86", 82, 1.695e9, 0.936e12, 2.0e12, 300, {"fp32": 128, "bf16": 256}),
    "H100 SXM": Device("sm_90", 132, 1.830e9, 3.35e12, 5.5e12, 300, {"fp32": 128, "bf16": 2048}),
    "MI300X": Device("gfx942", 304, 2.100e9, 5.3e12, 17.2e12, 500, {"fp32": 128, "bf16": 1024}),
}

_RESOURCES = ("arch", "registers", "shared", "blocks_per_sm", *Tile._fields)
_SCALAR = ("FFMA", "FMUL", "FADD", "IMAD", "FFMA2", "FFMA2")  # on the pipe of fp32 products; FFMA2 is two
_MATRIX = ("HMMA", "HGMMA", "UTCHMMA", "v_mfma")


def modelled_rows(rows: tuple[int, ...], dim: int = 768, workers: int = 2) -> list[dict[str, Any]]:
    """Compile the kernel of every device, dtype and number of rows, and model its time.

    Compiling takes seconds per kernel. Numbers of rows that share a kernel share its compilation.
    """
    from eagc_ops.kernels import aot

    def case(device: Device, dtype: str, count: int) -> aot.Case:
        tile = pick(device.arch, count, dim, DTYPES[dtype])
        return aot.Case("coordinate", device.arch, dtype, "auto", count, dim, tile)

    wanted = [
        (name, case(device, dtype, count))
        for name, device in DEVICES.items()
        for dtype in device.rate
        for count in rows
    ]

    def kernel(case: aot.Case) -> tuple[object, ...]:
        return case.arch, case.dtype, case.tile, case.rows <= SCAN_LIMIT

    first = {kernel(case): case for _, case in reversed(wanted)}
    compiled = dict(zip(first, aot.compile_all(list(first.values()), workers)))
    return [model(name, aot.as_record(case, compiled[kernel(case)][1])) for name, case in wanted]


def model(name: str, compiled: dict[str, Any]) -> dict[str, Any]:
    """One modelled point; `compiled` is a record of `aot.as_record`."""
    device, dim, dtype, rows = DEVICES[name], compiled["dim"], compiled["dtype"], compiled["rows"]
    tile = Tile(*(compiled[field] for field in Tile._fields))
    itemsize = _itemsize(dtype)
    unlabelled = rows - rows // 2
    work = nominal_work(unlabelled, rows // 2, dim, itemsize, running=False)
    # Blocks of the grid beyond the unlabelled rows only copy labelled ones: their bytes count, not their
    # time.
    blocks = -(-unlabelled // tile.block_m) * -(-dim // tile.block_n)
    turns = -(-blocks // device.units)  # on the busiest SM
    rounds = -(-turns // compiled["blocks_per_sm"])
    clocks: dict[str, float] = {}  # of the busiest SM in its loops, by what bounds each of them
    for loop in compiled["loops"]:
        pipes = {pipe: turns * count / REACHED for pipe, count in _pipes(device, dtype, loop, tile).items()}
        waits = {"latency": rounds * _step_latency(device, loop, tile.stages)}
        bound, per_step = max((pipes | waits).items(), key=lambda item: item[1])
        clocks[bound] = clocks.get(bound, 0) + loop["times"] * per_step
    loaded = blocks * sum(loop["times"] * loop["loaded"] for loop in compiled["loops"])
    scratch = 2 * 4 * unlabelled * dim  # g S is written and read back
    terms = {bound: total / device.clock for bound, total in clocks.items()}
    inner = {
        "loops": sum(terms.values()),
        "L2": (loaded + scratch) / device.cache,
        "memory": work.bytes / device.memory,
    }
    trips = TRIPS_BEFORE + len(compiled["loops"]) + TRIPS_AFTER + -(-dim // tile.tail)
    straight = compiled["instructions"] - sum(loop["instructions"] for loop in compiled["loops"])
    outside = rounds * (trips * device.trip + DEPENDENT * straight) / device.clock
    launches = 2 if rows <= SCAN_LIMIT else 3  # zeroed counters, the list of rows, the kernel
    seconds = launches * LAUNCH + max(inner.values()) + outside
    longest = max(inner, key=inner.__getitem__)
    bound_by = max(terms, key=terms.__getitem__) if longest == "loops" else longest
    if inner[longest] < launches * LAUNCH + outside:
        bound_by = "launches, code around the loops"
    return {
        "kind": "modelled",
        "device": name,
        "rows": rows,
        "D": dim,
        "dtype": dtype,
        "seconds": seconds,
        "uncertain_by": UNCERTAINTY,
        "bound_by": bound_by,
        "parts": {"launches": launches * LAUNCH, **inner, "around the loops": outside},
        "gather_seconds": gather(device, rows, dim, dtype),
        "dense_seconds": dense(device, rows, dim, dtype),
        "gflop_per_s": work.flops / seconds / 1e9,
        "flop_per_byte": work.intensity,
        "blocks": blocks,
        "blocks_of_busiest_sm": turns,
        "rounds": rounds,
        **{key: compiled[key] for key in _RESOURCES},
    }


def _pipes(device: Device, dtype: str, loop: dict[str, Any], tile: Tile) -> dict[str, float]:
    """Clocks of an SM for one step of one block, by pipe. A pass of a loop may be several steps."""
    kinds = loop["kinds"]
    if device.amd:
        # A SIMD of 16 lanes takes 4 clocks for an instruction of 64; other kinds are issued beside it.
        issue = tile.warps * sum(number for kind, number in kinds.items() if kind.startswith("v_"))
        scalar = 0.0
    else:
        issue = tile.warps * loop["instructions"] / 4
        scalar = tile.warps * 32 * sum(kinds.get(kind, 0) for kind in _SCALAR) / device.rate["fp32"]
    matrix = loop["multiply_adds"] / device.rate[dtype] if any(kind in kinds for kind in _MATRIX) else 0.0
    clocks = {
        "products": max(scalar, matrix),
        "issue": issue,
        "shared memory": loop["shared"] / SHARED_WIDTH,
    }
    return {pipe: count / loop["unrolled"] for pipe, count in clocks.items()} | {
        "L2 of an SM": loop["loaded"] / L2_WIDTH
    }


def _step_latency(device: Device, loop: dict[str, Any], stages: int) -> float:
    """Clocks of one step of a block that has the SM to itself."""
    own = loop["instructions"] / loop["unrolled"] * (4 if device.amd else 1)
    return max(device.trip / max(stages - 1, 1), own + STEP_LATENCY)


def gather(device: Device, rows: int, dim: int, dtype: str) -> float:
    """Seconds of library calls on the unlabelled rows only.

    Five launches: list the rows, gather z and g, one product of both with S, energies, output.
    """
    unlabelled, itemsize = rows - rows // 2, _itemsize(dtype)
    work = nominal_work(unlabelled, rows // 2, dim, itemsize, running=False)
    product = library_product(device, 2 * unlabelled, dim, dim, dtype)
    copied = 2 * 2 * itemsize * unlabelled * dim  # written by the gather, read by the product and the rest
    made = 2 * 2 * 4 * unlabelled * dim  # z S and g S in fp32, written and read
    return _sequence(device, 5, product, work, copied + made)


def dense(device: Device, rows: int, dim: int, dtype: str) -> float:
    """Seconds of library calls on all rows: z S, g S, energies, output."""
    itemsize = _itemsize(dtype)
    work = nominal_work(rows - rows // 2, rows // 2, dim, itemsize, running=False)
    products = 2 * library_product(device, rows, dim, dim, dtype)
    return _sequence(device, 4, products, work, 2 * 2 * 4 * rows * dim)


def library_product(device: Device, m: int, n: int, k: int, dtype: str) -> float:
    """Seconds of (m, k) x (k, n) with the best of the library's tiles and splits; without the launch."""
    itemsize = _itemsize(dtype)
    block_k = 128 // itemsize

    def seconds(block_m: int, block_n: int, split: int) -> float:
        blocks = -(-m // block_m) * -(-n // block_n) * split
        turns = -(-blocks // device.units)
        steps = -(-k // (split * block_k))
        loaded = (block_m + block_n) * block_k * itemsize
        pipe = max(block_m * block_n * block_k / device.rate[dtype], loaded / L2_WIDTH) / REACHED
        step = max(turns * pipe, device.trip / (LIBRARY_STAGES - 1))
        trips = 2 if split == 1 else 4  # first loads, stores; with a split the counter and the other parts
        parts = 2 * 4 * m * n * (split - 1)
        through_l2 = (blocks * steps * loaded + parts) / device.cache
        return max(steps * step / device.clock, through_l2) + trips * device.trip / device.clock

    return min(seconds(*tile, split) for tile in LIBRARY_TILES for split in LIBRARY_SPLITS)


def _sequence(device: Device, launches: int, products: float, work: Work, scratch: int) -> float:
    """Launches one after the other: those of the products, and the others, which only move bytes."""
    moved = work.bytes / device.memory + scratch / device.cache
    others = 2 * device.trip / device.clock * (launches - 1)  # loads, stores
    return launches * LAUNCH + products + moved + others


def _itemsize(dtype: str) -> int:
    return 4 if dtype == "fp32" else 2


def measured_roofs(device: torch.device, dtype: torch.dtype = torch.float32) -> dict[str, float]:
    """FLOP/s of a large product and bytes/s of a large copy on this device (on a CPU with one thread)."""
    size = 8192 if device.type == "cuda" else 1536
    a = torch.randn(size, size, dtype=dtype, device=device)
    out = torch.empty_like(a)
    source = torch.ones((1 << 30 if device.type == "cuda" else 1 << 27) // 4, device=device)
    target = torch.empty_like(source)
    runs = {"product": lambda: torch.mm(a, a, out=out), "copy": lambda: target.copy_(source)}
    timings = interleave(runs, 7, clock(device))
    return {
        "flop_per_s": 2 * size**3 / min(timings["product"].seconds),
        "bytes_per_s": 2 * source.nbytes / min(timings["copy"].seconds),
    }
