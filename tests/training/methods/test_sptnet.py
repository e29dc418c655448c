"""SPTNet: prompts, phases and schedules as published, gradients against a whole ViT, and its starts."""

import functools
import math
from types import SimpleNamespace

import pytest
import torch
from small_runs import published, small_config
from torch.nn import functional as F

from eagc_ops.training.config import ConfigError, resolve
from eagc_ops.training.data.rows import rows_of
from eagc_ops.training.engine.checkpoint import load_checkpoint
from eagc_ops.training.engine.experiment import Experiment
from eagc_ops.training.engine.loop import Callback
from eagc_ops.training.engine.run_folder import RunFolder
from eagc_ops.training.methods import METHODS, Problem, Rows
from eagc_ops.training.methods.sptnet import CLASSIFIER, PROMPT, PadPrompt, PatchPrompt, SPTNet
from eagc_ops.training.runs import evaluate, resume, train

CUB = Problem(dim=768, known=100, classes=200, images=5994)
PHASES = {
    "phase_batches": 3,
    "pad_width": 2,
    "prompt_warmup": 4,
    "prompt_lr": 0.5,
}  # 7 batches: 2 prompt, 3 classifier, 2 prompt

pytestmark = pytest.mark.filterwarnings("ignore:the run predicts", "ignore:tau is below")


def sptnet(problem=CUB, dataset="cub", preset="baseline", **switches):
    torch.manual_seed(0)
    return METHODS["sptnet"](resolve("sptnet", dataset, preset, **switches), problem)


@pytest.fixture(scope="module")
def starts(data, tmp_path_factory):
    """Folders of a SimGCD run without EAGC and of one with it."""
    folder = tmp_path_factory.mktemp("simgcd")
    for name, eagc in (("off", False), ("on", True)):
        train(small_config(data, "small", epochs=1, eagc=eagc), folder / name)
    return {name: str(folder / name) for name in ("off", "on")}


def spt_config(data, **switches):
    return small_config(data, "small_sptnet", **{**PHASES, "epochs": 2, "precision": "no", **switches})


def weights(folder, name="last"):
    return load_checkpoint(folder / f"{name}.safetensors")[0]


# Prompts ----------------------------------------------------------------------------------------------------


def test_sizes_are_the_published_ones():
    pad, patch = sptnet().prompts
    assert [tuple(p.shape) for p in (pad.top, pad.bottom, pad.left, pad.right)] == [(3, 30, 224)] * 2 + [
        (3, 164, 30)
    ] * 2
    assert sum(p.numel() for p in pad.parameters()) == 69_840
    assert sum(p.numel() for p in patch.parameters()) == 150_528
    patch(torch.zeros(1, 3, 224, 224)).sum().backward()
    assert patch.pixels.grad.count_nonzero() == 35_280  # the others never reach an image
    (only,) = sptnet(prompts="patch").prompts
    assert isinstance(only, PatchPrompt)
    assert all(
        abs(p.std().item() - 1) < 0.02 and abs(p.mean().item()) < 0.02 for p in sptnet().prompts.parameters()
    )  # standard normal


def test_pad_prompt_pixel_by_pixel():
    prompt, images = PadPrompt(2, 7, 2).double(), torch.randn(3, 2, 7, 7, dtype=torch.float64)
    out = prompt(images)
    for b in range(3):
        for c in range(2):
            for y in range(7):
                for x in range(7):
                    if y < 2:
                        added = prompt.top[c, y, x]
                    elif y >= 5:
                        added = prompt.bottom[c, y - 5, x]
                    elif x < 2:
                        added = prompt.left[c, y - 2, x]
                    elif x >= 5:
                        added = prompt.right[c, y - 2, x - 5]
                    else:
                        added = 0.0
                    assert out[b, c, y, x] == images[b, c, y, x] + added


def test_patch_prompt_pixel_by_pixel():
    prompt, images = PatchPrompt(2, 8, 4).double(), torch.randn(3, 2, 8, 8, dtype=torch.float64)
    out = prompt(images)
    for y in range(8):
        for x in range(8):
            border = y % 4 in (0, 3) or x % 4 in (0, 3)
            added = prompt.pixels[:, y, x] if border else torch.zeros(2)
            assert torch.equal(out[:, :, y, x], images[:, :, y, x] + added)


