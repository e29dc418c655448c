"""One table object, printed as aligned text, as Markdown or as HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import jinja2


class Cell(NamedTuple):
    """A text, and a note that is set apart from it: the paper's value beside ours."""

    text: str
    note: str = ""

    def __str__(self) -> str:
        return f"{self.text} [{self.note}]" if self.note else self.text


class Row(NamedTuple):
    """The cells of a row; an emphasised row is set apart in HTML."""

    cells: Sequence[str | Cell]
    emphasised: bool = False


@dataclass(frozen=True)
class Table:
    """A header and rows of the same length.

    `headings` is the number of leading columns that name a row; they are aligned to the left, the others to
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
                    f"a row has {len(row.cells)} cells, the header {len(self.header)}: {row.cells}"
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
        lines = [self._flat_header(), *([str(cell) for cell in row.cells] for row in self.rows)]
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
        lines = [self._flat_header(), *([str(cell) for cell in row.cells] for row in self.rows)]
        head, *body = (f"| {' | '.join(line)} |" for line in lines)
        return "\n".join([head, "|" + "---|" * len(self.header), *body])

    def html(self) -> str:
        return _HTML.render(table=self, first=self.header[: self.headings], rest=self.header[self.headings :])

    def _flat_header(self) -> list[str]:
        """The header in one line: a group's title stands before each of its columns."""
        titles = [f"{title}: " for title, columns in self.groups for _ in range(columns)]
        titles = ["" for _ in range(len(self.header) - len(titles))] + titles
        return [title + name for title, name in zip(titles, self.header)]


_HTML = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string("""\
<table>
<thead>
{% if table.groups %}
<tr>
{% for name in first %}<th rowspan="2">{{ name }}</th>{% endfor %}
{% for title, columns in table.groups %}<th colspan="{{ columns }}" class="group">{{ title }}</th>{% endfor %}
</tr>
<tr>{% for name in rest %}<th>{{ name }}</th>{% endfor %}</tr>
{% else %}
<tr>{% for name in table.header %}<th>{{ name }}</th>{% endfor %}</tr>
{% endif %}
</thead>
<tbody>
{% for row in table.rows %}
<tr{% if row.emphasised %} class="emphasised"{% endif %}>
{% for cell in row.cells %}
{% set tag = 'th scope="row"' if loop.index0 == 0 else 'td' %}
<{{ tag | safe }}>{{ cell.text if cell.note is defined else cell }}
{%- if cell.note %}<br><i>[{{ cell.note }}]</i>{% endif %}
</{{ 'th' if loop.index0 == 0 else 'td' }}>
{% endfor %}
</tr>
{% endfor %}
</tbody>
</table>
""")
