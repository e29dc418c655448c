"""The problems, their replicates, and the runs in the order in which they are trained."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from eagc_ops.app.files import atomic_write
from eagc_ops.evidence.waterfall.arms import ARMS, Arm
from eagc_ops.training.config import Config, ConfigError, Diagnosis, resolve
from eagc_ops.training.config.schema import CHARACTERS

__all__ = [
    "DESIGN",
    "GLYPHS",
    "TABLE",
    "Plan",
    "PlannedRun",
    "Problem",
    "begin",
    "drawn_split",
    "own_problem",
    "read_table",
]

DESIGN, TABLE = "waterfall.json", "runs.csv"
METHOD = "simgcd"
MACHINE: dict[str, Any] = {"device": "cpu", "tensorboard_every": 0, "checkpoint_epochs": 10}


@dataclass(frozen=True)
class Problem:
    """A number of classes, of which some are known, drawn from those of a data set."""

    known: int
    classes: int
    settings: Mapping[str, Any]  # that are the same for all recipes
    machine: Mapping[str, Any] = field(default_factory=dict)  # settings that change no number
    trunk: str = "trunk"  # folder of the trunk cache

    @property
    def key(self) -> str:
        return f"{self.known}of{self.classes}"

    def __str__(self) -> str:
        return f"{self.known} known of {self.classes} classes"


class PlannedRun(NamedTuple):
    """One run: a recipe on a replicate of a problem."""

    problem: Problem
    arm: Arm
    replicate: int
    config: Config
    folder: Path


# Epochs: accuracy stood still from the 35th on in the first study. The projector of 2,048 units would be
# three quarters of a step at D = 192.
_OF_GLYPHS = {"dataset": "glyphs", "epochs": 40, "projector_width": 512, "evaluate_every": 10}
GLYPHS = tuple(
    Problem(
        known,
        60,
        {**_OF_GLYPHS, "glyphs": {"classes": CHARACTERS, "known": known}},
        {"diagnose": Diagnosis(every=280)},
        "trunk-glyphs",
    )
    for known in (10, 5, 20)
)
# Two views of an image in half precision are 1.4 MB at 168 pixels and D = 384; one run reads them all.
_OF_FOLDER = {"dataset": "folder", "epochs": 30, "cache_views": 2, "cache_half": True, "evaluate_every": 10}


@dataclass(frozen=True)
class Plan:
    """The runs of some problems in the folder `output`, each recipe as often as `arms` says."""

    output: Path
    problems: Sequence[Problem] = GLYPHS
    arms: Sequence[Arm] = tuple(ARMS.values())
    trunk: Path | None = None  # a trunk cache elsewhere

    @property
    def design(self) -> dict[str, Any]:
        """What must not change once runs have been seen."""
        places = Config.machine_settings()
        problems = [
            [p.known, p.classes, {name: x for name, x in p.settings.items() if name not in places}]
            for p in self.problems
        ]
        return {
            "problems": problems,
            "arms": [[arm.name, arm.replicates, arm.preset, arm.settings, arm.longer] for arm in self.arms],
        }

    def runs(self) -> list[PlannedRun]:
        """All runs, turn by turn; within a turn, problem by problem and replicate by replicate."""
        return [
            self.run(problem, arm, replicate)
            for turn in sorted({arm.turn for arm in self.arms})
            for problem in self.problems
            for replicate in range(max(arm.replicates for arm in self.arms))
            for arm in self.arms
            if arm.turn == turn and replicate < arm.replicates
        ]

    def run(self, problem: Problem, arm: Arm, replicate: int) -> PlannedRun:
        settings = {**problem.settings, **MACHINE, **problem.machine, **arm.settings}
        config = resolve(
            METHOD,
            preset=arm.preset,
            seed=replicate,
            split_file=str(self.split_file(problem, replicate)),
            trunk_cache=str(self.trunk or self.output / problem.trunk),
            **settings,
        )
        if arm.longer:
            config = config.replace(epochs=config.epochs + config.reference_epochs)
        folder = self.output / "runs" / f"{problem.key}-{arm.key}-{replicate}"
        return PlannedRun(problem, arm, replicate, config, folder)

    def split_file(self, problem: Problem, replicate: int) -> Path:
        return self.output / "splits" / f"{problem.key}-{replicate}.json"

    def elsewhere(self) -> dict[str, dict[str, str]]:
        """The rows of finished runs whose folders are on another machine, or removed, by their names."""
        rows = read_table(self.output / TABLE)
        return {name: row for name, row in rows.items() if not (self.output / "runs" / name).exists()}

    def here(self, runs: Sequence[PlannedRun]) -> list[PlannedRun]:
        """Those of the runs that are not finished elsewhere."""
        elsewhere = self.elsewhere()
        return [run for run in runs if run.folder.name not in elsewhere]


def read_table(file: Path) -> dict[str, dict[str, str]]:
    """The rows of a runs.csv by the names of the runs; none if there is no such file."""
    if not file.exists():
        return {}
    with file.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    for row in rows:
        if None in row or None in row.values() or "run" not in row:
            raise ConfigError(
                f"{file} is damaged: its line of {row.get('run')} has not as many cells as the first"
            )
    return {row["run"]: row for row in rows}


def own_problem(names: Sequence[str], known: int | None, classes: int | None, **settings: Any) -> Problem:
    """A problem with images of the user's own: all of their classes, and half of them known, by default."""
    classes = len(names) if classes is None else classes
    known = classes // 2 if known is None else known
    if not 1 <= known < classes <= len(names):
        raise ConfigError(
            f"{known} known of {classes} classes cannot be drawn from {len(names)} class folders: there must "
            "be one novel class at least"
        )
    diagnose = {"diagnose": Diagnosis(every=300)}
    return Problem(known, classes, {**_OF_FOLDER, **settings}, diagnose)