def test_both_prompts_are_summed():
    method = sptnet()
    x = torch.randn(2, 3, 224, 224)
    pad, patch = method.prompts
    torch.testing.assert_close(method.prompts(x), x + (pad(x) - x) + (patch(x) - x))


# Phases and schedules ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("images", "lengths"),
    [(5994, [19, 20, 7]), (8144, [19, 20, 20, 4]), (6667, [19, 20, 13]), (50000, [19] + [20] * 18 + [11])],
)
def test_phases_of_the_published_data_sets(images, lengths):
    method = sptnet(CUB._replace(images=images))
    assert sum(lengths) == images // 128 == method.steps
    phase, expected = PROMPT, []  # the published loop: it flips before batches 19, 39, ...
    for b in range(method.steps):
        if (b + 1) % 20 == 0:
            phase = CLASSIFIER if phase == PROMPT else PROMPT
        expected.append(phase)
    assert [method.phase(b) for b in range(method.steps)] == expected
    assert expected == [i % 2 for i, n in enumerate(lengths) for _ in range(n)]


def test_learning_rate_of_the_prompts_warms_up_by_batches_then_falls_to_zero():
    method, total = sptnet(), 46 * 1000
    assert method.learning_rate(25.0, 0, 0) == pytest.approx(25.0 / 1000)
    for epoch in (0, 1, 20, 21, 22, 500, 999):
        for position in (0, 18, 39, 45):  # prompt phases
            s = epoch * 46 + position
            expected = (
                25.0 * (s + 1) / 1000
                if s < 1000
                else 12.5 * (1 + math.cos(math.pi * (s - 1000) / (total - 1000)))
            )
            assert method.learning_rate(25.0, epoch, position) == pytest.approx(expected, rel=1e-9)
    assert method.learning_rate(25.0, 999, 45) < 1e-7  # the last batch of the last epoch
    assert sptnet(prompt_warmup=0).learning_rate(25.0, 0, 0) == 25.0


def test_learning_rate_of_the_classifier_is_pytorchs_cosine_by_epochs():
    method, parameter = sptnet(), torch.nn.Parameter(torch.zeros(1))
    sgd = torch.optim.SGD([parameter], lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, T_max=1000, eta_min=0.005)
    for epoch in range(1000):
        rates = {method.learning_rate(0.05, epoch, position) for position in (19, 25, 38)}
        assert len(rates) == 1
        assert rates.pop() == pytest.approx(sgd.param_groups[0]["lr"], rel=1e-9)
        sgd.step()
        schedule.step()


def test_two_optimizers_with_groups_of_their_own():
    method, encoder = sptnet(), torch.nn.Sequential(torch.nn.Linear(768, 4), torch.nn.LayerNorm(4))
    prompter, classifier = method.optimizers(encoder)
    prompts = set(method.prompts.parameters())
    assert {
        (g["lr"], g["initial_lr"], g["weight_decay"], p) for g in prompter.param_groups for p in g["params"]
    } == {(25.0, 25.0, 0.0, p) for p in prompts}
    others = (set(method.parameters()) | set(encoder.parameters())) - prompts
    assert {
        (g["lr"], g["initial_lr"], g["weight_decay"], p) for g in classifier.param_groups for p in g["params"]
    } == {(0.05, 0.05, 5e-4 if p.ndim > 1 else 0.0, p) for p in others}
    assert all(
        g["momentum"] == 0.9 and not g["nesterov"] for o in (prompter, classifier) for g in o.param_groups
    )


