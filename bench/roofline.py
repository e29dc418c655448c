"""`eagc bench roofline`: whether arithmetic or memory bounds the operator.

There are two kinds of points, which are never mixed: measured points of this device, with roofs measured on
it; and modelled points of GPUs that are absent, from compiled resources (`kernels/aot.py`) and the vendors'
data sheets. Every modelled row says that it is modelled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from eagc_ops.bench.measure import clock, interleave
from eagc_ops.bench.work import nominal_work

LAUNCH = 3e-6  # seconds before a kernel starts
ARRIVAL = 1.5e-6  # seconds for the last block of a row block to see the others' stores
L2_WIDTH = 64  # bytes per clock from L2 into one SM
# A guess: the share of the peak that the inner loop reaches, by rows of a block. Short blocks repeat their
# loads of S more often.
EFFICIENCY = {16: 0.25, 32: 0.40, 64: 0.55, 128: 0.65}
BUSY_WARPS = 8  # warps that keep an SM busy: two for each of its four schedulers
UNCERTAINTY = 2.0  # factor either way

ASSUMPTIONS = (
    "Modelled, not measured: no kernel here has been timed on a GPU.",
    "time = launch + max(arithmetic, L2 per SM, L2 in all, memory) + epilogue",
    f"launch {LAUNCH * 1e6:.0f} us; epilogue: {ARRIVAL * 1e6:.1f} us, then the last block reads g S and "
    "writes the rows",
    "arithmetic: data-sheet peak x "
    + ", ".join(f"{share:.2f} ({rows} rows)" for rows, share in EFFICIENCY.items())
    + " of a block",
    f"L2: {L2_WIDTH} B per clock and SM; in all 4.7 (A100), 2.0 (3090), 5.5 (H100), 17.2 TB/s (MI300X)",
    f"the busiest SM decides; with fewer than {BUSY_WARPS} resident warps (compiled registers and shared "
    "memory) its arithmetic is slower in proportion; the latency of the inner loop is left out",
    f"half the rows labelled; good for ranking, uncertain by a factor of {UNCERTAINTY:.0f} either way (bars)",
)


@dataclass(frozen=True)
class Device:
    """A data sheet. Units are SMs or CUs; `peak` is FLOP/s of dense products by dtype.

    fp32 is without tensor cores, as the kernel's default is; AMD's is in MFMA.
    """

    arch: str
    units: int
    clock: float
    memory: float  # bytes per second
    cache: float  # bytes per second, L2 in all
    peak: dict[str, float]


DEVICES = {
    "A100 SXM 80 GB": Device("sm_80", 108, 1.41e9, 2.04e12, 4.7e12, {"fp32": 19.5e12, "bf16": 312e12}),
    "RTX 3090": Device("sm_86", 82, 1.70e9, 0.936e12, 2.0e12, {"fp32": 35.6e12, "bf16": 71e12}),
    "H100 SXM": Device("sm_90", 132, 1.83e9, 3.35e12, 5.5e12, {"fp32": 66.9e12, "bf16": 989e12}),
    "MI300X": Device("gfx942", 304, 2.10e9, 5.3e12, 17.2e12, {"fp32": 163.4e12, "bf16": 1307e12}),
}


_RESOURCES = ("arch", "registers", "shared", "blocks_per_sm", "block_m", "block_n", "warps", "stages")


def modelled_rows(rows: tuple[int, ...], dim: int = 768, workers: int = 2) -> list[dict[str, Any]]:
    """Compile the kernel for every device, dtype and number of rows, and model its time.

    Compiling takes seconds per tile.
    """
    from eagc_ops.kernels import aot
    from eagc_ops.kernels.tiles import pick

    names, cases = [], []
    for name, device in DEVICES.items():
        for dtype in device.peak:
            for count in rows:
                tile = pick(device.arch, count, dim, aot.DTYPES[dtype])
                names.append(name)
                cases.append(aot.Case("coordinate", device.arch, dtype, "auto", count, dim, tile))
    compiled = aot.compile_all(cases, workers)
    return [model(name, aot.as_record(*result)) for name, result in zip(names, compiled)]


def model(name: str, compiled: dict[str, Any]) -> dict[str, Any]:
    """One modelled point; `compiled` is a record of `aot.as_record`."""
    device, dim, dtype = DEVICES[name], compiled["dim"], compiled["dtype"]
    itemsize = 4 if dtype == "fp32" else 2
    labelled = compiled["rows"] // 2
    unlabelled = compiled["rows"] - labelled
    work = nominal_work(unlabelled, labelled, dim, itemsize, running=False)
    block_m, block_n = compiled["block_m"], compiled["block_n"]
    blocks = -(-unlabelled // block_m) * -(-dim // block_n)
    # Blocks on one SM share its arithmetic and its path to L2, so the total number of blocks on the busiest
    # SM counts. The number that is resident at once decides whether their loads are hidden.
    turns = -(-blocks // device.units)
    filled = min(1.0, min(compiled["blocks_per_sm"], turns) * compiled["warps"] / BUSY_WARPS)
    flops = 4 * block_m * block_n * dim
    loaded = itemsize * dim * (block_n + 2 * block_m)
    terms = {
        "arithmetic": turns * flops / (device.peak[dtype] / device.units * EFFICIENCY[block_m] * filled),
        "l2_per_sm": turns * loaded / (L2_WIDTH * device.clock),
        "l2": blocks * loaded / device.cache,
        "memory": work.bytes / device.memory,
    }
    epilogue = ARRIVAL + block_m * dim * (4 + 2 * itemsize) / (L2_WIDTH * device.clock)
    seconds = LAUNCH + max(terms.values()) + epilogue
    bound_by = "launch and epilogue"
    if max(terms.values()) > LAUNCH + epilogue:
        bound_by = max(terms, key=terms.get)
    return {
        "kind": "modelled",
        "device": name,
        "rows": compiled["rows"],
        "D": dim,
        "dtype": dtype,
        "seconds": seconds,
        "uncertain_by": UNCERTAINTY,
        "bound_by": bound_by,
        "gflop_per_s": work.flops / seconds / 1e9,
        "flop_per_byte": work.intensity,
        "blocks": blocks,
        **{key: compiled[key] for key in _RESOURCES},
    }


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
