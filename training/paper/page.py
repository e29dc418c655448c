"""A table of the paper as Markdown and as one self-contained HTML page: our mean ± std over seeds, and the paper's value beside it."""

from __future__ import annotations

import html
import json
import re
import statistics
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from eagc_ops.files import atomic_write
from eagc_ops.training.data import SPECS
from eagc_ops.training.paper.tables import AVERAGE, NAMES, TABLES, Row
from eagc_ops.training.paper.values import PAPER
from eagc_ops.training.report.page import Run, mean_std, measures, page, plus_minus, read_run, write_report

COLUMNS = {  # measure: heading, digits
    "all": ("All", 1), "old": ("Old", 1), "new": ("New", 1),
    "best_all": ("All, best", 1), "best_old": ("Old, best", 1), "best_new": ("New, best", 1),
    "gdc_release": ("GDC ↓", 4), "soc_release": ("SOC ↓", 4), "gdc_clean": ("GDC, clean", 4), "soc_paper": ("SOC, paper's formula", 4),
    "rho_grad": ("rho_grad", 3), "rho_in": ("rho_in", 3), "cos_known": ("cos, + known", 3), "cos_novel": ("cos, + novel", 3),
    "reference_cross_entropy": ("L_cls", 3),
}  # fmt: skip
NO_GROUP = "Average"


class Filled(NamedTuple):
    """What an output folder holds of a table: runs.json, one entry for every data set that was filled in."""

    conditions: dict[str, dict[str, Any]]  # data set -> date, machine, commit, preset
    groups: list[str]  # titles of column groups, those with data sets that the paper does not have first
    runs: dict[tuple[str, str], list[Run]]  # (row key, group title) -> runs that have an epoch
    finished: dict[tuple[str, str], dict[int, dict[str, float]]]  # the same -> seed -> measure -> value

    def values(self, row: str, group: str) -> dict[int, dict[str, float]]:
        return self.finished.get((row, group), {})

    @property
    def measured(self) -> list[str]:
        """Groups that have a run."""
        return [group for group in self.groups if any(group == title for _, title in self.runs)]


class Grid(NamedTuple):
    """A table of cells (ours, paper's); both are texts, "" for none."""

    caption: str
    heads: list[str]  # of the first columns
    groups: list[tuple[str, list[str]]]  # title, headings
    rows: list[
        tuple[list[str], bool, list[tuple[str, str]]]
    ]  # texts of the first columns, whether it is not in the paper, cells


def record(
    folder: Path, dataset: str, conditions: Mapping[str, Any], runs: Iterable[tuple[str, str, Path]]
) -> None:
    """Note in `folder`/runs.json which runs (row key, group title, run folder) fill in the table for a data set."""
    file = folder / "runs.json"
    content = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    content[dataset] = {**conditions, "runs": [[row, group, path.name] for row, group, path in runs]}
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write(file, (json.dumps(content, indent=1) + "\n").encode())


def write_table(name: str, folder: Path, store: Path) -> str:
    """Write `folder`/table.md and table.html from the runs noted there (their folders are in `store`). Returns what was measured of the
    first table, without the columns that only the paper fills."""
    filled = _read(name, folder, store)
    grids = [_results(name, filled), _differences(name, filled), _beside(name, filled)]
    conditions = _conditions(name, filled)
    texts = [f"# {TABLES[name].caption}\n", f"{_note(name)}\n"]
    texts += [f"{grid.caption}\n\n{_markdown(grid)}\n" for grid in grids if grid.rows]
    texts += ["\n".join(f"- {line}" for line in conditions) + "\n"]
    atomic_write(folder / "table.md", "\n".join(texts).encode())
    body = [f"<p>{html.escape(_note(name))}</p>"]
    body += [f"<h2>{html.escape(grid.caption)}</h2>{_html(grid)}" for grid in grids if grid.rows]
    body += [
        "<h2>Conditions</h2><ul>",
        *(f"<li>{html.escape(line)}</li>" for line in conditions),
        "</ul>",
        *_figures(filled),
    ]
    atomic_write(
        folder / "table.html",
        page(f"EAGC table: {name}", TABLES[name].caption, "\n".join(body), STYLE).encode(),
    )
    measured = _results(name, filled._replace(groups=filled.measured))
    return _markdown(
        measured._replace(rows=[row for row in measured.rows if any(ours != "-" for ours, _ in row[2])])
    )


def _read(name: str, folder: Path, store: Path) -> Filled:
    content = json.loads((folder / "runs.json").read_text(encoding="utf-8"))
    printed = [group.title for group in TABLES[name].groups]
    runs: dict[tuple[str, str], list[Run]] = {}
    for entry in content.values():
        for row, group, path in entry["runs"]:
            if (store / path / "metrics.jsonl").exists() and '"kind": "epoch"' in (
                store / path / "metrics.jsonl"
            ).read_text("utf-8"):
                runs.setdefault((row, group), []).append(read_run(store / path))
    filled = dict.fromkeys(group for entry in content.values() for _, group, _ in entry["runs"])
    finished = {
        key: {run.config.seed: _values(run) for run in found if run.result is not None}
        for key, found in runs.items()
    }
    return Filled(content, [*(title for title in filled if title not in printed), *printed], runs, finished)


