"""A table of the paper as Markdown and as an HTML page: our mean ± std beside the paper's value."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from eagc_ops.app.files import atomic_write
from eagc_ops.app.table import Cell, Row, Table
from eagc_ops.evidence.paper.filled import Filled, read_filled
from eagc_ops.evidence.paper.tables import AVERAGE, MINIATURES, NAMES, START, TABLES, PaperRow
from eagc_ops.evidence.paper.values import PAPER, RELEASE_SEEDS
from eagc_ops.training.data import SPECS
from eagc_ops.training.report.measures import BEST, BEST_START, START_MEASURE, mean_std, plus_minus
from eagc_ops.training.report.page import render_sections, templates
from eagc_ops.training.report.runs import RunRecord

COLUMNS = {  # measure: heading, digits
    "all": ("All", 1),
    "old": ("Old", 1),
    "new": ("New", 1),
    "best_all": ("All, best", 1),
    "best_old": ("Old, best", 1),
    "best_new": ("New, best", 1),
    "start_all": ("All, start", 1),
    "start_old": ("Old, start", 1),
    "start_new": ("New, start", 1),
    "gdc_release": ("GDC ↓", 4),
    "soc_release": ("SOC ↓", 4),
    "gdc_clean": ("GDC, clean", 4),
    "soc_paper": ("SOC, paper's formula", 4),
    "rho_grad": ("rho_grad", 3),
    "rho_in": ("rho_in", 3),
    "cos_known": ("cos, + known", 3),
    "cos_novel": ("cos, + novel", 3),
    "reference_cross_entropy": ("L_cls", 3),
}
_MEAN_GROUP = "Average"  # title of the group with the mean over data sets

# (row, title of the group, measure, its place in the paper's row) -> cell
CellOf = Callable[[PaperRow, str, str, int], Cell]


def write_table(name: str, folder: Path, store: Path) -> tuple[str, Table]:
    """Write `folder`/table.md and table.html from the runs of `folder`/runs.json, which are in `store`.

    Returns the caption of the results, which says of which epoch they are, and their table without the
    columns and rows for which only the paper has values.
    """
    filled = read_filled(name, folder, store)
    tables = [_results(name, filled), _differences(name, filled), _beside(name, filled)]
    tables += [_starts(name, filled), _release_seeds(name, filled)]
    tables = [(caption, table) for caption, table in tables if table.rows]
    _write(folder, name, table_note(name), tables, _conditions(filled), _figures(filled))
    caption, table = _results(name, filled._replace(groups=filled.measured))
    rows = [
        row
        for row in table.rows
        if any(getattr(cell, "text", cell) != "-" for cell in row.cells[table.headings :])
    ]
    return caption, Table(table.header, rows, table.headings, table.groups)


def table_note(name: str) -> str:
    """What a reader must know to compare our values with the paper's."""
    table = TABLES[name]
    sentences = []
    if any(row.ours for row in table.rows):
        sentences.append("Rows with * are not in the paper.")
        sentences.append('"Recipe of + EAGC" is the row + EAGC without the operator: the fair baseline.')
    if any(row.null for row in table.rows):
        sentences.append(
            "Null runs (--null) have the operator with almost no strength: what separates them from the fair "
            "baseline is rounding, the noise floor of the differences."
        )
    sentences += [table.note] if table.note else []
    if table.has_selex:
        sentences.append(START_MEASURE)
        sentences.append(
            "The paper does not say of which kind its values of SelEx + EAGC are; the released code computes "
            "no other than the former."
        )
    return " ".join([*sentences, f"In the paper: {PAPER[name].label}."])


def write_overhead(folder: Path, note: str, tables: Sequence[Table], svg: str) -> None:
    """Write `folder`/table.md and table.html of the overhead table, which is measured, not trained."""
    picture = Markup(svg[svg.index("<svg") :])
    _write(folder, "overhead", note, [("", table) for table in tables], picture=picture)


def _write(
    folder: Path,
    name: str,
    note: str,
    tables: Sequence[tuple[str, Table]],
    conditions: Sequence[str] = (),
    sections: Mapping[str, Markup] | None = None,
    picture: str = "",
) -> None:
    caption = TABLES[name].caption
    blocks = [f"# {caption}", note]
    blocks += [text for title, table in tables for text in (title, table.markdown()) if text]
    blocks += ["\n".join(f"- {line}" for line in conditions)] if conditions else []
    atomic_write(folder / "table.md", "\n\n".join(blocks) + "\n")
    page = templates("eagc_ops.evidence.paper").get_template("table.html.j2")
    html = page.render(
        title=f"EAGC table: {name}",
        heading=caption,
        note=note,
        tables=tables,
        conditions=conditions,
        sections=sections or {},
        picture=picture,
    )
    atomic_write(folder / "table.html", html)


# The tables of a page
# ----------------------------------------------------------------------------------------


