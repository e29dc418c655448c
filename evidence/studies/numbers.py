"""The numbers of a study's runs, and the table of them, evidence.csv."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from eagc_ops.evidence.studies.study import StudyRun
from eagc_ops.training.engine.run_folder import EPOCHS, SCORES

__all__ = ["ADDED", "COLUMNS", "RunNumbers", "read_table", "table"]

COLUMNS = {  # measure: heading, digits
    "all": ("All", 1),
    "old": ("Old", 1),
    "new": ("New", 1),
    "best_all": (f"All, {EPOCHS['best']}", 1),
    "old_fall": ("fall of Old", 1),
    "gdc_clean": ("GDC clean", 3),
    "gdc_release": ("GDC release", 3),
    "soc_release": ("SOC", 3),
    "drift": ("drift", 3),
    "eep_share": ("EEP's share", 3),
    "aga_share": ("AGA's share", 3),
    "clusters": ("clusters in use", 1),
    "own_name": ("own name", 1),
    "known_name": ("known name", 1),
    "taken": ("taken", 0),
}
ADDED = ("clusters", "own_name", "known_name", "taken")  # columns that earlier tables lack
_RUN = ("run", "known", "classes", "recipe", "method", "arm", "seed", "commit", "finished")


class RunNumbers(NamedTuple):
    """The last epoch's numbers of a run that has finished an epoch."""

    values: Mapping[str, float]  # the measures of `COLUMNS`; NaN where the run has none
    commit: str
    reached: int | None = None  # the epochs of a run that is not finished


def table(planned: Sequence[StudyRun], numbers: Mapping[str, RunNumbers]) -> str:
    """CSV with a line for every planned run; `numbers` by the names of the runs' folders."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow([*_RUN, *COLUMNS])
    for run in planned:
        own = numbers.get(run.folder.name)
        values = {} if own is None else own.values
        shown = ["" if math.isnan(x := values.get(name, math.nan)) else repr(x) for name in COLUMNS]
        finished = "yes" if own is not None and own.reached is None else "no"
        commit = "" if own is None else own.commit
        problem = [run.cell.regime.known, run.cell.regime.classes, run.cell.recipe, run.cell.method]
        lines.writerow([run.folder.name, *problem, run.arm, run.seed, commit, finished, *shown])
    return text.getvalue()


def read_table(file: Path) -> dict[str, RunNumbers]:
    """The finished runs of a table, by the names of their folders; a ValueError if the file is none."""
    found = {}
    with file.open(encoding="utf-8", newline="") as lines:
        reader = csv.DictReader(lines, strict=True)
        names = reader.fieldnames or []
        if names not in ([*_RUN, *COLUMNS], [name for name in (*_RUN, *COLUMNS) if name not in ADDED]):
            raise ValueError(f"{file.name} has other columns than this version writes")
        for line in reader:
            if None in line.values():
                raise ValueError(f"{file.name} ends within the line of {line['run']}")
            if line["finished"] == "yes":
                values = {name: float(line.get(name) or "nan") for name in COLUMNS}
                if any(math.isnan(values[name]) for name in SCORES):
                    raise ValueError(f"{file.name} has no accuracy of {line['run']}, which is finished")
                found[line["run"]] = RunNumbers(values, line["commit"])
    return found
