"""The loop on real files: killed and resumed, repeated, in two processes, against plain training code."""

import dataclasses
import json
import math
import pickle
import shutil
from pathlib import Path

import pytest
import small_runs
import torch
from small_runs import FirstStep, small_config
from torch.nn import functional as F

from eagc_ops import Subspace, hints
from eagc_ops.app import environment
from eagc_ops.app.files import fingerprint
from eagc_ops.training import runs
from eagc_ops.training.config import SPECS, ConfigError
from eagc_ops.training.data import open_data, train_loader
from eagc_ops.training.data.loaders import seeded
from eagc_ops.training.engine import experiment as experiment_module
from eagc_ops.training.engine import loop as loop_module
from eagc_ops.training.engine.checkpoint import CheckpointError, load_checkpoint
from eagc_ops.training.engine.experiment import Experiment
from eagc_ops.training.engine.loop import Callback, RunWarning
from eagc_ops.training.engine.run_folder import RunFolder
from eagc_ops.training.engine.store import reference_key
from eagc_ops.training.methods import Rows
from eagc_ops.training.models import reference_model as reference_module
from eagc_ops.training.runs import evaluate, resume, train

GENTLE = {"backbone_lr": 0.01, "head_lr": 0.01}  # steps that do not blow rounding up

pytestmark = pytest.mark.filterwarnings("ignore:the run predicts", "ignore:tau is below")


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """An uninterrupted run: (config, folder, result)."""
    config, folder = small_config(data, "noisy"), tmp_path_factory.mktemp("whole") / "run"
    return config, folder, train(config, folder)


@pytest.fixture(scope="module")
def killed(data, whole, tmp_path_factory):
    """Real processes: runs like `whole` that were killed, one with two ranks, one in bf16; name -> folder."""
    folder = tmp_path_factory.mktemp("killed")
    config = whole[0].to_json()
    scenarios = {
        "in an epoch": {"kill": ["update", 13], "config": {**config, "workers": 2, "checkpoint_every": 3}},
        "in a write": {"kill": ["write", 2]},
        "before a rename": {"kill": ["rename", 2]},
        "before any checkpoint": {"kill": ["update", 3]},
        "two ranks": {"kill": None, "world": 2, "config": small_config(data, epochs=2, **GENTLE).to_json()},
        "bf16": {"kill": None, "config": small_config(data, epochs=1, precision="bf16", **GENTLE).to_json()},
    }
    for name, scenario in scenarios.items():
        scenario |= {"config": config, "world": 1, **scenario, "output": str(folder / name / "run")}
    small_runs.run_in_processes(list(scenarios.values()), folder)
    return {name: Path(scenario["output"]) for name, scenario in scenarios.items()}


def same(a, b):
    """Last and best checkpoints of two runs, bit for bit (the order of a header's entries is not fixed)."""
    for name in ("last.safetensors", "best.safetensors"):
        (tensors, state), (other_tensors, other_state) = load_checkpoint(a / name), load_checkpoint(b / name)
        if state != other_state or tensors.keys() != other_tensors.keys():
            return False
        if not all(torch.equal(tensors[key], other_tensors[key]) for key in tensors):
            return False
    return True


class Counter(Callback):
    taken = 0

    def after_update(self, loop, rows):
        self.taken += 1


def lines(folder):
    return [
        {k: v for k, v in line.items() if k not in ("seconds", "steps")}
        for line in RunFolder.open(folder).metrics()
    ]


def weights(folder, name="last"):
    return load_checkpoint(Path(folder) / f"{name}.safetensors")[0]


