"""A GCD method: its heads, its loss on z (after EAGC), its work at the start of an epoch, and its prediction.

A method is one file in this folder:

    @register("mine")
    class Mine(Method):
        Config = MyConfig                        # a subclass of Config with the method's own settings
        def __init__(self, config, problem): ... # heads; `super().__init__` makes the optional MLP head
        def forward(self, z): ...                # heads: (n, D) -> tuple of (n, ...) tensors
        def loss(self, outputs, rows): ...       # Loss(supervised, unsupervised, terms) of the global batch
        def predict(self, features): ...         # class index of every unlabelled image
        def scores(self, z, fitted): ...         # (n, K) for any images, for `eagc predict` and `eagc export`
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from eagc_ops.training.config import Config, register_config
from eagc_ops.training.data.rows import Rows
from eagc_ops.training.models.heads import mlp_head
from eagc_ops.training.models.method import Loss
from eagc_ops.training.models.optimization import cosine, decay_groups

METHODS: dict[str, type[Method]] = {}


def register(name: str) -> Callable[[type[Method]], type[Method]]:
    """Class decorator: makes a method available as `name` in configurations and on the command line."""

    def add(method: type[Method]) -> type[Method]:
        if name in METHODS and METHODS[name] is not method:
            raise ValueError(
                f"register({name!r}): {METHODS[name].__qualname__} has this name already; "
                "choose a different name"
            )
        register_config(name, method.Config)
        METHODS[name] = method
        return method

    return add


class Problem(NamedTuple):
    """The sizes that a method is built for."""

    dim: int  # D of z
    known: int  # classes with labels
    classes: int  # K, known and novel classes together
    images: int  # labelled and unlabelled images together
    channels: int = 3  # of an image
    pixels: int = 224  # side of an image
    patch: int = 16  # side of a patch of the ViT, in pixels


class Features(Protocol):
    """z of whole sets by the current student: (z (N, D) float32, label (N,) int64), test transform."""

    def labelled(self) -> tuple[Tensor, Tensor]: ...

    def unlabelled(self) -> tuple[Tensor, Tensor]: ...

    def augmented(self, epoch: int) -> tuple[Tensor, Tensor, Tensor]:
        """(z, label or -1, uq_idx) of labelled, then unlabelled images, from one augmented view each."""


class Method(nn.Module):
    """Base of the methods: the optional MLP head, SGD with cosine schedules, and hooks that do nothing."""

    Config: ClassVar[type[Config]] = Config
    weighting: ClassVar[str] = "simgcd"  # how the loader weights labelled against unlabelled images
    alternating: ClassVar[bool] = False  # several optimizers take turns, see `phase`

    def __init__(self, config: Config, problem: Problem) -> None:
        super().__init__()
        self.config, self.problem = config, problem
        self.mlp_head = mlp_head(problem.dim, config.mlp_head_layers)

    def forward(self, z: Tensor) -> tuple[Tensor, ...]:
        """The heads, h = phi(z): (n, D) -> tensors of n rows. `loss` gets the rows of all processes."""
        raise NotImplementedError

    def loss(self, outputs: tuple[Tensor, ...], rows: Rows) -> Loss:
        """L_GCD of the global batch, in fp32."""
        raise NotImplementedError

    def predict(self, features: Features) -> Tensor:
        """Class or cluster of every unlabelled image, (N_U,) int64."""
        raise NotImplementedError

    def fit_scores(self, features: Features) -> dict[str, Tensor]:
        """What `scores` needs beside the weights, from the training images at the end of a run. Default: "
        "{}."""
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

    def start_epoch(self, epoch: int, features: Features) -> None:
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
        return [torch.optim.SGD(groups, momentum=config.momentum)]

    def phase(self, position: int) -> int:
        """The index of the optimizer that steps at this batch; parameters of the others get no gradient."""
        return 0

    def learning_rate(self, initial: float, epoch: int, position: int) -> float:
        """Learning rate of a group whose initial one is `initial`.

        Default: a cosine over epochs that ends at lr_floor * head_lr for every group.
        """
        return cosine(epoch, self.config.epochs, initial, self.config.lr_floor * self.config.head_lr)
