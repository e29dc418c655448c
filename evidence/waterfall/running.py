"""Train the runs that are left, in the order of the plan."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from eagc_ops.evidence.jobs import Job, run_job, run_jobs, unfinished
from eagc_ops.evidence.sets import left_of
from eagc_ops.evidence.slurm import Slurm, run_on_slurm
from eagc_ops.evidence.waterfall.page import write_page
from eagc_ops.evidence.waterfall.plan import Plan, PlannedRun
from eagc_ops.training.engine.run_folder import EPOCHS, scores_text

__all__ = ["train_runs"]


def train_runs(
    plan: Plan,
    now: Sequence[PlannedRun],
    at_a_time: int,
    say: Callable[[str], object],
    slurm: Slurm | None = None,
) -> int:
    """Train those of the runs `now` that are not finished; the page is written anew after each.

    The splits of the plan must be written. With `at_a_time` 0 nothing is trained. `slurm`: each run is one
    of its jobs. Returns the number of runs that failed; the same command tries them again.
    """
    torch.set_num_threads(1)  # as in every process of `run_jobs`
    # A run checks its data and weights against its own record when it is resumed. Reference models that runs
    # share are made by the first that needs one; the others wait for it.
    here = plan.here(now)
    left = unfinished([Job(run.config, run.folder, {}) for run in here]) if slurm is None else left_of(here)
    where = "none now" if at_a_time == 0 else "by Slurm" if slurm is not None else f"{at_a_time} at a time"
    say(f"{len(now)} runs, {len(now) - len(left)} of them finished before; {where}")
    failed, started = 0, time.perf_counter()
    write_page(plan)
    if at_a_time == 0 or not left:
        return 0
    ended = run_jobs(left, at_a_time, run_job) if slurm is None else run_on_slurm(left, slurm, run_job, say)
    for done, (job, result) in enumerate(ended, 1):
        place = f"   {done:3} of {len(left)}: {job.folder.name}"
        after = f"after {time.perf_counter() - started:.0f} s"
        if isinstance(result, Exception):
            failed += 1
            say(f"{place} FAILED: {type(result).__name__}: {result}")
        else:
            say(f"{place}  {EPOCHS['last']}: {scores_text(result['last'], 1)}  {after}")
            write_page(plan)
    return failed
