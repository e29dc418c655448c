"""The transforms of the protocol, of digits and of glyphs. They draw from torch's default generator only."""

from collections.abc import Callable

from torchvision import transforms as T

BICUBIC, BILINEAR = T.InterpolationMode.BICUBIC, T.InterpolationMode.BILINEAR


def protocol_transforms(image_size: int = 224, flip: bool = True) -> tuple[T.Compose, T.Compose]:
    """(train, test): PIL RGB -> float32 (3, image_size, image_size), for all data sets of the protocol.

    The short side is resized to image_size / 0.875 (224: 256), then the image is cropped (train: at random,
    then, with `flip`, mirrored at random; test: centre) and normalized. The published train transform also
    has a ColorJitter without arguments, which is the identity.
    """
    resize = T.Resize(int(image_size / 0.875), BICUBIC)
    tensor = [T.ToTensor(), T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
    mirror = [T.RandomHorizontalFlip()] if flip else []
    train = T.Compose([resize, T.RandomCrop(image_size), *mirror, *tensor])
    return train, T.Compose([resize, T.CenterCrop(image_size), *tensor])


def digits_transforms(image_size: int = 16, flip: bool = False) -> tuple[T.Compose, T.Compose]:
    """(train, test): PIL grey 8 x 8 -> float32 (1, image_size, image_size).

    Train: a small rotation and shift, and no flip, since a mirrored digit is not a digit.
    """
    _refuse(flip, "digit")
    resize = T.Resize((image_size, image_size), BICUBIC)
    # Mean and deviation of the 1,797 images, scaled to [0, 1]
    tensor = [T.ToTensor(), T.Normalize((0.305,), (0.376,))]
    affine = T.RandomAffine(degrees=10, translate=(0.1, 0.1), interpolation=BILINEAR)
    return T.Compose([resize, affine, *tensor]), T.Compose([resize, *tensor])


def glyphs_transforms(image_size: int = 32, flip: bool = False) -> tuple[T.Compose, T.Compose]:
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
TRANSFORMS: dict[str, Callable[[int, bool], tuple[T.Compose, T.Compose]]] = {
    "protocol": protocol_transforms,
    "digits": digits_transforms,
    "glyphs": glyphs_transforms,
}
