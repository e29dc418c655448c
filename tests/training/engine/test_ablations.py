"""The ablations in whole runs: PCA subspace, alignment losses, blocks of the reference model."""

import pytest
import small_runs
import torch
from small_runs import FirstStep, small_config
from torch.nn import functional as F

from eagc_ops import Subspace
from eagc_ops.encoder import AnchoredEncoder
from eagc_ops.training.config import ConfigError
from eagc_ops.training.data.loaders import seeded
from eagc_ops.training.engine.checkpoint import load_checkpoint
from eagc_ops.training.engine.experiment import Experiment
from eagc_ops.training.engine.loop import Callback
from eagc_ops.training.engine.run_folder import RunFolder
from eagc_ops.training.methods import Rows
from eagc_ops.training.models.backbones import load_backbone
from eagc_ops.training.runs import evaluate, resume, train

GENTLE = {"backbone_lr": 0.01, "head_lr": 0.01}  # steps that do not blow rounding up

pytestmark = pytest.mark.filterwarnings("ignore:the run predicts", "ignore:tau is below")


def weights(folder):
    return load_checkpoint(folder / "last.safetensors")[0]


def lines(folder, kind):
    return [line for line in RunFolder.open(folder).metrics() if line["kind"] == kind]


def the_reference(folder):
    (file,) = (folder / "references").glob("reference*")
    tail, _ = load_checkpoint(file)
    del tail["cross_entropy"]
    return tail


# The subspace -----------------------------------------------------------------------------------------------


def test_the_subspace_of_principal_directions(data, tmp_path):
    config = small_config(data, epochs=1, subspace="pca", pca_k=5, energy_momentum=None)
    train(config, tmp_path / "run")
    (file,) = (tmp_path / "references").glob("subspace*")
    fitted, _ = load_checkpoint(file)
    built = Experiment(config)
    built.student.encoder.load_tail(the_reference(tmp_path))
    z = built.features.labelled()[0].double()
    directions = torch.linalg.svd(z, full_matrices=False).Vh[:5]  # not centred
    S = directions.T @ directions
    torch.testing.assert_close(fitted["matrix"].double(), S, rtol=0, atol=1e-5)
    assert fitted["energy_ref"].item() == pytest.approx(
        ((z @ S) * z).sum(1).div(z.square().sum(1)).mean().item(), rel=1e-5
    )
    used = weights(tmp_path / "run")
    assert torch.equal(used["eagc.matrix"], fitted["matrix"])
    assert lines(tmp_path / "run", "step")[0]["tau_q100"] > 0.01
    # what is stored is told apart by what it depends on
    for switches, files in (
        ({"pca_k": 6}, 2),
        ({"pca_k": 6, "aperture": 1.0}, 2),
        ({"subspace": "conceptor"}, 3),
    ):
        experiment = Experiment(small_config(data, **{"subspace": "pca", **switches}))
        experiment.prepare(tmp_path / "references")
        assert len(list((tmp_path / "references").glob("subspace*"))) == files


def test_a_whitened_energy_is_fitted_to_all_images(data, tmp_path):
    config = small_config(data, epochs=1, energy="whitened", energy_momentum=None)
    train(config, tmp_path / "run")
    (file,) = (tmp_path / "references").glob("subspace*")
    fitted, _ = load_checkpoint(file)
    built = Experiment(config)
    built.student.encoder.load_tail(the_reference(tmp_path))
    labelled, unlabelled = (z[0] for z in (built.features.labelled(), built.features.unlabelled()))
    expected = Subspace.whitened(labelled, torch.cat([labelled, unlabelled]), config.aperture)
    used = weights(tmp_path / "run")
    for name in vars(expected):
        assert torch.equal(used[f"eagc.{name}"], fitted[name])
    mine = Subspace(**fitted)
    torch.testing.assert_close(mine.matrix, expected.matrix, rtol=0, atol=1e-5)
    torch.testing.assert_close(mine.energy(unlabelled), expected.energy(unlabelled), rtol=0, atol=1e-3)
    assert mine.energy_ref.item() == pytest.approx(expected.energy_ref.item(), abs=1e-3)
    assert (mine.energy(unlabelled) - Subspace.conceptor(labelled).energy(unlabelled)).abs().max() > 0.01
    # a plain subspace of the same reference model is another file, whose key no earlier version would miss
    experiment = Experiment(config.replace(energy="conceptor"))
    experiment.prepare(tmp_path / "references")
    assert experiment.student.eagc.basis is None
    (other,) = {*(tmp_path / "references").glob("subspace*")} - {file}
    assert load_checkpoint(other)[1]["key"].keys() == {"kind", "reference", "aperture"}
    assert load_checkpoint(file)[1]["key"].keys() == {"kind", "reference", "aperture", "whitened"}


