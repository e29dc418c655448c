"""Encoders that are pretrained here, and their quality.

No published backbone fits a small data set, and random weights would make runs meaningless. `with_encoder`
gives a run the encoder of its data set. `eagc pretrain` makes others: `evidence/new_encoder.py`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from eagc_ops.app.files import made_once
from eagc_ops.training.config import SPECS, Config, ConfigError
from eagc_ops.training.config.backbones import BACKBONES
from eagc_ops.training.data import GCDData, open_data
from eagc_ops.training.engine.checkpoint import load_checkpoint, save_checkpoint
from eagc_ops.training.engine.experiment import Experiment, read_starting_point
from eagc_ops.training.methods.losses import info_nce
from eagc_ops.training.models.backbones import random_backbone
from eagc_ops.training.models.optimization import cosine

__all__ = [
    "EPOCHS",
    "Apart",
    "Objective",
    "PretrainedEncoder",
    "affine",
    "pretrain",
    "pretrained_encoder",
    "quality",
    "with_encoder",
]

EPOCHS = 10
MEASURED = 10_000  # images
NEIGHBOURS, NEEDED = 5, 0.9  # k, and the least k-NN accuracy of frozen features for meaningful runs
PRETRAINING: dict[str, Any] = {
    "format": 2,
    "batch_size": 64,
    "lr": 1e-3,
    "weight_decay": 0.05,
    "temperature": 0.2,
    "contrast": 0.2,
}


class PretrainedEncoder(NamedTuple):
    """Pretrained weights of a small ViT, and the quality of its features."""

    file: Path
    epochs: int
    seconds: float | None  # duration of pretraining; None: the file existed already
    accuracy: float  # k-NN, of the frozen features
    raw_accuracy: float  # k-NN, of the pixels

    def __str__(self) -> str:
        if self.seconds is None:
            how = "done before, used again"
        else:
            how = f"{self.epochs} epochs in {self.seconds:.0f} s"
        return (
            f"Pretraining without labels: {how}; {NEIGHBOURS}-NN accuracy of the frozen features "
            f"{self.accuracy:.1%} (raw pixels {self.raw_accuracy:.1%})"
        )

    @property
    def fault(self) -> str | None:
        """Why runs with this encoder would be meaningless; None if it is good enough."""
        if self.accuracy >= NEEDED:
            return None
        return (
            f"the encoder is too weak for meaningful runs, {NEIGHBOURS}-NN accuracy "
            f"{self.accuracy:.1%} < {NEEDED:.0%}; pretrain longer"
        )


def with_encoder(config: Config, folder: Path, say: Callable[[object], None] = print) -> Config:
    """The configuration with the pretrained encoder in `folder` as its weights; it is pretrained if needed.

    A configuration whose data set has no such encoder, one that comes with this package, or a different
    backbone is returned unchanged.
    """
    if config.backbone != config.spec.own_encoder or BACKBONES[config.backbone].bundled:
        return config
    file = encoder_file(folder, config.dataset, config.image_size)
    if not file.exists():
        # Wrong settings must fail now, not after a minute of pretraining. The trunk cache would be that of
        # random weights, and K is estimated from the features of the encoder.
        experiment = Experiment(
            config.replace(k=None if config.k == "estimate" else config.k, trunk_cache=None)
        )
        read_starting_point(experiment.student.method, experiment.facts, any_trunk=True)
    data = open_data(config.dataset, config.root, image_size=config.image_size)
    encoder = pretrained_encoder(file, data, EPOCHS)
    say(encoder)
    return config.replace(weights=str(encoder.file))


def encoder_file(folder: Path, dataset: str, image_size: int | None = None) -> Path:
    """The file of a data set's encoder; its name gives an image size that is not the usual one.

    >>> encoder_file(Path("runs"), "digits").name, encoder_file(Path("runs"), "digits", 32).name
    ('digits.safetensors', 'digits-32.safetensors')
    """
    own = image_size in (None, SPECS[dataset].image_size)
    return folder / f"{dataset}{'' if own else f'-{image_size}'}.safetensors"


def pretrained_encoder(file: Path, data: GCDData, epochs: int) -> PretrainedEncoder:
    """The encoder in `file`; without that file it is pretrained on all images of `data` and evaluated."""
    key = {**PRETRAINING, "epochs": epochs, "images": [len(data.merged), data.channels, data.image_size]}
    seconds = made_once(file, lambda: _make(file, data, epochs, key))
    state = load_checkpoint(file)[1]
    if state.get("key") != key:
        raise ConfigError(
            f"{file} was pretrained with different settings: delete it, or choose a different --output"
        )
    return PretrainedEncoder(file, epochs, seconds, state["accuracy"], state["raw_accuracy"])


def _make(file: Path, data: GCDData, epochs: int, key: dict[str, Any]) -> float:
    """Pretrain and evaluate the encoder, and save it. Returns the seconds of pretraining."""
    pixels = torch.stack([data.test_transform(data.merged[i][0]) for i in range(len(data.merged))])
    label = torch.cat([data.labelled.labels, data.unlabelled.labels])
    started = time.perf_counter()
    vit = pretrain(pixels, epochs)
    seconds = time.perf_counter() - started
    save_checkpoint(file, vit.state_dict(), {"key": key, **quality(vit, pixels, label)})
    return seconds


@torch.no_grad()
def quality(vit: nn.Module, pixels: Tensor, label: Tensor) -> dict[str, float]:
    """k-NN accuracy of the features and of the pixels, on at most MEASURED images."""
    chosen = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(0))[:MEASURED].sort().values
    pixels, label = pixels[chosen], label[chosen]
    features = torch.cat([vit(part) for part in pixels.split(500)])
    return {
        "accuracy": knn_accuracy(features, label),
        "raw_accuracy": knn_accuracy(pixels.flatten(1), label),
    }


def pretrain(
    pixels: Tensor,
    epochs: int,
    backbone: str = "vit_digits",
    objective: Callable[[Any, Tensor], Objective] | None = None,
) -> nn.Module:
    """A ViT for `pixels` (N, C, S, S), of random weights that depend on nothing else.

    `objective`: makes what it minimizes from the ViT and the pixels. Default: `Apart`.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        vit = random_backbone(backbone, image_size=pixels.shape[-1], channels=pixels.shape[1])
        # timm's standard deviation of 0.02 suits wide ViTs; at width 96, all images would look alike.
        for name, parameter in vit.named_parameters():
            if parameter.ndim == 2:
                nn.init.trunc_normal_(parameter, std=parameter.shape[1] ** -0.5)
            elif name == "pos_embed":
                nn.init.normal_(parameter, std=0.5)
        minimized = (objective or Apart)(vit, pixels)
        settings = minimized.settings
        optimizer = torch.optim.AdamW(
            minimized.parameters(), settings["lr"], weight_decay=settings["weight_decay"]
        )
        size = min(settings["batch_size"], len(pixels))
        steps = len(pixels) // size
        for step in (bar := tqdm(range(epochs * steps), "pretraining", unit="step", mininterval=1)):
            if step % steps == 0:
                order = torch.randperm(len(pixels))
            warm_up = min(1.0, (step + 1) / steps)
            optimizer.param_groups[0]["lr"] = warm_up * cosine(step, epochs * steps, settings["lr"], 0.0)
            loss = minimized(order[step % steps * size :][:size])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % steps == steps - 1:
                bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
    return vit


