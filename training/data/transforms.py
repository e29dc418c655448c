"""The transforms of the protocol, and those of the digits. They draw from torch's generator and no other."""

from torchvision import transforms as T

BICUBIC, BILINEAR = T.InterpolationMode.BICUBIC, T.InterpolationMode.BILINEAR


def protocol_transforms(image_size: int = 224) -> tuple[T.Compose, T.Compose]:
    """(train, test): PIL RGB -> float32 (3, image_size, image_size), for every dataset of the protocol, CIFAR too.

    Resize the short side to image_size / 0.875 (224: 256), crop (train: at random, then flip; test: centre), normalise.
    The published train transform also has a ColorJitter without arguments, which is the identity, and nothing else.
    """
    resize = T.Resize(int(image_size / 0.875), BICUBIC)
    tensor = [T.ToTensor(), T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
    train = T.Compose([resize, T.RandomCrop(image_size), T.RandomHorizontalFlip(), *tensor])
    return train, T.Compose([resize, T.CenterCrop(image_size), *tensor])


def digits_transforms(image_size: int = 16) -> tuple[T.Compose, T.Compose]:
    """(train, test): PIL grey 8 x 8 -> float32 (1, image_size, image_size).

    Train: a small rotation and shift; no flip, since a mirrored digit is none.
    """
    resize = T.Resize((image_size, image_size), BICUBIC)
    tensor = [
        T.ToTensor(),
        T.Normalize((0.305,), (0.376,)),
    ]  # mean and deviation of the 1,797 images scaled to [0, 1]
    train = T.Compose(
        [resize, T.RandomAffine(degrees=10, translate=(0.1, 0.1), interpolation=BILINEAR), *tensor]
    )
    return train, T.Compose([resize, *tensor])
