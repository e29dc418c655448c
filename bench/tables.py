"""Results as tables: a function for each kind of row."""

from __future__ import annotations

from typing import Any

from eagc_ops.bench.compare import Change
from eagc_ops.bench.inputs import APERTURE
from eagc_ops.bench.measure import Spread
from eagc_ops.table import Table

Rows = list[dict[str, Any]]

_MIB = 2**20
_CUB_LABELLED, _REFERENCE_EPOCHS = 1500, 30  # the paper's reference model of CUB, for a computed total
_SOLVES = {
    "released": "R @ inv(...), fp32, as released",
    "fp32": "here, fp32",
    "fp64": "here, fp64 (default)",
}


# The operator -----------------------------------------------------------------------------------------------


def operator(rows: Rows) -> Table:
    return Table.of(
        [
            {
                "rows": r["rows"],
                "Ebar": _ebar(r["form"]),
                "released hooks, ms": _milliseconds(r["hooks_seconds"]),
                "here, ms": _milliseconds(r["seconds"]),
                "speed-up": r["speed_up"],
                "products of the unlabelled rows alone, ms": _milliseconds(r["limit_seconds"]),
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
                "ms": _milliseconds(r["seconds"], 1),
                "speed-up": r["speed_up"],
                "largest error": f"{r['largest_error']:.1e}",
                "asymmetry": f"{r['asymmetry']:.1e}",
            }
            for r in rows
        ],
        headings=2,
    )


