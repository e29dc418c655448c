"""The store of reference models and subspaces, which runs share.

Their file names contain a fingerprint of all their inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from eagc_ops.encoder import AnchoredEncoder
from eagc_ops.files import fingerprint
from eagc_ops.training.config import Config
from eagc_ops.training.engine.checkpoint import (
    CheckpointError,
    load_checkpoint,
    save_checkpoint,
    tensor_digest,
)
from eagc_ops.training.models.reference_model import MOMENTUM, TEMPERATURE

__all__ = ["reference_key", "stored", "subspace_key"]


def stored(
    store: Path, key: dict[str, Any], make: Callable[[], dict[str, Tensor]], write: bool = True
) -> dict[str, Tensor]:
    """The tensors that `make` computes for `key`, or those in the store. `write`: save new ones there."""
    file = store / f"{key['kind']}-{fingerprint(key)[:16]}.safetensors"
    if file.exists():
        tensors, state = load_checkpoint(file)
        if state != {"key": key}:  # the name has only a part of the fingerprint
            raise CheckpointError(f"{file} does not hold the content that its name stands for; delete it")
        return tensors
    tensors = make()
    if write:
        store.mkdir(parents=True, exist_ok=True)
        save_checkpoint(file, tensors, {"key": key})
    return tensors


def reference_key(
    encoder: AnchoredEncoder, config: Config, split_hash: str, inputs: dict[str, Any]
) -> dict[str, Any]:
    """Everything the reference model depends on. `inputs`: the origin of its pixels or tokens."""
    return {
        "kind": "reference-1",
        "split": split_hash,
        "inputs": inputs,
        "trunk": encoder.trunk_fingerprint(),
        "tail": tensor_digest(encoder.tail_state()),
        "cls_only": encoder.cls_only,
        "blocks": config.blocks_of_reference,
        "seed": config.seed,
        "epochs": config.reference_epochs,
        "batch_size": config.reference_batch_size,
        "lr": config.reference_lr,
        "weight_decay": config.reference_weight_decay,
        "momentum": MOMENTUM,
        "temperature": TEMPERATURE,
    }


def subspace_key(config: Config, reference: dict[str, Any]) -> dict[str, Any]:
    """Everything the known-class subspace depends on. `reference`: the key of its reference model."""
    size = {"pca_k": config.pca_k} if config.subspace == "pca" else {"aperture": config.aperture}
    return {"kind": "subspace-1", "reference": reference, **size}
