"""GDC and SOC measured inside a run, against plain numpy on captured weights and batches; and a run that does not notice it."""

import numpy as np
import pytest
import small_runs
import torch

from eagc_ops.training.checkpoint import load_checkpoint
from eagc_ops.training.config import ConfigError
from eagc_ops.training.diagnose import MEASURES, Diagnose
from eagc_ops.training.loop import Callback, Loop, train
from eagc_ops.training.methods import Rows, register
from eagc_ops.training.run import RunFolder

small_config = small_runs.small_config


@register("everywhere")
class Everywhere(small_runs.Small):
    """Its supervised part pulls on the features of all rows (SelEx's too reaches unlabelled ones): the projection acts on its gradient."""

    def forward(self, z):
        return *super().forward(z), z

    def loss(self, outputs, rows):
        loss = super().loss(outputs[:2], rows)
        return loss._replace(supervised=loss.supervised + outputs[2].pow(4).mean())


@register("counting")
class Counting(small_runs.Noisy):
    """Changes a buffer in every forward, and with it what the forward computes."""

    def __init__(self, config, problem):
        super().__init__(config, problem)
        self.register_buffer("forwards", torch.zeros(()))

    def forward(self, z):
        self.forwards += 0.01 * self.training
        return super().forward(z * (1 + self.forwards))


pytestmark = pytest.mark.filterwarnings("ignore:the run predicts", "ignore:tau is below")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return small_runs.write_files(tmp_path_factory.mktemp("images"))


class Spy(Callback):
    """What the step of a run knows, copied: weights before and after, the applied gradient of the last block."""

    def __init__(self):
        self.before, self.applied, self.after = [], [], []

    def before_update(self, loop, batch):
        self.before.append({name: value.clone() for name, value in loop.student.state().items()})
        self.applied.append([p.grad.clone() for p in loop.student.encoder.tail[-1].parameters()])

    def after_update(self, loop, batch):
        self.after.append(loop.student.encoder.tail_state())


def measured(folder):
    return [line for line in RunFolder.open(folder).metrics() if line["kind"] == "diagnosis"]


def flat(gradients):
    return np.concatenate([g.double().numpy().ravel() for g in gradients])


def deviation(a, b):
    return 1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def overlap(old, new, k):
    right = np.linalg.svd(old, full_matrices=False)[2][:k]
    return np.square(new @ right.T).sum() / np.square(new).sum()


