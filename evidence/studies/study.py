"""The runs of the studies; `questions` has what they ask and how it is decided.

The data are `glyphs`: characters, of which more or fewer are known. Every regime and recipe is trained with
several arms over the same seeds, by SimGCD, and one of them by the other methods too. All arms of a seed
share the start (the reference model), the data and the draws, so that differences to the baseline are those
of the operator alone. A second study asks again what the first one found without having asked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from eagc_ops.app.files import atomic_write
from eagc_ops.evidence.studies.questions import HELPS, Question
from eagc_ops.training.analysis.paired import smallest_p
from eagc_ops.training.config import NULL as NULL_RUN
from eagc_ops.training.config import Config, ConfigError, Diagnosis, Glyphs, config_class, resolve
from eagc_ops.training.engine.preconditions import check_run

__all__ = [
    "ARMS",
    "BASELINE",
    "CONFIRMED",
    "DESIGN",
    "FULL",
    "LEVEL",
    "METHOD",
    "NULL",
    "OTHERS",
    "RECIPES",
    "REGIMES",
    "SETTINGS",
    "Cell",
    "Regime",
    "Study",
    "StudyRun",
    "begin_study",
    "can_decide",
    "check_design",
    "check_study",
]

METHOD = "simgcd"
OTHERS: dict[str, dict[str, Any]] = {  # methods at the first regime and recipe: their settings
    "legogcd": {},
    "selex": {},
    # An epoch has 14 batches, an image 32 pixels: 20 and 30 of 224 are published. Every 70th batch would be
    # the first of an epoch, in which SPTNet trains its prompts and no block has a gradient to diagnose.
    "sptnet": {"phase_batches": 7, "pad_width": 4, "diagnose": Diagnosis(every=75)},
}
DESIGN = "study.json"
LEVEL = 0.05  # of the corrected p-value
BASELINE, NULL, FULL, WHITENED = "baseline", "null", "EAGC", "whitened EAGC"
ARMS: dict[str, dict[str, Any]] = {  # arm: the settings in which it differs from the others
    BASELINE: {"eagc": False},
    NULL: NULL_RUN,
    "AGA": {"lambda_p": 0.0},
    "EEP": {"lambda_a": 0.0},
    FULL: {},
    WHITENED: {"energy": "whitened"},
}
TESTED = (FULL, WHITENED)  # the arms that are compared with the baseline by a test
PAIRED = (BASELINE, NULL, FULL)  # the arms of other methods than SimGCD, and of the second study
RECIPES: dict[str, dict[str, Any]] = {  # preset: the settings on top of it
    "paper": {"warm_start": True},
    "release": {},  # it has the warm start
}
SETTINGS: dict[str, Any] = {  # of all runs, on top of the recipes
    "epochs": 40,  # a first run of 60 stood still from the 35th on
    "projector_width": 512,  # of 2,048 as published, the projector is three quarters of a step at D = 192
    "evaluate_every": 5,
}
MACHINE: dict[str, Any] = {"tensorboard_every": 0, "checkpoint_epochs": 20, "diagnose": Diagnosis(every=70)}


@dataclass(frozen=True)
class Regime:
    """A problem, and how SimGCD is trained on it: the seeds and the arms."""

    known: int
    classes: int
    images: int
    seeds: int = 10
    settings: Mapping[str, Any] = field(default_factory=dict, compare=False)  # that make the problem
    first_seed: int = 0
    arms: tuple[str, ...] = tuple(ARMS)

    @property
    def all_seeds(self) -> range:
        return range(self.first_seed, self.first_seed + self.seeds)

    @property
    def key(self) -> str:
        return f"{self.known}of{self.classes}"

    def __str__(self) -> str:
        return f"{self.known} known of {self.classes} classes"


def _glyphs(known: int, classes: int, seeds: int = 10, **more: int) -> Regime:
    settings = {"dataset": "glyphs", "glyphs": {"known": known, "classes": classes, **more}}
    return Regime(known, classes, classes * Glyphs().per_class, seeds, settings)


REGIMES = {  # by known classes; 10 of 60 comes first: it is that of the demo
    regime.known: regime
    for regime in (
        _glyphs(10, 60),
        _glyphs(5, 60),
        _glyphs(20, 60),
        _glyphs(50, 100, 5),
        _glyphs(100, 200, 5),
    )
}
CONFIRMED = tuple(  # other characters and other seeds; see `KEEPS`
    replace(_glyphs(known, 60, skip=60), first_seed=10, arms=PAIRED) for known in (10, 5)
)


class Cell(NamedTuple):
    """The unit that is evaluated: a regime under a recipe, by a method."""

    regime: Regime
    recipe: str
    method: str

    @property
    def arms(self) -> tuple[str, ...]:
        return self.regime.arms if self.method == METHOD else PAIRED

    @property
    def tested(self) -> tuple[str, ...]:
        """The arms that are compared with the baseline; a decision takes enough seeds."""
        return tuple(arm for arm in TESTED if arm in self.arms)

    @property
    def key(self) -> str:
        return f"{self.regime.key}-{self.recipe}" + ("" if self.method == METHOD else f"-{self.method}")

    def __str__(self) -> str:
        return f"{self.regime}, recipe {self.recipe}" + ("" if self.method == METHOD else f", {self.method}")


class StudyRun(NamedTuple):
    """One run of the study."""

    cell: Cell
    arm: str
    seed: int
    config: Config
    folder: Path


@dataclass(frozen=True)
class Study:
    """A study in the folder `output`.

    It holds `study.json` (what was fixed at the beginning), `runs/`, `trunk/`, `features/`, `probes/`,
    `energies/` (of finished runs), `evidence.md` with its `figures/`, the numbers of all runs in
    `evidence.csv` and `energies.csv`, and in `earlier/` the evidence that was taken over, if any.
    """

    output: Path
    regimes: Sequence[Regime] = tuple(REGIMES.values())
    recipes: Sequence[str] = tuple(RECIPES)
    others: Sequence[str] = tuple(OTHERS)  # methods at the first regime and recipe
    settings: Mapping[str, Any] = field(default_factory=lambda: SETTINGS)  # of every run
    machine: Mapping[str, Any] = field(default_factory=lambda: MACHINE)  # settings that change no number
    question: Question = HELPS

    @property
    def cells(self) -> list[Cell]:
        cells = [Cell(regime, recipe, METHOD) for regime in self.regimes for recipe in self.recipes]
        return cells + [cells[0]._replace(method=method) for method in self.others]

    @property
    def tested(self) -> list[tuple[Cell, str]]:
        """The comparisons for which the p-values are corrected: (cell, arm)."""
        enough = (cell for cell in self.cells if smallest_p(cell.regime.seeds) < LEVEL)
        return [(cell, arm) for cell in enough for arm in cell.tested]

    @property
    def design(self) -> dict[str, Any]:
        """What must not change once runs have been seen."""
        regimes = [[regime.known, regime.classes, regime.seeds, regime.settings] for regime in self.regimes]
        design = {
            "regimes": regimes,
            "recipes": list(self.recipes),
            "others": list(self.others),
            "settings": dict(self.settings),
        }
        if self.question != HELPS:  # the folders of the first study do not name theirs
            design["question"] = self.question.title
            design["seeds"] = [list(regime.all_seeds) for regime in self.regimes]
            design["arms"] = [list(regime.arms) for regime in self.regimes]
        return design

    @property
    def earlier(self) -> Path:
        return self.output / "earlier"

    def probe_folder(self, regime: Regime) -> Path:
        return self.output / "probes" / regime.key

    def late_file(self, run: StudyRun) -> Path:
        return self.output / "energies" / f"{run.folder.name}.json"

    def runs(self) -> list[StudyRun]:
        """All runs, cell by cell. The arms of a seed stand together: the first pairs come early."""
        return [
            self._run(cell, arm, seed)
            for cell in self.cells
            for seed in cell.regime.all_seeds
            for arm in cell.arms
        ]

    def starts(self, cell: Cell) -> list[StudyRun]:
        """The runs of another cell from which the runs of this one start; most cells have none."""
        if not _has_start(cell.method):
            return []
        of = cell._replace(method=METHOD)
        return [self._run(of, BASELINE, seed) for seed in cell.regime.all_seeds]

    def _run(self, cell: Cell, arm: str, seed: int) -> StudyRun:
        regime, recipe, method = cell
        switches = {
            **regime.settings,
            **RECIPES[recipe],
            **ARMS[arm],
            **self.settings,
        }
        machine = {"device": "cpu", **self.machine, **OTHERS.get(method, {})}
        if _has_start(method):  # SPTNet starts from SimGCD, and changes pixels
            machine["init"] = str(self._folder(cell._replace(method=METHOD), BASELINE, seed))
            switches.pop("warm_start", None)  # its start is the same run for all arms
        config = resolve(method, preset=recipe, seed=seed, **switches, **machine)
        if "init" not in machine:
            # SimGCD and LegoGCD train one block and share the tokens below it, SelEx trains two.
            blocks = config.tail_blocks
            name = regime.key if blocks == 1 else f"{regime.key}-{blocks}blocks"
            config = config.replace(trunk_cache=str(self.output / "trunk" / name))
        return StudyRun(cell, arm, seed, config, self._folder(cell, arm, seed))

    def _folder(self, cell: Cell, arm: str, seed: int) -> Path:
        return self.output / "runs" / f"{cell.key}-{arm.replace(' ', '-')}-seed{seed}"


def _has_start(method: str) -> bool:
    """Whether runs of the method start from a run of another one."""
    return "init" in config_class(method).model_fields


def can_decide(seeds: int, tests: int) -> bool:
    """Whether a p-value that is corrected for so many tests can reach the level at all.

    >>> can_decide(6, 1), can_decide(6, 2), can_decide(7, 2)
    (True, False, True)
    """
    return smallest_p(seeds) * max(tests, 1) < LEVEL


def check_study(study: Study) -> None:
    """Check the settings and the places of all runs, and that the study is the one of its folder."""
    for run in study.runs():
        check_run(run.config)
    if (study.output / DESIGN).exists():
        check_design(study, study.output, "leave the options as they were, or choose a different --output")


def check_design(study: Study, folder: Path, remedy: str) -> None:
    """Check that the study in `folder` is this one, by its study.json."""
    file = folder / DESIGN
    try:
        design = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(
            f"{file} is damaged ({error}): restore a copy, or choose a different folder"
        ) from error
    if design != study.design:
        raise ConfigError(
            f"{folder} holds a study with other data, seeds or epochs, which are fixed when it begins: "
            f"{remedy}"
        )


def begin_study(study: Study) -> None:
    """Fix the design of a study in its folder."""
    study.output.mkdir(parents=True, exist_ok=True)
    if not (study.output / DESIGN).exists():
        atomic_write(study.output / DESIGN, json.dumps(study.design, indent=1) + "\n")
