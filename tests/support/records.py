"""A table as its cells are read in tests."""

from eagc_ops.app.table import Table


def records(table: Table) -> list[dict[str, str]]:
    """One dictionary per row, by column name."""
    return [dict(zip(table.header, map(str, row.cells), strict=True)) for row in table.rows]