def _values(run: Run) -> dict[str, float]:
    loss = run.result["reference_cross_entropy"]
    return {**measures(run), "reference_cross_entropy": float("nan") if loss is None else loss}


# The three tables ------------------------------------------------------------------------------------------------------------------


def _results(name: str, filled: Filled) -> Grid:
    table = TABLES[name]

    def cell(row: Row, group: str, measure: str, place: int) -> tuple[str, str]:
        digits = COLUMNS[measure][1]
        if group == NO_GROUP:  # over the paper's data sets, where all are there
            means = [
                mean_std(v[measure] for v in filled.values(row.key, own.title).values())[0]
                for own in table.groups
            ]
            ours = plus_minus([statistics.fmean(means)], digits)
        else:
            ours = plus_minus((v[measure] for v in filled.values(row.key, group).values()), digits)
        return ours, _text(_printed(name, row.key, group, place), digits)

    caption = "Last epoch, mean ± std over seeds; n: number of seeds; the paper's value in brackets"
    if "all" not in table.columns:
        caption = "Mean ± std over seeds; n: number of seeds; the paper's value in brackets"
    return _grid(
        name,
        filled,
        caption,
        table.columns,
        table.rows,
        cell,
        average=table.average and len(filled.groups) > 1,
    )


def _differences(name: str, filled: Filled) -> Grid:
    table = TABLES[name]
    rows = [
        Row(f"{row.key} - {other}", f"{row.key} - {other}", ours=row.ours)
        for row in table.rows
        for other in row.against
    ]
    mean_of = [row for row in table.rows if row.title == "+ EAGC"]
    rows += (
        [Row(AVERAGE, f"{AVERAGE}: + EAGC against the method's own recipe")]
        if AVERAGE in PAPER[name].values
        else []
    )

    def paired(key: str, other: str, group: str, measure: str) -> list[float]:
        ours, theirs = filled.values(key, group), filled.values(other, group)
        return [ours[seed][measure] - theirs[seed][measure] for seed in ours if seed in theirs]

    def cell(row: Row, group: str, measure: str, place: int) -> tuple[str, str]:
        digits = COLUMNS[measure][1]
        if row.key == AVERAGE:
            means = [mean_std(paired(own.key, own.against[0], group, measure))[0] for own in mean_of]
            return plus_minus([statistics.fmean(means)], digits, "+"), _text(
                _printed(name, AVERAGE, group, place), digits, "+"
            )
        key, other = row.key.split(" - ")
        printed = [_printed(name, which, group, place) for which in (key, other)]
        paper = None if None in printed else printed[0] - printed[1]
        return plus_minus(paired(key, other, group, measure), digits, "+"), _text(paper, digits, "+")

    caption = "Paired differences: same seed, data and draws; mean ± std over seeds; the paper's difference in brackets"
    return _grid(
        name,
        filled,
        caption,
        table.columns,
        rows,
        cell,
        count=lambda row, group: _pairs_of(row, group, filled),
    )


def _beside(name: str, filled: Filled) -> Grid:
    def cell(row: Row, group: str, measure: str, _: int) -> tuple[str, str]:
        return plus_minus(
            (v[measure] for v in filled.values(row.key, group).values()), COLUMNS[measure][1]
        ), ""

    best = "Best epoch, chosen with the true labels of the same images: it flatters"
    rows = [row for row in TABLES[name].rows if row.method != ""]
    beside = TABLES[name].beside
    return _grid(
        name,
        filled._replace(groups=filled.measured),
        best if "best_all" in beside else "Measured beside",
        beside,
        rows,
        cell,
    )


def _grid(
    name: str, filled: Filled, caption: str, columns: tuple[str, ...], rows: Iterable[Row],
    cell: Callable[[Row, str, str, int], tuple[str, str]], count: Callable[[Row, str], int] | None = None, average: bool = False,
) -> Grid:  # fmt: skip
    rows, headings = list(rows), [COLUMNS[measure][0] for measure in columns]
    marks = TABLES[name].heads if any(row.marks for row in rows) else ()
    groups = [(group, [*headings, "n"]) for group in filled.groups] + (
        [(NO_GROUP, headings)] if average else []
    )
    lines = []
    for row in rows:
        cells = []
        for group, heads in groups:
            cells += [cell(row, group, measure, place) for place, measure in enumerate(columns)]
            n = count(row, group) if count else len(filled.values(row.key, group))
            cells += [(str(n) if n else "-", "")] if "n" in heads else []
        lines.append(([row.title, *row.marks], row.ours, cells))
    return Grid(caption, [TABLES[name].first, *marks], groups, lines)


