"""The readers of the data sets: from a root on disk to images in a fixed order, each with its class index.

`read_images` decodes no image. Published facts about the data sets are in `config/datasets.py`. `splits.py`
comes next: it turns class indices into labels.
"""

import hashlib
import os
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image
from torchvision.datasets import CIFAR10, CIFAR100
from torchvision.datasets.folder import IMG_EXTENSIONS

from eagc_ops.training.config.datasets import DATASETS, SPECS, channels_of
from eagc_ops.training.config.places import check_root
from eagc_ops.training.config.schema import Glyphs
from eagc_ops.training.data.glyphs import drawn_glyphs
from eagc_ops.training.data.image_files import HEIC, ImageError, image_size, read_image, reads_heic, shown
from eagc_ops.training.data.pickles import ARRAYS, read_pickle

DEFAULT_GLYPHS = Glyphs()
GREY = "images are read in grey, one channel; those in colour are converted"


@dataclass(frozen=True)
class Images:
    """Images in the order of the data set. The position of an image is the `uq_idx` of the protocol."""

    source: list[str] | np.ndarray  # paths, or uint8 pixels (N, H, W) or (N, H, W, 3)
    targets: np.ndarray  # int64 (N,), class index before re-indexing
    names: tuple[str, ...] = ()  # by class index: names of folders, or characters
    home: str = ""  # folder below which the files lie
    notes: tuple[str, ...] = ()  # which folder was read, and similar remarks for the user
    in_grey: bool = False  # whether images in colour are converted to one channel
    upright: bool = False  # whether files are turned as their EXIF orientation says

    def __len__(self) -> int:
        return len(self.targets)

    def image(self, position: int) -> Image.Image:
        """The image, in grey or in RGB, as `channels` says."""
        if isinstance(self.source, np.ndarray):
            image = Image.fromarray(self.source[position])
        else:
            # In RGB: grey comes back from it with the same bits.
            image = read_image(self.source[position], upright=self.upright)
        return image.convert("L") if self.in_grey else image

    def size(self, position: int) -> tuple[int, int]:
        """(width, height) of the image, from the header of its file."""
        if isinstance(self.source, np.ndarray):
            return self.source.shape[2], self.source.shape[1]
        return image_size(self.source[position], upright=self.upright)

    def origin(self, positions: Sequence[int] | np.ndarray | None = None) -> str:
        """The sha256 of the files' names, sizes and times of change, or of the pixels of images in memory.

        `positions`: of these images alone. No file is read for it.
        """
        digest = hashlib.sha256()
        if isinstance(self.source, np.ndarray):
            pixels = self.source if positions is None else self.source[positions]
            digest.update(f"{pixels.shape}".encode() + np.ascontiguousarray(pixels).data)
            return digest.hexdigest()
        for path in self.source if positions is None else (self.source[i] for i in positions):
            status = os.stat(path)
            name = os.path.relpath(path, self.home) if self.home else path
            digest.update(os.fsencode(name) + f"\0{status.st_size} {status.st_mtime_ns}\0".encode())
        return digest.hexdigest()

    @property
    def channels(self) -> int:
        """1 or 3. Files are read in RGB unless grey is asked for."""
        grey = isinstance(self.source, np.ndarray) and self.source.ndim == 3
        return 1 if grey or self.in_grey else 3


def read_images(
    name: str,
    root: str | Path | None,
    part: str = "train",
    glyphs: Glyphs = DEFAULT_GLYPHS,
    channels: int | None = None,
) -> Images:
    """The images of a data set: `part` is "train" (GCD is trained and evaluated on it) or "test".

    `glyphs`: the images of the data set of that name. `channels`: 1 reads in grey, 3 in RGB; None: the data
    set's own.

    A missing or malformed file raises a FileNotFoundError or ValueError that names it. A changed CIFAR file
    causes a warning.

    >>> len(read_images("digits", None))
    1797
    """
    if name not in SPECS:
        raise ValueError(f"dataset must be one of {', '.join(DATASETS)}, got {name!r}")
    spec = SPECS[name]
    if part not in ("train", "test") or (part == "test" and not spec.test):
        raise ValueError(
            f"{spec.title} has no part {part!r}; parts are 'train' and, for the published data sets, 'test'"
        )
    in_grey = channels_of(name, channels) < spec.channels
    check_root(name, root)
    if spec.bundled:
        return _BUNDLED[name](glyphs)
    assert root is not None  # `check_root`
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
    where = "a folder inside the root" if nested else "the root itself"
    notes = (f"{spec.title} read from {home}, {where}", *images.notes, *([GREY] if in_grey else []))
    return replace(images, home=str(home), notes=notes, in_grey=in_grey)


