"""A trained run or a discovery as a function of images: the scores of every class, and the features.

No data set is opened, so the images of the run may be gone. Only SelEx needs them, once: its scores are
distances to the centers of a k-means over the training images, which the run folder then keeps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eagc_ops.app.console import progress_bar
from eagc_ops.discovery.beginning import BEGINNING, Beginning
from eagc_ops.discovery.encoding import encoder_fingerprint, passes_of, pretrained
from eagc_ops.discovery.frozen import FEATURES, Clustering
from eagc_ops.discovery.places import TRAINING
from eagc_ops.encoder import AnchoredEncoder
from eagc_ops.kernels import without_autocast
from eagc_ops.metric import LabelMetric
from eagc_ops.training.analysis.first_answer import TEMPERATURE, spread_at_once
from eagc_ops.training.config import Config, ConfigError, Sizes
from eagc_ops.training.data.precision import autocast
from eagc_ops.training.engine.checkpoint import load_checkpoint, save_checkpoint, tensor_digest
from eagc_ops.training.engine.experiment import Experiment, encoder_of
from eagc_ops.training.engine.facts import RunFacts
from eagc_ops.training.engine.preconditions import changed
from eagc_ops.training.engine.run_folder import RunFolder
from eagc_ops.training.methods import METHODS, Method, Problem
from eagc_ops.training.models.student import Student

__all__ = [
    "ImageScores",
    "MetricScores",
    "Predictions",
    "Predictor",
    "VotedScores",
    "predictor_of",
    "run_predictor",
]


LEAST_SHARE = 1e-9  # of the votes, so that the logarithm is finite


class Predictions(NamedTuple):
    """N images, on the CPU."""

    points: Tensor  # (N, D) float32: features, or the points of a metric of them
    scores: Tensor  # (N, K) float32; the largest wins
    probabilities: Tensor  # (N, K) float32, sum 1


class ImageScores(nn.Module):
    """Images (B, C, H, W), float32 under the test transform -> scores (B, K) float32 of a trained method."""

    def __init__(self, student: Student, fitted: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.encoder, self.method = student.encoder, student.method
        self.temperature = self.method.score_temperature
        self.names = tuple(fitted)
        for name, value in fitted.items():
            self.register_buffer(f"fitted_{name}", value)

    def forward(self, images: Tensor) -> Tensor:
        return self.scores(self.points(images))

    def points(self, images: Tensor) -> Tensor:
        """z (B, D) float32."""
        return self.encoder.student(self.encoder.trunk(self.method.inputs([images]))).float()

    def scores(self, points: Tensor) -> Tensor:
        fitted = {name: getattr(self, f"fitted_{name}") for name in self.names}
        return self.method.scores(points, fitted).float()


class MetricScores(nn.Module):
    """Images (B, C, H, W) -> cosines (B, K) to the centres of categories, in a metric of the features."""

    temperature = TEMPERATURE
    mean: Tensor
    matrix: Tensor
    centres: Tensor

    def __init__(self, encoder: AnchoredEncoder, metric: LabelMetric, centres: Tensor) -> None:
        super().__init__()
        self.encoder = encoder
        for name, value in (("mean", metric.mean), ("matrix", metric.matrix), ("centres", centres)):
            self.register_buffer(name, value)

    def forward(self, images: Tensor) -> Tensor:
        return self.scores(self.points(images))

    def points(self, images: Tensor) -> Tensor:
        """(B, d) float32, unit norm: `LabelMetric` in an exportable form."""
        z = self.encoder.student(self.encoder.trunk(images)).float()
        with without_autocast(z.device):
            return F.normalize((F.normalize(z, dim=1) - self.mean) @ self.matrix, dim=1)

    def scores(self, points: Tensor) -> Tensor:
        with without_autocast(points.device):
            return points @ self.centres.T


class VotedScores(MetricScores):
    """Images (B, C, H, W) -> logarithms (B, K) of the shares of their neighbours' votes."""

    temperature = 1.0
    sampled: Tensor
    shares: Tensor

    def __init__(self, encoder: AnchoredEncoder, kept: Clustering) -> None:
        assert kept.metric is not None and kept.centres is not None
        super().__init__(encoder, kept.metric, kept.centres)
        self.register_buffer("sampled", kept.sampled)
        self.register_buffer("shares", kept.shares)

    def scores(self, points: Tensor) -> Tensor:
        # In 16 bits an image would often not be its own nearest neighbour.
        with without_autocast(points.device):
            return spread_at_once(points, self.sampled, self.shares).clamp_min(LEAST_SHARE).log()


