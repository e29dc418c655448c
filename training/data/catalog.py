"""The datasets: what lies on disk, in which order it is read, and which class index an image has before re-indexing.

`SPECS` is the table of published counts; `read_images` turns a root into a list of images and class indices without
decoding a single image. How classes are split comes next, in `splits.py`.
"""

import hashlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image
from torchvision.datasets import CIFAR10, CIFAR100
from torchvision.datasets.folder import IMG_EXTENSIONS, find_classes, make_dataset, pil_loader

from eagc_ops.training.data.pickles import ARRAYS, read_pickle


class Spec(NamedTuple):
    """One dataset of the protocol. `pool` is the number of training images of known classes; half of it is labelled."""

    title: str
    known: int  # classes; 0 where the user's split decides
    novel: int
    train: int  # images; 0 where nothing is published
    test: int
    pool: int
    inner: str  # folder the archive unpacks to: the root may be this folder or the one that holds it
    layout: str  # for messages
    permuted: bool  # the official loader keeps L in drawn order (True) or in ascending order (False)


SPECS: dict[str, Spec] = {
    "cifar10": Spec("CIFAR-10", 5, 5, 50_000, 10_000, 25_000, "cifar-10-batches-py", "data_batch_1 .. data_batch_5, test_batch", True),
    "cifar100": Spec("CIFAR-100", 80, 20, 50_000, 10_000, 40_000, "cifar-100-python", "train, test", True),
    "imagenet100": Spec("ImageNet-100", 50, 50, 127_115, 5_000, 63_720, "", "train/<wnid>/*.JPEG, val/<wnid>/*.JPEG", True),
    "cub": Spec("CUB-200-2011", 100, 100, 5_994, 5_794, 2_997, "CUB_200_2011",
                "images/<nnn.Name>/*.jpg, images.txt, image_class_labels.txt, train_test_split.txt", False),
    "scars": Spec("Stanford Cars", 98, 98, 8_144, 8_041, 4_001, "stanford_cars",
                  "cars_train/*.jpg, cars_test/*.jpg, devkit/cars_train_annos.mat, devkit/cars_test_annos_withlabels.mat", True),
    "aircraft": Spec("FGVC-Aircraft", 50, 50, 6_667, 3_333, 3_332, "fgvc-aircraft-2013b",
                     "data/images/*.jpg, data/images_variant_trainval.txt, data/images_variant_test.txt", False),
    "herbarium19": Spec("Herbarium19", 341, 342, 34_225, 2_679, 17_739, "",
                        "small-train/<0..682>/*.jpg, small-validation/<0..682>/*.jpg", False),
    "folder": Spec("image folder", 0, 0, 0, 0, 0, "", "<class name>/*.jpg (or .png, ...)", False),
    "digits": Spec("scikit-learn digits", 5, 5, 1_797, 0, 901, "", "nothing: the images come with scikit-learn", False),
}  # fmt: skip
DATASETS: tuple[str, ...] = tuple(SPECS)


@dataclass(frozen=True)
class Images:
    """Images in dataset order. The position in it is the `uq_idx` of the protocol."""

    source: list[str] | np.ndarray  # paths, or uint8 pixels (N, H, W) or (N, H, W, 3)
    targets: np.ndarray  # int64 (N,), class index before re-indexing
    names: tuple[str, ...] = ()  # folder names by class index, for trees of folders
    notes: tuple[str, ...] = ()  # what was found where

    def __len__(self) -> int:
        return len(self.targets)

    def image(self, position: int) -> Image.Image:
        """Decoded by PIL, files converted to RGB, EXIF orientation ignored."""
        if isinstance(self.source, np.ndarray):
            return Image.fromarray(self.source[position])
        try:
            return pil_loader(self.source[position])
        except (
            OSError,
            SyntaxError,
            ValueError,
        ) as error:  # PIL's message alone does not always name the file
            raise OSError(f"cannot read the image {self.source[position]}: {error}") from error


