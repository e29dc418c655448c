"""A set of runs, trained by Slurm: one job for each, through submitit, which is imported on use.

A job that Slurm preempts, or whose time is over, saves its run, and Slurm starts it again; one whose node is
lost goes on from its last checkpoint. Which job has which run stands in `jobs.json`, beside the logs,
so that the same command finds the jobs of before.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from eagc_ops.app.console import plain_warnings
from eagc_ops.app.files import atomic_write
from eagc_ops.evidence.jobs import Job
from eagc_ops.training.config import ConfigError

__all__ = ["Slurm", "SlurmJobError", "run_on_slurm", "submissions"]

LOOK = 15.0  # seconds between two looks at the folders and the queue
_MOST_TIMES = 1000  # that a run may need more than the time of a job
_SAVING = 90  # seconds before the end of its time in which a job is told


class SlurmJobError(RuntimeError):
    """A job ended without its run being complete."""


class Slurm(NamedTuple):
    """What every job asks for."""

    folder: Path  # of the logs, on a file system that all nodes share
    partition: str | None = None
    minutes: int = 240
    gpus: int = 1  # of a run; its processes, if there are more
    array: int = 1000  # jobs in one array; Slurm's own limit is 1001 unless the cluster has another
    at_a_time: int | None = None  # of an array
    more: Mapping[str, str] = {}  # options of sbatch

    def check(self) -> None:
        """Refuse a machine that cannot submit jobs."""
        _executor(self)
        _queue_or_error()

    def __str__(self) -> str:
        """As options of sbatch.

        >>> str(Slurm(Path("logs"), "long", minutes=60, more={"account": "birds"}))
        'sbatch --time=60 --ntasks-per-node=1 --partition=long --gpus-per-node=1 --requeue --account=birds'
        """
        asked = self.parameters()
        asked |= asked.pop("additional_parameters")
        own = ("job_name", "array_parallelism", "signal_delay_s")  # of submitit, or the same for all
        flags = [
            f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}")
            for name, value in asked.items()
            if name not in own
        ]
        return shlex.join(["sbatch", *flags])

    def parameters(self) -> dict[str, Any]:
        """Those of submitit."""
        parameters: dict[str, Any] = {
            "job_name": "eagc",
            "time": self.minutes,
            "ntasks_per_node": max(self.gpus, 1),
            "array_parallelism": self.at_a_time or self.array,
            "signal_delay_s": min(_SAVING, 20 * self.minutes),
            # A node that is lost, or taken away, costs no run, whatever the cluster's default is.
            "additional_parameters": {"requeue": True, **self.more},
        }
        if self.partition is not None:
            parameters["partition"] = self.partition
        if self.gpus:
            parameters["gpus_per_node"] = self.gpus
        return parameters


class Submission(NamedTuple):
    """An array of jobs, to be started when those of `after` have ended."""

    jobs: list[Job]
    after: tuple[Path, ...]  # folders of other jobs


def submissions(jobs: Sequence[Job], array: int) -> list[Submission]:
    """The arrays of a set of jobs, in an order in which those that are waited for come first."""
    folders = {job.folder for job in jobs}
    groups: dict[tuple[Path, ...], list[Job]] = {}
    for job in jobs:
        groups.setdefault(tuple(sorted(folders.intersection(job.after))), []).append(job)
    arrays = [
        Submission(own[i : i + array], after)
        for after, own in groups.items()
        for i in range(0, len(own), array)
    ]
    ordered: list[Submission] = []
    while arrays:
        open_folders = {job.folder for one in arrays for job in one.jobs}
        ready = [one for one in arrays if open_folders.isdisjoint(one.after)]
        ordered += ready
        arrays = [one for one in arrays if one not in ready]
    return ordered


def run_on_slurm(
    jobs: Sequence[Job], slurm: Slurm, run: Callable[[Job], dict[str, Any]], say: Callable[[str], object]
) -> Iterator[tuple[Job, dict[str, Any] | Exception]]:
    """Submit the jobs that are not with Slurm yet, and yield each with its result as it ends.

    A run that fails yields its exception. Ctrl-C ends this process only: the jobs stay with Slurm.
    `run` trains one job; other machines import it, so it must be a top-level function.
    """
    ids = _submit(jobs, slurm, run, say)
    waiting, missed = list(jobs), dict[Path, int]()
    try:
        while waiting:
            queue = _queue()
            for job in list(waiting):
                ended = _ended(job, slurm.folder, ids[job.folder], queue, missed)
                if ended is not None:
                    waiting.remove(job)
                    yield job, ended
            if waiting:
                time.sleep(LOOK)
    finally:
        if waiting:
            numbers = dict.fromkeys(ids[job.folder].partition("_")[0] for job in waiting)
            say(f"{len(waiting)} runs stay with Slurm; to end them: scancel {' '.join(numbers)}")


def _submit(
    jobs: Sequence[Job], slurm: Slurm, run: Callable[[Job], dict[str, Any]], say: Callable[[str], object]
) -> dict[Path, str]:
    """The ids of the jobs by their folders; those of before that are still with Slurm are kept."""
    executor = _executor(slurm)
    file, queue = slurm.folder / "jobs.json", _queue_or_error()
    before = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    ids = {job.folder: one for job in jobs if (one := before.get(job.folder.name)) in queue}
    if ids:
        say(f"{len(ids)} runs are with Slurm already")
    for own, after in submissions([job for job in jobs if job.folder not in ids], slurm.array):
        waits = [ids[folder] for folder in after]
        depends = {"dependency": f"afterany:{':'.join(waits)}"} if waits else {}
        executor.update_parameters(**{**slurm.parameters(), **depends})
        with executor.batch():
            submitted = [executor.submit(_Run(run), job) for job in own]
        ids |= {job.folder: one.job_id for job, one in zip(own, submitted, strict=True)}
        # At once: a command that is killed now does not submit them again.
        kept = {folder.name: one for folder, one in ids.items()}
        atomic_write(file, json.dumps({**before, **kept}, indent=1) + "\n")
        # submitit's executors keep parameters that are not given again.
        executor.parameters.pop("dependency", None)
        number = submitted[0].job_id.partition("_")[0]
        text = f", after {', '.join(waits)}" if waits else ""
        say(f"job {number}: {len(own)} runs{text}; logs in {slurm.folder}")
    return ids


def _executor(slurm: Slurm) -> Any:
    try:
        import submitit
    except ImportError as error:
        raise ConfigError("executor slurm needs submitit: pip install 'eagc-ops[slurm]'") from error
    try:
        return submitit.SlurmExecutor(slurm.folder, max_num_timeout=_MOST_TIMES)
    except RuntimeError as error:
        raise ConfigError(
            "executor slurm: this machine has no srun: type the command on one that submits to Slurm, or "
            "print a command for each run, with --commands"
        ) from error


class _Run:
    """What a job does. submitit calls `checkpoint` before it gives the job back to Slurm."""

    def __init__(self, run: Callable[[Job], dict[str, Any]]) -> None:
        self.run = run

    def __call__(self, job: Job) -> dict[str, Any]:
        import submitit

        torch.set_num_threads(1)  # as in every process of `run_jobs`
        several = submitit.JobEnvironment().num_tasks > 1
        if several:
            submitit.helpers.TorchDistributedEnvironment().export(set_cuda_visible_devices=False)
        try:
            with plain_warnings(job.folder.name):
                return self.run(job)
        finally:
            if several and torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()

    def checkpoint(self, job: Job) -> Any:
        import submitit

        return submitit.helpers.DelayedSubmission(self, job)


def _queue() -> set[str] | None:
    """The ids of this user's jobs that wait or run; None if Slurm does not answer."""
    try:
        words = ["squeue", "--me", "--noheader", "--array", "--format=%i"]
        asked = subprocess.run(words, capture_output=True, text=True, timeout=60)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return set(asked.stdout.split()) if asked.returncode == 0 else None


def _queue_or_error() -> set[str]:
    if (queue := _queue()) is None:
        raise ConfigError("executor slurm: squeue does not answer here: is Slurm's controller up?")
    return queue


def _ended(
    job: Job, logs: Path, number: str, queue: set[str] | None, missed: dict[Path, int]
) -> dict[str, Any] | Exception | None:
    """The result of a job, or why it has none; None while it waits or runs."""
    result = job.folder / "result.json"
    if result.exists():
        return json.loads(result.read_text(encoding="utf-8"))
    if queue is None or number in queue:
        missed.pop(job.folder, None)
        return None
    missed[job.folder] = missed.get(job.folder, 0) + 1
    if missed[job.folder] < 3:  # what another machine has written may take a while to be seen
        return None
    from submitit.core.utils import JobPaths, pickle_load

    paths, text = JobPaths(logs, job_id=number, task_id=0), "it was cancelled, or its node was lost"
    if paths.result_pickle.exists():
        text = str(pickle_load(paths.result_pickle)[1]).rstrip().rpartition("\n")[2]  # of a traceback
    return SlurmJobError(f"{text} (job {number}: {paths.stderr})")