def imagenet100_wnids() -> list[str]:
    """The protocol's 100 of the 1,000 sorted wnids. Position p is class p, so positions 0-49 are known.

    This is not the "ImageNet-100" of the contrastive-learning literature. The 1,000 names come with timm.
    """
    from timm.data import ImageNetInfo  # imported here: the other data sets do not need timm

    wnids = sorted(ImageNetInfo("imagenet-1k").label_names())
    return [wnids[i] for i in np.sort(np.random.RandomState(0).choice(1000, 100, replace=False))]


class FilesBelow(NamedTuple):
    """The files below a folder."""

    paths: list[str]  # images
    others: Counter[str]  # files of other types, by their extension
    hidden: int  # files
    outside: int = 0  # images that lie outside of the folder, behind links

    @property
    def notes(self) -> tuple[str, ...]:
        """What was left out, for the user."""
        kinds = ", ".join(f"{count:,} {suffix}" for suffix, count in sorted(self.others.items()))
        if any(suffix in self.others for suffix in HEIC):
            kinds += " (HEIC pictures are read with the package pillow-heif: pip install pillow-heif)"
        lines = (
            kinds and f"files of other types, left out: {kinds}",
            self.hidden and f"hidden files, left out: {self.hidden:,}",
            self.outside and f"images behind links that lead outside of the folder, used: {self.outside:,}",
        )
        return tuple(line for line in lines if line)


def image_files(top: Path) -> FilesBelow:
    """The images below the folder `top`, in torchvision's order. Links to folders are followed once.

    HEIC pictures are among them where pillow-heif is installed. A folder that cannot be read is an error.
    """
    found = FilesBelow([], Counter(), 0)
    hidden, outside, entered = 0, 0, set()
    folders = []
    home, extensions = os.path.realpath(top), (*IMG_EXTENSIONS, *(HEIC if reads_heic() else ()))
    for folder, inner, files in os.walk(top, followlinks=True, onerror=_unreadable_folder):
        if (place := os.path.realpath(folder)) in entered:  # a link to a folder above it
            inner.clear()
            continue
        entered.add(place)
        folders.append((folder, files))
    for folder, files in sorted(folders):
        inside = os.path.relpath(folder, top).split(os.sep)
        is_outside = not _below(home, os.path.realpath(folder))
        is_hidden = any(part.startswith(".") and part != "." for part in inside)
        for file in sorted(files):
            if is_hidden or file.startswith("."):
                hidden += 1
            elif file.lower().endswith(extensions):
                found.paths.append(path := os.path.join(folder, file))
                outside += is_outside or (os.path.islink(path) and not _below(home, os.path.realpath(path)))
            else:
                found.others[os.path.splitext(file)[1].lower() or "no extension"] += 1
    return found._replace(hidden=hidden, outside=outside)


def _below(home: str, place: str) -> bool:
    return place == home or place.startswith(home.rstrip(os.sep) + os.sep)


def _unreadable_folder(error: OSError) -> None:
    raise ImageError(
        f"the folder {shown(str(error.filename))} cannot be read ({error.strerror}): allow it to be read, or "
        "move it away"
    ) from error


def _check_classes(targets: np.ndarray, classes: int) -> None:
    absent = sorted(set(range(classes)) - set(targets.tolist()))
    if absent:
        raise ValueError(
            f"{len(absent)} of {classes} classes have no training image "
            f"(class indices {str(absent[:10])[1:-1]})"
        )
    if targets.min() < 0 or targets.max() >= classes:
        raise ValueError(
            f"class indices run from {targets.min()} to {targets.max()} instead of 0 to {classes - 1}"
        )


def _cifar(home: Path, part: str, official: type[CIFAR10], key: str) -> Images:
    # torchvision's class refuses a file with a different md5, and unpickles the others without restrictions.
    # Here a changed file only causes a warning, and no code in it is run.
    pixels, labels = [], []
    for file, md5 in official.train_list if part == "train" else official.test_list:
        content = (home / file).read_bytes()
        actual = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if actual != md5:
            warnings.warn(
                f"{home / file} has md5 {actual}, the published file has {md5}: "
                "these are not the official images",
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
    planes = np.concatenate(pixels).reshape(-1, 3, 32, 32)  # a row holds the R, then the G, then the B plane
    return Images(np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), np.array(labels, np.int64))


