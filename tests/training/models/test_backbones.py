"""Backbones from files with the key layout of the published ones."""

import argparse
import pickle
import warnings

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from timm.models.vision_transformer import VisionTransformer

from eagc_ops.encoder import AnchoredEncoder
from eagc_ops.training.models import backbones
from eagc_ops.training.models.backbones import load_backbone


def published_state(dim=768, depth=12, patch=16, grid=14, registers=0, dinov2=False, seed=0, constant=False):
    """Random tensors under the names and shapes of the authors' files.

    `constant`: one value per tensor, so that a file is tiny.
    """
    generator = torch.Generator().manual_seed(seed)
    shapes = {"cls_token": (1, 1, dim), "pos_embed": (1, grid * grid + 1, dim)}
    if dinov2:
        shapes["mask_token"] = (1, dim)
    if registers:
        shapes["register_tokens"] = (1, registers, dim)
    linears = {
        "attn.qkv": (3 * dim, dim),
        "attn.proj": (dim, dim),
        "mlp.fc1": (4 * dim, dim),
        "mlp.fc2": (dim, 4 * dim),
    }
    norms = {"norm1": (dim,), "norm2": (dim,)}
    for i in range(depth):
        for part, shape in (linears | norms).items():
            shapes[f"blocks.{i}.{part}.weight"], shapes[f"blocks.{i}.{part}.bias"] = shape, shape[:1]
        if dinov2:
            shapes[f"blocks.{i}.ls1.gamma"] = shapes[f"blocks.{i}.ls2.gamma"] = (dim,)
    shapes |= {"norm.weight": (dim,), "norm.bias": (dim,)}
    shapes |= {"patch_embed.proj.weight": (dim, 3, patch, patch), "patch_embed.proj.bias": (dim,)}
    return {
        name: torch.randn((1,) if constant else shape, generator=generator).expand(shape)
        for name, shape in shapes.items()
    }


@pytest.fixture
def small(monkeypatch):
    """The two published architectures at dim 24 and depth 2, under their own names."""
    sizes = {"embed_dim": 24, "depth": 2, "num_heads": 2, "num_classes": 0}
    kinds = {
        "dino_vitb16": {"patch_size": 16},
        "dinov2_vitb14_reg4": {
            "patch_size": 14,
            "reg_tokens": 4,
            "no_embed_class": True,
            "init_values": 1e-5,
        },
    }

    def build(name, *, image_size, channels):
        return VisionTransformer(image_size, in_chans=channels, **sizes, **kinds[name])

    monkeypatch.setattr(backbones, "random_backbone", build)


DINO = {"dim": 24, "depth": 2}
DINOV2 = {"dim": 24, "depth": 2, "patch": 14, "grid": 37, "dinov2": True}


def save(state, path):
    torch.save(state, path)
    return path


def test_dino_file_of_real_size(tmp_path):
    state = published_state(constant=True)
    assert len(state) == 150
    assert sum(value.numel() for value in state.values()) == 85_798_656
    vit = load_backbone("dino_vitb16", save(state, tmp_path / "dino.pth"))
    assert vit.state_dict().keys() == state.keys()
    assert all(torch.equal(value, state[name]) for name, value in vit.state_dict().items())
    assert (vit.blocks[0].norm1.eps, vit.blocks[0].attn.num_heads, vit.global_pool) == (1e-6, 12, "token")


def test_dinov2_file_of_real_size(tmp_path):
    state = published_state(patch=14, grid=37, registers=4, dinov2=True, constant=True)
    assert len(state) == 176
    vit = load_backbone("dinov2_vitb14_reg4", save(state, tmp_path / "dinov2.pth"))
    assert vit.pos_embed.shape == (1, 256, 768)
    assert torch.equal(vit.reg_token, state["register_tokens"])
    assert torch.equal(vit.cls_token, state["cls_token"] + state["pos_embed"][:, :1])
    AnchoredEncoder(vit)  # the encoder accepts it


def test_dinov2_conversion(small, tmp_path):
    """Registers without a position, class token with one, patch positions resized (bicubic, antialias)."""
    state = published_state(**DINOV2, registers=4)
    vit = load_backbone("dinov2_vitb14_reg4", save(state, tmp_path / "w.pth"))
    loaded = dict(vit.state_dict())
    assert torch.equal(loaded.pop("reg_token"), state.pop("register_tokens"))
    positions = state.pop("pos_embed")
    assert torch.equal(loaded.pop("cls_token"), state.pop("cls_token") + positions[:, :1])
    grid = positions[:, 1:].reshape(1, 37, 37, 24).permute(0, 3, 1, 2)
    want = (
        F.interpolate(grid, (16, 16), mode="bicubic", antialias=True, align_corners=False)
        .permute(0, 2, 3, 1)
        .reshape(1, 256, 24)
    )
    torch.testing.assert_close(loaded.pop("pos_embed"), want, atol=1e-6, rtol=0)
    state.pop("mask_token")
    assert loaded.keys() == state.keys()
    assert all(torch.equal(loaded[name], value) for name, value in state.items())
    assert vit(torch.zeros(1, 3, 224, 224)).shape == (1, 24)


