"""Features of the pretrained encoder, computed once and kept in a file."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from eagc_ops.training.engine.checkpoint import tensor_digest
from eagc_ops.training.engine.experiment import Experiment
from eagc_ops.training.engine.store import stored
from eagc_ops.training.models.features import pretrained_features

__all__ = ["frozen_features"]


def frozen_features(
    experiment: Experiment, store: Path, *, unlabelled: bool = False, progress: bool = False
) -> tuple[Tensor, Tensor]:
    """(z, label or -1) of the labelled images, and of the unlabelled ones if asked for; on the CPU.

    z (N, D) float32 is that of the pretrained encoder under the test transform, before any training. `store`
    is the folder of the files. A file's name has a fingerprint of the weights and of the images.
    """
    data, encoder = experiment.data, experiment.student.encoder
    parts = [data.labelled, data.unlabelled] if unlabelled else [data.labelled]
    key = {
        "kind": "features-1",
        "dataset": data.name,
        "split": data.split_hash,
        "images": [part.images.origin(part.uq_idx.numpy()) for part in parts],
        "inputs": experiment.facts.inputs,
        "trunk": encoder.trunk_fingerprint(),
        "tail": tensor_digest(encoder.tail_state()),
        **experiment.config.changed_images,
    }

    def make() -> dict[str, Tensor]:
        images = sum(map(len, parts))
        z, label = pretrained_features(encoder, experiment.batches, images, progress, unlabelled=unlabelled)
        return {"z": z.cpu(), "label": label.cpu()}

    tensors = stored(store, key, make)
    return tensors["z"], tensors["label"]
