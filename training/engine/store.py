"""The store of reference models and subspaces, which runs share.

Their file names contain a fingerprint of all their inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from eagc_ops.app.files import fingerprint, made_once
from eagc_ops.encoder import AnchoredEncoder
from eagc_ops.subspace import ENERGY_APERTURE, RIDGE
from eagc_ops.training.config import Config
from eagc_ops.training.data import GCDData
from eagc_ops.training.engine.checkpoint import (
    CheckpointError,
    load_checkpoint,
    save_checkpoint,
    tensor_digest,
)
from eagc_ops.training.models.reference_model import MOMENTUM, TEMPERATURE

__all__ = ["reference_key", "stored", "subspace_key"]


def stored(store: Path, key: dict[str, Any], make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """The tensors in the store for `key`, which `make` computes if they are not there.

    Of several processes that need them one computes; the others wait for its file.
    """
    file = store / f"{key['kind']}-{fingerprint(key)[:16]}.safetensors"
    made_once(file, lambda: save_checkpoint(file, make(), {"key": key}))
    tensors, state = load_checkpoint(file)
    if state != {"key": key}:  # the name has only a part of the fingerprint
        raise CheckpointError(f"{file} does not hold the content that its name stands for; delete it")
    return tensors


def reference_key(
    encoder: AnchoredEncoder, config: Config, data: GCDData, inputs: dict[str, Any]
) -> dict[str, Any]:
    """Everything the reference model depends on. `inputs`: the origin of its pixels or tokens."""
    # Unusual settings are part of the key, and for folders their images are: two folders may be split alike.
    images = {"images": data.images.origin()} if data.name == "folder" else {}
    return {
        "kind": "reference-1",
        "split": data.split_hash,
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
        **config.changed_images,
        **images,
    }


def subspace_key(config: Config, reference: dict[str, Any]) -> dict[str, Any]:
    """Everything the known-class subspace depends on. `reference`: the key of its reference model."""
    size = {"pca_k": config.pca_k} if config.subspace == "pca" else {"aperture": config.aperture}
    key = {"kind": "subspace-1", "reference": reference, **size}
    if config.energy == "whitened":  # of all images, which the split in the reference model's key determines
        key["whitened"] = {"ridge": RIDGE, "aperture": ENERGY_APERTURE}
    return key