def read_images(name: str, root: str | Path | None, part: str = "train") -> Images:
    """The images of a dataset: `part` is "train" (what GCD is trained and evaluated on) or "test".

    A missing or malformed file raises FileNotFoundError or ValueError naming it. Changed CIFAR files give a warning.

    >>> len(read_images("digits", None))
    1797
    """
    if name not in SPECS:
        raise ValueError(f"dataset {name!r} is not known; choose one of {', '.join(DATASETS)}")
    spec = SPECS[name]
    if part not in ("train", "test") or (part == "test" and not spec.test):
        raise ValueError(
            f"{spec.title} has no part {part!r}; parts are 'train' and, for the published datasets, 'test'"
        )
    if name == "digits":
        if root is not None:
            raise ValueError(
                f"digits come with scikit-learn and have no root, got root={str(root)!r}; leave it out"
            )
        return _digits()
    if root is None or not Path(root).expanduser().is_dir():
        raise FileNotFoundError(
            f"root {str(root)!r} is not a folder; {spec.title} needs one that holds: {spec.layout}"
        )
    root = Path(root).expanduser()
    nested = spec.inner != "" and (root / spec.inner).is_dir()
    home = root / spec.inner if nested else root
    try:
        images = _READERS[name](home, part)
        if part == "train" and spec.known:
            _check_classes(images.targets, spec.known + spec.novel)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{spec.title} in {home}: {error}. Expected there: {spec.layout}") from error
    except ValueError as error:
        raise ValueError(f"{spec.title} in {home}: {error}. Expected there: {spec.layout}") from error
    where = "a folder of the given root" if nested else "the given root itself"
    return replace(images, notes=(f"{spec.title} read from {home}, {where}", *images.notes))


def imagenet100_wnids() -> list[str]:
    """The protocol's 100 of the 1,000 sorted wnids. Position p is class p, so positions 0-49 are known.

    Not the "ImageNet-100" of the contrastive-learning literature. The 1,000 names come with timm.
    """
    from timm.data import ImageNetInfo  # here: only ImageNet pays for importing timm

    wnids = sorted(ImageNetInfo("imagenet-1k").label_names())
    return [wnids[i] for i in np.sort(np.random.RandomState(0).choice(1000, 100, replace=False))]


def _check_classes(targets: np.ndarray, classes: int) -> None:
    absent = sorted(set(range(classes)) - set(targets.tolist()))
    if absent:
        raise ValueError(
            f"{len(absent)} of {classes} classes have no training image (class indices {str(absent[:10])[1:-1]})"
        )
    if targets.min() < 0 or targets.max() >= classes:
        raise ValueError(
            f"class indices run from {targets.min()} to {targets.max()} instead of 0 to {classes - 1}"
        )


def _cifar(home: Path, part: str, official: type[CIFAR10], key: str) -> Images:
    # torchvision's class stops at a changed md5 and else unpickles whatever is there; here a changed file is reported
    # and read all the same, by a reader that runs nothing.
    pixels, labels = [], []
    for file, md5 in official.train_list if part == "train" else official.test_list:
        content = (home / file).read_bytes()
        found = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if found != md5:
            warnings.warn(
                f"{home / file} has md5 {found}, the published file has {md5}: not the official images",
                stacklevel=2,
            )
        entry = read_pickle(content, home / file, ARRAYS, encoding="latin1")
        data, batch = (entry.get("data"), entry.get(key)) if isinstance(entry, dict) else (None, None)
        if (
            not isinstance(data, np.ndarray)
            or data.dtype != np.uint8
            or not isinstance(batch, list)
            or data.shape != (len(batch), 3072)
        ):
            raise ValueError(f"{file} lacks 'data' (uint8, n x 3072) or {key!r} (a list of n)")
        pixels.append(data)
        labels.extend(batch)
    planes = np.concatenate(pixels).reshape(
        -1, 3, 32, 32
    )  # rows hold the R, G and B plane one after the other
    return Images(np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), np.array(labels, np.int64))


def _imagenet100(home: Path, part: str) -> Images:
    # By wnid, not by rank on disk: with only 100 folders present, ranks would silently pick other classes.
    directory, wnids = home / ("train" if part == "train" else "val"), imagenet100_wnids()
    folders = find_classes(directory)[0]
    absent = sorted(set(wnids) - set(folders))
    if absent:
        raise ValueError(
            f"{directory.name}/ has {len(folders)} folders and lacks {len(absent)} of the protocol's 100 wnids, first {absent[0]}. "
            "Other choices named ImageNet-100 exist; take the 1,000 folders of ImageNet, or the right 100 of them"
        )
    return replace(
        _tree(directory, wnids),
        notes=(f"{len(folders)} wnid folders on disk, the protocol's 100 chosen by wnid",),
    )


