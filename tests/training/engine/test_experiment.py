"""An experiment without a loop: opened, prepared, and refused."""

import shutil

import pytest
import torch
from PIL import Image
from small_runs import small_config

from eagc_ops.discovery.predictor import run_predictor
from eagc_ops.encoder import AnchoredEncoder
from eagc_ops.training import runs
from eagc_ops.training.config import ConfigError
from eagc_ops.training.engine import experiment as module
from eagc_ops.training.engine.experiment import Experiment


def test_two_experiments_of_one_configuration_are_the_same(data):
    config = small_config(data, weights="random")
    one, two = (Experiment(config).student.state() for _ in range(2))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_opening_an_experiment_draws_nothing_from_the_generator_of_the_process(data):
    before = torch.get_rng_state()
    Experiment(small_config(data, weights="random"))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_baseline_needs_no_preparation(data, tmp_path):
    experiment = Experiment(small_config(data, eagc=False, warm_start=False))
    experiment.prepare(tmp_path / "references")
    assert not (tmp_path / "references").exists()
    assert experiment.student.eagc is None
    assert experiment.reference_cross_entropy is None


def test_a_warm_start_alone_changes_the_tail_and_nothing_else(data, tmp_path):
    experiment = Experiment(small_config(data, eagc=False, warm_start=True))
    before = experiment.student.state()
    experiment.prepare(tmp_path / "references")
    after = experiment.student.state()
    changed = {name.split(".")[0] for name in after if not torch.equal(after[name], before[name])}
    assert changed == {"encoder"}
    assert experiment.student.eagc is None
    assert experiment.student.encoder.reference is None


def test_caches_and_reference_models_depend_on_channels_flips_and_images(data, tmp_path):
    """One folder for all of them: what was made for other images is refused, or made again."""
    grey = {"channels": 1, "weights": "random"}
    references, count = tmp_path / "references", []
    moved = tmp_path / "other"
    shutil.copytree(data["root"], moved)
    image = Image.open(moved / "class0" / "0.png").rotate(90)
    image.save(moved / "class0" / "0.png")
    its_own = {"flip": True, "channels": 3}  # as without them
    for settings in ({}, {"flip": False}, grey, {"root": str(moved)}, {}, its_own):
        Experiment(small_config(data, **settings)).prepare(references)
        count.append(len(list(references.glob("reference-*.safetensors"))))
    assert count == [1, 2, 3, 4, 4, 4]
    Experiment(small_config(data, weights="random", trunk_cache=str(tmp_path / "trunk")))
    with pytest.raises(ValueError, match=r"(?s)is stale .*train transform"):
        Experiment(small_config(data, **grey, trunk_cache=str(tmp_path / "trunk")))
    pixels = tmp_path / "pixels"
    for settings in ({}, grey, {}):
        Experiment(small_config(data, **settings, pixel_cache=str(pixels)))
    sizes = sorted(file.stat().st_size for file in pixels.glob("*/pixels.bin"))
    assert len(sizes) == 2 and sizes[1] == 3 * sizes[0]


@pytest.mark.filterwarnings("ignore:the run predicts", "ignore:tau is below")
def test_a_run_on_one_channel_and_its_predictions(data, tmp_path):
    config = small_config(data, channels=1, weights="random", epochs=1, reference_epochs=1)
    runs.train(config, tmp_path / "run")
    experiment, predictor = runs.trained(tmp_path / "run"), run_predictor(tmp_path / "run")
    assert experiment.facts.channels == experiment.student.encoder.vit.patch_embed.proj.in_channels == 1
    unlabelled = experiment.data.unlabelled
    paths = [unlabelled.images.source[i] for i in unlabelled.uq_idx]
    with torch.no_grad():
        z, _ = experiment.features.unlabelled()
    torch.testing.assert_close(predictor(paths).points, z, atol=1e-5, rtol=0)


def test_a_second_experiment_takes_reference_model_and_subspace_from_the_store(data, tmp_path, monkeypatch):
    config = small_config(data)
    first = Experiment(config)
    first.prepare(tmp_path / "references")
    assert len(list((tmp_path / "references").iterdir())) == 2

    def never(*_):
        raise AssertionError("it is in the store")

    monkeypatch.setattr(module, "train_reference", never)
    monkeypatch.setattr(module, "known_subspace", never)
    second = Experiment(config)
    second.prepare(tmp_path / "references")
    assert second.reference_cross_entropy == first.reference_cross_entropy
    assert torch.equal(second.student.eagc.matrix, first.student.eagc.matrix)
    one, two = first.student.encoder.reference.state_dict(), second.student.encoder.reference.state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_without_alignment_the_reference_model_is_not_kept(data, tmp_path):
    experiment = Experiment(small_config(data, lambda_a=0.0))
    experiment.prepare(tmp_path / "references")
    assert experiment.student.eagc is not None
    assert experiment.student.encoder.reference is None


def test_a_batch_that_the_processes_cannot_share_is_refused(data, monkeypatch):
    monkeypatch.setattr(module.Accelerator, "num_processes", 3)
    with pytest.raises(ConfigError, match="batch_size=8 must be a multiple of 3 processes x accumulation=1"):
        Experiment(small_config(data))


@pytest.mark.parametrize(("tf32", "precision"), [(False, "highest"), (True, "high")])
def test_tf32_is_as_the_setting_says(data, tf32, precision):
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        Experiment(small_config(data, tf32=tf32))
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("compile", [False, True])
def test_trunk_student_and_reference_are_compiled_once_they_are_there(data, tmp_path, monkeypatch, compile):
    seen = []
    monkeypatch.setattr(
        AnchoredEncoder, "compile", lambda encoder: seen.append(encoder.reference is not None)
    )
    runs.train(small_config(data, compile=compile, epochs=1, reference_epochs=1), tmp_path / "run")
    assert seen == [True] * compile


def test_experiments_of_two_precisions_in_one_process(data):
    """Accelerate's own state is one for the process; each experiment computes in its own precision."""
    experiments = {name: Experiment(small_config(data, precision=name)) for name in ("no", "bf16", "no")}
    x = torch.ones(2, 2)
    for name, dtype in (("bf16", torch.bfloat16), ("no", torch.float32)):
        with experiments[name].autocast():
            assert (x @ x).dtype == dtype
    assert experiments["no"].accelerator.mixed_precision == "no"