# Kill and resume --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["in an epoch", "in a write", "before a rename", "before any checkpoint"])
def test_a_killed_run_ends_with_the_same_bytes(whole, killed, name):
    _, folder, result = whole
    run = killed[name]
    assert not (run / "result.json").exists()
    if name == "in an epoch":
        _, state = load_checkpoint(run / "last.safetensors")
        assert (state["epoch"], state["position"]) == (
            1,
            3,
        )  # 7 steps per epoch: killed in update 13 = (1, 5)
    if name in ("in a write", "before a rename"):
        assert list(run.glob("last.safetensors.*.partial"))
        assert load_checkpoint(run / "last.safetensors")[1]["epoch"] == 1  # the previous one is still whole
    steps = Counter()
    assert resume(run, [steps]) == result
    assert steps.taken == {"in an epoch": 11, "before any checkpoint": 21}.get(
        name, 14
    )  # of 21: it went on, it did not start again
    assert same(run, folder)
    assert lines(run) == lines(folder)
    assert not list(run.glob("*.partial"))


def test_the_running_energy_is_part_of_a_checkpoint(whole, killed):
    stored = [
        load_checkpoint(file)[0]["energy_ref"]
        for file in killed["in an epoch"].parent.glob("references/subspace*")
    ]
    assert len(stored) == 1
    last = weights(whole[1])["eagc.energy_ref"]
    assert last != stored[0]  # it has moved, and the test above says that a resumed run has the same one


def test_a_repeated_run_has_the_same_bytes_and_another_seed_has_not(data, whole, tmp_path):
    config, folder, result = whole
    assert train(config, tmp_path / "again") == result
    assert same(tmp_path / "again", folder)
    train(small_config(data, "noisy", seed=1, epochs=1), tmp_path / "other")
    assert not torch.equal(
        weights(tmp_path / "other")["method.classifier.weight"], weights(folder)["method.classifier.weight"]
    )


def test_resuming_a_complete_run_returns_its_result(whole):
    before = (whole[1] / "metrics.jsonl").read_bytes()
    assert resume(whole[1]) == whole[2]
    assert (whole[1] / "metrics.jsonl").read_bytes() == before


# Two processes ----------------------------------------------------------------------------------------------


def test_two_processes_take_the_steps_of_one(data, killed, tmp_path):
    train(small_config(data, epochs=2, **GENTLE), tmp_path / "one")  # 14 steps
    one, two = weights(tmp_path / "one"), weights(killed["two ranks"])
    assert one.keys() == two.keys()
    for name in one:
        momentum = name.startswith("optimizer")  # sums of gradients have a scale of their own
        limit = 1e-5 * one[name].abs().max().item() if momentum else 1e-6
        torch.testing.assert_close(
            two[name], one[name], rtol=0, atol=limit, msg=lambda m, name=name: f"{name}: {m}"
        )
    start = Experiment(small_config(data)).student.state()
    assert (
        one["method.classifier.weight"] - start["method.classifier.weight"]
    ).abs().max() > 1e-3  # something was trained
    for a, b in zip(lines(tmp_path / "one"), lines(killed["two ranks"])):
        assert a["kind"] == b["kind"]
        assert a.get("loss", 0) == pytest.approx(b.get("loss", 0), rel=1e-5)
        assert [a.get(k) for k in ("all", "old", "new")] == [b.get(k) for k in ("all", "old", "new")]


def test_bf16_follows_fp32(data, killed, tmp_path):
    train(small_config(data, epochs=1, **GENTLE), tmp_path / "fp32")
    a, b = weights(tmp_path / "fp32"), weights(killed["bf16"])
    change = [
        (a[name] - b[name]).abs().max().item()
        for name in a
        if name.startswith(("encoder", "method", "eagc.energy"))
    ]
    assert 0 < max(change) < 0.02
    assert all(tensor.dtype == torch.float32 for name, tensor in b.items() if tensor.is_floating_point())


# Against plain code -----------------------------------------------------------------------------------------


