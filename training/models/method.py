"""The interface between the student and a GCD method. The methods are in `training/methods`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from eagc_ops.training.config import Config
from eagc_ops.training.data.rows import Rows

__all__ = ["Loss", "StudentMethod"]


class Loss(NamedTuple):
    """L_GCD = alpha L_sup + beta L_unsup: both parts, already weighted, and unweighted terms for the log."""

    supervised: Tensor
    unsupervised: Tensor
    terms: dict[str, Tensor]


class StudentMethod(Protocol):
    """The part of `methods.base.Method` that a student uses."""

    config: Config

    def __call__(self, z: Tensor) -> tuple[Tensor, ...]:
        """The heads: (n, D) -> tensors of n rows."""

    def inputs(self, views: Sequence[Tensor], position: int | None = None) -> Tensor:
        """The encoder's input for the views of batch `position` (None: a test view)."""

    def coordinated(self, position: int) -> bool:
        """Whether EAGC acts on this batch of the epoch."""

    def loss(self, outputs: tuple[Tensor, ...], rows: Rows) -> Loss:
        """L_GCD of the rows of all processes."""

    def state_dict(self) -> dict[str, Tensor]: ...

    def load_state_dict(self, state: Mapping[str, Tensor]) -> Any: ...
