"""Measures of gradient entanglement: GDC, SOC, gradient dominance and collapse coefficient.

The paper defines GDC and SOC by formulas and the other two in words. Where the released code departs from a
formula, both versions are available.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

__all__ = ["collapse_coefficient", "gradient_deviation", "gradient_dominance", "subspace_overlap"]

TINY = 1e-12


def gradient_deviation(supervised: Tensor | Iterable[Tensor], total: Tensor | Iterable[Tensor]) -> Tensor:
    """GDC = 1 - cos(g_L, g): how far the whole gradient points away from the supervised one.

    It is 0 for equal directions, 1 for orthogonal ones and 2 for opposite ones. The arguments are the
    gradients of the supervised loss and of the total loss, each a tensor or an iterable of one tensor per
    parameter.

    >>> gradient_deviation(torch.tensor([1.0, 0.0]), torch.tensor([-3.0, 0.0]))
    tensor(2.)
    """
    a, b = _flat("supervised", supervised), _flat("total", total)
    if a.shape != b.shape:
        raise ValueError(
            f"supervised has {a.numel()} values, total {b.numel()}: pass gradients of the same parameters"
        )
    # In fp64, because over 10^6 parameters fp32 sums are off by 2e-5, four percent of a deviation of 4e-4.
    # Each gradient is normalised by itself, because the product of two small norms would fall below any
    # floor. A zero gradient has no direction: its cosine is 0.
    cosine = torch.dot(*(x / x.norm().clamp_min(torch.finfo(x.dtype).tiny) for x in (a.double(), b.double())))
    return (1 - cosine.clamp(-1, 1)).to(a.dtype)


def subspace_overlap(old: Tensor, new: Tensor, k: int = 16, mode: str = "paper") -> Tensor:
    """SOC = |Z_new P_old|_F^2 / |Z_new|_F^2: the energy of novel features in k directions of the known ones.

    Args:
        old: (N_old, D), the features of known classes.
        new: (N_new, D), the features of novel classes.
        k: the number of leading right singular vectors of Z_old, at most min(N_old, D). The paper gives no
            value; the release uses 16.
        mode: "paper": raw features. "release": rows scaled to unit norm, then both sets centred on the mean
            of the old ones.

    >>> old, new = torch.eye(4)[:2], torch.eye(4)[2:]
    >>> subspace_overlap(old, new, k=2), subspace_overlap(old, old, k=2)
    (tensor(0.), tensor(1.))
    """
    _check_pair(old, new)
    if mode not in ("paper", "release"):
        raise ValueError(f"mode must be one of ('paper', 'release'), got {mode!r}")
    if not 1 <= k <= min(old.shape):
        raise ValueError(f"k must be between 1 and min(N_old, D)={min(old.shape)}, got {k}")
    old, new = _wide(old), _wide(new)
    if mode == "release":
        old, new = (torch.nn.functional.normalize(x, dim=1, eps=TINY) for x in (old, new))
        centre = old.mean(0)
        old, new = old - centre, new - centre
    directions = torch.linalg.svd(old, full_matrices=False).Vh[:k]
    return (new @ directions.T).square().sum() / new.square().sum().clamp_min(TINY)


def gradient_dominance(gradient: Tensor, known: Tensor) -> Tensor:
    """rho_grad = sum_known |g_i| / sum |g_i|: the share of the gradient norm from rows of known classes.

    The paper defines it in words ("the proportion of the total gradient norm contributed by known classes");
    this is our reading, with per-row feature gradients.

    Args:
        gradient: (..., D), the gradient of the loss with respect to z.
        known: (...) bool, True on rows whose ground-truth class is known.

    >>> gradient_dominance(torch.tensor([[3.0, 0.0], [0.0, 1.0]]), torch.tensor([True, False]))
    tensor(0.7500)
    """
    if known.dtype != torch.bool or known.shape != gradient.shape[:-1]:
        expected = tuple(gradient.shape[:-1])
        raise ValueError(
            f"known must be a bool tensor {expected}, one value per row of gradient; got "
            f"{tuple(known.shape)} {known.dtype}"
        )
    norms = _wide(gradient).norm(dim=-1)
    return torch.where(known, norms, 0).sum() / norms.sum().clamp_min(TINY)


def collapse_coefficient(new: Tensor, matrix: Tensor) -> Tensor:
    """rho_in = sum_i z_i S z_i^T / sum_i |z_i|^2: the energy ratio of the novel set as a whole.

    The paper defines it in words ("the extent to which novel features are projected into the known-class
    subspace"); this is our reading.

    Args:
        new: (N, D), the features of novel classes.
        matrix: (D, D), a conceptor or a projection.

    >>> collapse_coefficient(torch.tensor([[3.0, 4.0]]), torch.diag(torch.tensor([1.0, 0.0])))
    tensor(0.3600)
    """
    if matrix.shape != (new.shape[-1],) * 2:
        raise ValueError(
            f"matrix has shape {tuple(matrix.shape)} but new has D={new.shape[-1]}: fit it to features of "
            "the same layer"
        )
    new = _wide(new)
    return ((new @ matrix.to(new.dtype)) * new).sum() / new.square().sum().clamp_min(TINY)


def _flat(name: str, gradient: Tensor | Iterable[Tensor]) -> Tensor:
    parts = [gradient] if isinstance(gradient, Tensor) else list(gradient)
    wrong = [type(part).__name__ for part in parts if not isinstance(part, Tensor)]
    if wrong or not parts:
        got = f"one with a {wrong[0]}" if wrong else "an empty one"
        raise ValueError(
            f"{name} must be a tensor or a non-empty iterable of tensors, got {got}; leave a parameter "
            "without gradient (None) out of both arguments"
        )
    return torch.cat([_wide(part).reshape(-1) for part in parts])


def _wide(x: Tensor) -> Tensor:
    return x.detach().to(torch.promote_types(x.dtype, torch.float32))


def _check_pair(old: Tensor, new: Tensor) -> None:
    if old.ndim != 2 or new.ndim != 2 or old.shape[1] != new.shape[1] or not len(old) or not len(new):
        raise ValueError(
            f"old and new must be non-empty (N, D) features with the same D, got {tuple(old.shape)} and "
            f"{tuple(new.shape)}"
        )
