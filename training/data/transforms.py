"""The transforms of the protocol, and those of the digits. They draw from torch's default generator only.

`split_transform` takes one apart: what is the same for every draw of an image, what is drawn, and what can be
left to the device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision import transforms as T

BICUBIC, BILINEAR = T.InterpolationMode.BICUBIC, T.InterpolationMode.BILINEAR


def protocol_transforms(image_size: int = 224) -> tuple[T.Compose, T.Compose]:
    """(train, test): PIL RGB -> float32 (3, image_size, image_size), for all data sets of the protocol.

    The short side is resized to image_size / 0.875 (224: 256), then the image is cropped (train: at random,
    then flipped at random; test: centre) and normalized. The published train transform also has a ColorJitter
    without arguments, which is the identity.
    """
    resize = T.Resize(int(image_size / 0.875), BICUBIC)
    tensor = [T.ToTensor(), T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
    train = T.Compose([resize, T.RandomCrop(image_size), T.RandomHorizontalFlip(), *tensor])
    return train, T.Compose([resize, T.CenterCrop(image_size), *tensor])


def digits_transforms(image_size: int = 16) -> tuple[T.Compose, T.Compose]:
    """(train, test): PIL grey 8 x 8 -> float32 (1, image_size, image_size).

    Train: a small rotation and shift, and no flip, since a mirrored digit is not a digit.
    """
    resize = T.Resize((image_size, image_size), BICUBIC)
    # Mean and deviation of the 1,797 images, scaled to [0, 1]
    tensor = [T.ToTensor(), T.Normalize((0.305,), (0.376,))]
    affine = T.RandomAffine(degrees=10, translate=(0.1, 0.1), interpolation=BILINEAR)
    return T.Compose([resize, affine, *tensor]), T.Compose([resize, *tensor])


# By the field `transforms` of a data set's spec.
TRANSFORMS: dict[str, Callable[[int], tuple[T.Compose, T.Compose]]] = {
    "protocol": protocol_transforms,
    "digits": digits_transforms,
}


class Normalization(NamedTuple):
    """Bytes to float32: x / 255, less `mean`, divided by `std`, as ToTensor and Normalize compute it."""

    mean: tuple[float, ...]  # of every channel
    std: tuple[float, ...]

    def __call__(self, pixels: Tensor) -> Tensor:
        """float32 of uint8 (..., C, H, W), on its device.

        >>> Normalization((0.5,), (0.25,))(torch.tensor([[[0, 255]]], dtype=torch.uint8)).tolist()
        [[[-2.0, 2.0]]]
        """
        mean, std = _columns(self, pixels.device)
        return pixels.to(torch.float32).div_(255).sub_(mean).div_(std)


@functools.lru_cache(maxsize=16)  # a copy to a GPU for every batch would wait for it
def _columns(normalization: Normalization, device: torch.device) -> tuple[Tensor, ...]:
    return tuple(torch.tensor(row, device=device).view(-1, 1, 1) for row in normalization)


class SplitTransform(NamedTuple):
    """A transform in three parts: `normalization(drawn(pixels_of(fixed(image))))` has its bits."""

    fixed: Callable[[Image.Image], Image.Image]  # the same for every draw: resize
    drawn: Callable[[Tensor], Tensor]  # crop and flip of uint8 (C, H, W); draws as on a PIL image
    normalization: Normalization


# These move bytes and change none, and they draw the same numbers for a tensor as for a PIL image.
_MOVES = (T.RandomCrop, T.CenterCrop, T.RandomHorizontalFlip)


def split_transform(transform: Callable) -> SplitTransform | None:
    """The parts of a transform that resizes, crops or flips, and normalizes; None for any other one.

    >>> split_transform(protocol_transforms()[0]).fixed
    Resize(size=256, interpolation=bicubic, max_size=None, antialias=True)
    >>> split_transform(digits_transforms()[0]) is None  # a rotation interpolates
    True
    """
    steps = transform.transforms if type(transform) is T.Compose else []
    if len(steps) < 3 or type(steps[0]) is not T.Resize:
        return None
    fixed, *moves, tensor, normalize = steps
    if type(tensor) is not T.ToTensor or type(normalize) is not T.Normalize:
        return None
    if any(type(move) not in _MOVES for move in moves):
        return None
    normalization = Normalization(tuple(normalize.mean), tuple(normalize.std))
    return SplitTransform(fixed, T.Compose(moves), normalization)


def pixels_of(image: Image.Image) -> np.ndarray:
    """The bytes of an 8-bit image, uint8 (C, H, W), as ToTensor orders them."""
    pixels = np.asarray(image)
    # A copy, since PIL's own bytes must not be written to, and torch has no such tensors
    return np.array(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1), order="C")
