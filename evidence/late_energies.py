"""Energies of a run's unlabelled images, before and after training: do they still tell novel from known?

tau is formed with the subspace of the reference model, while the student's features leave that model's.
A subspace that is fitted again to the student's labelled features is what a refit during training would give.

    start       E of the reference model's features, by its own subspace
    end         E of the trained student's features, by the reference model's subspace, as in the operator;
                Ebar is that of the fit, also where a run's own has moved on (`energy_momentum`)
    refitted    E of the trained student's features, by the subspace of its own labelled features

Each by the plain conceptor and by the whitened energy. True labels only group the rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from eagc_ops import Subspace, hints
from eagc_ops.kernels import formulas
from eagc_ops.training.data.batches import AutomaticPixels
from eagc_ops.training.engine.experiment import Experiment
from eagc_ops.training.engine.run_folder import RunFolder

__all__ = ["STAGES", "LateEnergy", "late_energies"]

STAGES = ("start", "end", "refitted")


class LateEnergy(NamedTuple):
    """AUC of novel against known unlabelled images by energy, and the mean tau of both."""

    energy: str  # "conceptor" or "whitened"
    stage: str  # one of STAGES
    auc: float
    tau_known: float
    tau_novel: float


def late_energies(run: Path) -> list[LateEnergy]:
    """The energies of a finished run with warm start."""
    folder = RunFolder.open(run)
    experiment = Experiment(folder.config, AutomaticPixels.beside(run, build=False))
    tensors, _ = experiment.read_checkpoint(folder.last)
    experiment.prepare(folder.references)  # the warm start: now the student is the reference model
    start = _features(experiment)
    experiment.student.load(tensors)
    end = _features(experiment)
    novel = end.label >= experiment.data.known
    found = []
    for energy in ("conceptor", "whitened"):
        at_start, at_end = (_fitted(energy, part, experiment.config.aperture) for part in (start, end))
        cases = (start.unlabelled, at_start), (end.unlabelled, at_start), (end.unlabelled, at_end)
        for stage, (z, subspace) in zip(STAGES, cases):
            value = subspace.energy(z)
            tau = formulas.projection_weight(value, subspace.energy_ref)
            auc = float(roc_auc_score(novel.cpu(), -value.cpu()))
            found.append(LateEnergy(energy, stage, auc, tau[~novel].mean().item(), tau[novel].mean().item()))
    return found


class _Features(NamedTuple):
    labelled: Tensor  # (N, D)
    unlabelled: Tensor  # (M, D)
    label: Tensor  # (M,), of the unlabelled images


def _features(experiment: Experiment) -> _Features:
    experiment.student.eval()
    return _Features(experiment.features.labelled()[0], *experiment.features.unlabelled())


def _fitted(energy: str, features: _Features, aperture: float) -> Subspace:
    if energy == "conceptor":
        with hints.muted():
            return Subspace.conceptor(features.labelled, aperture)
    return Subspace.whitened(features.labelled, torch.cat(features[:2]), aperture)