def _results(name: str, filled: Filled) -> tuple[str, Table]:
    """Our means beside the paper's values."""
    table = TABLES[name]

    def cell(row: PaperRow, group: str, measure: str, place: int) -> Cell:
        if group == _MEAN_GROUP:  # over the paper's data sets; NaN, so a dash, unless all of them have runs
            means = [_mean(filled, row.key, own.title, measure) for own in table.groups]
            values = [statistics.fmean(means)]
        else:
            values = [value[measure] for value in filled.values(row.key, group).values()]
        return _cell(values, measure, _printed(name, row.key, group, place))

    last = "Last epoch, mean" if "all" in table.columns else "Mean"
    caption = f"{last} ± std over seeds; n: number of seeds; the paper's value in brackets"
    average = table.average and len(filled.groups) > 1
    return caption, _table(name, filled, table.columns, table.rows, cell, average=average)


def _differences(name: str, filled: Filled) -> tuple[str, Table]:
    """Paired differences between rows; the key of such a row is "one - other"."""
    table = TABLES[name]
    pairs = [(row, f"{row.key} - {other}") for row in table.rows for other in row.against]
    rows = [PaperRow(key, key, ours=row.ours, null=row.null) for row, key in pairs]
    if AVERAGE in PAPER[name].values:
        rows.append(PaperRow(AVERAGE, f"{AVERAGE}: + EAGC against the method's own recipe"))
    with_eagc = [row for row in table.rows if row.title == "+ EAGC"]

    def paired(one: str, other: str, group: str, measure: str) -> list[float]:
        a, b = filled.values(one, group), filled.values(other, group)
        return [a[seed][measure] - b[seed][measure] for seed in a if seed in b]

    def cell(row: PaperRow, group: str, measure: str, place: int) -> Cell:
        if row.key == AVERAGE:
            means = [mean_std(paired(own.key, own.against[0], group, measure))[0] for own in with_eagc]
            printed = _printed(name, AVERAGE, group, place)
            return _cell([statistics.fmean(means)], measure, printed, sign="+")
        one, other = row.key.split(" - ")
        a, b = (_printed(name, key, group, place) for key in (one, other))
        printed = None if a is None or b is None else a - b
        return _cell(paired(one, other, group, measure), measure, printed, sign="+")

    def count(row: PaperRow, group: str) -> int:
        one, _, other = row.key.partition(" - ")
        return len(filled.values(one, group).keys() & filled.values(other, group).keys())

    caption = (
        "Paired differences: same seed, data and draws; mean ± std over seeds; the paper's difference in "
        "brackets"
    )
    return caption, _table(name, filled, table.columns, rows, cell, count=count)


def _beside(name: str, filled: Filled) -> tuple[str, Table]:
    """Measures that the paper's table does not have, for the groups with runs."""
    table = TABLES[name]

    def cell(row: PaperRow, group: str, measure: str, _: int) -> Cell:
        return _cell([value[measure] for value in filled.values(row.key, group).values()], measure, None)

    best = f"{BEST.capitalize()} (the true labels of the same images), and therefore optimistic"
    caption = best if "best_all" in table.beside else "Other measures"
    rows = [row for row in table.rows if row.method != ""]
    return caption, _table(name, filled._replace(groups=filled.measured), table.beside, rows, cell)


def _starts(name: str, filled: Filled) -> tuple[str, Table]:
    """Rows whose runs score the clusters at the start of an epoch, beside the paper's values.

    These are the rows of SelEx that follow the released scripts.
    """
    table = TABLES[name]
    if not table.has_selex:
        return "", Table([], [])

    def scored(row: PaperRow, group: str) -> list[Mapping[str, float]]:
        values = filled.values(row.key, group).values()
        return [value for value in values if not math.isnan(value["start_all"])]

    def cell(row: PaperRow, group: str, measure: str, place: int) -> Cell:
        values = scored(row, group)
        printed = _printed(name, row.key, group, table.columns.index("all") + place) if values else None
        return _cell([value[measure] for value in values], measure, printed)

    groups = [group for group in filled.measured if any(scored(row, group) for row in table.rows)]
    rows = [row for row in table.rows if any(scored(row, group) for group in groups)]
    caption = f"SelEx at the {BEST_START}, as the released code measures it; the paper's value in brackets"
    filled = filled._replace(groups=groups)
    return caption, _table(name, filled, START, rows, cell, lambda row, group: len(scored(row, group)))


def _release_seeds(name: str, filled: Filled) -> tuple[str, Table]:
    """Seed by seed, All of the runs with the preset `release` beside that of the release's README."""
    if name != "main":
        return "", Table([], [])
    presets = {dataset: entry["preset"] for dataset, entry in filled.conditions.items()}
    groups = [
        group.title
        for group in TABLES[name].groups
        if group.title in filled.measured and presets.get(group.dataset) == "release"
    ]

    def seeds(values: Iterable[float | None]) -> Cell:
        return Cell("  ".join(f"{value:.1f}" for value in values) or "-")

    def ours(row: str, group: str) -> Iterable[float]:
        for _, value in sorted(filled.values(row, group).items()):
            yield value["best_all"] if math.isnan(value["start_all"]) else value["start_all"]

    rows = [
        Row([row, *(cell for group in groups for cell in (seeds(ours(row, group)), seeds(printed[group])))])
        for row, printed in RELEASE_SEEDS.items()
    ]
    caption = (
        "All by seed with the preset release: of the best epoch, of SelEx at the best start of an epoch, "
        "beside the seeds 0, 1 and 2 in the README of the released code"
    )
    header = ["row", *(heading for _ in groups for heading in ("here", "release"))]
    return caption, Table(header, rows if groups else [], groups=[(group, 2) for group in groups])