def plain_simgcd(config, tail=None):
    """What training is without this package's loop: encoder, heads, loss, backward, SGD by hand."""
    built = Experiment(config)
    encoder, method = built.student.encoder, built.student.method
    if tail is not None:
        encoder.load_tail(tail)
    groups = [(p, config.backbone_lr) for p in encoder.tail.parameters()] + [
        (p, config.head_lr) for p in method.parameters()
    ]
    velocity = {}
    for epoch in range(config.epochs):
        for position, batch in enumerate(built.batches.train.epoch(epoch)):
            z = encoder.student(encoder.trunk(torch.cat(batch.views)))
            mask = torch.cat([batch.mask, batch.mask])
            label = torch.where(mask, torch.cat([batch.label, batch.label]), -1)
            loss = method.loss(method(z), Rows(label, mask, batch.uq_idx.repeat(2), epoch, position))
            gradients = torch.autograd.grad(loss.supervised + loss.unsupervised, [p for p, _ in groups])
            with torch.no_grad():
                for (p, initial), g in zip(groups, gradients):
                    floor = 1e-3 * config.head_lr
                    lr = floor + (initial - floor) * (1 + math.cos(math.pi * epoch / config.epochs)) / 2
                    g = g.add(p, alpha=5e-5) if p.ndim > 1 else g
                    velocity[p] = velocity[p].mul_(0.9).add_(g) if p in velocity else g.clone()
                    p.add_(velocity[p], alpha=-lr)
    return built.student.state()


def test_no_eagc_is_the_plain_method_bit_for_bit(data, tmp_path):
    config = small_config(data, eagc=False, warm_start=False)
    train(config, tmp_path / "run")
    assert not (tmp_path / "references").exists()  # nothing needed one
    run, plain = weights(tmp_path / "run"), plain_simgcd(config)
    assert all(torch.equal(run[name], plain[name]) for name in plain)


def test_eagc_with_both_strengths_zero_is_no_eagc_bit_for_bit(data, tmp_path):
    train(small_config(data, eagc=False), tmp_path / "off")
    train(small_config(data, lambda_a=0.0, lambda_p=0.0), tmp_path / "zero")
    off, zero = weights(tmp_path / "off"), weights(tmp_path / "zero")
    assert all(torch.equal(off[name], zero[name]) for name in off)
    assert {name.split(".")[0] for name in zero.keys() - off.keys()} == {"eagc"}


@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_gradient_of_a_step_is_loss_plus_alignment_minus_projection(data, tmp_path, accumulation):
    """One step by autograd and the paper's formulas: a proximal loss as anchor, a projection of dL/dz."""
    seen = FirstStep()
    # Not warm-started, so that z differs from z_ref; energies fixed; strengths that show
    config = small_config(
        data,
        warm_start=False,
        energy_momentum=None,
        lambda_a=200.0,
        lambda_p=0.9,
        epochs=1,
        accumulation=accumulation,
    )
    hints.said.clear()
    train(config, tmp_path / "run", [seen])
    assert not hints.said & {"fp16", "accumulation", "jump", "twice"}, "our own loop scales the anchor"

    built = Experiment(config)
    encoder, method = built.student.encoder, built.student.method
    (file,) = (tmp_path / "references").glob("reference*")
    tail = load_checkpoint(file)[0]
    tail.pop("cross_entropy")
    encoder.set_reference(tail)
    S, mean_energy = seen.eagc.matrix, seen.eagc.energy_ref
    batch = next(iter(built.batches.train.epoch(0)))
    total, tau_seen, size = 0, [], 8 // accumulation
    for part in range(accumulation):
        cut = slice(part * size, (part + 1) * size)
        mask = batch.mask[cut].repeat(2)
        tokens = encoder.trunk(torch.cat([view[cut] for view in batch.views]))
        z, z_ref = encoder.student(tokens), encoder.anchor(tokens)
        label = torch.where(mask, batch.label[cut].repeat(2), -1)
        loss = method.loss(method(z), Rows(label, mask, batch.uq_idx[cut].repeat(2), 0, 0))
        (g,) = torch.autograd.grad(loss.supervised + loss.unsupervised, z)
        energy = ((z @ S) * z).sum(1) / z.pow(2).sum(1)
        tau = (1 - energy / (mean_energy + 1e-6)).clamp(0, 1).detach()
        tau_seen.append(tau[~mask])
        g = torch.where(mask[:, None], g, g - 0.9 * tau[:, None] * (g @ S))
        proximal = 200.0 / 2 * F.mse_loss(z[mask], z_ref[mask])
        parts = torch.autograd.grad([z, proximal], list(encoder.tail.parameters()), [g, None])
        total = [a + b / accumulation for a, b in zip(total or [0] * len(parts), parts)]
    assert (torch.cat(tau_seen) > 0.01).float().mean() > 0.3
    for expected, got in zip(total, seen.found):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5 * expected.abs().max().item())


