"""The user's two folders: labelled images in class folders, and unlabelled images.

`list_folders` finds the images, holds out some labelled ones and names what is wrong. `Listing.write` stores
the result, so that a discovery that continues has the same images. No image is changed or moved.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from eagc_ops.app.places import PlaceError
from eagc_ops.discovery.places import check_two_folders
from eagc_ops.training.config import ConfigError
from eagc_ops.training.data.catalog import image_files, read_images
from eagc_ops.training.data.image_files import find_unreadable, listed_paths, shown
from eagc_ops.training.data.listing import Listing

__all__ = ["list_folders"]

LEAST_TO_HOLD_OUT = 3  # a class with so many images holds out at least one; two stay for training
NAMED = 3  # files that a message names


def list_folders(
    labelled: Path,
    unlabelled: Path,
    *,
    holdout: float = 0.2,
    skip_unreadable: bool = False,
    drop_duplicates: bool = False,
    progress: bool = False,
) -> Listing:
    """List the images of both folders, open the header of every file, and hold labelled images out.

    Args:
        unlabelled: a folder with images at any depth, or a text file with one path per line (relative to
            the file's folder).
        holdout: share of every class's images to hold out, in [0, 1): at least one of a class with 3 images,
            and at least 2 stay to train on. Images that are also unlabelled are not held out. The draw is
            always the same.
        skip_unreadable: leave out images that cannot be read; otherwise they are an error that names them.
        drop_duplicates: leave out unlabelled images that equal a labelled one in content.
        progress: show a bar over the files.
    """
    options = {"holdout": holdout, "skip_unreadable": skip_unreadable, "drop_duplicates": drop_duplicates}
    if not 0 <= holdout < 1:
        raise ConfigError(f"holdout must be >= 0 and < 1, got {holdout}; 0 holds nothing out", "holdout")
    check_two_folders(labelled, unlabelled)
    labelled, unlabelled = (Path(os.path.abspath(place)) for place in (labelled, unlabelled))
    try:
        images = read_images("folder", labelled)
    except FileNotFoundError as error:
        raise PlaceError(f"labelled folder: no labelled images: {error}") from error
    _check_names(images.names, f"labelled folder {labelled}")
    others, notes = _unlabelled_files(unlabelled)
    unreadable = find_unreadable([*images.source, *others], skip_unreadable, progress)
    known = [(path, int(c)) for path, c in zip(images.source, images.targets) if path not in unreadable]
    others = [path for path in others if path not in unreadable]
    duplicates = _duplicates([path for path, _ in known], others)
    if drop_duplicates:
        dropped = {path for path, _ in duplicates}
        others = [path for path in others if path not in dropped]
    _check_counts(known, others, images.names, labelled, unlabelled)
    shared = set() if drop_duplicates else {path for _, path in duplicates}
    held_out = _held_out(known, holdout, shared)
    return Listing(
        labelled=str(labelled),
        unlabelled=str(unlabelled),
        options=options,
        classes=images.names,
        training=[entry for entry in known if entry not in held_out],
        held_out=[entry for entry in known if entry in held_out],
        unlabelled_images=others,
        unreadable=unreadable,
        duplicates=duplicates,
        notes=[*images.notes[1:], *notes, *_notes(unreadable, duplicates, drop_duplicates)],
    )


def _unlabelled_files(place: Path) -> tuple[list[str], tuple[str, ...]]:
    if place.is_dir():
        found = image_files(place)
        if not found.paths:
            raise PlaceError(
                f"unlabelled images {place} has no images{''.join(f'; {note}' for note in found.notes)}"
            )
        return found.paths, found.notes
    listed = listed_paths(place)
    paths = list(dict.fromkeys(listed))
    missing = [path for path in paths if not os.path.isfile(path)]
    if missing or not paths:
        first = (
            f"{len(missing):,} of its lines name no file, the first is {shown(missing[0])}" if missing else ""
        )
        raise PlaceError(
            f"unlabelled images {place}: {first or 'it lists no image'}; list one image file per line"
        )
    twice = len(listed) - len(paths)
    return paths, (f"lines of {place.name} that repeat a path, left out: {twice:,}",) if twice else ()


def _check_names(classes: Sequence[str], where: str) -> None:
    if len(classes) < 2:
        raise PlaceError(
            f"{where} has one class folder, {classes[0]}: a discovery needs at least two known classes to "
            "learn what makes a category"
        )
    same = defaultdict(list)
    for name in classes:
        same[name.casefold()].append(name)
    for alike in same.values():
        if len(alike) > 1:
            raise PlaceError(
                f"{where} has class folders whose names differ only by case: {', '.join(alike)}; merge or "
                "rename them"
            )
    taken = [name for name in classes if name.startswith("new-") and name[4:].isdigit()]
    if taken:
        raise PlaceError(f"{where} has a class folder {taken[0]}: new categories get such names; rename it")


def _check_counts(
    known: list[tuple[str, int]],
    others: list[str],
    classes: Sequence[str],
    labelled: Path,
    unlabelled: Path,
) -> None:
    left = {c for _, c in known}
    if empty := [name for c, name in enumerate(classes) if c not in left]:
        raise PlaceError(
            f"labelled folder {labelled}: no image of {', '.join(empty[:NAMED])} can be read; remove the "
            "folder, or repair its images"
        )
    if not others:
        raise PlaceError(f"unlabelled images {unlabelled}: no image is left to discover categories in")


def _duplicates(known: list[str], others: list[str]) -> list[tuple[str, str]]:
    """(unlabelled, labelled) images with the same bytes. Only files of equal size are read."""
    sizes = [{path: os.path.getsize(path) for path in paths} for paths in (known, others)]
    common = set(sizes[0].values()) & set(sizes[1].values())
    by_content = {_digest(path): path for path, size in sizes[0].items() if size in common}
    pairs = ((path, by_content.get(_digest(path))) for path, size in sizes[1].items() if size in common)
    return [(path, twin) for path, twin in pairs if twin is not None]


def _digest(path: str) -> bytes:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.digest()


def _held_out(known: list[tuple[str, int]], share: float, shared: set[str]) -> set[tuple[str, int]]:
    by_class: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for path, c in known:
        by_class[c].append((path, c))
    drawn: set[tuple[str, int]] = set()
    random = np.random.RandomState(0)
    for members in by_class.values():
        order = [members[i] for i in random.permutation(len(members))]  # drawn for every class, used or not
        if share > 0 and len(members) >= LEAST_TO_HOLD_OUT:
            count = min(max(1, round(share * len(members))), len(members) - 2)
            drawn.update([entry for entry in order if entry[0] not in shared][:count])
    return drawn


def _notes(unreadable: dict[str, str], duplicates: list[tuple[str, str]], dropped: bool) -> Iterable[str]:
    if unreadable:
        named = ", ".join(shown(path) for path in [*unreadable][:NAMED])
        yield f"images that cannot be read, left out: {len(unreadable):,} ({named})"
    if duplicates:
        a, b = duplicates[0]
        what = (
            "left out of the unlabelled ones"
            if dropped
            else "used on both sides; drop_duplicates leaves them out"
        )
        yield (
            f"images that are both labelled and unlabelled, {what}: {len(duplicates):,} "
            f"(the first: {shown(a)} = {shown(b)})"
        )