def under(prefix, state):
    return {f"{prefix}{name}": value for name, value in state.items()}


HEAD = {"head.mlp.0.weight": torch.zeros(3, 3), "head.last_layer.weight_g": torch.zeros(3, 1)}
WRAPPINGS = {
    "flat": lambda s: s,
    "teacher": lambda s: {
        "teacher": under("backbone.", s) | HEAD,
        "student": under("module.backbone.", {name: 2 * value for name, value in s.items()}),
        "epoch": 400,
        "args": argparse.Namespace(arch="vit_base", lr=0.1),
    },
    "teacher without prefix": lambda s: {"teacher": s},
    "flattened teacher": lambda s: under("teacher.backbone.", s) | under("teacher.", HEAD) | {"epoch": 3},
    "backbone": lambda s: under("backbone.", s) | HEAD,
    "model": lambda s: {"model": s},
    "timm classifier": lambda s: s | {"head.weight": torch.zeros(10, 24), "head.bias": torch.zeros(10)},
}  # fmt: skip


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_wrapped_files(small, tmp_path, wrapping):
    state = published_state(**DINO)
    vit = load_backbone("dino_vitb16", save(WRAPPINGS[wrapping](state), tmp_path / "w.pth"))
    assert vit.state_dict().keys() == state.keys()
    assert all(torch.equal(value, state[name]) for name, value in vit.state_dict().items())


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_timm_files(small, tmp_path, suffix):
    """A state that timm itself saved, at another image size: already converted, only positions change."""
    sizes = {"embed_dim": 24, "depth": 2, "num_heads": 2, "num_classes": 0}
    source = VisionTransformer(518, 14, **sizes, reg_tokens=4, no_embed_class=True, init_values=0.1)
    path = tmp_path / f"w{suffix}"
    (save_file if suffix == ".safetensors" else torch.save)(source.state_dict(), path)
    vit = load_backbone("dinov2_vitb14_reg4", path)
    for name, value in vit.state_dict().items():
        assert name == "pos_embed" or torch.equal(value, source.state_dict()[name]), name
    assert vit.pos_embed.shape == (1, 256, 24)


def without(name):
    return lambda state: state.pop(name)


def replaced(name, *shape):
    return lambda state: state.update({name: torch.zeros(shape)})


@pytest.mark.parametrize(("change", "error"), [
    (without("blocks.1.mlp.fc2.bias"), r"missing blocks\.1\.mlp\.fc2\.bias"),
    (replaced("blocks.2.norm1.weight", 24), r"unexpected blocks\.2\.norm1\.weight"),
    (replaced("head.mlp.0.weight", 3, 3), r"unexpected head\.mlp\.0\.weight"),
    (replaced("norm.weight", 25), r"norm\.weight has shape \(25,\), not \(24,\)"),
    (
        replaced("patch_embed.proj.weight", 24, 3, 8, 8),
        r"patch_embed\.proj\.weight has shape \(24, 3, 8, 8\), not \(24, 3, 16, 16\)",
    ),
    (replaced("pos_embed", 1, 190, 24), "does not fit"),
])  # fmt: skip
def test_mismatches_are_named(small, tmp_path, change, error):
    state = published_state(**DINO)
    change(state)
    with pytest.raises(ValueError, match=error):
        load_backbone("dino_vitb16", save(state, tmp_path / "w.pth"))


def test_dinov2_without_registers_is_not_loaded_into_the_register_model(small, tmp_path):
    state = published_state(**DINOV2)
    with pytest.raises(ValueError, match=r"missing register_tokens.*without registers"):
        load_backbone("dinov2_vitb14_reg4", save(state, tmp_path / "w.pth"))


def test_files_of_the_other_backbone_are_refused(small, tmp_path):
    with pytest.raises(ValueError, match="patch_embed"):
        load_backbone("dinov2_vitb14_reg4", save(published_state(**DINO), tmp_path / "a.pth"))
    with pytest.raises(ValueError, match="patch_embed"):
        load_backbone("dino_vitb16", save(published_state(**DINOV2, registers=4), tmp_path / "b.pth"))
    with pytest.raises(ValueError, match=r"takes 3-channel images, not 1-channel ones; .*channels=3"):
        load_backbone("dino_vitb16", save(published_state(**DINO), tmp_path / "c.pth"), channels=1)


class Payload:
    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


def test_pickled_code_never_runs(small, tmp_path):
    mark = tmp_path / "ran"
    for i, write in enumerate(
        (torch.save, lambda state, path: path.write_bytes(pickle.dumps(state, protocol=2)))
    ):
        path = tmp_path / f"{i}.pth"
        write(published_state(**DINO) | {"epoch": Payload(mark)}, path)
        with pytest.raises(ValueError, match="refused"):
            load_backbone("dino_vitb16", path)
    assert not mark.exists()


