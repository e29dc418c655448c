"""The data sets: all published facts about each, and the form of its images.

This is plain data. `data/catalog.py` reads the files, and `presets.py` has the settings that depend on the
data set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One data set. Counts are 0 where nothing is published, as for a folder of the user's own."""

    title: str
    known: int = 0  # classes
    novel: int = 0  # classes
    train: int = 0  # images
    test: int = 0  # images
    pool: int = 0  # training images of known classes; half of them are labelled
    layout: str  # the files below the root, for messages
    inner: str = ""  # folder that the archive unpacks to; the root may be this folder or its parent
    permuted: bool = False  # L in drawn order, as in the official loader; otherwise in ascending order
    needs_split_file: bool = False  # whether the user must say which classes are known
    split_file: str = ""  # published file with the class split, not redistributed here
    split_sha256: str = ""  # of that file
    source: str = ""  # where the images are published; "": the user's own, or in a package
    archive_bytes: int = 0  # of the archive that `eagc data download` fetches; 0: it is fetched by hand
    archive_md5: str = ""  # where torchvision has none
    long_tailed: bool = False  # the sizes of classes differ much: means over classes are logged too
    bundled: str = ""  # package that contains the images; such a data set has no root
    channels: int = 3  # of an image; those of a package have no others, see `channels_of`
    image_size: int = 224  # default side of the square input, in pixels
    transforms: Literal["protocol", "digits", "glyphs"] = "protocol"  # key of `data.transforms.TRANSFORMS`
    flip: bool = True  # whether a mirrored image is an image of the same class
    own_encoder: str | None = None  # backbone made for these images, as no published weights fit
    truth: bool = True  # False: nobody knows the classes of the unlabelled images (`eagc discover`)
    small: bool = False  # a CPU trains it in minutes; good for a demonstration, not for judging accuracy


def _counted(title: str, counts: tuple[int, int, int, int, int], **others: Any) -> Spec:
    """`counts`: known and novel classes; training, test and pooled images."""
    known, novel, train, test, pool = counts
    return Spec(title=title, known=known, novel=novel, train=train, test=test, pool=pool, **others)


SPECS: dict[str, Spec] = {
    "cifar10": _counted(
        "CIFAR-10",
        (5, 5, 50_000, 10_000, 25_000),
        source="https://www.cs.toronto.edu/~kriz/cifar.html",
        archive_bytes=170_498_071,
        layout="data_batch_1 .. data_batch_5, test_batch",
        inner="cifar-10-batches-py",
        permuted=True,
    ),
    "cifar100": _counted(
        "CIFAR-100",
        (80, 20, 50_000, 10_000, 40_000),
        source="https://www.cs.toronto.edu/~kriz/cifar.html",
        archive_bytes=169_001_437,
        layout="train, test",
        inner="cifar-100-python",
        permuted=True,
    ),
    "imagenet100": _counted(
        "ImageNet-100",
        (50, 50, 127_115, 5_000, 63_720),
        source="https://image-net.org (ILSVRC 2012, after registration; all 1,000 folders may be there)",
        layout="train/<wnid>/*.JPEG, val/<wnid>/*.JPEG",
        permuted=True,
    ),
    "cub": _counted(
        "CUB-200-2011",
        (100, 100, 5_994, 5_794, 2_997),
        source="https://www.vision.caltech.edu/datasets/cub_200_2011",
        layout="images/<nnn.Name>/*.jpg, images.txt, image_class_labels.txt, train_test_split.txt",
        inner="CUB_200_2011",
        needs_split_file=True,
        split_file="cub_osr_splits.pkl",
        split_sha256="48bdcaa05603d932037738d3df776ab500945e9b7aeff85f4668305bf71bd1e7",
    ),
    "scars": _counted(
        "Stanford Cars",
        (98, 98, 8_144, 8_041, 4_001),
        source="https://www.kaggle.com and https://huggingface.co (copies; Stanford's page is gone)",
        layout="cars_train/*.jpg, cars_test/*.jpg, devkit/cars_train_annos.mat, "
        "devkit/cars_test_annos_withlabels.mat",
        inner="stanford_cars",
        permuted=True,
        needs_split_file=True,
        split_file="scars_osr_splits.pkl",
        split_sha256="28d471f0fb9e2c773e1255b8b447e542974f6617952203056a0635c638513d39",
    ),
    "aircraft": _counted(
        "FGVC-Aircraft",
        (50, 50, 6_667, 3_333, 3_332),
        source="https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft",
        archive_bytes=2_753_340_328,
        archive_md5="d4acdd33327262359767eeaa97a4f732",
        layout="data/images/*.jpg, data/images_variant_trainval.txt, data/images_variant_test.txt",
        inner="fgvc-aircraft-2013b",
        needs_split_file=True,
        split_file="aircraft_osr_splits.pkl",
        split_sha256="2a2481307cec7821721d6a73c1a3ca77db7e657649e043d1a83aa7dd81a5a194",
    ),
    "herbarium19": _counted(
        "Herbarium19",
        (341, 342, 34_225, 2_679, 17_739),
        source="https://www.kaggle.com/c/herbarium-2019-fgvc6 (the small version)",
        layout="small-train/<0..682>/*.jpg, small-validation/<0..682>/*.jpg",
        split_file="herbarium_19_class_splits.pkl",
        split_sha256="6ddd0b23888e9d9d8bd7150cafb608ddcf1804a1a1d601444e96edd499225170",
        long_tailed=True,  # SimGCD's script logs them too
    ),
    "folder": Spec(
        title="image folder",
        layout="<class name>/*.jpg (or .png, ...)",
        needs_split_file=True,
    ),
    "discover": Spec(
        title="your images",
        layout="<class name>/*.jpg (or .png, ...)",
        truth=False,
    ),
    "digits": _counted(
        "scikit-learn digits",
        (5, 5, 1_797, 0, 901),
        layout="nothing: the images come with scikit-learn",
        bundled="scikit-learn",
        channels=1,
        image_size=16,
        transforms="digits",
        flip=False,
        own_encoder="vit_digits",
        small=True,
    ),
    "glyphs": _counted(
        # Counts of the default settings; `Config.spec` has those of a configuration.
        "glyphs",
        (10, 50, 1_800, 0, 300),
        layout="nothing: the images are drawn with the fonts of matplotlib",
        bundled="matplotlib",
        channels=1,
        image_size=32,
        transforms="glyphs",
        flip=False,
        own_encoder="vit_glyphs",
        small=True,
    ),
}
DATASETS: tuple[str, ...] = tuple(name for name, spec in SPECS.items() if spec.truth)
"""The data sets to train and to evaluate on. The other one is opened by `eagc discover`."""


def channels_of(dataset: str, asked: int | None = None) -> int:
    """The channels of the images of a data set, if `asked` are asked for; None: its own.

    Files can be read in grey or in RGB. Drawn images, and those of a package, are what they are.

    >>> channels_of("folder"), channels_of("folder", 1), channels_of("digits")
    (3, 1, 1)
    """
    spec = SPECS[dataset]
    if spec.bundled and asked not in (None, spec.channels):
        raise ValueError(f"channels={asked}: images of {dataset} have {spec.channels}; leave it out")
    return spec.channels if asked is None else asked
