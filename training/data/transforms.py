"""The transforms of the protocol, and those of the digits. They draw from torch's default generator only."""

from collections.abc import Callable

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
