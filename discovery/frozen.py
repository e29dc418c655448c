"""Features of the images of a discovery, and the clustering of them that was kept: what an answer is made of.

Two records lie in the output folder: `Features` (one row of features for each image of images.json, computed
once) and `Clustering` (the metric, the centres and the settings of the answer). From both, and from some
corrections, another answer takes seconds and needs no encoder. This is how `eagc refine` uses them:

    kept = Clustering.read(folder)                    # of the answer that was edited
    features = Features.read(folder / kept.features)  # those it was made of
    listing = Listing.read(folder / IMAGES)           # paths, and the names of the known classes
    label = features.label.clone()                    # (M + N,): of labelled images; -1 of unlabelled ones
    label[len(features.labelled) + i] = category      # of unlabelled image i, which a person has put there
    answer = first_answer(features.rows, label, k, known, seed=kept.seed)

`known` counts every category that has a label, so a new category with corrected images comes right after the
known classes. The rows of `answer` are those of `features.rows`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from eagc_ops.discovery.places import ANSWER
from eagc_ops.metric import LabelMetric
from eagc_ops.training.engine.checkpoint import load_checkpoint, save_checkpoint

__all__ = ["FEATURES", "TRAINED_FEATURES", "Clustering", "Features"]

_PLACES = ("centres", "sampled", "shares")
# Files in the output folder
FEATURES, TRAINED_FEATURES = "features.safetensors", "trained-features.safetensors"


@dataclass(frozen=True)
class Features:
    """Features of all images under one encoder, float32 on the CPU, in the order of images.json."""

    labelled: Tensor  # (M, D), `Listing.training`
    held_out: Tensor  # (H, D), `Listing.held_out`
    unlabelled: Tensor  # (N, D), `Listing.unlabelled_images`
    labelled_class: Tensor  # (M,) int64
    held_out_class: Tensor  # (H,) int64
    encoder: str  # fingerprint of the encoder and of the images: the file of another one is not used

    @property
    def rows(self) -> Tensor:
        """(M + N, D): labelled, then unlabelled images. Held-out ones take no part in any fit."""
        return torch.cat([self.labelled, self.unlabelled])

    @property
    def label(self) -> Tensor:
        """(M + N,) int64: the class of a labelled row, -1 of an unlabelled one."""
        return torch.cat([self.labelled_class, torch.full((len(self.unlabelled),), -1)])

    def write(self, file: Path) -> None:
        tensors = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name != "encoder"
        }
        save_checkpoint(file, tensors, {"encoder": self.encoder})

    @classmethod
    def read(cls, file: Path) -> Features:
        """What `write` kept; a missing or damaged file is a `CheckpointError`."""
        tensors, state = load_checkpoint(file)
        return cls(**{**tensors, **state})


@dataclass(frozen=True)
class Clustering:
    """The answer that is kept: categories in a metric of the features, or those of a trained network.

    In the metric, an image has the category of the nearest centre (`refined`), or, where there are votes, the
    one of the votes of the points next to it.
    """

    kind: str  # first, trained, trained-metric or refined
    features: str  # file in the output folder: the features that it was made of
    known: int  # known classes
    k: int
    seed: int
    k_estimated: bool
    k_range: tuple[int, int] | None  # of the estimate; None if K was given, or if there is no estimate
    k_text: str  # how K was found
    # None: the heads of the trained network place images
    metric: LabelMetric | None = None
    centres: Tensor | None = None  # (K, d), unit norm, among the points of the metric
    sampled: Tensor | None = None  # (n, d), points of the metric that have voted; None: the centres decide
    shares: Tensor | None = None  # (n, K), of their votes

    def write(self, file: Path) -> None:
        fields = dict(vars(self))
        metric = fields.pop("metric")
        tensors = {} if metric is None else {"mean": metric.mean, "matrix": metric.matrix}
        tensors |= {name: x for name in _PLACES if (x := fields.pop(name)) is not None}
        save_checkpoint(file, tensors, fields)

    @classmethod
    def read(cls, folder: Path) -> Clustering:
        """The record in an output folder; a missing or damaged file is a `CheckpointError`."""
        tensors, fields = load_checkpoint(folder / ANSWER)
        fields["k_range"] = fields["k_range"] and tuple(fields["k_range"])
        fields |= {name: tensors[name] for name in _PLACES if name in tensors}
        if tensors:
            fields["metric"] = LabelMetric(tensors["mean"], tensors["matrix"])
        return cls(**fields)
