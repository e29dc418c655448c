"""The protocol's transforms against the published pipeline and against plain PIL and numpy."""

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as T

from eagc_ops.training.data import open_data
from eagc_ops.training.data.transforms import digits_transforms, protocol_transforms, split_transform

MEAN, STD = np.array([0.485, 0.456, 0.406], np.float32), np.array([0.229, 0.224, 0.225], np.float32)


def picture(width, height):
    return Image.fromarray(np.random.RandomState(width).randint(0, 256, (height, width, 3), np.uint8))


@pytest.mark.parametrize("size", [(32, 32), (500, 375), (40, 61), (256, 256)])
def test_train_transform_is_the_published_pipeline(size):
    published = T.Compose(
        [
            T.Resize(256, interpolation=T.InterpolationMode.BICUBIC),
            T.RandomCrop(224),
            T.RandomHorizontalFlip(0.5),
            T.ColorJitter(),
            T.ToTensor(),
            T.Normalize(mean=torch.tensor(MEAN), std=torch.tensor(STD)),
        ]
    )
    train, _ = protocol_transforms()
    image = picture(*size)
    for seed in range(6):
        torch.manual_seed(seed)
        expected = published(image)
        torch.manual_seed(seed)
        assert torch.equal(train(image), expected)


@pytest.mark.parametrize(
    ("size", "image_size", "short"),
    [((32, 32), 224, 256), ((500, 375), 224, 256), ((40, 61), 224, 256), ((50, 70), 32, 36)],
)
def test_test_transform_in_plain_pil(size, image_size, short):
    image = picture(*size)
    width, height = (
        (short, int(short * size[1] / size[0]))
        if size[0] <= size[1]
        else (int(short * size[0] / size[1]), short)
    )
    left, top = round((width - image_size) / 2), round((height - image_size) / 2)
    crop = image.resize((width, height), Image.Resampling.BICUBIC).crop(
        (left, top, left + image_size, top + image_size)
    )
    expected = ((np.asarray(crop, np.float32) / 255 - MEAN) / STD).transpose(2, 0, 1)
    found = protocol_transforms(image_size)[1](image)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-6)


def test_digits_transforms_move_a_little_and_never_mirror():
    data = open_data("digits")
    train, test = digits_transforms(16)
    stack = torch.stack([test(data.labelled[i][0]) for i in range(450)])
    assert stack.shape == (450, 1, 16, 16)
    assert abs(stack.mean()) < 0.05
    assert abs(stack.std() - 1) < 0.1
    assert digits_transforms(32)[0](data.labelled[0][0]).shape == (1, 32, 32)

    corner = Image.fromarray(
        np.pad(np.full((3, 3), 255, np.uint8), ((0, 5), (0, 5)))
    )  # bright top left corner only
    torch.manual_seed(0)
    views = torch.stack([train(corner)[0] for _ in range(300)])
    assert len({v.numpy().tobytes() for v in views}) > 250
    light = views - views.min()
    for half in (light[:, :, 8:], light[:, 8:, :]):  # a flip would carry the corner over
        assert (half.sum((1, 2)) < 0.2 * light.sum((1, 2))).all()


def test_bytes_are_normalized_as_torchvision_does():
    """Every byte in every channel, alone and in a batch."""
    split = split_transform(protocol_transforms()[0])
    pixels = torch.arange(256, dtype=torch.uint8).repeat(3, 2, 1)
    expected = T.Compose(protocol_transforms()[0].transforms[-2:])(
        Image.fromarray(pixels.permute(1, 2, 0).numpy())
    )
    assert torch.equal(split.normalization(pixels), expected)
    assert torch.equal(split.normalization(pixels.expand(4, -1, -1, -1)), expected.expand(4, -1, -1, -1))
    assert pixels[0, 0, 255] == 255  # not changed in place


@pytest.mark.parametrize(
    "steps",
    [
        [
            T.Resize(36),
            T.RandomCrop(32, padding=2),
            T.RandomRotation(3),
            T.ToTensor(),
            T.Normalize(MEAN, STD),
        ],
        [T.RandomResizedCrop(32), T.ToTensor(), T.Normalize(MEAN, STD)],
        [T.Resize(36), T.RandomCrop(32), T.ToTensor()],
        [T.Resize(36), T.ToTensor(), T.Normalize(MEAN, STD), T.RandomCrop(32)],
    ],
    ids=["rotation", "random size", "not normalized", "crop last"],
)
def test_other_transforms_are_not_split(steps):
    assert split_transform(T.Compose(steps)) is None
    assert split_transform(lambda image: image) is None
