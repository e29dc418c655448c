"""A trained run as a function of images: its scores of every class, and the features they come from.

No data set is opened, so the images of the run may be gone. Only SelEx needs them, once: its scores are
distances to the centers of a k-means over the training images, which is then kept in the run folder.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from eagc_ops.training.config import SPECS, ConfigError, Sizes
from eagc_ops.training.data.image_files import read_image
from eagc_ops.training.data.loaders import Draw, TrainLoader
from eagc_ops.training.data.transforms import TRANSFORMS
from eagc_ops.training.engine.checkpoint import load_checkpoint, save_checkpoint, tensor_digest
from eagc_ops.training.engine.experiment import Experiment, device_of, encoder_of
from eagc_ops.training.engine.preconditions import changed
from eagc_ops.training.engine.run_folder import RunFolder
from eagc_ops.training.methods import METHODS, Method, Problem
from eagc_ops.training.models.student import Student
from eagc_ops.training.progress import bar as progress_bar

__all__ = ["ImageScores", "Predictions", "Predictor"]

BATCH = 64
_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Predictions(NamedTuple):
    """N images, on the CPU."""

    z: Tensor  # (N, D) float32, features
    scores: Tensor  # (N, K) float32; the largest wins
    probabilities: Tensor  # (N, K) float32, sum 1


class ImageScores(nn.Module):
    """Images (B, C, H, W), float32 under the test transform -> scores (B, K) float32."""

    def __init__(self, student: Student, fitted: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.encoder, self.method = student.encoder, student.method
        self.names = tuple(fitted)
        for name, value in fitted.items():
            self.register_buffer(f"fitted_{name}", value)

    def forward(self, images: Tensor) -> Tensor:
        return self.scores(self.features(images))

    def features(self, images: Tensor) -> Tensor:
        """z (B, D) float32."""
        return self.encoder.student(self.encoder.trunk(self.method.inputs([images]))).float()

    def scores(self, z: Tensor) -> Tensor:
        fitted = {name: getattr(self, f"fitted_{name}") for name in self.names}
        return self.method.scores(z, fitted).float()


class Predictor:
    """The last weights of a complete run. `changes` may only touch settings of the machine.

    Attributes:
        folder, config: the run and its settings.
        module: the network, on `device`, frozen.
        transform: PIL image -> (C, H, W), the test transform.
    """

    def __init__(self, path: str | Path, **changes: Any) -> None:
        self.folder = folder = RunFolder.open(path)
        self.config = config = changed(folder.config, changes)
        if folder.result() is None:
            raise ConfigError(f"{path} is not a complete run: go on with it first")
        facts = folder.facts
        sizes = Sizes(known=facts.known, images=facts.images, labelled=facts.labelled, pixels=facts.pixels)
        encoder = encoder_of(config, sizes, facts.channels)
        if encoder.trunk_fingerprint() != facts.trunk:
            raise ConfigError(
                f"{path} was trained on different weights of {config.backbone}: pass weights with the file "
                "of before"
            )
        problem = Problem(**{name: getattr(facts, name) for name in Problem._fields})
        self.student = Student(encoder, METHODS[config.method](config, problem))
        weights, _ = load_checkpoint(folder.last)
        self.student.load(weights)
        self.device = torch.device(device_of(config))
        self.module = ImageScores(self.student, self._fitted(weights)).to(self.device).eval()
        self.module.requires_grad_(False)
        spec = SPECS[config.dataset]
        self.transform = TRANSFORMS[spec.transforms](facts.pixels, spec.flip, facts.channels)[1]

    @torch.no_grad()
    def __call__(self, paths: Sequence[str], progress: str | None = None) -> Predictions:
        """Scores and features of image files. `progress`: the text of a bar; None: no bar."""
        views = TrainLoader(
            _TestViews(paths, self.transform, self.folder.facts.channels),
            lambda _: torch.arange(len(paths)),
            size=len(paths),
            batch_size=BATCH,
            seed=0,
            drop_last=False,
            workers=self.config.workers,
        )
        z, scores = [], []
        with progress_bar(
            total=len(paths), desc=progress, unit="image", mininterval=1, shown=progress is not None
        ) as bar:
            for batch in views.epoch(0):
                with self._precision():
                    features = self.module.features(batch.views[0].to(self.device, non_blocking=True))
                    found = self.module.scores(features)
                z.append(features.cpu())
                scores.append(found.cpu())
                bar.update(len(found))
        all_scores = torch.cat(scores)
        probabilities = (all_scores / self.student.method.score_temperature).softmax(1)
        return Predictions(torch.cat(z), all_scores, probabilities)

    def _precision(self) -> contextlib.AbstractContextManager[object]:
        dtype = _AUTOCAST.get(self.config.precision)
        return contextlib.nullcontext() if dtype is None else torch.autocast(self.device.type, dtype)

    def _fitted(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What the method's scores need, from the run folder, or from the training images."""
        method = self.student.method
        if type(method).fit_scores is Method.fit_scores:
            return {}
        file, state = self.folder.path / "scores.safetensors", {"weights": tensor_digest(weights)}
        if file.exists() and (kept := load_checkpoint(file))[1] == state:
            return kept[0]
        experiment = Experiment(self.config)
        self.folder.check(experiment.facts)
        experiment.student.load(weights)
        experiment.student.eval()
        with torch.no_grad(), experiment.accelerator.autocast():
            fitted = experiment.student.method.fit_scores(experiment.features)
        save_checkpoint(file, fitted, state)
        return {name: value.cpu() for name, value in fitted.items()}


class _TestViews(Dataset):
    """Maps a `Draw` to the test view of an image file, as a loader's item without a label."""

    def __init__(self, paths: Sequence[str], transform: Any, channels: int) -> None:
        self.paths, self.transform, self.mode = paths, transform, "L" if channels == 1 else "RGB"

    def __getitem__(self, draw: Draw) -> tuple[list[Tensor], int, int, bool]:
        image = read_image(self.paths[draw.index])
        return [self.transform(image.convert(self.mode))], -1, draw.index, False