@pytest.mark.parametrize("eagc", [True, False])
def test_every_measure_against_brute_force(data, tmp_path, eagc):
    # Two trained blocks of which the last counts; no warm start and a strong anchor, so that z - z_hat shows; a running mean energy
    switches = {"trainable_blocks": 2, "warm_start": False, "lambda_a": 20.0, "lambda_p": 0.9, "energy_momentum": 0.2, "epochs": 1}
    switches |= {"backbone_lr": 0.001, "head_lr": 0.001, "aperture": 0.3}  # small steps and a narrow subspace keep tau inside (0, 1)
    config, spy = small_config(data, "everywhere", eagc=eagc, **switches), Spy()
    train(config, tmp_path / "run", [Diagnose(every=3, k=4), spy])
    found = measured(tmp_path / "run")
    assert [(line["step"], line["position"]) for line in found] == [(1, 0), (4, 3), (7, 6)]

    built = Loop(config)
    encoder, method, known = built.student.encoder, built.student.method, built.data.known
    if eagc:
        (file,) = (tmp_path / "references").glob("reference*")
        tail = load_checkpoint(file)[0]
        del tail["cross_entropy"]
        encoder.set_reference(tail)
    batches = list(built.batches.train.epoch(0))
    block = list(encoder.tail[-1].parameters())
    for line in found:
        at = line["position"]
        built.student.load(spy.before[at])
        batch = batches[at]
        mask = batch.labelled.repeat(2)
        tokens = encoder.trunk(torch.cat(batch.views))
        z = encoder.student(tokens)
        loss = method.loss(method(z), Rows(torch.where(mask, batch.label.repeat(2), -1), mask, batch.uq_idx.repeat(2), 0, at))
        (g,) = torch.autograd.grad(loss.supervised, z, retain_graph=True)

        def of_block(gradient, z=z):
            return flat(torch.autograd.grad(z, block, gradient, retain_graph=True))

        applied = flat(spy.applied[at])
        assert line["gdc_clean"] == pytest.approx(deviation(of_block(g), applied), abs=1e-5)
        if not eagc:
            assert line["gdc_release"] == line["gdc_clean"]
        else:  # the operator by its formulas, with the mean energy that the step used
            S, mean_energy = spy.before[at]["eagc.matrix"], spy.before[at]["eagc.energy_ref"]
            tau = (1 - ((z @ S) * z).sum(1) / z.square().sum(1) / (mean_energy + 1e-6)).clamp(0, 1).detach()
            assert (tau[~mask] > 0.01).any()
            anchor = 20.0 * (z.detach() - encoder.anchor(tokens)) / (mask.sum() * z.shape[1])
            coordinated = torch.where(mask[:, None], g + anchor, g - 0.9 * tau[:, None] * (g @ S))
            assert line["gdc_release"] == pytest.approx(deviation(of_block(coordinated), applied), abs=1e-5)
            assert abs(line["gdc_release"] - line["gdc_clean"]) > 1e-3

        encoder.load_tail(spy.after[at])
        with torch.no_grad():
            z_old, z_unlabelled = (
                np.concatenate([encoder.student(encoder.trunk(batch.views[0])).double().numpy() for batch in part()])
                for part in (built.batches.labelled, built.batches.unlabelled)
            )
        z_new = z_unlabelled[built.data.unlabelled.labels.numpy() >= known]
        assert (len(z_new), line["k"]) == (24, 4)
        assert line["soc_paper"] == pytest.approx(overlap(z_old, z_new, 4), abs=1e-5)
        old, new = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (z_old, z_new))
        assert line["soc_release"] == pytest.approx(overlap(old - old.mean(0), new - old.mean(0), 4), abs=1e-5)


def test_a_run_does_not_notice(data, tmp_path):
    """A method with dropout and buffers, a running energy reference: the same bits in checkpoints, logs and results."""
    config = small_config(data, "counting", epochs=2)
    results = {}
    for name, callbacks in {"plain": [], "diagnosed": [Diagnose(every=2)]}.items():
        results[name] = train(config, tmp_path / name, callbacks)
        assert len(measured(tmp_path / name)) == (7 if callbacks else 0)
    assert results["plain"] == results["diagnosed"]
    for file in ("last.safetensors", "best.safetensors"):
        (a, state), (b, other) = (load_checkpoint(tmp_path / name / file) for name in ("plain", "diagnosed"))
        assert state == other
        assert a.keys() == b.keys()
        assert all(torch.equal(a[key], b[key]) for key in a)
    a, b = (
        [
            {k: v for k, v in line.items() if k != "seconds"}
            for line in RunFolder.open(tmp_path / name).metrics()
            if line["kind"] != "diagnosis"
        ]
        for name in ("plain", "diagnosed")
    )
    assert a == b


def test_the_gradient_is_measured_under_the_draws_of_the_step(data, tmp_path):
    """With weight 0 on the unsupervised part the two gradients are one, if and only if dropout draws the same again."""
    train(small_config(data, "noisy", eagc=False, sup_weight=1.0, epochs=1), tmp_path / "run", [Diagnose(every=2)])
    assert [line["gdc_clean"] for line in measured(tmp_path / "run")] == pytest.approx([0.0] * 4, abs=1e-5)


def test_when_it_measures(data, tmp_path):
    train(small_config(data, epochs=2), tmp_path / "run", [Diagnose(every=4, steps=9)])
    lines = measured(tmp_path / "run")
    assert [(line["epoch"], line["position"]) for line in lines] == [(0, 0), (0, 4), (1, 1)]
    assert all(0 <= line[name] <= 2 for line in lines for name in MEASURES)
    assert all(line["seconds"] > 0 and line["k"] == 16 for line in lines)


def test_what_cannot_be_measured_is_said(data, tmp_path):
    with pytest.raises(ConfigError, match="accumulation=2"):
        train(small_config(data, epochs=1, accumulation=2), tmp_path / "run", [Diagnose()])
    with pytest.raises(ConfigError, match="every=0"):
        Diagnose(every=0)
