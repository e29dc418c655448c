"""A dataset made ready for Generalized Category Discovery: labelled part, unlabelled part, transforms."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from eagc_ops.training.data.catalog import SPECS, Images, read_images
from eagc_ops.training.data.splits import class_split, label_map, labelled_positions
from eagc_ops.training.data.transforms import digits_transforms, protocol_transforms


class ImageSubset(Dataset):
    """Some positions of `images`; an item is (PIL image, re-indexed label, uq_idx).

    `labels` and `uq_idx` are int64 tensors of all items, available without decoding an image.
    """

    def __init__(self, images: Images, positions: np.ndarray, labels: np.ndarray) -> None:
        self.images = images
        self.uq_idx = torch.from_numpy(positions)
        self.labels = torch.from_numpy(labels[images.targets[positions]])

    def __len__(self) -> int:
        return len(self.uq_idx)

    def __getitem__(self, i: int) -> tuple[Image.Image, int, int]:
        position = int(self.uq_idx[i])
        return self.images.image(position), int(self.labels[i]), position


class Merged(Dataset):
    """Labelled items, then unlabelled ones; an item is (PIL image, label, uq_idx, labelled: bool)."""

    def __init__(self, labelled: ImageSubset, unlabelled: ImageSubset) -> None:
        self.labelled, self.unlabelled = labelled, unlabelled

    def __len__(self) -> int:
        return len(self.labelled) + len(self.unlabelled)

    def __getitem__(self, j: int) -> tuple[Image.Image, int, int, bool]:
        first = len(self.labelled)
        return (*self.labelled[j], True) if j < first else (*self.unlabelled[j - first], False)


@dataclass(frozen=True)
class GCDData:
    """What a training run needs of a dataset. Labels below `known` are old classes, the `novel` others are new."""

    name: str
    known: int  # number of known classes
    novel: int  # number of novel classes
    labelled: ImageSubset
    unlabelled: ImageSubset
    train_transform: Callable[[Image.Image], Tensor]
    test_transform: Callable[[Image.Image], Tensor]
    image_size: int
    channels: int
    split_hash: (
        str  # sha256 over the positions of L (in their order) and U and over the known and novel class lists
    )
    notes: tuple[str, ...]  # which folder and which split were found

    @property
    def merged(self) -> Merged:
        return Merged(self.labelled, self.unlabelled)


def open_data(
    name: str,
    root: str | Path | None = None,
    *,
    split_file: str | Path | None = None,
    image_size: int | None = None,
) -> GCDData:
    """Open dataset `name` (one of `DATASETS`) under `root`; `image_size` defaults to 224 (digits: 16).

    `split_file` is the class split of CUB, Cars, Aircraft and `folder`: see `class_split`. No image is decoded here.

    >>> data = open_data("digits")
    >>> data.known, data.novel, len(data.labelled), len(data.unlabelled)
    (5, 5, 450, 1347)
    """
    digits = name == "digits"
    size = (16 if digits else 224) if image_size is None else image_size
    if size < 1:
        raise ValueError(f"image_size must be at least 1, got {image_size}")
    images = read_images(name, root)
    split = class_split(name, split_file, images.names)
    labelled, unlabelled = labelled_positions(images.targets, split, permuted=SPECS[name].permuted)
    labels = label_map(split)
    train, test = digits_transforms(size) if digits else protocol_transforms(size)
    digest = hashlib.sha256()
    for part in (labelled, unlabelled, split.known, split.novel):
        digest.update(len(part).to_bytes(8, "little") + np.asarray(part, "<i8").tobytes())
    return GCDData(
        name, len(split.known), len(split.novel), ImageSubset(images, labelled, labels), ImageSubset(images, unlabelled, labels),
        train, test, size, 1 if digits else 3, digest.hexdigest(), (*images.notes, *split.notes),
    )  # fmt: skip