def test_presets_of_the_published_tables():
    column = functools.partial(published, "sptnet")
    for preset in ("baseline", "paper", "release"):
        assert column(preset, "prompt_lr") == [25, 10, 1, 5, 5, 0.5, 1]
        assert (
            column(preset, "backbone_lr")
            == column(preset, "head_lr")
            == [0.05, 0.05, 0.05, 0.003, 0.003, 0.01, 0.003]
        )
        assert column(preset, "memax_weight") == [2, 1, 1, 1, 1, 1, 1]
        config = resolve("sptnet", "cub", preset).to_json()
        common = {
            "epochs": 1000,
            "batch_size": 128,
            "lr_floor": 0.1,
            "weight_decay": 5e-4,
            "teacher_temp_epochs": 10,
            "sup_weight": 0.35,
        }
        common |= {
            "phase_batches": 20,
            "prompt_warmup": 1000,
            "pad_width": 30,
            "precision": "fp16",
            "warm_start": False,
        }
        assert {name: config[name] for name in common} == common
    assert (
        column("baseline", "prompts")
        == column("paper", "prompts")
        == ["all", "all", "all", "patch", "all", "all", "patch"]
    )
    assert column("release", "prompts") == ["all"] * 7
    ways = [resolve("sptnet", "cub", preset) for preset in ("baseline", "paper", "release")]
    assert [(c.eagc, c.has_operator, c.sptnet_eagc, c.mlp_head_layers) for c in ways] == [
        (False, False, "on", 0),
        (True, True, "on", 0),
        (True, False, "init", 1),
    ]


@pytest.mark.parametrize(
    ("switches", "message"),
    [
        ({"trunk_cache": "cache"}, "trunk_cache='cache': the prompts of SPTNet change the trunk's input"),
        ({"warm_start": True}, "warm_start=True: SPTNet starts from a SimGCD run"),
        ({"phase_batches": 47}, "phase_batches must be <= 46, the batches of an epoch, got 47"),
        ({"pad_width": 112}, "pad_width must be < 112, half the image size, got 112"),
        ({"sptnet_eagc": "off"}, "sptnet_eagc must be one of init, on, got 'off'"),
    ],
)
def test_settings_that_cannot_work_are_named(switches, message):
    with pytest.raises(ConfigError, match="^" + message):
        sptnet(**switches)


def test_half_precision_without_a_gpu_is_refused(data):
    with pytest.raises(ConfigError, match="precision='fp16' needs a GPU"):
        Experiment(spt_config(data, precision="fp16"))  # device="cpu"


# A step -----------------------------------------------------------------------------------------------------


def test_inputs_of_the_phases():
    method = sptnet()
    first, second = torch.randn(2, 2, 3, 224, 224)
    prompted = method.inputs([first, second], 0)
    assert torch.equal(prompted, torch.cat([method.prompts(first), method.prompts(second)]))
    assert prompted.requires_grad
    fixed = method.inputs([first, second], 19)
    assert torch.equal(fixed, torch.cat([first, method.prompts(first)]))  # the second crop is not used
    assert not fixed.requires_grad
    assert torch.equal(method.inputs([first]), method.prompts(first))  # evaluation


def forward(experiment, batch, position, images):
    """The loss from the definition: timm's own forward on `images`, then heads and SimGCD's loss."""
    mask = batch.mask.repeat(2)
    rows = Rows(torch.where(mask, batch.label.repeat(2), -1), mask, batch.uq_idx.repeat(2), 0, position)
    z = experiment.student.encoder.vit(images)
    loss = experiment.student.method.loss(experiment.student.method(z), rows)
    return z, loss.supervised + loss.unsupervised


def prompts_by_hand(method, images):
    pad, patch = method.prompts
    margin = F.pad(torch.zeros(3, 12, 12), (2, 2, 2, 2), value=1.0)
    strips = torch.zeros(3, 16, 16)
    strips[:, :2], strips[:, -2:] = pad.top, pad.bottom
    strips[:, 2:-2, :2], strips[:, 2:-2, -2:] = pad.left, pad.right
    return images + strips * margin + patch.pixels * patch.mask


