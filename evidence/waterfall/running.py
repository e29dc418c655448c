"""Train the runs that are left, in the order of the plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from eagc_ops.evidence.jobs import Job, unfinished
from eagc_ops.evidence.sets import left_of, trained
from eagc_ops.evidence.slurm import Slurm
from eagc_ops.evidence.waterfall.page import write_page
from eagc_ops.evidence.waterfall.plan import Plan, PlannedRun

__all__ = ["train_runs"]


def train_runs(
    plan: Plan,
    now: Sequence[PlannedRun],
    at_a_time: int,
    say: Callable[[str], None],
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
    failed = 0
    write_page(plan)
    for place, result in trained(left, at_a_time, say, slurm) if at_a_time else ():
        if isinstance(result, Exception):
            failed += 1
            say(f"{place} FAILED: {type(result).__name__}: {result}")
        else:
            write_page(plan)
    return failed