def throughput(rows: Rows) -> Table:
    """One line per row, with the columns of a GPU if one was measured."""
    on_a_gpu = any(r.get("host_seconds") for r in rows)
    columns = dict.fromkeys(
        (
            "ms",
            "speed-up",
            *(("device us", "host us", "launches", "rates of") if on_a_gpu else ()),
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
        identity["Ebar"] = _ebar(r["Ebar"])
        if r["kind"] == "not timed":
            lines.append({**identity, **columns, "error": f"NOT TIMED: {r['reason']}"})
            continue
        cells = {
            "ms": f"{r['seconds'].median * 1e3:.3g}",
            "speed-up": r["speed_up"],
            "GFLOP/s": f"{r['gflop_per_s']:.1f}",
            "GB/s": f"{r['gb_per_s']:.2f}",
            "of limit": r["share_of_limit"] and _percent(r["share_of_limit"], 0),
            "syncs on GPU": r["host_syncs_on_gpu"],
            "ops": r["aten_ops"],
            "page faults": f"{r['page_faults']:.0f}",
            "error": f"{r['error']:.1e}",
        }
        if on_a_gpu:
            cells |= {
                "device us": r["device_seconds"] and f"{r['device_seconds'].median * 1e6:.1f}",
                "host us": f"{r['host_seconds'].median * 1e6:.1f}",
                "launches": r["launches"],
                "rates of": r["rates_of"],
            }
        lines.append({**identity, **columns, **cells})
    return Table.of(lines, headings=5)


def modelled(rows: Rows) -> Table:
    """The fused kernel beside the two forms of library calls, all by the same model."""

    def microseconds(seconds: float) -> str:
        return f"{seconds * 1e6:.0f}"

    def best(r: dict[str, Any]) -> float:
        return min(r["gather_seconds"], r["dense_seconds"])

    return Table.of(
        [
            {
                "modelled, not measured": r["device"],
                "dtype": r["dtype"],
                "rows": r["rows"],
                "tile MxNxK": _tile(r),
                "blocks per SM": f"{r['blocks_of_busiest_sm']} in {r['rounds']}",
                "bound by": r["bound_by"],
                "fused, us": microseconds(r["seconds"]),
                "gather + BLAS, us": microseconds(r["gather_seconds"]),
                "dense BLAS, us": microseconds(r["dense_seconds"]),
                "best library form / fused": f"{best(r) / r['seconds']:.2f}",
            }
            for r in rows
        ]
    )


def aot(records: Rows) -> Table:
    """One line per compilation; `records` are those of `aot.as_record`."""
    options = {
        "z_ref fp32": "wide_ref",
        "tau uniform": "uniform",
        "count": "count",
        "rows beyond 2 GB": "far_rows",
        "basis": "basis",
    }
    lines = []
    for r in records:
        is_on = {**r, "uniform": r["tau"] == "uniform"}
        lines.append(
            {
                "kernel": r["kernel"],
                "arch": r["arch"],
                "dtype": ", ".join([r["dtype"], *(name for name, key in options.items() if is_on[key])]),
                "precision": r["precision"],
                "rows <=": r["rows"],
                "D <=": r["dim"],
                "tile MxNxK": _tile(r),
                "warps": r["warps"],
                "stages": r["stages"],
                "registers": r["registers"],
                "spill st/ld": f"{r['spill_stores']}/{r['spill_loads']}",
                "shared KB": f"{r['shared'] / 1024:.1f}",
                "blocks/SM": r["blocks_per_sm"],
                "instructions/step": _steps(r),
                "gate": "; ".join(r["problems"]) or "ok",
            }
        )
    return Table.of(lines, headings=4)


def triangle(records: Rows) -> Table:
    """One line per pair of compilations: without and with the triangle of S."""
    lines = []
    for without, having in zip(records[::2], records[1::2]):
        both = (without, having)
        lines.append(
            {
                "arch": having["arch"],
                "dtype": having["dtype"],
                "rows": having["rows"],
                "D": having["dim"],
                "tile MxNxK": _tile(having),
                "multiply-adds": " -> ".join(f"{_total(r, 'multiply_adds') / 2**20:.1f} M" for r in both),
                "instructions of a warp": " -> ".join(f"{_total(r, 'instructions'):,.0f}" for r in both),
                "a step": " -> ".join(map(_steps, both)),
                "registers": " -> ".join(str(r["registers"]) for r in both),
                "spills": " -> ".join(str(r["spill_stores"]) for r in both),
                "in the table": "yes" if having["chosen"] else "no",
            }
        )
    return Table.of(lines, headings=5)


def _tile(record: dict[str, Any]) -> str:
    return "{block_m}x{block_n}x{block_k}".format(**record)


def _steps(record: dict[str, Any]) -> str:
    """Instructions of a warp in a step of each loop."""
    return " + ".join(f"{loop['instructions'] / loop['unrolled']:.0f}" for loop in record["loops"])


def _total(record: dict[str, Any], what: str) -> float:
    """Over all steps of the column block that has the most."""
    return sum(loop[what] / loop["unrolled"] * loop["times"] for loop in record["loops"])


# The overhead -----------------------------------------------------------------------------------------------


def overhead(results: dict[str, Any]) -> list[Table]:
    """All tables of `eagc bench overhead` that have rows; there are bars for one setting only."""
    tables = [
        steps(results["steps"]),
        memory(results["steps"]),
        evaluation(results["evaluation"]),
        reference_model(results["reference"]),
        epochs(results["epochs"]),
        solve(results["conceptor"]),
        bars(results["bars"]),
        paper(results["paper"]),
    ]
    return [table for table in tables if table.rows]


def overhead_note(results: dict[str, Any]) -> str:
    """The settings of `eagc bench overhead`, to stand above its tables."""
    settings = results["settings"]
    return (
        f"SimGCD with {settings['backbone']} at {settings['image_size']} pixels, {settings['rows']} rows; "
        f"medians (of {settings['rounds']} rounds for steps), quartiles in brackets"
    )


def steps(rows: Rows) -> Table:
    return Table.of(
        [
            {
                "step": r["variant"],
                "s": _seconds(r["step_seconds"]),
                "ratio to matching baseline": r["ratio_to_baseline"] if r["baseline"] else None,
                "ratio to SimGCD as released": r["ratio_to_released"],
                "EAGC alone, s": _seconds(r["add_on_seconds"]) if r["baseline"] else None,
                "share of the baseline's step": _percent(r["add_on_share"]) if r["baseline"] else None,
            }
            for r in rows
        ]
    )


def memory(rows: Rows) -> Table:
    """`kept` is parameters + optimizer + saved; `peak` is the most alive at once, with gradients."""
    return Table.of(
        [
            {
                "memory, MiB": r["variant"],
                **{part: mebibytes(r["memory"][part]) for part in ("parameters", "optimizer", "saved")},
                "kept, ratio to baseline": f"{r['kept_to_baseline']:.3f}" if r["baseline"] else None,
                "kept, ratio to released": f"{r['kept_to_released']:.3f}",
                "peak": mebibytes(r["memory"]["peak"]),
                "peak, ratio to baseline": f"{r['peak_to_baseline']:.3f}" if r["baseline"] else None,
                "peak, ratio to released": f"{r['peak_to_released']:.3f}",
            }
            for r in rows
        ]
    )


def evaluation(rows: Rows) -> Table:
    return Table.of(
        [
            {
                "evaluation pass": r["variant"],
                "s": _seconds(r["seconds"]),
                "ratio": r["ratio_to_baseline"],
                "aten ops": r["aten_ops"],
            }
            for r in rows
        ]
    )


def reference_model(rows: Rows) -> Table:
    total = f"computed: {_REFERENCE_EPOCHS} epochs of {_CUB_LABELLED} images"
    return Table.of(
        [
            {
                "reference model": r["way"],
                "s per image and epoch": f"{r['seconds_per_image']:.4f}",
                "speed-up": r["speed_up"],
                total: f"{r['seconds_per_image'] * _CUB_LABELLED * _REFERENCE_EPOCHS / 60:.0f} min",
            }
            for r in rows
        ]
    )


def epochs(rows: Rows) -> Table:
    lines = []
    for r in rows:
        cache = None
        if "cache_bytes" in r:
            per_image = r["cache_bytes"] / 1e6 / r["images"]
            cache = f"{r['cache_build_seconds']:.1f} s to build, {per_image:.2f} MB per image"
        lines.append(
            {
                "epoch": r["way"],
                "images drawn": r["images_drawn"],
                "s": _seconds(r["seconds"]),
                "speed-up": r["speed_up"],
                # Results of earlier versions do not have it.
                **({"of it loading": _percent(r["loading_share"])} if "loading_share" in r else {}),
                "cache": cache,
            }
        )
    return Table.of(lines)


def bars(rows: Rows) -> Table:
    return Table.of(
        [
            {
                "bar": r["bar"],
                "limit": r["limit"],
                "measured": _seconds(r["value"]) if isinstance(r["value"], Spread) else f"{r['value']:.3f}",
                "met": "yes" if r["met"] else "NO",
            }
            for r in rows
        ]
    )


def paper(rows: Rows) -> Table:
    """The paper's rows; ratios are to the first row of the same data set."""
    lines = []
    for r in rows:
        base = next(other for other in rows if other["data"] == r["data"])
        lines.append(
            {
                "paper, A100, not measured here": f"{r['data']}: {r['method']}",
                "All ACC": r["all_acc"],
                "peak MB (ratio)": f"{r['peak_mb']} ({r['peak_mb'] / base['peak_mb']:.2f})",
                "inversion ms/epoch": r["inversion_ms"],
                "epoch s (ratio)": f"{r['epoch_seconds']} ({r['epoch_seconds'] / base['epoch_seconds']:.2f})",
                "reference s": r["reference_seconds"],
            }
        )
    return Table.of(lines)


# Loading ----------------------------------------------------------------------------------------------------


def loader(rows: Rows) -> Table:
    return Table.of(
        [
            {
                "pass": r["pass"],
                "way": r["way"],
                "ms per image": _milliseconds(r["seconds_per_image"]),
                "speed-up": r["speed_up"],
            }
            for r in rows
        ],
        headings=2,
    )


def loader_note(results: dict[str, Any]) -> str:
    settings, cache = results["settings"], results["cache"]
    return (
        f"{settings['images']} JPEG photographs of {settings['width']} x {settings['height']} pixels for an "
        f"input of {settings['image_size']}; {settings['rounds']} rounds. The cache has "
        f"{cache['bytes_per_image'] / 1e3:.0f} kB per image (the files: "
        f"{cache['file_bytes_per_image'] / 1e3:.0f} kB) and takes "
        f"{cache['build_seconds_per_image'] * 1e3:.1f} ms of CPU time per image to build."
    )


# The conceptor ----------------------------------------------------------------------------------------------


def conceptor_times(rows: Rows) -> Table:
    lines = []
    for r in rows:
        cells = {"ms": "refused", "speed-up": None}
        if r["kind"] == "measured":
            cells = {"ms": _milliseconds(r["seconds"], 1), "speed-up": r["speed_up"]}
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


# Comparison -------------------------------------------------------------------------------------------------


def estimate(rows: Rows) -> Table:
    return Table.of(
        [
            {
                "features": f"{r['data']}, {r['N']:,} x {r['D']}",
                "known / all classes": f"{r['known']} / {r['classes']}",
                "search": r["way"],
                "K by seed": ", ".join(map(str, r["found"])),
                "CPU s": f"{r['seconds'].median:.3g} ({r['seconds'].low:.3g}-{r['seconds'].high:.3g})",
            }
            for r in rows
        ],
        headings=3,
    )


def changes(compared: list[Change]) -> Table:
    """Regressions come last, next to the summary."""

    def cell(value: float | None, form: str = ".4g") -> str | None:
        return None if value is None else f"{value:{form}}"

    return Table.of(
        [
            {
                "": "REGRESSION" if c.regression else "",
                "table": c.table,
                "row": c.row,
                "measure": c.measure or None,
                "A": cell(c.before),
                "B": cell(c.after),
                "worse by": cell(c.ratio, ".2f"),
                "note": c.note,
            }
            for c in sorted(compared, key=lambda c: c.regression)
        ],
        headings=4,
    )


# Cells ------------------------------------------------------------------------------------------------------


def mebibytes(count: int) -> str:
    return f"{count / _MIB:.1f}"


def _ebar(form: str) -> str:
    """The form of the energy reference; results files call a fixed one "given"."""
    return "running" if "running" in form else "fixed"


def _milliseconds(spread: Spread, digits: int = 2) -> str:
    return f"{spread.median * 1e3:.{digits}f}"


def _seconds(spread: Spread) -> str:
    return f"{spread.median:.3f} ({spread.low:.3f}-{spread.high:.3f})"


def _percent(share: Spread, digits: int = 2) -> str:
    return f"{share.median:.{digits}%} ({share.low:.{digits}%}-{share.high:.{digits}%})"
