"""Parameter groups and the cosine schedule, which the student and the reference model share."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

__all__ = ["cosine", "decay_groups", "sgd"]


def decay_groups(parameters: Iterable[nn.Parameter], lr: float, weight_decay: float) -> list[dict[str, Any]]:
    """Two parameter groups: weight decay on tensors with 2 or more dimensions, none on biases and norms.

    Frozen parameters and empty groups are left out.
    """
    trained = [p for p in parameters if p.requires_grad]
    decayed, exempt = [p for p in trained if p.ndim >= 2], [p for p in trained if p.ndim < 2]
    groups = [
        {"params": decayed, "lr": lr, "initial_lr": lr, "weight_decay": weight_decay},
        {"params": exempt, "lr": lr, "initial_lr": lr, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def sgd(groups: list[dict[str, Any]], *, momentum: float, weight_decay: float = 0.0) -> torch.optim.SGD:
    """SGD over parameter groups; on a GPU one kernel updates the tensors of a group, instead of three."""
    fused = all(parameter.is_cuda for group in groups for parameter in group["params"])
    return torch.optim.SGD(
        groups, momentum=momentum, weight_decay=weight_decay, fused=True if fused else None
    )


def cosine(epoch: int, epochs: int, initial: float, floor: float) -> float:
    """floor + (initial - floor)(1 + cos(pi e / T)) / 2: a closed form, so there is no state to save.

    >>> [round(cosine(epoch, 4, 1.0, 0.0), 3) for epoch in range(5)]
    [1.0, 0.854, 0.5, 0.146, 0.0]
    """
    return floor + (initial - floor) * (1 + math.cos(math.pi * epoch / epochs)) / 2
