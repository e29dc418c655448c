"""`eagc bench roofline`: where the operator stands between arithmetic and memory, in one picture.

Two kinds of points, never mixed: measured ones of the device at hand, with roofs measured on it; and modelled ones of GPUs that are not
there, from what the compilers say about the kernels (`kernels/aot.py`) and the vendors' data sheets. Every modelled row says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from eagc_ops.bench.measure import clock, interleave
from eagc_ops.bench.work import nominal_work

LAUNCH = 3e-6  # seconds before a kernel starts
ARRIVAL = 1.5e-6  # seconds for the last block of a row block to see the others' stores
CACHE_LINE = 64  # bytes per clock from L2 into one SM
# Share of the peak that the inner loop reaches, by rows of a block: short blocks repeat their loads of S more often. A guess.
EFFICIENCY = {16: 0.25, 32: 0.40, 64: 0.55, 128: 0.65}
FILLED = 8  # warps that keep an SM busy: two for each of its four schedulers
UNCERTAINTY = 2.0  # factor either way

ASSUMPTIONS = (
    "Modelled, not measured: no kernel here has been timed on a GPU.",
    "time = launch + max(arithmetic, L2 per SM, L2 in all, memory) + epilogue",
    f"launch {LAUNCH * 1e6:.0f} us; epilogue: {ARRIVAL * 1e6:.1f} us, then the last block reads g S and writes the rows",
    "arithmetic: data-sheet peak x "
    + ", ".join(f"{share:.2f} ({rows} rows)" for rows, share in EFFICIENCY.items())
    + " of a block",
    f"L2: {CACHE_LINE} B per clock and SM; in all 4.7 (A100), 2.0 (3090), 5.5 (H100), 17.2 TB/s (MI300X)",
    f"the busiest SM decides; with fewer than {FILLED} resident warps (compiled registers and shared memory) its arithmetic is slower in "
    "proportion; the latency of the inner loop is left out",
    f"half the rows labelled; good for ranking, uncertain by a factor of {UNCERTAINTY:.0f} either way (bars)",
)


@dataclass(frozen=True)
class Device:
    """Data sheet: units are SMs or CUs; FLOP/s of dense products (fp32 without tensor cores, as the kernel's default; AMD's in MFMA)."""

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


def modelled_rows(rows: tuple[int, ...], dim: int = 768, workers: int = 2) -> list[dict[str, Any]]:
    """Compile the kernel for every device, dtype and number of rows, and model its time. Compiling takes seconds per tile."""
    from eagc_ops.kernels import aot
    from eagc_ops.kernels.tiles import pick

    cases = [
        aot.Case("coordinate", device.arch, dtype, "auto", count, dim, pick(device.arch, count, dim, aot.DTYPES[dtype]))
        for device in DEVICES.values() for dtype in device.peak for count in rows
    ]  # fmt: skip
    names = [name for name, device in DEVICES.items() for _ in device.peak for _ in rows]
    return [
        model(name, aot.as_record(*result)) for name, result in zip(names, aot.compile_all(cases, workers))
    ]


def model(name: str, compiled: dict[str, Any]) -> dict[str, Any]:
    """One modelled point: `compiled` is a record of `aot.as_record`."""
    device, dim, dtype = DEVICES[name], compiled["dim"], compiled["dtype"]
    itemsize = 4 if dtype == "fp32" else 2
    labelled = compiled["rows"] // 2
    unlabelled = compiled["rows"] - labelled
    work = nominal_work(unlabelled, labelled, dim, itemsize, running=False)
    block_m, block_n = compiled["block_m"], compiled["block_n"]
    blocks = -(-unlabelled // block_m) * -(-dim // block_n)
    # Blocks on one SM share its arithmetic and its path to L2, so what counts is how many blocks the busiest SM gets in all. How many of
    # them are there at once decides whether their loads are hidden.
    turns = -(-blocks // device.units)
    filled = min(1.0, min(compiled["blocks_per_sm"], turns) * compiled["warps"] / FILLED)
    flops = 4 * block_m * block_n * dim
    loaded = itemsize * dim * (block_n + 2 * block_m)
    terms = {
        "arithmetic": turns * flops / (device.peak[dtype] / device.units * EFFICIENCY[block_m] * filled),
        "l2_per_sm": turns * loaded / (CACHE_LINE * device.clock),
        "l2": blocks * loaded / device.cache,
        "memory": work.bytes / device.memory,
    }
    epilogue = ARRIVAL + block_m * dim * (4 + 2 * itemsize) / (CACHE_LINE * device.clock)
    seconds = LAUNCH + max(terms.values()) + epilogue
    return {
        "kind": "modelled",
        "device": name,
        "rows": compiled["rows"],
        "D": dim,
        "dtype": dtype,
        "seconds": seconds,
        "uncertain_by": UNCERTAINTY,
        "bound_by": max(terms, key=terms.get)
        if max(terms.values()) > LAUNCH + epilogue
        else "launch and epilogue",
        "gflop_per_s": work.flops / seconds / 1e9,
        "flop_per_byte": work.intensity,
        "blocks": blocks,
        **{
            key: compiled[key]
            for key in (
                "arch",
                "registers",
                "shared",
                "blocks_per_sm",
                "block_m",
                "block_n",
                "warps",
                "stages",
            )
        },
    }


def measured_roofs(device: torch.device, dtype: torch.dtype = torch.float32) -> dict[str, float]:
    """FLOP/s of a large product and bytes/s of a large copy on the device at hand (a CPU: one thread)."""
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


def draw(
    path: Path,
    roofs: dict[str, float],
    measured: list[dict[str, Any]],
    modelled: list[dict[str, Any]],
    title: str,
) -> None:
    """One picture: the device at hand (filled, solid roof), the modelled GPUs (hollow, dashed roof, grey ground), the assumptions."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "eagc", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot as plt

    figure, grid = plt.subplots(2, 3, figsize=(13, 8), constrained_layout=True)
    axes = list(grid.flat)
    _measured_panel(
        axes[0], roofs, [r for r in measured if r["kind"] == "measured" and r["dtype"] == "fp32"], title
    )
    for axis, name in zip(axes[1:5], DEVICES):
        _modelled_panel(axis, name, [r for r in modelled if r["device"] == name])
    axes[5].axis("off")
    axes[5].text(0, 1, _wrapped(ASSUMPTIONS), va="top", fontsize=9, transform=axes[5].transAxes)
    for axis in axes[:5]:
        axis.set(xscale="log", yscale="log", xlabel="nominal FLOP per byte", ylabel="nominal GFLOP/s")
        axis.grid(True, which="major", alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)


