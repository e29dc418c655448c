"""The pictures of cost, overhead and roofline, as SVG or PNG. The same results make the same file."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from eagc_ops.bench.roofline import ASSUMPTIONS, DEVICES, UNCERTAINTY

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Rows = list[dict[str, Any]]

_STYLE: dict[Any, Any] = {"svg.hashsalt": "eagc", "svg.fonttype": "none", "font.size": 9}


@matplotlib.rc_context(_STYLE)
def draw_cost(path: Path, results: dict[str, Any]) -> None:
    """What EAGC adds to a step, as released and with each of the savings here: the README's first picture."""
    rows = [row for row in results["steps"] if row["add_on_share"] is not None]
    shares = [row["add_on_share"].median for row in rows]
    names = [row["variant"].removeprefix("+ EAGC, ") for row in rows]
    figure, axis = plt.subplots(figsize=(8, 1.9), constrained_layout=True)
    places = range(len(rows))
    axis.barh(places, shares, color=["tab:red", *["tab:green"] * (len(rows) - 1)])
    for place, share in zip(places, shares):
        axis.text(share + 0.01, place, f"{share * 100:.2g} %", va="center", weight="bold")
    axis.set(title="time that EAGC adds to a training step", yticks=places, yticklabels=names, xticks=[])
    axis.set_xlim(0, 1.1 * max(shares))
    axis.invert_yaxis()
    for side in ("top", "right", "bottom"):
        axis.spines[side].set_visible(False)
    _save(figure, path)


@matplotlib.rc_context(_STYLE)
def draw_overhead(path: Path, results: dict[str, Any]) -> None:
    """Step time (quartiles as whiskers) and peak memory of every variant, relative to SimGCD as released."""
    rows, settings = results["steps"], results["settings"]
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.6), sharey=True, constrained_layout=True)
    places = range(len(rows))
    colours = [
        "tab:grey" if row["baseline"] is None else "tab:red" if "released" in row["variant"] else "tab:green"
        for row in rows
    ]
    times = [row["ratio_to_released"] for row in rows]
    medians, peaks = [time.median for time in times], [row["peak_to_released"] for row in rows]
    whiskers = [[time.median - time.low for time in times], [time.high - time.median for time in times]]
    left.barh(places, medians, xerr=whiskers, color=colours, error_kw={"elinewidth": 1})
    names = [row["variant"] for row in rows]
    left.set(title="time of a step / SimGCD as released", yticks=places, yticklabels=names)
    left.invert_yaxis()
    right.barh(places, peaks, color=colours)
    right.set(title="peak memory / SimGCD as released")
    for axis, values in ((left, medians), (right, peaks)):
        axis.axvline(1, color="black", lw=0.8)
        for place, value in zip(places, values):
            axis.text(0.02, place, f"{value:.2f}", va="center", color="white", weight="bold")
    size = f"{settings['image_size']} px, {settings['rows']} rows"
    figure.suptitle(f"MEASURED: {settings['backbone']}, {size}, {settings['device']}")
    _save(figure, path)


@matplotlib.rc_context(_STYLE)
def draw_roofline(path: Path, roofs: dict[str, float], measured: Rows, modelled: Rows, title: str) -> None:
    """This device (filled points, solid roof), modelled GPUs (hollow, dashed roof), the assumptions."""
    figure, grid = plt.subplots(2, 3, figsize=(13, 8), constrained_layout=True)
    first, *others, last = grid.flat
    _measured_panel(
        first, roofs, [r for r in measured if r["kind"] == "measured" and r["dtype"] == "fp32"], title
    )
    for axis, name in zip(others, DEVICES):
        _modelled_panel(axis, name, [r for r in modelled if r["device"] == name])
    last.axis("off")
    assumptions = "\n".join("\n  ".join(textwrap.wrap(line, 62)) for line in ASSUMPTIONS)
    last.text(0, 1, assumptions, va="top", fontsize=9, transform=last.transAxes)
    for axis in (first, *others):
        axis.set(xscale="log", yscale="log", xlabel="nominal FLOP per byte", ylabel="nominal GFLOP/s")
        axis.grid(True, which="major", alpha=0.3)
    _save(figure, path)


def _measured_panel(axis: Axes, roofs: dict[str, float], rows: Rows, title: str) -> None:
    axis.set_title(
        f"{title}\nMEASURED, fp32 (roof: large product, large copy; a\n"
        "contender that leaves out products can be above it)"
    )
    _roof(axis, roofs["flop_per_s"], roofs["bytes_per_s"], lw=1.5, color="black")
    names = list(dict.fromkeys(r["contender"] for r in rows))
    for name, marker in zip(names, "ovs^Dp*"):
        own = [r for r in rows if r["contender"] == name]
        x, y = [r["flop_per_byte"] for r in own], [r["gflop_per_s"] for r in own]
        axis.plot(x, y, marker, label=name, ms=6)
    if rows:
        rates = [r["gflop_per_s"] for r in rows]
        lowest = min(rates) / 4  # leaves room for the names below the points
        axis.set_ylim(lowest, 1.5 * max(*rates, roofs["flop_per_s"] / 1e9))
        axis.legend(fontsize=7, loc="lower right")


def _modelled_panel(axis: Axes, name: str, rows: Rows) -> None:
    axis.set_title(f"{name}\nMODELLED, not measured (roof: data sheet)", style="italic")
    axis.set_facecolor("#f2f2f2")
    device = DEVICES[name]
    for dtype, colour, side in (("fp32", "tab:blue", "right"), ("bf16", "tab:red", "left")):
        _roof(axis, device.peak[dtype], device.memory, lw=1, ls="--", color=colour)
        own = [r for r in rows if r["dtype"] == dtype]
        if not own:
            continue
        x, y = [r["flop_per_byte"] for r in own], [r["gflop_per_s"] for r in own]
        # However uncertain the model is, no kernel can exceed the roof.
        roof = [min(device.peak[dtype], device.memory * value) / 1e9 for value in x]
        below = [value - value / UNCERTAINTY for value in y]
        above = [max(min(value * UNCERTAINTY, limit) - value, 0) for value, limit in zip(y, roof)]
        label = f"fused kernel, {dtype}, modelled"
        style: dict[str, Any] = {
            "fmt": "o",
            "mfc": "none",
            "mec": colour,
            "ecolor": colour,
            "elinewidth": 0.8,
        }
        axis.errorbar(x, y, [below, above], label=label, **style)
        for form, marker in (("gather", "x"), ("dense", "+")):
            rates = [r["gflop_per_s"] * r["seconds"] / r[f"{form}_seconds"] for r in own]
            axis.plot(x, rates, marker, color=colour, alpha=0.5, label=f"{form} BLAS, {dtype}, modelled")
        shift: dict[str, Any] = {"xytext": (-6 if side == "right" else 6, -3), "textcoords": "offset points"}
        for r in own:
            point = (r["flop_per_byte"], r["gflop_per_s"])
            axis.annotate(f"{r['rows']} rows", point, ha=side, fontsize=7, **shift)
    if rows:
        axis.legend(fontsize=6, loc="upper left")  # above the roof, where no point can be


def _roof(axis: Axes, flops: float, bandwidth: float, **style: Any) -> None:
    intensity = [1, flops / bandwidth, 1000]
    axis.plot(intensity, [min(flops, bandwidth * x) / 1e9 for x in intensity], **style)


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)