def drawn_split(names: Sequence[str], known: int, classes: int, replicate: int) -> dict[str, Any]:
    """The content of a split file: the classes of a replicate, the known ones, and the draw of labels.

    With the same number of classes, fewer known ones are some of more known ones.

    >>> drawn_split("abcdef", known=1, classes=3, replicate=0)["known_classes"]
    ['e']
    >>> drawn_split("abcdef", known=2, classes=3, replicate=0)["known_classes"]
    ['e', 'd']
    """
    import numpy as np  # the list of options does not wait for it

    order = np.random.default_rng([replicate, 27]).permutation(len(names))[:classes]
    drawn = [names[i] for i in order]
    return {
        "known_classes": drawn[:known],
        "novel_classes": sorted(drawn[known:]),
        "labelled_fraction": 0.5,
        "labelled_draw": replicate,
    }


def begin(plan: Plan, names: Sequence[str]) -> None:
    """Write the design and the splits; a folder with another design is refused.

    `names`: those of all classes of the data set.
    """
    file = plan.output / DESIGN
    design = json.loads(json.dumps(plan.design))
    if file.exists():
        before = json.loads(file.read_text(encoding="utf-8"))
        if before != design:
            raise ConfigError(
                f"{plan.output} holds runs of another design, which is fixed when it begins: leave the "
                "options as they were, or choose a different --output"
            )
    elif (plan.output / TABLE).exists():
        raise ConfigError(
            f"{plan.output} has the {TABLE} of earlier runs without their {DESIGN}, so nobody can tell "
            f"whether they belong to these options: copy their {DESIGN} too"
        )
    else:
        plan.output.mkdir(parents=True, exist_ok=True)
        atomic_write(file, json.dumps(design, indent=1) + "\n")
    (plan.output / "splits").mkdir(exist_ok=True)
    for problem in plan.problems:
        for replicate in range(max(arm.replicates for arm in plan.arms)):
            split = plan.split_file(problem, replicate)
            if not split.exists():
                drawn = drawn_split(names, problem.known, problem.classes, replicate)
                atomic_write(split, json.dumps(drawn, indent=1, ensure_ascii=False) + "\n")