class StoppedInTheSecondEpoch(Callback):
    def before_update(self, loop, rows):
        if loop.epoch == 1:
            raise KeyboardInterrupt


def test_a_run_with_a_whitened_energy_is_resumed_to_the_same_bits(data, tmp_path):
    config = small_config(data, epochs=2, energy="whitened")
    train(config, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "run", [StoppedInTheSecondEpoch()])
    resume(tmp_path / "run")
    whole = weights(tmp_path / "whole")
    assert {"eagc.basis", "eagc.weights"} < whole.keys()
    for name, value in weights(tmp_path / "run").items():
        assert torch.equal(value, whole[name]), name
    assert evaluate(tmp_path / "run") == evaluate(tmp_path / "whole")


def test_impossible_sizes_are_named(data):
    with pytest.raises(ConfigError, match="pca_k must be <= 18 with 18 labelled images and D=96, got 19"):
        Experiment(small_config(data, subspace="pca", pca_k=19))
    with pytest.raises(ConfigError, match="reference_blocks must be <= 4, the blocks of vit_digits, got 5"):
        Experiment(small_config(data, reference_blocks=5))


# Losses in place of the anchor term -------------------------------------------------------------------------


def by_hand(alignment, z, z_ref):
    """The losses on labelled rows alone."""
    if alignment == "proximal":
        return F.mse_loss(z, z_ref) / 2
    gram, gram_hat = (F.cosine_similarity(x[:, None], x[None], dim=2) for x in (z, z_ref))
    if alignment == "gram":
        return F.mse_loss(gram, gram_hat)
    others = ~torch.eye(len(z), dtype=torch.bool)
    p, q = ((g[others].view(len(z), -1) / 0.1).softmax(1) for g in (gram, gram_hat))
    return (q * (q / p).log()).sum(1).mean()


@pytest.mark.parametrize("alignment", ["proximal", "gram", "relation"])
def test_a_step_with_a_loss_in_place_of_the_anchor_term(data, tmp_path, alignment):
    """Method's loss, projection by the paper's formula, and the alignment loss: against autograd."""
    strengths = {"lambda_a": 50.0, "lambda_p": 0.9, "energy_momentum": None, "warm_start": False}
    config, seen = small_config(data, alignment=alignment, epochs=1, **strengths, **GENTLE), FirstStep()
    train(config, tmp_path / "run", [seen])
    assert seen.eagc.lambda_a == 0
    built = Experiment(config)
    encoder, method = built.student.encoder, built.student.method
    encoder.set_reference(the_reference(tmp_path))
    batch = next(iter(built.batches.train.epoch(0)))
    mask = batch.mask.repeat(2)
    tokens = encoder.trunk(torch.cat(batch.views))
    z, z_ref = encoder.student(tokens), encoder.anchor(tokens)
    loss = method.loss(
        method(z), Rows(torch.where(mask, batch.label.repeat(2), -1), mask, batch.uq_idx.repeat(2), 0, 0)
    )
    (g,) = torch.autograd.grad(loss.supervised + loss.unsupervised, z, retain_graph=True)
    tau = (
        (1 - ((z @ seen.eagc.matrix) * z).sum(1) / z.pow(2).sum(1) / (seen.eagc.energy_ref + 1e-6))
        .clamp(0, 1)
        .detach()
    )
    assert (tau[~mask] > 0.01).float().mean() > 0.3
    g = torch.where(mask[:, None], g, g - 0.9 * tau[:, None] * (g @ seen.eagc.matrix))
    value = by_hand(alignment, z[mask], z_ref[mask])
    parameters = list(encoder.tail.parameters())
    expected = torch.autograd.grad([z, 50.0 * value], parameters, [g, None], retain_graph=True)
    share = flat(torch.autograd.grad(50.0 * value, parameters)).norm() / flat(expected).norm()
    assert share > 0.05  # the term shows
    for a, b in zip(seen.found, expected):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * b.abs().max().item())

    first = lines(tmp_path / "run", "step")[0]  # means of three steps
    assert first["alignment"] > 0
    assert first["supervised"] == pytest.approx(
        0.35 * (first["cls"] + first["supcon"]) + 50.0 * first["alignment"], rel=1e-5
    )
    assert first["loss"] == pytest.approx(first["supervised"] + first["unsupervised"], rel=1e-5)


def flat(gradients):
    return torch.cat([g.flatten() for g in gradients])


