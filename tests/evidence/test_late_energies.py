"""Energies before and after training, against numpy on the features of the two models."""

import numpy as np
import pytest
import small_runs

from eagc_ops.evidence.late_energies import STAGES, late_energies
from eagc_ops.training.engine.checkpoint import load_checkpoint
from eagc_ops.training.runs import train, trained

pytestmark = pytest.mark.filterwarnings("ignore:the run predicts", "ignore:tau is below")


def test_late_energies_by_their_definition(data, tmp_path):
    aperture = 0.3
    train(small_runs.small_config(data, epochs=1, warm_start=True, aperture=aperture), tmp_path / "run")
    measured = late_energies(tmp_path / "run")
    found = {(one.energy, one.stage): one for one in measured}
    assert list(found) == [(energy, stage) for energy in ("conceptor", "whitened") for stage in STAGES]

    experiment = trained(tmp_path / "run")
    encoder, features = experiment.student.encoder, experiment.features
    (file,) = (tmp_path / "references").glob("reference-*")
    reference = load_checkpoint(file)[0]
    del reference["cross_entropy"]
    tails = {"end": encoder.tail_state(), "start": reference}
    z = {}
    for name, tail in tails.items():
        encoder.load_tail(tail)
        z[name] = [part()[0].double().numpy() for part in (features.labelled, features.unlabelled)]
    novel = features.unlabelled()[1].numpy() >= experiment.data.known
    assert not np.allclose(z["start"][1], z["end"][1])

    def energy(rows, fit):
        R = fit.T @ fit / len(fit)
        S = R @ np.linalg.inv(R + aperture**-2 * np.eye(len(R)))
        return np.einsum("nd,de,ne->n", rows, S, rows) / np.square(rows).sum(1)

    for stage, features_of, fit_of in zip(STAGES, ("start", "end", "end"), ("start", "start", "end")):
        fit = z[fit_of][0]
        values = energy(z[features_of][1], fit)
        below = values[novel][:, None] < values[~novel]
        one = found["conceptor", stage]
        assert one.auc == pytest.approx(below.mean(), abs=2e-3)
        tau = np.clip(1 - values / (energy(fit, fit).mean() + 1e-6), 0, 1)
        assert (one.tau_known, one.tau_novel) == pytest.approx(
            (tau[~novel].mean(), tau[novel].mean()), abs=1e-4
        )
    # The whitened energy itself has its own tests; here, that it is another one, of the same rows
    for stage in STAGES:
        assert found["whitened", stage][2:] != found["conceptor", stage][2:]
