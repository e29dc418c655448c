"""`eagc bench compare A.json B.json`: what became slower or larger from A to B.

A row of one file belongs to the row of the other that has the same identity (every value that is not a measurement). Times on a shared
machine wander, so a change counts only beyond a threshold, and where quartiles are known, only if those of A and B do not overlap.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from eagc_ops.bench.measure import Spread

# Measurements by name, the others of a row say what was measured. Larger is better for some.
LOWER = {
    "seconds",
    "device_seconds",
    "host_seconds",
    "step_seconds",
    "add_on_seconds",
    "epoch_seconds",
    "peak",
    "kept",
    "hooks ms",
    "ours ms",
    "ms",
}
HIGHER = {"speed_up", "speed-up"}
IDENTITY = {
    "rows", "D", "N", "dtype", "provider", "Ebar", "form", "solve", "variant", "way", "aperture", "device", "images", "labelled_images",
}  # fmt: skip


class Change(NamedTuple):
    """`ratio` > 1 is worse, whatever the measurement."""

    table: str
    row: str
    measure: str
    before: float
    after: float
    ratio: float
    regression: bool


def compare(a: dict[str, Any], b: dict[str, Any], threshold: float = 0.1) -> list[Change]:
    """Every measurement that both files have. Modelled rows and the paper's are no measurements."""
    if a["benchmark"] != b["benchmark"]:
        raise ValueError(f"one file holds {a['benchmark']!r}, the other {b['benchmark']!r}: compare results of the same benchmark")
    before = dict(_measurements(a))
    changes = []
    for key, new in _measurements(b):
        if key not in before:
            continue
        old, measure = before[key], key[2]
        ratio = old[1] / new[1] if measure in HIGHER else new[1] / old[1]
        apart = old[2] < new[0] or new[2] < old[0] or old[0] == old[2] or new[0] == new[2]
        changes.append(Change(key[0], key[1], measure, old[1], new[1], ratio, ratio > 1 + threshold and apart))
    return changes


def table(changes: list[Change]) -> list[dict[str, str]]:
    return [
        {
            "": "REGRESSION" if c.regression else "",
            "table": c.table,
            "row": c.row,
            "measure": c.measure,
            "A": f"{c.before:.4g}",
            "B": f"{c.after:.4g}",
            "worse by": f"{c.ratio:.2f}",
        }
        for c in changes
    ]


def _measurements(results: dict[str, Any]) -> Iterator[tuple[tuple[str, str, str], tuple[float, float, float]]]:
    """((table, identity, measure), (low, median, high))."""
    for name, rows in results.items():
        if not (isinstance(rows, list) and rows and isinstance(rows[0], dict)):
            continue
        for row in rows:
            if row.get("kind", "measured") != "measured":
                continue
            identity = ", ".join(f"{key} {value}" for key, value in row.items() if key in IDENTITY)
            for measure, value in {**row, **row.get("memory", {})}.items():
                if measure not in LOWER | HIGHER or value is None:
                    continue
                spread = (value.low, value.median, value.high) if isinstance(value, Spread) else (value,) * 3
                yield (name, identity, measure), spread
