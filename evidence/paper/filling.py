"""Fill in a table on one data set: check the options, train the runs that are left, record them."""

from __future__ import annotations

import datetime
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor
from pathlib import Path
from typing import Any, Protocol

import torch

from eagc_ops.app.console import is_for_the_user, one_line
from eagc_ops.app.environment import describe
from eagc_ops.evidence.jobs import Job, default_jobs, run_job, run_jobs, unfinished
from eagc_ops.evidence.paper.filled import record
from eagc_ops.evidence.paper.planning import Order, check_order
from eagc_ops.evidence.paper.tables import MINIATURES
from eagc_ops.evidence.slurm import Slurm, run_on_slurm
from eagc_ops.training.config import Config, ConfigError
from eagc_ops.training.data import SPECS, open_data
from eagc_ops.training.engine.experiment import Experiment
from eagc_ops.training.engine.pretraining import pretrained_encoder
from eagc_ops.training.engine.run_folder import EPOCHS, scores_text


class Run(Protocol):
    """What a planned run is to this file, of a table or of another set of runs."""

    @property
    def config(self) -> Config: ...
    @property
    def folder(self) -> Path: ...


def fill(
    order: Order,
    at_a_time: int | None,
    pretrain_epochs: int,
    say: Callable[[str], None],
    slurm: Slurm | None = None,
) -> int:
    """Train the runs that are left and record all runs of the order. Returns the number of runs that failed.

    `at_a_time`: runs at a time; None: one for each GPU, or on a CPU one for each core, up to 4; 0: none, and
    what is finished is recorded. `slurm`: each run is one of its jobs. `pretrain_epochs`: epochs of the
    small encoder that a miniature needs if the order names no weights.
    """
    runs = order.runs()
    check_order(order)
    torch.set_num_threads(1)  # as in every process of `run_jobs`
    if at_a_time != 0 and (encoder := missing_encoder(order)):
        _pretrain(order.dataset, encoder, pretrain_epochs, say)
    if at_a_time is None:
        at_a_time = default_jobs(runs[0].config.device)
    jobs = jobs_of(runs, facts=at_a_time > 0 and slurm is None)
    left = unfinished(jobs)
    before = len(jobs) - len(left)
    where = "none now" if at_a_time == 0 else "by Slurm" if slurm is not None else f"{at_a_time} at a time"
    say(
        f"{order.name} on {SPECS[order.dataset].title}: {len(jobs)} runs, {before} of them finished before; "
        f"{where}"
    )
    failed = train_jobs(left, at_a_time, say, slurm)
    record(
        order.home,
        order.dataset,
        {**conditions(), "preset": order.preset},
        ((run.row.key, run.group.title, run.folder) for run in runs),
    )
    return failed


def missing_encoder(order: Order) -> Path | None:
    """The file of the small encoder that a miniature needs first; None if there is no need."""
    weights = order.runs()[0].config.weights
    own = order.dataset in MINIATURES and "weights" not in order.places and weights is not None
    return Path(weights) if own else None


def left_of(runs: Sequence[Run]) -> list[Job]:
    """The jobs of the runs that are not finished; their data are not looked at."""
    return unfinished(jobs_of(runs, facts=False))


def train_jobs(
    jobs: Sequence[Job], at_a_time: int, say: Callable[[str], None], slurm: Slurm | None = None
) -> int:
    """Train the runs of the jobs, with a line for each. Returns the number of runs that failed.

    With `at_a_time` 0, none is trained.
    """
    if at_a_time == 0 or not jobs:
        return 0
    failed, started = 0, time.perf_counter()
    ended = run_jobs(jobs, at_a_time, run_job) if slurm is None else run_on_slurm(jobs, slurm, run_job, say)
    for done, (job, result) in enumerate(ended, 1):
        place = f"   {done:3} of {len(jobs)}: {job.folder.name}"
        if isinstance(result, Exception):
            failed += 1
            _show_failure(place, result)
        else:
            last = f"{EPOCHS['last']}: {scores_text(result['last'], 1)}"
            say(f"{place}  {last}  after {time.perf_counter() - started:.0f} s")
    return failed


def jobs_of(runs: Sequence[Run], facts: bool = True) -> list[Job]:
    """One job for each folder: rows may share runs. All runs have the same data.

    `facts`: look at the data and the encoder now, and build the trunk caches. Runs share trunk caches,
    reference models and subspaces. One job makes each of these, and the jobs that use it come after it.
    """
    of_blocks: dict[tuple, dict[str, Any]] = {}
    maker: dict[tuple, Path] = {}
    jobs: dict[Path, Job] = {}
    for run in runs:
        config, folder = run.config, run.folder
        blocks = (config.trainable_blocks, config.blocks_of_reference)
        if blocks not in of_blocks:
            of_blocks[blocks] = _facts(config) if facts else {}
        start = getattr(config, "init", None)
        after = {maker.setdefault(key, folder) for key in _shared(config)} | (
            {Path(start)} if start else set()
        )
        jobs.setdefault(folder, Job(config, folder, of_blocks[blocks], tuple(after - {folder})))
    return list(jobs.values())


def _facts(config: Config) -> dict[str, Any]:
    """The facts about data and encoder that run.json must have; this also builds the trunk cache."""
    facts = Experiment(config.replace(k=None)).facts
    return {"split_hash": facts.split_hash, "trunk": facts.trunk}


def _shared(config: Config) -> list[tuple]:
    """Keys of the reference model and of the subspace that the run uses."""
    if not (config.has_operator or config.warm_start):
        return []
    settings = config.to_json()
    reference_model = (
        config.seed,
        config.trainable_blocks,
        config.blocks_of_reference,
        *(value for name, value in settings.items() if name.startswith("reference_")),
    )
    if not config.has_operator:
        return [reference_model]
    return [
        reference_model,
        (*reference_model, config.subspace, config.pca_k, config.aperture, config.energy),
    ]


def _pretrain(dataset: str, file: Path, epochs: int, say: Callable[[str], None]) -> None:
    encoder = pretrained_encoder(file, open_data(dataset), epochs)
    say(f"{encoder}")
    if encoder.fault:
        raise ConfigError(f"{encoder.fault} (delete {encoder.file}, and raise --pretrain-epochs)")


def _show_failure(place: str, error: Exception) -> None:
    expected = isinstance(error, (ValueError, FloatingPointError, BrokenExecutor))
    if not expected and not is_for_the_user(error):
        traceback.print_exception(error)
    print(f"{place} FAILED: {one_line(error)}", file=sys.stderr, flush=True)


def conditions() -> dict[str, Any]:
    """Date, machine and commit, to be written beside numbers."""
    environment = describe()
    machine = environment["machine"]
    return {
        "date": datetime.date.today().isoformat(),
        "machine": ", ".join(machine["gpus"]) or f"{machine['cores']} cores of {machine['cpu']}",
        "commit": environment["commit"],
    }
