"""Every measure of a run against plain numpy on captured weights and batches; the run stays the same."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import small_runs
import torch

from eagc_ops.app.cli import main
from eagc_ops.diagnostics import subspace_overlap
from eagc_ops.encoder import AnchoredEncoder
from eagc_ops.training.analysis import feature_measures
from eagc_ops.training.analysis.diagnosis import MEASURES
from eagc_ops.training.config import Diagnosis
from eagc_ops.training.data import open_data
from eagc_ops.training.engine import experiment as experiment_module
from eagc_ops.training.engine.checkpoint import load_checkpoint
from eagc_ops.training.engine.experiment import Experiment
from eagc_ops.training.engine.loop import Callback
from eagc_ops.training.engine.run_folder import RunFolder
from eagc_ops.training.methods import Rows, register
from eagc_ops.training.runs import resume, train

small_config = small_runs.small_config


@register("everywhere")
class Everywhere(small_runs.Small):
    """Its supervised part reaches all rows, as SelEx's does: the projection acts on its gradient."""

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


class Spy(Callback):
    """What the step of a run knows, copied: weights before and after, the applied gradients by name."""

    def __init__(self):
        self.before, self.applied, self.after = [], [], []

    def before_update(self, loop, rows):
        self.before.append({name: value.clone() for name, value in loop.student.state().items()})
        self.applied.append(
            {name: p.grad.clone() for name, p in loop.student.named_parameters() if p.requires_grad}
        )

    def after_update(self, loop, rows):
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


