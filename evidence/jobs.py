"""A set of runs, trained several at a time. Finished runs are skipped, interrupted ones continued."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import resource_tracker
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any, NamedTuple

import torch

from eagc_ops.app import interrupts
from eagc_ops.app.console import plain_warnings
from eagc_ops.training import runs
from eagc_ops.training.config import Config, ConfigError
from eagc_ops.training.engine.run_folder import RunFolder

__all__ = ["Job", "default_jobs", "run_job", "run_jobs", "unfinished"]

_TIDIED = "ignore:resource_tracker"  # a filter of warnings


class Job(NamedTuple):
    """A run and its folder."""

    config: Config
    folder: Path
    # The "trunk" and "split_hash" that a run in the folder must have: the config has only their paths
    facts: dict[str, Any]
    after: tuple[Path, ...] = ()  # folders of jobs, earlier in the list, that must be done first


def default_jobs(device: str = "auto") -> int:
    """Runs at a time: one per GPU; on a CPU one per core, up to 4."""
    return (len(_gpus()) if device == "auto" else 0) or min(os.cpu_count() or 1, 4)


def unfinished(jobs: Sequence[Job], remedy: str = "choose a different --output") -> list[Job]:
    """The jobs that are not complete; a folder with a different run is an error that ends with `remedy`."""
    return [job for job in jobs if not _finished(job, remedy)]


def run_job(job: Job) -> dict[str, Any]:
    """Train the run of a job, or continue it. Spawned processes can import this function."""
    config, folder = job.config, job.folder
    if (folder / "run.json").exists():
        return runs.resume(folder, **{name: getattr(config, name) for name in config.machine_settings()})
    return runs.train(config, folder)


def run_jobs(
    jobs: Sequence[Job], at_a_time: int, run: Callable[[Job], dict[str, Any]]
) -> Iterator[tuple[Job, dict[str, Any] | Exception]]:
    """Run the jobs in `at_a_time` processes (1: in this one), and yield each with its result as it ends.

    A run that fails yields its exception, and the others go on. Ctrl-C lets every run finish its step and
    save its checkpoint; no process outlives this one. On a machine with GPUs every process sees one
    of them. A warning is printed in one line with the name of its run. `run` trains one job; other processes
    import it, so it must be a top-level function.
    """
    if at_a_time == 1 or len(jobs) < 2:
        for job in jobs:
            try:
                with plain_warnings(job.folder.name):
                    result = run(job)
                yield job, result
            except Exception as error:
                yield job, error
        return
    # Spawned, because a forked child would inherit torch's threads in an unknown state.
    if hasattr(os, "fork"):  # Windows has no such process
        _start_tracker()
    context, gpus = multiprocessing.get_context("spawn"), _gpus()
    devices = context.SimpleQueue()
    for i in range(at_a_time if gpus else 0):
        devices.put(gpus[i % len(gpus)])
    waiting, running, open_folders = list(jobs), dict[Future, Job](), {job.folder for job in jobs}
    pool = ProcessPoolExecutor(at_a_time, context, _start_process, (devices if gpus else None,))
    ended = False
    try:
        while waiting or running:
            ready = [job for job in waiting if open_folders.isdisjoint(job.after)]
            # No more than there are processes: what the pool has taken, it cannot give back at Ctrl-C.
            for job in ready[: at_a_time - len(running)]:
                waiting.remove(job)
                try:
                    # Bars of several processes would overwrite one another. Read when tqdm is imported
                    with interrupts.unaware_children(), _environment("TQDM_DISABLE", "1"):
                        running[pool.submit(_run_until_told, run, job)] = job
                except BrokenProcessPool as error:
                    open_folders.discard(job.folder)
                    yield job, error
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                job = running.pop(future)
                open_folders.discard(job.folder)
                failure = future.exception()
                if failure is not None and not isinstance(failure, Exception):
                    raise failure
                yield job, failure or future.result()
        ended = True
    finally:
        _end(pool, at_once=not ended)


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """Processes that are started here have the environment variable."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _start_tracker() -> None:
    """Start the process that removes the semaphores of a killed pool, so that it does it without a warning.

    A pool is killed by a second Ctrl-C.
    """
    of_user = os.environ.get("PYTHONWARNINGS")
    with _environment("PYTHONWARNINGS", f"{of_user},{_TIDIED}" if of_user else _TIDIED):
        resource_tracker.ensure_running()


def _end(pool: ProcessPoolExecutor, at_once: bool) -> None:
    """Wait for the processes of the pool; `at_once` interrupts their runs."""
    children = multiprocessing.active_children() if at_once else []
    for child in children:
        child.terminate()
    try:
        pool.shutdown(cancel_futures=True)
    except KeyboardInterrupt:
        for child in children:
            child.kill()
        raise


def _finished(job: Job, remedy: str) -> bool:
    if not (job.folder / "run.json").exists():
        return False
    run = RunFolder.open(job.folder)
    same_facts = all(getattr(run.facts, name) == value for name, value in job.facts.items())
    if run.differences(job.config) or not same_facts:
        raise ConfigError(f"{job.folder} holds a run with different settings, data or weights: {remedy}")
    return run.result() is not None


def _gpus() -> list[str]:
    """The GPUs this process may use, as CUDA_VISIBLE_DEVICES names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(i) for i in range(torch.cuda.device_count())]
    return names[: torch.cuda.device_count()]


def _start_process(devices: SimpleQueue | None) -> None:
    # With one thread per process, small products lose no time to thread switching on busy cores, and the bits
    # do not depend on the number of cores.
    torch.set_num_threads(1)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    if devices is not None:
        # CUDA reads it on first use, which has not happened yet.
        os.environ["CUDA_VISIBLE_DEVICES"] = devices.get()


def _run_until_told(run: Callable[[Job], dict[str, Any]], job: Job) -> dict[str, Any]:
    """Run the job. The parent ends this process by SIGTERM, which a run treats like Ctrl-C."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with plain_warnings(job.folder.name):
            return run(job)
    finally:
        signal.signal(signal.SIGTERM, before)


def _die_with_parent() -> None:
    """A pool's process would wait for work for ever if its parent were killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None  # a pool's process has one
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)
