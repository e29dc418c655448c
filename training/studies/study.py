"""The study: when does EAGC help? Its question, outcome and test, written down before its runs, and the runs.

The data are `glyphs`: characters, of which more or fewer are known. Every regime and recipe is trained with
five arms over the same seeds. All arms of a seed share the start (the reference model), the data and the
draws, so that differences to the baseline are those of the operator alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from eagc_ops.files import atomic_write
from eagc_ops.training.config import Config, ConfigError, Diagnosis, resolve
from eagc_ops.training.engine.preconditions import check_run
from eagc_ops.training.paper.planning import duration, epochs_done, seconds_per_step
from eagc_ops.training.paper.tables import steps_per_epoch

__all__ = [
    "ARMS",
    "BASELINE",
    "FULL",
    "LEVEL",
    "METHOD",
    "NULL",
    "OUTCOME",
    "RECIPES",
    "REGIMES",
    "Cell",
    "Regime",
    "Study",
    "StudyRun",
    "begin_study",
    "check_study",
    "smallest_p",
    "study_plan",
]

METHOD = "simgcd"
DESIGN = "study.json"
LEVEL = 0.05  # of the corrected p-value
BASELINE, NULL, FULL = "baseline", "null", "EAGC"
ARMS: dict[str, dict[str, Any]] = {  # arm: the settings in which it differs from the others
    BASELINE: {"eagc": False},
    NULL: {"lambda_a": 1e-4, "lambda_p": 1e-4},  # the operator is there and changes next to nothing
    "AGA": {"lambda_p": 0.0},
    "EEP": {"lambda_a": 0.0},
    FULL: {},
}
RECIPES: dict[str, dict[str, Any]] = {  # preset: the settings on top of it
    "paper": {"warm_start": True},
    "release": {},  # it has the warm start
}
OUTCOME = (
    "**Question.** For how many known classes does EAGC raise the accuracy of SimGCD, against the same run "
    "without the operator?",
    "**Outcome.** All, the accuracy on all unlabelled images, in percent, at the last epoch. The best epoch "
    "is chosen with the truth and decides nothing. The difference EAGC - baseline is taken seed by seed: "
    "both runs start from the same reference model and see the same draws.",
    "**Test.** For every regime and recipe, a two-sided sign-flip permutation test of the mean difference "
    "over the seeds; the p-values are corrected by Holm's method for the number of planned regimes and "
    "recipes. The interval is a 95 % percentile bootstrap of the mean.",
    "**Noise floor.** Null runs have the operator with both strengths 1e-4, which changes little but "
    "roundings. The floor of a regime and recipe is the largest |null - baseline| over its seeds.",
    "**Decision.** A gain is shown if the corrected p-value is below 0.05 and the mean difference is above "
    "the floor. A loss is shown likewise. Otherwise nothing is shown.",
    "**Beside it**, without a decision: AGA alone and EEP alone, Old and New, GDC, SOC, and the AUC of the "
    "probe.",
    "**Nothing is dropped.** All planned runs are listed, also those that failed or are not finished. A "
    "regime and recipe is evaluated only when all of its runs are finished. The number of seeds and of "
    "epochs is fixed when the study begins.",
)


@dataclass(frozen=True)
class Regime:
    """A problem, and the number of seeds on it."""

    known: int
    classes: int
    seeds: int = 10
    settings: Mapping[str, Any] = field(default_factory=dict, compare=False)  # that make the problem

    @property
    def key(self) -> str:
        return f"{self.known}of{self.classes}"

    def __str__(self) -> str:
        return f"{self.known} known of {self.classes} classes"


def _glyphs(known: int, classes: int, seeds: int = 10) -> Regime:
    settings = {"dataset": "glyphs", "glyphs": {"known": known, "classes": classes}}
    return Regime(known, classes, seeds, settings)


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


class Cell(NamedTuple):
    """The unit that is evaluated: a regime under a recipe."""

    regime: Regime
    recipe: str

    def __str__(self) -> str:
        return f"{self.regime}, recipe {self.recipe}"


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

    It holds `study.json` (what was fixed at the beginning), `runs/`, `trunk/`, `features/`, `probes/`, and
    `evidence.md` with its `figures/`.
    """

    output: Path
    regimes: Sequence[Regime] = tuple(REGIMES.values())
    recipes: Sequence[str] = tuple(RECIPES)
    settings: Mapping[str, Any] = field(default_factory=dict)  # of every run: epochs
    machine: Mapping[str, Any] = field(default_factory=dict)  # settings that change no number

    @property
    def cells(self) -> list[Cell]:
        return [Cell(regime, recipe) for regime in self.regimes for recipe in self.recipes]

    @property
    def design(self) -> dict[str, Any]:
        """What must not change once runs have been seen."""
        regimes = [[regime.known, regime.classes, regime.seeds] for regime in self.regimes]
        return {"regimes": regimes, "recipes": list(self.recipes), "settings": dict(self.settings)}

    def probe_folder(self, regime: Regime) -> Path:
        return self.output / "probes" / regime.key

    def runs(self) -> list[StudyRun]:
        """All runs, regime by regime. The arms of a seed stand together: the first pairs come early."""
        return [
            self._run(Cell(regime, recipe), arm, seed)
            for regime in self.regimes
            for seed in range(regime.seeds)
            for recipe in self.recipes
            for arm in ARMS
        ]

    def _run(self, cell: Cell, arm: str, seed: int) -> StudyRun:
        regime, recipe = cell
        switches = {**regime.settings, **RECIPES[recipe], **ARMS[arm], **self.settings}
        machine = {
            "device": "cpu",
            "trunk_cache": str(self.output / "trunk" / regime.key),
            "diagnose": Diagnosis(every=50),
            **self.machine,
        }
        config = resolve(METHOD, preset=recipe, seed=seed, **switches, **machine)
        folder = self.output / "runs" / f"{regime.key}-{recipe}-{arm}-seed{seed}"
        return StudyRun(cell, arm, seed, config, folder)