class Predictor:
    """A frozen network as a function of image files.

    Attributes:
        network: on its device, frozen.
        config: of the run or the discovery.
        kind: the method of a run, or the kind of a clustering.
        known, classes, pixels, channels: sizes.
        known_names: names of the known classes by label, if they are folders.
    """

    def __init__(
        self, network: ImageScores | MetricScores, config: Config, kind: str, facts: RunFacts | _Facts
    ) -> None:
        self.config, self.kind = config, kind
        self.known, self.classes, self.known_names = facts.known, facts.classes, facts.known_names
        self.pixels, self.channels = facts.pixels, facts.channels
        passes = passes_of(network.points, config, facts.pixels, facts.channels)
        self.network = network.to(passes.device).eval()
        self.network.requires_grad_(False)
        self._passes, self.transform = passes, passes.transform

    @torch.no_grad()
    def __call__(self, paths: Sequence[str], progress: str | None = None) -> Predictions:
        """Scores and features of image files. `progress`: the text of a bar; None: no bar."""
        points, scores, device = [], [], self._passes.device
        with progress_bar(
            total=len(paths), desc=progress, unit="image", mininterval=1, shown=progress is not None
        ) as bar:
            for rows in self._passes(paths):
                with autocast(device, self._passes.precision):
                    scores.append(self.network.scores(rows.to(device)).cpu())
                points.append(rows)
                bar.update(len(rows))
        all_scores = torch.cat(scores)
        probabilities = (all_scores / self.network.temperature).softmax(1)
        return Predictions(torch.cat(points), all_scores, probabilities)


def predictor_of(path: str | Path, **changes: Any) -> Predictor:
    """The predictor of a discovery's kept answer, or of a run. `changes` may only concern the machine."""
    if not (Path(path) / BEGINNING).exists():
        return run_predictor(path, **changes)
    path = Path(path)
    beginning, kept = Beginning.read(path), Clustering.read(path)
    config = beginning.on_this_machine(changes)
    facts = _Facts(kept.known, kept.k, beginning.pixels, beginning.channels, None)
    if kept.features == FEATURES:
        encoder, _ = pretrained(config, beginning.sizes, beginning.channels)
        check_same_encoder(path, beginning, encoder)
    else:
        trained = run_predictor(path / TRAINING, **changes)
        if kept.metric is None:
            return trained
        encoder = trained.network.encoder
    assert kept.metric is not None and kept.centres is not None
    voted = kept.sampled is not None
    network = VotedScores(encoder, kept) if voted else MetricScores(encoder, kept.metric, kept.centres)
    return Predictor(network, config, kept.kind, facts)


def check_same_encoder(path: Path, beginning: Beginning, encoder: AnchoredEncoder) -> None:
    """Refuse other weights than those behind the features."""
    if encoder_fingerprint(encoder) != beginning.encoder:
        raise ConfigError(
            f"{path} was made with different weights of {beginning.config.backbone}: pass weights with the "
            "file of before"
        )


def run_predictor(path: str | Path, **changes: Any) -> Predictor:
    """The predictor of a complete run's last weights. `changes` may only concern the machine."""
    folder = RunFolder.open(path)
    config = changed(folder.config, changes)
    if folder.result() is None:
        raise ConfigError(f"{path} is not a complete run: go on with it first")
    facts = folder.facts
    sizes = Sizes(known=facts.known, images=facts.images, labelled=facts.labelled, pixels=facts.pixels)
    encoder = encoder_of(config, sizes, facts.channels)
    if encoder.trunk_fingerprint() != facts.trunk:
        raise ConfigError(
            f"{path} was trained on different weights of {config.backbone}: pass weights with the file of "
            "before"
        )
    problem = Problem(**{name: getattr(facts, name) for name in Problem._fields})
    student = Student(encoder, METHODS[config.method](config, problem))
    weights, _ = load_checkpoint(folder.last)
    student.load(weights)
    network = ImageScores(student, _fitted(folder, config, student, weights))
    return Predictor(network, config, config.method, facts)


class _Facts(NamedTuple):
    """The sizes of a discovery, under the names of a run's."""

    known: int
    classes: int
    pixels: int
    channels: int
    known_names: list[str] | None


def _fitted(
    folder: RunFolder, config: Config, student: Student, weights: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """What the method's scores need, from the run folder or from the training images."""
    if type(student.method).fit_scores is Method.fit_scores:
        return {}
    file, state = folder.path / "scores.safetensors", {"weights": tensor_digest(weights)}
    if file.exists() and (kept := load_checkpoint(file))[1] == state:
        return kept[0]
    experiment = Experiment(config)
    folder.check(experiment.facts)
    experiment.student.load(weights)
    experiment.student.eval()
    with torch.no_grad(), experiment.autocast():
        fitted = experiment.student.method.fit_scores(experiment.features)
    save_checkpoint(file, fitted, state)
    return {name: value.cpu() for name, value in fitted.items()}
