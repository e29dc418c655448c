"""The folders and files that settings name, checked by their names and headers before anything is read.

Each function is used twice: by the commands, before torch is imported, and by the reader of the file itself.
`what` is the word for the setting in messages: "root" in Python, "--root" on a command line.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

from eagc_ops.app.places import MissingPlaceError, PlaceError, readable_file, readable_folder
from eagc_ops.training.config.datasets import SPECS

__all__ = ["check_inflated", "check_root", "check_split_file"]

PUBLISHED_WHERE = (
    "published in the GitHub repository sgvaze/generalized-category-discovery, folder data/ssb_splits"
)
_OWN_SPLIT = (
    'a .json or .yaml with {"known_classes": ["name", ...], "labelled_fraction": 0.5}, names being class '
    "folders"
)
_NAMED = ("folder", "glyphs")  # data sets whose classes a user's split file may name


def check_root(dataset: str, root: str | Path | None, what: str = "root") -> None:
    """Check that `root` is a folder, or that there is none where the images come with a package."""
    spec = SPECS[dataset]
    if spec.bundled:
        if root is not None:
            raise PlaceError(
                f"{what} {root}: {dataset} come with {spec.bundled} and have no root; leave it out", what
            )
        return
    needs = f"{spec.title} needs a folder with {spec.layout}"
    if root is None:
        raise MissingPlaceError(f"{what} is missing: {needs}", what)
    readable_folder(what, Path(root).expanduser(), needs)


def check_split_file(
    dataset: str, file: str | Path | None, what: str = "split_file", *, labelled_alone: bool = False
) -> None:
    """Check that `file` is of the kind that the data set's class split is read from.

    `labelled_alone`: no unlabelled image is needed, so that the classes of an image folder may all be known.
    """
    spec = SPECS[dataset]
    if not spec.truth:
        if file is not None:  # without one, the images are not listed yet
            readable_file(what, Path(file), f"it lists {spec.title}; start again in a different folder")
        return
    if not (spec.split_file or spec.needs_split_file or dataset in _NAMED):
        if file is not None:
            raise PlaceError(
                f"{what} {file}: the class split of {dataset} is a formula and reads no file; leave it out",
                what,
            )
        return
    benchmark = " of the Semantic Shift Benchmark" if spec.needs_split_file else ""
    wanted = f"{spec.split_file}{benchmark}, {PUBLISHED_WHERE}" if spec.split_file else _OWN_SPLIT
    if file is None:
        if spec.needs_split_file and not (labelled_alone and dataset == "folder"):
            raise MissingPlaceError(f"{what} is missing: {spec.title} needs {wanted}", what)
        return
    path = Path(file).expanduser()
    readable_file(what, path, f"{spec.title} needs {wanted}")
    kinds = (".pkl", ".json") if spec.split_file else (".json", ".yaml", ".yml")
    if path.suffix not in kinds:
        raise PlaceError(f"{what} {path} must end in {', '.join(kinds)}: {spec.title} needs {wanted}", what)


def check_inflated(file: Path, what: str = "weights") -> None:
    """Refuse a zip whose parts are much larger than the file, before they fill the memory.

    torch saves weights uncompressed. A directory that lies about the sizes is found when the parts are read.
    """
    with zipfile.ZipFile(file) as archive:
        inflated, size = sum(entry.file_size for entry in archive.infolist()), file.stat().st_size
    if inflated > 2 * size + 1_000_000:
        raise PlaceError(
            f"{what} {file}: refused, as its {size:,} bytes unpack to {inflated:,}, and torch does not "
            "compress what it saves; name a file that torch wrote",
            what,
        )
