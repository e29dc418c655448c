"""The probe of a set of runs, made before they train."""

from __future__ import annotations

from pathlib import Path

from eagc_ops.evidence.frozen_features import frozen_features
from eagc_ops.evidence.probe_text import PROBE_FILE, probe_of, write_probe
from eagc_ops.evidence.probing import Probe, probe
from eagc_ops.training.config import Config
from eagc_ops.training.engine.experiment import Experiment

__all__ = ["probe_once"]


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
