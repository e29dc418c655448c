"""The compiled kernels: what they take, modelled and counted."""

from __future__ import annotations

from typing import Any

from eagc_ops.app.table import Table
from eagc_ops.bench.tables.cells import Rows


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
