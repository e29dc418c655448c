"""The records of `eagc bench discover` as tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

from eagc_ops.app.table import Table
from eagc_ops.bench.discover import CONDITIONS, SIMPLE, WAYS

Rows = list[dict[str, Any]]


def accuracies(rows: Rows) -> Table:
    """One line per data set and K, one column per way."""
    usual = [row for row in rows if row.get("condition") == "usual"]
    lines = []
    for name, k in _distinct((row["data"], row["K"]) for row in usual):
        line: dict[str, object] = {"data": name, "K": k}
        for way in WAYS:
            found = [row for row in usual if (row["data"], row["K"], row["way"]) == (name, k, way)]
            line["draws"] = len(found)
            line[way] = " / ".join(f"{_mean(found, i):.1f}" for i in range(3)) if found else None
            if way == "first answer":
                line["CPU s"] = f"{statistics.mean(row['seconds'] for row in found):.1f}" if found else None
        if k == "true":
            ours, best, published = (
                _mean([row for row in usual if (row["data"], row["K"], row["way"]) == (name, k, way)], 0)
                for way in ("first answer", best_simple(rows, name), "published k-means")
            )
            line["to the best simple"] = f"{ours - best:+.1f}"
            line["to published"] = f"{ours - published:+.1f}"
        else:
            line["to the best simple"] = line["to published"] = None
        lines.append(line)
    return Table.of(lines, headings=2)


def best_simple(rows: Rows, name: str) -> str:
    """The simple clustering with the best mean of All on a data set, with the true K."""
    usual = [row for row in rows if row.get("condition") == "usual" and row["data"] == name]
    return max(
        SIMPLE, key=lambda way: _mean([row for row in usual if (row["K"], row["way"]) == ("true", way)], 0)
    )


def conditions(rows: Rows) -> Table:
    """One line per data set and condition that differs from the usual one: All with the true K."""
    kept = [row for row in rows if row.get("condition") in CONDITIONS and row["K"] == "true"]
    lines = []
    for name, condition in _distinct((row["data"], row["condition"]) for row in kept):
        if condition != "usual":
            of = [row for row in kept if (row["data"], row["condition"]) == (name, condition)]
            lines.append(
                {
                    "data": name,
                    "condition": condition,
                    "draws": len({row["draw"] for row in of}),
                    **{
                        way: f"{_mean([row for row in of if row['way'] == way], 0):.1f}"
                        for way in list(WAYS)[1:]
                    },
                }
            )
    return Table.of(lines, headings=2)


def estimates(rows: Rows) -> Table:
    """One line per data set."""
    lines = []
    for name in _distinct(row["data"] for row in rows if "found" in row):
        of = [row for row in rows if "found" in row and row["data"] == name]
        given = [row for row in of if row["given"]]
        truth = of[0]["classes"]
        held = sum(row["found"][1] <= truth <= row["found"][2] for row in given)
        lines.append(
            {
                "data": name,
                "true K": truth,
                "draws": len(of),
                "median": f"{statistics.median(row['found'][0] for row in of):g}",
                "estimates": ", ".join(
                    f"{row['found'][0]}{'' if row['given'] else '?'}"
                    for row in sorted(of, key=lambda row: row["draw"])
                ),
                "range holds the truth": f"{held} of {len(given)}",
                "no estimate": len(of) - len(given),
                "CPU s": f"{statistics.mean(row['seconds'] for row in of):.1f}",
            }
        )
    return Table.of(lines)


def _mean(rows: Rows, part: int) -> float:
    return statistics.mean(row["accuracy"][part] for row in rows)


def _distinct(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))
