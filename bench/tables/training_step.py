"""A training step, its memory, and the epochs around it."""

from __future__ import annotations

from typing import Any

from eagc_ops.app.table import Table
from eagc_ops.bench.measure import Spread
from eagc_ops.bench.tables.calls import solve
from eagc_ops.bench.tables.cells import Rows, mebibytes, percent, seconds

_CUB_LABELLED, _REFERENCE_EPOCHS = 1500, 30  # the paper's reference model of CUB, for a computed total


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
    under = ", bf16 autocast" if settings.get("precision") == "bf16" else ""
    return (
        f"SimGCD with {settings['backbone']} at {settings['image_size']} pixels, {settings['rows']} rows"
        f"{under}; medians (of {settings['rounds']} rounds for steps), quartiles in brackets"
    )


def steps(rows: Rows) -> Table:
    return Table.of(
        [
            {
                "step": r["variant"],
                "s": seconds(r["step_seconds"]),
                "ratio to matching baseline": r["ratio_to_baseline"] if r["baseline"] else None,
                "ratio to SimGCD as released": r["ratio_to_released"],
                "EAGC alone, s": seconds(r["add_on_seconds"]) if r["baseline"] else None,
                "share of the baseline's step": percent(r["add_on_share"]) if r["baseline"] else None,
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
                "s": seconds(r["seconds"]),
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
                "s": seconds(r["seconds"]),
                "speed-up": r["speed_up"],
                # Results of earlier versions do not have it.
                **({"of it loading": percent(r["loading_share"])} if "loading_share" in r else {}),
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
                "measured": seconds(r["value"]) if isinstance(r["value"], Spread) else f"{r['value']:.3f}",
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
