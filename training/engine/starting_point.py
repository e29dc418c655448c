"""The trained run that a new run starts from, if its method asks for one (SPTNet starts from SimGCD)."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from eagc_ops.training.engine.checkpoint import load_checkpoint, tensor_digest
from eagc_ops.training.engine.facts import RunFacts
from eagc_ops.training.engine.preconditions import starting_checkpoint
from eagc_ops.training.methods import Method

__all__ = ["StartingPoint", "read_starting_point"]


class StartingPoint(NamedTuple):
    """Weights that a new run starts from."""

    weights: dict[str, Tensor]  # named as in `Student.state()`
    record: dict[str, Any]  # where they come from, for run.json


def read_starting_point(method: Method, facts: RunFacts, any_trunk: bool = False) -> StartingPoint | None:
    """The start in the file or run folder `init`; None for a method that needs no trained run.

    One that does not fit the run is a `ConfigError`. `any_trunk`: the trunk is not compared, because the
    weights of this run do not exist yet.
    """
    if method.config.needs_start is None:
        return None
    tensors, state = load_checkpoint(starting_checkpoint(method.config))
    recipe = state.get("identity", {})
    identity = {**facts.identity, "trunk": recipe.get("trunk")} if any_trunk else facts.identity
    weights = method.starting_weights(tensors, recipe, identity)
    record = {
        "method": recipe["method"],
        "eagc": recipe["eagc"],
        "sha256": tensor_digest(weights),
        "accuracy": state["last"],
    }
    return StartingPoint(weights, record)
