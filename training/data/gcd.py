"""A data set made ready for Generalized Category Discovery: labelled part, unlabelled part, transforms."""

import hashlib
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from eagc_ops.training.config.datasets import SPECS, channels_of
from eagc_ops.training.config.places import check_split_file
from eagc_ops.training.config.schema import Glyphs
from eagc_ops.training.data.catalog import DEFAULT_GLYPHS, GREY, Images, read_images
from eagc_ops.training.data.image_files import read_list, shown
from eagc_ops.training.data.listing import Listing
from eagc_ops.training.data.pixel_cache import PixelCache
from eagc_ops.training.data.splits import class_split, label_map, labelled_positions, missing_labels
from eagc_ops.training.data.transforms import TRANSFORMS, SplitTransform, pixels_of


class ImageSubset(Dataset):
    """Some positions of `images`; an item is (PIL image, re-indexed label, uq_idx).

    `labels` and `uq_idx` are int64 tensors of all items, available without decoding an image.
    """

    def __init__(self, images: Images, positions: np.ndarray, labels: np.ndarray) -> None:
        self.images = images
        self.uq_idx = torch.from_numpy(positions)
        self.labels = torch.from_numpy(labels[images.targets[positions]])

    def __len__(self) -> int:
        return len(self.uq_idx)

    def __getitem__(self, i: int) -> tuple[Image.Image, int, int]:
        position = int(self.uq_idx[i])
        return self.images.image(position), int(self.labels[i]), position


class Merged(Dataset):
    """Labelled items, then unlabelled ones; an item is (PIL image, label, uq_idx, labelled: bool).

    `cache` has their resized pixels, by uq_idx.
    """

    def __init__(
        self, labelled: ImageSubset, unlabelled: ImageSubset, cache: PixelCache | None = None
    ) -> None:
        self.labelled, self.unlabelled, self.cache = labelled, unlabelled, cache

    def __len__(self) -> int:
        return len(self.labelled) + len(self.unlabelled)

    def __getitem__(self, j: int) -> tuple[Image.Image, int, int, bool]:
        part, i = self._place(j)
        return (*part[i], part is self.labelled)

    def pixels(self, j: int, split: SplitTransform) -> tuple[Tensor, int, int, bool]:
        """As an item, with uint8 (C, H, W) of `split.fixed(image)` in place of the image."""
        part, i = self._place(j)
        if self.cache is None or self.cache.fixed != split.name:
            image, label, uq_idx = part[i]
            return torch.from_numpy(pixels_of(split.fixed(image))), label, uq_idx, part is self.labelled
        position = int(part.uq_idx[i])
        return self.cache.pixels(position), int(part.labels[i]), position, part is self.labelled

    def _place(self, j: int) -> tuple[ImageSubset, int]:
        first = len(self.labelled)
        return (self.labelled, j) if j < first else (self.unlabelled, j - first)


@dataclass(frozen=True)
class GCDData:
    """A data set ready for training. Labels below `known` are old classes, the others are new."""

    name: str
    known: int  # number of known classes
    novel: int  # number of novel classes
    labelled: ImageSubset
    unlabelled: ImageSubset
    train_transform: Callable[[Image.Image], Tensor]
    test_transform: Callable[[Image.Image], Tensor]
    image_size: int
    channels: int
    split_hash: str  # sha256 of the positions on disk of L (in their order) and U, and of the class lists
    notes: tuple[str, ...]  # which folder and which split were read
    cache: PixelCache | None = None  # the images' resized pixels; None: they are decoded at every draw
    known_names: tuple[str, ...] = ()  # of the known classes by label, where they are folders
    truth: bool = True  # False: nobody knows the classes of the unlabelled images; their labels are -1

    @property
    def merged(self) -> Merged:
        return Merged(self.labelled, self.unlabelled, self.cache)

    @property
    def images(self) -> Images:
        """All images, in the order of the data set: the position of an image is its uq_idx."""
        return self.labelled.images

    @property
    def in_order(self) -> Merged:
        """All images in the order of the data set, whatever the split, as items without labels."""
        no_labels = np.full(max(self.images.targets.max(), 0) + 1, -1)
        labelled, unlabelled = (
            ImageSubset(self.images, part, no_labels) for part in (np.arange(0), np.arange(len(self.images)))
        )
        return Merged(labelled, unlabelled, self.cache)


