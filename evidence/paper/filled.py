"""The runs of a table in its output folder, where runs.json lists them for every data set."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from eagc_ops.app.files import atomic_write
from eagc_ops.evidence.paper.tables import TABLES
from eagc_ops.evidence.sets import read_begun
from eagc_ops.training.report.measures import measures
from eagc_ops.training.report.runs import RunRecord

Measures = Mapping[str, float]


class Filled(NamedTuple):
    """The runs that fill in a table."""

    conditions: dict[str, dict[str, Any]]  # data set -> date, machine, commit, preset, runs
    groups: list[str]  # titles of column groups; data sets that are not in the paper come first
    runs: dict[tuple[str, str], list[RunRecord]]  # (row key, group title) -> runs that have an epoch
    finished: dict[tuple[str, str], dict[int, Measures]]  # (row key, group title) -> seed -> measures

    def values(self, row: str, group: str) -> Mapping[int, Measures]:
        """Measures of the finished runs, by seed."""
        return self.finished.get((row, group), {})

    @property
    def measured(self) -> list[str]:
        """Titles of the groups that have a run."""
        return [group for group in self.groups if any(group == title for _, title in self.runs)]


def record(
    folder: Path, dataset: str, conditions: Mapping[str, Any], runs: Iterable[tuple[str, str, Path]]
) -> None:
    """Note in `folder`/runs.json which runs fill in the table for a data set.

    `runs` are (row key, group title, run folder).
    """
    file = folder / "runs.json"
    content = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    content[dataset] = {**conditions, "runs": [[row, group, path.name] for row, group, path in runs]}
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write(file, json.dumps(content, indent=1) + "\n")


def read_filled(name: str, folder: Path, store: Path) -> Filled:
    """The runs noted in `folder`/runs.json, whose folders are in `store`."""
    content = json.loads((folder / "runs.json").read_text(encoding="utf-8"))
    printed = [group.title for group in TABLES[name].groups]
    runs: dict[tuple[str, str], list[RunRecord]] = {}
    for entry in content.values():
        for row, group, path in entry["runs"]:
            if (run := read_begun(store / path)) is not None:
                runs.setdefault((row, group), []).append(run)
    filled = dict.fromkeys(group for entry in content.values() for _, group, _ in entry["runs"])
    finished = {
        key: {run.config.seed: _values(run) for run in records if run.result is not None}
        for key, records in runs.items()
    }
    return Filled(content, [*(title for title in filled if title not in printed), *printed], runs, finished)


def _values(run: RunRecord) -> Measures:
    assert run.result is not None  # `finished`
    loss = run.result["reference_cross_entropy"]
    return {**measures(run), "reference_cross_entropy": math.nan if loss is None else loss}