# The reference stage ----------------------------------------------------------------------------------------


def test_the_reference_model_is_supervised_training_of_the_last_block(data, tmp_path):
    """Against a whole ViT trained with torch's own SGD, scheduler and weight norm."""
    config = small_config(data, epochs=1)
    result = train(config, tmp_path / "run")
    built = Experiment(config)
    vit = built.student.encoder.vit
    with seeded(config.seed, -1, 3):
        head = torch.nn.utils.parametrizations.weight_norm(
            torch.nn.Linear(vit.embed_dim, 3, bias=False), dim=0
        )
    head.parametrizations.weight.original0.requires_grad_(False).fill_(1.0)
    trained = [p for p in [*vit.blocks[-1].parameters(), *head.parameters()] if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": 1e-4},
        {"params": [p for p in trained if p.ndim == 1]},
    ]
    sgd = torch.optim.SGD(groups, lr=0.02, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, T_max=2, eta_min=2e-5)
    for epoch in range(2):
        losses = []
        for batch in built.batches.labelled_train.epoch(epoch):
            logits = head(F.normalize(vit(torch.cat(batch.views)), dim=1)) / 0.1
            losses.append(F.cross_entropy(logits, torch.cat([batch.label, batch.label])))
            sgd.zero_grad()
            losses[-1].backward()
            sgd.step()
        schedule.step()
        assert len(losses) == 3  # 18 images in batches of 8: the last batch is kept
    (file,) = (tmp_path / "references").glob("reference*")
    tail, _ = load_checkpoint(file)
    assert tail.pop("cross_entropy").item() == result["reference_cross_entropy"]
    assert result["reference_cross_entropy"] == pytest.approx(torch.stack(losses).mean().item(), rel=1e-4)
    for name, value in tail.items():
        torch.testing.assert_close(value, vit.state_dict()[name], rtol=1e-4, atol=1e-5)

    # Known-class subspace: raw features of the reference model, test transform, fp64
    with torch.no_grad():
        z = torch.cat([vit(batch.views[0]) for batch in built.batches.labelled()]).double()
    R = z.T @ z / len(z)
    S = R @ torch.linalg.inv(R + 0.25 * torch.eye(len(R)))
    (file,) = (tmp_path / "references").glob("subspace*")
    fitted, _ = load_checkpoint(file)
    torch.testing.assert_close(fitted["matrix"].double(), S, rtol=0, atol=1e-4)
    assert fitted["energy_ref"].item() == pytest.approx(
        (((z @ S) * z).sum(1) / (z * z).sum(1)).mean().item(), rel=1e-4
    )


