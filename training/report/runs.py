"""Run folders as records, groups of runs that differ only in the seed, and sweeps of one setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from eagc_ops.app.files import fingerprint
from eagc_ops.training.config import SPECS, Config, ConfigError
from eagc_ops.training.engine.facts import RunFacts
from eagc_ops.training.engine.run_folder import RunFolder


class RunRecord(NamedTuple):
    """The content of a run folder."""

    path: Path
    config: Config
    facts: RunFacts
    result: dict[str, Any] | None  # None: the run is not finished
    lines: dict[str, list[dict[str, Any]]]  # of metrics.jsonl, by kind: "step", "epoch", "diagnosis"


class RunGroup(NamedTuple):
    """Runs that differ only in the seed and the machine: one configuration."""

    name: str
    settings: str  # those in which the groups differ, as text
    runs: list[RunRecord]

    @property
    def finished(self) -> list[RunRecord]:
        return [run for run in self.runs if run.result is not None]


class Sweep(NamedTuple):
    """Groups that differ in one numeric setting."""

    setting: str
    points: list[tuple[float, RunGroup]]  # in the order of the values
    centre: RunGroup | None  # the group that several sweeps share; None if there is one sweep only


def read_run(path: str | Path) -> RunRecord:
    """The record of a run that has finished at least one epoch."""
    folder = RunFolder.open(path)
    if not SPECS[folder.config.dataset].truth:
        raise ConfigError(
            f"{path} is a discovery: nobody knows the truth of its images, so there are no accuracies to "
            f"report; see {folder.path / 'categories.json'}"
        )
    lines: dict[str, list[dict[str, Any]]] = {"step": [], "epoch": [], "diagnosis": []}
    for line in folder.metrics():
        lines.setdefault(line["kind"], []).append(line)
    if not lines["epoch"]:
        raise ConfigError(f"{path} has not finished its first epoch: there is nothing to report yet")
    return RunRecord(folder.path, folder.config, folder.facts, folder.result(), lines)


def by_problem(runs: Sequence[RunRecord]) -> list[list[RunRecord]]:
    """Lists of runs with the same images, split and number of classes; only these are comparable."""
    problems: dict[str, list[RunRecord]] = {}
    for run in runs:
        drawn = run.config.glyphs.model_dump() if run.config.dataset == "glyphs" else None
        key = (run.config.dataset, run.facts.split_hash, run.facts.classes, run.facts.images, drawn)
        problems.setdefault(fingerprint(key), []).append(run)
    return list(problems.values())


def grouped(runs: Sequence[RunRecord], names: Mapping[Path, str] | None = None) -> list[RunGroup]:
    """Runs by configuration, in the order of their first runs.

    `names` has the name of a group under the path of any of its runs; the other groups are called A, B, C,
    ..., and two of which one has EAGC by that.
    """
    names = names or {}
    members: dict[str, list[RunRecord]] = {}
    for run in runs:
        members.setdefault(fingerprint([recipe(run), run.facts.trunk]), []).append(run)
    recipes = [recipe(group[0]) for group in members.values()]
    settings = dict.fromkeys(name for values in recipes for name in values)
    varying = [
        name for name in settings if any(values.get(name) != recipes[0].get(name) for values in recipes)
    ]
    groups = []
    by_eagc = len(recipes) == 2 and recipes[0]["eagc"] != recipes[1]["eagc"]
    for i, (group, values) in enumerate(zip(members.values(), recipes)):
        letter = chr(ord("A") + i) if i < 26 else f"{i + 1}"
        if by_eagc:
            letter = "with EAGC" if values["eagc"] else "without EAGC"
        name = next((names[run.path] for run in group if run.path in names), letter)
        text = ", ".join(f"{setting}={values[setting]}" for setting in varying if setting in values)
        groups.append(RunGroup(name, text, group))
    return groups


def sweeps(groups: Sequence[RunGroup]) -> list[Sweep]:
    """The numeric settings in which groups differ from a common centre, one at a time.

    The centre is the group from which most other groups differ in one setting only. A setting gives a sweep
    if it has three values, or if every group is the centre or differs from it in one setting only.
    """
    recipes = _recipes_with_numbers(groups)
    steps = [
        {j: setting for j in range(len(groups)) if j != i and (setting := _step(groups, recipes, i, j))}
        for i in range(len(groups))
    ]
    centre = max(range(len(groups)), key=lambda i: len(steps[i]))
    complete = len(steps[centre]) == len(groups) - 1
    members: dict[str, list[int]] = {}
    for j, setting in steps[centre].items():
        members.setdefault(setting, [centre]).append(j)
    result = []
    for setting, numbers in members.items():
        if complete or len(numbers) > 2:
            points = sorted(((recipes[i][setting], groups[i]) for i in numbers), key=lambda point: point[0])
            result.append(Sweep(setting, points, groups[centre] if len(members) > 1 else None))
    return result


def recipe(run: RunRecord) -> dict[str, Any]:
    """The settings that decide the run's numbers, without the seed."""
    return {name: value for name, value in run.config.recipe().items() if name != "seed"}


def _recipes_with_numbers(groups: Sequence[RunGroup]) -> list[dict[str, Any]]:
    """The recipes of the groups; a `reference_blocks` of None becomes a number if any group has one."""
    recipes = [recipe(group.runs[0]) for group in groups]
    if any(values["reference_blocks"] is not None for values in recipes):
        for values, group in zip(recipes, groups):
            values["reference_blocks"] = group.runs[0].config.blocks_of_reference
    return recipes


def _step(groups: Sequence[RunGroup], recipes: Sequence[dict[str, Any]], i: int, j: int) -> str | None:
    """The setting in which two groups differ, if it is the only one and a number."""
    a, b = recipes[i], recipes[j]
    differing = [name for name in a.keys() | b.keys() if a.get(name) != b.get(name)]
    if len(differing) != 1:
        return None
    (setting,) = differing
    same_trunk = groups[i].runs[0].facts.trunk == groups[j].runs[0].facts.trunk
    if not (same_trunk or setting.endswith("_blocks")):  # the number of trained blocks decides the trunk
        return None
    return setting if all(type(values.get(setting)) in (int, float) for values in (a, b)) else None
