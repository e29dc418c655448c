"""The study's evidence as Markdown with figures: what was decided before the runs, and what the runs show."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from eagc_ops.files import atomic_write
from eagc_ops.table import Row, Table
from eagc_ops.training.analysis.comparisons import bootstrap_interval, holm
from eagc_ops.training.analysis.paired import Paired, paired_difference
from eagc_ops.training.paper.filling import conditions
from eagc_ops.training.report import drawing
from eagc_ops.training.report.figures import accuracy_figure
from eagc_ops.training.report.measures import measures, plus_minus
from eagc_ops.training.report.probe import probe_of
from eagc_ops.training.report.runs import RunGroup, RunRecord, read_run
from eagc_ops.training.scores import EPOCHS, SCORES, scores_text
from eagc_ops.training.studies.study import (
    ARMS,
    BASELINE,
    FULL,
    LEVEL,
    NULL,
    OUTCOME,
    Cell,
    Study,
    StudyRun,
    smallest_p,
)

__all__ = ["Comparison", "compare", "decision", "evaluated", "write_evidence"]

COLUMNS = {  # measure: heading, digits
    "all": ("All", 1),
    "old": ("Old", 1),
    "new": ("New", 1),
    "best_all": (f"All, {EPOCHS['best']}", 1),
    "gdc_clean": ("GDC clean", 3),
    "gdc_release": ("GDC release", 3),
    "soc_release": ("SOC", 3),
}
Values = Mapping[str, Sequence[Mapping[str, float]]]  # arm -> by seed -> measure -> value


class Comparison(NamedTuple):
    """An arm against the baseline, by All of the last epoch."""

    paired: Paired
    low: float  # of the bootstrap interval
    high: float
    floor: float  # largest |null - baseline| over the seeds


def write_evidence(study: Study) -> Path:
    """Write `output`/evidence.md and its figures from the runs so far, and return the path."""
    planned = study.runs()
    records = {run.folder: record for run in planned if (record := _record(run)) is not None}
    complete = {
        cell: values for cell in study.cells if (values := evaluated(cell, planned, records)) is not None
    }
    compared = {cell: compare(values, FULL) for cell, values in complete.items()}
    adjusted = holm([compared[cell].paired.p if cell in compared else math.nan for cell in study.cells])
    study.output.mkdir(parents=True, exist_ok=True)
    blocks = ["# When does EAGC help?", "## Decided before the runs", *OUTCOME]
    blocks += ["## Result", _summary(study, compared, dict(zip(study.cells, adjusted))).markdown()]
    blocks += [_reading(study, compared)]
    if compared:
        with drawing.style():
            figure = _differences_figure(complete)
        blocks.append(_figure(study.output, "differences.svg", figure, "Differences to the baseline."))
    for cell, values in complete.items():
        blocks += [f"## {cell}", _arms(values).markdown(), _paired(values).markdown()]
        with drawing.style():
            groups = [
                RunGroup(
                    arm, "", [records[run.folder] for run in planned if (run.cell, run.arm) == (cell, arm)]
                )
                for arm in ARMS
            ]
            curves = accuracy_figure(groups)
        name = f"curves-{cell.regime.key}-{cell.recipe}.svg"
        blocks.append(_figure(study.output, name, curves.svg, curves.caption))
    blocks += ["## All runs", _every_run(planned, records).markdown()]
    where = conditions()
    blocks.append(f"Written on {where['date']} on {where['machine']}, commit {where['commit'] or 'unknown'}.")
    file = study.output / "evidence.md"
    atomic_write(file, "\n\n".join(blocks) + "\n")
    return file


def evaluated(cell: Cell, planned: Sequence[StudyRun], records: Mapping[Path, RunRecord]) -> Values | None:
    """The measures of all runs of a cell, in the order of the seeds; None unless all are finished."""
    values: dict[str, list[Mapping[str, float]]] = {arm: [] for arm in ARMS}
    for run in planned:
        if run.cell == cell:
            record = records.get(run.folder)
            if record is None or record.result is None:
                return None
            values[run.arm].append(measures(record))
    return values


def compare(values: Values, arm: str, measure: str = "all") -> Comparison:
    """The paired differences of an arm to the baseline, in points."""

    def column(of: str) -> list[float]:
        return [value[measure] for value in values[of]]

    paired, null = (paired_difference(column(of), column(BASELINE)) for of in (arm, NULL))
    floor = max((abs(difference) for difference in null.differences), default=math.nan)
    return Comparison(paired, *bootstrap_interval(paired.differences), floor)


def decision(found: Comparison, adjusted: float) -> str:
    """What the registered rule says; see `OUTCOME`."""
    if smallest_p(found.paired.n) >= LEVEL:
        return "too few seeds to decide"
    if not adjusted < LEVEL:
        return "nothing shown"
    if abs(found.paired.mean) <= found.floor:
        return "below the noise floor"
    return "a gain" if found.paired.mean > 0 else "a loss"


def _record(run: StudyRun) -> RunRecord | None:
    """None for a run without a finished epoch."""
    file = run.folder / "metrics.jsonl"
    if not file.exists() or '"kind": "epoch"' not in file.read_text(encoding="utf-8"):
        return None
    return read_run(run.folder)


def _summary(study: Study, compared: Mapping[Cell, Comparison], adjusted: Mapping[Cell, float]) -> Table:
    """A row for every planned cell."""
    header = ["known", "of", "recipe", "seeds", "probe's AUC", "EAGC - baseline, All", "bootstrap 95 %"]
    header += ["noise floor", "p", "p, corrected", "decision"]
    rows = []
    for cell in study.cells:
        regime = cell.regime
        found = probe_of([study.probe_folder(regime)])
        cells = [str(regime.known), str(regime.classes), cell.recipe, str(regime.seeds)]
        cells.append("-" if found is None else f"{found.best.at_all.auc:.2f}")
        if cell in compared:
            c, p = compared[cell], adjusted[cell]
            cells += [f"{c.paired.mean:+.2f}", f"{c.low:+.2f} to {c.high:+.2f}", f"{c.floor:.2f}"]
            cells += [f"{c.paired.p:.3f}", f"{p:.3f}", decision(c, p)]
        else:
            cells += ["-"] * 5 + ["not complete"]
        rows.append(Row(cells))
    return Table(header, rows, headings=3)


def _reading(study: Study, compared: Mapping[Cell, Comparison]) -> str:
    return (
        f"{len(compared)} of {len(study.cells)} planned comparisons are complete; the correction counts all. "
        "Differences are in points of accuracy at the last epoch. The probe's AUC is that of its best "
        "conceptor, from labelled images alone, before the runs."
    )


def _arms(values: Values) -> Table:
    rows = [
        Row([arm, *(plus_minus((v[name] for v in of), digits) for name, (_, digits) in COLUMNS.items())])
        for arm, of in values.items()
    ]
    return Table(["arm, mean ± std over seeds", *(heading for heading, _ in COLUMNS.values())], rows)


def _paired(values: Values) -> Table:
    """All arms against the baseline; the p-values of this table are not corrected."""
    rows = []
    for arm in (arm for arm in ARMS if arm != BASELINE):
        cells = [arm]
        for score in SCORES:
            found = compare(values, arm, score)
            p = f"p {found.paired.p:.3f}"
            cells.append(f"{found.paired.mean:+.2f} ({found.low:+.2f} to {found.high:+.2f}), {p}")
        rows.append(Row(cells))
    return Table(["difference to the baseline", *(score.capitalize() for score in SCORES)], rows)


def _every_run(planned: Sequence[StudyRun], records: Mapping[Path, RunRecord]) -> Table:
    rows = []
    for run in planned:
        record = records.get(run.folder)
        if record is None:
            text = "no epoch is finished"
        else:
            last = record.lines["epoch"][-1]
            epochs = f"{len(record.lines['epoch'])} of {run.config.epochs} epochs: "
            text = f"{epochs if record.result is None else ''}{scores_text(last)}"
        rows.append(Row([run.folder.name, text]))
    return Table(["run", "last epoch"], rows)


def _differences_figure(complete: Mapping[Cell, Values]) -> str:
    """A panel for every cell: the differences of all arms, seed by seed, and the noise floor as a band."""
    columns = min(len(complete), 4)
    figure, panels = drawing.axes(math.ceil(len(complete) / columns), columns)
    arms = [arm for arm in ARMS if arm != BASELINE]
    for axis, (cell, values) in zip(panels, complete.items()):
        floor = compare(values, NULL).floor
        axis.axvspan(-floor, floor, color="#bbbbbb", alpha=0.5, linewidth=0)
        for i, arm in enumerate(arms):
            found = compare(values, arm)
            y, colour = len(arms) - i, drawing.COLOURS[i]
            axis.plot(
                found.paired.differences, [y] * found.paired.n, "o", color=colour, markersize=3, alpha=0.5
            )
            axis.plot([found.low, found.high], [y - 0.25] * 2, color=colour, linewidth=2)
            axis.plot([found.paired.mean], [y - 0.25], "D", color=colour, markersize=5)
        axis.set(title=str(cell), xlabel="All - All of the baseline, points")
        axis.set_yticks(range(len(arms), 0, -1), arms)
        axis.axvline(0, color="black", linewidth=0.8)
    for axis in panels[len(complete) :]:
        axis.set_axis_off()
    return drawing.picture(figure, "", []).svg


def _figure(folder: Path, name: str, svg: str, caption: str) -> str:
    (folder / "figures").mkdir(exist_ok=True)
    atomic_write(folder / "figures" / name, f"{svg}\n")
    return f"![{caption}](figures/{name})\n\n{caption}"