def _pairs_of(row: Row, group: str, filled: Filled) -> int:
    key, _, other = row.key.partition(" - ")
    return len(filled.values(key, group).keys() & filled.values(other, group).keys())


def _printed(name: str, row: str, group: str, place: int) -> float | None:
    values = PAPER[name].values.get(row, {}).get(group)
    return None if values is None else values[place]


def _text(value: float | None, digits: int, sign: str = "") -> str:
    return "" if value is None else f"{value:{sign}.{digits}f}"


# Writing ---------------------------------------------------------------------------------------------------------------------------


def _note(name: str) -> str:
    table, label = TABLES[name], PAPER[name].label
    fair = 'Rows with * are not in the paper; "recipe of + EAGC" is everything of the row + EAGC but the operator, the fair baseline. '
    return f"{fair if any(row.ours for row in table.rows) else ''}{table.note}{' ' * bool(table.note)}In the paper: {label}."


def _conditions(name: str, filled: Filled) -> list[str]:
    lines = []
    for dataset, entry in filled.conditions.items():
        paths = {path for _, _, path in entry["runs"]}
        runs = list(
            {
                run.path: run for found in filled.runs.values() for run in found if run.path.name in paths
            }.values()
        )
        if not runs:
            continue

        def spread(values: Iterable[Any]) -> str:
            return ", ".join(str(value) for value in sorted(set(values)))

        facts, configs = runs[0].facts, [run.config for run in runs]
        lines.append(
            f"{SPECS[dataset].title}: {facts['images']:,} images, {facts['labelled']:,} labelled of {facts['known']} known classes; "
            f"encoder {spread(c.backbone for c in configs)}, preset {entry['preset']}, epochs {spread(c.epochs for c in configs)}, "
            f"images per step {spread(c.batch_size for c in configs)}, seeds {spread(c.seed for c in configs)}; K of the runs "
            f"{spread(run.facts['classes'] for run in runs)}; split {facts['split_hash'][:12]}; "
            f"{sum(run.result is not None for run in runs)} finished runs of {len(paths)}; filled in on {entry['date']} with commit "
            f"{entry['commit']} on {entry['machine']}"
        )
        if dataset == "digits":
            lines.append(
                "digits, ten classes of small drawings, show the mechanics: their numbers say nothing about the paper's data sets"
            )
        lines += [
            f"warning of {run.path.name}: {text}"
            for run in runs
            for text in (run.result or {}).get("warnings", [])
        ]
    return lines


def _markdown(grid: Grid) -> str:
    heads = [*grid.heads, *(f"{title}: {head}" for title, heads in grid.groups for head in heads)]
    lines = [heads, ["---"] * len(heads)]
    for firsts, ours, cells in grid.rows:
        texts = [f"{own} [{paper}]" if paper else own for own, paper in cells]
        lines.append([firsts[0] + (" *" if ours else ""), *firsts[1:], *texts])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _html(grid: Grid) -> str:
    top = "".join(f"<th rowspan=2>{html.escape(head)}</th>" for head in grid.heads)
    top += "".join(
        f"<th colspan={len(heads)} class=group>{html.escape(title)}</th>" for title, heads in grid.groups
    )
    below = "".join(f"<th>{html.escape(head)}</th>" for _, heads in grid.groups for head in heads)
    rows = []
    for firsts, ours, cells in grid.rows:
        first = f"<th scope=row>{html.escape(firsts[0])}{' *' if ours else ''}</th>"
        first += "".join(f"<td>{html.escape(mark)}</td>" for mark in firsts[1:])
        values = "".join(f"<td>{own}{f'<br><i>[{paper}]</i>' if paper else ''}</td>" for own, paper in cells)
        kind = " class=eagc" if firsts[0].startswith(("+", "Ours")) else ""
        rows.append(f"<tr{kind}>{first}{values}</tr>")
    return f"<table><thead><tr>{top}</tr><tr>{below}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _figures(filled: Filled) -> list[str]:
    """What `eagc report` shows of the runs of one method on one data set."""
    members: dict[tuple[str, str], dict[Path, str]] = {}
    for (row, _), runs in filled.runs.items():
        for run in runs:
            members.setdefault((run.config.dataset, run.config.method), {})[run.path] = row
    parts = []
    for (dataset, method), names in members.items():
        with tempfile.TemporaryDirectory() as folder:
            written = write_report(list(names), folder, names).read_text(encoding="utf-8")
        content = re.search(r"<body>(.*)</body>", written, re.DOTALL)[1]
        content = re.sub(r"<h[12]>.*?</h[12]>", "", content)
        parts.append(
            f"<details><summary>Curves of {NAMES[method]} on {SPECS[dataset].title}</summary>{content}</details>"
        )
    return parts


STYLE = (
    "body { max-width: none; } th.group { text-align: center; border-left: 1px solid #bbb; } i { color: #06c; } "
    "tr.eagc { background: #eef5ff; } tr.eagc th { padding-left: 2em; } details { margin: 1em 0; } summary { cursor: pointer; }"
)
