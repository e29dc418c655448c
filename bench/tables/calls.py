"""Calls of the operator, what they cost the host, and the fit of the conceptor."""

from __future__ import annotations

from eagc_ops.app.table import Table
from eagc_ops.bench.inputs import APERTURE
from eagc_ops.bench.tables.cells import Rows, ebar, microseconds, milliseconds, percent

_SOLVES = {
    "released": "R @ inv(...), fp32, as released",
    "fp32": "here, fp32",
    "fp64": "here, fp64 (default)",
}


def operator(rows: Rows) -> Table:
    return Table.of(
        [
            {
                "rows": r["rows"],
                "Ebar": ebar(r["form"]),
                "released hooks, ms": milliseconds(r["hooks_seconds"]),
                "here, ms": milliseconds(r["seconds"]),
                "speed-up": r["speed_up"],
                "products of the unlabelled rows alone, ms": milliseconds(r["limit_seconds"]),
                "page faults per call, hooks": f"{r['hooks_page_faults']:.0f}",
                "page faults per call, here": f"{r['page_faults']:.0f}",
                "error against fp64": f"{r['error']:.1e}",
            }
            for r in rows
        ],
        headings=2,
    )


def solve(rows: Rows) -> Table:
    return Table.of(
        [
            {
                "D": r["D"],
                "conceptor solve": _SOLVES[r["solve"]],
                "ms": milliseconds(r["seconds"], 1),
                "speed-up": r["speed_up"],
                "largest error": f"{r['largest_error']:.1e}",
                "asymmetry": f"{r['asymmetry']:.1e}",
            }
            for r in rows
        ],
        headings=2,
    )


def host(rows: Rows) -> Table:
    parts = {"backward": "the backward call alone", "step": "forward and backward"}
    return Table.of(
        [
            {
                "rows": r["rows"],
                "dtype": r["dtype"],
                "part": parts[r["part"]],
                "fused, us": microseconds(r["seconds"]),
                "dense torch, us": microseconds(r["dense_seconds"]),
                "released hooks, us": microseconds(r["hooks_seconds"]) if r["hooks_seconds"] else "",
                "fused / dense": r["of_dense"],
            }
            for r in rows
        ],
        headings=3,
    )


def throughput(rows: Rows) -> Table:
    """One line per row, with the columns of a GPU if one was measured."""
    on_a_gpu = any(r.get("host_seconds") for r in rows)
    columns = dict.fromkeys(
        (
            "ms",
            "speed-up",
            *(("device us", "cold L2 us", "host us", "launches", "rates of") if on_a_gpu else ()),
            "GFLOP/s",
            "GB/s",
            "of limit",
            "syncs on GPU",
            "ops",
            "page faults",
            "error",
        )
    )
    lines = []
    for r in rows:
        identity = {name: r[name] for name in ("rows", "D", "dtype", "contender")}
        identity["Ebar"] = ebar(r["Ebar"])
        if r["kind"] == "not timed":
            lines.append({**identity, **columns, "error": f"NOT TIMED: {r['reason']}"})
            continue
        cells = {
            "ms": f"{r['seconds'].median * 1e3:.3g}",
            "speed-up": r["speed_up"],
            "GFLOP/s": f"{r['gflop_per_s']:.1f}",
            "GB/s": f"{r['gb_per_s']:.2f}",
            "of limit": r["share_of_limit"] and percent(r["share_of_limit"], 0),
            "syncs on GPU": r["host_syncs_on_gpu"],
            "ops": r["aten_ops"],
            "page faults": f"{r['page_faults']:.0f}",
            "error": f"{r['error']:.1e}",
        }
        if on_a_gpu:
            cells |= {
                "device us": r["device_seconds"] and f"{r['device_seconds'].median * 1e6:.1f}",
                "cold L2 us": r.get("cold_device_seconds") and f"{r['cold_device_seconds'].median * 1e6:.1f}",
                "host us": f"{r['host_seconds'].median * 1e6:.1f}",
                "launches": r["launches"],
                "rates of": r["rates_of"],
            }
        lines.append({**identity, **columns, **cells})
    return Table.of(lines, headings=5)


def conceptor_times(rows: Rows) -> Table:
    lines = []
    for r in rows:
        cells = {"ms": "refused", "speed-up": None}
        if r["kind"] == "measured":
            cells = {"ms": milliseconds(r["seconds"], 1), "speed-up": r["speed_up"]}
        lines.append({"D": r["D"], "N": r["N"], "way": r["way"], **cells})
    return Table.of(lines, headings=3)


def conceptor_quality(rows: Rows) -> Table:
    """One line per size and way, with the worst values over the apertures, and the refused apertures."""
    groups: dict[tuple[int, int, str], Rows] = {}
    for row in rows:
        groups.setdefault((row["D"], row["N"], row["way"]), []).append(row)
    lines = []
    for (dim, count, way), group in groups.items():
        measured = [row for row in group if row["kind"] == "measured"]
        refused = [row for row in group if row["kind"] == "refused"]
        at_default = [f"{row['largest_error']:.1e}" for row in measured if row["aperture"] == APERTURE]
        smallest = min(row["smallest_eigenvalue"] for row in measured)
        largest = max(row["largest_eigenvalue"] for row in measured)
        lines.append(
            {
                "D": dim,
                "N": count,
                "way": way,
                "apertures": ", ".join(f"{row['aperture']:g}" for row in group),
                "refused at": ", ".join(f"{row['aperture']:g}" for row in refused) or None,
                "largest error, aperture 2": at_default[0] if at_default else None,
                "worst error": f"{max(row['largest_error'] for row in measured):.1e}",
                "worst asymmetry": f"{max(row['asymmetry'] for row in measured):.1e}",
                "eigenvalues": f"{smallest:.1e} to 1{largest - 1:+.1e}",
            }
        )
    return Table.of(lines, headings=3)
