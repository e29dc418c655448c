"""Which classes are known, and which of their images are labelled.

class_split         known and novel class lists: by formula, or from a split file
drawn_classes       half of the classes, where all are known and some have to play novel
labelled_positions  half of the pooled known-class images, drawn with seed 0 whatever the run's seed
missing_labels      what to say if a known class has no labelled image
label_map           known classes become 0 .. |K|-1 in list order, novel ones follow
"""

import hashlib
import json
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from eagc_ops.training.config.datasets import SPECS
from eagc_ops.training.config.places import check_split_file
from eagc_ops.training.data.pickles import CONTAINERS, INTEGER_SCALARS, read_pickle

# The published split files and their sha256. The files are not redistributed here.
PUBLISHED = {
    name: (SPECS[name].split_file, digest)
    for name, digest in {
        "cub": "48bdcaa05603d932037738d3df776ab500945e9b7aeff85f4668305bf71bd1e7",
        "scars": "28d471f0fb9e2c773e1255b8b447e542974f6617952203056a0635c638513d39",
        "aircraft": "2a2481307cec7821721d6a73c1a3ca77db7e657649e043d1a83aa7dd81a5a194",
        "herbarium19": "6ddd0b23888e9d9d8bd7150cafb608ddcf1804a1a1d601444e96edd499225170",
    }.items()
}
BY_FORMULA = "class split made by formula"


class ClassSplit(NamedTuple):
    """Class indices before re-indexing, in list order. The order of `known` decides the label ids."""

    known: tuple[int, ...]
    novel: tuple[int, ...]
    labelled_fraction: float = 0.5
    notes: tuple[str, ...] = ()


def class_split(
    name: str,
    split_file: str | Path | None = None,
    names: Sequence[str] = (),
    known: int | None = None,
    labelled_alone: bool = False,
) -> ClassSplit:
    """The class split of the data set `name`; `names` are the class folders of a `folder` tree.

    - CIFAR, ImageNet-100, digits, glyphs: the first classes are known. For glyphs, `names` are its
      characters and `known` is the number of known ones.
    - Herbarium19: a formula, or its published file.
    - CUB, Cars, Aircraft (Semantic Shift Benchmark): `split_file`, the published .pkl or a .json with the
      same keys, {"known_classes": [...], "unknown_classes": {"Hard": [...], "Medium": [...], "Easy": [...]}}.
    - `folder`: `split_file`, a .json or .yaml {"known_classes": [names], "labelled_fraction": 0.5}; the other
      folders are novel, in sorted order. `labelled_alone`: without a file all images are labelled.

    >>> class_split("cifar10").novel
    (5, 6, 7, 8, 9)
    """
    check_split_file(name, split_file, labelled_alone=labelled_alone)
    path = None if split_file is None else Path(split_file).expanduser()
    if name == "folder" and path is None:
        return ClassSplit(tuple(range(len(names))), (), 1.0, ("no split_file: all images are labelled",))
    if name == "folder":
        return _folder_split(path, names)
    spec = SPECS[name]
    if path is None and name == "herbarium19":
        # This draw gives the published list, order included.
        known = np.random.RandomState(0).choice(683, 341, replace=False).tolist()
        novel = sorted(set(range(683)) - set(known))
        return ClassSplit(tuple(known), tuple(novel), notes=(BY_FORMULA,))
    if name in PUBLISHED:
        return _published_split(name, path)
    classes, known = range(len(names) or spec.known + spec.novel), spec.known if known is None else known
    return ClassSplit(tuple(classes[:known]), tuple(classes[known:]), notes=(BY_FORMULA,))


