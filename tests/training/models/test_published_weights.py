"""Weights by name, from a hub cache on disk; no test asks the hub."""

import os
import subprocess
import sys

import hub_cache
import pytest
import timm
import torch
from commands import call
from huggingface_hub import constants
from safetensors.torch import load_file
from small_runs import small_config

from eagc_ops.training.config import ConfigError, resolve
from eagc_ops.training.engine.preconditions import check_run
from eagc_ops.training.engine.run_folder import RunFolder
from eagc_ops.training.models.backbones import load_backbone, weight_file
from eagc_ops.training.models.hub import check_published
from eagc_ops.training.runs import evaluate, train


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """The home of the hub's client in this process: empty."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    check_published.cache_clear()
    yield tmp_path
    check_published.cache_clear()


def test_published_weights_are_those_of_the_cached_file(hub):
    sha256 = hub_cache.write_hub(hub)
    found = weight_file(hub_cache.NAME, "pretrained")
    assert found.record() == {
        "repository": hub_cache.REPOSITORY,
        "revision": hub_cache.REVISION,
        "file": "model.safetensors",
        "sha256": sha256,
    }
    stored = load_file(found.path)
    for vit in (load_backbone(hub_cache.NAME), load_backbone(hub_cache.NAME, "pretrained")):
        own = vit.state_dict()
        assert own.keys() == stored.keys() - {"head.weight", "head.bias"}
        assert all(torch.equal(value, stored[name]) for name, value in own.items())
    images = torch.randn(2, 3, 224, 224)
    theirs = timm.create_model(hub_cache.NAME, pretrained=True, num_classes=0).eval()  # from the same cache
    with torch.no_grad():
        assert torch.equal(vit.eval()(images), theirs(images))
    torch.manual_seed(0)
    random = load_backbone(hub_cache.NAME, "random").state_dict()
    assert not torch.equal(random["cls_token"], stored["cls_token"])


def test_a_tag_names_its_own_weights(hub):
    hub_cache.write_hub(hub)
    with pytest.raises(ConfigError, match=r"huggingface\.co/timm/vit_tiny_patch16_224\.augreg_in21k/resolve"):
        weight_file("vit_tiny_patch16_224.augreg_in21k", "pretrained")
    with pytest.raises(
        ValueError, match=r"no weights of vit_tiny_patch16_224\.nonesuch on the hub.*\.augreg"
    ):
        weight_file("vit_tiny_patch16_224.nonesuch", "pretrained")


@pytest.mark.parametrize(
    ("backbone", "repository", "file"),
    [
        ("dino_vitb16", "timm/vit_base_patch16_224.dino", "dino_vitbase16_pretrain.pth"),
        (
            "dinov2_vitb14_reg4",
            "timm/vit_base_patch14_reg4_dinov2.lvd142m",
            "dinov2_vitb14_reg4_pretrain.pth",
        ),
    ],
)
def test_named_backbones_are_looked_up_before_a_run(backbone, repository, file, hub, data):
    places = {"root": data["root"], "split_file": data["split_file"]}
    config = resolve("simgcd", "folder", backbone=backbone, **places)
    assert config.weights == "pretrained"
    with pytest.raises(ConfigError, match=rf"not in the hub's cache {hub}/hub.*{repository}/resolve.*{file}"):
        check_run(config)
    check_run(config.replace(weights="random"))
    check_published.cache_clear()
    folder = hub / "hub" / f"models--{repository.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(hub_cache.REVISION)
    (folder / "snapshots" / hub_cache.REVISION).mkdir(parents=True)
    (folder / "snapshots" / hub_cache.REVISION / "model.safetensors").touch()
    check_run(config)
    # timm agrees on the repository
    assert weight_file(backbone, "pretrained").repository == repository


def test_the_default_follows_the_backbone():
    assert resolve("simgcd", "cub").weights == "pretrained"
    assert resolve("simgcd", "digits").weights == "random"  # the commands pretrain an encoder
    assert resolve("simgcd", "digits", backbone="vit_tiny_patch16_224").weights == "pretrained"
    with pytest.raises(ConfigError, match="weights='pretrained': no weights of vit_digits are published"):
        resolve("simgcd", "digits", weights="pretrained")
    with pytest.raises(ValueError, match="no weights of vit_digits are published"):
        weight_file("vit_digits", "pretrained")


@pytest.mark.filterwarnings("ignore:the run predicts")
def test_random_weights_come_from_no_file(data, tmp_path):
    result = train(small_config(data, weights="random", epochs=1), tmp_path / "run")
    assert RunFolder.open(tmp_path / "run").facts.weights is None
    assert evaluate(tmp_path / "run").all == result["last"]["all"]


@pytest.mark.filterwarnings("ignore:the run predicts")
def test_a_run_takes_published_weights_and_keeps_their_fingerprint(data, hub, monkeypatch, capsys):
    """A process of its own trains, with nothing but HF_HOME to tell it where the weights are."""
    home, run = hub / "home", hub / "run"
    sha256 = hub_cache.write_hub(home)
    words = (
        f"train --dataset folder --image-size 32 --backbone {hub_cache.NAME} --preset baseline --device cpu"
    )
    words += f" --epochs 1 --batch-size 32 --root {data['root']} --split-file {data['split_file']} -o {run}"
    done = subprocess.run(
        [sys.executable, "-m", "eagc_ops.app.cli", *words.split()],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HOME": str(home), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    folder = RunFolder.open(run)
    assert folder.config.weights == "pretrained" and folder.facts.weights["sha256"] == sha256
    # Without the cache: one line that names the file and the option; with the file itself: the same run
    code, _, err = call(capsys, "evaluate", str(run))
    assert (code, err.count("\n")) == (2, 1)
    assert f"{hub_cache.REPOSITORY}/resolve/main/model.safetensors" in err
    assert "pass --weights FILE" in err
    file = next((home / "hub").glob("*/snapshots/*/model.safetensors"))
    assert evaluate(run, weights=str(file)).all == folder.result()["last"]["all"]
