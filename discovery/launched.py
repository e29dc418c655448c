"""Several processes of one discovery, as torchrun and `accelerate launch` start them.

Each computes the features of some images, clusters their rows and trains on a part of every batch; process 0
lists, prints and writes. All must see the output folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import os
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor

from eagc_ops.training.analysis.first_answer import FirstAnswer, first_answer
from eagc_ops.training.analysis.processes import ALONE, Processes
from eagc_ops.training.config import Config
from eagc_ops.training.engine.experiment import device_of
from eagc_ops.training.engine.ranks import attended, watch

__all__ = ["launched", "part_of", "shared_first_answer"]

_TIMEOUT = datetime.timedelta(days=7)  # process 0 lists and writes while the others wait


@contextlib.contextmanager
def launched(config: Config) -> Iterator[Processes]:
    """The processes of the launcher, or just this process without one.

    They share a training with these settings and watch one another: if one ends early, the others end too.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield ALONE
        return
    ours = not dist.is_initialized()
    with attended():
        try:
            watch(Accelerator(cpu=device_of(config) == "cpu"))
            # Of its own: the group of the training may be one of GPUs, and its limit of time is minutes.
            group = dist.new_group(backend="gloo", timeout=_TIMEOUT)
            yield Processes(group)  # type: ignore[arg-type]  # every process is a member
        finally:
            if ours and dist.is_initialized():
                dist.destroy_process_group()
                AcceleratorState._reset_state(reset_partial_state=True)  # another discovery may follow


def part_of(items: Any, processes: Processes) -> Any:
    """This process's part of a sequence or tensor; the parts follow in the order of the ranks.

    >>> part_of("seven", ALONE)
    'seven'
    """
    first, end = (len(items) * (processes.rank + i) // processes.count for i in (0, 1))
    return items[first:end]


def shared_first_answer(
    rows: Tensor, label: Tensor, k: int, known: int, *, seed: int, processes: Processes
) -> FirstAnswer:
    """The first answer for all rows, in every process; each clusters its part of them."""
    if processes.count == 1:
        return first_answer(rows, label, k, known, seed=seed)
    found = first_answer(
        part_of(rows, processes), part_of(label, processes), k, known, seed=seed, processes=processes
    )
    return dataclasses.replace(
        found,
        assignment=processes.joined(found.assignment),
        probabilities=processes.joined(found.probabilities),
        points=processes.joined(found.points),
    )