@pytest.mark.parametrize(("eagc", "parameters"), [(True, "block"), (False, "block"), (True, "all")])
def test_every_measure_against_brute_force(data, tmp_path, eagc, parameters):
    # Two trained blocks of which the last counts; no warm start and a strong anchor, so that z - z_ref shows;
    # a running mean energy
    switches = {
        "trainable_blocks": 2,
        "warm_start": False,
        "lambda_a": 20.0,
        "lambda_p": 0.9,
        "energy_momentum": 0.2,
        "epochs": 1,
    }
    switches |= {
        "backbone_lr": 0.001,
        "head_lr": 0.001,
        "aperture": 0.3,
    }  # small steps and a narrow subspace keep tau inside (0, 1)
    config, spy = (
        small_config(
            data, "everywhere", eagc=eagc, diagnose={"every": 3, "k": 4, "parameters": parameters}, **switches
        ),
        Spy(),
    )
    train(config, tmp_path / "run", [spy])
    found = measured(tmp_path / "run")
    assert [(line["step"], line["position"]) for line in found] == [(1, 0), (4, 3), (7, 6)]

    built = Experiment(config)
    encoder, method, known = built.student.encoder, built.student.method, built.data.known
    if eagc:
        (file,) = (tmp_path / "references").glob("reference*")
        tail = load_checkpoint(file)[0]
        del tail["cross_entropy"]
        encoder.set_reference(tail)
    batches = list(built.batches.train.epoch(0))
    names = [
        name for name in spy.applied[0] if parameters == "all" or name.startswith("encoder.vit.blocks.3.")
    ]
    assert len(names) == (
        12 if parameters == "block" else 24 + 7
    )  # two blocks; classifier, projector (4), MLP head (2)
    chosen = [dict(built.student.named_parameters())[name] for name in names]
    parts = (built.data.labelled, built.data.unlabelled)
    truth = {i.item(): label.item() for part in parts for i, label in zip(part.uq_idx, part.labels)}

    def forward(batch, images, at):
        """(tokens, z, loss) of a batch that holds these images alone."""
        mask = batch.mask[images].repeat(2)
        tokens = encoder.trunk(torch.cat([view[images] for view in batch.views]))
        z = encoder.student(tokens)
        label = torch.where(mask, batch.label[images].repeat(2), -1)
        return tokens, z, method.loss(method(z), Rows(label, mask, batch.uq_idx[images].repeat(2), 0, at))

    def of_parameters(outputs, gradients=None):
        return flat(
            torch.autograd.grad(outputs, chosen, gradients, retain_graph=True, materialize_grads=True)
        )

    for line in found:
        at = line["position"]
        built.student.load(spy.before[at])
        batch = batches[at]
        mask = batch.mask.repeat(2)
        tokens, z, loss = forward(batch, list(range(8)), at)
        applied = flat([spy.applied[at][name] for name in names])
        g_L = of_parameters(loss.supervised)
        assert line["gdc_clean"] == pytest.approx(deviation(g_L, applied), abs=1e-5)
        if not eagc:
            assert line["gdc_release"] == line["gdc_clean"] == pytest.approx(1 - line["cos_all"], abs=1e-6)
        else:  # the operator by its formulas, with the mean energy that the step used
            S, mean_energy = spy.before[at]["eagc.matrix"], spy.before[at]["eagc.energy_ref"]
            tau = (1 - ((z @ S) * z).sum(1) / z.square().sum(1) / (mean_energy + 1e-6)).clamp(0, 1).detach()
            assert (tau[~mask] > 0.01).any()
            (g,) = torch.autograd.grad(loss.supervised, z, retain_graph=True)
            anchor = 20.0 * (z.detach() - encoder.anchor(tokens)) / (mask.sum() * z.shape[1])
            change = torch.where(
                mask[:, None], anchor, -0.9 * tau[:, None] * (g @ S)
            )  # of dL/dz: what the operator adds
            coordinated = g_L + of_parameters(z, change)
            assert line["gdc_release"] == pytest.approx(deviation(coordinated, applied), abs=1e-5)
            assert abs(line["gdc_release"] - line["gdc_clean"]) > 1e-3
            (g,) = torch.autograd.grad(loss.supervised + loss.unsupervised, z, retain_graph=True)
            change = torch.where(mask[:, None], anchor, -0.9 * tau[:, None] * (g @ S))
            for name, side in (("eep_share", ~mask), ("aga_share", mask)):
                changed, whole = (np.linalg.norm(x[side].double(), axis=1).sum() for x in (change, g))
                assert line[name] == pytest.approx(changed / whole, rel=1e-4)

        # Mixed gradients: the batch is made anew of fewer images
        labelled = batch.mask.tolist()
        is_known = [truth[i] < known for i in batch.uq_idx.tolist()]
        added = {
            "labelled": [i for i in range(8) if labelled[i]],
            "known": [i for i in range(8) if not labelled[i] and is_known[i]],
            "novel": [i for i in range(8) if not is_known[i]],
            "all": list(range(8)),
        }
        assert added["labelled"]
        for name, more in added.items():
            if not more:
                assert line[f"cos_{name}"] is None
                continue
            *_, part = forward(batch, sorted({*added["labelled"], *more}), at)
            assert line[f"cos_{name}"] == pytest.approx(
                1 - deviation(g_L, of_parameters(part.supervised + part.unsupervised)), abs=1e-5
            )
        (g,) = torch.autograd.grad(loss.supervised + loss.unsupervised, z)
        norms = np.linalg.norm(g.double().numpy(), axis=1)
        assert line["rho_grad"] == pytest.approx(norms[np.array(is_known * 2)].sum() / norms.sum(), rel=1e-4)
        assert line["known_rows"] == pytest.approx(sum(is_known) / 8)

        encoder.load_tail(spy.after[at])
        with torch.no_grad():
            z_old, z_unlabelled = (
                np.concatenate(
                    [encoder.student(encoder.trunk(batch.views[0])).double().numpy() for batch in part()]
                )
                for part in (built.batches.labelled, built.batches.unlabelled)
            )
        z_new = z_unlabelled[built.data.unlabelled.labels.numpy() >= known]
        assert (len(z_new), line["k"]) == (24, 4)
        assert line["soc_paper"] == pytest.approx(overlap(z_old, z_new, 4), abs=1e-5)
        old, new = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (z_old, z_new))
        assert line["soc_release"] == pytest.approx(
            overlap(old - old.mean(0), new - old.mean(0), 4), abs=1e-5
        )
        R = z_old.T @ z_old / len(z_old)
        S = R @ np.linalg.inv(R + 0.3**-2 * np.eye(len(R)))
        assert line["rho_in"] == pytest.approx(
            np.einsum("nd,de,ne->", z_new, S, z_new) / np.square(z_new).sum(), abs=1e-5
        )
        assert 0.05 < line["rho_in"] < 0.95
        if eagc:
            with torch.no_grad():
                z_ref = np.concatenate(
                    [
                        encoder.anchor(encoder.trunk(batch.views[0])).double().numpy()
                        for batch in built.batches.labelled()
                    ]
                )
            drift = np.linalg.norm(z_old - z_ref, axis=1).sum() / np.linalg.norm(z_ref, axis=1).sum()
            assert line["drift"] == pytest.approx(drift, rel=1e-4)
        else:
            assert line["drift"] is line["eep_share"] is line["aga_share"] is None
    for name in ("cos_known", "cos_novel"):  # the batches were not all poor ones
        assert any(line[name] is not None for line in found)