def test_a_fingerprint_decides_whether_a_reference_is_used_again(data, tmp_path, monkeypatch):
    trained = []
    original = reference_module.train_reference
    monkeypatch.setattr(experiment_module, "train_reference", lambda *a: trained.append(1) or original(*a))
    config = small_config(data, epochs=1)

    def references(name, **switches):
        trained.clear()
        train(small_config(data, **{"epochs": 1, **switches}), tmp_path / name)
        return len(trained)

    assert references("first") == 1
    assert (
        references("same", lambda_p=0.1, head_lr=0.2, memax_weight=3.0, aperture=1.0) == 0
    )  # nothing it depends on
    for name, value in {
        "seed": 5,
        "reference_epochs": 1,
        "reference_lr": 0.01,
        "weights": "random",
        "trainable_blocks": 2,
    }.items():
        assert references(name, **{name: value}) == 1, name
    fewer = Path(data["split_file"]).with_name("fewer.json")
    fewer.write_text(json.dumps({"known_classes": ["class3", "class0"], "labelled_fraction": 0.5}))
    assert references("split", split_file=str(fewer)) == 1

    # The name of a file counts for nothing: content under a wrong name is refused
    built = Experiment(config)
    key = reference_key(built.student.encoder, config, built.data, built.batches.identity)
    right = tmp_path / "references" / f"reference-1-{fingerprint(key)[:16]}.safetensors"
    other = next(file for file in right.parent.glob("reference*") if file != right)
    shutil.copy(other, right)
    with pytest.raises(CheckpointError, match="does not hold the content that its name stands for"):
        references("wrong")


# Checkpoints that cannot be used ----------------------------------------------------------------------------


@pytest.fixture
def half_done(killed, tmp_path):
    """A copy of a killed run, before it is resumed or after: the result is taken away."""
    run = tmp_path / "run"
    shutil.copytree(killed["in an epoch"], run)
    (run / "result.json").unlink(missing_ok=True)
    return run


def test_a_damaged_checkpoint_is_recognised(half_done):
    file = half_done / "last.safetensors"
    content = bytearray(file.read_bytes())
    content[-100] ^= 1  # one bit of one weight
    file.write_bytes(content)
    with pytest.raises(
        CheckpointError, match=r"last\.safetensors is damaged: its content does not match its sha256"
    ):
        resume(half_done)
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match="damaged or not a checkpoint"):
        resume(half_done)


def test_a_pickle_is_refused_and_not_executed(half_done, tmp_path):
    class Trap:
        def __reduce__(self):
            return Path.touch, (tmp_path / "executed",)

    (half_done / "last.safetensors").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(CheckpointError, match="damaged or not a checkpoint"):
        resume(half_done)
    assert not (tmp_path / "executed").exists()


def test_a_foreign_checkpoint_names_what_differs(data, half_done, tmp_path):
    train(small_config(data, "noisy", epochs=1, seed=7), tmp_path / "foreign")
    shutil.copy(tmp_path / "foreign" / "last.safetensors", half_done / "last.safetensors")
    with pytest.raises(
        CheckpointError,
        match=r"belongs to a different run: epochs \(1 there, 3 here\), seed \(7 there, 0 here\)",
    ):
        resume(half_done)


def test_other_images_are_refused(half_done, tmp_path):
    fewer = tmp_path / "fewer.json"
    fewer.write_text(json.dumps({"known_classes": ["class3", "class4"], "labelled_fraction": 0.5}))
    with pytest.raises(ConfigError, match="different data or weights: split_hash differs"):
        resume(half_done, split_file=str(fewer))


def test_other_settings_are_refused(half_done):
    with pytest.raises(ConfigError, match="epochs cannot change in an existing run"):
        resume(half_done, epochs=5)


def test_a_new_run_needs_an_empty_folder(whole):
    with pytest.raises(ConfigError, match="is not an empty folder: resume the run in it"):
        train(whole[0], whole[1])


