"""The numbers of the runs, and the table of them, runs.csv: each finished run enters it at once."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence

from eagc_ops.evidence.waterfall.plan import Plan, PlannedRun
from eagc_ops.training.report.measures import measures
from eagc_ops.training.report.runs import read_run

__all__ = ["COLUMNS", "Numbers", "finished", "numbers_of", "table"]

Numbers = Mapping[str, float]
COLUMNS = {  # measure: heading, digits
    "all": ("All", 1),
    "old": ("Old", 1),
    "new": ("New", 1),
    "own_name": ("own name", 1),
    "known_name": ("known name", 1),
    "taken": ("taken", 1),
    "clusters": ("clusters in use", 1),
    "best_all": ("All, best epoch, chosen with the truth", 1),
    "old_fall": ("fall of Old", 1),
    "gdc_clean": ("GDC clean", 3),
    "gdc_release": ("GDC release", 3),
    "soc_release": ("SOC", 3),
    "drift": ("drift", 3),
    "eep_share": ("EEP's share", 3),
    "aga_share": ("AGA's share", 3),
    "minutes": ("minutes", 1),
}
_RUN = ("run", "known", "classes", "recipe", "replicate", "commit")


def numbers_of(run: PlannedRun) -> tuple[Numbers, str] | None:
    """The measures of a finished run, NaN where it has none, and its commit; None if it is not finished.

    `minutes` are those of its epochs.
    """
    if not (run.folder / "result.json").exists():
        return None
    record = read_run(run.folder)
    values = measures(record)
    values["minutes"] = values["seconds"] * record.config.epochs / 60
    return {name: values[name] for name in COLUMNS}, record.facts.commit or ""


def finished(plan: Plan) -> dict[str, tuple[Numbers, str]]:
    """The measures of all finished runs and their commits, also of those that are in the table alone."""
    elsewhere = plan.elsewhere()
    found: dict[str, tuple[Numbers, str]] = {}
    for run in plan.runs():
        name = run.folder.name
        if name in elsewhere:
            row = elsewhere[name]
            found[name] = {column: float(row[column] or "nan") for column in COLUMNS}, row["commit"]
        elif (numbers := numbers_of(run)) is not None:
            found[name] = numbers
    return found


def table(planned: Sequence[PlannedRun], numbers: Mapping[str, tuple[Numbers, str]]) -> str:
    """CSV with a line for every finished run, in the order of the plan; `numbers` by their folders."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow([*_RUN, *COLUMNS])
    for run in planned:
        if run.folder.name in numbers:
            values, commit = numbers[run.folder.name]
            shown = ["" if math.isnan(values[name]) else f"{values[name]:.10g}" for name in COLUMNS]
            place = [run.folder.name, run.problem.known, run.problem.classes, run.arm.name, run.replicate]
            lines.writerow([*place, commit, *shown])
    return text.getvalue()
