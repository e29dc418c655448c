"""Heads on the feature z: the cosine classifier, the projector, and the extra MLP of the release."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["Prototypes", "mlp_head", "projector"]


class Prototypes(nn.Module):
    """Cosine classifier (n, D) -> (n, K): unit-norm input, unit-norm rows of the weight, no bias.

    It is a weight-normalised linear layer whose gain is fixed at 1.
    """

    def __init__(self, dim: int, classes: int) -> None:
        super().__init__()
        linear = nn.Linear(dim, classes, bias=False)  # for PyTorch's default initialisation
        self.weight = nn.Parameter(linear.weight.detach())

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.normalize(x, dim=1), F.normalize(self.weight, dim=1))


def projector(dim: int, hidden: int = 2048, out: int = 256) -> nn.Sequential:
    """MLP D -> hidden -> hidden -> out with GELU after the first two layers; its output is not normalised.

    Weights are initialised from a truncated normal (std 0.02), biases with 0.
    """
    layers = nn.Sequential(
        nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, out)
    )
    for layer in layers[::2]:
        assert isinstance(layer, nn.Linear)
        nn.init.trunc_normal_(layer.weight, std=0.02)
        nn.init.zeros_(layer.bias)
    return layers


def mlp_head(dim: int, layers: int) -> nn.Module:
    """The release's extra MLP between encoder and heads, (n, D) -> (n, D), with 0, 1 or 2 `layers`.

    One layer is Linear-ReLU; two are Linear-ReLU-Linear-ReLU with 2048 hidden units.
    """
    if layers == 0:
        return nn.Identity()
    if layers == 1:
        return nn.Sequential(nn.Linear(dim, dim), nn.ReLU())
    return nn.Sequential(nn.Linear(dim, 2048), nn.ReLU(), nn.Linear(2048, dim), nn.ReLU())