def test_training_by_the_proximal_loss_is_training_by_the_anchor_term(data, tmp_path):
    for alignment in ("gradient", "proximal"):
        train(
            small_config(data, alignment=alignment, epochs=2, lambda_a=20.0, **GENTLE), tmp_path / alignment
        )
    a, b = (weights(tmp_path / name) for name in ("gradient", "proximal"))
    start = Experiment(small_config(data)).student.state()
    for name in (name for name in a if name.startswith(("encoder.", "method."))):
        torch.testing.assert_close(a[name], b[name], rtol=0, atol=1e-5)
    moved = max((a[name] - start[name]).abs().max().item() for name in start if name.startswith("encoder."))
    assert moved > 1e-3


def test_an_alignment_of_strength_zero_and_no_alignment_are_the_same_bits(data, tmp_path):
    for alignment in ("gradient", "gram"):
        train(small_config(data, alignment=alignment, epochs=1, lambda_a=0.0), tmp_path / alignment)
    a, b = (weights(tmp_path / name) for name in ("gradient", "gram"))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_two_processes_take_the_steps_of_one_and_measure_the_same(data, tmp_path):
    switches = {
        "epochs": 1,
        "lambda_a": 5.0,
        "diagnose": {"every": 2, "parameters": "all"},
        "trainable_blocks": 1,
        "reference_blocks": 2,
        **GENTLE,
    }
    config = small_config(data, alignment="relation", **switches)
    scenario = {"kill": None, "world": 2, "config": config.to_json(), "output": str(tmp_path / "two")}
    small_runs.run_in_processes([scenario], tmp_path)
    train(config, tmp_path / "one")
    one, two = (weights(tmp_path / name) for name in ("one", "two"))
    assert one.keys() == two.keys()
    for name in one:
        limit = 1e-5 * one[name].abs().max().item() if name.startswith("optimizer") else 2e-6
        torch.testing.assert_close(
            two[name], one[name], rtol=0, atol=limit, msg=lambda m, name=name: f"{name}: {m}"
        )
    measured = [lines(tmp_path / name, "diagnosis") for name in ("one", "two")]
    assert len(measured[0]) == 4
    for a, b in zip(*measured, strict=True):
        assert {**a, "seconds": 0} == pytest.approx({**b, "seconds": 0}, abs=1e-4)


# Blocks of the reference model ------------------------------------------------------------------------------


def changed_blocks(tensors, pretrained):
    """Numbers of the blocks that differ from the pretrained ones. `tensors`: named as in the ViT."""
    return {
        int(name.split(".")[1]) for name, value in tensors.items() if not torch.equal(value, pretrained[name])
    }


def of_encoder(tensors):
    return {
        name.removeprefix("encoder."): value for name, value in tensors.items() if name.startswith("encoder.")
    }


@pytest.fixture(scope="module")
def pretrained(data):
    return load_backbone("vit_digits", data["weights"], image_size=16, channels=3).state_dict()


@pytest.mark.parametrize(("student", "reference"), [(1, 2), (2, 1), (1, 3)])
def test_student_and_reference_train_their_own_blocks(data, tmp_path, pretrained, student, reference):
    config = small_config(
        data, epochs=1, trainable_blocks=student, reference_blocks=reference, warm_start=False, lambda_a=20.0
    )
    result = train(config, tmp_path / "run")
    assert changed_blocks(the_reference(tmp_path), pretrained) == set(range(4 - reference, 4))
    assert changed_blocks(of_encoder(weights(tmp_path / "run")), pretrained) == set(range(4 - student, 4))
    # The reference model against a whole ViT trained with torch's own SGD, schedule and weight norm
    built = Experiment(config)
    vit = load_backbone("vit_digits", data["weights"], image_size=16, channels=3)
    with seeded(config.seed, -1, 3):
        head = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(96, 3, bias=False), dim=0)
    head.parametrizations.weight.original0.requires_grad_(False).fill_(1.0)
    trained = [p for p in [*vit.blocks[4 - reference :].parameters(), *head.parameters()] if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": 1e-4},
        {"params": [p for p in trained if p.ndim == 1]},
    ]
    sgd = torch.optim.SGD(groups, lr=0.02, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, T_max=2, eta_min=2e-5)
    for epoch in range(2):
        for batch in built.batches.labelled_train.epoch(epoch):
            logits = head(F.normalize(vit(torch.cat(batch.views)), dim=1)) / 0.1
            sgd.zero_grad()
            F.cross_entropy(logits, torch.cat([batch.label, batch.label])).backward()
            sgd.step()
        schedule.step()
    for name, value in the_reference(tmp_path).items():
        torch.testing.assert_close(value, vit.state_dict()[name], rtol=1e-4, atol=2e-5)
    assert evaluate(tmp_path / "run")._asdict() == {key: result["last"][key] for key in ("all", "old", "new")}


