"""What an answer is made of: the features of a discovery's images, and the clustering that was kept.

The output folder has two records: `Features` (a row per image of images.json, computed once) and `Clustering`
(the metric, the centres and the settings of the answer). With both and some corrections, another answer takes
seconds and needs no encoder. `eagc refine` uses them like this:

    kept = Clustering.read(folder)                    # of the edited answer
    features = Features.read(folder / kept.features)  # behind that answer
    listing = Listing.read(folder / IMAGES)           # paths, and the names of the known classes
    label = features.label.clone()                    # (M + N,): class of labelled images, -1 of unlabelled
    label[len(features.labelled) + i] = category      # a person has put unlabelled image i there
    answer = first_answer(features.rows, label, k, known, seed=kept.seed)

`known` counts every category with a label, so a new category with corrected images comes right after the
known classes. The rows of `answer` match `features.rows`.
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
    encoder: str  # fingerprint of encoder and images: files with another one are not used

    @property
    def rows(self) -> Tensor:
        """(M + N, D): labelled, then unlabelled images. Nothing is fitted to held-out ones."""
        return torch.cat([self.labelled, self.unlabelled])

    @property
    def label(self) -> Tensor:
        """(M + N,) int64: the class of a labelled row, -1 for an unlabelled row."""
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
        """Read what `write` wrote; a missing or damaged file is a `CheckpointError`."""
        tensors, state = load_checkpoint(file)
        return cls(**{**tensors, **state})


@dataclass(frozen=True)
class Clustering:
    """The kept answer: categories in a metric of the features, or a trained network's.

    In the metric, an image takes the category of the nearest centre (`refined`) or, if there are votes, the
    one its neighbours vote for.
    """

    kind: str  # first, trained, trained-metric or refined
    features: str  # file in the output folder: the features behind it
    known: int  # known classes
    k: int
    seed: int
    k_estimated: bool
    k_range: tuple[int, int] | None  # of the estimate; None if K was given, or if there is no estimate
    k_text: str  # where K comes from
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