def test_a_run_that_was_killed_at_its_birth_starts_anew_and_other_files_are_refused(data, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json.1f2e3d4c.partial").write_text('{"config": {"meth')
    (run / ".lock").write_text("")
    (run / "notes.txt").write_text("mine")
    config = small_config(data, epochs=1, eagc=False, warm_start=False)
    with pytest.raises(ConfigError, match="is not an empty folder"):
        train(config, run)
    (run / "notes.txt").unlink()
    assert train(config, run)["last"]["epoch"] == 0
    assert not list(run.glob("*.partial"))
    assert not (run / ".lock").exists()


def test_a_folder_without_run_json_is_no_run(tmp_path):
    with pytest.raises(ConfigError, match="is not a run folder"):
        resume(tmp_path)


def test_a_run_json_that_was_cut_short_is_named(tmp_path):
    (tmp_path / "run.json").write_text('{"config": {"method": "small", "epochs": ')
    with pytest.raises(ConfigError, match=r"run\.json cannot be read"):
        resume(tmp_path)


def test_a_run_json_with_a_wrong_setting_is_named(whole, tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"config": {**whole[0].to_json(), "epochs": "three"}}))
    with pytest.raises(ConfigError, match="epochs must be a whole number, got 'three'"):
        resume(tmp_path)


# What a run leaves behind -----------------------------------------------------------------------------------


@pytest.fixture
def opened(data):
    """The data of the runs."""
    return open_data("folder", data["root"], split_file=data["split_file"], image_size=16)


def of_kind(folder, kind):
    return [line for line in RunFolder.open(folder).metrics() if line["kind"] == kind]


def test_the_folder_says_what_was_run(whole, opened):
    folder = RunFolder.open(whole[1])
    assert folder.config == whole[0]
    facts = folder.facts
    assert facts.split_hash == opened.split_hash
    assert (facts.known, facts.classes, facts.images, facts.labelled) == (3, 5, 60, 18)
    assert facts.steps_per_epoch == 7
    assert facts.versions["torch"] == torch.__version__.split("+")[0]
    assert (facts.commit is None) == (environment.commit() is None)


def test_the_folder_says_what_happened(whole):
    _, path, result = whole
    epochs, steps = of_kind(path, "epoch"), of_kind(path, "step")
    assert [line["epoch"] for line in epochs] == [0, 1, 2]
    positions = [(line["epoch"], line["position"]) for line in steps]
    assert positions == [(e, p) for e in range(3) for p in (2, 5, 6)]
    assert result["last"] == {key: epochs[-1][key] for key in ("epoch", "all", "old", "new")}
    assert result["best"]["all"] == max(line["all"] for line in epochs)
    assert result["headline"] == "best"


def test_the_logged_loss_adds_up(whole):
    line = of_kind(whole[1], "step")[4]
    assert line["loss"] == pytest.approx(line["supervised"] + line["unsupervised"], rel=1e-5)
    assert line["supervised"] == pytest.approx(0.35 * (line["cls"] + line["supcon"]), rel=1e-5)


def test_the_histograms_count_the_unlabelled_rows_of_exactly_that_batch(whole, opened):
    line = of_kind(whole[1], "step")[4]
    batch = next(iter(train_loader(opened, batch_size=8, seed=0).epoch(1, start=5)))
    for name in ("energy", "tau"):
        assert sum(line[f"{name}_histogram"]) == 2 * (~batch.mask).sum().item()
        quantiles = [line[f"{name}_q{q}"] for q in (0, 10, 25, 50, 75, 90, 100)]
        assert quantiles == sorted(quantiles)
        assert quantiles[0] >= 0
        assert quantiles[-1] <= 1


def test_tensorboard_has_the_numbers_of_the_lines(whole):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    epochs, steps = of_kind(whole[1], "epoch"), of_kind(whole[1], "step")
    board = EventAccumulator(str(whole[1] / "tensorboard")).Reload()
    shown = [round(event.value, 4) for event in board.Scalars("epoch/all")]
    assert shown == [round(line["all"], 4) for line in epochs]
    assert len(board.Scalars("step/tau_q50")) == len(steps)


def test_evaluation_of_the_folder_gives_the_result(whole):
    _, folder, result = whole
    for which in ("last", "best"):
        assert evaluate(folder, which)._asdict() == {key: result[which][key] for key in ("all", "old", "new")}


