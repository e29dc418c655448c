"""Energies ranked on frozen features. The operator has the plain one and, as an option, the whitened one.

An energy is fitted to labelled rows, and is low for rows of novel classes. All are ratios of quadratic forms
of z, or the largest of several, in [0, 1].

    conceptor       z S z^T / |z|^2, S: the conceptor of the labelled rows. This is EAGC's
    whitened        the same for z W, with W = (C + ridge * mean variance * I)^(-1/2) and C the covariance of
                    all rows, labelled and unlabelled. It uses no label of theirs (`Subspace.whitened`)
    nearest class   the largest of z S_c z^T / |z|^2 over known classes c, S_c: the conceptor of class c alone
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from eagc_ops import Subspace, hints
from eagc_ops.evidence.hidden_classes import (
    CHOICES,
    Choice,
    checked,
    choices_of,
    left,
    on_the_line,
)
from eagc_ops.kernels import formulas

__all__ = ["ENERGIES", "Fit", "RankedEnergy", "conceptor", "nearest_class", "rank_energies", "whitened"]

Energy = Callable[[Tensor], Tensor]  # rows (n, D) -> (n,)
Fit = Callable[[Tensor, Tensor, Tensor], Energy]  # labelled rows, their labels, all rows


class RankedEnergy(NamedTuple):
    """An energy, extrapolated to all known classes as `probe` does it."""

    name: str
    auc: float
    tau_known: float
    tau_novel: float


def rank_energies(
    features: Tensor,
    labels: Tensor,
    unlabelled: Tensor | None = None,
    *,
    choices: int = CHOICES,
    seed: int = 0,
    energies: Mapping[str, Fit] | None = None,
) -> list[RankedEnergy]:
    """The energies by their AUC, best first. The arguments are those of `probe`.

    `unlabelled`: (M, D), unlabelled features, a part of "all rows"; None: the labelled ones alone.

    >>> axes = torch.eye(12).repeat_interleave(4, 0).view(6, 8, 12)  # 6 classes with 2 directions each
    >>> features = (axes * torch.linspace(0.5, 1.5, 8)[:, None]).flatten(0, 1)
    >>> found = rank_energies(features, torch.arange(6).repeat_interleave(8))
    >>> {energy.auc for energy in found}
    {1.0}
    """
    energies = ENERGIES if energies is None else energies
    label = checked(features, labels, choices)
    features = features.detach().double()
    pool = features if unlabelled is None else torch.cat([features, unlabelled.detach().double()])
    counts = left(len(label.unique()))
    measured: dict[str, dict[int, list[tuple[float, float, float]]]] = {
        name: {count: [] for count in counts} for name in energies
    }
    for pair in choices_of(label, choices, seed):
        for count, choice in zip(counts, pair):
            for name, fitted in energies.items():
                measured[name][count].append(_measured(fitted, features, label, pool, choice))
    found = []
    for name, by_count in measured.items():
        more, fewer = (
            torch.tensor(by_count[count], dtype=torch.float64).mean(0).tolist() for count in counts
        )
        found.append(RankedEnergy(name, *on_the_line(more, fewer, *counts, len(label.unique()))))
    return sorted(found, key=lambda energy: -energy.auc)


def conceptor(aperture: float) -> Fit:
    @hints.muted()
    def fitted(fit: Tensor, label: Tensor, pool: Tensor) -> Energy:
        return Subspace.conceptor(fit, aperture).energy

    return fitted


def whitened(ridge: float, aperture: float) -> Fit:
    def fitted(fit: Tensor, label: Tensor, pool: Tensor) -> Energy:
        return Subspace.whitened(fit, pool, ridge=ridge, energy_aperture=aperture).energy

    return fitted


def nearest_class(aperture: float) -> Fit:
    @hints.muted()
    def fitted(fit: Tensor, label: Tensor, pool: Tensor) -> Energy:
        energies = [Subspace.conceptor(fit[label == c], aperture).energy for c in label.unique()]
        return lambda rows: torch.stack([energy(rows) for energy in energies]).amax(0)

    return fitted


ENERGIES = {
    **{f"conceptor, aperture {a:g}": conceptor(a) for a in (0.3, 1.0, 2.0)},
    **{
        f"whitened, ridge {ridge:.0%}, aperture {a:g}": whitened(ridge, a)
        for ridge in (0.01, 0.05)
        for a in (0.3, 1.0)
    },
    **{f"nearest class, aperture {a:g}": nearest_class(a) for a in (0.3, 1.0, 2.0)},
}


def _measured(
    fitted: Fit,
    features: Tensor,
    label: Tensor,
    pool: Tensor,
    choice: Choice,
) -> tuple[float, float, float]:
    """AUC, and the mean tau of both sides."""
    energy = fitted(features[choice.fit], label[choice.fit], pool)
    known, novel = energy(features[choice.known]), energy(features[choice.novel])
    reference = energy(features[choice.fit]).mean()
    tau, tau_novel = (formulas.projection_weight(side, reference).mean().item() for side in (known, novel))
    truth = torch.arange(len(known) + len(novel)) >= len(known)
    return float(roc_auc_score(truth, -torch.cat([known, novel]).cpu())), tau, tau_novel
