"""The probe of a set of runs before they train, and the same numbers after training, by the true classes."""

from __future__ import annotations

from pathlib import Path

import torch

from eagc_ops import Subspace
from eagc_ops.training.analysis.probe import Probe, Separation, probe, separation
from eagc_ops.training.config import Config
from eagc_ops.training.engine.checkpoint import load_checkpoint
from eagc_ops.training.engine.experiment import Experiment
from eagc_ops.training.engine.frozen_features import frozen_features
from eagc_ops.training.report.probe import PROBE_FILE, probe_of, write_probe
from eagc_ops.training.runs import trained

__all__ = ["probe_once", "separation_after"]


def probe_once(folder: Path, config: Config, features: Path) -> Probe:
    """The probe in `folder`; without one, the labelled images of a run with this `config` are probed now.

    `features`: folder for features of the pretrained encoder.
    """
    found = probe_of([folder])
    if found is None:
        z, label = frozen_features(Experiment(config), features)
        found = probe(z, label, lambda_a=config.lambda_a, lambda_p=config.lambda_p, seed=config.seed)
        write_probe(folder / PROBE_FILE, found)
    return found


def separation_after(run: Path) -> Separation:
    """How the subspace of a finished run with EAGC tells its true novel classes from the known ones.

    Features are those of the last epoch, under the test transform; gradients are the probe's stand-ins.
    """
    experiment, (tensors, _) = trained(run), load_checkpoint(run / "last.safetensors")
    subspace = Subspace(tensors["eagc.matrix"], tensors["eagc.energy_ref"])
    with torch.no_grad():
        fit, fit_label = (x.cpu() for x in experiment.features.labelled())
        z, label = (x.cpu() for x in experiment.features.unlabelled())
    is_known = label < experiment.data.known
    return separation(
        fit, fit_label, z[is_known], z[~is_known], subspace, lambda_p=experiment.config.lambda_p
    )
