"""An order for a table: its runs, how many of them are finished, and the cost of the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagc_ops.app.places import writable_folder
from eagc_ops.evidence.paper.tables import (
    MINIATURES,
    TABLES,
    PaperTable,
    PlannedRun,
    configuration,
    plan,
    steps_per_epoch,
)
from eagc_ops.evidence.paper.values import A100_EPOCH
from eagc_ops.evidence.progress import duration, epochs_done, seconds_per_step
from eagc_ops.training.config import SPECS, Config, ConfigError, Diagnosis, resolve
from eagc_ops.training.config.backbones import BACKBONES
from eagc_ops.training.config.places import PUBLISHED_WHERE
from eagc_ops.training.engine.preconditions import check_run


@dataclass(frozen=True)
class Order:
    """A request to fill in one table on one data set.

    `output` holds `runs/`, shared by all tables, and a folder for every table.
    """

    name: str
    dataset: str
    output: Path
    preset: str = "release"  # of the rows with EAGC
    seeds: int = 3  # the seeds are 0 to seeds - 1
    trunk_cache: bool = False
    null: bool = False  # with null runs
    settings: Mapping[str, Any] = field(default_factory=dict)  # settings of every run: epochs
    places: Mapping[str, Any] = field(default_factory=dict)  # settings of the machine: root, weights, ...

    @property
    def table(self) -> PaperTable:
        return TABLES[self.name]

    @property
    def home(self) -> Path:
        """The table's folder."""
        return self.output / self.name

    def runs(self) -> list[PlannedRun]:
        machine, miniature = dict(self.places), MINIATURES.get(self.dataset)
        if miniature:
            machine = {**miniature.machine, **machine}
        if miniature and not BACKBONES[miniature.backbone].bundled:
            machine = {"weights": str(self.output / f"{self.dataset}.safetensors"), **machine}
        if miniature or self.trunk_cache:
            machine["trunk_cache"] = str(self.output / "trunk" / self.dataset)
        if self.table.steps:
            every = miniature.diagnose_every if miniature else 1
            machine["diagnose"] = Diagnosis(every=every, steps=self.table.steps)
        return plan(
            self.table,
            self.dataset,
            self.output,
            preset=self.preset,
            seeds=range(self.seeds),
            settings=self.settings,
            machine=machine,
            null=self.null,
        )


def check_order(order: Order) -> None:
    """Check everything that the options, the folders and the headers of files say about an order.

    The encoder of a miniature, the trunk cache and the runs that others start from are made later.
    """
    runs = order.runs()
    writable_folder("output", order.output)
    _check_needs(order.dataset, runs[0].config)
    miniature = MINIATURES.get(order.dataset)
    made_later = "random" if miniature and not BACKBONES[miniature.backbone].bundled else "pretrained"
    for run in runs:
        check_run(run.config.replace(weights=order.places.get("weights", made_later), trunk_cache=None))


def plan_text(order: Order) -> str:
    """The rows with their recipes, how many runs are finished, and the cost of the others."""
    planned = order.runs()
    runs = list({run.folder: run for run in planned}.values())  # rows may share runs
    epochs = {run.folder: epochs_done(run.folder) for run in runs}
    finished = sum(done is None for done in epochs.values())
    begun = sum(map(bool, epochs.values()))
    title = SPECS[order.dataset].title
    lines = [f"{title}: {len(runs)} runs, {finished} finished, {begun} begun"]
    for key, group in dict.fromkeys((run.row.key, run.group) for run in planned):
        own = [run for run in planned if (run.row.key, run.group) == (key, group)]
        done = sum(epochs[run.folder] is None for run in own)
        seeds = f"seeds {', '.join(str(run.seed) for run in own)}" + (f" ({done} finished)" if done else "")
        name = key if group.method is None else f"{key} ({group.title})"
        lines.append(f"  {name:28} {_recipe_text(order, own[0])}; {seeds}")
    left = [
        (run.config, (run.config.epochs - begun_at) * steps_per_epoch(run.config))
        for run in runs
        if (begun_at := epochs[run.folder]) is not None
    ]
    return "\n".join([*lines, *_cost(order, left)])


def _check_needs(dataset: str, config: Config) -> None:
    """Raise a ConfigError that names every option that is missing, and where its file is published."""
    spec, miniature = SPECS[dataset], MINIATURES.get(dataset)
    if miniature and config.backbone != miniature.backbone:
        raise ConfigError(
            f"{config.backbone} needs photographs, but {dataset} are small drawings: choose a different "
            "--dataset"
        )
    needs = []
    if not miniature and config.root is None:
        source = "; the small version of the Herbarium Challenge 2019, FGVC6"
        needs.append(f"--root (a folder with {spec.layout}{source if dataset == 'herbarium19' else ''})")
    if dataset in ("cub", "scars", "aircraft") and config.split_file is None:
        needs.append(f"--split-file ({spec.split_file}, {PUBLISHED_WHERE})")
    if dataset == "folder" and config.split_file is None:
        needs.append("--split-file (a .json or .yaml that names the known classes)")
    if needs:
        raise ConfigError(
            f"{spec.title} with {config.backbone} needs {', '.join(needs)}; --dry-run shows the plan without "
            "them"
        )


def _recipe_text(order: Order, run: PlannedRun) -> str:
    """The method, the preset, and the settings that the row changes."""
    recipe = configuration(order.table, run.row, run.group, order.preset, order.settings)
    plain = resolve(recipe.method, order.dataset, recipe.preset).to_json()
    changes = [f"{name}={value}" for name, value in recipe.to_json().items() if value != plain[name]]
    return ", ".join([recipe.method, f"preset {recipe.preset}", *changes])


def _cost(order: Order, left: Sequence[tuple[Config, int]]) -> list[str]:
    """Lines with the steps that are left, and their time if finished runs or the paper give that of a step.

    `left` has the configuration of each unfinished run, and its steps.
    """
    dataset, home, finished = order.dataset, order.output, order.output / "runs"
    if not SPECS[dataset].train:
        epochs = sum(config.epochs for config, _ in left)
        return [f"  left: {epochs:,} epochs; steps follow from the folder's number of images"]
    lines = [f"  left: {sum(steps for _, steps in left):,} optimizer steps in {len(left)} runs"]
    methods = dict.fromkeys(config.method for config, _ in left)
    measured = {
        method: seconds_per_step(file.parent for file in finished.glob(f"{dataset}-{method}-*/result.json"))
        for method in methods
    }
    here = [steps * each for config, steps in left if (each := measured[config.method])]
    if here:
        source = f"from the steps of finished runs in {home}"
        lines.append(f"  ESTIMATE {duration(here)} for {len(here)} runs, one at a time, {source}")
    paper = [
        steps * seconds / steps_per_epoch(config)
        for config, steps in left
        if config.method == "simgcd" and not measured["simgcd"]
        if (seconds := A100_EPOCH.get((dataset, config.eagc))) is not None
    ]
    if paper:
        source = "from the paper's epochs on one A100"
        lines.append(
            f"  ESTIMATE {duration(paper)} for the {len(paper)} runs of SimGCD, one at a time, {source}"
        )
    if rest := len(left) - len(here) - len(paper):
        reason = f"no run of their method is finished in {home}, and the paper gives no time"
        lines.append(f"  {rest} runs have no time estimate: {reason}")
    if here or paper:
        lines.append("  (training steps only: reference models, evaluations and diagnoses come on top)")
    return lines
