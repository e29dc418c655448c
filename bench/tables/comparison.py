"""Two results files."""

from __future__ import annotations

from eagc_ops.app.table import Table
from eagc_ops.bench.compare import Change


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