def test_a_step_of_each_phase_moves_what_it_should_by_the_gradient_of_the_definition(data, starts, tmp_path):
    """One epoch of the loop, step by step next to a whole ViT, autograd and SGD with momentum by hand."""
    config = spt_config(data, init=starts["off"], eagc=False, epochs=1, head_lr=0.05)
    plain = Experiment(config)
    method, encoder = plain.student.method, plain.student.encoder
    plain.student.load({**plain.student.state(), **plain.starting_point.weights})
    heads = [p for name, p in method.named_parameters() if not name.startswith("prompts.")]
    groups = {PROMPT: list(method.prompts.parameters()), CLASSIFIER: [*encoder.tail.parameters(), *heads]}
    batches, velocity, phases = list(plain.batches.train.epoch(0)), {}, []

    class Compare(Callback):
        def before_update(self, loop, rows):
            phase = loop.student.method.phase(loop.position)
            phases.append(phase)
            stepped = {id(p) for group in loop.optimizers[phase].param_groups for p in group["params"]}
            for (
                name,
                p,
            ) in (
                loop.student.named_parameters()
            ):  # the other phase's parameters have no gradient that could leak
                assert (p.grad is not None) == (id(p) in stepped), name

        def after_update(self, loop, rows):
            assert all(p.grad is None for p in loop.student.parameters())
            position = loop.position
            batch, phase = batches[position], plain.student.method.phase(position)
            first, second = batch.views
            images = [prompts_by_hand(method, first), prompts_by_hand(method, second)]
            if phase == CLASSIFIER:
                images = [first, images[0].detach()]
            _, total = forward(plain, batch, position, torch.cat(images))
            rate = (
                0.5 * min((position + 1) / 4, 1)
                if position < 4
                else 0.5 * (1 + math.cos(math.pi * (position - 4) / 3)) / 2
            )
            for p, g in zip(groups[phase], torch.autograd.grad(total, groups[phase])):
                with torch.no_grad():
                    g = g.add(p, alpha=5e-4) if phase == CLASSIFIER and p.ndim > 1 else g
                    velocity[p] = velocity[p].mul_(0.9).add_(g) if p in velocity else g.clone()
                    p.add_(velocity[p], alpha=-(rate if phase == PROMPT else 0.05))
            theirs = dict(loop.student.named_parameters())
            for name, value in plain.student.named_parameters():
                torch.testing.assert_close(
                    theirs[name],
                    value,
                    rtol=1e-4,
                    atol=1e-5,
                    msg=lambda m, name=name: f"{position} {name}: {m}",
                )

    train(config, tmp_path / "run", [Compare()])
    assert phases == [0, 0, 1, 1, 1, 0, 0]


def eagc_experiment(data, starts, tmp_path, **switches):
    config = spt_config(data, init=starts["on"], sptnet_eagc="on", energy_momentum=None, **switches)
    experiment = Experiment(config)
    experiment.prepare(tmp_path / "references")
    experiment.student.load({**experiment.student.state(), **experiment.starting_point.weights})
    return experiment


@pytest.mark.parametrize("position", [0, 2, 5])
def test_the_operator_acts_in_the_classifier_phase_alone_and_the_reference_sees_the_same_pixels(
    data, starts, tmp_path, position
):
    experiment = eagc_experiment(data, starts, tmp_path, lambda_a=200.0, lambda_p=0.9)
    student, encoder = experiment.student, experiment.student.encoder
    batch = next(iter(experiment.batches.train.epoch(0)))
    mask, S = batch.mask.repeat(2), student.eagc.matrix
    loss, token = student(rows_of(batch, "cpu", position=position))
    assert (token is None) == (position != 2)
    total = loss.supervised + loss.unsupervised
    (total if token is None else total + token).backward()
    found = [p.grad.clone() for p in encoder.tail.parameters()]

    first, second = (prompts_by_hand(student.method, view) for view in batch.views)
    images = torch.cat([batch.views[0], first.detach()] if position == 2 else [first, second])
    z, total = forward(experiment, batch, position, images)
    (g,) = torch.autograd.grad(total, z, retain_graph=True)
    outputs, gradients = [z], [g]
    if position == 2:
        with torch.no_grad():
            tokens = encoder.trunk(images)
            z_ref = encoder.vit.norm(encoder.reference[0](tokens)[:, 0])  # E_r of exactly these images
        energy = ((z @ S) * z).sum(1) / z.pow(2).sum(1)
        tau = (1 - energy / (student.eagc.energy_ref + 1e-6)).clamp(0, 1).detach()
        assert (tau[~mask] > 0.01).float().mean() > 0.3
        gradients[0] = torch.where(mask[:, None], g, g - 0.9 * tau[:, None] * (g @ S))
        outputs.append(200.0 / 2 * F.mse_loss(z[mask], z_ref[mask]))
        gradients.append(None)
        assert outputs[1] > 0.1
    expected = torch.autograd.grad(outputs, list(encoder.tail.parameters()), gradients)
    for a, b in zip(found, expected):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * b.abs().max().item())