def drawn_classes(names: Sequence[str]) -> list[str]:
    """Half of the classes, but 3 at least: a draw with seed 0, in the order of `names`.

    >>> drawn_classes(["ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen"])
    ['bee', 'cat', 'gnu', 'hen']
    """
    count = max(3, len(names) // 2)
    return [names[i] for i in sorted(np.random.RandomState(0).permutation(len(names))[:count])]


def labelled_positions(
    targets: np.ndarray, split: ClassSplit, *, permuted: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Positions (int64) of the labelled set L and of the unlabelled set U.

    L is `int(fraction * n)` of the n known-class images, drawn from the pool and not per class, always with
    seed 0. With `permuted` it stays in drawn order, otherwise it is sorted. U has all other positions,
    sorted.

    >>> labelled_positions(np.array([1, 0, 1, 0, 2]), ClassSplit((0, 1), (2,)))
    (array([2, 3]), array([0, 1, 4]))
    """
    pool = np.flatnonzero(np.isin(targets, split.known))
    drawn = pool[np.random.RandomState(0).permutation(len(pool))[: int(split.labelled_fraction * len(pool))]]
    if len(drawn) == 0:
        raise ValueError(
            f"labelled_fraction={split.labelled_fraction} of {len(pool)} known-class images "
            "leaves none labelled; raise it"
        )
    return drawn if permuted else np.sort(drawn), np.setdiff1d(np.arange(len(targets)), drawn)


def missing_labels(targets: np.ndarray, split: ClassSplit, names: Sequence[str] = ()) -> str | None:
    """A warning if known classes have no labelled image; `targets` are the class indices of L.

    >>> missing_labels(np.array([0, 0]), ClassSplit((0, 1), (2,)), ["ant", "bee", "cat"])
    '1 of 2 known classes have no labelled image (bee): nothing tells a run what they look like'
    """
    present = set(targets.tolist())
    absent = [c for c in split.known if c not in present]
    if not absent:
        return None
    listed = ", ".join(str(names[c]) if names else str(c) for c in absent[:5])
    return (
        f"{len(absent)} of {len(split.known)} known classes have no labelled image ({listed}): "
        "nothing tells a run what they look like"
    )


def label_map(split: ClassSplit) -> np.ndarray:
    """int64 array: class index -> label. A label is old if it is below `len(split.known)`.

    >>> label_map(ClassSplit((2, 0), (3, 1))).tolist()
    [1, 3, 0, 2]
    """
    classes = split.known + split.novel
    labels = np.empty(len(classes), np.int64)
    labels[list(classes)] = np.arange(len(classes))
    return labels


def _published_split(name: str, path: Path) -> ClassSplit:
    file, published = PUBLISHED[name]
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if path.suffix == ".json":
        entries = _parse(path, json.loads)
        note = (
            f"{path} (sha256 {digest}) is JSON: its bytes cannot be compared with {file} (sha256 {published})"
        )
    else:
        entries = read_pickle(content, path, INTEGER_SCALARS if name == "herbarium19" else CONTAINERS)
        note = f"{path} has sha256 {digest}, the published {file} has {published}"
        if digest != published:
            warnings.warn(f"{note}: it may be a different class split", stacklevel=4)
    try:
        if name == "herbarium19":
            known, novel = entries["Old"], entries["New"]
        else:  # novel classes in the order Hard, Medium, Easy, whatever order the file stores
            known = entries["known_classes"]
            novel = [c for level in ("Hard", "Medium", "Easy") for c in entries["unknown_classes"][level]]
        known, novel = _integers(known), _integers(novel)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} does not have the keys and integer lists of {file}: {error!r}") from error
    spec = SPECS[name]
    if len(known) != spec.known or sorted(known + novel) != list(range(spec.known + spec.novel)):
        raise ValueError(
            f"{path} lists {len(known)} known and {len(novel)} novel classes; {spec.title} needs "
            f"{spec.known} and {spec.novel} that cover 0 .. {spec.known + spec.novel - 1}, each once"
        )
    return ClassSplit(known, novel, notes=(note,))


def _folder_split(path: Path, names: Sequence[str]) -> ClassSplit:
    entries = _parse(path, json.loads if path.suffix == ".json" else yaml.safe_load)
    allowed = {"known_classes", "labelled_fraction"}
    if not isinstance(entries, dict) or not {"known_classes"} <= entries.keys() <= allowed:
        raise ValueError(
            f"{path} needs the key 'known_classes' and may have 'labelled_fraction', nothing else"
        )
    known, fraction = entries["known_classes"], entries.get("labelled_fraction", 0.5)
    # YAML reads the names 001 and no as a number and a truth value.
    if not isinstance(known, list) or not all(isinstance(k, str) for k in known):
        raise ValueError(
            f"{path}: 'known_classes' must be a list of folder names; put names such as 001 or no in quotes"
        )
    unknown = [k for k in known if k not in names]
    if unknown or len(set(known)) != len(known) or not 0 < len(known) < len(names):
        raise ValueError(
            f"{path}: 'known_classes' must name some, not all, of {len(names)} folders, each once; "
            f"not among the folders: {unknown[:3]}"
        )
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 < fraction < 1:
        raise ValueError(f"{path}: 'labelled_fraction' must be between 0 and 1, got {fraction!r}")
    novel = sorted(set(range(len(names))) - {names.index(k) for k in known})
    return ClassSplit(
        tuple(names.index(k) for k in known),
        tuple(novel),
        float(fraction),
        (f"class split read from {path}",),
    )


def _parse(path: Path, parser: Any) -> Any:
    try:
        return parser(path.read_text(encoding="utf-8"))
    except (ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{path} cannot be parsed: {error}") from error


def _integers(values: Iterable[Any]) -> tuple[int, ...]:
    values = list(values)
    if any(isinstance(v, bool) or not isinstance(v, int | np.int64) for v in values):
        raise TypeError("class indices must be integers")
    return tuple(int(v) for v in values)
