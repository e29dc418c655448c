"""Find the measurements that became slower, larger, wrong or lost from one results file to the next.

Rows of the two files are matched by their identity (IDENTITY). Times on a shared machine fluctuate, so a
change counts only beyond a threshold and, where quartiles are known, only if those of A and B do not overlap.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any, NamedTuple

from eagc_ops.bench.measure import Spread

IDENTITY = (
    "rows",
    "D",
    "N",
    "dtype",
    "contender",
    "Ebar",
    "form",
    "solve",
    "variant",
    "pass",
    "way",
    "aperture",
    "images",
    "labelled_images",
)

# Measurements by name, in groups that are judged alike.
RATIOS = {  # to a different row of the same results: always judged
    "speed_up",
    "ratio_to_baseline",
    "ratio_to_released",
    "add_on_share",
    "peak_to_baseline",
    "peak_to_released",
    "kept_to_baseline",
    "kept_to_released",
}
ANYWHERE = {  # judged on every machine, except in rows of a baseline, which is not our code
    "peak",
    "kept",
    "share_of_limit",
    "error",
    "largest_error",
    "asymmetry",
    "host_syncs_on_gpu",
}
# As ANYWHERE, but only on one machine: libraries split a product into as many launches as suit the GPU.
ON_ONE_MACHINE = {
    "seconds",
    "seconds_per_image",
    "loading_seconds",
    "device_seconds",
    "cold_device_seconds",
    "host_seconds",
    "step_seconds",
    "add_on_seconds",
    "epoch_seconds",
    "launches",
}
SHOWN = {  # baselines, and a count that is not a cost: many small operations may be faster
    "hooks_seconds",
    "limit_seconds",
    "aten_ops",
}

HIGHER = {"speed_up", "share_of_limit"}  # higher is better
# The largest ratio of B to A that is no regression; 1 + threshold for all others. Counts are exact, and an
# error depends on the order of sums.
LIMITS = {"host_syncs_on_gpu": 1, "launches": 1, "error": 10, "largest_error": 10, "asymmetry": 10}

BASELINES = {  # the other rows of a table are compared with these
    "released hooks",
    "released",
    "as released",
    "as published",
    "full last block",
    "SimGCD, as released",
    "SimGCD, frozen trunk outside the graph",
    "SimGCD, CLS-only last block",
}


class Change(NamedTuple):
    """One measurement in both files, or a whole row (then `measure` is empty).

    `ratio` > 1 is worse for every measurement. A side without a value is None.
    """

    table: str
    row: str
    measure: str
    before: float | None
    after: float | None
    ratio: float | None
    regression: bool
    note: str


def compare(a: dict[str, Any], b: dict[str, Any], threshold: float = 0.1) -> list[Change]:
    """Every measurement of two results of one benchmark with the same settings.

    Modelled rows and rows of the paper are not measurements and are left out.
    """
    if a["benchmark"] != b["benchmark"]:
        raise ValueError(
            f"A holds {a['benchmark']!r}, but B {b['benchmark']!r}: compare results of the same benchmark"
        )
    differing = _differences(a.get("settings", {}), b.get("settings", {}))
    differing = [pair for pair in differing if pair[0] != "rounds"]  # more rounds only mean less noise
    if differing:
        listed = "; ".join(f"{name}: {old!r} and {new!r}" for name, old, new in differing)
        raise ValueError(
            f"the files have different settings ({listed}): compare results of the same settings"
        )
    before, after = _rows(a), _rows(b)
    if not any(row["kind"] == "measured" and _measurements(row) for row in before.values()):
        raise ValueError("A has no measured row: there is nothing to compare B with")
    moved = bool(machine_differences(a, b))
    changes: list[Change] = []
    for key in before | after:
        old, new = before.get(key, {}), after.get(key, {})
        if old.get("kind") == new.get("kind") == "measured":
            changes += _row_changes(key, old, new, threshold, moved)
        elif old.get("kind") == "measured":
            note = f"{new['kind']} in B: {new['reason']}" if new else "missing in B"
            changes.append(Change(*key, "", None, None, None, True, note))
        elif new.get("kind") == "measured":
            changes.append(Change(*key, "", None, None, None, False, "new"))
    return changes


def machine_differences(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """The names of differing entries of machine and versions; this package's version may differ."""
    names = [
        name
        for part in ("machine", "versions")
        for name, _, _ in _differences(a.get(part, {}), b.get(part, {}))
    ]
    return [name for name in names if name != "eagc-ops"]


def _rows(results: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """Rows by table and identity: those that were measured and those that should have been."""
    by_key = {}
    for name, rows in results.items():
        for row in rows if isinstance(rows, list) else ():
            if not isinstance(row, dict) or row.get("kind") not in ("measured", "not timed", "refused"):
                continue
            key = name, ", ".join(f"{part} {row[part]}" for part in IDENTITY if part in row)
            if key in by_key:
                raise ValueError(f"two rows of {name!r} have the same identity {key[1]!r}")
            by_key[key] = row
    return by_key


def _row_changes(
    key: tuple[str, str], old: dict, new: dict, threshold: float, moved: bool
) -> Iterator[Change]:
    baseline = any(old.get(part) in BASELINES for part in IDENTITY)
    before, after = _measurements(old), _measurements(new)
    for measure in before | after:
        note = _why_not_judged(measure, baseline, moved)
        x, y = before.get(measure), after.get(measure)
        if x is None:
            assert y is not None  # one of the two has the measure
            yield Change(*key, measure, None, y.median, None, False, "new")
        elif y is None:
            yield Change(*key, measure, x.median, None, None, not note, note or "missing in B")
        else:
            ratio = _ratio(x.median, y.median) if measure in HIGHER else _ratio(y.median, x.median)
            noise = x.low <= y.high and y.low <= x.high
            worse = not ratio <= LIMITS.get(measure, 1 + threshold)  # NaN counts as worse
            yield Change(*key, measure, x.median, y.median, ratio, worse and not noise and not note, note)


def _why_not_judged(measure: str, baseline: bool, moved: bool) -> str:
    if measure in SHOWN:
        return "not judged"
    if baseline and measure not in RATIOS:
        return "baseline"
    return "different machine" if moved and measure in ON_ONE_MACHINE else ""


def _measurements(row: dict[str, Any]) -> dict[str, Spread]:
    values = {name: value for name, value in {**row, **row.get("memory", {})}.items() if value is not None}
    names = RATIOS | ANYWHERE | ON_ONE_MACHINE | SHOWN
    return {
        name: value if isinstance(value, Spread) else Spread(*[value] * 3)
        for name, value in values.items()
        if name in names
    }


def _ratio(numerator: float, denominator: float) -> float:
    if denominator == 0:
        return 1.0 if numerator == 0 else inf
    return numerator / denominator


def _differences(a: dict[str, Any], b: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    pairs = [(name, a.get(name, "not set"), b.get(name, "not set")) for name in a | b]
    return [pair for pair in pairs if pair[1] != pair[2]]
