"""What a GCD method is: its heads, its loss on z (after EAGC), what it does at the start of an epoch, and how it predicts.

A method is one file in this folder:

    @register("mine")
    class Mine(Method):
        Config = MyConfig                        # a subclass of Config with the method's own settings
        def __init__(self, config, problem): ... # heads; `super().__init__` makes the optional MLP head
        def forward(self, z): ...                # heads: (n, D) -> tuple of (n, ...) tensors
        def loss(self, outputs, rows): ...       # Loss(supervised, unsupervised, terms) of the global batch
        def predict(self, features): ...         # class index of every unlabelled image
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eagc_ops.training.config import Config, register_config

METHODS: dict[str, type[Method]] = {}


def register(name: str) -> Callable[[type[Method]], type[Method]]:
    """Class decorator: makes a method known under `name` to configurations and the command line."""

    def add(method: type[Method]) -> type[Method]:
        if name in METHODS and METHODS[name] is not method:
            raise ValueError(f"register({name!r}): {METHODS[name].__qualname__} has this name already")
        register_config(name, method.Config)
        METHODS[name] = method
        return method

    return add


class Problem(NamedTuple):
    """The sizes a method is built for."""

    dim: int  # D of z
    known: int  # classes with labels
    classes: int  # K in all
    images: int  # labelled and unlabelled ones together
    channels: int = 3  # of an image
    pixels: int = 224  # a side of an image
    patch: int = 16  # a side of a patch of the ViT


class Rows(NamedTuple):
    """What a loss may know of a batch besides the outputs of the heads. Rows are view-major: all first views, then all second views."""

    label: Tensor  # (n,) int64; -1 on unlabelled rows, whose truth no loss may see
    labelled: Tensor  # (n,) bool
    uq_idx: Tensor  # (n,) int64, the image in the merged data set
    epoch: int
    position: int  # of the batch in its epoch


class Loss(NamedTuple):
    """L_GCD = alpha L_sup + beta L_unsup: the two parts, weights included, and their unweighted terms for the log."""

    supervised: Tensor
    unsupervised: Tensor
    terms: dict[str, Tensor]


class Features(Protocol):
    """z of whole sets under the current student (test transform, no augmentation), as (z (N, D) float32, label (N,) int64)."""

    def labelled(self) -> tuple[Tensor, Tensor]: ...

    def unlabelled(self) -> tuple[Tensor, Tensor]: ...

    def augmented(self, epoch: int) -> tuple[Tensor, Tensor, Tensor]:
        """(z, label, uq_idx) of labelled, then unlabelled images in one augmented train view; label -1 on unlabelled ones."""


class Method(nn.Module):
    """Base of the methods: the optional MLP head, SGD with cosine schedules, and hooks that do nothing."""

    Config: ClassVar[type[Config]] = Config
    weighting: ClassVar[str] = "simgcd"  # how the loader weights labelled against unlabelled images
    alternating: ClassVar[bool] = False  # several optimisers take turns, see `phase`

    def __init__(self, config: Config, problem: Problem) -> None:
        super().__init__()
        self.config, self.problem = config, problem
        self.mlp_head = mlp_head(problem.dim, config.mlp_head_layers)

    def forward(self, z: Tensor) -> tuple[Tensor, ...]:
        """The heads, h = phi(z): (n, D) -> tensors of n rows. Rows of all processes are gathered before `loss` sees them."""
        raise NotImplementedError

    def loss(self, outputs: tuple[Tensor, ...], rows: Rows) -> Loss:
        """L_GCD of the global batch, in fp32."""
        raise NotImplementedError

    def predict(self, features: Features) -> Tensor:
        """Class or cluster of every unlabelled image, (N_U,) int64."""
        raise NotImplementedError

    def inputs(self, views: list[Tensor], position: int | None = None) -> Tensor:
        """What the encoder is given for the views of batch `position` of an epoch (None: one test view). SPTNet's prompts go here."""
        return torch.cat(views)

    def starting_point(self, facts: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Weights a new run starts from, named as in a checkpoint, and a record of them. None: backbone as pretrained, heads as made.

        `facts`: what the run's data and trunk are (run.json). SPTNet starts from a SimGCD run.
        """
        return None

    def coordinated(self, position: int) -> bool:
        """Whether EAGC acts on this batch of the epoch, in a run that has it."""
        return True

    def start_epoch(self, epoch: int, features: Features) -> None:
        """Called before the first batch of an epoch. What it computes belongs in buffers: a run resumed inside the epoch finds it there."""

    def optimisers(self, encoder: nn.Module) -> list[torch.optim.Optimizer]:
        """SGD over encoder and heads. A method with alternating phases returns one per phase, see `phase`."""
        config = self.config
        groups = [
            *decay_groups(encoder.parameters(), config.backbone_lr, config.weight_decay),
            *decay_groups(self.parameters(), config.head_lr, config.weight_decay),
        ]
        return [torch.optim.SGD(groups, momentum=config.momentum)]

    def phase(self, position: int) -> int:
        """Which of the optimisers steps at this batch of the epoch. Parameters of the others get no gradient from it."""
        return 0

    def learning_rate(self, initial: float, epoch: int, position: int) -> float:
        """Learning rate of a group that started with `initial`. Default: per-epoch cosine; all groups end at lr_floor * head_lr."""
        return cosine(epoch, self.config.epochs, initial, self.config.lr_floor * self.config.head_lr)


class Prototypes(nn.Module):
    """Cosine classifier (n, D) -> (n, K): unit-norm input, weight-normalised rows with the gain g fixed at 1, no bias."""

    def __init__(self, dim: int, classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(
            nn.Linear(dim, classes, bias=False).weight.detach()
        )  # direction v, PyTorch's default init

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.normalize(x, dim=1), F.normalize(self.weight, dim=1))


def mlp_head(dim: int, layers: int) -> nn.Module:
    """The release's extra MLP between encoder and heads: none, Linear-ReLU, or Linear-ReLU-Linear-ReLU with 2048 hidden units."""
    if layers == 0:
        return nn.Identity()
    if layers == 1:
        return nn.Sequential(nn.Linear(dim, dim), nn.ReLU())
    return nn.Sequential(nn.Linear(dim, 2048), nn.ReLU(), nn.Linear(2048, dim), nn.ReLU())


def decay_groups(parameters: Iterable[nn.Parameter], lr: float, weight_decay: float) -> list[dict]:
    """Two parameter groups: weight decay on tensors with at least 2 dimensions, none on biases and norms. Frozen ones are left out."""
    trained = [p for p in parameters if p.requires_grad]
    decayed, exempt = [p for p in trained if p.ndim >= 2], [p for p in trained if p.ndim < 2]
    groups = [
        {"params": decayed, "lr": lr, "initial_lr": lr, "weight_decay": weight_decay},
        {"params": exempt, "lr": lr, "initial_lr": lr, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def cosine(epoch: int, epochs: int, initial: float, floor: float) -> float:
    """floor + (initial - floor)(1 + cos(pi e / T)) / 2: a closed form, so that a resumed run needs no scheduler state."""
    return floor + (initial - floor) * (1 + math.cos(math.pi * epoch / epochs)) / 2
