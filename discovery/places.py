"""Check the folders of a discovery before anything is read. Nothing here needs torch.

Also the names of the files in its output folder.
"""

from __future__ import annotations

import os
from pathlib import Path

from eagc_ops.app.places import PlaceError, readable_file, readable_folder, writable_folder

__all__ = [
    "ANSWER",
    "CATEGORIES",
    "CATEGORIES_JSON",
    "IMAGES",
    "LINKS",
    "REHEARSAL",
    "RESULTS",
    "TRAINING",
    "TRUNK_CACHE",
    "check_links",
    "check_two_folders",
]

IMAGES, TRUNK_CACHE = "images.json", "trunk-cache"
RESULTS = "training.safetensors"  # what a training says about the images
TRAINING, REHEARSAL = "training", "rehearsal"  # runs inside of the output folder
CATEGORIES_JSON = "categories.json"  # the answer, for people and programs
CATEGORIES = "categories.safetensors"  # what places other images
ANSWER = "answer.safetensors"  # the clustering that was kept
LINKS = ".eagc-discover"  # marks a folder of links that `eagc discover --sort-into` made

_WHICH = "name a folder of images, or a text file with one path per line"


def check_two_folders(labelled: Path, unlabelled: Path, output: Path | None = None) -> None:
    """Check that neither folder is inside the other, and that `output` is in neither."""
    what = f"labelled folder {labelled}"
    readable_folder(
        "labelled folder", labelled, "name a folder that holds one folder of images for each known class"
    )
    if not unlabelled.is_file():
        readable_folder("unlabelled images", unlabelled, _WHICH)
        other = f"unlabelled images {unlabelled}"
        if _real(labelled) == _real(unlabelled):
            raise PlaceError(f"{other}: this is the labelled folder; name that of the other images")
        for a, inner, b, outer in ((other, unlabelled, what, labelled), (what, labelled, other, unlabelled)):
            if _real(outer) in _real(inner).parents:
                raise PlaceError(f"{a} lies inside of {b}: move one of them, so that no image is in both")
    else:
        readable_file("unlabelled images", unlabelled, _WHICH)
    if output is not None:
        _check_apart("output", output, labelled, unlabelled)


def check_links(folder: Path, labelled: Path, unlabelled: Path, output: Path) -> None:
    """Check that links may be made in `folder`: it must be new, empty, or made for links before.

    Earlier links in all of its folders are removed, so the `output`'s folders must not be among them.
    """
    _check_apart("sort_into", folder, labelled, unlabelled)
    if _real(folder) in (_real(output), *_real(output).parents):
        raise PlaceError(
            f"sort_into {folder} is the output folder, or holds it; name a folder of its own", "sort_into"
        )
    writable_folder("sort_into", folder)
    if folder.is_dir() and any(folder.iterdir()) and not (folder / LINKS).exists():
        raise PlaceError(
            f"sort_into {folder} is not empty, and was not made for links; name a new folder", "sort_into"
        )


def _check_apart(what: str, folder: Path, labelled: Path, unlabelled: Path) -> None:
    for images in (labelled, unlabelled):
        if images.is_dir() and _real(images) in (_real(folder), *_real(folder).parents):
            raise PlaceError(
                f"{what} {folder} lies inside of your images {images}; name a folder elsewhere", what
            )


def _real(path: Path) -> Path:
    """The path with links resolved; a loop of links, where `Path.resolve` fails, stays."""
    return Path(os.path.realpath(path))