def smallest_p(seeds: int) -> float:
    """The smallest p-value of a two-sided sign-flip test, before any correction.

    >>> smallest_p(5)
    0.0625
    """
    return min(1.0, 2 / 2**seeds)


def check_study(study: Study) -> None:
    """Check the settings and the places of all runs, and that the study is the one of its folder."""
    for run in study.runs():
        check_run(run.config)
    file = study.output / DESIGN
    if file.exists():
        try:
            design = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ConfigError(
                f"{file} is damaged ({error}): restore a copy, or choose a different --output"
            ) from error
        if design != study.design:
            raise ConfigError(
                f"{study.output} holds a study with other seeds or epochs, which are fixed when it begins: "
                "leave the options as they were, or choose a different --output"
            )


def begin_study(study: Study) -> None:
    """Fix the design of a study in its folder."""
    study.output.mkdir(parents=True, exist_ok=True)
    if not (study.output / DESIGN).exists():
        atomic_write(study.output / DESIGN, json.dumps(study.design, indent=1) + "\n")


def study_plan(study: Study) -> str:
    """The runs of every regime and recipe, how many are finished, and the time of the others.

    A time is that of steps of finished runs of the same regime and recipe, or, if it has none, of all
    finished runs.
    """
    runs = study.runs()
    left = {run.folder: epochs_done(run.folder) for run in runs}
    finished = [run for run in runs if left[run.folder] is None]
    general = seconds_per_step(run.folder for run in finished)
    lines, total = [], 0.0
    for cell in study.cells:
        own = [run for run in runs if run.cell == cell]
        open_runs = [run for run in own if left[run.folder] is not None]
        steps = sum((run.config.epochs - left[run.folder]) * steps_per_epoch(run.config) for run in open_runs)
        each = seconds_per_step(run.folder for run in own if left[run.folder] is None) or general
        done = len(own) - len(open_runs)
        count = f"{len(ARMS)} arms x {cell.regime.seeds} seeds = {len(own)} runs, {done} finished"
        text = f"  {cell!s:42} {count}"
        if open_runs:
            time = f"about {duration([steps * each])}" if each else "no time: the first run gives it"
            text += f"; left: {steps:,} steps, {time}"
            total += steps * (each or 0.0)
        lines.append(text)
    more = len(runs) - len(finished)
    text = f"  {len(runs)} runs, {len(finished)} finished"
    if more:
        time = f"about {duration([total])} for {more} runs, one at a time" if general else "no time yet"
        text += f"; left: {time} (steps with their diagnoses: reference models and evaluations come on top)"
    lines.append(text)
    for seeds in sorted({cell.regime.seeds for cell in study.cells}):
        least = smallest_p(seeds)
        too_few = ": too few to show anything" if least >= LEVEL else ""
        lines.append(f"  with {seeds} seeds, p cannot be below {least:.2g}{too_few}")
    return "\n".join(lines)