WAYS = {
    "dropout, buffers, running energy": ("counting", {}),
    "alignment loss": ("counting", {"alignment": "relation"}),
    "legogcd": ("small_legogcd", {"threshold": 0.2, "lambda_a": 0.0}),
    "sptnet": (
        "small_sptnet",
        {"eagc": False, "phase_batches": 3, "pad_width": 2, "prompt_lr": 0.1, "prompt_warmup": 4},
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_run_does_not_notice(data, tmp_path, way):
    """The same bits in checkpoints, logs and results, whatever is measured."""
    method, switches = WAYS[way]
    if method == "small_sptnet":
        train(small_config(data, epochs=1, eagc=False), tmp_path / "start")
        switches = {**switches, "init": str(tmp_path / "start"), "precision": "no"}
    results = {}
    for name, settings in {"plain": None, "diagnosed": {"every": 2, "parameters": "all"}}.items():
        results[name] = train(
            small_config(data, method, epochs=1, diagnose=settings, **switches), tmp_path / name
        )
        assert len(measured(tmp_path / name)) == (4 if settings else 0)
    assert results["plain"] == results["diagnosed"]
    exist = {
        name for name in MEASURES if any(line[name] is not None for line in measured(tmp_path / "diagnosed"))
    }
    operator = switches.get("eagc", True)
    assert exist == {*MEASURES} - (set() if operator else {"drift", "eep_share", "aga_share"})
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


def test_the_truth_of_unlabelled_images_reaches_no_weight(data, tmp_path, monkeypatch):
    """Known and novel changed about among them: other measures, the same weights."""
    config = small_config(data, "counting", epochs=1, diagnose={"every": 2})

    def changed_about(*arguments, **options):
        found = open_data(*arguments, **options)
        part = copy.copy(found.unlabelled)
        part.labels = (part.labels + 3) % 5
        return replace(found, unlabelled=part)

    train(config, tmp_path / "true")
    monkeypatch.setattr(experiment_module, "open_data", changed_about)
    train(config, tmp_path / "changed")
    a, b = (load_checkpoint(tmp_path / name / "last.safetensors")[0] for name in ("true", "changed"))
    assert all(torch.equal(a[key], b[key]) for key in a)
    for true, other in zip(measured(tmp_path / "true"), measured(tmp_path / "changed")):
        assert true["gdc_clean"] == other["gdc_clean"]
        assert all(true[name] != other[name] for name in ("rho_grad", "rho_in", "soc_release", "soc_paper"))


def test_the_trunk_sees_the_test_images_once(data, tmp_path, monkeypatch):
    seen, trunk = [], AnchoredEncoder.trunk

    def counted(self, images, **options):
        if images.ndim == 4:  # tokens that were kept pass through
            seen.append(len(images))
        return trunk(self, images, **options)

    monkeypatch.setattr(AnchoredEncoder, "trunk", counted)

    def images(name, **switches):
        seen.clear()
        train(
            small_config(data, eagc=False, warm_start=False, epochs=1, diagnose=Diagnosis(), **switches),
            tmp_path / name,
        )
        return sum(seen)

    steps = 2 * 7 * 16  # every batch twice, to train and to measure
    assert images("kept") == steps + 18 + 24 + 42  # labelled and novel images once; the evaluation
    monkeypatch.setattr(feature_measures, "KEPT_BYTES", (18 + 24) * 17 * 96 * 4 - 1)
    assert images("too many") == steps + 7 * (18 + 24) + 42
    assert measured(tmp_path / "kept")[6]["soc_paper"] == pytest.approx(
        measured(tmp_path / "too many")[6]["soc_paper"], rel=1e-6
    )
    cache = {"trunk_cache": str(tmp_path / "cache"), "cache_views": 2}
    images("building", **cache)
    assert images("cached", **cache) == 0
    assert all(line["soc_paper"] is not None for line in measured(tmp_path / "cached"))


def test_prompts_are_measured_with_what_they_do_to_the_pixels(data, tmp_path):
    train(small_config(data, epochs=1, eagc=False), tmp_path / "start")
    switches = {
        "phase_batches": 3,
        "pad_width": 2,
        "prompt_lr": 20.0,
        "prompt_warmup": 4,
        "init": str(tmp_path / "start"),
    }
    config = small_config(
        data, "small_sptnet", epochs=1, eagc=False, precision="no", diagnose={"k": 4}, **switches
    )
    train(config, tmp_path / "run")
    lines = measured(tmp_path / "run")
    trains_a_block = [False, False, True, True, True, False, False]
    for name in ("gdc_clean", "gdc_release", "rho_grad", "cos_all"):
        assert [line[name] is not None for line in lines] == trains_a_block, name
    built = Experiment(config)  # with the weights after the last step
    built.student.load(load_checkpoint(tmp_path / "run" / "last.safetensors")[0])
    built.student.eval()
    (old, _), (unlabelled, label) = built.features.labelled(), built.features.unlabelled()
    assert lines[-1]["soc_release"] == pytest.approx(
        subspace_overlap(old, unlabelled[label >= 3], 4, "release").item(), rel=1e-5
    )
    assert lines[-1]["soc_release"] != pytest.approx(
        lines[-3]["soc_release"], rel=1e-3
    )  # since then only prompts have changed


def test_an_alignment_loss_is_measured_as_the_anchor_term_it_stands_in_for(data, tmp_path):
    """The same training by a loss and by the gradient: the same measures."""
    switches = {
        "epochs": 1,
        "warm_start": False,
        "lambda_a": 20.0,
        "backbone_lr": 0.001,
        "head_lr": 0.001,
        "diagnose": {"every": 2},
    }
    lines = []
    for alignment in ("gradient", "proximal"):
        train(small_config(data, alignment=alignment, **switches), tmp_path / alignment)
        lines.append(measured(tmp_path / alignment))
    for a, b in zip(*lines, strict=True):
        for name in MEASURES:
            assert a[name] == pytest.approx(b[name], abs=1e-4), name
        assert abs(a["gdc_clean"] - a["gdc_release"]) > 1e-3


def test_diagnosis_begins_when_a_run_is_resumed(data, tmp_path):
    config = small_config(data, epochs=2)
    result = train(config, tmp_path / "whole")

    class Stop(Callback):
        def before_update(self, loop, rows):
            if loop.step == 9:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "run", [Stop()])
    assert resume(tmp_path / "run", diagnose={"every": 3, "steps": 12}) == result
    assert [line["step"] for line in measured(tmp_path / "run")] == [10]
    a, b = (load_checkpoint(tmp_path / name / "last.safetensors") for name in ("whole", "run"))
    assert a[1] == b[1]
    assert all(torch.equal(a[0][key], b[0][key]) for key in a[0])


def test_the_command_line(data, tmp_path, capsys):
    options = [
        "--dataset",
        "folder",
        "--image-size",
        "16",
        "--backbone",
        "vit_digits",
        "--device",
        "cpu",
        "--batch-size",
        "8",
    ]
    options += [word for name, value in data.items() for word in ("--" + name.replace("_", "-"), value)]
    run = ["train", "--method", "small", *options, "--no-eagc", "--epochs", "1", "-o", str(tmp_path / "run")]
    words = "--diagnose-every 3 --diagnose-steps 4 --diagnose-parameters all --diagnose-k 8"
    assert main([*run, *words.split()]) == 0
    assert [(line["step"], line["k"]) for line in measured(tmp_path / "run")] == [(1, 8), (4, 8)]
    assert RunFolder.open(tmp_path / "run").config.diagnose == Diagnosis(
        every=3, steps=4, parameters="all", k=8
    )
    capsys.readouterr()
    for words, message in {
        "--diagnose-evry 3": "unknown option --diagnose-evry; did you mean --diagnose-every?",
        "--diagnose-every": "--diagnose-every: expected one argument",
        "--diagnose-every 0": "--diagnose-every must be >= 1, got 0",
        "--diagnose-k 2.5": "--diagnose-k: must be a whole number, got '2.5'",
        "--diagnose-parameters last": "--diagnose-parameters: invalid choice: 'last'",
        "--diagnose --accumulation 2": "--accumulation 2: the diagnosis compares gradients of a whole batch",
    }.items():
        try:
            code = main([*run[:-1], str(tmp_path / "other"), *words.split()])
        except SystemExit as exit:
            code = exit.code
        assert code == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    assert not (tmp_path / "other").exists()


def test_the_gradient_is_measured_under_the_draws_of_the_step(data, tmp_path):
    """Without an unsupervised part the two gradients are equal if and only if dropout repeats its draws."""
    train(
        small_config(data, "noisy", eagc=False, sup_weight=1.0, epochs=1, diagnose=Diagnosis(every=2)),
        tmp_path / "run",
    )
    assert [line["gdc_clean"] for line in measured(tmp_path / "run")] == pytest.approx([0.0] * 4, abs=1e-5)


def test_when_it_measures(data, tmp_path):
    train(small_config(data, epochs=2, diagnose=Diagnosis(every=4, steps=9)), tmp_path / "run")
    lines = measured(tmp_path / "run")
    assert [(line["epoch"], line["position"]) for line in lines] == [(0, 0), (0, 4), (1, 1)]
    cosines = [name for name in MEASURES if name.startswith("cos_")]
    assert all(0 <= line[name] <= 2 for line in lines for name in MEASURES if name not in cosines)
    assert all(line[name] is None or -1 <= line[name] <= 1 for line in lines for name in cosines)
    assert all(line["seconds"] > 0 and line["k"] == 16 for line in lines)