def _table(
    name: str,
    filled: Filled,
    measures: Sequence[str],
    rows: Iterable[PaperRow],
    cell: CellOf,
    count: Callable[[PaperRow, str], int] | None = None,
    average: bool = False,
) -> Table:
    """A group of columns for each title in `filled.groups`: the measures, and n, the number of seeds.

    `count` gives n if it is not the number of finished runs; `average` adds a group with the mean over data
    sets.
    """

    def seeds(row: PaperRow, title: str) -> int:
        return count(row, title) if count else len(filled.values(row.key, title))

    rows = [row for row in rows if not row.null or any(seeds(row, title) for title in filled.groups)]
    marks = TABLES[name].heads if any(row.marks for row in rows) else ()
    names = [COLUMNS[measure][0] for measure in measures]
    groups = [(title, [*names, "n"]) for title in filled.groups]
    groups += [(_MEAN_GROUP, names)] if average else []
    lines = []
    for row in rows:
        cells: list[Cell] = []
        for title, headings in groups:
            cells += [cell(row, title, measure, place) for place, measure in enumerate(measures)]
            if headings[-1] == "n":
                n = seeds(row, title)
                cells.append(Cell(f"{n}" if n else "-"))
        first = f"{row.title} *" if row.ours else row.title
        lines.append(Row([first, *row.marks, *cells], emphasised=row.title.startswith(("+", "Ours"))))
    return Table(
        [TABLES[name].first, *marks, *(heading for _, headings in groups for heading in headings)],
        lines,
        headings=1 + len(marks),
        groups=[(title, len(headings)) for title, headings in groups],
    )


def _cell(values: Iterable[float], measure: str, printed: float | None, sign: str = "") -> Cell:
    digits = COLUMNS[measure][1]
    note = "" if printed is None else f"[{printed:{sign}.{digits}f}]"
    return Cell(plus_minus(values, digits, sign), note)


def _mean(filled: Filled, row: str, group: str, measure: str) -> float:
    return mean_std(value[measure] for value in filled.values(row, group).values())[0]


def _printed(name: str, row: str, group: str, place: int) -> float | None:
    values = PAPER[name].values.get(row, {}).get(group)
    return None if values is None else values[place]


# Around the tables
# -------------------------------------------------------------------------------------------


def _conditions(filled: Filled) -> list[str]:
    lines = []
    for dataset, entry in filled.conditions.items():
        names = {path for _, _, path in entry["runs"]}
        runs = {
            run.path: run for records in filled.runs.values() for run in records if run.path.name in names
        }
        if not runs:
            continue
        lines.append(_condition(dataset, entry, list(runs.values()), len(names)))
        lines += [MINIATURES[dataset].note] if dataset in MINIATURES else []
        lines += [
            f"warning of {run.path.name}: {text}"
            for run in runs.values()
            for text in (run.result or {}).get("warnings", [])
        ]
    return lines


def _condition(dataset: str, entry: Mapping[str, Any], runs: Sequence[RunRecord], planned: int) -> str:
    def spread(values: Iterable[Any]) -> str:
        return ", ".join(str(value) for value in sorted(set(values)))

    facts, configs = runs[0].facts, [run.config for run in runs]
    parts = [
        f"{facts.images:,} images, {facts.labelled:,} labelled of {facts.known} known classes",
        f"encoder {spread(config.backbone for config in configs)}, preset {entry['preset']}, epochs "
        f"{spread(config.epochs for config in configs)}, images per step "
        f"{spread(config.batch_size for config in configs)}, seeds "
        f"{spread(config.seed for config in configs)}",
        f"K of the runs {spread(run.facts.classes for run in runs)}",
        f"split {facts.split_hash[:12]}",
        f"{sum(run.result is not None for run in runs)} finished runs of {planned}",
        f"filled in on {entry['date']} with commit {entry['commit']} on {entry['machine']}",
    ]
    return f"{SPECS[dataset].title}: {'; '.join(parts)}"


def _figures(filled: Filled) -> dict[str, Markup]:
    """The report's sections about the runs of each method on each data set."""
    members: dict[tuple[str, str], dict[Path, tuple[RunRecord, str]]] = {}
    for (row, _), runs in filled.runs.items():
        for run in runs:
            members.setdefault((run.config.dataset, run.config.method), {})[run.path] = (run, row)
    return {
        f"Curves of {NAMES[method]} on {SPECS[dataset].title}": render_sections(
            [run for run, _ in named.values()],
            {path: row for path, (_, row) in named.items()},
            headings=False,
        )
        for (dataset, method), named in members.items()
    }
