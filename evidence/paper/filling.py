"""Fill in a table on one data set: check the options, train the runs that are left, record them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from eagc_ops.evidence.jobs import default_jobs, unfinished
from eagc_ops.evidence.paper.filled import record
from eagc_ops.evidence.paper.planning import Order, check_order
from eagc_ops.evidence.paper.tables import MINIATURES
from eagc_ops.evidence.sets import conditions, jobs_of, train_jobs
from eagc_ops.evidence.slurm import Slurm
from eagc_ops.training.config import ConfigError
from eagc_ops.training.data import SPECS, open_data
from eagc_ops.training.engine.pretraining import pretrained_encoder


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


def _pretrain(dataset: str, file: Path, epochs: int, say: Callable[[str], None]) -> None:
    encoder = pretrained_encoder(file, open_data(dataset), epochs)
    say(f"{encoder}")
    if encoder.fault:
        raise ConfigError(f"{encoder.fault} (delete {encoder.file}, and raise --pretrain-epochs)")
