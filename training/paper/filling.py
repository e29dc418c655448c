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

from eagc_ops.console import is_for_the_user, one_line
from eagc_ops.environment import describe
from eagc_ops.training.config import Config, ConfigError
from eagc_ops.training.data import SPECS, open_data
from eagc_ops.training.engine.experiment import Experiment
from eagc_ops.training.engine.jobs import Job, default_jobs, run_jobs, unfinished
from eagc_ops.training.engine.pretraining import pretrained_encoder
from eagc_ops.training.paper.filled import record
from eagc_ops.training.paper.planning import Order, check_order
from eagc_ops.training.paper.tables import MINIATURES
from eagc_ops.training.runs import run_job
from eagc_ops.training.scores import EPOCHS, scores_text


class Run(Protocol):
    """What a planned run is to this file, of a table or of another set of runs."""

    @property
    def config(self) -> Config: ...
    @property
    def folder(self) -> Path: ...


def fill(order: Order, at_a_time: int | None, pretrain_epochs: int, say: Callable[[str], None]) -> int:
    """Train the runs that are left and record all runs of the order. Returns the number of runs that failed.

    `at_a_time`: runs at a time; None: one for each GPU, or on a CPU one for each core, up to 4.
    `pretrain_epochs`: epochs of the small encoder that a miniature needs if the order names no weights.
    """
    runs = order.runs()
    check_order(order)
    torch.set_num_threads(1)  # as in every process of `run_jobs`
    if order.dataset in MINIATURES and "weights" not in order.places and runs[0].config.weights is not None:
        _pretrain(order.dataset, Path(runs[0].config.weights), pretrain_epochs, say)
    jobs = jobs_of(runs)
    left, at_a_time = unfinished(jobs), at_a_time or default_jobs(runs[0].config.device)
    before = len(jobs) - len(left)
    say(
        f"{order.name} on {SPECS[order.dataset].title}: {len(jobs)} runs, {before} of them finished before; "
        f"{at_a_time} at a time"
    )
    failed = train_jobs(left, at_a_time, say)
    record(
        order.home,
        order.dataset,
        {**conditions(), "preset": order.preset},
        ((run.row.key, run.group.title, run.folder) for run in runs),
    )
    return failed


def train_jobs(jobs: Sequence[Job], at_a_time: int, say: Callable[[str], None]) -> int:
    """Train the runs of the jobs, with a line for each. Returns the number of runs that failed."""
    failed, started = 0, time.perf_counter()
    for done, (job, result) in enumerate(run_jobs(jobs, at_a_time, run_job), 1):
        place = f"   {done:3} of {len(jobs)}: {job.folder.name}"
        if isinstance(result, Exception):
            failed += 1
            _show_failure(place, result)
        else:
            last = f"{EPOCHS['last']}: {scores_text(result['last'], 1)}"
            say(f"{place}  {last}  after {time.perf_counter() - started:.0f} s")
    return failed


def jobs_of(runs: Sequence[Run]) -> list[Job]:
    """One job for each folder: rows may share runs. All runs have the same data.

    Runs share trunk caches, reference models and subspaces. One job makes each of these, and the jobs that
    use it come after it.
    """
    facts: dict[tuple, dict[str, Any]] = {}
    maker: dict[tuple, Path] = {}
    jobs: dict[Path, Job] = {}
    for run in runs:
        config, folder = run.config, run.folder
        blocks = (config.trainable_blocks, config.blocks_of_reference)
        if blocks not in facts:
            facts[blocks] = _facts(config)
        start = getattr(config, "init", None)
        after = {maker.setdefault(key, folder) for key in _shared(config)} | (
            {Path(start)} if start else set()
        )
        jobs.setdefault(folder, Job(config, folder, facts[blocks], tuple(after - {folder})))
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