def test_a_block_that_only_the_warm_start_changed_survives_resuming_and_evaluation(
    data, tmp_path, pretrained
):
    config = small_config(
        data, epochs=2, trainable_blocks=1, reference_blocks=3, checkpoint_every=3, diagnose={"every": 5}
    )
    result = train(config, tmp_path / "whole")
    end = of_encoder(weights(tmp_path / "whole"))
    reference = the_reference(tmp_path)
    assert changed_blocks(end, reference) == {3}
    assert changed_blocks(end, pretrained) == {1, 2, 3}

    class Stop(Callback):
        def before_update(self, loop, rows):
            if loop.step == 11:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "run", [Stop()])
    assert resume(tmp_path / "run") == result
    (a, state), (b, other) = (
        load_checkpoint(tmp_path / name / "last.safetensors") for name in ("whole", "run")
    )
    assert state == other
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert evaluate(tmp_path / "run")._asdict() == {key: result["last"][key] for key in ("all", "old", "new")}
    # SPTNet starts from it, with the blocks counted in the same way, and leaves the frozen ones as they are
    phases = {
        "phase_batches": 3,
        "pad_width": 2,
        "prompt_lr": 0.1,
        "prompt_warmup": 4,
        "sptnet_eagc": "on",
        "precision": "no",
    }
    phases |= {"init": str(tmp_path / "run"), "epochs": 1}
    train(small_config(data, "small_sptnet", reference_blocks=3, **phases), tmp_path / "sptnet")
    sptnet = of_encoder(weights(tmp_path / "sptnet"))
    assert changed_blocks(sptnet, end) == {3}
    assert changed_blocks(sptnet, reference) == {3}
    with pytest.raises(
        ConfigError, match=r"does not fit this run: trunk is .* reference_blocks is 3 there, None here"
    ):
        train(small_config(data, "small_sptnet", **phases), tmp_path / "other")


def test_as_many_blocks_as_the_student_is_the_default(data, tmp_path):
    for name, blocks in (("none", None), ("same", 2)):
        train(
            small_config(data, epochs=1, trainable_blocks=2, reference_blocks=blocks), tmp_path / name / "run"
        )
    a, b = (weights(tmp_path / name / "run") for name in ("none", "same"))
    assert all(torch.equal(a[name], b[name]) for name in a)
    none, same = (
        {file.name for file in (tmp_path / name / "references").iterdir()} for name in ("none", "same")
    )
    assert none == same


def test_the_trunk_cache_ends_where_the_first_of_them_is_trained(data, tmp_path):
    switches = {"epochs": 1, "trunk_cache": str(tmp_path / "cache"), "cache_views": 2}
    train(small_config(data, reference_blocks=2, **switches), tmp_path / "run")
    assert changed_blocks(of_encoder(weights(tmp_path / "run")), the_reference(tmp_path)) == {3}
    with pytest.raises(ValueError, match="grad_from_block: 2 there, 3 now"):
        Experiment(small_config(data, **switches))


def test_selex_with_more_blocks_in_the_reference(data, tmp_path, pretrained):
    blocks = {"trainable_blocks": 2, "reference_blocks": 3}
    config = small_config(
        data, "selex", epochs=1, embedding_dim=64, diagnose={"every": 3, "parameters": "all"}, **blocks
    )
    train(config, tmp_path / "run")
    assert changed_blocks(the_reference(tmp_path), pretrained) == {1, 2, 3}
    assert changed_blocks(of_encoder(weights(tmp_path / "run")), the_reference(tmp_path)) == {2, 3}
    assert all(0 <= line["gdc_clean"] <= 2 for line in lines(tmp_path / "run", "diagnosis"))


def test_an_encoder_trains_its_last_blocks(data):
    vit = load_backbone("vit_digits", data["weights"], image_size=16, channels=3)
    encoder = AnchoredEncoder(vit, 1)
    tokens = encoder.trunk(torch.randn(2, 3, 16, 16))
    for blocks in (3, 1, 2):
        encoder.train_last(blocks)
        encoder.zero_grad()
        encoder.student(tokens).square().sum().backward()
        assert {i for i in range(4) if vit.blocks[i].mlp.fc1.weight.grad is not None} == set(
            range(4 - blocks, 4)
        )
        encoder.trunk(torch.randn(1, 3, 16, 16))  # a tail that is partly frozen is no trunk that is not
    for blocks in (0, 4, 1.0):
        with pytest.raises(ValueError, match=f"blocks must be between 1 and 3, got {blocks}"):
            encoder.train_last(blocks)
