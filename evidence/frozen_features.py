"""Features of the pretrained encoder, computed once and kept in a file; and the probe made of them."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from eagc_ops.evidence.probe_text import PROBE_FILE, probe_of, write_probe
from eagc_ops.evidence.probing import Probe, probe
from eagc_ops.training.config import Config
from eagc_ops.training.engine.checkpoint import tensor_digest
from eagc_ops.training.engine.experiment import Experiment
from eagc_ops.training.engine.store import stored
from eagc_ops.training.models.features import pretrained_features

__all__ = ["frozen_features", "probe_once"]


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


def probe_once(folder: Path, config: Config, features: Path) -> Probe:
    """The probe in `folder`; without one, the labelled images of a run with this `config` are probed now.

    `features`: folder for features of the pretrained encoder.
    """
    found = probe_of([folder])
    if found is None:
        z, label = frozen_features(Experiment(config), features)
        found = probe(z, label, lambda_a=config.lambda_a, lambda_p=config.lambda_p, seed=config.seed)
        write_probe(folder / PROBE_FILE, found)
    return found
