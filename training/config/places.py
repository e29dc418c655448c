"""The folders and files that settings name, checked by their names and headers before anything is read.

Each function is used twice: by the commands, before torch is imported, and by the reader of the file itself.
`what` is the word for the setting in messages: "root" in Python, "--root" on a command line.
"""

from __future__ import annotations

from pathlib import Path

from eagc_ops.places import MissingPlaceError, PlaceError, readable_file, readable_folder, writable_folder
from eagc_ops.training.config.datasets import SPECS

__all__ = ["check_links", "check_root", "check_split_file", "check_two_folders"]

LINKS = ".eagc-discover"  # marks a folder of links that `eagc discover --sort-into` made

PUBLISHED_WHERE = (
    "published in the GitHub repository sgvaze/generalized-category-discovery, folder data/ssb_splits"
)
_OWN_SPLIT = (
    'a .json or .yaml with {"known_classes": ["name", ...], "labelled_fraction": 0.5}, names being class '
    "folders"
)


def check_root(dataset: str, root: str | Path | None, what: str = "root") -> None:
    """Check that `root` is a folder, or that there is none where the images come with a package."""
    spec = SPECS[dataset]
    if spec.bundled:
        if root is not None:
            raise PlaceError(
                f"{what} {root}: {dataset} come with {spec.bundled} and have no root; leave it out"
            )
        return
    needs = f"{spec.title} needs a folder with {spec.layout}"
    if root is None:
        raise MissingPlaceError(f"{what} is missing: {needs}")
    readable_folder(what, Path(root).expanduser(), needs)


def check_split_file(
    dataset: str, file: str | Path | None, what: str = "split_file", *, labelled_alone: bool = False
) -> None:
    """Check that `file` is of the kind that the data set's class split is read from.

    `labelled_alone`: no unlabelled image is needed, so that the classes of an image folder may all be known.
    """
    spec = SPECS[dataset]
    if not spec.truth:
        if file is not None:  # before a discovery begins, its images are not listed yet
            readable_file(what, Path(file), f"it lists {spec.title}; start again in a different folder")
        return
    if not (spec.split_file or spec.needs_split_file):
        if file is not None:
            raise PlaceError(
                f"{what} {file}: the class split of {dataset} is a formula and reads no file; leave it out"
            )
        return
    benchmark = " of the Semantic Shift Benchmark" if spec.needs_split_file else ""
    wanted = f"{spec.split_file}{benchmark}, {PUBLISHED_WHERE}" if spec.split_file else _OWN_SPLIT
    if file is None:
        if spec.needs_split_file and not (labelled_alone and dataset == "folder"):
            raise MissingPlaceError(f"{what} is missing: {spec.title} needs {wanted}")
        return
    path = Path(file).expanduser()
    readable_file(what, path, f"{spec.title} needs {wanted}")
    kinds = (".pkl", ".json") if spec.split_file else (".json", ".yaml", ".yml")
    if path.suffix not in kinds:
        raise PlaceError(f"{what} {path} must end in {', '.join(kinds)}: {spec.title} needs {wanted}")


_WHICH = "name a folder of images, or a text file with one path per line"


def check_two_folders(labelled: Path, unlabelled: Path, output: Path | None = None) -> None:
    """Check the places of a discovery: two folders apart from one another, and `output` in neither of "
    "them."""
    what = f"labelled folder {labelled}"
    readable_folder(
        "labelled folder", labelled, "name a folder that holds one folder of images for each known class"
    )
    if not unlabelled.is_file():
        readable_folder("unlabelled images", unlabelled, _WHICH)
        other = f"unlabelled images {unlabelled}"
        if labelled.resolve() == unlabelled.resolve():
            raise PlaceError(f"{other}: this is the labelled folder; name that of the other images")
        for a, inner, b, outer in ((other, unlabelled, what, labelled), (what, labelled, other, unlabelled)):
            if outer.resolve() in inner.resolve().parents:
                raise PlaceError(f"{a} lies inside of {b}: move one of them, so that no image is in both")
    else:
        readable_file("unlabelled images", unlabelled, _WHICH)
    if output is not None:
        _check_apart("output", output, labelled, unlabelled)


def check_links(folder: Path, labelled: Path, unlabelled: Path) -> None:
    """Check that links may be made in `folder`: a new or empty one, or one that was made for links before."""
    _check_apart("sort_into", folder, labelled, unlabelled)
    writable_folder("sort_into", folder)
    if folder.is_dir() and any(folder.iterdir()) and not (folder / LINKS).exists():
        raise PlaceError(f"sort_into {folder} is not empty, and was not made for links; name a new folder")


def _check_apart(what: str, folder: Path, labelled: Path, unlabelled: Path) -> None:
    for images in (labelled, unlabelled):
        if images.is_dir() and images.resolve() in (folder.resolve(), *folder.resolve().parents):
            raise PlaceError(f"{what} {folder} lies inside of your images {images}; name a folder elsewhere")
