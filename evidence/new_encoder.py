"""New encoders of small images, without labels or with the labels of other classes: behind `eagc pretrain`.

The encoder of glyphs that comes with this package was made here.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from eagc_ops.app import environment
from eagc_ops.app.files import atomic_write
from eagc_ops.training.config import SPECS, ConfigError, Glyphs
from eagc_ops.training.config.schema import CHARACTERS
from eagc_ops.training.data import Images, read_images
from eagc_ops.training.data.glyphs import draw, other_characters
from eagc_ops.training.data.transforms import TRANSFORMS
from eagc_ops.training.engine.checkpoint import save_checkpoint
from eagc_ops.training.engine.pretraining import (
    EPOCHS,
    NEIGHBOURS,
    PRETRAINING,
    Objective,
    affine,
    pretrain,
    quality,
)
from eagc_ops.training.models.heads import Prototypes

__all__ = ["Order", "new_encoder"]

WITH_LABELS: dict[str, Any] = {
    "format": 1,
    "batch_size": 128,
    "lr": 1.2e-3,
    "weight_decay": 0.05,
    "temperature": 0.07,
}


class Order(NamedTuple):
    """An encoder to pretrain on all images of a data set."""

    dataset: str
    root: str | None = None
    labels: bool = False  # learn from labels of other classes: of characters that are no classes, of a folder
    backbone: str = "vit_glyphs"
    image_size: int | None = None  # None: the data set's own
    epochs: int = EPOCHS
    half: bool = False  # store half precision
    channels: int | None = None  # None: the data set's own


def new_encoder(file: Path, order: Order) -> dict[str, Any]:
    """Pretrain the encoder and write it to `file`; beside it, with the ending .json, how it was made.

    Returns that record, with the k-NN accuracy, measured by true labels. Glyphs with labels: the encoder sees
    the characters that resemble none of the classes, and k-NN is that of the classes.
    """
    spec = SPECS[order.dataset]
    size = spec.image_size if order.image_size is None else order.image_size
    images = read_images(order.dataset, order.root, channels=order.channels)
    _check_images(images, order)
    transform = TRANSFORMS[spec.transforms](size, spec.flip, images.channels)[1]
    tests = {f"{len(set(images.targets.tolist()))} classes": images}
    if order.dataset == "glyphs":
        every = Glyphs(classes=CHARACTERS)
        tests[f"{CHARACTERS} classes"] = read_images("glyphs", None, glyphs=every)
        images = _other_glyphs() if order.labels else images
    pixels = _pixels(images, transform, size)
    started = time.process_time()
    with_labels = partial(Classes, label=torch.from_numpy(images.targets))
    vit = pretrain(pixels, order.epochs, order.backbone, with_labels if order.labels else None)
    record: dict[str, Any] = {
        **order._replace(root=None)._asdict(),  # a path of this machine says nothing elsewhere
        "images": len(images),
        "learned from": "labels of other classes" if order.labels else "images without labels",
        "recipe": WITH_LABELS if order.labels else PRETRAINING,
        "cpu seconds": round(time.process_time() - started),
        "versions": environment.versions(),
    }
    if order.half:
        vit.half()
    tensors = {name: value.clone() for name, value in vit.state_dict().items()}
    vit.float()  # what is measured is what is stored
    record["neighbours"] = NEIGHBOURS
    record["k-NN"] = {
        name: quality(vit, _pixels(test, transform, size), torch.from_numpy(test.targets))
        for name, test in tests.items()
        if test.targets.max() > 0  # one class cannot be mistaken
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    save_checkpoint(file, tensors, {"pretraining": record})
    atomic_write(file.with_suffix(".json"), json.dumps(record, indent=2) + "\n")
    return record


OTHERS_PER_CLASS = 40  # images of every character that is no class


def _other_glyphs() -> Images:
    characters = other_characters()
    drawn = draw(characters, OTHERS_PER_CLASS, Glyphs().strength)
    targets = np.repeat(np.arange(len(characters)), OTHERS_PER_CLASS)
    return Images(drawn.reshape(-1, *drawn.shape[2:]), targets, tuple(characters))


def _check_images(images: Images, order: Order) -> None:
    classes = len(set(images.targets.tolist()))
    if len(images) <= NEIGHBOURS:
        raise ConfigError(
            f"root {order.root} has {len(images)} images: {NEIGHBOURS + 1} are needed at least, and some "
            "hundreds for a useful encoder",
            "root",
        )
    if order.labels and classes < 2:
        raise ConfigError(
            f"root {order.root} has one class, whose labels tell nothing apart: pretrain without labels, or "
            "on a folder of more classes",
            "root",
        )


def _pixels(images: Images, transform: Callable[[Image.Image], Tensor], size: int) -> Tensor:
    """All images under the test transform, (N, C, S, S) in memory: these are encoders for small images."""
    need, free = 4 * len(images) * images.channels * size**2, _free_memory()
    if need > free // 2:
        raise ConfigError(
            f"image_size={size}: {len(images):,} images need {need / 1e9:.1f} GB of memory, and "
            f"{free / 1e9:.1f} GB are free; choose a smaller one"
        )
    return torch.stack([transform(images.image(i)) for i in range(len(images))])


def _free_memory() -> float:
    """Bytes; infinity where the system does not say."""
    if not hasattr(os, "sysconf"):
        return math.inf
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class Classes(Objective):
    """With labels: tell classes apart (cosine classifier), under affine changes, other light and noise."""

    settings = WITH_LABELS

    def __init__(self, vit: Any, pixels: Tensor, label: Tensor) -> None:
        super().__init__()
        self.vit, self._pixels, self._label = vit, pixels, label
        self.head = Prototypes(vit.embed_dim, int(label.max()) + 1)

    def forward(self, index: Tensor) -> Tensor:
        images = relit(affine(self._pixels[index], fill="border"))
        return F.cross_entropy(self.head(self.vit(images)) / self.settings["temperature"], self._label[index])


def relit(images: Tensor) -> Tensor:
    """Images (N, C, H, W) of unit deviation, each with other contrast, other brightness and some noise."""

    def uniform(low: float, high: float) -> Tensor:
        return torch.empty(len(images), 1, 1, 1).uniform_(low, high)

    noise = torch.randn_like(images) * uniform(0, 0.2)
    return images * uniform(0.8, 1.2) + uniform(-0.4, 0.4) + noise