def _cub(home: Path, part: str) -> Images:
    paths, labels, is_train = (
        _pairs(home / f) for f in ("images.txt", "image_class_labels.txt", "train_test_split.txt")
    )
    if not paths.keys() == labels.keys() == is_train.keys():
        raise ValueError(
            "images.txt, image_class_labels.txt and train_test_split.txt do not list the same image ids"
        )
    if not set(is_train.values()) <= {"0", "1"}:
        raise ValueError("train_test_split.txt has values other than 0 and 1")
    ids = [i for i in paths if is_train[i] == ("1" if part == "train" else "0")]
    return Images(
        [str(home / "images" / paths[i]) for i in ids], np.array([int(labels[i]) - 1 for i in ids], np.int64)
    )


def _scars(home: Path, part: str) -> Images:
    # torchvision's StanfordCars wants a fixed folder name, cars_meta.mat, and the test labels outside devkit.
    from scipy.io import loadmat

    file = home / "devkit" / ("cars_train_annos.mat" if part == "train" else "cars_test_annos_withlabels.mat")
    if part == "test" and not file.exists():
        file = home / "cars_test_annos_withlabels.mat"
    if not file.exists():
        raise FileNotFoundError(f"no file {file}")
    try:
        rows = np.atleast_1d(loadmat(file, squeeze_me=True)["annotations"])
        paths, classes = (
            [str(home / f"cars_{part}" / row["fname"]) for row in rows],
            [int(row["class"]) - 1 for row in rows],
        )
    except Exception as error:  # scipy raises many kinds on a damaged file
        raise ValueError(
            f"{file} has no readable 'annotations' with fields class and fname: {error!r}"
        ) from error
    return Images(paths, np.array(classes, np.int64))


def _aircraft(home: Path, part: str) -> Images:
    # Class index = rank of the variant's name in code-point order, which is the order of variants.txt.
    file = home / "data" / f"images_variant_{'trainval' if part == 'train' else 'test'}.txt"
    variants = _pairs(file)
    names = sorted(set(variants.values()))
    if len(names) != 100:
        raise ValueError(
            f"{file.name} names {len(names)} variants instead of 100, so their ranks are not the protocol's class indices"
        )
    rank = {name: i for i, name in enumerate(names)}
    return Images(
        [str(home / "data" / "images" / f"{i}.jpg") for i in variants],
        np.array([rank[v] for v in variants.values()], np.int64),
    )


def _herbarium19(home: Path, part: str) -> Images:
    directory = home / ("small-train" if part == "train" else "small-validation")
    names = find_classes(directory)[
        0
    ]  # sorted as strings: "0", "1", "10", "100", ... is the protocol's order
    expected = sorted(str(i) for i in range(683))
    foreign, absent = sorted(set(names) - set(expected)), sorted(set(expected) - set(names), key=int)
    if foreign or (absent and part == "train"):
        raise ValueError(
            f"{directory.name}/ must hold the folders 0 .. 682, not padded with zeros (that changes their order and so the split); "
            f"{len(foreign)} unexpected ({', '.join(foreign[:5])}), {len(absent)} missing ({', '.join(absent[:5])})"
        )
    return _tree(directory, expected, allow_empty=part == "test")


def _folder(home: Path, _part: str) -> Images:
    return _tree(home, find_classes(home)[0])


def _digits() -> Images:
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = (digits.images * (255 / 16)).round().astype(np.uint8)
    return Images(pixels, digits.target.astype(np.int64), notes=("digits come with scikit-learn",))


def _tree(directory: Path, names: list[str], allow_empty: bool = False) -> Images:
    samples = make_dataset(
        directory, {name: i for i, name in enumerate(names)}, IMG_EXTENSIONS, allow_empty=allow_empty
    )
    return Images(
        [path for path, _ in samples], np.array([label for _, label in samples], np.int64), tuple(names)
    )


def _pairs(file: Path) -> dict[str, str]:
    """Lines '<unique id> <value>' in file order, split at the first space only: variants contain spaces and slashes."""
    pairs: dict[str, str] = {}
    for number, line in enumerate(file.read_text(encoding="utf-8").split("\n"), 1):
        key, _, value = line.strip().partition(" ")
        if key and (not value or key in pairs):
            raise ValueError(f"{file.name}, line {number}: expected '<unique id> <value>', got {line!r}")
        if key:
            pairs[key] = value
    return pairs


_READERS: dict[str, Callable[[Path, str], Images]] = {
    "cifar10": partial(_cifar, official=CIFAR10, key="labels"),
    "cifar100": partial(_cifar, official=CIFAR100, key="fine_labels"),
    "imagenet100": _imagenet100,
    "cub": _cub,
    "scars": _scars,
    "aircraft": _aircraft,
    "herbarium19": _herbarium19,
    "folder": _folder,
}