def open_data(
    name: str,
    root: str | Path | None = None,
    *,
    split_file: str | Path | None = None,
    image_size: int | None = None,
    skip_unreadable: str | Path | None = None,
    glyphs: Glyphs = DEFAULT_GLYPHS,
    flip: bool | None = None,
    channels: int | None = None,
    labelled_alone: bool = False,
) -> GCDData:
    """Open the data set `name` (one of `DATASETS`) under `root`. No image is decoded here.

    Args:
        split_file: the class split of CUB, Cars, Aircraft and `folder`: see `class_split`. Default: None.
        image_size: side of the transformed images in pixels. Default: the data set's own, 224 (glyphs: 32,
            digits: 16).
        skip_unreadable: the list of files to leave out, which `eagc data verify` writes. They leave after L
            is drawn, so every other image stays in L or in U. Default: None, all files are used.
        glyphs: the images of the data set of that name. Default: 30 of each of 60 characters, 10 known.
        flip: mirror training views at random. Default: None, as the data set allows (glyphs, digits: no).
        channels: 1 reads the images in grey, 3 in RGB. Default: None, the data set's own (glyphs, digits: 1,
            all others: 3).
        labelled_alone: a `folder` without a split file is opened with all of its images labelled, and none
            unlabelled: enough for a probe, not for a run. Default: False, it is refused.

    >>> data = open_data("digits")
    >>> data.known, data.novel, len(data.labelled), len(data.unlabelled)
    (5, 5, 450, 1347)
    """
    if image_size is not None and image_size < 1:
        raise ValueError(f"image_size must be >= 1, got {image_size}")
    if name in SPECS and not SPECS[name].truth:
        return _open_listing(name, split_file, image_size, flip, channels)
    images = read_images(name, root, glyphs=glyphs, channels=channels)
    spec = SPECS[name]
    known = glyphs.known if name == "glyphs" else None
    split = class_split(name, split_file, images.names, known, labelled_alone)
    labelled, unlabelled = labelled_positions(images.targets, split, permuted=spec.permuted)
    notes = (*images.notes, *split.notes)
    kept = np.arange(len(images))
    if skip_unreadable is not None:
        kept, note = _without(images, skip_unreadable)
        labelled, unlabelled = (part[np.isin(part, kept)] for part in (labelled, unlabelled))
        if len(labelled) == 0:
            raise ValueError(f"skip_unreadable {str(skip_unreadable)!r} leaves no labelled image")
        if len(kept) < len(images):
            warnings.warn(note, stacklevel=2)
        notes = (*notes, note)
    if fault := missing_labels(images.targets[labelled], split, images.names):
        warnings.warn(fault, stacklevel=2)
    labels = label_map(split)
    size = spec.image_size if image_size is None else image_size
    train, test = TRANSFORMS[spec.transforms](size, spec.flip if flip is None else flip, images.channels)
    digest = hashlib.sha256()
    for part in (labelled, unlabelled, split.known, split.novel):
        digest.update(len(part).to_bytes(8, "little") + np.asarray(part, "<i8").tobytes())
    if len(kept) < len(images):  # uq_idx runs from 0 to the number of images that are used
        images = replace(images, source=[images.source[i] for i in kept], targets=images.targets[kept])
        labelled, unlabelled = np.searchsorted(kept, labelled), np.searchsorted(kept, unlabelled)
    return GCDData(
        name=name,
        known=len(split.known),
        novel=len(split.novel),
        labelled=ImageSubset(images, labelled, labels),
        unlabelled=ImageSubset(images, unlabelled, labels),
        train_transform=train,
        test_transform=test,
        image_size=size,
        channels=images.channels,
        split_hash=digest.hexdigest(),
        notes=notes,
        known_names=tuple(images.names[c] for c in split.known) if images.names else (),
    )


def _open_listing(
    name: str, listing: str | Path | None, image_size: int | None, flip: bool | None, channels: int | None
) -> GCDData:
    """The images in the file `listing`, of which some have no class."""
    if listing is None:
        raise ValueError(f"split_file is missing: {SPECS[name].title} are listed in a file of the discovery")
    check_split_file(name, listing)
    folders, spec = Listing.read(Path(listing)), SPECS[name]
    paths = [path for path, _ in folders.training] + folders.unlabelled_images
    known, count = len(folders.classes), len(folders.training)
    # The class -1 of an unlabelled image is the last entry of `labels`.
    targets = np.array([c for _, c in folders.training] + [-1] * len(folders.unlabelled_images), np.int64)
    labels = np.append(np.arange(known), -1)
    in_grey = channels_of(name, channels) < spec.channels
    images = Images(paths, targets, folders.classes, folders.labelled, in_grey=in_grey, upright=True)
    size = spec.image_size if image_size is None else image_size
    train, test = TRANSFORMS[spec.transforms](size, spec.flip if flip is None else flip, images.channels)
    return GCDData(
        name=name,
        known=known,
        novel=0,
        labelled=ImageSubset(images, np.arange(count), labels),
        unlabelled=ImageSubset(images, np.arange(count, len(paths)), labels),
        train_transform=train,
        test_transform=test,
        image_size=size,
        channels=images.channels,
        split_hash=folders.split_hash,
        notes=(*folders.notes, *([GREY] if in_grey else [])),
        known_names=folders.classes,
        truth=False,
    )


def _without(images: Images, file: str | Path) -> tuple[np.ndarray, str]:
    """Positions of the images that the list in `file` does not name, and a note on how many it does."""
    files = images.source if isinstance(images.source, list) else []
    listed = {os.path.normpath(os.path.join(images.home, path)): path for path in read_list(file)}
    positions = {os.path.normpath(path): i for i, path in enumerate(files)}
    foreign = [listed[path] for path in listed if path not in positions]
    if foreign:
        raise ValueError(
            f"skip_unreadable {str(file)!r} names {len(foreign)} files that are no training images below "
            f"{images.home}, the first is {shown(foreign[0])}: it was made for a different folder"
        )
    skipped = np.array([positions[path] for path in listed], np.int64)
    note = f"{len(skipped):,} of {len(images):,} images are left out: {file} lists them as unreadable"
    return np.setdiff1d(np.arange(len(images)), skipped), note
