"""The trained run that a new run starts from, if its method asks for one (SPTNet starts from SimGCD)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from eagc_ops.training.config import ConfigError
from eagc_ops.training.engine.checkpoint import load_checkpoint, tensor_digest
from eagc_ops.training.engine.facts import RunFacts
from eagc_ops.training.engine.run_folder import RunFolder
from eagc_ops.training.methods import Method

__all__ = ["StartingPoint", "read_starting_point"]


class StartingPoint(NamedTuple):
    """Weights that a new run starts from."""

    weights: dict[str, Tensor]  # named as in `Student.state()`
    record: dict[str, Any]  # where they come from, for run.json


def read_starting_point(method: Method, facts: RunFacts) -> StartingPoint | None:
    """The start in the file or run folder `init`; None for a method that needs no trained run.

    One that does not fit the run is a `ConfigError`.
    """
    if method.needs_start is None:
        return None
    if method.config.init is None:
        raise ConfigError(f"init=None: {method.needs_start}")
    tensors, state = load_checkpoint(_checkpoint_of(method.config.init))
    recipe = state.get("identity", {})
    weights = method.starting_weights(tensors, recipe, facts.identity)
    record = {
        "method": recipe["method"],
        "eagc": recipe["eagc"],
        "sha256": tensor_digest(weights),
        "accuracy": state["last"],
    }
    return StartingPoint(weights, record)


def _checkpoint_of(init: str) -> Path:
    """The file `init`, or the checkpoint of the headline epoch of the complete run in the folder `init`."""
    path = Path(init)
    if not path.is_dir():
        return path
    folder = RunFolder.open(path)
    if folder.result() is None:
        raise ConfigError(
            f"init={init!r} is not a complete run: resume it first, or name one of its checkpoints"
        )
    return folder.best if folder.config.headline == "best" else folder.last