def _imagenet100(home: Path, part: str) -> Images:
    # Chosen by wnid, not by rank: with only 100 folders on disk, ranks would silently pick different classes.
    directory, wnids = home / ("train" if part == "train" else "val"), imagenet100_wnids()
    folders = _class_folders(directory)[0]
    absent = sorted(set(wnids) - set(folders))
    if absent:
        raise ValueError(
            f"{directory.name}/ has {len(folders)} folders and lacks {len(absent)} of the protocol's 100 "
            f"wnids, the first is {absent[0]}. Other subsets are named ImageNet-100 too; use the 1,000 "
            "folders of ImageNet, or the right 100 of them"
        )
    images = _tree(directory, wnids)
    chosen = f"{len(folders)} wnid folders on disk, the protocol's 100 chosen by wnid"
    return replace(images, notes=(chosen, *images.notes))


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
    # torchvision's StanfordCars needs a fixed folder name, cars_meta.mat, and test labels outside devkit.
    from scipy.io import loadmat

    file = home / "devkit" / ("cars_train_annos.mat" if part == "train" else "cars_test_annos_withlabels.mat")
    if part == "test" and not file.exists():
        file = home / "cars_test_annos_withlabels.mat"
    if not file.exists():
        raise FileNotFoundError(f"no file {file}")
    try:
        rows = np.atleast_1d(loadmat(file, squeeze_me=True)["annotations"])
        paths = [str(home / f"cars_{part}" / row["fname"]) for row in rows]
        classes = [int(row["class"]) - 1 for row in rows]
    except Exception as error:  # a damaged file can make scipy raise almost anything
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
            f"{file.name} names {len(names)} variants instead of 100, "
            "so their ranks are not the protocol's class indices"
        )
    rank = {name: i for i, name in enumerate(names)}
    return Images(
        [str(home / "data" / "images" / f"{i}.jpg") for i in variants],
        np.array([rank[v] for v in variants.values()], np.int64),
    )


def _herbarium19(home: Path, part: str) -> Images:
    directory = home / ("small-train" if part == "train" else "small-validation")
    names = _class_folders(directory)[
        0
    ]  # sorted as strings, the protocol's order: "0", "1", "10", "100", ...
    expected = sorted(str(i) for i in range(683))
    foreign, absent = sorted(set(names) - set(expected)), sorted(set(expected) - set(names), key=int)
    if foreign or (absent and part == "train"):
        raise ValueError(
            f"{directory.name}/ must hold the folders 0 .. 682, not padded with zeros (that changes their "
            f"order and so the split); {len(foreign)} unexpected ({', '.join(foreign[:5])}), "
            f"{len(absent)} missing ({', '.join(absent[:5])})"
        )
    return _tree(directory, expected, allow_empty=part == "test")


def _folder(home: Path, _part: str) -> Images:
    names, notes = _class_folders(home)
    if not names:
        raise FileNotFoundError("it has no class folders")
    images = _tree(home, names)
    return replace(images, notes=(*notes, *images.notes))


def _digits(_: Glyphs) -> Images:
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = (digits.images * (255 / 16)).round().astype(np.uint8)
    return Images(pixels, digits.target.astype(np.int64), notes=("digits come with scikit-learn",))


def _glyphs(settings: Glyphs) -> Images:
    drawn = drawn_glyphs(settings)
    return Images(drawn.pixels, drawn.targets, tuple(drawn.characters), notes=drawn.notes)


def _class_folders(directory: Path) -> tuple[list[str], tuple[str, ...]]:
    """Names of the class folders, sorted as strings, and notes on what else there is."""
    with os.scandir(directory) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    folders = [entry.name for entry in entries if entry.is_dir()]
    hidden = [name for name in folders if name.startswith(".")]
    loose = sum(not entry.is_dir() and not entry.name.startswith(".") for entry in entries)
    notes = []
    if hidden:
        notes.append(f"hidden folders are no classes: {', '.join(hidden)}")
    if loose:
        notes.append(f"files beside the class folders, left out: {loose:,}")
    return [name for name in folders if not name.startswith(".")], tuple(notes)


def _tree(directory: Path, names: list[str], allow_empty: bool = False) -> Images:
    """The images below the class folders `names`, in torchvision's order.

    Hidden files and folders are left out: programs keep copies and thumbnails there.
    """
    found = [image_files(directory / name) for name in names]
    paths = [path for below in found for path in below.paths]
    targets = [index for index, below in enumerate(found) for _ in below.paths]
    empty = [name for name, below in zip(names, found) if not below.paths]
    others = sum((below.others for below in found), Counter())
    hidden, outside = (sum(getattr(below, name) for below in found) for name in ("hidden", "outside"))
    notes = FilesBelow([], others, hidden, outside).notes
    if empty and not allow_empty:
        raise FileNotFoundError(
            f"{len(empty)} class folders have no image ({', '.join(empty[:5])}); images are "
            f"{', '.join(IMG_EXTENSIONS)}" + "".join(f"; {note}" for note in notes)
        )
    return Images(paths, np.array(targets, np.int64), tuple(names), notes=notes)


def _pairs(file: Path) -> dict[str, str]:
    """Lines '<unique id> <value>' in file order. A value may hold spaces: the names of variants do."""
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
_BUNDLED: dict[str, Callable[[Glyphs], Images]] = {"digits": _digits, "glyphs": _glyphs}