def _roof(axis, flops: float, bandwidth: float, **style) -> None:
    intensity = [1, flops / bandwidth, 1000]
    axis.plot(intensity, [min(flops, bandwidth * x) / 1e9 for x in intensity], **style)


def _measured_panel(axis, roofs: dict[str, float], rows: list[dict[str, Any]], title: str) -> None:
    axis.set_title(
        f"{title}\nMEASURED, fp32 (roof: large product, large copy; a\nprovider that leaves out products can be above it)"
    )
    _roof(axis, roofs["flop_per_s"], roofs["bytes_per_s"], lw=1.5, color="black")
    names = list(dict.fromkeys(r["provider"] for r in rows))
    for name, marker in zip(names, "ovs^Dp*"):
        own = [r for r in rows if r["provider"] == name]
        axis.plot(
            [r["flop_per_byte"] for r in own], [r["gflop_per_s"] for r in own], marker, label=name, ms=6
        )
    if rows:
        rates = [r["gflop_per_s"] for r in rows]
        axis.set_ylim(
            min(rates) / 4, 1.5 * max(*rates, roofs["flop_per_s"] / 1e9)
        )  # the names lie below the points
        axis.legend(fontsize=7, loc="lower right")


def _modelled_panel(axis, name: str, rows: list[dict[str, Any]]) -> None:
    axis.set_title(f"{name}\nMODELLED, not measured (roof: data sheet)", style="italic")
    axis.set_facecolor("#f2f2f2")
    device = DEVICES[name]
    for dtype, colour, side in (("fp32", "tab:blue", "right"), ("bf16", "tab:red", "left")):
        _roof(axis, device.peak[dtype], device.memory, lw=1, ls="--", color=colour)
        own = [r for r in rows if r["dtype"] == dtype]
        if not own:
            continue
        x, y = [r["flop_per_byte"] for r in own], [r["gflop_per_s"] for r in own]
        roof = [
            min(device.peak[dtype], device.memory * v) / 1e9 for v in x
        ]  # no kernel gets past it, however uncertain the model
        bars = [[v - v / UNCERTAINTY for v in y], [min(v * UNCERTAINTY, r) - v for v, r in zip(y, roof)]]
        axis.errorbar(
            x,
            y,
            bars,
            fmt="o",
            mfc="none",
            mec=colour,
            ecolor=colour,
            elinewidth=0.8,
            label=f"fused kernel, {dtype}, modelled",
        )
        for r in own:
            where = {
                "xytext": (-6 if side == "right" else 6, -3),
                "textcoords": "offset points",
                "ha": side,
                "fontsize": 7,
            }
            axis.annotate(f"{r['rows']} rows", (r["flop_per_byte"], r["gflop_per_s"]), **where)
    if rows:
        axis.legend(fontsize=7, loc="upper left")


def _wrapped(lines: tuple[str, ...], width: int = 62) -> str:
    import textwrap

    return "\n".join("\n  ".join(textwrap.wrap(line, width)) for line in lines)