def test_the_ways_of_eagc_part_in_the_first_classifier_phase(data, starts, tmp_path):
    """With and without the operator: the same bits in the first prompt phase, different ones after it."""
    seen = {}
    for way in ("init", "on"):

        class Record(Callback):
            def after_update(self, loop, rows, way=way):
                seen.setdefault(way, []).append(
                    {name: p.detach().clone() for name, p in loop.student.named_parameters()}
                )

        train(spt_config(data, init=starts["on"], sptnet_eagc=way, epochs=1), tmp_path / way, [Record()])
    same = [all(torch.equal(a[name], b[name]) for name in a) for a, b in zip(seen["init"], seen["on"])]
    assert same == [True, True, False, False, False, False, False]
    assert not any(name.startswith("eagc.") for name in weights(tmp_path / "init"))
    lines = [line for line in RunFolder.open(tmp_path / "on").metrics() if line["kind"] == "step"]
    assert [(line["position"], "tau_q50" in line, "lr_0" in line, "lr_1" in line) for line in lines] == [
        (2, True, False, True),  # the energies of a batch, and the rates that were used for it
        (5, False, True, False),
        (6, False, True, False),
    ]


# Starts -----------------------------------------------------------------------------------------------------


def test_a_run_starts_from_the_weights_that_simgcd_reports(data, starts, tmp_path):
    class Start(Callback):
        def before_update(self, loop, rows):
            if loop.step == 0:
                self.state = {name: value.clone() for name, value in loop.student.state().items()}

    (tmp_path / "simgcd").mkdir()
    result = train(
        small_config(data, "small", epochs=3, headline="best", seed=5), tmp_path / "simgcd" / "run"
    )
    reported = {name: weights(tmp_path / "simgcd" / "run", name) for name in ("last", "best")}
    assert not torch.equal(
        reported["last"]["method.classifier.weight"], reported["best"]["method.classifier.weight"]
    )
    for init, name in (("run", "best"), ("run/last.safetensors", "last")):
        seen = Start()
        config = spt_config(data, init=str(tmp_path / "simgcd" / init), epochs=1, sptnet_eagc="on")
        train(config, tmp_path / name, [seen])
        expected = {
            key: value for key, value in reported[name].items() if key.startswith(("encoder.", "method."))
        }
        assert all(torch.equal(seen.state[key], value) for key, value in expected.items())
        assert {
            key.split(".")[1] for key in seen.state.keys() - expected.keys() if key.startswith("method.")
        } == {"prompts"}
        record = RunFolder.open(tmp_path / name).facts.start
        assert (record["method"], record["eagc"]) == ("small", True)
        assert record["accuracy"] == result[name]


