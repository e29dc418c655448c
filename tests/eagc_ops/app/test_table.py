"""The table as text, Markdown and HTML."""

import pytest
from pages import Page

from eagc_ops.app.table import Cell, Row, Table

GROUPED = Table(
    ["Method", "AGA", "All", "n", "All"],
    [
        Row(["Sim <GCD>", "x", Cell("60.1 ± 0.2", "[60.3]"), "3", "-"]),
        Row(["+ EAGC", "✓", Cell("-", "[66.5]"), "-", Cell("70.0")], emphasised=True),
    ],
    headings=2,
    groups=[("CUB", 2), ("Cars", 1)],
)


def test_text_is_aligned_and_groups_stand_before_their_columns():
    assert GROUPED.text().splitlines() == [
        "Method     AGA           CUB: All  CUB: n  Cars: All",
        "Sim <GCD>  x    60.1 ± 0.2 [60.3]       3          -",
        "+ EAGC     ✓             - [66.5]       -       70.0",
    ]


def test_markdown_escapes_bars():
    assert Table(["a"], [Row(["x|y"])]).markdown().splitlines()[-1] == r"| x\|y |"


def test_html_has_the_same_cells_with_notes_below():
    page = Page(GROUPED.html())
    assert page.tables == [
        [
            ["Method", "AGA", "CUB", "Cars"],
            ["All", "n", "All"],
            ["Sim <GCD>", "x", "60.1 ± 0.2[60.3]", "3", "-"],
            ["+ EAGC", "✓", "-[66.5]", "-", "70.0"],
        ]
    ]


def test_html_escapes_and_marks():
    html = GROUPED.html()
    assert "Sim &lt;GCD&gt;" in html
    assert html.count('class="emphasised"') == 1
    assert html.count('rowspan="2"') == 2
    assert '<th colspan="2" class="group">CUB</th>' in html
    assert "<td>60.1 ± 0.2<br><small>[60.3]</small></td>" in html


def test_a_table_without_groups_has_one_line_of_headings():
    html = Table.of([{"D": 768, "ms": 1.5}]).html()
    assert "rowspan" not in html
    assert Page(html).tables == [[["D", "ms"], ["768", "1.5"]]]


def test_rows_and_groups_must_fit_the_header():
    with pytest.raises(ValueError, match=r"as many cells as the header \(2\), got 1"):
        Table(["a", "b"], [Row(["1"])])
    with pytest.raises(ValueError, match="must cover the 2 columns after the headings, got 3"):
        Table(["a", "b", "c"], [], groups=[("x", 3)])
