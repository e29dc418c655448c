"""A set of runs: which are left, training them here or by Slurm with a line for each, and their records."""

from __future__ import annotations

import datetime
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from pathlib import Path
from typing import Any, Protocol

from eagc_ops.app.console import is_for_the_user, one_line
from eagc_ops.app.environment import describe
from eagc_ops.evidence.jobs import Job, run_job, run_jobs, unfinished
from eagc_ops.evidence.slurm import Slurm, run_on_slurm
from eagc_ops.training.config import Config
from eagc_ops.training.engine.experiment import Experiment
from eagc_ops.training.engine.run_folder import EPOCHS, scores_text
from eagc_ops.training.report.runs import RunRecord, read_run

__all__ = ["Run", "conditions", "jobs_of", "left_of", "read_begun", "train_jobs", "trained"]


class Run(Protocol):
    """What a planned run of a table, a study or a waterfall is to this file."""

    @property
    def config(self) -> Config: ...
    @property
    def folder(self) -> Path: ...


def left_of(runs: Sequence[Run]) -> list[Job]:
    """The jobs of the runs that are not finished; their data are not looked at."""
    return unfinished(jobs_of(runs, facts=False))


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


def train_jobs(
    jobs: Sequence[Job], at_a_time: int, say: Callable[[str], None], slurm: Slurm | None = None
) -> int:
    """Train the runs of the jobs, with a line for each. Returns the number of runs that failed.

    With `at_a_time` 0, none is trained.
    """
    failed = 0
    for place, result in trained(jobs, at_a_time, say, slurm) if at_a_time else ():
        if isinstance(result, Exception):
            failed += 1
            _show_failure(place, result)
    return failed


def trained(
    jobs: Sequence[Job], at_a_time: int, say: Callable[[str], None], slurm: Slurm | None = None
) -> Iterator[tuple[str, dict[str, Any] | Exception]]:
    """Train the runs of the jobs, at least one at a time, and say a line for each that succeeds.

    Yields the beginning of its line, and the result of the run or why it has none.
    """
    started = time.perf_counter()
    ended = run_jobs(jobs, at_a_time, run_job) if slurm is None else run_on_slurm(jobs, slurm, run_job, say)
    for done, (job, result) in enumerate(ended if jobs else (), 1):
        place = f"   {done:3} of {len(jobs)}: {job.folder.name}"
        if not isinstance(result, Exception):
            last = f"{EPOCHS['last']}: {scores_text(result['last'], 1)}"
            say(f"{place}  {last}  after {time.perf_counter() - started:.0f} s")
        yield place, result


def read_begun(folder: Path) -> RunRecord | None:
    """The record of a run; None if it has not finished an epoch yet."""
    file = folder / "metrics.jsonl"
    begun = file.exists() and '"kind": "epoch"' in file.read_text(encoding="utf-8")
    return read_run(folder) if begun else None


def conditions() -> dict[str, Any]:
    """Date, machine and commit, to be written beside numbers."""
    environment = describe()
    machine = environment["machine"]
    return {
        "date": datetime.date.today().isoformat(),
        "machine": ", ".join(machine["gpus"]) or f"{machine['cores']} cores of {machine['cpu']}",
        "commit": environment["commit"],
    }


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


def _show_failure(place: str, error: Exception) -> None:
    expected = isinstance(error, (ValueError, FloatingPointError, BrokenExecutor))
    if not expected and not is_for_the_user(error):
        traceback.print_exception(error)
    print(f"{place} FAILED: {one_line(error)}", file=sys.stderr, flush=True)
