"""The transforms of the protocol, of digits and of glyphs. They draw from torch's default generator only.

`split_transform` takes one apart: what is the same for every draw of an image, what is drawn, and what can be
left to the device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision import transforms as T

BICUBIC, BILINEAR = T.InterpolationMode.BICUBIC, T.InterpolationMode.BILINEAR


def protocol_transforms(
    image_size: int = 224, flip: bool = True, channels: int = 3
) -> tuple[T.Compose, T.Compose]:
    """(train, test): PIL RGB -> float32 (3, image_size, image_size), for all data sets of the protocol.

    `channels=1`: PIL grey -> (1, image_size, image_size), normalized by the means of the three channels'
    numbers.

    The short side is resized to image_size / 0.875 (224: 256), then the image is cropped (train: at random,
    then, with `flip`, mirrored at random; test: centre) and normalized. The published train transform also
    has a ColorJitter without arguments, which is the identity.
    """
    resize = T.Resize(int(image_size / 0.875), BICUBIC)
    rgb = T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    tensor = [T.ToTensor(), T.Normalize((0.449,), (0.226,)) if channels == 1 else rgb]
    mirror = [T.RandomHorizontalFlip()] if flip else []
    train = T.Compose([resize, T.RandomCrop(image_size), *mirror, *tensor])
    return train, T.Compose([resize, T.CenterCrop(image_size), *tensor])


def digits_transforms(
    image_size: int = 16, flip: bool = False, channels: int = 1
) -> tuple[T.Compose, T.Compose]:
    """(train, test): PIL grey 8 x 8 -> float32 (1, image_size, image_size).

    Train: a small rotation and shift, and no flip, since a mirrored digit is not a digit.
    """
    _refuse(flip, "digit")
    resize = T.Resize((image_size, image_size), BICUBIC)
    # Mean and deviation of the 1,797 images, scaled to [0, 1]
    tensor = [T.ToTensor(), T.Normalize((0.305,), (0.376,))]
    affine = T.RandomAffine(degrees=10, translate=(0.1, 0.1), interpolation=BILINEAR)
    return T.Compose([resize, affine, *tensor]), T.Compose([resize, *tensor])


def glyphs_transforms(
    image_size: int = 32, flip: bool = False, channels: int = 1
) -> tuple[T.Compose, T.Compose]:
    """(train, test): PIL grey -> float32 (1, image_size, image_size).

    As in the protocol, with a small rotation in place of the flip.
    """
    _refuse(flip, "character")
    resize = T.Resize(int(image_size / 0.875), BICUBIC)
    # Mean and deviation of the images of the default settings, scaled to [0, 1]
    tensor = [T.ToTensor(), T.Normalize((0.30,), (0.23,))]
    train = T.Compose([resize, T.RandomRotation(10, BILINEAR), T.RandomCrop(image_size), *tensor])
    return train, T.Compose([resize, T.CenterCrop(image_size), *tensor])


def _refuse(flip: bool, kind: str) -> None:
    if flip:
        raise ValueError(f"flip=True: a mirrored {kind} is another one, or none; leave it out")


# By the field `transforms` of a data set's spec.
TRANSFORMS: dict[str, Callable[[int, bool, int], tuple[T.Compose, T.Compose]]] = {
    "protocol": protocol_transforms,
    "digits": digits_transforms,
    "glyphs": glyphs_transforms,
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
    name: str  # the repr of `fixed`
    drawn: Callable[[Tensor], Tensor]  # crop and flip of uint8 (C, H, W); draws as on a PIL image
    normalization: Normalization


def split_transform(transform: Any) -> SplitTransform | None:
    """The parts of a transform that resizes, crops or flips, and normalizes; None for any other one.

    >>> split_transform(protocol_transforms()[0]).name
    'Resize(size=256, interpolation=bicubic, max_size=None, antialias=True)'
    >>> split_transform(digits_transforms()[0]) is None  # a rotation interpolates
    True
    """
    steps = transform.transforms if type(transform) is T.Compose else []
    if len(steps) < 3 or type(steps[0]) is not T.Resize:
        return None
    fixed, *between, tensor, normalize = steps
    if type(tensor) is not T.ToTensor or type(normalize) is not T.Normalize:
        return None
    moves = [_move(step) for step in between]
    if None in moves:
        return None
    drawn = T.Compose(moves)
    normalization = Normalization(tuple(normalize.mean), tuple(normalize.std))
    return SplitTransform(fixed, repr(fixed), drawn, normalization)


class _Crop(NamedTuple):
    """T.RandomCrop without padding, of a tensor."""

    size: tuple[int, int]

    def __call__(self, pixels: Tensor) -> Tensor:
        height, width = self.size
        down, right = pixels.shape[1] - height, pixels.shape[2] - width
        if not down and not right:  # torchvision draws no number then
            return pixels
        top, left = (int(torch.randint(0, room + 1, (1,))) for room in (down, right))
        return pixels[:, top : top + height, left : left + width]


class _Flip(NamedTuple):
    """T.RandomHorizontalFlip of a tensor."""

    p: float

    def __call__(self, pixels: Tensor) -> Tensor:
        return pixels.flip(-1) if torch.rand(1) < self.p else pixels


def _move(step: Any) -> Any:
    """A step that moves bytes and changes none, for a tensor; None for any other one.

    It draws the same numbers as torchvision's step, which takes twice as long on a tensor.
    """
    if type(step) is T.RandomCrop and step.padding is None and not step.pad_if_needed:
        return _Crop(step.size)
    if type(step) is T.RandomHorizontalFlip:
        return _Flip(step.p)
    return step if type(step) is T.CenterCrop else None


def pixels_of(image: Image.Image) -> np.ndarray:
    """The bytes of an 8-bit image, uint8 (C, H, W), as ToTensor orders them."""
    pixels = np.asarray(image)
    # A copy, since PIL's own bytes must not be written to, and torch has no such tensors
    return np.array(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1), order="C")