def test_starts_that_do_not_fit_are_refused_before_a_folder_is_made(data, starts, tmp_path):
    train(small_config(data, "small_legogcd", epochs=1, eagc=False), tmp_path / "legogcd")
    train(small_config(data, "small", epochs=1, seed=2, eagc=False, mlp_head_layers=0), tmp_path / "no_mlp")
    fewer = tmp_path / "fewer.json"
    fewer.write_text('{"known_classes": ["class3", "class0", "class4"], "labelled_fraction": 0.4}')
    train(
        small_config({**data, "split_file": str(fewer)}, "small", epochs=1, eagc=False),
        tmp_path / "other_split",
    )
    half = tmp_path / "half"
    train(small_config(data, "small", epochs=1, eagc=False), half)
    (half / "result.json").unlink()
    cases = [
        ({"init": None}, ConfigError, "init is missing: SPTNet starts from a trained SimGCD"),
        ({"init": str(tmp_path / "nowhere")}, ConfigError, "nowhere does not exist"),
        ({"init": str(tmp_path)}, ConfigError, "is not a run folder"),
        ({"init": str(half)}, ConfigError, "is not a complete run: resume it first"),
        (
            {"init": str(tmp_path / "legogcd")},
            ConfigError,
            r"does not fit this run: method\.qhat does not fit",
        ),
        ({"init": str(tmp_path / "no_mlp")}, ConfigError, "mlp_head_layers is 0 there, 1 here"),
        ({"init": str(tmp_path / "other_split")}, ConfigError, "does not fit this run: split_hash is"),
        ({"init": starts["off"], "weights": "random"}, ConfigError, "does not fit this run: trunk is"),
        ({"init": starts["on"]}, ConfigError, "was trained with EAGC, but this run has eagc=False"),
        (
            {"init": starts["off"], "eagc": True, "sptnet_eagc": "init"},
            ConfigError,
            "was trained without EAGC, and sptnet_eagc=",
        ),
    ]
    for switches, error, message in cases:
        with pytest.raises(error, match=message):
            train(spt_config(data, **{"eagc": False, **switches}), tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_a_start_on_other_characters_does_not_fit():
    """Their split is the same, as numbers."""
    identity = {"split_hash": "same", "trunk": "same"}
    start = {**resolve("simgcd", "glyphs").recipe(), **identity}
    del start["glyphs"]["skip"]  # as an earlier version wrote it

    def differences(**drawn):
        method = SimpleNamespace(config=resolve("sptnet", "glyphs", glyphs=drawn))
        return [text for text in SPTNet._different_settings(method, start, identity) if "glyphs" in text]

    assert differences() == []
    (text,) = differences(skip=60)
    assert text.startswith("glyphs is {") and text.endswith("'skip': 60} here")


# What a run leaves behind -----------------------------------------------------------------------------------


def test_prompts_are_in_the_checkpoints_and_in_the_evaluation(data, starts, tmp_path):
    config = spt_config(data, init=starts["off"], eagc=False)
    result = train(config, tmp_path / "run")
    start = Experiment(config).student.state()
    for name in ("last", "best"):
        stored = {
            key: value
            for key, value in weights(tmp_path / "run", name).items()
            if key.startswith("method.prompts.")
        }
        assert sum(value.numel() for value in stored.values()) == 3 * (2 * 2 * 16 + 2 * 2 * 12) + 3 * 16 * 16
        assert all(not torch.equal(value, start[key]) for key, value in stored.items())  # they were trained
        assert evaluate(tmp_path / "run", name)._asdict() == {
            key: result[name][key] for key in ("all", "old", "new")
        }

    # Predictions are those of timm's own forward on prompted images, and not those on bare ones.
    experiment = Experiment(config)
    experiment.student.load(weights(tmp_path / "run"))
    method, vit = experiment.student.method.eval(), experiment.student.encoder.vit
    with torch.no_grad():
        images = torch.cat([batch.views[0] for batch in experiment.batches.unlabelled()])
        prompted, bare = (
            F.normalize(method.mlp_head(vit(x)), dim=1) for x in (prompts_by_hand(method, images), images)
        )
        method.classifier.weight.copy_(
            prompted[::9] - prompted.mean(0)
        )  # prototypes that tell these images apart
        found = method.predict(experiment.features)
        by_hand, without = (
            (x @ F.normalize(method.classifier.weight, dim=1).T).argmax(1) for x in (prompted, bare)
        )
    assert len(found.unique()) > 1
    assert torch.equal(found, by_hand)
    assert not torch.equal(found, without)


def test_a_run_goes_on_without_its_start_and_where_it_was_moved(data, starts, tmp_path):
    class Stop(Callback):
        def after_update(self, loop, rows):
            if loop.step == 9:
                raise KeyboardInterrupt

    config = spt_config(data, init=starts["off"], eagc=False)
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "run", [Stop()])
    result = resume(tmp_path / "run", init=str(tmp_path / "gone"))  # the checkpoint has all of it
    train(config, tmp_path / "whole")
    assert result == RunFolder.open(tmp_path / "whole").result()
    with pytest.raises(KeyboardInterrupt):
        train(small_config(data, eagc=False), tmp_path / "simgcd", [Stop()])
    with pytest.raises(ConfigError, match="init is not a setting of small"):
        resume(tmp_path / "simgcd", init="x")