class Objective(nn.Module):
    """A loss of the images with some indices, a 0-d tensor; `settings`: batch_size, lr and weight_decay."""

    settings: ClassVar[dict[str, Any]]


class Apart(Objective):
    """Without labels: tell images apart under small affine changes (InfoNCE), and reconstruct the unchanged
    image from its CLS token.
    """

    settings = PRETRAINING

    def __init__(self, vit: Any, pixels: Tensor) -> None:
        super().__init__()
        self.vit, self._pixels = vit, pixels
        self.project, self.reconstruct = (
            nn.Sequential(nn.Linear(vit.embed_dim, 256), nn.GELU(), nn.Linear(256, out))
            for out in (64, pixels[0].numel())
        )

    def forward(self, index: Tensor) -> Tensor:
        images = self._pixels[index]
        z = self.vit(torch.cat([affine(images), affine(images)]))
        contrast = info_nce(F.normalize(self.project(z), dim=1), self.settings["temperature"])
        reconstruction = F.mse_loss(self.reconstruct(z), images.flatten(1).repeat(2, 1))
        return reconstruction + self.settings["contrast"] * contrast


def affine(images: Tensor, most: float = 0.1, fill: Literal["dark", "border"] = "dark") -> Tensor:
    """Images (N, C, H, W), each rotated by up to 10 degrees, scaled, sheared and shifted by up to a tenth.

    `fill`: what is seen where the grid leaves the image, the darkest value or the border.
    """

    def uniform(limit: float) -> Tensor:
        return (2 * torch.rand(len(images)) - 1) * limit

    angle, scale, shear = uniform(math.radians(10)), 1 + uniform(most), uniform(most)
    dx, dy = uniform(2 * most), uniform(2 * most)
    x = torch.stack([scale * angle.cos(), shear - scale * angle.sin(), dx], 1)
    y = torch.stack([scale * angle.sin(), scale * angle.cos(), dy], 1)
    grid = F.affine_grid(torch.stack([x, y], 1), list(images.shape), align_corners=False)
    if fill == "border":
        return F.grid_sample(images, grid, padding_mode="border", align_corners=False)
    dark = images.min()
    return F.grid_sample(images - dark, grid, align_corners=False) + dark


def knn_accuracy(features: Tensor, label: Tensor, neighbours: int = NEIGHBOURS) -> float:
    """Share of rows whose label is the most frequent one among their nearest other rows, by cosine.

    >>> features = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    >>> knn_accuracy(features, torch.tensor([0, 0, 1, 0]), neighbours=1)
    0.5
    """
    unit = F.normalize(features, dim=1)
    nearest = (unit @ unit.T).fill_diagonal_(-math.inf).topk(neighbours, 1).indices
    votes = F.one_hot(label[nearest]).sum(1)
    return (votes.argmax(1) == label).float().mean().item()
