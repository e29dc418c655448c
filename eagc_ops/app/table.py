"""One table object, printed as aligned text, as Markdown or as HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import jinja2
from markupsafe import Markup


class Cell(NamedTuple):
    """A text, and a note that is set apart from it, such as the paper's value beside ours.

    >>> str(Cell("66.2 ± 0.4", "[66.5]"))
    '66.2 ± 0.4 [66.5]'
    """

    text: str
    note: str = ""

    def __str__(self) -> str:
        return f"{self.text} {self.note}" if self.note else self.text


class Row(NamedTuple):
    """The cells of a row; an emphasised row is set apart in HTML."""

    cells: Sequence[str | Cell]
    emphasised: bool = False


@dataclass(frozen=True)
class Table:
    """A header and rows of the same length.

    `headings` is the number of leading columns that name a row: they are aligned to the left, the others to
    the right. `groups` puts titles above the remaining columns: (title, number of columns) from left to
    right.

    >>> table = Table(["rows", "speed-up"], [Row(["256", "1.65"]), Row(["4096", "1.90"])])
    >>> print(table.text())
    rows  speed-up
    256       1.65
    4096      1.90
    >>> print(table.markdown())
    | rows | speed-up |
    |---|---|
    | 256 | 1.65 |
    | 4096 | 1.90 |
    """

    header: Sequence[str]
    rows: Sequence[Row]
    headings: int = 1
    groups: Sequence[tuple[str, int]] = field(default=())

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row.cells) != len(self.header):
                raise ValueError(
                    f"rows must have as many cells as the header ({len(self.header)}), got {len(row.cells)}: "
                    f"{row.cells}"
                )
        grouped = sum(columns for _, columns in self.groups)
        if self.groups and grouped != len(self.header) - self.headings:
            raise ValueError(
                f"groups must cover the {len(self.header) - self.headings} columns after the headings, got "
                f"{grouped}: {self.groups}"
            )

    @classmethod
    def of(cls, records: Sequence[Mapping[str, object]], headings: int = 1) -> Table:
        """A table of mappings with the same keys.

        >>> print(Table.of([{"D": 768, "ms": 1.5}, {"D": 1024, "ms": None}]).markdown())
        | D | ms |
        |---|---|
        | 768 | 1.5 |
        | 1024 | - |
        """
        rows = [
            Row(["-" if value is None else str(value) for value in record.values()]) for record in records
        ]
        return cls(list(records[0]) if records else [], rows, headings)

    def text(self) -> str:
        """Columns aligned by spaces, for a terminal."""
        lines = self._lines()
        widths = [max(map(len, column)) for column in zip(*lines)]
        aligned = (
            [
                cell.ljust(width) if i < self.headings else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths))
            ]
            for line in lines
        )
        return "\n".join("  ".join(line).rstrip() for line in aligned)

    def markdown(self) -> str:
        head, *body = (
            f"| {' | '.join(cell.replace('|', _BAR) for cell in line)} |" for line in self._lines()
        )
        return "\n".join([head, "|" + "---|" * len(self.header), *body])

    def html(self) -> Markup:
        """A `<table>` with escaped texts; a note is in `<small>` below its text."""
        cells = [
            ([cell if isinstance(cell, Cell) else Cell(cell) for cell in row.cells], row.emphasised)
            for row in self.rows
        ]
        return Markup(_HTML.render(table=self, rows=cells))

    def _lines(self) -> list[list[str]]:
        """Header and rows as texts. A group's title is repeated before each of its columns."""
        titles = [""] * self.headings + [
            f"{title}: " for title, columns in self.groups for _ in range(columns)
        ]
        titles += [""] * (len(self.header) - len(titles))
        header = [title + name for title, name in zip(titles, self.header)]
        return [header, *([str(cell) for cell in row.cells] for row in self.rows)]


_BAR = r"\|"  # a bar inside a cell of a Markdown table
_HTML = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string("""\
<table>
<thead>
<tr>
{% for name in table.header[: table.headings if table.groups else table.header | length] %}
<th{% if table.groups %} rowspan="2"{% endif %}>{{ name }}</th>
{% endfor %}
{% for title, columns in table.groups %}
<th colspan="{{ columns }}" class="group">{{ title }}</th>
{% endfor %}
</tr>
{% if table.groups %}
<tr>
{% for name in table.header[table.headings:] %}
<th>{{ name }}</th>
{% endfor %}
</tr>
{% endif %}
</thead>
<tbody>
{% for cells, emphasised in rows %}
<tr{% if emphasised %} class="emphasised"{% endif %}>
{% for cell in cells %}
{% set tag = "th" if loop.first else "td" %}
<{{ tag }}{% if loop.first %} scope="row"{% endif %}>{{ cell.text -}}
{% if cell.note %}<br><small>{{ cell.note }}</small>{% endif -%}
</{{ tag }}>
{% endfor %}
</tr>
{% endfor %}
</tbody>
</table>
""")
