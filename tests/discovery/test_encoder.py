"""Which encoder a discovery takes if nobody named one."""

import importlib.util

import hub_cache
import lite0_package
import photographs
import pytest
from commands import call
from huggingface_hub import constants

from eagc_ops.discovery.beginning import Beginning
from eagc_ops.discovery.encoder import with_encoder
from eagc_ops.training.config import ConfigError
from eagc_ops.training.models.hub import check_published


@pytest.fixture(autouse=True)
def no_hub(tmp_path, monkeypatch):
    """The hub cannot be reached, and its cache is empty."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    check_published.cache_clear()
    yield
    check_published.cache_clear()


@pytest.fixture
def installed(tmp_path, monkeypatch):
    lite0_package.write_package(tmp_path / "site-packages")
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))


def test_the_installed_one_is_taken_and_said_aloud(installed):
    said = []
    assert with_encoder({"k": 9}, said.append) == {"k": 9, "backbone": "lite0"}
    (line,) = said
    assert "EfficientNet-Lite0 (lite0), which is installed: the hub has not given dinov2_vitb14_reg4" in line


def test_a_named_one_is_kept(installed):
    for named in ({"backbone": "dino_vitb16"}, {"weights": "random"}):
        assert with_encoder(named, pytest.fail) == named


def test_the_default_is_kept_where_its_weights_are(installed, tmp_path):
    repository = "timm/vit_base_patch14_reg4_dinov2.lvd142m"
    folder = tmp_path / "hub" / f"models--{repository.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(hub_cache.REVISION)
    (folder / "snapshots" / hub_cache.REVISION).mkdir(parents=True)
    (folder / "snapshots" / hub_cache.REVISION / "model.safetensors").touch()
    assert with_encoder({}, pytest.fail) == {}


@pytest.mark.skipif(importlib.util.find_spec(lite0_package.NAME) is not None, reason="it is installed here")
def test_without_any_the_error_names_the_package_first(tmp_path, capsys):
    with pytest.raises(ConfigError, match=r"no encoder of photographs is here"):
        with_encoder({}, pytest.fail)
    photographs.write_photographs(tmp_path)
    code, _, err = call(
        capsys, "discover", f"{tmp_path}/labelled", f"{tmp_path}/new", "-o", f"{tmp_path}/found"
    )
    assert code == 2
    err = err.splitlines()[-1]  # after the bar over the pictures
    first, _, rest = err.partition("; or: ")
    assert (
        "pip install 'eagc-ops[photos]'" in first
        and "--weights pretrained: those of dinov2_vitb14_reg4" in rest
    )
    assert not (tmp_path / "found").exists()


def test_a_discovery_without_a_word_about_encoders_runs_and_predicts(installed, tmp_path, capsys):
    photographs.write_photographs(tmp_path)
    places = [f"{tmp_path}/labelled", f"{tmp_path}/new", "-o", f"{tmp_path}/found"]
    words = ["--image-size", "224", "--k", "5", "--device", "cpu", "--precision", "no"]
    code, out, _ = call(capsys, "discover", *places, "--fast", *words)
    assert code == 0 and out.count("encoder: EfficientNet-Lite0") == 1
    assert Beginning.read(tmp_path / "found").config.backbone == "lite0"
    rows = (tmp_path / "found" / "assignments.csv").read_text().splitlines()
    code, out, _ = call(capsys, "predict", f"{tmp_path}/found", f"{tmp_path}/new")
    assert code == 0 and len(rows) == 31
    assert [row.split(",")[:2] for row in out.splitlines()] == [row.split(",")[:2] for row in rows]
    code, out, _ = call(
        capsys, "discover", *places, "--fast"
    )  # again: it goes on with the encoder that it has
    assert code == 0 and "encoder:" not in out
