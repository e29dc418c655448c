"""The data sets: published facts about each, and the form of its images.

This is plain data. `data/catalog.py` reads the files;
`presets.py` has the settings that depend on the data set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


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
    source: str = ""  # where the images are published; "": the user's own, or in a package
    archive_bytes: int = (
        0  # size of the archive that `eagc data download` fetches; 0: it must be fetched by hand
    )
    bundled: str = ""  # package that contains the images; such a data set has no root
    channels: int = 3  # of an image; those of a package have no others, see `channels_of`
    image_size: int = 224  # default side of the square input, in pixels
    transforms: Literal["protocol", "digits", "glyphs"] = "protocol"  # key of `data.transforms.TRANSFORMS`
    flip: bool = True  # whether a mirrored image is an image of the same class
    own_encoder: str | None = None  # backbone made for these images, as no published weights fit
    truth: bool = True  # False: nobody knows the classes of the unlabelled images (`eagc discover`)
    small: bool = False  # a CPU trains it in minutes; good for a demonstration, not for judging accuracy


SPECS: dict[str, Spec] = {
    "cifar10": Spec(
        title="CIFAR-10",
        known=5,
        novel=5,
        train=50_000,
        test=10_000,
        pool=25_000,
        source="https://www.cs.toronto.edu/~kriz/cifar.html",
        archive_bytes=170_498_071,
        layout="data_batch_1 .. data_batch_5, test_batch",
        inner="cifar-10-batches-py",
        permuted=True,
    ),
    "cifar100": Spec(
        title="CIFAR-100",
        known=80,
        novel=20,
        train=50_000,
        test=10_000,
        pool=40_000,
        source="https://www.cs.toronto.edu/~kriz/cifar.html",
        archive_bytes=169_001_437,
        layout="train, test",
        inner="cifar-100-python",
        permuted=True,
    ),
    "imagenet100": Spec(
        title="ImageNet-100",
        known=50,
        novel=50,
        train=127_115,
        test=5_000,
        pool=63_720,
        source="https://image-net.org (ILSVRC 2012, after registration; all 1,000 folders may be there)",
        layout="train/<wnid>/*.JPEG, val/<wnid>/*.JPEG",
        permuted=True,
    ),
    "cub": Spec(
        title="CUB-200-2011",
        known=100,
        novel=100,
        train=5_994,
        test=5_794,
        pool=2_997,
        source="https://www.vision.caltech.edu/datasets/cub_200_2011",
        layout="images/<nnn.Name>/*.jpg, images.txt, image_class_labels.txt, train_test_split.txt",
        inner="CUB_200_2011",
        needs_split_file=True,
        split_file="cub_osr_splits.pkl",
    ),
    "scars": Spec(
        title="Stanford Cars",
        known=98,
        novel=98,
        train=8_144,
        test=8_041,
        pool=4_001,
        source="https://www.kaggle.com and https://huggingface.co (copies; Stanford's page is gone)",
        layout="cars_train/*.jpg, cars_test/*.jpg, devkit/cars_train_annos.mat, "
        "devkit/cars_test_annos_withlabels.mat",
        inner="stanford_cars",
        permuted=True,
        needs_split_file=True,
        split_file="scars_osr_splits.pkl",
    ),
    "aircraft": Spec(
        title="FGVC-Aircraft",
        known=50,
        novel=50,
        train=6_667,
        test=3_333,
        pool=3_332,
        source="https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft",
        archive_bytes=2_753_340_328,
        layout="data/images/*.jpg, data/images_variant_trainval.txt, data/images_variant_test.txt",
        inner="fgvc-aircraft-2013b",
        needs_split_file=True,
        split_file="aircraft_osr_splits.pkl",
    ),
    "herbarium19": Spec(
        title="Herbarium19",
        known=341,
        novel=342,
        train=34_225,
        test=2_679,
        pool=17_739,
        source="https://www.kaggle.com/c/herbarium-2019-fgvc6 (the small version)",
        layout="small-train/<0..682>/*.jpg, small-validation/<0..682>/*.jpg",
        split_file="herbarium_19_class_splits.pkl",
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
    "digits": Spec(
        title="scikit-learn digits",
        known=5,
        novel=5,
        train=1_797,
        pool=901,
        layout="nothing: the images come with scikit-learn",
        bundled="scikit-learn",
        channels=1,
        image_size=16,
        transforms="digits",
        flip=False,
        own_encoder="vit_digits",
        small=True,
    ),
    "glyphs": Spec(
        title="glyphs",
        # Counts of the default settings; `Config.spec` has those of a configuration.
        known=10,
        novel=50,
        train=1_800,
        pool=300,
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
