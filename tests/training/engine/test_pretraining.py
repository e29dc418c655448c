"""Encoders that are pretrained here: their measure, their augmentation and their gate."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from eagc_ops.training.config import ConfigError, resolve
from eagc_ops.training.data import open_data
from eagc_ops.training.engine import pretraining as pretrain
from eagc_ops.training.engine.checkpoint import save_checkpoint
from eagc_ops.training.engine.pretraining import affine, knn_accuracy, pretrained_encoder
from eagc_ops.training.models.backbones import load_backbone


def test_knn_accuracy_is_leave_one_out():
    generator = torch.Generator().manual_seed(0)
    label = torch.randint(0, 4, (80,), generator=generator)
    features = torch.randn(80, 6, generator=generator) + 1.5 * torch.nn.functional.one_hot(label, 6)
    right = 0
    for i in range(80):
        others = np.arange(80) != i
        model = KNeighborsClassifier(5, metric="cosine").fit(features[others].numpy(), label[others].numpy())
        right += model.predict(features[[i]].numpy())[0] == label[i].item()
    assert 30 < right < 79
    assert knn_accuracy(features, label) == pytest.approx(right / 80, abs=1e-6)


def test_affine_changes_little_and_not_the_background(monkeypatch):
    data = open_data("digits")
    images = torch.stack([data.test_transform(data.merged[i][0]) for i in range(8)])
    changed = affine(images)
    assert changed.shape == images.shape
    assert (changed - images).abs().mean() > 0.05
    assert changed.min() >= images.min() - 1e-6
    monkeypatch.setattr(
        torch, "rand", lambda n: torch.full((n,), 0.5)
    )  # the middle of every range: nothing is changed
    torch.testing.assert_close(affine(images), images, atol=1e-5, rtol=0)


def test_weights_are_made_once_used_again_and_judged(tmp_path, monkeypatch, capsys):
    data, file = open_data("digits"), tmp_path / "new" / "weights.safetensors"
    monkeypatch.setattr(
        pretrain, "pretrain", lambda pixels, epochs: load_backbone("vit_digits", image_size=16, channels=1)
    )
    first = pretrained_encoder(file, data, epochs=3)
    assert first.seconds is not None
    assert re.search(r"3 epochs in \d+ s;", str(first))
    assert f"< {pretrain.NEEDED:.0%}" in first.fault  # random weights
    monkeypatch.setattr(pretrain, "pretrain", None)
    again = pretrained_encoder(file, data, epochs=3)
    assert (again.seconds, again.accuracy) == (None, first.accuracy)
    assert "used again" in str(again)
    with pytest.raises(ConfigError, match="different settings"):
        pretrained_encoder(file, data, epochs=4)
    assert first._replace(accuracy=0.95).fault is None

    # The lock of a process that was killed, before or after the file was there, is taken over in silence
    capsys.readouterr()
    monkeypatch.setattr(
        pretrain, "pretrain", lambda pixels, epochs: load_backbone("vit_digits", image_size=16, channels=1)
    )
    for killed_before in (False, True):
        file.with_name(f"{file.name}.lock").write_text('{"pid": 1}')
        if killed_before:
            file.unlink()
        assert (pretrained_encoder(file, data, epochs=3).seconds is not None) == killed_before
        assert list(file.parent.iterdir()) == [file]
    assert capsys.readouterr() == ("", "")


def test_a_run_on_digits_gets_the_encoder_and_others_do_not(tmp_path, monkeypatch):
    monkeypatch.setattr(pretrain, "EPOCHS", 1)
    said = []
    config = pretrain.with_encoder(resolve("simgcd", "digits"), tmp_path, said.append)
    assert config == resolve("simgcd", "digits").replace(weights=str(tmp_path / "digits.safetensors"))
    assert said[0].seconds is not None and load_backbone(
        "vit_digits", config.weights, image_size=open_data("digits").image_size, channels=1
    )
    for other in (resolve("simgcd", "cub"), resolve("simgcd", "digits", backbone="vit_tiny_patch16_224")):
        assert pretrain.with_encoder(other, tmp_path, said.append) is other


def test_an_encoder_for_another_size_has_a_file_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(
        pretrain,
        "pretrain",
        lambda pixels, epochs: load_backbone("vit_digits", image_size=pixels.shape[-1], channels=1),
    )
    files = []
    for size in (None, 16, 32):
        config = pretrain.with_encoder(resolve(image_size=size), tmp_path, lambda _: None)
        files.append(Path(config.weights).name)
        load_backbone("vit_digits", config.weights, image_size=size or 16, channels=1)
    assert files == ["digits.safetensors", "digits.safetensors", "digits-32.safetensors"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"k": 3}, "k must be >= 5"),
        ({"method": "sptnet", "init": "start.safetensors"}, "does not fit this run: split_hash is 'other'"),
        ({"method": "selex", "embedding_dim": 2}, "embedding_dim must be >= "),
        ({"backbone": "vit_digits", "image_size": 30}, "image_size must be a multiple of 4"),
    ],
)
def test_a_setting_that_does_not_fit_is_refused_before_pretraining(settings, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pretrain, "pretrain", lambda *_: pytest.fail("pretraining has begun"))
    identity = {"split_hash": "other", "trunk": "unknown", "mlp_head_layers": 0, "eagc": True}
    save_checkpoint(Path("start.safetensors"), {}, {"identity": identity, "last": {}})
    with pytest.raises(ValueError, match=message):
        pretrain.with_encoder(resolve(**settings), tmp_path / "runs", lambda _: None)
    assert not (tmp_path / "runs").exists()