def test_files_that_are_not_weights(small, tmp_path):
    good = save(published_state(**DINO), tmp_path / "good.pth").read_bytes()
    (tmp_path / "cut.pth").write_bytes(good[: len(good) // 2])
    (tmp_path / "cut.safetensors").write_bytes(good[:100])
    for name in ("cut.pth", "cut.safetensors"):
        with pytest.raises(ValueError, match=rf"{name}.*cannot be read"):
            load_backbone("dino_vitb16", tmp_path / name)
    with pytest.raises(FileNotFoundError, match=r"nowhere\.pth"):
        load_backbone("dino_vitb16", tmp_path / "nowhere.pth")
    with pytest.raises(ValueError, match="holds a Tensor"):
        load_backbone("dino_vitb16", save(torch.zeros(3), tmp_path / "t.pth"))
    with pytest.raises(ValueError, match="not tensors: epoch"):
        load_backbone("dino_vitb16", save(published_state(**DINO) | {"epoch": 3}, tmp_path / "e.pth"))
    with pytest.raises(ValueError, match="no tensors"):
        load_backbone("dino_vitb16", save({}, tmp_path / "n.pth"))


def test_vit_digits(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vit = load_backbone("vit_digits", image_size=16, channels=1)
    assert vit.patch_embed.num_patches == 16
    assert vit(torch.zeros(2, 1, 16, 16)).shape == (2, 96)
    AnchoredEncoder(vit, 3)
    again = load_backbone("vit_digits", save(vit.state_dict(), tmp_path / "d.pth"), image_size=16, channels=1)
    assert all(torch.equal(a, b) for a, b in zip(vit.parameters(), again.parameters(), strict=True))
    with pytest.raises(ValueError, match="multiple of 4"):
        load_backbone("vit_digits", image_size=18, channels=1)


def test_other_timm_names():
    vit = load_backbone("vit_tiny_patch16_224", "random", image_size=32, channels=1)
    assert vit(torch.zeros(1, 1, 32, 32)).shape == (1, 192)
    with pytest.raises(ValueError, match="'dino_vitb61' is unknown; close names: dino_vitb16"):
        load_backbone("dino_vitb61")
    for name in ("mobilenetv3_large_100", "vit_base_patch16_siglip_224"):
        with pytest.raises(ValueError, match=f"'{name}' cannot be built as a ViT with a class token"):
            load_backbone(name)
    with pytest.raises(ValueError, match="is a Eva"):
        load_backbone("eva02_tiny_patch14_224")


def test_a_resnet_is_its_stem_and_four_stages(tmp_path):
    import timm

    from eagc_ops.staged_encoder import Stages

    theirs = timm.create_model("resnet18", num_classes=7, in_chans=1).eval()
    for module in theirs.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_()
    torch.save(theirs.state_dict(), tmp_path / "resnet.pth")
    ours = load_backbone("resnet18", tmp_path / "resnet.pth", image_size=32, channels=1)
    assert isinstance(ours, Stages)
    assert (len(ours.blocks), ours.embed_dim) == (5, 512)
    images = torch.randn(2, 1, 32, 32)
    with torch.no_grad():
        want = theirs.forward_head(theirs.forward_features(images), pre_logits=True)
        torch.testing.assert_close(ours(images), want)


def test_a_backbone_of_the_users_own(tmp_path, monkeypatch):
    (tmp_path / "my_backbones.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, channels):\n"
        "        super().__init__()\n"
        "        self.stages = nn.ModuleList([nn.Conv2d(channels, 4, 3, 2), nn.Conv2d(4, 6, 3, 2)])\n"
        "def net(image_size, channels):\n"
        "    return Net(channels)\n"
        "def bare(image_size, channels):\n"
        "    return nn.Linear(2, 2)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    backbone = load_backbone("my_backbones:net", image_size=16, channels=2)
    assert (len(backbone.blocks), backbone.embed_dim) == (2, 6)
    torch.save(backbone.state_dict(), tmp_path / "weights.pth")
    again = load_backbone("my_backbones:net", tmp_path / "weights.pth", image_size=16, channels=2)
    assert torch.equal(again.blocks[1].weight, backbone.blocks[1].weight)
    for name, message in (
        ("my_backbones:bare", "returns a Linear without stages"),
        ("my_backbones:none", "cannot be imported"),
        ("no_such_package:net", "cannot be imported"),
    ):
        with pytest.raises(ValueError, match=message):
            load_backbone(name, image_size=16, channels=2)
    with pytest.raises(ValueError, match="does not take images of 2 x 2 x 2"):
        load_backbone("my_backbones:net", image_size=2, channels=2)