def test_the_best_start_of_an_epoch_survives_a_stop(data, tmp_path, monkeypatch):
    evaluation, starts = runs._evaluation, iter((0.3, 0.7, 0.5))  # All at the starts of three epochs

    def scored(experiment):
        start = {"all": next(starts), "old": 0.5, "new": math.nan}
        return evaluation(experiment)._replace(start_scores=start)

    class Stop(Callback):
        def after_update(self, loop, rows):
            if loop.epoch == 2:
                raise KeyboardInterrupt

    monkeypatch.setattr(runs, "_evaluation", scored)
    with pytest.raises(KeyboardInterrupt):
        train(small_config(data, eagc=False, epochs=3), tmp_path / "run", [Stop()])
    result = resume(tmp_path / "run")
    assert result["best_start"] == {"epoch": 1, "all": 0.7, "old": 0.5, "new": None}
    epochs = [line for line in lines(tmp_path / "run") if line["kind"] == "epoch"]
    assert [line["start_all"] for line in epochs] == [0.3, 0.7, 0.5]
    assert {key: epochs[2][key] for key in result["last"]} == result["last"]  # that of the end


def test_the_mean_over_classes_is_logged_for_long_tailed_data(data, tmp_path, monkeypatch):
    """As SimGCD's script for Herbarium19 does; it decides nothing, and no result has it."""
    seen, class_accuracy = [], runs.class_accuracy
    monkeypatch.setattr(
        runs, "class_accuracy", lambda *arguments: seen.append(class_accuracy(*arguments)) or seen[-1]
    )
    config = small_config(data, eagc=False, epochs=1)
    train(config, tmp_path / "plain")
    monkeypatch.setitem(SPECS, config.dataset, dataclasses.replace(config.spec, long_tailed=True))
    result = train(config, tmp_path / "long")
    plain, long = (
        next(line for line in lines(tmp_path / name) if line["kind"] == "epoch") for name in ("plain", "long")
    )
    assert long.keys() - plain.keys() == {"class_all", "class_old", "class_new"}
    assert [(long["class_all"], long["class_old"], long["class_new"])] == seen
    assert "class_all" not in result["last"]


def test_a_run_that_collapses_and_a_tau_of_zero_are_said(data, tmp_path, monkeypatch):
    config = small_config(data, epochs=1)
    monkeypatch.setattr(
        experiment_module, "known_subspace", lambda *_: Subspace(torch.eye(96), 1.0)
    )  # every energy is 1

    class Collapse(Callback):
        def after_update(self, loop, rows):
            with torch.no_grad():
                loop.student.method.classifier.weight.copy_(
                    torch.randn(1, 96) * 1e-3 - torch.arange(5)[:, None]
                )

    with pytest.warns(RunWarning) as caught:
        result = train(config, tmp_path / "run", [Collapse()])
    said = [str(warning.message) for warning in caught if warning.category is RunWarning]
    assert result["warnings"] == said
    assert "predicts" in said[0]
    assert "of 5 classes" in said[0]
    assert "tau is below 0.01 on" in said[1]
    assert "aperture" in said[1]


def test_the_trunk_cache_gives_the_run_it_would_give_through_the_trunk(data, tmp_path, monkeypatch):
    from eagc_ops.bench.pixel_views import PixelViews

    config = small_config(data, trunk_cache=str(tmp_path / "cache"), cache_views=4, epochs=2)
    train(config, tmp_path / "cached" / "run")
    original = experiment_module.batches

    def through_the_trunk(found, config, encoder, **options):
        made = original(found, config.replace(trunk_cache=None), encoder, **options)
        for loader in (made.train, made.labelled_train):
            pixels = PixelViews(found, 4, seed=loader._seed)
            object.__setattr__(loader._loader, "dataset", pixels)
        return made

    monkeypatch.setattr(experiment_module, "batches", through_the_trunk)
    train(config, tmp_path / "pixels" / "run")
    cached, pixels = weights(tmp_path / "cached" / "run"), weights(tmp_path / "pixels" / "run")
    for name in cached:
        torch.testing.assert_close(cached[name], pixels[name], rtol=1e-3, atol=2e-5)


