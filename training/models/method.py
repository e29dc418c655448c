"""The base of a GCD method, as the student and the loop see it. The methods are in `training/methods`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from eagc_ops.training.config import Config as AnyConfig
from eagc_ops.training.data.loaders import Weighting
from eagc_ops.training.data.rows import Rows
from eagc_ops.training.models.heads import mlp_head
from eagc_ops.training.models.optimization import cosine, decay_groups, sgd

if TYPE_CHECKING:
    from eagc_ops.training.models.features import StudentFeatures  # of a student, which has a method

__all__ = ["Loss", "Method", "Problem"]


class Loss(NamedTuple):
    """L_GCD = alpha L_sup + beta L_unsup: both parts, already weighted, and unweighted terms for the log."""

    supervised: Tensor
    unsupervised: Tensor
    terms: dict[str, Tensor]


class Problem(NamedTuple):
    """The sizes that a method is built for."""

    dim: int  # D of z
    known: int  # classes with labels
    classes: int  # K, known and novel classes together
    images: int  # labelled and unlabelled images together
    channels: int = 3  # of an image
    pixels: int = 224  # side of an image
    patch: int = 16  # side of a patch of the ViT, in pixels


class Method(nn.Module):
    """Base of the methods: the optional MLP head, SGD with cosine schedules, and hooks that do nothing."""

    Config: ClassVar[type[AnyConfig]] = AnyConfig
    weighting: ClassVar[Weighting] = "simgcd"  # how the loader weights labelled against unlabelled images
    alternating: ClassVar[bool] = False  # several optimizers take turns, see `phase`

    def __init__(self, config: AnyConfig, problem: Problem) -> None:
        super().__init__()
        self.config, self.problem = config, problem
        self.mlp_head = mlp_head(problem.dim, config.mlp_head_layers)

    def forward(self, z: Tensor) -> tuple[Tensor, ...]:
        """The heads, h = phi(z): (n, D) -> tensors of n rows. `loss` gets the rows of all processes."""
        raise NotImplementedError

    def loss(self, outputs: Any, rows: Rows) -> Loss:
        """L_GCD of the global batch, in fp32; `outputs` as `forward` returned them."""
        raise NotImplementedError

    def predict(self, features: StudentFeatures) -> Tensor:
        """Class or cluster of every unlabelled image, (N_U,) int64."""
        raise NotImplementedError

    def fit_scores(self, features: StudentFeatures) -> dict[str, Tensor]:
        """What `scores` needs beside the weights, from the training images at the end of a run: nothing."""
        return {}

    def scores(self, z: Tensor, fitted: Mapping[str, Tensor]) -> Tensor:
        """How well images of features z (n, D) fit the classes or clusters, (n, K) float; the largest wins.

        The scores of unlabelled images agree with `predict`. `fitted`: the result of `fit_scores`.
        """
        raise NotImplementedError

    @property
    def score_temperature(self) -> float:
        """softmax(scores / temperature) are the probabilities of the classes."""
        return 0.1

    def inputs(self, views: Sequence[Tensor], position: int | None = None) -> Tensor:
        """The encoder's input for the views of batch `position` of an epoch (None: one test view).

        SPTNet adds its prompts here.
        """
        return torch.cat(list(views))

    def coordinated(self, position: int) -> bool:
        """Whether EAGC acts on this batch of the epoch, in a run that has it."""
        return True

    def start_epoch(self, epoch: int, features: StudentFeatures) -> None:
        """Called before the first batch of an epoch.

        Keep results in buffers, so that a run resumed inside the epoch has them.
        """

    def clusters_of_epoch(self, uq_idx: Tensor) -> Tensor | None:
        """Clusters (n,) of the images `uq_idx` (n,) with which the epoch trained.

        Their accuracy is reported beside that of `predict`, under its own name. Default: None, not reported.
        """
        return None

    def starting_weights(
        self, tensors: Mapping[str, Tensor], recipe: Mapping[str, Any], identity: Mapping[str, Any]
    ) -> dict[str, Tensor]:
        """The weights to take from the checkpoint of a trained run; one that does not fit is a `ConfigError`.

        Called only if `Config.needs_start` is set.

        Args:
            tensors: the checkpoint's tensors, named as in `Student.state()`.
            recipe: the settings of the trained run, with the "split_hash" and "trunk" of its data and trunk.
            identity: "split_hash" and "trunk" of this run.
        """
        raise NotImplementedError

    def optimizers(self, encoder: nn.Module) -> list[torch.optim.Optimizer]:
        """SGD over encoder and heads. A method with alternating phases returns one per phase, see `phase`."""
        config = self.config
        groups = [
            *decay_groups(encoder.parameters(), config.backbone_lr, config.weight_decay),
            *decay_groups(self.parameters(), config.head_lr, config.weight_decay),
        ]
        return [sgd(groups, momentum=config.momentum)]

    def phase(self, position: int) -> int:
        """The index of the optimizer that steps at this batch; parameters of the others get no gradient."""
        return 0

    def learning_rate(self, initial: float, epoch: int, position: int) -> float:
        """Learning rate of a group whose initial one is `initial`.

        Default: a cosine over epochs that ends at lr_floor * head_lr for every group.
        """
        return cosine(epoch, self.config.epochs, initial, self.config.lr_floor * self.config.head_lr)