# Intervals, and runs of earlier versions --------------------------------------------------------------------


def test_rarer_evaluations_and_checkpoints_change_nothing_else(whole, tmp_path, monkeypatch):
    config, folder, result = whole
    rare = {"evaluate_every": 2, "checkpoint_epochs": 2, "tensorboard_every": 0}
    saved = []
    save = loop_module.save_checkpoint
    monkeypatch.setattr(
        loop_module, "save_checkpoint", lambda path, *rest: (saved.append(path.name), save(path, *rest))
    )
    other = train(config.replace(**rare), tmp_path / "run")
    assert other["last"] == result["last"]
    assert all(torch.equal(value, weights(folder)[name]) for name, value in weights(tmp_path / "run").items())
    evaluated = [line for line in lines(tmp_path / "run") if line["kind"] == "epoch"]
    assert evaluated == [
        line for line in lines(folder) if line["kind"] == "epoch" and line["epoch"] in (1, 2)
    ]
    assert other["best"]["all"] == max(line["all"] for line in evaluated)
    assert saved.count("last.safetensors") == 2
    assert (folder / "tensorboard").exists()
    assert not (tmp_path / "run" / "tensorboard").exists()


def test_a_run_of_an_earlier_version_is_read_and_evaluated(whole, tmp_path):
    """run.json and checkpoints without the settings that came later."""
    config, folder, _ = whole
    shutil.copytree(folder, tmp_path / "old")
    content = json.loads((folder / "run.json").read_text())
    added = config.with_added({})
    assert {"glyphs", "flip", "projector_width", "evaluate_every"} <= added.keys()
    content["config"] = {name: value for name, value in content["config"].items() if name not in added}
    (tmp_path / "old" / "run.json").write_text(json.dumps(content))
    tensors, state = load_checkpoint(folder / "last.safetensors")
    state["identity"] = {name: value for name, value in state["identity"].items() if name not in added}
    loop_module.save_checkpoint(tmp_path / "old" / "last.safetensors", tensors, state)
    assert evaluate(tmp_path / "old") == evaluate(folder)

    # A version that had these settings, and fewer of glyphs.
    state["identity"] |= {**added, "glyphs": {"classes": 60, "known": 10, "per_class": 30, "strength": 0.7}}
    loop_module.save_checkpoint(tmp_path / "old" / "last.safetensors", tensors, state)
    assert evaluate(tmp_path / "old") == evaluate(folder)
    state["identity"]["glyphs"]["strength"] = 0.8
    loop_module.save_checkpoint(tmp_path / "old" / "last.safetensors", tensors, state)
    with pytest.raises(CheckpointError, match=r"belongs to a different run: glyphs \("):
        evaluate(tmp_path / "old")


def test_a_resnet_is_trained_by_its_last_stage_also_from_a_cache(data, tmp_path):
    plain = {"weights": "random", "backbone": "resnet10t", "image_size": 32, "epochs": 1}
    config = small_config(data, trunk_cache=str(tmp_path / "cache"), cache_views=2, **plain)
    before = Experiment(config).student.encoder.vit.state_dict()
    before = {name: value.clone() for name, value in before.items()}
    train(config, tmp_path / "run")
    after = weights(tmp_path / "run")
    trained = {name for name in after if name.startswith("encoder.")}
    assert trained == {f"encoder.{name}" for name in before if name.startswith("blocks.4.")}
    changed = [
        name for name in trained if not torch.equal(after[name], before[name.removeprefix("encoder.")])
    ]
    assert any("conv" in name for name in changed)
    assert not any("running" in name for name in changed)
